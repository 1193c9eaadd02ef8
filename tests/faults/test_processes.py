"""Several processes on one file: writing at once, stopped for too long, forked after opening, not woken."""

import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import sys
import threading
import time
from pathlib import Path

import pytest

import postroom
from tests.faults.checker import History, prove
from tests.faults.rig import (
    PATIENCE,
    Box,
    Line,
    Nursery,
    Place,
    acknowledge,
    forever,
    nack,
    receive,
    send,
    send_many,
    wait_for,
)

pytestmark = [pytest.mark.faults, pytest.mark.skipif(sys.platform == "win32", reason="platform: POSIX processes")]


# --- eight at once -----------------------------------------------------------------------------------------------
def busy(line: Line, directory: str, by: str, seconds: float, folding: bool) -> None:
    """Send, receive and settle as fast as it goes; some fold the log all the time, as a checkpoint storm."""
    dice = random.Random(by)
    with Place(directory, by, sync=False) as place:
        box = place.box()
        line.ask("ready")
        end = time.monotonic() + seconds
        for n in forever():
            if time.monotonic() > end:
                break
            if folding:
                connection = sqlite3.connect(place.path, timeout=5)
                connection.execute(f"PRAGMA wal_checkpoint({dice.choice(['PASSIVE', 'FULL', 'RESTART', 'TRUNCATE'])})")
                connection.close()
                place.log.note("struck", fault="fold", unseen_claims=0)
                continue
            if dice.random() < 0.5:
                send(place.log, box, f"{by}-{n}", session_id=dice.choice([None, f"s{dice.randrange(5)}"]))
            else:
                send_many(place.log, box, [f"{by}-{n}-{i}" for i in range(5)])
            for message in receive(place.log, box, 8, 60):
                if dice.random() < 0.05:
                    nack(place.log, message)
                else:
                    acknowledge(place.log, message)
        line.say("done")


def eight(place: Place, nursery: Nursery, seconds: float) -> None:
    # Before 3.51.3 SQLite itself can damage a log that two processes fold at once, so ours take turns. One stranger
    # that folds beside them is what an operator with a shell does; it must be one, for the same reason.
    box = place.box()
    box.approximate_count()
    folders = 1 if sqlite3.sqlite_version_info >= (3, 51, 3) else 0
    children = [
        nursery.spawn(busy, directory=str(place.directory), by=f"p{n}", seconds=seconds, folding=n < folders)
        for n in range(8)
    ]
    for child in children:
        child.hear_until("ready")
        child.has_work_for(2 * seconds)
    for child in children:
        child.say("go")
    for child in children:
        child.hear_until("done")
        child.finish()
    place.drain(box, batch=1000)
    report = prove(place.log)
    assert report.left == report.dead == 0
    assert len({e["by"] for e in place.log.events() if e["event"] == "sent"}) >= 7
    assert report.sent > 500
    place.is_sound()


@pytest.mark.slow
def test_eight_processes_on_one_file(place: Place, nursery: Nursery) -> None:
    """With a log that is folded every few commits: a thousand pages are soon written by eight."""
    eight(place, nursery, 4)
    assert (place.directory / "mail.db-fold").exists() or sqlite3.sqlite_version_info >= (3, 51, 3)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_eight_processes_on_one_file_for_a_minute(place: Place, nursery: Nursery) -> None:
    eight(place, nursery, 60)


# --- a pause longer than the lease -------------------------------------------------------------------------------
def one_slow_message(line: Line, directory: str, by: str, verdict: str) -> None:
    with Place(directory, by, clock=True) as place:
        box = place.box()
        line.ask("ready")
        [message] = receive(place.log, box, 1, 30)
        line.ask("holding")
        facts = {"key": message.body, "token": message.lease.token}
        place.log.note("acking", **facts) if verdict == "acknowledge" else place.log.note("nacking", **facts)
        try:
            getattr(message, verdict)()
        except postroom.ReceiptHandleExpiredError as error:
            place.log.note("stale", **facts)
            line.say(error.code)
        else:
            place.log.note("acked" if verdict == "acknowledge" else "nacked", **facts)
            line.say("settled")


