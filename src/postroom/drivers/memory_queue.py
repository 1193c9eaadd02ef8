"""One queue of the memory store: places, timers and sessions. No lock, no clock and no waiting in here.

Where an entry is:

    READY       in its priority's lane; a member of a session only while it is the head of a free one
    SCHEDULED   in `due`, until its time has come
    FLIGHT      in `due`, until its lease lapses; its handle is in `leases`
    BLOCKED     a member of a session, waiting in the session's heap for its turn
    PARKED      in `due`: it should be dead, but the dead-letter queue refused it; tried again later
    GONE        terminal
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush, nsmallest
from itertools import count, islice
from operator import itemgetter

from postroom.core import refusals
from postroom.core.definition import QueueStatus, Rules
from postroom.core.limits import MAX_RETURNS
from postroom.core.message import Delivery, Envelope, add_attempt
from postroom.core.policy import smaller
from postroom.drivers.api import TIDY
from postroom.drivers.memory_callers import Callers
from postroom.drivers.memory_entry import (
    BLOCKED,
    FLIGHT,
    GONE,
    PARKED,
    READY,
    SCHEDULED,
    Entry,
    Lane,
    Past,
    Place,
    Session,
    Timers,
)
from postroom.errors import MailboxFullError

PARKING = 30.0


class Queue(Callers):
    """One queue. Its methods are called under the store's lock, with the store's time."""

    def __init__(self, name: str, rules: Rules, now: float, numbers: count[int], dead: Queue | None) -> None:
        super().__init__()
        self.name = name
        self.follow(rules, now)
        self.dead = dead  # its own dead letters; None when it is a dead-letter queue itself
        self.numbers = numbers
        self.takes = self.gives = True  # what the status means, looked up with every call
        self.status = QueueStatus.ACTIVE
        self.created_at = self.touched = now
        self.dropped = 0
        self.expired = 0
        self.sessions: dict[str, Session] = {}
        self._clear()

    def _clear(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.ascending = True  # whether `entries` is in order of seq
        self.lanes: dict[int, Lane] = {}  # by priority, ascending
        self.due = Timers()
        self.expiry = Timers()
        self.leases: dict[str, Entry] = {}
        self.heads: list[tuple[int, int, Entry]] = []  # heap: the heads of free sessions
        self.locks: list[tuple[float, str]] = []  # heap: explicit session locks by their end
        self.dedup: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self.scheduled = 0
        self.in_flight = 0
        self.bytes = 0

    @property
    def ready(self) -> int:
        return len(self.entries) - self.scheduled - self.in_flight

    def follow(self, rules: Rules, now: float) -> None:
        """From now on these rules are in force."""
        self.rules = rules
        self.mortal = rules.auto_delete_on_idle is not None
        self.updated_at = now

    def idle_too_long(self, now: float) -> bool:
        limit = self.rules.auto_delete_on_idle
        return limit is not None and now - self.touched >= limit

    def ttl_of(self, envelope: Envelope) -> float | None:
        return self.rules.ttl if envelope.ttl is None else envelope.ttl

    def no_room(self, envelope: Envelope) -> MailboxFullError | None:
        """Why there is no room for this message, or None."""
        rules, held = self.rules, len(self.entries)
        if rules.max_messages is not None and held >= rules.max_messages:
            return refusals.full_of_messages(self.name, held, rules.max_messages)
        if rules.max_bytes is not None and self.bytes + envelope.size > rules.max_bytes:
            return refusals.full_of_bytes(self.name, self.bytes, rules.max_bytes, envelope.size)
        return None

    def wake_if_session(self, entry: Entry) -> None:
        if entry.session is not None:
            self.wake(1)

    # --- in ---------------------------------------------------------------------------------------------------

    def add(self, envelope: Envelope, now: float, ttl: float | None) -> Entry:
        """Store a new message at the end of the queue."""
        seq = next(self.numbers)
        entry = self.entries[seq] = Entry(seq, envelope, READY, now, now)
        self.bytes += envelope.size
        if ttl is None and envelope.session_id is None and envelope.delay == 0:
            lane = self.lanes.get(envelope.priority)
            (self._lane(envelope.priority) if lane is None else lane).fresh.append(entry)
            return entry
        if envelope.delay > 0:
            entry.due = now + envelope.delay
        if ttl is not None:
            entry.expires_at = entry.due + ttl
            heappush(self.expiry.items, (entry.expires_at, seq, entry))
        if envelope.session_id is not None and self.dead is not None:
            self._enrol(entry, envelope.session_id)
        if entry.due > now:
            self._schedule(entry, entry.due)
        elif entry.session is not None:
            self._join(entry, entry.session, now)
        else:
            self._lane(envelope.priority).fresh.append(entry)
        return entry

    def admit(self, entry: Entry, now: float, ttl: float | None) -> None:
        """Take over a message from another queue, ready, in the place its seq gives it.

        As a new entry: lanes and heaps of the queue it comes from still hold the old one, which must stay GONE.
        """
        entry = Entry(entry.seq, entry.envelope, GONE, now, entry.enqueued_at, past=entry.past)
        if self.entries and entry.seq < next(reversed(self.entries)):
            self.ascending = False
        self.entries[entry.seq] = entry
        self.bytes += entry.envelope.size
        if ttl is not None:
            entry.expires_at = now + ttl
            heappush(self.expiry.items, (entry.expires_at, entry.seq, entry))
        if entry.envelope.session_id is not None and self.dead is not None:
            self._enrol(entry, entry.envelope.session_id)
        self._back(entry, now)

    def _lane(self, priority: int) -> Lane:
        lane = self.lanes.get(priority)
        if lane is None:
            lane = Lane()
            self.lanes = dict(sorted([*self.lanes.items(), (priority, lane)], key=itemgetter(0)))
        return lane

    def _schedule(self, entry: Entry, at: float, place: Place = SCHEDULED) -> None:
        entry.place, entry.due = place, at
        if place is SCHEDULED:
            self.scheduled += 1
        heappush(self.due.items, (at, entry.seq, entry))

    def _join(self, entry: Entry, session: Session, now: float) -> None:
        """A member of a session takes its place in line."""
        kept = entry.place is PARKED or (entry.place is SCHEDULED and entry.delivered)
        if not kept:  # delayed or parked after a delivery, it never left the line
            heappush(session.waiting, (entry.seq, entry))
        entry.place = BLOCKED
        self.rehead(session, now)

    def _back(self, entry: Entry, now: float) -> None:
        """Visible again, in its original place."""
        entry.due = now
        if entry.expires_at is not None and entry.expires_at <= now:
            self._expires(entry)
        session = entry.session
        if session is not None:
            self._join(entry, session, now)
        else:
            entry.place = READY
            heappush(self._lane(entry.envelope.priority).back, (entry.seq, entry))

    def _expires(self, entry: Entry) -> None:
        """Its time ran out while it was in flight, and the timer that would have told was passed over."""
        assert entry.expires_at is not None
        heappush(self.expiry.items, (entry.expires_at, entry.seq, entry))

    # --- sessions ---------------------------------------------------------------------------------------------

    def session(self, id: str) -> Session:
        found = self.sessions.get(id)
        if found is None:
            found = self.sessions[id] = Session(id, [], {})
        return found

    def _enrol(self, entry: Entry, id: str) -> None:
        entry.session = session = self.session(id)
        session.members += 1

    def rehead(self, session: Session, now: float) -> None:
        """Show the session's head to claims if the session is free, and only its head."""
        head = session.head()
        free = not (session.held or session.locked(now) or session.blocked_by)
        show = head if free and head is not None and head.place in (READY, BLOCKED) else None
        shown = session.shown
        if shown is not show:
            if shown is not None and shown.place is READY:
                shown.place = BLOCKED
            session.shown = show
        if show is not None and show.place is BLOCKED:
            show.place = READY
            heappush(self._lane(show.envelope.priority).back, (show.seq, show))
            if len(self.heads) > 64 + 2 * len(self.sessions):
                self.heads = [item for item in self.heads if item[2].session and item[2].session.shown is item[2]]
                heapify(self.heads)
            heappush(self.heads, (show.envelope.priority, show.seq, show))
        if head is None and session.idle():
            self.sessions.pop(session.id, None)

    def fail_later(self, entry: Entry, now: float) -> None:
        """Return, uncounted, what its holder took of the session behind this message: order would be broken else."""
        session = entry.session
        if session is None:
            return
        for later in [other for seq, other in session.held.items() if seq > entry.seq]:
            self._let_go(later)
            self.uncount(later)
            self._back(later, now)
        self.rehead(session, now)

    def free_lapsed_locks(self, now: float) -> None:
        while self.locks and self.locks[0][0] <= now:
            _, id = heappop(self.locks)
            session = self.sessions.get(id)
            if session is not None and session.token is not None and session.until <= now:
                session.token = None
                self.rehead(session, now)

    def first_session(self) -> Session | None:
        """The free session whose head is first in line."""
        while self.heads:
            entry = self.heads[0][2]
            if entry.session is not None and entry.session.shown is entry and entry.place is READY:
                return entry.session
            heappop(self.heads)
        return None

    def watch(self, session: Session) -> None:
        """See to it that the end of an explicit lock is noticed."""
        heappush(self.locks, (session.until, session.id))

    # --- out --------------------------------------------------------------------------------------------------

    def remove(self, entry: Entry, now: float) -> None:
        """Terminal, or on its way to another queue: take it out of everything that counts."""
        if entry.place is FLIGHT and entry.session is None and entry.expires_at is None:
            self.in_flight -= 1  # the common case, an acknowledge, without the detours
            due = self.due
            due.stale += 1
            if due.stale > 64 and due.stale * 2 > len(due.items):
                self._sweep(due)
        else:
            self._leave_place(entry)
            if entry.expires_at is not None:
                self._stale(self.expiry)
        entry.place = GONE
        del self.entries[entry.seq]
        self.bytes -= entry.envelope.size
        past = entry.past
        if past is not None and past.handle:
            self.leases.pop(past.handle, None)
        if entry.session is not None:
            entry.session.members -= 1
            self.rehead(entry.session, now)
        if self.room.waiters:
            self.room.ring(1)

    def _leave_place(self, entry: Entry) -> None:
        place = entry.place
        if place is FLIGHT:
            self.in_flight -= 1
            if entry.session is not None:
                entry.session.held.pop(entry.seq, None)
            self._stale(self.due)
        elif place is SCHEDULED or place is PARKED:
            self.scheduled -= place is SCHEDULED
            self._stale(self.due)

    def _let_go(self, entry: Entry) -> None:
        """Off its place, and its handle is worth nothing any more."""
        self._leave_place(entry)
        past = entry.past
        if past is not None and past.handle:
            self.leases.pop(past.handle, None)
            past.handle = ""

    def _stale(self, timers: Timers) -> None:
        timers.stale += 1
        if timers.stale > 64 and timers.stale * 2 > len(timers.items):
            self._sweep(timers)

    def _sweep(self, timers: Timers) -> None:
        if timers is self.due:
            timers.sweep(item for item in timers.items if item[2].place in _TIMED and item[2].due == item[0])
        else:
            timers.sweep(item for item in timers.items if item[2].place is not GONE)

    @staticmethod
    def uncount(entry: Entry) -> None:
        """Take the last delivery off the count, unless that was done too often already."""
        past = entry.past
        if past is not None:
            past.returns += 1
            if past.returns <= MAX_RETURNS:
                past.attempts -= 1

    def release(self, entry: Entry, now: float, delay: float) -> None:
        """Out of its holder's hands and visible again after `delay`."""
        self._let_go(entry)
        if delay > 0:
            session = entry.session
            if session is not None:
                heappush(session.waiting, (entry.seq, entry))  # delivered once: it blocks until terminal
            if entry.expires_at is not None and entry.expires_at <= now:
                self._expires(entry)
            self._schedule(entry, now + delay)
            if session is not None:
                self.rehead(session, now)
        else:
            self._back(entry, now)

    def park(self, entry: Entry, until: float) -> None:
        """It should be dead and cannot be buried now: nobody gets it, and it is tried again later."""
        self._let_go(entry)
        session = entry.session
        if session is not None and entry.place not in (READY, BLOCKED):
            heappush(session.waiting, (entry.seq, entry))
        self._schedule(entry, until, PARKED)
        if session is not None:
            self.rehead(session, until)

    def promote(self, now: float) -> list[Entry]:
        """Due messages become ready, lapsed leases end: at most TIDY of them. Returns those to be judged at once:
        parked ones, and lapsed ones, which may be out of deliveries or expired."""
        judged: list[Entry] = []
        for _ in range(TIDY):
            items = self.due.items  # a sweep on the way replaces the list
            if not items or items[0][0] > now:
                break
            at, _, entry = heappop(items)
            if entry.due != at or entry.place not in _TIMED:
                self.due.stale = max(0, self.due.stale - 1)
                continue
            if entry.place is SCHEDULED:
                self.scheduled -= 1
                self._back(entry, at)
            elif entry.place is PARKED:
                self._back(entry, at)
                judged.append(entry)
            elif entry.place is FLIGHT:
                self._lapse(entry, now)
                judged.append(entry)
        if self.locks:
            self.free_lapsed_locks(now)
        return judged

    def _lapse(self, entry: Entry, now: float) -> None:
        self.in_flight -= 1
        past = entry.past
        if past is not None:
            past.lapsed += 1
        session = entry.session
        if session is None:
            self._back(entry, now)  # its handle stays good until the next claim: a late acknowledge counts
            return
        session.held.pop(entry.seq, None)
        if past is not None:
            self.leases.pop(past.handle, None)
            past.handle = ""
        self.fail_later(entry, now)
        self._back(entry, now)

    def overdue(self, now: float) -> list[Entry]:
        """At most TIDY messages whose TTL is over and which nobody holds."""
        result: dict[int, Entry] = {}  # one may have two timers, see `_expires`
        items = self.expiry.items
        for _ in range(TIDY):
            if not items or items[0][0] > now:
                break
            _, _, entry = heappop(items)
            if entry.place is GONE:
                self.expiry.stale = max(0, self.expiry.stale - 1)
            elif entry.place is not FLIGHT:  # in flight it is protected; nack and lapse look again
                result[entry.seq] = entry
        return list(result.values())

    def next_due(self) -> float | None:
        """When something may happen by itself, or None."""
        items = self.due.items
        while items and (items[0][2].due != items[0][0] or items[0][2].place not in _TIMED):
            heappop(items)
            self.due.stale = max(0, self.due.stale - 1)
        first = items[0][0] if items else None
        if self.locks and (first is None or self.locks[0][0] < first):
            first = self.locks[0][0]
        return first

    # --- lending out ------------------------------------------------------------------------------------------

    def first_ready(self) -> Entry | None:
        for lane in self.lanes.values():
            entry = lane.pop()
            if entry is not None:
                return entry
        return None

    def lend(self, entry: Entry, now: float, lease_until: float, claim_id: str, token: int) -> Delivery:
        """Count the delivery, start the lease, hand it out."""
        past = entry.past
        handle = f"{entry.seq}.{claim_id}"  # make_handle, without the call
        if past is None:
            past = entry.past = Past(1, 0, 0, 0, handle, token, now, lease_until)
        else:
            if past.handle:
                self.leases.pop(past.handle, None)
            past.attempts += 1
            past.handle, past.token, past.received_at, past.lease_until = handle, token, now, lease_until
        entry.place = FLIGHT
        entry.due = lease_until
        heappush(self.due.items, (lease_until, entry.seq, entry))
        self.leases[handle] = entry
        self.in_flight += 1
        if entry.session is not None:
            entry.session.held[entry.seq] = entry
        return Delivery(
            entry.envelope,
            handle,
            past.attempts,
            entry.seq,
            entry.enqueued_at,
            now,
            lease_until,
            token,
            past.lapsed,
            past.nacks,
            past.returns,
            past.death,
            past.history,
        )

    def extend(self, entry: Entry, until: float) -> None:
        entry.due = until
        if entry.past is not None:
            entry.past.lease_until = until
        heappush(self.due.items, (until, entry.seq, entry))
        self._stale(self.due)

    def note(self, entry: Entry, now: float, text: str | None) -> None:
        past = entry.past
        if past is not None:
            past.nacks += 1
            if text is not None:
                past.history = add_attempt(past.history, past.attempts, now, text)

    def used_up(self, entry: Entry, limit: int | None) -> bool:
        """No deliveries left; dead letters are never used up."""
        if self.dead is None or entry.past is None:
            return False
        most = smaller(self.rules.max_deliveries, limit)
        return most is not None and entry.past.attempts >= most

    def browse(self, n: int, after: int) -> list[Entry]:
        """Up to `n` entries with a seq above `after`, ascending."""
        found = (entry for seq, entry in self.entries.items() if seq > after)
        return list(islice(found, n)) if self.ascending else nsmallest(n, found, key=lambda entry: entry.seq)

    def purge(self) -> None:
        for entry in self.entries.values():
            entry.place = GONE
        # What a session carries stays, and so does what blocks it: a dead letter, which a purge leaves where it is.
        kept = [session for session in self.sessions.values() if session.state.version or session.blocked_by]
        self.sessions = {s.id: Session(s.id, [], {}, state=s.state, blocked_by=s.blocked_by) for s in kept}
        self._clear()


_TIMED = frozenset({SCHEDULED, FLIGHT, PARKED})
