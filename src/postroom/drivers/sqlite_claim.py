"""Taking messages: in order, within the limits, and never two holders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from postroom.core import refusals
from postroom.core.message import Claimed, Delivery, SessionClaim, make_handle, unpack_head, unpack_record
from postroom.drivers.api import TIDY
from postroom.drivers.sqlite_file import SQL
from postroom.drivers.sqlite_ledger import Queue
from postroom.drivers.sqlite_step import BLOCKED, FLIGHT, MANY, READY, Row, Step

_LAST = (1 << 63) - 1
_DELIVERIES, _EXPIRES_AT = Row._fields.index("deliveries"), Row._fields.index("expires_at")


def claim(
    step: Step,
    queue: Queue,
    n: int,
    *,
    lease: float | None,
    claim_id: str,
    session: SessionClaim | None,
    limit: int | None,
) -> Claimed:
    """Take up to `n` messages. One look, one read, one update and the counter; the rest only where there is cause."""
    now = step.now
    buried = expired = 0
    if step.next_due <= now or step.next_expiry <= now:
        buried, expired = step.tidy(queue, limit)
    until = now + (queue.rules.lease if lease is None else lease)
    rows = _plain(step, queue, n) if session is None else None
    if rows is None:
        taking = _Taking(step, queue, n, limit)
        if session is not None:
            until = _take_named(taking, session, until)
        else:
            _take_next(taking)
        buried, expired = buried + taking.buried, expired + taking.expired
        rows = taking.rows
    if not rows:
        return Claimed((), (), buried, expired) if buried or expired else _NOTHING
    token = step.number()
    if len(rows) < MANY:
        for row in rows:
            step.run(SQL["lend"], (until, claim_id, token, now, row[0]))
    else:
        seqs = ",".join([str(row[0]) for row in rows])
        step.run(SQL["lend_many"], (until, claim_id, token, now, f"[{seqs}]"))
    step.written += len(rows) * 0.1
    step.lapse = queue.id, until
    deliveries = [_lent(step, row, claim_id, until, token) for row in rows]
    return Claimed(deliveries, (), buried, expired)


_NOTHING = Claimed()


def _plain(step: Step, queue: Queue, n: int) -> list[tuple[Any, ...]] | None:
    """The next rows by (priority, seq), if there is nothing to judge about them: the usual case."""
    if queue.sessions and queue.dead is not None:
        return None
    rows = step.run(SQL["ready"], (queue.id, n)).fetchall()
    for row in rows:
        if row[_EXPIRES_AT] is not None or row[_DELIVERIES]:
            return None
    return rows


def _lent(step: Step, row: tuple[Any, ...], claim_id: str, until: float, token: int) -> Delivery:
    # fmt: off
    (seq, id, priority, member, attempts, lapsed, nacks, returns, visible_at, enqueued_at, expires_at, ttl, size,
     head, record, data, body_ref, *_) = row
    # fmt: on
    if body_ref is not None:
        found = step.run(SQL["body"], (body_ref,)).fetchone()
        data = b"" if found is None else found[0]
    death, history = (None, ()) if record is None else unpack_record(record)
    return Delivery(
        unpack_head(id, cast(bytes, data), head, member, priority, size, ttl),
        f"{seq}.{claim_id}",
        attempts + 1 if type(attempts) is int else 1,  # SQLite keeps whatever somebody wrote there by hand
        seq,
        enqueued_at,
        step.now,
        until,
        token,
        lapsed,
        nacks,
        returns,
        death,
        history,
        "in_flight",
        visible_at,
        expires_at,
    )


class _Taking:
    """The messages one claim is about to take, and what it put away on the way to them."""

    __slots__ = ("buried", "expired", "limit", "n", "put_away", "queue", "rows", "step", "taken")

    def __init__(self, step: Step, queue: Queue, n: int, limit: int | None) -> None:
        self.step = step
        self.queue = queue
        self.n = n
        self.limit = limit
        self.rows: list[tuple[Any, ...]] = []  # as read, or Rows: a Row costs as much as half of the rest
        self.taken: set[int] = set()
        self.buried = self.expired = self.put_away = 0

    @property
    def enough(self) -> bool:
        return len(self.rows) >= self.n or self.put_away > TIDY

    def take(self, row: Row) -> None:
        self.rows.append(row)
        self.taken.add(row.seq)

    def dies(self, row: Row) -> bool:
        """A message that nobody may have any more is put away instead of being taken."""
        if row.expires_at is None and not row.deliveries:
            return False
        step, queue = self.step, self.queue
        if step.expired(row):
            self.expired += step.expire(queue, row)
        elif step.used_up(queue, row, self.limit):
            self.buried += step.bury(queue, row, "max_deliveries", "")
        else:
            return False
        self.put_away += 1
        return True


def _take_next(taking: _Taking) -> None:
    """By (priority, seq); a session's head brings as many of its followers as are wanted."""
    step, queue = taking.step, taking.queue
    in_sessions = queue.sessions and queue.dead is not None
    while True:
        before = taking.put_away
        # What was taken is lent at the end, all at once, and until then is among the ready ones.
        for found in step.run(SQL["ready_rows"], (queue.id, taking.n + len(taking.taken))).fetchall():
            row = Row._make(found)
            if row.seq in taking.taken:
                continue
            if in_sessions and row.session is not None:
                _take_session(taking, row.session)
            elif not taking.dies(row):
                taking.take(row)
            if taking.enough:
                return
        if taking.put_away == before:
            return


