"""postroom send."""

import shlex
import subprocess

import pytest

from postroom import QueueMessage, SendOptions
from tests.cli.conftest import PROGRAM


def test_what_is_sent_arrives_as_the_bytes_it_is(cli, orders):
    sent = cli("send", "orders", '{"sku":  "A-1"}')
    assert sent.code == 0
    [message] = orders.receive()
    assert (message.id, message.body, message.content_type) == (
        sent.out.strip(),
        b'{"sku":  "A-1"}',
        "application/json",
    )


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"a": 1}', "application/json"),
        (b"3", "application/json"),
        (b'{"a": 1, "a": 2}', "text/plain; charset=utf-8"),
        (b"NaN", "text/plain; charset=utf-8"),
        ("grüße".encode(), "text/plain; charset=utf-8"),
        (b"\xff\x00", "application/octet-stream"),
    ],
)
def test_the_content_type_is_guessed_from_what_is_there(cli, orders, body, kind):
    assert cli("send", "orders", stdin=body).code == 0
    [message] = orders.receive()
    assert (message.body, message.content_type) == (body, kind)


def test_an_empty_message_has_to_be_meant(cli, orders, monkeypatch):
    """A cron job with a forgotten BODY has an empty stdin."""
    for forgotten in (("send", "orders"), ("send", "orders", "--attr", "a=b")):
        refused = cli(*forgotten, stdin=b"")
        assert (refused.code, refused.err.count("\n"), orders.approximate_count()) == (2, 1, 0)
        assert "'' for an empty one" in refused.err
    assert cli("send", "orders", "").code == 0
    assert cli("send", "orders", "-", stdin=b"").code == 0
    assert [message.body for message in orders.receive(max_messages=10)] == [b"", b""]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("-",), ("--lines",)])
def test_a_closed_stdin_is_a_usage_error(orders, arguments):
    send = shlex.join([*PROGRAM, "send", "orders", *arguments])
    refused = subprocess.run(["sh", "-c", f"{send} <&-"], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert orders.approximate_count() == 0


def test_a_body_comes_from_a_file(cli, orders, tmp_path):
    (tmp_path / "order.json").write_bytes(b"[1]")
    assert cli("send", "orders", f"@{tmp_path}/order.json").code == 0
    assert orders.receive()[0].body == b"[1]"
    missing = cli("send", "orders", "@nowhere.json")
    assert (missing.code, "nowhere.json" in missing.err) == (2, True)


def test_every_option_reaches_the_message(cli, orders):
    options = (
        "--attr=a=1", "--attr=b=x=y", "--session=s1", "--dedup-id=d1", "--ttl=1h30m", "--priority=3",
        "--reply-to=replies", "--correlation-id=c1", "--content-type=text/csv", "--id=mine",
    )  # fmt: skip
    assert cli("send", "orders", "a,b", *options).out == "mine\n"
    assert cli("send", "orders", "a,b", *options[:-1], "--id=other").out == "mine\n", "the same dedup id: sent before"
    [message] = orders.receive()
    assert (message.id, message.session_id, message.priority, message.reply_to) == ("mine", "s1", 3, "replies")
    assert (message.correlation_id, message.content_type) == ("c1", "text/csv")
    assert message.attributes == {"a": "1", "b": "x=y"}


def test_a_delay_schedules_it(cli, orders):
    cli("send", "orders", "later", "--delay", "5m")
    [message] = orders.peek()
    assert message.state == "scheduled"
    assert 299 < (message.visible_at - message.enqueued_at).total_seconds() <= 301


def test_json_tells_what_was_sent(cli, orders):
    sent = cli("--json", "send", "orders", "{}").json
    assert sent == {
        "queue": "orders",
        "id": sent["id"],
        "content_type": "application/json",
        "bytes": 2,
        "duplicate": False,
    }
    first = cli("--json", "send", "orders", "x", "--dedup-id", "d").json
    again = cli("--json", "send", "orders", "x", "--dedup-id", "d").json
    assert (again["id"], first["duplicate"], again["duplicate"]) == (first["id"], False, True)


def test_a_full_store_or_a_wrong_id_refuses_as_ever(cli, orders):
    cli("create", "small", "--max-messages", "1")
    assert cli("send", "small", "1").code == 0
    full = cli("send", "small", "2")
    assert (full.code, full.out, full.err.count("\n")) == (1, "", 1)
    assert cli("send", "orders", "x", "--id", "").code == 2


def test_a_typo_makes_no_queue(cli, orders, client):
    refused = cli("send", "orderz", "{}")
    assert refused.code == 1
    assert "did you mean orders?" in refused.err
    assert "postroom create orderz" in refused.err
    assert client.list_queues() == ["orders"]


def test_create_makes_a_plain_queue_on_the_way(cli, client):
    assert cli("send", "new", "{}", "--create").code == 0
    assert client.info("new").definition.lock_duration == 30


def test_json_that_is_none_is_refused_before_it_is_stored(cli, orders):
    refused = cli("send", "orders", "{", "--content-type", "application/json")
    assert (refused.code, orders.approximate_count()) == (2, 0)


def test_every_line_is_a_message(cli, orders):
    sent = cli("send", "orders", "--lines", "--attr", "from=test", stdin=b'{"n": 1}\n\nplain text\r\nlast')
    assert sent.code == 0
    messages = orders.receive(max_messages=10)
    assert [message.id for message in messages] == sent.out.split()
    assert [(message.body, message.content_type.split(";")[0]) for message in messages] == [
        (b'{"n": 1}', "application/json"),
        (b"plain text", "text/plain"),
        (b"last", "text/plain"),
    ]
    assert messages[0].attributes == {"from": "test"}


@pytest.mark.slow
def test_lines_come_from_a_file_too_and_any_number_of_them(cli, orders, tmp_path):
    (tmp_path / "many").write_text("".join(f"{number}\n" for number in range(60_000)))
    sent = cli("send", "orders", "--lines", f"@{tmp_path}/many", "--json")
    assert sent.code == 0
    assert [line["line"] for line in sent.objects[-2:]] == [59_999, 60_000]
    assert orders.approximate_count() == 60_000


def test_a_refused_line_is_named_and_does_not_hold_up_the_others(cli, orders, url):
    sent = cli("--url", f"{url}?max_body=10", "send", "orders", "--lines", stdin=b"short\nmuch longer than ten\nend\n")
    assert sent.code == 5
    assert "line 2 not sent" in sent.err
    assert [message.body for message in orders.receive(max_messages=10)] == [b"short", b"end"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("x", "--delay", "soon"), ("x", "--priority", "300"), ("x", "--attr", "novalue"), ("x", "--ttl", "-1"),
        ("x", "--lines"), ("--lines", "--id", "one"), ("--lines", "--dedup-id", "one"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_a_usage_error(cli, orders, arguments):
    refused = cli("send", "orders", *arguments)
    assert (refused.code, refused.err.count("\n"), orders.approximate_count()) == (2, 1, 0)


def test_a_message_of_the_raw_client_and_one_of_the_command_line_are_alike(cli, orders, client):
    client.send("orders", QueueMessage(body=b"{}"), SendOptions(content_type="application/json"))
    cli("send", "orders", "{}")
    first, second = orders.receive(max_messages=2)
    assert (first.body, first.content_type, first.priority) == (second.body, second.content_type, second.priority)
