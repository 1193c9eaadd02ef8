"""What the drivers of one file share within one process: who waits, what was claimed lately, and the write lock.

Sync and async clients may sit on the same file. They take turns at a lock of the process before they ask SQLite for
its own, because whoever finds that one taken sleeps for milliseconds, and they wake one another without a datagram.
"""

from __future__ import annotations

import math
import os
import sqlite3
import struct
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from postroom.core.message import Delivery
from postroom.drivers.io import Bell
from postroom.drivers.sqlite_checkpoint import Checkpointer
from postroom.drivers.sqlite_doorbell import Doorbell, Ear
from postroom.drivers.sqlite_ledger import Ledger

if sys.platform == "linux":
    import fcntl

FENCE = 60.0
_FORK_PATIENCE = 10.0
_POSTS = 1_000  # queues that somebody waited at; reply mailboxes come and go
_REMEMBERED = 10_000  # claims of this process, by id: an abandoned one finds what it took without a search


class Post:
    """Those of this process who wait at one queue."""

    __slots__ = ("alarm", "claims", "room", "sessions")

    def __init__(self) -> None:
        self.claims = Bell()
        self.sessions = Bell()  # for one certain session: they look at every ring, and must not swallow the others'
        self.room = Bell()
        self.alarm = math.inf  # when the first of those who wait will look by itself

    def ring(self, n: int) -> None:
        if n:
            self.claims.ring(n)
        self.sessions.ring()

    def ring_all(self) -> None:
        self.claims.ring()
        self.sessions.ring()
        self.room.ring()

    def due(self, at: float) -> None:
        """Something is due at `at`: if all would sleep past it, one of them must know."""
        if at < self.alarm and self.claims.waiters:
            self.alarm = at
            self.claims.ring(1)
        self.sessions.ring()

    def __len__(self) -> int:
        return len(self.claims.waiters) + len(self.sessions.waiters) + len(self.room.waiters)


class Site:
    """One file, as this process uses it."""

    def __init__(self, key: object) -> None:
        self.key = key
        self.users = 0
        self.lock = threading.Lock()
        self.readers: list[threading.Lock] = []  # one a driver: held while it reads
        self.connections: list[sqlite3.Connection] = []  # all of this process, so that a forked child can close them
        self.quiet = True  # no thread was within SQLite when this process was forked
        self.posts: dict[int, Post] = {}
        self.fences: dict[str, float] = {}
        self.claims: OrderedDict[str, list[int]] = OrderedDict()
        self.doorbell: Doorbell | None = None
        self.checkpointer: Checkpointer | None = None
        self.soon = 0.0  # seconds: what is due later, the other processes will find by themselves

    def guards(self) -> list[threading.Lock]:
        """What is held while a thread is within SQLite, in the order in which they may be taken."""
        background = [part.guard for part in (self.checkpointer, self.doorbell) if part is not None]
        return [*background, self.lock, *self.readers]

    def post(self, queue: int) -> Post:
        """Called within a step, under the lock."""
        post = self.posts.get(queue)
        if post is None:
            if len(self.posts) >= _POSTS:
                self.posts = {id: other for id, other in self.posts.items() if other}
            post = self.posts[queue] = Post()
        return post

    def equip(self, path: str, poll: float, connect: Callable[[], sqlite3.Connection]) -> None:
        """What one process needs once, however many drivers it has."""
        with self.lock:
            if self.doorbell is None:
                self.soon = 2 * poll
                self.doorbell = Doorbell(self, path, poll, connect)
                self.checkpointer = Checkpointer(path, connect, self.lock)

    def attend(self) -> None:
        """Somebody is about to look, and may wait: let the other processes know where we are."""
        if self.doorbell is not None:
            self.doorbell.attend()

    def ear(self) -> Ear | None:
        """How a thread waits here."""
        return None if self.doorbell is None else Ear(self.doorbell)

    def waits(self) -> None:
        """Somebody waits now."""
        if self.doorbell is not None:
            self.doorbell.unpark()

    def waited_at(self, but: int) -> bool:
        """Whether anybody waits, beside `but` of them."""
        return sum(map(len, list(self.posts.values()))) > but

    def ring(self, queue: int, ready: int, room: int) -> None:
        """Another process did something there."""
        if (post := self.posts.get(queue)) is not None:
            post.ring(ready)
            if room:
                post.room.ring(room)

    def ring_everywhere(self) -> None:
        """Something may have happened: one at each queue looks, and those of one certain session all do."""
        for post in list(self.posts.values()):
            post.ring(1)
            post.room.ring(1)

    def publish(self, step: Ledger) -> None:
        """Wake whom a committed step concerns. Never fails, and may be lost: a lost ring costs a poll."""
        posts = self.posts
        if step.lapse is not None:
            queue, at = step.lapse
            if at < step.now + self.soon:
                step.due(queue, at)
            elif (post := posts.get(queue)) is not None:
                post.due(at)  # the other processes will see it in time by themselves: so with nearly every lease
        news = step.told
        if news is None:
            return
        if posts:
            for queue, n in news.ready.items():
                if (post := posts.get(queue)) is not None:
                    post.ring(n)
            for queue, at in news.due.items():
                if (post := posts.get(queue)) is not None:
                    post.due(at)
            for queue, n in news.room.items():
                if (post := posts.get(queue)) is not None:
                    post.room.ring(n)
            for queue in news.changed:
                if (post := posts.get(queue)) is not None:
                    post.ring_all()
            if news.chain and (post := posts.get(news.chain)) is not None:
                post.claims.ring(1)
        if self.doorbell is None:
            return
        if news.ready or news.room or news.changed or (news.due and min(news.due.values()) < step.now + self.soon):
            self.doorbell.tell(news)

    def close(self) -> None:
        if self.doorbell is not None:
            self.doorbell.close()
        if self.checkpointer is not None:
            self.checkpointer.close()

    def disown(self, path: str) -> None:
        """In a forked child, before it opens the file itself: close the parent's connections.

        SQLite keeps one table of locks a file and process. The child inherits the table and not the locks: beside a
        connection of the parent its own ones would believe they hold what they do not, and whoever else closes the file
        would take himself for the last and delete the log the child writes to.
        """
        if not self.connections:
            return  # done by another driver: to open and close the file now would drop the locks that one holds
        if not self.quiet:
            return  # a thread was within SQLite when we were forked, and its mutexes are taken for good
        mark = _mark_used(path, self.key)
        while self.connections:
            self.connections.pop().close()
        if mark >= 0:
            os.close(mark)

    # --- claims of this process, by id ---------------------------------------------------------------------------

    def remember(self, claim_id: str, deliveries: Sequence[Delivery]) -> None:
        claims = self.claims
        claims[claim_id] = [delivery.seq for delivery in deliveries]
        if len(claims) > _REMEMBERED:
            try:
                claims.popitem(last=False)
            except KeyError:
                pass  # another thread was faster

    def fence(self, claim_id: str, now: float) -> None:
        for id in [id for id, until in list(self.fences.items()) if until <= now]:
            self.fences.pop(id, None)
        self.fences[claim_id] = now + FENCE

    def fenced(self, claim_id: str, now: float) -> bool:
        return self.fences.get(claim_id, 0.0) > now


