"""The servers that other tests stand on: they start, break and come back as those tests believe."""

import importlib.util
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.processes import Port, ServerFailedError, server_binary, wait_until
from tests.servers.valkey import HOST, Server


@pytest.fixture
def client():
    """A client on this port that tries once."""
    clients = []

    def connect(port, *, timeout=5):
        made = redis.Redis(HOST, port, socket_timeout=timeout, retry=Retry(NoBackoff(), 0))
        clients.append(made)
        return made

    yield connect
    for made in clients:
        made.close()


# --- one server -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", ["first", "second"])
def test_the_shared_server_comes_empty(valkey, turn):
    assert valkey.call("DBSIZE") == 0
    assert valkey.call("SET", "left behind", turn) == "OK"


def test_a_killed_server_comes_back_on_its_port_with_what_it_had_written(new_valkey):
    server = new_valkey(appendonly=True, appendfsync="always")
    server.call("SET", "a", 1)
    port, pid = server.port, server.pid
    server.kill()
    assert not server.answers()
    server.start()
    assert (server.port, server.call("GET", "a")) == (port, "1")
    assert server.pid != pid


def test_without_a_file_a_killed_server_has_forgotten_everything(new_valkey):
    server = new_valkey()
    server.call("SET", "a", 1)
    server.kill()
    assert server.start().call("GET", "a") is None


def test_a_paused_server_is_connected_to_and_says_nothing_until_it_is_resumed(new_valkey, client):
    server = new_valkey()
    server.pause()
    with pytest.raises(redis.TimeoutError):
        client(server.port, timeout=0.1).ping()
    server.resume()
    assert client(server.port).ping()


def test_a_password_is_in_the_url_and_without_it_nothing_is_answered(new_valkey, client):
    server = new_valkey(requirepass="p w/")
    with redis.Redis.from_url(server.url) as caller:
        assert caller.ping()
    with (
        redis.Redis.from_url(server.url.replace(server.login, "")) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()


def test_an_option_that_the_server_does_not_know_fails_with_its_words(new_valkey):
    with pytest.raises(ServerFailedError, match="Bad directive"):
        new_valkey(no_such_option=1)


def test_a_server_outlives_the_thread_that_started_it(new_valkey):
    """The system ties it to a thread, which must not be that one."""
    started = []
    thread = threading.Thread(target=lambda: started.append(new_valkey()))
    thread.start()
    thread.join()
    assert started[0].answers()


def test_a_server_ends_with_a_process_that_is_killed():
    script = "from tests.servers.valkey import Server; print(Server().start().port, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": "."}, stdin=-1, stdout=-1
    ) as process:
        port = int(process.stdout.readline())
        socket.create_connection((HOST, port)).close()
        process.send_signal(signal.SIGKILL)

    def is_gone():
        with socket.socket() as sock:
            return sock.connect_ex((HOST, port)) != 0

    wait_until(is_gone, "the server ends", timeout=5)


def test_another_server_never_gets_the_port_of_one_that_is_down(new_valkey):
    server = new_valkey()
    server.kill()
    taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with taken, pytest.raises(OSError):
        taken.bind((HOST, server.port))  # what Port does before it hands out a number


def test_a_port_that_somebody_else_took_is_changed_for_another():
    with Server() as server, socket.socket() as sock:
        server.stop()
        other = Server()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((HOST, other.port))
        sock.listen()
        before = other.port
        with other:
            assert other.port != before


def test_a_missing_binary_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.delenv("POSTROOM_VALKEY_SERVER", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ServerFailedError, match="make venv"):
        server_binary.__wrapped__()
    monkeypatch.setenv("POSTROOM_VALKEY_SERVER", "/nowhere/valkey-server")
    with pytest.raises(ServerFailedError, match="/nowhere/valkey-server"):
        server_binary.__wrapped__()


# --- the proxy --------------------------------------------------------------------------------------------------


