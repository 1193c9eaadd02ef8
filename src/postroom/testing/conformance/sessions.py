"""Sessions: one holder at a time, messages in order, and what blocks them."""

from __future__ import annotations

import pytest

from postroom.core.capabilities import YES
from postroom.core.definition import QueueDefinition
from postroom.core.message import Envelope
from postroom.errors import (
    InvalidParameterError,
    ReceiptHandleExpiredError,
    Reject,
    Retry,
)
from postroom.flows.ids import new_token
from postroom.testing.conformance.world import Box, Client, Suite, World, bodies


class Sessions(Suite):
    async def test_a_session_has_one_holder(self, box: Box, world: World) -> None:
        world.needs("sessions")
        for number in range(3):
            await box.send(number, session_id="s")
        assert await bodies(box.receive()) == [0]
        assert await box.receive(max_messages=10) == []

    async def test_a_batch_takes_a_session_in_order(self, box: Box, world: World) -> None:
        world.needs("sessions")
        for number in range(6):
            await box.send((number), session_id="ab"[number % 2])
        taken = await box.receive(max_messages=10)
        assert len(taken) == 6
        assert [message.body for message in taken if message.session_id == "a"] == [0, 2, 4]
        assert [message.body for message in taken if message.session_id == "b"] == [1, 3, 5]

    async def test_the_next_message_comes_when_the_head_is_acknowledged(self, box: Box, world: World) -> None:
        world.needs("sessions")
        for number in range(4):
            await box.send(number, session_id="s")
        assert await drain_one_by_one(box) == [0, 1, 2, 3]

    async def test_priority_is_ignored_within_a_session(self, box: Box, world: World) -> None:
        world.needs("sessions", "priority")
        await box.send("first", session_id="s", priority=200)
        await box.send("second", session_id="s", priority=0)
        assert await bodies(box.receive(max_messages=2)) == ["first", "second"]

    async def test_a_session_queues_by_its_head(self, box: Box, world: World) -> None:
        world.needs("sessions", "priority")
        await box.send("s1", session_id="s", priority=20)
        await box.send("s2", session_id="s", priority=0)
        await box.send("t1", session_id="t", priority=15)
        await box.send("plain")
        assert await bodies(box.receive(max_messages=4)) == ["plain", "t1", "s1", "s2"]

    async def test_messages_without_a_session_are_never_held_up(self, box: Box, world: World) -> None:
        world.needs("sessions")
        await box.send("s1", session_id="s")
        await box.send("s2", session_id="s")
        await box.send("plain")
        assert await bodies(box.receive()) == ["s1"]
        assert await bodies(box.receive(max_messages=5)) == ["plain"]

    async def test_one_session_does_not_hold_up_another(self, box: Box, world: World) -> None:
        world.needs("sessions")
        for session in "abc":
            await box.send(session + "1", session_id=session)
            await box.send(session + "2", session_id=session)
        assert [(await box.receive())[0].body for _ in range(3)] == ["a1", "b1", "c1"]
        assert await box.receive() == []

    async def test_a_named_session_gives_only_its_own(self, box: Box, world: World) -> None:
        world.needs("sessions")
        await box.send("plain")
        await box.send("a", session_id="a")
        await box.send("b", session_id="b")
        assert await bodies(box.receive(max_messages=5, session_id="b")) == ["b"]
        assert await box.receive(max_messages=5, session_id="b") == []
        assert await box.receive(max_messages=5, session_id="nobody") == []

    async def test_a_receive_that_waits_for_one_session_wakes_for_it_alone(self, box: Box, world: World) -> None:
        world.needs("sessions")
        waiting = world.spawn(box.receive, wait_time_seconds=20, session_id="b")
        await world.pause()
        await box.send("a", session_id="a")
        await world.pause()
        assert not waiting.done()
        await box.send("b", session_id="b")
        assert [message.body for message in await waiting] == ["b"]

    async def test_a_waiter_for_anything_is_not_starved_by_one_for_a_session(self, box: Box, world: World) -> None:
        world.needs("sessions")
        special = world.spawn(box.receive, wait_time_seconds=20, session_id="b")
        await world.pause()
        anything = world.spawn(box.receive, wait_time_seconds=20)
        await world.pause()
        await box.send("plain")
        assert [message.body for message in await anything] == ["plain"]
        await box.send("b", session_id="b")
        assert [message.body for message in await special] == ["b"]

    # --- what blocks -------------------------------------------------------------------------------------------

    async def test_one_not_yet_due_and_never_delivered_does_not_block(
        self, box: Box, world: World, second: float
    ) -> None:
        world.needs("sessions", "schedule")
        await box.send("delayed", session_id="s", delay_seconds=5 * second)
        await box.send("due", session_id="s")
        assert await bodies(box.receive(max_messages=5)) == ["due"]

    async def test_one_that_comes_due_takes_its_place(self, box: Box, world: World, second: float) -> None:
        world.needs("sessions", "schedule")
        await box.send("delayed", session_id="s", delay_seconds=2 * second)
        await box.send("one", session_id="s")
        await box.send("two", session_id="s")
        [message] = await box.receive()
        await world.advance(3 * second)
        await message.acknowledge()
        assert await bodies(box.receive(max_messages=5)) == ["delayed", "two"]

    async def test_one_delivered_and_nacked_with_a_delay_blocks_its_session(
        self, box: Box, world: World, second: float
    ) -> None:
        world.needs("sessions", "delayed_nack")
        for body in ("head", "next"):
            await box.send(body, session_id="s")
        [head] = await box.receive()
        await head.nack(visibility_timeout=3 * second)
        assert await box.receive(max_messages=5) == []
        await world.advance(4 * second)
        assert await bodies(box.receive(max_messages=5)) == ["head", "next"]

    async def test_a_delivered_one_returned_with_a_delay_blocks_as_well(
        self, box: Box, world: World, second: float
    ) -> None:
        world.needs("sessions")
        world.needs("uncounted_return", level=YES)
        for body in ("head", "next"):
            await box.send(body, session_id="s")
        [head] = await box.receive()
        async with head:
            raise Retry(delay=3 * second)
        assert await box.receive(max_messages=5) == []
        await world.advance(4 * second)
        assert await bodies(box.receive(max_messages=5)) == ["head", "next"]

    async def test_a_lapsed_head_is_counted_and_what_was_taken_behind_it_is_not(
        self, box: Box, world: World, second: float
    ) -> None:
        """Else a message that kills its process would use up the deliveries of those behind it."""
        world.needs("sessions")
        world.needs("uncounted_return", level=YES)
        for number in range(3):
            await box.send(number, session_id="s")
        await box.receive(max_messages=2, visibility_timeout=second)
        await world.advance(2 * second)
        again = await box.receive(max_messages=5)
        assert [(message.body, message.delivery_count) for message in again] == [(0, 2), (1, 1), (2, 1)]

    @pytest.mark.parametrize("failure", ["nack", "retry", "reject"])
    async def test_a_failing_message_returns_the_later_ones_of_its_claim_uncounted(
        self, box: Box, world: World, failure: str
    ) -> None:
        world.needs("sessions")
        world.needs("uncounted_return", level=YES)
        for number in range(4):
            await box.send(number, session_id="s")
        first, second, third, fourth = await box.receive(max_messages=4)
        await first.acknowledge()
        if failure == "nack":
            await second.nack()
        else:
            async with second:
                raise Retry if failure == "retry" else Reject("why")
        with pytest.raises(ReceiptHandleExpiredError):
            await third.acknowledge()
        with pytest.raises(ReceiptHandleExpiredError):
            await fourth.acknowledge()
        again = [(message.body, message.delivery_count) for message in await box.receive(max_messages=4)]
        assert (
            again
            == {
                "nack": [(1, 2), (2, 1), (3, 1)],
                "retry": [(1, 1), (2, 1), (3, 1)],
                "reject": [(2, 1), (3, 1)],
            }[failure]
        )

    async def test_a_failing_message_leaves_earlier_ones_and_other_sessions_alone(self, box: Box, world: World) -> None:
        world.needs("sessions")
        for number in range(3):
            await box.send(number, session_id="s")
        await box.send("t", session_id="t")
        await box.send("plain")
        taken = {message.body: message for message in await box.receive(max_messages=10)}
        await taken[1].nack()
        for body in (0, "t", "plain"):
            await taken[body].acknowledge()
        assert await bodies(box.receive(max_messages=10)) == [1, 2]

    async def test_a_dead_message_lets_its_session_go_on(self, client: Client, world: World) -> None:
        world.needs("sessions")
        await client.create_queue(QueueDefinition(name="q", max_delivery_count=1))
        box = client.mailbox("q")
        for number in range(2):
            await box.send(number, session_id="s")
        [head] = await box.receive()
        await head.nack()
        assert await bodies(box.receive(max_messages=5)) == [1]

    async def test_with_on_dead_block_a_dead_message_holds_its_session_until_it_is_redriven(
        self, client: Client, world: World
    ) -> None:
        world.needs("sessions")
        await client.create_queue(QueueDefinition(name="q", on_dead="block"))
        box = client.mailbox("q")
        for number in range(3):
            await box.send(number, session_id="s")
        await box.send("t", session_id="t")
        [head] = await box.receive(session_id="s")
        await head.dead_letter("why")
        assert await bodies(box.receive(max_messages=5)) == ["t"]
        await box.dead_letters.redrive()
        assert await bodies(box.receive(max_messages=5)) == [0, 1, 2]

    @pytest.mark.parametrize("removal", ["acknowledge", "purge"])
    async def test_with_on_dead_block_removing_the_dead_letter_frees_its_session(
        self, client: Client, world: World, removal: str
    ) -> None:
        world.needs("sessions")
        await client.create_queue(QueueDefinition(name="q", on_dead="block"))
        box = client.mailbox("q")
        for number in range(2):
            await box.send(number, session_id="s")
        [head] = await box.receive()
        await head.dead_letter("why")
        waiting = world.spawn(box.receive, max_messages=5, wait_time_seconds=20)
        await world.pause()
        assert not waiting.done()
        if removal == "purge":
            await box.dead_letters.purge()
        else:
            [dead] = await box.dead_letters.receive()
            await dead.acknowledge()
        assert [message.body for message in await waiting] == [1]

    @pytest.mark.parametrize("removal", ["acknowledge", "purge", "delete", "overflow", "redrive"])
    async def test_with_on_dead_block_a_dead_letter_in_a_queue_of_ones_choice_holds_its_session_until_it_goes(
        self, client: Client, world: World, removal: str
    ) -> None:
        world.needs("sessions", "capacity")
        morgue = QueueDefinition(name="morgue", max_messages=1, overflow="drop_oldest")
        await client.create_queue(morgue)
        await client.create_queue(QueueDefinition(name="q", on_dead="block", dead_letter_queue="morgue"))
        box = client.mailbox("q")
        for number in range(2):
            await box.send(number, session_id="s")
        [head] = await box.receive()
        await head.dead_letter("why")
        assert await box.receive() == []
        if removal == "acknowledge":
            [dead] = await client.mailbox("morgue").receive()
            await dead.acknowledge()
        elif removal == "purge":
            await client.purge("morgue")
        elif removal == "delete":
            await client.delete_queue("morgue", force=True)
        elif removal == "overflow":
            await client.mailbox("morgue").send("another")
        else:
            await box.dead_letters.redrive()
        assert await bodies(box.receive(max_messages=5)) == ([0, 1] if removal == "redrive" else [1])

    async def test_with_on_dead_block_one_that_dies_again_among_the_dead_still_holds_its_session(
        self, client: Client, world: World
    ) -> None:
        world.needs("sessions")
        await client.create_queue(QueueDefinition(name="q", on_dead="block", dead_letter_queue="morgue"))
        box, morgue = client.mailbox("q"), client.mailbox("morgue")
        for number in range(2):
            await box.send(number, session_id="s")
        for mailbox in (box, morgue):
            [message] = await mailbox.receive()
            await message.dead_letter("why")
        assert await box.receive() == []
        assert await morgue.dead_letters.purge() == 1
        assert await bodies(box.receive(max_messages=5)) == [1]

    async def test_with_on_dead_block_a_purge_lets_no_session_go_on(self, client: Client, world: World) -> None:
        """The dead letter that holds it up is still there."""
        world.needs("sessions", "purge")
        await client.create_queue(QueueDefinition(name="q", on_dead="block"))
        box = client.mailbox("q")
        await box.send(1, session_id="s")
        [message] = await box.receive()
        await message.dead_letter("why")
        await box.purge()
        await box.send(2, session_id="s")
        assert await box.receive() == []
        await box.dead_letters.redrive()
        assert await bodies(box.receive(max_messages=5)) == [1, 2]

    # --- modes, and many ---------------------------------------------------------------------------------------

    async def test_required_sessions_refuse_a_message_without_one(self, client: Client, world: World) -> None:
        world.needs("sessions")
        await client.create_queue(QueueDefinition(name="q", sessions="required"))
        box = client.mailbox("q")
        with pytest.raises(InvalidParameterError, match="session_id"):
            await box.send(1)
        await box.send(2, session_id="s")
        assert await bodies(box.receive(max_messages=5)) == [2]

    async def test_with_sessions_off_a_session_id_is_refused(self, client: Client, world: World) -> None:
        world.needs("sessions")
        await client.create_queue(QueueDefinition(name="q", sessions="off"))
        box = client.mailbox("q")
        with pytest.raises(InvalidParameterError, match="session"):
            await box.send(1, session_id="s")
        await box.send(2)
        assert await bodies(box.receive(max_messages=5)) == [2]

    async def test_a_session_never_overtakes_itself_among_many_workers(self, box: Box, world: World) -> None:
        world.needs("sessions")
        for number in range(60):
            await box.send(number, session_id="abcdef"[number % 6])
        seen: dict[str, list[int]] = {name: [] for name in "abcdef"}

        async def work() -> None:
            while messages := await box.receive(max_messages=3, wait_time_seconds=0):
                for message in messages:
                    assert message.session_id is not None
                    seen[message.session_id].append(message.body)
                    await message.acknowledge()

        for _ in range(50):
            await world.gather(*[work] * 4)
            if not await box.approximate_count():
                break
        assert seen == {name: list(range(at, 60, 6)) for at, name in enumerate("abcdef")}

    async def test_thousands_of_sessions_each_keep_their_order(self, box: Box, world: World) -> None:
        world.needs("sessions")
        driver = world.driver(world.open())
        sessions = world.store.many // 5
        await box.approximate_count()
        for start in range(0, 2 * sessions, 1_000):
            numbers = range(start, min(start + 1_000, 2 * sessions))
            await driver.put("box", [Envelope(f"m-{n}", b"0", session_id=f"s-{n % sessions}", size=1) for n in numbers])
        taken = (await driver.claim("box", 500, lease=30, wait=0, claim_id=new_token())).deliveries
        assert [delivery.envelope.id for delivery in taken] == [f"m-{i}" for k in range(250) for i in (k, k + sessions)]


async def drain_one_by_one(box: Box) -> list[object]:
    seen = []
    while messages := await box.receive():
        [message] = messages
        assert await box.receive() == []
        seen.append(message.body)
        await message.acknowledge()
    return seen