@pytest.mark.parametrize("verdict", ["acknowledge", "nack"])
@pytest.mark.parametrize(
    ("session", "meanwhile", "answer"),
    [
        (None, "nothing", "settled"),  # late, and nobody else has it: it counts
        (None, "delivered again", "stale"),
        (None, "done by another", "gone"),
        ("s", "nothing", "stale"),  # in a session the next one may be under way
        ("s", "delivered again", "stale"),
        ("s", "done by another", "gone"),
    ],
)
def test_a_consumer_stopped_for_longer_than_its_lease_settles_by_the_table(
    timed: Place, nursery: Nursery, verdict: str, session: str | None, meanwhile: str, answer: str
) -> None:
    box = timed.box()
    send(timed.log, box, "m", session_id=session)
    child = nursery.spawn(one_slow_message, directory=str(timed.directory), by="slow", verdict=verdict)
    child.hear_until("ready")
    child.say("go")
    child.hear_until("holding")
    child.signal(signal.SIGSTOP)
    timed.log.note("struck", fault="stop", unseen_claims=0)
    timed.clock.advance(31)
    again = receive(timed.log, box, 1, 30) if meanwhile != "nothing" else []
    if meanwhile == "done by another":
        assert acknowledge(timed.log, again[0])
    child.say("settle")
    child.signal(signal.SIGCONT)
    assert child.hear() == answer
    child.finish()
    for message in again:
        if meanwhile == "delivered again":
            assert acknowledge(timed.log, message), "the late settle touched what was not its own"
    timed.drain(box, lapse=31)
    report = prove(timed.log, "stop")
    assert report.left == 0


# --- fork after open ---------------------------------------------------------------------------------------------
def use(log: History, box: object, name: str, n: int) -> None:
    for i in range(n):
        send(log, box, f"{name}-{i}")  # type: ignore[arg-type]  # a mailbox
        for message in receive(log, box, 1, 60):  # type: ignore[arg-type]  # a mailbox
            acknowledge(log, message)


def forks_after_opening(line: Line, directory: str, by: str, times: int) -> None:
    """A preforking server: opened once, used, and then parent and children go on with what they inherited."""
    with Place(directory, by, sync=False) as place:
        box = place.box()
        use(place.log, box, "before", 3)
        for n in range(times):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    os.close(read)
                    own = History(place.log.path, f"child{n}", sync=False)
                    use(own, box, f"child{n}", 20)
                    if n % 2:
                        place._clients[0].close()  # one of them tidies up; the parent must not notice
                    os.write(write, b"done")
                    code = 0
                finally:
                    os._exit(code)
            os.close(write)
            use(place.log, box, f"parent{n}", 20)
            answer = os.read(read, 10)
            os.close(read)
            assert answer == b"done"
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            place.log.note("struck", fault="fork", unseen_claims=0)
        place.is_sound()
        # A child that ends runs no destructors of ours here, so its end must not have dropped the parent's locks.
        use(place.log, box, "after", 3)
    line.say("done")


def test_parent_and_child_both_go_on_after_a_fork(place: Place, nursery: Nursery) -> None:
    child = nursery.spawn(forks_after_opening, directory=str(place.directory), by="parent", times=6)
    child.hear_until("done")
    child.finish()
    place.drain(place.box())
    report = prove(place.log, "fork")
    assert report.struck["fork"] == 6
    assert report.left == 0
    place.is_sound()


