"""Of the two flavours exactly one is awaited, method by method."""

import inspect

import pytest

import postroom
import postroom.aio

NOT_AWAITED = {"mailbox", "stream", "keep_alive"}  # they hand out something that is awaited, or iterated over


@pytest.mark.parametrize("name", ["Mailbox", "Message", "DeadLetters", "Session", "QueueClient"])
def test_what_may_wait_is_awaited_and_nothing_else(name):
    sync, twin = getattr(postroom, name), getattr(postroom.aio, f"Async{name}")
    for method, member in inspect.getmembers(sync, inspect.isfunction):
        if method.startswith("_"):
            continue
        assert not inspect.iscoroutinefunction(member), method
        other = getattr(twin, method)
        if method not in NOT_AWAITED:
            assert inspect.iscoroutinefunction(other), f"{method} is not awaited"
    for method, other in inspect.getmembers(twin, inspect.isfunction):
        if not method.startswith("_"):
            assert hasattr(sync, method), f"{method} is missing in the sync flavour"
            assert inspect.iscoroutinefunction(other) or method in NOT_AWAITED, method