def test_a_black_hole_swallows_both_directions_and_counts_what_it_swallowed(valkey, new_proxy, client):
    proxy = new_proxy(valkey)
    old, new = client(proxy.port, timeout=0.1), client(proxy.port, timeout=0.1)
    assert old.ping()
    proxy.black_hole()
    for caller in (old, new):
        with pytest.raises(redis.TimeoutError):
            caller.incr("n")
    assert valkey.call("GET", "n") is None
    assert proxy.counts.lost_requests == proxy.counts.connections == 2
    proxy.heal()
    assert client(proxy.port).incr("n") == 1


def test_of_lost_answers_the_server_knows_nothing(valkey, new_proxy, client):
    proxy = new_proxy(valkey)
    caller = client(proxy.port, timeout=0.1)
    caller.ping()
    proxy.lose_answers()
    with pytest.raises(redis.TimeoutError):
        caller.incr("n")
    wait_until(lambda: valkey.call("GET", "n") == "1", "it is done")
    assert proxy.counts.lost_answers == 1


@pytest.mark.parametrize(("where", "done"), [("cut_before_request", None), ("cut_before_answer", "1")])
def test_one_request_is_cut_before_or_after_it_is_done(valkey, new_proxy, client, where, done):
    proxy = new_proxy(valkey)
    caller = client(proxy.port)
    caller.ping()
    getattr(proxy, where)(b"needle")
    assert caller.ping()  # which is not the one
    with pytest.raises(redis.ConnectionError):
        caller.incr("a needle in hay")
    assert valkey.call("GET", "a needle in hay") == done
    assert proxy.counts.cut == 1
    assert caller.incr("a needle in hay")  # only once


def test_cut_connections_are_reset_and_new_ones_pass(valkey, new_proxy):
    proxy = new_proxy(valkey)
    with socket.create_connection((HOST, proxy.port)) as sock:
        sock.sendall(b"PING\r\n")
        assert sock.recv(16) == b"+PONG\r\n"
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            sock.recv(16)
    with socket.create_connection((HOST, proxy.port)) as sock:
        sock.sendall(b"PING\r\n")
        assert sock.recv(16) == b"+PONG\r\n"


def test_a_refusing_proxy_is_not_there_until_healed(valkey, new_proxy, client):
    proxy = new_proxy(valkey)
    proxy.refuse()
    with pytest.raises(redis.ConnectionError, match="refused"):
        client(proxy.port).ping()
    proxy.heal()
    assert client(proxy.port).ping()


def test_delayed_chunks_arrive_late_and_in_order(valkey, new_proxy):
    proxy = new_proxy(valkey)
    with socket.create_connection((HOST, proxy.port)) as sock:
        sock.sendall(b"PING\r\n")
        sock.recv(16)
        proxy.delay(0.05)
        before = time.monotonic()
        for word in (b"one", b"two"):
            sock.sendall(b"PING " + word + b"\r\n")
        got = b""
        while b"two" not in got:
            got += sock.recv(64)
        assert time.monotonic() - before >= 0.1
    assert got == b"$3\r\none\r\n$3\r\ntwo\r\n"
    assert proxy.counts.delayed


