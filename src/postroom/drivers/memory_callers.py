"""Those who wait for a queue of the memory store, and how they learn that there is something for them.

Bells say only "look". What happens by itself, because its time has come, rings no bell: so of those who wait one always
wakes in time to see the next such moment, and passes that duty on when it leaves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf

from postroom.drivers.io import Bell


class Callers(ABC):
    """The waiting side of a queue."""

    def __init__(self) -> None:
        self.bell = Bell()  # rung when something became claimable
        self.session_bells: dict[str, Bell] = {}
        self.room = Bell()  # rung when a bounded queue has room again
        self.alarm = inf  # the earliest time at which one of those who wait will look by itself

    @abstractmethod
    def next_due(self) -> float | None:
        """When something may happen by itself, or None."""

    def wake(self, n: int) -> None:
        """`n` messages became claimable."""
        if self.bell.waiters:
            self.bell.ring(n)
        if self.session_bells:
            self.wake_sessions()

    def wake_sessions(self) -> None:
        for bell in self.session_bells.values():
            bell.ring()

    def wake_all(self) -> None:
        self.bell.ring()
        self.room.ring()
        self.wake_sessions()

    def set_alarm(self) -> None:
        """If something is due before any of those who wait would wake, one of them must know."""
        due = self.next_due()
        if due is not None and due < self.alarm:
            self.alarm = due
            self.bell.ring(1)
