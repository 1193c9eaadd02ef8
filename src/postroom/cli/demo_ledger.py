"""What the demo's workers did, as they wrote it down themselves: one JSON object a line, appended.

The tally is taken from here and from the store, never from what ought to have happened. A line is one `write` to a file
opened for appending, so lines of several processes never mix, and what a process wrote outlives its SIGKILL.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Order:
    """The body of the demo's messages."""

    number: int
    item: str
    quantity: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One line."""

    worker: str
    did: str  # took, shipped, acknowledged, failed, lost
    id: str
    delivery: int
    order: Order
    note: str = ""
    at: float = 0.0  # the machine's monotonic clock, which its processes share


class Ledger:
    """A worker's pen."""

    def __init__(self, path: Path, worker: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._worker = worker

    def write(self, did: str, id: str, delivery: int, order: Order, note: str = "") -> None:
        entry = Entry(self._worker, did, id, delivery, order, note, time.monotonic())
        os.write(self._file, json.dumps(asdict(entry)).encode() + b"\n")


class Reader:
    """Everything written so far, and what came since the last look."""

    def __init__(self, path: Path) -> None:
        path.touch(0o600)
        self._file = path.open("rb")
        self._rest = b""
        self.entries: list[Entry] = []

    def news(self) -> Sequence[Entry]:
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        fresh = [_entry(json.loads(line)) for line in whole]
        self.entries += fresh
        return fresh

    def of(self, id: str, *did: str) -> Iterator[Entry]:
        return (entry for entry in self.entries if entry.id == id and entry.did in did)

    def close(self) -> None:
        self._file.close()


def _entry(fields: dict[str, object]) -> Entry:
    order = fields.pop("order")
    assert isinstance(order, dict)
    return Entry(order=Order(**order), **fields)  # type: ignore[arg-type]  # our own line, written above
