"""A cluster that changes under those who send and receive: a primary dies, a slot moves away and back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.checker import prove
from tests.faults.redis_rig import ROOT, Caller, Flavour, Later, Traffic, blocked, drain, wait_for
from tests.faults.rig import Place, send
from tests.servers.cluster import Cluster

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.xdist_group("valkey_cluster")]
flavours = pytest.mark.parametrize("flavour", ["sync", "async"])


def told(cluster: Cluster, what: str) -> int:
    """How often the nodes sent somebody elsewhere."""
    return sum(
        int(node.info("errorstats").get(f"errorstat_{what}", "count=0").partition("=")[2])
        for node in cluster.nodes
        if node.is_able
    )


@pytest.fixture(scope="module")
def mortal() -> Iterator[Cluster]:
    """A cluster whose primaries are killed; each test leaves it whole."""
    with Cluster(node_timeout=500, cluster_require_full_coverage=False) as cluster:
        yield cluster


@pytest.fixture
def cluster(mortal: Cluster) -> Cluster:
    mortal.wait_ready()
    return mortal.empty()


@flavours
def test_a_primary_that_is_killed_while_sending_and_receiving(
    tmp_path: Path, flavour: Flavour, cluster: Cluster
) -> None:
    """With replicas=1 nothing that was accepted is lost; claims and acknowledges of the last moment may be. And whose
    queues are elsewhere does not notice."""
    other = next(
        name for n in range(50) if cluster.primary_of(f"{{queue:{(name := f'q{n}')}}}") != cluster.primary_of(ROOT)
    )
    with Place(tmp_path, url=cluster.url, sync=False) as place, Caller(cluster.url, "sync") as bystander:
        with Traffic(place, flavour, replicas=1) as traffic:
            traffic.flows(40)
            elsewhere = bystander.client.mailbox(other)
            elsewhere.send(0)
            failing = Later(lambda: cluster.fail_over(ROOT))
            longest = 0.0
            while not failing.done:
                began = time.monotonic()
                elsewhere.send(1)
                longest = max(longest, time.monotonic() - began)
            old, _ = failing.result()
            place.log.note("struck", fault="failover", unseen_claims=traffic.consumers)
            old.start()
            cluster.wait_ready()
            assert traffic.flows(40) < 5
        assert longest < 0.5
        drain(place)
        report = prove(place.log, "failover", leases_may_be_undone=True)
        assert report.left == 0
        assert report.sent > 80


@flavours
def test_whoever_was_idle_in_a_long_poll_during_a_failover_receives_again(
    tmp_path: Path, flavour: Flavour, cluster: Cluster
) -> None:
    with Place(tmp_path, url=cluster.url) as place, Caller(cluster.url, flavour) as caller:
        box = caller.client.mailbox("box")
        caller.run(box.approximate_count)
        cluster.primary_of(ROOT).call("WAIT", 1, 1000)  # that the queue is there is known to the replica, too
        waiting = Later(lambda: caller.receive(box, wait_time_seconds=30))
        wait_for(lambda: blocked(cluster.primary_of(ROOT)) == 1, "it waits")
        old, new = cluster.fail_over(ROOT)
        place.log.note("struck", fault="failover")
        wait_for(lambda: blocked(new) == 1, "it waits again")
        send(place.log, place.box(), "m")
        began = time.monotonic()
        [message] = waiting.result()
        assert time.monotonic() - began < 1
        caller.run(message.acknowledge)
        old.start()


@flavours
def test_primary_and_replica_change_places_while_sending_and_receiving(
    tmp_path: Path, flavour: Flavour, cluster: Cluster
) -> None:
    """By an operator's hand, as for an upgrade: nobody dies, nothing is lost, and callers are told MOVED, no error."""
    before = told(cluster, "MOVED")
    with Place(tmp_path, url=cluster.url, sync=False) as place:
        with Traffic(place, flavour) as traffic:
            for _ in range(2):
                traffic.flows(30)
                replica = cluster.replica_of(ROOT)
                while not replica.owns(cluster.slot_of(ROOT)):
                    replica.call("CLUSTER", "FAILOVER")  # asked again: right after another it may not happen
                    time.sleep(0.2)
                place.log.note("struck", fault="change", unseen_claims=0)
                assert traffic.flows(30) < 5
        assert told(cluster, "MOVED") > before, "nobody was told MOVED, so this run proves less than it says"
        assert traffic.errors == {}
        drain(place)
        report = prove(place.log, "change")
        assert (report.left, report.dead) == (0, 0)


@flavours
def test_the_queues_slot_moves_away_and_back_while_sending_and_receiving(
    tmp_path: Path, flavour: Flavour, valkey_cluster: Cluster
) -> None:
    """ASK, TRYAGAIN and MOVED are met by whoever calls meanwhile, and no caller is."""
    cluster = valkey_cluster
    slot = cluster.slot_of(ROOT)
    home = cluster.primary_of(slot)
    away = next(node for node in cluster.primaries() if node is not home)
    with Place(tmp_path, url=cluster.url, sync=False) as place:
        with Traffic(place, flavour) as traffic:
            for to in (away, home):
                traffic.flows(20)
                cluster.move_slot(slot, to, between=lambda step: time.sleep(0.15))  # the length of a move is the die
                place.log.note("struck", fault="move", unseen_claims=0)
                assert traffic.flows(20) < 5
        for what in ("MOVED", "TRYAGAIN"):
            assert told(cluster, what), f"nobody was told {what}, so this run proves less than it says"
            place.log.note("struck", fault=what, unseen_claims=0)
        assert traffic.errors == {}
        drain(place)
        report = prove(place.log, "move", "MOVED", "TRYAGAIN")
        assert (report.left, report.dead, report.redelivered) == (0, 0, 0)


@flavours
def test_a_call_that_is_sent_to_where_the_queue_is_going_asks_there(flavour: Flavour, valkey_cluster: Cluster) -> None:
    """ASK: nothing of the queue is left at its source, and the target serves those who say ASKING."""
    cluster = valkey_cluster
    slot = cluster.slot_of(ROOT)
    home = cluster.primary_of(slot)
    away = next(node for node in cluster.primaries() if node is not home)
    with Caller(cluster.url, flavour) as caller:
        box = caller.client.mailbox("box")
        caller.run(box.send, 1)
        caller.run(box.purge)
        move = cluster.move(slot, away)
        move.begin()
        move.keys()
        sending = Later(lambda: caller.run(box.send, 2))
        wait_for(lambda: told(cluster, "ASK") > 0, "it is sent to the target")
        time.sleep(0.1)
        move.finish()
        sending.result()
        assert [message.body for message in caller.receive(box)] == [2]


@flavours
def test_a_mailbox_that_waits_while_its_slot_moves_is_woken_at_the_new_place(
    flavour: Flavour, valkey_cluster: Cluster
) -> None:
    cluster = valkey_cluster
    slot = cluster.slot_of(ROOT)
    home = cluster.primary_of(slot)
    away = next(node for node in cluster.primaries() if node is not home)
    with Caller(cluster.url, flavour) as caller, Caller(cluster.url, "sync") as sender:
        box = caller.client.mailbox("box")
        caller.run(box.approximate_count)
        waiting = Later(lambda: caller.receive(box, wait_time_seconds=20))
        wait_for(lambda: blocked(home) == 1, "it waits")
        cluster.move_slot(slot, away)
        wait_for(lambda: blocked(away) == 1, "it waits at the new place")
        began = time.monotonic()
        sender.client.mailbox("box").send("m")
        assert [message.body for message in waiting.result()] == ["m"]
        assert time.monotonic() - began < 1
