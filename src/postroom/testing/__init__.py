"""Tools for tests: mailboxes that behave or fail as told, a clock that is the test's, and the conformance suite.

Nothing is imported until it is asked for, because pytest loads `postroom.testing.plugin` in every run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from postroom.testing.clock import ManualClock
    from postroom.testing.faults import Fault, Faulty
    from postroom.testing.helpers import assert_acknowledged, assert_sent, drain
    from postroom.testing.mailboxes import (
        AsyncCollectingMailbox,
        AsyncFakeMailbox,
        AsyncNullMailbox,
        CollectingMailbox,
        FakeMailbox,
        NullMailbox,
    )
    from postroom.testing.recording import Recording

_HOMES = {
    "AsyncCollectingMailbox": "mailboxes",
    "AsyncFakeMailbox": "mailboxes",
    "AsyncNullMailbox": "mailboxes",
    "CollectingMailbox": "mailboxes",
    "FakeMailbox": "mailboxes",
    "Fault": "faults",
    "Faulty": "faults",
    "ManualClock": "clock",
    "NullMailbox": "mailboxes",
    "Recording": "recording",
    "assert_acknowledged": "helpers",
    "assert_sent": "helpers",
    "drain": "helpers",
}

__all__ = [
    "AsyncCollectingMailbox",
    "AsyncFakeMailbox",
    "AsyncNullMailbox",
    "CollectingMailbox",
    "FakeMailbox",
    "Fault",
    "Faulty",
    "ManualClock",
    "NullMailbox",
    "Recording",
    "assert_acknowledged",
    "assert_sent",
    "drain",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
