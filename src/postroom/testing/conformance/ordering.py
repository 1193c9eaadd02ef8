"""Order: by priority, then by the order of sending; and what comes back takes the place it had."""

from __future__ import annotations

import pytest

from postroom.core.capabilities import YES
from postroom.testing.conformance.world import Box, Client, Suite, World, bodies, drain


class Ordering(Suite):
    async def test_first_sent_is_first_received(self, box: Box) -> None:
        for number in range(20):
            await box.send(number)
        assert await drain(box) == list(range(20))

    async def test_a_batch_keeps_its_order(self, box: Box) -> None:
        await box.send_many(range(50))
        assert await bodies(box.receive(max_messages=50)) == list(range(50))

    async def test_sends_of_two_clients_are_in_order_when_one_had_returned(self, client: Client, world: World) -> None:
        here, there = client.mailbox("box"), world.open().mailbox("box")
        for number in range(10):
            await (here if number % 2 else there).send(number)
        assert await drain(here) == list(range(10))

    async def test_sequence_numbers_rise_and_are_fixed(self, box: Box) -> None:
        await box.send_many([1, 2, 3])
        first = [message.sequence_number for message in await box.receive(max_messages=3, visibility_timeout=0)]
        assert first == sorted(set(first))
        again = [message.sequence_number for message in await box.receive(max_messages=3)]
        assert again == first

    async def test_a_lower_priority_number_comes_first(self, box: Box, world: World) -> None:
        world.needs("priority")
        for priority in (10, 255, 0, 7):
            await box.send(priority, priority=priority)
        await box.send("default")
        assert await drain(box) == [0, 7, 10, "default", 255]

    async def test_within_a_priority_the_first_sent_comes_first(self, box: Box, world: World) -> None:
        world.needs("priority")
        for number in range(12):
            await box.send(number, priority=number % 3)
        assert await bodies(box.receive(max_messages=12)) == [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]

    async def test_a_nacked_message_takes_its_original_place(self, box: Box) -> None:
        await box.send_many([1, 2, 3])
        [first] = await box.receive()
        await first.nack()
        assert await bodies(box.receive(max_messages=3)) == [1, 2, 3]

    async def test_a_lapsed_message_takes_its_original_place(self, box: Box, world: World, second: float) -> None:
        await box.send_many([1, 2, 3])
        await box.receive(visibility_timeout=second)
        await world.advance(2 * second)
        assert await bodies(box.receive(max_messages=3)) == [1, 2, 3]

    async def test_a_delayed_message_takes_the_place_of_its_send_once_due(
        self, box: Box, world: World, second: float
    ) -> None:
        world.needs("schedule")
        await box.send("delayed", delay_seconds=2 * second)
        await box.send("later")
        await world.advance(3 * second)
        assert await bodies(box.receive(max_messages=2)) == ["delayed", "later"]

    async def test_order_is_exact_among_very_many_that_come_due_at_once(self, box: Box, world: World) -> None:
        world.needs("schedule", "priority")
        world.needs_time()
        for priority in (5, 3, 4):
            await box.send_many(range(50), delay_seconds=5, priority=priority)
        await world.advance(6)
        taken = await box.receive(max_messages=150)
        assert [message.priority for message in taken] == [3] * 50 + [4] * 50 + [5] * 50

    @pytest.mark.parametrize("verb", ["nack", "return"])
    async def test_a_place_is_kept_against_those_of_worse_priority(self, box: Box, world: World, verb: str) -> None:
        world.needs("priority")
        world.needs("uncounted_return", level=YES)
        await box.send("good", priority=1)
        await box.send("bad", priority=2)
        [message] = await box.receive()
        if verb == "nack":
            await message.nack()
        else:
            with pytest.raises(KeyboardInterrupt):
                async with message:
                    raise KeyboardInterrupt
        assert await bodies(box.receive(max_messages=2)) == ["good", "bad"]
