"""The Redis store against its own scripts called by hand (a), and against a queue written by hand (b).

Server and callers share the machine, over loopback. The server writes an append-only file, synced each second.

python -m bench.redis ours|raw PORT    the echoing side of a round trip between processes
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import redis
import redis.asyncio

import postroom
import postroom.aio
from bench.body import Order, order
from bench.figures import Table
from bench.idle import share
from bench.measure import Run, Side, percentile, trips
from bench.memory import short
from bench.raw import redis as raw
from bench.redis_by_hand import AsyncByHand, ByHand
from bench.redis_server import Meter, Monitor, masked, who
from postroom.core.message import Ack
from postroom.drivers.io import drive
from postroom.flows.ids import new_token
from tests.servers.valkey import HOST, Server

LIKE_A, LIKE_B = {1: 0.9, 10: 0.8, 100: 0.8}, 0.5
# A rewrite of the file would strike one side or the other.
OPTIONS: dict[str, str | int | bool] = {"appendonly": True, "appendfsync": "everysec", "auto_aof_rewrite_percentage": 0}


def run(table: Table, *, quick: bool) -> None:
    with Server(**OPTIONS) as server:
        same_commands(table, server)
        for size, n, rounds in ((1, 300, 30), (10, 1_000, 20), (100, 3_000, 20)):
            batches(table, server, size=size, n=n // 3 if quick else n, rounds=4 if quick else rounds)
        riding(table, server, rounds=4 if quick else 30, n=100 if quick else 300)
        callers(table, server, rounds=3 if quick else 15, n=10 if quick else 40)
        round_trips(table, server, rounds=3 if quick else 20, n=25 if quick else 50)
        idle(table, server, seconds=2 if quick else 25)
    with Server() as server:  # nothing on disk: what is there is what is measured
        memory(table, server, n=10_000 if quick else 100_000)
        depth(table, server, (1_000, 20_000) if quick else (1_000, 100_000, 1_000_000), rounds=6 if quick else 30)


class Queue(Protocol):
    """What the two baselines have in common."""

    def send(self, body: Any) -> str: ...
    def send_many(self, bodies: list[Any]) -> list[str]: ...
    def receive(self, n: int = 1) -> list[tuple[Any, str, Any]]: ...
    def acknowledge(self, seq: Any, token: str) -> bool: ...
    def acknowledge_many(self, held: list[tuple[Any, str]]) -> int: ...


def _box(server: Server, name: str) -> postroom.Mailbox[Order, Any]:
    box = postroom.connect(server.url).mailbox(name, Order)
    box.approximate_count()  # makes the queue
    return box


def _by_hand(server: Server, name: str) -> ByHand:
    """On a queue that the driver made, and with the scripts that the driver loaded."""
    with _box(server, name) as box:
        box.send(order())
        box.receive()[0].acknowledge()
    return ByHand(server.client(), name, Order)


def same_commands(table: Table, server: Server) -> None:
    """Whether (a) still says what the driver says, and the server does the same for it."""
    box, hand = _box(server, "same"), _by_hand(server, "same")
    driver = box._box.driver
    hand.receive()  # connects
    monitor = Monitor(server)
    differ = []
    for size in (1, 10):
        ours, theirs = _ours(box, size), _theirs(hand, size)
        for work, by_hand in zip(ours, theirs, strict=True):
            work(size)
            said = masked(monitor.lines())
            by_hand(size)
            if said != (meant := masked(monitor.lines())):
                differ.append((said, meant))
    hand.send_many([order(), order()])
    [held] = box.receive()
    [(seq, claim_id, _)] = hand.receive()
    monitor.lines()
    drive(driver.claim("same", 1, lease=None, wait=0, claim_id=new_token(), settle=[Ack(held._delivery.handle)]))
    said = masked(monitor.lines())
    hand.receive_and_acknowledge(seq, claim_id)
    if said != (meant := masked(monitor.lines())):
        differ.append((said, meant))
    monitor.close()
    for said, meant in differ:
        print("  (a) is out of date; the driver says", *said, "and redis_by_hand.py", *meant, sep="\n    ",
              file=sys.stderr)  # fmt: skip
    table.add("redis_same_commands", "baseline (a) runs the driver's scripts (1: yes)", not differ, "", at_least=1)
    box.close()


# --- speed ---------------------------------------------------------------------------------------------------------

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


def batches(table: Table, server: Server, *, size: int, n: int, rounds: int) -> None:
    box = _box(server, f"ours-{size}")
    a, b = _by_hand(server, f"a-{size}"), raw.RawQueue(server.client(), Order, f"b-{size}")
    works = {"ours": _ours(box, size), "a": _theirs(a, size), "b": _theirs(b, size)}
    for key, what in (("send", "send"), ("take", "receive + ack")):
        meter = Meter(server)
        sides = [
            Side(name, send, after=take) if key == "send" else Side(name, take, before=send)
            for name, (send, take) in works.items()
        ]
        seen = meter.interleave(sides, rounds=rounds, n=n)
        for name, at_least in (("a", LIKE_A[size]), ("b", LIKE_B)):
            _shares(table, seen, f"redis_{key}_{size}", f"Redis {what} by {size}", "ours", name, at_least)
        for name in works:
            table.add(f"redis_{key}_{size}_script_{name}", f"Redis {what} by {size}, server time of a script: {name}",
                      meter.usec(name), "µs")  # fmt: skip
    box.close()


def _shares(
    table: Table, seen: Run, key: str, what: str, ours: str, name: str, at_least: float | None, to: str = ""
) -> None:
    """Throughput to the baseline's: by the clock, by the work of caller and server, and, to see what of it is our
    Python, by the caller's alone."""
    for clock, said, ratio, of, aim in (
        ("wall", "wall", seen.wall_ratio, seen.wall, at_least),
        ("work", "CPU of both", seen.work_ratio, seen.work, at_least),
        ("cpu", "CPU of the caller", seen.cpu_ratio, seen.cpu, None),
    ):
        table.add(
            f"{key}_{clock}_{name}",
            f"{what}, {said}: to {to or f'raw ({name})'}",
            1 / ratio(ours, name),
            at_least=aim,
            ours=of(ours),
            raw=of(name),
        )


