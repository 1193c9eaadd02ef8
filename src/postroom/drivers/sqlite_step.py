"""One write transaction, and what can happen to a message in it: the steps of which every verb is made.

A `Step` works on a connection that is in a transaction already; it neither begins nor commits, so that the same steps
serve a transaction of ours and, one day, the caller's own. What changed is gathered and told afterwards: counts are
written once at the end (`finish`), and bells ring only after the commit (`news`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from postroom.core.definition import QueueStatus, Rules
from postroom.core.limits import MAX_RETURNS
from postroom.core.message import Attempt, Death, Envelope, add_attempt, pack_head, pack_record, unpack_record
from postroom.core.policy import smaller
from postroom.drivers.api import TIDY
from postroom.drivers.sqlite_file import SQL
from postroom.errors import MailboxFullError, QueueNotFoundError

LATER, READY, FLIGHT, BLOCKED, DELAYED, PARKED = range(6)
PARKING = 30.0
BIG = 2_048  # a body over this has a row of its own: a page of 4 kB holds the hot row and does not overflow
_NEVER = float("inf")
_decode_rules = msgspec.msgpack.Decoder(Rules).decode
pack_rules = msgspec.msgpack.Encoder().encode


class Queue(msgspec.Struct, frozen=True, gc=False):
    """What a process remembers of a queue, as long as the store's edition is the one it was read at."""

    id: int
    name: str
    rules: Rules
    status: QueueStatus
    sessions: bool  # whether it ever had a message with a session
    created_at: float
    updated_at: float
    dead: int | None  # the id of its own dead-letter queue; None: it is one itself


class Row(NamedTuple):
    """A stored message: the columns of the statements `row`, `ready` and `session_line`."""

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


