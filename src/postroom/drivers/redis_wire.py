"""Calls to the server, over whatever client: standalone, Sentinel's or a cluster's, sync or async.

We take connections from the client's own pools and speak on them directly, for three reasons. A script and the WAIT
that asks for its replicas must travel on one connection. Tasks that call at the same time share one write and one read
(`_Shared`). And who retries must know what may be retried: here every call may, since a script that changes something
carries the number of its caller's call and is carried out once (`begin.lua`).
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from redis.exceptions import (
    AskError,
    ClusterDownError,
    InvalidResponse,
    MaxConnectionsError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    ResponseError,
    SlotNotCoveredError,
)

from postroom.drivers.io import Bell, Io, mutex
from postroom.drivers.redis_errors import FAILURES, foreign, in_handshake, retryable, translate
from postroom.drivers.redis_scripts import Keys, Script, command, plain
from postroom.drivers.redis_settings import Settings
from postroom.errors import ConfigurationError, DurabilityError, MailboxConnectionError, MailboxError

T = TypeVar("T")

_FIRST = 1.0  # seconds of retries while we never had an answer: more likely a wrong address than a restart
_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
_ASKING = plain(b"ASKING")
EVICTING = ("allkeys-lru", "allkeys-lfu", "allkeys-random")


class Port(NamedTuple):
    """Where a command goes: one node's connections."""

    name: str
    get: Callable[[], Any]
    release: Callable[[Any], Any]


class Caller:
    """Somebody who makes one call at a time. Its calls are numbered, so that none is carried out twice."""

    __slots__ = ("id", "number")

    def __init__(self) -> None:
        self.id = os.urandom(9).hex().encode()
        self.number = 0


