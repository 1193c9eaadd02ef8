"""Under asyncio: small steps are carried out on the loop, and nothing that takes its time ever is."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing

import pytest

import postroom.aio
from postroom.drivers import sqlite


@pytest.fixture
def runner():
    with asyncio.Runner() as runner:
        yield runner


class Spy:
    """Where steps ran."""

    def __init__(self, driver, monkeypatch) -> None:
        self.threads: list[int] = []
        real = driver.store._step

        def step(*args):
            self.threads.append(threading.get_ident())
            return real(*args)

        monkeypatch.setattr(driver.store, "_step", step)

    @property
    def on_the_loop(self) -> list[bool]:
        seen, self.threads = self.threads, []
        return [thread == threading.get_ident() for thread in seen]


async def filled(shop, n=10):
    client = postroom.aio.connect(f"sqlite:///{shop}")
    box = client.mailbox("orders", int)
    await box.send_many(range(n))
    return client, box


def test_a_synced_step_runs_on_a_thread_and_a_small_one_on_the_loop(shop, runner, monkeypatch):
    async def main():
        client, box = await filled(shop)
        async with client:
            spy = Spy(box._box.driver, monkeypatch)
            await box.send(1)
            assert spy.on_the_loop == [False]
            [message] = await box.receive()
            await message.acknowledge()
            assert spy.on_the_loop == [True, True]
            await box.receive(max_messages=1_000)
            assert spy.on_the_loop == [False]

    runner.run(main())


def test_everything_is_synced_and_on_a_thread_where_durability_is_strict(shop, runner, monkeypatch):
    async def main():
        async with postroom.aio.connect(f"sqlite:///{shop}", durability="strict") as client:
            box = client.mailbox("orders", int)
            await box.send(1)
            spy = Spy(box._box.driver, monkeypatch)
            [message] = await box.receive()
            await message.acknowledge()
            assert spy.on_the_loop == [False, False]

    runner.run(main())


def test_the_loop_goes_on_while_another_process_writes(shop, runner):
    async def main():
        client, box = await filled(shop)
        async with client:
            with closing(sqlite3.connect(shop, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                receiving = asyncio.create_task(box.receive())
                for _ in range(20):
                    await asyncio.sleep(0.005)  # a blocked loop would not come back before the busy timeout
                assert not receiving.done()
                other.execute("ROLLBACK")
            [message] = await asyncio.wait_for(receiving, 10)
            assert message.body == 0

    runner.run(main())


def test_the_loop_goes_on_while_another_thread_of_the_process_writes(shop, runner):
    async def main():
        client, box = await filled(shop)
        async with client:
            with box._box.driver.store.site.lock:
                receiving = asyncio.create_task(box.receive())
                for _ in range(20):
                    await asyncio.sleep(0.005)
                assert not receiving.done()
            [message] = await asyncio.wait_for(receiving, 10)
            assert message.body == 0

    runner.run(main())


def test_after_a_slow_step_a_thread_waits_for_the_disk(shop, runner, monkeypatch):
    async def main():
        client, box = await filled(shop)
        async with client:
            spy = Spy(box._box.driver, monkeypatch)
            monkeypatch.setattr(sqlite, "_BRIEF", -1.0)
            await box.receive()
            await box.receive()
            assert spy.on_the_loop == [True, False]

    runner.run(main())
