"""Waking the waiters of other processes: a datagram socket a process, in a directory beside the file.

A process that waits has a socket in `shop.db-bells/`. Whoever commits something they might want lists the directory
(one `stat` while nobody comes or goes) and sends each socket a few bytes that name the queue. One thread of the
receiving process, the sentry, turns them into rings of its bells. A datagram only tells us to look: a lost one costs
the time until the sentry's next look at whether the file has changed, never a message. It looks by the clock, not when
nothing came for a while: the rings of a busy queue must not put off the look that a quiet one depends on.

While nobody waits the sentry sleeps without a timer, and what arrives meanwhile stays in the socket.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import select
import socket
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from postroom.drivers.sqlite_ledger import News
from postroom.errors import ServiceUnavailableError

if TYPE_CHECKING:
    from postroom.drivers.sqlite_site import Site

_LONGEST = 100  # of a socket's path, by the operating systems' 104 or 108
_FRESH = 50_000_000  # ns: a directory that changed so lately may change again within the same tick of its clock
_MANY = 64  # queues in one datagram; above that: look everywhere
_ALL = b"*"
_UNIX = hasattr(socket, "AF_UNIX")
_OVERFLOW = 8  # datagrams read at once from which on some may have been refused: sockets hold about ten


class Doorbell:
    """One process's socket, its sentry, and its way to the others."""

    def __init__(self, site: Site, path: str, poll: float, connect: Callable[[], sqlite3.Connection]) -> None:
        self._site = site
        self._directory = path + "-bells"
        self._poll = poll
        self._connect = connect
        self._lock = threading.Lock()
        self._name = ""
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._parked = False
        self._look_at = 0.0  # when it is time for the next look, by the monotonic clock
        self._leader: Ear | None = None
        self._nudge: tuple[socket.socket, socket.socket] | None = None
        self._lead_poll: select.poll = select.poll()
        self.guard = threading.Lock()
        self._eye: sqlite3.Connection | None = None
        self._version = -1
        self._closed = False
        self._sender: socket.socket | None = None
        self._folder = -1  # a descriptor of the directory: through it every socket has a short path
        self._seen: tuple[int, int] | None = None  # the directory as listed last: inode, time of its last change
        self._others: list[str] = []

    # --- receiving ---------------------------------------------------------------------------------------------

    def attend(self) -> None:
        """Somebody is about to look, and to wait if there is nothing: from now on be there for the others."""
        if self._thread is None and not self._closed:
            with self._lock:
                if self._thread is None and not self._closed:
                    try:
                        self._post_sentry()
                    except (OSError, RuntimeError) as error:  # no descriptor or no thread is left
                        raise ServiceUnavailableError(
                            f"{self._directory}: {error}: this process has too many files or threads open to wait for "
                            "messages; close what is not needed, or raise its limits"
                        ) from error

    def _post_sentry(self) -> None:
        if self._socket is None:
            self._hang_up()
        self._wake = self._wake or _pair()
        # Kept only once it runs: an interrupt in between costs a second sentry, not the only one.
        sentry = threading.Thread(target=self._watch, name="postroom-sentry", daemon=True)
        sentry.start()
        self._thread = sentry

    def unpark(self) -> None:
        """Somebody waits now. Cheap while the sentry is up."""
        if self._parked:
            self._parked = False
            self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None:
            try:
                self._wake[1].send(b"\0")
            except OSError:
                pass  # closed meanwhile, or so full that it is awake already

    def _hang_up(self) -> None:
        """Make the socket. Where that is impossible we poll: slower, never wrong."""
        if not _UNIX:
            return
        for _ in range(3):
            try:
                os.mkdir(self._directory, 0o700)
            except FileExistsError:
                pass
            except OSError:
                return
            if not self._open_folder():
                continue  # removed by a process that left, in this very moment
            name = f"{os.getpid()}-{secrets.token_hex(4)}"
            bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                bell.bind(self._path_of(name))
            except OSError:
                bell.close()
                continue
            bell.setblocking(False)
            self._socket, self._name = bell, name
            return

    def _open_folder(self) -> bool:
        try:
            folder = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        found = os.fstat(folder)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
            os.close(folder)  # somebody else's: they could read which queues are busy, or wake us for nothing
            return False
        self._seen, former, self._folder = None, self._folder, folder
        _close(former)
        return True

    def _path_of(self, name: str) -> str:
        path = f"{self._directory}/{name}"
        return path if len(os.fsencode(path)) <= _LONGEST else f"/proc/self/fd/{self._folder}/{name}"

    def _watch(self) -> None:
        """The sentry."""
        assert self._wake is not None
        ear = self._wake[0]
        parked = _poll_of(ear)
        poll = _poll_of(ear, self._socket)
        try:
            while not self._closed:
                if not self._site.waited_at(self._leader is not None):
                    self._parked = True
                    # In this order: whoever begins to wait now either is seen here or sees that we are parked.
                    if not self._site.waited_at(self._leader is not None):
                        parked.poll()
                    self._parked = False
                    self._look_at = time.monotonic() + self._poll
                ready = poll.poll(self._until_look() * 1000)
                self._look_in_time()
                for descriptor, _ in ready:
                    if descriptor == ear.fileno():
                        _drain(ear)
                    else:
                        self._hear()
        except (OSError, ValueError):
            pass  # closed under us

    def lead(self, waiter: Ear, timeout: float | None) -> bool:
        """A caller's own thread does the sentry's work while it waits: that saves waking a second one. False if it
        cannot, because there are others to wake too."""
        # No lock, which an interrupt could leave held: should two threads come to lead at once, both do, to no harm.
        if self._socket is None or not self._parked or self._leader is not None:
            return False
        end = math.inf if timeout is None else time.monotonic() + timeout
        try:
            self._leader = waiter
            if self._nudge is None:
                self._nudge = _pair()
                self._lead_poll = _poll_of(self._nudge[0], self._socket)
            ear, poll = self._nudge[0], self._lead_poll
            self._look_at = time.monotonic() + self._poll
            while True:
                # In this order: whoever wakes us now either is seen here or sees that a nudge is needed.
                waiter.leading = True
                if waiter.woken or self._closed or (left := end - time.monotonic()) <= 0:
                    break
                ready = poll.poll(min(left, self._until_look()) * 1000)
                waiter.leading = False  # what we hear rings for us, as a rule, and we are awake
                self._look_in_time()
                for descriptor, _ in ready:
                    if descriptor == ear.fileno():
                        _drain(ear)
                    else:
                        self._hear()
        except (OSError, ValueError):
            pass  # closed under us
        finally:
            waiter.leading = False
            self._leader = None
            if self._site.waited_at(0):
                self.unpark()
        return True

    def nudge(self) -> None:
        if self._nudge is not None:
            try:
                self._nudge[1].send(b"\0")
            except OSError:
                pass

    def _until_look(self) -> float:
        return max(0.0, self._look_at - time.monotonic())

    def _look_in_time(self) -> None:
        if time.monotonic() >= self._look_at:
            self._look()
            self._look_at = time.monotonic() + self._poll

    def _look(self) -> None:
        """The safety net: did anybody commit anything since we looked last?"""
        with self.guard:
            try:
                if self._eye is None:
                    self._eye = self._connect()
                version: int = self._eye.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error:
                version = -1
            changed = version < 0 or version != self._version
            self._version = version
        if changed:
            self._site.ring_everywhere()

    def _hear(self) -> None:
        bell = self._socket
        if bell is None:
            return
        count = 0
        try:
            while True:
                data = bell.recv(2048)
                count += 1
                if data == _ALL:
                    self._site.ring_everywhere()
                else:
                    self._ring(data)
        except BlockingIOError:
            pass
        if count >= _OVERFLOW:
            self._site.ring_everywhere()

    def _ring(self, data: bytes) -> None:
        try:
            for part in data.split():
                queue, ready, room = map(int, part.split(b":"))
                self._site.ring(queue, ready, room)
        except ValueError:
            self._site.ring_everywhere()  # another version's words: look

    # --- sending -----------------------------------------------------------------------------------------------

    def tell(self, news: News) -> None:
        """Ring at the other processes. Never fails, never blocks."""
        if others := self._list():
            text = self._words(news)
            for name in others:
                self._send(name, text)

    def _words(self, news: News) -> bytes:
        if news.changed:
            return _ALL
        queues = {*news.ready, *news.room, *news.due}
        if len(queues) > _MANY:
            return _ALL
        return b" ".join(
            [b"%d:%d:%d" % (queue, max(1, news.ready.get(queue, 1)), news.room.get(queue, 0)) for queue in queues]
        )

    def _list(self) -> list[str]:
        """The other processes that have a socket here."""
        if self._folder < 0 and not os.access(self._directory, os.F_OK):
            return []  # nobody ever waited here: the common case in a batch job, without the price of an exception
        try:
            found = os.stat(self._directory)
        except OSError:
            return []
        seen = (found.st_ino, found.st_mtime_ns)
        if seen == self._seen:
            return self._others
        with self._lock:
            if self._closed:
                return []  # whoever committed a moment ago tells nobody: what he opened now nobody would close
            if (self._folder < 0 or os.fstat(self._folder).st_ino != found.st_ino) and not self._open_folder():
                return []
            try:
                self._others = [name for name in os.listdir(self._folder) if name != self._name]
            except OSError:
                return []
            self._seen = seen if time.time_ns() - found.st_mtime_ns > _FRESH else None
            return self._others

    def _send(self, name: str, text: bytes) -> None:
        try:
            sender = self._sender or self._open_sender()
            if sender is not None:
                sender.sendto(text, self._path_of(name))
        except BlockingIOError:
            pass  # it has not read the last ten yet, and will look everywhere when it does
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:  # its process died
                try:
                    os.unlink(name, dir_fd=self._folder)
                except OSError:
                    pass

    def _open_sender(self) -> socket.socket | None:
        with self._lock:
            if self._sender is None and not self._closed:
                sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                sender.setblocking(False)
                self._sender = sender
            return self._sender

    def forget(self) -> None:
        """In a forked child: the parent's socket stays where it is, but must not outlive the parent in our hands."""
        for inherited in (self._socket, self._sender, *(self._wake or ()), *(self._nudge or ())):
            if inherited is not None:
                inherited.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._rouse()
            self.nudge()
            thread, bell, wake = self._thread, self._socket, self._wake
            self._socket = None
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)
        with self.guard:
            if self._eye is not None:
                self._eye.close()
                self._eye = None
        if bell is not None:
            try:
                os.unlink(self._name, dir_fd=self._folder)
            except OSError:
                pass
            bell.close()
        for other in (*(wake or ()), *(self._nudge or ()), *((self._sender,) if self._sender is not None else ())):
            other.close()
        self._sender = None
        former, self._folder = self._folder, -1
        _close(former)
        try:
            os.rmdir(self._directory)
        except OSError:
            pass  # others are there, or it never was


