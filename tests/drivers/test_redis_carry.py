"""What concerns two queues is carried in several steps: whatever happens between any two of them, a message is in one
place in the end, and a session that waits for it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from postroom.core.address import parse_url
from postroom.core.definition import Rules
from postroom.core.message import GONE, SETTLED, Accepted, Ack, Bury, Delivery, Envelope, Extend
from postroom.drivers import redis
from postroom.drivers.io import Bell, drive
from postroom.drivers.redis import RedisDriver
from postroom.drivers.redis_scripts import script
from postroom.errors import MailboxConnectionError, ServiceUnavailableError
from postroom.flows.ids import new_token
from tests.servers.proxy import Proxy
from tests.servers.valkey import Server


@pytest.fixture
def opened() -> Iterator[Callable[..., RedisDriver]]:
    drivers: list[RedisDriver] = []

    def open(url: str, **options: Any) -> RedisDriver:
        drivers.append(redis.open(parse_url(url), flavour="sync", **options))
        return drivers[-1]

    yield open
    for driver in drivers:
        drive(driver.close())


def message(number: int = 1, **options: Any) -> Envelope:
    return Envelope(f"id{number}", b"body%d" % number, size=5, **options)


def claim(driver: RedisDriver, queue: str, n: int = 1, *, lease: float = 30.0, **options: Any) -> list[Delivery]:
    options.setdefault("wait", 0.0)
    return list(drive(driver.claim(queue, n, lease=lease, claim_id=new_token(), **options)).deliveries)


@contextmanager
def between(driver: RedisDriver, step: bytes, act: Callable[[], object]) -> Iterator[None]:
    """Once, right after this step of carrying, something else happens."""
    real, struck = driver.run, []

    async def run(verb: str, keys: Any, *arguments: bytes, **options: Any) -> list[Any]:
        reply = await real(verb, keys, *arguments, **options)
        if verb == "carry" and arguments[0] == step and not struck:
            struck.append(step)
            act()
        return reply

    driver.run = run  # type: ignore[method-assign]  # between two steps of one call nobody else could come
    try:
        yield
    finally:
        driver.run = real  # type: ignore[method-assign]  # as above
    assert struck


def in_the_grave(driver: RedisDriver, **rules: Any) -> int:
    """A message that died and lies in a queue of another name; its number."""
    drive(driver.ensure("grave"))
    drive(driver.ensure("q", Rules(plain=False, dead_letter_queue="grave", **rules)))
    drive(driver.put("q", [message()]))
    [taken] = claim(driver, "q")
    assert drive(driver.settle("q", [Bury(taken.handle, "bad")])) == [SETTLED]
    return taken.seq


def test_of_two_who_redrive_a_dead_letter_one_does(valkey: Server, opened: Callable[..., RedisDriver]) -> None:
    first, second, worker = opened(valkey.url), opened(valkey.url), opened(valkey.url)
    seq = in_the_grave(first)
    others: list[Any] = []
    with between(second, b"copy", lambda: others.extend(drive(first.redrive("grave", [seq])))):
        assert drive(second.redrive("grave", [seq])) == [SETTLED]
    assert others == [GONE]
    [taken] = claim(worker, "q")
    assert drive(worker.settle("q", [Ack(taken.handle)])) == [SETTLED]
    assert claim(worker, "q") == []


def test_nobody_gets_a_dead_letter_that_is_being_redriven(valkey: Server, opened: Callable[..., RedisDriver]) -> None:
    driver, worker = opened(valkey.url), opened(valkey.url)
    seq = in_the_grave(driver)
    got: list[Delivery] = []
    with between(driver, b"copy", lambda: got.extend(claim(worker, "grave"))):
        assert drive(driver.redrive("grave", [seq])) == [SETTLED]
    assert got == []
    assert len(claim(worker, "q")) == 1


def test_a_session_goes_on_when_its_dead_letter_went_before_its_carrier_came_back(
    valkey: Server, opened: Callable[..., RedisDriver]
) -> None:
    driver, worker = opened(valkey.url), opened(valkey.url)
    drive(driver.ensure("grave"))
    drive(driver.ensure("q", Rules(plain=False, dead_letter_queue="grave", on_dead="block")))
    drive(driver.put("q", [message(1, session_id="s"), message(2, session_id="s")]))
    [taken] = claim(driver, "q")

    def remove() -> None:
        [dead] = claim(worker, "grave")
        drive(worker.settle("grave", [Ack(dead.handle)]))

    with between(driver, b"bury", remove):
        drive(driver.settle("q", [Bury(taken.handle, "bad")]))
    assert [one.envelope.id for one in claim(worker, "q", wait=1.0)] == ["id2"]


@pytest.mark.parametrize("step", ["bury", "gone"])
def test_a_step_whose_answer_was_lost_is_not_done_twice(
    valkey: Server, opened: Callable[..., RedisDriver], step: str
) -> None:
    with Proxy(valkey) as proxy:
        driver, worker = opened(proxy.url), opened(valkey.url)
        drive(driver.ensure("grave"))
        drive(driver.ensure("q", Rules(plain=False, dead_letter_queue="grave")))
        drive(driver.put("q", [message()]))
        [taken] = claim(driver, "q")
        drive(driver.settle("q", [Extend(taken.handle, 30)]))
        proxy.cut_before_answer(b"\r\n%s\r\n" % step.encode())
        assert drive(driver.settle("q", [Bury(taken.handle, "bad")])) == [SETTLED]
        assert proxy.counts.lost_answers == 1
    assert [one.envelope.id for one in claim(worker, "grave", 5)] == ["id1"]
    assert drive(worker.info("q"))[0].in_flight == 0


def test_who_holds_messages_does_not_carry_others_until_its_leases_are_over(
    valkey: Server, opened: Callable[..., RedisDriver]
) -> None:
    driver = opened(valkey.url)
    drive(driver.ensure("grave"))
    drive(driver.ensure("q", Rules(plain=False, dead_letter_queue="grave", max_deliveries=1)))
    drive(driver.put("q", [message(n) for n in range(10)]))
    assert len(claim(driver, "q", 10, lease=0)) == 10
    drive(driver.put("q", [message(99)]))
    real, tried = driver.run, []

    async def run(verb: str, keys: Any, *arguments: bytes, **options: Any) -> list[Any]:
        if verb == "carry":
            tried.append(arguments[0])
            time.sleep(0.2)  # a node that is slow to fail
            raise MailboxConnectionError("that node is away")
        return await real(verb, keys, *arguments, **options)

    driver.run = run  # type: ignore[method-assign]  # stands for a node that is away
    began = time.monotonic()
    assert [one.envelope.id for one in claim(driver, "q", lease=5.0, wait=1.0)] == ["id99"]
    assert time.monotonic() - began < 1.0
    assert tried


def test_a_server_that_was_demoted_is_left_although_it_answers(
    new_valkey: Callable[..., Server], opened: Callable[..., RedisDriver]
) -> None:
    """An address may lead to another server after a failover, while our connection to the old one lives on."""
    old, new = new_valkey(), new_valkey()
    with Proxy(old) as proxy:
        driver = opened(proxy.url, timeout=5.0)
        drive(driver.ensure("q"))
        drive(opened(new.url).ensure("q"))
        old.call("REPLICAOF", "127.0.0.1", str(new.port))
        proxy.target = new.port
        [put] = drive(driver.put("q", [message()]))
        assert isinstance(put, Accepted)


def test_a_wait_comes_home_when_told_although_the_store_is_away(
    new_valkey: Callable[..., Server], opened: Callable[..., RedisDriver]
) -> None:
    server = new_valkey()
    driver, stop = opened(server.url), Bell()
    drive(driver.ensure("q"))
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(claim(driver, "q", wait=30.0, stop=stop)))
    waiting.start()
    server.kill()
    time.sleep(0.2)
    began = time.monotonic()
    stop.ring_for_good()
    waiting.join(20)
    assert found == [[]]
    assert time.monotonic() - began < 5


def test_a_session_lock_whose_answer_was_lost_is_the_same_lock(
    valkey: Server, opened: Callable[..., RedisDriver]
) -> None:
    with Proxy(valkey) as proxy:
        driver, other = opened(proxy.url), opened(valkey.url)
        drive(driver.ensure("q"))
        drive(driver.put("q", [message(n, session_id=f"s{n}") for n in (1, 2)]))
        drive(other.lock("q", "warm", lease=1, wait=0, token="ff"))  # the script is in the server's cache now
        proxy.cut_before_answer(script("lock").sha.encode())
        lock = drive(driver.lock("q", None, lease=60, wait=0, token="aa"))
        assert proxy.counts.lost_answers == 1
        second = drive(other.lock("q", None, lease=60, wait=0, token="bb"))
        assert lock is not None
        assert second is not None
        assert {lock.id, second.id} == {"s1", "s2"}


def test_a_full_server_lets_leases_be_kept(
    new_valkey: Callable[..., Server], opened: Callable[..., RedisDriver]
) -> None:
    driver = opened(new_valkey(maxmemory="4mb", maxmemory_policy="noeviction").url)
    drive(driver.ensure("q"))
    drive(driver.put("q", [message(1), message(2, session_id="s")]))
    [plain] = claim(driver, "q")
    lock = drive(driver.lock("q", "s", lease=30, wait=0, token="aa"))
    with pytest.raises(ServiceUnavailableError):
        while True:
            drive(driver.put("q", [Envelope(f"x{n}", bytes(1000), size=1000) for n in range(100)]))
    [outcome] = drive(driver.settle("q", [Extend(plain.handle, 60)]))
    assert getattr(outcome, "lease_until", None)
    assert lock is not None
    assert drive(driver.renew("q", lock, 60)) is not None
    drive(driver.abandon("q", new_token()))
    assert drive(driver.settle("q", [Ack(plain.handle)])) == [SETTLED]


def test_a_bounded_queue_drops_its_oldest_at_the_same_cost_however_many_wait_their_turn(
    valkey: Server, opened: Callable[..., RedisDriver]
) -> None:
    driver = opened(valkey.url)
    drive(driver.ensure("q", Rules(plain=False, max_messages=5_000, overflow="drop_oldest")))
    for start in range(0, 5_000, 1_000):
        drive(driver.put("q", [message(start + n, session_id="s") for n in range(1_000)]))
    began = time.monotonic()
    results = drive(driver.put("q", [message(9_000 + n, session_id="s") for n in range(500)]))
    assert time.monotonic() - began < 2
    assert {type(result) for result in results} == {Accepted}
    stats = drive(driver.info("q"))[0]
    assert (stats.ready, stats.dropped) == (5_000, 500)
    assert claim(driver, "q")[0].envelope.id == "id500"


def test_thousands_of_verdicts_in_one_call_are_told_in_steps(
    valkey: Server, opened: Callable[..., RedisDriver]
) -> None:
    driver = opened(valkey.url)
    drive(driver.ensure("q"))
    drive(driver.put("q", [message(n) for n in range(9_000)]))
    handles = [one.handle for _ in range(9) for one in claim(driver, "q", 1_000)]
    assert drive(driver.settle("q", [Ack(handle) for handle in handles])) == [SETTLED] * 9_000
    assert drive(driver.info("q"))[0].ready == 0
