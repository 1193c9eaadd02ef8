"""What a step costs does not depend on how much is waiting: nothing scans."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

import pytest

from postroom.core.message import Ack, Envelope, Release
from postroom.drivers.io import drive
from postroom.drivers.sqlite_file import SQL
from postroom.testing.clock import ManualClock

# What may read more than it returns, none of it on the way of a message: `peek_*` and the oldest of a full queue look
# at the entries of one index that belong to the queue; the others walk a list that we made ourselves.
ALLOWED = {"acknowledge_many": "SCAN json_each", "lend_many": "SCAN json_each", "priorities": "SCAN p"}
NO_TABLE = "SCAN CONSTANT ROW"
SORTS = {"held_by", "peek_due", "peek_blocked"}


def plan(database: sqlite3.Connection, sql: str) -> list[str]:
    numbered = [int(n) for n in re.findall(r"\?(\d+)", sql)]
    parameters = [None] * (max(numbered) if numbered else sql.count("?"))
    return [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]


@pytest.fixture(scope="module")
def empty():
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(SQL["create"])
        yield database


@pytest.fixture(scope="module")
def analyzed():
    """An application may have run ANALYZE over its database, which changes what SQLite expects of an index."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.executescript(SQL["create"])
        rows = [(i, 1, 1, 10, None, 1.0, 1.0, None, None, None, 1, str(i), None, b"", None) for i in range(1, 5000)]
        rows += [(i, 2, 2, 10, 5.0, 1.0, 1.0, 9.0, 8.0, "S", 1, str(i), None, b"", None) for i in range(5000, 5100)]
        database.executemany(SQL["put"], rows)
        database.execute("ANALYZE")
        yield database


@pytest.mark.parametrize("name", sorted(SQL.keys() - {"create"}))
@pytest.mark.parametrize("which", ["empty", "analyzed"])
def test_no_statement_scans(name, which, request):
    steps = plan(request.getfixturevalue(which), SQL[name])
    scans = [step for step in steps if step.startswith("SCAN") and step != NO_TABLE]
    assert [step for step in scans if not step.startswith(ALLOWED.get(name, "-"))] == []
    assert name in SORTS or not any("TEMP B-TREE" in step for step in steps)


class Counter:
    """Counts what SQLite's machine does, which is the same on every computer."""

    def __init__(self, driver):
        self.connection = driver.store._writer
        self.steps = 0

    def __enter__(self):
        self.connection.set_progress_handler(self._count, 10)
        return self

    def _count(self):
        self.steps += 10
        return 0

    def __exit__(self, *_):
        self.connection.set_progress_handler(None, 0)


def fill(driver, queue: str, count: int, sessions: int = 0) -> None:
    drive(driver.ensure(queue))
    for start in range(0, count, 1000):
        drive(
            driver.put(
                queue,
                [
                    Envelope(str(i), b"x" * 100, session_id=f"s{i % sessions}" if sessions else None)
                    for i in range(start, start + 1000)
                ],
            )
        )


def cost_of_a_message(driver, queue: str) -> int:
    with Counter(driver) as counter:
        for i in range(20):
            drive(driver.put(queue, [Envelope("x", b"x")]))
            [first, second] = drive(driver.claim(queue, 2, lease=60, wait=0, claim_id=f"{queue}{i}")).deliveries
            drive(driver.settle(queue, [Ack(first.handle), Release(second.handle)]))
    return counter.steps


@pytest.mark.parametrize("sessions", [0, 500])
def test_a_message_costs_the_same_however_many_wait(opened, sessions):
    driver = opened(durability="relaxed")
    fill(driver, "short", 1_000, sessions and 10)
    fill(driver, "long", 20_000, sessions)
    assert cost_of_a_message(driver, "long") <= 1.1 * cost_of_a_message(driver, "short")


def test_ten_thousand_sessions_cost_no_more_than_ten(opened):
    driver = opened(durability="relaxed")
    fill(driver, "few", 10_000, 10)
    fill(driver, "many", 10_000, 10_000)
    assert cost_of_a_message(driver, "many") <= 1.1 * cost_of_a_message(driver, "few")


def test_a_thousand_held_messages_cost_the_next_claim_nothing(opened):
    driver = opened(durability="relaxed")
    fill(driver, "busy", 5_000)
    fill(driver, "calm", 5_000)
    drive(driver.claim("busy", 1000, lease=3600, wait=0, claim_id="held"))
    assert cost_of_a_message(driver, "busy") <= 1.1 * cost_of_a_message(driver, "calm")


def test_one_step_promotes_a_thousand_lapsed_messages_and_a_claim_still_finds_the_first(opened):
    clock = ManualClock()
    driver = opened(durability="relaxed", clock=clock)
    fill(driver, "orders", 3_000)
    for i in range(3):
        drive(driver.claim("orders", 1000, lease=5, wait=0, claim_id=f"c{i}"))
    clock.advance(6)
    found = drive(driver.claim("orders", 1, lease=5, wait=0, claim_id="again")).deliveries
    assert [(d.envelope.id, d.attempt, d.lapsed) for d in found] == [("0", 2, 1)]
    stats, *_ = drive(driver.info("orders"))
    assert (stats.ready, stats.in_flight) == (1_999, 1_001)  # this claim's, and what another step will promote


def test_a_claim_goes_on_behind_more_dead_messages_than_one_step_puts_away(opened):
    clock = ManualClock()
    driver = opened(durability="relaxed", clock=clock)
    drive(driver.ensure("orders"))
    for start in range(0, 2_500, 500):
        drive(driver.put("orders", [Envelope(f"old{start + i}", b"", ttl=1) for i in range(500)]))
    drive(driver.put("orders", [Envelope("fresh", b"")]))
    clock.advance(2)
    claimed = drive(driver.claim("orders", 1, lease=5, wait=0, claim_id="a"))
    assert [d.envelope.id for d in claimed.deliveries] == ["fresh"]
    assert claimed.expired == 2_500


def test_nothing_is_written_by_a_claim_that_finds_nothing(shop, opened):
    """Idle pollers must not grow the log."""
    driver = opened()
    drive(driver.ensure("orders"))
    log = shop.with_name("shop.db-wal")
    before = log.read_bytes()
    for i in range(10):
        drive(driver.claim("orders", 1, lease=5, wait=0, claim_id=f"c{i}"))
    assert log.read_bytes() == before
