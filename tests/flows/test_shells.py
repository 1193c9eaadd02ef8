"""The two shells say the same: same names, same parameters, same words."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import Any

import pytest

import postroom
from postroom import aio
from postroom.drivers.api import Driver
from postroom.drivers.io import Awaiting, Bell, Inline, drive
from postroom.drivers.memory import MemoryDriver, MemoryStore
from postroom.drivers.sqlite import SqliteDriver
from postroom.errors import MailboxError
from postroom.flows.ids import new_id, new_token

TWINS = [
    (postroom.Mailbox, aio.AsyncMailbox),
    (postroom.Message, aio.AsyncMessage),
    (postroom.QueueClient, aio.AsyncQueueClient),
    (postroom.QueueClientFactory, aio.AsyncQueueClientFactory),
    (postroom.DeadLetters, aio.AsyncDeadLetters),
    (postroom.Session, aio.AsyncSession),
]


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers_static(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("sync", "twin"), TWINS, ids=lambda kind: kind.__name__)
def test_both_flavours_have_the_same_names(sync: type, twin: type) -> None:
    assert set(public(sync)) == set(public(twin))


@pytest.mark.parametrize(("sync", "twin"), TWINS, ids=lambda kind: kind.__name__)
def test_the_same_name_takes_the_same_parameters_with_the_same_defaults(sync: type, twin: type) -> None:
    for name in public(sync):
        one, other = getattr(sync, name), getattr(twin, name)
        if not callable(one):
            continue
        mine, theirs = inspect.signature(one).parameters, inspect.signature(other).parameters
        assert list(mine) == list(theirs), name
        for parameter in mine:
            assert mine[parameter].default == theirs[parameter].default, (name, parameter)
            assert mine[parameter].kind == theirs[parameter].kind, (name, parameter)
            expected = str(mine[parameter].annotation)
            for word in ("Mailbox", "Message"):
                expected = expected.replace(f"{word}[", f"Async{word}[")
            assert str(theirs[parameter].annotation) == expected, (name, parameter)


@pytest.mark.parametrize(("sync", "twin"), TWINS, ids=lambda kind: kind.__name__)
def test_the_same_name_is_documented_in_the_same_words(sync: type, twin: type) -> None:
    for name in public(sync):
        assert inspect.getdoc(getattr(sync, name)) == inspect.getdoc(getattr(twin, name)), name


@pytest.mark.parametrize("driver", [MemoryDriver, SqliteDriver])
def test_a_driver_has_every_verb_as_the_waist_says(driver: type) -> None:
    for name, verb in inspect.getmembers(Driver, inspect.isfunction):
        if name.startswith("_"):
            continue
        mine = inspect.signature(getattr(driver, name)).parameters
        theirs = inspect.signature(verb).parameters
        assert [(p.name, p.kind, p.default) for p in mine.values()] == [
            (p.name, p.kind, p.default) for p in theirs.values()
        ], name
        assert inspect.iscoroutinefunction(getattr(driver, name)) == inspect.iscoroutinefunction(verb), name


def test_a_batch_of_one_thing_is_refused_and_any_iterable_taken() -> None:
    with postroom.connect("memory://") as client:
        box = client.mailbox("box", str)
        for once in (
            lambda: box.send_many("abc"),
            lambda: box.acknowledge_many(box.receive),  # type: ignore[arg-type]  # what is refused
            lambda: box.nack_many(5),  # type: ignore[arg-type]
            lambda: client.send_batch("box", postroom.QueueMessage(b"x")),  # type: ignore[arg-type]
            lambda: client.acknowledge_batch("receipt"),  # type: ignore[arg-type]
            lambda: client.reject_batch(5, "why"),  # type: ignore[arg-type]
            lambda: client.requeue_batch(5),  # type: ignore[arg-type]
            lambda: client.extend_batch(5, 10),  # type: ignore[arg-type]
        ):
            with pytest.raises(postroom.InvalidParameterError, match="must be a list"):
                once()
        assert all(result.ok for result in box.send_many(letter for letter in "abc"))
        assert box.approximate_count() == 3
        assert all(result.ok for result in box.acknowledge_many(iter(box.receive(max_messages=10))))
        assert box.approximate_count() == 0


def test_dead_letters_have_none_of_their_own() -> None:
    with postroom.connect("memory://") as client, pytest.raises(postroom.UnsupportedError, match="orders!dead"):
        _ = client.mailbox("orders").dead_letters.dead_letters
    with pytest.raises(postroom.UnsupportedError, match="orders!dead"):
        _ = aio.connect("memory://").mailbox("orders").dead_letters.dead_letters


@pytest.mark.parametrize("wrong", [{"backoff": 3}, {"dispatcher": print}])
def test_what_only_fails_later_is_refused_when_connecting(wrong: dict[str, Any]) -> None:
    with pytest.raises(postroom.ConfigurationError, match=next(iter(wrong))):
        postroom.connect("memory://", **wrong)


def test_every_public_name_exists_and_is_listed_in_order() -> None:
    assert postroom.__all__ == sorted(postroom.__all__, key=str)
    assert all(hasattr(postroom, name) for name in postroom.__all__)


def test_the_sync_api_refuses_an_async_client_library() -> None:
    async def answer() -> int:
        return 1

    with pytest.raises(MailboxError, match=r"postroom\.aio"):
        drive(Inline().call(answer))  # type: ignore[arg-type]  # the mistake under test


def test_the_sync_api_refuses_an_async_driver() -> None:
    driver = MemoryDriver(MemoryStore(), Awaiting())
    drive(driver.ensure("q"))
    with pytest.raises((MailboxError, RuntimeError)):
        drive(driver.claim("q", 1, lease=None, wait=5, claim_id=new_token()))


def test_a_bell_wakes_those_who_waited_longest_and_each_once() -> None:
    bell, heard = Bell(), []
    wakes = [lambda n=n: heard.append(n) for n in range(4)]
    for wake in wakes:
        bell.listen(wake)
    bell.ring(2)
    assert heard == [0, 1]
    assert not bell.leave(wakes[0])  # was rung for it
    assert bell.leave(wakes[2])  # was not
    bell.ring()
    bell.ring()
    assert heard == [0, 1, 3]
    bell.ring_for_good()
    bell.listen(wakes[2])
    assert heard == [0, 1, 3, 2]


def test_ids_and_tokens_never_repeat_and_not_after_a_fork_either() -> None:
    made = {make() for make in (new_id, new_token) for _ in range(10_000)}
    assert len(made) == 20_000
    script = (
        "import os; from postroom.flows.ids import new_id, new_token; new_id(); new_token(); r, w = os.pipe()\n"
        "if os.fork() == 0: os.write(w, f'{new_id()} {new_token()}'.encode()); os._exit(0)\n"
        "child = os.read(r, 200).decode().split(); mine = [new_id(), new_token()]\n"
        "assert child[0] != mine[0] and child[1] != mine[1], (child, mine)"
    )
    if not hasattr(os, "fork"):
        pytest.skip("platform: there is no fork here")
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


def test_importing_postroom_brings_no_store_no_loop_and_no_edge() -> None:
    script = (
        "import sys, postroom\n"
        "heavy = {'asyncio', 'sqlite3', 'pydantic', 'click', 'rich', 'concurrent.futures'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
