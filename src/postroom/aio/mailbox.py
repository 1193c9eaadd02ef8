"""AsyncMailbox and AsyncMessage: `postroom.mailbox`, awaited. Thin, over the same flows; a test keeps them alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

from typing_extensions import TypeVar

from postroom.core.definition import (
    QueueInfo,
)
from postroom.core.limits import Seconds, several
from postroom.core.message import Ack
from postroom.drivers.io import Bell
from postroom.errors import UnsupportedError
from postroom.flows import queues, receive, redrive, reply, send, sessions, settle
from postroom.flows.held import DeadLetter, Held, Lease, Peeked
from postroom.flows.keep import keep
from postroom.flows.link import Box
from postroom.flows.redrive import Redriven
from postroom.flows.send import SendResult
from postroom.flows.sessions import HeldSession
from postroom.flows.settle import SettleResult

if TYPE_CHECKING:
    from postroom.aio.client import AsyncQueueClient

T = TypeVar("T", default=Any)
R = TypeVar("R", default=Any)


class AsyncMessage(Held[T, R]):
    """A message you hold until its lease ends.

    `async with msg:` acknowledges when the block ends well, gives it back with a backoff when it raises, and does what
    `Retry`, `Reject` and `Discard` say. Delivery is at least once: the same message can come again.
    """

    async def acknowledge(self) -> None:
        """Done: the message is removed."""
        await settle.finish(self, Ack(self._delivery.handle))

    async def nack(self, *, visibility_timeout: Seconds = 0) -> None:
        """Failed: to be delivered again after `visibility_timeout`, in its original place."""
        await settle.nack(self, visibility_timeout)

    async def extend_visibility(self, timeout: Seconds) -> None:
        """Keep it for `timeout` from now; 12 hours in total at most."""
        await settle.extend(self, timeout)

    async def dead_letter(self, reason: str, description: str = "") -> None:
        """Move it to the dead letters, now."""
        await settle.dead_letter(self, reason, description)

    async def reply(self, body: R) -> str:
        """Answer whoever sent it; several times if you like, until it is settled. The reply's id."""
        return await reply.reply(self, body)

    @asynccontextmanager
    async def keep_alive(self) -> AsyncIterator[Lease]:
        """Extend the lease in the background while the block runs; `lease.lost` tells when that failed."""
        stop = Bell()
        keeper = asyncio.create_task(keep(self, stop), name="postroom-lease")
        try:
            yield self.lease
        finally:
            stop.ring_for_good()
            await asyncio.shield(keeper)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return await settle.conclude(self, failure)