def leaves_before_its_child(line: Line, directory: str, by: str) -> None:
    """A daemon: the child goes on with what it inherited, the parent closes and others come meanwhile."""
    with Place(directory, by, sync=False) as place:
        box = place.box()
        use(place.log, box, "before", 3)
        began, begin = os.pipe()
        left, leave = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                own = History(place.log.path, "child", sync=False)
                send(own, box, "child")
                os.write(begin, b"x")
                os.read(left, 1)
                for n in range(20):
                    send(own, box, f"child-{n}")
                code = 0
            finally:
                os._exit(code)
        os.read(began, 1)
        place._clients[0].close()
        with postroom.connect(place.url) as another:  # comes and goes as the last one, as far as it can see
            send(place.log, another.mailbox("box"), "another")
        os.write(leave, b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        place.log.note("struck", fault="fork", unseen_claims=0)
    line.say("done")


def test_a_child_that_outlives_its_parents_connection_loses_nothing(place: Place, nursery: Nursery) -> None:
    child = nursery.spawn(leaves_before_its_child, directory=str(place.directory), by="parent")
    child.hear_until("done")
    child.finish()
    place.drain(place.box())
    report = prove(place.log, "fork")
    assert report.left == 0
    place.is_sound()


def forked_by_multiprocessing(box: object, path: str, name: str) -> None:
    use(History(path, name, sync=False), box, name, 10)


def forks_by_multiprocessing(line: Line, directory: str, by: str) -> None:
    with Place(directory, by, sync=False) as place:
        box = place.box()
        use(place.log, box, "before", 3)
        context = multiprocessing.get_context("fork")
        children = [
            context.Process(target=forked_by_multiprocessing, args=(box, place.log.path, f"mp{n}")) for n in range(3)
        ]
        for child in children:
            child.start()
        use(place.log, box, "parent", 20)
        for child in children:
            child.join(PATIENCE)
            assert child.exitcode == 0
            place.log.note("struck", fault="fork", unseen_claims=0)
    line.say("done")


def test_multiprocessing_with_fork_shares_no_connection(place: Place, nursery: Nursery) -> None:
    child = nursery.spawn(forks_by_multiprocessing, directory=str(place.directory), by="parent")
    child.hear_until("done")
    child.finish()
    place.drain(place.box())
    report = prove(place.log, "fork")
    assert report.left == 0
    place.is_sound()


def forks_while_threads_send(line: Line, directory: str, by: str) -> None:
    """The fork takes place while other threads hold whatever locks there are; the child has none of those threads."""
    with Place(directory, by, sync=False) as place:
        box = place.box()
        box.approximate_count()
        stop = threading.Event()

        def work(name: str) -> None:
            own = History(place.log.path, name, sync=False)
            for n in forever():
                if stop.is_set():
                    return
                send(own, box, f"{name}-{n}")

        threads = [threading.Thread(target=work, args=(f"t{n}",), daemon=True) for n in range(3)]
        for thread in threads:
            thread.start()
        wait_for(lambda: place.log.count("sent") > 10, "the threads send")
        for n in range(8):
            pid = os.fork()
            if pid == 0:
                signal.alarm(int(PATIENCE))  # hung on a lock that nobody will ever release
                code = 1
                try:
                    use(History(place.log.path, f"child{n}", sync=False), box, f"child{n}", 3)
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the forked child hung or failed"
            place.log.note("struck", fault="fork", unseen_claims=0)
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    line.say("done")


@pytest.mark.slow
def test_a_fork_while_other_threads_are_sending(place: Place, nursery: Nursery) -> None:
    child = nursery.spawn(forks_while_threads_send, directory=str(place.directory), by="parent")
    child.hear_until("done")
    child.finish()
    place.drain(place.box(), batch=1000)
    report = prove(place.log, "fork")
    assert report.struck["fork"] == 8
    assert report.left == 0
    place.is_sound()


def forks_while_others_wait(line: Line, directory: str, by: str) -> None:
    """At the fork some threads are in a long poll and others in a send; the child goes on in threads of its own."""
    with Place(directory, by, sync=False) as place:
        box = place.box()
        box.approximate_count()
        stop = threading.Event()

        def wait() -> None:
            while not stop.is_set():
                for message in receive(place.log, box, 1, 60, wait=1):
                    acknowledge(place.log, message)

        def feed(name: str) -> None:
            own = History(place.log.path, name, sync=False)
            for n in forever():
                if stop.is_set():
                    return
                send(own, box, f"{name}-{n}")

        threads = [threading.Thread(target=wait, daemon=True)]
        threads += [threading.Thread(target=feed, args=(f"f{n}",), daemon=True) for n in range(3)]
        for thread in threads:
            thread.start()
        wait_for(lambda: place.log.count("sent") > 10, "the threads send")
        for n in range(8):
            pid = os.fork()
            if pid == 0:
                signal.alarm(int(PATIENCE))  # hung on a lock that nobody will ever release
                code = 1
                try:
                    own = History(place.log.path, f"child{n}", sync=False)
                    worker = threading.Thread(target=child_works, args=(own, box, f"child{n}"))
                    worker.start()
                    worker.join()
                    code = 0 if own.count("acked", by=f"child{n}") else 2
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the forked child hung or failed"
            place.log.note("struck", fault="fork", unseen_claims=0)
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    line.say("done")


def child_works(log: History, box: Box, name: str) -> None:
    for n in range(3):
        send(log, box, f"{name}-{n}")
    for message in receive(log, box, 5, 60, wait=5):
        acknowledge(log, message)


def test_a_fork_while_other_threads_wait_and_a_child_with_threads(place: Place, nursery: Nursery) -> None:
    child = nursery.spawn(forks_while_others_wait, directory=str(place.directory), by="parent")
    child.hear_until("done")
    child.finish()
    place.drain(place.box(), batch=1000)
    report = prove(place.log, "fork")
    assert report.struck["fork"] == 8
    assert report.left == 0
    place.is_sound()


# --- wake-ups that do not come -----------------------------------------------------------------------------------
def waits(line: Line, directory: str, by: str) -> None:
    with Place(directory, by) as place:
        box = place.box()
        box.approximate_count()
        line.say("waiting")
        began = time.monotonic()
        messages = receive(place.log, box, 1, 60, wait=15)
        line.say({"got": len(messages), "after": time.monotonic() - began})
        for message in messages:
            acknowledge(place.log, message)


def asleep(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "S"


linux = pytest.mark.skipif(sys.platform != "linux", reason="platform: asks /proc whether a process waits")


@linux
def test_a_waiter_of_another_process_is_woken(place: Place, nursery: Nursery) -> None:
    box = place.box()
    child = nursery.spawn(waits, directory=str(place.directory), by="waiter")
    child.hear_until("waiting")
    wait_for(lambda: asleep(child.pid), "the child waits")
    send(place.log, box, "m")
    assert child.hear()["got"] == 1
    child.finish()


@linux
def test_the_waiter_that_was_rung_is_killed_and_the_next_gets_the_message(place: Place, nursery: Nursery) -> None:
    """The ring went to a process that is stopped, and then killed: the other one finds the message all the same."""
    box = place.box()
    box.approximate_count()
    first = nursery.spawn(waits, directory=str(place.directory), by="first")
    first.hear_until("waiting")
    wait_for(lambda: asleep(first.pid), "the first waits")
    second = nursery.spawn(waits, directory=str(place.directory), by="second")
    second.hear_until("waiting")
    wait_for(lambda: asleep(second.pid), "the second waits")
    first.signal(signal.SIGSTOP)
    send(place.log, box, "m")
    first.kill()
    place.log.note("struck", fault="kill")
    answer = second.hear()
    assert answer["got"] == 1
    assert answer["after"] < 10
    second.finish()
    place.drain(box)
    prove(place.log, "kill")


@linux
@pytest.mark.parametrize("how", ["removed", "replaced by a file", "not ours to write"])
def test_without_bells_the_safety_poll_finds_the_message(place: Place, nursery: Nursery, how: str) -> None:
    box = place.box()
    box.approximate_count()
    bells = Path(f"{place.path}-bells")
    child = nursery.spawn(waits, directory=str(place.directory), by="waiter")
    child.hear_until("waiting")
    wait_for(lambda: bells.is_dir() and asleep(child.pid), "the child waits")
    shutil.rmtree(bells)
    if how == "replaced by a file":
        bells.write_text("no directory")
    elif how == "not ours to write":
        bells.mkdir(mode=0o777)
        bells.chmod(0o777)
    place.log.note("struck", fault="bells", unseen_claims=0)
    send(place.log, box, "m")
    answer = child.hear()
    assert answer["got"] == 1
    assert answer["after"] < 5
    child.finish()
    place.drain(box)
    prove(place.log, "bells")
