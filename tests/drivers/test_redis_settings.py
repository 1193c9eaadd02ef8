"""What redis:// URLs and options say, which clients they make, and which clients of the user's are taken. No server."""

from __future__ import annotations

import math
import pathlib
import socket
import subprocess
import sys
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.cluster import ClusterNode

import postroom
from postroom import ConfigurationError, aio, factory
from postroom.core.address import parse_url
from postroom.core.capabilities import WEAKER, YES
from postroom.drivers.redis_clients import open_client
from postroom.drivers.redis_kinds import check_flavour, kind_of, socket_timeout_of, where_of
from postroom.drivers.redis_settings import OPTIONS, USE_OPTIONS, Settings, capabilities
from postroom.drivers.redis_url import SCHEMES, Place
from postroom.testing import ManualClock
from postroom.testing.conformance.gaps import unlawful

SECRET = "s3cr/et@:#?"
QUOTED = "s3cr%2Fet%40%3A%23%3F"


def read(url: str, **options: Any) -> Settings:
    return Settings.of(parse_url(url), options)


def made(url: str, flavour: Any = "sync", **options: Any) -> Any:
    """The client of a URL, of a kind that does not connect while it is made."""
    address = parse_url(url)
    return open_client(address, flavour, Settings.of(address, options))()


# --- URLs


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", ("single", False, (("localhost", 6379),), "", None)),
        ("redis://shop", ("single", False, (("shop", 6379),), "", None)),
        ("redis://shop:7000/3", ("single", False, (("shop", 7000),), "", 3)),
        ("rediss://shop/", ("single", True, (("shop", 6379),), "", None)),
        ("valkey://10.0.0.1:1", ("single", False, (("10.0.0.1", 1),), "", None)),
        ("valkeys://shop", ("single", True, (("shop", 6379),), "", None)),
        ("redis://[::1]:7000/0", ("single", False, (("::1", 7000),), "", 0)),
        ("redis://[fe80::1]", ("single", False, (("fe80::1", 6379),), "", None)),
        ("redis+cluster://a:7000,b", ("cluster", False, (("a", 7000), ("b", 6379)), "", None)),
        ("rediss+cluster://a:7000/0", ("cluster", True, (("a", 7000),), "", 0)),
        ("redis+cluster://[::1]:1,[::2]:2", ("cluster", False, (("::1", 1), ("::2", 2)), "", None)),
        ("redis+sentinel://a,b:1/main", ("sentinel", False, (("a", 26379), ("b", 1)), "main", None)),
        ("valkeys+sentinel://a/my main/4", ("sentinel", True, (("a", 26379),), "my main", 4)),
    ],
)
def test_a_url_says_where(url, expected):
    place = Place.of(parse_url(url))
    assert (place.kind, place.tls, place.hosts, place.service, place.db) == expected


