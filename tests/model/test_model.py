"""Every store against the reference: briefly in `make check`, at length in `make test`."""

import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings

from postroom.core.address import parse_url
from postroom.drivers import memory, redis, sqlite
from tests.model.machine import Machine
from tests.servers import shared

BRIEF = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,  # `make check` must not fail by chance; `make test` explores
    suppress_health_check=list(HealthCheck),
)
LONG = settings(max_examples=400, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))


class Memory(Machine):
    def open(self, clock):
        return memory.open(parse_url("memory://"), flavour="sync", clock=clock, serialize=True)


class Sqlite(Machine):
    def open(self, clock):
        self.folder = tempfile.mkdtemp(prefix="postroom-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        return sqlite.open(parse_url(f"sqlite:///{self.folder}/m.db"), flavour="sync", clock=clock)

    def teardown(self):
        try:
            super().teardown()
        finally:
            shutil.rmtree(self.folder)


class Redis(Machine):
    def open(self, clock):
        return redis.open(parse_url(shared.valkey().url), flavour="sync", clock=clock)


class RedisCluster(Machine):
    def open(self, clock):
        return redis.open(parse_url(shared.cluster().url), flavour="sync", clock=clock)


class RedisBehindSentinel(Machine):
    def open(self, clock):
        return redis.open(parse_url(shared.sentinels().url), flavour="sync", clock=clock)


TestMemoryBriefly = Memory.TestCase
TestMemoryBriefly.settings = BRIEF


@pytest.mark.slow
class TestMemory(Memory.TestCase):
    settings = LONG


@pytest.mark.slow
class TestSqlite(Sqlite.TestCase):
    settings = settings(LONG, max_examples=150)


@pytest.mark.slow
class TestRedis(Redis.TestCase):
    settings = settings(LONG, max_examples=150)


@pytest.mark.slow
@pytest.mark.xdist_group("valkey_cluster")
class TestRedisCluster(RedisCluster.TestCase):
    settings = settings(LONG, max_examples=60)


@pytest.mark.slow
@pytest.mark.xdist_group("valkey_sentinels")
class TestRedisBehindSentinel(RedisBehindSentinel.TestCase):
    settings = settings(LONG, max_examples=60)
