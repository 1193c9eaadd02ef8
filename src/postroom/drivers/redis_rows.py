"""What is kept of a message in Redis, as bytes: the envelope its sender packed, and its past as the scripts write it.

An envelope never changes: version, priority, size, the id, the rarely used parts, the body. The scripts read the first
eight bytes and the id; the rest is ours. Bytes that are not ours become a `fault`, never an exception.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from struct import Struct
from struct import error as _StructError

import msgspec

from postroom.core.message import (
    MAX_NOTE,
    Ack,
    Attempt,
    Bury,
    Death,
    Delivery,
    Envelope,
    Extend,
    Release,
    Return,
    Verdict,
    pack_head,
    parse_handle,
    unpack_head,
)
from postroom.errors import InvalidParameterError

VERSION = 1
_START = Struct(">BBIH")  # version, priority, size, length of the id
_LENGTH = Struct(">I")  # of the head
_NO_HEAD = _LENGTH.pack(0)


def pack(e: Envelope) -> bytes:
    id = e.id.encode()
    head = pack_head(e)
    start = _START.pack(VERSION, e.priority, e.size, len(id))
    if head is None:
        return b"".join((start, id, _NO_HEAD, e.body))
    return b"".join((start, id, _LENGTH.pack(len(head)), head, e.body))


def put_fields(batch: Sequence[Envelope]) -> list[bytes]:
    """What put.lua is given of messages that are not all plain."""
    given: list[bytes] = []
    for e in batch:
        given += (
            pack(e),
            repr(e.delay).encode(),
            b"-1" if e.ttl is None else repr(e.ttl).encode(),
            b"" if e.session_id is None else e.session_id.encode(),
            b"" if e.dedup_id is None else e.dedup_id.encode(),
        )
    return given


def _envelope(data: bytes, past: _Past | None) -> Envelope:
    session, ttl = None, None
    if past is not None:
        session, ttl = past.session or None, past.ttl if past.ttl >= 0 else None
    try:
        version, priority, size, length = _START.unpack_from(data)
        at = 8 + length
        (head,) = _LENGTH.unpack_from(data, at)
        at += 4
        if version != VERSION or len(data) < at + head:
            raise ValueError
        id = data[8 : 8 + length].decode()
    except (ValueError, UnicodeDecodeError, msgspec.MsgspecError, _StructError):
        fault = "the stored envelope is not one of ours"
        if data[:1] and 1 < data[0] < 32:
            fault += f", or of a newer version ({data[0]}) than this library knows"
        return Envelope("", data, session_id=session, size=len(data), fault=fault)
    if not head:  # the usual case, without a call
        return Envelope(id, data[at:], session_id=session, priority=priority, size=size, ttl=ttl)
    return unpack_head(
        id,
        data[at + head :],
        data[at : at + head],
        session_id=session,
        priority=priority,
        size=size,
        ttl=ttl,
    )


class _Past(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What happened to a message so far: `packed` of life.lua."""

    deliveries: int
    lapsed: int
    nacks: int
    returns: int
    token: int
    received: float
    priority: int
    size: int
    visible: float
    expires: float
    ttl: float
    session: str
    parked: int
    blocks: str
    death: Death | bool
    history: list[Attempt]


_decode = msgspec.msgpack.Decoder(_Past).decode


def _past(kept: bytes) -> _Past | None:
    try:
        return _decode(kept)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def plain_delivery(seq: bytes, data: bytes, claim_id: str, token: int, now: float, until: float) -> Delivery:
    """A message delivered for the first time, of which nothing else is to be told."""
    number = int(seq)
    sent = number / 1e6
    return Delivery(
        _envelope(data, None),
        f"{seq.decode()}.{claim_id}",
        1,
        number,
        sent,
        now,
        until,
        token,
        0,
        0,
        0,
        None,
        (),
        "in_flight",
        sent,
    )


def delivery(
    seq: bytes, data: bytes, kept: bytes, *, claim_id: str = "", state: str = "in_flight", at: float = 0.0
) -> Delivery:
    """A message with a past: lent until `at`, or, without a claim id, only looked at."""
    number = int(seq)
    past = _past(kept)
    envelope = _envelope(data, past)
    if past is None:
        fault = envelope.fault or "what happened to it so far cannot be read"
        envelope = msgspec.structs.replace(envelope, fault=fault)
        past = _UNKNOWN
    lent = state in ("in_flight", "lapsed")
    death = past.death if isinstance(past.death, Death) else None
    return Delivery(
        envelope,
        f"{seq.decode()}.{claim_id}" if claim_id else "",
        past.deliveries,
        number,
        number / 1e6,
        past.received if claim_id else 0.0,
        at if lent else 0.0,
        past.token,
        past.lapsed,
        past.nacks,
        past.returns,
        death,
        tuple(past.history),
        state,
        past.visible if claim_id else at,
        past.expires or None,
    )


_UNKNOWN = _Past(1, 0, 0, 0, 0, 0.0, 10, 0, 0.0, 0.0, -1.0, "", 0, "", False, [])


# --- verdicts ------------------------------------------------------------------------------------------------------


_unchanged = re.compile(r"[0-9]{16}\.[0-9A-Za-z]+\Z").match  # a handle as we gave it out: nothing is to be parsed


def verdict_text(verdict: Verdict) -> bytes | None:
    """As settling.lua reads it; None for a handle of a number no message has. A malformed one raises."""
    handle = verdict.handle
    if not isinstance(handle, str) or not _unchanged(handle):
        seq, claim_id = parse_handle(handle)
        if seq >= 10**16:
            return None
        handle = f"{seq:016d}.{claim_id}"
    if type(verdict) is Ack:
        return b"A" + handle.encode()
    if isinstance(verdict, Release):
        note = verdict.note
        text = f"R{handle}\n{verdict.delay!r}\n{0 if note is None else 1}\n{'' if note is None else note[:MAX_NOTE]}"
    elif isinstance(verdict, Return):
        text = f"T{handle}\n{verdict.delay!r}"
    elif isinstance(verdict, Extend):
        text = f"E{handle}\n{verdict.lease!r}\n{1 if verdict.shorten else 0}"
    elif isinstance(verdict, Bury):
        reason = " ".join(verdict.reason.splitlines())  # the script takes the first line for it
        text = f"B{handle}\n{reason}\n{verdict.description}"
    else:
        text = f"A{handle}"
    return text.encode(errors="replace")


def acknowledges(batch: Sequence[Verdict]) -> bool:
    """Whether these are nothing but acknowledges that carry nothing."""
    for verdict in batch:  # noqa: SIM110  # a generator would swallow a Ctrl-C that strikes while it is closed
        if type(verdict) is not Ack or verdict.puts:
            return False
    return True


def verdict_texts(batch: Sequence[Verdict]) -> list[bytes] | None:
    """The verdicts as the script reads them; None where one has a handle that cannot be ours."""
    texts = []
    for verdict in batch:
        try:
            text = verdict_text(verdict)
        except InvalidParameterError:
            return None
        if text is None:
            return None
        texts.append(text)
    return texts
