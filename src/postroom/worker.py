"""Worker: handlers in threads, leases kept, a drain at the end. What it decides is in `flows/work.py`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, Generic

from typing_extensions import TypeVar

from postroom.core import limits
from postroom.core.limits import HOUR, Seconds
from postroom.core.message import Delivery
from postroom.core.policy import Backoff
from postroom.dispatcher import Dispatcher
from postroom.drivers.api import Driver
from postroom.drivers.io import Bell, drive
from postroom.errors import InvalidParameterError
from postroom.flows.events import HandlerFailed, LeaseLost, StaleAcknowledge, StoreAway
from postroom.flows.handlers import is_async, wants_message
from postroom.flows.held import Held
from postroom.flows.leases import Keeper
from postroom.flows.work import Engine, Job
from postroom.lifecycle import Heartbeat, until_told
from postroom.mailbox import Mailbox, Message

T = TypeVar("T", default=Any)
R = TypeVar("R", default=Any)

PATIENCE = 20.0  # seconds one receive waits
SHUTDOWN = 30.0  # seconds for handlers at work after a signal


class Worker(Generic[T, R]):
    """Takes messages from a mailbox and calls a handler with each: with the body, or with the message if the handler's
    argument is annotated as `Message`. What it returns is the reply, where the sender asked for one.

    A message is acknowledged when the handler returns. When it raises, the message is given back with a backoff, and
    after `retry.max_attempts` deliveries it goes to the dead letters; `Retry`, `Reject` and `Discard` say otherwise.
    While the handler works its lease is kept, up to `max_processing`. Delivery is at least once.

    With `concurrency` above 1 as many threads call the handler at the same time.
    """

    def __init__(
        self,
        mailbox: Mailbox[T, R],
        handler: Callable[[T], R] | Callable[[Message[T, R]], R],
        *,
        concurrency: int = 1,
        retry: Backoff | None = None,
        visibility_timeout: Seconds = 30,
        max_processing: Seconds = HOUR,
        dispatcher: Dispatcher | None = None,
    ) -> None:
        if not isinstance(mailbox, Mailbox):
            raise InvalidParameterError(f"a Worker takes a Mailbox, not a {type(mailbox).__name__}")
        if is_async(handler):
            raise InvalidParameterError("this handler is async: give it to postroom.aio.AsyncWorker")
        takes_message = wants_message(handler)
        self._box = box = mailbox._box
        settings = checked(concurrency, retry, visibility_timeout, max_processing)

        async def call(held: Held[T, R]) -> Any:
            return handler(held if takes_message else held.body)  # type: ignore[arg-type]  # as it is annotated

        def hold(delivery: Delivery, body: T) -> Message[T, R]:
            return Message(box, delivery, body)

        emit = announcing(box.link.emit if dispatcher is None else dispatcher.dispatch)
        self._keeper = Keeper(box.name, settings.lease, settings.most, emit)
        self._crew = _Threads(concurrency, f"postroom-{box.name}") if concurrency > 1 else None
        job = Job(box, hold, call, settings.retry, emit)
        self._engine = Engine(job, self._keeper, self._crew, concurrency, settings.lease, PATIENCE)
        self.heartbeat = Heartbeat()
        self._engine.beat = self.heartbeat.beat
        self._patience = SHUTDOWN  # seconds for handlers at work once no more is taken
        self._running = threading.Lock()
        self._ended = threading.Event()
        self._ended.set()

    @property
    def running(self) -> bool:
        return self._running.locked()

    def run(self, max_iterations: int | None = None) -> None:
        """Work until `shutdown`, SIGTERM or SIGINT (in the main thread), the mailbox is closed, or so many receives
        were made. A second signal ends the process at once. A store that is away is waited for."""
        if max_iterations is not None:
            limits.whole(max_iterations, "max_iterations", 1, 1 << 60)
        with until_told(self._engine.stop), self._work():
            drive(self._engine.run(max_iterations))

    def run_once(self) -> int:
        """One receive without waiting, for up to `concurrency` messages; when they are settled, how many came."""
        with self._work():
            return drive(self._engine.round(0.0))

    def shutdown(self, timeout: Seconds = 30) -> bool:
        """Take no more messages, and wait for the handlers at work. False if some were not done in time: their leases
        are kept no longer. Before `run` it makes that return at once."""
        self._patience = limits.seconds(timeout, "timeout", 0, limits.DAY)
        self._engine.stop.ring_for_good()
        return self._ended.wait(self._patience) and not self._engine.busy

    def _work(self) -> _Working:
        return _Working(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._box.name}, {self._engine.busy} at work>"


class _Working:
    """While a worker works: alone, with its keeper's thread, and nothing left to tell at the end."""

    def __init__(self, worker: Worker[Any, Any]) -> None:
        self._worker = worker
        self._stop = Bell()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        worker = self._worker
        if not worker._running.acquire(blocking=False):
            raise InvalidParameterError(f"{worker!r} is running already")
        worker._ended.clear()
        self._thread = keeper_thread(worker._keeper, worker._box.driver, self._stop)

    def __exit__(self, *_: object) -> None:
        worker, engine = self._worker, self._worker._engine
        began = time.monotonic()
        try:
            # Told to stop, we wait so long for handlers at work; out of rounds, for as long as they take.
            drive(
                engine.drained(
                    lambda: (worker._patience if engine.stop.rung else limits.DAY) - time.monotonic() + began
                )
            )
            drive(engine.flush())
        finally:
            if worker._crew is not None:
                worker._crew.close()
            self._stop.ring_for_good()
            worker._running.release()
            worker._ended.set()


