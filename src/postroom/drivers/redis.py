"""The Redis and Valkey store: durable mailboxes on a server, a cluster, or behind Sentinel.

A verb is one script on the one slot of its queue (`redis_lua/`, whose `keys.lua` says what is kept); here is what
surrounds the scripts: what they are given, what their answers mean, and how one waits. What no script can do alone,
because it concerns two queues, is in `redis_carry`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from os import getpid
from time import monotonic
from typing import Any, Literal, Self

from postroom.core import refusals
from postroom.core.address import Address
from postroom.core.capabilities import Finding
from postroom.core.limits import MAX_BATCH
from postroom.core.message import (
    Accepted,
    Claimed,
    Envelope,
    Outcome,
    Put,
    Refused,
    SessionClaim,
    SessionLock,
    SessionState,
    Verdict,
)
from postroom.drivers import redis_carry as carrying
from postroom.drivers.io import Bell
from postroom.drivers.redis_answers import (
    Stored,
    outcomes_of,
    puts_of,
    read_claim,
    refused_for_room,
)
from postroom.drivers.redis_clients import open_client
from postroom.drivers.redis_examine import examine
from postroom.drivers.redis_kinds import check_flavour
from postroom.drivers.redis_queues import RedisQueues
from postroom.drivers.redis_rows import acknowledges, pack, put_fields, verdict_text, verdict_texts
from postroom.drivers.redis_scripts import Keys
from postroom.drivers.redis_settings import Settings
from postroom.drivers.redis_together import AGAIN, Together
from postroom.drivers.redis_twins import sync_twin
from postroom.drivers.redis_url import Place
from postroom.drivers.redis_wait import POLL, Post, Waiting
from postroom.errors import (
    DurabilityError,
    MailboxError,
    QueueNotFoundError,
    ReceiptHandleExpiredError,
)

_FENCE = b"60"  # seconds an abandoned claim is remembered
_ABANDON = 1.0  # seconds of trying to give up a claim while the store is away; then it lapses by itself


def open(address: Address, *, flavour: Literal["sync", "async"], **options: Any) -> RedisDriver:
    """`redis://host:6379/0`, `rediss://`, `valkey://`, `redis+cluster://h:p,h:p`, `redis+sentinel://h:p,h:p/service`."""
    settings = Settings.of(address, options)
    cluster = Place.of(address).kind == "cluster"
    driver = RedisDriver(open_client(address, flavour, settings), settings, flavour, cluster=cluster, owned=True)
    driver.make_sync = open_client(address, "sync", settings)
    return driver


class RedisDriver(RedisQueues):
    """The waist over one client."""

    def __init__(
        self,
        make: Callable[[], Any],
        settings: Settings,
        flavour: Literal["sync", "async"],
        *,
        cluster: bool,
        owned: bool,
    ) -> None:
        super().__init__(make, settings, flavour, cluster=cluster, owned=owned)
        self.make_sync: Callable[[], Any] | None = None  # a sync client with the same settings
        self._posts: dict[tuple[int, bytes], Post] = {}
        self._claims: dict[str, Together] = {}

    def sibling(self) -> RedisDriver:
        if self.io.flavour == "sync" or self.make_sync is None:
            return self
        return RedisDriver(self.make_sync, self.settings, "sync", cluster=self.wire.cluster, owned=True)

    # --- in ----------------------------------------------------------------------------------------------------

    async def put(self, queue: str, batch: Sequence[Envelope], *, stop: Bell | None = None) -> list[Put]:
        try:
            return await self._store(queue, batch, stop)
        except DurabilityError as error:  # they are stored, and each of their senders must know
            return [Refused(error.copy()) for _ in batch]

    async def _store(self, queue: str, batch: Sequence[Envelope], stop: Bell | None) -> list[Put]:
        if not batch:
            return []
        if len(batch) > MAX_BATCH:
            parts = range(0, len(batch), MAX_BATCH)
            return [one for at in parts for one in await self.put(queue, batch[at : at + MAX_BATCH], stop=stop)]
        keys = self.keys(queue)
        plain = True
        size = 0
        for e in batch:
            if e.session_id is not None or e.dedup_id is not None or e.ttl is not None or e.delay > 0:
                plain = False
                break
            size += e.size
        if not plain:
            return await self._put(keys, batch, stop)
        _, answer, parcels = await self.run(
            "put", keys, b"plain", b"%d" % size, *[pack(e) for e in batch], once=True, durable=True
        )
        if answer[:1] == b"A":
            first = int(answer[1:])
            if len(batch) == 1:
                return [Accepted(batch[0].id, first)]
            return [Accepted(e.id, first + i) for i, e in enumerate(batch)]
        await self._carried(keys, parcels)
        return await self._put_rest(keys, batch, puts_of(queue, batch, answer), stop)

    async def _put(self, keys: Keys, batch: Sequence[Envelope], stop: Bell | None) -> list[Put]:
        _, answer, parcels = await self.run("put", keys, b"full", b"", *put_fields(batch), once=True, durable=True)
        await self._carried(keys, parcels)
        return await self._put_rest(keys, batch, puts_of(keys.name, batch, answer), stop)

    async def _put_rest(self, keys: Keys, batch: Sequence[Envelope], found: Stored, stop: Bell | None) -> list[Put]:
        """A full queue may be one that lets its senders wait: put what did not fit as room comes."""
        results, seconds, due = found
        left = [i for i, result in enumerate(results) if refused_for_room(result)]
        if not seconds or not left:
            return results
        waiting = self._wait(keys, keys.all, seconds, stop)
        who = self.wire.caller()
        try:
            while left and not waiting.over:
                rest = [batch[i] for i in left]
                _, answer, parcels = await self.run(
                    "put", keys, b"full", who.id, *put_fields(rest), once=True, durable=True, stop=stop
                )
                await self._carried(keys, parcels)
                found = puts_of(keys.name, rest, answer)
                due = found.due
                for i, result in zip(left, found.results, strict=True):
                    results[i] = result
                left = [i for i in left if refused_for_room(results[i])]
                if left and not waiting.over:
                    await waiting.sleep(due)
        finally:
            self.wire.hang_up(who)
        return results

    # --- out ---------------------------------------------------------------------------------------------------

    async def claim(
        self,
        queue: str,
        n: int,
        *,
        lease: float | None,
        wait: float,
        claim_id: str,
        session: SessionClaim | None = None,
        max_deliveries: int | None = None,
        settle: Sequence[Verdict] = (),
        stop: Bell | None = None,
        again: bool = False,
    ) -> Claimed:
        keys = self.keys(queue)
        outcomes: list[Outcome] = []
        riding: list[bytes] = []
        if settle:
            texts = [verdict_text(one) for one in settle] if acknowledges(settle) else []
            if texts and None not in texts:
                riding = texts  # type: ignore[assignment]  # none is None
            else:
                outcomes = await self.settle(queue, settle)
        if self.wire.closed.rung:
            return Claimed((), outcomes)
        waiting = None
        if wait > 0:
            waiting = self._wait(keys, keys.bell if session is None else keys.all, wait, stop)
        who = self.wire.caller() if session is not None and waiting is not None else None
        given = [
            b"%d" % n,
            b"" if lease is None else repr(lease).encode(),
            claim_id.encode(),
            b"1" if again else b"",
            b"" if session is None else session.id.encode(),
            b"" if session is None or session.token is None else session.token.encode(),
            b"" if max_deliveries is None else b"%d" % max_deliveries,
            b"",
            b"" if who is None else who.id,
        ]
        buried = expired = 0
        try:
            while True:
                asked = monotonic()
                left = 0.0 if waiting is None or waiting.over else waiting.left
                given[7] = b"0" if left <= 0 else b"%.3f" % min(left, POLL)
                if riding or self.io.flavour == "sync":
                    once = bool(riding)
                    reply = await self.run(
                        "claim", keys, *given, *riding, once=once, patience=left, again=AGAIN, stop=stop
                    )
                else:
                    reply = await self._together(keys).claim(given, left, stop)
                if riding:
                    outcomes, riding = outcomes_of(queue, reply[1]), []
                found = read_claim(reply, claim_id)
                if self._clock is None:
                    self._heard(found.now, asked)
                # Who holds messages must not carry others' parcels until its leases are over.
                carried = await self._carried(keys, reply[2], 0.5 if found.deliveries else 5.0)
                buried, expired = buried + found.buried + carried, expired + found.expired
                if found.deliveries:
                    return Claimed(found.deliveries, outcomes, buried, expired)
                if (found.more or carried) and not self.wire.closed.rung:
                    continue  # one step puts away so many and no more; what we want may lie behind them
                if waiting is None or waiting.over:
                    return Claimed((), outcomes, buried, expired)
                await waiting.sleep(found.due - found.now)
        except MailboxError as error:
            home = self.wire.closed.rung or (stop is not None and stop.rung)
            if not home or riding or not (error.transient or self.wire.closed.rung):
                raise
            return Claimed((), outcomes, buried, expired)  # called home while we were on our way to look again
        finally:
            if who is not None:
                self.wire.hang_up(who)
            if waiting is not None and waiting.torn and not self.wire.closed.rung:
                waiting.torn = False
                await self._pass_on(keys)

    def _together(self, keys: Keys) -> Together:
        together = self._claims.get(keys.name)
        if together is None:
            together = self._claims[keys.name] = Together(self.run, keys)
        return together

    def _wait(self, keys: Keys, listen_to: bytes, seconds: float, stop: Bell | None) -> Waiting:
        place = (getpid(), listen_to)  # a forked child takes turns with nobody of its parent's
        post = self._posts.get(place)
        if post is None:
            post = self._posts.setdefault(place, Post())
        return Waiting(self.io, self.wire, post, keys, listen_to, seconds, self._clock, stop)

    async def settle(self, queue: str, batch: Sequence[Verdict]) -> list[Outcome]:
        if not batch:
            return []
        keys = self.keys(queue)
        if acknowledges(batch):
            texts = verdict_texts(batch) if len(batch) <= MAX_BATCH else None
            if texts is not None:
                reply = await self.run("settle", keys, *texts, once=True)
                await self._carried(keys, reply[2])
                return outcomes_of(queue, reply[1])
        return await carrying.settle(self, keys, batch)

    async def abandon(self, queue: str, claim_id: str) -> None:
        try:
            await self.run("abandon", self.keys(queue), claim_id.encode(), _FENCE, most=_ABANDON)
        except QueueNotFoundError:
            pass  # and what it took is gone with it

    # --- sessions ----------------------------------------------------------------------------------------------

    async def lock(
        self, queue: str, session: str | None, *, lease: float, wait: float, token: str, stop: Bell | None = None
    ) -> SessionLock | None:
        keys = self.keys(queue)
        waiting = self._wait(keys, keys.all, wait, stop)
        who = self.wire.caller()
        wanted = b"" if session is None else session.encode()
        try:
            while not self.wire.closed.rung:
                seconds = b"0" if waiting.over else b"%.3f" % min(waiting.left, POLL)
                reply = await self.run("lock", keys, wanted, repr(lease).encode(), token.encode(), seconds, who.id)
                carried = await self._carried(keys, reply[2])
                if reply[1] is not None:
                    return SessionLock(reply[1].decode(), token, float(reply[3]))
                now, more, due = reply[3].split()
                if carried or more == b"1":
                    continue
                if waiting.over:
                    return None
                await waiting.sleep(float(due) - float(now))
            return None
        finally:
            self.wire.hang_up(who)

    async def renew(self, queue: str, lock: SessionLock, lease: float) -> SessionLock | None:
        reply = await self._hold("renew", queue, lock.id, lock.token, repr(lease).encode())
        return None if reply is None else SessionLock(lock.id, lock.token, float(reply[1]))

    async def unlock(self, queue: str, lock: SessionLock) -> bool:
        return await self._hold("unlock", queue, lock.id, lock.token) is not None

    async def get_state(self, queue: str, session: str) -> SessionState:
        _, version, value = await self.run("hold", self.keys(queue), b"get", session.encode(), b"")
        return SessionState(value, int(version))

    async def set_state(
        self, queue: str, lock: SessionLock, value: bytes | None, *, version: int | None = None
    ) -> SessionState | None:
        given = (b"0" if value is None else b"1", value or b"", b"" if version is None else b"%d" % version)
        reply = await self._hold("set", queue, lock.id, lock.token, *given, durable=True)
        if reply is None:
            raise refusals.lock_lost(queue, lock.id)
        return None if reply[1] == b"" else SessionState(value, int(reply[1]))

    async def _hold(
        self, verb: str, queue: str, session: str, token: str, *given: bytes, durable: bool = False
    ) -> list[Any] | None:
        """None when the lock was lost."""
        try:
            return await self.run(
                "hold", self.keys(queue), verb.encode(), session.encode(), token.encode(), *given, once=True,
                durable=durable,
            )  # fmt: skip
        except ReceiptHandleExpiredError:
            return None

    async def _pass_on(self, keys: Keys) -> None:
        """We stopped listening before our token came. If it was on its way, the next in line must look."""
        try:
            await self.io.shield(self.run("nudge", keys, most=_ABANDON), _ABANDON)
        except MailboxError:
            pass  # the store is away: they look by themselves within seconds

    async def examine(self) -> list[Finding]:
        return await examine(self.wire, self.settings)

    async def close(self) -> None:
        await self.wire.close()
        await self.io.close()

    @classmethod
    def of_client(cls, client: Any, *, flavour: Literal["sync", "async"], namespace: str = "", **options: Any) -> Self:
        """Over a client that somebody else made and closes."""
        cluster = check_flavour(client, flavour)
        settings = Settings.of_client(client, {"namespace": namespace, **options})
        driver = cls(lambda: client, settings, flavour, cluster=cluster, owned=False)
        driver.make_sync = partial(sync_twin, client)
        return driver
