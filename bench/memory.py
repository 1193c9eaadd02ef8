"""The memory store against a mailbox written by hand, and against itself: other flavour, more threads, more waiting."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import postroom
import postroom.aio
from bench.body import Order, order
from bench.figures import Table
from bench.measure import Side, interleave, percentile, trips
from bench.raw.memory import Letter, LockFreeMailbox, RawMailbox

# The targets in µs are for a machine on which the raw lease takes 0.6 and 1.0; on any other they scale with it.
SEND, RAW_SEND = 3.5, 0.6
TAKE, RAW_TAKE = 6.0, 1.0


def run(table: Table, *, quick: bool) -> None:
    singles(table, rounds=15 if quick else 60, n=2_000 if quick else 5_000)
    batches(table, rounds=8 if quick else 30)
    flavours(table, rounds=10 if quick else 40, n=1_000 if quick else 3_000)
    threads(table, rounds=4 if quick else 12, n=500 if quick else 2_000)
    round_trip(table, rounds=6 if quick else 20, n=100 if quick else 500)
    size(table, n=20_000 if quick else 100_000)
    depth(table, depths=(1_000, 20_000) if quick else (1_000, 100_000, 1_000_000), rounds=8 if quick else 25)


def _box() -> postroom.Mailbox[Order, Any]:
    return postroom.connect("memory://").mailbox("orders", Order)


def singles(table: Table, *, rounds: int, n: int) -> None:
    box, raw, bare, body = _box(), RawMailbox(), LockFreeMailbox(), order()

    def send(n: int) -> None:
        for _ in range(n):
            box.send(body)

    def take(n: int) -> None:
        for _ in range(n):
            [message] = box.receive()
            message.acknowledge()

    def raw_send(n: int) -> None:
        for _ in range(n):
            raw.send(body)

    def raw_take(n: int) -> None:
        for _ in range(n):
            letter = raw.receive()
            assert letter is not None
            raw.acknowledge(letter)

    def bare_send(n: int) -> None:
        for _ in range(n):
            bare.send(body)

    def bare_take(n: int) -> None:
        for _ in range(n):
            letter = bare.receive()
            assert letter is not None
            bare.acknowledge(letter)

    # Each side's queue holds what its sends put there until its receives take it, in the same round.
    seen = interleave(
        [
            Side("send", send),
            Side("take", take),
            Side("raw send", raw_send),
            Side("raw take", raw_take),
            Side("bare send", bare_send),
            Side("bare take", bare_take),
        ],
        rounds=rounds,
        n=n,
        fixed_order=True,
    )
    for key, what, target, base in (
        ("send", "send", SEND, RAW_SEND),
        ("take", "receive + acknowledge", TAKE, RAW_TAKE),
    ):
        ours, by_hand = seen.cpu(key), seen.cpu(f"raw {key}")
        table.add(f"memory_{key}_us", f"memory {what}, CPU as measured here", ours, "µs", ours=ours)
        ratio = seen.cpu_ratio(key, f"raw {key}")
        table.add(
            f"memory_{key}_ratio",
            f"memory {what}, CPU to the raw lease",
            ratio,
            at_most=round(target / base, 2),
            ours=ours,
            raw=by_hand,
        )
        wall = seen.wall_ratio(key, f"raw {key}")
        table.add(
            f"memory_{key}_wall",
            f"memory {what}, wall to the raw lease",
            wall,
            ours=seen.wall(key),
            raw=seen.wall(f"raw {key}"),
        )
        table.add(
            f"memory_{key}_lock_free",
            f"memory {what}, CPU to a raw lease without a lock",
            seen.cpu_ratio(key, f"bare {key}"),
            ours=ours,
            raw=seen.cpu(f"bare {key}"),
        )


def batches(table: Table, *, rounds: int) -> None:
    for size in (10, 100):
        box, raw, bodies = _box(), RawMailbox(), [order(i) for i in range(size)]

        def send(n: int, box: postroom.Mailbox[Order, Any] = box, bodies: list[Order] = bodies) -> None:
            for _ in range(n // len(bodies)):
                box.send_many(bodies)

        def take(n: int, box: postroom.Mailbox[Order, Any] = box, size: int = size) -> None:
            for _ in range(n // size):
                box.acknowledge_many(box.receive(max_messages=size))

        def raw_send(n: int, raw: RawMailbox = raw, bodies: list[Order] = bodies) -> None:
            for _ in range(n // len(bodies)):
                for body in bodies:
                    raw.send(body)

        def raw_take(n: int, raw: RawMailbox = raw) -> None:
            for _ in range(n):
                letter = raw.receive()
                assert letter is not None
                raw.acknowledge(letter)

        seen = interleave(
            [Side("send", send), Side("take", take), Side("raw send", raw_send), Side("raw take", raw_take)],
            rounds=rounds,
            n=5_000,
            fixed_order=True,
        )
        for key, what in (("send", "send"), ("take", "receive + acknowledge")):
            table.add(
                f"memory_{key}_batch_{size}_ratio",
                f"memory {what} by {size}, CPU to the raw lease",
                seen.cpu_ratio(key, f"raw {key}"),
                ours=seen.cpu(key),
                raw=seen.cpu(f"raw {key}"),
            )


def flavours(table: Table, *, rounds: int, n: int) -> None:
    box, body = _box(), order()
    other = postroom.aio.connect("memory://").mailbox("orders", Order)

    def sync(n: int) -> None:
        for _ in range(n):
            box.send(body)
        for _ in range(n):
            [message] = box.receive()
            message.acknowledge()

    async def alike(n: int) -> None:
        for _ in range(n):
            await other.send(body)
        for _ in range(n):
            [message] = await other.receive()
            await message.acknowledge()

    with asyncio.Runner() as runner:
        seen = interleave([Side("sync", sync), Side("async", lambda n: runner.run(alike(n)))], rounds=rounds, n=n)
    table.add(
        "memory_async_to_sync",
        "memory async, throughput to sync",
        1 / seen.cpu_ratio("async", "sync"),
        at_least=0.8,
        ours=seen.cpu("async"),
        raw=seen.cpu("sync"),
    )


def threads(table: Table, *, rounds: int, n: int) -> None:
    box, raw, body = _box(), RawMailbox(), order()

    def ours(n: int) -> None:
        for _ in range(n):
            box.send(body)
            [message] = box.receive()
            message.acknowledge()

    def by_hand(n: int) -> None:
        for _ in range(n):
            raw.send(body)
            letter = raw.receive()
            assert letter is not None
            raw.acknowledge(letter)

    seen = interleave(
        [Side("ours", in_threads(ours, 16)), Side("raw", in_threads(by_hand, 16)), Side("one", ours)],
        rounds=rounds,
        n=16 * n,
    )
    table.add(
        "memory_threads_ratio",
        "memory 16 threads, send + receive + ack, wall to the raw",
        seen.wall_ratio("ours", "raw"),
        ours=seen.wall("ours"),
        raw=seen.wall("raw"),
    )
    table.add(
        "memory_threads_to_one",
        "memory 16 threads, wall to the same work by one thread",
        seen.wall_ratio("ours", "one"),
        ours=seen.wall("ours"),
        raw=seen.wall("one"),
    )


def in_threads(work: Callable[[int], None], workers: int) -> Callable[[int], None]:
    """`work(n)`, shared out among threads that start together."""

    def run(n: int) -> None:
        crew = [threading.Thread(target=work, args=(n // workers,)) for _ in range(workers)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()

    return run


def round_trip(table: Table, *, rounds: int, n: int) -> None:
    """A request, acknowledged and answered by another thread; the answer received and acknowledged.

    Where the two threads run decides more than what they do: on two cores each handing over wakes a core that sleeps.
    The scheduler may well put one side's threads on one core and the other side's on two, so they are put there.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    _round_trip(table, "round_trip", "as the scheduler puts them", None, rounds, n)
    if len(cores) > 1:
        _round_trip(table, "round_trip_one_core", "on one core", (cores[0], cores[0]), rounds, n)
        _round_trip(table, "round_trip_two_cores", "on two cores", (cores[0], cores[1]), rounds, n)


