"""A worker in a process of its own, and the signals that end it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import postroom

pytestmark = pytest.mark.slow

SYNC = """
import sys, time
import postroom

def handle(body):
    print("begun", body, flush=True)
    sys.stdin.readline()
    print("ended", body, flush=True)

with postroom.connect(sys.argv[1]) as client:
    postroom.Worker(client.mailbox("jobs", str), handle, visibility_timeout=1).run()
print("home", flush=True)
"""
ASYNC = """
import asyncio, sys
import postroom.aio

async def handle(body):
    print("begun", body, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("ended", body, flush=True)

async def main():
    async with postroom.aio.connect(sys.argv[1]) as client:
        await postroom.aio.AsyncWorker(client.mailbox("jobs", str), handle, visibility_timeout=1).run()

asyncio.run(main())
print("home", flush=True)
"""


class Process:
    def __init__(self, program: str, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(params=[SYNC, ASYNC], ids=["sync", "async"])
def start(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Process]]:
    begun: list[Process] = []

    def start(url: str) -> Process:
        begun.append(Process(request.param, url))
        return begun[-1]

    yield start
    for one in begun:
        one.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_told_to_stop_it_ends_what_it_began_and_takes_no_more(
    tmp_path: Path, start: Callable[[str], Process], number: signal.Signals
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with postroom.connect(url) as client:
        jobs = client.mailbox("jobs", str)
        jobs.send_many(["a", "b"])
        worker = start(url)
        assert worker.hear() == "begun a"
        worker.process.send_signal(number)
        # Its lease of a second is kept meanwhile: nobody else gets it.
        [other] = jobs.receive(max_messages=5, wait_time_seconds=1)
        assert (other.body, other.delivery_count) == ("b", 1)
        assert jobs.receive(wait_time_seconds=1.5) == []
        worker.go_on()
        assert [worker.hear(), worker.hear()] == ["ended a", "home"]
        assert worker.process.wait(20) == 0
        other.acknowledge()
        assert jobs.approximate_count() == 0


def test_a_second_signal_ends_it_at_once_and_its_message_comes_back(
    tmp_path: Path, start: Callable[[str], Process]
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with postroom.connect(url) as client:
        jobs = client.mailbox("jobs", str)
        jobs.send("a")
        worker = start(url)
        assert worker.hear() == "begun a"
        worker.process.send_signal(signal.SIGTERM)
        while worker.process.poll() is None:
            worker.process.send_signal(signal.SIGTERM)
            try:
                worker.process.wait(0.1)
            except subprocess.TimeoutExpired:
                pass
        assert worker.process.returncode == 128 + signal.SIGTERM
        [again] = jobs.receive(wait_time_seconds=5)
        assert (again.body, again.delivery_count) == ("a", 2)


def test_a_worker_that_waits_comes_home_at_once(tmp_path: Path, start: Callable[[str], Process]) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with postroom.connect(url) as client:
        jobs = client.mailbox("jobs", str)
        jobs.send("a")
        worker = start(url)
        assert worker.hear() == "begun a"
        worker.go_on()
        assert worker.hear() == "ended a"
        worker.process.send_signal(signal.SIGTERM)
        assert worker.hear() == "home"
        assert worker.process.wait(5) == 0
        assert jobs.approximate_count() == 0
