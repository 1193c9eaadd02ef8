"""What the memory store keeps of one message and of one session, and how it keeps them in order.

Heaps and lanes keep stale items: an entry that moved is passed over when its old item surfaces, which costs less than
finding and removing it. `Timers` counts its stale items and is swept when they outnumber the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from heapq import heapify, heappop, heappush

import msgspec

from postroom.core.message import Attempt, Death, Delivery, Envelope, SessionState


class Place(IntEnum):
    READY = 0
    SCHEDULED = 1
    FLIGHT = 2
    BLOCKED = 3
    PARKED = 4
    GONE = 5


READY, SCHEDULED, FLIGHT, BLOCKED, PARKED, GONE = Place


class Past(msgspec.Struct):
    """What happened to a message so far. Most waiting messages have none."""

    attempts: int = 0
    lapsed: int = 0
    nacks: int = 0
    returns: int = 0
    handle: str = ""  # of the last claim; a lapsed one still settles until the next claim
    token: int = 0
    received_at: float = 0.0
    lease_until: float = 0.0
    history: tuple[Attempt, ...] = ()
    death: Death | None = None
    blocks: str | None = None  # the queue whose session this dead letter holds up (on_dead=block)


class Entry(msgspec.Struct, eq=False):
    """One stored message."""

    seq: int
    envelope: Envelope
    place: Place
    due: float  # READY: since when; SCHEDULED, PARKED: until when; FLIGHT: the end of the lease
    enqueued_at: float
    expires_at: float | None = None
    session: Session | None = None
    past: Past | None = None

    def __lt__(self, other: Entry) -> bool:
        """Heaps compare entries only when time and seq are equal: the same message, before and after it moved."""
        return False

    @property
    def waits_since(self) -> float:
        """When it was first due; of one that came back only the time it was sent is known."""
        return self.enqueued_at if self.delivered else self.due

    @property
    def delivered(self) -> bool:
        """Handed out before, counted or not."""
        return self.past is not None and self.past.token > 0


class Session(msgspec.Struct, eq=False):
    """The members of one session, and who holds it."""

    id: str
    waiting: list[tuple[int, Entry]]  # heap by seq: not in flight, and due or delivered before
    held: dict[int, Entry]  # in flight
    members: int = 0  # messages that refer to it, those not yet due included: it lives as long as they do
    token: str | None = None  # of an explicit lock
    until: float = 0.0
    state: SessionState = SessionState(None, 0)
    blocked_by: set[int] = msgspec.field(default_factory=set)  # dead letters that hold it up (on_dead=block)
    shown: Entry | None = None  # the head, while claims can see it

    def locked(self, now: float) -> bool:
        return self.token is not None and self.until > now

    def head(self) -> Entry | None:
        """The earliest member that must come next, whether or not it may be delivered now."""
        waiting = self.waiting
        while waiting and waiting[0][1].place in (GONE, FLIGHT):
            heappop(waiting)
        return waiting[0][1] if waiting else None

    def take(self) -> None:
        """The head leaves the line: it is about to be lent."""
        heappop(self.waiting)

    def idle(self) -> bool:
        """Nothing here that is worth keeping."""
        return not (self.members or self.token or self.state.version or self.blocked_by)


class Lane:
    """The ready messages of one priority, by seq. New ones come in order, so a deque serves and costs the same at any
    length; those that came back take their old place by a heap."""

    __slots__ = ("back", "fresh")

    def __init__(self) -> None:
        self.fresh: deque[Entry] = deque()
        self.back: list[tuple[int, Entry]] = []

    def pop(self) -> Entry | None:
        fresh, back = self.fresh, self.back
        while back and back[0][1].place is not READY:
            heappop(back)
        while fresh:
            if fresh[0].place is not READY:
                fresh.popleft()
            elif not back or fresh[0].seq <= back[0][0]:
                return fresh.popleft()
            else:
                break
        return heappop(back)[1] if back else None

    def peek(self) -> Entry | None:
        entry = self.pop()
        if entry is not None:
            heappush(self.back, (entry.seq, entry))
        return entry


class Timers:
    """Entries by time, stale ones included."""

    __slots__ = ("items", "stale")

    def __init__(self) -> None:
        self.items: list[tuple[float, int, Entry]] = []
        self.stale = 0

    def sweep(self, live: Iterable[tuple[float, int, Entry]]) -> None:
        self.items = list(live)
        heapify(self.items)
        self.stale = 0


def held(entry: Entry) -> Delivery:
    past = entry.past
    assert past is not None
    return _delivery(entry, past.handle, past.received_at, past.lease_until, "in_flight")


def seen(entry: Entry, now: float) -> Delivery:
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