def _take_session(taking: _Taking, session: str) -> None:
    """A session's next messages in order of seq, up to the first that nobody may overtake."""
    step, queue = taking.step, taking.queue
    last = 0
    while not taking.enough:
        before = taking.put_away
        places = step.session_places(queue, session)
        if places[1]:
            return  # a dead letter holds it up, perhaps one that was buried a moment ago
        barrier = min((seq for seq in places[5:7] if seq is not None), default=_LAST)
        line = [
            found
            for state in (READY, BLOCKED)
            for found in step.run(
                SQL["session_line"], (queue.id, session, state, last, barrier, taking.n - len(taking.rows))
            ).fetchall()
        ]
        for found in sorted(line, key=_seq):
            row = Row._make(found)
            if taking.dies(row):
                break  # the line has moved up: look again
            taking.take(row)
            last = row.seq
            if taking.enough:
                return
        if taking.put_away == before:
            return


def _seq(row: tuple[int, ...]) -> int:
    return row[0]


def _take_named(taking: _Taking, wanted: SessionClaim, until: float) -> float:
    """From one session only; under a lock its leases end with the lock. When these leases end."""
    step, queue = taking.step, taking.queue
    if queue.dead is None:
        raise refusals.no_dead_sessions(queue.name)
    if wanted.token is None:
        locked, _, _, held, *_ = step.session_places(queue, wanted.id)
        if not locked and held is None:
            _take_session(taking, wanted.id)
        return until
    row = step.run(SQL["session"], (queue.id, wanted.id)).fetchone()
    if row is None or row[0] != wanted.token or row[1] <= step.now:
        raise refusals.lock_lost(queue.name, wanted.id)
    _take_session(taking, wanted.id)
    lock_until: float = row[1]
    return lock_until


def held(step: Step, queue: Queue, claim_id: str, seqs: Sequence[int] | None) -> list[Row]:
    """What a claim holds still. `seqs` is what this process remembers of it, None if it knows nothing."""
    if seqs is None:
        seqs = [seq for (seq,) in step.run(SQL["held_by"], (queue.id, step.now, claim_id)).fetchall()]
    rows = [step.row(seq) for seq in seqs]
    return [
        row
        for row in rows
        if row is not None
        and row.queue == queue.id
        and row.claim_id == claim_id
        and row.state == FLIGHT
        and row.due_at is not None
        and row.due_at > step.now
    ]


def held_deliveries(step: Step, queue: Queue, claim_id: str, seqs: Sequence[int] | None) -> list[Delivery]:
    """The same messages again, with the same count and deadline: the answer to a claim was lost."""
    rows = held(step, queue, claim_id, seqs)
    return [delivery(step, row, handle=make_handle(row.seq, claim_id), state="in_flight") for row in rows]


def delivery(step: Step, row: Row, *, handle: str, state: str) -> Delivery:
    """A row as a delivery: one that a retried claim is shown again, or one that is only looked at."""
    data = row.body
    if row.body_ref is not None:
        found = step.run(SQL["body"], (row.body_ref,)).fetchone()
        data = b"" if found is None else found[0]
    death, history = unpack_record(row.record)
    in_flight = row.state == FLIGHT and row.due_at is not None
    return Delivery(
        unpack_head(
            row.id,
            data,  # type: ignore[arg-type]  # bytes, or the column's wrong type, which unpack_head reports
            row.head,
            row.session,
            row.priority,
            row.size,
            row.ttl,
        ),
        handle,
        row.deliveries,
        row.seq,
        row.enqueued_at,
        (row.received_at or 0.0) if handle else 0.0,
        row.due_at if in_flight and row.due_at is not None else 0.0,
        row.token,
        row.lapsed,
        row.nacks,
        row.returns,
        death,
        history,
        state,
        row.visible_at if row.due_at is None else row.due_at,
        row.expires_at,
    )
