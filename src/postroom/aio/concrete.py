"""Async mailboxes for those who hold a store rather than a URL."""

from __future__ import annotations

import os
from types import UnionType
from typing import Any

from typing_extensions import TypeVar

from postroom.aio.client import AsyncQueueClient
from postroom.aio.mailbox import AsyncMailbox
from postroom.concrete import bounded, memory_link, sqlite_link
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
