"""What a `Proxy` does with bytes: connections as pairs of lanes, under one weather. All of it in the proxy's loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Literal, cast

Way = Literal["requests", "answers"]
Fate = Literal["pass", "lose", "hold"]
_RESET = struct.pack("ii", 1, 0)  # to close with this SO_LINGER sends RST


@dataclass
class Counts:
    """What really happened. A chunk is what one read of a socket gave: a request, several, or a part of one."""

    accepted: int = 0
    connections: int = 0  # those of them that got through the handshake, if there is one
    request_bytes: int = 0
    answer_bytes: int = 0
    lost_requests: int = 0  # chunks that went in and never came out
    lost_answers: int = 0
    held: int = 0  # chunks that had to wait for `heal`
    delayed: int = 0  # chunks
    cut: int = 0  # connections
    unreachable: int = 0  # connections for which the server was not there

    @property
    def without_tls(self) -> int:
        """Connections whose handshake failed, or is not done yet."""
        return self.accepted - self.connections


@dataclass
class Trap:
    """Springs at a request that contains this."""

    containing: bytes
    times: int
    after: bool  # the server has done it

    def springs(self, window: bytes) -> bool:
        if self.times and self.containing in window:
            self.times -= 1
            return True
        return False


@dataclass
class Weather:
    """What happens to everything that passes."""

    requests: Fate = "pass"
    answers: Fate = "pass"
    delay: float = 0.0
    traps: list[Trap] = field(default_factory=list)

    def fate(self, way: Way) -> Fate:
        return self.requests if way == "requests" else self.answers


class Link:
    """A connection of a client and the one to the server that goes with it."""

    def __init__(self, weather: Weather, counts: Counts, among: set[Link], host: str, port: int) -> None:
        self.weather, self.counts, self.among = weather, counts, among
        self.has_lost = False  # a stream with a hole in it is of no use any more
        self.is_doomed = False  # the next answer ends it
        self.requests, self.answers = Lane(self, "requests"), Lane(self, "answers")
        self.client, self.server = End(self.requests), End(self.answers)
        self._address = host, port
        self._connecting: asyncio.Task[None] | None = None
        counts.accepted += 1

    def begin(self) -> None:
        self.counts.connections += 1
        self.among.add(self)
        cast(asyncio.ReadTransport, self.client.transport).pause_reading()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.server, *self._address)
        except OSError:
            self.counts.unreachable += 1
            if self.weather.requests == "pass":
                self.reset()
            else:
                self.has_lost = True
            return
        if self not in self.among:  # cut while it was being made
            self.server.reset()
        elif self.client.transport is not None:
            cast(asyncio.ReadTransport, self.client.transport).resume_reading()
        else:
            self.requests.flush()  # it has gone, and that is to be passed on

    def far_end(self, way: Way) -> End:
        return self.server if way == "requests" else self.client

    def cut(self) -> None:
        self.counts.cut += 1
        self.reset()

    def reset(self) -> None:
        self.among.discard(self)
        self.client.reset()
        self.server.reset()

    def flush(self) -> None:
        self.requests.flush()
        self.answers.flush()


class Lane:
    """One direction of a link: what has arrived on its way to the other side, None for the end of it."""

    def __init__(self, link: Link, way: Way) -> None:
        self.link, self.way = link, way
        self._queue: deque[tuple[float, bytes | None]] = deque()
        self._tail = b""  # a trap may span chunks
        self._timer: asyncio.TimerHandle | None = None

    def arrived(self, data: bytes | None) -> None:
        link, counts = self.link, self.link.counts
        if link not in link.among:
            return
        if data is not None:
            if self.way == "requests":
                counts.request_bytes += len(data)
                if self._trapped(data):
                    return
            else:
                counts.answer_bytes += len(data)
        fate = link.weather.fate(self.way)
        if fate == "lose" or (link.is_doomed and self.way == "answers"):
            link.has_lost = True
            if data is not None and self.way == "requests":
                counts.lost_requests += 1
            elif data is not None:
                counts.lost_answers += 1
            if link.is_doomed and self.way == "answers":
                link.cut()
            return
        counts.held += fate == "hold"
        counts.delayed += link.weather.delay > 0
        self._queue.append((asyncio.get_running_loop().time() + link.weather.delay, data))
        self.flush()

    def _trapped(self, data: bytes) -> bool:
        window = self._tail + data
        for trap in self.link.weather.traps:
            self._tail = window[-len(trap.containing) + 1 :]
            if trap.springs(window):
                if not trap.after:
                    self.link.counts.lost_requests += 1
                    self.link.cut()
                    return True
                self.link.is_doomed = True
        return False

    def flush(self) -> None:
        """Pass on what is due."""
        loop, far = asyncio.get_running_loop(), self.link.far_end(self.way)
        while self._queue and self.link.weather.fate(self.way) != "hold" and far.transport is not None:
            due, data = self._queue[0]
            if due > loop.time():
                if self._timer is None:
                    self._timer = loop.call_at(due, self._wake)
                return
            self._queue.popleft()
            if data is None:
                far.transport.close()
            elif not far.transport.is_closing():
                far.transport.write(data)

    def _wake(self) -> None:
        self._timer = None
        self.flush()


class End(asyncio.Protocol):
    """One of the two sockets of a link; what it hears goes on the lane that begins here."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._lane.way == "requests":
            self._lane.link.begin()

    def data_received(self, data: bytes) -> None:
        self._lane.arrived(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        link = self._lane.link
        self._lane.arrived(None)
        if link.client.transport is None and link.server.transport is None:
            link.among.discard(link)

    def reset(self) -> None:
        if self.transport is None:
            return
        with contextlib.suppress(OSError):  # closed already
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()
