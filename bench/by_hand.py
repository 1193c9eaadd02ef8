"""Baseline (a): the SQLite driver's own statements, called by hand in the driver's order on a file the driver made.

What the driver does beyond this is our Python: options, envelopes, verdicts, outcomes, bells, locks. Bodies are encoded
and decoded here too, as nobody can do without. `bench.sqlite` compares the trace of both, so that a statement that was
changed there and not here is noticed.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec

from postroom.drivers.sqlite_file import SQL, connect

MANY = 4  # from here on the driver lends and acknowledges in one statement


class ByHand:
    def __init__(self, path: str, queue: str, body_type: type[Any]) -> None:
        self.connection: sqlite3.Connection = connect(path, 30.0)
        # The driver checkpoints in the background, and its CPU is counted; here SQLite does it in a commit.
        self.connection.execute("PRAGMA wal_autocheckpoint = 1000")
        self._run = self.connection.execute
        self._run_many = self.connection.executemany
        self._queue: int = self._run(SQL["find_queue"], ("", queue)).fetchone()[0]
        self._synced = False
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(body_type).decode
        self._prefix = os.urandom(8).hex()
        self._ids = count(1)

    def _begin(self, synced: bool, read: str | None) -> int:
        """The last number given out. The clock is read by the caller, where the driver does."""
        if synced is not self._synced:
            self._run("PRAGMA synchronous = FULL" if synced else "PRAGMA synchronous = NORMAL")
            self._synced = synced
        self._run("BEGIN IMMEDIATE")
        if read is None:
            return 0
        _, counter, *_ = self._run(SQL[read], (self._queue,) * 2 if read == "look" else ()).fetchone()
        return int(counter)

    def _end(self, messages: int, size: int, counter: int | None, now: float) -> None:
        if messages:
            self._run(SQL["count"], (messages, size, now, self._queue))
        if counter is not None:
            self._run(SQL["numbered"], (counter, now))
        self._run("COMMIT")

    def _row(self, seq: int, body: bytes, now: float) -> tuple[Any, ...]:
        id = f"{self._prefix}-{next(self._ids):x}"
        return seq, self._queue, 10, now, now, len(body), id, body

    def send(self, body: Any) -> str:
        data = self._encode(body)
        counter, now = self._begin(True, "edition") + 1, time.time()
        row = self._row(counter, data, now)
        self._run(SQL["put_plain"], row)
        self._end(1, len(data), counter, now)
        return str(row[6])

    def send_many(self, bodies: Sequence[Any], *, synced: bool = True) -> list[str]:
        encoded = [self._encode(body) for body in bodies]
        counter, now = self._begin(synced, "edition"), time.time()
        rows = [self._row(counter + i, data, now) for i, data in enumerate(encoded, 1)]
        self._run_many(SQL["put_plain"], rows)
        self._end(len(rows), sum(map(len, encoded)), counter + len(rows), now)
        return [row[6] for row in rows]

    def receive(self, n: int = 1, lease: float = 30.0) -> list[tuple[int, str, Any]]:
        """(seq, claim_id, body) of up to `n` messages."""
        claim_id = os.urandom(16).hex()
        token, now = self._begin(False, "look") + 1, time.time()
        rows = self._run(SQL["ready"], (self._queue, n)).fetchall()
        if len(rows) < MANY:
            for row in rows:
                self._run(SQL["lend"], (now + lease, claim_id, token, now, row[0]))
        else:
            seqs = f"[{','.join([str(row[0]) for row in rows])}]"
            self._run(SQL["lend_many"], (now + lease, claim_id, token, now, seqs))
        self._end(0, 0, token, now)
        decode = self._decode
        return [(row[0], claim_id, decode(row[15])) for row in rows]

    def acknowledge(self, seq: int, claim_id: str) -> bool:
        self._begin(False, None)
        now = time.time()
        found = self._run(SQL["acknowledge"], (seq, self._queue, claim_id)).fetchone()
        self._end(-1, -found[0] if found else 0, None, now)
        return found is not None

    def acknowledge_many(self, held: Sequence[tuple[int, str]]) -> int:
        self._begin(False, None)
        now = time.time()
        if len(held) >= MANY:
            seqs = f"[{','.join([str(seq) for seq, _ in held])}]"
            sizes = [size for _, size, _ in self._run(SQL["acknowledge_many"], (seqs, self._queue, held[0][1]))]
        else:
            sizes = [
                found[0]
                for seq, claim_id in held
                if (found := self._run(SQL["acknowledge"], (seq, self._queue, claim_id)).fetchone())
            ]
        self._end(-len(sizes), -sum(sizes), None, now)
        return len(sizes)

    def close(self) -> None:
        self.connection.close()
