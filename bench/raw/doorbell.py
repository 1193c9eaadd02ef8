"""A round trip between two processes by hand: two raw queues in one file, and a datagram that says "look".

    python -m bench.raw.doorbell FILE    the echoing side

Each queue has a socket, bound by whoever waits there.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import zlib

from bench.body import Order
from bench.raw.sqlite import RawQueue


class Bell:
    """Wakes the one process that waits at a queue."""

    def __init__(self, path: str, queue: int, *, waits: bool) -> None:
        # Not beside the file: a socket's path is at most some hundred bytes long.
        self._path = f"{tempfile.gettempdir()}/postroom-raw-{zlib.crc32(path.encode()):08x}.{queue}.bell"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(True)
        if waits:
            if os.path.exists(self._path):
                os.unlink(self._path)
            self._socket.bind(self._path)

    def ring(self) -> None:
        try:
            self._socket.sendto(b"!", self._path)
        except OSError:
            pass  # nobody waits: a lost ring costs a poll

    def close(self) -> None:
        self._socket.close()
        if os.path.exists(self._path):
            os.unlink(self._path)

    def wait(self, timeout: float) -> None:
        self._socket.settimeout(timeout)
        try:
            self._socket.recv(16)
        except TimeoutError:
            pass


def take(queue: RawQueue, bell: Bell, timeout: float = 10.0) -> tuple[int, str, Order]:
    found = queue.receive()
    while not found:
        bell.wait(timeout)
        found = queue.receive()
    return found[0]


def echo(path: str) -> None:
    """Answer requests until one has a negative quantity."""
    requests, replies = RawQueue(path, Order, 1), RawQueue(path, Order, 2)
    waits, rings = Bell(path, 1, waits=True), Bell(path, 2, waits=False)
    print("ready", flush=True)
    while True:
        seq, token, order = take(requests, waits)
        requests.acknowledge(seq, token)
        if order.qty < 0:
            waits.close()
            return
        replies.send(order)
        rings.ring()


if __name__ == "__main__":
    echo(sys.argv[1])
