"""Two of everything at once: settlers, tidiers, purgers, pollers. Over both stores, by threads and by tasks."""

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.drivers import sqlite_claim
from postroom.drivers.memory_space import Space
from postroom.errors import (
    MailboxConnectionError,
    MessageFinalizedError,
    QueueNotFoundError,
    ReceiptHandleExpiredError,
)
from postroom.testing.clock import ManualClock
from tests.faults.checker import History, prove
from tests.faults.rig import PATIENCE, SharedClock, acknowledge, receive, send, wait_for

pytestmark = pytest.mark.faults


class World:
    def __init__(self, tmp_path: Path, store: str) -> None:
        self.store = store
        self.url = f"sqlite:///{tmp_path}/mail.db" if store == "sqlite" else f"memory://{tmp_path.name}?serialize=true"
        self.clock = SharedClock(tmp_path / "clock") if store == "sqlite" else ManualClock()
        self.log = History(tmp_path / "history", "test", sync=False)
        self.clients: list[postroom.QueueClient] = []

    def connect(self) -> postroom.QueueClient:
        client = postroom.connect(self.url, clock=self.clock)
        self.clients.append(client)
        return client


@pytest.fixture(params=["sqlite", "memory"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(tmp_path, request.param)
    yield world
    for client in world.clients:
        client.close()
    world.log.close()


def together(*acts: Callable[[], Any]) -> list[Any]:
    """Run them in threads, let go at the same moment; what each returned or raised."""
    barrier = threading.Barrier(len(acts))
    results: list[Any] = [None] * len(acts)

    def run(place: int, act: Callable[[], Any]) -> None:
        barrier.wait(PATIENCE)
        try:
            results[place] = act()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(n, act), daemon=True) for n, act in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return results


def test_of_two_threads_that_acknowledge_one_object_one_is_told_it_was_done(world: World) -> None:
    box = world.connect().mailbox("box")
    for n in range(30):
        box.send(n)
        [message] = box.receive()
        results = together(message.acknowledge, message.acknowledge)
        assert results.count(None) == 1
        assert [type(result) for result in results if result is not None] == [MessageFinalizedError]
    assert box.approximate_count() == 0


@pytest.mark.parametrize("first", ["acknowledge", "nack", "extend"])
def test_of_two_clients_with_one_handle_the_store_believes_one(world: World, first: str) -> None:
    """The same receipt handle, settled through two connections at once: exactly one of them finds the message."""
    one, other = world.connect(), world.connect()
    box = one.mailbox("box")
    for n in range(20):
        box.send(n)
        [message] = one.receive("box")
        act = {
            "acknowledge": lambda receipt=message.receipt: one.acknowledge(receipt),
            "nack": lambda receipt=message.receipt: one.requeue(receipt),
            "extend": lambda receipt=message.receipt: one.extend(receipt, 60),
        }[first]
        results = together(act, lambda receipt=message.receipt: other.acknowledge(receipt))
        won = [result for result in results if not isinstance(result, Exception)]
        lost = [result for result in results if isinstance(result, Exception)]
        assert all(isinstance(error, ReceiptHandleExpiredError) for error in lost), results
        assert len(won) == 1 or first == "extend"  # an extend may be followed by the acknowledge: both are right
        box.purge()


def test_two_tidiers_at_once_bury_and_lapse_each_message_once(world: World) -> None:
    """A thousand leases end and a hundred messages expire; eight callers tidy at the same moment."""
    client = world.connect()
    client.create_queue(postroom.QueueDefinition(name="box", max_delivery_count=2, dead_letter_on_expiry=True))
    box = client.mailbox("box")
    for key in range(300):
        send(world.log, box, f"m{key}")
    for key in range(100):
        send(world.log, box, f"e{key}", ttl=10)
    assert len(receive(world.log, box, 300, 5)) == 300
    world.clock.advance(20)
    world.log.note("struck", fault="lapse", times=300, unseen_claims=0)
    others = [world.connect() for _ in range(8)]
    results = together(
        *[lambda other=other: other.info("box") for other in others[:4]],
        *[lambda other=other: other.mailbox("box").receive(max_messages=1) for other in others[4:]],
    )
    assert not [result for result in results if isinstance(result, Exception)], results
    for [message] in results[4:]:
        assert message.delivery_count == 2
        message.nack()  # and that was the second of two
    info = client.info("box")
    assert (info.ready, info.in_flight, info.dead) == (296, 0, 104)
    reasons = Counter(dead.death.reason for dead in box.dead_letters.peek(1000) if dead.death)
    assert reasons == {"expired": 100, "max_deliveries": 4}
    world.clock.advance(20)
    for message in box.receive(max_messages=1000):
        assert message.delivery_count == 2


@pytest.mark.parametrize("end", ["purge", "delete"])
def test_purge_and_delete_against_what_is_in_flight(world: World, end: str) -> None:
    """Consumers and a sender go on while the queue is emptied under them, again and again: no error but the honest
    ones, nothing acknowledged twice, no counter that is off, and what is sent after the last purge is there."""
    client = world.connect()
    box = client.mailbox("box")
    box.approximate_count()
    stop = threading.Event()
    failures: list[BaseException] = []
    names = itertools.count()
    honest = (ReceiptHandleExpiredError, QueueNotFoundError)

    def guarded(act: Callable[[postroom.mailbox.Mailbox[Any, Any]], None]) -> Callable[[], None]:
        own = world.connect().mailbox("box")

        def run() -> None:
            while not stop.is_set():
                try:
                    act(own)
                except honest:
                    if end == "purge":
                        continue
                    own._box.ready = False  # opened anew, as a program that finds its queue gone would
                except BaseException as error:
                    failures.append(error)
                    return

        return run

    def produce(own: Any) -> None:
        own.send(f"p{next(names)}")

    def consume(own: Any) -> None:
        for message in own.receive(max_messages=5):
            message.acknowledge()

    def give_back(own: Any) -> None:
        for message in own.receive(max_messages=3):
            message.nack()

    threads = [
        threading.Thread(target=guarded(act), daemon=True) for act in (produce, produce, consume, consume, give_back)
    ]
    for thread in threads:
        thread.start()
    removed = 0
    for _ in range(25):
        removed += box.purge() if end == "purge" else client.delete_queue("box", force=True)
        if end == "delete":
            client.mailbox("box").approximate_count()
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert failures == []
    final = world.connect().mailbox("box")
    final.purge()
    info = final.info()
    assert (info.total, info.size_bytes, info.in_flight) == (0, 0, 0)
    final.send("after")
    assert [message.body for message in final.receive(max_messages=10)] == ["after"]
    if end == "purge":
        assert removed >= 0


def test_an_old_handle_after_a_purge_is_gone_even_when_the_queue_is_full_again(world: World) -> None:
    box = world.connect().mailbox("box")
    box.send_many(range(3))
    old = box.receive(max_messages=3)
    assert box.purge() == 3
    box.send_many(range(3))
    new = box.receive(max_messages=3)
    for act in (old[0].acknowledge, old[1].nack, lambda: old[2].extend_visibility(5)):
        with pytest.raises(ReceiptHandleExpiredError) as error:
            act()
        assert error.value.code == "gone"
    assert all(result.ok for result in box.acknowledge_many(new))


# --- many who wait -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_hundred_pollers_take_ten_thousand_messages_once_each(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And while there is nothing to take they use no processor, and they do not look again and again."""
    total, pollers = 10_000, 100
    looks = itertools.count()

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def count_and_act(*args: Any, **kwargs: Any) -> Any:
            next(looks)
            return act(*args, **kwargs)

        return count_and_act

    monkeypatch.setattr(sqlite_claim, "claim", counted(sqlite_claim.claim))
    monkeypatch.setattr(Space, "claim", counted(Space.claim))
    url = world.url
    seen: Counter[Any] = Counter()
    lock = threading.Lock()
    idle: list[float] = []

    def measure() -> None:
        """A second in which nothing happens: here time must pass, as it is what is measured."""
        before = time.process_time()
        time.sleep(1.0)
        idle.append(time.process_time() - before)

    def note(bodies: list[Any]) -> None:
        with lock:
            seen.update(bodies)

    def feed(client: postroom.QueueClient) -> None:
        box = client.mailbox("box")
        for start in range(0, total, 500):
            assert all(result.ok for result in box.send_many(range(start, start + 500)))

    if kind == "threads":
        client = postroom.connect(url)
        box = client.mailbox("box")
        box.approximate_count()
        done = threading.Event()

        def poll() -> None:
            while not done.is_set():
                messages = box.receive(max_messages=10, wait_time_seconds=20)
                note([message.body for message in messages])
                box.acknowledge_many(messages)

        threads = [threading.Thread(target=poll, daemon=True) for _ in range(pollers)]
        for thread in threads:
            thread.start()
        wait_for(lambda: _waiting(client) == pollers, "all wait")
        measure()
        feed(client)
        wait_for(lambda: len(seen) == total, "all were taken")
        wait_for(lambda: box.approximate_count() == 0, "all were acknowledged")
        done.set()
        box.close()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "closing wakes every waiter"
        client.close()
    else:

        async def main() -> None:
            client = postroom.aio.connect(url)
            feeder = postroom.connect(url)
            box = client.mailbox("box")
            await box.approximate_count()

            async def poll() -> None:
                while len(seen) < total:
                    messages = await box.receive(max_messages=10, wait_time_seconds=20)
                    note([message.body for message in messages])
                    await box.acknowledge_many(messages)

            tasks = [asyncio.create_task(poll()) for _ in range(pollers)]
            while _waiting(client) < pollers:
                await asyncio.sleep(0)
            await asyncio.to_thread(measure)
            await asyncio.to_thread(feed, feeder)
            async with asyncio.timeout(60):
                while len(seen) < total:
                    await asyncio.sleep(0.01)
            await box.close()
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*tasks)
            assert await client.mailbox("box").approximate_count() == 0
            await client.close()
            feeder.close()

        asyncio.run(main())
    assert len(seen) == total
    assert set(seen.values()) == {1}
    # Each message may cost a look of its own, and each ring may find that another was quicker.
    assert next(looks) < 2 * total + 20 * pollers
    assert idle[0] < 0.1, f"{idle[0]:.3f} s of processor time in a second in which a hundred waited"


