"""What users say about queues, sends and receives, and what a queue says about itself.

`QueueDefinition` is what somebody asked for, with None for "as recommended"; `Rules` is what is in force, every
field resolved. Stores keep and enforce rules; users read and write definitions.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self, TypeAlias

import msgspec

from postroom.core import limits
from postroom.core.address import check_name
from postroom.core.capabilities import Capabilities
from postroom.core.limits import DAY, HOUR, Seconds
from postroom.errors import InvalidParameterError, UnsupportedError

Overflow: TypeAlias = Literal["reject", "wait", "drop_oldest", "drop_newest"]
SessionMode: TypeAlias = Literal["optional", "required", "off"]


class QueueStatus(enum.StrEnum):
    """Whether a queue takes and gives messages. Settling works in every status."""

    ACTIVE = "active"
    CREATING = "creating"
    DELETING = "deleting"
    DISABLED = "disabled"
    RECEIVE_DISABLED = "receive_disabled"
    SEND_DISABLED = "send_disabled"
    UNKNOWN = "unknown"

    @property
    def takes(self) -> bool:
        return self not in (QueueStatus.DISABLED, QueueStatus.SEND_DISABLED, QueueStatus.DELETING)

    @property
    def gives(self) -> bool:
        return self not in (QueueStatus.DISABLED, QueueStatus.RECEIVE_DISABLED, QueueStatus.DELETING)


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's definition with every question answered: what the store enforces.

    The defaults are those of a plain queue, which a mailbox opened without a definition gets.
    """

    plain: bool = True
    max_deliveries: int | None = None
    ttl: float | None = None
    lease: float = limits.DEFAULT_LEASE
    sessions: SessionMode = "optional"
    on_dead: Literal["continue", "block"] = "continue"
    dead_lettering: bool = True
    dead_letter_queue: str | None = None  # None: the queue's own
    expired_to_dead_letters: bool = False
    dedup: bool = True
    dedup_window: float = 300.0
    max_messages: int | None = None
    max_bytes: int | None = None
    overflow: Overflow = "reject"
    overflow_timeout: float = 30.0
    auto_delete_on_idle: float | None = None

    @property
    def bounded(self) -> bool:
        return self.max_messages is not None or self.max_bytes is not None


