"""Cancelling at every await, over Redis; and Ctrl-C anywhere, in a long poll and everywhere else.

The storm of signals is left out: one in a thousand that strikes while a connection is made ends the process in
hiredis.pack_command (SIGSEGV, hiredis-py), with or without us.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.rig import Place, note_received
from tests.faults.test_cancellation import (  # noqa: F401  # collected here too, over the fixtures below
    When,
    World,
    cancelled,
    either_time,
    run,
    test_a_cancelled_receive_gives_back_what_it_took_at_once,
    test_a_cancelled_send_is_stored_whole_or_not_at_all,
    test_a_cancelled_settle_can_be_tried_again,
    test_a_long_poll_cancelled_as_its_message_comes_passes_it_on,
    test_a_receive_cancelled_while_it_puts_an_undecodable_one_away_gives_back_the_good_ones,
)
from tests.faults.test_interrupts import (  # noqa: F401
    test_an_interrupt_anywhere_in_a_verb_loses_nothing,
    test_ctrl_c_ends_a_long_poll_at_once_and_the_client_is_usable_afterwards,
)
from tests.servers.valkey import Server

pytestmark = pytest.mark.faults


@pytest.fixture
def store(valkey: Server) -> str:
    return valkey.url


@pytest.fixture
def place(tmp_path: Path, valkey: Server) -> Iterator[Place]:
    with Place(tmp_path, url=valkey.url) as place:
        yield place


@pytest.fixture
def timed(tmp_path: Path, new_valkey: Callable[..., Server]) -> Iterator[Place]:
    server = new_valkey(hz=500)  # how exactly a wait ends is a matter of its ticks, and here hundreds are waited for
    with Place(tmp_path, clock=True, url=server.url) as place:
        yield place


@either_time
def test_a_cancelled_accept_of_a_session_leaves_no_lock_behind_for_long(tmp_path: Path, store: str, when: When) -> None:
    """Nobody has the token: so what was locked is freed at once, or its lock ends by itself."""

    async def test(world: World) -> None:
        for at in itertools.count(1):
            world.log.note("sending", key=f"m{at}")
            await world.box.send(f"m{at}", id=f"m{at}", session_id=f"s{at}")
            world.log.note("sent", key=f"m{at}")
            accept = world.box.accept_session(f"s{at}", lock_duration=0.5, wait_time_seconds=1)
            struck, session = await cancelled(accept, at, when)
            if struck:
                world.hit()
            else:
                await session.close()
            again = await world.box.accept_session(f"s{at}", lock_duration=5, wait_time_seconds=2)
            await again.close()
            await world.drain()
            if not struck:
                return

    run(tmp_path, store, test)


@either_time
def test_cancelling_some_of_many_tasks_disturbs_no_other(tmp_path: Path, store: str, when: When) -> None:
    """Tasks that call at the same moment share a write and a read: each must get its own answer all the same."""

    async def test(world: World) -> None:
        for at in range(1, 12):
            keys = [f"m{at}-{n}" for n in range(6)]
            for key in keys:
                world.log.note("sending", key=key)
            tasks = [
                asyncio.create_task(cancelled(world.box.send(key, id=key), at if n % 2 else 10**6, when))
                for n, key in enumerate(keys)
            ]
            for key, (struck, sent) in zip(keys, await asyncio.gather(*tasks), strict=True):
                if struck:
                    world.hit()
                else:
                    assert sent == key
                    world.log.note("sent", key=key)
            await world.drain()

    run(tmp_path, store, test)


@either_time
def test_cancelling_some_of_many_receives_gives_back_what_they_took_and_only_that(
    tmp_path: Path, store: str, when: When
) -> None:
    """Tasks that receive at the same moment share a script: the messages of those who are gone go back, uncounted."""

    async def test(world: World) -> None:
        for at in range(1, 12):
            for n in range(8):
                await world.send(f"m{at}-{n}")
            tasks = [
                asyncio.create_task(cancelled(world.box.receive(), at if n % 2 else 10**6, when)) for n in range(8)
            ]
            kept = []
            for struck, messages in await asyncio.gather(*tasks):
                if struck:
                    world.hit()
                else:
                    kept += messages
            assert len({message.id for message in kept}) == len(kept)
            info = await world.box.info()
            assert (info.ready, info.in_flight) == (8 - len(kept), len(kept))
            for message in sorted(kept, key=lambda m: m.lease.token):
                note_received(world.log, message)
                world.log.note("acking", key=message.body, token=message.lease.token)
                await message.acknowledge()
                world.log.note("acked", key=message.body, token=message.lease.token)
            for message in await world.receive(8):
                assert message.delivery_count == 1
                world.log.note("acking", key=message.body, token=message.lease.token)
                await message.acknowledge()
                world.log.note("acked", key=message.body, token=message.lease.token)

    run(tmp_path, store, test)


@either_time
@pytest.mark.parametrize("others", [1, 5])
def test_cancelling_those_who_wait_loses_no_wake_up(tmp_path: Path, store: str, when: When, others: int) -> None:
    """The one that listens for all of them is cancelled, at any of its steps: the others hear the next message."""

    async def test(world: World) -> None:
        for at in range(1, 40):
            first = asyncio.create_task(cancelled(world.box.receive(wait_time_seconds=20), at, when))
            polls = [asyncio.create_task(world.box.receive(wait_time_seconds=20)) for _ in range(others)]
            for _ in range(3):
                await world.box.approximate_count()  # turns of the loop and of the store, so that they wait
            await world.send(f"m{at}")
            async with asyncio.timeout(3):  # sooner than anybody looks by itself
                await asyncio.wait([first, *polls], return_when=asyncio.FIRST_COMPLETED)
                struck = first.done() and first.result()[0]
                if struck:
                    world.hit()
                    await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
                else:
                    first.cancel()
                    for poll in polls:
                        poll.cancel()
            got = [] if struck or not first.done() else list(first.result()[1])
            for poll in polls:
                if poll.done() and not poll.cancelled():
                    got += poll.result()
                poll.cancel()
            await asyncio.wait([first, *polls])
            for task in (first, *polls):
                task.cancelled() or task.exception()
            assert all(message.delivery_count == 1 for message in got)
            if got:
                note_received(world.log, got[0])
                world.log.note("acking", key=got[0].body, token=got[0].lease.token)
                await got[0].acknowledge()
                world.log.note("acked", key=got[0].body, token=got[0].lease.token)
            await world.drain()
            if not struck and at > 20:
                return

    run(tmp_path, store, test)
