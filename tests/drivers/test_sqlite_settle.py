"""Acknowledging many at once takes only what `parse_handle` would take."""

from __future__ import annotations

import pytest

from postroom.core.message import SETTLED, Ack, Envelope, Refused
from postroom.drivers.io import drive
from postroom.errors import InvalidParameterError


@pytest.mark.parametrize(
    "wrong", ["{seq}", "{seq}.", ".{id}", "{seq},{seq}.{id}", "{seq}.{id},{seq}.{id}", "\u0661.{id}", "+{seq}.{id}", ""]
)
def test_a_malformed_handle_among_good_ones_is_refused_alone(wrong, opened):
    driver = opened(durability="relaxed")
    drive(driver.ensure("orders"))
    drive(driver.put("orders", [Envelope(str(i), b"x") for i in range(6)]))
    held = drive(driver.claim("orders", 6, lease=60, wait=0, claim_id="ab")).deliveries
    handles = [delivery.handle for delivery in held]
    handles[3] = wrong.format(seq=held[3].seq, id="ab")
    outcomes = drive(driver.settle("orders", [Ack(handle) for handle in handles]))
    assert [outcome for i, outcome in enumerate(outcomes) if i != 3] == [SETTLED] * 5
    assert isinstance(outcomes[3], Refused)
    assert isinstance(outcomes[3].error, InvalidParameterError)
    stats, *_ = drive(driver.info("orders"))
    assert stats.in_flight == 1
