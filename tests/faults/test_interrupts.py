"""Ctrl-C anywhere in a blocking call: nothing is lost, nothing stays locked, and the client goes on.

Signals are real where the question is whether a wait can be interrupted. Where the question is *every* place, a trace
function raises the KeyboardInterrupt instead, place by place through the library: the same exception where a signal
could raise it, without leaving it to chance whether the one bad place is ever hit. Each runs in the main thread of a
process of its own.
"""

import dis
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import postroom
from tests.faults.checker import prove
from tests.faults.rig import (
    SOON,
    Line,
    Nursery,
    Place,
    acknowledge,
    note_received,
    receive,
    send,
    wait_for,
)

pytestmark = pytest.mark.faults

LIBRARY = os.path.dirname(postroom.__file__)
LEASE = 30.0


# --- a long poll ------------------------------------------------------------------------------------------------


def poller(line: Line, directory: str, by: str, store: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Place(directory, by) as place:
        client = postroom.connect("memory://") if store == "memory" else place.connect()
        box = client.mailbox("box")
        box.approximate_count()
        line.say("polling")
        try:
            box.receive(wait_time_seconds=20)
        except KeyboardInterrupt:
            place.log.note("struck", fault="SIGINT", unseen_claims=0)
        line.ask("interrupted")
        if store == "memory":
            send(place.log, box, "after")
        for message in receive(place.log, box, 10, LEASE):
            acknowledge(place.log, message)


def sleeps(pid: int) -> bool:
    """Whether the process waits in the kernel."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "S"


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.skipif(sys.platform != "linux", reason="platform: asks /proc whether a process waits")
def test_ctrl_c_ends_a_long_poll_at_once_and_the_client_is_usable_afterwards(
    place: Place, nursery: Nursery, store: str
) -> None:
    child = nursery.spawn(poller, directory=str(place.directory), by="poller", store=store)
    child.hear_until("polling")
    wait_for(lambda: sleeps(child.pid), "the child waits")
    began = time.monotonic()
    child.signal(signal.SIGINT)
    child.hear_until("interrupted")
    assert time.monotonic() - began < 2
    if store != "memory":
        place.is_unlocked()
        send(place.log, place.box(), "after")
    child.say("go on")
    child.finish()
    place.drain(place.box())
    report = prove(place.log, "SIGINT")
    assert report.acked == 1


# --- a storm of signals -------------------------------------------------------------------------------------------


def stormed(line: Line, directory: str, by: str, times: int) -> None:
    """Send, receive and acknowledge while an alarm interrupts every millisecond or so, wherever we happen to be."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    dice = random.Random(times)
    signal.signal(signal.SIGALRM, interrupt)
    with Place(directory, by, clock=True, sync=False) as place:
        client = place.connect()
        box = client.mailbox("box")
        box.approximate_count()
        names = itertools.count()
        struck = 0
        while struck < times:
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.0001, 0.003))
                    while True:
                        send(place.log, box, f"{by}-{next(names)}", session_id=dice.choice([None, "s"]))
                        for message in receive(place.log, box, 2, LEASE):
                            acknowledge(place.log, message)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                struck += 1
                # In the storm an answer may be lost between the library's last line and ours: that lease lapses.
                place.log.note("struck", fault="interrupt")
                place.is_unlocked()
            if not struck % 20:
                place.clock.advance(LEASE + 1)
        # Still usable, from another thread too: nobody took a lock along.
        others = threading.Thread(target=lambda: send(place.log, box, f"{by}-other"), daemon=True)
        others.start()
        others.join(SOON)
        assert not others.is_alive(), "a lock was left held"
    line.say("done")


@pytest.mark.slow
def test_hundreds_of_interrupts_lose_nothing_and_leave_nothing_locked(timed: Place, nursery: Nursery) -> None:
    child = nursery.spawn(stormed, directory=str(timed.directory), by="storm", times=400)
    child.hear_until("done")
    child.finish()
    timed.drain(timed.box(), lapse=LEASE + 1)
    timed.is_sound()
    report = prove(timed.log, "interrupt")
    assert report.struck["interrupt"] >= 400
    assert report.sent > 100
    assert report.left == 0


# --- every place ----------------------------------------------------------------------------------------------------


