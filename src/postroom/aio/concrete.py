"""Async mailboxes for those who hold a store rather than a URL."""

from __future__ import annotations

import os
from types import UnionType
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from postroom.aio.client import AsyncQueueClient
from postroom.aio.mailbox import AsyncMailbox
from postroom.concrete import bounded, memory_link, redis_link, sqlite_link
from postroom.core.address import check_name
from postroom.drivers.clock import Clock
from postroom.flows.link import Box

T = TypeVar("T", default=Any)
R = TypeVar("R", default=Any)


class AsyncInMemoryMailbox(AsyncMailbox[T, R]):
    """InMemoryMailbox, awaited."""

    def __init__(
        self,
        name: str,
        body_type: type[T] | UnionType | None = None,
        *,
        reply_type: type[R] | UnionType | None = None,
        max_size: int | None = None,
        clock: Clock | None = None,
        serialize: bool = False,
        max_body: int | None = None,
    ) -> None:
        link, address = memory_link("async", clock, serialize, max_body)
        box = Box[T, R](link, check_name(name), body_type, reply_type, rules=bounded(max_size))
        super().__init__(box, AsyncQueueClient(link, address))


class AsyncSqliteMailbox(AsyncMailbox[T, R]):
    """SqliteMailbox, awaited."""

    def __init__(
        self,
        name: str,
        body_type: type[T] | UnionType | None = None,
        *,
        path: str | os.PathLike[str],
        reply_type: type[R] | UnionType | None = None,
        max_size: int | None = None,
        namespace: str = "",
        max_body: int | None = None,
        **options: Any,
    ) -> None:
        link, address = sqlite_link("async", path, namespace, max_body, options)
        box = Box[T, R](link, check_name(name), body_type, reply_type, rules=bounded(max_size))
        super().__init__(box, AsyncQueueClient(link, address))


class AsyncRedisMailbox(AsyncMailbox[T, R]):
    """RedisMailbox, awaited: over a `redis.asyncio.Redis` or a `redis.asyncio.RedisCluster`."""

    def __init__(
        self,
        name: str,
        client: Any,
        body_type: type[T] | UnionType | None = None,
        *,
        reply_type: type[R] | UnionType | None = None,
        max_size: int | None = None,
        namespace: str = "",
        max_body: int | None = None,
        **options: Any,
    ) -> None:
        link, address = redis_link("async", client, namespace, max_body, options)
        box = Box[T, R](link, check_name(name), body_type, reply_type, rules=bounded(max_size))
        super().__init__(box, AsyncQueueClient(link, address))


class AsyncRedisMailboxFactory(Generic[T, R]):
    """RedisMailboxFactory, awaited where it does I/O."""

    def __init__(
        self,
        client: Any,
        *,
        body_type: type[T] | UnionType | None = None,
        reply_type: type[R] | UnionType | None = None,
        max_size: int | None = None,
        namespace: str = "",
        max_body: int | None = None,
        **options: Any,
    ) -> None:
        self._rules = bounded(max_size)
        self._types = (body_type, reply_type)
        self._link, self._address = redis_link("async", client, namespace, max_body, options)

    def create(self, identifier: str) -> AsyncRedisMailbox[T, R]:
        """The mailbox of that name. Does no I/O; closing it leaves the others alone."""
        box = Box[T, R](self._link, check_name(identifier), *self._types, rules=self._rules)
        mailbox = AsyncRedisMailbox[T, R].__new__(AsyncRedisMailbox)
        AsyncMailbox.__init__(mailbox, box)
        return mailbox

    async def close(self) -> None:
        """Close all mailboxes of this factory; not the client."""
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address}>"
