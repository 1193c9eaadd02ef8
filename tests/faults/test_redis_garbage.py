"""What others do to the keys: emptied, shot through, written over. What is good comes out, what is bad is put aside,
and the rest is an error that names the queue; nothing hangs, and nobody's neighbour suffers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import postroom
from postroom.drivers import redis_wait
from tests.faults.redis_rig import ROOT, Caller, Flavour, Later, blocked, is_sound, wait_for
from tests.servers.valkey import Server

pytestmark = pytest.mark.faults
HALF = ("pending", "invisible", "later", "data", "meta", "bell")
KEYS = (
    *HALF, "info", "memo", "timers", "expiry", "dedup", "dedup:until", "line", "heads", "locks", "waiters", "all",
    *(f"dead:{key}" for key in HALF),
)  # fmt: skip
flavours = pytest.mark.parametrize("flavour", ["sync", "async"])


@pytest.fixture
def client(valkey: Server) -> Iterator[postroom.QueueClient]:
    with postroom.connect(valkey.url) as client:
        yield client


# --- emptied ---------------------------------------------------------------------------------------------------------


@flavours
def test_everything_is_flushed_while_others_send_and_receive(
    flavour: Flavour, valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call says that the queue does not exist, until the mailbox is opened anew; and then all is well."""
    monkeypatch.setattr(redis_wait, "POLL", 1.5)
    for struck in range(2):
        with Caller(valkey.url, flavour) as caller, postroom.connect(valkey.url) as waits:
            box = caller.client.mailbox("box")
            caller.run(box.send_many, range(10))
            [held, other] = caller.receive(box, 2)
            waiting = Later(lambda waits=waits: waits.mailbox("other").receive(wait_time_seconds=20))  # type: ignore[misc]
            wait_for(lambda: blocked(valkey) == 1, "it waits")
            valkey.call("FLUSHALL")
            for act in (lambda: box.send(1), box.receive, held.acknowledge, box.info, box.purge):  # noqa: B023
                with pytest.raises(postroom.QueueNotFoundError, match="box"):
                    caller.run(act)
            if struck:  # with the queue its bell is gone: who waits there finds out when it looks by itself
                with pytest.raises(postroom.QueueNotFoundError, match="other"):
                    waiting.result(within=6)
            again = caller.client.mailbox("box")
            caller.run(again.send, "after")
            [message] = caller.receive(again, 10)
            assert (message.body, message.delivery_count) == ("after", 1)
            with pytest.raises(postroom.ReceiptHandleExpiredError) as error:
                caller.run(other.nack)
            assert error.value.code == "gone"
            caller.run(box.send, "the old object works as well, as the queue is there again")
            assert caller.run(caller.client.list_queues) == ["box"]
            valkey.call("FLUSHALL")


def test_everything_is_flushed_in_the_middle_of_traffic(valkey: Server) -> None:
    """No error but the honest one, whoever opens again goes on, and the numbers are right in the end."""
    stop, failures, opened = threading.Event(), [], []

    def work(act: Callable[[Any], None]) -> None:
        with postroom.connect(valkey.url) as client:
            while not stop.is_set():
                try:
                    box = client.mailbox("box")
                    opened.append(1)
                    while not stop.is_set():
                        act(box)
                except (postroom.QueueNotFoundError, postroom.ReceiptHandleExpiredError):
                    pass
                except BaseException as error:
                    failures.append(error)
                    return

    def consume(box: Any) -> None:
        for message in box.receive(max_messages=3, wait_time_seconds=0.2):
            message.acknowledge()

    workers = [Later(lambda act=act: work(act)) for act in (lambda box: box.send(1), consume, consume)]  # type: ignore[misc]
    for n in range(10):
        wait_for(lambda n=n: len(opened) > n or bool(failures), "they go on")  # type: ignore[misc]
        time.sleep(0.05)
        valkey.call("FLUSHALL")
    stop.set()
    for worker in workers:
        worker.result()
    assert failures == []
    assert len(opened) > 10
    is_sound(valkey.url)


