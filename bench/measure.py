"""Timing that survives a noisy machine: the sides take turns in one run, and only their ratio is believed.

Every round runs each side once, and each round begins with another one. What is said about a side is its best round
(noise only ever adds); what is said about two sides is the median over the rounds of their ratio, as the two runs of a
round saw the same machine. Where a disk sync decides, the wall-clock ratio of medians is taken instead: the time of a
sync jumps from one to the next, and pairs would only add the noise of both.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter_ns, process_time_ns
from typing import NamedTuple


class Side(NamedTuple):
    """One way to do the work. `before` and `after` prepare and clean up a round and are not timed."""

    name: str
    run: Callable[[int], None]  # does it n times
    before: Callable[[int], None] | None = None
    after: Callable[[int], None] | None = None


class Times:
    """Microseconds an operation, a value a round."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []
        self.server: list[float] = []  # CPU of the other process, where there is one


class Run:
    """What one interleaved run saw."""

    def __init__(self, names: Sequence[str]) -> None:
        self._times = {name: Times() for name in names}

    def add(self, name: str, cpu_ns: int, wall_ns: int, n: int, server_us: float = 0.0) -> None:
        self._times[name].cpu.append(cpu_ns / n / 1e3)
        self._times[name].wall.append(wall_ns / n / 1e3)
        self._times[name].server.append(server_us / n)

    def cpu(self, name: str) -> float:
        return min(self._times[name].cpu)

    def wall(self, name: str) -> float:
        return min(self._times[name].wall)

    def work(self, name: str) -> float:
        """CPU of caller and server."""
        return min(self._work(name))

    def work_ratio(self, a: str, b: str) -> float:
        return median(x / y for x, y in zip(self._work(a), self._work(b), strict=True))

    def _work(self, name: str) -> list[float]:
        times = self._times[name]
        return [ours + theirs for ours, theirs in zip(times.cpu, times.server, strict=True)]

    def typical_wall(self, name: str) -> float:
        return median(self._times[name].wall)

    def cpu_ratio(self, a: str, b: str) -> float:
        """How many times `b`'s CPU time `a` takes."""
        return median([x / y for x, y in zip(self._times[a].cpu, self._times[b].cpu, strict=True) if y > 0] or [0.0])

    def wall_ratio(self, a: str, b: str) -> float:
        return median(x / y for x, y in zip(self._times[a].wall, self._times[b].wall, strict=True))

    def synced_ratio(self, a: str, b: str) -> float:
        """Of the wall clock where a disk sync decides."""
        return self.typical_wall(a) / self.typical_wall(b)


def interleave(
    sides: Sequence[Side],
    *,
    rounds: int,
    n: int,
    fixed_order: bool = False,
    server: Callable[[], float] | None = None,
) -> Run:
    """A B C, B C A, ...: `rounds` times `n` operations of every side, after one round to warm up.

    `fixed_order` is for sides that take what the one before has sent. `server` tells the CPU time of a server so far.
    """
    run = Run([side.name for side in sides])
    for turn in range(-1, rounds):
        at = 0 if fixed_order else turn % len(sides)
        for side in [*sides[at:], *sides[:at]]:
            if side.before is not None:
                side.before(n)
            gc.collect()  # not to pay for the rubbish of the side before
            served = server() if server is not None else 0.0
            wall, cpu = perf_counter_ns(), process_time_ns()
            side.run(n)
            cpu, wall = process_time_ns() - cpu, perf_counter_ns() - wall
            served = server() - served if server is not None else 0.0
            if side.after is not None:
                side.after(n)
            if turn >= 0:
                run.add(side.name, cpu, wall, n, served)
    return run


def trips(sides: Sequence[tuple[str, Callable[[], None]]], *, rounds: int, n: int) -> dict[str, list[float]]:
    """Sorted wall times in microseconds of single round trips, the sides in turns."""
    times: dict[str, list[float]] = {name: [] for name, _ in sides}
    for turn in range(-1, rounds):
        at = turn % len(sides)
        for name, trip in [*sides[at:], *sides[:at]]:
            for _ in range(n):
                start = perf_counter_ns()
                trip()
                if turn >= 0:
                    times[name].append((perf_counter_ns() - start) / 1e3)
    return {name: sorted(found) for name, found in times.items()}


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
