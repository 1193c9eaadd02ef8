"""The steps of the memory store: what one verb does to the queues of one namespace, in one go.

Called under the store's lock, with the store's time; nothing here waits. `memory.py` adds the lock and the waiting,
`memory_queue.py` keeps one queue in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from postroom.core import refusals
from postroom.core.address import dead_letters_of
from postroom.core.definition import PLAIN, Rules
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
    Settled,
    Verdict,
    parse_handle,
)
from postroom.drivers.api import TIDY
from postroom.drivers.memory_entry import BLOCKED, FLIGHT, READY, Entry, Past, Session, held
from postroom.drivers.memory_queue import PARKING, Queue
from postroom.errors import (
    InvalidParameterError,
    MailboxError,
)


class Space:
    """The queues of one namespace."""

    def __init__(self, numbers: count[int], fences: dict[str, float]) -> None:
        self.queues: dict[str, Queue] = {}
        self.numbers = numbers
        self.fences = fences  # abandoned claim ids, and until when they are remembered

    def queue(self, name: str, now: float) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            raise refusals.no_queue(name)
        if queue.mortal:
            if queue.idle_too_long(now):
                self.drop(queue, now)
                raise refusals.idle_queue(name)
            queue.touched = now
        return queue

    def make(self, name: str, rules: Rules, now: float) -> Queue:
        dead_name = dead_letters_of(name)
        dead = Queue(dead_name, PLAIN, now, self.numbers, None)
        queue = Queue(name, rules, now, self.numbers, dead)
        self.queues[name], self.queues[dead_name] = queue, dead
        return queue

    def drop(self, queue: Queue, now: float) -> None:
        for part in (queue, queue.dead):
            if part is not None:
                self.queues.pop(part.name, None)
                self.purge(part, now)
                part.wake_all()

    def purge(self, queue: Queue, now: float) -> None:
        for entry in list(queue.entries.values()):
            if entry.past is not None and entry.past.blocks is not None:
                self.take_out(queue, entry, now)  # a session of another queue waits for it
        queue.purge()

    def revive(self, dead: Queue, seq: int, target: str | None, now: float) -> Outcome:
        entry = dead.entries.get(seq)
        if entry is None or entry.place is FLIGHT:
            return GONE
        past = entry.past
        if past is None or past.death is None:
            return Refused(refusals.no_dead_letter(dead.name, entry.envelope.id))
        home = self.queues.get(past.death.source if target is None else target)
        if home is None or home.dead is None:
            where = past.death.source if target is None else target
            return Refused(refusals.no_target(where, entry.envelope.id))
        if (full := home.no_room(entry.envelope)) is not None:
            return Refused(full)
        self.take_out(dead, entry, now)
        past.attempts = past.lapsed = past.nacks = past.returns = past.token = 0
        past.handle = ""
        home.admit(entry, now, home.ttl_of(entry.envelope))
        home.wake(1)
        return SETTLED

    def put(self, queue: Queue, batch: Sequence[Envelope], now: float) -> list[Put]:
        rules = queue.rules
        if queue.dead is None:
            raise refusals.not_sent_there(queue.name)
        if not queue.takes:
            error = refusals.sending_off(queue.name, queue.status)
            return [Refused(error) for _ in batch]
        bounded = rules.max_messages is not None or rules.max_bytes is not None
        if bounded:
            self.tidy(queue, now, None)
        before = queue.ready if queue.bell.waiters else 0
        asks_nothing = not bounded and rules.sessions != "required"
        results: list[Put] = []
        for envelope in batch:
            if asks_nothing and envelope.session_id is None and envelope.dedup_id is None:
                ttl = envelope.ttl
                entry = queue.add(envelope, now, rules.ttl if ttl is None else ttl)
                results.append(Accepted(envelope.id, entry.seq))
            else:
                results.append(self._put(queue, envelope, now))
        queue.touched = now
        if queue.bell.waiters:
            if queue.ready > before:
                queue.bell.ring(queue.ready - before)
            queue.set_alarm()
        if queue.session_bells:
            queue.wake_sessions()
        return results

    def _put(self, queue: Queue, envelope: Envelope, now: float) -> Put:
        rules = queue.rules
        if envelope.session_id is None and rules.sessions == "required":
            return Refused(refusals.needs_session(queue.name))
        if envelope.session_id is not None and rules.sessions == "off":
            return Refused(refusals.sessions_off(queue.name))
        key = envelope.dedup_id
        if key is not None:
            if not rules.dedup:
                return Refused(refusals.dedup_off(queue.name))
            known = queue.dedup.get(key)
            if known is not None and known[1] > now:
                return Duplicate(known[0])
        displaced = 0
        if rules.bounded and (full := queue.no_room(envelope)) is not None:
            if rules.overflow == "drop_newest":
                queue.dropped += 1
                return Dropped(envelope.id)
            if rules.overflow != "drop_oldest":
                return Refused(full)
            displaced = self._make_room(queue, envelope, now)
            if queue.no_room(envelope) is not None:
                return Refused(full)
        entry = queue.add(envelope, now, queue.ttl_of(envelope))
        if key is not None:
            while queue.dedup and next(iter(queue.dedup.values()))[1] <= now:
                queue.dedup.popitem(last=False)
            queue.dedup[key] = (envelope.id, now + rules.dedup_window)
            queue.dedup.move_to_end(key)
        return Accepted(envelope.id, entry.seq, displaced)

    def _make_room(self, queue: Queue, envelope: Envelope, now: float) -> int:
        limit = queue.rules.max_bytes
        if limit is not None and envelope.size > limit:
            return 0  # never: dropping everything would not make room
        dropped = 0
        for entry in queue.browse(len(queue.entries), 0):
            if queue.no_room(envelope) is None:
                break
            if entry.place is not FLIGHT:
                self.take_out(queue, entry, now)
                dropped += 1
        queue.dropped += dropped
        return dropped

    def claim(
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
        fences = self.fences
        if fences and fences.get(claim_id, 0.0) > now:
            return _NOTHING
        if not queue.entries and session is None:
            queue.touched = now
            return _NOTHING  # at a glance: who waits looks twice for each message
        buried = expired = 0
        if (queue.due.items and queue.due.items[0][0] <= now) or queue.expiry.items or queue.locks:
            buried, expired = self.tidy(queue, now, limit)
        until = now + (queue.rules.lease if lease is None else lease)
        deliveries: list[Delivery] = []
        if again:
            deliveries = [held(entry) for entry in queue.leases.values() if holds(entry, claim_id, now)]
            if deliveries:
                return Claimed(deliveries, (), buried, expired)
        token = next(self.numbers)
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
        if queue.bell.waiters:
            queue.set_alarm()
        if queue.session_bells:
            queue.wake_sessions()
        return Claimed(deliveries, (), buried, expired) if deliveries or buried or expired else _NOTHING

    def _members(self, queue: Queue, wanted: SessionClaim, until: float, now: float) -> tuple[Session | None, float]:
        """The session a claim names, if it may take from it, and when its leases end."""
        if queue.dead is None:
            raise refusals.no_dead_sessions(queue.name)
        members = queue.sessions.get(wanted.id)
        if wanted.token is None:
            if members is None or members.held or members.locked(now) or members.blocked_by:
                return None, until
            return members, until
        if members is None or members.token != wanted.token or members.until <= now:
            raise refusals.lock_lost(queue.name, wanted.id)
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

    def tidy(self, queue: Queue, now: float, limit: int | None) -> tuple[int, int]:
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
            if queue.bell.waiters and queue.ready > before:
                queue.bell.ring(queue.ready - before)
            if queue.session_bells:
                queue.wake_sessions()
        if queue.expiry.items and queue.expiry.items[0][0] <= now:
            for entry in queue.overdue(now):
                expired += self._expire(queue, entry, now)
        return buried, expired

    def settle(self, queue: Queue, batch: Sequence[Verdict], now: float) -> list[Outcome]:
        queue.touched = now
        outcomes: list[Outcome] = []
        for verdict in batch:
            entry = queue.leases.get(verdict.handle)
            if type(verdict) is Ack and entry is not None and entry.session is None and not verdict.puts:
                # The common case: an acknowledge counts, late or not, while the handle is known.
                if entry.past is None or entry.past.blocks is None:
                    queue.remove(entry, now)
                else:
                    self.take_out(queue, entry, now)
                outcomes.append(SETTLED)
            else:
                outcomes.append(self._settle(queue, entry, verdict, now))
        return outcomes

    def _settle(self, queue: Queue, entry: Entry | None, verdict: Verdict, now: float) -> Outcome:
        if entry is None:
            return _why_not(queue, verdict.handle)
        late = entry.place is not FLIGHT or entry.due <= now
        if late and (entry.session is not None or type(verdict) is Extend):
            return STALE
        if isinstance(verdict, Ack):
            self.take_out(queue, entry, now)
            queue.wake_if_session(entry)
            return SETTLED if not verdict.puts else Settled(self._put_replies(verdict.puts, now))
        if isinstance(verdict, Extend):
            return self._extend(queue, entry, verdict, now)
        if isinstance(verdict, Bury):
            if queue.dead is None or not queue.rules.dead_lettering:
                return Refused(_no_dead_letters(queue))
            possible, _ = self._grave(queue, entry)
            if not possible:
                return Refused(refusals.unburied(queue.name, queue.rules.dead_letter_queue))
            queue.fail_later(entry, now)
            self._bury(queue, entry, verdict.reason, verdict.description, now)
            queue.wake_if_session(entry)
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
        queue.wake(1)
        return SETTLED

    def _put_replies(self, puts: Sequence[tuple[str, Envelope]], now: float) -> tuple[Put, ...]:
        results: list[Put] = []
        for name, envelope in puts:
            try:
                results += self.put(self.queue(name, now), [envelope], now)
            except MailboxError as error:
                results.append(Refused(error))
        return tuple(results)

    def _extend(self, queue: Queue, entry: Entry, verdict: Extend, now: float) -> Outcome:
        until = now + verdict.lease
        if not verdict.shorten:
            until = max(until, entry.due)
        session = entry.session
        if session is not None and session.locked(now):
            self.hold(queue, session, until)
        else:
            queue.extend(entry, until)
        return Settled((), until)

    def take_out(self, queue: Queue, entry: Entry, now: float) -> None:
        """Remove an entry; if it was a dead letter that held up its session, let the session go on."""
        queue.remove(entry, now)
        past = entry.past
        if past is None or past.blocks is None:
            return
        home, id = self.queues.get(past.blocks), entry.envelope.session_id
        past.blocks = None
        session = home.sessions.get(id) if home is not None and id is not None else None
        if home is not None and session is not None and entry.seq in session.blocked_by:
            session.blocked_by.discard(entry.seq)
            home.rehead(session, now)
            home.wake(1)

    def dead_queue(self, queue: Queue) -> Queue | None:
        """Where this queue's dead letters go; None if it has none or it is missing."""
        name = queue.rules.dead_letter_queue
        if not queue.rules.dead_lettering or queue.dead is None:
            return None
        return queue.dead if name is None else self.queues.get(name)

    def _grave(self, queue: Queue, entry: Entry) -> tuple[bool, Queue | None]:
        """Whether this message can be buried now, and where; nowhere (dropped) when dead-lettering is off."""
        target = self.dead_queue(queue)
        if target is queue.dead or not queue.rules.dead_lettering:
            return True, target
        return target is not None and target.takes and target.no_room(entry.envelope) is None, target

    def _bury(self, queue: Queue, entry: Entry, reason: str, description: str, now: float) -> int:
        """To the dead letters: 1; or 0 when they would not have it, and then it stays, parked."""
        possible, target = self._grave(queue, entry)
        if not possible:
            queue.park(entry, now + PARKING)
            return 0
        if target is None:
            self.take_out(queue, entry, now)
            queue.dropped += 1
            return 1
        session, past = entry.session, entry.past
        if past is None:
            past = entry.past = Past()
        # One that dies once more, in a dead-letter queue of another, still holds up the first.
        if session is not None and queue.rules.on_dead == "block" and past.blocks is None:
            session.blocked_by.add(entry.seq)
            past.blocks = queue.name
        queue.remove(entry, now)
        past.death = Death(reason, description, queue.name, now, past.attempts)
        past.handle, past.token = "", 0
        target.admit(entry, now, None)
        target.wake(1)
        return 1

    def _expire(self, queue: Queue, entry: Entry, now: float) -> int:
        if queue.rules.expired_to_dead_letters:
            return self._bury(queue, entry, "expired", "", now)
        self.take_out(queue, entry, now)
        queue.expired += 1
        return 1

    def free_session(self, queue: Queue, id: str | None, now: float) -> Session | None:
        if id is not None:
            members = queue.session(id)
            return None if members.held or members.locked(now) else members
        return queue.first_session()

    def hold(self, queue: Queue, session: Session, until: float) -> None:
        session.until = until
        queue.watch(session)
        for entry in session.held.values():
            queue.extend(entry, until)

    def locked(self, queue: Queue, lock: SessionLock, now: float) -> Session | None:
        session = queue.sessions.get(lock.id)
        return session if session is not None and session.token == lock.token and session.until > now else None


_NOTHING = Claimed()


def _why_not(queue: Queue, handle: str) -> Outcome:
    """No lease has this handle: replaced, gone, or never a handle at all."""
    try:
        seq, _ = parse_handle(handle)
    except InvalidParameterError as error:
        return Refused(error)
    return STALE if seq in queue.entries else GONE


def _no_dead_letters(queue: Queue) -> MailboxError:
    if queue.dead is None:
        return refusals.dies_once(queue.name)
    return refusals.dead_lettering_off(queue.name)


def holds(entry: Entry, claim_id: str, now: float) -> bool:
    past = entry.past
    return entry.place is FLIGHT and past is not None and entry.due > now and past.handle.endswith("." + claim_id)
