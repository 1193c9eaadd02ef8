"""The life of a message: sent, scheduled, ready, in flight, and one of its ends; and how often it was delivered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroom.core.capabilities import YES
from postroom.core.definition import QueueDefinition
from postroom.errors import Discard, Reject, Retry
from postroom.testing.conformance.world import Box, Client, Suite, World, bodies, drain


class Life(Suite):
    async def test_what_was_sent_is_received(self, box: Box) -> None:
        await box.send({"sku": "A-1", "qty": 3})
        [message] = await box.receive()
        assert message.body == {"sku": "A-1", "qty": 3}

    async def test_send_returns_the_id_the_message_has(self, box: Box) -> None:
        id = await box.send(1)
        [message] = await box.receive()
        assert message.id == id

    async def test_an_id_of_ones_own_is_kept(self, box: Box) -> None:
        assert await box.send(1, id="order-7") == "order-7"
        [message] = await box.receive()
        assert message.id == "order-7"

    async def test_everything_said_at_the_send_arrives(self, client: Client) -> None:
        box = client.mailbox("box", str)
        await box.send("hello", attributes={"k": "v", "ü": "☃"}, correlation_id="c-1")
        [message] = await box.receive()
        assert (message.body, dict(message.attributes), message.correlation_id) == (
            "hello",
            {"k": "v", "ü": "☃"},
            "c-1",
        )
        assert (message.reply_to, message.session_id, message.delivery_count) == (None, None, 1)
        assert message.content_type

    async def test_times_are_aware_and_by_one_clock(self, box: Box, world: World, second: float) -> None:
        await box.send(1)
        await world.advance(2 * second)
        [message] = await box.receive(visibility_timeout=30)
        assert message.enqueued_at.tzinfo is UTC
        waited = message.received_at - message.enqueued_at
        assert timedelta(seconds=1.9 * second) <= waited < timedelta(seconds=2 * second + 5)
        assert abs(message.lease_expires_at - message.received_at - timedelta(seconds=30)) < timedelta(seconds=0.01)
        assert 29 - second < message.remaining <= 30
        assert isinstance(message.lease_expires_at, datetime)

    async def test_a_received_message_is_hidden_from_others(self, box: Box) -> None:
        await box.send(1)
        assert len(await box.receive()) == 1
        assert await box.receive() == []

    async def test_an_acknowledged_message_never_comes_back(self, box: Box, world: World, second: float) -> None:
        await box.send(1)
        [message] = await box.receive(visibility_timeout=second)
        await message.acknowledge()
        await world.advance(2 * second)
        assert await box.receive() == []
        assert await box.approximate_count() == 0

    async def test_a_lapsed_message_comes_back_and_is_counted(self, box: Box, world: World, second: float) -> None:
        await box.send(1)
        [first] = await box.receive(visibility_timeout=second)
        await world.advance(1.5 * second)
        [again] = await box.receive()
        assert (first.delivery_count, again.delivery_count) == (1, 2)
        assert again.id == first.id
        assert again.receipt_handle != first.receipt_handle
        assert again.lease.token > first.lease.token

    async def test_left_out_the_lease_is_half_a_minute_on_a_plain_queue(self, box: Box, world: World) -> None:
        world.needs("visibility_per_receive", level=YES)
        await box.send(1)
        [message] = await box.receive()
        assert abs(message.lease_expires_at - message.received_at - timedelta(seconds=30)) < timedelta(seconds=0.01)

    async def test_left_out_the_lease_is_the_lock_duration_of_the_definition(self, client: Client) -> None:
        await client.create_queue(QueueDefinition(name="defined", lock_duration=77))
        box = client.mailbox("defined")
        await box.send(1)
        [message] = await box.receive()
        assert abs(message.lease_expires_at - message.received_at - timedelta(seconds=77)) < timedelta(seconds=0.01)

    async def test_a_nacked_message_comes_back_at_once(self, box: Box) -> None:
        await box.send(1)
        [first] = await box.receive()
        await first.nack()
        [again] = await box.receive()
        assert again.delivery_count == 2

    async def test_a_nacked_message_waits_as_long_as_it_was_told(self, box: Box, world: World, second: float) -> None:
        await box.send(1)
        [message] = await box.receive()
        await message.nack(visibility_timeout=4 * second)
        assert (await box.info()).scheduled == 1
        await world.advance(2 * second)
        assert await box.receive() == []
        await world.advance(3 * second)
        assert await bodies(box.receive()) == [1]

    async def test_a_delayed_message_is_scheduled_until_it_is_due(self, box: Box, world: World, second: float) -> None:
        world.needs("schedule")
        await box.send(1, delay_seconds=4 * second)
        assert (await box.info()).scheduled == 1
        await world.advance(2 * second)
        assert await box.receive() == []
        await world.advance(3 * second)
        assert (await box.info()).ready == 1
        assert await bodies(box.receive()) == [1]

    async def test_a_delay_may_be_a_timedelta(self, box: Box, world: World, second: float) -> None:
        world.needs("schedule")
        await box.send(1, delay_seconds=timedelta(seconds=2 * second))
        assert await box.receive() == []
        await world.advance(3 * second)
        assert await bodies(box.receive()) == [1]

    async def test_a_message_is_delivered_to_one_of_many_receivers(self, box: Box, world: World) -> None:
        await box.send_many(range(200))

        async def take() -> list[int]:
            return await drain(box)

        seen = await world.gather(*[take] * 8)
        assert sorted(body for part in seen for body in part) == list(range(200))

    # --- the end of `with message` -----------------------------------------------------------------------------

    async def test_a_block_that_ends_well_acknowledges(self, box: Box) -> None:
        await box.send(1)
        [message] = await box.receive()
        async with message:
            assert not message.is_finalized
        assert message.is_finalized
        assert await box.approximate_count() == 0

    async def test_retry_gives_it_back_uncounted_and_is_swallowed(self, box: Box, world: World, second: float) -> None:
        world.needs("uncounted_return", level=YES)
        await box.send(1)
        [message] = await box.receive()
        async with message:
            raise Retry(delay=3 * second)
        assert await box.receive() == []
        await world.advance(4 * second)
        [again] = await box.receive()
        assert again.delivery_count == 1
        assert again.history == ()

    async def test_reject_sends_it_to_the_dead_letters_and_is_swallowed(self, box: Box) -> None:
        await box.send(1)
        [message] = await box.receive()
        async with message:
            raise Reject("negative quantity", "qty was -1")
        [dead] = await box.dead_letters.receive()
        assert dead.death is not None
        assert (dead.death.reason, dead.death.description) == ("negative quantity", "qty was -1")

    async def test_discard_acknowledges_and_is_swallowed(self, box: Box) -> None:
        await box.send(1)
        [message] = await box.receive()
        async with message:
            raise Discard
        assert await box.approximate_count() == 0
        assert (await box.info()).dead == 0

    async def test_any_other_failure_nacks_with_a_backoff_and_goes_on(
        self, world: World, client: Client, second: float
    ) -> None:
        world.needs_time()
        box = client.mailbox("box")
        await box.send(1)
        [message] = await box.receive()
        with pytest.raises(ZeroDivisionError):
            async with message:
                raise ZeroDivisionError("no")
        assert await box.receive() == []  # the backoff: about a second
        await world.advance(1.5)
        [again] = await box.receive()
        assert again.delivery_count == 2
        assert [(attempt.number, attempt.error) for attempt in again.history] == [(1, "ZeroDivisionError: no")]

    @pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
    async def test_an_interruption_gives_it_back_uncounted(
        self, box: Box, world: World, interruption: type[BaseException]
    ) -> None:
        world.needs("uncounted_return", level=YES)
        await box.send(1)
        [message] = await box.receive()
        with pytest.raises(interruption):
            async with message:
                raise interruption
        [again] = await box.receive()
        assert again.delivery_count == 1

    async def test_a_block_leaves_an_already_settled_message_alone(self, box: Box) -> None:
        await box.send(1)
        [message] = await box.receive()
        async with message:
            await message.nack()
        [again] = await box.receive()
        async with again:
            await again.acknowledge()
            raise Retry
        assert await box.approximate_count() == 0

    async def test_the_failure_is_raised_even_if_the_lease_was_lost(
        self, box: Box, world: World, second: float
    ) -> None:
        await box.send(1)
        [message] = await box.receive(visibility_timeout=second)
        await world.advance(2 * second)
        [other] = await box.receive()
        with pytest.raises(ZeroDivisionError):
            async with message:
                raise ZeroDivisionError
        await other.acknowledge()

    # --- how often it was delivered ----------------------------------------------------------------------------

    async def test_the_count_is_one_on_the_first_delivery_and_rises_with_each(self, box: Box) -> None:
        await box.send(1)
        for expected in range(1, 6):
            [message] = await box.receive()
            assert message.delivery_count == expected
            await message.nack()

    async def test_the_count_is_raised_by_the_claim_itself(self, box: Box) -> None:
        """Before anybody's code sees the message: a look at it shows the count already."""
        await box.send(1)
        await box.receive()
        [seen] = await box.peek()
        assert (seen.state, seen.delivery_count) == ("in_flight", 1)

    async def test_the_nth_delivery_is_the_last(self, client: Client, world: World, second: float) -> None:
        await client.create_queue(QueueDefinition(name="q", max_delivery_count=2))
        box = client.mailbox("q")
        await box.send(1)
        [first] = await box.receive()
        await first.nack()
        [last] = await box.receive()
        assert last.delivery_count == 2
        await last.nack()
        assert await box.receive() == []
        [dead] = await box.dead_letters.peek()
        assert dead.death is not None
        assert (dead.death.reason, dead.death.delivery_count) == ("max_deliveries", 2)

    async def test_a_message_whose_holder_dies_n_times_is_dead_and_its_siblings_are_unharmed(
        self, client: Client, world: World, second: float
    ) -> None:
        await client.create_queue(QueueDefinition(name="q", max_delivery_count=3))
        box = client.mailbox("q")
        await box.send("killer")
        for _ in range(3):
            assert await bodies(box.receive(visibility_timeout=second)) == ["killer"]
            await world.advance(1.5 * second)
        await box.send("sibling")
        [message] = await box.receive()
        assert (message.body, message.delivery_count) == ("sibling", 1)
        [dead] = await box.dead_letters.peek()
        assert dead.death is not None
        assert (dead.body, dead.death.reason) == ("killer", "max_deliveries")

    async def test_the_last_delivery_can_still_be_acknowledged_late(
        self, client: Client, world: World, second: float
    ) -> None:
        """Out of deliveries, it dies only when a claim or a tidy makes it so."""
        world.needs("late_acknowledge", level=YES)
        await client.create_queue(QueueDefinition(name="q", max_delivery_count=1))
        box = client.mailbox("q")
        await box.send(1)
        [message] = await box.receive(visibility_timeout=second)
        await world.advance(2 * second)
        await message.acknowledge()
        info = await box.info()
        assert (info.total, info.dead) == (0, 0)
