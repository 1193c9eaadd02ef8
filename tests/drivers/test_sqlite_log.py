"""The write-ahead log stays short, and folding it holds nobody up."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing

import pytest

from postroom.core.message import Ack, Envelope
from postroom.drivers import sqlite_checkpoint
from postroom.drivers.io import drive

MEGABYTE = 1 << 20


def run_through(driver, messages: int) -> None:
    for i in range(messages // 100):
        drive(driver.put("orders", [Envelope(str(n), b"x" * 1_000, size=1_000) for n in range(100)]))
        taken = drive(driver.claim("orders", 100, lease=60, wait=0, claim_id=f"c{i}")).deliveries
        drive(driver.settle("orders", [Ack(d.handle) for d in taken]))


def wait_until(condition) -> None:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


@pytest.fixture
def driver(opened):
    driver = opened(durability="relaxed")
    drive(driver.ensure("orders"))
    return driver


@pytest.mark.slow
def test_a_steady_stream_does_not_make_the_log_grow_for_ever(shop, driver):
    run_through(driver, 30_000)
    header = shop.with_name("shop.db-wal").read_bytes()[:32]
    begun_anew = int.from_bytes(header[12:16], "big")
    assert begun_anew >= 3


def test_the_last_to_leave_folds_the_log(shop, driver):
    run_through(driver, 200)
    assert shop.with_name("shop.db-wal").stat().st_size > 0
    drive(driver.close())
    assert not shop.with_name("shop.db-wal").exists()


def test_a_long_reader_lets_the_log_grow_and_loses_nothing(shop, driver, monkeypatch):
    monkeypatch.setattr(sqlite_checkpoint, "_LARGE", 8 * MEGABYTE)
    reader = sqlite3.connect(shop, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM postroom_message").fetchone()
    run_through(driver, 5_000)
    log = shop.with_name("shop.db-wal")
    assert log.stat().st_size > 8 * MEGABYTE
    reader.execute("COMMIT")
    reader.close()
    run_through(driver, 2_000)
    wait_until(lambda: log.stat().st_size < 8 * MEGABYTE)
    assert drive(driver.info("orders"))[0].ready == 0


def test_only_one_process_folds_at_a_time(shop, driver, monkeypatch):
    checkpointer = driver.store.site.checkpointer
    monkeypatch.setattr(checkpointer, "_serialise", True)
    with (
        closing(sqlite3.connect(shop, check_same_thread=False)) as connection,
        closing(sqlite3.connect(shop, check_same_thread=False, isolation_level=None)) as gate,
    ):
        with checkpointer.turn(wait=False) as ours:
            assert ours
            done = []
            other = threading.Thread(target=lambda: done.append(checkpointer.fold(connection, gate)))
            other.start()
            other.join(10)
            assert done == [False]
        assert checkpointer.fold(connection, gate)
    assert shop.with_name("shop.db-fold").stat().st_mode & 0o777 == 0o600


def test_versions_with_the_fault_in_them_take_turns(driver):
    fixed = sqlite3.sqlite_version_info >= (3, 51, 3)
    assert driver.store.site.checkpointer._serialise is not fixed
