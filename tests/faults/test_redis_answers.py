"""Answers that get lost on the way back: the server did it, nobody heard, the same call asks again. It happens once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.drivers.io import drive
from tests.faults.redis_rig import ROOT, Caller, Flavour, Later, is_sound, sha, wait_for
from tests.servers.proxy import Proxy
from tests.servers.valkey import Server

pytestmark = pytest.mark.faults
Loss = Callable[[str], None]


@pytest.fixture(params=["sync", "async"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    flavour: Flavour = request.param
    return flavour


@pytest.fixture
def proxy(valkey: Server, new_proxy: Callable[[Server], Proxy]) -> Proxy:
    return new_proxy(valkey)


@pytest.fixture
def caller(proxy: Proxy, flavour: Flavour) -> Iterator[Caller]:
    with Caller(proxy.url, flavour, timeout=3.0) as caller:
        yield caller


@pytest.fixture(params=["cut", "silence"])
def lossy(request: pytest.FixtureRequest, proxy: Proxy, valkey: Server) -> Iterator[Callable[..., Any]]:
    """`lossy(caller, "put", act)`: run it, and its first answer is lost, with the connection or without a word."""
    struck = 0

    def run(caller: Caller, verb: str, act: Callable[[], Any]) -> Any:
        nonlocal struck
        if request.param == "cut":
            proxy.cut_before_answer(sha(verb))
            before = proxy.counts.cut
            result = caller.run(act)
            assert proxy.counts.cut == before + 1, "the answer was not lost"
        else:
            before = proxy.counts.lost_answers
            proxy.lose_answers()
            later = Later(lambda: caller.run(act))
            wait_for(lambda: proxy.counts.lost_answers > before, "an answer is lost")
            proxy.heal()
            result = later.result()
        struck += 1
        return result

    yield run
    assert struck, "no answer was lost, so this run proves nothing"
    is_sound(valkey.url)


def warm(caller: Caller) -> Any:
    """A mailbox whose scripts the server knows: the next request of each verb is one command."""
    box = caller.client.mailbox("box")
    caller.run(box.send, "warm", session_id="warm")
    for _ in range(2):
        [message] = caller.receive(box)
        caller.run(message.nack)
    [message] = caller.receive(box)
    caller.run(message.acknowledge)
    return box


def test_a_send_whose_answer_was_lost_is_stored_once(caller: Caller, lossy: Callable[..., Any]) -> None:
    box = warm(caller)
    for n, options in enumerate([{}, {"session_id": "s"}, {"delay_seconds": 100}, {"dedup_id": "d"}, {"ttl": 100}]):
        lossy(caller, "put", lambda n=n, options=options: box.send(n, **options))
        assert caller.run(box.approximate_count) == n + 1


def test_a_batch_whose_answer_was_lost_is_stored_once_and_in_order(caller: Caller, lossy: Callable[..., Any]) -> None:
    box = warm(caller)
    results = lossy(caller, "put", lambda: box.send_many(range(100)))
    assert all(result.ok for result in results)
    assert [message.body for message in caller.receive(box, 1000)] == list(range(100))


def test_a_bounded_mailbox_says_yes_to_a_send_that_filled_it_when_asked_again(
    caller: Caller, lossy: Callable[..., Any]
) -> None:
    """Asked anew it would find itself full, of just this message."""
    warm(caller)
    caller.run(caller.client.create_queue, postroom.QueueDefinition(name="box", max_messages=1))
    box = caller.client.mailbox("box")
    lossy(caller, "put", lambda: box.send(1))
    assert caller.run(box.approximate_count) == 1


def test_a_receive_whose_answer_was_lost_returns_the_same_messages_counted_once(
    caller: Caller, lossy: Callable[..., Any]
) -> None:
    box = warm(caller)
    caller.run(box.send_many, range(20))
    for session in (None, "s"):
        if session:
            caller.run(box.send_many, range(20), session_id=session)
        messages = list(lossy(caller, "claim", lambda: box.receive(max_messages=5)))
        assert [message.body for message in messages] == list(range(5))
        assert {message.delivery_count for message in messages} == {1}
        assert caller.run(box.info).in_flight == 5
        for message in messages:
            caller.run(message.acknowledge)
        caller.run(box.purge)


def test_a_long_poll_whose_answer_was_lost_returns_the_message_counted_once(
    caller: Caller, lossy: Callable[..., Any]
) -> None:
    box = warm(caller)
    caller.run(box.send, "m")
    [message] = lossy(caller, "claim", lambda: box.receive(wait_time_seconds=10))
    assert message.delivery_count == 1
    assert caller.run(box.info).in_flight == 1


@pytest.mark.parametrize("verb", ["acknowledge", "nack", "dead_letter", "extend_visibility"])
@pytest.mark.parametrize("session", [None, "s"])
def test_a_settle_whose_answer_was_lost_succeeds_and_happens_once(
    caller: Caller, lossy: Callable[..., Any], verb: str, session: str | None
) -> None:
    """Asked anew, the store would call the message gone or stale: its own doing."""
    box = warm(caller)
    caller.run(box.send, "m", session_id=session)
    [message] = caller.receive(box)
    arguments = {"dead_letter": ["because"], "extend_visibility": [60]}.get(verb, [])
    lossy(caller, "settle", lambda: getattr(message, verb)(*arguments))
    info = caller.run(box.info)
    there = {"acknowledge": (0, 0, 0), "nack": (1, 0, 0), "dead_letter": (0, 0, 1), "extend_visibility": (0, 1, 0)}
    assert (info.ready, info.in_flight, info.dead) == there[verb]
    if verb == "nack":
        [again] = caller.receive(box)
        assert again.delivery_count == 2


def test_a_redrive_whose_answer_was_lost_moves_each_once(caller: Caller, lossy: Callable[..., Any]) -> None:
    box = warm(caller)
    caller.run(box.send_many, range(10))
    for message in caller.receive(box, 10):
        caller.run(message.dead_letter, "because")
    caller.run(box.dead_letters.redrive, limit=1)
    redriven = lossy(caller, "redrive", box.dead_letters.redrive)
    assert redriven.moved == 9
    info = caller.run(box.info)
    assert (info.ready, info.dead) == (10, 0)


def test_a_session_whose_lock_was_granted_unheard_is_ours(caller: Caller, lossy: Callable[..., Any]) -> None:
    box = warm(caller)
    caller.run(box.send, "m", session_id="s")
    session = caller.run(box.accept_session, "s", lock_duration=30)
    caller.run(session.set_state, b"1")
    lossy(caller, "hold", lambda: session.set_state(b"2"))
    assert caller.run(session.state) == b"2"
    lossy(caller, "hold", session.renew)
    lossy(caller, "hold", session.close)
    session = lossy(caller, "lock", lambda: box.accept_session("s", lock_duration=30))
    [message] = caller.run(session.receive)
    assert message.delivery_count == 1
    caller.run(message.acknowledge)


def test_a_compare_and_set_whose_answer_was_lost_wins_once(caller: Caller, lossy: Callable[..., Any]) -> None:
    box = warm(caller)
    session = caller.run(box.accept_session, "s", lock_duration=30)
    caller.run(session.set_state, b"0")
    for n in range(3):
        assert lossy(caller, "hold", lambda n=n: session.compare_and_set(b"%d" % n, b"%d" % (n + 1)))
    assert caller.run(session.state) == b"3"


def test_dead_letters_on_their_way_to_another_queue_arrive_once(caller: Caller, lossy: Callable[..., Any]) -> None:
    """Copied, stored there, removed here: each answer may be lost."""
    box = warm(caller)
    caller.run(caller.client.create_queue, postroom.QueueDefinition(name="box", dead_letter_queue="morgue"))
    morgue = caller.client.mailbox("morgue")
    caller.run(morgue.approximate_count)
    for warmth in range(2):
        caller.run(box.send, warmth)
        [message] = caller.receive(box)
        if warmth == 0:
            caller.run(message.dead_letter, "because")
        else:
            lossy(caller, "carry", lambda: message.dead_letter("because"))  # noqa: B023
    assert caller.run(morgue.approximate_count) == 2
    assert caller.run(box.approximate_count) == 0


def test_what_was_asked_long_ago_and_arrives_after_a_newer_call_changes_nothing(
    valkey: Server, proxy: Proxy, flavour: Flavour
) -> None:
    """Held up in the network while its caller gave up, went on over another way, and made newer calls."""
    with Caller(proxy.url, flavour, timeout=0.4) as caller:
        box = warm(caller)
        caller.run(box.send, "before")
        proxy.hold()
        with pytest.raises(postroom.MailboxError) as error:
            caller.run(box.send, "late")
        assert error.value.transient
        held = proxy.counts.held
        assert held, "nothing was held up, so this run proves nothing"
        # The same caller goes on: by another way, as the proxy holds this one.
        wire = caller.client._link.driver.wire
        [who] = {one.id for one in wire._callers}
        given = [b"", b"", who, b"%d" % 10**6, b"box"]
        from postroom.core.message import Envelope
        from postroom.drivers.redis_rows import pack
        from postroom.drivers.redis_scripts import Keys, command, script

        with valkey.client(protocol=2) as other:
            connection = other.connection_pool.get_connection()
            envelope = Envelope("newer", b'"newer"', size=7)
            arguments = [*given, b"plain", b"7", pack(envelope)]
            connection.send_packed_command([command(script("put").by_sha, Keys("", "box"), arguments)])
            assert connection.read_response()[0] == b""
            before = valkey.call("HGETALL", f"{ROOT}data")
            commands = int(valkey.info("commandstats")["cmdstat_evalsha"].split("calls=")[1].partition(",")[0])
            proxy.heal()
            wait_for(
                lambda: (
                    int(valkey.info("commandstats")["cmdstat_evalsha"].split("calls=")[1].partition(",")[0]) > commands
                ),
                "the late request arrives",
            )
            assert valkey.call("HGETALL", f"{ROOT}data") == before
            assert len(before) == 2
            other.connection_pool.release(connection)
    is_sound(valkey.url)


@pytest.mark.parametrize("n", [1, 3])
def test_tasks_that_received_together_and_lost_their_answer_get_their_own_messages_counted_once(
    valkey: Server, proxy: Proxy, n: int
) -> None:
    async def main() -> None:
        async with postroom.aio.connect(proxy.url, timeout=3.0) as client:
            box = client.mailbox("box")
            for _ in range(3):  # so that all scripts are known
                await box.send_many(range(20))
                for messages in await asyncio.gather(*[box.receive(max_messages=n) for _ in range(10)]):
                    await box.acknowledge_many(messages)
                await box.purge()
            await box.send_many(range(10 * n))
            before = proxy.counts.cut
            proxy.cut_before_answer(sha("claims"))
            proxy.cut_before_answer(sha("claim"))
            got = await asyncio.gather(*[box.receive(max_messages=n) for _ in range(10)])
            assert proxy.counts.cut > before, "no answer was lost"
            messages = [message for batch in got for message in batch]
            assert sorted(message.body for message in messages) == list(range(len(messages)))
            assert {message.delivery_count for message in messages} == {1}
            info = await box.info()
            assert (info.in_flight, info.ready) == (len(messages), 10 * n - len(messages))
            assert all(result.ok for result in await box.acknowledge_many(messages))

    asyncio.run(main())
    is_sound(valkey.url)


def test_tasks_that_sent_and_settled_together_and_lost_their_answer_did_it_once(valkey: Server, proxy: Proxy) -> None:
    async def main() -> None:
        async with postroom.aio.connect(proxy.url, timeout=3.0) as client:
            box = client.mailbox("box")
            await box.send("warm")
            [message] = await box.receive()
            await message.acknowledge()
            before = proxy.counts.cut
            for round in range(5):
                proxy.cut_before_answer(sha("put"))
                await asyncio.gather(*[box.send(f"{round}-{n}") for n in range(20)])
                messages = await box.receive(max_messages=100)
                assert sorted(message.body for message in messages) == sorted(f"{round}-{n}" for n in range(20))
                proxy.cut_before_answer(sha("settle"))
                await asyncio.gather(*[message.acknowledge() for message in messages])
                assert (await box.info()).total == 0
            assert proxy.counts.cut == before + 10, "not every answer was lost"

    asyncio.run(main())
    is_sound(valkey.url)


@pytest.mark.parametrize("session", [None, "s"])
def test_a_claim_that_arrives_after_its_own_repetition_takes_nothing_more(valkey: Server, session: str | None) -> None:
    """Held up in the network while its caller asked again on another connection, and was answered."""
    with postroom.connect(valkey.url) as client:
        box = client.mailbox("box")
        box.send_many(range(6), session_id=session)
        driver = client._link.driver

        def claim(claim_id: str, *, again: bool) -> list[int]:
            claimed = drive(driver.claim("box", 2, lease=30, wait=0, claim_id=claim_id, again=again))
            return [delivery.seq for delivery in claimed.deliveries]

        first = claim("a" * 32, again=False)
        assert len(first) == 2
        assert claim("a" * 32, again=True) == first
        assert claim("a" * 32, again=False) == []  # the late one
        assert claim("a" * 32, again=True) == first  # the answer was lost once more
        assert box.info().in_flight == 2
        # The other way round: what was never carried out before the repetition was.
        if session is None:
            first = claim("b" * 32, again=True)
            assert claim("b" * 32, again=False) == []
            assert claim("b" * 32, again=True) == first
            assert box.info().in_flight == 4
