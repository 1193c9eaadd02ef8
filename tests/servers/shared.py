"""The servers that many tests share: one of each kind in a process, started when first asked for.

A test may do anything with them that `FLUSHALL` undoes. Whoever kills, pauses or configures asks for one of its own.
"""

import functools

from tests.servers.cluster import Cluster
from tests.servers.sentinel import Sentinels
from tests.servers.valkey import Server


@functools.cache
def _valkey() -> Server:
    return Server().start()


def valkey() -> Server:
    """A standalone server, emptied: what a test wrote before is gone, whatever database it is in."""
    return _valkey().empty()


@functools.cache
def _cluster() -> Cluster:
    cluster = Cluster().start()
    # Nobody is to fail over here, also when all cores are busy and a node is not heard of for a while.
    cluster.configure(cluster_node_timeout=30_000)
    return cluster


def cluster() -> Cluster:
    """A cluster of three primaries with a replica each, emptied. Slots may be moved; nodes stay alive."""
    return _cluster().empty()


@functools.cache
def _sentinels() -> Sentinels:
    return Sentinels(down_after=30_000).start()  # nobody is to fail over here either


def sentinels() -> Sentinels:
    """A primary and its replica behind three sentinels, emptied."""
    return _sentinels().empty()