# --- shot through ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["data", "meta"])
@pytest.mark.parametrize("state", ["ready", "in flight", "scheduled", "in a session", "lapsed"])
def test_a_field_that_was_deleted_under_a_queued_id(
    lost: str, state: str, valkey: Server, client: postroom.QueueClient
) -> None:
    """Without its envelope a message is dead, `undecodable`; without its past it is as if it had never been delivered.
    Its neighbours come out as they are."""
    box = client.mailbox("box")
    session = "s" if state == "in a session" else None
    for n in range(3):
        box.send(n, session_id=session, delay_seconds=0.3 if state == "scheduled" else 0)
    held = (
        list(box.receive(max_messages=3, visibility_timeout=0.1 if state == "lapsed" else 30))
        if state in ("in flight", "lapsed")
        else []
    )
    if state == "lapsed":
        time.sleep(0.15)  # the lease
    seqs = sorted(valkey.call("HKEYS", f"{ROOT}data"))
    assert len(seqs) == 3
    valkey.call("HDEL", f"{ROOT}{lost}", seqs[1])
    if state == "in flight":
        for message in held:
            try:
                message.nack()
            except postroom.ReceiptHandleExpiredError:
                assert message.body == 1  # what nobody knows anything about any more is not in flight for its holder
                valkey.call("ZADD", f"{ROOT}invisible", 1, seqs[1])  # as if its lease were over
    got = []
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and len(got) + box.dead_letters.approximate_count() < 3:
        for message in box.receive(max_messages=10, wait_time_seconds=0.2):
            got.append(message.body)
            message.acknowledge()
    if lost == "meta":
        assert sorted(got) == [0, 1, 2]
    else:
        assert sorted(got) == [0, 2]
        [dead] = box.dead_letters.peek()
        assert dead.death is not None
        assert dead.death.reason == "undecodable"
    assert box.approximate_count() == 0


# --- written over ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flavour", "key"), [*(("sync", key) for key in KEYS), ("async", "pending"), ("async", "data"), ("async", "bell")]
)
def test_a_key_of_the_wrong_type_is_an_error_that_names_the_queue(key: str, flavour: Flavour, valkey: Server) -> None:
    """Or nobody needs it; and when it is removed all is well again."""
    with Caller(valkey.url, flavour, timeout=1.0) as caller:
        box = caller.client.mailbox("box")
        caller.run(box.send, "m")
        saved = valkey.call("EXISTS", ROOT + key) and valkey.call("RENAME", ROOT + key, f"{ROOT}saved")
        valkey.call("SET", ROOT + key, "not ours")
        said = []
        for act in (
            lambda: box.send("x", session_id="s", ttl=100, dedup_id="d"),
            lambda: box.receive(max_messages=2),
            lambda: box.receive(wait_time_seconds=0.02, session_id="t"),
            lambda: box.receive(wait_time_seconds=0.02),
            box.info,
            box.peek,
            lambda: box.dead_letters.receive(),
            lambda: box.dead_letters.redrive(),
        ):
            began = time.monotonic()
            try:
                caller.run(act)
            except postroom.MailboxError as error:
                said.append(error)
            assert time.monotonic() - began < 3
        for error in said:
            assert "box" in str(error)
            assert error.code in ("WRONGTYPE", "ERR"), error
            if error.code == "WRONGTYPE":
                assert "something else wrote into the queue's keys, which begin with {queue:" in str(error)
        if key in ("pending", "invisible", "data", "meta", "info", "memo", "later", "line", "timers"):
            assert any(error.code == "WRONGTYPE" for error in said)
        valkey.call("DEL", ROOT + key)
        if saved:
            valkey.call("RENAME", f"{ROOT}saved", ROOT + key)
        caller.run(box.purge)
        caller.run(box.send, "after")
        assert [message.body for message in caller.receive(box)] == ["after"]


GARBAGE = [
    "x",
    "",
    "foo",
    "9" * 16,
    "0" * 16,
    "1" * 17,
    "-1",
    "nan",
    "s\0x",
    "mS\0short",
    "hS\0" + "1" * 16,
    "\u00ff" * 9,
]
ZSETS = ("pending", "invisible", "later", "expiry", "timers", "dedup:until", "line", "heads", "locks", "waiters")
HASHES = ("data", "meta", "memo", "dedup")