def test_a_url_may_name_a_unix_socket():
    place = Place.of(parse_url("redis+unix:///run/redis/my%20redis.sock"))
    assert (place.kind, place.path) == ("unix", "/run/redis/my redis.sock")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://a,b", r"redis\+cluster://"),
        ("redis://a:port", "1 to 65535"),
        ("redis://a:0", "1 to 65535"),
        ("redis://a:65536", "1 to 65535"),
        ("redis://a:99999999999999999999", "1 to 65535"),
        ("redis://a:-1", "1 to 65535"),
        ("redis://a b", "host:port"),
        ("redis://-a", "host:port"),
        ("redis://a/three", "number of a database"),
        ("redis://a/-1", "number of a database"),
        ("redis://a/1/2", "number of a database"),
        ("redis://a/70000", "number of a database"),
        ("redis+cluster://", "at least one node"),
        ("redis+cluster://a/1", "database 0 alone"),
        ("redis+cluster://a,,b", "host:port"),
        ("redis+sentinel://", "at least one Sentinel"),
        ("redis+sentinel://a", "mymaster"),
        ("redis+sentinel://a//3", "mymaster"),
        ("redis+unix://run/redis.sock", "third slash"),
        ("redis+unix:///", "third slash"),
        ("redis://[::g]:1", "brackets"),
        ("redis://[::1]1", "brackets"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused_with_a_hint(url, says):
    with pytest.raises(ConfigurationError, match="brackets|no URL" if "[" in url else says):
        postroom.connect(url)


def test_every_scheme_is_known_to_connect():
    assert {scheme for scheme, module in factory._BUILT_IN.items() if module.endswith(".redis")} == set(SCHEMES)


@pytest.mark.parametrize("flavour", [postroom, aio])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_connecting_connects_to_nobody(scheme, flavour):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        rest = {"sentinel": f"{host}/main", "unix": "/nowhere.sock"}.get(scheme.partition("+")[2], host)
        flavour.connect(f"{scheme}://{rest}")
        with pytest.raises(BlockingIOError):
            listener.accept()


# --- passwords


@pytest.mark.parametrize(
    "url",
    [
        f"redis://app:{SECRET}@shop",
        f"redis://app:{QUOTED}@shop:port",
        f"redis://app:{QUOTED}@shop/three",
        f"redis://app:{QUOTED}@a,b",
        f"redis://app:{QUOTED}@shop?bar=1",
        f"redis://app:{QUOTED}@shop?timeout=soon",
        f"redis+cluster://app:{QUOTED}@shop/3",
        f"redis+sentinel://app:{QUOTED}@shop",
        f"redis+sentinel://app:s3cr/et@shop/main?sentinel_password={QUOTED}",
        f"redis://shop?sentinel_password={QUOTED}",
        "redis://app:s3cr/et@shop:6379",
        "redis://:s3cr@et@shop:6379/x",
    ],
)
def test_a_refused_url_shows_no_password(url):
    with pytest.raises(ConfigurationError) as refused:
        postroom.connect(url)
    assert "s3cr" not in str(refused.value) + repr(refused.value.__cause__)


def test_no_value_shows_a_password():
    url = f"redis+sentinel://app:{QUOTED}@a,b/main"
    settings = read(url, sentinel_password=SECRET)
    assert (settings.username, settings.password, settings.sentinel_password) == ("app", SECRET, SECRET)
    shown = repr(settings) + settings.where + repr(Place.of(parse_url(url))) + repr(postroom.connect(url))
    client = made(url, sentinel_password=SECRET)
    assert "s3cr" not in shown + repr(client) + where_of(client) + repr(client.connection_pool.sentinel_manager)


def test_a_password_that_is_none_is_refused_without_being_shown():
    with pytest.raises(ConfigurationError, match="password is a text") as refused:
        postroom.connect("redis://shop", password=12345)
    assert "12345" not in str(refused.value)


# --- options


def test_options_of_a_url_are_texts_and_mean_the_same():
    url = "redis://shop?replicas=2&timeout=2.5&replicas_timeout=0.5&eviction=allow&max_connections=8&protocol=2&db=5"
    settings = read(url + "&health_check_interval=30&client_name=shop-1&username=app&password=pw")
    assert (settings.replicas, settings.timeout, settings.replicas_timeout, settings.eviction) == (2, 2.5, 0.5, "allow")
    assert (settings.max_connections, settings.protocol, settings.db) == (8, 2, 5)
    assert (settings.health_check_interval, settings.client_name) == (30.0, "shop-1")
    assert (settings.username, settings.password) == ("app", "pw")
    assert read("rediss://shop?ssl_check_hostname=no").ssl_check_hostname is False


def test_an_argument_beats_the_url():
    settings = read("redis://app:pw@shop/3?timeout=5&replicas=1", timeout=7, password="other", replicas=0, db=3)
    assert (settings.timeout, settings.replicas, settings.username, settings.password) == (7, 0, "app", "other")


def test_left_out_the_options_have_defaults_that_are_safe():
    settings = read("redis://shop")
    assert (settings.replicas, settings.eviction, settings.timeout, settings.ssl_check_hostname) == (
        0, "refuse", 10.0, True,
    )  # fmt: skip
    assert settings.silence == 5.0
    assert read("redis://shop", timeout=1).silence == 1.0


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "clock"])
@pytest.mark.parametrize("value", [None, True, math.nan, b"x", [], ""])
def test_what_is_no_value_is_refused_by_name(name, value):
    if (name, value) in [("namespace", ""), ("ssl_check_hostname", True)]:
        return
    with pytest.raises(ConfigurationError, match=name):
        read("rediss+sentinel://shop/main", **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("replicas", -1), ("replicas", 11), ("replicas", 1.0), ("replicas", "two"), ("replicas_timeout", 0),
        ("replicas_timeout", 4.1), ("timeout", 0), ("timeout", "inf"), ("timeout", "1e9"), ("eviction", "maybe"),
        ("db", -1), ("db", "x"), ("max_connections", 1), ("protocol", 4), ("health_check_interval", -1),
        ("client_name", "two words"), ("client_name", "naïve"), ("ssl_check_hostname", "perhaps"), ("namespace", "a:b"),
        ("ssl_ca_certs", "/nowhere/ca.pem"), ("ssl_keyfile", __file__), ("username", ""), ("clock", 3),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(ConfigurationError, match="namespace" if name == "namespace" else name):
        read("rediss://shop", **{name: value})


def test_an_unknown_option_is_refused_with_the_known_ones():
    with pytest.raises(ConfigurationError, match=r"replicas_timeout.*not colour, shape"):
        postroom.connect("redis://shop?colour=red", shape="round")


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("redis://shop/3", {"db": 4}, "database 3"),
        ("redis+cluster://shop", {"db": 4}, "database 0 alone"),
        ("redis://shop", {"sentinel_password": "pw"}, r"redis\+sentinel://"),
        ("redis+cluster://shop", {"sentinel_username": "app"}, r"redis\+sentinel://"),
        ("redis://shop", {"ssl_ca_certs": __file__}, "rediss://"),
        ("redis+unix:///shop", {"ssl_check_hostname": False}, "rediss://"),
        ("redis://shop", {"replicas": 1, "timeout": 0.5}, "shorter than timeout"),
    ],
)
def test_options_that_contradict_each_other_are_refused(url, options, says):
    with pytest.raises(ConfigurationError, match=says):
        postroom.connect(url, **options)