def _mark_used(path: str, key: object) -> int:
    """A descriptor whose own lock tells SQLite, also in this process, that others use the file; -1 where there is none.

    Without it the last connection to be closed would fold and delete a log that may be another's by now.
    """
    if sys.platform != "linux":
        return -1
    try:
        mark = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1
    found = os.fstat(mark)
    if (found.st_dev, found.st_ino) == key:
        try:
            fcntl.fcntl(mark, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, *_SHARED, 0))
        except OSError:
            pass  # somebody has the file for himself, so we shall not
    return mark


_SHARED = (0x40000002, 510)  # the bytes of a file that SQLite locks for as long as it is open: place, length

_sites: dict[object, Site] = {}
_sites_lock = threading.Lock()


def enter(key: object) -> Site:
    """The site of this file; made by its first user."""
    with _sites_lock:
        site = _sites.get(key)
        if site is None:
            site = _sites[key] = Site(key)
        site.users += 1
        return site


def leave(site: Site) -> bool:
    """True for the last user, who locks up."""
    with _sites_lock:
        site.users -= 1
        if site.users > 0:
            return False
        if _sites.get(site.key) is site:
            del _sites[site.key]
        return True


# A fork copies SQLite's own mutexes too, as they are in that moment: if another thread is within SQLite then, the child
# would wait for it for ever at its first call. So whoever forks first waits until none of our threads is.
_held: list[threading.Lock] = []
_quiet = True


def _before_fork() -> None:
    global _quiet
    _quiet = True
    _take(_sites_lock)
    for site in list(_sites.values()):
        for lock in site.guards():
            _take(lock)


def _take(lock: threading.Lock) -> None:
    global _quiet
    if lock.acquire(timeout=_FORK_PATIENCE):
        _held.append(lock)
    else:
        _quiet = False


def _after_fork() -> None:
    while _held:
        _held.pop().release()


def _after_fork_in_child() -> None:
    # The child has none of the parent's threads, and uses nothing of what they shared.
    global _sites_lock
    _after_fork()
    _sites_lock = threading.Lock()
    for site in _sites.values():
        site.quiet = _quiet
        if site.doorbell is not None:
            site.doorbell.forget()
    _sites.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
