"""How the one source meets two worlds: three ways to call a client library and to wait.

| strategy  | client library | caller                                                            |
|-----------|----------------|-------------------------------------------------------------------|
| Inline    | sync           | sync: the coroutine never suspends, `drive` runs it to its end    |
| Awaiting  | async          | async                                                             |
| Threaded  | sync           | async: blocking calls run in threads of their own                 |

A `Bell` carries a wake-up from whoever made something happen to whoever waits, across threads, loops and flavours.
It says only "look": what is there is decided by the store. A lost ring costs a poll, never a message.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar

from postroom.errors import MailboxError

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor

P = ParamSpec("P")
T = TypeVar("T")

_LONGEST = threading.TIMEOUT_MAX
_main = threading.main_thread().ident


def _after_fork() -> None:
    global _main
    _main = threading.get_ident()  # the thread that forked is the child's only one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def drive(coro: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends: the whole sync API goes through here (0.1 us)."""
    try:
        coro.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # StopIteration.value is Any
    coro.close()
    raise MailboxError("an async client library is in use under the sync API; use postroom.aio")


def mutex() -> threading.Lock:
    """For the few steps that threads of a sync client must not do at once. Never held across an await."""
    return threading.Lock()


class Bell:
    """Wakes those who listen. Safe from any thread, cheap when nobody does.

    No lock: each step is one operation of a dict, which threads cannot see half done; where two want the same waiter
    `pop` decides. With a lock a woken thread would often run straight into it and sleep again.
    """

    __slots__ = ("rung", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[Callable[[], None], None] = {}  # in order of arrival
        self.rung = False  # for a bell that is rung once and for all, see `ring_for_good`

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` at the next ring; once, then forget it."""
        self.waiters[wake] = None
        if self.rung and self.leave(wake):  # it may have been rung for good in between: one of us two wakes, not both
            wake()

    def leave(self, wake: Callable[[], None]) -> bool:
        """Stop listening; False if it was already rung for us, and whoever leaves unserved should pass the ring on."""
        return self.waiters.pop(wake, self) is None

    def ring(self, n: int | None = None) -> None:
        """Wake the `n` who have waited longest, or all."""
        waiters = self.waiters
        if n is None:
            for wake in list(waiters):
                if self.leave(wake):
                    wake()
            return
        while n > 0 and waiters:
            try:
                wake = next(iter(waiters))
            except (StopIteration, RuntimeError):
                continue  # somebody came or left just now: look again
            if waiters.pop(wake, self) is None:  # it was there, and nobody else has called it
                wake()
                n -= 1

    def ring_for_good(self) -> None:
        """Wake all, and everyone who will ever listen: closing, shutdown."""
        self.rung = True
        self.ring()


class Waiter(Protocol):
    """One wait of one caller. `wake` may be called from any thread, more than once, before or during the wait."""

    def wake(self) -> None: ...

    async def wait(self, timeout: float | None) -> bool:
        """True if woken, False when `timeout` seconds (None: for ever) are over."""
        ...


class Io(Protocol):
    """What a driver or a flow may do to the outside world, whatever the flavour."""

    flavour: Literal["sync", "async"]

    async def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of the client library that may block."""
        ...

    def waiter(self) -> Waiter: ...

    def interruptible(self) -> bool:
        """Whether Ctrl-C may strike the caller between any two steps: such a caller must not act for others."""
        ...

    async def let_others_run(self) -> None:
        """Those who could go on now do, before we do."""
        ...

    async def shield(self, coro: Coroutine[Any, Any, T], limit: float | None) -> T | None:
        """Run `coro` to its end even if the caller is cancelled, for at most `limit` seconds; None when time was up."""
        ...

    async def close(self) -> None: ...


async def sleep(io: Io, seconds: float, stop: Bell | None = None) -> bool:
    """Wait; True if `stop` rang meanwhile."""
    waiter = io.waiter()
    if stop is None:
        return await waiter.wait(seconds)
    stop.listen(waiter.wake)
    try:
        return await waiter.wait(seconds)
    finally:
        stop.leave(waiter.wake)


class _Gate:
    """A thread's wait: a lock that `wake` opens. Ctrl-C gets through."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # woken twice: once is enough

    async def wait(self, timeout: float | None) -> bool:
        if timeout is None:
            return self._lock.acquire()
        return self._lock.acquire(True, timeout if 0.0 <= timeout <= _LONGEST else min(max(timeout, 0.0), _LONGEST))


class Inline:
    """Sync library, sync caller."""

    flavour: Literal["sync", "async"] = "sync"

    async def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result = fn(*args, **kwargs)
        if hasattr(result, "__await__"):
            # An async client would hand us a coroutine that nobody ever runs: the call would silently not happen.
            if hasattr(result, "close"):
                result.close()
            raise MailboxError("an async client was given to the sync API; use postroom.aio, or a sync client")
        return result

    def waiter(self) -> Waiter:
        return _Gate()

    def interruptible(self) -> bool:
        return threading.get_ident() == _main

    async def let_others_run(self) -> None:
        time.sleep(0)  # noqa: ASYNC251  # no loop runs here: it lets go of the interpreter

    async def shield(self, coro: Coroutine[Any, Any, T], limit: float | None) -> T | None:
        return await coro

    async def close(self) -> None:
        return None


class _Promise:
    """A task's wait: a future of its loop."""

    __slots__ = ("_future", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[bool] = loop.create_future()

    def wake(self) -> None:
        import asyncio

        try:
            # Whoever is in a task of this loop need not wake it, which is a write to a socket. (A signal's handler may
            # find it asleep: then no task is running.)
            if asyncio.get_running_loop() is self._loop and asyncio.current_task(self._loop) is not None:
                self._open()
                return
        except RuntimeError:
            pass  # another thread
        try:
            self._loop.call_soon_threadsafe(self._open)
        except RuntimeError:
            pass  # the loop is closed, and with it whoever waited

    def _open(self) -> None:
        if not self._future.done():
            self._future.set_result(True)

    def _over(self) -> None:
        if not self._future.done():
            self._future.set_result(False)

    async def wait(self, timeout: float | None) -> bool:
        if timeout is None:
            return await self._future
        timer = self._loop.call_later(max(timeout, 0.0), self._over)
        try:
            return await self._future
        finally:
            timer.cancel()


class Awaiting:
    """Async library, async caller."""

    flavour: Literal["sync", "async"] = "async"

    async def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result = fn(*args, **kwargs)
        if isinstance(result, Awaitable):
            return await result  # type: ignore[no-any-return]  # an Awaitable of T, which the signature cannot say
        return result

    def waiter(self) -> Waiter:
        import asyncio

        return _Promise(asyncio.get_running_loop())

    def interruptible(self) -> bool:
        return False  # Ctrl-C cancels tasks, and what acts for others is shielded from that

    async def let_others_run(self) -> None:
        import asyncio

        await asyncio.sleep(0)

    async def shield(self, coro: Coroutine[Any, Any, T], limit: float | None) -> T | None:
        import asyncio

        task = asyncio.ensure_future(asyncio.wait_for(coro, limit))
        task.add_done_callback(_look)  # if we are cancelled meanwhile nobody else will
        try:
            return await asyncio.shield(task)
        except TimeoutError:
            return None

    async def close(self) -> None:
        return None


def _look(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


class Threaded(Awaiting):
    """Sync library, async caller: an executor of our own, so that nobody else's blocking work delays a settle."""

    def __init__(self, threads: int = 1, name: str = "postroom") -> None:
        self._threads = threads
        self._name = name
        self._executor: Executor | None = None

    async def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        import asyncio
        from functools import partial

        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix=self._name)
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(fn, *args, **kwargs))

    async def close(self) -> None:
        if self._executor is not None:
            # Not waiting: closing from inside the loop must not block it on a call that is under way.
            self._executor.shutdown(wait=False, cancel_futures=False)
            self._executor = None
