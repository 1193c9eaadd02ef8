"""Waiting at a list on the server: BLPOP of a token that says "look", never of a message.

Callers of one client that wait at the same list share one connection: one of them listens, and when it has its token
it leaves the place to the next before it looks itself. The main thread of a sync client listens alone, as an interrupt
could strike it between taking the place and leaving it. A listener is also woken by the client's closing, by `stop` and
by a test's clock; a token that may have been on its way is made up for by `abandon`. A BLPOP lasts a few seconds at
the most, so that a dead connection, a lost token and a lease that ended are all noticed by then.
"""

from __future__ import annotations

import math
import os
import select
from collections.abc import Callable
from time import monotonic
from typing import Any

from postroom.drivers.clock import Clock
from postroom.drivers.io import Bell, Io, Waiter, mutex
from postroom.drivers.redis_errors import FAILURES
from postroom.drivers.redis_scripts import Keys, plain
from postroom.drivers.redis_wire import Wire

POLL = 5.0  # seconds a BLPOP lasts at the most
_GRACE = 2.0  # seconds after its end until a silent connection is taken for dead
_AWAY = 0.5  # seconds before the store is looked for again after listening failed


class Post:
    """Where the callers of one client meet that wait at one list."""

    __slots__ = ("bell", "place")

    def __init__(self) -> None:
        self.bell = Bell()  # the place of the listener is free
        self.place = mutex()


class Ear:
    """A thread's wait that can watch a connection as well: a pipe that `wake` writes to."""

    __slots__ = ("_lock", "_read", "_write", "poll")

    def __init__(self) -> None:
        self._lock = mutex()  # a late wake-up must not go to whoever has our descriptor by then
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.poll = select.poll()
        self.poll.register(self._read, select.POLLIN)

    def wake(self) -> None:
        with self._lock:
            if self._write >= 0:
                try:
                    os.write(self._write, b"\0")
                except OSError:
                    pass  # full of wake-ups

    async def wait(self, timeout: float | None) -> bool:
        return bool(self.poll.poll(None if timeout is None else max(0.0, timeout) * 1000))

    def close(self) -> None:
        with self._lock:
            read, write, self._write = self._read, self._write, -1
        os.close(read)
        os.close(write)


class Waiting:
    """One caller, over all attempts of one call."""

    def __init__(
        self, io: Io, wire: Wire, post: Post, keys: Keys, list_key: bytes, seconds: float, clock: Clock | None,
        stop: Bell | None,
    ) -> None:  # fmt: skip
        self._io = io
        self._wire = wire
        self._post = post
        self._keys = keys
        self._list = list_key
        self._clock = clock
        self._now = monotonic if clock is None else clock.now
        self._deadline = self._now() + seconds
        self._bells = [bell for bell in (wire.closed, stop, None if clock is None else clock.moved) if bell is not None]
        self._stops = [bell for bell in (wire.closed, stop) if bell is not None]
        self._check = _cancellation(io)
        self.torn = False  # we went before our token could come: it may be lost

    @property
    def left(self) -> float:
        return self._deadline - self._now()

    @property
    def over(self) -> bool:
        return self.left <= 0 or any(bell.rung for bell in self._stops)

    async def sleep(self, due: float) -> None:
        """Until there may be something; `due` seconds from now time will change something by itself."""
        until = self._now() + min(self.left, due, POLL)
        called = False
        while (seconds := self._patience(until)) > 0 and not any(bell.rung for bell in self._stops):
            waiter = self._io.waiter() if self._io.flavour == "async" else Ear()
            for bell in self._bells:
                bell.listen(waiter.wake)
            try:
                called = await self._turn(waiter, seconds)
            finally:
                for bell in self._bells:
                    bell.leave(waiter.wake)
                if isinstance(waiter, Ear):
                    waiter.close()
            if not called:
                return
        if called:
            self._post.bell.ring(1)  # the place is free, and we are gone

    async def _turn(self, waiter: Waiter, seconds: float) -> bool:
        """Listen, or wait until it is our turn to: True if it is now."""
        post = self._post
        if self._io.interruptible():
            await self._listen(waiter, seconds)
            return False
        post.bell.listen(waiter.wake)  # before we try: whoever leaves the place then sees us
        if post.place.acquire(blocking=False):
            try:
                post.bell.leave(waiter.wake)
                await self._listen(waiter, seconds)
            finally:
                post.place.release()
                post.bell.ring(1)
            return False
        try:
            await waiter.wait(seconds)
        except BaseException:
            if not post.bell.leave(waiter.wake):
                post.bell.ring(1)
            raise
        return not post.bell.leave(waiter.wake)  # who was called is on the list no more

    def _patience(self, until: float) -> float:
        """Real seconds."""
        if self._clock is None:
            return until - monotonic()
        patience = self._clock.patience(until)
        return POLL if patience is None else min(POLL, patience)

    async def _listen(self, waiter: Waiter, seconds: float) -> None:
        io = self._io
        connection: Any = None
        try:
            port = await self._wire.port(self._keys)
            connection = await self._wire.connection(port)
        except FAILURES:
            await waiter.wait(min(seconds, _AWAY))
            return
        try:
            self.torn = True
            await io.call(connection.send_packed_command, [plain(b"BLPOP", self._list, b"%.3f" % max(seconds, 0.001))])
            self._check()
            if await _answer(connection, waiter, seconds + _GRACE):
                self.torn = False
            else:
                await io.call(connection.disconnect)
        except FAILURES:
            await io.call(connection.disconnect)
            await waiter.wait(min(seconds, _AWAY))  # the next look will tell what is wrong
        except BaseException:
            await io.call(connection.disconnect)
            raise
        finally:
            await io.call(port.release, connection)


def _cancellation(io: Io) -> Callable[[], None]:
    """Raises if the task was cancelled since, and nobody told us. redis-py sends under asyncio.wait_for, and that drops
    a cancellation which comes as it ends (Python 3.11, gh-86296): we would listen on to the end of a long poll."""
    if io.flavour == "sync":
        return lambda: None
    import asyncio

    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()

    def check() -> None:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError

    return check


async def _answer(connection: Any, waiter: Waiter, seconds: float) -> bool:
    """Whether the server answered before `seconds` were over or somebody woke us."""
    if isinstance(waiter, Ear):
        return _watch(connection, waiter, seconds)
    import asyncio

    # Without a limit of its own: when that is over redis-py answers None, as BLPOP does, and what the server says after
    # all would be taken for the answer to somebody else's command.
    reading = asyncio.ensure_future(connection.read_response(disable_decoding=True, timeout=math.inf))
    reading.add_done_callback(lambda _: waiter.wake())
    try:
        await waiter.wait(seconds)
        if reading.done():
            reading.result()
            return True
        return False
    finally:
        if not reading.done():
            reading.cancel()
            await asyncio.wait((reading,))
        if not reading.cancelled():
            reading.exception()  # looked at, if we are on our way out with another


def _watch(connection: Any, ear: Ear, seconds: float) -> bool:
    """For a thread: the connection's socket and our pipe at once. What came is read by the connection itself."""
    sock = connection._get_socket()
    fd = -1 if sock is None else sock.fileno()
    if fd < 0:
        return False  # the client was closed by another thread
    ear.poll.register(fd, select.POLLIN)
    try:
        heard = ear.poll.poll(max(0.0, seconds) * 1000)
    finally:
        ear.poll.unregister(fd)
    if fd not in [one for one, _ in heard]:
        return False
    connection.read_response(disable_decoding=True)
    return True
