"""The values that cross the waist: what goes in, what is lent out, what is decided about it, what became of it.

They are made millions of times, so they are frozen msgspec Structs (0.06 us each; a frozen dataclass takes 1.3).
Most say `gc=False`; `Envelope` and what holds one do not, because a memory store passes bodies and reply mailboxes
by reference, and a mailbox that waits in its own queue is a cycle that must still be collected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from postroom.errors import InvalidParameterError, MailboxError

JSON = "application/json"


class Envelope(msgspec.Struct, frozen=True):
    """A message on its way in, and what of it a store keeps.

    `body` is bytes; only on a store whose capabilities say `by_reference` is it the sender's object itself.
    `fault` says why the stored row could not be read back in full: such a message is never shown to a handler.
    """

    id: str
    body: bytes
    content_type: str = JSON
    attributes: dict[str, str] | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    session_id: str | None = None
    dedup_id: str | None = None
    ttl: float | None = None  # None: the queue's own
    delay: float = 0.0
    priority: int = 10
    size: int = 0  # what capacity counts: body and attributes in bytes, 0 when passed by reference
    reply_ref: object = None  # by-reference stores only: the reply mailbox itself
    fault: str | None = None


class Attempt(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One failed delivery, as kept in a message's history."""

    number: int  # the delivery_count of that delivery
    at: float  # the store's clock
    error: str


class Death(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Why, where from and when a message became a dead letter."""

    reason: str  # max_deliveries, expired, undecodable, or what the user said
    description: str
    source: str  # the queue it died in
    at: float
    delivery_count: int  # when it died


class Delivery(msgspec.Struct, frozen=True):
    """A message we hold until `lease_until`; or, with an empty handle, one that was only looked at."""

    envelope: Envelope
    handle: str  # opaque; proves the lease
    attempt: int  # 1 on first delivery
    seq: int
    enqueued_at: float  # these three by the store's clock, seconds since the epoch
    received_at: float
    lease_until: float
    token: int = 0  # fencing number: never falls in the store's life
    lapsed: int = 0
    nacks: int = 0
    returns: int = 0
    death: Death | None = None
    history: tuple[Attempt, ...] = ()
    state: str = "in_flight"
    visible_at: float = 0.0
    expires_at: float | None = None


# --- what we decide about a delivery -------------------------------------------------------------------------


class Ack(msgspec.Struct, frozen=True):
    """Done. `puts` (queue, envelope) are stored in the same step where the store can."""

    handle: str
    puts: tuple[tuple[str, Envelope], ...] = ()


class Release(msgspec.Struct, frozen=True, gc=False):
    """Failed: to be delivered again after `delay`; `note` goes to the history."""

    handle: str
    delay: float = 0.0
    note: str | None = None


class Return(msgspec.Struct, frozen=True, gc=False):
    """Not our fault and not the message's: give it back and take the delivery off its count."""

    handle: str
    delay: float = 0.0


class Extend(msgspec.Struct, frozen=True, gc=False):
    """Ours for `lease` seconds from now. `shorten=False` (a lease keeper) never moves the end back."""

    handle: str
    lease: float
    shorten: bool = True


class Bury(msgspec.Struct, frozen=True, gc=False):
    """To the dead letters, now."""

    handle: str
    reason: str
    description: str = ""


Verdict: TypeAlias = Ack | Release | Return | Extend | Bury


# --- what became of it ---------------------------------------------------------------------------------------


class Settled(msgspec.Struct, frozen=True):
    """The verdict was carried out. `puts` tells what became of an Ack's replies."""

    puts: tuple[Put, ...] = ()
    lease_until: float | None = None  # after an Extend


class Stale(msgspec.Struct, frozen=True, gc=False):
    """The token was replaced by a redelivery, or lapsed where that matters; nothing was changed."""


class Gone(msgspec.Struct, frozen=True, gc=False):
    """The message is no more: acknowledged, dead, expired or purged."""


class Refused(msgspec.Struct, frozen=True):
    """Nothing was done, and why."""

    error: MailboxError


Outcome: TypeAlias = Settled | Stale | Gone | Refused
SETTLED = Settled()
STALE = Stale()
GONE = Gone()


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """Stored, as durably as the queue promises."""

    id: str
    seq: int
    displaced: int = 0  # how many older messages a full queue dropped for it


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """Not stored: a message with this dedup id was accepted before, and this is its id."""

    id: str


class Dropped(msgspec.Struct, frozen=True, gc=False):
    """Not stored: the queue was full and its overflow is `drop_newest`."""

    id: str


Put: TypeAlias = Accepted | Duplicate | Dropped | Refused


class Claimed(msgspec.Struct, frozen=True):
    """What a claim took, what became of the verdicts that rode along, and what it tidied on the way."""

    deliveries: Sequence[Delivery] = ()
    outcomes: Sequence[Outcome] = ()
    buried: int = 0
    expired: int = 0


class Stats(msgspec.Struct, frozen=True, gc=False):
    """A queue in numbers, after a bounded tidy."""

    ready: int
    scheduled: int
    in_flight: int
    dead: int
    bytes: int
    oldest_age: float | None  # seconds the first-sent ready message waits: since it was due, or sent if it came back
    dropped: int = 0  # by overflow, since the queue was made
    expired: int = 0  # dropped at the end of their TTL, since the queue was made
    exact: bool = True
    created_at: float = 0.0
    updated_at: float = 0.0


class SessionClaim(msgspec.Struct, frozen=True, gc=False):
    """Claim from this session only; with a token, under the explicit lock it proves."""

    id: str
    token: str | None = None


class SessionLock(msgspec.Struct, frozen=True, gc=False):
    """An explicit lock on a session: ours until `until`."""

    id: str
    token: str
    until: float


class SessionState(msgspec.Struct, frozen=True, gc=False):
    """What a session carries; `version` rises with every write and is 0 before the first."""

    value: bytes | None
    version: int


# --- handles ------------------------------------------------------------------------------------------------


def make_handle(seq: int, claim_id: str) -> str:
    """The receipt handle of our own stores: which message, and which claim holds it."""
    return f"{seq}.{claim_id}"


def parse_handle(handle: str) -> tuple[int, str]:
    """(seq, claim_id) of a handle; a malformed one is the caller's mistake."""
    seq, dot, claim_id = handle.partition(".") if isinstance(handle, str) else ("", "", "")
    if not (dot and claim_id.isalnum() and claim_id.isascii() and seq.isascii() and seq.isdigit() and len(seq) < 20):
        raise InvalidParameterError(
            f"{handle!r:.60} is not a receipt handle; use the one the message was received with, unchanged"
        )
    number = int(seq)
    if number > _HIGHEST:
        raise InvalidParameterError(f"{handle!r:.60} is not a receipt handle; no message has such a number")
    return number, claim_id


_HIGHEST = (1 << 63) - 1  # of a seq: what databases call an integer


# --- what a store keeps beside the columns it needs -----------------------------------------------------------


class _Head(msgspec.Struct, frozen=True, gc=False, array_like=True):
    version: int
    content_type: str
    attributes: dict[str, str] | None
    reply_to: str | None
    correlation_id: str | None


class _Record(msgspec.Struct, frozen=True, gc=False, array_like=True):
    version: int
    death: Death | None
    history: tuple[Attempt, ...]


HEAD_VERSION = 1
MAX_HISTORY = 20
MAX_NOTE = 1_000
_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_Head).decode
_decode_record = msgspec.msgpack.Decoder(_Record).decode
_DAMAGED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # not ours; text that is not UTF-8; a deep pit


