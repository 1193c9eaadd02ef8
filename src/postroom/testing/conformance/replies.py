"""Replies: where they may go, how often, and what a request is answered with when it is handled twice."""

from __future__ import annotations

import pytest

import postroom
from postroom.dispatcher import Dispatcher
from postroom.errors import (
    InvalidParameterError,
    MailboxResolutionError,
    MessageFinalizedError,
    ReplyNotAvailableError,
    SerializationError,
)
from postroom.flows.events import ReplyDropped
from postroom.testing.conformance.world import Box, Client, Suite, World, bodies


class Replies(Suite):
    async def test_a_reply_goes_to_whoever_asked(self, client: Client) -> None:
        requests, answers = client.mailbox("requests"), client.mailbox("answers")
        id = await requests.send("how many?", reply_to=answers, correlation_id="c-1")
        [request] = await requests.receive()
        assert request.reply_to == "answers"
        assert await request.reply(3) == f"{id}/1"
        await request.acknowledge()
        [answer] = await answers.receive()
        assert (answer.body, answer.correlation_id, answer.id) == (3, "c-1", f"{id}/1")

    async def test_without_a_correlation_id_the_requests_id_is_it(self, client: Client) -> None:
        requests, answers = client.mailbox("requests"), client.mailbox("answers")
        id = await requests.send("?", reply_to=answers)
        [request] = await requests.receive()
        await request.reply("!")
        [answer] = await answers.receive()
        assert answer.correlation_id == id

    async def test_several_replies_come_in_order_until_the_request_is_settled(self, client: Client) -> None:
        requests, answers = client.mailbox("requests"), client.mailbox("answers")
        await requests.send("?", reply_to=answers)
        [request] = await requests.receive()
        for number in range(3):
            await request.reply(number)
        await request.acknowledge()
        with pytest.raises(MessageFinalizedError):
            await request.reply("late")
        assert await bodies(answers.receive(max_messages=9)) == [0, 1, 2]

    async def test_a_request_that_is_handled_twice_is_answered_once(
        self, client: Client, world: World, second: float
    ) -> None:
        world.needs("dedup")
        requests, answers = client.mailbox("requests"), client.mailbox("answers")
        await requests.send("?", reply_to=answers)
        for _ in range(2):
            [request] = await requests.receive(visibility_timeout=second)
            await request.reply(f"delivery {request.delivery_count}")
            await world.advance(2 * second)
        assert await bodies(answers.receive(max_messages=9)) == ["delivery 1"]

    async def test_no_reply_to_means_no_reply(self, box: Box) -> None:
        await box.send("?")
        [request] = await box.receive()
        with pytest.raises(ReplyNotAvailableError):
            await request.reply("!")

    async def test_a_mailbox_opened_on_the_same_client_can_be_named(self, client: Client) -> None:
        requests, answers = client.mailbox("requests"), client.mailbox("answers")
        await answers.approximate_count()
        await requests.send("?", reply_to="answers")
        [request] = await requests.receive()
        await request.reply("!")
        assert await bodies(answers.receive()) == ["!"]

    async def test_a_name_that_this_client_has_not_opened_is_refused(self, client: Client, world: World) -> None:
        """reply_to comes from outside: it must not choose among all the queues there are."""
        secret = world.open().mailbox("payroll")
        await secret.approximate_count()
        requests = client.mailbox("requests")
        await requests.send("?", reply_to="payroll")
        [request] = await requests.receive()
        with pytest.raises(MailboxResolutionError):
            await request.reply("!")
        assert await secret.approximate_count() == 0
        assert not request.is_finalized
        await request.acknowledge()

    async def test_a_name_with_the_reply_prefix_is_enough_if_its_queue_exists(
        self, client: Client, world: World
    ) -> None:
        answers = world.open().mailbox("reply-7")
        await answers.approximate_count()
        requests = client.mailbox("requests")
        await requests.send("?", reply_to="reply-7")
        [request] = await requests.receive()
        await request.reply("!")
        assert await bodies(answers.receive()) == ["!"]

    async def test_a_reply_to_a_vanished_mailbox_is_dropped_and_announced_and_makes_no_queue(
        self, world: World
    ) -> None:
        events: list[ReplyDropped] = []
        dispatcher = Dispatcher()
        dispatcher.subscribe(ReplyDropped, events.append)
        worker, asker = world.open(dispatcher=dispatcher), world.open()
        answers = asker.mailbox("reply-7")
        await asker.mailbox("requests").send("?", reply_to="reply-7" if world.capabilities.by_reference else answers)
        await answers.approximate_count()
        await asker.delete_queue("reply-7")
        [request] = await worker.mailbox("requests").receive()
        await request.reply("!")
        await request.acknowledge()
        assert await worker.list_queues() == ["requests"]
        assert [event.queue for event in events] == ["reply-7"]

    async def test_a_reply_stays_in_the_senders_namespace(self, world: World) -> None:
        for namespace in ("one", "other"):
            await world.open(namespace=namespace).mailbox("reply-7").approximate_count()
        client = world.open(namespace="one")
        await client.mailbox("requests").send("?", reply_to="reply-7")
        [request] = await client.mailbox("requests").receive()
        await request.reply("!")
        assert await world.open(namespace="other").mailbox("reply-7").approximate_count() == 0
        assert await client.mailbox("reply-7").approximate_count() == 1

    async def test_a_mailbox_of_another_namespace_or_store_is_refused_as_a_reply_to(self, world: World) -> None:
        """Its name would travel, and mean another tenant's queue there."""
        world.needs_bytes()
        requests = world.open(namespace="one").mailbox("requests")
        with postroom.connect("memory://") as elsewhere:
            for foreign in (world.open(namespace="other").mailbox("reply-7"), elsewhere.mailbox("reply-7")):
                with pytest.raises(InvalidParameterError, match="another store or namespace"):
                    await requests.send("?", reply_to=foreign)  # type: ignore[arg-type]  # a sync one does as well
        assert await requests.approximate_count() == 0

    @pytest.mark.parametrize("wrong", ["", "a:b", "memory://x", "requests!dead", 7, b"answers", object(), True])
    async def test_a_wrong_reply_to_is_refused_and_nothing_is_sent(self, box: Box, wrong: object) -> None:
        with pytest.raises(InvalidParameterError):
            await box.send("?", reply_to=wrong)  # type: ignore[arg-type]  # what the test is about
        assert await box.approximate_count() == 0

    async def test_a_reply_must_fit_its_type(self, client: Client, world: World) -> None:
        requests = client.mailbox("requests", str, reply_type=int)
        answers = client.mailbox("answers", int)
        await requests.send("?", reply_to=answers)
        [request] = await requests.receive()
        with pytest.raises(SerializationError):
            await request.reply("three")  # type: ignore[arg-type]  # what the test is about
        await request.reply(3)
        assert await bodies(answers.receive()) == [3]
