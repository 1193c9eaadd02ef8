"""Baseline (a): the Redis driver's own scripts, called through plain redis-py with the arguments that the driver gives.

What the driver does beyond this is our Python: options, envelopes, verdicts, outcomes, retries; what it saves is
redis-py's own. Bodies are encoded and decoded here too, as nobody can do without. `bench.redis` compares what a server
hears of both, so that an argument that was changed there and not here is noticed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from struct import Struct
from typing import Any

import msgspec

from postroom.drivers.redis_scripts import KEYS, Keys, script

_START = Struct(">BBIH")
_NO_HEAD = bytes(4)
_BODY = 12  # bytes before it, beside the id


class _Words:
    """The arguments and the answers, whoever carries them."""

    def __init__(self, queue: str, body_type: type[Any]) -> None:
        keys = Keys("", queue)
        self.keys = [keys.routing + key for key in KEYS]
        self.bell = keys.bell
        self.verbs = {verb: script(verb).sha for verb in ("put", "claim", "settle")}
        self._title = keys.title
        self._caller = os.urandom(9).hex()
        self._calls = count(1)
        self.encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(body_type).decode
        self._prefix = os.urandom(8).hex() + "-"
        self._ids = count(1)

    def _once(self) -> tuple[Any, ...]:
        return (b"", b"", self._caller, next(self._calls), self._title)

    def put(self, bodies: Sequence[Any]) -> tuple[list[str], tuple[Any, ...]]:
        ids, envelopes, size = [], [], 0
        for body in bodies:
            data, id = self.encode(body), f"{self._prefix}{next(self._ids):x}"
            ids.append(id)
            envelopes.append(b"".join((_START.pack(1, 10, len(data), len(id)), id.encode(), _NO_HEAD, data)))
            size += len(data)
        return ids, (*self._once(), b"plain", size, *envelopes)

    def claim(self, claim_id: str, n: int, wait: float = 0, riding: Sequence[str] = ()) -> tuple[Any, ...]:
        called = self._once() if riding else (b"", b"", b"", b"", self._title)
        waits = b"0" if wait <= 0 else b"%.3f" % min(wait, 5.0)
        return (*called, n, b"", claim_id, b"", b"", b"", b"", waits, b"", *riding)

    def claimed(self, claim_id: str, reply: list[Any]) -> list[tuple[int, str, Any]]:
        assert reply[0] == b""
        found = []
        for at in range(4, len(reply), 4):
            data = reply[at + 1]
            body = self._decode(data[_BODY + int.from_bytes(data[6:8], "big") :])
            found.append((int(reply[at]), claim_id, body))
        return found

    def settle(self, held: Sequence[tuple[int, str]]) -> tuple[Any, ...]:
        return (*self._once(), *[self.ack(*one) for one in held])

    @staticmethod
    def ack(seq: int, claim_id: str) -> str:
        return f"A{seq}.{claim_id}"

    @staticmethod
    def settled(reply: list[Any]) -> int:
        return len(reply[1].split(b",")) if reply[1].strip(b"s,") == b"" else 0


class ByHand(_Words):
    """Over a `redis.Redis`."""

    def __init__(self, client: Any, queue: str, body_type: type[Any]) -> None:
        super().__init__(queue, body_type)
        self._client = client

    def _run(self, verb: str, given: tuple[Any, ...]) -> list[Any]:
        return self._client.evalsha(self.verbs[verb], len(KEYS), *self.keys, *given)  # type: ignore[no-any-return]

    def send(self, body: Any) -> str:
        return self.send_many((body,))[0]

    def send_many(self, bodies: Sequence[Any]) -> list[str]:
        ids, given = self.put(bodies)
        assert self._run("put", given)[1][:1] == b"A"
        return ids

    def receive(self, n: int = 1, wait: float = 0) -> list[tuple[int, str, Any]]:
        """(seq, claim_id, body) of up to `n` messages."""
        claim_id = os.urandom(16).hex()
        found = self.claimed(claim_id, self._run("claim", self.claim(claim_id, n, wait)))
        while wait and not found:
            self._client.blpop([self.bell], 5)
            found = self.claimed(claim_id, self._run("claim", self.claim(claim_id, n, wait)))
        return found

    def receive_and_acknowledge(self, seq: int, claim_id: str) -> list[tuple[int, str, Any]]:
        """The acknowledge rides in the claim."""
        new = os.urandom(16).hex()
        reply = self._run("claim", self.claim(new, 1, riding=(self.ack(seq, claim_id),)))
        assert self.settled(reply) == 1
        return self.claimed(new, reply)

    def acknowledge(self, seq: int, claim_id: str) -> bool:
        return self.acknowledge_many([(seq, claim_id)]) == 1

    def acknowledge_many(self, held: Sequence[tuple[int, str]]) -> int:
        return self.settled(self._run("settle", self.settle(held)))


class AsyncByHand(_Words):
    """Over a `redis.asyncio.Redis`: each task makes its own call."""

    def __init__(self, client: Any, queue: str, body_type: type[Any]) -> None:
        super().__init__(queue, body_type)
        self._client = client

    async def _run(self, verb: str, given: tuple[Any, ...], caller: str, number: int) -> list[Any]:
        # A caller makes one call at a time: each task is one of its own.
        given = (*given[:2], *((caller, number) if given[2] else (b"", b"")), *given[4:])
        return await self._client.evalsha(self.verbs[verb], len(KEYS), *self.keys, *given)  # type: ignore[no-any-return]

    async def send(self, body: Any, caller: str, number: int) -> str:
        [id], given = self.put((body,))
        assert (await self._run("put", given, caller, number))[1][:1] == b"A"
        return id

    async def take(self, caller: str, number: int) -> Any:
        claim_id = os.urandom(16).hex()
        reply = await self._run("claim", self.claim(claim_id, 1), caller, number)
        [(seq, _, body)] = self.claimed(claim_id, reply)
        assert self.settled(await self._run("settle", self.settle([(seq, claim_id)]), caller, number)) == 1
        return body
