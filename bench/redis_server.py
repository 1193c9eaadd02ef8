"""What a Redis server is told, and what it spends on it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import redis

from bench.measure import Run, Side, interleave
from tests.servers.valkey import HOST, Server


class Monitor:
    """The commands that a server carries out, without those of `Server.call` that mark the end."""

    def __init__(self, server: Server) -> None:
        self._server = server
        connection: Any = redis.Connection  # has no types
        self._connection = connection(host=HOST, port=server.port, protocol=2, driver_info=None)
        self._connection.connect()
        self._connection.send_command("MONITOR")
        self._connection.read_response()

    def lines(self) -> list[str]:
        """Since the start, or the last time: [who] and what, without the time."""
        self._server.call("ECHO", "postroom-bench-mark")
        found: list[str] = []
        while True:
            line = self._connection.read_response().decode(errors="replace")
            found.append(line.partition(" ")[2])
            if "postroom-bench-mark" in line:
                found.pop()
                mark = who(line.partition(" ")[2])
                return [one for one in found if who(one) != mark]

    def close(self) -> None:
        self._connection.disconnect()


def who(line: str) -> str:
    return line[: line.index("]")]


def masked(lines: Sequence[str]) -> list[str]:
    """Whether a script or a client said so, and what, its numbers and ids made equal."""
    said = []
    for line in lines:
        who, _, what = line.partition("] ")
        what = re.sub(r'("plain" "\d+") .*', r"\1 ENVELOPES", what)
        # An id, and before it its length, which grows with the number of those that were given out.
        what = re.sub(r"(?:\\x[0-9a-f]{2})?[0-9a-f]{16}-[0-9a-f]+", "ID", what)
        what = re.sub(r"\b(?![0-9a-f]{40}\b)A?[0-9a-f]*\d[0-9a-f.+]*\b", "N", what)
        said.append(("script: " if who.endswith("lua") else "") + what)
    return said


class Meter:
    """What a server spends."""

    def __init__(self, server: Server) -> None:
        self._client = server.client()
        self._before = (0, 0)
        self._scripts: dict[str, tuple[int, int]] = {}  # microseconds and calls a side

    def cpu(self) -> float:
        """Microseconds so far."""
        seen = self._client.info("cpu")
        return 1e6 * (float(seen["used_cpu_sys"]) + float(seen["used_cpu_user"]))

    def _now(self) -> tuple[int, int]:
        seen = self._client.info("commandstats").get("cmdstat_evalsha", {})
        return seen.get("usec", 0), seen.get("calls", 0)

    def on(self, side: Side) -> Side:
        """The side, with what its scripts take added up. One round is to warm up, and counts little."""

        def before(n: int) -> None:
            if side.before is not None:
                side.before(n)
            self._before = self._now()

        def after(n: int) -> None:
            (usec, calls), (usec_before, calls_before) = self._now(), self._before
            spent, made = self._scripts.get(side.name, (0, 0))
            self._scripts[side.name] = (spent + usec - usec_before, made + calls - calls_before)
            if side.after is not None:
                side.after(n)

        return Side(side.name, side.run, before, after)

    def interleave(self, sides: Sequence[Side], *, rounds: int, n: int) -> Run:
        return interleave([self.on(side) for side in sides], rounds=rounds, n=n, server=self.cpu)

    def usec(self, name: str) -> float:
        """Of a script."""
        spent, calls = self._scripts[name]
        return spent / max(1, calls)

    def calls(self, name: str) -> int:
        return self._scripts[name][1]