def riding(table: Table, server: Server, *, rounds: int, n: int) -> None:
    """Each claim carries the acknowledge of what the one before took, as a worker's will."""
    box, a, b = _box(server, "riding"), _by_hand(server, "riding-a"), _by_hand(server, "riding-b")
    driver, decode = box._box.driver, box._box.codec.decode
    send, strict = _ours(box, 1)
    send_a, strict_a = _theirs(a, 1)
    send_b, _ = _theirs(b, 1)

    def ours(n: int) -> None:
        handle = ""
        for _ in range(n):
            settle = [Ack(handle)] if handle else ()
            claimed = drive(driver.claim("riding", 1, lease=None, wait=0, claim_id=new_token(), settle=settle))
            [delivery] = claimed.deliveries
            decode(delivery.envelope.body, delivery.envelope.content_type)
            handle = delivery.handle
        drive(driver.settle("riding", [Ack(handle)]))

    def by_hand(n: int) -> None:
        [(seq, claim_id, _)] = b.receive()
        for _ in range(n - 1):
            [(seq, claim_id, _)] = b.receive_and_acknowledge(seq, claim_id)
        assert b.acknowledge(seq, claim_id)

    meter = Meter(server)
    sides = [
        Side("riding", ours, send),
        Side("strict", strict, send),
        Side("a", strict_a, send_a),
        Side("riding a", by_hand, send_b),
    ]
    seen = meter.interleave(sides, rounds=rounds, n=n)
    what = "Redis receive, acks riding (driver.claim)"
    _shares(table, seen, "redis_riding", what, "riding", "a", 1.8, "raw (a) strict")
    _shares(table, seen, "redis_riding", what, "riding", "strict", None, "ours strict")
    _shares(table, seen, "redis_riding", what, "riding", "riding a", None, "raw (a) riding")
    table.add("redis_riding_script", "Redis receive, acks riding, server time of a script", meter.usec("riding"), "µs")
    box.close()


