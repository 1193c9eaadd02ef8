"""Mailboxes for tests of code that uses mailboxes: no server, no sleep, no patching.

orders = FakeMailbox("orders", Order)
orders.send(Order("A-1", 500))
work(orders)
assert [message.body.sku for message in orders.acknowledged] == ["A-1"]
"""

from __future__ import annotations

from collections.abc import Iterable
from types import UnionType
from typing import Any, Generic

from typing_extensions import TypeVar

from postroom.aio import AsyncMailbox, AsyncMessage, AsyncQueueClient
from postroom.client import QueueClient
from postroom.core import limits
from postroom.core.address import Address
from postroom.core.definition import QueueDefinition
from postroom.core.message import Delivery, Envelope, Release, Settled
from postroom.drivers.io import Awaiting, Inline, drive
from postroom.drivers.memory import MemoryDriver, MemoryStore
from postroom.drivers.memory_entry import Past
from postroom.errors import InvalidParameterError, MailboxConnectionError
from postroom.flows.held import DeadLetter, Peeked
from postroom.flows.ids import new_id
from postroom.flows.link import Box, Link
from postroom.flows.receive import body_of
from postroom.mailbox import Mailbox, Message
from postroom.testing.clock import ManualClock
from postroom.testing.faults import Fault
from postroom.testing.recording import Discarding, Recording

T = TypeVar("T", default=Any)
R = TypeVar("R", default=Any)


class _Staged(Generic[T, R]):
    """What all of them share: a store of their own, its clock, faults, and a look at everything in it.

    Everything here is immediate, in the async flavour as well: it is the test's own business and waits for nobody.
    """

    clock: ManualClock
    _box: Box[T, R]
    _driver: Recording

    def _stage(
        self,
        kind: type[Recording],
        flavour: type[Inline] | type[Awaiting],
        name: str,
        body_type: type[T] | Any,
        reply_type: type[R] | Any,
        clock: ManualClock | None,
        serialize: bool,
        definition: QueueDefinition | None,
    ) -> tuple[Link, Address]:
        self.clock = clock if clock is not None else ManualClock(autojump=True)
        self._store = MemoryDriver(MemoryStore(self.clock), flavour(), serialize=serialize)
        self._driver = kind(self._store)
        link = Link(self._driver)
        rules = None if definition is None else definition.rules(self._driver.capabilities)
        if definition is not None and definition.name != name:
            raise InvalidParameterError(f"the definition is of {definition.name}, and the mailbox is {name}")
        drive(self._store.ensure(name, rules))
        return link, Address("memory")

    # --- what is in it -------------------------------------------------------------------------------------------

    def _seen(self, deliveries: Iterable[Delivery]) -> list[Peeked[T]]:
        return [Peeked(delivery, body_of(self._box, delivery)) for delivery in deliveries]

    def _in(self, *states: str) -> list[Peeked[T]]:
        drive(self._store.info(self._box.name))  # which lets time do its work
        stored = drive(self._store.peek(self._box.name, 1 << 30))
        return self._seen([delivery for delivery in stored if delivery.state in states])

    @property
    def ready(self) -> list[Peeked[T]]:
        return self._in("ready", "lapsed")

    @property
    def scheduled(self) -> list[Peeked[T]]:
        return self._in("scheduled")

    @property
    def in_flight(self) -> list[Peeked[T]]:
        return self._in("in_flight")

    @property
    def dead(self) -> list[DeadLetter[T]]:
        drive(self._store.info(self._box.name))  # which lets time do its work
        graves = drive(self._store.peek(self._box.name + "!dead", 1 << 30))
        return [DeadLetter(delivery, body_of(self._box, delivery)) for delivery in graves]

    @property
    def acknowledged(self) -> list[Peeked[T]]:
        """In the order of their acknowledging."""
        return self._seen(self._driver.acknowledged.get(self._box.name, ()))

    @property
    def sent(self) -> list[T]:
        """The bodies of everything that was accepted, in order."""
        return [message.body for message in self.sent_messages]

    @property
    def sent_messages(self) -> list[Peeked[T]]:
        """The same with their ids, attributes and the rest."""
        now = self.clock.now()
        sent = enumerate(self._driver.sent.get(self._box.name, ()))
        return self._seen([Delivery(envelope, "", 0, at + 1, now, 0.0, 0.0, state="sent") for at, envelope in sent])

    def forget(self) -> None:
        """Empty `sent` and `acknowledged`; the messages themselves stay."""
        self._driver.forget()

    # --- what happens to it --------------------------------------------------------------------------------------

    def fail(
        self, operation: str, error: BaseException, *, times: int | None = 1, after: bool = False, skip: int = 0
    ) -> Fault:
        """Let `send`, `receive`, `acknowledge`, `nack`, `extend_visibility` or `dead_letter` fail: the next `times`
        calls (None: all) after `skip` good ones. With `after` it takes effect and only its answer is lost."""
        return self._driver.fail(operation, error, times=times, after=after, skip=skip)

    def heal(self) -> None:
        """No more faults."""
        self._driver.heal()

    def set_connection_error(self, exc: BaseException | None = None) -> None:
        """From now on nothing gets through: every operation raises `exc`, or MailboxConnectionError."""
        self.clear_connection_error()
        error = exc if exc is not None else MailboxConnectionError(f"{self._box.name}: the store is away")
        self._outage: Fault | None = self._driver.fail("*", error, times=None)

    def clear_connection_error(self) -> None:
        outage = getattr(self, "_outage", None)
        if outage is not None:
            self._driver.heal(outage)
        self._outage = None

    def expire_handle(self, message: Message[T, R] | AsyncMessage[T, R] | str) -> None:
        """The lease on this message (or receipt handle) is lost: its holder is stale, the message ready again."""
        handle = message if isinstance(message, str) else message.receipt_handle
        [outcome] = drive(self._store.settle(self._box.name, [Release(handle)]))
        if not isinstance(outcome, Settled):
            raise InvalidParameterError(f"{self._box.name}: {handle!r:.60} holds nothing any more")

    def inject_message(
        self, body: T, *, msg_id: str | None = None, delivery_count: int = 0, reply_to: str | None = None
    ) -> str:
        """Put a message in as if it had been sent, and delivered `delivery_count` times, by somebody else."""
        data, kind = self._box.codec.encode(body)
        return self._inject(data, kind, msg_id, delivery_count, reply_to)

    def inject_raw(self, body: bytes, *, content_type: str = "application/json", msg_id: str | None = None) -> str:
        """Put in bytes that no mailbox has checked, for tests of what cannot be decoded."""
        return self._inject(body, content_type, msg_id, 0, None)

    def _inject(self, data: bytes, kind: str, id: str | None, delivery_count: int, reply_to: str | None) -> str:
        limits.whole(delivery_count, "delivery_count", 0, 1 << 30)
        by_reference = self._driver.capabilities.by_reference
        size = 0 if by_reference else len(data)
        envelope = Envelope(id if id is not None else new_id(), data, kind, reply_to=reply_to, size=size)
        [put] = drive(self._store.put(self._box.name, [envelope]))
        seq = getattr(put, "seq", None)
        if seq is None:
            raise InvalidParameterError(f"{self._box.name}: not injected: {put}")
        if delivery_count:
            with self._store.store.lock:
                entry = self._store._space.queues[self._box.name].entries[seq]
                entry.past = Past(attempts=delivery_count)
        return envelope.id


