"""Bounded queues: who counts, and what happens to the one too many."""

from __future__ import annotations

import pytest

from postroom.core.definition import QueueDefinition
from postroom.dispatcher import Dispatcher
from postroom.errors import InvalidParameterError, MailboxConnectionError, MailboxFullError, UnsupportedError
from postroom.flows.events import Overflowed
from postroom.testing.conformance.world import Box, Client, Suite, World, bodies


async def bounded(client: Client, world: World, **options: object) -> Box:
    world.needs("capacity")
    await client.create_queue(QueueDefinition(name="q", **options))  # type: ignore[arg-type]  # one call for many options
    return client.mailbox("q")


class Capacity(Suite):
    async def test_a_full_queue_refuses_and_stores_nothing(self, client: Client, world: World) -> None:
        box = await bounded(client, world, max_messages=2)
        await box.send_many([1, 2])
        with pytest.raises(MailboxFullError) as refusal:
            await box.send(3)
        assert refusal.value.transient
        assert await bodies(box.receive(max_messages=5)) == [1, 2]

    async def test_one_refusal_does_not_fail_the_others_of_a_batch(self, client: Client, world: World) -> None:
        box = await bounded(client, world, max_messages=2)
        results = await box.send_many([1, 2, 3, 4])
        assert [result.ok for result in results] == [True, True, False, False]
        assert isinstance(results[2].error, MailboxFullError)
        assert results[2].id is None

    async def test_ready_scheduled_and_in_flight_count_and_dead_ones_do_not(self, client: Client, world: World) -> None:
        box = await bounded(client, world, max_messages=3)
        await box.send("dead")
        [message] = await box.receive()
        await message.dead_letter("why")
        await box.send("in flight")
        await box.receive()
        await box.send("scheduled", delay_seconds=600)
        await box.send("ready")
        with pytest.raises(MailboxFullError):
            await box.send("one too many")

    @pytest.mark.parametrize("leaving", ["acknowledge", "dead_letter", "purge", "expire"])
    async def test_whatever_leaves_makes_room(self, client: Client, world: World, second: float, leaving: str) -> None:
        box = await bounded(client, world, max_messages=1, message_ttl=2 * second if leaving == "expire" else None)
        await box.send(1)
        if leaving == "purge":
            await box.purge()
        elif leaving == "expire":
            await world.advance(3 * second)
        else:
            [message] = await box.receive()
            await (message.acknowledge() if leaving == "acknowledge" else message.dead_letter("why"))
        await box.send(2)
        with pytest.raises(MailboxFullError):
            await box.send(3)

    async def test_a_nack_needs_no_room(self, client: Client, world: World) -> None:
        box = await bounded(client, world, max_messages=1)
        await box.send(1)
        [message] = await box.receive()
        await message.nack()
        assert len(await box.receive()) == 1

    async def test_bytes_count_bodies_and_attributes(self, client: Client, world: World) -> None:
        world.needs_bytes()
        world.needs("capacity")
        await client.create_queue(QueueDefinition(name="q", max_bytes=100))
        box = client.mailbox("q", bytes)
        await box.send(bytes(40))
        await box.send(bytes(30), attributes={"key": "0123456"})
        assert (await box.info()).size_bytes == 80
        with pytest.raises(MailboxFullError):
            await box.send(bytes(21))
        await box.send(bytes(20))

    async def test_a_bound_in_bytes_is_refused_where_bodies_have_no_size(self, client: Client, world: World) -> None:
        if not world.capabilities.by_reference:
            pytest.skip("capability: bodies by reference")
        with pytest.raises(UnsupportedError):
            await client.create_queue(QueueDefinition(name="q", max_bytes=100))

    # --- overflow = wait ---------------------------------------------------------------------------------------

    async def test_a_waiting_send_is_stored_when_there_is_room(self, client: Client, world: World) -> None:
        box = await bounded(client, world, max_messages=1, overflow="wait", overflow_timeout=20)
        await box.send(1)
        sending = world.spawn(box.send, 2)
        await world.pause()
        assert not sending.done()
        [message] = await box.receive()
        await message.acknowledge()
        await sending
        assert await bodies(box.receive()) == [2]

    async def test_a_waiting_send_gives_up_in_time(self, client: Client, world: World, second: float) -> None:
        box = await bounded(client, world, max_messages=1, overflow="wait", overflow_timeout=2 * second)
        await box.send(1)
        sending = world.spawn(box.send, 2)
        await world.pause()
        await world.outlast(3 * second, sending)
        with pytest.raises(MailboxFullError):
            await sending
        assert await box.approximate_count() == 1

    async def test_a_waiting_batch_stores_what_fits_as_it_fits(self, client: Client, world: World) -> None:
        box = await bounded(client, world, max_messages=2, overflow="wait", overflow_timeout=20)
        sending = world.spawn(box.send_many, [1, 2, 3, 4, 5])
        seen: list[int] = []
        while len(seen) < 5:
            for message in await box.receive(max_messages=5, wait_time_seconds=20):
                seen.append(message.body)
                await message.acknowledge()
        assert [result.ok for result in await sending] == [True] * 5
        assert seen == [1, 2, 3, 4, 5]

    async def test_a_waiting_send_is_let_go_when_its_client_closes(self, client: Client, world: World) -> None:
        box = await bounded(client, world, max_messages=1, overflow="wait", overflow_timeout=20)
        await box.send(1)
        other = world.open()
        sending = world.spawn(other.mailbox("q").send, 2)
        await world.pause()
        await other.close()
        with pytest.raises((MailboxFullError, MailboxConnectionError)):
            await sending
        assert await box.approximate_count() == 1

    async def test_a_waiting_send_sees_room_that_time_makes(self, client: Client, world: World, second: float) -> None:
        box = await bounded(
            client, world, max_messages=1, overflow="wait", overflow_timeout=600, message_ttl=2 * second
        )
        await box.send(1)
        sending = world.spawn(box.send, 2)
        await world.pause()
        await world.advance(3 * second)
        await sending
        assert await bodies(box.receive()) == [2]

    # --- overflow = drop_oldest, drop_newest -------------------------------------------------------------------

    async def test_drop_oldest_makes_room_counts_and_announces(self, world: World) -> None:
        events: list[Overflowed] = []
        dispatcher = Dispatcher()
        dispatcher.subscribe(Overflowed, events.append)
        client = world.open(dispatcher=dispatcher)
        box = await bounded(client, world, max_messages=2, overflow="drop_oldest")
        for number in range(5):
            await box.send(number)
        assert (await box.info()).dropped == 3
        assert sum(event.dropped for event in events) == 3
        assert await bodies(box.receive(max_messages=5)) == [3, 4]

    async def test_drop_oldest_never_drops_one_in_flight(self, client: Client, world: World) -> None:
        box = await bounded(client, world, max_messages=2, overflow="drop_oldest")
        await box.send_many([1, 2])
        [message] = await box.receive()
        await box.send(3)
        await message.acknowledge()
        assert await bodies(box.receive(max_messages=5)) == [3]

    async def test_drop_oldest_refuses_when_all_are_in_flight(self, client: Client, world: World) -> None:
        box = await bounded(client, world, max_messages=1, overflow="drop_oldest")
        await box.send(1)
        await box.receive()
        with pytest.raises(MailboxFullError):
            await box.send(2)

    async def test_drop_oldest_drops_nothing_for_one_that_could_never_fit(self, client: Client, world: World) -> None:
        world.needs_bytes()
        world.needs("capacity")
        await client.create_queue(QueueDefinition(name="q", max_bytes=100, overflow="drop_oldest"))
        box = client.mailbox("q", bytes)
        await box.send(bytes(60))
        with pytest.raises(MailboxFullError):
            await box.send(bytes(101))
        assert await box.approximate_count() == 1

    async def test_drop_newest_keeps_what_is_there_counts_and_announces(self, world: World) -> None:
        events: list[Overflowed] = []
        dispatcher = Dispatcher()
        dispatcher.subscribe(Overflowed, events.append)
        client = world.open(dispatcher=dispatcher)
        box = await bounded(client, world, max_messages=2, overflow="drop_newest")
        for number in range(5):
            await box.send(number)
        assert (await box.info()).dropped == 3
        assert sum(event.dropped for event in events) == 3
        assert await bodies(box.receive(max_messages=5)) == [0, 1]

    async def test_a_bound_holds_against_many_senders(self, client: Client, world: World) -> None:
        box = await bounded(client, world, max_messages=7)
        others = [world.open().mailbox("q") for _ in range(3)]

        async def sending() -> int:
            results = [result for other in others for result in await other.send_many(range(2))]
            return sum(result.ok for result in results)

        assert sum(await world.gather(*[sending] * 4)) == 7
        assert await box.approximate_count() == 7

    async def test_options_that_contradict_each_other_are_refused(self) -> None:
        with pytest.raises(InvalidParameterError):
            QueueDefinition(name="q", overflow_timeout=5)
        with pytest.raises(InvalidParameterError):
            QueueDefinition(name="q", overflow="sometimes")  # type: ignore[arg-type]  # what the test is about
