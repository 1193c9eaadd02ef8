"""Claims of several tasks in one script.

Whoever claims while another claim of the same queue is under way travels with those who do the same. The script serves
them where that is simple (`claims.lua`); for whom it is not, or where nothing was left, asks alone as if nothing had
been: sharing saves time, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from postroom.drivers.io import Bell
from postroom.drivers.redis_scripts import Keys
from postroom.errors import MailboxConnectionError, MailboxError

AGAIN = 8  # of a claim's arguments, the five of every call before it: whether it is a repetition
_N, _LEASE, _ID, _RETRY, _SESSION = 0, 1, 2, 3, 4  # of those after it
_AGAIN_TOGETHER = 5
_MOST = 1_000  # messages in one step

Run = Callable[..., Awaitable[list[Any]]]


class Together:
    """The tasks that claim from one queue."""

    def __init__(self, run: Run, keys: Keys) -> None:
        self._run = run
        self._keys = keys
        self._out = 0
        self._company = False  # the latest script was of several: the others were released a moment ago, and come back
        self._line: list[tuple[list[bytes], Any]] = []
        self._busy: Any = None

    async def claim(self, given: list[bytes], patience: float, stop: Bell | None = None) -> list[Any]:
        """The answer to a claim that carries no verdicts."""
        if not (self._out or self._company) or given[_RETRY] or given[_SESSION]:
            return await self._alone(given, patience, stop)
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any] | None] = loop.create_future()
        self._line.append((given, future))
        if self._busy is None or self._busy.done():
            # A task of its own: whoever is cancelled takes nothing along that others wait for.
            self._busy = loop.create_task(self._carry())
        try:
            reply = await future
        except MailboxConnectionError:
            reply = None  # alone there is still the patience that a call has
            given[_RETRY] = b"1"
        return await self._alone(given, patience, stop) if reply is None else reply

    async def _alone(self, given: list[bytes], patience: float, stop: Bell | None) -> list[Any]:
        self._out += 1
        try:
            return await self._run("claim", self._keys, *given, patience=patience, again=AGAIN, stop=stop)
        finally:
            self._out -= 1

    async def _carry(self) -> None:
        import asyncio

        self._out += 1
        try:
            while self._line:
                await asyncio.sleep(0)  # those who could claim now do, before we go
                batch = self._board()
                try:
                    replies = await self._ask([given for given, _ in batch])
                except BaseException as error:
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(_for_another(error))
                    if not isinstance(error, Exception):
                        raise
                    continue
                for (_, future), reply in zip(batch, replies, strict=True):
                    if not future.done():
                        future.set_result(reply)
        finally:
            self._out -= 1

    def _board(self) -> list[tuple[list[bytes], Any]]:
        """Who travels now: those at the head of the line that ask for the same lease, as far as one step goes."""
        line = [one for one in self._line if not one[1].done()]
        taken = size = 0
        for given, _ in line:
            size += int(given[_N])
            if given[_LEASE] != line[0][0][_LEASE] or (taken and size > _MOST):
                break
            taken += 1
        self._line = line[taken:]
        self._company = taken > 1
        return line[:taken]

    async def _ask(self, wishes: list[list[bytes]]) -> list[list[Any] | None]:
        """An answer each, or None for whoever must ask alone."""
        if len(wishes) < 2:
            return [None] * len(wishes)
        words = [word for given in wishes for word in (given[_ID], given[_N])]
        reply = await self._run("claims", self._keys, b"", wishes[0][_LEASE], *words, again=_AGAIN_TOGETHER)
        if reply[1] in (b"each", b"again"):
            if reply[1] == b"again":
                for given in wishes:
                    given[_RETRY] = b"1"  # the answer that was lost may have given it something
            return [None] * len(wishes)
        replies: list[list[Any] | None] = []
        at = 4
        for given in wishes:
            end = min(len(reply), at + 4 * int(given[_N]))
            replies.append([*reply[:4], *reply[at:end]] if end > at else None)
            at = end
        return replies


def _for_another(error: BaseException) -> Exception:
    if isinstance(error, MailboxError):
        return error.copy()
    if isinstance(error, Exception):
        return error
    return MailboxConnectionError("the loop that this claim ran in is ending", transient=True)