class AsyncMailbox(Generic[T, R]):
    """A durable, typed mailbox: T is the body, R the body of replies. Safe to share between threads."""

    def __init__(self, box: Box[T, R], client: AsyncQueueClient | None = None) -> None:
        """Use `client.mailbox(...)`; with `client` given, closing the mailbox closes the client too."""
        self._box = box
        self._client = client

    @property
    def name(self) -> str:
        return self._box.name

    @property
    def closed(self) -> bool:
        return self._box.closing.rung

    async def send(
        self,
        body: T,
        *,
        reply_to: AsyncMailbox[R, object] | str | None = None,
        delay_seconds: Seconds = 0,
        attributes: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        session_id: str | None = None,
        dedup_id: str | None = None,
        ttl: Seconds | None = None,
        priority: int = 10,
        content_type: str | None = None,
        id: str | None = None,
    ) -> str:
        """Store a message, as durably as the store promises, and return its id; of a duplicate, the first one's."""
        options = send.chosen(
            self._box.link, reply_to, delay_seconds, attributes, correlation_id, session_id, dedup_id, ttl, priority,
            content_type,
        )  # fmt: skip
        return await send.send(self._box, body, options, id)

    async def send_many(
        self,
        bodies: Iterable[T],
        *,
        reply_to: AsyncMailbox[R, object] | str | None = None,
        delay_seconds: Seconds = 0,
        attributes: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        session_id: str | None = None,
        dedup_id: str | None = None,
        ttl: Seconds | None = None,
        priority: int = 10,
        content_type: str | None = None,
        id: str | None = None,
    ) -> list[SendResult]:
        """Store any number of messages; a result each, aligned. A refused one does not hold up the others."""
        options = send.chosen(
            self._box.link, reply_to, delay_seconds, attributes, correlation_id, session_id, dedup_id, ttl, priority,
            content_type,
        )  # fmt: skip
        return await send.send_many(self._box, several(bodies, "bodies"), options, id)

    async def receive(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: Seconds | None = None,
        wait_time_seconds: Seconds = 0,
        session_id: str | None = None,
    ) -> Sequence[AsyncMessage[T, R]]:
        """Take up to `max_messages`; returns as soon as there is one, and [] when there was none in time.

        Left out, `visibility_timeout` is the queue's lock duration: 30 s on a plain queue.
        """
        box = self._box
        lease, wait = receive.check(box, max_messages, visibility_timeout, wait_time_seconds)
        session = None if session_id is None else receive.named_session(session_id)
        return [
            AsyncMessage(box, d, body) for d, body in await receive.receive(box, max_messages, lease, wait, session)
        ]

    async def stream(
        self,
        *,
        max_messages: int = 10,
        visibility_timeout: Seconds | None = None,
        wait_time_seconds: Seconds = 20,
        session_id: str | None = None,
    ) -> AsyncIterator[AsyncMessage[T, R]]:
        """Messages as they come, until the mailbox is closed. What was fetched and not reached goes back uncounted."""
        while not self.closed:
            batch = await self.receive(
                max_messages=max_messages,
                visibility_timeout=visibility_timeout,
                wait_time_seconds=wait_time_seconds,
                session_id=session_id,
            )
            at = 0
            try:
                for message in batch:
                    at += 1
                    yield message
            finally:
                await settle.give_back(batch[at:])

    def __aiter__(self) -> AsyncIterator[AsyncMessage[T, R]]:
        return self.stream()

    async def acknowledge_many(self, messages: Iterable[AsyncMessage[T, R]]) -> list[SettleResult]:
        """Acknowledge in one call; a result each, aligned."""
        return await settle.acknowledge_many(several(messages, "messages"))

    async def nack_many(
        self, messages: Iterable[AsyncMessage[T, R]], *, visibility_timeout: Seconds = 0
    ) -> list[SettleResult]:
        """Give back in one call; a result each, aligned."""
        return await settle.nack_many(several(messages, "messages"), visibility_timeout)

    async def peek(self, max_messages: int = 10, *, after: int = 0) -> Sequence[Peeked[T]]:
        """Look without taking, in order of sequence numbers, from above `after`; scheduled and in-flight ones too."""
        found = await receive.peek(self._box, max_messages, after)
        return [Peeked(delivery, receive.body_of(self._box, delivery)) for delivery in found]

    async def accept_session(
        self,
        session_id: str | None = None,
        *,
        lock_duration: Seconds | None = None,
        wait_time_seconds: Seconds = 0,
    ) -> AsyncSession[T, R]:
        """Lock this session, or the next one that has something ready; SessionNotFoundError when none is free."""
        lock, lease = await sessions.accept(self._box, session_id, lock_duration, wait_time_seconds)
        return AsyncSession(self._box, lock, lease)

    @property
    def dead_letters(self) -> AsyncDeadLetters[T, R]:
        """The mailbox of those that could not be handled."""
        if self._box.dead:
            raise UnsupportedError(f"{self.name}: dead letters have no dead letters of their own")
        return AsyncDeadLetters(self._box.dead_letters(), origin=self._box.name)

    async def purge(self) -> int:
        """Remove everything but the dead letters: ready, scheduled and in flight. How many there were."""
        return await queues.purge(self._box)

    async def approximate_count(self) -> int:
        """Ready, scheduled and in flight."""
        return await queues.approximate_count(self._box)

    async def info(self) -> QueueInfo:
        return await queues.box_info(self._box)

    async def close(self) -> None:
        """Wake whoever waits here; receives return [] from now on, sends fail. The queue and its messages stay."""
        self._box.closing.ring_for_good()
        if self._client is not None:
            await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} in {self._box.driver.capabilities.store}>"


class AsyncDeadLetters(AsyncMailbox[T, R]):
    """The dead letters of a queue: receive, peek, purge and acknowledge them, or send them back to work.

    A message whose body cannot be decoded comes with its raw bytes as body.
    """

    def __init__(self, box: Box[T, R], *, origin: str) -> None:
        super().__init__(box)
        self._origin = origin

    async def peek(self, max_messages: int = 10, *, after: int = 0) -> Sequence[DeadLetter[T]]:
        """Look without taking, in order of sequence numbers, from above `after`."""
        return [
            DeadLetter(d, receive.body_of(self._box, d)) for d in await receive.peek(self._box, max_messages, after)
        ]

    async def redrive(
        self,
        *,
        where: Callable[[DeadLetter[T]], bool] | None = None,
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        target: str | None = None,
    ) -> Redriven:
        """Move dead letters back to where they died, or to `target`: those `where` chooses, at most `limit`, `rate` a
        second. Ids are kept, counts start again. Safe to interrupt and to start again."""
        return await redrive.redrive(self._box, self._origin, where, limit, rate, dry_run, target)


class AsyncSession(HeldSession[T, R]):
    """A session that is ours: its messages in order, its state, until it is closed or its lock runs out."""

    __slots__ = ()

    async def receive(self, *, max_messages: int = 1, wait_time_seconds: Seconds = 0) -> Sequence[AsyncMessage[T, R]]:
        """The next messages of the session; their leases end with its lock."""
        _, wait = receive.check(self._box, max_messages, None, wait_time_seconds)
        return [AsyncMessage(self._box, d, body) for d, body in await sessions.take(self, max_messages, wait)]

    async def renew(self, lock_duration: Seconds | None = None) -> None:
        """The lock, and every lease under it, now end `lock_duration` from now."""
        await sessions.renew(self, lock_duration)

    async def state(self) -> bytes | None:
        return await sessions.get_state(self)

    async def set_state(self, value: bytes | None) -> None:
        await sessions.set_state(self, value)

    async def compare_and_set(self, expected: bytes | None, value: bytes | None) -> bool:
        """Write `value` if the state still is `expected`; whether it was."""
        return await sessions.compare_and_set(self, expected, value)

    async def close(self) -> None:
        """Give the session back; what is not settled goes back uncounted."""
        await sessions.close(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