@pytest.mark.parametrize("score", [0, 10])
@pytest.mark.parametrize("key", [*ZSETS, "dead:pending", "dead:invisible", "dead:later"])
def test_foreign_members_of_a_sorted_set_harm_no_neighbour(
    key: str, score: int, valkey: Server, client: postroom.QueueClient
) -> None:
    box = client.mailbox("box")
    box.send_many(range(5))
    for n in range(3):
        box.send(10 + n, session_id="t")
    for piece in GARBAGE:
        valkey.call("ZADD", ROOT + key, score, piece)
    check_the_neighbours(box, valkey)


@pytest.mark.parametrize("key", [*HASHES, "dead:data", "dead:meta"])
def test_foreign_fields_of_a_hash_harm_no_neighbour(key: str, valkey: Server, client: postroom.QueueClient) -> None:
    box = client.mailbox("box")
    box.send_many(range(5))
    for n in range(3):
        box.send(10 + n, session_id="t")
    for piece in GARBAGE:
        for value in GARBAGE:
            valkey.call("HSET", ROOT + key, piece, value)
            if key == "memo":
                valkey.call("HSET", ROOT + key, f"u:{piece}", value)
                valkey.call("ZADD", f"{ROOT}timers", 1, f"u:{piece}")
                valkey.call("ZADD", f"{ROOT}timers", 1, f"c:{piece}")
    check_the_neighbours(box, valkey)


def check_the_neighbours(box: Any, valkey: Server) -> None:
    """All that we sent comes out, once each; whatever else there is ends in the dead letters, and nothing raises."""
    box.peek(100)
    box.info()
    got = []
    deadline = time.monotonic() + 5
    while len(got) < 8 and time.monotonic() < deadline:
        for message in box.receive(max_messages=3, wait_time_seconds=0.1):
            got.append(message.body)
            message.acknowledge()
    assert sorted(got) == [0, 1, 2, 3, 4, 10, 11, 12]
    for _ in range(20):
        for message in box.receive(max_messages=100):
            raise AssertionError(f"out of nothing came {message.body!r}")
    for dead in box.dead_letters.peek(100):
        assert not dead.death or dead.death.reason in ("undecodable", "")  # the latter of what nobody ever buried
    box.dead_letters.receive(max_messages=100)
    box.info()
    box.purge()
    box.send("after")
    assert [message.body for message in box.receive(max_messages=10)] == ["after"]


ENVELOPES = [
    b"",
    b"x",
    b'{"json": true}',
    b"\x01",
    b"\x01\x0a\x00\x00\x00\x03\x00\x10short",
    b"\x01\x0a\x00\x00\x00\x03\xff\xff" + b"id" * 4,
    b"\x01\x0a\x00\x00\x00\x01\x00\x01i\x00\x00\xff\xffhead",
    b"\x01\x0a\x00\x00\x00\x01\x00\x01i\x00\x00\x00\x04junk1",
    b"\x02\x0a\x00\x00\x00\x01\x00\x01i\x00\x00\x00\x001",  # of a later version
    b"\x01\x0a\x00\x00\x00\x01\x00\x02\xff\xfe\x00\x00\x00\x001",
    b"\x80\x04\x95" + b"\x00" * 40,  # a pickle
    b"\xff" * 200,
    b"\x00" * 9,
]


@flavours
@pytest.mark.parametrize("session", [None, "s"])
def test_foreign_envelopes_end_in_the_dead_letters_with_their_bytes(
    flavour: Flavour, session: str | None, valkey: Server
) -> None:
    """Those of two at a time, so that each has a good neighbour in its batch."""
    with Caller(valkey.url, flavour) as caller:
        box = caller.client.mailbox("box")
        for n in range(2 * len(ENVELOPES)):
            caller.run(box.send, n, session_id=session)
        seqs = sorted(valkey.call("HKEYS", f"{ROOT}data"))
        for seq, envelope in zip(seqs[::2], ENVELOPES, strict=True):
            valkey.call("HSET", f"{ROOT}data", seq, envelope)
        got: list[Any] = []
        deadline = time.monotonic() + 5
        while len(got) < len(ENVELOPES) and time.monotonic() < deadline:
            for message in caller.receive(box, 4, wait_time_seconds=0.1):
                got.append(message.body)
                caller.run(message.acknowledge)
        assert got == list(range(1, 2 * len(ENVELOPES), 2))
        assert caller.receive(box, 10) == []
        dead = list(caller.run(box.dead_letters.peek, 100))
        assert [one.death.reason for one in dead] == ["undecodable"] * len(ENVELOPES)
        # Where no more than its head is foreign, the body is told apart.
        assert all(envelope.endswith(one.body) for one, envelope in zip(dead, ENVELOPES, strict=True))
        info = caller.run(box.info)
        assert (info.ready, info.in_flight, info.dead) == (0, 0, len(ENVELOPES))
        assert info.size_bytes >= 0


