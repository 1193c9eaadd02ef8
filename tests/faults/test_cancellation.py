"""Cancelling at every await of the async verbs: nothing is lost, and what a cancelled receive took goes back uncounted.

A verb is run with its first suspension cancelled, then its second, and so on until it ends before it is struck. Each is
cancelled twice over: as soon as it suspends, when the store may not even have begun; and when the answer is there and
the task has not been told yet, which is when things get lost.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, Literal

import pytest

import postroom
import postroom.aio
from postroom.aio import AsyncMailbox, AsyncQueueClient
from postroom.drivers import sqlite
from tests.faults.checker import History, prove
from tests.faults.rig import PATIENCE, note_received

pytestmark = pytest.mark.faults

When = Literal["early", "late"]
Box = AsyncMailbox[Any, Any]


@pytest.fixture(autouse=True)
def on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the file is busy: a step that is carried out on the loop has no await to be cancelled at."""
    monkeypatch.setattr(sqlite, "_FEW", 0)


class Struck:
    """Awaits a coroutine, and cancels the task that does at its n-th suspension."""

    def __init__(self, coro: Coroutine[Any, Any, Any], at: int, when: When) -> None:
        self.coro, self.left, self.when = coro, at, when
        self.struck = False

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        step: Callable[[], Any] = lambda: self.coro.send(None)  # noqa: E731
        while True:
            try:
                future = step()
            except StopIteration as done:
                return done.value
            self.left -= 1
            if self.left == 0:
                self.struck = True
                if self.when == "early" or future is None:
                    task.cancel()
                else:
                    future.add_done_callback(lambda _: task.cancel())
            try:
                yield future
                step = lambda: self.coro.send(None)  # noqa: E731
            except BaseException as error:
                step = lambda error=error: self.coro.throw(error)  # type: ignore[misc]  # noqa: E731


async def cancelled(coro: Coroutine[Any, Any, Any], at: int, when: When) -> tuple[bool, Any]:
    """(whether it was struck and ended by that, what it returned)."""
    struck = Struck(coro, at, when)

    async def run() -> Any:
        return await struck

    task = asyncio.create_task(run())
    try:
        async with asyncio.timeout(PATIENCE):
            return False, await task
    except asyncio.CancelledError:
        assert struck.struck
        return True, None


class World:
    """One store, a client, a history; all stores look alike from here."""

    def __init__(self, directory: Path, store: str) -> None:
        self.log = History(directory / "history", "test", sync=False)
        known = {"sqlite": f"sqlite:///{directory}/mail.db", "memory": "memory://?serialize=true"}
        self.url = known.get(store, store)
        self.client: AsyncQueueClient = postroom.aio.connect(self.url)
        self.box: Box = self.client.mailbox("box")
        self.struck = 0

    async def send(self, key: str) -> None:
        self.log.note("sending", key=key)
        await self.box.send(key, id=key)
        self.log.note("sent", key=key)

    async def receive(self, n: int = 100) -> list[Any]:
        messages = list(await self.box.receive(max_messages=n))
        for message in messages:
            note_received(self.log, message)
        return messages

    def hit(self) -> None:
        self.struck += 1
        self.log.note("struck", fault="cancel", unseen_claims=0)  # 0: whatever it took is returned uncounted

    async def drain(self) -> None:
        while messages := await self.receive():
            for message in messages:
                self.log.note("acking", key=message.body, token=message.lease.token)
                await message.acknowledge()
                self.log.note("acked", key=message.body, token=message.lease.token)
        for peeked in await self.box.peek(1000):
            self.log.note("left", key=peeked.body, seq=peeked.sequence_number)


def run(tmp_path: Path, store: str, test: Callable[[World], Awaitable[None]]) -> None:
    world = World(tmp_path, store)

    async def main() -> None:
        await world.box.approximate_count()
        await test(world)
        await world.drain()
        await world.client.close()

    asyncio.run(main())
    report = prove(world.log, "cancel")
    assert report.left == 0
    assert world.struck >= 1
    world.log.close()


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest) -> str:
    """Or a URL, where these tests are run over another store."""
    return str(request.param)


either_time = pytest.mark.parametrize("when", ["early", "late"])


@either_time
def test_a_cancelled_send_is_stored_whole_or_not_at_all(tmp_path: Path, store: str, when: When) -> None:
    async def test(world: World) -> None:
        if store == "memory":
            # It never suspends: so it is either not begun or done. Cancelled before its first step it must do nothing.
            world.log.note("sending", key="never")
            task = asyncio.create_task(world.box.send("never", id="never"))
            task.cancel()
            await asyncio.wait([task])
            world.hit()
            world.log.note("refused", key="never")
        for at in itertools.count(1):
            key = f"m{at}"
            world.log.note("sending", key=key)
            struck, _ = await cancelled(world.box.send(key, id=key), at, when)
            await world.send(f"{key}-then")  # nobody is left in the way
            if not struck:
                world.log.note("sent", key=key)
                return
            world.hit()

    run(tmp_path, store, test)


