"""What the library announces about itself. Telemetry, never work: nobody has to listen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec


class Undecodable(msgspec.Struct, frozen=True, gc=False):
    """A stored message could not be turned into a body; `buried` says whether the dead letters have it now."""

    queue: str
    message_id: str
    error: str
    buried: bool


class Overflowed(msgspec.Struct, frozen=True, gc=False):
    """A full queue dropped messages, old ones or the new one."""

    queue: str
    dropped: int


class ReplyDropped(msgspec.Struct, frozen=True, gc=False):
    """A reply found its mailbox gone."""

    queue: str
    message_id: str


class HandlerFailed(msgspec.Struct, frozen=True, gc=False):
    """A worker's handler raised. `dead` says whether that was the message's last chance."""

    queue: str
    message_id: str
    delivery_count: int
    error: str
    dead: bool


class LeaseLost(msgspec.Struct, frozen=True, gc=False):
    """A worker lost a message that it was still handling; somebody else gets it, or has it already."""

    queue: str
    message_id: str
    delivery_count: int
    why: str  # stale, gone, max_processing, or what the store said


class StaleAcknowledge(msgspec.Struct, frozen=True, gc=False):
    """A worker had handled a message and could not say so any more: it is or was delivered to somebody else, too."""

    queue: str
    message_id: str
    why: str


class StoreAway(msgspec.Struct, frozen=True, gc=False):
    """A worker could not reach its store, and will try again in so many seconds."""

    queue: str
    error: str
    retry_in: float


Event: TypeAlias = Undecodable | Overflowed | ReplyDropped | HandlerFailed | LeaseLost | StaleAcknowledge | StoreAway
Emit: TypeAlias = Callable[[object], None]
