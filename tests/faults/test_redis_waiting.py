"""Who waits, and what it costs: connections, commands, and wake-ups that get lost."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

import postroom
import postroom.aio
from postroom.drivers import redis_wait
from tests.faults.checker import History, prove
from tests.faults.redis_rig import ROOT, Caller, Flavour, Later, blocked, drain, is_sound, wait_for
from tests.faults.rig import PATIENCE, Place, acknowledge, receive, send
from tests.faults.test_races import together
from tests.servers.valkey import Server

pytestmark = pytest.mark.faults
New = Callable[..., Server]
flavours = pytest.mark.parametrize("flavour", ["sync", "async"])


def commands(server: Server, *, of: tuple[str, ...] = ("evalsha", "eval", "blpop")) -> int:
    """How many of these it has carried out."""
    stats = server.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{one}", "calls=0,").split("calls=")[1].partition(",")[0]) for one in of)


def connections(server: Server, name: str) -> Counter[str]:
    """How many connections each client of this prefix has."""
    words = [line.split() for line in server.call("CLIENT", "LIST").splitlines()]
    names = [word[5:] for line in words for word in line if word.startswith("name=")]
    return Counter(one for one in names if one.startswith(name))


# --- a long poll is in nobody's way --------------------------------------------------------------------------------


def test_a_long_poll_blocks_neither_a_send_nor_an_acknowledge_of_the_same_mailbox(valkey: Server) -> None:
    with postroom.connect(valkey.url) as client:
        box, held = client.mailbox("box"), client.mailbox("held")
        held.send_many(range(50))
        messages = held.receive(max_messages=50)
        box.approximate_count()
        waiting = [Later(lambda: held.receive(wait_time_seconds=20)), Later(lambda: box.receive(wait_time_seconds=20))]
        wait_for(lambda: blocked(valkey) == 2, "both wait")
        began = time.monotonic()
        for message in messages:
            message.acknowledge()
        assert time.monotonic() - began < 1
        began = time.monotonic()
        box.send("x")
        held.send("y")
        assert [one.body for later in waiting for one in later.result()] == ["y", "x"]
        assert time.monotonic() - began < 1


def test_a_long_poll_of_one_task_blocks_no_other(valkey: Server) -> None:
    async def main() -> None:
        async with postroom.aio.connect(valkey.url) as client:
            box = client.mailbox("box")
            await box.send_many(range(50))
            messages = await box.receive(max_messages=50)
            waiting = [asyncio.create_task(box.receive(wait_time_seconds=20)) for _ in range(10)]
            while await asyncio.to_thread(blocked, valkey) < 1:
                await asyncio.sleep(0.005)
            began = time.monotonic()
            for message in messages:
                await message.acknowledge()
            for n in range(10):
                await box.send(n)
            got = [message.body for batch in await asyncio.gather(*waiting) for message in batch]
            assert sorted(got) == list(range(10))
            assert time.monotonic() - began < 2

    asyncio.run(main())


# --- how many connections ------------------------------------------------------------------------------------------


def test_a_hundred_threads_on_one_client(tmp_path: Path, valkey: Server) -> None:
    with Place(tmp_path, url=valkey.url, sync=False) as place:
        client = place.connect(client_name="many")
        box = client.mailbox("box")
        box.approximate_count()

        def work(n: int) -> None:
            log = History(place.log.path, f"t{n}", sync=False)
            for i in range(5):
                send(log, box, f"t{n}-{i}")
                for message in receive(log, box, 2, 30, wait=0.1):
                    acknowledge(log, message)
            log.close()

        results = together(*[lambda n=n: work(n) for n in range(100)])
        assert [result for result in results if result is not None] == []
        drain(place, box)
        report = prove(place.log)
        assert report.acked == report.sent == 500
        is_sound(valkey.url)


def test_a_hundred_tasks_on_one_client_need_a_few_connections(valkey: Server) -> None:
    async def main() -> None:
        async with postroom.aio.connect(valkey.url, client_name="tasks") as client:
            box = client.mailbox("box")

            async def work(n: int) -> int:
                done = 0
                for i in range(5):
                    await box.send(f"t{n}-{i}")
                    for message in await box.receive(max_messages=2, wait_time_seconds=0.1):
                        await message.acknowledge()
                        done += 1
                return done

            done = sum(await asyncio.gather(*[work(n) for n in range(100)]))
            while messages := await box.receive(max_messages=100):
                done += len(await box.acknowledge_many(messages))
            assert done == 500
            assert sum(connections(valkey, "tasks").values()) <= 4

    asyncio.run(main())
    is_sound(valkey.url)


@flavours
def test_a_hundred_clients_that_wait_have_two_connections_each(flavour: Flavour, valkey: Server) -> None:
    if flavour == "sync":
        clients = [postroom.connect(valkey.url, client_name=f"c{n}.") for n in range(100)]
        boxes = [client.mailbox("box") for client in clients]
        boxes[0].approximate_count()
        waiting = [Later(lambda box=box: box.receive(wait_time_seconds=PATIENCE)) for box in boxes]
        wait_for(lambda: blocked(valkey) == 100, "all wait")
        counted = connections(valkey, "c")
        boxes[0].send_many(range(100))
        bodies = [message.body for later in waiting for message in later.result()]
        for client in clients:
            client.close()
    else:

        async def main() -> tuple[Counter[str], list[Any]]:
            clients = [postroom.aio.connect(valkey.url, client_name=f"c{n}.") for n in range(100)]
            boxes = [client.mailbox("box") for client in clients]
            await boxes[0].approximate_count()
            waiting = [asyncio.create_task(box.receive(wait_time_seconds=PATIENCE)) for box in boxes]
            while await asyncio.to_thread(blocked, valkey) < 100:
                await asyncio.sleep(0.01)
            counted = await asyncio.to_thread(connections, valkey, "c")
            await boxes[0].send_many(range(100))
            bodies = [message.body for batch in await asyncio.gather(*waiting) for message in batch]
            for client in clients:
                await client.close()
            return counted, bodies

        counted, bodies = asyncio.run(main())
    assert len(counted) == 100
    assert max(counted.values()) <= 2
    assert sorted(bodies) == list(range(100))


@flavours
def test_waiting_in_a_loop_opens_no_connection_after_the_first_two(flavour: Flavour, new_valkey: New) -> None:
    server = new_valkey()
    with Caller(server.url, flavour) as caller:
        box = caller.client.mailbox("box")
        for _ in range(3):
            caller.receive(box, wait_time_seconds=0.01)
        before = int(server.info("stats")["total_connections_received"])
        for n in range(20):
            assert caller.receive(box, wait_time_seconds=0.01) == []
            caller.run(box.send, n)
            assert len(caller.receive(box, wait_time_seconds=1)) == 1
        assert int(server.info("stats")["total_connections_received"]) == before + 1  # the one that asks


# --- how many commands ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flavour", "why", "seconds"),
    [("sync", "empty", 6.0), ("async", "empty", 1.5), ("sync", "scheduled", 1.5), ("async", "in flight", 1.5)],
)
def test_an_idle_waiting_mailbox_makes_at_most_a_command_a_second(
    flavour: Flavour, why: str, seconds: float, new_valkey: New
) -> None:
    """Also while something is there that nobody can have yet, and with a hundred who wait on the same client."""
    server = new_valkey()
    with Caller(server.url, flavour) as caller:
        box = caller.client.mailbox("box")
        caller.run(box.approximate_count)
        if why == "scheduled":
            caller.run(box.send_many, range(10), delay_seconds=60)
        elif why == "in flight":
            caller.run(box.send_many, range(10))
            caller.receive(box, 10, visibility_timeout=60)
        if flavour == "sync":
            later = Later(lambda: caller.receive(box, wait_time_seconds=seconds + 0.6))
        else:

            async def wait() -> list[Any]:
                waiting = [box.receive(wait_time_seconds=seconds + 0.6) for _ in range(100)]
                return [message for batch in await asyncio.gather(*waiting) for message in batch]

            later = Later(lambda: caller.run(wait))
        wait_for(lambda: blocked(server) == 1, "it waits")
        time.sleep(0.3)
        before, cpu = commands(server), time.process_time()
        time.sleep(seconds)  # here time must pass, as it is what is measured
        assert commands(server) - before <= seconds
        assert time.process_time() - cpu < 0.1 * seconds
        assert later.result() == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "tasks", "clients"])
def test_a_hundred_pollers_take_ten_thousand_messages_once_each_without_a_busy_spin(kind: str, new_valkey: New) -> None:
    server = new_valkey()
    total, pollers = 10_000, 100
    seen: Counter[Any] = Counter()
    lock = threading.Lock()

    def feed() -> None:
        with postroom.connect(server.url) as client:
            box = client.mailbox("box")
            for start in range(0, total, 500):
                assert all(result.ok for result in box.send_many(range(start, start + 500)))

    if kind == "tasks":

        async def main() -> int:
            async with postroom.aio.connect(server.url) as client:
                box = client.mailbox("box")
                await box.approximate_count()

                async def poll() -> None:
                    while not box.closed:
                        messages = await box.receive(max_messages=10, wait_time_seconds=20)
                        seen.update(message.body for message in messages)
                        await box.acknowledge_many(messages)

                tasks = [asyncio.create_task(poll()) for _ in range(pollers)]
                await asyncio.sleep(0.3)
                before = commands(server)
                await asyncio.to_thread(feed)
                async with asyncio.timeout(30):
                    while len(seen) < total or await box.approximate_count():
                        await asyncio.sleep(0.05)
                used = commands(server) - before
                await box.close()
                async with asyncio.timeout(5):
                    await asyncio.gather(*tasks)
                return used

        used = asyncio.run(main())
    else:
        clients = [postroom.connect(server.url) for _ in range(pollers if kind == "clients" else 1)]
        clients[0].mailbox("box").approximate_count()
        done = threading.Event()

        def poll(box: Any) -> None:
            while not done.is_set():
                messages = box.receive(max_messages=10, wait_time_seconds=20)
                with lock:
                    seen.update(message.body for message in messages)
                box.acknowledge_many(messages)

        boxes = [client.mailbox("box") for client in clients]
        waiting = [Later(lambda box=box: poll(box)) for box in itertools.islice(itertools.cycle(boxes), pollers)]
        wait_for(lambda: blocked(server) == len(clients), "all wait")
        before = commands(server)
        feed()
        wait_for(lambda: len(seen) == total, "all were taken")
        wait_for(lambda: boxes[0].approximate_count() == 0, "all were acknowledged")
        used = commands(server) - before
        done.set()
        began = time.monotonic()
        for client in clients:
            client.close()
        for later in waiting:
            later.result()
        assert time.monotonic() - began < 5
    assert set(seen.values()) == {1}
    assert len(seen) == total
    # A claim and an acknowledge for each ten at the best; each ring may find that another was quicker.
    assert used < total + 20 * pollers, f"{used} commands for {total} messages"


# --- wake-ups ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flavour", "poll"), [("sync", redis_wait.POLL), ("async", 1.5)])
def test_a_wake_up_that_was_lost_costs_at_most_the_poll(
    flavour: Flavour, poll: float, valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever rings is told that nobody waits: the message is found when the waiter looks by itself, in 5 s."""
    assert poll <= 5
    monkeypatch.setattr(redis_wait, "POLL", poll)
    with Place(tmp_path, url=valkey.url) as place, Caller(valkey.url, flavour) as caller:
        box = caller.client.mailbox("box")
        caller.run(box.approximate_count)
        waiting = Later(lambda: caller.receive(box, wait_time_seconds=20))
        wait_for(lambda: blocked(valkey) == 1, "it waits")
        valkey.call("HDEL", f"{ROOT}info", "waits")
        send(place.log, place.box(), "m")
        assert valkey.call("EXISTS", f"{ROOT}bell") == 0
        place.log.note("struck", fault="no bell", unseen_claims=0)
        began = time.monotonic()
        [message] = waiting.result()
        assert time.monotonic() - began < 6
        assert message.delivery_count == 1
        prove(place.log, "no bell", drained=False)


