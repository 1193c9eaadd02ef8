"""The mailboxes for tests behave, remember, and fail as told."""

import asyncio
from dataclasses import dataclass

import pytest

from postroom import (
    InvalidParameterError,
    MailboxConnectionError,
    MailboxFullError,
    MessageFinalizedError,
    QueueDefinition,
    RateLimitError,
    ReceiptHandleExpiredError,
    Reject,
    Retry,
    SerializationError,
)
from postroom.testing import (
    AsyncCollectingMailbox,
    AsyncFakeMailbox,
    AsyncNullMailbox,
    CollectingMailbox,
    FakeMailbox,
    ManualClock,
    NullMailbox,
)


@dataclass
class Order:
    sku: str
    qty: int


@pytest.fixture
def orders():
    return FakeMailbox("orders", Order)


def test_the_example_of_the_design_works(orders):
    orders.send(Order("A-1", 500))
    with orders.receive()[0]:
        raise Retry(delay=60)
    assert not orders.receive()
    orders.clock.advance(60)
    assert [message.delivery_count for message in orders.receive()] == [1]


def test_every_state_can_be_looked_at(orders):
    for sku in ("ready", "in flight", "acknowledged", "dead"):
        orders.send(Order(sku, 1))
    orders.send(Order("scheduled", 1), delay_seconds=60)
    taken = {message.body.sku: message for message in orders.receive(max_messages=4)}
    taken["ready"].nack()
    taken["acknowledged"].acknowledge()
    taken["dead"].dead_letter("why")

    def skus(messages):
        return [seen.body.sku for seen in messages]

    assert skus(orders.ready) == ["ready"]
    assert skus(orders.in_flight) == ["in flight"]
    assert skus(orders.scheduled) == ["scheduled"]
    assert skus(orders.acknowledged) == ["acknowledged"]
    assert skus(orders.dead) == ["dead"]
    assert [order.sku for order in orders.sent] == ["ready", "in flight", "acknowledged", "dead", "scheduled"]
    orders.forget()
    assert orders.sent == orders.acknowledged == []
    assert orders.approximate_count() == 3


def test_bodies_go_through_production_serialisation(orders):
    order = Order("A-1", 1)
    orders.send(order)
    [message] = orders.receive()
    assert message.body == order
    assert message.body is not order
    with pytest.raises(SerializationError):
        orders.send(Order("A-1", "many"))  # type: ignore[arg-type]  # what the test is about


def test_without_serialisation_bodies_are_the_same_objects():
    box = FakeMailbox("box", serialize=False)
    body = object()
    box.send(body)
    assert box.receive()[0].body is body
    assert box.in_flight[0].body is body


def test_nobody_waits(orders):
    before = orders.clock.now()
    assert orders.receive(wait_time_seconds=3600) == []
    assert orders.clock.now() == before + 3600
    orders.send(Order("A-1", 1), delay_seconds=600)
    [message] = orders.receive(wait_time_seconds=3600)
    assert orders.clock.now() == before + 4200
    assert message.delivery_count == 1


def test_an_expired_handle_is_stale_and_the_message_comes_again(orders):
    orders.send(Order("A-1", 1))
    [message] = orders.receive()
    orders.expire_handle(message)
    for settle in (message.acknowledge, message.nack, lambda: message.extend_visibility(5)):
        with pytest.raises(ReceiptHandleExpiredError) as refusal:
            settle()
        assert refusal.value.code == "stale"
        message._final = False  # a second try with the same object would only say that it was settled
    [again] = orders.receive()
    assert again.delivery_count == 2
    orders.expire_handle(again.receipt_handle)
    with pytest.raises(InvalidParameterError):
        orders.expire_handle(again)


def test_an_outage_lasts_until_it_is_over(orders):
    orders.send(Order("A-1", 1))
    [message] = orders.receive()
    orders.set_connection_error()
    for call in (
        lambda: orders.send(Order("A-2", 1)),
        orders.receive,
        message.acknowledge,
        message.nack,
        orders.approximate_count,
        orders.purge,
        orders.peek,
    ):
        with pytest.raises(MailboxConnectionError):
            call()
    assert len(orders.in_flight) == 1  # the test itself still sees everything
    orders.clear_connection_error()
    message.acknowledge()
    assert orders.approximate_count() == 0


def test_an_outage_can_have_an_error_of_ones_own(orders):
    orders.set_connection_error(RateLimitError("slow down", retry_after=7))
    with pytest.raises(RateLimitError) as refusal:
        orders.send(Order("A-1", 1))
    assert refusal.value.retry_after == 7
    orders.set_connection_error(OSError("no route"))
    with pytest.raises(OSError, match="no route"):
        orders.receive()
    orders.clear_connection_error()
    orders.send(Order("A-1", 1))


def test_a_chosen_operation_fails_as_often_as_told(orders):
    fault = orders.fail("send", MailboxFullError("no room"), times=2, skip=1)
    orders.send(Order("A-1", 1))
    for _ in range(2):
        with pytest.raises(MailboxFullError):
            orders.send(Order("A-2", 1))
    orders.send(Order("A-3", 1))
    assert fault.struck == 2
    assert [order.sku for order in orders.sent] == ["A-1", "A-3"]


