"""Dead letters: what they keep, and how they go back to work."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from postroom.core.capabilities import YES
from postroom.core.definition import QueueDefinition
from postroom.errors import (
    InvalidParameterError,
    MailboxFullError,
    QueueNotFoundError,
    ReceiptHandleExpiredError,
    UnsupportedError,
)
from postroom.testing.conformance.world import Box, Client, Suite, World, bodies


async def kill(box: Box, *bodies: object, reason: str = "why") -> None:
    """Send these and make them dead letters."""
    await box.send_many(list(bodies))
    left = len(bodies)
    while left:
        messages = await box.receive(max_messages=left)
        for message in messages:
            await message.dead_letter(reason)
        left -= len(messages)


class DeadLetters(Suite):
    async def test_a_dead_letter_keeps_what_it_was_and_says_why(self, box: Box, world: World) -> None:
        id = await box.send(
            {"n": 1}, attributes={"k": "v"}, correlation_id="c", session_id="s", priority=3, content_type=None
        )
        [message] = await box.receive()
        place = message.sequence_number
        await message.nack()
        [message] = await box.receive()
        sent = message.enqueued_at
        await message.dead_letter("broken", "the description")
        [dead] = await box.dead_letters.receive()
        assert (dead.id, dead.body, dict(dead.attributes)) == (id, {"n": 1}, {"k": "v"})
        assert (dead.correlation_id, dead.session_id, dead.priority) == ("c", "s", 3)
        assert (dead.sequence_number, dead.enqueued_at) == (place, sent)
        assert dead.death is not None
        assert (dead.death.reason, dead.death.description, dead.death.source) == ("broken", "the description", "box")
        assert dead.death.delivery_count == 2
        assert abs(dead.death.at - world.driver(world.open()).now()) < 60

    async def test_it_keeps_the_history_of_its_attempts(self, client: Client, world: World) -> None:
        world.needs_time()
        await client.create_queue(QueueDefinition(name="q", max_delivery_count=2))
        box = client.mailbox("q")
        await box.send(1)
        for attempt in range(2):
            await world.advance(3600)
            [message] = await box.receive()
            with pytest.raises(ValueError):
                async with message:
                    raise ValueError(f"failure {attempt}")
        [dead] = await box.dead_letters.peek()
        assert [(past.number, past.error) for past in dead.history] == [
            (1, "ValueError: failure 0"),
            (2, "ValueError: failure 1"),
        ]

    async def test_a_description_is_truncated(self, box: Box) -> None:
        await box.send(1)
        [message] = await box.receive()
        await message.dead_letter("why", "x" * 100_000)
        [dead] = await box.dead_letters.peek()
        assert dead.death is not None
        assert 100 < len(dead.death.description) <= 2_000

    async def test_a_dead_message_is_no_longer_in_its_queue(self, box: Box) -> None:
        await kill(box, 1)
        assert await box.receive() == []
        assert await box.peek() == []
        info = await box.info()
        assert (info.total, info.dead, info.size_bytes) == (1, 1, 0)

    async def test_dead_letters_are_received_acknowledged_and_counted_like_others(self, box: Box) -> None:
        await kill(box, 1, 2, 3)
        dead = box.dead_letters
        assert await dead.approximate_count() == 3
        first, _, third = await dead.receive(max_messages=5)
        await first.acknowledge()
        await third.nack()
        assert await bodies(dead.receive(max_messages=5)) == [3]
        assert await dead.approximate_count() == 2

    async def test_dead_letters_have_no_limit_of_deliveries(self, client: Client) -> None:
        await client.create_queue(QueueDefinition(name="q", max_delivery_count=1))
        box = client.mailbox("q")
        await kill(box, 1)
        for _ in range(5):
            [dead] = await box.dead_letters.receive()
            await dead.nack()
        assert (await box.info()).dead == 1

    async def test_a_waiting_receive_of_dead_letters_is_woken(self, box: Box, world: World) -> None:
        waiting = world.spawn(box.dead_letters.receive, wait_time_seconds=20)
        await world.pause()
        await kill(box, 1)
        assert [message.body for message in await waiting] == [1]

    async def test_dead_lettering_a_dead_letter_is_refused(self, box: Box) -> None:
        await kill(box, 1)
        [dead] = await box.dead_letters.receive()
        with pytest.raises(UnsupportedError):
            await dead.dead_letter("again")
        assert not dead.is_finalized
        await dead.acknowledge()

    async def test_nobody_can_send_to_the_dead_letters(self, box: Box) -> None:
        await box.approximate_count()
        with pytest.raises(UnsupportedError):
            await box.dead_letters.send(1)
        assert (await box.info()).dead == 0

    async def test_without_dead_lettering_a_used_up_message_is_dropped_and_counted(self, client: Client) -> None:
        await client.create_queue(QueueDefinition(name="q", dead_lettering=False, max_delivery_count=1))
        box = client.mailbox("q")
        await box.send(1)
        [message] = await box.receive()
        await message.nack()
        assert await box.receive() == []
        info = await box.info()
        assert (info.total, info.dead, info.dropped) == (0, 0, 1)

    # --- a dead-letter queue of one's own ----------------------------------------------------------------------

    async def test_dead_letters_can_go_to_a_queue_of_ones_choice(self, client: Client) -> None:
        await client.create_queue(QueueDefinition(name="morgue"))
        for name in ("a", "b"):
            await client.create_queue(QueueDefinition(name=name, dead_letter_queue="morgue"))
            await kill(client.mailbox(name), name)
        morgue = client.mailbox("morgue")
        taken = await morgue.receive(max_messages=5)
        assert [(message.body, message.death and message.death.source) for message in taken] == [("a", "a"), ("b", "b")]

    async def test_from_a_shared_dead_letter_queue_each_redrives_its_own(self, client: Client) -> None:
        await client.create_queue(QueueDefinition(name="morgue"))
        boxes = []
        for name in ("a", "b"):
            await client.create_queue(QueueDefinition(name=name, dead_letter_queue="morgue"))
            boxes.append(client.mailbox(name))
            await kill(boxes[-1], name)
        assert (await boxes[0].dead_letters.redrive()).moved == 1
        assert await bodies(boxes[0].receive(max_messages=5)) == ["a"]
        assert await boxes[1].receive() == []
        assert await client.mailbox("morgue").approximate_count() == 1

    @pytest.mark.parametrize("trouble", ["missing", "full", "disabled"])
    async def test_if_the_dead_letter_queue_would_not_have_it_the_original_stays(
        self, client: Client, world: World, trouble: str
    ) -> None:
        if trouble != "missing":
            await client.create_queue(QueueDefinition(name="morgue", max_messages=1))
        if trouble == "full":
            await client.mailbox("morgue").send("in the way")
        if trouble == "disabled":
            await client.set_status("morgue", "disabled")
        await client.create_queue(QueueDefinition(name="q", dead_letter_queue="morgue", max_delivery_count=1))
        if trouble == "missing":
            await client.delete_queue("morgue")
        box = client.mailbox("q")
        await box.send_many(["buried", "used up"])
        one, other = await box.receive(max_messages=2)
        with pytest.raises(MailboxFullError):
            await one.dead_letter("why")
        assert not one.is_finalized
        await other.nack()
        assert await box.approximate_count() == 2
        assert await box.receive() == []  # what is used up is not delivered again, and not lost
        await one.acknowledge()
        assert await box.approximate_count() == 1

    async def test_a_dead_letter_queue_that_is_named_is_made(self, client: Client) -> None:
        await client.create_queue(QueueDefinition(name="q", dead_letter_queue="morgue"))
        box = client.mailbox("q")
        await box.send("x")
        [message] = await box.receive()
        await message.dead_letter("why")
        assert await client.mailbox("morgue").approximate_count() == 1

    async def test_what_could_not_be_buried_is_tried_again(self, client: Client, world: World) -> None:
        world.needs_time()
        await client.create_queue(QueueDefinition(name="q", dead_letter_queue="morgue", max_delivery_count=1))
        await client.delete_queue("morgue")
        box = client.mailbox("q")
        await box.send(1)
        [message] = await box.receive()
        await message.nack()
        assert await box.receive() == []
        await client.create_queue(QueueDefinition(name="morgue"))
        await world.advance(31)
        assert await box.receive() == []
        assert await bodies(client.mailbox("morgue").receive()) == [1]
        assert await box.approximate_count() == 0

    # --- redrive -----------------------------------------------------------------------------------------------

    async def test_redriven_messages_go_home_with_their_ids_and_fresh_counts(self, box: Box) -> None:
        id = await box.send(1, attributes={"k": "v"})
        [message] = await box.receive()
        await message.nack()
        [message] = await box.receive()
        await message.dead_letter("why")
        done = await box.dead_letters.redrive()
        assert (done.moved, done.skipped, done.refused, done.dry_run) == (1, 0, (), False)
        [again] = await box.receive()
        assert (again.id, again.body, dict(again.attributes)) == (id, 1, {"k": "v"})
        assert again.delivery_count == 1
        assert again.death is not None
        assert again.death.source == "box"  # where it has been is kept
        assert (await box.info()).dead == 0

    async def test_redriven_messages_take_their_old_place(self, box: Box) -> None:
        await kill(box, 1, 2)
        await box.send(3)
        await box.dead_letters.redrive()
        assert await bodies(box.receive(max_messages=5)) == [1, 2, 3]

    async def test_a_redriven_message_can_die_again(self, client: Client) -> None:
        await client.create_queue(QueueDefinition(name="q", max_delivery_count=1))
        box = client.mailbox("q")
        await box.send(1)
        for _ in range(3):
            [message] = await box.receive()
            assert message.delivery_count == 1
            await message.nack()
            assert (await box.info()).dead == 1
            assert (await box.dead_letters.redrive()).moved == 1
        assert await bodies(box.receive()) == [1]

    async def test_a_redrive_wakes_who_waits(self, box: Box, world: World) -> None:
        await kill(box, 1)
        waiting = world.spawn(box.receive, wait_time_seconds=20)
        await world.pause()
        await box.dead_letters.redrive()
        assert [message.body for message in await waiting] == [1]

    async def test_a_filter_chooses(self, box: Box) -> None:
        await kill(box, 1, 2, reason="bad")
        await kill(box, 3, 4, reason="worse")
        done = await box.dead_letters.redrive(where=lambda dead: dead.death is not None and dead.death.reason == "bad")
        assert (done.moved, done.skipped) == (2, 2)
        assert sorted(await bodies(box.receive(max_messages=5))) == [1, 2]
        assert (await box.info()).dead == 2

    async def test_a_limit_limits(self, box: Box) -> None:
        await kill(box, *range(5))
        assert (await box.dead_letters.redrive(limit=2)).moved == 2
        assert await bodies(box.receive(max_messages=5)) == [0, 1]

    async def test_a_dry_run_moves_nothing(self, box: Box) -> None:
        await kill(box, *range(5))
        done = await box.dead_letters.redrive(dry_run=True, limit=3)
        assert (done.moved, done.dry_run) == (3, True)
        assert await box.receive() == []
        assert (await box.info()).dead == 5

    async def test_a_redrive_of_very_many_leaves_none(self, box: Box) -> None:
        await kill(box, *range(350))
        assert (await box.dead_letters.redrive()).moved == 350
        info = await box.info()
        assert (info.ready, info.dead) == (350, 0)

    async def test_a_rate_paces_it(self, box: Box) -> None:
        await kill(box, *range(6))
        started = time.monotonic()
        assert (await box.dead_letters.redrive(rate=40)).moved == 6
        assert 0.05 < time.monotonic() - started < 2

    async def test_an_interrupted_redrive_is_finished_by_another(self, box: Box) -> None:
        await kill(box, *range(5))
        seen: list[object] = []

        def tiring(dead: object) -> bool:
            seen.append(dead)
            if len(seen) == 3:
                raise KeyboardInterrupt
            return True

        with pytest.raises(KeyboardInterrupt):
            await box.dead_letters.redrive(where=tiring)
        await box.dead_letters.redrive(limit=2)
        await box.dead_letters.redrive()
        assert await bodies(box.receive(max_messages=9)) == [0, 1, 2, 3, 4]

    async def test_a_target_of_ones_choice(self, client: Client, box: Box) -> None:
        await kill(box, 1)
        await client.create_queue(QueueDefinition(name="elsewhere"))
        assert (await box.dead_letters.redrive(target="elsewhere")).moved == 1
        assert await bodies(client.mailbox("elsewhere").receive()) == [1]

    async def test_a_missing_or_full_target_keeps_the_original(self, client: Client, box: Box, world: World) -> None:
        world.needs("capacity")
        await kill(box, 1)
        done = await box.dead_letters.redrive(target="nowhere")
        assert done.moved == 0
        assert [type(error) for _, error in done.refused] == [QueueNotFoundError]
        await client.create_queue(QueueDefinition(name="small", max_messages=1))
        await client.mailbox("small").send("in the way")
        done = await box.dead_letters.redrive(target="small")
        assert [type(error) for _, error in done.refused] == [MailboxFullError]
        assert (await box.info()).dead == 1

    async def test_one_that_a_consumer_holds_is_left_to_it(self, box: Box) -> None:
        await kill(box, 1, 2)
        [held] = await box.dead_letters.receive()
        done = await box.dead_letters.redrive()
        assert (done.moved, done.skipped) == (1, 1)
        await held.acknowledge()

    async def test_a_redriven_dead_letters_old_handle_is_worth_nothing(
        self, box: Box, world: World, second: float
    ) -> None:
        world.needs("stale_token_refused", level=YES)
        await kill(box, 1)
        [held] = await box.dead_letters.receive(visibility_timeout=second)
        await world.advance(2 * second)
        await box.dead_letters.redrive()
        with pytest.raises(ReceiptHandleExpiredError):
            await held.acknowledge()
        assert await bodies(box.receive()) == [1]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"limit": 0},
            {"limit": -1},
            {"limit": True},
            {"limit": 1.5},
            {"rate": 0},
            {"rate": float("nan")},
            {"rate": True},
            {"rate": "fast"},
            {"where": 7},
            {"target": "a:b"},
            {"target": 7},
        ],
        ids=str,
    )
    async def test_a_wrong_argument_is_refused(self, box: Box, wrong: dict[str, object]) -> None:
        await kill(box, 1)
        with pytest.raises(InvalidParameterError):
            await box.dead_letters.redrive(**wrong)  # type: ignore[arg-type]  # what the test is about
        assert (await box.info()).dead == 1

    async def test_a_lapsed_hold_on_a_dead_letter_ends_by_itself(self, box: Box, world: World, second: float) -> None:
        await kill(box, 1)
        [first] = await box.dead_letters.receive(visibility_timeout=second)
        await world.advance(2 * second)
        [again] = await box.dead_letters.receive()
        assert again.delivery_count == first.delivery_count + 1
        assert again.lease_expires_at - again.received_at == timedelta(seconds=30)