def callers(table: Table, server: Server, *, rounds: int, n: int, tasks: int = 50) -> None:
    """Many tasks of one client, against as many that each make their calls through plain redis.asyncio."""
    _by_hand(server, "callers-a")
    with asyncio.Runner() as runner:
        client = postroom.aio.connect(server.url)
        box = client.mailbox("callers", Order)
        theirs = redis.asyncio.Redis(host=HOST, port=server.port)
        a = AsyncByHand(theirs, "callers-a", Order)
        body = order()
        numbers = [0] * tasks  # of each caller's calls, by hand

        async def send(_: int) -> None:
            for _ in range(n):
                await box.send(body)

        async def take(_: int) -> None:
            for _ in range(n):
                [message] = await box.receive()
                await message.acknowledge()

        async def send_a(task: int) -> None:
            for _ in range(n):
                numbers[task] += 1
                await a.send(body, f"caller{task}", numbers[task])

        async def take_a(task: int) -> None:
            for _ in range(n):
                numbers[task] += 1
                await a.take(f"caller{task}", numbers[task])

        def side(work: Callable[[int], Awaitable[None]]) -> Callable[[int], None]:
            async def all_at_once() -> None:
                await asyncio.gather(*[work(task) for task in range(tasks)])

            return lambda _: runner.run(all_at_once())

        pairs = (("send", "send", send, send_a, take, take_a), ("take", "receive + ack", take, take_a, send, send_a))
        for key, what, work, by_hand, undo, undo_a in pairs:
            meter = Meter(server)
            sides = [("ours", work, undo), ("a", by_hand, undo_a)]
            made = [
                Side(name, side(do), after=side(un)) if key == "send" else Side(name, side(do), before=side(un))
                for name, do, un in sides
            ]
            seen = meter.interleave(made, rounds=rounds, n=n * tasks)
            _shares(table, seen, f"redis_callers_{key}", f"Redis {what}, {tasks} async callers", "ours", "a", 4)
            table.add(f"redis_callers_{key}_scripts", f"Redis {what}, {tasks} async callers, scripts a message",
                      meter.calls("ours") / ((rounds + 1) * n * tasks), "")  # fmt: skip
        runner.run(client.close())
        runner.run(theirs.aclose())


# --- round trips ---------------------------------------------------------------------------------------------------


def round_trips(table: Table, server: Server, *, rounds: int, n: int) -> None:
    """A request, acknowledged and answered by another thread or process; its answer received and acknowledged."""
    for name in ("requests-a", "replies-a"):
        _by_hand(server, name)
    for between, echoing in (("threads", _threads), ("processes", _processes)):
        with postroom.connect(server.url) as client, echoing(server):
            seen = trips(_trips(client, server), rounds=rounds, n=n)
            client.mailbox("requests", Order).send(order(qty=-1))
            ByHand(server.client(), "requests-a", Order).send(order(qty=-1))
        for part, at_most in ((0.5, 1.3), (0.99, None)):
            ours, by_hand = percentile(seen["ours"], part), percentile(seen["raw"], part)
            table.add(
                f"redis_round_trip_{between}_p{part * 100:.0f}",
                f"Redis round trip between {between}, p{part * 100:.0f} to raw (a) with BLPOP",
                ours / by_hand,
                at_most=at_most,
                ours=ours,
                raw=by_hand,
            )


def _trips(client: postroom.QueueClient, server: Server) -> list[tuple[str, Callable[[], None]]]:
    requests, replies = client.mailbox("requests", Order), client.mailbox("replies", Order)
    raw_requests, raw_replies = (ByHand(server.client(), f"{name}-a", Order) for name in ("requests", "replies"))
    body = order()

    def trip() -> None:
        requests.send(body)
        [message] = replies.receive(wait_time_seconds=20)
        message.acknowledge()

    def raw_trip() -> None:
        raw_requests.send(body)
        [(seq, claim_id, _)] = raw_replies.receive(wait=20)
        assert raw_replies.acknowledge(seq, claim_id)

    return [("ours", trip), ("raw", raw_trip)]


@contextmanager
def _threads(server: Server) -> Iterator[None]:
    crew = [threading.Thread(target=echo, args=(side, server.port), daemon=True) for side in ("ours", "raw")]
    for thread in crew:
        thread.start()
    yield
    for thread in crew:
        thread.join(30)


@contextmanager
def _processes(server: Server) -> Iterator[None]:
    crew = [
        subprocess.Popen([sys.executable, "-m", "bench.redis", side, str(server.port)], stdout=subprocess.PIPE)
        for side in ("ours", "raw")
    ]
    try:
        for child in crew:
            assert child.stdout is not None
            if child.stdout.readline() != b"ready\n":
                raise RuntimeError("the echoing side did not start")
        yield
        for child in crew:
            child.wait(30)
    finally:
        for child in crew:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()


def echo(side: str, port: int, ready: Callable[[], None] = lambda: None) -> None:
    """Answer requests until one has a negative quantity."""
    if side == "ours":
        with postroom.connect(f"redis://{HOST}:{port}") as client:
            requests, replies = client.mailbox("requests", Order), client.mailbox("replies", Order)
            requests.approximate_count()
            ready()
            while True:
                for message in requests.receive(wait_time_seconds=20):
                    message.acknowledge()
                    if message.body.qty < 0:
                        return
                    replies.send(message.body)
    with redis.Redis(host=HOST, port=port) as plain:
        asked, answers = (ByHand(plain, name, Order) for name in ("requests-a", "replies-a"))
        ready()
        while True:
            for seq, claim_id, body in asked.receive(wait=20):
                assert asked.acknowledge(seq, claim_id)
                if body.qty < 0:
                    return
                answers.send(body)


