"""QueueClient: one connection to one store; its queues, its administration, and messages without types.

Safe to share between threads. `postroom.aio` says the same with `await`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Self, TypeVar, overload

from postroom.core.address import Address
from postroom.core.capabilities import Capabilities, Finding
from postroom.core.definition import (
    MessageReceipt,
    QueueDefinition,
    QueueInfo,
    QueueMessage,
    QueueStatus,
    ReceiveOptions,
    SendOptions,
)
from postroom.core.limits import Seconds, several
from postroom.drivers.io import drive
from postroom.factory import Factory, open_link
from postroom.flows import queues, raw, sessions
from postroom.flows.link import Box, Link
from postroom.flows.raw import ReceivedMessage
from postroom.flows.send import SendResult
from postroom.flows.settle import SettleResult
from postroom.mailbox import Mailbox, Session

T = TypeVar("T")
R = TypeVar("R")


def connect(url: str | None = None, **options: Any) -> QueueClient:
    """A client of the store at `url`, or at POSTROOM_URL: memory://, sqlite:///shop.db, ...

    A SQLite file is opened, and made, here; other stores are contacted at the first call. Options: `namespace` (keeps
    tenants apart), `max_body` (bytes; 1 MiB), `backoff` (how `with msg` gives a failed message back, and after how many
    deliveries to the dead letters; without it the queue's own limit decides), `dispatcher`, and those of the store.
    """
    link, address = open_link(url, "sync", options)
    return QueueClient(link, address)


class QueueClient:
    """One store. Made by `connect()`."""

    def __init__(self, link: Link, address: Address) -> None:
        self._link = link
        self._address = address

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do, cannot do, and does in a weaker way."""
        return self._link.driver.capabilities

    @property
    def closed(self) -> bool:
        return self._link.closing.rung

    @overload
    def mailbox(self, name: str, body_type: type[T], *, reply_type: type[R]) -> Mailbox[T, R]: ...
    @overload
    def mailbox(self, name: str, body_type: type[T], *, reply_type: Any = None) -> Mailbox[T, Any]: ...
    @overload
    def mailbox(self, name: str, body_type: Any = None, *, reply_type: Any = None) -> Mailbox[Any, Any]: ...

    def mailbox(self, name: str, body_type: Any = None, *, reply_type: Any = None) -> Mailbox[Any, Any]:
        """The mailbox of that name; its queue is made at first use if it is not there, as a plain one.

        Without a body type it carries plain JSON values.
        """
        return Mailbox(Box(self._link, name, body_type, reply_type))

    def create_queue(self, definition: QueueDefinition) -> QueueInfo:
        """Make a queue with these rules, or let an existing one take them over."""
        return drive(queues.create(self._link, definition))

    def delete_queue(self, name: str, *, force: bool = False) -> int:
        """Delete a queue; refused while messages or dead letters are there, unless forced. How many went with it."""
        return drive(queues.delete(self._link, name, force))

    def list_queues(self) -> list[str]:
        return drive(self._link.driver.queues())

    def info(self, name: str) -> QueueInfo:
        return drive(queues.describe(self._link, name))

    def set_status(self, name: str, status: QueueStatus | str) -> None:
        """Let a queue take or give messages, or not: active, disabled, send_disabled, receive_disabled."""
        drive(queues.set_status(self._link, name, status))

    def send(self, queue: str, message: QueueMessage, options: SendOptions | None = None) -> str:
        return drive(raw.send(self._link, queue, message, options))

    def send_batch(
        self, queue: str, messages: Iterable[QueueMessage], options: SendOptions | None = None
    ) -> list[SendResult]:
        return drive(raw.send_batch(self._link, queue, several(messages, "messages"), options))

    def receive(self, queue: str, options: ReceiveOptions | None = None) -> list[ReceivedMessage]:
        return drive(raw.receive(self._link, queue, options))

    def peek(self, queue: str, max_messages: int = 10, *, after: int = 0) -> list[ReceivedMessage]:
        return drive(raw.peek(self._link, queue, max_messages, after))

    def acknowledge(self, receipt: MessageReceipt) -> None:
        drive(raw.settle(self._link, receipt, raw.acknowledged(self._link, receipt)))

    def reject(self, receipt: MessageReceipt, reason: str, description: str = "") -> None:
        """Move the message to the dead letters."""
        drive(raw.settle(self._link, receipt, raw.rejected(self._link, receipt, reason, description)))

    def requeue(self, receipt: MessageReceipt, delay: Seconds = 0) -> None:
        """Give the message back, to be delivered again after `delay`."""
        drive(raw.settle(self._link, receipt, raw.requeued(self._link, receipt, delay)))

    def extend(self, receipt: MessageReceipt, duration: Seconds) -> datetime | None:
        """Keep the lock for `duration` from now; when it ends."""
        return raw.lease_of(drive(raw.settle(self._link, receipt, raw.extended(self._link, receipt, duration))))

    def acknowledge_batch(self, receipts: Iterable[MessageReceipt]) -> list[SettleResult]:
        receipts = several(receipts, "receipts")
        return drive(raw.settle_batch(self._link, receipts, [raw.acknowledged(self._link, r) for r in receipts]))

    def reject_batch(
        self, receipts: Iterable[MessageReceipt], reason: str, description: str = ""
    ) -> list[SettleResult]:
        receipts = several(receipts, "receipts")
        verdicts = [raw.rejected(self._link, receipt, reason, description) for receipt in receipts]
        return drive(raw.settle_batch(self._link, receipts, verdicts))

    def requeue_batch(self, receipts: Iterable[MessageReceipt], delay: Seconds = 0) -> list[SettleResult]:
        receipts = several(receipts, "receipts")
        return drive(raw.settle_batch(self._link, receipts, [raw.requeued(self._link, r, delay) for r in receipts]))

    def extend_batch(self, receipts: Iterable[MessageReceipt], duration: Seconds) -> list[SettleResult]:
        receipts = several(receipts, "receipts")
        return drive(raw.settle_batch(self._link, receipts, [raw.extended(self._link, r, duration) for r in receipts]))

    def accept_session(
        self,
        queue: str,
        session_id: str | None = None,
        *,
        lock_duration: Seconds | None = None,
        wait_time_seconds: Seconds = 0,
    ) -> Session[bytes, bytes]:
        box = Box[bytes, bytes](self._link, queue, bytes, bytes)
        lock, lease = drive(sessions.accept(box, session_id, lock_duration, wait_time_seconds))
        return Session(box, lock, lease)

    def purge(self, queue: str) -> int:
        """Remove everything but the dead letters; how many there were."""
        return drive(queues.purge_queue(self._link, queue))

    def examine(self) -> list[Finding]:
        """What the owner of this store should know about it, beyond what `capabilities` says; may be nothing."""
        return drive(queues.examine(self._link))

    def close(self) -> None:
        """Wake whoever waits, and let go of the store. What is in flight stays in flight until its lease ends."""
        drive(self._link.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address}>"


class QueueClientFactory(Factory[QueueClient]):
    """The parts of `connect`, by name."""

    _connect = staticmethod(connect)
