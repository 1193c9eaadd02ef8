"""What fault tests are given: a place to happen in, and processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.rig import Nursery, Place


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """By the store's own clock."""
    with Place(tmp_path) as place:
        yield place


@pytest.fixture
def timed(tmp_path: Path) -> Iterator[Place]:
    """By a clock that the test moves, for all processes at once: leases lapse without anybody waiting."""
    with Place(tmp_path, clock=True) as place:
        yield place
