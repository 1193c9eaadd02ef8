"""Mailboxes over a client of redis-py that the user made: any kind of it works, and it stays the user's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.cluster import ClusterNode as AsyncNode
from redis.cluster import ClusterNode

import postroom
from postroom import aio
from postroom.core.address import parse_url
from postroom.drivers.redis_clients import open_client
from postroom.drivers.redis_settings import Settings
from tests.servers.processes import wait_until

pytestmark = pytest.mark.slow  # sockets, and servers of all kinds


def goes_through(client: Any, name: str = "orders") -> None:
    """A message comes out as it went in, and the client lives on."""
    with postroom.RedisMailbox(name, client, body_type=dict) as orders:
        orders.send({"sku": "ä"}, attributes={"color": "blü"})
        [message] = orders.receive(wait_time_seconds=5)
        assert (message.body, message.attributes) == ({"sku": "ä"}, {"color": "blü"})
        message.acknowledge()
        assert orders.approximate_count() == 0
    assert client.get("unrelated") is None


async def goes_through_async(client: Any, name: str = "orders") -> None:
    async with aio.AsyncRedisMailbox(name, client, body_type=dict) as orders:
        await orders.send({"sku": "ä"}, attributes={"color": "blü"})
        [message] = await orders.receive(wait_time_seconds=5)
        assert (message.body, message.attributes) == ({"sku": "ä"}, {"color": "blü"})
        await message.acknowledge()
        assert await orders.approximate_count() == 0
    assert await client.get("unrelated") is None


def run(use: Callable[[Any], Awaitable[None]], make: Callable[[], Any]) -> None:
    async def main() -> None:
        async with make() as client:
            await use(client)

    asyncio.run(main())


OPTIONS = pytest.mark.parametrize(
    "options",
    [
        {},
        {"decode_responses": True},
        {"protocol": 2},
        {"protocol": 2, "decode_responses": True},
        {"db": 3},
        {"retry": None},
    ],
    ids=str,
)


@OPTIONS
def test_a_client_however_it_is_configured(options, valkey):
    with redis.Redis(port=valkey.port, **options) as client:
        goes_through(client)


@OPTIONS
def test_an_async_client_however_it_is_configured(options, valkey):
    run(goes_through_async, lambda: redis.asyncio.Redis(port=valkey.port, **options))


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 2}], ids=str)
def test_a_cluster_client_however_it_is_configured(options, valkey_cluster):
    ports = [node.port for node in valkey_cluster.nodes[:2]]
    with redis.RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port) for port in ports], **options) as client:
        for name in ("one", "two", "three"):
            goes_through(client, name)

    async def all_through(client: Any) -> None:
        for name in ("one", "two", "three"):
            await goes_through_async(client, name)

    nodes = [AsyncNode("127.0.0.1", port) for port in ports]
    run(all_through, lambda: redis.asyncio.RedisCluster(startup_nodes=nodes, **options))


@pytest.mark.slow
def test_a_client_that_sentinel_made(valkey_sentinels):
    service = valkey_sentinels.service
    hosts = [("127.0.0.1", sentinel.port) for sentinel in valkey_sentinels.sentinels]
    with redis.sentinel.Sentinel(hosts) as manager, manager.master_for(service) as client:
        goes_through(client)

    async def main() -> None:
        async with redis.asyncio.sentinel.Sentinel(hosts) as manager, manager.master_for(service) as client:
            await goes_through_async(client)

    asyncio.run(main())
    with postroom.connect(valkey_sentinels.url) as client:
        client.mailbox("orders", int).send(1)
        assert [message.body for message in client.mailbox("orders", int).receive()] == [1]


def named(servers: list[Any], name: str) -> int:
    """How many connections of that name these servers have."""
    return sum(server.call("CLIENT", "LIST").count(f" name={name} ") for server in servers)


def test_what_we_opened_to_sentinels_and_servers_is_closed_by_us(valkey_sentinels):
    everybody = [*valkey_sentinels.sentinels, *valkey_sentinels.servers]
    with postroom.connect(valkey_sentinels.url, client_name="sync-one") as client:
        client.list_queues()
        assert named(valkey_sentinels.sentinels, "sync-one") == named(valkey_sentinels.servers, "sync-one") == 1

    async def main() -> None:
        async with aio.connect(valkey_sentinels.url, client_name="async-one") as client:
            await client.list_queues()
            assert named(valkey_sentinels.sentinels, "async-one") == named(valkey_sentinels.servers, "async-one") == 1

    asyncio.run(main())
    wait_until(lambda: named(everybody, "sync-one") + named(everybody, "async-one") == 0, lambda: "all closed")


def test_a_cluster_client_of_ours_tries_its_connections_as_told(valkey_cluster):
    """redis-py's sync RedisCluster drops the option."""
    address = parse_url(valkey_cluster.url)
    make = open_client(address, "sync", Settings.of(address, {"health_check_interval": 9, "client_name": "mine"}))
    with make() as client:
        client.get("orders")
        connections = [
            connection
            for node in client.get_nodes()
            for connection in node.redis_connection.connection_pool._available_connections
            if connection.is_connected
        ]
        assert {(one.health_check_interval, one.client_name) for one in connections} == {(9, "mine")}


def test_mailboxes_of_different_namespaces_have_nothing_in_common(valkey):
    with redis.Redis(port=valkey.port) as client:
        north = postroom.RedisMailbox("orders", client, namespace="north")
        south = postroom.RedisMailbox("orders", client, namespace="south")
        north.send(1)
        assert (north.approximate_count(), south.approximate_count()) == (1, 0)
        assert {key.split(b":")[1] for key in client.keys("{queue:*")} >= {b"north/orders}"}


def test_a_bounded_mailbox_is_full_when_it_is(valkey):
    with redis.Redis(port=valkey.port) as client, postroom.RedisMailbox("orders", client, max_size=1) as orders:
        orders.send(1)
        with pytest.raises(postroom.MailboxFullError):
            orders.send(2)


def test_mailboxes_of_one_factory_work_side_by_side(valkey):
    with redis.Redis(port=valkey.port) as client:
        with postroom.RedisMailboxFactory(client, body_type=int) as mailboxes:
            waiting = mailboxes.create("slow")
            taken: list[int] = []
            receiver = threading.Thread(
                target=lambda: taken.extend(message.body for message in waiting.receive(wait_time_seconds=20))
            )
            receiver.start()
            with mailboxes.create("fast") as fast:
                fast.send(1)
                assert [message.body for message in fast.receive()] == [1]
            mailboxes.create("slow").send(2)
            receiver.join(10)
            assert taken == [2]
        assert client.ping()


def test_closing_a_factory_ends_every_wait(valkey):
    with redis.Redis(port=valkey.port) as client:
        mailboxes = postroom.RedisMailboxFactory(client, body_type=int)
        orders = mailboxes.create("orders")
        orders.approximate_count()
        results: list[Any] = []
        receiver = threading.Thread(target=lambda: results.append(orders.receive(wait_time_seconds=20)))
        receiver.start()
        mailboxes.close()
        receiver.join(10)
        assert results in ([[]], [()])


async def async_factory(client: Any) -> None:
    async with aio.AsyncRedisMailboxFactory(client, body_type=int) as mailboxes:
        one, other = mailboxes.create("one"), mailboxes.create("other")
        await asyncio.gather(*(box.send(number) for number in range(20) for box in (one, other)))
        assert (await one.approximate_count(), await other.approximate_count()) == (20, 20)
    assert one.closed
    assert await client.ping()


def test_an_async_factory_shares_one_client(valkey):
    run(async_factory, lambda: redis.asyncio.Redis(port=valkey.port))
