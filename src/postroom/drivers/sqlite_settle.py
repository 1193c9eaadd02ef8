"""What becomes of messages in somebody's hands, one verdict after the other.

Acknowledging is the hot one: outside of sessions it is a single DELETE that proves the lease by itself. Only when that
finds nothing, or when there is a session to look after, is the row read and judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from postroom.core import refusals
from postroom.core.message import (
    GONE,
    SETTLED,
    STALE,
    Ack,
    Bury,
    Envelope,
    Extend,
    Outcome,
    Put,
    Refused,
    Return,
    Settled,
    Verdict,
    parse_handle,
)
from postroom.drivers.sqlite_file import SQL
from postroom.drivers.sqlite_ledger import Queue
from postroom.drivers.sqlite_step import FLIGHT, MANY, Row, Step
from postroom.errors import InvalidParameterError, MailboxError

_PutReply = Callable[[Step, str, Envelope], Put]


def settle(step: Step, queue: Queue, batch: Sequence[Verdict], put_reply: _PutReply) -> list[Outcome]:
    step.count(queue.id, 0, 0)
    if (outcomes := _acknowledge_many(step, queue, batch)) is not None:
        return outcomes
    return [_settle(step, queue, verdict, put_reply) for verdict in batch]


def acknowledge(step: Step, queue: Queue, batch: Sequence[Verdict]) -> list[Outcome] | None:
    """Plain acknowledges, by what we remember of the queue: its id is never used again, and the rows prove the rest.
    None if it takes more than that."""
    if queue.rules.auto_delete_on_idle is not None:
        return None
    if len(batch) > 1:
        return _acknowledge_many(step, queue, batch)
    [verdict] = batch
    if type(verdict) is not Ack or verdict.puts or type(verdict.handle) is not str:
        return None
    # Not `parse_handle`: a handle of which the row says that it is right is right, and of any other we say None.
    seq, _, claim_id = verdict.handle.partition(".")
    if not (seq.isascii() and seq.isdigit() and len(seq) < 19):
        return None
    return [SETTLED] if _delete(step, queue, int(seq), claim_id) else None


def _delete(step: Step, queue: Queue, seq: int, claim_id: str) -> bool:
    found = step.run(SQL["acknowledge"], (seq, queue.id, claim_id)).fetchone()
    if found is None:
        return False
    size, body_ref = found
    if body_ref is not None:
        step.run(SQL["drop_body"], (body_ref,))
    step.count(queue.id, -1, -size)
    if queue.rules.overflow == "wait":
        step.frees(queue, 1)
    return True


def _settle(step: Step, queue: Queue, verdict: Verdict, put_reply: _PutReply) -> Outcome:
    try:
        seq, claim_id = parse_handle(verdict.handle)
    except InvalidParameterError as error:
        return Refused(error)
    if isinstance(verdict, Ack):
        return _acknowledge(step, queue, verdict, seq, claim_id, put_reply)
    row = _current(step, queue, seq, claim_id)
    if not isinstance(row, Row):
        return row
    if isinstance(verdict, Extend):
        return _extend(step, queue, row, verdict)
    if isinstance(verdict, Bury):
        return _bury(step, queue, row, verdict)
    step.fail_later(queue, row)
    if isinstance(verdict, Return):
        step.give_back(queue, row, delay=verdict.delay, counted=False)
        return SETTLED
    if step.expired(row) or step.used_up(queue, row, None):
        row = step.note(row, verdict.note)
        if step.expired(row):
            step.expire(queue, row)
        else:
            step.bury(queue, row, "max_deliveries", verdict.note or "")
        return SETTLED
    step.give_back(queue, row, delay=verdict.delay, counted=True, note=verdict.note)
    return SETTLED


def _current(step: Step, queue: Queue, seq: int, claim_id: str) -> Row | Outcome:
    """The row, if this claim may still decide about it; else why not."""
    row = step.row(seq)
    if row is None or row.queue != queue.id:
        return GONE
    if row.claim_id != claim_id:
        return STALE
    member = row.session is not None and queue.dead is not None
    if member and not _valid(row, step.now):
        return STALE
    return row


def _valid(row: Row, now: float) -> bool:
    return row.state == FLIGHT and row.due_at is not None and row.due_at > now


def _acknowledge(step: Step, queue: Queue, verdict: Ack, seq: int, claim_id: str, put_reply: _PutReply) -> Outcome:
    if not _delete(step, queue, seq, claim_id):
        row = _current(step, queue, seq, claim_id)
        if not isinstance(row, Row):
            return row
        step.remove(queue, row)
    if not verdict.puts:
        return SETTLED
    return Settled(tuple(_reply(step, name, envelope, put_reply) for name, envelope in verdict.puts))


def _reply(step: Step, name: str, envelope: Envelope, put_reply: _PutReply) -> Put:
    try:
        return put_reply(step, name, envelope)
    except MailboxError as error:
        return Refused(error)


def _acknowledge_many(step: Step, queue: Queue, batch: Sequence[Verdict]) -> list[Outcome] | None:
    """Plain acknowledges of one claim in one statement; None if the batch is anything else."""
    if len(batch) < MANY:
        return None
    try:
        _, first = parse_handle(batch[0].handle)
    except InvalidParameterError:
        return None
    handles: list[str] = []
    for verdict in batch:
        if type(verdict) is not Ack or verdict.puts:
            return None
        handles.append(verdict.handle)
    # Each a number and the claim's id, as `parse_handle` would have it, but found out for all of them at once.
    text, end = f"{','.join(handles)},", f".{first},"
    if text.count(end) != len(batch):
        return None
    text = text.replace(end, ",")[:-1]
    numbers = text.split(",")
    if not (text.isascii() and text.replace(",", "").isdigit() and len(numbers) == len(batch)) or "" in numbers:
        return None
    if len(max(numbers, key=len)) > 19:
        return None
    taken = step.run(SQL["acknowledge_many"], (f"[{text}]", queue.id, first)).fetchall()
    size = 0
    for _, its_size, body_ref in taken:
        size += its_size
        if body_ref is not None:
            step.run(SQL["drop_body"], (body_ref,))
    if taken:
        step.count(queue.id, -len(taken), -size)
        step.frees(queue, len(taken))
    if len(taken) == len(numbers):
        return [SETTLED] * len(numbers)
    step.queue(queue.name)  # is it there at all?
    outcomes: list[Outcome] = []
    done = {seq for seq, _, _ in taken}
    for seq in map(int, numbers):
        if seq in done:
            done.discard(seq)  # the same handle twice in a batch: the second finds it gone
            outcomes.append(SETTLED)
            continue
        row = _current(step, queue, seq, first)
        if isinstance(row, Row):
            step.remove(queue, row)
            outcomes.append(SETTLED)
        else:
            outcomes.append(row)
    return outcomes


def _extend(step: Step, queue: Queue, row: Row, verdict: Extend) -> Outcome:
    if not _valid(row, step.now):
        return STALE
    until = step.now + verdict.lease
    if not verdict.shorten and row.due_at is not None:
        until = max(until, row.due_at)
    if row.session is not None and queue.dead is not None:
        lock = step.run(SQL["session"], (queue.id, row.session)).fetchone()
        if lock is not None and lock[1] is not None and lock[1] > step.now:
            step.hold(queue, row.session, until)
            return Settled((), until)
    step.run(SQL["extend"], (until, row.seq))
    step.due(queue.id, until)
    return Settled((), until)


def _bury(step: Step, queue: Queue, row: Row, verdict: Bury) -> Outcome:
    if queue.dead is None:
        return Refused(refusals.dies_once(queue.name))
    if not queue.rules.dead_lettering:
        return Refused(refusals.dead_lettering_off(queue.name))
    if not step.grave(queue, row)[0]:
        return Refused(refusals.unburied(queue.name, queue.rules.dead_letter_queue))
    step.fail_later(queue, row)
    step.bury(queue, row, verdict.reason, verdict.description)
    return SETTLED