@pytest.mark.parametrize("option", ["ssl_cert_reqs", "ssl", "decode_responses", "retry", "single_connection_client"])
def test_what_would_undo_a_promise_is_no_option(option):
    with pytest.raises(ConfigurationError, match=option):
        postroom.connect("rediss://shop", **{option: False})


def test_the_namespace_and_the_clock_are_taken():
    clock = ManualClock()
    settings = read("redis://shop", namespace="north", clock=clock)
    assert (settings.namespace, settings.clock) == ("north", clock)


# --- the clients that we make


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("url", ["rediss://app:pw@[::1]:7000/3", "rediss+sentinel://app:pw@a,b:1/main/3"])
def test_a_client_of_ours_neither_retries_nor_waits_for_ever_nor_trusts_everybody(url, flavour):
    client = made(url, flavour, client_name="shop", max_connections=7, health_check_interval=9, ssl_ca_certs=__file__)
    kwargs = client.connection_pool.connection_kwargs
    assert kind_of(client) == (flavour, False)
    assert kwargs["retry"].get_retries() == 0
    assert 0 < kwargs["socket_timeout"] <= 5
    assert 0 < kwargs["socket_connect_timeout"] <= 5
    assert kwargs["socket_keepalive"] is True
    assert kwargs["decode_responses"] is False
    assert (kwargs["username"], kwargs["password"], kwargs["db"]) == ("app", "pw", 3)
    assert (kwargs["client_name"], kwargs["health_check_interval"]) == ("shop", 9)
    assert (kwargs["ssl_cert_reqs"], kwargs["ssl_check_hostname"]) == ("required", True)
    assert kwargs["ssl_ca_certs"] == __file__
    assert "SSL" in client.connection_pool.connection_class.__name__
    assert client.connection_pool.max_connections == 7
    assert socket_timeout_of(client) == 5.0


@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_the_sentinels_are_asked_with_their_own_credentials_and_less_patience(flavour):
    client = made(
        "rediss+sentinel://app:pw@a,b:1/main", flavour, sentinel_username="watcher", sentinel_password="other"
    )
    pool = client.connection_pool
    assert (pool.service_name, pool.is_master) == ("main", True)
    assert where_of(client) == "redis+sentinel://a:26379,b:1/main"
    for sentinel in pool.sentinel_manager.sentinels:
        kwargs = sentinel.connection_pool.connection_kwargs
        assert (kwargs["username"], kwargs["password"]) == ("watcher", "other")
        assert kwargs["socket_timeout"] <= 2
        assert kwargs["retry"].get_retries() == 0
        assert "SSL" in sentinel.connection_pool.connection_class.__name__


def test_without_a_limit_a_hundred_threads_find_a_connection_each():
    assert made("redis://shop").connection_pool.max_connections >= 1_000  # redis-py's own limit is 100


