"""Keeping one message's lease alive while a block runs, for code that holds a message without a Worker.

The shells run it: the sync one in a thread, so that work that blocks everything else still keeps its message; the async
one in a task, so that a loop blocked for longer than the lease loses it, and `lease.lost` says so.
"""

from __future__ import annotations

from typing import Any

from postroom.core.limits import MAX_LEASE
from postroom.core.message import Extend, Settled
from postroom.drivers.io import Bell, sleep
from postroom.errors import MailboxError
from postroom.flows.held import Held


async def keep(held: Held[Any, Any], stop: Bell) -> None:
    """Extend at a third of the lease until `stop` rings, the message is settled, or the lease is lost."""
    driver, delivery = held._box.driver, held._delivery
    length = max(delivery.lease_until - delivery.received_at, 0.05)
    while not await sleep(driver.io, length / 3, stop):
        if held._final:
            return
        room = delivery.received_at + MAX_LEASE - driver.now()
        if room <= length:
            return  # twelve hours: whatever runs that long must not hold the message for ever
        try:
            [outcome] = await held._box.link.settle(held._box.name, (Extend(delivery.handle, length, shorten=False),))
        except MailboxError as error:
            if not error.transient and not held._final:
                held.lease.lost = True
                return
            continue  # the store is away for the moment; two thirds of the lease are left to try again
        if isinstance(outcome, Settled):
            held._extended = outcome.lease_until
        elif not held._final:
            held.lease.lost = True
            return
