"""Servers for whoever asks: nothing starts in a run that does not need it. A missing binary is an error, not a skip.

Shared ones are started once in each process of a run, and come empty; a factory makes one that may be killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.servers.cluster import Cluster
    from tests.servers.proxy import Proxy
    from tests.servers.sentinel import Sentinels
    from tests.servers.tls import TlsProxy
    from tests.servers.valkey import Server


@pytest.fixture
def valkey() -> Server:
    """The standalone server that tests share, emptied."""
    from tests.servers import shared

    return shared.valkey()


@pytest.fixture
def new_valkey() -> Iterator[Callable[..., Server]]:
    """`new_valkey(appendonly=True)`: a server of the test's own, running, in 50 ms."""
    from tests.servers.valkey import Server

    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Server(**options))


@pytest.fixture
def valkey_cluster() -> Cluster:
    """The cluster that tests share, emptied."""
    from tests.servers import shared

    return shared.cluster()


@pytest.fixture
def new_valkey_cluster() -> Iterator[Callable[..., Cluster]]:
    """`new_valkey_cluster(node_timeout=500)`: a cluster of the test's own, ready, in two seconds."""
    from tests.servers.cluster import Cluster

    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Cluster(**options))


@pytest.fixture
def valkey_sentinels() -> Sentinels:
    """The servers behind sentinels that tests share, emptied."""
    from tests.servers import shared

    return shared.sentinels()


@pytest.fixture
def new_valkey_sentinels() -> Iterator[Callable[..., Sentinels]]:
    """`new_valkey_sentinels(down_after=500)`: sentinels of the test's own, ready, in a second."""
    from tests.servers.sentinel import Sentinels

    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Sentinels(**options))


@pytest.fixture
def new_proxy() -> Iterator[Callable[[Server | int], Proxy]]:
    """`new_proxy(server)`: what loses things on the way to this server, or to this port."""
    from tests.servers.proxy import Proxy

    with ExitStack() as stack:
        yield lambda target: stack.enter_context(Proxy(target))


@pytest.fixture
def new_tls_proxy() -> Iterator[Callable[[Server | int], TlsProxy]]:
    """`new_tls_proxy(server)`: the server, behind TLS and faults; `.ca` is the file of who signed for it."""
    from tests.servers.tls import TlsProxy

    with ExitStack() as stack:
        yield lambda target: stack.enter_context(TlsProxy(target))


def pytest_unconfigure() -> None:
    import sys

    if valkey := sys.modules.get("tests.servers.valkey"):
        valkey.close_all()
