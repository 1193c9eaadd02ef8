"""The store's time over boots, jumps of the wall clock and power cuts."""

from __future__ import annotations

import sqlite3

import pytest

from postroom.core.message import Envelope
from postroom.drivers import sqlite_store
from postroom.drivers.io import drive
from postroom.drivers.sqlite_clock import StoreClock


class Machine:
    """A computer with a wall clock that can be set, and boots."""

    def __init__(self, wall: float = 1_800_000_000.0) -> None:
        self.wall = wall
        self.up = 100.0
        self.boot = "boot-1"

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.up += seconds

    def reboots(self) -> None:
        self.up = 5.0
        self.boot += "'"


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(
        sqlite_store,
        "StoreClock",
        lambda: StoreClock(ticks=lambda: machine.up, wall=lambda: machine.wall, boot=machine.boot),
    )
    return machine


def test_time_starts_at_the_time_of_day(opened, machine):
    assert opened().now() == machine.wall


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_setting_the_clock_moves_nothing_while_the_machine_is_up(opened, machine, jump):
    first = opened()
    before = first.now()
    machine.wall += jump
    machine.passes(10)
    assert first.now() == before + 10
    assert opened().now() == before + 10, "nor for a process that comes later"


def test_a_lease_neither_lapses_early_nor_late_when_the_clock_is_set(opened, machine):
    driver = opened()
    drive(driver.ensure("orders"))
    drive(driver.put("orders", [Envelope("1", b"")]))
    assert drive(driver.claim("orders", 1, lease=30, wait=0, claim_id="a")).deliveries
    machine.wall += 3_600
    assert not drive(driver.claim("orders", 1, lease=30, wait=0, claim_id="b")).deliveries
    machine.wall -= 7_200
    machine.passes(31)
    assert drive(driver.claim("orders", 1, lease=30, wait=0, claim_id="c")).deliveries


def test_after_a_boot_with_the_clock_set_back_time_goes_on_where_it_was(opened, machine):
    driver = opened()
    machine.passes(50)
    drive(driver.ensure("orders"))
    before = driver.now()
    drive(driver.close())
    machine.reboots()
    machine.wall -= 86_400
    assert opened().now() == before


def test_a_boot_takes_the_time_of_day_when_that_is_later(opened, machine):
    drive(opened().close())
    machine.reboots()
    machine.wall += 1_000
    assert opened().now() == machine.wall


def test_processes_of_one_boot_agree(opened, machine):
    first = opened()
    machine.passes(7)
    machine.wall += 12_345
    assert opened().now() == first.now()


def test_fencing_tokens_and_seqs_leap_ahead_at_a_boot(opened, machine):
    """Claims are not synced: a power cut may take back the latest, and their tokens must not be given out again."""
    driver = opened()
    drive(driver.ensure("orders"))
    drive(driver.put("orders", [Envelope("1", b"")]))
    [lost] = drive(driver.claim("orders", 1, lease=30, wait=0, claim_id="a")).deliveries
    drive(driver.close())
    machine.reboots()
    machine.wall += 60
    [found] = drive(opened().claim("orders", 1, lease=30, wait=0, claim_id="b")).deliveries
    assert found.token > lost.token + 1_000_000


def test_only_the_latest_boots_are_remembered(shop, opened, machine):
    for _ in range(20):
        drive(opened().close())
        machine.reboots()
        machine.wall += 1_000
    look = sqlite3.connect(shop)
    assert look.execute("SELECT count(*) FROM postroom_store WHERE name GLOB 'clock:*'").fetchone() == (16,)
    look.close()


def test_without_a_boot_clock_the_time_of_day_is_held_where_it_would_go_back(opened, monkeypatch):
    machine = Machine()
    monkeypatch.setattr("postroom.drivers.sqlite_clock.boot_time", lambda: None)
    monkeypatch.setattr(sqlite_store, "StoreClock", lambda: StoreClock(wall=lambda: machine.wall))
    driver = opened()
    drive(driver.ensure("orders"))
    before = driver.now()
    machine.wall -= 100
    assert driver.now() == before
    drive(driver.close())
    assert opened().now() == before
