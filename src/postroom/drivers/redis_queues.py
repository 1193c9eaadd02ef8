"""Queues in Redis, as their owners see them; and how every script is called.

What a script leaves to be carried to queues in other slots is seen to before its caller goes on (`redis_carry`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import nsmallest
from time import monotonic, time
from typing import Any, Literal

import msgspec

from postroom.core import refusals
from postroom.core.definition import PLAIN, QueueStatus, Rules
from postroom.core.message import Delivery, Outcome, Stats
from postroom.drivers import redis_carry as carrying
from postroom.drivers.io import Awaiting, Bell, Inline, Io
from postroom.drivers.redis_answers import read_info, read_page, refusal
from postroom.drivers.redis_scripts import Keys, registry, script
from postroom.drivers.redis_settings import Settings, capabilities
from postroom.drivers.redis_wire import Wire
from postroom.errors import QueueNotFoundError, UnsupportedError

_REMEMBERED = 10_000  # queues whose packed keys are kept


class RedisQueues:
    """One client, and the queues it sees."""

    def __init__(
        self,
        make: Callable[[], Any],
        settings: Settings,
        flavour: Literal["sync", "async"],
        *,
        cluster: bool,
        owned: bool,
    ) -> None:
        self.io: Io = Inline() if flavour == "sync" else Awaiting()
        self.capabilities = capabilities(settings, cluster=cluster)
        self.place = f"{settings.where} {settings.namespace}"
        self.wire = Wire(make, self.io, settings, cluster=cluster, owned=owned)
        self.settings = settings
        self._clock = settings.clock
        self._offset = time() - monotonic()  # of the server's clock to ours, until it tells
        self._keys: dict[str, Keys] = {}
        self._listed: set[str] = set()  # queues that are in the namespace's list, as far as we know

    def now(self) -> float:
        return self._clock.now() if self._clock is not None else monotonic() + self._offset

    # --- calling -----------------------------------------------------------------------------------------------

    def keys(self, queue: str) -> Keys:
        keys = self._keys.get(queue)
        if keys is None:
            if len(self._keys) >= _REMEMBERED:  # replies to a million names must not fill the memory
                self._keys.clear()
            keys = self._keys[queue] = Keys(self.settings.namespace, queue)
        return keys

    async def run(
        self,
        verb: str,
        keys: Keys,
        *arguments: bytes,
        once: bool = False,
        durable: bool = False,
        patience: float = 0.0,
        most: float = math.inf,
        again: int | None = None,
        half: bytes | None = None,
        stop: Bell | None = None,
    ) -> list[Any]:
        """A script's answer, without its first element; what it refuses is raised. `once`: it must not happen twice."""
        at = b"" if self._clock is None else repr(self._clock.now()).encode()
        half = keys.half if half is None else half
        wire, what = self.wire, script(verb)
        if not once:
            given = [at, half, b"", b"", keys.title, *arguments]
            reply = await wire.run(
                what, keys, given, patience=patience, most=most, durable=durable, again=again, stop=stop
            )
        else:
            caller = wire.caller()
            try:
                given = [at, half, caller.id, b"%d" % caller.number, keys.title, *arguments]
                reply = await wire.run(
                    what, keys, given, patience=patience, most=most, durable=durable, again=again, stop=stop
                )
            finally:
                wire.hang_up(caller)
        if reply[0]:
            if reply[0] == b"idle":
                await self._drop(keys, b"", b"1")
                raise refusals.idle_queue(keys.name)
            raise refusal(keys.name, reply)
        return reply  # type: ignore[no-any-return]  # what the server answers has no type

    def _heard(self, now: float, asked: float) -> None:
        """The server has said what time it was after we `asked`: as we count from before, a lease never seems longer
        to us than it is."""
        self._offset = now - asked

    async def _carried(self, keys: Keys, parcels: bytes, seconds: float = 5.0) -> int:
        """See to what the script left to be carried to queues in other slots; how many were buried."""
        return await carrying.carry(self, keys, parcels, seconds) if parcels else 0

    # --- queues ------------------------------------------------------------------------------------------------

    async def ensure(self, queue: str, rules: Rules | None = None) -> bool:
        keys = self.keys(queue)
        if keys.dead:
            await self.run("info", keys)
            if rules is not None:
                raise UnsupportedError(f"{queue}: a dead-letter queue has no definition of its own")
            return False
        await self.wire.vet(keys)
        # Before it is made: the list may name what is not there, and must not miss what is.
        known = queue in self._listed
        if not known:
            await self._list(queue)
        asked = monotonic()
        kept = b"" if rules is None or rules == PLAIN else msgspec.msgpack.encode(rules)
        given = (kept, b"" if rules is None else b"1")
        try:
            _, made, now = await self.run("ensure", keys, *given)
        except QueueNotFoundError:  # it had been idle for too long, and is made anew
            known = True
            _, made, now = await self.run("ensure", keys, *given)
        if known and made == b"1":
            await self._list(queue)  # whoever deleted it took it off the list
        self._heard(float(now), asked)
        return bool(made == b"1")

    async def drop(self, queue: str, *, only_empty: bool = False) -> int | None:
        keys = self.keys(queue)
        stats, _, _ = await self.info(queue)
        if keys.dead:
            raise refusals.lives_with_its_queue(queue)
        there = stats.ready + stats.scheduled + stats.in_flight + stats.dead
        if only_empty and there:
            return None
        try:
            return await self._drop(keys, b"1" if only_empty else b"", b"")
        except QueueNotFoundError:
            return there  # it was there a moment ago: the answer that it is gone was lost

    async def _drop(self, keys: Keys, empty: bytes, idle: bytes) -> int | None:
        if not empty and not idle:
            _, _, parcels = await self.run("purge", keys, b"free", b"", b"", half=b"drop")
            await self._carried(keys, parcels)
        _, removed, parcels = await self.run("purge", keys, b"drop", empty, idle, half=b"drop")
        if removed == b"":
            return None
        await self._unlist(keys)
        await self._carried(keys, parcels)
        return int(removed)

    async def _list(self, queue: str) -> None:
        names = registry(self.settings.namespace)
        await self.wire.ask(names, b"SADD", names.encode(), queue.encode(), name=queue)
        self._listed.add(queue)

    async def _unlist(self, keys: Keys) -> None:
        self._listed.discard(keys.name)
        names = registry(self.settings.namespace)
        await self.wire.ask(names, b"SREM", names.encode(), keys.name.encode(), name=keys.name)
        try:
            await self.run("exists", keys, b"look")
            await self._list(keys.name)  # somebody made it anew meanwhile
        except QueueNotFoundError:
            pass

    async def queues(self) -> list[str]:
        names = registry(self.settings.namespace)
        listed = await self.wire.ask(names, b"SMEMBERS", names.encode(), name="list_queues")
        there = []
        for name in sorted(one.decode(errors="replace") for one in listed):
            try:
                await self.run("exists", self.keys(name), b"look")
                there.append(name)
            except QueueNotFoundError:
                pass  # deleted, or never made
        return there

    async def info(self, queue: str) -> tuple[Stats, Rules, QueueStatus]:
        keys = self.keys(queue)
        reply = await self.run("info", keys)
        if await self._carried(keys, reply[-1]):
            reply = await self.run("info", keys)
        stats, rules, status = read_info(queue, reply, dead=keys.dead)
        if rules.dead_letter_queue is not None:  # theirs count, wherever they are
            there = await self._held(rules.dead_letter_queue)
            stats = msgspec.structs.replace(stats, dead=there)
        return stats, rules, status

    async def _held(self, queue: str) -> int:
        """How many messages are in a queue, whatever their state."""
        try:
            reply = await self.run("info", self.keys(queue))
        except QueueNotFoundError:
            return 0
        return sum(map(int, reply[3].split()[:3]))

    async def set_status(self, queue: str, status: QueueStatus) -> None:
        await self.run("status", self.keys(queue), status.value.encode())

    async def peek(self, queue: str, n: int, *, after: int = 0) -> list[Delivery]:
        keys = self.keys(queue)
        above = b"%016d" % after
        reply = await self.run("look", keys, b"page", b"%d" % n, above)
        if reply[1] == b"scan":
            wanted = await self._scan(keys, above, n, set(reply[3::5]))
            reply = await self.run("look", keys, b"these", *wanted)
        if await self._carried(keys, reply[2]):
            return await self.peek(queue, n, after=after)
        return read_page(reply)

    async def _scan(self, keys: Keys, above: bytes, n: int, found: set[bytes]) -> list[bytes]:
        """The first of what is there, where too much waits for its time or its turn to look through it in one step."""
        at = b"1 0"
        while at:
            _, at, *seqs = await self.run("scan", keys, at)
            found.update(seq for seq in seqs if seq > above)
            if len(found) > 10 * n + 1_000:
                found = set(nsmallest(n, found))
        return sorted(found)[:n]

    async def purge(self, queue: str) -> int:
        keys = self.keys(queue)
        _, removed, parcels = await self.run("purge", keys, b"purge", once=True)
        await self._carried(keys, parcels)
        return int(removed)

    async def redrive(self, queue: str, seqs: Sequence[int], *, target: str | None = None) -> list[Outcome]:
        return await carrying.redrive(self, self.keys(queue), seqs, target)