def test_a_cluster_client_of_ours_is_made_at_the_first_call_only():
    make = open_client(parse_url("redis+cluster://127.0.0.1:1"), "sync", read("redis+cluster://127.0.0.1:1"))
    with pytest.raises(redis.exceptions.RedisClusterException):
        make()


def test_an_async_cluster_client_of_ours_neither_retries_nor_waits_for_ever():
    client = made("rediss+cluster://app:pw@a:1,b:2", "async", health_check_interval=9)
    assert kind_of(client) == ("async", True)
    assert client.retry.get_retries() == 0
    assert client.connection_kwargs["socket_timeout"] == socket_timeout_of(client) == 5.0
    assert client.connection_kwargs["health_check_interval"] == 9
    assert where_of(client) == "redis+cluster://a:1,b:2"


def test_a_client_of_a_unix_socket():
    client = made("redis+unix:///run/my.sock?db=2", password="pw")
    assert where_of(client) == "redis+unix:///run/my.sock"
    assert client.connection_pool.connection_kwargs["db"] == 2


# --- clients of the user's


def asyncs() -> list[Any]:
    sentinel = redis.asyncio.sentinel.Sentinel([("a", 26379)])
    return [
        redis.asyncio.Redis(password=SECRET, decode_responses=True),
        redis.asyncio.RedisCluster("shop", 7000, password=SECRET),
        sentinel.master_for("main", password=SECRET),
    ]


def syncs() -> list[Any]:
    return [
        redis.Redis(password=SECRET, host="::1", db=2),
        redis.Redis.from_url(f"rediss://:{QUOTED}@shop"),
        redis.sentinel.Sentinel([("a", 26379)]).master_for("main", password=SECRET),
        redis.Redis(unix_socket_path="/run/my.sock"),
    ]


def test_clients_are_told_apart_by_themselves():
    assert [kind_of(client) for client in syncs()] == [("sync", False)] * 4
    assert [kind_of(client) for client in asyncs()] == [("async", False), ("async", True), ("async", False)]


def test_a_cluster_client_is_told_apart(monkeypatch):
    for asks in ("NodesManager.initialize", "CommandsParser"):
        monkeypatch.setattr(f"redis.cluster.{asks}", lambda *_, **__: None)
    client = redis.RedisCluster(startup_nodes=[ClusterNode("a", 1), ClusterNode("b", 2)], socket_timeout=3)
    assert kind_of(client) == ("sync", True)
    assert where_of(client) == "redis+cluster://a:1,b:2"
    assert socket_timeout_of(client) == 3.0
    with pytest.raises(ConfigurationError, match="ClusterPipeline"):
        kind_of(client.pipeline())


def test_where_a_client_goes_is_told_without_its_password():
    places = [where_of(client) for client in (*syncs(), *asyncs())]
    assert places == [
        "redis://[::1]:6379/2",
        "rediss://shop:6379/0",
        "redis+sentinel://a:26379/main",
        "redis+unix:///run/my.sock",
        "redis://localhost:6379/0",
        "redis+cluster://shop:7000",
        "redis+sentinel://a:26379/main",
    ]
    assert "s3cr" not in repr([postroom.RedisMailbox("orders", client)._client for client in syncs()])


@pytest.mark.parametrize("client", syncs(), ids=where_of)
def test_a_sync_client_is_refused_in_the_async_flavour(client):
    with pytest.raises(ConfigurationError, match=r"use a redis\.asyncio\.Redis"):
        aio.AsyncRedisMailbox("orders", client)
    with pytest.raises(ConfigurationError, match=r"redis\.asyncio"):
        aio.AsyncRedisMailboxFactory(client)
    assert check_flavour(client, "sync") is False


