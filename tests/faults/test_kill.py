"""kill -9, on both sides, everywhere: what was accepted is delivered, and every delivery was counted first.

The children and the test share a clock that the test moves, so that a killed holder's lease ends when the test says so.
"""

import random
import signal
import time

import pytest

import postroom
from tests.faults.checker import History, keys, prove
from tests.faults.rig import (
    Box,
    Child,
    Line,
    Nursery,
    Place,
    acknowledge,
    forever,
    nack,
    name_of,
    receive,
    send,
    send_many,
    settle,
)

pytestmark = pytest.mark.faults

LEASE = 30.0


def consumer_that_waits_to_be_killed(line: Line, directory: str, by: str, batch: int) -> None:
    with Place(directory, by, clock=True) as place:
        box = place.box()
        line.say("ready")
        messages = receive(place.log, box, batch, LEASE)
        for message in messages:
            if line.ask(name_of(message)) == "finish":
                acknowledge(place.log, message)


@pytest.mark.slow
def test_a_consumer_killed_in_its_handler_loses_nothing(timed: Place, nursery: Nursery) -> None:
    """Forty rounds: a consumer takes three, finishes as many as the dice say, and is killed in the next."""
    dice = random.Random(1)
    box = timed.box()
    for n in range(120):
        send(timed.log, box, f"m{n}")
    for n in range(40):
        child = nursery.spawn(consumer_that_waits_to_be_killed, directory=str(timed.directory), by=f"c{n}", batch=3)
        assert child.hear() == "ready"
        for _ in range(dice.randrange(3)):
            child.hear()
            child.say("finish")
        child.hear()  # in the handler now
        child.kill()
        timed.log.note("struck", fault="kill")
        timed.clock.advance(dice.choice([1.0, LEASE + 1]))
    timed.drain(box, lapse=LEASE + 1)
    report = prove(timed.log, "kill")
    assert report.struck["kill"] == 40
    assert report.redelivered > 20
    assert report.left == report.dead == 0
    timed.is_sound()


def consumer_that_kills_itself(line: Line, directory: str, by: str, poison: str) -> None:
    import os

    with Place(directory, by, clock=True) as place:
        box = place.box("orders")
        while messages := receive(place.log, box, 1, LEASE):
            if name_of(messages[0]) == poison:
                os.kill(os.getpid(), signal.SIGKILL)
            acknowledge(place.log, messages[0])


@pytest.mark.parametrize("batch", [1, 3])
def test_a_message_that_kills_its_process_every_time_is_dead_after_n(
    timed: Place, nursery: Nursery, batch: int
) -> None:
    client = timed.connect()
    client.create_queue(postroom.QueueDefinition(name="orders", max_delivery_count=3))
    box = client.mailbox("orders")
    for key in ("first", "poison", "second", "third"):
        send(timed.log, box, key)
    ends = []
    for n in range(5):
        child = nursery.spawn(consumer_that_kills_itself, directory=str(timed.directory), by=f"c{n}", poison="poison")
        ends.append(child.wait())
        if ends[-1] == -signal.SIGKILL:
            timed.log.note("struck", fault="suicide", unseen_claims=0)
        timed.clock.advance(LEASE + 1)
    assert ends == [-signal.SIGKILL] * 3 + [0, 0]
    [dead] = box.dead_letters.peek()
    assert dead.death is not None
    assert (dead.id, dead.death.reason, dead.death.delivery_count) == ("poison", "max_deliveries", 3)
    timed.drain(box)
    report = prove(timed.log, "suicide")
    assert (report.acked, report.dead, report.left) == (3, 1, 0)
    assert [e["count"] for e in timed.log.events() if e["event"] == "received" and e["key"] == "poison"] == [1, 2, 3]


def producer(line: Line, directory: str, by: str, batch: int) -> None:
    with Place(directory, by, clock=True, sync=False) as place:
        box = place.box()
        line.say("ready")
        line.hear()
        for n in forever():
            if batch == 1:
                send(place.log, box, f"{by}-{n}")
            else:
                send_many(place.log, box, [f"{by}-{n}-{i}" for i in range(batch)])
            if n == 0:
                line.say("one")


def strike(child: Child, dice: random.Random, most: float, after: str | None) -> None:
    """Kill it at some moment of the next few milliseconds: the sleep is the die, not a wait for something."""
    child.say("go")
    if after is not None:
        child.hear_until(after)
    time.sleep(dice.uniform(0, most))
    child.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "most"), [(1, 0.004), (50, 0.008), (1000, 0.06)])
