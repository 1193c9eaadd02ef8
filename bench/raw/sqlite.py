"""A durable queue by hand, on one SQLite connection.

WAL; typed bodies through msgspec; a send is synced before it returns, a claim or an acknowledge that is lost in a power
cut only causes a redelivery and is not; a token proves the lease; lapsed leases and due delays are promoted, at most a
thousand, by the next claim. Batches use executemany. Checkpoints are left to SQLite.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

SCHEMA = Path(__file__).with_name("sqlite.sql")

PUT = "INSERT INTO message (queue, state, priority, due_at, enqueued_at, id, body) VALUES (?, 1, 10, NULL, ?, ?, ?)"
DUE = "SELECT 1 FROM message WHERE queue = ? AND due_at <= ? LIMIT 1"
PROMOTE = (
    "UPDATE message SET state = 1, due_at = NULL WHERE seq IN "
    "(SELECT seq FROM message WHERE queue = ? AND due_at <= ? ORDER BY due_at LIMIT 1000)"
)
READY = (
    "SELECT seq, id, deliveries, enqueued_at, body FROM message WHERE queue = ? AND state = 1 "
    "ORDER BY priority, seq LIMIT ?"
)
LEND = "UPDATE message SET state = 2, due_at = ?, token = ?, deliveries = deliveries + 1 WHERE seq = ?"
ACKNOWLEDGE = "DELETE FROM message WHERE seq = ? AND token = ?"


def make(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(SCHEMA.read_text(encoding="utf-8"))
    connection.close()


class RawQueue:
    def __init__(self, path: str, body_type: type[Any], queue: int = 1) -> None:
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._run = self._connection.execute
        self._run_many = self._connection.executemany
        self._queue = queue
        self._synced = True
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(body_type).decode
        self._prefix = os.urandom(8).hex()
        self._ids = count(1)

    def _sync(self, synced: bool) -> None:
        if synced is not self._synced:
            self._run("PRAGMA synchronous = FULL" if synced else "PRAGMA synchronous = NORMAL")
            self._synced = synced

    def send(self, body: Any) -> str:
        id = f"{self._prefix}-{next(self._ids):x}"
        self._sync(True)
        self._run(PUT, (self._queue, time.time(), id, self._encode(body)))  # one statement is a transaction of its own
        return id

    def send_many(self, bodies: Sequence[Any]) -> list[str]:
        now, encode, queue = time.time(), self._encode, self._queue
        rows = [(queue, now, f"{self._prefix}-{next(self._ids):x}", encode(body)) for body in bodies]
        self._sync(True)
        self._run("BEGIN IMMEDIATE")
        self._run_many(PUT, rows)
        self._run("COMMIT")
        return [row[2] for row in rows]

    def receive(self, n: int = 1, lease: float = 30.0) -> list[tuple[int, str, Any]]:
        """(seq, token, body) of up to `n` messages."""
        run, queue = self._run, self._queue
        token = os.urandom(16).hex()
        self._sync(False)
        run("BEGIN IMMEDIATE")
        now = time.time()
        if run(DUE, (queue, now)).fetchone() is not None:
            run(PROMOTE, (queue, now))
        rows = run(READY, (queue, n)).fetchall()
        if len(rows) == 1:
            run(LEND, (now + lease, token, rows[0][0]))
        elif rows:
            self._run_many(LEND, [(now + lease, token, row[0]) for row in rows])
        run("COMMIT")
        decode = self._decode
        return [(row[0], token, decode(row[4])) for row in rows]

    def acknowledge(self, seq: int, token: str) -> bool:
        self._sync(False)
        return self._run(ACKNOWLEDGE, (seq, token)).rowcount == 1

    def acknowledge_many(self, held: Sequence[tuple[int, str]]) -> int:
        self._sync(False)
        self._run("BEGIN IMMEDIATE")
        done = self._run_many(ACKNOWLEDGE, held).rowcount
        self._run("COMMIT")
        return done

    def close(self) -> None:
        self._connection.close()
