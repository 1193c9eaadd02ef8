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


Event: TypeAlias = Undecodable | Overflowed | ReplyDropped
Emit: TypeAlias = Callable[[object], None]
