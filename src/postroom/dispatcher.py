"""In-process events: telemetry, never work. A failing subscriber harms nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class DispatchResult:
    """Who heard an event, and who failed at it."""

    handlers_invoked: int
    errors: tuple[Exception, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.errors

    def raise_if_errors(self) -> None:
        if self.errors:
            raise ExceptionGroup("subscribers failed", list(self.errors))


class Dispatcher:
    """Tells subscribers of events, by the events' type. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: dict[type, tuple[Callable[[Any], object], ...]] = {}

    def subscribe(self, kind: type[E], handler: Callable[[E], object]) -> None:
        """Call `handler` with every event of this type or of one derived from it."""
        with self._lock:
            self._handlers[kind] = (*self._handlers.get(kind, ()), handler)

    def unsubscribe(self, kind: type[E], handler: Callable[[E], object]) -> bool:
        """Whether it was subscribed."""
        with self._lock:
            handlers = list(self._handlers.get(kind, ()))
            if handler not in handlers:
                return False
            handlers.remove(handler)
            self._handlers[kind] = tuple(handlers)
            return True

    def dispatch(self, event: object) -> DispatchResult:
        invoked, errors = 0, []
        for kind in type(event).__mro__:
            for handler in self._handlers.get(kind, ()):
                invoked += 1
                try:
                    handler(event)
                except Exception as error:
                    errors.append(error)
        return DispatchResult(invoked, tuple(errors))
