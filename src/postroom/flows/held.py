"""A message in somebody's hands: what the sync and the async Message share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Generic

import msgspec
from typing_extensions import TypeVar

from postroom.core.message import Attempt, Death, Delivery
from postroom.flows.link import Box

T = TypeVar("T", default=Any)
R = TypeVar("R", default=Any)

_EMPTY: Mapping[str, str] = MappingProxyType({})


class Lease:
    """The lease on a message: its fencing number, and whether it is known to be lost."""

    __slots__ = ("lost", "token")

    def __init__(self, token: int) -> None:
        self.token = (
            token  # never falls in the store's life: give it to what you write to, and let that refuse older ones
        )
        self.lost = False


class Held(msgspec.Struct, Generic[T, R], eq=False):
    """A delivery with its body decoded. Times are aware UTC, by the store's clock."""

    _box: Box[T, R]
    _delivery: Delivery
    body: T
    _final: bool = False
    _unsure: bool = False  # a settle went out and its answer was lost
    _extended: float | None = None  # the end of the lease, once it was moved
    _lease: Lease | None = None
    _replies: int = 0

    @property
    def _until(self) -> float:
        return self._delivery.lease_until if self._extended is None else self._extended

    @property
    def id(self) -> str:
        return self._delivery.envelope.id

    @property
    def receipt_handle(self) -> str:
        """Proves the lease; opaque."""
        return self._delivery.handle

    @property
    def delivery_count(self) -> int:
        """1 on the first delivery; raised by the store before your code sees the message."""
        return self._delivery.attempt

    @property
    def enqueued_at(self) -> datetime:
        return datetime.fromtimestamp(self._delivery.enqueued_at, UTC)

    @property
    def received_at(self) -> datetime:
        return datetime.fromtimestamp(self._delivery.received_at, UTC)

    @property
    def lease_expires_at(self) -> datetime:
        return datetime.fromtimestamp(self._until, UTC)

    @property
    def remaining(self) -> float:
        """Seconds of the lease that are left; 0 when it is over."""
        return max(0.0, self._until - self._box.driver.now())

    @property
    def attributes(self) -> Mapping[str, str]:
        return self._delivery.envelope.attributes or _EMPTY

    @property
    def reply_to(self) -> str | None:
        return self._delivery.envelope.reply_to

    @property
    def correlation_id(self) -> str | None:
        return self._delivery.envelope.correlation_id

    @property
    def session_id(self) -> str | None:
        return self._delivery.envelope.session_id

    @property
    def sequence_number(self) -> int:
        """The message's place in its queue; fixed for life."""
        return self._delivery.seq

    @property
    def content_type(self) -> str:
        return self._delivery.envelope.content_type

    @property
    def priority(self) -> int:
        return self._delivery.envelope.priority

    @property
    def is_finalized(self) -> bool:
        """Whether this object has settled its message; a message is settled once."""
        return self._final

    @property
    def lease(self) -> Lease:
        if self._lease is None:
            self._lease = Lease(self._delivery.token)
        return self._lease

    @property
    def history(self) -> tuple[Attempt, ...]:
        """The failed deliveries so far, the last twenty of them."""
        return self._delivery.history

    @property
    def death(self) -> Death | None:
        """Why and where it died, if it is or was a dead letter."""
        return self._delivery.death

    def __repr__(self) -> str:
        state = "settled" if self._final else f"{self.remaining:.0f} s left"
        return f"<{type(self).__name__} {self.id} of {self._box.name}, delivery {self.delivery_count}, {state}>"


class Peeked(Generic[T]):
    """A message that was looked at and not taken: it cannot be settled. `body` is bytes where it would not decode."""

    __slots__ = ("_delivery", "body")

    def __init__(self, delivery: Delivery, body: T) -> None:
        self._delivery = delivery
        self.body = body

    @property
    def id(self) -> str:
        return self._delivery.envelope.id

    @property
    def state(self) -> str:
        """scheduled, ready, in_flight or lapsed."""
        return self._delivery.state

    @property
    def sequence_number(self) -> int:
        return self._delivery.seq

    @property
    def delivery_count(self) -> int:
        return self._delivery.attempt

    @property
    def enqueued_at(self) -> datetime:
        return datetime.fromtimestamp(self._delivery.enqueued_at, UTC)

    @property
    def visible_at(self) -> datetime:
        """Since or until when: visible, delayed, or leased to somebody."""
        return datetime.fromtimestamp(self._delivery.visible_at, UTC)

    @property
    def expires_at(self) -> datetime | None:
        at = self._delivery.expires_at
        return None if at is None else datetime.fromtimestamp(at, UTC)

    @property
    def attributes(self) -> Mapping[str, str]:
        return self._delivery.envelope.attributes or _EMPTY

    @property
    def reply_to(self) -> str | None:
        return self._delivery.envelope.reply_to

    @property
    def correlation_id(self) -> str | None:
        return self._delivery.envelope.correlation_id

    @property
    def session_id(self) -> str | None:
        return self._delivery.envelope.session_id

    @property
    def content_type(self) -> str:
        return self._delivery.envelope.content_type

    @property
    def priority(self) -> int:
        return self._delivery.envelope.priority

    @property
    def history(self) -> tuple[Attempt, ...]:
        return self._delivery.history

    @property
    def death(self) -> Death | None:
        return self._delivery.death

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}, {self.state}, delivered {self.delivery_count} times>"


class DeadLetter(Peeked[T]):
    """A dead letter that was looked at. `body` is bytes where it would not decode."""

    __slots__ = ()

    @property
    def death(self) -> Death:
        """Why, where and when it died. Of one that was sent to the dead-letter queue by hand the reason is empty."""
        seen = self._delivery
        return seen.death or Death("", "", "", seen.enqueued_at, seen.attempt)

    @property
    def reason(self) -> str:
        """max_deliveries, expired, undecodable, or what was said when it was rejected."""
        return self.death.reason
