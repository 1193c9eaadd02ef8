"""A worker's work: take messages, let a handler at them, do what follows. Who runs the handlers is for the shells.

An acknowledge rides in the worker's next receive where that is about to begin, and goes alone where it would have to
wait for one. Until its outcome is known the lease is kept. Everything else that ends a delivery is told at once.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, Protocol

from typing_extensions import TypeVar

from postroom.core.message import Ack, Bury, Delivery, Gone, Outcome, Refused, Settled, Verdict
from postroom.core.policy import MAX_DESCRIPTION, Backoff, describe, verdict_on
from postroom.drivers.io import Bell, mutex, sleep
from postroom.errors import Discard, HandlerOutcome, MailboxError, QueueNotFoundError, Reject
from postroom.flows import receive, settle
from postroom.flows.events import HandlerFailed, ReplyDropped, StaleAcknowledge, StoreAway
from postroom.flows.held import Held
from postroom.flows.leases import Keeper, Kept
from postroom.flows.link import Box, open_box
from postroom.flows.reply import answer, target_of

T = TypeVar("T", default=Any)
R = TypeVar("R", default=Any)

FINAL = "final"


class Job(Generic[T, R]):
    """What is done with each message, and what failures mean."""

    def __init__(
        self,
        box: Box[T, R],
        hold: Callable[[Delivery, T], Held[T, R]],
        call: Callable[[Held[T, R]], Awaitable[Any]],
        retry: Backoff,
        emit: Callable[[object], object],
    ) -> None:
        self.box = box
        self.hold = hold
        self.call = call
        self.retry = retry
        self.emit = emit

    async def verdict(self, held: Held[T, R]) -> Verdict:
        """Call the handler; what becomes of the message. What is no Exception (a cancellation) is raised."""
        delivery = held._delivery
        try:
            result = await self.call(held)
            return await self._done(held, result)
        except Discard:
            return Ack(delivery.handle)
        except Exception as failure:
            return self._failed(held, failure)

    async def _done(self, held: Held[T, R], result: Any) -> Verdict:
        """Acknowledged, and the reply with it, if anybody asked for one and the handler has not answered by itself."""
        handle = held.receipt_handle
        wanted = held.reply_to is not None or held._delivery.envelope.reply_ref is not None
        if not wanted or (result is None and held._replies):
            return Ack(handle)
        link, name = target_of(held)
        envelope = answer(held, link, result, FINAL)
        if link is held._box.link:
            return Ack(handle, ((name, envelope),))
        try:  # by reference, into another store: in a step of its own, before
            await link.put(name, (envelope,))
        except QueueNotFoundError:
            self.emit(ReplyDropped(name, envelope.id))
        return Ack(handle)

    def _failed(self, held: Held[T, R], failure: Exception) -> Verdict:
        delivery = held._delivery
        if isinstance(failure, HandlerOutcome) and not isinstance(failure, Reject):
            return verdict_on(failure, delivery, self.retry, random.random())
        last = isinstance(failure, Reject) or delivery.attempt >= self.retry.max_attempts
        self.emit(HandlerFailed(held._box.name, held.id, delivery.attempt, describe(failure), last))
        if last and not isinstance(failure, Reject):
            return Bury(delivery.handle, "max_deliveries", describe(failure)[:MAX_DESCRIPTION])
        return verdict_on(failure, delivery, self.retry, random.random())


class Crew(Protocol):
    """Those who run handlers beside the receiving: threads or tasks."""

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None] | None:
        """Begin; how to interrupt it, where that can be done."""
        ...


class Engine(Generic[T, R]):
    """Receives for a job, with so many handlers at work at once. Without a crew the receiver handles by itself."""

    def __init__(
        self, job: Job[T, R], keeper: Keeper, crew: Crew | None, concurrency: int, lease: float | None, wait: float
    ) -> None:
        self._job = job
        self._keeper = keeper
        self._crew = crew
        self._lease = lease
        self._wait = wait
        self._mutex = mutex()
        self._free = self._concurrency = concurrency
        self._claiming = False
        self._riding: list[tuple[Kept, Ack]] = []
        self._slot = Bell()  # a handler has ended
        self.stop = Bell()
        self.beat: Callable[[], None] = _nothing

    @property
    def busy(self) -> int:
        """Handlers at work."""
        return self._concurrency - self._free

    async def run(self, rounds: int | None) -> None:
        """Until `stop` rings, the mailbox closes, or so many receives were made. A store that is away ends nothing."""
        box, attempt = self._job.box, 0
        while not (self.stop.rung or box.closing.rung) and rounds != 0:
            try:
                self.beat()
                await self.round(self._wait)
                attempt = 0
            except MailboxError as error:
                if box.closing.rung or not error.transient:
                    if box.closing.rung:
                        break
                    raise
                attempt += 1
                pause = max(error.retry_after or 0.0, _AWAY.after(attempt, random.random()))
                self._job.emit(StoreAway(box.name, str(error), pause))
                await sleep(box.driver.io, pause, self.stop)
            if rounds is not None:
                rounds -= 1

    async def round(self, wait: float) -> int:
        """One receive, for as many messages as there are free hands; how many came."""
        job = self._job
        box, link = job.box, job.box.link
        if not box.ready:
            await open_box(box)
        await self._await_slot()
        with self._mutex:
            n, riding = self._free, self._riding
            self._riding, self._claiming = [], True
        if self.stop.rung or n == 0:
            with self._mutex:
                self._riding, self._claiming = [*riding, *self._riding], False
            return 0
        try:
            verdicts = [ack for _, ack in riding]
            most = job.retry.max_attempts
            claimed = await receive.claim(link, box.name, n, self._lease, wait, None, most, self.stop, verdicts)
        except BaseException:
            with self._mutex:
                # It may have been carried out. Asked again, "gone" is what we wanted.
                for kept, _ in riding:
                    kept.held._unsure = True
                self._riding, self._claiming = [*riding, *self._riding], False
            raise
        with self._mutex:
            self._claiming = False
        self._concluded(riding, claimed.outcomes)
        taken, bad = receive.decode(box, claimed.deliveries)
        if bad:
            good = await receive.put_away(link, box.name, bad, [delivery for delivery, _ in taken])
            taken = [(delivery, body) for delivery, body in taken if delivery in good]
        if self.stop.rung:
            await settle.give_back([job.hold(delivery, body) for delivery, body in taken])
            return 0
        for delivery, body in taken:
            await self._begin(job.hold(delivery, body))
        return len(claimed.deliveries)

    async def _await_slot(self) -> None:
        while not self._free and not self.stop.rung:
            waiter = self._job.box.driver.io.waiter()
            self._slot.listen(waiter.wake)
            self.stop.listen(waiter.wake)
            if not self._free:
                await waiter.wait(None)
            self._slot.leave(waiter.wake)
            self.stop.leave(waiter.wake)

    async def _begin(self, held: Held[T, R]) -> None:
        kept = self._keeper.keep(held)
        with self._mutex:
            self._free -= 1
        if self._crew is None:
            await self._handle(kept)
        else:
            kept.on_lost = self._crew.start(lambda: self._handle(kept))

    async def _handle(self, kept: Kept) -> None:
        try:
            verdict = await self._job.verdict(kept.held)
            kept.concluded = True
            if kept.lost:
                return
            if type(verdict) is Ack:
                with self._mutex:
                    rides = not self._claiming and not self.stop.rung
                    if rides:
                        self._riding.append((kept, verdict))
                if rides:
                    return
            await self._tell(kept, verdict)
        except BaseException:
            kept.concluded = True
            if not kept.lost:
                await self._return(kept)
            raise
        finally:
            with self._mutex:
                self._free += 1
            self._slot.ring()

    async def _tell(self, kept: Kept, verdict: Verdict) -> None:
        """Settle alone. While the store is away we try again: the keeper holds the message as long as it can."""
        box, attempt = self._job.box, 0
        while True:
            try:
                [outcome] = await box.link.settle(box.name, (verdict,))
            except MailboxError as error:
                kept.held._unsure = True
                attempt += 1
                if error.transient and not kept.lost and attempt <= _TRIES:
                    await sleep(box.driver.io, _AWAY.after(attempt, random.random()))
                    continue
                self._keeper.drop(kept)
                self._job.emit(StaleAcknowledge(box.name, kept.held.id, str(error)))
                return
            return self._conclude(kept, verdict, outcome)

    async def _return(self, kept: Kept) -> None:
        self._keeper.drop(kept)
        await settle.give_back([kept.held])

    def _concluded(self, riding: list[tuple[Kept, Ack]], outcomes: Any) -> None:
        for (kept, ack), outcome in zip(riding, outcomes, strict=True):
            self._conclude(kept, ack, outcome)

    def _conclude(self, kept: Kept, verdict: Verdict, outcome: Outcome) -> None:
        self._keeper.drop(kept)
        held, box = kept.held, self._job.box
        held._final = True
        if isinstance(outcome, Settled):
            if type(verdict) is Ack:
                for (name, envelope), put in zip(verdict.puts, outcome.puts, strict=False):
                    if isinstance(put, Refused):
                        self._job.emit(ReplyDropped(name, envelope.id))
        elif not (isinstance(outcome, Gone) and held._unsure):
            why = str(outcome.error) if isinstance(outcome, Refused) else type(outcome).__name__.lower()
            self._job.emit(StaleAcknowledge(box.name, held.id, why))

    async def flush(self) -> None:
        """Tell what was to ride, and nothing is left to ride in."""
        with self._mutex:
            riding, self._riding = self._riding, []
        for kept, ack in riding:
            await self._tell(kept, ack)

    async def drained(self, left: Callable[[], float]) -> bool:
        """Wait until all handlers have ended; False when no time was `left` before that."""
        while self._free < self._concurrency:
            waiter = self._job.box.driver.io.waiter()
            self._slot.listen(waiter.wake)
            if self._free < self._concurrency:
                await waiter.wait(left())
            self._slot.leave(waiter.wake)
            if left() <= 0 and self._free < self._concurrency:
                return False
        return True


_AWAY = Backoff(base=0.1, cap=10.0, jitter=0.3)  # how long a worker waits for a store that is away
_TRIES = 20


def _nothing() -> None:
    return None
