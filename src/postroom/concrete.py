"""Mailboxes for those who hold a store rather than a URL."""

from __future__ import annotations

import os
from types import UnionType
from typing import Any, Generic, Self

import msgspec
from typing_extensions import TypeVar

from postroom.client import QueueClient
from postroom.core import limits
from postroom.core.address import Address, check_name, check_namespace
from postroom.core.definition import PLAIN, Rules
from postroom.drivers.clock import Clock
from postroom.drivers.io import drive
from postroom.factory import Flavour, driver_module, opener_of
from postroom.flows.link import Box, Link
from postroom.mailbox import Mailbox

T = TypeVar("T", default=Any)
R = TypeVar("R", default=Any)


class InMemoryMailbox(Mailbox[T, R]):
    """A mailbox in this process's memory, with a store of its own. Bodies are handed over by reference unless
    `serialize=True`. `max_size` bounds it: a send to a full one raises MailboxFullError."""

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
        link, address = memory_link("sync", clock, serialize, max_body)
        box = Box[T, R](link, check_name(name), body_type, reply_type, rules=bounded(max_size))
        super().__init__(box, QueueClient(link, address))


class SqliteMailbox(Mailbox[T, R]):
    """A mailbox in a SQLite file, shared by any number of processes. Options are those of `sqlite://` URLs."""

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
        link, address = sqlite_link("sync", path, namespace, max_body, options)
        box = Box[T, R](link, check_name(name), body_type, reply_type, rules=bounded(max_size))
        super().__init__(box, QueueClient(link, address))


class RedisMailbox(Mailbox[T, R]):
    """A mailbox in Redis or Valkey, over a client of redis-py that is yours: a `Redis`, also one that Sentinel made, or
    a `RedisCluster`. Closing the mailbox leaves the client open. Options: `replicas`, `replicas_timeout`, `timeout`,
    `eviction` and `clock`, as in `redis://` URLs."""

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
        link, address = redis_link("sync", client, namespace, max_body, options)
        box = Box[T, R](link, check_name(name), body_type, reply_type, rules=bounded(max_size))
        super().__init__(box, QueueClient(link, address))


class RedisMailboxFactory(Generic[T, R]):
    """Mailboxes by name over one client of redis-py, which stays yours. They share what they can, down to the calls."""

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
        self._link, self._address = redis_link("sync", client, namespace, max_body, options)

    def create(self, identifier: str) -> RedisMailbox[T, R]:
        """The mailbox of that name. Does no I/O; closing it leaves the others alone."""
        box = Box[T, R](self._link, check_name(identifier), *self._types, rules=self._rules)
        mailbox = RedisMailbox[T, R].__new__(RedisMailbox)
        Mailbox.__init__(mailbox, box)
        return mailbox

    def close(self) -> None:
        """Close all mailboxes of this factory; not the client."""
        drive(self._link.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address}>"


def memory_link(flavour: Flavour, clock: Clock | None, serialize: bool, max_body: int | None) -> tuple[Link, Address]:
    address = Address("memory")
    driver = opener_of("memory")(address, flavour=flavour, clock=clock, serialize=serialize)
    return Link(driver, max_body=max_body), address


def sqlite_link(
    flavour: Flavour,
    path: str | os.PathLike[str],
    namespace: str,
    max_body: int | None,
    options: dict[str, Any],
) -> tuple[Link, Address]:
    address = Address("sqlite", "/" + os.fspath(path))
    driver = opener_of("sqlite")(address, flavour=flavour, namespace=check_namespace(namespace), **options)
    return Link(driver, max_body=max_body), address


def redis_link(
    flavour: Flavour, client: Any, namespace: str, max_body: int | None, options: dict[str, Any]
) -> tuple[Link, Address]:
    kind = driver_module("redis").RedisDriver
    driver = kind.of_client(client, flavour=flavour, namespace=check_namespace(namespace), **options)
    scheme, _, location = driver.settings.where.partition("://")
    return Link(driver, max_body=max_body), Address(scheme, location)


def bounded(max_size: int | None) -> Rules | None:
    """A plain queue with a limit, given to the queue when it is opened."""
    if max_size is None:
        return None
    return msgspec.structs.replace(PLAIN, max_messages=limits.whole(max_size, "max_size", 1, 1 << 60))
