"""What the suite stands on: one text for both flavours, and one description for every store.

Tests are written once, as `async def`, over the async API. In the async flavour they run in an event loop. In the sync
flavour the same text runs over the sync API: `Awaited` makes each sync call look like a finished awaitable, so nothing
ever suspends and no event loop is there. `world.spawn` is a task in the one and a thread in the other.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, cast
from uuid import uuid4

import pytest

import postroom.aio
from postroom.aio import AsyncMailbox, AsyncMessage, AsyncQueueClient, AsyncSession, AsyncWorker
from postroom.core.capabilities import LABELS, Capabilities, Level
from postroom.drivers.api import Driver
from postroom.drivers.io import drive
from postroom.flows.link import Link
from postroom.testing.clock import ManualClock
from postroom.testing.faults import Faulty
from postroom.worker import Worker

T = TypeVar("T")
Flavour: TypeAlias = Literal["sync", "async"]
Client: TypeAlias = AsyncQueueClient
Box: TypeAlias = AsyncMailbox[Any, Any]
Msg: TypeAlias = AsyncMessage[Any, Any]
Held: TypeAlias = AsyncSession[Any, Any]

PATIENCE = 20.0  # real seconds until a test that hangs is called a failure


class Store:
    """How the suite reaches one store. Subclass it; a fresh instance is made for each test, and closed after it.

    Every client that `connect` opens must see the same, at first empty, store.
    """

    moves_time: ClassVar[bool] = False  # whether `advance` passes any time at once, by moving the store's clock
    second: ClassVar[float] = 0.1  # how long a second of the suite's text lasts; 1.0 where time can be moved
    many: ClassVar[int] = 10_000  # how many messages "very many" are

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def connect(self, flavour: Flavour, **options: Any) -> postroom.QueueClient | AsyncQueueClient:
        """A new client. Options that come: `namespace`, `max_body`, `backoff`, `dispatcher`."""
        raise NotImplementedError

    def advance(self, seconds: float) -> None:
        """Let this much of the store's time pass, and wake whoever waits for it."""
        time.sleep(seconds)

    def close(self) -> None:
        """Take the store away."""


class UrlStore(Store):
    """A store that is opened by its URL and takes a clock: those that have none of their own do."""

    moves_time = True
    second = 1.0

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.clock = ManualClock()
        self.options: dict[str, Any] = {"clock": self.clock}
        self.url = self.url_of(tmp_path)

    def url_of(self, tmp_path: Path) -> str:
        """For example f"sqlite:///{tmp_path}/test.db"."""
        raise NotImplementedError

    def connect(self, flavour: Flavour, **options: Any) -> postroom.QueueClient | AsyncQueueClient:
        opening = postroom.connect if flavour == "sync" else postroom.aio.connect
        return opening(self.url, **self.options, **options)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)