class FakeMailbox(_Staged[T, R], Mailbox[T, R]):
    """A mailbox that behaves like a real one, in a store of its own, with a clock that is the test's.

    Bodies go through production serialisation unless `serialize=False`. Nobody waits: a receive with a wait moves the
    clock instead (`ManualClock(autojump=True)`), unless another clock is given.
    """

    def __init__(
        self,
        name: str = "fake",
        body_type: type[T] | UnionType | None = None,
        *,
        reply_type: type[R] | UnionType | None = None,
        clock: ManualClock | None = None,
        serialize: bool = True,
        definition: QueueDefinition | None = None,
    ) -> None:
        link, address = self._stage(Recording, Inline, name, body_type, reply_type, clock, serialize, definition)
        Mailbox.__init__(self, Box(link, name, body_type, reply_type), QueueClient(link, address))


class AsyncFakeMailbox(_Staged[T, R], AsyncMailbox[T, R]):
    """`FakeMailbox`, awaited. Looking into it and breaking it is immediate."""

    def __init__(
        self,
        name: str = "fake",
        body_type: type[T] | UnionType | None = None,
        *,
        reply_type: type[R] | UnionType | None = None,
        clock: ManualClock | None = None,
        serialize: bool = True,
        definition: QueueDefinition | None = None,
    ) -> None:
        link, address = self._stage(Recording, Awaiting, name, body_type, reply_type, clock, serialize, definition)
        AsyncMailbox.__init__(self, Box(link, name, body_type, reply_type), AsyncQueueClient(link, address))


class CollectingMailbox(_Staged[T, R], Mailbox[T, R]):
    """Takes everything, checks it as production does, gives nothing back: `sent` has the bodies."""

    def __init__(
        self,
        name: str = "collecting",
        body_type: type[T] | UnionType | None = None,
        *,
        reply_type: type[R] | UnionType | None = None,
    ) -> None:
        link, address = self._stage(Discarding, Inline, name, body_type, reply_type, None, True, None)
        Mailbox.__init__(self, Box(link, name, body_type, reply_type), QueueClient(link, address))


class AsyncCollectingMailbox(_Staged[T, R], AsyncMailbox[T, R]):
    """`CollectingMailbox`, awaited."""

    def __init__(
        self,
        name: str = "collecting",
        body_type: type[T] | UnionType | None = None,
        *,
        reply_type: type[R] | UnionType | None = None,
    ) -> None:
        link, address = self._stage(Discarding, Awaiting, name, body_type, reply_type, None, True, None)
        AsyncMailbox.__init__(self, Box(link, name, body_type, reply_type), AsyncQueueClient(link, address))


class NullMailbox(CollectingMailbox[T, R]):
    """Takes everything, keeps nothing, gives nothing: for code that must have a mailbox and a test that has no use for
    it. Bodies are still checked."""

    def __init__(
        self,
        name: str = "null",
        body_type: type[T] | UnionType | None = None,
        *,
        reply_type: type[R] | UnionType | None = None,
    ) -> None:
        super().__init__(name, body_type, reply_type=reply_type)
        self._driver.keeps = False


class AsyncNullMailbox(AsyncCollectingMailbox[T, R]):
    """`NullMailbox`, awaited."""

    def __init__(
        self,
        name: str = "null",
        body_type: type[T] | UnionType | None = None,
        *,
        reply_type: type[R] | UnionType | None = None,
    ) -> None:
        super().__init__(name, body_type, reply_type=reply_type)
        self._driver.keeps = False


def fresh_client(clock: ManualClock | None = None) -> QueueClient:
    """A client on a memory store of its own that remembers what was sent and acknowledged."""
    clock = clock if clock is not None else ManualClock(autojump=True)
    return QueueClient(Link(Recording(MemoryDriver(MemoryStore(clock), Inline(), serialize=True))), Address("memory"))


def recorder_of(mailbox: object) -> Recording | None:
    """The record that a mailbox's store keeps; None if it keeps none."""
    box = getattr(mailbox, "_box", None)
    return box.driver if isinstance(box, Box) and isinstance(box.driver, Recording) else None
