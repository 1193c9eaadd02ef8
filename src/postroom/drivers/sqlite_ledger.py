"""The books of one transaction: which queues there are, which numbers are given out, what is counted, whom to tell.

Knows nothing of what happens to messages; that is `sqlite_step`, which keeps its books here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from postroom.core import refusals
from postroom.core.definition import QueueStatus, Rules
from postroom.drivers.sqlite_file import SQL
from postroom.errors import ConfigurationError, MailboxFullError

_NEVER = float("inf")
_NUMBER = (float, int)
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
    takes: bool  # what its status means
    gives: bool
    asks_nothing: bool  # of a message: neither room nor a session


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


class News(msgspec.Struct):
    """What others should hear of once it is committed."""

    ready: dict[int, int] = {}  # queue -> how many messages became claimable
    due: dict[int, float] = {}  # queue -> when time will change something there
    room: dict[int, int] = {}  # bounded queue -> how many messages left it
    changed: set[int] = set()  # queues whose definition changed
    chain: int = 0  # a queue where a claim took all it wanted: there may be more, so the next who waits should look


class Idle(Exception):  # not an error: the store deletes the queue and says that it is gone
    """A queue was left alone for as long as its definition allows."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue.name)
        self.queue = queue


class Ledger:
    """The books of one transaction: queues, numbers, counts and news."""

    counter = 0
    _numbered = False
    _timed = 0  # the queue whose times these are:
    next_due = _NEVER  # of the queue looked at last: messages and locks
    next_expiry = _NEVER
    written = 0.0  # pages, by estimate: when to fold the log is all that hangs on it
    told: News | None = None  # made when there are any: most acknowledges have none
    lapse: tuple[int, float] | None = None  # the queue and the end of leases given in this step: news to nearly nobody

    def __init__(self, connection: sqlite3.Connection, catalog: Catalog, now: float) -> None:
        self.run: Callable[..., sqlite3.Cursor] = connection.execute
        self.run_many: Callable[..., sqlite3.Cursor] = connection.executemany
        self.catalog = catalog
        self.now = now
        self._counts: dict[int, tuple[int, int]] = {}  # queue -> messages, bytes
        self._odd: dict[int, tuple[int, int]] | None = None  # queue -> dropped, expired

    @property
    def news(self) -> News:
        if self.told is None:
            self.told = News()
        return self.told

    # --- queues ------------------------------------------------------------------------------------------------

    def queue(self, name: str, *, timely: bool = False) -> Queue:
        """The queue, its rules as they are now. An idle queue that is due for deletion is deleted here."""
        found = self.catalog.names.get(name) if timely else None
        if found is None or self._look_at(found) != self.catalog.edition:
            found = self.look(name, timely=timely)
        if found is None:
            raise refusals.no_queue(name)
        if found.rules.auto_delete_on_idle is not None:
            self._touch(found, found.rules.auto_delete_on_idle)
        return found

    def queue_unless_idle(self, name: str) -> None:
        """Look whether it is time to delete it, without that being a use of it."""
        found = self.look(name)
        if found is not None and (idle := found.rules.auto_delete_on_idle) is not None:
            touched = self.run(SQL["tally"], (found.id,)).fetchone()[4]
            if self.now - touched >= idle:
                raise Idle(found)

    def look(self, name: str, *, timely: bool = False) -> Queue | None:
        """The queue, or None. `timely`: with when time changes something there, which costs a few pages more."""
        catalog = self.catalog
        found = catalog.names.get(name)
        if found is not None and timely:
            if self._look_at(found) == catalog.edition:
                return found
            catalog.forget()
            found = None
        edition, counter = self.run(SQL["edition"]).fetchone()
        if counter > self.counter:
            self.counter = counter
        if edition != catalog.edition:
            catalog.forget()
            catalog.edition = edition
            found = None
        if found is None:
            found = self._read(SQL["find_queue"], (catalog.namespace, name))
            if found is not None and timely:
                self._look_at(found)
        return found

    def known(self, name: str) -> Queue:
        """A queue this step has looked at already."""
        found = self.catalog.names.get(name)
        return found if found is not None else self.queue(name)

    def reread(self, queue: Queue) -> float:
        """When time changes something at this queue next, after what this step did."""
        self._look_at(queue)
        return self.next_due

    def last_number(self) -> int:
        if not self.counter:
            self.counter = self.run(SQL["edition"]).fetchone()[1]
        return self.counter

    @property
    def time_has_work(self) -> bool:
        return self.next_due <= self.now or self.next_expiry <= self.now

    def look_aside(self, name: str) -> Queue | None:
        """Another queue of the namespace, by name."""
        return self.catalog.names.get(name) or self._read(SQL["find_queue"], (self.catalog.namespace, name))

    def queue_by_id(self, id: int) -> Queue | None:
        """Another queue that plays a part in this step, such as a dead-letter queue."""
        return self.catalog.ids.get(id) or self._read(SQL["find_queue_by_id"], (id,))

    def _look_at(self, queue: Queue) -> int:
        times = self.run(SQL["look"], (queue.id, queue.id)).fetchone()
        lock = None  # a queue that never had a session never had a lock
        if queue.sessions:
            (lock,) = self.run(SQL["first_lock"], (queue.id,)).fetchone()
        return self._note(queue, times, lock)

    def _note(self, queue: Queue, times: Sequence[Any], lock: float | None) -> int:
        """When time changes something here next; the edition."""
        edition: int
        counter: int
        edition, counter, due, expiry = times
        self._timed = queue.id
        if counter > self.counter:
            self.counter = counter
        # A time may also be what somebody wrote there by hand: any text comes after all numbers, so it is never due.
        self.next_due = due if isinstance(due, _NUMBER) else _NEVER
        if lock is not None and lock < self.next_due:
            self.next_due = lock
        self.next_expiry = expiry if isinstance(expiry, _NUMBER) else _NEVER
        return edition

    def rests(self, queue: Queue) -> bool:
        """Whether nothing is ready, nothing is due, and the queue is what we remember; asked in one statement."""
        id = queue.id
        *times, lock, ready = self.run(SQL["glance"], (id, id, id, id)).fetchone()
        return self._note(queue, times, lock) == self.catalog.edition and not ready and not self.time_has_work

    def time(self, queue: Queue) -> None:
        """Find out when time changes something at this queue, unless that was done."""
        if self._timed != queue.id:
            self._look_at(queue)

    def _read(self, sql: str, params: tuple[object, ...]) -> Queue | None:
        row = self.run(sql, params).fetchone()
        if row is None:
            return None
        id, name, _, rules, status, sessions, created_at, updated_at, dead = row
        try:
            law, state = _decode_rules(rules), QueueStatus(status)
            created_at, updated_at = float(created_at), float(updated_at)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{name}: what the file says of this queue (postroom_queue, id {id}) is damaged: {error}. Somebody "
                "wrote there by hand: undo that, or restore the row from a copy"
            ) from error
        asks_nothing = not law.bounded and law.sessions == "optional"
        # fmt: off
        found = Queue(id, name, law, state, bool(sessions), created_at, updated_at, dead,
                      state.takes, state.gives, asks_nothing)
        # fmt: on
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
            self._counts.setdefault(queue.id, (0, 0))

    # --- counting ----------------------------------------------------------------------------------------------

    def number(self, n: int = 1) -> int:
        """The first of `n` new numbers: for seqs, fencing tokens and the ids of queues."""
        first = self.counter + 1
        self.counter += n
        self._numbered = True
        return first

    def count(self, queue: int, messages: int, size: int) -> None:
        counts = self._counts
        if queue in counts:
            live, taken = counts[queue]
            counts[queue] = live + messages, taken + size
        else:
            counts[queue] = messages, size

    def count_odd(self, queue: int, dropped: int, expired: int) -> None:
        if self._odd is None:
            self._odd = {}
        before = self._odd.get(queue, (0, 0))
        self._odd[queue] = before[0] + dropped, before[1] + expired

    def finish(self) -> None:
        """Write the counts. Nothing is written by a step that changed nothing."""
        if self._counts or self._numbered:
            self.written += 4.0
        for queue, (messages, size) in self._counts.items():
            self.run(SQL["count"], (messages, size, self.now, queue))
        if self._odd is not None:
            for queue, (dropped, expired) in self._odd.items():
                self.run(SQL["count_odd"], (dropped, expired, queue))
        if self._numbered:
            self.run(SQL["numbered"], (self.counter, self.now))

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
            return refusals.full_of_messages(queue.name, live, rules.max_messages)
        if rules.max_bytes is not None and taken + size > rules.max_bytes:
            return refusals.full_of_bytes(queue.name, taken, rules.max_bytes, size)
        return None

    def rings(self, queue: int, n: int = 1) -> None:
        """`n` more messages are claimable; those who wait for a certain session look at any ring, also one for none."""
        ready = self.news.ready
        ready[queue] = ready.get(queue, 0) + n

    def due(self, queue: int, at: float) -> None:
        due = self.news.due
        if at < due.get(queue, _NEVER):
            due[queue] = at
