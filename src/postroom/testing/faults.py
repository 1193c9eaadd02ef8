"""Faults on demand: a driver around a driver that fails where a test says.

A fault strikes before the call reaches the store, or after it took effect, when only the answer is lost. The second is
the interesting one: what was asked for has happened, and nobody knows.

    driver = Faulty(driver)
    lost = driver.fail("settle", MailboxConnectionError("gone"), after=True)
    ...
    assert lost.struck == 1
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from postroom.core.capabilities import Capabilities
from postroom.core.message import Ack, Bury, Extend, Release, Return, Verdict
from postroom.drivers.api import Driver
from postroom.drivers.io import Io
from postroom.errors import InvalidParameterError

VERBS = (
    "ensure", "drop", "queues", "info", "set_status", "peek", "purge", "redrive", "lock", "renew", "unlock",
    "get_state", "set_state", "put", "claim", "settle", "abandon",
)  # fmt: skip
# What users call it -> the driver's verb, and the verdicts that are meant. A claim may carry verdicts, too.
WORDS: dict[str, tuple[str, tuple[type[Verdict], ...]]] = {
    "send": ("put", ()),
    "receive": ("claim", ()),
    "acknowledge": ("settle", (Ack,)),
    "nack": ("settle", (Release, Return)),
    "extend_visibility": ("settle", (Extend,)),
    "dead_letter": ("settle", (Bury,)),
}


class Fault:
    """One planned failure. `struck` counts how often it really happened: a test that nothing struck proves nothing."""

    def __init__(
        self,
        verb: str,
        kinds: tuple[type[Verdict], ...],
        error: BaseException,
        times: int | None,
        after: bool,
        skip: int,
    ) -> None:
        self.verb = verb
        self.error = error
        self.times = times  # None: always
        self.after = after
        self.struck = 0
        self._kinds = kinds
        self._skip = skip

    def due(self, verb: str, args: tuple[Any, ...]) -> bool:
        if verb != self.verb or (self.times is not None and self.struck >= self.times):
            return False
        if self._kinds and not any(isinstance(verdict, self._kinds) for verdict in args[1]):
            return False
        if self._skip:
            self._skip -= 1
            return False
        self.struck += 1
        return True


class Faulty:
    """Any driver, with faults. It is a driver itself."""

    capabilities: Capabilities
    io: Io
    place: str

    def __init__(self, driver: Driver) -> None:
        self.place = driver.place
        self.inner = driver
        self.capabilities = driver.capabilities
        self.io = driver.io
        self.now = driver.now
        self.faults: list[Fault] = []
        self._lock = threading.Lock()

    def fail(
        self,
        operation: str,
        error: BaseException,
        *,
        times: int | None = 1,
        after: bool = False,
        skip: int = 0,
    ) -> Fault:
        """Let an operation fail: a driver's verb (`put`, `claim`, `settle`, ...) or a mailbox's word (`send`,
        `receive`, `acknowledge`, `nack`, `extend_visibility`, `dead_letter`), or `*` for all of them.

        `times` calls fail (None: every one) after `skip` have passed; with `after` the call takes effect and its answer
        is lost.
        """
        verb, kinds = WORDS.get(operation, (operation, ()))
        if verb != "*" and verb not in VERBS:
            raise InvalidParameterError(f"{operation!r} is no operation; there are {', '.join((*WORDS, *VERBS))} and *")
        if not isinstance(error, BaseException):
            hint = f"; make one, as in {error.__name__}('...')" if isinstance(error, type) else ""
            raise InvalidParameterError(f"error is the exception to raise, not {error!r:.80}{hint}")
        fault = Fault(verb, kinds, error, times, after, skip)
        with self._lock:
            self.faults.append(fault)
        return fault

    def heal(self, fault: Fault | None = None) -> None:
        """No more of this fault, or of any."""
        with self._lock:
            self.faults = [] if fault is None else [other for other in self.faults if other is not fault]

    def _due(self, verb: str, args: tuple[Any, ...]) -> Fault | None:
        if not self.faults:
            return None
        with self._lock:
            for fault in self.faults:
                if fault.verb == "*" and fault.due("*", args):
                    return fault
                if fault.due(verb, args):
                    return fault
        return None

    async def call(self, verb: str, function: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        fault = self._due(verb, args)
        if fault is None:
            return await function(*args, **kwargs)
        if fault.after:
            await function(*args, **kwargs)
        # A fresh copy each time: one exception object raised in two threads mixes up their tracebacks.
        copy = getattr(fault.error, "copy", None)
        raise fault.error if copy is None else copy()

    def sibling(self) -> Driver:
        return self.inner.sibling()

    async def close(self) -> None:
        await self.inner.close()

    # The verbs, each with the signature of the driver it stands for.

    async def ensure(self, *args: Any, **kwargs: Any) -> Any:
        return await self.call("ensure", self.inner.ensure, *args, **kwargs)

    async def drop(self, *args: Any, **kwargs: Any) -> Any:
        return await self.call("drop", self.inner.drop, *args, **kwargs)

    async def queues(self) -> Any:
        return await self.call("queues", self.inner.queues)

    async def info(self, *args: Any, **kwargs: Any) -> Any:
        return await self.call("info", self.inner.info, *args, **kwargs)

    async def set_status(self, *args: Any, **kwargs: Any) -> Any:
        return await self.call("set_status", self.inner.set_status, *args, **kwargs)

    async def peek(self, *args: Any, **kwargs: Any) -> Any:
        return await self.call("peek", self.inner.peek, *args, **kwargs)

    async def purge(self, *args: Any, **kwargs: Any) -> Any:
        return await self.call("purge", self.inner.purge, *args, **kwargs)

    async def redrive(self, *args: Any, **kwargs: Any) -> Any:
        return await self.call("redrive", self.inner.redrive, *args, **kwargs)

    async def lock(self, *args: Any, **kwargs: Any) -> Any:
        return await self.call("lock", self.inner.lock, *args, **kwargs)

    async def renew(self, *args: Any, **kwargs: Any) -> Any:
        return await self.call("renew", self.inner.renew, *args, **kwargs)

    async def unlock(self, *args: Any, **kwargs: Any) -> Any:
        return await self.call("unlock", self.inner.unlock, *args, **kwargs)

    async def get_state(self, *args: Any, **kwargs: Any) -> Any:
        return await self.call("get_state", self.inner.get_state, *args, **kwargs)

    async def set_state(self, *args: Any, **kwargs: Any) -> Any:
        return await self.call("set_state", self.inner.set_state, *args, **kwargs)

    async def put(self, queue: str, batch: Sequence[Any], **kwargs: Any) -> Any:
        return await self.call("put", self.inner.put, queue, batch, **kwargs)

    async def claim(self, queue: str, n: int, **kwargs: Any) -> Any:
        return await self.call("claim", self.inner.claim, queue, n, **kwargs)

    async def settle(self, queue: str, batch: Sequence[Verdict]) -> Any:
        return await self.call("settle", self.inner.settle, queue, batch)

    async def abandon(self, *args: Any, **kwargs: Any) -> Any:
        return await self.call("abandon", self.inner.abandon, *args, **kwargs)
