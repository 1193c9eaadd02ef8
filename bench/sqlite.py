"""The SQLite store against its own SQL called by hand (a), and against a queue written by hand (b).

python -m bench.sqlite FILE    the echoing side of a round trip between processes
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import postroom
import postroom.aio
from bench.body import Order, order
from bench.by_hand import ByHand
from bench.figures import Table
from bench.measure import Run, Side, interleave, percentile, trips
from bench.memory import in_threads, short
from bench.raw import doorbell
from bench.raw import sqlite as raw

LIKE_A, LIKE_B = {1: 0.8, 10: 0.7, 100: 0.7}, 0.5


def run(table: Table, directory: Path, *, quick: bool) -> None:
    same_statements(table, directory)
    for size, n, rounds in ((1, 60, 40), (10, 400, 25), (100, 2_000, 20)):
        batches(table, directory, size=size, n=n, rounds=4 if quick else rounds)
    flavours(table, directory, rounds=4 if quick else 20)
    threads(table, directory, rounds=3 if quick else 12, n=20 if quick else 50)
    round_trip(table, directory, rounds=4 if quick else 20, n=25 if quick else 50)
    depth(table, directory, depths=(1_000, 20_000) if quick else (1_000, 100_000, 1_000_000), rounds=6 if quick else 30)
    sessions(table, directory, many=2_000 if quick else 10_000, rounds=6 if quick else 30)


class Queue(Protocol):
    """What the two baselines have in common."""

    def send(self, body: Any) -> str: ...
    def send_many(self, bodies: list[Any]) -> list[str]: ...
    def receive(self, n: int = 1) -> list[tuple[int, str, Any]]: ...
    def acknowledge(self, seq: int, token: str) -> bool: ...
    def acknowledge_many(self, held: list[tuple[int, str]]) -> int: ...


def _box(path: Path, **options: Any) -> postroom.Mailbox[Order, Any]:
    box = postroom.connect(f"sqlite:///{path}", **options).mailbox("orders", Order)
    box.approximate_count()  # makes the queue
    return box


def _raw(path: Path, queue: int = 1) -> raw.RawQueue:
    raw.make(str(path))
    return raw.RawQueue(str(path), Order, queue)


def same_statements(table: Table, directory: Path) -> None:
    """Whether (a) still says what the driver says."""
    box = _box(directory / "trace.db")
    by_hand = ByHand(str(directory / "trace.db"), "orders", Order)
    for works in (_ours(box, 1), _theirs(by_hand, 1)):  # the first time, the driver reads the queue's definition
        works[0](1)
        works[1](1)
    ours, theirs = _Trace(box._box.driver.store._writer), _Trace(by_hand.connection)  # type: ignore[attr-defined]  # looking under the bonnet is the point
    differ = []
    for size in (1, 10):
        bodies = [order(i) for i in range(size)]
        send, take = _ours(box, size), _theirs(by_hand, size)
        for work, hand in ((send[0], take[0]), (send[1], take[1])):
            work(len(bodies))
            hand(len(bodies))
            if (said := ours.flush()) != (meant := theirs.flush()):
                differ.append((said, meant))
    by_hand.close()
    for said, meant in differ:
        print("  (a) is out of date; the driver says", *said, "and by_hand.py", *meant, sep="\n    ", file=sys.stderr)
    table.add(
        "sqlite_same_statements", "baseline (a) runs the driver's statements (1: yes)", not differ, "", at_least=1
    )


class _Trace:
    """The statements of a connection, without their values."""

    def __init__(self, connection: Any) -> None:
        self._said: list[str] = []
        connection.set_trace_callback(self._hear)

    def _hear(self, statement: str) -> None:
        # Which connection stood at which durability before is not the point.
        if not statement.startswith("PRAGMA"):
            self._said.append(re.sub(r"[xX]?'[^']*'|-?\b\d+(\.\d+)?\b|\bNULL\b(?=[,)])|\s+", "?", statement)[:400])

    def flush(self) -> list[str]:
        said, self._said[:] = list(self._said), []
        return said


Works = tuple[Callable[[int], None], Callable[[int], None]]


def _ours(box: postroom.Mailbox[Order, Any], size: int) -> Works:
    """(send n, receive and acknowledge n), `size` at a time."""
    body, bodies = order(), [order(i) for i in range(size)]

    def send(n: int) -> None:
        for _ in range(n):
            box.send(body)

    def take(n: int) -> None:
        for _ in range(n):
            [message] = box.receive()
            message.acknowledge()

    def send_many(n: int) -> None:
        for _ in range(n // size):
            box.send_many(bodies)

    def take_many(n: int) -> None:
        for _ in range(n // size):
            box.acknowledge_many(box.receive(max_messages=size))

    return (send, take) if size == 1 else (send_many, take_many)


def _theirs(queue: Queue, size: int) -> Works:
    body, bodies = order(), [order(i) for i in range(size)]

    def send(n: int) -> None:
        for _ in range(n):
            queue.send(body)

    def take(n: int) -> None:
        for _ in range(n):
            [(seq, token, _)] = queue.receive()
            assert queue.acknowledge(seq, token)

    def send_many(n: int) -> None:
        for _ in range(n // size):
            queue.send_many(bodies)

    def take_many(n: int) -> None:
        for _ in range(n // size):
            held = [(seq, token) for seq, token, _ in queue.receive(size)]
            assert queue.acknowledge_many(held) == size

    return (send, take) if size == 1 else (send_many, take_many)


def batches(table: Table, directory: Path, *, size: int, n: int, rounds: int) -> None:
    box = _box(directory / f"ours-{size}.db")
    _box(directory / f"a-{size}.db").close()
    a = ByHand(str(directory / f"a-{size}.db"), "orders", Order)
    b = _raw(directory / f"b-{size}.db")
    works = {"ours": _ours(box, size), "a": _theirs(a, size), "b": _theirs(b, size)}
    sends = interleave([Side(name, send, after=take) for name, (send, take) in works.items()], rounds=rounds, n=n)
    takes = interleave([Side(name, take, before=send) for name, (send, take) in works.items()], rounds=rounds, n=n)
    _compare(table, sends, size, "send", "durable send", synced=True)
    _compare(table, takes, size, "take", "receive + ack", synced=False)
    a.close()
    b.close()
    box.close()


def _compare(table: Table, seen: Run, size: int, key: str, what: str, *, synced: bool) -> None:
    for name, at_least in (("a", LIKE_A[size]), ("b", LIKE_B)):
        table.add(
            f"sqlite_{key}_{size}_cpu_{name}",
            f"SQLite {what} by {size}, CPU: share of raw ({name})",
            1 / seen.cpu_ratio("ours", name),
            at_least=at_least,
            ours=seen.cpu("ours"),
            raw=seen.cpu(name),
        )
        ratio = seen.synced_ratio if synced else seen.wall_ratio
        table.add(
            f"sqlite_{key}_{size}_wall_{name}",
            f"SQLite {what} by {size}, wall: share of raw ({name})",
            1 / ratio("ours", name),
            at_least=at_least,
            ours=seen.typical_wall("ours"),
            raw=seen.typical_wall(name),
        )


def flavours(table: Table, directory: Path, *, rounds: int) -> None:
    for size in (10, 100):
        box = _box(directory / f"sync-{size}.db")
        client = postroom.aio.connect(f"sqlite:///{directory}/async-{size}.db")
        other = client.mailbox("orders", Order)
        bodies = [order(i) for i in range(size)]
        send, take = _ours(box, size)

        async def send_many(n: int, size: int = size, other: Any = other, bodies: list[Order] = bodies) -> None:
            for _ in range(n // size):
                await other.send_many(bodies)

        async def take_many(n: int, size: int = size, other: Any = other) -> None:
            for _ in range(n // size):
                await other.acknowledge_many(await other.receive(max_messages=size))

        with asyncio.Runner() as runner:
            pairs = (("send", send, send_many, take, take_many), ("take", take, take_many, send, send_many))
            for key, work, alike, undo, undo_alike in pairs:
                first = key == "send"

                def sync_undo(n: int, undo: Callable[[int], None] = undo) -> None:
                    undo(n)

                def async_work(n: int, alike: Any = alike) -> None:
                    runner.run(alike(n))

                def async_undo(n: int, undo_alike: Any = undo_alike) -> None:
                    runner.run(undo_alike(n))

                seen = interleave(
                    [
                        Side("sync", work, None if first else sync_undo, sync_undo if first else None),
                        Side("async", async_work, None if first else async_undo, async_undo if first else None),
                    ],
                    rounds=rounds,
                    n=10 * size,
                )
                ratio = seen.synced_ratio("async", "sync") if first else seen.wall_ratio("async", "sync")
                table.add(
                    f"sqlite_async_{key}_{size}",
                    f"SQLite async {'durable send' if first else 'receive + ack'} by {size}, wall throughput to sync",
                    1 / ratio,
                    at_least=0.7,
                    ours=seen.typical_wall("async"),
                    raw=seen.typical_wall("sync"),
                )
            runner.run(client.close())
        box.close()


def threads(table: Table, directory: Path, *, rounds: int, n: int) -> None:
    """Durable sends of 16 threads, which share commits, against one connection behind a lock."""
    box, b, lock, body = _box(directory / "threads.db"), _raw(directory / "threads-b.db"), threading.Lock(), order()

    def ours(n: int) -> None:
        for _ in range(n):
            box.send(body)

    def locked(n: int) -> None:
        for _ in range(n):
            with lock:
                b.send(body)

    seen = interleave(
        [Side("ours", in_threads(ours, 16)), Side("raw", in_threads(locked, 16))], rounds=rounds, n=16 * n
    )
    table.add(
        "sqlite_threads",
        "SQLite 16 threads sending durably, wall throughput to raw behind a lock",
        1 / seen.synced_ratio("ours", "raw"),
        at_least=2.5,
        ours=seen.typical_wall("ours"),
        raw=seen.typical_wall("raw"),
    )
    b.close()
    box.close()


def round_trip(table: Table, directory: Path, *, rounds: int, n: int) -> None:
    """A request, acknowledged and answered by another process; its answer received and acknowledged."""
    path, raw_path = str(directory / "trip.db"), str(directory / "trip-b.db")
    raw.make(raw_path)
    with (
        _child("bench.sqlite", path) as child,
        _child("bench.raw.doorbell", raw_path) as raw_child,
        postroom.connect(f"sqlite:///{path}") as client,
    ):
        requests, replies = client.mailbox("requests", Order), client.mailbox("replies", Order)
        raw_requests, raw_replies = raw.RawQueue(raw_path, Order, 1), raw.RawQueue(raw_path, Order, 2)
        rings, waits = doorbell.Bell(raw_path, 1, waits=False), doorbell.Bell(raw_path, 2, waits=True)
        body = order()

        def trip() -> None:
            requests.send(body)
            [message] = replies.receive(wait_time_seconds=20)
            message.acknowledge()

        def raw_trip() -> None:
            raw_requests.send(body)
            rings.ring()
            seq, token, _ = doorbell.take(raw_replies, waits)
            raw_replies.acknowledge(seq, token)

        seen = trips([("ours", trip), ("raw", raw_trip)], rounds=rounds, n=n)
        requests.send(order(qty=-1))
        raw_requests.send(order(qty=-1))
        rings.ring()
        child.wait(30)
        raw_child.wait(30)
        waits.close()
    for share, at_most in ((0.5, 1.5), (0.99, None)):
        ours, by_hand = percentile(seen["ours"], share), percentile(seen["raw"], share)
        table.add(
            f"sqlite_round_trip_p{share * 100:.0f}",
            f"SQLite round trip between processes, p{share * 100:.0f} to raw doorbell",
            ours / by_hand,
            at_most=at_most,
            ours=ours,
            raw=by_hand,
        )


@contextmanager
def _child(module: str, path: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-m", module, path], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            if child.stdout.readline() != "ready\n":
                raise RuntimeError(f"{module} did not start")
            yield child
        finally:
            child.kill()  # if it has not left by itself, we come from a failure, and nobody would ever ask it to


def echo(path: str) -> None:
    """Answer requests until one has a negative quantity."""
    client = postroom.connect(f"sqlite:///{path}")
    requests, replies = client.mailbox("requests", Order), client.mailbox("replies", Order)
    requests.approximate_count()
    print("ready", flush=True)
    while True:
        for message in requests.receive(wait_time_seconds=20):
            message.acknowledge()
            if message.body.qty < 0:
                return
            replies.send(message.body)


def depth(table: Table, directory: Path, *, depths: tuple[int, ...], rounds: int) -> None:
    """What a claim costs with that many waiting. What it took is acknowledged and replaced between the rounds."""
    boxes = {}
    for waiting in depths:
        path = directory / f"depth-{waiting}.db"
        boxes[str(waiting)] = _box(path)
        fill = ByHand(str(path), "orders", Order)
        for at in range(0, waiting, 50_000):
            fill.send_many([order(i) for i in range(min(50_000, waiting - at))], synced=False)
        fill.close()
    seen = _claims(boxes, rounds, refill=True)
    base = str(depths[0])
    for waiting in depths[1:]:
        _flat(table, seen, f"sqlite_claim_{short(waiting)}", f"with {short(waiting)} waiting, to {short(depths[0])}",
              str(waiting), base)  # fmt: skip
    for box in boxes.values():
        box.close()


def sessions(table: Table, directory: Path, *, many: int, rounds: int) -> None:
    few = many // 10
    boxes = {"plain": _box(directory / "plain.db", durability="relaxed")}
    boxes["plain"].send_many([order(i) for i in range(1_000)])
    for number in (few, many):
        boxes[str(number)] = box = _box(directory / f"sessions-{number}.db", durability="relaxed")
        for session in range(number):
            box.send_many([order(i) for i in range(4)], session_id=f"s{session}")
    plain = _claims({"plain": boxes["plain"]}, rounds, refill=True)
    seen = _claims({name: box for name, box in boxes.items() if name != "plain"}, rounds, refill=False)
    _flat(table, seen, "sqlite_claim_sessions", f"with {short(many)} sessions, to {few}", str(many), str(few))
    table.add(
        "sqlite_claim_session_to_plain",
        f"SQLite claim with {short(many)} sessions, CPU to a queue without",
        seen.cpu(str(many)) / plain.cpu("plain"),
        ours=seen.cpu(str(many)),
        raw=plain.cpu("plain"),
    )
    for box in boxes.values():
        box.close()


def _claims(boxes: dict[str, postroom.Mailbox[Order, Any]], rounds: int, *, refill: bool) -> Run:
    """Single claims. With `refill` plain messages replace those taken; members of a session are replaced there."""
    held: dict[str, list[postroom.Message[Order, Any]]] = {name: [] for name in boxes}

    def side(name: str, box: postroom.Mailbox[Order, Any]) -> Side:
        def claim(n: int) -> None:
            mine = held[name]
            for _ in range(n):
                mine += box.receive()

        def put_back(n: int) -> None:
            for message in held[name]:
                session = message.session_id
                message.acknowledge()
                if session is not None:
                    box.send(order(), session_id=session)
            if refill:
                box.send_many([order(i) for i in range(n)])
            assert len(held[name]) == n
            held[name].clear()

        return Side(name, claim, after=put_back)

    return interleave([side(name, box) for name, box in boxes.items()], rounds=rounds, n=100)


def _flat(table: Table, seen: Run, key: str, what: str, name: str, base: str) -> None:
    for clock, ratio, ours, raw_us in (
        ("CPU", seen.cpu_ratio(name, base), seen.cpu(name), seen.cpu(base)),
        ("wall", seen.wall_ratio(name, base), seen.wall(name), seen.wall(base)),
    ):
        table.add(f"{key}_{clock.lower()}", f"SQLite claim {what}, {clock}", ratio, at_most=1.2, ours=ours, raw=raw_us)


if __name__ == "__main__":
    echo(sys.argv[1])