# --- what it takes --------------------------------------------------------------------------------------------------


def idle(table: Table, server: Server, *, seconds: int) -> None:
    for flavour in ("sync", "async"):
        counted: list[list[str]] = []

        def count(counted: list[list[str]] = counted) -> None:
            threading.Event().wait(2.0)  # let it start
            monitor = Monitor(server)
            threading.Event().wait(seconds - 1.0)
            counted.append(monitor.lines())
            monitor.close()

        watch = threading.Thread(target=count)
        watch.start()
        spent = 100 * share(server.url, flavour, seconds + 3)
        watch.join()
        calls = [line for line in counted[0] if not who(line).endswith("lua")]
        table.add(f"idle_redis_{flavour}_commands", f"Redis idle, commands a second of one that waits ({flavour})",
                  len(calls) / (seconds - 1.0), "/s", at_most=1)  # fmt: skip
        table.add(f"idle_redis_{flavour}_inner", f"Redis idle, commands a second, those in scripts too ({flavour})",
                  len(counted[0]) / (seconds - 1.0), "/s")  # fmt: skip
        table.add(f"idle_redis_{flavour}", f"Redis idle, CPU of a process that waits ({flavour})", spent, "%",
                  at_most=0.1)  # fmt: skip


def memory(table: Table, server: Server, *, n: int) -> None:
    """What the server holds more with n messages in it, a message, without their bodies."""
    client = server.client()
    box = _box(server, "memory")
    box.send_many([order(i) for i in range(100)])
    size = len(ByHand(client, "memory", Order).encode(order()))
    before = client.info("memory")["used_memory"]
    for at in range(0, n, 1_000):
        box.send_many([order(i) for i in range(at, min(n, at + 1_000))])
    after = client.info("memory")["used_memory"]
    over = (after - before) / n - size
    table.add("redis_bytes", f"Redis memory a message over its body of {size} bytes, {short(n)} waiting", over, "B",
              at_most=200)  # fmt: skip
    for _ in range(n // 1_000):
        box.receive(max_messages=1_000)
    lent = (client.info("memory")["used_memory"] - before) / n - size
    table.add("redis_bytes_lent", f"Redis memory a message over its body, {short(n)} in flight", lent, "B")
    box.close()
    server.empty()


def depth(table: Table, server: Server, depths: tuple[int, ...], *, rounds: int) -> None:
    """What a claim and its acknowledge cost with that many waiting. What was taken is replaced between the rounds."""
    boxes = {str(waiting): _box(server, f"depth-{waiting}") for waiting in depths}
    before, size = 0, 0
    for waiting in depths:
        fill = ByHand(server.client(), f"depth-{waiting}", Order)
        before, size = server.client().info("memory")["used_memory"], len(fill.encode(order()))
        for at in range(0, waiting, 1_000):
            fill.send_many([order(i) for i in range(at, min(waiting, at + 1_000))])
    over = (server.client().info("memory")["used_memory"] - before) / depths[-1] - size
    table.add(f"redis_bytes_{short(depths[-1])}", f"Redis memory a message over its body, {short(depths[-1])} waiting",
              over, "B", at_most=200)  # fmt: skip
    meter = Meter(server)

    def side(name: str, box: postroom.Mailbox[Order, Any]) -> Side:
        _, take = _ours(box, 1)

        def put_back(n: int) -> None:
            box.send_many([order(i) for i in range(n)])

        return Side(name, take, after=put_back)

    seen = meter.interleave([side(name, box) for name, box in boxes.items()], rounds=rounds, n=200)
    base = str(depths[0])
    for deep in depths[1:]:
        name, key = str(deep), f"redis_depth_{short(deep)}"
        what = f"Redis receive + ack with {short(deep)} waiting, to {short(depths[0])}"
        for clock, said, ratio, ours, of in (
            ("wall", "wall", seen.wall_ratio(name, base), seen.wall(name), seen.wall(base)),
            ("work", "CPU of both", seen.work_ratio(name, base), seen.work(name), seen.work(base)),
            ("script", "server time", meter.usec(name) / meter.usec(base), meter.usec(name), meter.usec(base)),
        ):
            table.add(f"{key}_{clock}", f"{what}, {said}", ratio, at_most=1.3, ours=ours, raw=of)
    for box in boxes.values():
        box.close()


if __name__ == "__main__":
    echo(sys.argv[1], int(sys.argv[2]), lambda: print("ready", flush=True))
