"""Retry and dead-letter decisions: numbers in, a number or a verdict out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from postroom.core.limits import DAY, Seconds, seconds
from postroom.core.message import Bury, Delivery, Release, Return, Verdict
from postroom.errors import InvalidParameterError, Reject, Retry

MAX_DESCRIPTION = 2_000


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a failed message waits before its next delivery, and how many it gets.

    `Backoff()` doubles from one second up to a quarter of an hour and gives up after five deliveries;
    `Backoff(base=60, cap=900, growth="linear")` is min(60 * n, 900).
    """

    max_attempts: int = 5
    base: Seconds = 1.0
    cap: Seconds = 900.0
    jitter: float = 0.2  # the share of the delay that chance may take off or add
    growth: Literal["exponential", "linear"] = "exponential"

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise InvalidParameterError(f"max_attempts must be a whole number from 1, not {self.max_attempts!r}")
        seconds(self.base, "base")
        seconds(self.cap, "cap", high=DAY)
        if not (isinstance(self.jitter, (int, float)) and 0 <= self.jitter <= 1):
            raise InvalidParameterError(f"jitter must be between 0 and 1, not {self.jitter!r}")
        if self.growth not in ("exponential", "linear"):
            raise InvalidParameterError(f"growth must be 'exponential' or 'linear', not {self.growth!r}")

    def after(self, attempt: int, chance: float = 0.5) -> float:
        """Seconds to wait after failed delivery number `attempt`; the caller throws the dice, `chance` (0 to 1)."""
        base, cap = seconds(self.base, "base"), seconds(self.cap, "cap")
        # 2.0 ** 1024 overflows, and long before that every delay has reached its cap.
        grown = base * attempt if self.growth == "linear" else base * 2.0 ** min(attempt - 1, 60)
        return min(grown, cap) * (1 + self.jitter * (2 * chance - 1))


def describe(failure: BaseException) -> str:
    """A failure in a line for the history: its type and text, truncated, without locals or traceback."""
    return " ".join(f"{type(failure).__name__}: {failure}".split())[:MAX_DESCRIPTION]


def verdict_on(failure: BaseException, delivery: Delivery, retry: Backoff, chance: float) -> Verdict:
    """What a failed handling means for its message. The queue's own limit is enforced by the store, not here."""
    if isinstance(failure, Retry):
        return Return(delivery.handle, seconds(failure.delay, "Retry's delay"))
    if isinstance(failure, Reject):
        return Bury(delivery.handle, failure.reason, failure.description[:MAX_DESCRIPTION])
    if not isinstance(failure, Exception):  # KeyboardInterrupt, SystemExit, a cancelled task: not the message's fault
        return Return(delivery.handle)
    return Release(delivery.handle, retry.after(delivery.attempt, chance), describe(failure))


def smaller(first: int | None, second: int | None) -> int | None:
    """The smaller of two limits, where None is no limit."""
    if first is None:
        return second
    return first if second is None else min(first, second)
