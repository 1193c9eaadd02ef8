"""The pytest plugin: loaded in every pytest run of whoever installed Postroom, so it imports nothing until it is used.

def test_a_large_order_is_split(postroom):
    orders = postroom.mailbox("orders", Order)
    split(orders)
    assert_sent(orders, Order("A-1", 100), Order("A-1", 20))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from postroom import QueueClient
    from postroom.testing import ManualClock

# Its asserts should explain themselves as those of a test file do.
pytest.register_assert_rewrite("postroom.testing.conformance")


@pytest.fixture
def postroom_clock() -> ManualClock:
    """The clock of the fixture `postroom`: `postroom_clock.advance(3600)`. Nobody waits for it: a wait moves it."""
    from postroom.testing.clock import ManualClock

    return ManualClock(autojump=True)


@pytest.fixture
def postroom(postroom_clock: ManualClock) -> Iterator[QueueClient]:
    """A fresh client on a memory store of its own, with production serialisation; `assert_sent` knows what it sent."""
    from postroom.testing.mailboxes import fresh_client

    client = fresh_client(postroom_clock)
    yield client
    client.close()


@pytest.fixture
def drain() -> Callable[..., int]:
    """`drain(worker)`: let it run until nothing is left to do."""
    from postroom.testing.helpers import drain

    return drain


@pytest.fixture
def assert_sent() -> Callable[..., None]:
    """`assert_sent(mailbox, *bodies, times=None)`."""
    from postroom.testing.helpers import assert_sent

    return assert_sent


@pytest.fixture
def assert_acknowledged() -> Callable[..., None]:
    """`assert_acknowledged(mailbox, *bodies, times=None)`."""
    from postroom.testing.helpers import assert_acknowledged

    return assert_acknowledged
