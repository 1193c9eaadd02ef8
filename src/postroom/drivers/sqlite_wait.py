"""Waiting for something to happen at a queue, without a transaction, a lock or a thread.

A caller starts to listen inside the very step that found nothing: whatever is committed later rings later, so nothing
is missed. The ring only tells us to look; a lost one costs a poll, never a message.
"""

from __future__ import annotations

import math
from typing import Literal

from postroom.drivers.clock import Clock
from postroom.drivers.io import Bell, Io, Waiter
from postroom.drivers.sqlite_ledger import Queue
from postroom.drivers.sqlite_site import Post, Site
from postroom.drivers.sqlite_step import Step


class Waiting:
    """One caller, over all attempts of one call."""

    def __init__(
        self,
        io: Io,
        site: Site,
        clock: Clock,
        closed: Bell,
        stop: Bell | None,
        kind: Literal["claims", "sessions", "room"],
        seconds: float,
    ) -> None:
        self._io = io
        self._sync = io.flavour == "sync"
        self._site = site
        self._clock = clock
        self._others = [bell for bell in (closed, clock.moved, stop) if bell is not None]
        self._closed, self._stop = closed, stop
        self._kind = kind
        self._seconds = seconds
        self._deadline: float | None = None
        self._waiter: Waiter | None = None
        self._post: Post | None = None
        self._bell: Bell | None = None
        self._until = math.inf
        self._gone = False
        self._last = False
        self.over = False

    def arm(self) -> None:
        """Before each attempt, on the caller's side: a task's wait must be made on its loop."""
        self._site.attend()
        self._waiter = None if self._sync else self._io.waiter()
        self._bell = None

    def nothing(self, step: Step, queue: Queue, due: float) -> None:
        """In the step, which found nothing; time will change something at `due`."""
        now, waiter = step.now, self._waiter
        if self._deadline is None:
            self._deadline = now + self._seconds
        if self._last or now >= self._deadline or self._closed.rung or (self._stop is not None and self._stop.rung):
            self.over = True
            return
        idle = queue.rules.auto_delete_on_idle
        # Who waits at a queue is using it: look in often enough that it is not taken for idle.
        self._until = min(self._deadline, due, math.inf if idle is None else now + idle / 2)
        post = self._post = self._site.post(queue.id)
        if waiter is None:
            waiter = self._waiter = self._site.ear() or self._io.waiter()  # a thread's is made where it is needed
        bell = post.room if self._kind == "room" else post.claims if self._kind == "claims" else post.sessions
        bell.listen(waiter.wake)
        self._bell = bell
        if self._kind == "claims":
            post.alarm = min(post.alarm, self._until)
        if self._gone:  # cancelled while the step ran in its thread: nobody will ever come for this wait
            self._leave(served=False)

    def wake_by(self, due: float) -> None:
        """Time will change something at `due`, as was found out after we began to listen."""
        self._until = min(self._until, due)
        if self._post is not None and self._kind == "claims":
            self._post.alarm = min(self._post.alarm, self._until)

    def changed(self) -> None:
        """There may be something after all: no need to listen."""
        self._leave(served=False)

    async def sleep(self) -> None:
        """Until a bell rings or it is time to look."""
        waiter = self._waiter
        if waiter is None or self._bell is None:
            return
        for bell in self._others:
            bell.listen(waiter.wake)
        served = False
        if not self._sync:
            self._site.waits()
        try:
            woken = await waiter.wait(self._clock.patience(self._until))
            served = True
            # Having been as patient as the clock told us, we look once more and go, whatever it says by then.
            self._last = not woken and self._deadline is not None and self._until >= self._deadline
        finally:
            for bell in self._others:
                bell.leave(waiter.wake)
            self._leave(served)

    def leave(self) -> None:
        """The call is over, however it ended."""
        self._gone = True
        if self._bell is not None:
            self._leave(served=False)

    def _leave(self, served: bool) -> None:
        bell, post, waiter = self._bell, self._post, self._waiter
        self._bell = None
        if bell is None or post is None or waiter is None:
            return
        if not bell.leave(waiter.wake) and not served:
            bell.ring(1)  # we were called and cannot come: the next in line must look
        if self._kind == "claims" and self._until <= post.alarm:
            # We were the one who would wake when something is due. Whoever waits next takes that over.
            post.alarm = math.inf
            post.claims.ring(1)
