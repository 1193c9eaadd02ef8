"""Files that are not ours, not whole or not free: refused untouched, adopted politely, read around, waited for."""

import asyncio
import hashlib
import os
import sqlite3
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.errors import ConfigurationError, MailboxError, ServiceUnavailableError
from tests.faults.checker import prove
from tests.faults.rig import Box, Line, Nursery, Place, acknowledge, name_of, receive, send

pytestmark = pytest.mark.faults


def digest(path: Path) -> tuple[str, list[str]]:
    """What is in the file, and what lies beside it; SQLite may make an index, and a log with nothing in it, to look."""
    beside = [other for other in path.parent.iterdir() if not other.name.endswith("-shm")]
    return hashlib.sha256(path.read_bytes()).hexdigest(), sorted(other.name for other in beside if other.stat().st_size)


def sql(path: Path, *statements: str, **options: Any) -> None:
    connection = sqlite3.connect(path, isolation_level=None, **options)
    try:
        for statement in statements:
            connection.execute(statement)
    finally:
        connection.close()


def opened(path: Path) -> None:
    client = postroom.connect(f"sqlite:///{path}")
    try:
        client.mailbox("box").approximate_count()
    finally:
        client.close()


# --- refused, byte for byte --------------------------------------------------------------------------------------


def text(path: Path) -> None:
    path.write_text("not a database\n" * 1000)


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 64)


def one_byte(path: Path) -> None:
    path.write_bytes(b"x")


def foreign_tables(path: Path) -> None:
    sql(path, "CREATE TABLE postroom_message (a, b)", "INSERT INTO postroom_message VALUES (1, 2)")


def foreign_view(path: Path) -> None:
    sql(path, "CREATE TABLE t (a)", "CREATE VIEW postroom_queue AS SELECT a FROM t")


def one_table_too_few(path: Path) -> None:
    opened(path)
    sql(path, "DROP TABLE postroom_session")


def one_column_too_many(path: Path) -> None:
    opened(path)
    sql(path, "ALTER TABLE postroom_message ADD COLUMN wish TEXT")


def newer(path: Path) -> None:
    opened(path)
    sql(path, "UPDATE postroom_store SET value = value + 1 WHERE name = 'schema'")


def newer_with_more_tables(path: Path) -> None:
    newer(path)
    sql(path, "CREATE TABLE postroom_future (a)")


def no_version(path: Path) -> None:
    opened(path)
    sql(path, "DELETE FROM postroom_store WHERE name = 'schema'")


def version_of_another_type(path: Path) -> None:
    opened(path)
    sql(path, "UPDATE postroom_store SET value = 'one' WHERE name = 'schema'")


FOREIGN = [
    text, binary, one_byte, foreign_tables, foreign_view, one_table_too_few, one_column_too_many, newer,
    newer_with_more_tables, no_version, version_of_another_type,
]  # fmt: skip


@pytest.mark.parametrize("make", FOREIGN, ids=lambda make: make.__name__)
@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_a_file_that_is_not_ours_is_refused_untouched(tmp_path: Path, make: Any, flavour: str) -> None:
    path = tmp_path / "theirs.db"
    make(path)
    before = digest(path)
    with pytest.raises(ConfigurationError, match="not touched") as refused:
        (postroom.connect if flavour == "sync" else postroom.aio.connect)(f"sqlite:///{path}")
    assert digest(path) == before
    assert str(path) in str(refused.value)
    if make in (newer, newer_with_more_tables):
        assert "newer" in str(refused.value)
        assert "upgrade" in str(refused.value)


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_an_applications_own_database_is_adopted_and_stays_its_own(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "app.db"
    sql(
        path,
        f"PRAGMA journal_mode = {mode}",
        "PRAGMA application_id = 12345",
        "PRAGMA user_version = 7",
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, sku TEXT)",
        "INSERT INTO orders (sku) VALUES ('A-1')",
    )
    client = postroom.connect(f"sqlite:///{path}")
    box = client.mailbox("box")
    box.send("hello")
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA application_id").fetchone() == (12345,)
    assert connection.execute("PRAGMA user_version").fetchone() == (7,)
    assert connection.execute("SELECT sku FROM orders").fetchall() == [("A-1",)]
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {name for name in names if not name.startswith("postroom_")} == {"orders"}
    connection.execute("INSERT INTO orders (sku) VALUES ('A-2')")
    connection.commit()
    connection.close()
    assert [message.body for message in box.receive()] == ["hello"]
    client.close()


def test_files_are_for_their_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        client = postroom.connect(f"sqlite:///{tmp_path}/mail.db")
        box = client.mailbox("box")
        box.send("x")
        box.receive()
        waiting = threading.Thread(target=lambda: box.receive(wait_time_seconds=20), daemon=True)
        waiting.start()
        found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        box.close()
        waiting.join(10)
        client.close()
    finally:
        os.umask(before)
    assert {"mail.db", "mail.db-wal", "mail.db-shm"} <= found.keys()
    assert {mode & 0o077 for mode in found.values()} == {0}, {name: oct(mode) for name, mode in found.items()}


# --- garbage rows --------------------------------------------------------------------------------------------------

