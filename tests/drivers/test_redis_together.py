"""Claims that share a script: nobody is told what another took, and whoever cannot be served that way asks alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import postroom.aio
from postroom.drivers.redis_scripts import Keys
from postroom.drivers.redis_together import Together
from postroom.errors import MailboxConnectionError
from tests.servers.valkey import Server

CALLERS = 20


def in_loop(test: Callable[[Any], Awaitable[None]]) -> Callable[[Server], None]:
    """Run it with a mailbox of a client of its own."""

    def run(valkey: Server) -> None:
        async def main() -> None:
            async with postroom.aio.connect(valkey.url) as client:
                await test(client.mailbox("orders", int))

        asyncio.run(main())

    run.__name__, run.__doc__ = getattr(test, "__name__", "test"), test.__doc__
    return run


@in_loop
async def test_callers_at_once_share_a_script_and_get_a_message_each(box: Any) -> None:
    await box.send_many(range(2 * CALLERS))
    run, scripts = box._box.driver.run, []

    async def counted(verb: str, *given: Any, **options: Any) -> Any:
        scripts.append(verb)
        return await run(verb, *given, **options)

    box._box.driver.run = counted
    taken = await asyncio.gather(*[box.receive() for _ in range(CALLERS)])
    assert sorted(scripts) == ["claim", "claims"]
    assert sorted(message.body for [message] in taken) == list(range(CALLERS))
    handles = [message._delivery.handle for [message] in taken]
    assert len({handle.partition(".")[2] for handle in handles}) == CALLERS  # a claim id each
    assert all(result.ok for result in await box.acknowledge_many([message for [message] in taken]))


@in_loop
async def test_each_gets_at_most_what_it_asked_for(box: Any) -> None:
    await box.send_many(range(12))
    taken = await asyncio.gather(*[box.receive(max_messages=n) for n in (1, 2, 3, 4, 5)])
    sizes = [len(messages) for messages in taken]
    assert all(size <= n for size, n in zip(sizes, (1, 2, 3, 4, 5), strict=True))
    assert sorted(message.body for messages in taken for message in messages) == list(range(12))


@in_loop
async def test_whoever_finds_nothing_left_waits_as_ever(box: Any) -> None:
    await box.send_many(range(3))
    calls = [asyncio.create_task(box.receive(wait_time_seconds=10)) for _ in range(6)]
    await asyncio.sleep(0.1)
    await box.send_many(range(3, 6))
    taken = await asyncio.gather(*calls)
    assert sorted(message.body for [message] in taken) == list(range(6))


@in_loop
async def test_messages_with_a_past_are_shared_out_too(box: Any) -> None:
    await box.send_many(range(6))
    for message in await box.receive(max_messages=3):
        await message.nack()
    taken = await asyncio.gather(*[box.receive() for _ in range(6)])
    assert sorted(message.body for [message] in taken) == list(range(6))


@in_loop
async def test_leases_of_different_length_are_kept_apart(box: Any) -> None:
    await box.send_many(range(8))
    leases = [10, 10, 20, 20, 20, 40, 10, 20]
    taken = await asyncio.gather(*[box.receive(visibility_timeout=lease) for lease in leases])
    for [message], lease in zip(taken, leases, strict=True):
        assert message._delivery.lease_until - message._delivery.received_at == pytest.approx(lease)


@in_loop
async def test_a_cancelled_caller_takes_nothing_with_it(box: Any) -> None:
    await box.send_many(range(CALLERS))
    calls = [asyncio.create_task(box.receive()) for _ in range(CALLERS)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    taken = [found for found in await asyncio.gather(*calls, return_exceptions=True) if isinstance(found, list)]
    rest = await box.receive(max_messages=CALLERS)
    assert sorted(m.body for messages in [*taken, rest] for m in messages) == list(range(CALLERS))


class Pretender:
    """Answers claims; the shared ones as it is told."""

    def __init__(self, *shared: Any) -> None:
        self.shared = list(shared)
        self.alone: list[list[bytes]] = []

    async def run(self, verb: str, keys: Keys, *given: bytes, **options: Any) -> list[Any]:
        await asyncio.sleep(0.01)
        if verb == "claim":
            self.alone.append(list(given))
            return [b"", b"", b"", b"alone"]
        answer = self.shared.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]  # made for the test


def at_once(*calls: Any) -> list[Any]:
    async def gathered() -> list[Any]:
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(gathered())


def given(claim_id: bytes) -> list[bytes]:
    return [b"1", b"", claim_id, b"", b"", b"", b"", b"0", b""]


def test_after_a_lost_answer_each_asks_what_it_holds() -> None:
    """The script may have been carried out: a claim that did not say so would take a second message."""
    server = Pretender([b"", b"again"])
    together = Together(server.run, Keys("", "q"))
    at_once(*[together.claim(given(id), 0, None) for id in (b"a", b"b", b"c")])
    assert {one[2]: one[3] for one in server.alone} == {b"a": b"", b"b": b"1", b"c": b"1"}


def test_when_the_shared_call_fails_each_asks_alone_and_says_that_it_asked_before() -> None:
    pretender = Pretender(MailboxConnectionError("away", transient=True))
    together = Together(pretender.run, Keys("", "q"))
    answers = at_once(*[together.claim(given(id), 0, None) for id in (b"a", b"b", b"c")])
    assert [answer[3] for answer in answers] == [b"alone"] * 3
    assert {one[2]: one[3] for one in pretender.alone} == {b"a": b"", b"b": b"1", b"c": b"1"}
