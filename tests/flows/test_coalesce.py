"""Sharing a call: nobody waits in vain, fails for another, or is carried by somebody who may be interrupted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from postroom.drivers.io import Awaiting, Inline, drive
from postroom.errors import ServiceUnavailableError
from postroom.flows.coalesce import LIMIT, Gatherer


class Store:
    """A verb that takes its time: it doubles numbers, in batches it remembers, while `open` is set."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.fails = False
        self.threads: list[threading.Thread] = []

    async def act(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        self.threads.append(threading.current_thread())
        self.entered.release()
        assert self.open.wait(10)
        if self.fails:
            raise ServiceUnavailableError("away")
        return [item * 2 for item in items]


def in_line(gatherer: Gatherer[int, int], n: int) -> None:
    """Wait until `n` callers wait for their turn."""
    done = threading.Event()
    while len(gatherer._line) < n:
        done.wait(0.001)


def callers(gatherer: Gatherer[int, int], store: Store, n: int) -> tuple[list[threading.Thread], dict[int, object]]:
    """One caller under way and `n` - 1 in line behind it, each in a thread of its own."""
    results: dict[int, object] = {}

    def call(item: int) -> None:
        try:
            results[item] = drive(gatherer.run([item]))
        except ServiceUnavailableError as error:
            results[item] = error

    threads = [threading.Thread(target=call, args=(item,)) for item in range(n)]
    threads[0].start()
    assert store.entered.acquire(timeout=10)
    for thread in threads[1:]:
        thread.start()
    in_line(gatherer, n - 1)
    return threads, results


def test_a_lone_caller_goes_at_once_and_alone() -> None:
    store = Store()
    store.open.set()
    gatherer = Gatherer(Inline(), store.act)
    assert [drive(gatherer.run([n])) for n in range(3)] == [[0], [2], [4]]
    assert store.batches == [[0], [1], [2]]


def test_those_who_come_meanwhile_share_the_next_call() -> None:
    store = Store()
    gatherer = Gatherer(Inline(), store.act)
    threads, results = callers(gatherer, store, 16)
    store.open.set()
    for thread in threads:
        thread.join(10)
    assert results == {n: [n * 2] for n in range(16)}
    assert [len(batch) for batch in store.batches] == [1, 15]


def test_a_failed_call_tells_everybody_with_an_error_of_their_own_and_the_next_one_works() -> None:
    store = Store()
    store.fails = True
    gatherer = Gatherer(Inline(), store.act)
    threads, results = callers(gatherer, store, 4)
    store.open.set()
    for thread in threads:
        thread.join(10)
    errors = list(results.values())
    assert all(isinstance(error, ServiceUnavailableError) for error in errors)
    assert len({id(error) for error in errors}) == 4  # one exception object must not be raised in two threads
    store.fails = False
    assert drive(gatherer.run([21])) == [42]


def test_a_batch_has_a_limit() -> None:
    store = Store()
    gatherer = Gatherer(Inline(), store.act)
    results: list[list[int]] = []
    first = threading.Thread(target=lambda: results.append(drive(gatherer.run([0]))))
    first.start()
    assert store.entered.acquire(timeout=10)
    others = [threading.Thread(target=lambda: results.append(drive(gatherer.run([1] * 600)))) for _ in range(3)]
    for thread in others:
        thread.start()
    in_line(gatherer, 3)
    store.open.set()
    for thread in [first, *others]:
        thread.join(10)
    assert [len(batch) for batch in store.batches] == [1, 600, 600, 600]
    assert all(size <= LIMIT for size in map(len, store.batches))
    assert len(results) == 4


class Slow(Inline):
    """Lets the others run until as many as wanted are in line."""

    gatherer: Gatherer[int, int]
    wanted = 0

    async def let_others_run(self) -> None:
        in_line(self.gatherer, self.wanted)


def test_whoever_comes_first_after_a_batch_of_several_takes_along_those_who_come_right_behind() -> None:
    """Else every other call would carry a single item."""
    store, io = Store(), Slow()
    io.gatherer = gatherer = Gatherer(io, store.act)
    io.wanted = 5  # the first one itself is in line too
    threads, _ = callers(gatherer, store, 5)
    store.open.set()
    for thread in threads:
        thread.join(10)
    again, results = [], {}
    for item in range(5):
        again.append(threading.Thread(target=lambda item=item: results.update({item: drive(gatherer.run([item]))})))
        again[-1].start()
    for thread in again:
        thread.join(10)
    assert results == {n: [n * 2] for n in range(5)}
    assert [len(batch) for batch in store.batches] == [1, 4, 5]


def test_after_a_call_for_one_a_lone_caller_goes_at_once_again() -> None:
    store, io = Store(), Slow()
    io.gatherer = gatherer = Gatherer(io, store.act)
    io.wanted = 1
    threads, _ = callers(gatherer, store, 3)
    store.open.set()
    for thread in threads:
        thread.join(10)
    one = threading.Thread(target=lambda: drive(gatherer.run([7])))
    one.start()
    one.join(10)
    io.wanted = 1_000  # whoever let others run now would never come back
    another = threading.Thread(target=lambda: drive(gatherer.run([8])), daemon=True)
    another.start()
    another.join(10)
    assert store.batches[2:] == [[7], [8]]


def test_the_main_thread_takes_no_part() -> None:
    """It alone gets Ctrl-C, which could strike between taking the lead and giving it back: it goes its own way."""
    store = Store()
    gatherer = Gatherer(Inline(), store.act)
    threads, results = callers(gatherer, store, 3)
    mine: list[list[int]] = []
    opener = threading.Thread(target=lambda: (store.entered.acquire(timeout=10), store.open.set()))
    opener.start()  # lets everybody go once the main thread is in the store, too
    mine.append(drive(gatherer.run([100])))
    for thread in [*threads, opener]:
        thread.join(10)
    assert mine == [[200]]
    assert results == {n: [n * 2] for n in range(3)}
    for batch, thread in zip(store.batches, store.threads, strict=True):
        assert (batch == [100]) == (thread is threading.main_thread())


class Interrupted(BaseException):
    pass


def test_an_interrupt_of_the_one_under_way_lets_the_next_one_go() -> None:
    entered, go_on = threading.Event(), threading.Event()

    async def act(items: Sequence[int]) -> list[int]:
        if items[0] == 0:
            entered.set()
            assert go_on.wait(10)
            raise Interrupted
        return list(items)

    gatherer = Gatherer[int, int](Inline(), act)
    seen: list[object] = []

    def interrupted() -> None:
        try:
            drive(gatherer.run([0]))
        except Interrupted:
            seen.append("interrupted")

    threads = [
        threading.Thread(target=interrupted),
        threading.Thread(target=lambda: seen.append(drive(gatherer.run([7])))),
    ]
    threads[0].start()
    assert entered.wait(10)
    threads[1].start()
    in_line(gatherer, 1)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert sorted(map(str, seen)) == ["[7]", "interrupted"]


class AsyncStore:
    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()

    async def act(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        await self.gate.wait()
        return [item * 2 for item in items]


async def settle_down() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("cancelled", range(4))
def test_cancelling_any_one_task_fails_no_other(cancelled: int) -> None:
    async def main() -> None:
        store = AsyncStore()
        gatherer = Gatherer(Awaiting(), store.act)
        tasks = [asyncio.create_task(gatherer.run([n])) for n in range(4)]
        await settle_down()  # one is under way, three are in line
        tasks[cancelled].cancel()
        await settle_down()
        store.gate.set()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        for n, result in enumerate(results):
            assert isinstance(result, asyncio.CancelledError) if n == cancelled else result == [n * 2]
        assert await asyncio.wait_for(gatherer.run([50]), 10) == [100]

    asyncio.run(main())


def test_cancelling_the_leader_after_departure_delivers_to_those_it_carries() -> None:
    async def main() -> None:
        store = AsyncStore()
        gatherer = Gatherer(Awaiting(), store.act)
        tasks = [asyncio.create_task(gatherer.run([n])) for n in range(4)]
        await settle_down()
        store.gate.set()
        await tasks[0]
        store.gate.clear()
        await settle_down()
        assert store.batches == [[0], [1, 2, 3]]  # the second task leads, and its batch is under way
        tasks[1].cancel()
        await settle_down()
        store.gate.set()
        assert await asyncio.wait_for(asyncio.gather(*tasks[2:]), 10) == [[4], [6]]
        assert tasks[1].cancelled()
        assert await asyncio.wait_for(gatherer.run([50]), 10) == [100]

    asyncio.run(main())


def test_one_that_leaves_the_line_takes_its_items_along() -> None:
    async def main() -> None:
        store = AsyncStore()
        gatherer = Gatherer(Awaiting(), store.act)
        tasks = [asyncio.create_task(gatherer.run([n])) for n in range(3)]
        await settle_down()
        tasks[2].cancel()
        await settle_down()
        store.gate.set()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        assert store.batches == [[0], [1]]

    asyncio.run(main())


def test_a_task_cancelled_while_it_lets_others_run_leaves_the_lead_to_them() -> None:
    async def main() -> None:
        store = AsyncStore()
        gatherer = Gatherer(Awaiting(), store.act)
        first = [asyncio.create_task(gatherer.run([n])) for n in range(4)]
        await settle_down()
        store.gate.set()
        await asyncio.gather(*first)
        tasks = [asyncio.create_task(gatherer.run([n])) for n in (10, 11)]
        await asyncio.sleep(0)  # the first lets others run, the second is in line behind it
        tasks[0].cancel()
        assert await asyncio.wait_for(tasks[1], 10) == [22]
        assert tasks[0].cancelled()
        assert await asyncio.wait_for(gatherer.run([50]), 10) == [100]
        assert [item for batch in store.batches for item in batch] == [0, 1, 2, 3, 11, 50]

    asyncio.run(main())
