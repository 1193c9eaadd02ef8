"""The Redis and Valkey store: durable mailboxes on a server, a cluster, or behind Sentinel.

A verb is one script on the one slot of its queue (`redis_lua/`, whose `keys.lua` says what is kept); here is what
surrounds the scripts: what they are given, what their answers mean, and how one waits. What no script can do alone,
because it concerns two queues, is in `redis_carry`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import monotonic, time
from typing import Any, Literal, Self

import msgspec

from postroom.core import refusals
from postroom.core.address import Address
from postroom.core.capabilities import Finding
from postroom.core.definition import PLAIN, QueueStatus, Rules
from postroom.core.message import (
    Accepted,
    Claimed,
    Delivery,
    Envelope,
    Outcome,
    Put,
    SessionClaim,
    SessionLock,
    SessionState,
    Stats,
    Verdict,
)
from postroom.drivers import redis_carry as carrying
from postroom.drivers.io import Awaiting, Bell, Inline, Io
from postroom.drivers.redis_answers import outcomes_of, puts_of, read_claim, read_page, refusal, refused_for_room
from postroom.drivers.redis_clients import open_client
from postroom.drivers.redis_examine import examine
from postroom.drivers.redis_kinds import check_flavour
from postroom.drivers.redis_rows import acknowledges, pack, put_fields, verdict_text, verdict_texts
from postroom.drivers.redis_scripts import Keys, registry, script
from postroom.drivers.redis_settings import Settings, capabilities
from postroom.drivers.redis_url import Place
from postroom.drivers.redis_wait import POLL, Post, Waiting
from postroom.drivers.redis_wire import Wire
from postroom.errors import (
    MailboxConnectionError,
    MailboxError,
    QueueNotFoundError,
    ReceiptHandleExpiredError,
    UnsupportedError,
)

_FENCE = b"60"  # seconds an abandoned claim is remembered


def open(address: Address, *, flavour: Literal["sync", "async"], **options: Any) -> RedisDriver:
    """`redis://host:6379/0`, `rediss://`, `valkey://`, `redis+cluster://h:p,h:p`, `redis+sentinel://h:p,h:p/service`."""
    settings = Settings.of(address, options)
    cluster = Place.of(address).kind == "cluster"
    return RedisDriver(open_client(address, flavour, settings), settings, flavour, cluster=cluster, owned=True)


class RedisDriver:
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
        self.io: Io = Inline() if flavour == "sync" else Awaiting()
        self.capabilities = capabilities(settings, cluster=cluster)
        self.place = f"{settings.where} {settings.namespace}"
        self.wire = Wire(make, self.io, settings, cluster=cluster, owned=owned)
        self.settings = settings
        self._clock = settings.clock
        self._offset = time() - monotonic()  # of the server's clock to ours, until it tells
        self._keys: dict[str, Keys] = {}
        self._posts: dict[bytes, Post] = {}
        self._listed: set[str] = set()  # queues that are in the namespace's list, as far as we know

    def now(self) -> float:
        return self._clock.now() if self._clock is not None else monotonic() + self._offset

    # --- calling -----------------------------------------------------------------------------------------------

    def keys(self, queue: str) -> Keys:
        keys = self._keys.get(queue)
        if keys is None:
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
        again: int | None = None,
        half: bytes | None = None,
    ) -> list[Any]:
        """A script's answer, without its first element; what it refuses is raised. `once`: it must not happen twice."""
        at = b"" if self._clock is None else repr(self._clock.now()).encode()
        half = keys.half if half is None else half
        wire, what = self.wire, script(verb)
        if not once:
            given = [at, half, b"", b"", keys.title, *arguments]
            reply = await wire.run(what, keys, given, patience=patience, durable=durable, again=again)
        else:
            caller = wire.caller()
            try:
                given = [at, half, caller.id, b"%d" % caller.number, keys.title, *arguments]
                reply = await wire.run(what, keys, given, patience=patience, durable=durable, again=again)
            finally:
                wire.hang_up(caller)
        if reply[0]:
            if reply[0] == b"idle":
                await self._drop(keys, b"1")
                raise refusals.idle_queue(keys.name)
            raise refusal(keys.name, reply)
        return reply  # type: ignore[no-any-return]  # what the server answers has no type

    def _heard(self, now: float, asked: float) -> None:
        """The server has said what time it was after we `asked`: as we count from before, a lease never seems longer
        to us than it is."""
        self._offset = now - asked

    async def _carried(self, keys: Keys, parcels: bytes) -> int:
        """See to what the script left to be carried to queues in other slots; how many were buried."""
        return await carrying.carry(self, keys, parcels) if parcels else 0

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
            _, made, now = await self.run("ensure", keys, *given, durable=True)
        except QueueNotFoundError:  # it had been idle for too long, and is made anew
            known = True
            _, made, now = await self.run("ensure", keys, *given, durable=True)
        if known and made == b"1":
            await self._list(queue)  # whoever deleted it took it off the list
        self._heard(float(now), asked)
        return bool(made == b"1")

    async def drop(self, queue: str, *, only_empty: bool = False) -> int | None:
        keys = self.keys(queue)
        if keys.dead:
            await self.run("info", keys)
            raise refusals.lives_with_its_queue(queue)
        _, removed, parcels = await self.run("purge", keys, b"drop", b"1" if only_empty else b"", b"", half=b"drop")
        if removed == b"":
            return None
        await self._unlist(keys)
        await self._carried(keys, parcels)
        return int(removed)

    async def _drop(self, keys: Keys, idle: bytes) -> None:
        _, removed, parcels = await self.run("purge", keys, b"drop", b"", idle, half=b"drop")
        if removed != b"":
            await self._unlist(keys)
            await self._carried(keys, parcels)

    async def _list(self, queue: str) -> None:
        names = registry(self.settings.namespace)
        await self.wire.ask(names, b"SADD", names.encode(), queue.encode(), name=queue)
        self._listed.add(queue)

    async def _unlist(self, keys: Keys) -> None:
        self._listed.discard(keys.name)
        names = registry(self.settings.namespace)
        await self.wire.ask(names, b"SREM", names.encode(), keys.name.encode(), name=keys.name)

    async def queues(self) -> list[str]:
        names = registry(self.settings.namespace)
        listed = await self.wire.ask(names, b"SMEMBERS", names.encode(), name="list_queues")
        there = []
        for name in sorted(one.decode(errors="replace") for one in listed):
            try:
                await self.run("exists", self.keys(name))
                there.append(name)
            except QueueNotFoundError:
                pass  # deleted, or never made
        return there

    async def info(self, queue: str) -> tuple[Stats, Rules, QueueStatus]:
        keys = self.keys(queue)
        _, kept, status, numbers, created, updated, now, since, parcels = await self.run("info", keys)
        if await self._carried(keys, parcels):
            _, kept, status, numbers, created, updated, now, since, _ = await self.run("info", keys)
        ready, scheduled, in_flight, dead, size, dropped, expired = map(int, numbers.split())
        stats = Stats(
            ready=ready,
            scheduled=scheduled,
            in_flight=in_flight,
            dead=dead,
            bytes=size,
            oldest_age=max(0.0, float(now) - float(since)) if since else None,
            dropped=dropped,
            expired=expired,
            created_at=float(created),
            updated_at=float(updated),
        )
        rules = msgspec.msgpack.decode(kept, type=Rules) if kept and not keys.dead else PLAIN
        return stats, rules, QueueStatus(status.decode()) if not keys.dead else QueueStatus.ACTIVE

    async def set_status(self, queue: str, status: QueueStatus) -> None:
        await self.run("status", self.keys(queue), status.value.encode(), durable=True)

    async def peek(self, queue: str, n: int, *, after: int = 0) -> list[Delivery]:
        keys = self.keys(queue)
        above = b"%016d" % after
        reply = await self.run("look", keys, b"page", b"%d" % n, above)
        if reply[1] == b"scan":
            wanted = set(reply[3::5]) | await self._scan(keys, above)
            reply = await self.run("look", keys, b"these", *sorted(wanted)[:n])
        if await self._carried(keys, reply[2]):
            return await self.peek(queue, n, after=after)
        return read_page(reply)

    async def _scan(self, keys: Keys, above: bytes) -> set[bytes]:
        """What waits for its time or its turn, where it is too much to look through in one step: the seqs above one."""
        found: set[bytes] = set()
        at = b"1 0"
        while at:
            _, at, *seqs = await self.run("scan", keys, at)
            found.update(seq for seq in seqs if seq > above)
        return found

    async def purge(self, queue: str) -> int:
        keys = self.keys(queue)
        _, removed, parcels = await self.run("purge", keys, b"purge", durable=True)
        await self._carried(keys, parcels)
        return int(removed)

    async def redrive(self, queue: str, seqs: Sequence[int], *, target: str | None = None) -> list[Outcome]:
        return await carrying.redrive(self, self.keys(queue), seqs, target)

    # --- in ----------------------------------------------------------------------------------------------------

    async def put(self, queue: str, batch: Sequence[Envelope], *, stop: Bell | None = None) -> list[Put]:
        if not batch:
            return []
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

    async def _put_rest(
        self, keys: Keys, batch: Sequence[Envelope], found: tuple[list[Put], float], stop: Bell | None
    ) -> list[Put]:
        """A full queue may be one that lets its senders wait: put what did not fit as room comes."""
        results, seconds = found
        left = [i for i, result in enumerate(results) if refused_for_room(result)]
        if not seconds or not left:
            return results
        waiting = self._wait(keys, keys.all, seconds, stop)
        who = self.wire.caller()
        try:
            while left and not waiting.over:
                rest = [batch[i] for i in left]
                _, answer, parcels = await self.run(
                    "put", keys, b"full", who.id, *put_fields(rest), once=True, durable=True
                )
                await self._carried(keys, parcels)
                for i, result in zip(left, puts_of(keys.name, rest, answer)[0], strict=True):
                    results[i] = result
                left = [i for i in left if refused_for_room(results[i])]
                if left and not waiting.over:
                    await waiting.sleep(math.inf)
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
                reply = await self.run("claim", keys, *given, *riding, once=bool(riding), patience=left, again=_AGAIN)
                if riding:
                    outcomes, riding = outcomes_of(queue, reply[1]), []
                found = read_claim(reply, claim_id)
                if self._clock is None:
                    self._heard(found.now, asked)
                carried = await self._carried(keys, reply[2])
                buried, expired = buried + found.buried + carried, expired + found.expired
                if found.deliveries:
                    return Claimed(found.deliveries, outcomes, buried, expired)
                if (found.more or carried) and not self.wire.closed.rung:
                    continue  # one step puts away so many and no more; what we want may lie behind them
                if waiting is None or waiting.over:
                    return Claimed((), outcomes, buried, expired)
                await waiting.sleep(found.due - found.now)
        except MailboxConnectionError:
            if not self.wire.closed.rung or riding:
                raise
            return Claimed((), outcomes, buried, expired)  # closed while we were on our way to look again
        finally:
            if who is not None:
                self.wire.hang_up(who)
            if waiting is not None and waiting.torn and not self.wire.closed.rung:
                waiting.torn = False
                await self._pass_on(queue, claim_id)

    def _wait(self, keys: Keys, listen_to: bytes, seconds: float, stop: Bell | None) -> Waiting:
        post = self._posts.get(listen_to)
        if post is None:
            post = self._posts.setdefault(listen_to, Post())
        return Waiting(self.io, self.wire, post, keys, listen_to, seconds, self._clock, stop)

    async def settle(self, queue: str, batch: Sequence[Verdict]) -> list[Outcome]:
        if not batch:
            return []
        keys = self.keys(queue)
        if acknowledges(batch):
            texts = verdict_texts(batch)
            if texts is not None:
                reply = await self.run("settle", keys, *texts, once=True)
                await self._carried(keys, reply[2])
                return outcomes_of(queue, reply[1])
        return await carrying.settle(self, keys, batch)

    async def abandon(self, queue: str, claim_id: str) -> None:
        try:
            await self.run("abandon", self.keys(queue), claim_id.encode(), _FENCE)
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

    async def _pass_on(self, queue: str, claim_id: str) -> None:
        """We stopped listening before our token came. If it was on its way, the next in line must look."""
        try:
            await self.io.shield(self.abandon(queue, claim_id), 1.0)
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
        return cls(lambda: client, settings, flavour, cluster=cluster, owned=False)


_AGAIN = 8  # of a claim's arguments: whether it is a repetition