def _round_trip(table: Table, key: str, where: str, cores: tuple[int, int] | None, rounds: int, n: int) -> None:
    client = postroom.connect("memory://")
    requests, replies = client.mailbox("requests", Order), client.mailbox("replies", Order)
    raw_requests, raw_replies = RawMailbox(), RawMailbox()
    body, last = order(), order(qty=-1)

    def answer() -> None:
        with _on(cores and cores[1]):
            while True:
                for message in requests.receive(wait_time_seconds=20):
                    message.acknowledge()
                    if message.body.qty < 0:
                        return
                    replies.send(message.body)

    def raw_answer() -> None:
        with _on(cores and cores[1]):
            while True:
                letter = raw_requests.receive(wait=20)
                if letter is not None:
                    raw_requests.acknowledge(letter)
                    if letter.body.qty < 0:
                        return
                    raw_replies.send(letter.body)

    def trip() -> None:
        requests.send(body)
        [message] = replies.receive(wait_time_seconds=20)
        message.acknowledge()

    def raw_trip() -> None:
        raw_requests.send(body)
        letter: Letter | None = raw_replies.receive(wait=20)
        assert letter is not None
        raw_replies.acknowledge(letter)

    crew = [threading.Thread(target=work, daemon=True) for work in (answer, raw_answer)]
    for thread in crew:
        thread.start()
    with _on(cores and cores[0]):
        seen = trips([("ours", trip), ("raw", raw_trip)], rounds=rounds, n=n)
    requests.send(last)
    raw_requests.send(last)
    for thread in crew:
        thread.join()
    for share, at_most in ((0.5, 2.0), (0.99, None)):
        ours, raw = percentile(seen["ours"], share), percentile(seen["raw"], share)
        table.add(
            f"memory_{key}_p{share * 100:.0f}",
            f"memory round trip, threads {where}, p{share * 100:.0f} to raw",
            ours / raw,
            at_most=at_most,
            ours=ours,
            raw=raw,
        )


