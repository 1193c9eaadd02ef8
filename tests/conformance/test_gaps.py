"""A store that lacks something: its gaps are refused, and a gap that no store may have is found out."""

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

import postroom
import postroom.aio
from postroom.core.address import Address
from postroom.core.capabilities import NO, WEAKER, YES, Capabilities
from postroom.drivers.io import Awaiting, Inline
from postroom.drivers.memory import CAPABILITIES, MemoryDriver, MemoryStore
from postroom.flows.link import Link
from postroom.testing.conformance import UrlStore
from postroom.testing.conformance.gaps import Gaps, unlawful
from postroom.testing.faults import Faulty


class Lacking(UrlStore):
    """Memory, but without much of what it can: as poor as the semantics allow a store to be."""

    lacks: ClassVar[dict[str, Any]] = {
        "sessions": NO,
        "session_state": NO,
        "dedup": NO,
        "priority": NO,
        "capacity": NO,
        "schedule": NO,
        "visibility_per_receive": NO,
        "peek": NO,
        "exact_stats": YES,
    }

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.store = MemoryStore(self.clock)

    def url_of(self, tmp_path: Path) -> str:
        return "memory://"

    def connect(self, flavour: Any, **options: Any) -> Any:
        driver = Faulty(MemoryDriver(self.store, Inline() if flavour == "sync" else Awaiting(), serialize=True))
        driver.capabilities = msgspec.structs.replace(CAPABILITIES, store="poor", **self.lacks)
        link, address = Link(driver), Address("poor")
        if flavour == "sync":
            return postroom.QueueClient(link, address)
        return postroom.aio.AsyncQueueClient(link, address)


class TestAPoorStore(Gaps):
    store = Lacking


def lawful(**levels: Any) -> Capabilities:
    return msgspec.structs.replace(CAPABILITIES, **levels)


@pytest.mark.parametrize(
    ("levels", "complaint"),
    [
        ({"ttl": NO}, "message TTL"),
        ({"stale_token_refused": NO}, "stale token"),
        ({"dead_letters": NO}, "dead letters"),
        ({"sessions": WEAKER}, "sessions"),
        ({"sessions": NO}, "no sessions"),
        ({"purge": WEAKER}, "notes do not say how"),
        ({"notes": {"speed": "slow"}}, "speed"),
        ({"by_reference": True, "survives_crash": YES}, "by reference"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_gap_no_store_may_have_is_found_out(levels, complaint):
    assert any(complaint in wrong for wrong in unlawful(lawful(**levels)))
    assert unlawful(lawful()) == []