def test_an_async_client_is_refused_in_the_sync_flavour():
    for client in asyncs():
        with pytest.raises(ConfigurationError, match="AsyncRedisMailbox"):
            postroom.RedisMailbox("orders", client)
        with pytest.raises(ConfigurationError, match="AsyncRedisMailbox"):
            postroom.RedisMailboxFactory(client)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (None, "NoneType"),
        ("redis://shop", r"connect\(\)"),
        (redis.Redis, "class Redis itself"),
        (redis.ConnectionPool(), "ConnectionPool"),
        (redis.sentinel.Sentinel([]), "Sentinel"),
        (redis.Redis().pipeline(), "Pipeline"),
        (redis.asyncio.Redis().pipeline(), "Pipeline"),
        (redis.asyncio.Redis(single_connection_client=True), "single_connection_client"),
        (redis.sentinel.Sentinel([]).slave_for("main"), r"master_for\('main'\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_client_for_mailboxes_is_refused_with_a_hint(wrong, says):
    with pytest.raises(ConfigurationError, match=says):
        postroom.RedisMailbox("orders", wrong)


def test_a_mailbox_over_a_client_takes_the_options_of_use_and_no_others():
    client = redis.Redis()
    box = postroom.RedisMailbox("orders", client, body_type=dict, replicas=2, timeout=3, eviction="allow", max_size=5)
    assert box._box.rules.max_messages == 5
    with pytest.raises(ConfigurationError, match="password: say so when you make the client"):
        postroom.RedisMailbox("orders", client, password="s3cret")
    for name in ("reply_resolver", "default_ttl"):  # those of other mailboxes to come: refused, not ignored
        with pytest.raises(ConfigurationError, match=f"{', '.join(USE_OPTIONS)}, not {name}"):
            postroom.RedisMailbox("orders", client, **{name: 3})
    with pytest.raises(postroom.InvalidParameterError, match="queue name"):
        postroom.RedisMailbox("{orders}", client)
    with pytest.raises(postroom.InvalidParameterError, match="namespace"):
        postroom.RedisMailboxFactory(client, namespace="a:b")


def test_a_factory_shares_one_driver_and_makes_mailboxes_of_its_types():
    factory = postroom.RedisMailboxFactory(redis.Redis(), body_type=dict, max_size=7, namespace="north")
    one, other = factory.create("one"), factory.create("other")
    assert type(one) is postroom.RedisMailbox
    assert one._box.driver is other._box.driver
    assert (one.name, one._box.body_type, one._box.rules.max_messages) == ("one", dict, 7)
    one.close()
    assert (one.closed, other.closed) == (True, False)
    factory.close()
    assert other.closed
    with pytest.raises(postroom.MailboxConnectionError, match="closed"):
        factory.create("third")


# --- the factory's method, the extra, the import


def test_the_factory_takes_a_host_or_a_url():
    redis_of = postroom.QueueClientFactory.redis
    assert repr(redis_of()) == "<QueueClient redis://localhost>"
    assert repr(redis_of("shop:7000", db=2)) == "<QueueClient redis://shop:7000>"
    assert repr(redis_of("redis+cluster://a,b")) == "<QueueClient redis+cluster://a,b>"
    assert repr(aio.AsyncQueueClientFactory.redis("shop")) == "<AsyncQueueClient redis://shop>"
    for wrong in ("memory://", "sqlite:///shop.db"):
        with pytest.raises(ConfigurationError, match=r"redis\(\) takes a host"):
            redis_of(wrong)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


def test_a_missing_client_library_is_told_with_the_extra_that_brings_it():
    said = run(
        "import sys, postroom\n"
        "sys.modules['redis'] = None\n"
        "try: postroom.connect('redis://shop')\n"
        "except postroom.ConfigurationError as error: print(error, '|', type(error.__cause__).__name__)"
    )
    assert "redis:// needs a package that is missing" in said
    assert "pip install 'postroom[redis]'" in said
    assert said.endswith("| ModuleNotFoundError")


def test_importing_postroom_imports_no_client_library():
    loaded = "import sys, postroom, postroom.aio; print(sorted(m for m in sys.modules if 'redis' in m))"
    assert run(loaded) == "[]"


def test_only_the_drivers_rooms_import_the_client_library():
    package = pathlib.Path(postroom.__file__).parent
    importing = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip().startswith(("import redis", "from redis"))
    }
    assert importing
    assert all(name.startswith("drivers/redis") for name in importing)


# --- capabilities


@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("replicas", [0, 2])
def test_what_the_store_can_do_is_lawful_and_says_how_it_is_weaker(cluster, replicas):
    store = capabilities(read("redis://shop", replicas=replicas), cluster=cluster)
    assert unlawful(store) == []
    assert store.survives_crash is YES
    assert "appendonly" in store.notes["survives_crash"]
    assert (store.survives_power_loss, store.survives_failover, store.atomic_reply) == (WEAKER, WEAKER, WEAKER)
    assert "replicas" in store.notes["survives_failover"]
    assert (store.max_poll, store.groups_commits, store.by_reference) == (None, True, False)
