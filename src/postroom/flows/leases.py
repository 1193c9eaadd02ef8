"""Leases: keeping messages ours while handlers work.

One keeper a worker extends every message in flight with a single call, at a third of the lease. It runs beside the
handlers, in a thread of its own, so that neither work that blocks nor an event loop that is blocked loses a lease. A
message is kept until the outcome of its verdict is known; one that is held for longer than `most` is let go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from postroom.core.limits import MAX_BATCH
from postroom.core.message import Extend, Settled
from postroom.drivers.api import Driver
from postroom.drivers.io import Bell, sleep
from postroom.errors import MailboxError
from postroom.flows.events import Emit, LeaseLost
from postroom.flows.held import Held


class Kept:
    """A message in flight. `concluded`: its verdict is on its way, and that the message is gone is no news any more."""

    __slots__ = ("concluded", "held", "lost", "on_lost")

    def __init__(self, held: Held[Any, Any]) -> None:
        self.held = held
        self.concluded = False
        self.lost = False
        self.on_lost: Callable[[], None] | None = None


class Keeper:
    """The leases of one worker on one queue."""

    def __init__(self, queue: str, lease: float, most: float, emit: Emit) -> None:
        self._queue = queue
        self._lease = lease
        self._most = most
        self._emit = emit
        self._kept: dict[int, Kept] = {}  # a step of a dict is one that threads cannot see half done
        self._parked = True
        self._wanted = Bell()

    def keep(self, held: Held[Any, Any]) -> Kept:
        kept = Kept(held)
        self._kept[id(kept)] = kept
        if self._parked:
            self._parked = False
            self._wanted.ring()
        return kept

    def drop(self, kept: Kept) -> None:
        self._kept.pop(id(kept), None)

    async def run(self, driver: Driver, stop: Bell) -> None:
        """Until `stop` rings. While nothing was in flight for a third of a lease it sleeps without a timer; in steady
        traffic nobody has to wake it."""
        io = driver.io
        while not stop.rung:
            if not self._kept:
                waiter = io.waiter()
                self._wanted.listen(waiter.wake)
                stop.listen(waiter.wake)
                self._parked = True
                # In this order: whoever comes now either is seen here or sees that we are parked.
                if not self._kept and not stop.rung:
                    await waiter.wait(None)
                self._parked = False
                self._wanted.leave(waiter.wake)
                stop.leave(waiter.wake)
            if await sleep(io, self._lease / 3, stop):
                return
            await self.renew(driver)

    async def renew(self, driver: Driver) -> None:
        """Extend what is in flight. What the store cannot do now is tried again a third of a lease later."""
        now = driver.now()
        due: list[Kept] = []
        for kept in list(self._kept.values()):
            if kept.held._final and not kept.concluded:
                continue  # its handler has settled it by itself
            if now - kept.held._delivery.received_at > self._most and not kept.concluded:
                self._lose(kept, "max_processing")
            else:
                due.append(kept)
        for start in range(0, len(due), MAX_BATCH):
            batch = due[start : start + MAX_BATCH]
            verdicts = [Extend(kept.held.receipt_handle, self._lease, shorten=False) for kept in batch]
            try:
                outcomes = await driver.settle(self._queue, verdicts)
            except MailboxError as error:
                if not error.transient:
                    for kept in batch:
                        self._lose(kept, str(error))
                continue
            for kept, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Settled):
                    kept.held._extended = outcome.lease_until
                elif not kept.concluded and not kept.held._final and id(kept) in self._kept:
                    self._lose(kept, type(outcome).__name__.lower())

    def _lose(self, kept: Kept, why: str) -> None:
        self.drop(kept)
        kept.lost = kept.held.lease.lost = True
        self._emit(LeaseLost(self._queue, kept.held.id, kept.held.delivery_count, why))
        if kept.on_lost is not None:
            kept.on_lost()
