"""The waist: what a store must do. Everything else in the library is built on these verbs.

To write a driver, implement `Driver` (it includes `Admin` and `Sessions`) and run `postroom.testing.conformance`
over it. All verbs are `async def` and reach the outside only through the driver's `Io` strategy, so that one class
serves the sync and the async API. Rules that hold for every verb:

- One batch is one round trip, and one atomic step, where the store allows. Results are aligned with the batch.
- Time is the store's clock. `now()` is the client's best reading of it.
- A queue's rules live in the store and are enforced there, at claim and put.
- No background task is needed for correctness: a lapsed lease, a due delay and an expired message are seen by the
  next claim, and by `info`, `peek` on a dead-letter queue and `put` on a bounded queue, which first tidy a bounded
  number of rows (1,000).
- A verb on a queue that does not exist raises QueueNotFoundError.
- A driver never logs, retries, encodes or knows types. Client-library exceptions are mapped in one place, cause kept.
- A queue name ending in `!dead` is the dead-letter queue that belongs to the queue before it. It exists with its
  queue, is never bounded, has no limit of deliveries, no TTL and no dead letters of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from postroom.core.address import Address, dead_letters_of, is_dead_letters, origin_of
from postroom.core.capabilities import NO, WEAKER, YES, Capabilities, Finding, Level
from postroom.core.definition import PLAIN, QueueStatus, Rules
from postroom.core.message import (
    GONE,
    SETTLED,
    STALE,
    Accepted,
    Ack,
    Attempt,
    Bury,
    Claimed,
    Death,
    Delivery,
    Dropped,
    Duplicate,
    Envelope,
    Extend,
    Gone,
    Outcome,
    Put,
    Refused,
    Release,
    Return,
    SessionClaim,
    SessionLock,
    SessionState,
    Settled,
    Stale,
    Stats,
    Verdict,
    add_attempt,
    make_handle,
    pack_head,
    pack_record,
    parse_handle,
    unpack_head,
    unpack_record,
)
from postroom.drivers.io import Awaiting, Bell, Inline, Io, Threaded, Waiter

# What a driver is written in. The modules these come from may change on Tuesday; this list does not.
__all__ = [
    "GONE",
    "NO",
    "PLAIN",
    "SETTLED",
    "STALE",
    "TIDY",
    "WEAKER",
    "YES",
    "Accepted",
    "Ack",
    "Address",
    "Admin",
    "Attempt",
    "Awaiting",
    "Bell",
    "Bury",
    "Capabilities",
    "Claimed",
    "Death",
    "Delivery",
    "Driver",
    "Dropped",
    "Duplicate",
    "Envelope",
    "Examined",
    "Extend",
    "Finding",
    "Gone",
    "Inline",
    "Io",
    "Level",
    "Outcome",
    "Put",
    "QueueStatus",
    "Refused",
    "Release",
    "Return",
    "Rules",
    "SessionClaim",
    "SessionLock",
    "SessionState",
    "Sessions",
    "Settled",
    "Stale",
    "Stats",
    "Threaded",
    "Verdict",
    "Waiter",
    "add_attempt",
    "dead_letters_of",
    "is_dead_letters",
    "make_handle",
    "origin_of",
    "pack_head",
    "pack_record",
    "parse_handle",
    "unpack_head",
    "unpack_record",
]

TIDY = 1_000  # rows one step may promote, expire or bury beside its own work


class Admin(Protocol):
    """Queues themselves."""

    async def ensure(self, queue: str, rules: Rules | None = None) -> bool:
        """Make the queue unless it is there; True if it was made.

        With `rules` given, an existing queue takes them over from now on (messages keep the TTL they have); with
        None an existing queue is left alone and a new one is plain.
        """
        ...

    async def drop(self, queue: str, *, only_empty: bool = False) -> int | None:
        """Delete the queue with its messages, dead letters, sessions and dedup records; how many messages went with it.

        With `only_empty`, None and no change if any message (dead ones included) is there.
        """
        ...

    async def queues(self) -> list[str]:
        """The names of all queues of the namespace, sorted, without the dead-letter queues."""
        ...

    async def info(self, queue: str) -> tuple[Stats, Rules, QueueStatus]: ...

    async def set_status(self, queue: str, status: QueueStatus) -> None: ...

    async def peek(self, queue: str, n: int, *, after: int = 0) -> list[Delivery]:
        """Up to `n` messages with `seq` > `after`, ascending by seq, whatever their state; nothing is taken.

        They carry `state` (scheduled, ready, in_flight, lapsed), an empty handle, and no lease of ours.
        """
        ...

    async def purge(self, queue: str) -> int:
        """Remove ready, scheduled and in-flight messages, dedup records and session locks; not the dead letters."""
        ...

    async def redrive(self, queue: str, seqs: Sequence[int], *, target: str | None = None) -> list[Outcome]:
        """Move these messages of a dead-letter queue to `target`, or each back to where it died; atomic per message.

        Settled; Gone when it is not there (any more) or held by a consumer; Refused when the target is missing or
        full, and then the original stays. Moved messages are ready in the place their seq gives them (a seq is fixed
        for life, through burying and redriving), with counts at 0 and a fresh TTL; id, bytes, attributes, death and
        history are kept; deduplication is bypassed.
        """
        ...


class Sessions(Protocol):
    """Explicit session locks and what sessions carry. A driver without sessions raises UnsupportedError."""

    async def lock(
        self, queue: str, session: str | None, *, lease: float, wait: float, token: str, stop: Bell | None = None
    ) -> SessionLock | None:
        """Lock this session, or the one whose head is first in line; None when none was free in `wait` seconds.

        A named session need not have messages yet. It is free when no lock, and no
        lease on one of its messages, is valid.
        """
        ...

    async def renew(self, queue: str, lock: SessionLock, lease: float) -> SessionLock | None:
        """The lock, and every lease under it, now end `lease` from now; None when the lock was lost."""
        ...

    async def unlock(self, queue: str, lock: SessionLock) -> bool:
        """Give the session back; what was in flight under the lock is returned uncounted. False when already lost."""
        ...

    async def get_state(self, queue: str, session: str) -> SessionState: ...

    async def set_state(
        self, queue: str, lock: SessionLock, value: bytes | None, *, version: int | None = None
    ) -> SessionState | None:
        """Write under a valid lock, if the version still is `version` (None: whatever it is); None when it is not.

        Raises ReceiptHandleExpiredError when the lock was lost.
        """
        ...


class Examined(Protocol):
    """For a driver that can tell what the owner of its store should know: `postroom doctor` shows it."""

    async def examine(self) -> list[Finding]: ...


class Driver(Admin, Sessions, Protocol):
    """One connection to one store, for one flavour."""

    capabilities: Capabilities
    io: Io
    place: str  # the store and the namespace: clients with the same place see the same queues

    def now(self) -> float:
        """The store's clock as well as this client can read it without asking: seconds since the epoch."""
        ...

    def sibling(self) -> Driver:
        """A driver of the sync flavour over the same store, for a thread beside the event loop: a worker's leases are
        kept by one. A sync driver is its own; whoever gets another one closes it."""
        ...

    async def put(self, queue: str, batch: Sequence[Envelope], *, stop: Bell | None = None) -> list[Put]:
        """Store a batch. One refusal never fails the others.

        In this order for each: a disabled queue refuses (ServiceUnavailableError); so do a session id where sessions
        are off, none where they are required, a dedup id where duplicate detection is off (InvalidParameterError); a
        dedup id seen within the window is a Duplicate; a full queue does as its overflow says: `reject` Refuses with
        MailboxFullError, `drop_newest` is Dropped, `drop_oldest` removes the oldest messages that are not in flight
        (Refused when there is none), `wait` stores what fits and waits for room up to the rules' overflow_timeout,
        until `stop` rings, then Refuses. TTL counts from the first due time; None takes the queue's.
        """
        ...

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
        """Take up to `n` messages for `lease` seconds (None: the queue's own).

        Returns as soon as at least one was taken; else waits up to `wait` seconds, or until `stop` rings, on the
        store's own event. `settle` is carried out first, in the same step. `claim_id` is 128 random bits in hex,
        chosen by the caller, new for each claim; `again=True` says that this is a retry, and returns what that id
        still holds before taking anything new.

        Order is (priority, seq). A message of a session comes only when every earlier one of that session is
        terminal or in the same claim, skipping never-delivered ones that are not due; a session with a valid lock
        or lease gives nothing to others. Under a session lock (SessionClaim with a token) leases end with the lock,
        `lease` is ignored, and a lost lock raises ReceiptHandleExpiredError.

        First, up to TIDY due or lapsed messages are promoted (lapsed_count + 1 for those whose lease ended). A message
        whose deliveries are used up (the smaller of the queue's limit and `max_deliveries`) is buried with reason
        `max_deliveries`, an expired one is dropped or buried with reason `expired`; without dead-lettering both are
        dropped. Where the dead-letter queue refuses, the message stays, unclaimable, and is tried again 30 s later.

        A disabled queue raises ServiceUnavailableError. Buried and expired messages are counted in the result.
        """
        ...

    async def settle(self, queue: str, batch: Sequence[Verdict]) -> list[Outcome]:
        """Carry out verdicts, in order. The table of SEMANTICS decides between Settled, Stale and Gone.

        A malformed handle is Refused with InvalidParameterError. In a session, Release, Bury and Return
        of a message return the later ones of the same holder, uncounted; a Bury with `on_dead=block` leaves the session
        blocked until the dead letter is redriven or removed. A Release whose count has reached the queue's limit
        buries (`max_deliveries`), and one after `expires_at` expires. A Return counts once a message was returned
        1,000 times. Bury is Refused (UnsupportedError) on a dead-letter queue and where dead-lettering is off. An
        Ack's `puts` are stored in the same step: those to a queue that does not exist come back as Refused, in
        `Settled.puts`, and do not hold up the acknowledge; if it is Stale or Gone nothing is put.
        """
        ...

    async def abandon(self, queue: str, claim_id: str) -> None:
        """A claim was cancelled or its answer lost: return what it took, uncounted.

        Fences too: a claim with this id that comes later takes nothing, remembered for 60 s.
        """
        ...

    async def close(self) -> None:
        """Let go of connections. Idempotent; messages in flight stay in flight."""
        ...