GARBAGE = {
    "head is not msgpack": ("head", "X'C1C1C1'"),
    "head of another shape": ("head", "X'93010203'"),
    "head of a newer version": ("head", "X'950FA178C0C0C0'"),
    "head is text": ("head", "'text'"),
    "head is a number": ("head", "17"),
    "body is text": ("body", "'text'"),
    "body is a number": ("body", "3.5"),
    "body is nothing": ("body", "NULL"),
    "body is no JSON": ("body", "X'FFFE00'"),
    "body is elsewhere, and is not": ("body_ref", "999999"),
    "record is no msgpack": ("record", "X'C1'"),
    "record is text": ("record", "'text'"),
    "id is a number": ("id", "5"),
    "id is a blob": ("id", "X'FF00'"),
    "size is text": ("size", "'big'"),
    "ttl is text": ("ttl", "'long'"),
    "expires_at is text": ("expires_at", "'soon'"),
    "deliveries is text": ("deliveries", "'many'"),
    "enqueued_at is text": ("enqueued_at", "'noon'"),
    "priority is text": ("priority", "'high'"),
    "session is a blob": ("session", "X'00FF'"),
    "session is a number": ("session", "4"),
    "returns is text": ("returns", "'x'"),
    "token is text": ("token", "'x'"),
    "visible_at is text": ("visible_at", "'x'"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_a_damaged_row_never_hides_its_neighbours(place: Place, name: str) -> None:
    """Whatever somebody wrote into the table by hand, the messages before and after it are delivered and settled."""
    column, value = GARBAGE[name]
    client = place.connect()
    box = client.mailbox("box")
    for key in ("before", "damaged", "after", "later"):
        box.send(key, id=key)
    sql(place.path, f"UPDATE postroom_message SET {column} = {value} WHERE id = 'damaged'")
    seen = []
    for _ in range(6):
        for message in box.receive(max_messages=2):
            seen.append(name_of(message))
            message.acknowledge()
    assert [key for key in seen if key in ("before", "after", "later")] == ["before", "after", "later"]
    box.info()
    box.peek(10)
    box.dead_letters.peek(10)
    box.send("still working")
    assert "still working" in [name_of(m) for m in box.receive(max_messages=10)]


def test_an_undecodable_message_of_a_session_takes_no_follower_along(place: Place) -> None:
    """The store takes the followers back with it; so they must not be handed out as if they were still held."""
    client = place.connect()
    numbers: Box = client.mailbox("box", int)
    numbers.send(1, session_id="s")
    client.mailbox("box", str).send("no number", session_id="s")
    numbers.send(3, session_id="s")
    numbers.send(4)
    held = []
    for _ in range(4):
        for message in numbers.receive(max_messages=10):
            held.append(message.body)
            message.acknowledge()  # and it is really ours
    assert sorted(held) == [1, 3, 4]
    assert [dead.death.reason for dead in numbers.dead_letters.peek() if dead.death] == ["undecodable"]


# --- locked ---------------------------------------------------------------------------------------------------------


def holds_the_lock(line: Line, path: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    line.ask("locked")
    connection.execute("ROLLBACK")
    connection.close()
    line.say("unlocked")


def is_busy(error: ServiceUnavailableError) -> bool:
    return error.transient and error.code is not None and error.code.startswith("SQLITE_BUSY")


def test_a_locked_database_is_a_transient_error_and_nothing_is_half_done(place: Place, nursery: Nursery) -> None:
    box = place.box(busy_timeout=0.2)
    send(place.log, box, "before")
    [held] = receive(place.log, box, 1, 60)
    locker = nursery.spawn(holds_the_lock, path=str(place.path))
    locker.hear_until("locked")
    place.log.note("struck", fault="lock", unseen_claims=0)
    for act in (lambda: box.send("x"), box.receive, held.acknowledge, held.nack, box.purge):
        began = time.monotonic()
        with pytest.raises(ServiceUnavailableError) as error:
            act()
        assert is_busy(error.value)
        assert 0.15 < time.monotonic() - began < 5
    locker.say("let go")
    locker.finish()
    acknowledge(place.log, held)
    send(place.log, box, "after")
    place.drain(box)
    report = prove(place.log, "lock")
    assert (report.acked, report.left, report.dead) == (2, 0, 0)


def test_a_locked_database_never_blocks_the_event_loop(place: Place, nursery: Nursery) -> None:
    async def main() -> None:
        client = postroom.aio.connect(place.url, busy_timeout=0.3)
        box = client.mailbox("box")
        await box.send("before")
        locker = nursery.spawn(holds_the_lock, path=str(place.path))
        locker.hear_until("locked")
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.01)
                turns += 1

        ticking = asyncio.create_task(turn())
        for act in (lambda: box.send("x"), box.receive):
            with pytest.raises(ServiceUnavailableError) as error:
                await act()
            assert is_busy(error.value)
        ticking.cancel()
        assert turns > 15
        locker.say("let go")
        locker.finish()
        assert [message.body for message in await box.receive(max_messages=10)] == ["before"]
        await client.close()

    asyncio.run(main())


def test_a_database_that_is_unlocked_in_time_is_waited_for(place: Place, nursery: Nursery) -> None:
    box = place.box(busy_timeout=15)
    box.approximate_count()
    locker = nursery.spawn(holds_the_lock, path=str(place.path))
    locker.hear_until("locked")
    sending = threading.Thread(target=lambda: send(place.log, box, "patient"), daemon=True)
    sending.start()
    while not place.log.count("sending"):
        time.sleep(0.001)
    locker.say("let go")
    sending.join(10)
    assert not sending.is_alive()
    place.log.note("struck", fault="lock", unseen_claims=0)
    place.drain(box)
    prove(place.log, "lock")


def test_tables_taken_away_while_it_runs_are_named(place: Place) -> None:
    box = place.box()
    box.send(1)
    sql(place.path, "DROP TABLE postroom_message")
    with pytest.raises(MailboxError, match="tables"):
        box.send(2)