def pack_head(envelope: Envelope) -> bytes | None:
    """The rarely used parts of an envelope as versioned bytes; None when all are at their defaults."""
    e = envelope
    if e.content_type == JSON and e.attributes is None and e.reply_to is None and e.correlation_id is None:
        return None
    return _encode(_Head(HEAD_VERSION, e.content_type, e.attributes, e.reply_to, e.correlation_id))


def unpack_head(
    id: str,
    body: bytes,
    head: bytes | None,
    session_id: str | None = None,
    priority: int = 10,
    size: int = 0,
    ttl: float | None = None,
) -> Envelope:
    """The envelope of a stored row. Bytes that are not ours make a `fault`, never an exception: one bad row must not
    hide its neighbours."""
    if not (isinstance(id, str) and isinstance(body, bytes) and (head is None or isinstance(head, bytes))):
        raw = body if isinstance(body, bytes) else str(body).encode(errors="replace")
        return Envelope(
            str(id), raw, session_id=session_id, size=size, fault="the stored row has columns of other types"
        )
    if head is None:
        return Envelope(id, body, JSON, None, None, None, session_id, None, ttl, 0.0, priority, size)
    try:
        kept = _decode_head(head)
        fault = None if kept.version == HEAD_VERSION else f"envelope version {kept.version} is newer than this library"
    except _DAMAGED as error:
        return Envelope(id, body, session_id=session_id, size=size, fault=f"the stored envelope is damaged: {error}")
    return Envelope(
        id,
        body,
        kept.content_type,
        kept.attributes,
        kept.reply_to,
        kept.correlation_id,
        session_id,
        priority=priority,
        size=size,
        ttl=ttl,
        fault=fault,
    )


def pack_record(death: Death | None, history: Sequence[Attempt]) -> bytes | None:
    """A message's past as versioned bytes; None when there is none. The history keeps its last entries."""
    if death is None and not history:
        return None
    return _encode(_Record(1, death, tuple(history[-MAX_HISTORY:])))


def unpack_record(record: bytes | None) -> tuple[Death | None, tuple[Attempt, ...]]:
    """(death, history) of a stored row. A damaged past is no reason to withhold a message: it reads as none."""
    if record is None:
        return None, ()
    try:
        kept = _decode_record(record)
    except (*_DAMAGED, TypeError):
        return None, ()
    return kept.death, kept.history


def add_attempt(history: Sequence[Attempt], number: int, at: float, note: str) -> tuple[Attempt, ...]:
    """`history` with one more failed delivery, bounded in length and text."""
    return (*history[-(MAX_HISTORY - 1) :], Attempt(number, at, note[:MAX_NOTE]))