class Ear:
    """A thread's wait that may do the sentry's work meanwhile."""

    __slots__ = ("_bell", "_gate", "leading", "woken")

    def __init__(self, bell: Doorbell) -> None:
        self._bell = bell
        self._gate = threading.Lock()
        self._gate.acquire()
        self.leading = self.woken = False

    def wake(self) -> None:
        self.woken = True
        if self.leading:
            self._bell.nudge()
        try:
            self._gate.release()
        except RuntimeError:
            pass  # woken twice: once is enough

    async def wait(self, timeout: float | None) -> bool:
        if self.woken or self._bell.lead(self, timeout):
            return self.woken
        self._bell.unpark()
        return self._gate.acquire(timeout=-1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX))


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        try:
            os.close(descriptor)
        except OSError:
            pass  # closed by a call that an interrupt ended


def _drain(ear: socket.socket) -> None:
    try:
        ear.recv(4096)
    except BlockingIOError:
        pass


def _pair() -> tuple[socket.socket, socket.socket]:
    """How a thread in `poll` is woken. Never blocks whoever wakes: full means that it is awake already."""
    ear, mouth = socket.socketpair()
    ear.setblocking(False)
    mouth.setblocking(False)
    return ear, mouth


def _poll_of(*sockets: socket.socket | None) -> select.poll:
    poll = select.poll()
    for one in sockets:
        if one is not None:
            poll.register(one, select.POLLIN)
    return poll
