"""postroom ls, info, create, delete, purge, doctor."""

import dataclasses
import os
import re
import shutil
import sqlite3
from contextlib import closing

import pytest

from postroom import QueueDefinition, QueueStatus
from postroom.cli.queues import create


def test_ls_lists_queues_with_their_counts(cli, client, orders):
    client.mailbox("alpha", bytes).approximate_count()
    orders.send(b"1")
    orders.send(b"2", delay_seconds=60)
    assert [row[:5] for row in cli("ls").rows] == [["alpha", "0", "0", "0", "0"], ["orders", "1", "1", "0", "0"]]
    alpha, listed = cli("ls", "--json").json
    assert alpha["name"] == "alpha"
    assert (listed["ready"], listed["scheduled"], listed["status"]) == (1, 1, "active")


def test_ls_of_an_empty_store_is_no_failure(cli, client):
    client.list_queues()
    assert cli("ls") == (0, "", "")
    assert cli("ls", "--json").json == []


def test_info_shows_counts_and_rules(cli, orders):
    shown = dict(row for row in cli("info", "orders").rows)
    assert (shown["ready"], shown["message ttl"], shown["lock duration"]) == ("0", "24 h", "60 s")
    told = cli("info", "orders", "--json").json
    assert (told["name"], told["exact"], told["definition"]["max_delivery_count"]) == ("orders", True, 3)


def test_create_has_an_option_for_every_field_of_a_definition():
    names = {parameter.name for parameter in create.params}
    assert {field.name for field in dataclasses.fields(QueueDefinition)} - {"name"} <= names


def test_create_passes_on_what_was_said(cli, client):
    made = cli(
        "create", "jobs", "--max-delivery-count=9", "--message-ttl=2d", "--lock-duration=90s", "--sessions=required",
        "--on-dead=block", "--dead-letter-queue=morgue", "--dead-letter-on-expiry", "--no-duplicate-detection",
        "--max-bytes=64Ki", "--max-messages=7", "--overflow=wait", "--overflow-timeout=500ms",
        "--auto-delete-on-idle=1w", "--batching", "--no-express", "--json",
    )  # fmt: skip
    assert made.code == 0, made.err
    rules = client.info("jobs").definition
    assert (rules.max_delivery_count, rules.message_ttl, rules.lock_duration) == (9, 172800, 90)
    assert (rules.sessions, rules.on_dead, rules.dead_letter_queue) == ("required", "block", "morgue")
    assert (rules.dead_letter_on_expiry, rules.duplicate_detection, rules.max_bytes) == (True, False, 65536)
    assert (rules.max_messages, rules.overflow, rules.overflow_timeout) == (7, "wait", 0.5)
    assert rules.auto_delete_on_idle == 604800
    assert made.json["definition"]["max_messages"] == 7


def test_create_leaves_a_queue_that_is_there_alone(cli, orders, client):
    again = cli("create", "orders", "--max-messages", "3")
    assert (again.code, "--update" in again.err) == (1, True)
    assert client.info("orders").definition.max_messages is None


def test_update_changes_what_is_named_and_nothing_else(cli, client):
    cli("create", "jobs", "--lock-duration=90s", "--max-delivery-count=9")
    assert cli("create", "jobs", "--update", "--max-messages=3").code == 0
    rules = client.info("jobs").definition
    assert (rules.lock_duration, rules.max_delivery_count, rules.max_messages) == (90, 9, 3)
    assert cli("create", "nothing", "--update").code == 1


@pytest.mark.parametrize(
    "arguments",
    [("a:b",), ("q", "--sessions=maybe"), ("q", "--overflow-timeout=5"), ("q", "--max-bytes=big"), ("q", "--no-such")],
)
def test_a_queue_that_cannot_be_is_a_usage_error(cli, client, arguments):
    refused = cli("create", *arguments)
    assert (refused.code, refused.err.count("\n"), client.list_queues()) == (2, 1, [])


def test_what_a_store_cannot_honour_is_refused(cli, client):
    refused = cli("create", "q", "--partitioning")
    assert (refused.code, client.list_queues()) == (1, [])


def test_delete_refuses_while_messages_are_there(cli, orders, client):
    orders.send(b"1")
    refused = cli("delete", "orders")
    assert (refused.code, "1 message" in refused.err, "--force" in refused.err) == (1, True, True)
    assert cli("delete", "orders", "--force", "--json").json == {"queue": "orders", "messages": 1}
    assert client.list_queues() == []
    assert cli("delete", "orders").code == 1


def test_purge_wants_yes_where_nobody_can_be_asked(cli, orders):
    orders.send(b"1")
    refused = cli("purge", "orders")
    assert (refused.code, "--yes" in refused.err, orders.approximate_count()) == (2, True, 1)
    assert cli("purge", "orders", "--yes", "--json").json == {"queue": "orders", "messages": 1}
    assert orders.approximate_count() == 0