class Interrupter:
    """Raises KeyboardInterrupt at the n-th place in the library where a signal handler may run.

    Those are the places where CPython looks for signals: when a function begins or goes on, when a call of something
    written in C has come back, and at the end of a loop's turn. A `with lock:` is safe because there is none between
    the lock's being taken and the block, nor between the block's end and its release; so every *line* is too much.
    """

    LOOKS = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"})

    def __init__(self) -> None:
        self.left = 0
        self.struck = False
        self.where = ""
        self._last: tuple[FrameType | None, str] = (None, "")

    def run(self, at: int, act: Callable[[], Any]) -> Any:
        self.left, self.struck = at, False
        sys.settrace(self._call)
        try:
            return act()
        finally:
            sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._last = (None, "")
        self._tick(frame)
        return self._within

    def _within(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            before, self._last = self._last, (frame, dis.opname[frame.f_code.co_code[frame.f_lasti]])
            if before[0] is frame and before[1] in self.LOOKS:
                self._tick(frame)
        elif event == "return":
            self._last = (None, "")  # a call of our own code has come back: that was looked at inside of it
        return self._within

    def _tick(self, frame: FrameType) -> None:
        self.left -= 1
        if self.left == 0:
            self.struck = True
            self.where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"
            sys.settrace(None)
            raise KeyboardInterrupt


def swept(line: Line, directory: str, by: str, verb: str) -> None:
    """One verb again and again, struck at its first place, its second, ... until it ends before it is struck."""
    with Place(directory, by, clock=True, sync=False) as place:
        client = place.connect()
        box, log = client.mailbox("box"), place.log
        interrupter = Interrupter()
        stranded: list[str] = []
        box.approximate_count()
        for at in itertools.count(1):
            name = f"{by}-{at}"
            result: list[Any] = []

            def act(name: str = name, at: int = at, result: list[Any] = result) -> None:
                if verb == "send":
                    box.send(name, id=name)
                elif verb in ("receive", "poll"):
                    wait = 0.02 if verb == "poll" else 0
                    result[:] = box.receive(visibility_timeout=LEASE, wait_time_seconds=wait)
                elif verb == "acknowledge":
                    result[0].acknowledge()
                else:
                    result[0].nack()

            if verb == "send":
                log.note("sending", key=name)
            elif verb != "poll":
                send(log, box, name)
            if verb in ("acknowledge", "nack"):
                result[:] = receive(log, box, 1, LEASE)
                log.note(f"{verb}ing".replace("acknowledgeing", "acking"), key=name, token=result[0].lease.token)
            try:
                interrupter.run(at, act)
            except KeyboardInterrupt:
                log.note("struck", fault="interrupt", unseen_claims=int(verb in ("receive", "poll")))
            where = interrupter.where
            # The database is free, other threads get through, and so do we.
            place.is_unlocked()
            other = threading.Thread(target=box.approximate_count, daemon=True)
            other.start()
            other.join(SOON)
            assert not other.is_alive(), f"{verb} interrupted at {where}: a lock was left held"
            again = threading.Thread(target=lambda: send(log, box, f"{name}-then"), daemon=True)  # noqa: B023
            again.start()
            again.join(SOON)
            assert not again.is_alive(), f"{verb} interrupted at {where}: nobody can send any more"
            if verb in ("acknowledge", "nack"):
                if interrupter.struck:
                    try:
                        act()  # once more, as a caller would: its own success is no error
                    except postroom.MessageFinalizedError:
                        pass  # it was done when we were struck
                    except postroom.ReceiptHandleExpiredError:
                        assert verb == "nack", f"acknowledge interrupted at {where} cannot be tried again"
                log.note(f"{verb}ed".replace("acknowledgeed", "acked"), key=name, token=result[0].lease.token)
            if not interrupter.struck:
                if verb == "send":
                    log.note("sent", key=name)
                for message in result if verb == "receive" else ():
                    note_received(log, message)
                break
            if verb in ("receive", "poll") and (held := client.info("box").in_flight):
                stranded.append(where)
                assert held == 1
                place.clock.advance(LEASE + 1)
            for message in receive(log, box, 100, LEASE):
                acknowledge(log, message)
        assert box.info().in_flight <= 1
        # What is struck between the claim's end and the caller's own line cannot be given back by anybody, and lapses.
        line.say({"swept": at, "stranded": stranded})


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["send", "receive", "poll", "acknowledge", "nack"])
def test_an_interrupt_anywhere_in_a_verb_loses_nothing(timed: Place, nursery: Nursery, verb: str) -> None:
    child = nursery.spawn(swept, directory=str(timed.directory), by=verb, verb=verb)
    report = child.hear()
    child.finish()
    assert report["swept"] > 10
    timed.drain(timed.box(), lapse=LEASE + 1)
    timed.is_sound()
    proof = prove(timed.log, "interrupt")
    assert proof.struck["interrupt"] == report["swept"] - 1
    assert proof.left == 0
    print(report, proof)
