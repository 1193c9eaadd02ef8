"""The async flavour: the same verbs as `postroom`, awaited. A client belongs to the event loop it is first used in."""

from postroom.aio.client import AsyncQueueClient, AsyncQueueClientFactory, connect
from postroom.aio.concrete import (
    AsyncInMemoryMailbox,
    AsyncRedisMailbox,
    AsyncRedisMailboxFactory,
    AsyncSqliteMailbox,
)
from postroom.aio.mailbox import AsyncDeadLetters, AsyncMailbox, AsyncMessage, AsyncSession
from postroom.aio.worker import AsyncWorker

__all__ = [
    "AsyncDeadLetters",
    "AsyncInMemoryMailbox",
    "AsyncMailbox",
    "AsyncMessage",
    "AsyncQueueClient",
    "AsyncQueueClientFactory",
    "AsyncRedisMailbox",
    "AsyncRedisMailboxFactory",
    "AsyncSession",
    "AsyncSqliteMailbox",
    "AsyncWorker",
    "connect",
]