class Wire:
    """One client."""

    def __init__(self, make: Callable[[], Any], io: Io, settings: Settings, *, cluster: bool, owned: bool) -> None:
        self._make = make
        self._client: Any = None
        self._making = mutex()
        self._io = io
        self._settings = settings
        self.cluster = cluster
        self._owned = owned
        self._reached = False
        self._vetted: set[str] = set()
        self._shared: dict[str, _Shared] = {}
        self._callers: list[Caller] = []
        self._idle: dict[str, list[Any]] = {}  # connections between two calls
        self._pid = os.getpid()
        self.closed = Bell()
        replicas, patience = settings.replicas, settings.replicas_timeout
        self._confirm = plain(b"WAIT", b"%d" % replicas, b"%d" % max(1, patience * 1000)) if replicas else None

    # --- who calls ---------------------------------------------------------------------------------------------

    def caller(self) -> Caller:
        if self._pid != os.getpid():
            self._begin_anew()
        try:
            caller = self._callers.pop()
        except IndexError:
            caller = Caller()
        caller.number += 1
        return caller

    def hang_up(self, caller: Caller) -> None:
        self._callers.append(caller)

    def _begin_anew(self) -> None:
        """In a forked child: neither its parent's numbers nor its parent's connections are its own, and whoever held
        the lock at that moment is not there to let it go."""
        self._pid, self._callers, self._shared, self._idle = os.getpid(), [], {}, {}
        self._making = mutex()

    # --- calling -----------------------------------------------------------------------------------------------

    async def run(
        self,
        script: Script,
        keys: Keys,
        arguments: list[bytes],
        *,
        patience: float = 0.0,
        most: float = math.inf,
        durable: bool = False,
        again: int | None = None,
        stop: Bell | None = None,
    ) -> Any:
        """What the script answers; tried again until it does, or the time of a call is over: that of any call, or
        `patience` where that is longer, never more than `most`, and no longer than until `stop` rings.

        `again` is the argument that says 1 when this is a repetition; `durable` waits for the replicas as well.
        """
        confirm = self._confirm if durable else None

        async def once(port: Port, before: list[bytes], repeated: bool) -> Any:
            if repeated and again is not None:
                arguments[again] = b"1"
            after = [] if confirm is None else [confirm]
            replies = await self._talk(port, [*before, command(script.by_sha, keys, arguments), *after])
            reply = replies[len(before)]
            if isinstance(reply, NoScriptError):  # the server was restarted, or its cache emptied
                replies = await self._talk(port, [*before, command(script.by_text, keys, arguments), *after])
                reply = replies[len(before)]
            if isinstance(reply, ResponseError):
                raise reply
            if confirm is not None:
                self._check_replicas(keys, replies[-1])
            return reply

        return await self._persist(once, keys.routing, keys.name, patience, most, stop)

    async def ask(self, routing: str, *words: bytes, name: str) -> Any:
        """One plain command, tried again like a script."""

        async def once(port: Port, before: list[bytes], repeated: bool) -> Any:
            reply = (await self._talk(port, [*before, plain(*words)]))[-1]
            if isinstance(reply, ResponseError):
                raise reply
            return reply

        return await self._persist(once, routing, name)

    async def _persist(
        self,
        once: Callable[[Port, list[bytes], bool], Awaitable[T]],
        routing: str,
        name: str,
        patience: float = 0.0,
        most: float = math.inf,
        stop: Bell | None = None,
    ) -> T:
        """Do it until it is done, or cannot be, or has taken too long. `once` is told where to go, what to say first,
        and whether it was tried before."""
        asked: tuple[str, int] | None = None
        began, attempt, doubt = monotonic(), 0.0, False
        while True:
            try:
                if self.closed.rung:
                    raise MailboxConnectionError(f"{name}: this client is closed; connect() again", transient=False)
                port = self._port(await self._open(), routing, asked)
                result = await once(port, [] if asked is None else [_ASKING], attempt > 0)
                self._reached = True
                return result
            except Exception as error:
                if not foreign(error):
                    raise
                now = monotonic()
                doubt = doubt or not (isinstance(error, ResponseError) or in_handshake(error))
                settings = self._settings
                limit = max(settings.timeout, patience) if self._reached else min(settings.timeout, _FIRST)
                if now - began >= min(limit, most) or not self._may_repeat(error):
                    raise self._translated(error, name, doubt) from error
                pause = await self._recover(error, attempt)
                redirected = isinstance(error, AskError) and not isinstance(error, MovedError)
                asked = (error.host, error.port) if redirected else None  # type: ignore[attr-defined]  # as it says
                attempt += 1
                if pause and await self._rest(pause, stop):
                    raise self._translated(error, name, doubt) from error

    async def _rest(self, pause: float, stop: Bell | None) -> bool:
        """Whether somebody wants us to come home meanwhile."""
        bells = [self.closed] if stop is None else [self.closed, stop]
        waiter = self._io.waiter()
        for bell in bells:
            bell.listen(waiter.wake)
        try:
            await waiter.wait(pause)
        finally:
            for bell in bells:
                bell.leave(waiter.wake)
        return any(bell.rung for bell in bells)

    def _translated(self, error: Exception, name: str, doubt: bool) -> MailboxError:
        meant = translate(error, self._settings.where, name, cluster=self.cluster)
        if doubt and isinstance(meant, MailboxConnectionError):
            meant.args = (f"{meant}; the call was under way and may have happened: repeat a send under a dedup_id",)
        return meant

    def _may_repeat(self, error: Exception) -> bool:
        return retryable(error, cluster=self.cluster)

    async def _recover(self, error: Exception, attempt: float) -> float:
        """Learn from the failure where to go next; how long to wait before."""
        pause: float = min(_LONGEST_PAUSE, _PAUSE * 2.0 ** min(attempt, 10)) * random.uniform(0.5, 1.5)
        if not self.cluster or isinstance(error, MaxConnectionsError) or self._client is None:
            return pause
        if isinstance(error, MovedError):
            await self._io.call(self._client.nodes_manager.move_slot, error)
            return 0.0 if attempt < 3 else pause
        if isinstance(error, AskError):
            return 0.0 if attempt < 3 else pause
        if isinstance(error, (ClusterDownError, SlotNotCoveredError)) or not isinstance(error, ResponseError):
            try:
                await self._io.call(self._client.nodes_manager.initialize)
            except FAILURES:
                pass  # nobody who could tell is there now: we ask again after the pause
        return pause

    def _check_replicas(self, keys: Keys, answered: Any) -> None:
        if isinstance(answered, ResponseError):
            raise answered
        if answered < self._settings.replicas:
            raise DurabilityError(
                f"{keys.name}: stored, but {answered} of {self._settings.replicas} replicas had it within "
                f"{self._settings.replicas_timeout:g} s; it may be lost in a failover. Send it again under a dedup_id",
                transient=True,
            )

    async def vet(self, keys: Keys) -> None:
        """Refuse a server that would throw messages away when memory runs short. Each node is looked at once."""
        if self._settings.eviction == "allow":
            return

        async def once(port: Port, before: list[bytes], repeated: bool) -> None:
            if port.name in self._vetted:
                return
            reply = (await self._talk(port, [*before, plain(b"INFO", b"memory")]))[-1]
            if isinstance(reply, ResponseError):
                if not isinstance(reply, NoPermissionError):
                    raise reply
                reply = b""  # who may not ask cannot be told
            if not isinstance(reply, bytes):
                raise InvalidResponse("INFO was not answered with a text")
            for line in reply.decode(errors="replace").splitlines():
                policy = line.removeprefix("maxmemory_policy:")
                if policy != line and policy in EVICTING:
                    raise ConfigurationError(
                        f"{keys.name} at {self._settings.where}: the server evicts keys when memory runs short "
                        f"(maxmemory-policy {policy}), and with them accepted messages. Set maxmemory-policy to "
                        "noeviction, or connect with eviction='allow'"
                    )
            self._vetted.add(port.name)

        await self._persist(once, keys.routing, keys.name)

    async def tell(self, *words: bytes) -> list[tuple[str, Any]]:
        """Where each primary is, and what it answers to a plain command, or its refusal."""

        async def once(port: Port, before: list[bytes], repeated: bool) -> list[tuple[str, Any]]:
            ports = {port.name or self._settings.where: port}
            if self.cluster:
                ports = {node.name: self._port_of(node) for node in self._client.get_primaries()}
            return [(name, (await self._talk(one, [plain(*words)]))[0]) for name, one in ports.items()]

        return await self._persist(once, "{queue:}", "examine", 0.0)

    # --- connections -------------------------------------------------------------------------------------------

    async def _open(self) -> Any:
        """The client, made when it is first needed; a cluster's asks the cluster then what is where."""
        if self._pid != os.getpid():
            self._begin_anew()
        client = self._client
        if client is None:
            with self._making:  # one for all who come at once; what is awaited comes after
                client = self._client
                if client is None:
                    client = self._client = self._make()
        if self.cluster and self._io.flavour == "async":
            await client.initialize()
        return client

    def _port(self, client: Any, routing: str, asked: tuple[str, int] | None) -> Port:
        if not self.cluster:
            pool = client.connection_pool
            return Port("", pool.get_connection, pool.release)
        node = None if asked is None else client.get_node(host=asked[0], port=asked[1])
        if node is None:
            node = client.get_node_from_key(routing)
        return self._port_of(node)

    def _port_of(self, node: Any) -> Port:
        if self._io.flavour == "async":
            return Port(node.name, node.acquire_connection, node.release)
        pool = self._client.get_redis_connection(node).connection_pool
        return Port(node.name, pool.get_connection, pool.release)

    async def port(self, keys: Keys) -> Port:
        """Where a connection of one's own to this queue's node comes from."""
        return self._port(await self._open(), keys.routing, None)

    async def _talk(self, port: Port, commands: list[bytes]) -> list[Any]:
        """Answers and refusals, aligned."""
        if self._io.flavour == "sync":
            return await self._exchange(port, commands)
        shared = self._shared.get(port.name)
        if shared is None:
            shared = self._shared[port.name] = _Shared(self._exchange)
        return await shared.talk(port, commands)

    async def _exchange(self, port: Port, commands: list[bytes]) -> list[Any]:
        io = self._io
        # From a pool and back takes as long as all of our own work on a call: of a client of ours we keep them.
        connection = self._rested(port) or await self.connection(port)
        try:
            await io.call(connection.send_packed_command, commands)
            replies: list[Any] = []
            demoted = False
            for _ in commands:
                try:
                    replies.append(await io.call(connection.read_response, disable_decoding=True))
                except ResponseError as refusal:
                    replies.append(refusal)
                    demoted = demoted or isinstance(refusal, ReadOnlyError)
        except BaseException as error:
            try:
                await io.call(connection.disconnect)  # an answer that nobody read must not become somebody else's
            finally:
                await io.call(port.release, connection)
            if isinstance(error, FAILURES):
                await self._forsake(port)
            raise
        if demoted:  # the address may lead to another server by now; this connection never will
            await io.call(connection.disconnect)
            await io.call(port.release, connection)
            await self._forsake(port)
            return replies
        if self._owned and not self.closed.rung:
            self._idle.setdefault(port.name, []).append(connection)
            return replies
        if self._owned:
            await io.call(connection.disconnect)  # made after the client's others were closed
        await io.call(port.release, connection)
        return replies

    async def _forsake(self, port: Port) -> None:
        """What rests has most likely met the same end as another there: one by one, they would take all of our time."""
        while rested := self._rested(port):
            await self._io.call(rested.disconnect)
            await self._io.call(port.release, rested)

    async def connection(self, port: Port) -> Any:
        """One from the client's pool. Struck by Ctrl-C while it connects, redis-py puts the half-made one back among
        those at rest, and everybody would stumble over it: so none stays there."""
        if self._io.flavour == "async":
            return await self._io.call(port.get)
        try:
            return port.get()
        except FAILURES:
            raise
        except BaseException as error:
            port.get.__self__.disconnect(inuse_connections=False)  # type: ignore[attr-defined]  # a pool's method
            if isinstance(error, Exception):
                return port.get()
            raise

    def _rested(self, port: Port) -> Any:
        """A connection between two calls, if there is one. Threads may want the same."""
        try:
            return self._idle[port.name].pop()
        except LookupError:
            return None

    async def close(self) -> None:
        """Let go of a client of ours; one that was given to us stays open."""
        self.closed.ring_for_good()
        for shared in self._shared.values():
            await shared.finish()
        client, self._client = self._client, None
        if not self._owned or client is None:
            return
        if self._io.flavour == "async":
            await self._io.call(client.aclose)
        else:
            await self._io.call(client.close)


