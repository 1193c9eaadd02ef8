"""What the type checkers must see. mypy and pyright read this file; pytest only imports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_type

import postroom
from postroom import aio
from postroom.testing import CollectingMailbox, FakeMailbox


@dataclass
class Order:
    sku: str


@dataclass
class Receipt:
    total: float


def sync_flavour(client: postroom.QueueClient) -> None:
    orders = client.mailbox("orders", Order, reply_type=Receipt)
    assert_type(orders, postroom.Mailbox[Order, Receipt])
    assert_type(orders.send(Order("A")), str)
    assert_type(orders.send_many([Order("A")]), list[postroom.SendResult])
    received = orders.receive(max_messages=10)
    assert_type(received, Sequence[postroom.Message[Order, Receipt]])
    for message in orders.stream():
        with message:
            assert_type(message.body, Order)
            assert_type(message.reply(Receipt(1.0)), str)
            assert_type(message.lease.token, int)
    assert_type(orders.peek()[0].body, Order)
    assert_type(orders.dead_letters, postroom.DeadLetters[Order, Receipt])
    for dead in orders.dead_letters.peek():
        assert_type(dead, postroom.DeadLetter[Order])
        assert_type(dead.death.reason, str)
    assert_type(orders.dead_letters.redrive(where=lambda dead: dead.body.sku == "A"), postroom.Redriven)
    with orders.accept_session("s") as session:
        assert_type(session.receive()[0].body, Order)
        assert_type(session.state(), bytes | None)
    replies = client.mailbox("replies", Receipt)
    assert_type(replies, postroom.Mailbox[Receipt, Any])
    orders.send(Order("A"), reply_to=replies)
    assert_type(client.mailbox("anything"), postroom.Mailbox[Any, Any])
    assert_type(client.capabilities.ttl, postroom.Level)
    assert_type(client.info("orders").definition, postroom.QueueDefinition)
    assert_type(client.receive("orders")[0].receipt, postroom.MessageReceipt)


async def async_flavour(client: aio.AsyncQueueClient) -> None:
    orders = client.mailbox("orders", Order, reply_type=Receipt)
    assert_type(orders, aio.AsyncMailbox[Order, Receipt])
    assert_type(await orders.send(Order("A")), str)
    received = await orders.receive(max_messages=10)
    assert_type(received, Sequence[aio.AsyncMessage[Order, Receipt]])
    async for message in orders.stream():
        async with message:
            assert_type(message.body, Order)
            assert_type(await message.reply(Receipt(1.0)), str)
    assert_type(await orders.dead_letters.redrive(), postroom.Redriven)
    async with await orders.accept_session() as session:
        assert_type((await session.receive())[0].body, Order)


def only_the_body_need_be_named(orders: postroom.Mailbox[Order], path: str) -> None:
    """Who expects no replies says nothing about them."""
    assert_type(orders, postroom.Mailbox[Order, Any])
    assert_type(FakeMailbox("orders", Order), FakeMailbox[Order, Any])
    assert_type(CollectingMailbox("orders", Order), CollectingMailbox[Order, Any])
    assert_type(postroom.InMemoryMailbox("orders", Order), postroom.InMemoryMailbox[Order, Any])
    assert_type(postroom.SqliteMailbox("orders", Order, path=path), postroom.SqliteMailbox[Order, Any])
    assert_type(aio.AsyncInMemoryMailbox("orders", Order), aio.AsyncInMemoryMailbox[Order, Any])
    assert_type(postroom.RedisMailbox("orders", object(), body_type=Order), postroom.RedisMailbox[Order, Any])
    many = postroom.RedisMailboxFactory(object(), body_type=Order, reply_type=Receipt)
    assert_type(many.create("orders"), postroom.RedisMailbox[Order, Receipt])
    assert_type(aio.AsyncRedisMailboxFactory(object()).create("orders"), aio.AsyncRedisMailbox[Any, Any])
    assert_type(postroom.InMemoryMailbox("orders", Order, reply_type=Receipt), postroom.InMemoryMailbox[Order, Receipt])
    either: postroom.InMemoryMailbox[Order | Receipt] = postroom.InMemoryMailbox("either", Order | Receipt)
    assert_type(either.receive()[0].body, Order | Receipt)


if TYPE_CHECKING:  # mistakes that must be seen: an ignore that hides nothing is an error itself

    def wrong(orders: postroom.Mailbox[Order, Receipt]) -> None:
        orders.send("A")  # type: ignore[arg-type]
        orders.send(Order("A"), delay="soon")  # type: ignore[call-arg]
        orders.send(Order("A"), priority="high")  # type: ignore[arg-type]
        orders.receive()[0].reply(Order("A"))  # type: ignore[arg-type]
        orders.receive(10)  # type: ignore[call-arg]
        postroom.QueueDefinition(name="q", overflow="explode")  # type: ignore[arg-type]


def test_what_is_typed_also_runs() -> None:
    """The annotations above hold at run time for a store in memory."""
    client = postroom.connect("memory://")
    orders = client.mailbox("orders", Order, reply_type=Receipt)
    orders.send(Order("A"))
    [message] = orders.receive()
    assert isinstance(message.body, Order)
