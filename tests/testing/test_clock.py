"""Time by hand."""

import threading
from datetime import UTC, datetime

import pytest

from postroom import InvalidParameterError, connect
from postroom.testing import ManualClock


def test_it_stands_still_until_it_is_moved():
    clock = ManualClock(start=100.0)
    assert clock.now() == clock.now() == 100.0
    clock.advance(5)
    assert clock.now() == 105.0
    clock.advance_to(104.0)
    assert clock.now() == 105.0, "a clock never goes back"
    with pytest.raises(InvalidParameterError):
        clock.advance(-1)


@pytest.mark.parametrize("wrong", [datetime(2026, 1, 1, tzinfo=UTC), "now", None, True, float("nan")])
def test_it_starts_at_a_number(wrong):
    with pytest.raises(InvalidParameterError, match="seconds since the epoch"):
        ManualClock(wrong)
    with pytest.raises(InvalidParameterError, match="seconds since the epoch"):
        ManualClock().advance_to(wrong)


def test_a_waiter_sleeps_until_the_time_it_waits_for_has_come():
    clock = ManualClock()
    box = connect("memory://", clock=clock).mailbox("box")
    box.send("later", delay_seconds=10)
    seen = []
    waiter = threading.Thread(target=lambda: seen.extend(box.receive(wait_time_seconds=60)))
    waiter.start()
    while not clock.waiting:
        waiter.join(0.001)
    clock.advance(9)
    waiter.join(0.05)
    assert waiter.is_alive()
    clock.advance(1)
    waiter.join(5)
    assert [message.body for message in seen] == ["later"]


def test_with_autojump_a_wait_moves_the_clock():
    clock = ManualClock(start=0.0, autojump=True)
    box = connect("memory://", clock=clock).mailbox("box")
    assert box.receive(wait_time_seconds=60) == []
    assert clock.now() == 60.0
    box.send("later", delay_seconds=10)
    assert len(box.receive(wait_time_seconds=60)) == 1
    assert clock.now() == 70.0
