"""What kind of redis-py client this is, and what it will do to us: asked of a client that the user made."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.sentinel
import redis.client
import redis.cluster
import redis.connection
import redis.sentinel
from redis._defaults import DEFAULT_SOCKET_TIMEOUT

from postroom.errors import ConfigurationError

Flavour: TypeAlias = Literal["sync", "async"]

_KINDS: tuple[tuple[type, Flavour, bool], ...] = (
    (redis.Redis, "sync", False),
    (redis.RedisCluster, "sync", True),
    (redis.asyncio.Redis, "async", False),
    (redis.asyncio.RedisCluster, "async", True),
)
_POOLS = (redis.sentinel.SentinelConnectionPool, redis.asyncio.sentinel.SentinelConnectionPool)
_TLS = (redis.connection.SSLConnection, redis.asyncio.connection.SSLConnection)
_PIPELINES = (redis.client.Pipeline, redis.cluster.ClusterPipeline, redis.asyncio.client.Pipeline)
_EXPECTED = (
    "a redis.Redis or redis.RedisCluster, in postroom.aio a redis.asyncio.Redis or redis.asyncio.RedisCluster; one "
    "made by Sentinel(...).master_for(...) is fine as well"
)


def kind_of(client: object) -> tuple[Flavour, bool]:
    """Its flavour, and whether it is a cluster's. What can be no mailbox's client is refused."""
    for kind, flavour, cluster in _KINDS:
        if isinstance(client, kind) and not isinstance(client, _PIPELINES):
            _check(client)
            return flavour, cluster
    raise ConfigurationError(f"pass redis-py's client, not {_shown(client)}: {_EXPECTED}")


def check_flavour(client: object, flavour: Flavour) -> bool:
    """Whether it is a cluster's client; refused if it is of the other flavour."""
    found, cluster = kind_of(client)
    if found != flavour:
        name = "RedisCluster" if cluster else "Redis"
        raise ConfigurationError(
            f"redis.{name} is a sync client; with postroom.aio use a redis.asyncio.{name}"
            if found == "sync"
            else f"redis.asyncio.{name} is an async client; use postroom.aio's AsyncRedisMailbox, or a redis.{name}"
        )
    return cluster


def where_of(client: Any) -> str:
    """Where it connects to, for errors: never a user or a password."""
    if (nodes := getattr(client, "startup_nodes", None)) is not None:
        return "redis+cluster://" + ",".join(f"{node.host}:{node.port}" for node in nodes)
    pool = client.connection_pool
    if isinstance(pool, _POOLS):
        sentinels = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
        hosts = ",".join(f"{kwargs.get('host')}:{kwargs.get('port')}" for kwargs in sentinels)
        return f"redis+sentinel://{hosts}/{pool.service_name}"
    kwargs = pool.connection_kwargs
    if "path" in kwargs:
        return f"redis+unix://{kwargs['path']}"
    host = str(kwargs.get("host", "localhost"))
    scheme = "rediss" if issubclass(pool.connection_class, _TLS) else "redis"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{kwargs.get('port', 6379)}/{kwargs.get('db') or 0}"


def socket_timeout_of(client: Any) -> float | None:
    """After how many seconds of silence its connections give up. A wait on the server must be shorter."""
    holder = getattr(client, "nodes_manager", None) or client.connection_pool
    timeout = holder.connection_kwargs.get("socket_timeout", DEFAULT_SOCKET_TIMEOUT)
    return None if timeout is None else float(timeout)


def _check(client: Any) -> None:
    if getattr(client, "single_connection_client", False) or getattr(client, "_single_connection_client", False):
        raise ConfigurationError(
            "this client has single_connection_client=True: a receive that waits would block every send. "
            "Make it without, so that it has a pool of connections"
        )
    pool = getattr(client, "connection_pool", None)
    if isinstance(pool, _POOLS) and not pool.is_master:
        raise ConfigurationError(
            f"this client was made by slave_for({pool.service_name!r}): nothing can be written to a replica. "
            f"Use master_for({pool.service_name!r})"
        )


def _shown(client: object) -> str:
    if isinstance(client, type):
        return f"the class {client.__name__} itself"
    if isinstance(client, str):
        return "a text (a URL goes to connect())"
    kind = type(client)
    return f"a {kind.__module__}.{kind.__qualname__}"
