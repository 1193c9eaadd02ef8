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

from postroom.core.address import Address, check_namespace, dead_letters_of, is_dead_letters
from postroom.core.capabilities import NO, YES, Capabilities
from postroom.core.definition import PLAIN, QueueStatus, Rules
from postroom.core.message import (
    GONE,
    SETTLED,
    STALE,
    Accepted,
    Ack,
    Bury,
    Claimed,
    Death,
    Delivery,
    Dropped,
    Duplicate,
    Envelope,
    Extend,
    Outcome,
    Put,
    Refused,
    Release,
    Return,
    SessionClaim,
    SessionLock,
    SessionState,
    Settled,
    Stats,
    Verdict,
    parse_handle,
)
from postroom.drivers.api import TIDY
from postroom.drivers.clock import Clock, SystemClock
from postroom.drivers.io import Awaiting, Bell, Inline, Io, Waiter
from postroom.drivers.memory_queue import BLOCKED, FLIGHT, PARKED, PARKING, READY, Entry, Past, Queue, Session
from postroom.errors import (
    ConfigurationError,
    InvalidParameterError,
    MailboxError,
    MailboxFullError,
    QueueNotFoundError,
    ReceiptHandleExpiredError,
    ServiceUnavailableError,
    UnsupportedError,
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
        self.spaces: dict[str, dict[str, Queue]] = {}
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
        self._queues = store.spaces.setdefault(check_namespace(namespace), {})
        self._closed = Bell()

    def now(self) -> float:
        return self._clock()

    # --- queues ------------------------------------------------------------------------------------------------

    def _queue(self, name: str, now: float) -> Queue:
        queue = self._queues.get(name)
        if queue is None:
            raise QueueNotFoundError(f"{name}: no such queue; create_queue() makes one, and so does opening a mailbox")
        if queue.rules.auto_delete_on_idle is not None:
            if now - queue.touched >= queue.rules.auto_delete_on_idle:
                self._drop(queue)
                raise QueueNotFoundError(f"{name}: the queue was deleted after it had been idle for its limit")
            queue.touched = now
        return queue

    def _make(self, name: str, rules: Rules, now: float) -> Queue:
        dead_name = dead_letters_of(name)
        dead = Queue(dead_name, PLAIN, now, self.store.numbers, None)
        queue = Queue(name, rules, now, self.store.numbers, dead)
        self._queues[name], self._queues[dead_name] = queue, dead
        return queue

    def _drop(self, queue: Queue) -> None:
        for part in (queue, queue.dead):
            if part is not None:
                self._queues.pop(part.name, None)
                part.purge()
                _wake_all(part)

    async def ensure(self, queue: str, rules: Rules | None = None) -> bool:
        with self._lock:
            now = self._clock()
            try:
                found = self._queue(queue, now)
            except QueueNotFoundError:
                if is_dead_letters(queue):
                    raise
                self._make(queue, PLAIN if rules is None else rules, now)
                return True
            if rules is not None:
                found.rules, found.updated_at = rules, now
                _wake_all(found)  # limits may have moved
            return False

    async def drop(self, queue: str, *, only_empty: bool = False) -> int | None:
        with self._lock:
            found = self._queue(queue, self._clock())
            if found.dead is None:
                raise UnsupportedError(f"{queue}: a dead-letter queue lives and goes with its queue; purge it instead")
            messages = len(found.entries) + len(found.dead.entries)
            if only_empty and messages:
                return None
            self._drop(found)
            return messages

    async def queues(self) -> list[str]:
        with self._lock:
            now = self._clock()
            for name in list(self._queues):
                queue = self._queues.get(name)
                if queue is not None and queue.rules.auto_delete_on_idle is not None:
                    if now - queue.touched >= queue.rules.auto_delete_on_idle:
                        self._drop(queue)
            return sorted(name for name, queue in self._queues.items() if queue.dead is not None)

    async def info(self, queue: str) -> tuple[Stats, Rules, QueueStatus]:
        with self._lock:
            now = self._clock()
            found = self._queue(queue, now)
            self._tidy(found, now, None)
            dead = self._dead_queue(found)
            first = min(
                (entry for lane in found.lanes.values() if (entry := lane.peek()) is not None),
                key=lambda entry: entry.due,
                default=None,
            )
            stats = Stats(
                ready=found.ready,
                scheduled=found.scheduled,
                in_flight=found.in_flight,
                dead=0 if dead is None else len(dead.entries),
                bytes=found.bytes,
                oldest_age=None if first is None else max(0.0, now - first.due),
                dropped=found.dropped,
                expired=found.expired,
                created_at=found.created_at,
                updated_at=found.updated_at,
            )
            return stats, found.rules, found.status

    async def set_status(self, queue: str, status: QueueStatus) -> None:
        with self._lock:
            now = self._clock()
            found = self._queue(queue, now)
            found.status, found.updated_at = status, now
            _wake_all(found)

    async def peek(self, queue: str, n: int, *, after: int = 0) -> list[Delivery]:
        with self._lock:
            now = self._clock()
            found = self._queue(queue, now)
            self._tidy(found, now, None)
            return [_seen(entry, now) for entry in found.browse(n, after)]

    async def purge(self, queue: str) -> int:
        with self._lock:
            now = self._clock()
            found = self._queue(queue, now)
            if found.dead is None:
                for entry in list(found.entries.values()):
                    self._take_out(found, entry, now)  # one by one: a session may be waiting for one of them
            removed = found.purge()
            found.touched = now
            _wake_all(found)
            return removed

    async def redrive(self, queue: str, seqs: Sequence[int], *, target: str | None = None) -> list[Outcome]:
        with self._lock:
            now = self._clock()
            dead = self._queue(queue, now)
            self._tidy(dead, now, None)
            return [self._revive(dead, seq, target, now) for seq in seqs]

    def _revive(self, dead: Queue, seq: int, target: str | None, now: float) -> Outcome:
        entry = dead.entries.get(seq)
        if entry is None or entry.place == FLIGHT:
            return GONE
        past = entry.past
        if past is None or past.death is None:
            return Refused(InvalidParameterError(f"{dead.name}: message {entry.envelope.id} is no dead letter"))
        home = self._queues.get(past.death.source if target is None else target)
        if home is None or home.dead is None:
            where = past.death.source if target is None else target
            return Refused(QueueNotFoundError(f"{where}: no such queue to redrive message {entry.envelope.id} to"))
        if (full := _no_room(home, entry.envelope)) is not None:
            return Refused(full)
        self._take_out(dead, entry, now)
        past.attempts = past.lapsed = past.nacks = past.returns = past.token = 0
        past.handle = ""
        home.admit(entry, now, _ttl(home, entry.envelope))
        _wake(home, 1)
        return SETTLED

    # --- in ----------------------------------------------------------------------------------------------------

    async def put(self, queue: str, batch: Sequence[Envelope], *, stop: Bell | None = None) -> list[Put]:
        with self._lock:
            now = self._clock()
            found = self._queue(queue, now)
            results = self._put_all(found, batch, now)
        if found.rules.overflow != "wait" or not any(_waits(result) for result in results):
            return results
        deadline = now + found.rules.overflow_timeout
        while True:
            waiter = self.io.waiter()
            with self._lock:
                now = self._clock()
                found = self._queue(queue, now)
                left = [i for i, result in enumerate(results) if _waits(result)]
                for i, result in zip(left, self._put_all(found, [batch[i] for i in left], now), strict=True):
                    results[i] = result
                over = now >= deadline or (stop is not None and stop.rung) or self._closed.rung
                if over or not any(_waits(result) for result in results):
                    return results
                expiry = found.expiry.items
                found.room.listen(waiter.wake)
            await self._wait(found, found.room, waiter, min(deadline, expiry[0][0]) if expiry else deadline, stop)

    def _put_all(self, queue: Queue, batch: Sequence[Envelope], now: float) -> list[Put]:
        rules = queue.rules
        if queue.dead is None:
            raise UnsupportedError(f"{queue.name}: messages become dead letters by dying, not by being sent there")
        if not queue.status.takes:
            error = ServiceUnavailableError(f"{queue.name}: sending is off (status {queue.status})")
            return [Refused(error) for _ in batch]
        before = queue.ready
        if rules.bounded:
            self._tidy(queue, now, None)
        results: list[Put] = []
        for envelope in batch:
            if (
                not rules.bounded
                and envelope.session_id is None
                and envelope.dedup_id is None
                and rules.sessions != "required"
            ):
                entry = queue.add(envelope, now, rules.ttl if envelope.ttl is None else envelope.ttl)
                results.append(Accepted(envelope.id, entry.seq))
            else:
                results.append(self._put(queue, envelope, now))
        queue.touched = now
        if len(queue.bell):
            if queue.ready > before:
                queue.bell.ring(queue.ready - before)
            self._set_alarm(queue)
        if queue.session_bells:
            _wake_sessions(queue)
        return results

    def _put(self, queue: Queue, envelope: Envelope, now: float) -> Put:
        rules = queue.rules
        if envelope.session_id is None and rules.sessions == "required":
            return Refused(InvalidParameterError(f"{queue.name}: this queue takes messages with a session_id only"))
        if envelope.session_id is not None and rules.sessions == "off":
            return Refused(
                InvalidParameterError(f"{queue.name}: sessions are off for this queue; leave out session_id")
            )
        key = envelope.dedup_id
        if key is not None:
            if not rules.dedup:
                return Refused(
                    InvalidParameterError(
                        f"{queue.name}: duplicate detection is off for this queue; leave out dedup_id"
                    )
                )
            known = queue.dedup.get(key)
            if known is not None and known[1] > now:
                return Duplicate(known[0])
        displaced = 0
        if rules.bounded and (full := _no_room(queue, envelope)) is not None:
            if rules.overflow == "drop_newest":
                queue.dropped += 1
                return Dropped(envelope.id)
            if rules.overflow != "drop_oldest":
                return Refused(full)
            displaced = self._make_room(queue, envelope, now)
            if _no_room(queue, envelope) is not None:
                return Refused(full)
        entry = queue.add(envelope, now, _ttl(queue, envelope))
        if key is not None:
            while queue.dedup and next(iter(queue.dedup.values()))[1] <= now:
                queue.dedup.popitem(last=False)
            queue.dedup[key] = (envelope.id, now + rules.dedup_window)
            queue.dedup.move_to_end(key)
        return Accepted(envelope.id, entry.seq, displaced)

    def _set_alarm(self, queue: Queue) -> None:
        """If something is due before any of those who wait would wake, one of them must know."""
        due = queue.next_due()
        if due is not None and due < queue.alarm:
            queue.alarm = due
            queue.bell.ring(1)

    def _make_room(self, queue: Queue, envelope: Envelope, now: float) -> int:
        limit = queue.rules.max_bytes
        if limit is not None and envelope.size > limit:
            return 0  # never: dropping everything would not make room
        dropped = 0
        for entry in queue.browse(len(queue.entries), 0):
            if _no_room(queue, envelope) is None:
                break
            if entry.place != FLIGHT:
                queue.remove(entry, now)
                dropped += 1
        queue.dropped += dropped
        return dropped

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
                found = self._queue(queue, now)
                if settle:
                    outcomes, settle = self._settle_all(found, settle, now), ()
                if self._closed.rung:
                    return Claimed((), outcomes, buried, expired)
                if not found.status.gives:
                    raise ServiceUnavailableError(f"{queue}: receiving is off (status {found.status})")
                taken = self._claim(found, n, lease, claim_id, session, max_deliveries, again, now)
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
        so nothing that happens in between is missed."""
        clock = self.store.clock
        others = [other for other in (self._closed, clock.moved, stop) if other is not None]
        for other in others:
            other.listen(waiter.wake)
        served = False
        try:
            await waiter.wait(clock.patience(until))
            served = True
        finally:
            for other in others:
                other.leave(waiter.wake)
            if not bell.leave(waiter.wake) and not served:
                bell.ring(1)  # we were called and cannot come: the next in line must look
            if until <= queue.alarm:
                # We were the one who would wake when something is due. Whoever waits next takes that over.
                queue.alarm = math.inf
                queue.bell.ring(1)

    def _claim(
        self,
        queue: Queue,
        n: int,
        lease: float | None,
        claim_id: str,
        session: SessionClaim | None,
        limit: int | None,
        again: bool,
        now: float,
    ) -> Claimed:
        fences = self.store.fences
        if fences and fences.get(claim_id, 0.0) > now:
            return Claimed()
        buried = expired = 0
        if (queue.due.items and queue.due.items[0][0] <= now) or queue.expiry.items or queue.locks:
            buried, expired = self._tidy(queue, now, limit)
        until = now + (queue.rules.lease if lease is None else lease)
        deliveries: list[Delivery] = []
        if again:
            deliveries = [_held(entry) for entry in queue.leases.values() if _holds(entry, claim_id, now)]
            if deliveries:
                return Claimed(deliveries, (), buried, expired)
        token = next(self.store.numbers)
        if session is not None:
            members, until = self._members(queue, session, until, now)
            if members is not None:
                more = self._from_session(queue, members, n, limit, now, until, claim_id, token, deliveries)
                queue.rehead(members, now)
                buried, expired = buried + more[0], expired + more[1]
        else:
            while len(deliveries) < n and buried + expired <= TIDY:
                entry = queue.first_ready()
                if entry is None:
                    break
                if entry.session is not None:
                    members = entry.session
                    more = self._from_session(queue, members, n, limit, now, until, claim_id, token, deliveries)
                    queue.rehead(members, now)
                    buried, expired = buried + more[0], expired + more[1]
                elif entry.expires_at is not None and entry.expires_at <= now:
                    expired += self._expire(queue, entry, now)
                elif entry.past is not None and queue.used_up(entry, limit):
                    buried += self._bury(queue, entry, "max_deliveries", "", now)
                else:
                    deliveries.append(queue.lend(entry, now, until, claim_id, token))
        queue.touched = now
        if len(queue.bell):
            self._set_alarm(queue)
        if queue.session_bells:
            _wake_sessions(queue)
        return Claimed(deliveries, (), buried, expired) if deliveries or buried or expired else _NOTHING

    def _members(self, queue: Queue, wanted: SessionClaim, until: float, now: float) -> tuple[Session | None, float]:
        """The session a claim names, if it may take from it, and when its leases end."""
        if queue.dead is None:
            raise UnsupportedError(f"{queue.name}: dead letters keep their session_id but are in no session")
        members = queue.sessions.get(wanted.id)
        if wanted.token is None:
            if members is None or members.held or members.locked(now) or members.blocked_by:
                return None, until
            return members, until
        if members is None or members.token != wanted.token or members.until <= now:
            raise _lock_lost(queue.name, wanted.id)
        return (None if members.blocked_by else members), members.until

    def _from_session(
        self,
        queue: Queue,
        members: Session,
        n: int,
        limit: int | None,
        now: float,
        until: float,
        claim_id: str,
        token: int,
        deliveries: list[Delivery],
    ) -> tuple[int, int]:
        """Take a session's next messages in order, as many as are wanted and may be delivered."""
        buried = expired = 0
        while len(deliveries) < n and not members.blocked_by:
            entry = members.head()
            if entry is None or entry.place not in (READY, BLOCKED):
                break  # the next one is delayed or parked, and the others wait for it
            if entry.expires_at is not None and entry.expires_at <= now:
                expired += self._expire(queue, entry, now)
            elif queue.used_up(entry, limit):
                buried += self._bury(queue, entry, "max_deliveries", "", now)
            else:
                members.take()
                deliveries.append(queue.lend(entry, now, until, claim_id, token))
        return buried, expired

    def _tidy(self, queue: Queue, now: float, limit: int | None) -> tuple[int, int]:
        """Let time do its work, on a bounded number of messages: (buried, expired)."""
        buried = expired = 0
        due = queue.due.items
        if (due and due[0][0] <= now) or queue.locks:
            before = queue.ready
            for entry in queue.promote(now):
                if entry.place not in (READY, BLOCKED):
                    continue
                if entry.expires_at is not None and entry.expires_at <= now:
                    expired += self._expire(queue, entry, now)
                elif queue.used_up(entry, limit):
                    buried += self._bury(queue, entry, "max_deliveries", "", now)
            if len(queue.bell) and queue.ready > before:
                queue.bell.ring(queue.ready - before)
            if queue.session_bells:
                _wake_sessions(queue)
        if queue.expiry.items and queue.expiry.items[0][0] <= now:
            for entry in queue.overdue(now):
                expired += self._expire(queue, entry, now)
        return buried, expired

    # --- settling ----------------------------------------------------------------------------------------------

    async def settle(self, queue: str, batch: Sequence[Verdict]) -> list[Outcome]:
        with self._lock:
            now = self._clock()
            return self._settle_all(self._queue(queue, now), batch, now)

    def _settle_all(self, queue: Queue, batch: Sequence[Verdict], now: float) -> list[Outcome]:
        queue.touched = now
        return [self._settle(queue, verdict, now) for verdict in batch]

    def _settle(self, queue: Queue, verdict: Verdict, now: float) -> Outcome:
        entry = queue.leases.get(verdict.handle)
        if entry is None:
            return _why_not(queue, verdict.handle)
        late = entry.place != FLIGHT or entry.due <= now
        if late and (entry.session is not None or type(verdict) is Extend):
            return STALE
        kind = type(verdict)
        if kind is Ack:
            self._take_out(queue, entry, now)
            _wake_if_session(queue, entry)
            return SETTLED if not verdict.puts else Settled(self._put_replies(verdict.puts, now))  # type: ignore[union-attr]  # narrowed by `kind`
        if isinstance(verdict, Extend):
            return self._extend(queue, entry, verdict, now)
        if isinstance(verdict, Bury):
            if queue.dead is None or not queue.rules.dead_lettering:
                return Refused(_no_dead_letters(queue))
            possible, _ = self._grave(queue, entry)
            if not possible:
                return Refused(_unburied(queue))
            queue.fail_later(entry, now)
            self._bury(queue, entry, verdict.reason, verdict.description, now)
            _wake_if_session(queue, entry)
            return SETTLED
        queue.fail_later(entry, now)
        if isinstance(verdict, Return):
            queue.uncount(entry)
        elif isinstance(verdict, Release):
            queue.note(entry, now, verdict.note)
            if entry.expires_at is not None and entry.expires_at <= now:
                self._expire(queue, entry, now)
                return SETTLED
            if queue.used_up(entry, None):
                self._bury(queue, entry, "max_deliveries", verdict.note or "", now)
                return SETTLED
        queue.release(entry, now, verdict.delay if isinstance(verdict, (Release, Return)) else 0.0)
        _wake(queue, 1)
        return SETTLED

    def _put_replies(self, puts: Sequence[tuple[str, Envelope]], now: float) -> tuple[Put, ...]:
        results: list[Put] = []
        for name, envelope in puts:
            try:
                results += self._put_all(self._queue(name, now), [envelope], now)
            except MailboxError as error:
                results.append(Refused(error))
        return tuple(results)

    def _extend(self, queue: Queue, entry: Entry, verdict: Extend, now: float) -> Outcome:
        until = now + verdict.lease
        if not verdict.shorten:
            until = max(until, entry.due)
        session = entry.session
        if session is not None and session.locked(now):
            self._hold(queue, session, until)
        else:
            queue.extend(entry, until)
        return Settled((), until)

    def _take_out(self, queue: Queue, entry: Entry, now: float) -> None:
        """Remove an entry; if it was a dead letter that held up its session, let the session go on."""
        queue.remove(entry, now)
        if queue.dead is None or (entry.past is not None and entry.past.death is not None):
            death = entry.past.death if entry.past is not None else None
            home = self._queues.get(death.source) if death is not None else None
            id = entry.envelope.session_id
            session = home.sessions.get(id) if home is not None and id is not None else None
            if home is not None and session is not None and entry.seq in session.blocked_by:
                session.blocked_by.discard(entry.seq)
                home.rehead(session, now)
                _wake(home, 1)

    def _dead_queue(self, queue: Queue) -> Queue | None:
        """Where this queue's dead letters go; None if it has none or it is missing."""
        name = queue.rules.dead_letter_queue
        if not queue.rules.dead_lettering or queue.dead is None:
            return None
        return queue.dead if name is None else self._queues.get(name)

    def _grave(self, queue: Queue, entry: Entry) -> tuple[bool, Queue | None]:
        """Whether this message can be buried now, and where; nowhere (dropped) when dead-lettering is off."""
        target = self._dead_queue(queue)
        if target is queue.dead or not queue.rules.dead_lettering:
            return True, target
        return target is not None and target.status.takes and _no_room(target, entry.envelope) is None, target

    def _bury(self, queue: Queue, entry: Entry, reason: str, description: str, now: float) -> int:
        """To the dead letters: 1; or 0 when they would not have it, and then it stays, parked."""
        possible, target = self._grave(queue, entry)
        if not possible:
            queue.park(entry, now + PARKING)
            return 0
        session, past = entry.session, entry.past
        if session is not None and target is not None and queue.rules.on_dead == "block":
            session.blocked_by.add(entry.seq)
        queue.remove(entry, now)
        if target is None:
            queue.dropped += 1
            return 1
        if past is None:
            past = entry.past = Past()
        past.death = Death(reason, description, queue.name, now, past.attempts)
        past.handle, past.token = "", 0
        target.admit(entry, now, None)
        _wake(target, 1)
        return 1

    def _expire(self, queue: Queue, entry: Entry, now: float) -> int:
        if queue.rules.expired_to_dead_letters:
            return self._bury(queue, entry, "expired", "", now)
        queue.remove(entry, now)
        queue.expired += 1
        return 1

    async def abandon(self, queue: str, claim_id: str) -> None:
        with self._lock:
            now = self._clock()
            fences = self.store.fences
            for id in [id for id, until in fences.items() if until <= now]:
                del fences[id]
            fences[claim_id] = now + FENCE
            found = self._queues.get(queue)
            if found is None:
                return
            held = [entry for entry in found.leases.values() if _holds(entry, claim_id, now)]
            for entry in sorted(held, key=lambda entry: -entry.seq):
                found.uncount(entry)
                found.release(entry, now, 0.0)
            if held:
                _wake(found, len(held))

    # --- sessions ----------------------------------------------------------------------------------------------

    async def lock(
        self, queue: str, session: str | None, *, lease: float, wait: float, token: str, stop: Bell | None = None
    ) -> SessionLock | None:
        deadline: float | None = None
        while True:
            with self._lock:
                now = self._clock()
                found = self._queue(queue, now)
                if not found.status.gives:
                    raise ServiceUnavailableError(f"{queue}: receiving is off (status {found.status})")
                if found.dead is None or found.rules.sessions == "off":
                    raise UnsupportedError(f"{queue}: this queue has no sessions")
                self._tidy(found, now, None)
                free = self._free_session(found, session, now)
                if free is not None:
                    free.token = token
                    self._hold(found, free, now + lease)
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

    def _free_session(self, queue: Queue, id: str | None, now: float) -> Session | None:
        if id is not None:
            members = queue.session(id)
            return None if members.held or members.locked(now) else members
        return queue.first_session()

    def _hold(self, queue: Queue, session: Session, until: float) -> None:
        session.until = until
        queue.watch(session)
        for entry in session.held.values():
            queue.extend(entry, until)

    def _locked(self, queue: Queue, lock: SessionLock, now: float) -> Session | None:
        session = queue.sessions.get(lock.id)
        return session if session is not None and session.token == lock.token and session.until > now else None

    async def renew(self, queue: str, lock: SessionLock, lease: float) -> SessionLock | None:
        with self._lock:
            now = self._clock()
            found = self._queue(queue, now)
            session = self._locked(found, lock, now)
            if session is None:
                return None
            self._hold(found, session, now + lease)
            return SessionLock(lock.id, lock.token, session.until)

    async def unlock(self, queue: str, lock: SessionLock) -> bool:
        with self._lock:
            now = self._clock()
            found = self._queue(queue, now)
            session = self._locked(found, lock, now)
            if session is None:
                return False
            session.token = None
            for entry in sorted(session.held.values(), key=lambda entry: -entry.seq):
                found.uncount(entry)
                found.release(entry, now, 0.0)
            found.rehead(session, now)
            _wake(found, 1)
            return True

    async def get_state(self, queue: str, session: str) -> SessionState:
        with self._lock:
            members = self._queue(queue, self._clock()).sessions.get(session)
            return members.state if members is not None else SessionState(None, 0)

    async def set_state(
        self, queue: str, lock: SessionLock, value: bytes | None, *, version: int | None = None
    ) -> SessionState | None:
        with self._lock:
            now = self._clock()
            session = self._locked(self._queue(queue, now), lock, now)
            if session is None:
                raise _lock_lost(queue, lock.id)
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


def _ttl(queue: Queue, envelope: Envelope) -> float | None:
    return queue.rules.ttl if envelope.ttl is None else envelope.ttl


def _waits(result: Put) -> bool:
    return isinstance(result, Refused) and isinstance(result.error, MailboxFullError)


def _no_room(queue: Queue, envelope: Envelope) -> MailboxFullError | None:
    rules = queue.rules
    if rules.max_messages is not None and len(queue.entries) >= rules.max_messages:
        return MailboxFullError(f"{queue.name}: full with {len(queue.entries)} of {rules.max_messages} messages")
    if rules.max_bytes is not None and queue.bytes + envelope.size > rules.max_bytes:
        return MailboxFullError(
            f"{queue.name}: {queue.bytes} of {rules.max_bytes} bytes are taken, no room for {envelope.size} more"
        )
    return None


def _why_not(queue: Queue, handle: str) -> Outcome:
    """No lease has this handle: replaced, gone, or never a handle at all."""
    try:
        seq, _ = parse_handle(handle)
    except InvalidParameterError as error:
        return Refused(error)
    return STALE if seq in queue.entries else GONE


def _unburied(queue: Queue) -> MailboxError:
    return MailboxFullError(
        f"{queue.name}: its dead-letter queue {queue.rules.dead_letter_queue} is missing, closed or full; "
        "the message stays where it is"
    )


def _no_dead_letters(queue: Queue) -> MailboxError:
    if queue.dead is None:
        return UnsupportedError(f"{queue.name}: a dead letter cannot be dead-lettered again; acknowledge or redrive it")
    return UnsupportedError(f"{queue.name}: dead-lettering is off for this queue; acknowledge the message or nack it")


def _lock_lost(queue: str, id: str) -> ReceiptHandleExpiredError:
    return ReceiptHandleExpiredError(
        f"{queue}: the lock on session {id} ran out or was given back; accept the session again, and renew it in time"
    )


def _holds(entry: Entry, claim_id: str, now: float) -> bool:
    past = entry.past
    return entry.place == FLIGHT and past is not None and entry.due > now and past.handle.endswith("." + claim_id)


def _held(entry: Entry) -> Delivery:
    past = entry.past
    assert past is not None
    return _delivery(entry, past.handle, past.received_at, past.lease_until, "in_flight")


def _seen(entry: Entry, now: float) -> Delivery:
    if entry.place == FLIGHT:
        return _delivery(entry, "", 0.0, entry.due, "in_flight" if entry.due > now else "lapsed")
    state = "scheduled" if entry.place not in (READY, BLOCKED, PARKED) else "ready"
    return _delivery(entry, "", 0.0, 0.0, state)


def _delivery(entry: Entry, handle: str, received_at: float, lease_until: float, state: str) -> Delivery:
    past = entry.past
    plain = Delivery(
        entry.envelope,
        handle,
        0,
        entry.seq,
        entry.enqueued_at,
        received_at,
        lease_until,
        state=state,
        visible_at=entry.due,
        expires_at=entry.expires_at,
    )
    if past is None:
        return plain
    return Delivery(
        entry.envelope,
        handle,
        past.attempts,
        entry.seq,
        entry.enqueued_at,
        received_at,
        lease_until,
        past.token,
        past.lapsed,
        past.nacks,
        past.returns,
        past.death,
        past.history,
        state,
        entry.due,
        entry.expires_at,
    )


def _listen(queue: Queue, session: SessionClaim | None, waiter: Waiter, until: float) -> Bell:
    """Start listening for what this claim wants: those who want one session must not swallow the rings of the others."""
    if session is None:
        bell = queue.bell
        queue.alarm = min(queue.alarm, until)
    else:
        for id in [id for id, other in queue.session_bells.items() if not len(other)]:
            del queue.session_bells[id]
        bell = queue.session_bells.setdefault(session.id, Bell())
    bell.listen(waiter.wake)
    return bell


def _wake(queue: Queue, n: int) -> None:
    if len(queue.bell):
        queue.bell.ring(n)
    if queue.session_bells:
        _wake_sessions(queue)


def _wake_if_session(queue: Queue, entry: Entry) -> None:
    if entry.session is not None:
        _wake(queue, 1)


def _wake_sessions(queue: Queue) -> None:
    for bell in queue.session_bells.values():
        bell.ring()


def _wake_all(queue: Queue) -> None:
    queue.bell.ring()
    queue.room.ring()
    _wake_sessions(queue)