@either_time
@pytest.mark.parametrize("how", ["acknowledge", "nack"])
def test_a_cancelled_settle_can_be_tried_again(tmp_path: Path, store: str, when: When, how: str) -> None:
    async def test(world: World) -> None:
        if store == "memory":
            world.hit()  # never suspends: nothing can be struck, and the rest of the history must still be right
        for at in itertools.count(1):
            await world.send(f"m{at}")
            [message] = await world.receive(1)
            facts = {"key": message.body, "token": message.lease.token}
            world.log.note("acking" if how == "acknowledge" else "nacking", **facts)
            struck, _ = await cancelled(getattr(message, how)(), at, when)
            if struck:
                world.hit()
                try:
                    await getattr(message, how)()
                except postroom.ReceiptHandleExpiredError:
                    assert how == "nack"  # it had been given back: its success is no longer ours to see
            world.log.note("acked" if how == "acknowledge" else "nacked", **facts)
            assert (await world.box.info()).in_flight == 0
            await world.drain()
            if not struck:
                return

    run(tmp_path, store, test)


@either_time
@pytest.mark.parametrize("wait", [0, 20])
def test_a_cancelled_receive_gives_back_what_it_took_at_once(tmp_path: Path, store: str, when: When, wait: int) -> None:
    async def test(world: World) -> None:
        if store == "memory":
            world.hit()  # with messages there it never suspends
        for at in itertools.count(1):
            await world.send(f"m{at}")
            struck, messages = await cancelled(world.box.receive(max_messages=3, wait_time_seconds=wait), at, when)
            if not struck:
                for message in messages:
                    note_received(world.log, message)
                    await message.nack()
                    world.log.note("nacking", key=message.body, token=message.lease.token)
                return
            world.hit()
            info = await world.box.info()
            assert (info.ready, info.in_flight) == (1, 0), f"struck at {at}: not given back"
            [message] = await world.receive(1)
            assert message.delivery_count == 1
            world.log.note("acking", key=message.body, token=message.lease.token)
            await message.acknowledge()
            world.log.note("acked", key=message.body, token=message.lease.token)

    run(tmp_path, store, test)


@either_time
def test_a_long_poll_cancelled_as_its_message_comes_passes_it_on(tmp_path: Path, store: str, when: When) -> None:
    """The waiter that is cancelled was perhaps the one that was rung. Whoever else waits must get the message, soon."""

    async def test(world: World) -> None:
        for at in itertools.count(1):
            poll = asyncio.create_task(cancelled(world.box.receive(wait_time_seconds=20), at, when))
            other = asyncio.create_task(world.box.receive(wait_time_seconds=PATIENCE))
            for _ in range(3):
                await world.box.approximate_count()  # turns of the loop and of the store, so that both wait
            await world.send(f"m{at}")
            async with asyncio.timeout(PATIENCE):
                await asyncio.wait([poll, other], return_when=asyncio.FIRST_COMPLETED)
                if not (poll.done() and poll.result()[0]):
                    await world.send(f"m{at}-for-the-other")
                struck, polled = await poll
                if struck:
                    world.hit()
                for message in sorted([*(polled or ()), *await other], key=lambda m: m.lease.token):
                    note_received(world.log, message)
                    assert message.delivery_count == 1
                    world.log.note("acking", key=message.body, token=message.lease.token)
                    await message.acknowledge()
                    world.log.note("acked", key=message.body, token=message.lease.token)
            await world.drain()
            if not struck and at > 3:
                return

    run(tmp_path, store, test)


def test_a_receive_cancelled_while_it_puts_an_undecodable_one_away_gives_back_the_good_ones(
    tmp_path: Path, store: str
) -> None:
    world = World(tmp_path, store)

    async def test() -> None:
        numbers: Box = world.client.mailbox("numbers", int)
        texts: Box = world.client.mailbox("numbers", str)
        for at in itertools.count(1):
            await numbers.send(1)
            await texts.send("no number")
            struck, _ = await cancelled(numbers.receive(max_messages=2), at, "early")
            info = await numbers.info()
            # The bad one may be with the dead letters already; the good one was given back, unless we have it.
            assert info.in_flight == (0 if struck else 1), f"struck at {at}: {info}"
            await numbers.purge()
            if not struck:
                break
        assert at > 1 or store == "memory"
        await world.client.close()

    asyncio.run(test())
    world.log.close()