def test_tls_is_ended_by_the_proxy_for_who_trusts_it(valkey, new_tls_proxy):
    proxy = new_tls_proxy(valkey)
    with redis.Redis.from_url(proxy.url, ssl_ca_certs=proxy.ca) as trusting:
        assert trusting.ping()
    with redis.Redis.from_url(proxy.url) as wary, pytest.raises(redis.ConnectionError, match="certificate"):
        wary.ping()
    with (
        socket.create_connection((HOST, proxy.port)) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        ssl.create_default_context().wrap_socket(plain, server_hostname=HOST)
    wait_until(lambda: proxy.counts.without_tls == 2, "both are counted", timeout=5)


@pytest.mark.slow
def test_a_replica_lags_behind_a_proxy_that_holds(new_valkey, new_proxy):
    primary = new_valkey()
    proxy = new_proxy(primary)
    replica = new_valkey().follow(proxy)
    with primary.client() as caller:
        caller.set("a", 1)
        assert caller.wait(1, 5000) == 1
        proxy.hold()
        caller.set("a", 2)
        assert caller.wait(1, 50) == 0
        assert replica.call("GET", "a") == "1"
        proxy.heal()
        assert caller.wait(1, 5000) == 1
    assert replica.call("GET", "a") == "2"
    assert proxy.counts.held


# --- several servers --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.xdist_group("valkey_cluster")
def test_a_slot_moves_with_its_keys_while_clients_are_redirected(valkey_cluster):
    """ASK for keys that are away, TRYAGAIN for a request with keys on both sides, MOVED in the end."""
    source = valkey_cluster.primary_of("{a}")
    target = next(node for node in valkey_cluster.primaries() if node is not source)
    for n in range(10):
        source.call("SET", f"{{a}}{n}", n)
    told = {}

    def ask(step):
        try:
            told[step] = source.call("EXISTS", *(f"{{a}}{n}" for n in range(10)))
        except redis.ResponseError as error:
            told[step] = type(error)

    slot = valkey_cluster.slot_of("{a}")
    assert valkey_cluster.move_slot(slot, target, between=ask) == 10
    assert told == {
        "marked": 10,
        "half": redis.exceptions.TryAgainError,
        "moved": redis.exceptions.AskError,
        "done": redis.exceptions.MovedError,
    }
    assert valkey_cluster.primary_of("{a}") is target
    assert target.call("GET", "{a}7") == "7"


@pytest.mark.slow
@pytest.mark.xdist_group("valkey_cluster")
def test_the_shared_cluster_comes_empty_and_its_url_names_who_can_be_asked(valkey_cluster):
    assert [node.call("DBSIZE") for node in valkey_cluster.nodes] == [0] * 6
    first = valkey_cluster.url.removeprefix("redis+cluster://").split(",")[0]
    host, port = first.split(":")
    with redis.RedisCluster(host=host, port=int(port)) as caller:
        assert caller.set("a", 1)
        assert len(caller.get_primaries()) == len(caller.get_replicas()) == 3


@pytest.mark.slow
def test_in_a_cluster_the_replica_of_a_killed_primary_takes_over(new_valkey_cluster):
    cluster = new_valkey_cluster(node_timeout=500)
    with cluster.primary_of("a").client() as caller:
        caller.set("a", 1)
        assert caller.wait(1, 5000) == 1
    old, new = cluster.fail_over("a")
    assert cluster.primary_of("a") is new is not old
    assert new.call("GET", "a") == "1"
    old.start()
    cluster.wait_ready()
    assert cluster.replica_of("a") is old


@pytest.mark.slow
def test_sentinels_make_the_replica_of_a_killed_primary_the_primary(new_valkey_sentinels):
    watched = new_valkey_sentinels(requirepass="p w")
    with watched.primary.client() as caller:
        caller.set("a", 1)
        assert caller.wait(1, 5000) == 1
    old, new = watched.fail_over()
    assert (watched.primary, watched.replica) == (new, old)
    assert new.call("GET", "a") == "1"
    old.start()
    watched.wait_ready()
    assert old.info("replication")["role"] == "slave"


@pytest.mark.slow
@pytest.mark.xdist_group("valkey_sentinels")
def test_redis_py_finds_the_primary_behind_the_shared_sentinels(valkey_sentinels):
    addresses = [(HOST, sentinel.port) for sentinel in valkey_sentinels.sentinels]
    sentinel = redis.Sentinel(addresses)
    with sentinel.master_for(valkey_sentinels.service) as caller:
        assert caller.set("a", 1)
    assert valkey_sentinels.primary.call("GET", "a") == "1"
    for each in sentinel.sentinels:
        each.close()


def test_ports_lie_where_no_client_is_given_one():
    port = Port()
    assert port.number < 32768
    port.release()
