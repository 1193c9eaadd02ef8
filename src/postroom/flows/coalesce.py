"""Concurrent callers of the same verb share one call to the store.

Whoever comes first goes alone and at once. Whoever comes while a call is under way waits, and when it is over the first
of them leads: it carries everything that waits in one batch. Nobody waits for company that may not come; but whoever
comes first after a batch of several knows that the others were released a moment ago, and lets them run before it goes:
else every other call would carry one item, and all the others would wait for it.

Interruptions. An async leader's batch runs shielded: cancelling the leader abandons its own result only, and a waiter
that leaves before its batch departs takes its items along. In the sync flavour only the main thread gets a
KeyboardInterrupt, and that can strike between any two steps, also between taking the lead and the `try` that would give
it back: then nobody could ever send again. So the main thread takes no part in any of this and calls the store itself.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from postroom.drivers.io import Io, Waiter, mutex
from postroom.errors import MailboxError

A = TypeVar("A")
B = TypeVar("B")

LIMIT = 1_000


class _Ticket(Generic[A, B]):
    __slots__ = ("error", "items", "leads", "results", "waiter")

    def __init__(self, items: Sequence[A], waiter: Waiter) -> None:
        self.items = items
        self.waiter = waiter
        self.leads = False
        self.results: list[B] | None = None
        self.error: Exception | None = None


class Gatherer(Generic[A, B]):
    """One verb on one queue: `run` behaves like calling `act` oneself."""

    def __init__(self, io: Io, act: Callable[[Sequence[A]], Awaitable[list[B]]]) -> None:
        self._io = io
        self._act = act
        self._lock = mutex()
        self._busy = False
        self._company = False  # the latest batch was of several callers
        self._line: list[_Ticket[A, B]] = []
        _all.add(self)

    def begin_anew(self) -> None:
        """In a forked child: whoever led or held the lock in the parent is not there to pass it on."""
        self._lock, self._busy, self._company, self._line = mutex(), False, False, []

    def run(self, items: Sequence[A]) -> Awaitable[list[B]]:
        return self._act(items) if self._io.interruptible() else self._join(items)

    async def _join(self, items: Sequence[A]) -> list[B]:
        with self._lock:
            ticket: _Ticket[A, B] | None = None
            if self._busy or self._company:
                ticket = _Ticket(
                    items, self._io.waiter()
                )  # not `_Ticket[A, B](...)`, which takes two microseconds more
                ticket.leads = not self._busy
                self._line.append(ticket)
            self._busy = True
        if ticket is None:
            try:
                return await self._act(items)
            finally:
                self._pass_on()
        try:
            if ticket.leads:
                await self._io.let_others_run()
            else:
                await ticket.waiter.wait(None)
        except BaseException:
            with self._lock:
                leads = ticket.leads
                if ticket in self._line:
                    self._line.remove(ticket)
            if leads:
                self._pass_on()
            raise
        if ticket.leads:
            batch = self._board(ticket)
            await self._io.shield(self._carry(batch), None)
        if ticket.error is not None:
            raise ticket.error
        assert ticket.results is not None
        return ticket.results

    def _board(self, leader: _Ticket[A, B]) -> list[_Ticket[A, B]]:
        """Who travels with this leader."""
        with self._lock:
            taken, size = 0, 0
            for ticket in self._line:
                size += len(ticket.items)
                if taken and size > LIMIT:
                    break
                taken += 1
            batch = self._line[:taken]
            if leader not in batch:
                batch[-1] = leader
            self._line = [ticket for ticket in self._line if ticket not in batch]
            self._company = len(batch) > 1
            return batch

    async def _carry(self, batch: list[_Ticket[A, B]]) -> None:
        items = [item for ticket in batch for item in ticket.items]
        try:
            results = await self._act(items)
            at = 0
            for ticket in batch:
                ticket.results = results[at : at + len(ticket.items)]
                at += len(ticket.items)
        except Exception as error:
            for ticket in batch:
                ticket.error = error.copy() if isinstance(error, MailboxError) and len(batch) > 1 else error
        finally:
            self._pass_on()
            for ticket in batch:
                if not ticket.leads:
                    ticket.waiter.wake()

    def _pass_on(self) -> None:
        """The call is over: let the next one in line lead."""
        with self._lock:
            if not self._line:
                self._busy = False
                return
            leader = self._line[0]
            leader.leads = True
        leader.waiter.wake()


_all: WeakSet[Gatherer[Any, Any]] = WeakSet()


def _after_fork() -> None:
    for gatherer in list(_all):
        gatherer.begin_anew()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_after_fork)
