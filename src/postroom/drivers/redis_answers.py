"""What the scripts answer, read: bytes in, values of the waist out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from postroom.core import refusals
from postroom.core.definition import PLAIN, QueueStatus, Rules
from postroom.core.message import (
    GONE,
    SETTLED,
    STALE,
    Accepted,
    Delivery,
    Dropped,
    Duplicate,
    Envelope,
    Outcome,
    Put,
    Refused,
    Settled,
    Stats,
)
from postroom.drivers.redis_rows import delivery, plain_delivery
from postroom.errors import MailboxError, MailboxFullError

_unpack = msgspec.msgpack.decode


def refusal(queue: str, reply: list[Any]) -> MailboxError:
    """What a script says instead of an answer."""
    why = reply[0].decode()
    if why == "missing":
        return refusals.no_queue(queue)
    if why == "dead":
        return refusals.not_sent_there(queue)
    if why == "off":
        return refusals.receiving_off(queue, reply[1].decode())
    if why == "dead session":
        return refusals.no_dead_sessions(queue)
    if why == "no sessions":
        return refusals.no_sessions(queue)
    if why == "lost":
        return refusals.lock_lost(queue, reply[1].decode())
    return MailboxError(f"{queue}: the script answered {why!r}, which this library does not know")


# --- put -------------------------------------------------------------------------------------------------------------


class Stored(NamedTuple):
    """What became of each; how long the refused may wait for room, and when time will make some."""

    results: list[Put]
    patience: float = 0.0
    due: float = 0.0


def puts_of(queue: str, batch: Sequence[Envelope], answer: bytes) -> Stored:
    if answer[:1] == b"A":
        first = int(answer[1:])
        return Stored([Accepted(e.id, first + i) for i, e in enumerate(batch)])
    if answer[:1] == b"O":
        status = answer[1:].decode()
        return Stored([Refused(refusals.sending_off(queue, status)) for _ in batch])
    results: list[Put] = []
    patience = due = 0.0
    for e, result in zip(batch, _unpack(answer), strict=True):
        kind = result[0]
        if kind == "a":
            results.append(Accepted(e.id, int(result[1]), int(result[2])))
        elif kind == "d":
            results.append(Duplicate(_text(result[1])))
        elif kind == "n":
            results.append(Dropped(e.id))
        else:
            if result[1] == "full":
                patience, due = float(result[5]), float(result[6])
            results.append(Refused(_why(queue, e, result)))
    return Stored(results, patience, due)


def _why(queue: str, e: Envelope, result: list[Any]) -> Any:
    why = result[1]
    if why == "full":
        return no_room(queue, result[2], int(result[3]), int(result[4]), e.size)
    if why == "needs session":
        return refusals.needs_session(queue)
    return refusals.sessions_off(queue) if why == "sessions off" else refusals.dedup_off(queue)


def no_room(queue: str, what: str, taken: int, limit: int, size: int) -> MailboxFullError:
    if what == "messages":
        return refusals.full_of_messages(queue, taken, limit)
    return refusals.full_of_bytes(queue, taken, limit, size)


def refused_for_room(result: Put) -> bool:
    return isinstance(result, Refused) and isinstance(result.error, MailboxFullError)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# --- claim -----------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What a claim found. `due` is when time will change something by itself; `more`, that it has already."""

    deliveries: list[Delivery]
    now: float
    buried: int
    expired: int
    more: bool
    due: float


def read_claim(reply: list[Any], claim_id: str) -> Found:
    now_, token_, till_, buried, expired, more, due = reply[3].split()
    now, token, till = float(now_), int(token_), float(till_)
    deliveries = []
    for at in range(4, len(reply), 4):
        past, until = reply[at + 2], reply[at + 3]
        if not past:
            deliveries.append(plain_delivery(reply[at], reply[at + 1], claim_id, token, now, till))
        else:
            ends = float(until) if until else till
            deliveries.append(delivery(reply[at], reply[at + 1], past, claim_id=claim_id, at=ends))
    return Found(deliveries, now, int(buried), int(expired), more == b"1", float(due))


def read_page(reply: list[Any]) -> list[Delivery]:
    """Messages that were looked at."""
    return [
        delivery(reply[at], reply[at + 1], reply[at + 2], state=reply[at + 3].decode(), at=float(reply[at + 4]))
        for at in range(3, len(reply), 5)
    ]


def read_info(queue: str, reply: list[Any], *, dead: bool) -> tuple[Stats, Rules, QueueStatus]:
    """A queue in numbers. Dead letters have neither rules nor a status of their own."""
    _, kept, status, numbers, created, updated, now, since, _ = reply
    try:
        ready, scheduled, in_flight, died, size, dropped, expired = map(int, numbers.split())
        stats = Stats(
            ready=ready,
            scheduled=scheduled,
            in_flight=in_flight,
            dead=died,
            bytes=max(0, size),  # below 0 once envelopes were exchanged by hand
            oldest_age=max(0.0, float(now) - float(since)) if since else None,
            dropped=dropped,
            expired=expired,
            created_at=float(created),
            updated_at=float(updated),
        )
        if dead:
            return stats, PLAIN, QueueStatus.ACTIVE
        return stats, _unpack(kept, type=Rules) if kept else PLAIN, QueueStatus(status.decode())
    except (ValueError, TypeError, AttributeError, msgspec.MsgspecError) as error:
        raise MailboxError(
            f"{queue}: what the server keeps of this queue cannot be read ({error}): something else wrote into its "
            "keys, which begin with {queue:; create_queue() writes its rules anew"
        ) from error


# --- settle ----------------------------------------------------------------------------------------------------------


def outcomes_of(queue: str, answer: bytes) -> list[Outcome]:
    return [_OUTCOMES.get(one) or _outcome(queue, one) for one in answer.split(b",")]


def _outcome(queue: str, one: bytes) -> Outcome:
    if one[:1] == b"s":
        return Settled((), float(one[1:]))
    return Refused(refusals.dies_once(queue) if one == b"u" else refusals.dead_lettering_off(queue))


_OUTCOMES: dict[bytes, Outcome] = {b"s": SETTLED, b"t": STALE, b"g": GONE}
