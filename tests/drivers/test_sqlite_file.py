"""What SQLite files are made, adopted and refused."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from postroom.core.address import Address, parse_url
from postroom.core.message import Ack, Envelope
from postroom.drivers import sqlite
from postroom.drivers.io import drive
from postroom.drivers.sqlite_file import translate
from postroom.errors import (
    AuthenticationError,
    ConfigurationError,
    InvalidParameterError,
    MailboxConnectionError,
    QueueNotFoundError,
    ServiceUnavailableError,
)


def bytes_of(path: Path) -> bytes:
    return path.read_bytes()


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_and_its_log_are_for_its_owner_only(shop, opened):
    before = os.umask(0)
    try:
        driver = opened()
        drive(driver.ensure("orders"))
    finally:
        os.umask(before)
    assert {path.name: permissions(path) for path in shop.parent.iterdir()} == {
        "shop.db": 0o600,
        "shop.db-wal": 0o600,
        "shop.db-shm": 0o600,
    }


def test_an_existing_file_keeps_its_permissions(shop, opened):
    shop.touch(0o640)
    shop.chmod(0o640)
    opened()
    assert permissions(shop) == 0o640


def test_an_applications_database_is_adopted_and_stays_its_own(shop, opened):
    with sqlite3.connect(shop) as app:
        app.execute("PRAGMA application_id = 4711")
        app.execute("PRAGMA user_version = 42")
        app.execute("CREATE TABLE customer (name)")
        app.execute("INSERT INTO customer VALUES ('Ada')")
    app.close()
    driver = opened()
    drive(driver.ensure("orders"))
    drive(driver.put("orders", [Envelope("1", b"x")]))
    app = sqlite3.connect(shop)
    assert app.execute("PRAGMA application_id").fetchone() == (4711,)
    assert app.execute("PRAGMA user_version").fetchone() == (42,)
    assert app.execute("SELECT * FROM customer").fetchall() == [("Ada",)]
    ours = "SELECT count(*) FROM sqlite_master WHERE name NOT GLOB '*postroom_*' AND name <> 'customer'"
    assert app.execute(ours).fetchone() == (0,)
    app.close()


def test_messages_are_there_when_the_file_is_opened_again(opened):
    first = opened()
    drive(first.ensure("orders"))
    drive(first.put("orders", [Envelope("1", b"body", attributes={"k": "v"})]))
    drive(first.close())
    again = opened()
    [found] = drive(again.claim("orders", 1, lease=5, wait=0, claim_id="a")).deliveries
    assert (found.envelope.id, found.envelope.body, found.envelope.attributes) == ("1", b"body", {"k": "v"})


def test_a_link_leads_to_the_file_and_to_what_lies_beside_it(shop, opened):
    """Processes that ring for one another, or take turns at folding the log, must meet beside the same file."""
    drive(opened().close())  # two openers of one process share what lies beside the file anyway
    link = shop.parent / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(shop)
    driver = opened(link)
    drive(driver.ensure("orders"))
    drive(driver.claim("orders", 1, lease=5, wait=0.01, claim_id="a"))  # waits, and hangs out its bell
    drive(driver.put("orders", [Envelope("1", b"x")]))
    assert [path.name for path in link.parent.iterdir()] == ["link.db"]
    assert len(drive(opened().claim("orders", 1, lease=5, wait=0, claim_id="b")).deliveries) == 1


@pytest.mark.parametrize("content", [b"This is not a database. " * 100, b"x", b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_file_that_is_no_database_is_refused_untouched(shop, opened, content):
    shop.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"shop\.db"):
        opened()
    assert bytes_of(shop) == content


@pytest.mark.parametrize(
    "schema",
    [
        "CREATE TABLE postroom_store (other)",
        "CREATE TABLE postroom_message (id, text)",
        "CREATE TABLE postroom_store (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
        "CREATE TABLE postroom_store (name, value); INSERT INTO postroom_store VALUES ('schema', 'one')",
        "CREATE TABLE postroom_store (name, value); INSERT INTO postroom_store VALUES ('schema', 1)",
        "CREATE VIEW postroom_store AS SELECT 'schema' AS name, 1 AS value",
    ],
)
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_tables_of_an_unknown_shape_are_refused_untouched(shop, opened, schema, journal):
    foreign = sqlite3.connect(shop)
    foreign.execute(f"PRAGMA journal_mode = {journal}")
    foreign.executescript(schema)
    foreign.close()
    before = bytes_of(shop)
    with pytest.raises(ConfigurationError, match="not Postroom's"):
        opened()
    assert bytes_of(shop) == before


def test_a_file_of_a_newer_library_is_refused_untouched(shop, opened):
    drive(opened().close())
    newer = sqlite3.connect(shop, isolation_level=None)
    newer.execute("UPDATE postroom_store SET value = 2 WHERE name = 'schema'")
    newer.execute("ALTER TABLE postroom_message ADD COLUMN invented")
    newer.close()
    before = bytes_of(shop)
    with pytest.raises(ConfigurationError, match="newer Postroom"):
        opened()
    assert bytes_of(shop) == before


def test_what_a_crashed_application_left_in_its_log_stays_there_when_its_file_is_refused(shop, opened):
    """Even closing must not fold the log of a file that is not ours."""
    writer = sqlite3.connect(shop, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("CREATE TABLE postroom_store (other)")
    crashed = {name: (shop.parent / name).read_bytes() for name in ("shop.db", "shop.db-wal")}
    writer.close()
    for name, content in crashed.items():
        (shop.parent / name).write_bytes(content)
    with pytest.raises(ConfigurationError):
        opened()
    assert {name: (shop.parent / name).read_bytes() for name in crashed} == crashed


def test_tables_that_vanish_under_us_are_a_configuration_error(shop, opened):
    driver = opened()
    drive(driver.ensure("orders"))
    vandal = sqlite3.connect(shop, isolation_level=None)
    vandal.execute("DROP TABLE postroom_message")
    vandal.close()
    with pytest.raises(ConfigurationError, match="changed or removed") as caught:
        drive(driver.put("orders", [Envelope("1", b"x")]))
    assert isinstance(caught.value.__cause__, sqlite3.Error)


def test_a_missing_directory_is_named(tmp_path, opened):
    with pytest.raises(MailboxConnectionError, match="nowhere"):
        opened(tmp_path / "nowhere" / "shop.db")


@pytest.mark.parametrize(
    ("name", "kind", "transient"),
    [
        ("SQLITE_BUSY", ServiceUnavailableError, True),
        ("SQLITE_LOCKED", ServiceUnavailableError, True),
        ("SQLITE_FULL", ServiceUnavailableError, True),
        ("SQLITE_IOERR_FSYNC", ServiceUnavailableError, True),
        ("SQLITE_NOTADB", ConfigurationError, False),
        ("SQLITE_CORRUPT", ConfigurationError, False),
        ("SQLITE_READONLY", AuthenticationError, False),
        ("SQLITE_CANTOPEN", MailboxConnectionError, True),
        ("SQLITE_TOOBIG", InvalidParameterError, False),
    ],
)
def test_every_error_of_sqlite_has_one_meaning(name, kind, transient):
    error = sqlite3.OperationalError("it said so")
    error.sqlite_errorname = name
    error.sqlite_errorcode = getattr(sqlite3, name)
    meant = translate(error, "shop.db")
    assert (type(meant), meant.transient, meant.code) == (kind, transient, name)
    assert "shop.db: it said so" in str(meant)


def test_a_directory_is_no_file(tmp_path, opened):
    with pytest.raises(ConfigurationError, match="is a directory"):
        opened(tmp_path)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://:memory:"])
def test_a_database_in_memory_is_refused_with_advice(url):
    with pytest.raises(ConfigurationError, match="memory://"):
        sqlite.open(parse_url(url), flavour="sync")


def test_two_slashes_are_one_too_few():
    with pytest.raises(ConfigurationError, match=r"sqlite:///shop\.db"):
        sqlite.open(parse_url("sqlite://shop.db"), flavour="sync")


def test_a_url_says_whether_the_path_is_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///a.db", f"sqlite:///{tmp_path}/b.db?durability=relaxed&busy_timeout=2.5"):
        drive(sqlite.open(parse_url(url), flavour="sync").close())
    assert {path.name for path in tmp_path.glob("*.db")} == {"a.db", "b.db"}


@pytest.mark.parametrize(
    "options",
    [
        {"durabilty": "strict"},
        {"durability": "always"},
        {"busy_timeout": "soon"},
        {"busy_timeout": -1},
        {"busy_timeout": float("nan")},
        {"safety_poll": 0.01},
        {"namespace": "a:b"},
        {"clock": 5},
    ],
)
def test_an_unknown_or_senseless_option_is_refused_before_a_file_is_made(shop, opened, options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        opened(**options)
    assert not shop.exists()


def test_tenants_do_not_see_one_another(opened):
    mine, theirs = opened(namespace="mine"), opened(namespace="theirs")
    drive(mine.ensure("orders"))
    drive(mine.put("orders", [Envelope("1", b"x", dedup_id="d")]))
    assert drive(theirs.queues()) == []
    with pytest.raises(QueueNotFoundError):
        drive(theirs.claim("orders", 1, lease=5, wait=0, claim_id="a"))
    drive(theirs.ensure("orders"))
    assert drive(theirs.claim("orders", 1, lease=5, wait=0, claim_id="b")).deliveries == ()
    assert drive(mine.claim("orders", 1, lease=5, wait=0, claim_id="c")).deliveries


def test_one_damaged_row_does_not_hide_its_neighbours(shop, opened):
    driver = opened()
    drive(driver.ensure("orders"))
    drive(driver.put("orders", [Envelope(str(i), b"x", attributes={"k": "v"}) for i in range(3)]))
    vandal = sqlite3.connect(shop, isolation_level=None)
    vandal.execute("UPDATE postroom_message SET head = x'C1FF', record = 'text' WHERE id = '1'")
    vandal.close()
    found = drive(driver.claim("orders", 9, lease=5, wait=0, claim_id="a")).deliveries
    assert [(d.envelope.id, d.envelope.fault is None) for d in found] == [("0", True), ("1", False), ("2", True)]


@pytest.mark.parametrize(
    ("column", "garbage"),
    [
        ("rules", b"\xc1"),
        ("rules", "text"),
        ("rules", b"\x81\xa8sessions\xa1\x80"),
        ("status", "odd"),
        ("created_at", "now"),
    ],
)
def test_a_damaged_queue_is_named_and_hides_no_other(shop, opened, column, garbage):
    driver = opened()
    for queue in ("orders", "other"):
        drive(driver.ensure(queue))
    vandal = sqlite3.connect(shop, isolation_level=None)
    vandal.execute(f"UPDATE postroom_queue SET {column} = ? WHERE name = 'orders'", (garbage,))
    vandal.close()
    anew = opened()
    with pytest.raises(ConfigurationError, match="orders: what the file says of this queue"):
        drive(anew.put("orders", [Envelope("1", b"x")]))
    drive(anew.put("other", [Envelope("1", b"x")]))


def test_the_address_of_a_file_may_need_quoting(tmp_path, opened):
    odd = tmp_path / "50% off? #1.db"
    drive(opened(odd).ensure("orders"))
    assert odd.exists()
    assert Address("sqlite", f"/{odd}")


def test_a_large_body_comes_back_whole_and_leaves_nothing_behind(shop, opened):
    driver = opened()
    drive(driver.ensure("orders"))
    body = os.urandom(300_000)
    drive(driver.put("orders", [Envelope("big", body, size=len(body)), Envelope("small", b"s", size=1)]))
    found = drive(driver.claim("orders", 2, lease=5, wait=0, claim_id="a")).deliveries
    assert [d.envelope.body for d in found] == [body, b"s"]
    drive(driver.settle("orders", [Ack(d.handle) for d in found]))
    look = sqlite3.connect(shop)
    assert look.execute(
        "SELECT (SELECT count(*) FROM postroom_body), (SELECT sum(bytes) FROM postroom_tally)"
    ).fetchone() == (0, 0)
    look.close()
