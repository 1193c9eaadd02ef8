"""What the fault tests of Redis share: traffic that goes on whatever happens to the servers, and a look at the keys.

`Traffic` is producers and consumers, threads or tasks, that note what they do and put up with every error that says it
is transient; any other fails the test. `is_sound` reads a queue's keys without the library and finds what cannot be.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, Self

import redis

import postroom
import postroom.aio
from postroom.drivers.redis_scripts import script
from postroom.errors import MailboxError, ReceiptHandleExpiredError
from tests.faults.checker import History
from tests.faults.rig import PATIENCE, Box, Place, acknowledge, note_received, receive, send, wait_for
from tests.servers.valkey import Server

Flavour = Literal["sync", "async"]
ROOT = "{queue:box}:"  # where the keys of the mailbox of all these tests begin


def sha(verb: str) -> bytes:
    """What a request of this verb contains, once the server knows the script."""
    return script(verb).by_sha.split(b"\r\n")[3]


def blocked(server: Server) -> int:
    """How many connections wait in a BLPOP there."""
    return sum(" cmd=blpop" in line for line in server.call("CLIENT", "LIST").splitlines())


# --- traffic -----------------------------------------------------------------------------------------------------


class Traffic:
    """`with Traffic(place) as traffic:` runs until the block ends; `traffic.flows()` waits until more came through."""

    def __init__(
        self,
        place: Place,
        flavour: Flavour = "sync",
        *,
        producers: int = 2,
        consumers: int = 2,
        lease: float = 3.0,
        wait: float = 2.0,
        pause: float = 0.002,
        sessions: bool = True,
        prefix: str = "",
        **options: Any,
    ) -> None:
        self.prefix = prefix
        self.place, self.flavour, self.options = place, flavour, options
        self.producers, self.consumers = producers, consumers
        self.lease, self.wait, self.pause, self.sessions = lease, wait, pause, sessions
        self.sent = self.acked = 0
        self.errors: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def flows(self, n: int = 20, *, within: float = PATIENCE) -> float:
        """Wait until so many more were sent and acknowledged; how many seconds that took."""
        sent, acked, began = self.sent + n, self.acked + n, time.monotonic()
        while self.sent < sent or (self.consumers and self.acked < acked):
            assert not self.failures, self.failures
            assert time.monotonic() - began < within, f"stuck: {self.sent} sent, {self.acked} acked, {self.errors}"
            time.sleep(0.005)
        return time.monotonic() - began

    def __enter__(self) -> Self:
        with postroom.connect(self.place.url, **self.options) as client:
            client.mailbox("box").approximate_count()
        names = [f"p{n}" for n in range(self.producers)] + [f"c{n}" for n in range(self.consumers)]
        if self.flavour == "sync":
            runs: list[Callable[[], None]] = [lambda name=name: self._in_thread(name) for name in names]  # type: ignore[misc]
        else:
            runs = [lambda: asyncio.run(self._in_tasks(names))]
        self._threads = [threading.Thread(target=self._guarded, args=(run,), daemon=True) for run in runs]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive() or failure, "a worker hangs"
        if self.failures and failure is None:
            raise self.failures[0]

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self.failures.append(error)

    def _excused(self, error: MailboxError) -> None:
        if not error.transient:
            raise error
        self.errors[type(error).__name__] += 1

    def _options_of(self, n: int) -> dict[str, Any]:
        return {"session_id": f"s{n % 7}"} if self.sessions and n % 2 else {}

    def _in_thread(self, name: str) -> None:
        log = History(self.place.log.path, self.prefix + name, sync=False)
        with postroom.connect(self.place.url, **self.options) as client:
            box = client.mailbox("box")
            for n in itertools.count():
                if self._stop.is_set():
                    break
                try:
                    if name[0] == "p":
                        send(log, box, f"{self.prefix}{name}-{n}", **self._options_of(n))
                        self.sent += 1
                        time.sleep(self.pause)
                    else:
                        for message in receive(log, box, 5, self.lease, self.wait):
                            self.acked += acknowledge(log, message)
                except MailboxError as error:
                    self._excused(error)
        log.close()

    async def _in_tasks(self, names: list[str]) -> None:
        """All of them on one client."""
        async with postroom.aio.connect(self.place.url, **self.options) as client:
            box = client.mailbox("box")
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(self._in_task(name, box))

    async def _in_task(self, name: str, box: Any) -> None:
        log = History(self.place.log.path, self.prefix + name, sync=False)
        for n in itertools.count():
            if self._stop.is_set():
                break
            try:
                if name[0] == "p":
                    await send_async(log, box, f"{self.prefix}{name}-{n}", **self._options_of(n))
                    self.sent += 1
                    await asyncio.sleep(self.pause)
                else:
                    for message in await receive_async(log, box, 5, self.lease, self.wait):
                        self.acked += await acknowledge_async(log, message)
            except MailboxError as error:
                self._excused(error)
        log.close()


async def send_async(log: History, box: Any, key: str, **options: Any) -> None:
    log.note("sending", key=key)
    await box.send(key, id=key, **options)
    log.note("sent", key=key)


async def receive_async(log: History, box: Any, n: int, lease: float | None, wait: float = 0) -> list[Any]:
    messages = list(await box.receive(max_messages=n, visibility_timeout=lease, wait_time_seconds=wait))
    for message in messages:
        note_received(log, message)
    return messages


async def acknowledge_async(log: History, message: Any) -> bool:
    facts = {"key": message.body, "token": message.lease.token}
    log.note("acking", **facts)
    try:
        await message.acknowledge()
    except ReceiptHandleExpiredError:
        log.note("stale", **facts)
        return False
    log.note("acked", **facts)
    return True


def drain(place: Place, box: Box | None = None, *, within: float = PATIENCE) -> None:
    """By the server's clock: until what is in flight has lapsed and was taken as well."""
    box = box or place.box()
    deadline = time.monotonic() + within
    while box.info().total:
        assert time.monotonic() < deadline, f"never empty: {box.info()}"
        for message in receive(place.log, box, 1000, 30, 0.5):
            acknowledge(place.log, message)
    place.drain(box)


