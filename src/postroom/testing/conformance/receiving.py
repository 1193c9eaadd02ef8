"""Receiving: what comes back and when, what never does, and that nothing is lost when a receive is called off."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import pytest

from postroom.core.capabilities import YES
from postroom.core.definition import QueueDefinition
from postroom.core.message import Envelope
from postroom.dispatcher import Dispatcher
from postroom.errors import MailboxConnectionError
from postroom.flows.events import Undecodable
from postroom.testing.conformance.world import Box, Client, Msg, Suite, World, bodies, only_tasks, unique


@dataclass
class Order:
    sku: str
    qty: int


async def put_garbage(world: World, client: Client, queue: str, data: bytes) -> None:
    """A body that somebody else stored, and that no codec of ours wrote."""
    await world.driver(client).put(queue, [Envelope(unique(), data, size=len(data))])


class Receiving(Suite):
    async def test_an_empty_mailbox_gives_nothing_at_once(self, box: Box) -> None:
        assert await box.receive() == []

    async def test_max_messages_is_one_unless_told(self, box: Box) -> None:
        await box.send_many(range(5))
        assert len(await box.receive()) == 1
        assert len(await box.receive(max_messages=3)) == 3

    async def test_a_batch_of_a_thousand(self, box: Box) -> None:
        await box.send_many(range(1_000))
        messages: list[Msg] = []
        while some := await box.receive(max_messages=1_000):  # one batch of a provider may hold fewer
            messages += some
        assert sorted(message.body for message in messages) == list(range(1_000))

    async def test_a_message_is_never_twice_in_a_batch(self, box: Box) -> None:
        await box.send_many(range(50))
        messages = await box.receive(max_messages=100, visibility_timeout=0)
        assert len({message.id for message in messages}) == len(messages) == 50

    async def test_a_receive_returns_with_what_there_is(self, box: Box) -> None:
        """It never holds back taken messages to fill its batch."""
        await box.send_many([1, 2])
        started = time.monotonic()
        assert len(await box.receive(max_messages=10, wait_time_seconds=20)) == 2
        assert time.monotonic() - started < 5

    async def test_a_waiting_receive_gets_what_is_sent(self, box: Box, world: World) -> None:
        waiting = world.spawn(box.receive, wait_time_seconds=20)
        await world.pause()
        assert not waiting.done()
        await box.send("now")
        assert [message.body for message in await waiting] == ["now"]

    async def test_a_waiting_receive_gives_up_in_time(self, box: Box, world: World, second: float) -> None:
        waiting = world.spawn(box.receive, wait_time_seconds=3 * second)
        await world.pause()
        assert not waiting.done()
        await world.outlast(4 * second, waiting)
        assert await waiting == []

    async def test_a_waiting_receive_wakes_when_a_delay_is_over(self, box: Box, world: World, second: float) -> None:
        world.needs("schedule")
        waiting = world.spawn(box.receive, wait_time_seconds=20)
        await world.pause()
        await box.send("later", delay_seconds=2 * second)
        await world.pause()
        assert not waiting.done()
        await world.advance(3 * second)
        assert [message.body for message in await waiting] == ["later"]

    async def test_a_waiting_receive_wakes_when_a_lease_lapses(self, box: Box, world: World, second: float) -> None:
        await box.send(1)
        await box.receive(visibility_timeout=2 * second)
        waiting = world.spawn(box.receive, wait_time_seconds=20)
        await world.pause()
        await world.advance(3 * second)
        [message] = await waiting
        assert message.delivery_count == 2

    async def test_a_waiting_receive_wakes_when_a_lease_is_shortened(
        self, box: Box, world: World, second: float
    ) -> None:
        await box.send(1)
        [held] = await box.receive(visibility_timeout=600)
        waiting = world.spawn(box.receive, wait_time_seconds=20)
        await world.pause()
        await held.extend_visibility(2 * second)
        await world.pause()
        await world.advance(3 * second)
        [message] = await waiting
        assert message.delivery_count == 2

    async def test_a_waiting_receive_wakes_when_a_message_is_nacked(self, box: Box, world: World) -> None:
        await box.send(1)
        [message] = await box.receive()
        waiting = world.spawn(box.receive, wait_time_seconds=20)
        await world.pause()
        await message.nack()
        assert len(await waiting) == 1

    async def test_one_message_wakes_one_of_many_waiters_and_the_others_wait_on(
        self, box: Box, world: World, second: float
    ) -> None:
        waiting = [world.spawn(box.receive, wait_time_seconds=5 * second) for _ in range(5)]
        await world.pause()
        await box.send(1)
        await world.pause()
        await world.outlast(6 * second, *waiting)
        assert sorted([len(await one) for one in waiting]) == [0, 0, 0, 0, 1]

    async def test_as_many_messages_wake_as_many_waiters(self, box: Box, world: World) -> None:
        waiting = [world.spawn(box.receive, wait_time_seconds=20) for _ in range(5)]
        await world.pause()
        await box.send_many(range(5))
        assert sorted([(await one)[0].body for one in waiting]) == [0, 1, 2, 3, 4]

    async def test_a_waiter_is_woken_by_another_client_without_polling(self, client: Client, world: World) -> None:
        box, other = client.mailbox("box"), world.open().mailbox("box")
        await other.approximate_count()
        waiting = world.spawn(box.receive, wait_time_seconds=20)
        await world.pause(0.1)
        started = time.monotonic()
        await other.send("from afar")
        assert [message.body for message in await waiting] == ["from afar"]
        assert time.monotonic() - started < 0.4

    @only_tasks
    async def test_a_waiter_is_woken_across_flavours(self, client: Client, world: World) -> None:
        there = world.open(flavour="sync").mailbox("box")
        here = client.mailbox("box")
        waiting = world.spawn(here.receive, wait_time_seconds=20)
        await world.pause(0.1)
        await there.send("from a thread")
        assert [message.body for message in await waiting] == ["from a thread"]
        waiting = world.spawn(there.receive, wait_time_seconds=20)
        await world.pause(0.1)
        await here.send("from a task")
        assert [message.body for message in await waiting] == ["from a task"]

    # --- closing -----------------------------------------------------------------------------------------------

    async def test_closing_the_mailbox_wakes_its_waiters_with_nothing(self, box: Box, world: World) -> None:
        waiting = [world.spawn(box.receive, wait_time_seconds=20) for _ in range(3)]
        await world.pause()
        await box.close()
        assert [await one for one in waiting] == [[], [], []]
        assert box.closed

    async def test_closing_the_client_wakes_the_waiters_of_all_its_mailboxes(self, world: World) -> None:
        client = world.open()
        waiting = [world.spawn(client.mailbox(name).receive, wait_time_seconds=20) for name in ("a", "b", "c")]
        await world.pause()
        await client.close()
        assert [await one for one in waiting] == [[], [], []]

    async def test_a_closed_mailbox_gives_nothing_and_takes_nothing(self, client: Client, box: Box) -> None:
        await box.send(1)
        await box.close()
        assert await box.receive() == []
        with pytest.raises(MailboxConnectionError):
            await box.send(2)
        assert await bodies(client.mailbox("box").receive(max_messages=5)) == [1]

    async def test_closing_one_mailbox_leaves_the_others_open(self, client: Client) -> None:
        one, other = client.mailbox("box"), client.mailbox("box")
        await one.close()
        await other.send(1)
        assert len(await other.receive()) == 1

    async def test_closing_twice_is_no_error(self, world: World) -> None:
        client = world.open()
        box = client.mailbox("box")
        await box.send(1)
        await box.close()
        await box.close()
        await client.close()
        await client.close()
        assert client.closed

    # --- streams -----------------------------------------------------------------------------------------------

    async def test_a_stream_yields_until_the_mailbox_is_closed(self, box: Box) -> None:
        await box.send_many(range(25))
        seen = []
        async for message in box.stream(max_messages=10):
            seen.append(message.body)
            await message.acknowledge()
            if len(seen) == 25:
                await box.close()
        assert seen == list(range(25))

    async def test_what_a_stream_fetched_and_did_not_reach_goes_back_uncounted(self, box: Box, world: World) -> None:
        world.needs("uncounted_return", level=YES)
        await box.send_many(range(10))
        stream = box.stream(max_messages=10)
        async for message in stream:
            await message.acknowledge()
            break
        await stream.aclose()  # type: ignore[attr-defined]  # an async generator, whatever its signature says
        rest = await box.receive(max_messages=10)
        assert [(message.body, message.delivery_count) for message in rest] == [(n, 1) for n in range(1, 10)]

    # --- bodies that cannot be decoded -------------------------------------------------------------------------

    async def test_an_undecodable_body_does_not_hide_its_neighbours(self, client: Client, world: World) -> None:
        world.needs_bytes()
        box: Box = client.mailbox("orders", Order)
        await box.send(Order("A", 1))
        await put_garbage(world, client, "orders", b'{"sku": 7}')
        await box.send(Order("B", 2))
        assert await bodies(box.receive(max_messages=10)) == [Order("A", 1), Order("B", 2)]
        [dead] = await box.dead_letters.receive()
        assert dead.death is not None
        assert (dead.body, dead.death.reason) == (b'{"sku": 7}', "undecodable")

    async def test_an_undecodable_body_is_announced(self, world: World) -> None:
        world.needs_bytes()
        events: list[Undecodable] = []
        dispatcher = Dispatcher()
        dispatcher.subscribe(Undecodable, events.append)
        client = world.open(dispatcher=dispatcher)
        box = client.mailbox("orders", Order)
        await box.approximate_count()
        await put_garbage(world, client, "orders", b"\xff")
        assert await box.receive() == []
        assert [(event.queue, event.buried) for event in events] == [("orders", True)]

    async def test_with_no_dead_letters_an_undecodable_body_is_given_back_and_announced(self, world: World) -> None:
        world.needs_bytes()
        events: list[Undecodable] = []
        dispatcher = Dispatcher()
        dispatcher.subscribe(Undecodable, events.append)
        client = world.open(dispatcher=dispatcher)
        await client.create_queue(QueueDefinition(name="orders", dead_lettering=False))
        box = client.mailbox("orders", Order)
        await put_garbage(world, client, "orders", b"\xff")
        await box.send(Order("B", 2))
        assert await bodies(box.receive(max_messages=10)) == [Order("B", 2)]
        assert [event.buried for event in events] == [False]
        assert await box.approximate_count() == 2

    async def test_a_waiting_receive_goes_on_past_an_undecodable_body(self, client: Client, world: World) -> None:
        world.needs_bytes()
        box = client.mailbox("orders", Order)
        await box.approximate_count()
        waiting = world.spawn(box.receive, wait_time_seconds=20)
        await world.pause()
        await put_garbage(world, client, "orders", b"[]")
        await world.pause()
        await box.send(Order("B", 2))
        assert [message.body for message in await waiting] == [Order("B", 2)]

    async def test_a_peek_shows_the_raw_bytes_of_an_undecodable_body(self, client: Client, world: World) -> None:
        world.needs_bytes()
        world.needs("peek")
        box: Box = client.mailbox("orders", Order)
        await box.approximate_count()
        await put_garbage(world, client, "orders", b"\xff")
        assert [seen.body for seen in await box.peek()] == [b"\xff"]

    # --- called off --------------------------------------------------------------------------------------------

    @only_tasks
    async def test_a_cancelled_receive_takes_nothing(self, box: Box, world: World) -> None:
        waiting = world.spawn(box.receive, wait_time_seconds=20)
        await world.pause()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await box.send(1)
        [message] = await box.receive()
        assert message.delivery_count == 1

    @only_tasks
    async def test_a_cancellation_at_any_moment_loses_nothing(self, box: Box, world: World) -> None:
        """Each message is received by somebody, or ready again and uncounted at once."""
        world.needs("claim_retry")
        world.needs("uncounted_return", level=YES)
        await box.approximate_count()
        for turns in range(12):
            waiting = world.spawn(box.receive, wait_time_seconds=20)
            for _ in range(1 + turns):
                await asyncio.sleep(0)
            sending = world.spawn(box.send, turns)
            for _ in range(turns % 4):
                await asyncio.sleep(0)
            waiting.cancel()
            try:
                taken = await waiting
            except asyncio.CancelledError:
                taken = []
            await sending
            if not taken:
                taken = await box.receive(wait_time_seconds=20)
            assert [(message.body, message.delivery_count) for message in taken] == [(turns, 1)]
            await taken[0].acknowledge()

    @only_tasks
    async def test_a_ring_for_a_cancelled_waiter_is_passed_on(self, box: Box, world: World) -> None:
        for _ in range(10):
            first = world.spawn(box.receive, wait_time_seconds=20)
            await world.pause(0.005)
            second = world.spawn(box.receive, wait_time_seconds=20)
            await world.pause(0.005)
            sending = world.spawn(box.send, 1)
            await asyncio.sleep(0)
            first.cancel()
            try:
                taken = await first
            except asyncio.CancelledError:
                taken = await second
            else:
                second.cancel()
            await sending
            assert len(taken) == 1
            await taken[0].acknowledge()

    @only_tasks
    async def test_a_timeout_around_a_receive_loses_nothing(self, box: Box, world: World) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(box.receive(wait_time_seconds=20), 0.05)
        await box.send(1)
        [message] = await box.receive()
        assert message.delivery_count == 1
