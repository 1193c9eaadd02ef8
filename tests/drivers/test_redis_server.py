"""What only a server can show: its keys, its memory, its replicas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

import postroom
from postroom import QueueDefinition
from postroom.errors import ConfigurationError, DurabilityError, ServiceUnavailableError
from tests.servers.valkey import Server

NewServer = Callable[..., Server]


def busy(url: str, **options: str) -> postroom.QueueClient:
    """A client of a queue in which everything that is kept is kept."""
    client = postroom.connect(url, **options)
    client.create_queue(QueueDefinition("orders", auto_delete_on_idle=3600))
    orders = client.mailbox("orders")
    orders.send(1, dedup_id="d", session_id="s", ttl=600)
    orders.send(2, delay_seconds=600)
    orders.send_many([3, 4])
    with orders.accept_session("s") as session:
        session.set_state(b"x")
        session.receive()
    [first, *_] = orders.receive(max_messages=2)
    first.dead_letter("why")
    orders.receive(wait_time_seconds=0.01)
    return client


@pytest.mark.parametrize(("namespace", "prefix"), [("", "{queue:orders}:"), ("north", "{queue:north/orders}:")])
def test_all_keys_of_a_queue_lie_in_one_slot_and_never_expire(valkey: Server, namespace: str, prefix: str) -> None:
    with busy(valkey.url, namespace=namespace), valkey.client(decode_responses=True) as raw:
        keys = [key for key in raw.scan_iter() if not key.endswith(":names")]
        assert len(keys) > 8
        assert [key for key in keys if not key.startswith(prefix)] == []
        assert [key for key in keys if raw.ttl(key) != -1] == []


def test_a_deleted_queue_leaves_nothing_but_what_waiters_may_still_read(valkey: Server) -> None:
    with busy(valkey.url) as client, valkey.client(decode_responses=True) as raw:
        assert client.delete_queue("orders", force=True) > 0
        left = [key for key in raw.scan_iter() if raw.ttl(key) == -1]
        assert [key for key in left if key != "{queue:}:names"] == []
        assert client.list_queues() == []


def test_a_full_server_refuses_sends_and_can_be_drained(new_valkey: NewServer) -> None:
    """An acknowledge must not need the memory that it frees."""
    with postroom.connect(new_valkey(maxmemory="4mb", maxmemory_policy="noeviction").url) as client:
        box = client.mailbox("box", bytes)
        stored = 0
        with pytest.raises(ServiceUnavailableError, match="memory is full"):
            while True:
                stored += sum(result.ok for result in box.send_many([bytes(1000)] * 100))
        drained = 0
        while messages := box.receive(max_messages=50):
            drained += sum(result.ok for result in box.acknowledge_many(messages))
        assert drained == stored > 500
        box.send(b"again")


def test_an_evicting_server_is_refused_unless_that_is_wanted(new_valkey: NewServer) -> None:
    url = new_valkey(maxmemory="8mb", maxmemory_policy="allkeys-lfu").url
    with postroom.connect(url) as client, pytest.raises(ConfigurationError, match="allkeys-lfu"):
        client.mailbox("box").send(1)
    with postroom.connect(url, eviction="allow") as client:
        client.mailbox("box").send(1)


@pytest.mark.slow
def test_a_send_waits_for_its_replicas_or_says_so(new_valkey: NewServer) -> None:
    primary = new_valkey()
    with postroom.connect(primary.url, replicas=1, replicas_timeout=0.1) as client:
        with pytest.raises(DurabilityError, match="0 of 1 replicas") as alone:
            client.mailbox("box").send(1)
        assert alone.value.transient
        # It is stored, as the error says; and whatever is no send does not wait.
        [result] = client.mailbox("box").send_many([2])
        assert isinstance(result.error, DurabilityError)
        assert [message.body for message in client.mailbox("box").receive(max_messages=5)] == [1, 2]
        replica = new_valkey()
        replica.follow(primary)
    with postroom.connect(primary.url, replicas=1) as client:
        box = client.mailbox("box")
        box.send(3)
        with redis.Redis(port=replica.port) as copy:
            assert copy.hlen("{queue:box}:data") >= 1
        [message] = box.receive()
        message.acknowledge()  # does not wait: losing it means a second delivery
