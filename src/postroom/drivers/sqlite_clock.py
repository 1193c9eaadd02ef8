"""The store's time: the boot-time clock plus an offset that is kept in the file, one a boot.

The wall clock is asked once a boot, by whoever opens the file first; from then on every process adds the same number
to a clock that cannot be set, so time neither goes back nor jumps, whatever happens to the time of day. A new boot
starts at the time of day, but never before the latest time that was ever written.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from functools import partial

from postroom.drivers.io import Bell

_KEPT = 16  # boots whose offset is remembered; several are in use at once where containers share a file


def boot_time() -> Callable[[], float] | None:
    """A clock that all processes of this boot share, counts while the machine sleeps, and cannot be set."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    if clock is None:
        return None
    return partial(time.clock_gettime, clock)


def boot_name() -> str | None:
    """What tells this boot, and this view of its clock, from every other; None where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        # A time namespace shifts the boot-time clock for the processes in it.
        return f"{boot}/{os.readlink('/proc/self/ns/time')}"
    except OSError:
        return None


class StoreClock:
    """The time of one file, as this process reads it."""

    moved: Bell | None = None

    def __init__(
        self,
        *,
        ticks: Callable[[], float] | None = None,
        wall: Callable[[], float] = time.time,
        boot: str | None = None,
    ) -> None:
        self._ticks = ticks if ticks is not None else boot_time()
        self._wall = wall
        self._boot = boot if boot is not None else boot_name()
        self.now: Callable[[], float] = wall

    def read(self, run: Callable[..., sqlite3.Cursor]) -> bool:
        """Take over this boot's offset from the file; False if nobody has opened the file in this boot."""
        ticks, boot = self._ticks, self._boot
        if ticks is None or boot is None:
            self.now = _never_back(self._wall, run("SELECT max(touched_at) FROM postroom_tally").fetchone()[0])
            return True
        row = run("SELECT value FROM postroom_store WHERE name = ?", (f"clock:{boot}",)).fetchone()
        if row is None:
            return False
        offset: float = row[0]
        self.now = lambda: ticks() + offset
        return True

    def start(self, run: Callable[..., sqlite3.Cursor]) -> bool:
        """Read this boot's offset, or, first in a boot, write it. Called in a write transaction; True if it wrote."""
        ticks, boot = self._ticks, self._boot
        if self.read(run) or ticks is None:
            return False
        latest: float = run("SELECT max(touched_at) FROM postroom_tally").fetchone()[0]
        offset = max(self._wall(), latest) - ticks()
        self.now = lambda: ticks() + offset
        key = f"clock:{boot}"
        run("INSERT INTO postroom_store (name, value) VALUES (?, ?)", (key, offset))
        # Offsets rise from boot to boot as the boot-time clock starts at 0: the lowest are the oldest.
        run(
            "DELETE FROM postroom_store WHERE name IN (SELECT name FROM postroom_store WHERE name GLOB 'clock:*' "
            "AND name <> ? ORDER BY value DESC LIMIT -1 OFFSET ?)",
            (key, _KEPT - 1),
        )
        return True

    def patience(self, until: float) -> float | None:
        return max(0.0, until - self.now())


def _never_back(wall: Callable[[], float], latest: float) -> Callable[[], float]:
    """Without a boot-time clock: the time of day, held where it would go back."""
    high = latest

    def now() -> float:
        nonlocal high
        high = max(high, wall())
        return high

    return now
