"""AsyncWorker: handlers in tasks. It decides what a Worker decides: `flows/work.py`."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Generic

from typing_extensions import TypeVar

from postroom.aio.mailbox import AsyncMailbox, AsyncMessage
from postroom.core import limits
from postroom.core.limits import HOUR, Seconds
from postroom.core.message import Delivery
from postroom.core.policy import Backoff
from postroom.dispatcher import Dispatcher
from postroom.drivers.io import Bell
from postroom.errors import InvalidParameterError
from postroom.flows.handlers import is_async, wants_message
from postroom.flows.held import Held
from postroom.flows.leases import Keeper
from postroom.flows.work import Engine, Job
from postroom.lifecycle import Heartbeat
from postroom.worker import PATIENCE, SHUTDOWN, announcing, checked, keeper_thread

T = TypeVar("T", default=Any)
R = TypeVar("R", default=Any)


class AsyncWorker(Generic[T, R]):
    """Takes messages from a mailbox and calls a handler with each: with the body, or with the message if the handler's
    argument is annotated as `AsyncMessage`. What it returns is the reply, where the sender asked for one.

    A message is acknowledged when the handler returns. When it raises, the message is given back with a backoff, and
    after `retry.max_attempts` deliveries it goes to the dead letters; `Retry`, `Reject` and `Discard` say otherwise.
    While the handler works its lease is kept by a thread, so that one that blocks the event loop does not lose it. When
    a lease is lost all the same, the handler is cancelled. Delivery is at least once.

    `concurrency` handlers work at the same time, as tasks; a handler that is no coroutine function runs in a thread.
    """

    def __init__(
        self,
        mailbox: AsyncMailbox[T, R],
        handler: Callable[[T], Awaitable[R] | R] | Callable[[AsyncMessage[T, R]], Awaitable[R] | R],
        *,
        concurrency: int = 1,
        retry: Backoff | None = None,
        visibility_timeout: Seconds = 30,
        max_processing: Seconds = HOUR,
        dispatcher: Dispatcher | None = None,
    ) -> None:
        if not isinstance(mailbox, AsyncMailbox):
            raise InvalidParameterError(f"an AsyncWorker takes an AsyncMailbox, not a {type(mailbox).__name__}")
        takes_message, awaits = wants_message(handler), is_async(handler)
        function: Callable[[Any], Any] = handler  # of what it takes, `takes_message` says more than its type
        self._box = box = mailbox._box
        settings = checked(concurrency, retry, visibility_timeout, max_processing)

        async def call(held: Held[T, R]) -> Any:
            given: Any = held if takes_message else held.body
            if awaits:
                return await function(given)
            result = await asyncio.to_thread(function, given)
            return await result if isinstance(result, Awaitable) else result

        def hold(delivery: Delivery, body: T) -> AsyncMessage[T, R]:
            return AsyncMessage(box, delivery, body)

        emit = announcing(box.link.emit if dispatcher is None else dispatcher.dispatch)
        self._keeper = Keeper(box.name, settings.lease, settings.most, emit)
        self._crew = _Tasks()
        job = Job(box, hold, call, settings.retry, emit)
        self._engine = Engine(job, self._keeper, self._crew, concurrency, settings.lease, PATIENCE)
        self.heartbeat = Heartbeat()
        self._engine.beat = self.heartbeat.beat
        self._patience = SHUTDOWN
        self._ended: asyncio.Event | None = None

    @property
    def running(self) -> bool:
        return self._ended is not None

    async def run(self, max_iterations: int | None = None) -> None:
        """Work until `shutdown`, SIGTERM or SIGINT (in the main thread), the mailbox is closed, or so many receives
        were made. A second signal ends the process at once. A store that is away is waited for."""
        if max_iterations is not None:
            limits.whole(max_iterations, "max_iterations", 1, 1 << 60)
        with _Told(self._engine.stop):
            async with self._work():
                await self._engine.run(max_iterations)

    async def run_once(self) -> int:
        """One receive without waiting, for up to `concurrency` messages; when they are settled, how many came."""
        async with self._work():
            return await self._engine.round(0.0)

    async def shutdown(self, timeout: Seconds = 30) -> bool:
        """Take no more messages, and wait for the handlers at work. False if some were not done in time: they are
        cancelled, and their messages go back uncounted. Before `run` it makes that return at once."""
        self._patience = limits.seconds(timeout, "timeout", 0, limits.DAY)
        self._engine.stop.ring_for_good()
        if self._ended is not None:
            await self._ended.wait()
        return not self._crew.cancelled

    @asynccontextmanager
    async def _work(self) -> AsyncIterator[None]:
        """While a worker works: alone, with its keeper's thread, and nothing left to tell at the end."""
        if self._ended is not None:
            raise InvalidParameterError(f"{self!r} is running already")
        ended = self._ended = asyncio.Event()
        engine, stop, driver = self._engine, Bell(), self._box.driver
        sibling = driver.sibling()
        thread = keeper_thread(self._keeper, sibling, stop, close=True)
        try:
            yield
        except BaseException:
            self._crew.cancel()
            raise
        finally:
            began = time.monotonic()

            def left() -> float:
                return (self._patience if engine.stop.rung else limits.DAY) - time.monotonic() + began

            try:
                if not await engine.drained(left):
                    self._crew.cancel()
                    await engine.drained(lambda: 5.0)
                await engine.flush()
            finally:
                stop.ring_for_good()
                self._ended = None
                ended.set()
                await asyncio.to_thread(thread.join)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._box.name}, {self._engine.busy} at work>"


class _Tasks:
    """Handlers as tasks of the running loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.cancelled = False

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        task = loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return lambda: _from_any_thread(loop, task)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a handler that was interrupted has given its message back

    def cancel(self) -> None:
        for task in self._tasks:
            self.cancelled = True
            task.cancel()


def _from_any_thread(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    try:
        loop.call_soon_threadsafe(task.cancel)
    except RuntimeError:
        pass  # the loop is closed, and the handler with it


class _Told:
    """SIGTERM and SIGINT ring `stop` while the block runs in the main thread; a second one ends the process."""

    def __init__(self, stop: Bell) -> None:
        self._stop = stop
        self._numbers: list[int] = []

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self._tell, number)
                self._numbers.append(number)
            except (NotImplementedError, RuntimeError):
                return  # a loop without signals: whoever runs it sees to them

    def _tell(self, number: int) -> None:
        if self._stop.rung:
            os._exit(128 + number)
        self._stop.ring_for_good()

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in self._numbers:
            loop.remove_signal_handler(number)
