"""Deduplication and time to live: what a queue remembers of a send, and for how long."""

from __future__ import annotations

from functools import partial

import pytest

from postroom.core.capabilities import YES
from postroom.core.definition import QueueDefinition
from postroom.errors import InvalidParameterError, MailboxFullError
from postroom.testing.conformance.world import Box, Client, Suite, World, bodies


class Deduplication(Suite):
    async def test_a_duplicate_send_returns_the_first_id_and_stores_nothing(self, box: Box, world: World) -> None:
        world.needs("dedup")
        first = await box.send("one", dedup_id="d")
        assert await box.send("two", dedup_id="d") == first
        assert await bodies(box.receive(max_messages=5)) == ["one"]

    async def test_a_batch_of_duplicates_says_so(self, box: Box, world: World) -> None:
        world.needs("dedup")
        first = await box.send(0, dedup_id="d")
        results = await box.send_many([1], dedup_id="d")
        assert [(result.ok, result.duplicate, result.id) for result in results] == [(True, True, first)]

    async def test_the_memory_survives_acknowledging(self, box: Box, world: World) -> None:
        world.needs("dedup")
        first = await box.send(1, dedup_id="d")
        [message] = await box.receive()
        await message.acknowledge()
        assert await box.send(2, dedup_id="d") == first
        assert await box.approximate_count() == 0

    async def test_it_covers_scheduled_messages(self, box: Box, world: World) -> None:
        world.needs("dedup", "schedule")
        first = await box.send(1, dedup_id="d", delay_seconds=600)
        assert await box.send(2, dedup_id="d") == first
        assert await box.receive() == []

    async def test_purge_clears_it(self, box: Box, world: World) -> None:
        world.needs("dedup", "purge")
        first = await box.send(1, dedup_id="d")
        await box.purge()
        assert await box.send(2, dedup_id="d") != first
        assert await bodies(box.receive(max_messages=5)) == [2]

    async def test_the_window_is_five_minutes_from_the_first_accept(self, box: Box, world: World) -> None:
        world.needs("dedup")
        world.needs_time()
        first = await box.send(1, dedup_id="d")
        await world.advance(200)
        assert await box.send(2, dedup_id="d") == first  # which does not prolong the window
        await world.advance(99)
        assert await box.send(3, dedup_id="d") == first
        await world.advance(2)
        assert await box.send(4, dedup_id="d") != first
        assert await bodies(box.receive(max_messages=5)) == [1, 4]

    async def test_the_window_can_be_chosen(self, client: Client, world: World) -> None:
        world.needs("dedup")
        world.needs_time()
        await client.create_queue(QueueDefinition(name="q", duplicate_detection_window=20, message_ttl=3600))
        box = client.mailbox("q")
        await box.send(1, dedup_id="d")
        await world.advance(19)
        await box.send(2, dedup_id="d")
        await world.advance(2)
        await box.send(3, dedup_id="d")
        assert await bodies(box.receive(max_messages=5)) == [1, 3]

    async def test_each_queue_and_each_namespace_remembers_for_itself(self, world: World) -> None:
        world.needs("dedup")
        for client in (world.open(), world.open(namespace="tenant")):
            for name in ("a", "b"):
                box = client.mailbox(name)
                await box.send(name, dedup_id="d")
                assert await bodies(box.receive(max_messages=5)) == [name]

    async def test_the_same_id_without_a_dedup_id_is_no_duplicate(self, box: Box) -> None:
        await box.send(1, id="m")
        await box.send(2, id="m")
        assert await bodies(box.receive(max_messages=5)) == [1, 2]

    async def test_redrive_bypasses_it(self, box: Box, world: World) -> None:
        world.needs("dedup")
        await box.send(1, dedup_id="d")
        [message] = await box.receive()
        await message.dead_letter("why")
        assert (await box.dead_letters.redrive()).moved == 1
        assert await bodies(box.receive()) == [1]

    async def test_where_detection_is_off_a_dedup_id_is_refused(self, client: Client, world: World) -> None:
        world.needs("dedup")
        await client.create_queue(QueueDefinition(name="q", duplicate_detection=False))
        box = client.mailbox("q")
        with pytest.raises(InvalidParameterError, match="dedup"):
            await box.send(1, dedup_id="d")
        assert await box.approximate_count() == 0

    async def test_many_senders_of_one_dedup_id_store_one_message(self, world: World) -> None:
        world.needs("dedup")
        boxes = [world.open().mailbox("box") for _ in range(4)]
        await boxes[0].approximate_count()

        ids = await world.gather(*[partial(boxes[n % 4].send, n, dedup_id="d") for n in range(16)])
        assert len(set(ids)) == 1
        assert await boxes[0].approximate_count() == 1

    async def test_a_refused_send_is_not_remembered(self, client: Client, world: World) -> None:
        world.needs("dedup", "capacity")
        await client.create_queue(QueueDefinition(name="q", max_messages=1))
        box = client.mailbox("q")
        await box.send(1)
        with pytest.raises(MailboxFullError):
            await box.send(2, dedup_id="d")
        [message] = await box.receive()
        await message.acknowledge()
        await box.send(3, dedup_id="d")
        assert await bodies(box.receive()) == [3]