class Awaited:
    """A sync client, mailbox, message or session that answers to `await` like its async twin."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not inspect.ismethod(value):
            return _wrap(value)
        if name == "mailbox":
            return lambda *args, **kwargs: Awaited(value(*args, **kwargs))
        if name == "stream":
            return functools.partial(_iterate, value)
        if name == "keep_alive":
            return functools.partial(_within, value)
        return functools.partial(_Call, value)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_inner":
            object.__setattr__(self, name, value)
        else:
            setattr(self._inner, name, value)

    async def __aenter__(self) -> Any:
        return _wrap(self._inner.__enter__())  # type: ignore[attr-defined]  # whatever is wrapped here has it

    async def __aexit__(self, *failure: object) -> Any:
        return self._inner.__exit__(*failure)  # type: ignore[attr-defined]  # as above

    def __aiter__(self) -> AsyncIterator[Any]:
        return _iterate(self._inner.__iter__)  # type: ignore[attr-defined]  # as above

    def __repr__(self) -> str:
        return repr(self._inner)


class _Call:
    """A call that is made when it is awaited, and never suspends."""

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.function = function
        self.args = tuple(map(_unwrap, args))
        self.kwargs = {key: _unwrap(value) for key, value in kwargs.items()}

    def __await__(self) -> Generator[Any, Any, Any]:
        return _wrap(self.function(*self.args, **self.kwargs))
        yield  # what makes it a generator, as __await__ must be


async def _iterate(iterate: Callable[..., Any], *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
    iterator = iterate(*args, **kwargs)
    try:
        for item in iterator:
            yield _wrap(item)
    finally:
        iterator.close()


@asynccontextmanager
async def _within(manager: Callable[..., Any], *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
    with manager(*args, **kwargs) as entered:
        yield entered


_SHELLS = (postroom.QueueClient, postroom.Mailbox, postroom.Message, postroom.Session)


def _wrap(value: Any) -> Any:
    if isinstance(value, _SHELLS):
        return Awaited(value)
    if isinstance(value, list) and value and isinstance(value[0], _SHELLS):
        return [Awaited(item) for item in value]
    return value


def _unwrap(value: Any) -> Any:
    if isinstance(value, Awaited):
        return value._inner
    return [item._inner if isinstance(item, Awaited) else item for item in value] if isinstance(value, list) else value


class Spawned:
    """Something under way beside the test: await it for its result."""

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.thread: threading.Thread | None = None
        self.beside_tasks = False  # a thread of a sync client, in a test that runs in an event loop
        self._result: Any = None
        self._failure: BaseException | None = None

    def done(self) -> bool:
        return self.task.done() if self.task is not None else not (self.thread and self.thread.is_alive())

    def cancel(self) -> None:
        assert self.task is not None, "only a task can be cancelled"
        self.task.cancel()

    def work(self, start: Callable[[], Awaitable[Any]]) -> None:
        try:
            self._result = drive(_of(start()))
        except BaseException as failure:  # the test's own thread raises it
            self._failure = failure

    def __await__(self) -> Generator[Any, Any, Any]:
        if self.task is not None:
            return (yield from asyncio.wait_for(self.task, PATIENCE).__await__())
        assert self.thread is not None
        if self.beside_tasks:
            yield from asyncio.to_thread(self.thread.join, PATIENCE).__await__()
        else:
            self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "still waiting"
        if self._failure is not None:
            raise self._failure
        return self._result


async def _of(awaitable: Awaitable[T]) -> T:
    return await awaitable


class World:
    """A store, a flavour, and the means to let things happen at once or later."""

    def __init__(self, store: Store, flavour: Flavour) -> None:
        self.store = store
        self.flavour: Flavour = flavour
        self._runner: asyncio.Runner | None = None if flavour == "sync" else asyncio.Runner()
        self._clients: list[Client] = []
        self._spawned: list[Spawned] = []
        self._broken: dict[int, Client] = {}

    def open(self, *, flavour: Flavour | None = None, **options: Any) -> Client:
        """One more client of the store; closed after the test."""
        wanted: Flavour = self.flavour if flavour is None else flavour
        opened = self.store.connect(wanted, **options)
        client = cast("Client", opened if isinstance(opened, AsyncQueueClient) else Awaited(opened))
        self._clients.append(client)
        return client

    def break_at_will(self, client: Client) -> Faulty:
        """Faults between a client and its store; `client_of` finds the client that has them."""
        inner = client._inner if isinstance(client, Awaited) else client
        assert isinstance(inner, (postroom.QueueClient, AsyncQueueClient))
        faults = Faulty(inner._link.driver)
        broken = type(inner)(Link(faults), inner._address)
        self._broken[id(faults)] = cast("Client", broken if isinstance(broken, AsyncQueueClient) else Awaited(broken))
        return faults

    def client_of(self, faults: Faulty) -> Client:
        return self._broken[id(faults)]

    @staticmethod
    async def call(function: Callable[..., Awaitable[T]], *args: Any) -> T:
        return await function(*args)

    def worker(self, box: Box, handler: Callable[[Any], Any], **options: Any) -> Any:
        """A worker of this flavour. The handler is a plain function, which both take."""
        if isinstance(box, Awaited):
            return Awaited(Worker(box._inner, handler, **options))  # type: ignore[arg-type]  # a Mailbox, wrapped
        return AsyncWorker(box, handler, **options)

    def driver(self, client: Client) -> Driver:
        return client._link.driver

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        return drive(coro) if self._runner is None else self._runner.run(coro)

    @property
    def capabilities(self) -> Capabilities:
        return (self._clients[0] if self._clients else self.open()).capabilities

    def needs(self, *abilities: str, level: Level = Level.WEAKER) -> None:
        """Skip unless the store says that it can."""
        for ability in abilities:
            if (getattr(self.capabilities, ability) or Level.NO) < level:
                pytest.skip(f"capability: {LABELS.get(ability, ability)}")

    def needs_time(self) -> None:
        """Skip where hours would have to be waited for."""
        if not self.store.moves_time:
            pytest.skip("capability: a clock that can be moved")

    def needs_real_time(self) -> None:
        """Skip where time stands still unless it is moved."""
        if self.store.moves_time:
            pytest.skip("capability: a clock that runs by itself")

    def needs_bytes(self) -> None:
        if self.capabilities.by_reference:
            pytest.skip("capability: bodies that are bytes")

    async def advance(self, seconds: float) -> None:
        """Let the store's time pass."""
        if self.store.moves_time:
            self.store.advance(seconds)
        else:
            await self.pause(seconds)

    async def outlast(self, seconds: float, *waiting: Spawned) -> None:
        """Let time pass until these have given up. Those who began to wait only after the clock was moved, on a busy
        machine, count from then: so it is moved again."""
        for _ in range(100):
            await self.advance(seconds)
            for _ in range(10):
                await self.pause()
                if all(one.done() for one in waiting):
                    return

    async def pause(self, seconds: float = 0.02) -> None:
        """Let others run for a moment of real time."""
        if self._runner is None:
            time.sleep(seconds)  # noqa: ASYNC251  # no event loop is here: this is the sync flavour
        else:
            await asyncio.sleep(seconds)

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Spawned:
        """Start it and go on: a task, or a thread in the sync flavour."""
        spawned = Spawned()
        self._spawned.append(spawned)
        start = functools.partial(function, *args, **kwargs)
        if self._runner is None or getattr(function, "func", None) is _Call:
            spawned.thread = threading.Thread(target=spawned.work, args=(start,), daemon=True)
            spawned.beside_tasks = self._runner is not None
            spawned.thread.start()
        else:
            spawned.task = asyncio.ensure_future(_of(start()))
        return spawned

    async def gather(self, *functions: Callable[[], Awaitable[Any]]) -> list[Any]:
        """All at once; their results."""
        spawned = [self.spawn(function) for function in functions]
        return [await one for one in spawned]

    def close(self) -> None:
        try:
            for client in self._clients:
                if isinstance(client, AsyncQueueClient) and self._runner is None:
                    asyncio.run(client.close())
                else:
                    self.run(_of(client.close()))
            for spawned in self._spawned:
                if spawned.thread is not None:
                    spawned.thread.join(PATIENCE)
        finally:
            if self._runner is not None:
                self._runner.close()
            self.store.close()


