"""Waiting on a file: within a process, between processes, and when a ring is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from postroom.core.address import Address
from postroom.core.definition import Rules
from postroom.core.message import Accepted, Ack, Envelope, Refused, Release, SessionClaim
from postroom.drivers import sqlite
from postroom.drivers.io import Bell, drive
from postroom.errors import ServiceUnavailableError

SEND = """
import sys
from postroom.core.address import Address
from postroom.core.message import Envelope
from postroom.drivers import sqlite
from postroom.drivers.io import drive
driver = sqlite.open(Address("sqlite", "/" + sys.argv[1]), flavour="sync")
sys.stdin.readline()
drive(driver.put("orders", [Envelope("1", b"x", delay=float(sys.argv[2]))]))
drive(driver.close())
"""


def take(driver, *, wait: float, claim_id: str, **more):
    return drive(driver.claim("orders", 1, lease=30, wait=wait, claim_id=claim_id, **more)).deliveries


def deaf(doorbell) -> None:
    """Takes a ring from the socket and tells nobody. Two may be woken by one and the same."""
    with contextlib.suppress(BlockingIOError):
        doorbell._socket.recv(2048)


class Sender:
    """Another process, that sends when told to."""

    def __init__(self, path, delay: float = 0.0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SEND, str(path), str(delay)], stdin=subprocess.PIPE, text=True
        )

    def send(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate(timeout=20)


@pytest.fixture
def patient(opened):
    """A driver that practically never looks by itself."""
    driver = opened(safety_poll=60)
    drive(driver.ensure("orders"))
    return driver


def test_a_message_of_another_process_wakes_a_waiter(shop, patient):
    with Sender(shop) as sender:
        threading.Timer(0.2, sender.send).start()
        began = time.monotonic()
        assert take(patient, wait=20, claim_id="a")
        assert time.monotonic() - began < 10


def test_a_delay_of_another_process_is_over_on_time(shop, patient):
    with Sender(shop, delay=0.6) as sender:
        threading.Timer(0.1, sender.send).start()
        began = time.monotonic()
        assert take(patient, wait=20, claim_id="a")
        assert time.monotonic() - began < 10


def test_a_lost_ring_costs_a_poll_and_no_message(shop, opened, monkeypatch):
    driver = opened(safety_poll=0.25)
    drive(driver.ensure("orders"))
    monkeypatch.setattr("postroom.drivers.sqlite_doorbell.Doorbell._hear", deaf)
    with Sender(shop) as sender:
        threading.Timer(0.1, sender.send).start()
        assert take(driver, wait=20, claim_id="a")


@pytest.mark.parametrize("others", [0, 1])
def test_the_rings_of_a_busy_queue_do_not_put_off_that_poll(shop, opened, monkeypatch, others):
    """Whether the waiter itself listens to the socket or, with others there, the sentry."""
    driver = opened(safety_poll=0.25)
    drive(driver.ensure("orders"))
    drive(driver.ensure("quiet"))
    take(driver, wait=0.01, claim_id="warm")
    monkeypatch.setattr("postroom.drivers.sqlite_doorbell.Doorbell._hear", deaf)
    [bell] = shop.with_name("shop.db-bells").iterdir()
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    done = threading.Event()

    def ring() -> None:
        while not done.wait(0.05):
            stranger.sendto(b"999:1:0", str(bell))

    def wait_too() -> None:
        drive(driver.claim("quiet", 1, lease=30, wait=20, claim_id="too", stop=stop))

    stop = Bell()
    threads = [threading.Thread(target=ring)] + [threading.Thread(target=wait_too) for _ in range(others)]
    for thread in threads:
        thread.start()
    with Sender(shop) as sender:
        threading.Timer(0.3, sender.send).start()
        began = time.monotonic()
        assert take(driver, wait=10, claim_id="a")
        took = time.monotonic() - began
    done.set()
    stop.ring_for_good()
    for thread in threads:
        thread.join()
    stranger.close()
    assert took < 5


def test_without_a_descriptor_to_spare_waiting_fails_and_says_so(opened):
    """The error is one of ours; before, the caller met whatever the operating system raised."""
    driver = opened()
    drive(driver.ensure("orders"))
    take(driver, wait=0, claim_id="warm")
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    try:
        with pytest.raises(ServiceUnavailableError, match="too many files"):
            take(driver, wait=0.01, claim_id="a")
    finally:
        for descriptor in taken:
            os.close(descriptor)
    drive(driver.put("orders", [Envelope("1", b"")]))
    assert take(driver, wait=1, claim_id="b")


def test_without_unix_sockets_we_poll(shop, opened, monkeypatch):
    monkeypatch.setattr("postroom.drivers.sqlite_doorbell._UNIX", False)
    driver = opened(safety_poll=0.25)
    drive(driver.ensure("orders"))
    with Sender(shop) as sender:
        threading.Timer(0.1, sender.send).start()
        assert take(driver, wait=20, claim_id="a")
    assert not shop.with_name("shop.db-bells").exists()


def test_a_long_path_has_a_bell_too(tmp_path, opened):
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    driver = opened(deep / "shop.db", safety_poll=60)
    drive(driver.ensure("orders"))
    with Sender(deep / "shop.db") as sender:
        threading.Timer(0.1, sender.send).start()
        began = time.monotonic()
        assert take(driver, wait=20, claim_id="a")
        assert time.monotonic() - began < 10


def test_a_bell_is_for_its_owner_only_and_goes_with_its_process(shop, patient):
    take(patient, wait=0.01, claim_id="a")
    bells = shop.with_name("shop.db-bells")
    assert bells.stat().st_mode & 0o777 == 0o700
    assert len(list(bells.iterdir())) == 1
    drive(patient.close())
    assert not bells.exists()


def test_the_bell_of_a_dead_process_is_removed_by_the_next_sender(shop, opened, patient):
    take(patient, wait=0.01, claim_id="a")
    bells = shop.with_name("shop.db-bells")
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead.bind(str(bells / "999999-dead"))
    dead.close()
    drive(patient.put("orders", [Envelope("1", b"")]))
    assert not (bells / "999999-dead").exists()
    assert len(list(bells.iterdir())) == 1


def test_a_directory_of_somebody_else_is_not_used_for_bells(tmp_path, shop, patient):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shop.with_name("shop.db-bells").symlink_to(elsewhere)
    take(patient, wait=0.01, claim_id="a")
    assert list(elsewhere.iterdir()) == []


def test_strange_words_from_a_socket_harm_nobody(shop, patient):
    take(patient, wait=0.01, claim_id="a")
    [bell] = shop.with_name("shop.db-bells").iterdir()
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    words = [b"\xff\x00nonsense", b"1:2", b"-5:99999999999999999999:1", b""]
    threading.Timer(0.05, lambda: [stranger.sendto(word, str(bell)) for word in words]).start()
    assert not take(patient, wait=0.3, claim_id="b")
    stranger.close()
    threading.Timer(0.05, lambda: drive(patient.put("orders", [Envelope("1", b"")]))).start()
    assert take(patient, wait=20, claim_id="c")


def test_every_waiter_gets_one_of_as_many_messages(patient):
    found: list[str] = []

    def wait(i: int) -> None:
        found.extend(d.envelope.id for d in take(patient, wait=20, claim_id=f"c{i}"))

    threads = [threading.Thread(target=wait, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    began = time.monotonic()
    drive(patient.put("orders", [Envelope(str(i), b"") for i in range(8)]))
    for thread in threads:
        thread.join(20)
    assert sorted(found) == [str(i) for i in range(8)]
    assert time.monotonic() - began < 10


def test_sync_and_async_clients_of_one_file_wake_one_another(shop, patient):
    async def wait_async():
        other = sqlite.open(Address("sqlite", f"/{shop}"), flavour="async", safety_poll=60)
        try:
            asyncio.get_running_loop().call_later(
                0.1, lambda: threading.Thread(target=lambda: drive(patient.put("orders", [Envelope("1", b"")]))).start()
            )
            claimed = await other.claim("orders", 1, lease=30, wait=20, claim_id="a")
            return claimed.deliveries
        finally:
            await other.close()

    began = time.monotonic()
    assert asyncio.run(wait_async())
    assert time.monotonic() - began < 10


def test_a_cancelled_wait_passes_its_ring_on(shop, opened):
    async def main():
        driver = sqlite.open(Address("sqlite", f"/{shop}"), flavour="async", safety_poll=60)
        await driver.ensure("orders")
        tasks = [asyncio.create_task(driver.claim("orders", 1, lease=30, wait=20, claim_id=f"c{i}")) for i in range(2)]
        await asyncio.sleep(0.1)
        await driver.put("orders", [Envelope("1", b"")])
        tasks[0].cancel()  # the ring was for the first, who is leaving
        await asyncio.wait(tasks[:1])
        if tasks[0].cancelled():
            await driver.abandon("orders", "c0")  # it may have had it already: then it goes back, and to the second
            taken = await asyncio.wait_for(tasks[1], 10)
        else:
            taken = tasks[0].result()
            tasks[1].cancel()
        await driver.close()
        return len(taken.deliveries)

    assert asyncio.run(main()) == 1


def test_a_nack_an_end_of_lease_and_an_unlock_wake_a_waiter(patient):
    drive(patient.put("orders", [Envelope("1", b"", session_id="S")]))
    [first] = take(patient, wait=0, claim_id="a")
    threading.Timer(0.1, lambda: drive(patient.settle("orders", [Release(first.handle)]))).start()
    [second] = take(patient, wait=20, claim_id="b")
    drive(patient.settle("orders", [Release(second.handle)]))
    assert drive(patient.claim("orders", 1, lease=0.2, wait=0, claim_id="c")).deliveries
    [third] = take(patient, wait=20, claim_id="d")
    drive(patient.settle("orders", [Release(third.handle)]))
    lock = drive(patient.lock("orders", "S", lease=30, wait=0, token="t"))
    assert lock is not None
    threading.Timer(0.1, lambda: drive(patient.unlock("orders", lock))).start()
    assert take(patient, wait=20, claim_id="e", session=SessionClaim("S"))


def test_a_sender_waits_for_room(patient):
    drive(patient.ensure("orders", Rules(max_messages=1, overflow="wait", overflow_timeout=20)))
    drive(patient.put("orders", [Envelope("1", b"")]))
    [first] = take(patient, wait=0, claim_id="a")
    threading.Timer(0.1, lambda: drive(patient.settle("orders", [Ack(first.handle)]))).start()
    [put] = drive(patient.put("orders", [Envelope("2", b"")]))
    assert isinstance(put, Accepted)
    stop = Bell()
    threading.Timer(0.1, stop.ring_for_good).start()
    [put] = drive(patient.put("orders", [Envelope("3", b"")], stop=stop))
    assert isinstance(put, Refused)


def test_closing_wakes_those_who_wait(patient):
    threading.Timer(0.1, lambda: drive(patient.close())).start()
    began = time.monotonic()
    assert take(patient, wait=20, claim_id="a") == ()
    assert time.monotonic() - began < 10


def test_waiting_costs_a_process_next_to_nothing(opened):
    driver = opened()
    drive(driver.ensure("orders"))
    take(driver, wait=0.01, claim_id="warm")
    before = time.process_time()
    take(driver, wait=0.9, claim_id="a")
    assert time.process_time() - before < 0.02


def test_a_pid_that_forked_before_has_its_own_bell(shop, patient):
    take(patient, wait=0.01, claim_id="a")
    [parents] = shop.with_name("shop.db-bells").iterdir()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            drive(patient.put("orders", [Envelope("from the child", b"")]))
            mine = drive(patient.claim("orders", 1, lease=30, wait=1, claim_id="b")).deliveries
            drive(patient.settle("orders", [Ack(d.handle) for d in mine]))
            drive(patient.put("orders", [Envelope("again", b"")]))
            os.write(writing, b"ok" if parents.exists() and mine else b"no")
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reading, 10) == b"ok"
    os.close(reading)
    found = take(patient, wait=5, claim_id="c")
    assert [d.envelope.id for d in found] == ["again"]
