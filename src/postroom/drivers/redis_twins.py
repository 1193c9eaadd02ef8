"""A sync client with the settings of an async one that somebody else made: for the thread that keeps leases."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel

# What both flavours' connections understand alike. The rest (retries, dispatchers, hooks) belongs to one of them.
_SHARED = (
    "host", "port", "path", "db", "username", "password", "credential_provider", "socket_timeout",
    "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options", "client_name", "protocol",
    "ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_path", "ssl_ca_data",
    "ssl_check_hostname", "ssl_min_version", "ssl_ciphers",
)  # fmt: skip


def sync_twin(client: Any) -> Any:
    """Connects when it is first used; a cluster's, while it is made. Whoever asked for it closes it."""
    if isinstance(client, redis.asyncio.RedisCluster):
        node_of: Any = redis.cluster.ClusterNode
        nodes = [node_of(node.host, node.port) for node in client.startup_nodes]
        kwargs = _shared(client.connection_kwargs)
        for one in ("host", "port", "db"):
            kwargs.pop(one, None)
        return redis.RedisCluster(startup_nodes=nodes, ssl=_tls(client.connection_kwargs), **kwargs)
    pool = client.connection_pool
    kwargs = _shared(pool.connection_kwargs)
    if isinstance(pool, redis.asyncio.sentinel.SentinelConnectionPool):
        places = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
        sentinels = [(place.get("host", "localhost"), place.get("port", 26379)) for place in places]
        sentinel_of: Any = redis.sentinel.Sentinel
        manager = sentinel_of(sentinels, sentinel_kwargs=_no_place(_shared(places[0])))
        tls = issubclass(pool.connection_class, redis.asyncio.connection.SSLConnection)
        return manager.master_for(pool.service_name, ssl=tls, **_no_place(kwargs))
    kinds = {
        redis.asyncio.connection.SSLConnection: redis.SSLConnection,
        redis.asyncio.connection.UnixDomainSocketConnection: redis.UnixDomainSocketConnection,
    }
    kind = next((sync for theirs, sync in kinds.items() if issubclass(pool.connection_class, theirs)), redis.Connection)
    twin = redis.Redis(connection_pool=redis.ConnectionPool(connection_class=kind, **kwargs))
    twin.auto_close_connection_pool = True
    return twin


def _shared(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name in _SHARED and value is not None}


def _no_place(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in ("host", "port")}


def _tls(kwargs: dict[str, Any]) -> bool:
    kind = kwargs.get("connection_class")
    return isinstance(kind, type) and issubclass(kind, redis.asyncio.connection.SSLConnection)