def test_doctor_says_that_all_is_well(cli, orders):
    found = cli("doctor")
    assert found.code == 0
    assert {row[0] for row in found.rows} <= {"ok", "note"}
    told = {finding["about"]: finding for finding in cli("doctor", "--json").json}
    assert told["queues"]["text"] == "1 queue, 0 messages"
    assert told["file"]["level"] == "ok"
    assert told["SQLite"]["level"] in ("ok", "note")


def test_doctor_points_at_what_needs_care(cli, orders, client, tmp_path):
    orders.send(b"1")
    orders.receive()[0].dead_letter("broken")
    client.set_status("orders", QueueStatus.SEND_DISABLED)
    os.chmod(tmp_path / "mail.db", 0o644)
    notes = [finding["text"] for finding in cli("doctor", "--json").json if finding["level"] == "note"]
    assert any("postroom dlq ls orders" in text for text in notes)
    assert any("send disabled" in text for text in notes)
    assert any("chmod 600" in text for text in notes)


@pytest.mark.parametrize(("version", "level"), [((3, 51, 2), "note"), ((3, 51, 3), "ok"), ((3, 52, 0), "ok")])
def test_doctor_gives_the_remedy_for_an_older_sqlite(cli, orders, monkeypatch, version, level):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    [found] = [row for row in cli("doctor").rows if row[1] == "SQLite"]
    assert (found[0], "PRAGMA wal_autocheckpoint=0" in found[2]) == (level, level == "note")


@pytest.mark.parametrize(("free", "level", "code"), [(0, "bad", 1), (99_000_000, "note", 0), (10**9, "ok", 0)])
def test_doctor_looks_for_room_beside_the_file(cli, orders, monkeypatch, free, level, code):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**10, 10**10 - free, free))
    found = cli("doctor")
    assert (found.code, [row[0] for row in found.rows if row[1] == "room"]) == (code, [level])


def test_who_only_looks_does_not_wait_for_a_writer(cli, orders, url, tmp_path):
    """A transaction of the application holds the write lock; looking needs none."""
    orders.send(b"1")
    with closing(sqlite3.connect(tmp_path / "mail.db", isolation_level=None)) as application:
        application.execute("BEGIN IMMEDIATE")
        for look in (("ls",), ("info", "orders"), ("peek", "orders"), ("doctor",), ("dlq", "ls", "orders")):
            looked = cli("--url", f"{url}?busy_timeout=0", *look)
            assert (looked.code, looked.err) == (3 if look[0] == "dlq" else 0, ""), look


def test_purge_and_delete_say_in_a_pipe_too_what_they_did(cli, orders):
    orders.send(b"1")
    assert cli("purge", "orders", "--yes").out == "orders: 1 message removed\n"
    assert cli("delete", "orders").out == "orders: deleted\n"


@pytest.mark.parametrize("command", ["ls", "peek", "receive", "dlq ls", "doctor", "info", "dlq show"])
def test_help_names_the_columns_of_what_a_pipe_gets(cli, orders, command):
    orders.send(b"dead")
    orders.receive()[0].dead_letter("broken")
    orders.send(b"1")
    [dead] = orders.dead_letters.peek()
    told = " ".join(cli(*command.split(), "--help").out.split()).partition("In a pipe a line each, between ")[2]
    columns = re.sub(r" \(.*?\)", "", told.partition(": ")[2].partition(".")[0]).split(", ")
    arguments = {"ls": (), "doctor": (), "dlq show": ("orders", dead.id)}.get(command, ("orders",))
    assert len(cli(*command.split(), *arguments).rows[0]) == len(columns) > 1


def test_doctor_of_a_store_that_is_away_is_exit_code_69(cli):
    found = cli("doctor")
    assert found.code == 69
    assert found.rows[-1][:2] == ["bad", "store"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "level", "words"),
    [
        ({"appendonly": False}, "note", "appendonly is no"),
        ({"appendonly": True, "appendfsync": "everysec"}, "ok", "the last second"),
        ({"appendonly": True, "appendfsync": "always"}, "ok", "and over a power cut"),
    ],
    ids=["none", "everysec", "always"],
)
def test_doctor_says_how_a_server_keeps_what_it_accepts(cli, new_valkey, options, level, words):
    told = {row[1]: row for row in cli("--url", new_valkey(**options).url, "doctor").rows}
    assert told["disk"][0] == level
    assert words in told["disk"][2]
    assert told["replicas"][0] == "note"
    assert "Valkey 9" in told["server"][2]


@pytest.mark.slow
def test_doctor_calls_an_evicting_server_bad(cli, new_valkey):
    found = cli("--url", new_valkey(maxmemory_policy="allkeys-lru").url, "doctor")
    assert found.code == 1
    assert any(row[0] == "bad" and "allkeys-lru" in row[2] for row in found.rows)
