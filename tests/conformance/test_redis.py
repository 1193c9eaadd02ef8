"""The conformance suite over real servers: with a clock of the test's, for speed, and with the server's own."""

from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import redis
import redis.asyncio

from postroom.core.address import Address
from postroom.drivers.redis import RedisDriver
from postroom.drivers.redis_settings import Settings
from postroom.drivers.redis_twins import sync_twin
from postroom.factory import Flavour, register
from postroom.testing.conformance import Conformance, Store, UrlStore
from postroom.testing.conformance.deadletters import DeadLetters
from postroom.testing.conformance.life import Life
from postroom.testing.conformance.receiving import Receiving
from postroom.testing.conformance.sessions import Sessions
from postroom.testing.conformance.settling import Settling
from tests.servers import shared


class Standalone(UrlStore):
    many = 2_000

    def url_of(self, tmp_path: Path) -> str:
        return shared.valkey().url  # emptied


class ItsOwnClock(Standalone):
    """Time is the server's: seconds are short ones, and hours are not waited for."""

    moves_time = False
    second = 0.1

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.options = {}

    def advance(self, seconds: float) -> None:
        Store.advance(self, seconds)


class InACluster(Standalone):
    def url_of(self, tmp_path: Path) -> str:
        return shared.cluster().url


class BehindSentinel(Standalone):
    def url_of(self, tmp_path: Path) -> str:
        return shared.sentinels().url


def theirs(address: Address, *, flavour: Flavour, **options: Any) -> RedisDriver:
    """A client that somebody else made, in the older protocol, and that answers with text where it can."""
    kind = redis.Redis if flavour == "sync" else redis.asyncio.Redis
    client = kind(host=str(address.host), port=address.port, protocol=2, decode_responses=True)
    settings = Settings.of_client(client, options)
    # Owned, as somebody has to close it.
    driver = RedisDriver(lambda: client, settings, flavour, cluster=False, owned=True)
    driver.make_sync = partial(sync_twin, client)
    return driver


class TheirClient(Standalone):
    def url_of(self, tmp_path: Path) -> str:
        register("theirs", theirs)
        return f"theirs://{shared.valkey().address}"


class TestRedisBriefly(Life, Settling, Receiving, Sessions, DeadLetters):
    """For `make check`: enough to see that the scripts are whole."""

    store = Standalone

    @pytest.fixture(params=["sync"])
    def flavour(self, request: pytest.FixtureRequest) -> Flavour:
        return cast("Flavour", request.param)


@pytest.mark.slow
class TestRedis(Conformance):
    store = Standalone


@pytest.mark.slow
class TestRedisByItsOwnClock(Conformance):
    store = ItsOwnClock


@pytest.mark.slow
@pytest.mark.xdist_group("valkey_cluster")
class TestRedisCluster(Conformance):
    store = InACluster


@pytest.mark.slow
@pytest.mark.xdist_group("valkey_sentinels")
class TestRedisBehindSentinel(Conformance):
    store = BehindSentinel


@pytest.mark.slow
class TestRedisThroughSomebodysClient(Conformance):
    store = TheirClient
