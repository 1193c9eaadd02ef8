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
from postroom.core.policy import MAX_DESCRIPTION, Backoff, describe, smaller, verdict_on
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
        self.limit = retry.max_attempts  # and the queue's own, once it is known
        self.buries = True

    async def open(self) -> None:
        """Make sure that the queue is there, and learn its rules."""
        await open_box(self.box)
        _, rules, _ = await self.box.driver.info(self.box.name)
        self.limit = smaller(self.retry.max_attempts, rules.max_deliveries) or self.retry.max_attempts
        self.buries = rules.dead_lettering and not self.box.dead

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
        last = isinstance(failure, Reject) or delivery.attempt >= self.limit
        self.emit(HandlerFailed(held._box.name, held.id, delivery.attempt, describe(failure), last))
        if last and not self.buries:
            return Ack(delivery.handle)  # where nothing is buried it is dropped
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
        self._opened = False
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
                if box.closing.rung:
                    break
                if isinstance(error, QueueNotFoundError):
                    box.ready = False  # it was deleted, or the server lost its data: we make it anew
                elif not error.transient:
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
        if not box.ready or not self._opened:
            await job.open()
            self._opened = True
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
        for group in _in_order([job.hold(delivery, body) for delivery, body in taken]):
            await self._begin(group)
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

    async def _begin(self, group: list[Held[T, R]]) -> None:
        line = [self._keeper.keep(held) for held in group]
        with self._mutex:
            self._free -= 1
        if self._crew is None:
            await self._handle_all(line)
            return
        interrupt = self._crew.start(lambda: self._handle_all(line))
        for kept in line:
            kept.on_lost = interrupt

    async def _handle_all(self, line: list[Kept]) -> None:
        """One message, or those of one session, one after the other: what follows one that failed is not ours any more,
        as the store took it back with it."""
        at = 0
        try:
            while at < len(line):
                if at and self.stop.rung:
                    await settle.give_back([kept.held for kept in line[at:]])
                    break
                at += 1
                if not await self._handle(line[at - 1]):
                    break
        except BaseException:
            await settle.give_back([kept.held for kept in line[at:] if not kept.lost])
            raise
        finally:
            for kept in line[at:]:
                self._keeper.drop(kept)
            with self._mutex:
                self._free += 1
            self._slot.ring()

    async def _handle(self, kept: Kept) -> bool:
        """Whether it is done, and the next of its session may begin."""
        held = kept.held
        try:
            verdict = await self._job.verdict(held)
            kept.concluded = True
            if kept.lost:
                return False
            if held._final:  # the handler has settled it by itself
                self._keeper.drop(kept)
                return type(verdict) is Ack
            if type(verdict) is Ack:
                with self._mutex:
                    rides = not self._claiming and not self.stop.rung
                    if rides:
                        self._riding.append((kept, verdict))
                if rides:
                    return True
            await self._tell(kept, verdict)
            return type(verdict) is Ack
        except BaseException:
            kept.concluded = True
            if not kept.lost and not held._final:
                self._keeper.drop(kept)
                await settle.give_back([held])
            raise

    async def _tell(self, kept: Kept, verdict: Verdict) -> None:
        """Settle alone. While the store is away we try again: the keeper holds the message as long as it can."""
        box, attempt = self._job.box, 0
        while True:
            try:
                [outcome] = await box.link.settle(box.name, (verdict,))
            except MailboxError as error:
                kept.held._unsure = True
                attempt += 1
                # Told to stop, we do not wait for the store to come back: what it was not told is delivered again.
                if error.transient and not kept.lost and attempt <= _TRIES and not self.stop.rung:
                    await sleep(box.driver.io, _AWAY.after(attempt, random.random()), self.stop)
                    continue
                self._keeper.drop(kept)
                self._job.emit(StaleAcknowledge(box.name, kept.held.id, str(error)))
                return
            return self._conclude(kept, verdict, outcome)

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
        if not riding:
            return
        box = self._job.box
        try:
            outcomes = await box.link.settle(box.name, [ack for _, ack in riding])
        except MailboxError as error:
            for kept, ack in riding:
                kept.held._unsure = True
                if self.stop.rung:
                    self._keeper.drop(kept)
                    self._job.emit(StaleAcknowledge(box.name, kept.held.id, str(error)))
                else:
                    await self._tell(kept, ack)
            return
        self._concluded(riding, outcomes)

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


def _in_order(taken: list[Held[T, R]]) -> list[list[Held[T, R]]]:
    """What may be handled side by side: messages of one session follow one another."""
    groups: list[list[Held[T, R]]] = []
    of: dict[str, list[Held[T, R]]] = {}
    for held in taken:
        session = held.session_id
        if session is None:
            groups.append([held])
        elif session in of:
            of[session].append(held)
        else:
            of[session] = [held]
            groups.append(of[session])
    return groups
