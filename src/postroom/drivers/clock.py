"""Where time comes from, for stores that have no clock of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from postroom.drivers.io import Bell


class Clock(Protocol):
    """A clock a store can be given."""

    moved: Bell | None  # rung when the clock was moved by hand: those who wait for a time must look again

    def now(self) -> float:
        """Seconds since the epoch; never goes back."""
        ...

    def patience(self, until: float) -> float | None:
        """How many real seconds to wait for `until`; None: until a bell rings."""
        ...


class SystemClock:
    """The monotonic clock, set to the time of day once: later changes of the wall clock do not reach it."""

    moved: Bell | None = None

    def __init__(self) -> None:
        offset, monotonic = time.time() - time.monotonic(), time.monotonic
        self.now: Callable[[], float] = lambda: monotonic() + offset  # half the cost of a method, three times a message

    def patience(self, until: float) -> float | None:
        left = until - self.now()
        return left if left > 0.0 else 0.0
