"""A mailbox by hand, in memory: a SimpleQueue and a dict of leases.

It does what Postroom's memory store does for a plain message: an id nobody else has, a lease with a deadline and a
token that cannot be guessed and proves it, a count of deliveries, redelivery when the lease lapses, an acknowledge that
is refused once the lease was lost. It leaves out what one program can do without: delays, priorities, sessions, limits,
dead letters, and the original place of a message that comes back.

`RawMailbox` does each step under a lock, as whoever wants to add one of these needs to. `LockFreeMailbox` shows what is
left without: each step is one atomic operation of a SimpleQueue or a dict, and where two threads race for a lease
`dict.pop` decides. The targets are meant for the first; the second is there to compare.
"""

from __future__ import annotations

import os
from itertools import count
from queue import Empty, SimpleQueue
from threading import Lock
from time import monotonic, time
from typing import Any


class Letter:
    __slots__ = ("at", "body", "deadline", "deliveries", "id", "token")

    def __init__(self, id: str, body: Any, at: float) -> None:
        self.id = id
        self.body = body
        self.at = at
        self.deliveries = 0
        self.deadline = 0.0
        self.token = ""


class LockFreeMailbox:
    def __init__(self) -> None:
        self._ready: SimpleQueue[Letter] = SimpleQueue()
        self._leases: dict[str, Letter] = {}  # all leases are of one length: the earliest deadline is the first
        self._prefix = os.urandom(8).hex() + "-"
        self._numbers = count(1)
        self._tokens: list[str] = []

    def send(self, body: Any) -> str:
        id = f"{self._prefix}{next(self._numbers):x}"
        self._ready.put(Letter(id, body, time()))
        return id

    def receive(self, lease: float = 30.0, wait: float = 0.0) -> Letter | None:
        if self._leases:
            self._lapse(monotonic())
        try:
            letter = self._ready.get(True, wait) if wait else self._ready.get_nowait()
        except Empty:
            return None
        letter.deliveries += 1
        letter.deadline = monotonic() + lease
        letter.token = token = self._token()
        self._leases[token] = letter
        return letter

    def acknowledge(self, letter: Letter) -> bool:
        return self._leases.pop(letter.token, None) is not None

    def _token(self) -> str:
        try:
            return self._tokens.pop()
        except IndexError:
            drawn = os.urandom(16 * 256).hex()  # one system call gives many
            self._tokens.extend([drawn[i : i + 32] for i in range(32, len(drawn), 32)])
            return drawn[:32]

    def _lapse(self, now: float) -> None:
        try:
            token = next(iter(self._leases))
            letter = self._leases[token]
        except (StopIteration, KeyError, RuntimeError):
            return  # another thread was faster
        if letter.deadline <= now and self._leases.pop(token, None) is not None:
            self._ready.put(letter)


class RawMailbox(LockFreeMailbox):
    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()

    def send(self, body: Any) -> str:
        with self._lock:
            id = f"{self._prefix}{next(self._numbers):x}"
            self._ready.put(Letter(id, body, time()))
            return id

    def receive(self, lease: float = 30.0, wait: float = 0.0) -> Letter | None:
        with self._lock:
            if self._leases:
                self._lapse(monotonic())
        try:
            letter = self._ready.get(True, wait) if wait else self._ready.get_nowait()
        except Empty:
            return None
        with self._lock:
            letter.deliveries += 1
            letter.deadline = monotonic() + lease
            letter.token = token = self._token()
            self._leases[token] = letter
            return letter

    def acknowledge(self, letter: Letter) -> bool:
        with self._lock:
            return self._leases.pop(letter.token, None) is not None