def test_a_producer_killed_mid_batch_loses_nothing_it_was_told_is_stored(
    timed: Place, nursery: Nursery, batch: int, most: float
) -> None:
    """And a batch is all there or not at all: it is one transaction."""
    dice = random.Random(batch)
    box = timed.box()
    box.approximate_count()
    for n in range(40 if batch < 1000 else 8):
        child = nursery.spawn(producer, directory=str(timed.directory), by=f"p{n}", batch=batch)
        child.hear()
        strike(child, dice, most, after="one" if n % 2 else None)
        timed.log.note("struck", fault="kill", unseen_claims=0)
    quick = History(timed.log.path, "drain", sync=False)
    timed.log, slow = quick, timed.log
    timed.drain(box, batch=1000)
    slow.close()
    report = prove(timed.log, "kill")
    assert report.left == report.dead == 0
    assert report.sent > 0
    if batch > 1:
        there: dict[str, int] = {}
        for key in keys(timed.log.events(), "received"):
            there[key.rpartition("-")[0]] = there.get(key.rpartition("-")[0], 0) + 1
        assert set(there.values()) == {batch}
    timed.is_sound()


# --- at any point of any verb --------------------------------------------------------------------------------------


def do_everything(line: Line, directory: str, by: str, seed: int) -> None:
    """Each verb in turn, as the dice say, until the end comes."""
    dice = random.Random(seed)
    with Place(directory, by, clock=True, sync=False) as place:
        client = place.connect()
        box = client.mailbox("box")
        log = place.log
        line.say("ready")
        line.hear()
        for n in forever():
            step(dice, log, client, box, f"{by}-{n}", line)


def step(
    dice: random.Random, log: History, client: postroom.QueueClient, box: Box, name: str, line: Line | None
) -> None:
    match dice.randrange(8):
        case 0 | 1:
            send(log, box, name, session_id=dice.choice([None, None, "s1", "s2"]))
        case 2:
            send_many(log, box, [f"{name}-{i}" for i in range(dice.randint(2, 20))])
        case 3 if not dice.randrange(10):
            box.dead_letters.redrive(limit=3)
        case 4 if not dice.randrange(4):
            box.peek(5)
            box.info()
        case _:
            for message in receive(log, box, dice.randint(1, 5), LEASE):
                end(dice, log, message)


def end(dice: random.Random, log: History, message: postroom.Message[object, object]) -> None:
    match dice.randrange(9):
        case 0:
            nack(log, message, dice.choice([0, 0, 5]))
        case 1:
            facts = {"key": name_of(message), "token": message.lease.token}
            log.note("extending", **facts)
            try:
                message.extend_visibility(60)
            except postroom.ReceiptHandleExpiredError:
                log.note("stale", **facts)
            else:
                log.note("extended", **facts, until=message.lease_expires_at.timestamp())
        case 2:
            settle(log, message, "burying", "buried", lambda: message.dead_letter("because"))
        case 3:
            pass  # forgotten: it lapses
        case _:
            acknowledge(log, message)


def kill_everything(place: Place, nursery: Nursery, rounds: int, seed: int) -> None:
    """Two at a time on one file, one of which is killed, while time goes on."""
    dice = random.Random(seed)
    client = place.connect()
    client.create_queue(postroom.QueueDefinition(name="box", max_delivery_count=1000))
    box = client.mailbox("box")
    alive: list[Child] = []
    for n in range(rounds):
        while len(alive) < 2:
            child = nursery.spawn(
                do_everything, directory=str(place.directory), by=f"x{n}-{len(alive)}", seed=dice.random()
            )
            assert child.hear() == "ready"
            child.say("go")
            alive.append(child)
        time.sleep(dice.uniform(0, 0.01))  # the die falls
        alive.pop(dice.randrange(2)).kill()
        place.log.note("struck", fault="kill")
        place.clock.advance(dice.choice([0.1, 3.0, LEASE + 1]))
    alive.pop().kill()
    place.log.note("struck", fault="kill")
    place.drain(box, lapse=100.0, batch=1000)
    report = prove(place.log, "kill", clients_tell_time=not place.url.startswith("sqlite:"))
    assert report.struck["kill"] == rounds + 1
    assert report.left == 0
    place.is_sound()


@pytest.mark.slow
def test_killed_at_any_point_of_any_verb(timed: Place, nursery: Nursery) -> None:
    kill_everything(timed, nursery, rounds=50, seed=7)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(8))
def test_killed_at_any_point_of_any_verb_for_long(timed: Place, nursery: Nursery, seed: int) -> None:
    kill_everything(timed, nursery, rounds=600, seed=seed)
