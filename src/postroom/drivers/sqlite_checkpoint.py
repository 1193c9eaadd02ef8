"""Folding the log back into the file, beside the work and by one process at a time.

SQLite would do it inside of some unlucky commit. Here a thread does, once about a thousand pages were written since;
it sleeps without a timer in between. SQLite before 3.51.3 can damage a log when two processes fold it at once, so a
lock file beside the database makes them take turns.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

try:
    import fcntl
except ImportError:  # not on this platform: there, files cannot be shared with older SQLites safely
    fcntl = None  # type: ignore[assignment]

PAGES = 1_000  # written by this process since the last fold, by estimate
_LARGE = 64 << 20  # bytes: a log that a long reader let grow so far is cut back once that is possible
_SOON = 50  # ms: how long writers of this process may wait for those of others to let us fold
_SAFE = (3, 51, 3)


class Checkpointer:
    """One process's part in keeping the log of one file short."""

    def __init__(self, path: str, connect: Callable[[], sqlite3.Connection], writers: threading.Lock) -> None:
        self._path = path
        self._writers = writers  # the lock that this process's write transactions take
        self._connect = connect
        self._serialise = sqlite3.sqlite_version_info < _SAFE and fcntl is not None
        self._pages = 0.0
        self._due = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.guard = threading.Lock()  # held while folding: see `sqlite_site` on forking
        self._closed = False

    def wrote(self, pages: float) -> None:
        """A commit of about so many pages. Called under the process's write lock."""
        self._pages += pages
        if self._pages >= PAGES and not self._due.is_set():
            self._due.set()
            if self._thread is None and not self._closed:
                with self._lock:
                    if self._thread is None:
                        thread = threading.Thread(target=self._work, name="postroom-checkpoint", daemon=True)
                        thread.start()
                        self._thread = thread  # only now: an interrupt in between costs a second one, not the only one

    def _work(self) -> None:
        pair: tuple[sqlite3.Connection, sqlite3.Connection] | None = None
        while True:
            self._due.wait()
            if self._closed:
                break
            self._pages = 0.0
            self._due.clear()
            try:
                if pair is None:
                    with self.guard:
                        pair = self._connect(), self._connect()
                self.fold(*pair)
            except sqlite3.Error:
                pass  # a full disk, a locked file: the commits say so, and the next thousand pages try again
        for connection in pair or ():
            connection.close()

    def fold(self, connection: sqlite3.Connection, gate: sqlite3.Connection) -> bool:
        """Once; False if another process is at it. `gate` is a second connection, for holding up writers."""
        with self.guard, self.turn(wait=False) as ours:
            if not ours:
                return False
            connection.execute("PRAGMA busy_timeout = 0")
            _, log, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if log < PAGES:
                return True
            # The log begins anew only when a writer finds all of it folded, and under a steady stream somebody always
            # wrote meanwhile, here or in another process. It would grow for ever, and as long as its file grows each
            # sync costs twice as much. What is left is little: for that all writers wait.
            with self._writers, self._closed_to_writers(gate):
                _, log, folded = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if log == folded and self._log_size() > _LARGE:
                with self._writers:
                    # With no busy timeout it gives up where somebody still needs the log, and holds up nobody.
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return True

    @contextmanager
    def _closed_to_writers(self, gate: sqlite3.Connection) -> Iterator[None]:
        """Hold SQLite's write lock, if it is to be had soon; without it the next thousand pages bring another try."""
        gate.execute(f"PRAGMA busy_timeout = {_SOON}")
        try:
            gate.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            yield
            return
        try:
            yield
        finally:
            gate.execute("ROLLBACK")

    def _log_size(self) -> int:
        try:
            return os.stat(self._path + "-wal").st_size
        except OSError:
            return 0

    @contextmanager
    def turn(self, *, wait: bool) -> Iterator[bool]:
        """Be the one process that folds; False if it is another's turn and we do not wait."""
        if not self._serialise:
            yield True
            return
        try:
            lock = os.open(self._path + "-fold", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            yield False
            return
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError:
                yield False
                return
            yield True
        finally:
            os.close(lock)

    def close(self) -> None:
        self._closed = True
        self._due.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(10.0)
