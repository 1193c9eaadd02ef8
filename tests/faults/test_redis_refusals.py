"""A server that is not what it should be: an evicting one, a wrong password, nobody there, somebody else there."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import postroom
from postroom.errors import AuthenticationError, ConfigurationError, MailboxConnectionError
from tests.faults.redis_rig import Caller, Flavour, Later
from tests.servers.processes import Port
from tests.servers.valkey import HOST, Server

pytestmark = pytest.mark.faults
flavours = pytest.mark.parametrize("flavour", ["sync", "async"])
PROMPTLY = 2.5


def refused(url: str, flavour: Flavour, **options: Any) -> tuple[Exception, float]:
    """What a send there raises, and after how many seconds."""
    began = time.monotonic()
    with Caller(url, flavour, **options) as caller:
        box = caller.client.mailbox("box")
        with pytest.raises(postroom.MailboxError) as error:
            caller.run(box.send, 1)
        took = time.monotonic() - began
    return error.value, took


@flavours
@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_a_server_that_evicts_is_refused_unless_that_is_allowed(
    policy: str, flavour: Flavour, new_valkey: Callable[..., Server]
) -> None:
    server = new_valkey(maxmemory_policy=policy)
    error, _ = refused(server.url, flavour)
    assert type(error) is ConfigurationError
    assert policy in str(error)
    assert "eviction='allow'" in str(error)
    assert server.address in str(error)
    assert server.call("DBSIZE") == 0
    with Caller(server.url, flavour, eviction="allow") as caller:
        box = caller.client.mailbox("box")
        caller.run(box.send, 1)
        assert [message.body for message in caller.receive(box)] == [1]


@flavours
def test_what_an_evicting_server_throws_away_is_an_honest_error_or_a_dead_letter(
    flavour: Flavour, new_valkey: Callable[..., Server]
) -> None:
    """Whoever allowed it: a queue with a key missing hangs nobody, and nothing is made up."""
    server = new_valkey(maxmemory_policy="allkeys-random")
    with Caller(server.url, flavour, eviction="allow") as caller:
        struck = 0
        for key in server.call("KEYS", "*") or [
            "{queue:box}:" + one for one in ("pending", "data", "meta", "info", "invisible")
        ]:
            box = caller.client.mailbox("box")
            caller.run(box.purge)
            caller.run(box.send_many, range(5))
            caller.receive(box, 2)
            struck += server.call("DEL", key)
            try:
                got = [message.body for message in caller.receive(box, 10)]
            except postroom.QueueNotFoundError:
                got = []
                caller.run(caller.client.mailbox("box").approximate_count)
            assert set(got) <= {2, 3, 4} or key.endswith("invisible")
        assert struck >= 4


@flavours
def test_a_volatile_policy_is_fine_as_no_live_key_ever_gets_an_end(
    flavour: Flavour, new_valkey: Callable[..., Server]
) -> None:
    server = new_valkey(maxmemory_policy="volatile-lru")
    with Caller(server.url, flavour) as caller:
        box = caller.client.mailbox("box")
        caller.run(box.send, 1, ttl=60, dedup_id="d", session_id="s")
        caller.run(box.send, 2, delay_seconds=10)
        caller.receive(box, wait_time_seconds=0.1)
        caller.receive(box, wait_time_seconds=0.1)
        keys = server.call("KEYS", "*")
        assert len(keys) > 5
        assert {server.call("TTL", key) for key in keys} == {-1}


@flavours
def test_a_server_whose_memory_is_full_says_so_and_takes_more_when_there_is_room(
    flavour: Flavour, new_valkey: Callable[..., Server]
) -> None:
    server = new_valkey(maxmemory="4mb", maxmemory_policy="noeviction")
    with Caller(server.url, flavour) as caller:
        box = caller.client.mailbox("box", bytes)
        sent = 0
        with pytest.raises(postroom.ServiceUnavailableError, match="memory") as error:
            for _ in range(100):
                caller.run(box.send, b"x" * 100_000)
                sent += 1
        assert error.value.code == "OOM"
        assert 5 < sent < 100
        server.call("CONFIG", "SET", "maxmemory", "50mb")
        caller.run(box.send, b"more")
        assert caller.run(box.approximate_count) == sent + 1


@flavours
@pytest.mark.parametrize("given", ["wrong", "none", "user", "in no need of one"])
def test_a_wrong_password_is_named_with_the_address_and_without_itself(
    flavour: Flavour, given: str, new_valkey: Callable[..., Server]
) -> None:
    server = new_valkey() if given == "in no need of one" else new_valkey(requirepass="right-one")
    login = {"wrong": ":hunter2@", "none": "", "user": "bob:hunter2@", "in no need of one": "bob:hunter2@"}[given]
    error, took = refused(f"redis://{login}{server.address}", flavour)
    assert type(error) is AuthenticationError
    assert server.address in str(error)
    assert took < PROMPTLY
    seen: BaseException | None = error
    while seen is not None:
        assert "hunter2" not in f"{seen} {seen!r}"
        seen = seen.__cause__


@pytest.mark.parametrize(
    ("flavour", "scheme"),
    [("sync", "redis"), ("async", "redis"), ("async", "redis+cluster"), ("sync", "redis+sentinel")],
)
def test_an_unknown_host_is_named_promptly(flavour: Flavour, scheme: str) -> None:
    tail = "/service" if scheme == "redis+sentinel" else ""
    error, took = refused(f"{scheme}://:hunter2@no-such-host.invalid:6379{tail}", flavour)
    assert type(error) is MailboxConnectionError
    assert "no-such-host.invalid:6379" in str(error)
    assert "hunter2" not in f"{error} {error!r} {error.__cause__!r}"
    assert took < PROMPTLY


@pytest.mark.parametrize(
    ("flavour", "scheme"),
    [("sync", "redis"), ("async", "redis"), ("async", "redis+cluster"), ("sync", "redis+sentinel")],
)
def test_a_port_where_nobody_listens_is_named_promptly(flavour: Flavour, scheme: str) -> None:
    port = Port()
    try:
        tail = "/service" if scheme == "redis+sentinel" else ""
        error, took = refused(f"{scheme}://:hunter2@{HOST}:{port.number}{tail}", flavour)
        assert type(error) is MailboxConnectionError
        assert f"{HOST}:{port.number}" in str(error)
        assert "hunter2" not in f"{error} {error!r} {error.__cause__!r}"
        assert took < PROMPTLY
    finally:
        port.release()


@pytest.fixture(params=["http", "silent", "closes", "greets", "echoes"])
def stranger(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """A plain TCP port behind which there is no Redis."""
    what: str = request.param
    listener = socket.create_server((HOST, 0))
    taken: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            taken.append(sock)
            threading.Thread(target=answer, args=(sock,), daemon=True).start()

    def answer(sock: socket.socket) -> None:
        try:
            if what == "closes":
                sock.close()
                return
            if what == "greets":
                sock.sendall(b"220 mail.example.org ESMTP\r\n")
            while data := sock.recv(1000):
                if what == "http":
                    sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                elif what == "echoes":
                    sock.sendall(data)
        except OSError:
            pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield what, listener.getsockname()[1]
    listener.close()
    for sock in taken:
        sock.close()


@flavours
def test_a_port_where_somebody_else_listens_is_named_promptly(flavour: Flavour, stranger: tuple[str, int]) -> None:
    """Who says nothing at all is given the five seconds that any connection may be silent, or the shorter `timeout`."""
    what, port = stranger
    options = {"timeout": 0.5} if what == "silent" else {}
    error, took = refused(f"redis://:hunter2@{HOST}:{port}", flavour, **options)
    assert type(error) is MailboxConnectionError
    assert f"{HOST}:{port}" in str(error)
    assert "hunter2" not in f"{error} {error!r} {error.__cause__!r}"
    assert took < PROMPTLY


@flavours
def test_a_server_that_is_still_loading_is_waited_for(flavour: Flavour, new_valkey: Callable[..., Server]) -> None:
    server = new_valkey(
        appendonly=True, appendfsync="no", key_load_delay=200, loading_process_events_interval_bytes=1024
    )
    with Caller(server.url, flavour) as caller:
        box = caller.client.mailbox("box")
        caller.run(box.send_many, range(1000))
        server.kill()
        server.launch()
        later = Later(lambda: caller.run(box.approximate_count))
        assert later.result() == 1000


@flavours
def test_a_server_with_as_many_clients_as_it_takes_is_asked_again_until_one_leaves(
    flavour: Flavour, new_valkey: Callable[..., Server]
) -> None:
    server = new_valkey()
    with Caller(server.url, flavour) as caller:
        box = caller.client.mailbox("box")
        server.call("CONFIG", "SET", "maxclients", 5)
        crowd = [socket.create_connection((HOST, server.port)) for _ in range(5)]
        for one in crowd:
            one.sendall(b"PING\r\n")
        assert b"+PONG" in crowd[0].recv(100)
        with pytest.raises(postroom.ServiceUnavailableError, match="maxclients"):
            caller.run(box.send, 1)
        later = Later(lambda: caller.run(box.send, 2))
        time.sleep(0.2)
        for one in crowd:
            one.close()
        later.result()
        assert caller.run(box.approximate_count) == 1
