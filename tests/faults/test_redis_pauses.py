"""A server that forgets its scripts or stands still, and clients that are cut off, for longer than a lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

import postroom
from postroom.aio import AsyncRedisMailbox
from postroom.drivers import redis_wait
from tests.faults.checker import prove
from tests.faults.redis_rig import Caller, Flavour, Later, Traffic, blocked, drain, is_sound, sha, wait_for
from tests.faults.rig import Place, receive, send
from tests.servers.proxy import Proxy
from tests.servers.valkey import Server

pytestmark = pytest.mark.faults
flavours = pytest.mark.parametrize("flavour", ["sync", "async"])


@flavours
def test_a_server_that_is_made_to_forget_its_scripts_again_and_again(
    tmp_path: Path, flavour: Flavour, new_valkey: Callable[..., Server]
) -> None:
    server = new_valkey()
    with Place(tmp_path, url=server.url, sync=False) as place:
        with Traffic(place, flavour) as traffic:
            for _ in range(30):
                server.call("SCRIPT", "FLUSH", "SYNC")
                traffic.flows(3)
        missed = int(server.info("errorstats").get("errorstat_NOSCRIPT", "count=0").partition("=")[2])
        assert missed > 30
        place.log.note("struck", fault="NOSCRIPT", times=missed, unseen_claims=0)
        assert traffic.errors == {}
        drain(place)
        report = prove(place.log, "NOSCRIPT")
        assert (report.left, report.dead, report.redelivered) == (0, 0, 0)
        is_sound(server.url)


@pytest.mark.parametrize(("flavour", "timeout"), [("sync", 10.0), ("sync", 0.3), ("async", 0.3)])
def test_a_server_that_stands_still_for_longer_than_a_lease(
    tmp_path: Path, flavour: Flavour, timeout: float, new_valkey: Callable[..., Server]
) -> None:
    """Requests pile up in front of it; with a short timeout they were given up by then, and are carried out all the
    same, after those that came later."""
    server = new_valkey()
    with Place(tmp_path, url=server.url, sync=False) as place:
        with Traffic(place, flavour, lease=1.0, timeout=timeout, pause=0.01) as traffic:
            traffic.flows(20)
            server.pause()
            place.log.note("struck", fault="SIGSTOP", unseen_claims=20 * traffic.consumers)
            time.sleep(1.3)  # the pause itself
            server.resume()
            assert traffic.flows(20) < 5
        if timeout < 1:
            assert traffic.errors, "nobody gave up, so this run proves less than it says"
        drain(place)
        report = prove(place.log, "SIGSTOP")
        assert (report.left, report.dead) == (0, 0)
        is_sound(server.url)


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
@pytest.mark.parametrize(
    ("flavour", "verb"),
    [("sync", "acknowledge"), ("async", "acknowledge"), ("sync", "nack"), ("async", "extend_visibility")],
)
def test_what_a_client_settles_that_was_cut_off_for_longer_than_its_lease(
    tmp_path: Path,
    flavour: Flavour,
    verb: str,
    session: str | None,
    meanwhile: str,
    answer: str,
    valkey: Server,
    new_proxy: Callable[[Server], Proxy],
) -> None:
    """It asks in time, and the network keeps what it asks for until the lease is over: the table decides."""
    if verb == "extend_visibility" and meanwhile == "nothing":
        answer = "stale"
    proxy = new_proxy(valkey)
    with Place(tmp_path, url=valkey.url) as place, Caller(proxy.url, flavour) as caller:
        others = place.box()
        send(place.log, others, "m", session_id=session)
        box = caller.client.mailbox("box")
        [message] = caller.receive(box, visibility_timeout=0.15)
        caller.run(box.approximate_count)
        proxy.hold()
        place.log.note("struck", fault="partition", unseen_claims=1)
        settling = Later(lambda: caller.run(getattr(message, verb), *([60] if verb == "extend_visibility" else [])))
        wait_for(lambda: proxy.counts.held > 0, "it is held up")
        if meanwhile == "nothing":
            time.sleep(0.2)  # the rest of the lease
        else:
            [again] = receive(place.log, others, 1, 30, wait=2)
            assert again.delivery_count == 2
            if meanwhile == "done by another":
                again.acknowledge()
        proxy.heal()
        try:
            settling.result()
            heard = "settled"
        except postroom.ReceiptHandleExpiredError as error:
            heard = str(error.code)
        assert heard == answer
        info = others.info()
        if meanwhile == "delivered again":
            assert info.in_flight == 1
            again.acknowledge()
        undone = (answer == "stale" and meanwhile == "nothing") or (verb == "nack" and answer == "settled")
        assert others.info().total == (1 if undone else 0)
    is_sound(valkey.url)


@pytest.mark.parametrize("flavour", ["sync"])  # each consumer with a client of its own
def test_consumers_that_are_cut_off_for_longer_than_their_leases_harm_nobody(
    tmp_path: Path, flavour: Flavour, valkey: Server, new_proxy: Callable[[Server], Proxy]
) -> None:
    """Some behind a proxy that comes and goes, some beside it; all of them hold what they hold by its lease alone."""
    proxy = new_proxy(valkey)
    (tmp_path / "cut-off").mkdir()
    with Place(tmp_path, url=valkey.url, sync=False) as place:
        there = Place(tmp_path / "cut-off", url=proxy.url)
        there.log = place.log
        with (
            Traffic(place, flavour, lease=0.5, wait=0.5, producers=1) as near,
            Traffic(there, flavour, lease=0.5, wait=0.5, producers=0, consumers=3, prefix="far-") as far,
        ):
            for fault in (proxy.hold, proxy.black_hole, proxy.lose_answers):
                near.flows(20)
                fault()
                place.log.note("struck", fault="partition", unseen_claims=10)
                time.sleep(0.8)  # the partition itself
                before = far.acked
                proxy.heal()
                near.flows(20)
                wait_for(lambda before=before: far.acked > before, "they take part again")  # type: ignore[misc]
        assert proxy.counts.held + proxy.counts.lost_requests + proxy.counts.lost_answers
        drain(place)
        report = prove(place.log, "partition")
        assert (report.left, report.dead) == (0, 0)
        is_sound(valkey.url)


@flavours
def test_a_claim_that_arrives_after_it_was_given_up_takes_nothing(
    flavour: Flavour, valkey: Server, new_proxy: Callable[[Server], Proxy]
) -> None:
    """Held up on its connection while its caller gave up on another: the fence is there before it."""
    proxy = new_proxy(valkey)
    with Caller(proxy.url, flavour, timeout=0.3) as caller, postroom.connect(valkey.url) as other:
        box = caller.client.mailbox("box")
        caller.run(box.approximate_count)
        caller.run(box.receive)
        claims: list[str] = []
        driver = caller.client._link.driver
        claim = driver.claim

        async def noted(queue: str, n: int, **options: Any) -> Any:
            claims.append(options["claim_id"])
            return await claim(queue, n, **options)

        driver.claim = noted
        other.mailbox("box").send("m")
        proxy.hold()
        with pytest.raises(postroom.MailboxError) as error:
            caller.run(box.receive)
        assert error.value.transient
        held = proxy.counts.held
        assert held, "nothing was held up, so this run proves nothing"
        valkey_client = postroom.connect(valkey.url)
        postroom.drivers.io.drive(valkey_client._link.driver.abandon("box", claims[0]))  # as another connection would
        valkey_client.close()
        before = int(valkey.info("commandstats")["cmdstat_evalsha"].split("calls=")[1].partition(",")[0])
        proxy.heal()
        wait_for(
            lambda: int(valkey.info("commandstats")["cmdstat_evalsha"].split("calls=")[1].partition(",")[0]) > before,
            "the late claim arrives",
        )
        [message] = other.mailbox("box").receive(wait_time_seconds=1)
        assert message.delivery_count == 1


def test_the_names_of_the_scripts_are_what_the_traps_look_for(valkey: Server) -> None:
    """The other tests set traps for them: here they are known to the server after a use."""
    with postroom.connect(valkey.url) as client:
        box = client.mailbox("box")
        box.send(1)
        [message] = box.receive()
        message.acknowledge()
    found = valkey.call("SCRIPT", "EXISTS", *[sha(verb) for verb in ("ensure", "put", "claim", "settle")])
    assert found == [1, 1, 1, 1]


@flavours
def test_a_wait_on_a_server_that_stands_still_leaves_no_late_answer_to_the_next_caller(
    flavour: Flavour, new_valkey: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is given up: what the server says after all must not be read as the answer to something else."""
    monkeypatch.setattr(redis_wait, "POLL", 0.4)
    monkeypatch.setattr(redis_wait, "_GRACE", 0.1)
    server = new_valkey()
    with Caller(server.url, flavour) as caller, Caller(server.url, "sync") as other:
        box = caller.client.mailbox("box")
        caller.run(box.approximate_count)
        for n in range(2):
            waiting = Later(lambda: caller.receive(box, wait_time_seconds=3))
            wait_for(lambda: blocked(server) == 1, "it waits")
            server.pause()
            time.sleep(0.7)  # longer than it waits for an answer
            server.resume()
            other.client.mailbox("box").send(n)
            [message] = waiting.result()
            assert message.body == n
            caller.run(message.acknowledge)
            for _ in range(5):
                assert caller.run(box.approximate_count) == 0


def test_nor_over_a_client_of_the_users_whose_connections_all_come_from_one_pool(
    new_valkey: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the next call, which looks for messages again, takes just the connection that was given up."""
    monkeypatch.setattr(redis_wait, "POLL", 0.4)
    monkeypatch.setattr(redis_wait, "_GRACE", 0.1)
    server = new_valkey()

    async def main() -> None:
        async with redis.asyncio.Redis(port=server.port) as theirs, AsyncRedisMailbox("box", theirs) as box:
            await box.approximate_count()
            waiting = asyncio.create_task(box.receive(wait_time_seconds=3))
            while not await asyncio.to_thread(blocked, server):
                await asyncio.sleep(0.01)
            server.pause()
            await asyncio.sleep(0.8)  # longer than it waits for an answer
            server.resume()
            await box.send("m")
            [message] = await waiting
            await message.acknowledge()
            assert await box.approximate_count() == 0

    asyncio.run(main())