class Catalog:
    """The queues of one namespace, as last read."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.edition = -1
        self.names: dict[str, Queue] = {}
        self.ids: dict[int, Queue] = {}

    def keep(self, queue: Queue) -> None:
        self.names[queue.name] = self.ids[queue.id] = queue

    def forget(self) -> None:
        self.edition = -1
        self.names.clear()
        self.ids.clear()


class News:
    """What others should hear of once it is committed."""

    __slots__ = ("changed", "due", "ready", "room")

    def __init__(self) -> None:
        self.ready: dict[int, int] = {}  # queue -> how many messages became claimable
        self.due: dict[int, float] = {}  # queue -> when time will change something there
        self.room: dict[int, int] = {}  # bounded queue -> how many messages left it
        self.changed: set[int] = set()  # queues whose definition changed

    def __bool__(self) -> bool:
        return bool(self.ready or self.due or self.room or self.changed)


class Step:
    """One transaction's view of the store."""

    def __init__(self, connection: sqlite3.Connection, catalog: Catalog, now: float) -> None:
        self.run: Callable[..., sqlite3.Cursor] = connection.execute
        self.run_many: Callable[..., sqlite3.Cursor] = connection.executemany
        self.catalog = catalog
        self.now = now
        self.counter = 0
        self.next_due = _NEVER  # of the queue looked at last: messages and locks
        self.next_expiry = _NEVER
        self.news = News()
        self._counts: dict[int, list[int]] = {}  # queue -> messages, bytes
        self._odd: dict[int, list[int]] = {}  # queue -> dropped, expired

    # --- queues ------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue:
        """The queue, its rules as they are now. An idle queue that is due for deletion is deleted here."""
        found = self.look(name)
        if found is None:
            raise QueueNotFoundError(f"{name}: no such queue; create_queue() makes one, and so does opening a mailbox")
        if found.rules.auto_delete_on_idle is not None:
            self._touch(found, found.rules.auto_delete_on_idle)
        return found

    def look(self, name: str) -> Queue | None:
        catalog = self.catalog
        found = catalog.names.get(name)
        if found is not None:
            if self._look_at(found.id) == catalog.edition:
                return found
            catalog.forget()
        edition, counter = self.run(SQL["edition"]).fetchone()
        self._know(edition, counter)
        found = self._read(SQL["find_queue"], (catalog.namespace, name))
        if found is not None:
            self._look_at(found.id)
        return found

    def queue_by_id(self, id: int) -> Queue | None:
        """Another queue that plays a part in this step, such as a dead-letter queue."""
        return self.catalog.ids.get(id) or self._read(SQL["find_queue_by_id"], (id,))

    def _look_at(self, id: int) -> int:
        edition: int
        edition, counter, due, lock, expiry = self.run(SQL["look"], (id,)).fetchone()
        if counter > self.counter:
            self.counter = counter
        self.next_due = _NEVER if due is None else due
        if lock is not None and lock < self.next_due:
            self.next_due = lock
        self.next_expiry = _NEVER if expiry is None else expiry
        return edition

    def _know(self, edition: int, counter: int) -> None:
        if self.catalog.edition != edition:
            self.catalog.forget()
            self.catalog.edition = edition
        if counter > self.counter:
            self.counter = counter

    def _read(self, sql: str, params: tuple[object, ...]) -> Queue | None:
        row = self.run(sql, params).fetchone()
        if row is None:
            return None
        id, name, _, rules, status, sessions, created_at, updated_at, dead = row
        found = Queue(
            id, name, _decode_rules(rules), QueueStatus(status), bool(sessions), created_at, updated_at, dead
        )
        self.catalog.keep(found)
        return found

    def new_edition(self) -> None:
        """A definition changed: whoever remembers queues must read them again."""
        (edition,) = self.run(SQL["new_edition"]).fetchone()
        self.catalog.forget()
        self.catalog.edition = edition

    def _touch(self, queue: Queue, idle: float) -> None:
        touched = self.run(SQL["tally"], (queue.id,)).fetchone()[4]
        if self.now - touched >= idle:
            raise Idle(queue)
        if self.now - touched > min(1.0, idle / 100):
            self._counts.setdefault(queue.id, [0, 0])

    # --- counting ----------------------------------------------------------------------------------------------

    def number(self, n: int = 1) -> int:
        """The first of `n` new numbers: for seqs, fencing tokens and the ids of queues."""
        first = self.counter + 1
        self.counter += n
        return first

    def count(self, queue: int, messages: int, size: int) -> None:
        counts = self._counts.get(queue)
        if counts is None:
            self._counts[queue] = [messages, size]
        else:
            counts[0] += messages
            counts[1] += size

    def count_odd(self, queue: int, dropped: int, expired: int) -> None:
        odd = self._odd.setdefault(queue, [0, 0])
        odd[0] += dropped
        odd[1] += expired

    def finish(self) -> None:
        """Write the counts. Nothing is written by a step that changed nothing."""
        for queue, (messages, size) in self._counts.items():
            self.run(SQL["count"], (messages, size, self.counter, self.now, queue))
        for queue, (dropped, expired) in self._odd.items():
            self.run(SQL["count_odd"], (dropped, expired, queue))

    def room_of(self, queue: Queue) -> tuple[int, int]:
        """(messages, bytes) that count against the limits of a bounded queue, this step's own included."""
        live, size = self.run(SQL["tally"], (queue.id,)).fetchone()[:2]
        own = self._counts.get(queue.id)
        return (live, size) if own is None else (live + own[0], size + own[1])

    def no_room(self, queue: Queue, size: int) -> MailboxFullError | None:
        rules = queue.rules
        if not rules.bounded:
            return None
        live, taken = self.room_of(queue)
        if rules.max_messages is not None and live >= rules.max_messages:
            return MailboxFullError(f"{queue.name}: full with {live} of {rules.max_messages} messages")
        if rules.max_bytes is not None and taken + size > rules.max_bytes:
            return MailboxFullError(
                f"{queue.name}: {taken} of {rules.max_bytes} bytes are taken, no room for {size} more"
            )
        return None

    def rings(self, queue: int, n: int = 1) -> None:
        """`n` more messages are claimable; those who wait for a certain session look at any ring, also one for none."""
        ready = self.news.ready
        ready[queue] = ready.get(queue, 0) + n

    def due(self, queue: int, at: float) -> None:
        due = self.news.due
        if at < due.get(queue, _NEVER):
            due[queue] = at

    # --- messages ----------------------------------------------------------------------------------------------

    def row(self, seq: int) -> Row | None:
        row = self.run(SQL["row"], (seq,)).fetchone()
        return None if row is None else Row._make(row)

    def put_rows(self, queue: Queue, batch: Sequence[Envelope]) -> int:
        """Store messages that are free to go in; the seq of the first."""
        now, ttl, queue_id, later = self.now, queue.rules.ttl, queue.id, 0
        first = seq = self.number(len(batch))
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
                self.due(queue_id, due)
            elif session is not None:
                state = BLOCKED
                sessions[session] = None
            expiry = ttl if e.ttl is None else e.ttl
            if expiry is not None:
                expiry += visible
            if len(body) > BIG:
                self.run(SQL["put_body"], (seq, body))
                body, ref = None, seq  # type: ignore[assignment]  # the column is empty: the body is elsewhere
            rows.append(
                # fmt: off
                (seq, queue_id, state, e.priority, due, visible, now, expiry, e.ttl, session, e.size, e.id,
                 pack_head(e), body, ref)
                # fmt: on
            )
            size += e.size
            seq += 1
        if len(rows) == 1:
            self.run(SQL["put"], rows[0])
        else:
            self.run_many(SQL["put"], rows)
        self.count(queue_id, len(rows), size)
        if sessions or (later and not queue.sessions and any(e.session_id is not None for e in batch)):
            self.mark_sessions(queue)
            for session in sessions:
                self.rehead(queue, session)
            self.rings(queue_id, 0)  # whoever holds the session under a lock wants to know of arrivals
        if free := len(rows) - later - len(sessions):
            self.rings(queue_id, free)
        return first

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
        return most is not None and row.deliveries >= most and queue.dead is not None

    def expired(self, row: Row) -> bool:
        return row.expires_at is not None and row.expires_at <= self.now

    def expire(self, queue: Queue, row: Row) -> int:
        if queue.rules.expired_to_dead_letters:
            return self.bury(queue, row, "expired", "")
        self.remove(queue, row)
        self.count_odd(queue.id, 0, 1)
        return 1

    def bury(self, queue: Queue, row: Row, reason: str, description: str, park: bool = True) -> int:
        """To the dead letters: 1. Or 0 when they would not have it: then it stays, parked unless it is held."""
        rules = queue.rules
        target: Queue | None = None
        if rules.dead_lettering and queue.dead is not None:
            if rules.dead_letter_queue is None:
                target = self.queue_by_id(queue.dead)
            else:
                target = self.catalog.names.get(rules.dead_letter_queue) or self._read(
                    SQL["find_queue"], (self.catalog.namespace, rules.dead_letter_queue)
                )
                if target is None or not target.status.takes or self.no_room(target, row.size) is not None:
                    if park:
                        self.park(queue, row)
                    return 0
        if target is None:
            self.remove(queue, row)
            self.count_odd(queue.id, 1, 0)
            return 1
        death = Death(reason, description, queue.name, self.now, row.deliveries)
        _, history = unpack_record(row.record)
        member = row.session is not None and target.dead is not None
        blocks = queue.id if row.session is not None and rules.on_dead == "block" else None
        # fmt: off
        self.run(SQL["bury"], (row.seq, target.id, BLOCKED if member else READY, self.now,
                               pack_record(death, history), blocks, row.nacks))
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
        self.run(
            SQL["give_back"], (row.seq, PARKED, at, at, row.deliveries, row.nacks, row.returns, row.record)
        )
        self.due(queue.id, at)
        if row.session is not None and queue.dead is not None:
            self.rehead(queue, row.session)

    def give_back(
        self, queue: Queue, row: Row, *, delay: float = 0.0, counted: bool, note: str | None = None
    ) -> None:
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
        self.run(SQL["give_back"], (row.seq, state, due, visible, deliveries, nacks, returns, record))
        self.count(queue.id, 0, 0)
        if row.session is not None and member:
            self.rehead(queue, row.session)

    def note(self, row: Row, note: str | None) -> Row:
        """A failure that ends a message's life is in its history too."""
        return row._replace(nacks=row.nacks + 1, record=row.record if note is None else noted(row, self.now, note))

    # --- sessions ----------------------------------------------------------------------------------------------

    def rehead(self, queue: Queue, session: str) -> None:
        """Show the session's head to claims if the session is free, and only its head."""
        locked, blocked, shown, held, waiting, delayed, parked = self.run(
            SQL["session_places"], (queue.id, session, self.now)
        ).fetchone()
        head: int | None = None
        if not locked and not blocked and held is None:
            line = [seq for seq in (shown, waiting) if seq is not None]
            if line and all(seq is None or seq > min(line) for seq in (delayed, parked)):
                head = min(line)
        if shown is not None and shown != head:
            self.run(SQL["show"], (shown, BLOCKED))
        if head is not None and head != shown:
            self.run(SQL["show"], (head, READY))
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
        self.run(SQL["session_renew"], (queue.id, session, until))
        self.run(SQL["session_extend"], (queue.id, session, until))
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
        if self.next_due <= now:
            for row in self._promote(queue):
                if self.expired(row):
                    expired += self.expire(queue, row)
                elif self.used_up(queue, row, limit):
                    buried += self.bury(queue, row, "max_deliveries", "")
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
        places: list[tuple[int, int, None, float]] = []
        for seq, state, due_at in self.run(SQL["due"], (queue.id, now, TIDY)).fetchall():
            if not queue.sessions and state in (LATER, DELAYED):
                places.append((seq, READY, None, due_at))
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
                self.run(SQL["lapse"], (seq, place, now, session is None))
            else:
                self.run(SQL["place"], (seq, place, None, due_at))
            if session is not None:
                self.rehead(queue, session)
            if state in (FLIGHT, PARKED):
                judged.append(seq)
        if places:
            self.run_many("UPDATE postroom_message SET state = ?2, due_at = ?3, visible_at = ?4 WHERE seq = ?1", places)
        for (session,) in self.run(SQL["lapsed_locks"], (queue.id, now, TIDY)).fetchall():
            self.run(SQL["session_unlock"], (queue.id, session))
            self.run(SQL["session_forget"], (queue.id, session))
            self.rehead(queue, session)
        self.count(queue.id, 0, 0)
        if places or free:
            self.rings(queue.id, len(places) + free)
        rows = [self.row(seq) for seq in judged]
        return [row for row in rows if row is not None and row.state in (READY, BLOCKED)]


class Idle(Exception):  # noqa: N818  # not an error: the driver deletes the queue and says that it is gone
    """A queue was left alone for as long as its definition allows."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue.name)
        self.queue = queue


def noted(row: Row, now: float, note: str) -> bytes | None:
    death, history = unpack_record(row.record)
    attempts: tuple[Attempt, ...] = add_attempt(history, row.deliveries, now, note)
    return pack_record(death, attempts)

