"""Settling: the table of the semantics, cell by cell, and how long a lease can be made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from postroom.core.capabilities import YES
from postroom.core.definition import QueueDefinition
from postroom.errors import InvalidParameterError, MessageFinalizedError, ReceiptHandleExpiredError, UnsupportedError
from postroom.testing.conformance.world import Box, Client, Msg, Suite, World

Settle = Callable[[Msg], Awaitable[None]]

acknowledge: Settle = lambda message: message.acknowledge()  # noqa: E731  # a table of verbs reads best in rows
nack: Settle = lambda message: message.nack()  # noqa: E731
extend: Settle = lambda message: message.extend_visibility(30)  # noqa: E731
bury: Settle = lambda message: message.dead_letter("why")  # noqa: E731

every_verb = pytest.mark.parametrize(
    "verb",
    [acknowledge, nack, extend, bury],
    ids=["acknowledge", "nack", "extend", "dead_letter"],
)


async def refused(settling: Awaitable[None]) -> str | None:
    """How a settle was refused: stale or gone."""
    with pytest.raises(ReceiptHandleExpiredError) as refusal:
        await settling
    return refusal.value.code


class Settling(Suite):
    @every_verb
    async def test_a_valid_lease_settles(self, box: Box, verb: Settle) -> None:
        await box.send(1)
        [message] = await box.receive()
        await verb(message)

    @pytest.mark.parametrize("verb", [acknowledge, nack, bury], ids=["acknowledge", "nack", "dead_letter"])
    async def test_a_lapsed_lease_settles_late_while_nobody_else_has_it(
        self, box: Box, world: World, second: float, verb: Settle
    ) -> None:
        world.needs("late_acknowledge", level=YES)
        await box.send(1)
        [message] = await box.receive(visibility_timeout=second)
        await world.advance(2 * second)
        await verb(message)
        assert len(await box.receive()) == (1 if verb is nack else 0)

    async def test_a_lapsed_lease_settles_late_even_after_a_look_at_the_queue(
        self, box: Box, world: World, second: float
    ) -> None:
        world.needs("late_acknowledge", level=YES)
        await box.send(1)
        [message] = await box.receive(visibility_timeout=second)
        await world.advance(2 * second)
        assert (await box.info()).ready == 1
        await message.acknowledge()
        assert await box.approximate_count() == 0

    async def test_a_lapsed_lease_cannot_be_extended(self, box: Box, world: World, second: float) -> None:
        await box.send(1)
        [message] = await box.receive(visibility_timeout=second)
        await world.advance(2 * second)
        assert await refused(extend(message)) == "stale"
        assert len(await box.receive()) == 1

    @every_verb
    async def test_lapsed_in_a_session_is_stale(self, box: Box, world: World, second: float, verb: Settle) -> None:
        world.needs("sessions")
        await box.send(1, session_id="s")
        [message] = await box.receive(visibility_timeout=second)
        await world.advance(2 * second)
        assert await refused(verb(message)) == "stale"
        [again] = await box.receive()
        assert again.body == 1
        await again.acknowledge()

    @every_verb
    async def test_a_replaced_token_is_stale_and_changes_nothing(
        self, box: Box, world: World, second: float, verb: Settle
    ) -> None:
        world.needs("stale_token_refused", level=YES)
        await box.send(1)
        [first] = await box.receive(visibility_timeout=second)
        await world.advance(2 * second)
        [second_holder] = await box.receive(visibility_timeout=60)
        assert await refused(verb(first)) == "stale"
        [seen] = await box.peek()
        assert (seen.state, seen.delivery_count) == ("in_flight", 2)
        await second_holder.acknowledge()

    @every_verb
    async def test_a_token_nacked_away_is_stale(self, box: Box, verb: Settle) -> None:
        """A second copy of the same receipt, used after the first one gave the message back."""
        await box.send(1)
        [message] = await box.receive()
        handle = message.receipt_handle
        await message.nack()
        [other] = await box.receive()
        assert other.receipt_handle != handle
        await other.acknowledge()

    @every_verb
    @pytest.mark.parametrize("end", ["acknowledged", "purged", "dead", "expired"])
    async def test_a_message_that_is_gone_says_so(
        self, client: Client, world: World, second: float, verb: Settle, end: str
    ) -> None:
        if end == "expired":
            world.needs("ttl")
        box = client.mailbox("box")
        await box.send(1, ttl=2 * second if end == "expired" else None)
        [first] = await box.receive(visibility_timeout=second)
        if end == "purged":
            await box.purge()
        elif end == "expired":
            await world.advance(3 * second)
            assert await box.receive() == []
        else:
            await world.advance(2 * second)
            [other] = await box.receive()
            await (other.acknowledge() if end == "acknowledged" else other.dead_letter("why"))
        assert await refused(verb(first)) == "gone"

    @every_verb
    async def test_a_settled_message_object_is_final(self, box: Box, verb: Settle) -> None:
        await box.send(1)
        [message] = await box.receive()
        await message.acknowledge()
        assert message.is_finalized
        with pytest.raises(MessageFinalizedError):
            await verb(message)

    async def test_the_error_of_a_stale_handle_says_what_to_do(self, box: Box, world: World, second: float) -> None:
        await box.send(1, id="m-1")
        [first] = await box.receive(visibility_timeout=second)
        await world.advance(2 * second)
        await box.receive()
        with pytest.raises(ReceiptHandleExpiredError, match=r"m-1.*visibility_timeout"):
            await first.acknowledge()
        assert first.lease.lost

    async def test_a_batch_settles_what_it_can(self, box: Box, world: World, second: float) -> None:
        await box.send_many([1, 2, 3])
        messages = list(await box.receive(max_messages=3))
        await messages[1].acknowledge()
        results = await box.acknowledge_many(messages)
        assert [result.ok for result in results] == [True, False, True]
        assert isinstance(results[1].error, MessageFinalizedError)
        assert await box.approximate_count() == 0

    async def test_the_same_message_twice_in_a_batch_is_settled_once(self, box: Box) -> None:
        await box.send(1)
        [message] = await box.receive()
        results = await box.acknowledge_many([message, message])
        assert [result.ok for result in results] == [True, False]

    async def test_a_batch_is_given_back_together(self, box: Box, world: World, second: float) -> None:
        await box.send_many([1, 2, 3])
        messages = await box.receive(max_messages=3)
        assert all(result.ok for result in await box.nack_many(messages, visibility_timeout=3 * second))
        assert await box.receive() == []
        await world.advance(4 * second)
        again = await box.receive(max_messages=3)
        assert [(message.body, message.delivery_count) for message in again] == [(1, 2), (2, 2), (3, 2)]

    # --- extending ---------------------------------------------------------------------------------------------

    async def test_an_extended_lease_ends_so_much_later_than_now(self, box: Box, world: World, second: float) -> None:
        await box.send(1)
        [message] = await box.receive(visibility_timeout=2 * second)
        await world.advance(second)
        await message.extend_visibility(4 * second)
        await world.advance(3 * second)
        assert await box.receive() == []
        await world.advance(2 * second)
        assert len(await box.receive()) == 1

    async def test_an_extension_may_shorten_the_lease(self, box: Box, world: World, second: float) -> None:
        await box.send(1)
        [message] = await box.receive(visibility_timeout=60)
        await message.extend_visibility(second)
        assert message.remaining <= second
        await world.advance(2 * second)
        assert len(await box.receive()) == 1

    async def test_an_extension_to_zero_makes_it_ready_at_once(self, box: Box) -> None:
        await box.send(1)
        [message] = await box.receive(visibility_timeout=60)
        await message.extend_visibility(0)
        assert len(await box.receive()) == 1

    async def test_lease_expires_at_follows_the_extension(self, box: Box, world: World, second: float) -> None:
        await box.send(1)
        [message] = await box.receive(visibility_timeout=10)
        before = message.lease_expires_at
        await message.extend_visibility(100)
        assert timedelta(seconds=89) < message.lease_expires_at - before <= timedelta(seconds=90 + 5 * second)

    async def test_twelve_hours_in_total_are_the_most_and_nothing_is_clamped(self, box: Box, world: World) -> None:
        world.needs_time()
        world.needs("extend_to_any_time", level=YES)
        await box.send(1)
        [message] = await box.receive(visibility_timeout=3600)
        with pytest.raises(InvalidParameterError):
            await message.extend_visibility(12 * 3600 + 1)
        await world.advance(1800)
        with pytest.raises(InvalidParameterError, match="in total"):
            await message.extend_visibility(12 * 3600 - 1700)
        assert abs(message.remaining - 1800) < 1
        await message.extend_visibility(12 * 3600 - 1800)
        await world.advance(12 * 3600 - 1801)
        assert await box.receive() == []
        await message.acknowledge()

    async def test_a_kept_message_outlives_its_lease(self, box: Box, world: World) -> None:
        lease = 0.2  # the keeper waits in real time, whatever the store's clock does
        await box.send(1)
        [message] = await box.receive(visibility_timeout=lease)
        async with message.keep_alive() as kept:
            for _ in range(10):
                await world.pause(lease / 8)
                if world.store.moves_time:
                    await world.advance(lease / 8)
            assert not kept.lost
            assert await box.receive() == []
        await message.acknowledge()

    async def test_a_dead_letter_off_queue_refuses_to_bury(self, client: Client) -> None:
        await client.create_queue(QueueDefinition(name="q", dead_lettering=False))
        box = client.mailbox("q")
        await box.send(1)
        [message] = await box.receive()
        with pytest.raises(UnsupportedError):
            await message.dead_letter("why")
        await message.acknowledge()
