"""The memory store: the reference semantics, in one process, without a timer thread and without polling.

One lock guards a store and is held for the few microseconds of a step, never across a wait. Time comes from a clock
that is given; whoever waits computes when the next lease lapses or delay ends, and sleeps until then or until a bell.
Sync and async drivers may share one store: that is why bells are callbacks.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from itertools import count
from typing import Any, Literal

from postroom.core import refusals
from postroom.core.address import Address, check_namespace, is_dead_letters
from postroom.core.capabilities import NO, YES, Capabilities
from postroom.core.definition import PLAIN, QueueStatus, Rules
from postroom.core.message import (
    Claimed,
    Delivery,
    Envelope,
    Outcome,
    Put,
    Refused,
    SessionClaim,
    SessionLock,
    SessionState,
    Stats,
    Verdict,
)
from postroom.drivers.clock import Clock, SystemClock
from postroom.drivers.io import Awaiting, Bell, Inline, Io, Waiter
from postroom.drivers.memory_entry import seen
from postroom.drivers.memory_queue import Queue
from postroom.drivers.memory_space import Space, holds
from postroom.errors import (
    ConfigurationError,
    MailboxConnectionError,
    MailboxFullError,
    QueueNotFoundError,
)

FENCE = 60.0

CAPABILITIES = Capabilities(
    store="memory",
    survives_crash=NO,
    survives_power_loss=NO,
    clock="monotonic",
    notes={"survives_crash": "the messages live in this process", "transactional": "there is no database to share"},
)


class MemoryStore:
    """What the drivers of one store share. Lives as long as somebody uses it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.lock = threading.Lock()
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.numbers = count(1)  # seqs and fencing tokens: neither ever falls
        self.spaces: dict[str, Space] = {}
        self.fences: dict[str, float] = {}  # abandoned claim ids, and until when they are remembered


_shared: dict[str, MemoryStore] = {}
_shared_lock = threading.Lock()


def open(address: Address, *, flavour: Literal["sync", "async"], **options: Any) -> MemoryDriver:
    """`memory://` is a store of its own; `memory://name` is one that all clients of this process share."""
    if address.options:
        options = {**address.options, **options}
    clock = options.pop("clock", None)
    namespace = options.pop("namespace", "")
    serialize = _flag(options.pop("serialize", False))
    if options:
        raise ConfigurationError(
            f"memory:// knows the options clock, namespace and serialize, not {', '.join(sorted(options))}"
        )
    name = address.location.strip("/")
    if name:
        with _shared_lock:
            store = _shared.get(name)
            if store is None:
                store = _shared[name] = MemoryStore(clock)
            elif clock is not None and store.clock is not clock:
                raise ConfigurationError(f"memory://{name} exists already, with another clock")
    else:
        store = MemoryStore(clock)
    io: Io = Inline() if flavour == "sync" else Awaiting()
    return MemoryDriver(store, io, namespace=namespace, serialize=serialize)


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("1", "true", "yes", "0", "false", "no"):
        return value in ("1", "true", "yes")
    raise ConfigurationError(f"serialize is true or false, not {value!r:.80}")


