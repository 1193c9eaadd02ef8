"""The provider-agnostic client: bytes, properties and receipts instead of typed bodies."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postroom.core.capabilities import YES
from postroom.core.definition import MessageReceipt, QueueDefinition, QueueMessage, ReceiveOptions, SendOptions
from postroom.errors import (
    InvalidParameterError,
    MailboxConnectionError,
    MessageTooLargeError,
    QueueNotFoundError,
    ReceiptHandleExpiredError,
    UnsupportedError,
)
from postroom.flows.raw import ReceivedMessage
from postroom.testing.conformance.world import Client, Suite, World


async def made(client: Client, name: str = "q") -> str:
    await client.create_queue(QueueDefinition(name=name))
    return name


async def one(client: Client, queue: str, options: ReceiveOptions | None = None) -> ReceivedMessage:
    [received] = await client.receive(queue, options)
    return received


class Raw(Suite):
    async def test_a_raw_message_keeps_all_its_fields(self, client: Client) -> None:
        q = await made(client)
        message = QueueMessage(
            body=b"\x00\xff",
            message_id="m-1",
            session_id="s",
            correlation_id="c",
            content_type="image/png",
            properties={"k": "v"},
            ttl=3600,
            reply_to="reply-1",
        )
        assert await client.send(q, message) == "m-1"
        received = await one(client, q)
        got = received.message
        assert (got.body, got.message_id, got.session_id) == (b"\x00\xff", "m-1", "s")
        assert (got.correlation_id, got.content_type, dict(got.properties)) == ("c", "image/png", {"k": "v"})
        assert (got.reply_to, received.receipt.message_id, received.receipt.queue_name) == ("reply-1", "m-1", q)
        assert (received.receipt.delivery_count, received.receipt.session_id) == (1, "s")
        assert not received.is_lock_expired
        assert 50 < received.remaining_lock <= 60
        assert received.lock_expires_at is not None
        assert received.receipt.enqueued_at.tzinfo is UTC

    async def test_a_queue_that_was_not_made_is_not_made_by_a_raw_send(self, client: Client) -> None:
        with pytest.raises(QueueNotFoundError):
            await client.send("nowhere", QueueMessage(body=b""))
        with pytest.raises(QueueNotFoundError):
            await client.receive("nowhere")
        assert await client.list_queues() == []

    async def test_options_beat_the_messages_own_fields(self, client: Client) -> None:
        q = await made(client)
        message = QueueMessage(body=b"x", correlation_id="mine", content_type="a/a", properties={"mine": "1"})
        await client.send(
            q, message, SendOptions(correlation_id="theirs", content_type="b/b", properties={"theirs": "2"})
        )
        got = (await one(client, q)).message
        assert (got.correlation_id, got.content_type, dict(got.properties)) == ("theirs", "b/b", {"theirs": "2"})

    async def test_a_scheduled_time_is_a_delay(self, client: Client, world: World, second: float) -> None:
        world.needs("schedule")
        q = await made(client)
        at = datetime.fromtimestamp(world.driver(client).now() + 3 * second, UTC)
        await client.send(q, QueueMessage(body=b"m", scheduled_enqueue_time=at))
        await client.send(q, QueueMessage(body=b"o"), SendOptions(scheduled_enqueue_time=at))
        await client.send(q, QueueMessage(body=b"d"), SendOptions(delay=3 * second))
        assert await client.receive(q) == []
        await world.advance(4 * second)
        received = await client.receive(q, ReceiveOptions(max_messages=5))
        assert [each.message.body for each in received] == [b"m", b"o", b"d"]

    async def test_a_time_that_has_passed_is_now(self, client: Client) -> None:
        q = await made(client)
        await client.send(q, QueueMessage(body=b"x", scheduled_enqueue_time=datetime(2001, 1, 1, tzinfo=UTC)))
        assert len(await client.receive(q)) == 1

    async def test_a_batch_has_a_result_each(self, client: Client) -> None:
        q = await made(client)
        messages = [QueueMessage(body=b"1"), QueueMessage(body=bytes(2 << 20)), QueueMessage(body=b"3")]
        results = await client.send_batch(q, messages)
        assert [result.ok for result in results] == [True, False, True]
        assert isinstance(results[1].error, MessageTooLargeError)
        received = await client.receive(q, ReceiveOptions(max_messages=5))
        assert [each.message.body for each in received] == [b"1", b"3"]

    async def test_receipts_settle(self, client: Client, world: World, second: float) -> None:
        q = await made(client)
        for body in (b"acknowledge", b"reject", b"requeue", b"extend"):
            await client.send(q, QueueMessage(body=body))
        a, b, c, d = await client.receive(q, ReceiveOptions(max_messages=4, lock_duration=2 * second))
        await client.acknowledge(a.receipt)
        await client.reject(b.receipt, "why", "because")
        await client.requeue(c.receipt, delay=5 * second)
        until = await client.extend(d.receipt, 600)
        assert until is not None
        assert until - d.receipt.received_at > timedelta(seconds=300)
        await world.advance(3 * second)
        info = await client.info(q)
        assert (info.dead, info.scheduled, info.in_flight, info.ready) == (1, 1, 1, 0)
        await world.advance(3 * second)
        again = await one(client, q)
        assert (again.message.body, again.receipt.delivery_count) == (b"requeue", 2)

    async def test_batches_of_receipts_settle_together(self, client: Client) -> None:
        q = await made(client)
        await client.send_batch(q, [QueueMessage(body=b"%d" % n) for n in range(8)])
        receipts = [each.receipt for each in await client.receive(q, ReceiveOptions(max_messages=8))]
        assert all(result.ok for result in await client.acknowledge_batch(receipts[:2]))
        assert all(result.ok for result in await client.reject_batch(receipts[2:4], "why"))
        assert all(result.ok for result in await client.requeue_batch(receipts[4:6]))
        assert all(result.ok for result in await client.extend_batch(receipts[6:], 600))
        mixed = await client.acknowledge_batch([receipts[0], receipts[6]])
        assert [result.ok for result in mixed] == [False, True]
        assert isinstance(mixed[0].error, ReceiptHandleExpiredError)
        info = await client.info(q)
        assert (info.dead, info.ready, info.in_flight) == (2, 2, 1)

    async def test_a_batch_may_span_queues_one_of_which_is_gone(self, client: Client) -> None:
        for name in ("a", "b"):
            await made(client, name)
            await client.send(name, QueueMessage(body=b"x"))
        receipts = [(await one(client, name)).receipt for name in ("a", "b")]
        await client.delete_queue("a", force=True)
        results = await client.acknowledge_batch(receipts)
        assert [result.ok for result in results] == [False, True]

    async def test_a_receipt_made_from_its_text_settles(self, client: Client) -> None:
        """Receipts travel: what counts is receipt_id and queue_name."""
        q = await made(client)
        await client.send(q, QueueMessage(body=b"x"))
        receipt = (await one(client, q)).receipt
        twin = dataclasses.replace(receipt, message_id="forgotten")
        await client.acknowledge(twin)
        assert (await client.info(q)).total == 0

    @pytest.mark.parametrize(
        "receipt_id", ["", "x", "1", "1.", ".ab", "1.ab cd", "1.ab\n", "-1.ab", "1.é", "9" * 40 + ".ab", None, 7]
    )
    async def test_a_malformed_receipt_is_an_invalid_parameter(
        self, client: Client, world: World, receipt_id: Any
    ) -> None:
        q = await made(client)
        await client.send(q, QueueMessage(body=b"x"))
        receipt = dataclasses.replace((await one(client, q)).receipt, receipt_id=receipt_id)
        for settling in (client.acknowledge, client.requeue):
            with pytest.raises(InvalidParameterError):
                await settling(receipt)
        with pytest.raises(InvalidParameterError):
            await client.extend(receipt, 10)
        with pytest.raises(InvalidParameterError):
            await client.reject(receipt, "why")
        assert (await client.info(q)).in_flight == 1

    async def test_a_guessed_receipt_is_stale_and_one_of_a_message_that_never_was_is_gone(
        self, client: Client, world: World
    ) -> None:
        world.needs("stale_token_refused", level=YES)
        q = await made(client)
        await client.send(q, QueueMessage(body=b"x"))
        receipt = (await one(client, q)).receipt
        place = receipt.receipt_id.partition(".")[0]
        for guess, code in ((f"{place}.{'0' * 32}", "stale"), (f"{10**15}.{'0' * 32}", "gone")):
            with pytest.raises(ReceiptHandleExpiredError) as refusal:
                await client.acknowledge(dataclasses.replace(receipt, receipt_id=guess))
            assert refusal.value.code == code
        assert (await client.info(q)).in_flight == 1

    async def test_a_peeked_message_has_no_lock_and_settles_nothing(self, client: Client, world: World) -> None:
        world.needs("peek")
        q = await made(client)
        await client.send(q, QueueMessage(body=b"x"))
        [seen] = await client.peek(q)
        [same] = await client.receive(q, ReceiveOptions(peek=True))
        assert seen.message.body == same.message.body == b"x"
        assert (seen.lock_expires_at, seen.is_lock_expired, seen.receipt.delivery_count) == (None, True, 0)
        with pytest.raises(InvalidParameterError, match="peek"):
            await client.acknowledge(seen.receipt)
        assert len(await client.receive(q)) == 1

    async def test_a_peek_begins_at_the_number_it_is_told(self, client: Client, world: World) -> None:
        world.needs("peek")
        q = await made(client)
        await client.send_batch(q, [QueueMessage(body=b"%d" % n) for n in range(5)])
        numbers = [seen.sequence_number for seen in await client.peek(q)]
        assert numbers == sorted(numbers)
        rest = await client.receive(q, ReceiveOptions(max_messages=9).with_peek(numbers[2]))
        assert [seen.message.body for seen in rest] == [b"2", b"3", b"4"]

    async def test_any_session_means_one_session(self, client: Client, world: World) -> None:
        world.needs("sessions")
        q = await made(client)
        await client.send(q, QueueMessage(body=b"plain"))
        for number in range(4):
            await client.send(q, QueueMessage(body=b"%d" % number, session_id="ab"[number % 2]))
        options = ReceiveOptions(max_messages=9).with_any_session()
        received = await client.receive(q, options)
        assert [each.message.body for each in received] == [b"0", b"2"]
        await client.acknowledge_batch([each.receipt for each in received])
        assert [each.message.body for each in await client.receive(q, options)] == [b"1", b"3"]
        assert await client.receive(q, options) == []

    async def test_a_raw_session_is_accepted_like_a_mailboxs(self, client: Client, world: World) -> None:
        world.needs("sessions")
        q = await made(client)
        await client.send(q, QueueMessage(body=b"x", session_id="s"))
        async with await client.accept_session(q, "s") as session:
            [message] = await session.receive()
            assert message.body == b"x"
            await message.acknowledge()

    async def test_typed_and_raw_see_the_same_messages(self, client: Client) -> None:
        q = await made(client)
        box = client.mailbox(q)
        await box.send({"a": 1})
        received = await one(client, q)
        assert received.message.body == b'{"a":1}'
        await client.requeue(received.receipt)
        [message] = await box.receive()
        assert message.body == {"a": 1}

    async def test_a_raw_receive_waits(self, client: Client, world: World) -> None:
        q = await made(client)
        waiting = world.spawn(client.receive, q, ReceiveOptions(timeout=20))
        await world.pause()
        await client.send(q, QueueMessage(body=b"x"))
        assert len(await waiting) == 1

    async def test_rejecting_where_dead_lettering_is_off_is_refused(self, client: Client) -> None:
        await client.create_queue(QueueDefinition(name="q", dead_lettering=False))
        await client.send("q", QueueMessage(body=b"x"))
        received = await one(client, "q")
        with pytest.raises(UnsupportedError):
            await client.reject(received.receipt, "why")
        await client.acknowledge(received.receipt)

    async def test_a_closed_client_says_so(self, world: World) -> None:
        client = world.open()
        q = await made(client)
        await client.send(q, QueueMessage(body=b"x"))
        receipt = (await one(client, q)).receipt
        await client.close()
        with pytest.raises(MailboxConnectionError, match="this client is closed"):
            await client.send(q, QueueMessage(body=b"x"))
        with pytest.raises(MailboxConnectionError, match="this client is closed"):
            await client.acknowledge(receipt)
        assert await client.receive(q) == []

    async def test_a_wrong_kind_of_argument_is_refused(self, client: Client) -> None:
        q = await made(client)
        wrongs: list[object] = [b"x", "x", None, 7, {"body": b"x"}]
        for wrong in wrongs:
            with pytest.raises(InvalidParameterError):
                await client.send(q, wrong)  # type: ignore[arg-type]  # what the test is about
            with pytest.raises(InvalidParameterError):
                await client.acknowledge(wrong)  # type: ignore[arg-type]  # as above
            with pytest.raises(InvalidParameterError):
                await client.create_queue(wrong)  # type: ignore[arg-type]  # as above
        for wrong in ("x", 7, {"delay": 1}):
            with pytest.raises(InvalidParameterError):
                await client.send(q, QueueMessage(body=b"x"), wrong)  # type: ignore[arg-type]  # as above
            with pytest.raises(InvalidParameterError):
                await client.receive(q, wrong)  # type: ignore[arg-type]  # as above
        assert (await client.info(q)).total == 0

    async def test_values_are_frozen_and_can_be_changed_by_copies(self) -> None:
        message = QueueMessage(body=b"x")
        with pytest.raises(dataclasses.FrozenInstanceError):
            message.body = b"y"  # type: ignore[misc]  # what the test is about
        at = datetime(2030, 1, 1, tzinfo=UTC)
        fluent = (
            message.with_session("s").with_correlation("c").with_content_type("t").with_properties(a="1").with_ttl(5)
        ).with_scheduled_enqueue_time(at)
        assert fluent == QueueMessage(
            body=b"x",
            session_id="s",
            correlation_id="c",
            content_type="t",
            properties={"a": "1"},
            ttl=5,
            scheduled_enqueue_time=at,
        )
        assert SendOptions().with_delay(5).with_schedule(at) == SendOptions(scheduled_enqueue_time=at)
        assert ReceiveOptions().with_session("s").with_any_session() == ReceiveOptions(accept_any_session=True)
        assert isinstance(
            MessageReceipt(
                receipt_id="1.a", message_id="m", queue_name="q", delivery_count=1, enqueued_at=at, received_at=at
            ),
            MessageReceipt,
        )
