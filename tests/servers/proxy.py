"""`Proxy`: what lies between a client and its server, and loses things on purpose.

    with Proxy(server) as proxy:
        box = RedisMailbox("orders", url=proxy.url)
        proxy.lose_answers()
        ...
        assert proxy.counts.lost_answers  # the fault struck, or the test has shown nothing
        proxy.heal()

It may stand between a primary and its replica as well: `replica.follow(proxy)`. An event loop in a thread of its own
does the work; each method has taken effect when it returns.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from tests.servers.links import Counts, Fate, Link, Trap, Weather
from tests.servers.processes import PATIENCE, Port
from tests.servers.valkey import HOST, Server

T = TypeVar("T")


class Proxy:
    """Pass everything on to a port of 127.0.0.1, until told otherwise."""

    scheme = "redis"

    def __init__(self, target: Server | int, *, tls: ssl.SSLContext | None = None) -> None:
        self.target = target if isinstance(target, int) else target.port
        self.password = None if isinstance(target, int) else target.password
        self._login = "" if isinstance(target, int) else target.login
        self.counts = Counts()
        self._tls = tls
        self._port = Port()
        self._weather = Weather()
        self._links: set[Link] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._went_wrong)
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()
        self._do(self._listen)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address} to {self.target}>"

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self._login}{self.address}"

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._links)

    # --- faults

    def heal(self) -> None:
        """No fault any more. What was held goes on its way; connections that have lost something are cut."""

        async def heal() -> None:
            weather = self._weather
            weather.requests = weather.answers = "pass"
            weather.delay = 0.0
            weather.traps.clear()
            for link in list(self._links):
                if link.has_lost:
                    link.cut()
                else:
                    link.flush()
            await self._listen()

        self._do(heal)

    def black_hole(self) -> None:
        """Connections are accepted and stay open, and nothing comes through in either direction, not even their end."""
        self._set_fate(requests="lose", answers="lose")

    def lose_requests(self) -> None:
        """Only what clients say is lost."""
        self._set_fate(requests="lose", answers="pass")

    def lose_answers(self) -> None:
        """The server does what it is asked for, and nobody hears."""
        self._set_fate(requests="pass", answers="lose")

    def hold(self) -> None:
        """Nothing comes through until `heal`, and then all of it: a network that was away, or a replica that lags."""
        self._set_fate(requests="hold", answers="hold")

    def delay(self, seconds: float) -> None:
        """Each chunk arrives this much later, in both directions; order and throughput stay."""

        self._weather.delay = seconds

    def cut(self) -> int:
        """Reset the connections there are (RST, to both sides), and say how many there were. New ones are welcome."""

        async def cut() -> int:
            links = list(self._links)
            for link in links:
                link.cut()
            return len(links)

        return self._do(cut)

    def refuse(self) -> None:
        """Nobody listens any more: new connections are refused by the system. Those there are live on; see `cut`."""

        async def refuse() -> None:
            if self._listener is not None:
                self._listener.close()
                self._listener = None
                await asyncio.sleep(0)

        self._do(refuse)

    def cut_before_request(self, containing: bytes, *, times: int = 1) -> None:
        """Reset a connection when such a request comes: the server never sees it."""
        self._weather.traps.append(Trap(containing, times, after=False))

    def cut_before_answer(self, containing: bytes, *, times: int = 1) -> None:
        """Pass such a request on, drop what the server answers, and reset the connection: done, and nobody knows."""
        self._weather.traps.append(Trap(containing, times, after=True))

    # --- its life

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self.refuse()
        self.cut()
        self._do(lambda: asyncio.sleep(0.001))  # until the transports have noticed
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
        self._port.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside

    def _do(self, work: Callable[[], Awaitable[T]]) -> T:
        """In the loop, and wait until it is done."""

        async def run() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await self._loop.create_server(
                lambda: Link(self._weather, self.counts, self._links, HOST, self.target).client,
                HOST,
                self.port,
                ssl=self._tls,
            )

    def _set_fate(self, *, requests: Fate, answers: Fate) -> None:
        async def set_fate() -> None:
            self._weather.requests, self._weather.answers = requests, answers
            for link in list(self._links):
                link.flush()  # what was held, if it now may pass

        self._do(set_fate)

    def _went_wrong(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(
            context.get("exception"), ssl.SSLError | ConnectionError
        ):  # those are faults of the other side
            loop.default_exception_handler(context)