class _Shared:
    """Tasks that call one node at the same time: what gathered while the former batch was out goes in one write."""

    def __init__(self, exchange: Callable[[Port, list[bytes]], Any]) -> None:
        self._exchange = exchange
        self._line: list[tuple[list[bytes], Any]] = []
        self._busy: Any = None

    async def talk(self, port: Port, commands: list[bytes]) -> list[Any]:
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        self._line.append((commands, future))
        if self._busy is None or self._busy.done():
            # A task of its own: whoever is cancelled takes nothing along that others wait for.
            self._busy = loop.create_task(self._pump(port))
        return await future

    async def finish(self) -> None:
        """Let those who are out come home, lest their connection outlives the client."""
        import asyncio

        if self._busy is not None and not self._busy.done():
            await asyncio.wait((self._busy,), timeout=_FIRST)

    async def _pump(self, port: Port) -> None:
        import asyncio

        while self._line:
            await asyncio.sleep(0)  # those who could call now do, before we go
            batch, self._line = self._line, []
            try:
                replies = await self._exchange(port, [one for commands, _ in batch for one in commands])
            except BaseException as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error if isinstance(error, Exception) else ConnectionError("interrupted"))
                if not isinstance(error, Exception):
                    raise
                continue
            at = 0
            for commands, future in batch:
                if not future.done():
                    future.set_result(replies[at : at + len(commands)])
                at += len(commands)
