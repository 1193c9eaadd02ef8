"""postroom receive and postroom peek."""

import os
import signal
import subprocess
import time

import pytest

from tests.cli.conftest import PROGRAM


def test_what_is_shown_goes_back_uncounted(cli, orders):
    id = orders.send(b'{"a": 1}', content_type="application/json")
    for _ in range(5):  # more often than the queue's limit of deliveries
        shown = cli("receive", "orders")
        assert (shown.code, shown.rows) == (0, [[id, "1", "", '{"a": 1}']])
    [message] = orders.receive()
    assert message.delivery_count == 1


def test_with_ack_it_is_removed(cli, orders):
    for body in (b"one", b"two", b"three"):
        orders.send(body)
    taken = cli("receive", "orders", "-n", "2", "--ack")
    assert [row[-1] for row in taken.rows] == ["one", "two"]
    assert [message.body for message in orders.peek()] == [b"three"]


def test_nothing_there_is_exit_code_3(cli, orders):
    for arguments in (("receive", "orders"), ("receive", "orders", "--wait", "50ms"), ("peek", "orders")):
        result = cli(*arguments)
        assert (result.code, result.out, result.err) == (3, "", "")


def test_it_waits_for_the_first(cli, orders):
    orders.send(b"soon", delay_seconds=0.2)
    assert cli("receive", "orders", "--wait", "20s").code == 0


def test_a_session_is_chosen(cli, orders):
    orders.send(b"a", session_id="one")
    orders.send(b"b", session_id="two")
    assert cli("receive", "orders", "-n", "9", "--session", "two").rows[0][2:] == ["two", "b"]


def test_a_lost_lease_is_exit_code_4(cli, orders):
    orders.send(b"a", session_id="s")  # in a session a lapsed lease does not settle any more
    lost = cli("receive", "orders", "--ack", "--visibility", "0")
    assert lost.code == 4
    assert lost.err.startswith("postroom: orders: stale handle")
    assert orders.approximate_count() == 1


def test_json_is_one_object_a_message(cli, orders):
    id = orders.send(b'{"a": [1, 2.5, null]}', content_type="application/json", attributes={"k": "v"}, session_id="s")
    [message] = cli("receive", "orders", "--json").objects
    assert message == {
        "id": id, "sequence_number": message["sequence_number"], "delivery_count": 1,
        "enqueued_at": message["enqueued_at"], "content_type": "application/json", "priority": 10, "session_id": "s",
        "correlation_id": None, "reply_to": None, "attributes": {"k": "v"}, "body": {"a": [1, 2.5, None]},
    }  # fmt: skip
    assert message["enqueued_at"].endswith("+00:00")


def test_json_carries_text_as_text_and_other_bytes_as_base64(cli, orders):
    orders.send(b"\x1b[31m", content_type="text/plain")
    orders.send(b"\xff\x00")
    orders.send(b"{not json", content_type="application/json")
    orders.send(b"1e999", content_type="application/json")
    first, second, third, fourth = cli("receive", "orders", "-n", "4", "--json").objects
    assert first["body"] == "\x1b[31m"
    assert (second["body_base64"], "body" in second) == ("/wA=", False)
    assert (third["body"], fourth["body"]) == ("{not json", "1e999")


def test_peek_takes_nothing_and_pages(cli, orders):
    ids = [orders.send(str(number).encode()) for number in range(5)]
    orders.receive()
    first = cli("peek", "orders", "-n", "3")
    assert [row[2] for row in first.rows] == ids[:3]
    assert [row[1] for row in first.rows] == ["in flight", "ready", "ready"]
    rest = cli("peek", "orders", "--after", first.rows[-1][0], "--json")
    assert [(message["id"], message["state"]) for message in rest.objects] == [(id, "ready") for id in ids[3:]]


def test_follow_needs_ack_and_waits_by_itself(cli, orders):
    assert cli("receive", "orders", "--follow").code == 2
    assert cli("receive", "orders", "--follow", "--ack", "--wait", "3").code == 2


def test_follow_takes_what_comes_until_it_has_enough(cli, orders):
    for body in (b"one", b"two", b"three"):
        orders.send(body)
    followed = cli("receive", "orders", "--follow", "--ack", "-n", "2")
    assert (followed.code, [row[-1] for row in followed.rows]) == (0, ["one", "two"])
    [left] = orders.receive()
    assert (left.body, left.delivery_count) == (b"three", 1)


@pytest.mark.slow
def test_ctrl_c_ends_a_follow_with_130_and_leaves_nothing_in_flight(orders):
    orders.send(b"one")
    with subprocess.Popen([*PROGRAM, "receive", "orders", "--follow", "--ack"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"one" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert orders.info().in_flight == 0


@pytest.mark.slow
def test_raw_writes_the_bodies_and_nothing_else(orders):
    bodies = [b"\x00\xff\n\x1b[31m", b"", b"no line end"]
    for body in bodies:
        orders.send(body)
    done = subprocess.run(
        [*PROGRAM, "receive", "orders", "-n", "9", "--raw", "--ack"], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"".join(bodies), b"")
    assert orders.approximate_count() == 0


def test_raw_is_for_programs(cli, orders, terminal):
    orders.send(b"\x1b]0;title\x07")
    assert cli("receive", "orders", "--raw", "--json").code == 2
    refused = terminal("receive", "orders", "--raw")
    assert (refused.end(), "\x1b]0" in refused.text) == (2, False)
    assert orders.info().in_flight == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("--json",), ("--raw",), ("--follow",)])
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_what_a_full_disk_did_not_take_stays_in_the_queue(orders, how):
    id = orders.send(b"x" * 100_000)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*PROGRAM, "receive", "orders", "--ack", *how], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert done.stderr.startswith(b"postroom: cannot write the output: No space left on device; what was not")
    [left] = orders.receive()
    assert (left.id, left.delivery_count) == (id, 1)


@pytest.mark.slow
def test_what_could_not_be_written_stays_in_the_queue(orders):
    ids = {orders.send(b"x" * 4000) for _ in range(100)}
    with subprocess.Popen(
        [*PROGRAM, "receive", "orders", "-n", "100", "--ack"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(20) == 141
    assert {message.id for message in orders.peek(100)} == ids
    assert orders.info().in_flight == 0


@pytest.mark.slow
def test_a_slow_writers_lines_are_sent_as_they_come(orders):
    with subprocess.Popen(
        [*PROGRAM, "send", "orders", "--lines"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        started = time.monotonic()
        [message] = orders.receive(wait_time_seconds=20)
        assert message.body == b"first"
        assert time.monotonic() - started < 20
        process.stdin.close()
        assert process.wait(20) == 0