def test_tokens_that_somebody_stole_cost_at_most_the_poll(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger pops the bell list, as a waiter does that dies with its token."""
    monkeypatch.setattr(redis_wait, "POLL", 1.5)
    with postroom.connect(valkey.url) as client, postroom.connect(valkey.url) as other, valkey.client() as thief:
        box = client.mailbox("box")
        box.approximate_count()
        stolen: list[Any] = []
        stealing = Later(lambda: stolen.append(thief.blpop([f"{ROOT}bell"], timeout=10)))  # first in line
        wait_for(lambda: blocked(valkey) == 1, "the thief waits")
        waiting = Later(lambda: box.receive(wait_time_seconds=20))
        wait_for(lambda: blocked(valkey) == 2, "it waits")
        began = time.monotonic()
        other.mailbox("box").send("m")
        stealing.result()
        assert stolen[0], "nothing was stolen, so this run proves nothing"
        assert [message.body for message in waiting.result()] == ["m"]
        assert 0.5 < time.monotonic() - began < 3


def test_of_two_who_wait_the_second_gets_the_message_when_the_first_was_rung_and_is_dead(valkey: Server) -> None:
    """Its connection is gone with the token: the other looks by itself."""
    with postroom.connect(valkey.url, client_name="first") as one, postroom.connect(valkey.url) as other:
        first, second = one.mailbox("box"), other.mailbox("box")
        first.approximate_count()
        leaving = Later(lambda: first.receive(wait_time_seconds=20))
        wait_for(lambda: blocked(valkey) == 1, "the first waits")
        staying = Later(lambda: second.receive(wait_time_seconds=20))
        wait_for(lambda: blocked(valkey) == 2, "the second waits")
        assert valkey.call("CLIENT", "PAUSE", 200, "WRITE") == "OK"
        sending = Later(lambda: other.mailbox("box").send("m"))
        first.close()  # at the moment that the ring is for it, or just before
        sending.result()
        began = time.monotonic()
        got = [*leaving.result(), *staying.result()]
        assert [message.body for message in got] == ["m"]
        assert time.monotonic() - began < 6


@flavours
@pytest.mark.parametrize("kind", ["mailbox", "client"])
def test_closing_from_elsewhere_ends_a_long_poll_at_once(flavour: Flavour, kind: str, valkey: Server) -> None:
    began = 0.0
    if flavour == "sync":
        client = postroom.connect(valkey.url)
        boxes = [client.mailbox("box") for _ in range(3)]
        boxes[0].approximate_count()
        waiting = [Later(lambda box=box: box.receive(wait_time_seconds=20)) for box in boxes]
        wait_for(lambda: blocked(valkey) == 1, "one listens")
        began = time.monotonic()
        for closable in boxes if kind == "mailbox" else [client]:
            closable.close()
        assert [later.result() for later in waiting] == [[]] * 3
        assert time.monotonic() - began < 1.5
        client.close()
    else:

        async def main() -> float:
            client = postroom.aio.connect(valkey.url)
            boxes = [client.mailbox("box") for _ in range(3)]
            await boxes[0].approximate_count()
            waiting = [asyncio.create_task(box.receive(wait_time_seconds=20)) for box in boxes]
            while await asyncio.to_thread(blocked, valkey) < 1:
                await asyncio.sleep(0.01)
            began = time.monotonic()
            for closable in boxes if kind == "mailbox" else [client]:
                await closable.close()
            assert [list(found) for found in await asyncio.gather(*waiting)] == [[]] * 3
            took = time.monotonic() - began
            await client.close()
            return took

        assert asyncio.run(main()) < 1.5
    wait_for(lambda: blocked(valkey) == 0, "nobody is left on the server")


def test_a_client_of_the_users_with_two_connections_serves_a_waiter_and_a_sender(valkey: Server) -> None:
    pool = redis.BlockingConnectionPool(host="127.0.0.1", port=valkey.port, max_connections=2, timeout=5)
    with redis.Redis(connection_pool=pool) as theirs, postroom.RedisMailbox("box", theirs) as box:
        box.approximate_count()
        waiting = Later(lambda: box.receive(wait_time_seconds=20))
        wait_for(lambda: blocked(valkey) == 1, "it waits")
        began = time.monotonic()
        box.send("m")
        assert [message.body for message in waiting.result()] == ["m"]
        assert time.monotonic() - began < 1