def test_faults_tell_the_ways_of_settling_apart(orders):
    orders.send(Order("A-1", 1))
    orders.fail("acknowledge", MailboxConnectionError("gone"), times=None)
    [message] = orders.receive()
    with pytest.raises(MailboxConnectionError):
        message.acknowledge()
    message.extend_visibility(60)
    message.nack()
    orders.heal()
    orders.receive()[0].acknowledge()


def test_a_lost_answer_is_a_settle_that_happened(orders):
    orders.send(Order("A-1", 1))
    [message] = orders.receive()
    orders.fail("acknowledge", MailboxConnectionError("the answer was lost"), after=True)
    with pytest.raises(MailboxConnectionError):
        message.acknowledge()
    assert len(orders.acknowledged) == 1
    message.acknowledge()  # "gone" is its own success
    with pytest.raises(MessageFinalizedError):
        message.acknowledge()


def test_a_lost_answer_to_a_receive_gives_everything_back(orders):
    orders.send(Order("A-1", 1))
    orders.fail("receive", MailboxConnectionError("the answer was lost"), after=True)
    with pytest.raises(MailboxConnectionError):
        orders.receive()
    [message] = orders.receive()
    assert message.delivery_count == 1


def test_an_unknown_operation_cannot_fail(orders):
    with pytest.raises(InvalidParameterError, match="acknowledge"):
        orders.fail("ack", OSError())
    with pytest.raises(InvalidParameterError):
        orders.fail("send", "boom")


def test_a_message_can_be_injected_with_a_past(orders):
    id = orders.inject_message(Order("A-1", 1), msg_id="m-1", delivery_count=4, reply_to="reply-1")
    [message] = orders.receive()
    assert (id, message.id, message.delivery_count, message.reply_to) == ("m-1", "m-1", 5, "reply-1")
    orders.inject_message(Order("A-2", 1))
    assert orders.receive()[0].delivery_count == 1
    for wrong in (-1, True, 1.5):
        with pytest.raises(InvalidParameterError):
            orders.inject_message(Order("A-2", 1), delivery_count=wrong)


def test_garbage_can_be_injected(orders):
    orders.inject_raw(b"garbage")
    assert orders.receive() == []
    assert [dead.body for dead in orders.dead] == [b"garbage"]


def test_a_fake_can_have_a_definition():
    box = FakeMailbox("q", definition=QueueDefinition(name="q", max_delivery_count=1))
    box.send(1)
    box.receive()[0].nack()
    assert [dead.body for dead in box.dead] == [1]
    with pytest.raises(InvalidParameterError):
        FakeMailbox("q", definition=QueueDefinition(name="other"))


def test_outcomes_of_with_are_seen(orders):
    for _ in range(2):
        orders.send(Order("A-1", 1))
    with orders.receive()[0]:
        pass
    with orders.receive()[0]:
        raise Reject("why")
    assert (len(orders.acknowledged), len(orders.dead)) == (1, 1)


def test_two_fakes_share_nothing_but_may_share_a_clock():
    clock = ManualClock()
    one, other = FakeMailbox("box", clock=clock), FakeMailbox("box", clock=clock)
    one.send(1)
    assert other.receive() == []
    assert one.clock is other.clock is clock


def test_a_collecting_mailbox_collects(orders):
    box = CollectingMailbox("orders", Order)
    id = box.send(Order("A-1", 1), attributes={"k": "v"})
    box.send_many([Order("A-2", 2), Order("A-3", 3)])
    assert box.sent == [Order("A-1", 1), Order("A-2", 2), Order("A-3", 3)]
    assert (box.sent_messages[0].id, box.sent_messages[0].attributes["k"]) == (id, "v")
    assert box.receive(wait_time_seconds=20) == []
    assert box.approximate_count() == 0
    with pytest.raises(SerializationError):
        box.send("no order")  # type: ignore[arg-type]  # what the test is about


def test_a_null_mailbox_swallows():
    box = NullMailbox("orders", Order)
    assert box.send(Order("A-1", 1))
    assert box.sent == []
    assert box.receive(wait_time_seconds=20) == []
    with pytest.raises(SerializationError):
        box.send(7)  # type: ignore[arg-type]  # what the test is about


def test_the_async_twins_do_the_same():
    async def story():
        async with AsyncFakeMailbox("orders", Order) as orders:
            await orders.send(Order("A-1", 1), delay_seconds=5)
            [message] = await orders.receive(wait_time_seconds=20)
            orders.expire_handle(message)
            with pytest.raises(ReceiptHandleExpiredError):
                await message.acknowledge()
            fault = orders.fail("receive", MailboxConnectionError("gone"))
            with pytest.raises(MailboxConnectionError):
                await orders.receive()
            [message] = await orders.receive()
            await message.acknowledge()
            assert (fault.struck, len(orders.acknowledged)) == (1, 1)
        collecting, null = AsyncCollectingMailbox("orders", Order), AsyncNullMailbox("orders", Order)
        await collecting.send(Order("A-1", 1))
        await null.send(Order("A-1", 1))
        assert (collecting.sent, null.sent) == ([Order("A-1", 1)], [])
        assert await null.receive(wait_time_seconds=20) == []

    asyncio.run(story())