def _waiting(client: Any) -> int:
    """How many wait at the queue, asked of the bells themselves."""
    driver = client._link.driver
    store = driver.store
    if hasattr(store, "site"):
        return sum(len(post.claims.waiters) for post in store.site.posts.values())
    return len(driver._space.queues["box"].bell.waiters)


def test_closing_while_others_send_and_wait_hangs_nobody(world: World) -> None:
    for _ in range(10):
        client = world.connect()
        box = client.mailbox("box")
        box.approximate_count()

        def sends(box: Any = box) -> None:
            for n in range(50):
                try:
                    box.send(n)
                except MailboxConnectionError as error:
                    if error.transient:
                        raise
                    return

        results = together(sends, sends, lambda box=box: box.receive(wait_time_seconds=15), client.close)
        assert [r for r in results if isinstance(r, Exception) and not isinstance(r, MailboxConnectionError)] == []


def test_the_history_of_many_threads_is_right(world: World) -> None:
    """Sixteen threads on one client: grouped commits and shared claims must not mix up whose message is whose."""
    client = world.connect()
    box = client.mailbox("box")
    box.approximate_count()

    def work(name: str) -> None:
        log = History(world.log.path, name, sync=False)
        for n in range(15):
            send(log, box, f"{name}-{n}")
            for message in receive(log, box, 2, 30):
                acknowledge(log, message)
        log.close()

    results = together(*[lambda n=n: work(f"t{n}") for n in range(16)])
    assert [result for result in results if result is not None] == []
    while messages := receive(world.log, box, 100, 30):
        for message in messages:
            acknowledge(world.log, message)
    report = prove(world.log)
    assert report.acked == report.sent == 240