PASTS = [
    b"",
    b"garbage",
    b"!",
    b":",
    b"::::",
    b"abc:1:2:3",
    b"abc:-1:10:5:6",
    b"0123456789abcdef!",
    b"!\x90",
    b"!\xdc\x00\x10" + b"\x00" * 16,  # sixteen numbers
    b"!\xdc\x00\x10" + b"\x00" * 11 + b"\x93\x01\x02\x03" + b"\x00" + b"\xc0" + b"\xc2" + b"\x90",
    b"!\xdc\x00\x10" + b"\x00" * 11 + b"\xa1t\x00\xa0\xc2\x01",
    b"!\xdc\x00\x10" + b"\x00" * 11 + b"\xa0\x00\xa0\xa4dead\x90",
    b"!\xdc\x00\x10" + b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00" * 11 + b"\xa0\x00\xa0\xc2\x90",  # NaN
    b"!\xc1",
    b"\xff\xfe",
]


@pytest.mark.parametrize("past", PASTS)
@pytest.mark.parametrize("held", [False, True])
def test_a_past_that_is_none_harms_nobody(
    past: bytes, held: bool, valkey: Server, client: postroom.QueueClient
) -> None:
    """The message itself comes out, or is dead; its neighbours come out, and nothing raises."""
    box = client.mailbox("box")
    for n in range(3):
        box.send(n)
    if held:
        for message in box.receive(max_messages=3, visibility_timeout=0.02):
            assert message.delivery_count == 1
    seqs = sorted(valkey.call("HKEYS", f"{ROOT}data"))
    valkey.call("HSET", f"{ROOT}meta", seqs[1], past)
    time.sleep(0.03 if held else 0)
    box.peek(10)
    got: set[Any] = set()
    deadline = time.monotonic() + 3
    while not {0, 2} <= got and time.monotonic() < deadline:
        for message in box.receive(max_messages=10, visibility_timeout=1, wait_time_seconds=0.1):
            got.add(message.body)
            message.acknowledge()
    assert {0, 2} <= got <= {0, 1, 2}
    box.receive(max_messages=10)
    if 1 not in got:
        assert [dead.death and dead.death.reason for dead in box.dead_letters.peek()] in (
            ["undecodable"],
            ["max_deliveries"],
        )
    box.info()
    box.purge()
    box.send("after")
    assert [message.body for message in box.receive(max_messages=10)] == ["after"]


@pytest.mark.parametrize("field", ["rules", "status", "last", "waits", "bytes", "touched", "created", "updated"])
def test_garbage_in_what_is_known_of_a_queue_is_an_error_that_names_it_or_no_matter(
    field: str, valkey: Server, client: postroom.QueueClient
) -> None:
    box = client.mailbox("box")
    box.send(1)
    kept = valkey.call("HGET", f"{ROOT}info", field)
    valkey.call("HSET", f"{ROOT}info", field, "gar:bage")
    said = []
    for act in (lambda: box.send(2), box.receive, box.info, box.peek, lambda: box.receive(wait_time_seconds=0.1)):
        try:
            act()
        except postroom.MailboxError as error:
            said.append(str(error))
    assert all("box" in text for text in said)
    if kept is None:
        valkey.call("HDEL", f"{ROOT}info", field)
    else:
        valkey.call("HSET", f"{ROOT}info", field, kept)
    box.purge()
    box.send("after")
    assert [message.body for message in box.receive(max_messages=10)] == ["after"]