class MemoryDriver:
    """The waist over a MemoryStore."""

    def __init__(self, store: MemoryStore, io: Io, *, namespace: str = "", serialize: bool = False) -> None:
        self.io = io
        self.store = store
        self.capabilities = CAPABILITIES if serialize else _BY_REFERENCE
        self._lock = store.lock
        self._clock = store.clock.now
        space = store.spaces.get(check_namespace(namespace))
        if space is None:
            space = store.spaces.setdefault(namespace, Space(store.numbers, store.fences))
        self._space = space
        self.place = f"memory {id(store):x} {namespace}"
        self._namespace = namespace
        self._queues = space.queues  # looked up here on the hot path: a call less, three times a message
        self._closed = Bell()

    def now(self) -> float:
        return self._clock()

    def sibling(self) -> MemoryDriver:
        if self.io.flavour == "sync":
            return self
        serialize = not self.capabilities.by_reference
        return MemoryDriver(self.store, Inline(), namespace=self._namespace, serialize=serialize)

    # --- queues ------------------------------------------------------------------------------------------------

    async def ensure(self, queue: str, rules: Rules | None = None) -> bool:
        with self._lock:
            now = self._clock()
            try:
                found = self._space.queue(queue, now)
            except QueueNotFoundError:
                if is_dead_letters(queue):
                    raise
                self._space.make(queue, PLAIN if rules is None else rules, now)
                return True
            if rules is not None:
                found.follow(rules, now)
                found.wake_all()  # limits may have moved
            return False

    async def drop(self, queue: str, *, only_empty: bool = False) -> int | None:
        with self._lock:
            now = self._clock()
            found = self._space.queue(queue, now)
            if found.dead is None:
                raise refusals.lives_with_its_queue(queue)
            messages = len(found.entries) + len(found.dead.entries)
            if only_empty and messages:
                return None
            self._space.drop(found, now)
            return messages

    async def queues(self) -> list[str]:
        with self._lock:
            now = self._clock()
            for queue in [queue for queue in self._space.queues.values() if queue.idle_too_long(now)]:
                self._space.drop(queue, now)
            return sorted(name for name, queue in self._space.queues.items() if queue.dead is not None)

    async def info(self, queue: str) -> tuple[Stats, Rules, QueueStatus]:
        with self._lock:
            now = self._clock()
            found = self._space.queue(queue, now)
            self._space.tidy(found, now, None)
            dead = self._space.dead_queue(found)
            first = min(
                (entry for lane in found.lanes.values() if (entry := lane.peek()) is not None),
                key=lambda entry: entry.seq,
                default=None,
            )
            stats = Stats(
                ready=found.ready,
                scheduled=found.scheduled,
                in_flight=found.in_flight,
                dead=0 if dead is None else len(dead.entries),
                bytes=found.bytes,
                oldest_age=None if first is None else max(0.0, now - first.waits_since),
                dropped=found.dropped,
                expired=found.expired,
                created_at=found.created_at,
                updated_at=found.updated_at,
            )
            return stats, found.rules, found.status

    async def set_status(self, queue: str, status: QueueStatus) -> None:
        with self._lock:
            now = self._clock()
            found = self._space.queue(queue, now)
            found.status, found.takes, found.gives = status, status.takes, status.gives
            found.updated_at = now
            found.wake_all()

    async def peek(self, queue: str, n: int, *, after: int = 0) -> list[Delivery]:
        with self._lock:
            now = self._clock()
            found = self._space.queue(queue, now)
            self._space.tidy(found, now, None)
            return [seen(entry, now) for entry in found.browse(n, after)]

    async def purge(self, queue: str) -> int:
        with self._lock:
            now = self._clock()
            found = self._space.queue(queue, now)
            removed = len(found.entries)
            self._space.purge(found, now)
            found.touched = now
            found.wake_all()
            return removed

    async def redrive(self, queue: str, seqs: Sequence[int], *, target: str | None = None) -> list[Outcome]:
        with self._lock:
            now = self._clock()
            dead = self._space.queue(queue, now)
            self._space.tidy(dead, now, None)
            return [self._space.revive(dead, seq, target, now) for seq in seqs]

    # --- in ----------------------------------------------------------------------------------------------------

    async def put(self, queue: str, batch: Sequence[Envelope], *, stop: Bell | None = None) -> list[Put]:
        with self._lock:
            if self._closed.rung:
                raise MailboxConnectionError(f"{queue}: this client is closed", transient=False)
            now = self._clock()
            found = self._queues.get(queue)
            if found is None or found.mortal:
                found = self._space.queue(queue, now)
            results = self._space.put(found, batch, now)
        if found.rules.overflow != "wait" or not any(_waits(result) for result in results):
            return results
        deadline = now + found.rules.overflow_timeout
        while True:
            waiter = self.io.waiter()
            with self._lock:
                now = self._clock()
                found = self._space.queue(queue, now)
                left = [i for i, result in enumerate(results) if _waits(result)]
                for i, result in zip(left, self._space.put(found, [batch[i] for i in left], now), strict=True):
                    results[i] = result
                over = now >= deadline or (stop is not None and stop.rung) or self._closed.rung
                if over or not any(_waits(result) for result in results):
                    return results
                expiry = found.expiry.items
                found.room.listen(waiter.wake)
            await self._wait(found, found.room, waiter, min(deadline, expiry[0][0]) if expiry else deadline, stop)

    # --- out ---------------------------------------------------------------------------------------------------

    async def claim(
        self,
        queue: str,
        n: int,
        *,
        lease: float | None,
        wait: float,
        claim_id: str,
        session: SessionClaim | None = None,
        max_deliveries: int | None = None,
        settle: Sequence[Verdict] = (),
        stop: Bell | None = None,
        again: bool = False,
    ) -> Claimed:
        outcomes: list[Outcome] = []
        deadline: float | None = None
        buried = expired = 0
        while True:
            with self._lock:
                now = self._clock()
                found = self._queues.get(queue)
                if found is None or found.mortal:
                    found = self._space.queue(queue, now)
                if settle:
                    outcomes, settle = self._space.settle(found, settle, now), ()
                if self._closed.rung:
                    return Claimed((), outcomes, buried, expired)
                if not found.gives:
                    raise refusals.receiving_off(queue, found.status)
                taken = self._space.claim(found, n, lease, claim_id, session, max_deliveries, again, now)
                if not (outcomes or buried or expired) and (taken.deliveries or wait <= 0):
                    return taken
                buried, expired = buried + taken.buried, expired + taken.expired
                due = found.next_due()
                if not taken.deliveries and (taken.buried or taken.expired or (due is not None and due <= now)):
                    continue  # one step tidies so many and no more; what we want may lie behind them
                deadline = now + wait if deadline is None else deadline
                if taken.deliveries or now >= deadline or (stop is not None and stop.rung):
                    return Claimed(taken.deliveries, outcomes, buried, expired)
                waiter = self.io.waiter()
                until = deadline if due is None else min(due, deadline)
                bell = _listen(found, session, waiter, until)
            await self._wait(found, bell, waiter, until, stop)

    async def _wait(self, queue: Queue, bell: Bell, waiter: Waiter, until: float, stop: Bell | None) -> None:
        """Until `bell` or another one rings, or it is time. The caller listens to `bell` from under the lock already,
        so nothing that happens in between is missed. Who gives us a `stop` rings it when closing, too."""
        clock, wake, end = self.store.clock, waiter.wake, self._closed if stop is None else stop
        end.listen(wake)
        if clock.moved is not None:
            clock.moved.listen(wake)
        served = False
        try:
            await waiter.wait(clock.patience(until))
            served = True
        finally:
            end.leave(wake)
            if clock.moved is not None:
                clock.moved.leave(wake)
            if not bell.leave(wake) and not served:
                bell.ring(1)  # we were called and cannot come: the next in line must look
            if until <= queue.alarm:
                # We were the one who would wake when something is due. Whoever waits next takes that over.
                queue.alarm = math.inf
                if queue.bell.waiters:
                    queue.bell.ring(1)

    # --- settling ----------------------------------------------------------------------------------------------

    async def settle(self, queue: str, batch: Sequence[Verdict]) -> list[Outcome]:
        with self._lock:
            now = self._clock()
            found = self._queues.get(queue)
            if found is None or found.mortal:
                found = self._space.queue(queue, now)
            return self._space.settle(found, batch, now)

    async def abandon(self, queue: str, claim_id: str) -> None:
        with self._lock:
            now = self._clock()
            fences = self.store.fences
            for id in [id for id, until in fences.items() if until <= now]:
                del fences[id]
            fences[claim_id] = now + FENCE
            found = self._space.queues.get(queue)
            if found is None:
                return
            held = [entry for entry in found.leases.values() if holds(entry, claim_id, now)]
            for entry in sorted(held, key=lambda entry: -entry.seq):
                found.uncount(entry)
                found.release(entry, now, 0.0)
            if held:
                found.wake(len(held))

    # --- sessions ----------------------------------------------------------------------------------------------

    async def lock(
        self, queue: str, session: str | None, *, lease: float, wait: float, token: str, stop: Bell | None = None
    ) -> SessionLock | None:
        deadline: float | None = None
        while True:
            with self._lock:
                now = self._clock()
                found = self._space.queue(queue, now)
                if not found.status.gives:
                    raise refusals.receiving_off(queue, found.status)
                if found.dead is None or found.rules.sessions == "off":
                    raise refusals.no_sessions(queue)
                self._space.tidy(found, now, None)
                free = self._space.free_session(found, session, now)
                if free is not None:
                    free.token = token
                    self._space.hold(found, free, now + lease)
                    found.rehead(free, now)
                    return SessionLock(free.id, token, free.until)
                deadline = now + wait if deadline is None else deadline
                if now >= deadline or self._closed.rung or (stop is not None and stop.rung):
                    return None
                waiter = self.io.waiter()
                due = found.next_due()
                until = deadline if due is None else min(due, deadline)
                bell = _listen(found, None if session is None else SessionClaim(session), waiter, until)
            await self._wait(found, bell, waiter, until, stop)

    async def renew(self, queue: str, lock: SessionLock, lease: float) -> SessionLock | None:
        with self._lock:
            now = self._clock()
            found = self._space.queue(queue, now)
            session = self._space.locked(found, lock, now)
            if session is None:
                return None
            self._space.hold(found, session, now + lease)
            return SessionLock(lock.id, lock.token, session.until)

    async def unlock(self, queue: str, lock: SessionLock) -> bool:
        with self._lock:
            now = self._clock()
            found = self._space.queue(queue, now)
            session = self._space.locked(found, lock, now)
            if session is None:
                return False
            session.token = None
            for entry in sorted(session.held.values(), key=lambda entry: -entry.seq):
                found.uncount(entry)
                found.release(entry, now, 0.0)
            found.rehead(session, now)
            found.wake(1)
            return True

    async def get_state(self, queue: str, session: str) -> SessionState:
        with self._lock:
            members = self._space.queue(queue, self._clock()).sessions.get(session)
            return members.state if members is not None else SessionState(None, 0)

    async def set_state(
        self, queue: str, lock: SessionLock, value: bytes | None, *, version: int | None = None
    ) -> SessionState | None:
        with self._lock:
            now = self._clock()
            session = self._space.locked(self._space.queue(queue, now), lock, now)
            if session is None:
                raise refusals.lock_lost(queue, lock.id)
            if version is not None and session.state.version != version:
                return None
            session.state = SessionState(value, session.state.version + 1)
            return session.state

    async def close(self) -> None:
        self._closed.ring_for_good()
        await self.io.close()


_BY_REFERENCE = Capabilities(
    store="memory",
    survives_crash=NO,
    survives_power_loss=NO,
    clock="monotonic",
    by_reference=True,
    transactional=NO,
    capacity=YES,
    notes={
        **CAPABILITIES.notes,
        "capacity": "max_bytes needs serialize=True: a body passed by reference has no size",
    },
)
_NOTHING = Claimed()


def _waits(result: Put) -> bool:
    return isinstance(result, Refused) and isinstance(result.error, MailboxFullError)


def _listen(queue: Queue, session: SessionClaim | None, waiter: Waiter, until: float) -> Bell:
    """Listen for what this claim wants: those who want one session must not swallow the rings of the others."""
    if session is None:
        bell = queue.bell
        if until < queue.alarm:
            queue.alarm = until
    else:
        for id in [id for id, other in queue.session_bells.items() if not other.waiters]:
            del queue.session_bells[id]
        bell = queue.session_bells.setdefault(session.id, Bell())
    bell.listen(waiter.wake)
    return bell
