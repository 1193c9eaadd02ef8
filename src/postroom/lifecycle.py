"""Beginning and ending well: signals that ask a program to stop, and whether a loop is still alive."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from postroom.drivers.io import Bell

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Heartbeat:
    """Says when a loop was last seen alive. Safe from any thread."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._callbacks: tuple[Callable[[], object], ...] = ()

    def beat(self) -> None:
        self._at = time.monotonic()
        for callback in self._callbacks:
            try:
                callback()
            except Exception:
                pass  # who listens to a heart must not stop it

    @property
    def elapsed(self) -> float:
        """Seconds since the last beat."""
        return time.monotonic() - self._at

    def on_beat(self, callback: Callable[[], object]) -> None:
        self._callbacks = (*self._callbacks, callback)


@contextmanager
def until_told(stop: Bell) -> Iterator[None]:
    """SIGTERM and SIGINT ring `stop` while the block runs in the main thread; a second one ends the process.

    The second is not left to the default: a process that is PID 1 of its container would not hear it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def told(number: int, frame: FrameType | None) -> None:
        if stop.rung:
            os._exit(128 + number)
        stop.ring_for_good()

    former: dict[signal.Signals, Any] = {}
    try:
        for asked in _SIGNALS:
            former[asked] = signal.signal(asked, told)
        yield
    finally:
        for asked, handler in former.items():
            signal.signal(asked, handler)
