"""A Redis that is killed and comes back: with AOF (always) nothing that was accepted is lost, and everybody goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import postroom
from tests.faults.checker import prove
from tests.faults.redis_rig import Caller, Flavour, Later, Traffic, blocked, drain, is_sound, wait_for
from tests.faults.rig import Place, send
from tests.servers.valkey import Server

pytestmark = pytest.mark.faults
New = Callable[..., Server]
flavours = pytest.mark.parametrize("flavour", ["sync", "async"])


@flavours
def test_what_a_killed_server_had_accepted_is_there_when_it_is_back(
    tmp_path: Path, flavour: Flavour, new_valkey: New
) -> None:
    server = new_valkey(appendonly=True, appendfsync="always")
    with Place(tmp_path, url=server.url, sync=False) as place:
        with Traffic(place, flavour) as traffic:
            for _ in range(3):
                traffic.flows(40)
                server.kill()
                place.log.note("struck", fault="server killed", unseen_claims=traffic.consumers)
                server.start()
        assert traffic.sent > 120
        drain(place)
        report = prove(place.log, "server killed")
        assert (report.struck["server killed"], report.left, report.dead) == (3, 0, 0)
        is_sound(server.url)


@flavours
@pytest.mark.parametrize("away", [0.0, 1.5])
def test_whoever_was_idle_in_a_long_poll_while_the_server_restarted_receives_again(
    tmp_path: Path, flavour: Flavour, away: float, new_valkey: New
) -> None:
    server = new_valkey(appendonly=True, appendfsync="always")
    with Place(tmp_path, url=server.url) as place, Caller(server.url, flavour) as caller:
        box = caller.client.mailbox("box")
        caller.run(box.approximate_count)
        waiting = Later(lambda: caller.receive(box, wait_time_seconds=30))
        wait_for(lambda: blocked(server) == 1, "it waits")
        server.kill()
        place.log.note("struck", fault="server killed")
        time.sleep(away)  # the outage itself
        server.start()
        wait_for(lambda: blocked(server) == 1, "it waits again")
        send(place.log, place.box(), "m")
        began = time.monotonic()
        [message] = waiting.result()
        assert time.monotonic() - began < 1, "it was woken, and did not come by on its round"
        assert (message.body, message.delivery_count) == ("m", 1)
        caller.run(message.acknowledge)


@flavours
def test_a_burst_of_connections_that_a_restart_cut_costs_the_next_caller_no_time(
    flavour: Flavour, new_valkey: New
) -> None:
    """A hundred idle connections are dead at once: whoever comes next must not try them one by one."""
    server = new_valkey(appendonly=True, appendfsync="always")
    with Caller(server.url, flavour) as caller:
        box = caller.client.mailbox("box")
        caller.run(box.send, 0)
        if flavour == "sync":
            server.pause()  # so that a hundred calls are under way at once, each on a connection of its own
            many = [Later(box.approximate_count) for _ in range(100)]
            wait_for(lambda: sum(not one.done for one in many) == 100, "all ask")
            time.sleep(0.2)
            server.resume()
            for one in many:
                assert one.result() == 1
            assert len(server.call("CLIENT", "LIST").splitlines()) > 90
        server.kill()
        server.start()
        began = time.monotonic()
        caller.run(box.send, 1)
        assert time.monotonic() - began < 2
        assert caller.run(box.approximate_count) == 2


@flavours
def test_a_server_that_comes_back_without_its_data_says_that_the_queue_is_gone(
    flavour: Flavour, new_valkey: New
) -> None:
    """No AOF, no promise: but no hanging and no riddles either, and a mailbox that is opened anew works."""
    server = new_valkey()
    with Caller(server.url, flavour) as caller:
        box = caller.client.mailbox("box")
        caller.run(box.send, 1)
        waiting = (
            Later(lambda: caller.client.mailbox("other").receive(wait_time_seconds=20)) if flavour == "sync" else None
        )
        if waiting:
            wait_for(lambda: blocked(server) == 1, "it waits")
        server.kill()
        server.start()
        for act in (lambda: box.send(2), box.receive, box.approximate_count):
            with pytest.raises(postroom.QueueNotFoundError, match="box"):
                caller.run(act)
        if waiting:
            with pytest.raises(postroom.QueueNotFoundError, match="other"):
                waiting.result()
        again = caller.client.mailbox("box")
        caller.run(again.send, 3)
        assert [message.body for message in caller.receive(again)] == [3]
        assert caller.run(caller.client.list_queues) == ["box"]


@flavours
def test_while_the_server_is_away_calls_fail_in_their_time_and_say_where(flavour: Flavour, new_valkey: New) -> None:
    server = new_valkey(requirepass="s3cret")
    with Caller(server.url, flavour, timeout=0.3) as caller:
        box = caller.client.mailbox("box")
        caller.run(box.send, 1)
        [message] = caller.receive(box)
        server.kill()
        for act in (message.acknowledge, box.receive):
            began = time.monotonic()
            with pytest.raises(postroom.MailboxConnectionError, match=server.address) as error:
                caller.run(act)
            assert error.value.transient
            assert "s3cret" not in str(error.value)
            assert 0.25 < time.monotonic() - began < 3
