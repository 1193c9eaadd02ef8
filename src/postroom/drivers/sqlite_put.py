"""Letting messages in: sessions, duplicates and room are looked at only where the queue or the message has them."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.core import refusals
from postroom.core.message import Accepted, Dropped, Duplicate, Envelope, Put, Refused
from postroom.drivers.sqlite_file import SQL
from postroom.drivers.sqlite_ledger import Queue
from postroom.drivers.sqlite_step import FLIGHT, Step
from postroom.errors import (
    MailboxError,
    MailboxFullError,
)

_LAST = (1 << 63) - 1


def put(step: Step, queue: Queue, batch: Sequence[Envelope]) -> list[Put]:
    if queue.dead is None:
        raise refusals.not_sent_there(queue.name)
    if not queue.takes:
        error = refusals.sending_off(queue.name, queue.status)
        return [Refused(error.copy()) for _ in batch]
    if not batch:
        return []
    if queue.asks_nothing:
        for e in batch:
            if e.dedup_id is not None:
                break
        else:
            seq = step.put_rows(queue, batch)
            return [Accepted(e.id, at) for at, e in enumerate(batch, seq)]
    elif queue.rules.bounded:
        step.tidy(queue)
    return [_put_one(step, queue, envelope) for envelope in batch]


def _put_one(step: Step, queue: Queue, envelope: Envelope) -> Put:
    if (error := _unfit(queue, envelope)) is not None:
        return Refused(error)
    rules, key, displaced = queue.rules, envelope.dedup_id, 0
    if key is not None:
        known = step.run(SQL["dedup_find"], (queue.id, key)).fetchone()
        if known is not None and known[1] > step.now:
            return Duplicate(known[0])
    if rules.bounded and (full := step.no_room(queue, envelope.size)) is not None:
        if rules.overflow == "drop_newest":
            step.count_odd(queue.id, 1, 0)
            return Dropped(envelope.id)
        if rules.overflow != "drop_oldest":
            return Refused(full)
        displaced = _make_room(step, queue, envelope.size)
        if step.no_room(queue, envelope.size) is not None:
            return Refused(full)
    seq = step.put_rows(queue, (envelope,))
    if key is not None:
        step.run(SQL["dedup_tidy"], (queue.id, queue.id, step.now))
        step.run(SQL["dedup_put"], (queue.id, key, envelope.id, step.now + rules.dedup_window))
    return Accepted(envelope.id, seq, displaced)


def _unfit(queue: Queue, envelope: Envelope) -> MailboxError | None:
    rules = queue.rules
    if envelope.session_id is None and rules.sessions == "required":
        return refusals.needs_session(queue.name)
    if envelope.session_id is not None and rules.sessions == "off":
        return refusals.sessions_off(queue.name)
    if envelope.dedup_id is not None and not rules.dedup:
        return refusals.dedup_off(queue.name)
    return None


def _make_room(step: Step, queue: Queue, size: int) -> int:
    """Drop the oldest that nobody holds until there is room; how many."""
    limit = queue.rules.max_bytes
    if limit is not None and size > limit:
        return 0  # never: dropping everything would not make room
    dropped = 0
    while step.no_room(queue, size) is not None:
        seq = _oldest(step, queue)
        row = None if seq is None else step.row(seq)
        if row is None or row.state == FLIGHT:
            break
        step.remove(queue, row)
        dropped += 1
    step.count_odd(queue.id, dropped, 0)
    return dropped


def _oldest(step: Step, queue: Queue) -> int | None:
    found = []
    for (priority,) in step.run(SQL["priorities"], (queue.id, queue.id)).fetchall():
        found.append(step.run(SQL["first_of_priority"], (queue.id, priority)).fetchone()[0])
    found.append(step.run(SQL["first_placed"], (queue.id,)).fetchone()[0])
    if queue.sessions:
        found.append(step.run(SQL["first_blocked"], (queue.id,)).fetchone()[0])
    return min((seq for seq in found if seq is not None), default=None)


def waits(result: Put) -> bool:
    """Whether a full queue may take this message later."""
    return isinstance(result, Refused) and isinstance(result.error, MailboxFullError)


def put_reply(step: Step, name: str, envelope: Envelope) -> Put:
    """What an acknowledge carries: a message to any queue of the namespace, in the same step."""
    # `look` on another queue replaces what the step knows of time on its own; by now it needs that no more.
    [result] = put(step, step.queue(name), [envelope])
    return result