def keeper_thread(keeper: Keeper, driver: Driver, stop: Bell, *, close: bool = False) -> threading.Thread:
    """Leases are kept by a thread, so that neither handlers that block nor a blocked event loop loses them."""

    def keep() -> None:
        try:
            drive(keeper.run(driver, stop))
        finally:
            if close:
                drive(driver.close())

    thread = threading.Thread(target=keep, name="postroom-leases", daemon=True)
    thread.start()
    return thread


class _Threads:
    """Threads that run handlers, made when they are first needed and gone when the worker has ended."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._work: SimpleQueue[Callable[[], Coroutine[Any, Any, None]] | None] = SimpleQueue()
        self._made = 0
        self._resting = threading.Semaphore(0)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._resting.acquire(blocking=False) and self._made < self._most:
            self._made += 1
            name = f"{self._name}-{self._made}"
            threading.Thread(target=self._run, args=(self._work, self._resting), name=name, daemon=True).start()
        self._work.put(work)

    def close(self) -> None:
        """Each ends when its work has; whoever starts again gets others."""
        for _ in range(self._made):
            self._work.put(None)
        self._work, self._made, self._resting = SimpleQueue(), 0, threading.Semaphore(0)

    @staticmethod
    def _run(work: SimpleQueue[Callable[[], Coroutine[Any, Any, None]] | None], resting: threading.Semaphore) -> None:
        while (one := work.get()) is not None:
            try:
                drive(one())
            except BaseException:
                _log().exception("a handler was interrupted")
            resting.release()


class Settings:
    """What workers of both flavours are told, checked."""

    def __init__(self, retry: Backoff, lease: float, most: float) -> None:
        self.retry = retry
        self.lease = lease
        self.most = most


def checked(concurrency: int, retry: Backoff | None, visibility_timeout: Seconds, max_processing: Seconds) -> Settings:
    limits.whole(concurrency, "concurrency", 1, limits.MAX_BATCH)
    if retry is not None and not isinstance(retry, Backoff):
        raise InvalidParameterError(f"retry is a Backoff, such as Backoff(max_attempts=3), not {retry!r:.80}")
    lease = limits.seconds(visibility_timeout, "visibility_timeout", 0.05, limits.MAX_LEASE)
    most = limits.seconds(max_processing, "max_processing", 0.05, limits.MAX_LEASE)
    return Settings(retry or Backoff(), lease, most)


def _log() -> Any:
    import logging  # 4 ms, for those who have something to tell

    return logging.getLogger("postroom.worker")


def announcing(emit: Callable[[object], object]) -> Callable[[object], None]:
    """Events go to who subscribed, and what somebody must know of goes to the log as well."""

    def announce(event: object) -> None:
        emit(event)
        if isinstance(event, StoreAway):
            _log().warning(
                "%s: the store is away (%s); trying again in %.1f s", event.queue, event.error, event.retry_in
            )
        elif isinstance(event, LeaseLost):
            _log().warning("%s: the lease of message %s was lost (%s)", event.queue, event.message_id, event.why)
        elif isinstance(event, StaleAcknowledge):
            _log().warning(
                "%s: message %s was handled, but is not ours any more (%s)", event.queue, event.message_id, event.why
            )
        elif isinstance(event, HandlerFailed):
            _log().warning(
                "%s: message %s failed at delivery %d%s: %s", event.queue, event.message_id, event.delivery_count,
                " and is dead" if event.dead else "", event.error,
            )  # fmt: skip

    return announce