class Suite:
    """The fixtures, and what turns each `async def test_...` of a subclass into a test that pytest can call."""

    store: ClassVar[type[Store]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, function in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(function):
                setattr(cls, name, _callable(function))

    @pytest.fixture(params=["sync", "async"])
    def flavour(self, request: pytest.FixtureRequest) -> Flavour:
        return cast("Flavour", request.param)

    @pytest.fixture
    def world(self, flavour: Flavour, tmp_path: Path) -> Generator[World, None, None]:
        world = World(self.store(tmp_path), flavour)
        yield world
        world.close()

    @pytest.fixture
    def client(self, world: World) -> Client:
        return world.open()

    @pytest.fixture
    def box(self, client: Client) -> Box:
        """A mailbox of plain JSON values, on a plain queue."""
        return client.mailbox("box")

    @pytest.fixture
    def second(self, world: World) -> float:
        """A second of the store's time."""
        return world.store.second


def _callable(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    names = list(inspect.signature(function).parameters)[1:]
    asks = "world" in names

    @functools.wraps(function)
    def test(self: Suite, world: World, **fixtures: Any) -> None:
        given = {**fixtures, "world": world} if asks else fixtures
        world.run(function(self, **given))

    # pytest reads the signature to see which fixtures are wanted; the world that runs the test always is.
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not asks:
        parameters.insert(1, inspect.Parameter("world", inspect.Parameter.POSITIONAL_OR_KEYWORD))
    test.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # functions may have one
    return test


only_tasks = pytest.mark.parametrize("flavour", ["async"])  # cancellation: a thread cannot be cancelled


def unique(prefix: str = "m") -> str:
    return f"{prefix}-{uuid4().hex[:12]}"


async def bodies(messages: Awaitable[Any]) -> list[Any]:
    """The bodies of what a receive brings."""
    return [message.body for message in await messages]


async def drain(box: Box, **options: Any) -> list[Any]:
    """Receive and acknowledge until there is nothing more; the bodies in order of delivery."""
    seen = []
    while messages := await box.receive(max_messages=100, **options):
        seen += [message.body for message in messages]
        assert all(result.ok for result in await box.acknowledge_many(messages))
    return seen
