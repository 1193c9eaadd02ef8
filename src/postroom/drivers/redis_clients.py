"""The redis-py clients that we make ourselves, from a URL: one server, a cluster, or what Sentinel watches over.

They never retry: our wire does, within the caller's deadline, and knows what may be asked twice. Silence is bounded, so
that a dead connection is noticed. Nothing here connects: what is returned makes the client, at the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.connection
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.cluster
import redis.connection
import redis.retry
import redis.sentinel
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from postroom.core.address import Address
from postroom.drivers.redis_settings import Settings
from postroom.drivers.redis_url import Place

PLENTY = 10_000  # connections of one client to one server, where nobody set a limit: redis-py's own is 100
SENTINEL_SILENCE = 2.0  # seconds: one dead Sentinel must not use up the time that the others need


def open_client(address: Address, flavour: Literal["sync", "async"], settings: Settings) -> Callable[[], Any]:
    """What makes the client, when it is called; each call makes another one, and whoever calls closes it.

    A sync cluster client connects while it is made, an async one when it is awaited (`initialize`).
    """
    place = Place.of(address)
    if place.kind == "cluster":
        return partial(_cluster if flavour == "sync" else _async_cluster, place, settings)
    if place.kind == "sentinel":
        return partial(_sentinel if flavour == "sync" else _async_sentinel, place, settings)
    return partial(_single if flavour == "sync" else _async_single, place, settings)


def _common(settings: Settings) -> dict[str, Any]:
    """For every connection to a server."""
    return {
        "username": settings.username,
        "password": settings.password,
        "client_name": settings.client_name,
        "protocol": settings.protocol,
        "socket_timeout": settings.silence,
        "socket_connect_timeout": settings.silence,
        "decode_responses": False,
        "max_connections": settings.max_connections or PLENTY,
        # Would stretch the limits above while a (commercial) server is being moved, and costs a round trip to ask for.
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


def _ssl(place: Place, settings: Settings) -> dict[str, Any]:
    if not place.tls:
        return {}
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": settings.ssl_check_hostname,
        "ssl_ca_certs": settings.ssl_ca_certs,
        "ssl_certfile": settings.ssl_certfile,
        "ssl_keyfile": settings.ssl_keyfile,
    }


def _pooled(place: Place, settings: Settings, connections: Any, retry: Any) -> dict[str, Any]:
    """For a pool of connections to one server."""
    kwargs = _common(settings) | {
        "db": settings.db or place.db or 0,
        "health_check_interval": settings.health_check_interval,
        "retry": retry,
    }
    if place.kind == "unix":
        return kwargs | {"connection_class": connections.UnixDomainSocketConnection, "path": place.path}
    kwargs |= {"socket_keepalive": True} | _ssl(place, settings)
    if place.kind == "single":
        [(host, port)] = place.hosts
        kind = connections.SSLConnection if place.tls else connections.Connection
        kwargs |= {"connection_class": kind, "host": host, "port": port}
    return kwargs


def _single(place: Place, settings: Settings) -> redis.Redis:
    kwargs = _pooled(place, settings, redis.connection, redis.retry.Retry(NoBackoff(), 0))
    return redis.Redis.from_pool(redis.ConnectionPool(**kwargs))


def _async_single(place: Place, settings: Settings) -> redis.asyncio.Redis:
    kwargs = _pooled(place, settings, redis.asyncio.connection, redis.asyncio.retry.Retry(NoBackoff(), 0))
    return redis.asyncio.Redis.from_pool(redis.asyncio.ConnectionPool(**kwargs))


def _cluster_kwargs(place: Place, settings: Settings) -> dict[str, Any]:
    return _common(settings) | {
        "socket_keepalive": True,
        "require_full_coverage": False,  # queues whose slot is served go on; the server speaks for the others
        **({"ssl": True} if place.tls else {}),
        **_ssl(place, settings),
    }


def _cluster(place: Place, settings: Settings) -> redis.RedisCluster:
    kwargs = _cluster_kwargs(place, settings)
    if interval := settings.health_check_interval:
        # RedisCluster drops this option of its connections without a word: give it to each as it connects.
        kwargs["redis_connect_func"] = lambda connection: setattr(connection, "health_check_interval", interval)
    node: Any = redis.cluster.ClusterNode  # has no types
    nodes = [node(host, port) for host, port in place.hosts]
    return redis.RedisCluster(startup_nodes=nodes, retry=redis.retry.Retry(NoBackoff(), 0), **kwargs)


def _async_cluster(place: Place, settings: Settings) -> redis.asyncio.RedisCluster:
    return redis.asyncio.RedisCluster(
        startup_nodes=[redis.asyncio.cluster.ClusterNode(host, port) for host, port in place.hosts],
        retry=redis.asyncio.retry.Retry(NoBackoff(), 0),
        health_check_interval=settings.health_check_interval,
        **_cluster_kwargs(place, settings),
    )


def _sentinel_kwargs(place: Place, settings: Settings, retry: Any) -> dict[str, Any]:
    """For the connections to the Sentinels themselves. TLS is for all of it or for nothing."""
    return {
        "username": settings.sentinel_username,
        "password": settings.sentinel_password,
        "client_name": settings.client_name,
        "socket_timeout": min(SENTINEL_SILENCE, settings.silence),
        "socket_connect_timeout": min(SENTINEL_SILENCE, settings.silence),
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        "retry": retry,
        **({"ssl": True} if place.tls else {}),
        **_ssl(place, settings),
    }


class _Managed(redis.sentinel.SentinelManagedConnection):
    """redis-py's default here is to keep a connection whose answer was not read to its end, after a Ctrl-C for
    instance: the next command would take that answer for its own."""

    def read_response(self, *args: Any, disconnect_on_error: bool | None = True, **kwargs: Any) -> Any:
        return super().read_response(*args, disconnect_on_error=disconnect_on_error, **kwargs)


class _ManagedSSL(_Managed, redis.connection.SSLConnection):
    pass


class _Pool(redis.sentinel.SentinelConnectionPool):
    """Closes the connections to the Sentinels, too: nobody else knows them."""

    def close(self) -> None:
        super().close()
        self.sentinel_manager.close()


class _AsyncPool(redis.asyncio.sentinel.SentinelConnectionPool):
    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


def _sentinel(place: Place, settings: Settings) -> Any:
    return _managed(redis.sentinel.Sentinel, redis.retry.Retry(NoBackoff(), 0), place, settings, _Pool)


def _async_sentinel(place: Place, settings: Settings) -> Any:
    kind, retry = redis.asyncio.sentinel.Sentinel, redis.asyncio.retry.Retry(NoBackoff(), 0)
    return _managed(kind, retry, place, settings, _AsyncPool)


def _managed(sentinel: Any, retry: Any, place: Place, settings: Settings, pool: type) -> Any:
    manager = sentinel(place.hosts, sentinel_kwargs=_sentinel_kwargs(place, settings, retry))
    kwargs = _pooled(place, settings, None, retry)
    if pool is _Pool:
        kwargs["connection_class"] = _ManagedSSL if place.tls else _Managed
    elif place.tls:
        kwargs["ssl"] = True
    return manager.master_for(place.service, connection_pool_class=pool, **kwargs)