# --- both flavours, one test -----------------------------------------------------------------------------------------


class Caller:
    """A client of either flavour for a test that does one thing after the other: `caller(box.send, 1)`."""

    def __init__(self, url: str, flavour: Flavour, **options: Any) -> None:
        self.flavour = flavour
        self.runner = asyncio.Runner() if flavour == "async" else None
        self.client: Any = None
        self.client = self.run(self._connect, url, options)

    def _connect(self, url: str, options: dict[str, Any]) -> Any:
        if self.flavour == "sync":
            return postroom.connect(url, **options)

        async def connect() -> Any:
            return postroom.aio.connect(url, **options)

        return connect()

    def run(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call it, and await it where it is to be awaited."""
        if self.runner is None:
            return act(*args, **options)

        async def awaited() -> Any:
            result = act(*args, **options)
            return await result if isinstance(result, Awaitable) else result

        return self.runner.run(awaited())

    def receive(self, box: Any, n: int = 1, **options: Any) -> list[Any]:
        return list(self.run(box.receive, max_messages=n, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.runner is not None and self.runner.get_loop().is_running():
            return  # something failed while a thread of the test's still used it
        self.run(self.client.close)
        if self.runner is not None:
            self.runner.close()


class Later:
    """Something that goes on in a thread: `later = Later(act)`, and then `later.result()`."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._outcome: Any = None
        self._error: BaseException | None = None
        self.took = 0.0
        self._thread = threading.Thread(target=self._run, args=(act,), daemon=True)
        self._thread.start()

    def _run(self, act: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            self._outcome = act()
        except BaseException as error:
            self._error = error
        self.took = time.monotonic() - began

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, within: float = PATIENCE) -> Any:
        self._thread.join(within)
        assert self.done, "it hangs"
        if self._error is not None:
            raise self._error
        return self._outcome


# --- the keys themselves ---------------------------------------------------------------------------------------------


def is_sound(url: str, name: str = "box") -> None:
    """What the queue's keys say fits together: each message is in one place, and the counters count what is there."""
    client: Any = redis.RedisCluster if "cluster" in url else redis.Redis
    client = client.from_url(url.replace("redis+cluster", "redis").partition(",")[0])
    with client:
        root = f"{{queue:{name}}}:"
        info = client.hgetall(root + "info")
        if not info:
            return  # no such queue, or no more
        line = [member.decode("latin-1") for member in client.zrange(root + "line", 0, -1)]
        for half, mark in (("", ""), ("dead:", "dead:")):
            data = client.hgetall(f"{root}{half}data")
            places: Counter[bytes] = Counter()
            for where in ("pending", "invisible", "later"):
                places.update(client.zrange(f"{root}{half}{where}", 0, -1))
            if not half:  # of a session only the head is pending, and what is scheduled is in its line or not
                waiting = {member[-16:].encode("latin-1") for member in line if member[0] == "m"}
                places.update(seq for seq in waiting if not places[seq])
            assert set(places) == set(data), f"{half or 'live'}: {set(places) ^ set(data)} are in one of two places"
            assert set(places.values()) <= {1}, f"{half or 'live'}: in several places: {places.most_common(3)}"
            assert set(client.hkeys(f"{root}{half}meta")) <= set(data)
            size = sum(struct.unpack_from(">BBI", envelope)[2] for envelope in data.values())
            assert size == int(info.get(f"{mark}bytes".encode(), 0)), f"{half or 'live'}: bytes are counted wrongly"
            assert int(info.get(f"{mark}parked".encode(), 0)) == 0
        held = {member[-16:].encode("latin-1") for member in line if member[0] == "h"}
        assert held <= set(client.zrange(root + "invisible", 0, -1)), "a session is held by what is not in flight"
        shown = client.zrange(root + "heads", 0, -1)
        assert {member[:16] for member in shown} <= set(client.zrange(root + "pending", 0, -1)), "a head is not pending"


__all__ = [
    "PATIENCE", "ROOT", "Caller", "Flavour", "Later", "Traffic", "acknowledge_async", "blocked", "drain", "is_sound",
    "receive_async", "send_async", "sha", "wait_for",
]  # fmt: skip
