"""One write transaction, and what can happen to a message in it: the steps of which every verb is made.

A `Step` works on a connection that is in a transaction already; it neither begins nor commits, so that the same steps
serve a transaction of ours and, one day, the caller's own. What changed is gathered and told afterwards: counts are
written once at the end (`finish`), and bells ring only after the commit (`news`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from postroom.core.limits import MAX_RETURNS
from postroom.core.message import Attempt, Death, Envelope, add_attempt, pack_head, pack_record, unpack_record
from postroom.core.policy import smaller
from postroom.drivers.api import TIDY
from postroom.drivers.sqlite_file import SQL
from postroom.drivers.sqlite_ledger import Ledger, Queue

LATER, READY, FLIGHT, BLOCKED, DELAYED, PARKED = range(6)
PARKING = 30.0
BIG = 2_048  # a body over this has a row of its own: a page of 4 kB holds the hot row and does not overflow


MANY = 4  # rows from which on one statement for all, their numbers as JSON, is cheaper than one for each


class Row(NamedTuple):
    """A stored message: the columns of the statements `row`, `ready_rows` and `session_line`; `ready` has the first."""

    seq: int
    id: str
    priority: int
    session: str | None
    deliveries: int
    lapsed: int
    nacks: int
    returns: int
    visible_at: float
    enqueued_at: float
    expires_at: float | None
    ttl: float | None
    size: int
    head: bytes | None
    record: bytes | None
    body: bytes | None
    body_ref: int | None
    queue: int
    state: int
    due_at: float | None
    claim_id: str | None
    token: int
    received_at: float | None
    blocks: int | None


class Step(Ledger):
    """One transaction's view of the store."""

    # --- messages ----------------------------------------------------------------------------------------------

    def row(self, seq: int) -> Row | None:
        row = self.run(SQL["row"], (seq,)).fetchone()
        return None if row is None else Row._make(row)

    def put_rows(self, queue: Queue, batch: Sequence[Envelope]) -> int:
        """Store messages that are free to go in; the seq of the first."""
        first = self.number(len(batch))
        if not self._put_plain(queue, batch, first):
            self._put_any(queue, batch, first)
        return first

    def _put_plain(self, queue: Queue, batch: Sequence[Envelope], seq: int) -> bool:
        """Whether all were ready at once, small and without anything beside the body, and are stored: as usual."""
        if queue.rules.ttl is not None:
            return False
        now, id, size = self.now, queue.id, 0
        rows = []
        for e in batch:
            body = e.body
            if e.delay > 0 or e.session_id is not None or e.ttl is not None or len(body) > BIG or pack_head(e):
                return False
            rows.append((seq, id, e.priority, now, now, e.size, e.id, body))
            size += e.size
            seq += 1
        if len(rows) == 1:
            self.run(SQL["put_plain"], rows[0])
        else:
            self.run_many(SQL["put_plain"], rows)
        self.count(id, len(rows), size)
        self.written += size / 4096 + len(rows) * 0.1
        self.rings(id, len(rows))
        return True

    def _put_any(self, queue: Queue, batch: Sequence[Envelope], seq: int) -> None:
        now, ttl, id, later = self.now, queue.rules.ttl, queue.id, 0
        size = 0
        rows: list[tuple[Any, ...]] = []
        sessions: dict[str, None] = {}
        for e in batch:
            due: float | None = None
            visible, state, body, ref = now, READY, e.body, None
            session = e.session_id
            if e.delay > 0:
                due = visible = now + e.delay
                state, later = LATER, later + 1
                self.due(id, due)
            elif session is not None:
                state = BLOCKED
                sessions[session] = None
            expiry = ttl if e.ttl is None else e.ttl
            if expiry is not None:
                expiry += visible
            if len(body) > BIG:
                self.run(SQL["put_body"], (seq, body))
                body, ref = None, seq  # type: ignore[assignment]  # the column is empty: the body is elsewhere
            head = pack_head(e)
            rows.append(
                (seq, id, state, e.priority, due, visible, now, expiry, e.ttl, session, e.size, e.id, head, body, ref)
            )
            size += e.size
            seq += 1
        if len(rows) == 1:
            self.run(SQL["put"], rows[0])
        else:
            self.run_many(SQL["put"], rows)
        self.count(id, len(rows), size)
        self.written += size / 4096 + len(rows) * 0.1
        if sessions or (later and not queue.sessions and any(e.session_id is not None for e in batch)):
            self.mark_sessions(queue)
            for session in sessions:
                self.rehead(queue, session)
            self.rings(id, 0)  # whoever holds the session under a lock wants to know of arrivals
        if free := len(rows) - later - len(sessions):
            self.rings(id, free)

    def mark_sessions(self, queue: Queue) -> None:
        """From now on claims on this queue look at sessions."""
        if not queue.sessions:
            self.run(SQL["mark_sessions"], (queue.id,))
            self.new_edition()

    def remove(self, queue: Queue, row: Row) -> None:
        """Terminal."""
        self.run(SQL["remove"], (row.seq,))
        if row.body_ref is not None:
            self.run(SQL["drop_body"], (row.body_ref,))
        self.left(queue, row)
        if row.blocks is not None:
            self.unblock(row.blocks, row.session)

    def left(self, queue: Queue, row: Row) -> None:
        """A message is no longer in this queue."""
        self.count(queue.id, -1, -row.size)
        self.frees(queue, 1)
        if row.session is not None and queue.dead is not None:
            self.rehead(queue, row.session)

    def frees(self, queue: Queue, n: int) -> None:
        if queue.rules.overflow == "wait":
            room = self.news.room
            room[queue.id] = room.get(queue.id, 0) + n

    def used_up(self, queue: Queue, row: Row, limit: int | None) -> bool:
        """No deliveries left; dead letters are never used up."""
        most = smaller(queue.rules.max_deliveries, limit)
        return most is not None and queue.dead is not None and type(row.deliveries) is int and row.deliveries >= most

    def expired(self, row: Row) -> bool:
        return isinstance(row.expires_at, int | float) and row.expires_at <= self.now

    def expire(self, queue: Queue, row: Row) -> int:
        if queue.rules.expired_to_dead_letters:
            return self.bury(queue, row, "expired", "")
        self.remove(queue, row)
        self.count_odd(queue.id, 0, 1)
        return 1

    def dead_queue(self, queue: Queue) -> Queue | None:
        """Where this queue's dead letters go; None if it has none or it is missing."""
        if not queue.rules.dead_lettering or queue.dead is None:
            return None
        name = queue.rules.dead_letter_queue
        return self.queue_by_id(queue.dead) if name is None else self.look_aside(name)

    def grave(self, queue: Queue, row: Row) -> tuple[bool, Queue | None]:
        """Whether this message can be buried now, and where; nowhere (dropped) when dead-lettering is off."""
        target = self.dead_queue(queue)
        if not queue.rules.dead_lettering or queue.dead is None or (target is not None and target.id == queue.dead):
            return True, target
        return target is not None and target.takes and self.no_room(target, row.size) is None, target

    def bury(self, queue: Queue, row: Row, reason: str, description: str) -> int:
        """To the dead letters: 1; or 0 when they would not have it, and then it stays, parked."""
        possible, target = self.grave(queue, row)
        if not possible:
            self.park(queue, row)
            return 0
        if target is None:
            self.remove(queue, row)
            self.count_odd(queue.id, 1, 0)
            return 1
        death = Death(reason, description, queue.name, self.now, row.deliveries)
        _, history = unpack_record(row.record)
        member = row.session is not None and target.dead is not None
        blocks = row.blocks  # of one that died once more, in a dead-letter queue of another: still the first
        if blocks is None and row.session is not None and queue.rules.on_dead == "block":
            blocks = queue.id
        # fmt: off
        self.run(SQL["bury"], (target.id, BLOCKED if member else READY, self.now,
                               pack_record(death, history), blocks, row.nacks, row.seq))
        # fmt: on
        self.count(target.id, 1, row.size)
        if row.session is not None and target.dead is not None:
            self.mark_sessions(target)
            self.rehead(target, row.session)
        else:
            self.rings(target.id)
        self.left(queue, row)
        return 1

    def park(self, queue: Queue, row: Row) -> None:
        """It should be dead and cannot be buried now: nobody gets it, and it is tried again later."""
        at = self.now + PARKING
        self.run(SQL["give_back"], (PARKED, at, at, row.deliveries, row.nacks, row.returns, row.record, row.seq))
        self.due(queue.id, at)
        if row.session is not None and queue.dead is not None:
            self.rehead(queue, row.session)

    def give_back(self, queue: Queue, row: Row, *, delay: float = 0.0, counted: bool, note: str | None = None) -> None:
        """Out of its holder's hands, and visible again after `delay`: counted for a failure, uncounted for a return."""
        deliveries, nacks, returns, record = row.deliveries, row.nacks, row.returns, row.record
        if counted:
            nacks += 1
            if note is not None:
                record = noted(row, self.now, note)
        else:
            returns += 1
            deliveries -= returns <= MAX_RETURNS
        visible = self.now + delay if delay > 0 else self.now
        member = row.session is not None and queue.dead is not None
        if delay > 0:
            state, due = DELAYED, visible
            self.due(queue.id, visible)
        else:
            state, due = (BLOCKED if member else READY), None
            if not member:
                self.rings(queue.id)
        self.run(SQL["give_back"], (state, due, visible, deliveries, nacks, returns, record, row.seq))
        self.count(queue.id, 0, 0)
        if row.session is not None and member:
            self.rehead(queue, row.session)

    def note(self, row: Row, note: str | None) -> Row:
        """A failure that ends a message's life is in its history too."""
        return row._replace(nacks=row.nacks + 1, record=row.record if note is None else noted(row, self.now, note))

    # --- sessions ----------------------------------------------------------------------------------------------

    def session_places(self, queue: Queue, session: str) -> tuple[Any, ...]:
        """(locked, blocked, then the lowest seq that is shown, held, waiting, delayed, parked) of a session."""
        member = (queue.id, session)
        found: tuple[Any, ...] = self.run(SQL["session_places"], (*member, self.now, *member * 6)).fetchone()
        return found

    def rehead(self, queue: Queue, session: str) -> None:
        """Show the session's head to claims if the session is free, and only its head."""
        locked, blocked, shown, held, waiting, delayed, parked = self.session_places(queue, session)
        head: int | None = None
        if not locked and not blocked and held is None:
            line = [seq for seq in (shown, waiting) if seq is not None]
            if line and all(seq is None or seq > min(line) for seq in (delayed, parked)):
                head = min(line)
        if shown is not None and shown != head:
            self.run(SQL["show"], (BLOCKED, shown))
        if head is not None and head != shown:
            self.run(SQL["show"], (READY, head))
            self.rings(queue.id)

    def fail_later(self, queue: Queue, row: Row) -> None:
        """Return, uncounted, what its holder took of the session behind this message: order would be broken else."""
        if row.session is None or queue.dead is None:
            return
        for (seq,) in self.run(SQL["session_held_after"], (queue.id, row.session, row.seq)).fetchall():
            later = self.row(seq)
            if later is not None:
                self.give_back(queue, later, counted=False)

    def hold(self, queue: Queue, session: str, until: float) -> None:
        """A lock, and every lease under it, now end at `until`."""
        self.run(SQL["session_renew"], (until, queue.id, session))
        self.run(SQL["session_extend"], (until, queue.id, session))
        self.count(queue.id, 0, 0)
        self.due(queue.id, until)

    def unblock(self, queue_id: int, session: str | None) -> None:
        """A dead letter that held up its session is gone: the session goes on."""
        home = self.queue_by_id(queue_id)
        if home is not None and session is not None:
            self.rehead(home, session)

    # --- time --------------------------------------------------------------------------------------------------

    def tidy(self, queue: Queue, limit: int | None = None) -> tuple[int, int]:
        """Let time do its work, on at most TIDY messages of a kind: (buried, expired)."""
        buried = expired = 0
        now = self.now
        self.time(queue)
        if self.next_due <= now:
            for row in self._promote(queue):
                if self.expired(row):
                    expired += self.expire(queue, row)
                elif self.used_up(queue, row, limit):
                    buried += self.bury(queue, row, "max_deliveries", "")
            self.next_expiry = now  # a lease protected its message: what was promoted may be overdue since long
        if self.next_expiry <= now:
            for (seq,) in self.run(SQL["overdue"], (queue.id, now, TIDY)).fetchall():
                overdue = self.row(seq)
                if overdue is not None and overdue.queue == queue.id:
                    expired += self.expire(queue, overdue)
            self.count(queue.id, 0, 0)
        return buried, expired

    def _promote(self, queue: Queue) -> list[Row]:
        """Due messages become ready and lapsed leases end. Returns the lapsed and the parked, to be judged at once."""
        now, judged, free = self.now, [], 0
        places: list[tuple[int, None, float, int]] = []
        for seq, state, due_at in self.run(SQL["due"], (queue.id, now, TIDY)).fetchall():
            if not queue.sessions and state in (LATER, DELAYED):
                places.append((READY, None, due_at, seq))
                continue
            row = self.row(seq)
            if row is None or row.state != state or row.due_at is None or row.due_at > now:
                continue  # an earlier one of its session took it along
            session = row.session if queue.dead is not None else None
            place = READY if session is None else BLOCKED
            free += session is None
            if state == FLIGHT:
                if session is not None:
                    self.fail_later(queue, row)
                self.run(SQL["lapse"], (place, now, session is None, seq))
            else:
                self.run(SQL["place"], (place, None, due_at, seq))
            if session is not None:
                self.rehead(queue, session)
            if state in (FLIGHT, PARKED):
                judged.append(seq)
        if places:
            self.run_many(SQL["place"], places)
        for (session,) in self.run(SQL["lapsed_locks"], (queue.id, now, TIDY)).fetchall():
            self.run(SQL["session_unlock"], (queue.id, session))
            self.run(SQL["session_forget"], (queue.id, session))
            self.rehead(queue, session)
        self.count(queue.id, 0, 0)
        if places or free:
            self.rings(queue.id, len(places) + free)
        rows = [self.row(seq) for seq in judged]
        return [row for row in rows if row is not None and row.state in (READY, BLOCKED)]


def noted(row: Row, now: float, note: str) -> bytes | None:
    death, history = unpack_record(row.record)
    attempts: tuple[Attempt, ...] = add_attempt(history, row.deliveries, now, note)
    return pack_record(death, attempts)
