"""A store that fails in between, and answers that are lost: what is reported is true, and nothing accepted is lost."""

from __future__ import annotations

import pytest

from postroom.core.capabilities import YES
from postroom.errors import MailboxConnectionError, MessageFinalizedError, ServiceUnavailableError
from postroom.flows.send import CHUNK
from postroom.testing.conformance.world import Box, Suite, World, bodies
from postroom.testing.faults import Faulty

GONE = MailboxConnectionError("the connection broke")
BUSY = ServiceUnavailableError("busy")


class Unreliable(Suite):
    @pytest.fixture
    def faults(self, world: World) -> Faulty:
        return world.break_at_will(world.open())

    @pytest.fixture
    def box(self, world: World, faults: Faulty) -> Box:
        """A mailbox whose store fails as `faults` says."""
        box = world.client_of(faults).mailbox("box")
        world.run(world.call(box.approximate_count))
        return box

    async def test_a_send_that_failed_has_stored_nothing_and_can_be_repeated(self, box: Box, faults: Faulty) -> None:
        fault = faults.fail("send", BUSY)
        with pytest.raises(ServiceUnavailableError):
            await box.send(1)
        assert fault.struck == 1
        await box.send(1)
        assert await bodies(box.receive(max_messages=5)) == [1]

    async def test_a_send_whose_answer_was_lost_is_stored_once_if_it_is_repeated_with_its_dedup_id(
        self, box: Box, faults: Faulty, world: World
    ) -> None:
        world.needs("dedup")
        fault = faults.fail("send", GONE, after=True)
        with pytest.raises(MailboxConnectionError):
            await box.send(1, dedup_id="d")
        await box.send(1, dedup_id="d")
        assert fault.struck == 1
        assert await bodies(box.receive(max_messages=5)) == [1]

    async def test_of_many_what_was_stored_before_the_failure_is_reported_as_stored(
        self, box: Box, faults: Faulty
    ) -> None:
        faults.fail("send", GONE, times=None, skip=1)
        results = await box.send_many(range(CHUNK + 10))
        assert [result.ok for result in results] == [True] * CHUNK + [False] * 10
        assert isinstance(results[-1].error, MailboxConnectionError)
        faults.heal()
        assert await box.approximate_count() == CHUNK

    async def test_a_receive_whose_answer_was_lost_takes_nothing(self, box: Box, faults: Faulty, world: World) -> None:
        world.needs("claim_retry", level=YES)
        await box.send_many([1, 2])
        fault = faults.fail("receive", GONE, after=True)
        with pytest.raises(MailboxConnectionError):
            await box.receive(max_messages=2)
        assert fault.struck == 1
        again = await box.receive(max_messages=2)
        assert [(message.body, message.delivery_count) for message in again] == [(1, 1), (2, 1)]

    async def test_an_interrupted_receive_takes_nothing(self, box: Box, faults: Faulty, world: World) -> None:
        world.needs("claim_retry", level=YES)

        class Interrupted(BaseException):
            """As Ctrl-C, which a task would not survive."""

        await box.send(1)
        faults.fail("receive", Interrupted(), after=True)
        with pytest.raises(Interrupted):
            await box.receive(wait_time_seconds=5)
        [again] = await box.receive()
        assert again.delivery_count == 1

    async def test_if_giving_back_fails_too_the_first_error_is_raised_and_the_lease_lapses(
        self, box: Box, faults: Faulty, world: World, second: float
    ) -> None:
        await box.send(1)
        faults.fail("receive", BUSY, after=True)
        faults.fail("abandon", GONE)
        with pytest.raises(ServiceUnavailableError):
            await box.receive(visibility_timeout=second)
        await world.advance(2 * second)
        [again] = await box.receive()
        assert again.delivery_count == 2

    @pytest.mark.parametrize("verb", ["acknowledge", "nack", "dead_letter"])
    async def test_a_settle_that_failed_can_be_repeated(self, box: Box, faults: Faulty, verb: str) -> None:
        await box.send(1)
        [message] = await box.receive()
        faults.fail(verb, BUSY)
        settle = getattr(message, verb)
        with pytest.raises(ServiceUnavailableError):
            await (settle("why") if verb == "dead_letter" else settle())
        assert not message.is_finalized
        await (settle("why") if verb == "dead_letter" else settle())
        assert message.is_finalized

    @pytest.mark.parametrize("verb", ["acknowledge", "dead_letter"])
    async def test_a_settle_whose_answer_was_lost_is_a_success_when_it_is_repeated(
        self, box: Box, faults: Faulty, verb: str
    ) -> None:
        """Gone is what we wanted it to be."""
        await box.send(1)
        [message] = await box.receive()
        faults.fail(verb, GONE, after=True)
        settle = getattr(message, verb)
        with pytest.raises(MailboxConnectionError):
            await (settle("why") if verb == "dead_letter" else settle())
        await (settle("why") if verb == "dead_letter" else settle())
        with pytest.raises(MessageFinalizedError):
            await (settle("why") if verb == "dead_letter" else settle())

    async def test_a_batch_whose_answer_was_lost_is_a_success_when_it_is_repeated(
        self, box: Box, faults: Faulty
    ) -> None:
        await box.send_many([1, 2, 3])
        messages = await box.receive(max_messages=3)
        faults.fail("acknowledge", GONE, after=True)
        assert [result.ok for result in await box.acknowledge_many(messages)] == [False] * 3
        assert [result.ok for result in await box.acknowledge_many(messages)] == [True] * 3

    async def test_the_end_of_a_block_reports_a_failure_to_acknowledge(self, box: Box, faults: Faulty) -> None:
        await box.send(1)
        [message] = await box.receive()
        faults.fail("acknowledge", GONE)
        with pytest.raises(MailboxConnectionError):
            async with message:
                pass

    async def test_the_users_failure_is_not_hidden_by_the_stores(self, box: Box, faults: Faulty) -> None:
        await box.send(1)
        [message] = await box.receive()
        fault = faults.fail("nack", GONE)
        with pytest.raises(ZeroDivisionError) as failure:
            async with message:
                raise ZeroDivisionError
        assert fault.struck == 1
        assert "could not be given back" in "".join(failure.value.__notes__)

    async def test_a_kept_message_survives_a_failure_of_its_keeper(
        self, box: Box, faults: Faulty, world: World
    ) -> None:
        await box.send(1)
        [message] = await box.receive(visibility_timeout=0.3)
        fault = faults.fail("extend_visibility", BUSY)
        async with message.keep_alive() as kept:
            while not fault.struck:
                await world.pause(0.01)
            await world.pause(0.12)
            assert not kept.lost
            assert message.remaining > 0
        await message.acknowledge()

    @pytest.mark.parametrize("lost", [False, True], ids=["failed", "answer lost"])
    async def test_a_reply_can_be_repeated_and_arrives_once(
        self, box: Box, faults: Faulty, world: World, lost: bool
    ) -> None:
        world.needs("dedup")
        answers = world.client_of(faults).mailbox("answers")
        await box.send("?", reply_to=answers)
        [request] = await box.receive()
        faults.fail("send", BUSY, after=lost)
        with pytest.raises(ServiceUnavailableError):
            await request.reply("!")
        await request.reply("!")
        await request.reply("and more")
        assert await bodies(answers.receive(max_messages=5)) == ["!", "and more"]