class TimeToLive(Suite):
    async def test_a_message_past_its_time_is_not_delivered(self, box: Box, world: World, second: float) -> None:
        world.needs("ttl")
        await box.send("short", ttl=2 * second)
        await box.send("long", ttl=3600)
        await world.advance(3 * second)
        assert await bodies(box.receive(max_messages=5)) == ["long"]
        info = await box.info()
        assert (info.expired, info.dead) == (1, 0)

    async def test_within_its_time_it_is(self, box: Box, world: World, second: float) -> None:
        world.needs("ttl")
        await box.send(1, ttl=4 * second)
        await world.advance(2 * second)
        assert await bodies(box.receive()) == [1]

    async def test_time_counts_from_the_first_due_time(self, box: Box, world: World, second: float) -> None:
        world.needs("ttl", "schedule")
        await box.send(1, ttl=3 * second, delay_seconds=5 * second)
        await world.advance(6.5 * second)
        assert await bodies(box.receive(visibility_timeout=0)) == [1]
        await world.advance(2 * second)
        assert await box.receive() == []

    async def test_a_nack_never_restarts_it(self, box: Box, world: World, second: float) -> None:
        world.needs("ttl")
        await box.send(1, ttl=4 * second)
        for _ in range(2):
            await world.advance(1.5 * second)
            [message] = await box.receive()
            await message.nack()
        await world.advance(1.5 * second)
        assert await box.receive() == []
        assert await box.approximate_count() == 0

    async def test_in_flight_it_is_protected_and_acknowledge_wins(self, box: Box, world: World, second: float) -> None:
        world.needs("ttl")
        await box.send(1, ttl=2 * second)
        [message] = await box.receive(visibility_timeout=60)
        await world.advance(5 * second)
        assert (await box.info()).in_flight == 1
        await message.acknowledge()
        info = await box.info()
        assert (info.expired, info.total) == (0, 0)

    async def test_acknowledge_wins_even_late(self, box: Box, world: World, second: float) -> None:
        world.needs("ttl")
        world.needs("late_acknowledge", level=YES)
        await box.send(1, ttl=2 * second)
        [message] = await box.receive(visibility_timeout=second)
        await world.advance(5 * second)
        await message.acknowledge()
        assert (await box.info()).expired == 0

    @pytest.mark.parametrize("end", ["nack", "lapse"])
    async def test_after_its_time_a_nack_or_a_lapse_is_its_end(
        self, box: Box, world: World, second: float, end: str
    ) -> None:
        world.needs("ttl")
        await box.send(1, ttl=2 * second)
        [message] = await box.receive(visibility_timeout=4 * second)
        if end == "nack":
            await world.advance(3 * second)
            await message.nack()
        else:
            await world.advance(5 * second)
        assert await box.receive() == []
        info = await box.info()
        assert (info.expired, info.total) == (1, 0)

    async def test_it_is_dead_with_reason_expired_where_the_definition_says_so(
        self, client: Client, world: World, second: float
    ) -> None:
        world.needs("ttl")
        await client.create_queue(QueueDefinition(name="q", message_ttl=2 * second, dead_letter_on_expiry=True))
        box = client.mailbox("q")
        await box.send("waiting")
        await box.send("nacked")
        taken = {message.body: message for message in await box.receive(max_messages=2)}
        await taken["waiting"].nack()
        await world.advance(3 * second)
        await taken["nacked"].nack()
        assert await box.receive(max_messages=2) == []
        dead = await box.dead_letters.peek()
        assert [(seen.body, seen.death.reason) for seen in dead] == [
            ("waiting", "expired"),
            ("nacked", "expired"),
        ]

    async def test_the_queues_ttl_holds_for_messages_without_one(
        self, client: Client, world: World, second: float
    ) -> None:
        world.needs("ttl")
        await client.create_queue(QueueDefinition(name="q", message_ttl=3 * second))
        box = client.mailbox("q")
        await box.send("the queue's")
        await box.send("its own", ttl=3600)
        await box.send("delayed", delay_seconds=2 * second)
        await world.advance(4 * second)
        assert await bodies(box.receive(max_messages=5)) == ["its own", "delayed"]

    async def test_expired_messages_do_not_count(self, box: Box, world: World, second: float) -> None:
        world.needs("ttl")
        await box.send_many(range(5), ttl=second)
        await world.advance(2 * second)
        assert await box.approximate_count() == 0

    async def test_an_expired_head_lets_its_session_go_on(self, box: Box, world: World, second: float) -> None:
        world.needs("ttl", "sessions")
        await box.send("short", session_id="s", ttl=second)
        await box.send("long", session_id="s")
        await world.advance(2 * second)
        assert await bodies(box.receive(max_messages=5)) == ["long"]

    async def test_dead_letters_do_not_expire(self, client: Client, world: World, second: float) -> None:
        world.needs("ttl")
        await client.create_queue(QueueDefinition(name="q", message_ttl=2 * second))
        box = client.mailbox("q")
        await box.send(1)
        [message] = await box.receive()
        await message.dead_letter("why")
        await world.advance(5 * second)
        assert (await box.info()).dead == 1
        await box.dead_letters.redrive()
        assert await bodies(box.receive()) == [1]  # with a fresh time to live
