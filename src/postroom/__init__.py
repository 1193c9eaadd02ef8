"""Durable, typed mailboxes: one API from a dict in a test to the queues of a cloud."""

from postroom.client import QueueClient, QueueClientFactory, connect
from postroom.concrete import InMemoryMailbox, RedisMailbox, RedisMailboxFactory, SqliteMailbox
from postroom.core.capabilities import Capabilities, Finding, Level
from postroom.core.definition import (
    MessageReceipt,
    QueueDefinition,
    QueueInfo,
    QueueMessage,
    QueueStatus,
    ReceiveOptions,
    SendOptions,
)
from postroom.core.message import Attempt, Death
from postroom.core.policy import Backoff
from postroom.dispatcher import Dispatcher, DispatchResult
from postroom.errors import (
    AuthenticationError,
    ConfigurationError,
    Discard,
    DurabilityError,
    HandlerOutcome,
    InvalidMessageError,
    InvalidParameterError,
    MailboxConnectionError,
    MailboxError,
    MailboxFullError,
    MailboxResolutionError,
    MessageFinalizedError,
    MessageNotFoundError,
    MessageTooLargeError,
    NoReplyError,
    OperationTimeoutError,
    QueueNotFoundError,
    RateLimitError,
    ReceiptHandleExpiredError,
    Reject,
    ReplyNotAvailableError,
    Retry,
    SerializationError,
    ServiceUnavailableError,
    SessionNotFoundError,
    UnsupportedError,
)
from postroom.factory import QueueConfig
from postroom.flows.events import (
    HandlerFailed,
    LeaseLost,
    Overflowed,
    ReplyDropped,
    StaleAcknowledge,
    StoreAway,
    Undecodable,
)
from postroom.flows.held import DeadLetter, Lease, Peeked
from postroom.flows.raw import ReceivedMessage
from postroom.flows.redrive import Redriven
from postroom.flows.send import SendResult
from postroom.flows.settle import SettleResult
from postroom.lifecycle import Heartbeat
from postroom.mailbox import DeadLetters, Mailbox, Message, Session
from postroom.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Attempt",
    "AuthenticationError",
    "Backoff",
    "Capabilities",
    "ConfigurationError",
    "DeadLetter",
    "DeadLetters",
    "Death",
    "Discard",
    "DispatchResult",
    "Dispatcher",
    "DurabilityError",
    "Finding",
    "HandlerFailed",
    "HandlerOutcome",
    "Heartbeat",
    "InMemoryMailbox",
    "InvalidMessageError",
    "InvalidParameterError",
    "Lease",
    "LeaseLost",
    "Level",
    "Mailbox",
    "MailboxConnectionError",
    "MailboxError",
    "MailboxFullError",
    "MailboxResolutionError",
    "Message",
    "MessageFinalizedError",
    "MessageNotFoundError",
    "MessageReceipt",
    "MessageTooLargeError",
    "NoReplyError",
    "OperationTimeoutError",
    "Overflowed",
    "Peeked",
    "QueueClient",
    "QueueClientFactory",
    "QueueConfig",
    "QueueDefinition",
    "QueueInfo",
    "QueueMessage",
    "QueueNotFoundError",
    "QueueStatus",
    "RateLimitError",
    "ReceiptHandleExpiredError",
    "ReceiveOptions",
    "ReceivedMessage",
    "RedisMailbox",
    "RedisMailboxFactory",
    "Redriven",
    "Reject",
    "ReplyDropped",
    "ReplyNotAvailableError",
    "Retry",
    "SendOptions",
    "SendResult",
    "SerializationError",
    "ServiceUnavailableError",
    "Session",
    "SessionNotFoundError",
    "SettleResult",
    "SqliteMailbox",
    "StaleAcknowledge",
    "StoreAway",
    "Undecodable",
    "UnsupportedError",
    "Worker",
    "connect",
]
