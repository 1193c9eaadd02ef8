"""The connections of one driver, and the transactions its steps run in."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from postroom.core import refusals
from postroom.drivers.clock import Clock
from postroom.drivers.sqlite_clock import StoreClock
from postroom.drivers.sqlite_file import connect, failed_to_sync, identity, is_busy, prepare, translate, unsure
from postroom.drivers.sqlite_ledger import Catalog, Idle, Queue
from postroom.drivers.sqlite_settings import Settings
from postroom.drivers.sqlite_site import Site, enter, leave
from postroom.drivers.sqlite_step import Step
from postroom.errors import MailboxConnectionError

T = TypeVar("T")

# A new boot continues the numbers well above the last one that reached the disk: a claim is not synced, so a power cut
# may have taken the latest of them back, and a fencing token must not be given out twice.
_BOOT_GAP = 1 << 20
_PATIENCE = 0.0002  # seconds between tries for the write lock of another process, on average

# Connections of a parent process. A forked child must not use them, nor may Python close them whenever it likes; see
# `Site.disown` for when and how the child does.
_leaked: list[object] = []
_forking = threading.Lock()
_family = object()  # another one in a forked child: a store that remembers the parent's is the parent's


def _after_fork() -> None:
    global _family, _forking
    _family = object()
    _forking = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class WouldBlock(Exception):  # not an error: the caller goes another way
    """Somebody else is writing, and the caller would have to wait for it."""


class Store:
    """One driver's use of a file. Opens it at once, so that a wrong path fails when connecting."""

    def __init__(self, settings: Settings, drop: Callable[[Queue], object]) -> None:
        """`drop` deletes a queue that was left alone for too long, with all that is in it."""
        # As SQLite does: the log, the bells and the fold lock belong beside the file itself, whatever link led to it.
        self.path = os.path.realpath(settings.path)
        self.settings = settings
        self._drop = drop
        self._clock: Clock | None = settings.clock
        self._closed = False
        self._open()

    def _open(self) -> None:
        prepare(self.path, self.settings.busy_timeout)
        key = identity(self.path)
        self._family = _family
        self.site: Site = enter(key)
        self._reading = threading.Lock()
        self.site.readers.append(self._reading)
        self._catalog = Catalog(self.settings.namespace)
        self._read_catalog = Catalog(self.settings.namespace)
        self._full = False
        self._ours: list[sqlite3.Connection] = []
        try:
            self._writer = self._connect(self.settings.busy_timeout)  # opening waits: one who leaves has the file alone
            self._writer.execute("PRAGMA busy_timeout = 0")  # from here on `_persist` does
            self._reader = self._connect(self.settings.busy_timeout)
            self._reader.execute("PRAGMA query_only = ON")
            self._equip()
            self.clock: Clock = self._clock if self._clock is not None else self._start_clock()
        except BaseException:
            self._leave()
            raise

    def _connect(self, busy_timeout: float) -> sqlite3.Connection:
        try:
            connection = connect(self.path, busy_timeout)
        except sqlite3.Error as error:
            raise translate(error, self.path) from error
        self._ours.append(connection)
        self.site.connections.append(connection)
        return connection

    def _equip(self) -> None:
        site = self.site

        def connect_here() -> sqlite3.Connection:
            connection = connect(self.path, self.settings.busy_timeout)
            site.connections.append(connection)
            return connection

        site.equip(self.path, self.settings.safety_poll, connect_here)

    def _start_clock(self) -> Clock:
        clock = StoreClock()

        def start(step: Step) -> None:
            if clock.start(step.run):
                if step.last_number():
                    step.number(_BOOT_GAP)
                step.count(0, 0, 0)
                step.now = clock.now()

        self.clock = clock
        # Whoever only looks must not have to wait for the write lock: only the first in a boot has something to write.
        if not self.read(lambda step: clock.read(step.run)):
            self.write(start, full=True)
        return clock

    def now(self) -> float:
        return self.clock.now()

    # --- transactions ------------------------------------------------------------------------------------------

    def write(self, work: Callable[[Step], T], full: bool) -> T:
        """Carry out a step, commit it, and tell whom it concerns."""
        if self._family is not _family:
            self._after_fork()
        site = self.site
        try:
            with site.lock:
                connection = self._ready(full)
                try:
                    result, step = self._step(connection, work)
                except sqlite3.Error as error:
                    result, step = self._persist(connection, work, error)
                if step.written and site.checkpointer is not None:
                    site.checkpointer.wrote(step.written)
        except Idle as idle:
            self._drop(idle.queue)
            raise refusals.idle_queue(idle.queue.name) from None
        if step.told is not None or step.lapse is not None:
            site.publish(step)
        return result

    def write_at_once(self, work: Callable[[Step], T]) -> T:
        """The same for whoever must not wait, an event loop: WouldBlock, and nothing done, if others are at it.

        Never synced, so that no disk decides how long it takes.
        """
        if self._family is not _family:
            self._after_fork()
        site = self.site
        # Not `acquire(blocking=False)`: an interrupt right behind it would leave the lock held for ever. Whoever comes
        # between this look and the lock makes us wait for one step.
        if site.lock.locked():
            raise WouldBlock
        with site.lock:
            try:
                result, step = self._step(self._ready(False), work)
            except sqlite3.Error as error:
                if is_busy(error):
                    raise WouldBlock from None
                raise translate(error, self.path) from error
            if step.written and site.checkpointer is not None:
                site.checkpointer.wrote(step.written)
        if step.told is not None or step.lapse is not None:
            site.publish(step)
        return result

    def _persist(
        self, connection: sqlite3.Connection, work: Callable[[Step], T], error: sqlite3.Error
    ) -> tuple[T, Step]:
        """Try again while another process has the write lock."""
        deadline = time.monotonic() + self.settings.busy_timeout
        while is_busy(error) and time.monotonic() < deadline:
            # SQLite's own busy handler sleeps whole milliseconds, and a step takes a tenth of one.
            time.sleep(_PATIENCE * (0.5 + random.random()))
            try:
                return self._step(connection, work)
            except sqlite3.Error as again:
                error = again
        raise translate(error, self.path) from error

    def _step(self, connection: sqlite3.Connection, work: Callable[[Step], T]) -> tuple[T, Step]:
        committing = False
        try:
            connection.execute("BEGIN IMMEDIATE")
            step = Step(connection, self._catalog, self.clock.now())
            result = work(step)
            step.finish()
            committing = True
            connection.execute("COMMIT")
            return result, step
        except BaseException as error:
            # Also for an interrupt, which may strike anywhere: afterwards the step happened in full or not at all.
            self._catalog.forget()
            self._undo(connection, committing and failed_to_sync(error), error)
            raise

    def glance(self, work: Callable[[Step], T]) -> T:
        """Look, by one statement, without asking for the write lock, but as the only one of this process."""
        if self._family is not _family:
            self._after_fork()
        with self.site.lock:
            connection = self._ready(self._full)
            try:
                return work(Step(connection, self._catalog, self.clock.now()))
            except BaseException as error:
                self._catalog.forget()
                if isinstance(error, sqlite3.Error):
                    raise translate(error, self.path) from error
                raise

    def read(self, work: Callable[[Step], T]) -> T:
        """Look at one state of the store, beside whoever writes."""
        if self._family is not _family:
            self._after_fork()
        with self._reading:
            self._check_open()
            if self._reader.in_transaction:  # left behind by an interrupt
                self._reader.execute("ROLLBACK")
            return self._look(self._reader, self._read_catalog, work)

    def _look(self, connection: sqlite3.Connection, catalog: Catalog, work: Callable[[Step], T]) -> T:
        try:
            connection.execute("BEGIN")
            result = work(Step(connection, catalog, self.clock.now()))
            connection.execute("COMMIT")
            return result
        except BaseException as error:
            catalog.forget()
            self._undo(connection, False, error)
            if isinstance(error, sqlite3.Error):
                raise translate(error, self.path) from error
            raise

    def _ready(self, full: bool) -> sqlite3.Connection:
        if self._closed:
            self._check_open()
        connection = self._writer
        if connection.in_transaction:  # an interrupt struck while another one was being dealt with
            connection.execute("ROLLBACK")
        if full is not self._full:
            # Only possible between transactions, and cheaper (1 us) than a second connection, whose cache of pages
            # would be void after each commit of the first.
            connection.execute("PRAGMA synchronous = FULL" if full else "PRAGMA synchronous = NORMAL")
            self._full = full
        return connection

    def _undo(self, connection: sqlite3.Connection, may_be_there: bool, error: BaseException) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if may_be_there:
                # The frames of the refused commit are in the log, complete but unsynced: a crash now could bring them
                # back. The next commit overwrites them, so make one; it needs no sync to take them out of the chain.
                connection.execute("PRAGMA synchronous = NORMAL")
                self._full = False
                connection.execute("UPDATE postroom_tally SET counter = counter + 1 WHERE queue = 0")
        except sqlite3.Error:
            if may_be_there:
                raise unsure(error, self.path) from error

    def _check_open(self) -> None:
        if self._closed:
            raise MailboxConnectionError(f"{self.path}: this connection is closed; connect again", transient=False)

    # --- the end -----------------------------------------------------------------------------------------------

    def _after_fork(self) -> None:
        with _forking:
            if self._family is not _family:
                _leaked.append((self._writer, self._reader, self.site))
                self.site.disown(self.path)
                self._open()

    def close(self) -> None:
        """Let go. Messages in flight stay in flight."""
        if self._closed:
            return
        self._closed = True
        if self._family is not _family:
            _leaked.append((self._writer, self._reader, self.site))
            return
        self._leave()

    def _leave(self) -> None:
        with self.site.lock, self._reading:
            while self._ours:
                connection = self._ours.pop()
                connection.close()
                self.site.connections.remove(connection)
        self.site.readers.remove(self._reading)
        if leave(self.site):
            self.site.close()
