"""A durable queue by hand, on redis-py: three scripts (redis.lua), called by their hashes.

Typed bodies through msgspec; an order of (priority, seq) and one in time; a claim promotes at most a thousand lapsed
leases and due delays, and takes from the head with a lease in the same step; a token proves the lease. What an answer
that was lost means, sessions, limits, dead letters and waiting are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import redis

PRIORITY = b"\x0a"
_HEAD, *_PARTS = re.split(
    r"^-- (put|claim|acknowledge): .*$", Path(__file__).with_suffix(".lua").read_text(), flags=re.M
)
SCRIPTS = {name: _HEAD + text for name, text in zip(_PARTS[::2], _PARTS[1::2], strict=True)}


class RawQueue:
    def __init__(self, client: redis.Redis, body_type: type[Any], name: str = "raw") -> None:
        self._run: Any = client.evalsha
        self._keys = [f"{{{name}}}:{key}" for key in ("ready", "due", "data", "lease", "last")]
        self.shas = {verb: client.script_load(text) for verb, text in SCRIPTS.items()}
        self._put, self._claim, self._acknowledge = (self.shas[verb] for verb in ("put", "claim", "acknowledge"))
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(body_type).decode
        self._prefix = os.urandom(8).hex()
        self._ids = count(1)

    def _pack(self, body: Any) -> tuple[str, bytes]:
        id = f"{self._prefix}-{next(self._ids):x}"
        return id, b"%b%c%b%b" % (PRIORITY, len(id), id.encode(), self._encode(body))

    def send(self, body: Any) -> str:
        id, message = self._pack(body)
        self._run(self._put, 5, *self._keys, message)
        return id

    def send_many(self, bodies: Sequence[Any]) -> list[str]:
        packed = [self._pack(body) for body in bodies]
        self._run(self._put, 5, *self._keys, *[message for _, message in packed])
        return [id for id, _ in packed]

    def receive(self, n: int = 1, lease: float = 30.0) -> list[tuple[bytes, str, Any]]:
        """(seq, token, body) of up to `n` messages."""
        token = os.urandom(16).hex()
        seqs, messages = self._run(self._claim, 5, *self._keys, n, lease, token)
        decode = self._decode
        return [(seq, token, decode(message[2 + message[1] :])) for seq, message in zip(seqs, messages, strict=True)]

    def acknowledge(self, seq: bytes, token: str) -> bool:
        return bool(self._run(self._acknowledge, 5, *self._keys, token, seq) == 1)

    def acknowledge_many(self, held: Sequence[tuple[bytes, str]]) -> int:
        """All of one claim."""
        return int(self._run(self._acknowledge, 5, *self._keys, held[0][1], *[seq for seq, _ in held]))
