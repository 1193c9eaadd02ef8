"""Mailboxes for those who hold a store rather than a URL."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from postroom.client import QueueClient
from postroom.core.address import Address, check_namespace
from postroom.core.definition import QueueDefinition
from postroom.drivers.clock import Clock
from postroom.drivers.io import drive
from postroom.errors import ConfigurationError
from postroom.factory import opener_of
from postroom.flows.link import Box, Link
from postroom.flows.queues import create
from postroom.mailbox import Mailbox

T = TypeVar("T")
R = TypeVar("R")


class InMemoryMailbox(Mailbox[T, R]):
    """A mailbox in this process's memory, with a store of its own. Bodies are handed over by reference unless
    `serialize=True`. `max_size` bounds it: a send to a full one raises MailboxFullError."""

    def __init__(
        self,
        name: str,
        body_type: type[T] | Any = None,
        *,
        reply_type: type[R] | Any = None,
        max_size: int | None = None,
        clock: Clock | None = None,
        serialize: bool = False,
        max_body: int | None = None,
    ) -> None:
        address = Address("memory")
        driver = opener_of("memory")(address, flavour="sync", clock=clock, serialize=serialize)
        _open(self, Link(driver, max_body=max_body), address, name, body_type, reply_type, max_size)


class SqliteMailbox(Mailbox[T, R]):
    """A mailbox in a SQLite file, shared by any number of processes."""

    def __init__(
        self,
        name: str,
        body_type: type[T] | Any = None,
        *,
        path: str | os.PathLike[str],
        reply_type: type[R] | Any = None,
        max_size: int | None = None,
        namespace: str = "",
        max_body: int | None = None,
        **options: Any,
    ) -> None:
        address = Address("sqlite", "/" + os.fspath(path))
        driver = opener_of("sqlite")(address, flavour="sync", namespace=check_namespace(namespace), **options)
        _open(self, Link(driver, max_body=max_body), address, name, body_type, reply_type, max_size)


def _open(
    mailbox: Mailbox[T, R],
    link: Link,
    address: Address,
    name: str,
    body_type: type[T] | Any,
    reply_type: type[R] | Any,
    max_size: int | None,
) -> None:
    """A mailbox that owns its client: closing the one closes the other."""
    Mailbox.__init__(mailbox, Box(link, name, body_type, reply_type), QueueClient(link, address))
    if max_size is not None:
        if name.endswith("!dead"):
            raise ConfigurationError(f"{name}: dead letters are not bounded")
        definition = QueueDefinition(name=name, max_messages=max_size)
        drive(create(link, definition))
