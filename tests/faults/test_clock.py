"""A clock that jumps: leases, delays and TTLs count by the store's own, which nobody can set."""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

import postroom
from postroom.drivers.sqlite_clock import StoreClock
from tests.faults.checker import prove
from tests.faults.rig import ROOT, Line, Nursery, Place, acknowledge, receive, send

pytestmark = pytest.mark.faults

DAY = 86_400.0


def jumped(line: Line, directory: str, by: str, offset: float) -> None:
    """A process in which the time of day is wrong by `offset`, from before the library reads it."""
    real = time.time
    time.time = lambda: real() + offset
    with Place(directory, by) as place:
        box = place.box()
        send(place.log, box, f"{by}-sent")
        line.say([message.body for message in receive(place.log, box, 10, 30)])


@pytest.mark.parametrize("offset", [-DAY, -60.0, 60.0, DAY, 40 * 365 * DAY])
def test_a_wall_clock_that_jumps_ends_no_lease_and_makes_nothing_due(
    place: Place, nursery: Nursery, offset: float
) -> None:
    box = place.box()
    send(place.log, box, "held")
    send(place.log, box, "later", delay_seconds=3600)
    send(place.log, box, "lasting", ttl=3600)
    [held] = receive(place.log, box, 1, 30)
    assert held.body == "held"
    child = nursery.spawn(jumped, directory=str(place.directory), by="jumped", offset=offset)
    place.log.note("struck", fault="jump", unseen_claims=0)
    # It sees what is free, and neither what we hold nor what is not due; and "lasting" has not expired.
    assert child.hear() == ["lasting", "jumped-sent"]
    child.finish()
    assert acknowledge(place.log, held)
    prove(place.log, "jump", drained=False)
    assert abs(box.info().created_at.timestamp() - time.time()) < 60


@pytest.mark.parametrize("offset", [-DAY, DAY])
def test_after_a_boot_with_another_time_of_day_time_still_never_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: float
) -> None:
    """A machine whose battery is empty boots in the past. Nothing becomes younger for it, and no token falls."""
    with Place(tmp_path) as place:
        box = place.box()
        for key in ("a", "b"):
            send(place.log, box, key)
        [first] = receive(place.log, box, 1, 30)
    booted = partial(StoreClock, boot="the next boot", wall=lambda: time.time() + offset)
    monkeypatch.setattr("postroom.drivers.sqlite_store.StoreClock", booted)
    with Place(tmp_path, "after") as place:
        place.log.note("struck", fault="boot", unseen_claims=0)
        box = place.box()
        [second] = receive(place.log, box, 1, 30) if offset < 0 else receive(place.log, box, 2, 30)[:1]
        assert second.received_at >= first.received_at
        assert second.lease.token > first.lease.token
        prove(place.log, "boot", drained=False)


SCRIPT = """
import sys, time, postroom
box = postroom.connect(sys.argv[1]).mailbox("box")
print([message.body for message in box.receive(max_messages=10)])
"""


@pytest.mark.parametrize("jump", ["-2d", "+2d"])
def test_under_libfaketime_nothing_changes_either(place: Place, jump: str) -> None:
    """The whole process is lied to about the time of day, not only Python."""
    found = list(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not found:
        pytest.skip("platform: no libfaketime here")
    box = place.box()
    box.send("held")
    box.send("free")
    assert len(box.receive(visibility_timeout=30)) == 1
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, place.url],
        env={
            **os.environ,
            "LD_PRELOAD": str(found[0]),
            "FAKETIME": jump,
            # The boot-time clock cannot be set on a real machine either, so it is not what we lie about.
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert ran.stdout.strip() == "['free']"


def test_a_clock_of_ones_own_that_goes_back_takes_no_lease_away(tmp_path: Path) -> None:
    """The store trusts the clock it is given; if that breaks its word, nobody gets what another holds."""

    class Broken:
        moved = None
        at = 1_000_000.0

        def now(self) -> float:
            return self.at

        def patience(self, until: float) -> float | None:
            return 0.0

    clock = Broken()
    client = postroom.connect(f"sqlite:///{tmp_path}/mail.db", clock=clock)
    box = client.mailbox("box")
    box.send("m")
    [first] = box.receive(visibility_timeout=30)
    clock.at -= 500
    assert box.receive() == []
    clock.at += 531
    [second] = box.receive()
    assert second.lease.token > first.lease.token
    client.close()