PLAIN = Rules()


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDefinition:
    """How a queue is to behave. None means the recommended value; `info().definition` shows what is in force.

    Only a value given explicitly that a store cannot honour is refused.
    """

    name: str = dataclasses.field(kw_only=False)
    max_delivery_count: int | None = None  # 3; the Nth delivery is the last
    message_ttl: Seconds | None = None  # 24 h
    lock_duration: Seconds | None = None  # 60 s
    sessions: SessionMode | None = None  # "optional"
    on_dead: Literal["continue", "block"] | None = None  # "continue": a dead message lets its session go on
    dead_lettering: bool | None = None  # on
    dead_letter_queue: str | None = None  # the queue's own
    dead_letter_on_expiry: bool | None = None  # off: expired messages are dropped
    duplicate_detection: bool | None = None  # on
    duplicate_detection_window: Seconds | None = None  # 10 min
    max_bytes: int | None = None  # 1 GiB
    max_messages: int | None = None  # no limit
    overflow: Overflow | None = None  # "reject"
    overflow_timeout: Seconds | None = None  # 30 s; how long overflow="wait" waits
    auto_delete_on_idle: Seconds | None = None  # never
    batching: bool | None = None  # on
    express: bool | None = None  # off
    partitioning: bool | None = None  # off

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.dead_letter_queue is not None:
            check_name(self.dead_letter_queue, "dead_letter_queue")
            if self.dead_letter_queue == self.name:
                raise InvalidParameterError(f"{self.name}: a queue cannot be its own dead-letter queue")
        self.rules()

    def rules(self, capabilities: Capabilities | None = None) -> Rules:
        """What this asks for, resolved and checked; with `capabilities`, refusing what the store cannot honour."""
        if capabilities is not None:
            self._refuse_impossible(capabilities)
        if self.dead_lettering is False and self.dead_letter_queue:
            raise InvalidParameterError(f"{self.name}: a dead-letter queue is named, but dead_lettering is off")
        if self.dead_lettering is False and self.dead_letter_on_expiry:
            raise InvalidParameterError(f"{self.name}: dead_letter_on_expiry is on, but dead_lettering is off")
        if self.duplicate_detection is False and self.duplicate_detection_window is not None:
            raise InvalidParameterError(f"{self.name}: a window is given, but duplicate_detection is off")
        if self.overflow_timeout is not None and self.overflow != "wait":
            raise InvalidParameterError(f"{self.name}: overflow_timeout goes with overflow='wait'")
        for option in ("batching", "express", "partitioning"):  # nothing to resolve, but 1 or "yes" is no answer either
            _flag(getattr(self, option), option, False)
        by_reference = capabilities is not None and capabilities.by_reference
        return Rules(
            plain=False,
            max_deliveries=_whole(self.max_delivery_count, "max_delivery_count", 3, 1, 1_000_000),
            ttl=_seconds(self.message_ttl, "message_ttl", DAY, 0.001),
            lease=_seconds(self.lock_duration, "lock_duration", 60.0, 0.001, 12 * HOUR),
            sessions=_one_of(self.sessions, "sessions", "optional", ("optional", "required", "off")),
            on_dead=_one_of(self.on_dead, "on_dead", "continue", ("continue", "block")),
            dead_lettering=_flag(self.dead_lettering, "dead_lettering", True),
            dead_letter_queue=self.dead_letter_queue,
            expired_to_dead_letters=_flag(self.dead_letter_on_expiry, "dead_letter_on_expiry", False),
            dedup=_flag(self.duplicate_detection, "duplicate_detection", True),
            dedup_window=_seconds(
                self.duplicate_detection_window,
                "duplicate_detection_window",
                600.0,
                limits.MIN_DEDUP_WINDOW,
                limits.MAX_DEDUP_WINDOW,
            ),
            # A reference has no size: there the recommended limit would count nothing, so there is none.
            max_bytes=None
            if by_reference and self.max_bytes is None
            else _whole(self.max_bytes, "max_bytes", 1 << 30, 1, 1 << 60),
            max_messages=None
            if self.max_messages is None
            else _whole(self.max_messages, "max_messages", 0, 1, 1 << 60),
            overflow=_one_of(self.overflow, "overflow", "reject", ("reject", "wait", "drop_oldest", "drop_newest")),
            overflow_timeout=_seconds(self.overflow_timeout, "overflow_timeout", 30.0, 0, DAY),
            auto_delete_on_idle=None
            if self.auto_delete_on_idle is None
            else limits.seconds(self.auto_delete_on_idle, "auto_delete_on_idle", 0.001),
        )

    def _refuse_impossible(self, store: Capabilities) -> None:
        asked: tuple[tuple[str, bool], ...] = (
            ("batching=False", self.batching is False),
            ("express=True", self.express is True),
            ("partitioning=True", self.partitioning is True),
            ("max_bytes with bodies passed by reference", store.by_reference and self.max_bytes is not None),
            ("max_messages", not store.can("capacity") and self.max_messages is not None),
            ("max_bytes", not store.can("capacity") and self.max_bytes is not None),
            ("sessions='required'", not store.can("sessions") and self.sessions == "required"),
            ("duplicate_detection=True", not store.can("dedup") and self.duplicate_detection is True),
        )
        for what, given in asked:
            if given:
                raise UnsupportedError(f"{self.name}: {store.store} cannot do {what}; leave it out")

    @classmethod
    def of(cls, name: str, rules: Rules) -> QueueDefinition:
        """The definition that is in force, every field filled in."""
        return cls(
            name=name,
            max_delivery_count=rules.max_deliveries,
            message_ttl=rules.ttl,
            lock_duration=rules.lease,
            sessions=rules.sessions,
            on_dead=rules.on_dead,
            dead_lettering=rules.dead_lettering,
            dead_letter_queue=rules.dead_letter_queue,
            dead_letter_on_expiry=rules.expired_to_dead_letters,
            duplicate_detection=rules.dedup,
            duplicate_detection_window=rules.dedup_window if rules.dedup else None,
            max_bytes=rules.max_bytes,
            max_messages=rules.max_messages,
            overflow=rules.overflow,
            overflow_timeout=rules.overflow_timeout if rules.overflow == "wait" else None,
            auto_delete_on_idle=rules.auto_delete_on_idle,
            batching=True,
            express=False,
            partitioning=False,
        )

    # Fluent spellings of dataclasses.replace, one a field that is often changed.

    def with_max_delivery_count(self, count: int) -> Self:
        return dataclasses.replace(self, max_delivery_count=count)

    def with_message_ttl(self, ttl: Seconds) -> Self:
        return dataclasses.replace(self, message_ttl=ttl)

    def with_lock_duration(self, duration: Seconds) -> Self:
        return dataclasses.replace(self, lock_duration=duration)

    def with_sessions(self, mode: SessionMode = "required") -> Self:
        return dataclasses.replace(self, sessions=mode)

    def with_dead_lettering(self, on: bool = True, *, queue: str | None = None) -> Self:
        return dataclasses.replace(self, dead_lettering=on, dead_letter_queue=queue)

    def with_duplicate_detection(self, window: Seconds | None = None) -> Self:
        return dataclasses.replace(self, duplicate_detection=True, duplicate_detection_window=window)

    def with_capacity(
        self, *, max_messages: int | None = None, max_bytes: int | None = None, overflow: Overflow | None = None
    ) -> Self:
        return dataclasses.replace(self, max_messages=max_messages, max_bytes=max_bytes, overflow=overflow)

    def with_auto_delete_on_idle(self, idle: Seconds) -> Self:
        return dataclasses.replace(self, auto_delete_on_idle=idle)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueInfo:
    """A queue in numbers, and the definition in force. `exact` is False where the store only estimates."""

    name: str
    total: int
    ready: int
    scheduled: int
    in_flight: int
    dead: int
    size_bytes: int
    oldest_age: float | None  # seconds the first-sent ready message waits: since it was due, or sent if it came back
    dropped: int
    expired: int
    exact: bool
    created_at: datetime
    updated_at: datetime
    status: QueueStatus
    definition: QueueDefinition

    @property
    def active(self) -> int:
        """Ready messages, by the name other brokers give them."""
        return self.ready


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueMessage:
    """A message of the raw client: bytes and properties, no type."""

    body: bytes = dataclasses.field(kw_only=False)
    message_id: str | None = None
    session_id: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ttl: Seconds | None = None
    scheduled_enqueue_time: datetime | None = None
    reply_to: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.body, bytes):
            raise InvalidParameterError(
                f"a QueueMessage's body is bytes, not {type(self.body).__name__}; a mailbox takes typed bodies"
            )

    def with_session(self, session_id: str) -> Self:
        return dataclasses.replace(self, session_id=session_id)

    def with_correlation(self, correlation_id: str) -> Self:
        return dataclasses.replace(self, correlation_id=correlation_id)

    def with_content_type(self, content_type: str) -> Self:
        return dataclasses.replace(self, content_type=content_type)

    def with_properties(self, **properties: str) -> Self:
        return dataclasses.replace(self, properties={**self.properties, **properties})

    def with_ttl(self, ttl: Seconds) -> Self:
        return dataclasses.replace(self, ttl=ttl)

    def with_scheduled_enqueue_time(self, at: datetime) -> Self:
        return dataclasses.replace(self, scheduled_enqueue_time=at)


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageReceipt:
    """Proof of a lease: what settles a received message."""

    receipt_id: str
    message_id: str
    queue_name: str
    delivery_count: int
    enqueued_at: datetime
    received_at: datetime
    session_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SendOptions:
    """How to send. Options beat the message's own fields."""

    session_id: str | None = None
    correlation_id: str | None = None
    delay: Seconds | None = None
    scheduled_enqueue_time: datetime | None = None
    ttl: Seconds | None = None
    properties: Mapping[str, str] | None = None
    content_type: str | None = None
    dedup_id: str | None = None
    priority: int | None = None
    reply_to: str | None = None

    def __post_init__(self) -> None:
        if self.delay is not None and self.scheduled_enqueue_time is not None:
            raise InvalidParameterError("give delay or scheduled_enqueue_time, not both")
        aware(self.scheduled_enqueue_time, "scheduled_enqueue_time")

    def with_session(self, session_id: str) -> Self:
        return dataclasses.replace(self, session_id=session_id)

    def with_correlation(self, correlation_id: str) -> Self:
        return dataclasses.replace(self, correlation_id=correlation_id)

    def with_delay(self, delay: Seconds) -> Self:
        return dataclasses.replace(self, delay=delay, scheduled_enqueue_time=None)

    def with_schedule(self, at: datetime) -> Self:
        return dataclasses.replace(self, scheduled_enqueue_time=at, delay=None)

    def with_ttl(self, ttl: Seconds) -> Self:
        return dataclasses.replace(self, ttl=ttl)

    def with_properties(self, **properties: str) -> Self:
        return dataclasses.replace(self, properties={**(self.properties or {}), **properties})

    def with_content_type(self, content_type: str) -> Self:
        return dataclasses.replace(self, content_type=content_type)

    def with_dedup_id(self, dedup_id: str) -> Self:
        return dataclasses.replace(self, dedup_id=dedup_id)

    def with_priority(self, priority: int) -> Self:
        return dataclasses.replace(self, priority=priority)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiveOptions:
    """How to receive. `peek=True` looks without taking: no lease, no count, and its receipts settle nothing."""

    max_messages: int = 1
    timeout: Seconds = 0
    session_id: str | None = None
    accept_any_session: bool = False  # lock the next free session, and receive from it alone
    lock_duration: Seconds | None = None
    peek: bool = False
    from_sequence_number: int | None = None

    def __post_init__(self) -> None:
        limits.whole(self.max_messages, "max_messages", 1, limits.MAX_BATCH)
        limits.seconds(self.timeout, "timeout", 0, limits.MAX_WAIT)
        if self.accept_any_session and self.session_id is not None:
            raise InvalidParameterError("name a session_id or accept any session, not both")
        if self.from_sequence_number is not None and not self.peek:
            raise InvalidParameterError("from_sequence_number goes with peek=True: a receive has an order of its own")
        if self.peek and (self.timeout or self.lock_duration is not None or self.accept_any_session):
            raise InvalidParameterError("a peek takes no lock and does not wait: leave out timeout, lock_duration")

    def with_max_messages(self, count: int) -> Self:
        return dataclasses.replace(self, max_messages=count)

    def with_timeout(self, timeout: Seconds) -> Self:
        return dataclasses.replace(self, timeout=timeout)

    def with_session(self, session_id: str) -> Self:
        return dataclasses.replace(self, session_id=session_id, accept_any_session=False)

    def with_any_session(self) -> Self:
        return dataclasses.replace(self, accept_any_session=True, session_id=None)

    def with_lock_duration(self, duration: Seconds) -> Self:
        return dataclasses.replace(self, lock_duration=duration)

    def with_peek(self, from_sequence_number: int | None = None) -> Self:
        return dataclasses.replace(
            self, peek=True, from_sequence_number=from_sequence_number, timeout=0, lock_duration=None
        )


def aware(value: datetime | None, what: str) -> datetime | None:
    """`value` if it says its time zone; a naive time means something else on every machine."""
    if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
        raise InvalidParameterError(f"{what} must be an aware datetime (with tzinfo), not {value!r}")
    return value


def _seconds(
    value: Seconds | None, what: str, recommended: float, low: float = 0.0, high: float = limits.MAX_DELAY
) -> float:
    return recommended if value is None else limits.seconds(value, what, low, high)


def _whole(value: int | None, what: str, recommended: int, low: int, high: int) -> int:
    return recommended if value is None else limits.whole(value, what, low, high)


def _flag(value: bool | None, what: str, recommended: bool) -> bool:
    if value is not None and not isinstance(value, bool):
        raise InvalidParameterError(f"{what} must be True, False or None, not {value!r:.80}")
    return recommended if value is None else value


def _one_of(value: Any, what: str, recommended: Any, allowed: tuple[str, ...]) -> Any:
    if value is not None and value not in allowed:
        raise InvalidParameterError(f"{what} must be one of {', '.join(allowed)}, not {value!r:.80}")
    return recommended if value is None else value
