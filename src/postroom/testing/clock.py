"""A clock that stands still until a test moves it.

Give it to a store that counts time by a clock of ours (`connect("memory://", clock=ManualClock())`). Whoever waits in
that store then waits for the test to `advance`, and wakes in the right order without anybody sleeping.
"""

from __future__ import annotations

import math
import threading

from postroom.core import limits
from postroom.core.limits import Seconds
from postroom.drivers.io import Bell
from postroom.errors import InvalidParameterError


class ManualClock:
    """Time by hand. With `autojump=True` nobody waits at all: a wait moves the clock to the time it waits for.

    Autojump is for tests with one thread of action. With several, the first one to wait moves the time for all.
    """

    moved: Bell | None

    def __init__(self, start: float = 1_750_000_000.0, *, autojump: bool = False) -> None:
        self._now = _instant(start, "start")
        self._lock = threading.Lock()
        self._bell = Bell()
        self.moved = self._bell
        self.autojump = autojump

    def now(self) -> float:
        return self._now

    def advance(self, duration: Seconds) -> None:
        """Let time pass; everybody who waits for something that is due now looks."""
        passed = limits.seconds(duration, "duration")
        with self._lock:
            self._now += passed
        self._bell.ring()

    def advance_to(self, at: float) -> None:
        """Let time pass until `at`; a clock never goes back."""
        at = _instant(at, "at")
        with self._lock:
            self._now = max(self._now, at)
        self._bell.ring()

    def patience(self, until: float) -> float | None:
        if not self.autojump or math.isinf(until):
            return None
        self.advance_to(until)
        return 0.0

    @property
    def waiting(self) -> int:
        """How many wait for time to pass."""
        return len(self._bell.waiters)

    def __repr__(self) -> str:
        return f"<ManualClock at {self._now:.3f}{', autojump' if self.autojump else ''}>"


def _instant(at: float, what: str) -> float:
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not math.isfinite(at):
        raise InvalidParameterError(f"{what} is seconds since the epoch, as datetime.timestamp() gives, not {at!r:.80}")
    return float(at)