@contextmanager
def _on(core: int | None) -> Iterator[None]:
    """This thread on that core, or wherever it likes."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def size(table: Table, *, n: int) -> None:
    """What a waiting message takes over its body, which exists before it is sent and is passed by reference."""
    box = _box()
    box.send(order())
    bodies = [order(i) for i in range(n)]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for body in bodies:
        box.send(body)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    table.add(
        "memory_bytes",
        "memory bytes a waiting message over its body (tracemalloc)",
        (after - before) / n,
        "B",
        at_most=450,
    )
    grown = json.loads(
        subprocess.run(
            [sys.executable, "-m", "bench.memory", str(n * 2)], check=True, capture_output=True, text=True
        ).stdout
    )
    table.add("memory_rss", "memory bytes a waiting message over its body (RSS)", grown, "B", at_most=450)


def grow(n: int) -> float:
    """Bytes of resident memory a message, in a fresh process whose heap has no holes to fill."""
    box = _box()
    bodies = [order(i) for i in range(n)]
    for body in bodies[:100]:
        box.send(body)
    before = _resident()
    for body in bodies[100:]:
        box.send(body)
    return (_resident() - before) / (n - 100)


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def depth(table: Table, *, depths: tuple[int, ...], rounds: int) -> None:
    """The cost of a send and of a receive with that many waiting; the length stays the same."""
    body, sides = order(), []
    for waiting in depths:
        box = _box()
        bodies = [body] * 1_000
        for _ in range(waiting // 1_000):
            box.send_many(bodies)

        def work(n: int, box: postroom.Mailbox[Order, Any] = box) -> None:
            for _ in range(n):
                box.send(body)
                [message] = box.receive()
                message.acknowledge()

        sides.append(Side(str(waiting), work))
    seen = interleave(sides, rounds=rounds, n=1_000)
    base = str(depths[0])
    for waiting in depths[1:]:
        table.add(
            f"memory_depth_{short(waiting)}",
            f"memory send + receive + ack with {short(waiting)} waiting, to {short(depths[0])}",
            seen.cpu_ratio(str(waiting), base),
            at_most=1.2,
            ours=seen.cpu(str(waiting)),
            raw=seen.cpu(base),
        )


def short(n: int) -> str:
    return f"{n // 1_000_000}M" if n >= 1_000_000 else f"{n // 1_000}k"


if __name__ == "__main__":
    print(json.dumps(grow(int(sys.argv[1]))))
