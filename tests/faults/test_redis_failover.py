"""Another server takes over: behind Sentinel, and with a replica that lags. What is promised, and what is not."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

import postroom
from tests.faults.checker import check, prove
from tests.faults.redis_rig import Caller, Flavour, Later, Traffic, blocked, drain, is_sound, wait_for
from tests.faults.rig import Place
from tests.servers.proxy import Proxy
from tests.servers.sentinel import Sentinels
from tests.servers.valkey import HOST, Server

pytestmark = pytest.mark.faults
flavours = pytest.mark.parametrize("flavour", ["sync", "async"])


class Pair:
    """A primary and its replica with a proxy between them that can make the replica lag, and one in front, which is
    where clients go: to whoever is the primary."""

    def __init__(self, primary: Server, replica: Server, new_proxy: Callable[[Server], Proxy]) -> None:
        self.primary, self.replica = primary, replica
        self.between, self.front = new_proxy(primary), new_proxy(primary)
        replica.follow(self.between)
        wait_for(lambda: primary.call("WAIT", 1, 100) == 1, "the replica is in touch")

    def fail_over(self) -> None:
        self.primary.kill()
        self.replica.call("REPLICAOF", "NO", "ONE")
        self.front.target = self.replica.port
        self.front.cut()


@pytest.fixture
def pair(new_valkey: Callable[..., Server], new_proxy: Callable[[Server], Proxy]) -> Pair:
    return Pair(new_valkey(repl_timeout=600), new_valkey(repl_timeout=600), new_proxy)


@flavours
def test_without_replicas_a_failover_loses_what_the_replica_did_not_have_yet(
    tmp_path: Path, flavour: Flavour, pair: Pair
) -> None:
    """As the capability says. This shows that the next test would see a loss."""
    with Place(tmp_path, url=pair.front.url, sync=False) as place:
        with Traffic(place, flavour, consumers=0) as traffic:
            traffic.flows(20)
            assert pair.primary.call("WAIT", 1, 2000) == 1
            pair.between.black_hole()
            traffic.flows(20)
            pair.fail_over()
            place.log.note("struck", fault="failover with lag", unseen_claims=0)
            traffic.flows(10)
        assert pair.between.counts.lost_requests + pair.between.counts.lost_answers
        drain(place)
        report = check(place.log.events(), leases_may_be_undone=True)
        lost = [violation for violation in report.violations if violation.startswith("lost:")]
        assert len(lost) >= 10
        assert len(lost) == len(report.violations)


@flavours
def test_with_replicas_nothing_that_was_accepted_is_lost_however_far_the_replica_lags(
    tmp_path: Path, flavour: Flavour, pair: Pair
) -> None:
    with Place(tmp_path, url=pair.front.url, sync=False) as place:
        with Traffic(place, flavour, replicas=1, replicas_timeout=0.2) as traffic:
            traffic.flows(40)
            pair.between.black_hole()
            wait_for(lambda: traffic.errors["DurabilityError"] >= 4, "sends are refused that no replica has")
            pair.fail_over()
            place.log.note("struck", fault="failover with lag", unseen_claims=traffic.consumers)
            refused = traffic.errors["DurabilityError"]
            wait_for(lambda: traffic.errors["DurabilityError"] >= refused + 4, "the only one left says so as well")
        assert pair.between.counts.lost_requests + pair.between.counts.lost_answers
        drain(place)
        report = prove(place.log, "failover with lag", leases_may_be_undone=True)
        assert report.left == 0
        assert report.sent >= 40


@flavours
def test_a_send_that_no_replica_has_in_time_raises_and_may_have_happened(flavour: Flavour, pair: Pair) -> None:
    """A lag that passes: the same send under its dedup id is then confirmed, and stored once."""
    with Caller(pair.front.url, flavour, replicas=1, replicas_timeout=0.2) as caller:
        box = caller.client.mailbox("box")
        caller.run(box.send, "before")
        pair.between.hold()
        began = time.monotonic()
        with pytest.raises(postroom.DurabilityError, match="0 of 1 replicas") as error:
            caller.run(box.send, "m", dedup_id="m")
        assert 0.15 < time.monotonic() - began < 2
        assert error.value.transient
        [before, message] = caller.receive(box, 10)  # nothing but sends waits for replicas
        assert message.body == "m"
        for one in (before, message):
            caller.run(one.acknowledge)
        with pytest.raises(postroom.DurabilityError):
            caller.run(box.send, "m", dedup_id="m")
        pair.between.heal()
        caller.run(box.send, "m", dedup_id="m")  # a duplicate, and now it is where it should be
        assert caller.receive(box) == []


@flavours
def test_a_batch_and_a_session_state_wait_for_their_replicas_too(flavour: Flavour, pair: Pair) -> None:
    with Caller(pair.front.url, flavour, replicas=1, replicas_timeout=0.2) as caller:
        box = caller.client.mailbox("box")
        session = caller.run(box.accept_session, "s", lock_duration=60)
        pair.between.hold()
        results = caller.run(box.send_many, range(3))
        assert {type(result.error) for result in results} == {postroom.DurabilityError}
        with pytest.raises(postroom.DurabilityError):
            caller.run(session.set_state, b"1")
        pair.between.heal()
        assert all(result.ok for result in caller.run(box.send_many, range(3)))


@flavours
def test_a_primary_that_is_made_a_replica_under_its_callers_says_readonly_and_they_find_the_new_one(
    tmp_path: Path, flavour: Flavour, pair: Pair
) -> None:
    """It still answers all who are connected to it: READONLY to those who write, UNBLOCKED to those who wait."""
    with Place(tmp_path, url=pair.front.url, sync=False) as place:
        with Traffic(place, flavour, replicas=1, replicas_timeout=0.2) as traffic:
            traffic.flows(40)
            pair.replica.call("REPLICAOF", "NO", "ONE")
            pair.primary.call("REPLICAOF", HOST, pair.replica.port)
            place.log.note("struck", fault="change", unseen_claims=traffic.consumers)
            wait_for(lambda: refused(pair.primary, "READONLY") > 2, "the old primary turns them away")
            place.log.note("struck", fault="READONLY", unseen_claims=0)
            pair.front.target = pair.replica.port
            pair.front.cut()
            assert traffic.flows(40) < 5
        drain(place)
        report = prove(place.log, "change", "READONLY", leases_may_be_undone=True)
        assert report.left == 0


def refused(server: Server, why: str) -> int:
    return int(server.info("errorstats").get(f"errorstat_{why}", "count=0").partition("=")[2])


def role(server: Server) -> str:
    """Asked of one that cuts whoever is connected when it changes."""
    try:
        return server.info("replication")["role"]
    except redis.ConnectionError:
        return ""


# --- Sentinel --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["async"])  # and the other way round in the next: they take their time
def test_a_primary_that_sentinels_replace_while_sending_and_receiving(
    tmp_path: Path, flavour: Flavour, new_valkey_sentinels: Callable[..., Sentinels]
) -> None:
    watched = new_valkey_sentinels(requirepass="p w")
    with Place(tmp_path, url=watched.url, sync=False) as place:
        with Traffic(place, flavour, replicas=1) as traffic:
            traffic.flows(40)
            old, new = watched.fail_over()
            place.log.note("struck", fault="failover", unseen_claims=traffic.consumers)
            wait_for(lambda: traffic.errors["DurabilityError"] > 0, "the new primary is asked, and has no replica")
            old.start()
            old.follow(new)
            assert traffic.flows(20) < 5
        drain(place)
        report = prove(place.log, "failover", leases_may_be_undone=True)
        assert report.left == 0


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["sync"])
def test_an_old_primary_that_lives_on_as_a_replica_sends_nobody_astray(
    tmp_path: Path, flavour: Flavour, new_valkey_sentinels: Callable[..., Sentinels]
) -> None:
    """By an operator's hand: the old one is told to follow, and cuts whoever is connected, long polls too."""
    watched = new_valkey_sentinels()
    old, new = watched.primary, watched.replica
    with Place(tmp_path, url=watched.url, sync=False) as place, Caller(watched.url, flavour) as idle:
        quiet = idle.client.mailbox("quiet")
        idle.run(quiet.approximate_count)
        assert old.call("WAIT", 1, 2000) == 1
        waiting = Later(lambda: idle.receive(quiet, wait_time_seconds=30))
        wait_for(lambda: blocked(old) >= 1, "it waits")
        with Traffic(place, flavour, replicas=1) as traffic:
            traffic.flows(40)
            watched.sentinels[0].call("SENTINEL", "FAILOVER", watched.service)
            wait_for(lambda: role(new) == "master", "the replica is promoted")
            place.log.note("struck", fault="change", unseen_claims=traffic.consumers)
            wait_for(lambda: role(old) == "slave", "the old one is told")
            assert traffic.flows(40) < 5
        wait_for(lambda: blocked(new) >= 1, "it waits at the new one")
        with postroom.connect(watched.url) as sender:
            sender.mailbox("quiet").send("m")
        assert [message.body for message in waiting.result()] == ["m"]
        drain(place)
        report = prove(place.log, "change", leases_may_be_undone=True)
        assert report.left == 0


@flavours
def test_a_failover_with_many_connections_at_rest_costs_the_next_caller_no_time(flavour: Flavour, pair: Pair) -> None:
    with Caller(pair.front.url, flavour) as caller:
        box = caller.client.mailbox("box")
        caller.run(box.send, 0)
        if flavour == "sync":
            pair.front.hold()
            many = [Later(box.approximate_count) for _ in range(60)]
            wait_for(lambda: pair.front.connections >= 60, "all ask")
            pair.front.heal()
            for one in many:
                one.result()
        assert pair.primary.call("WAIT", 1, 2000) == 1
        pair.fail_over()
        began = time.monotonic()
        caller.run(box.send, 1)
        assert time.monotonic() - began < 2
    is_sound(pair.replica.url)
