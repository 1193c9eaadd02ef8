"""On a terminal: tables, questions, progress, colours; and never a control character of a message's own."""

import re
import signal
import subprocess
import time

import pytest

from tests.cli.conftest import PROGRAM

pytestmark = pytest.mark.slow  # each starts the program anew

EVIL = b"\x1b]0;owned\x07\x1b[2J \xe2\x80\xae"


def plain(text):
    """The text without our own colours; an escape that is left is not ours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_table_has_a_head_and_whole_ids_and_nothing_evil(orders, terminal):
    id = orders.send(EVIL + b" " + b"long " * 100, content_type="text/plain")
    shown = terminal("peek", "orders")
    assert shown.end() == 0
    text = plain(shown.text)
    assert "deliveries" in text
    assert id in text
    assert "\\u001b]0;owned\\u0007" in text
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert all(len(line) <= 120 for line in text.splitlines())


def test_a_received_message_is_laid_out(orders, terminal):
    orders.send(b'{"sku": "A-1"}', content_type="application/json", attributes={"from": "\x1b[31mevil"})
    orders.send(EVIL, content_type="text/plain")
    shown = terminal("receive", "orders", "-n", "2")
    assert shown.end() == 0
    text = plain(shown.text)
    assert '{\r\n  "sku": "A-1"\r\n}' in text
    assert "\x1b" not in text


def test_a_purge_asks(orders, terminal):
    orders.send(b"1")
    no = terminal("purge", "orders")
    no.until("Remove all 1 message from orders?")
    no.type("n\n")
    assert (no.end(), orders.approximate_count()) == (1, 1)
    yes = terminal("purge", "orders")
    yes.until("?")
    yes.type("y\n")
    assert (yes.end(), orders.approximate_count()) == (0, 0)


def test_ctrl_c_in_a_wait_is_130_and_takes_nothing(orders, terminal, tmp_path):
    waiting = terminal("receive", "orders", "--wait", "30")
    bells = tmp_path / "mail.db-bells"  # who waits at the file hangs a bell there
    deadline = time.monotonic() + 20
    while not (bells.is_dir() and any(bells.iterdir())):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    waiting.process.send_signal(signal.SIGINT)
    assert waiting.end() == 130
    assert "Traceback" not in waiting.text
    orders.send(b"later")
    assert orders.receive()[0].delivery_count == 1


def test_a_missing_body_is_asked_for_not_waited_for(orders, terminal):
    shown = terminal("send", "orders")
    assert shown.end() == 2
    assert "no body" in shown.text


def test_long_work_shows_how_far_it_is(orders, terminal, tmp_path):
    (tmp_path / "many").write_text("x\n" * 20_000)
    shown = terminal("send", "orders", "--lines", f"@{tmp_path}/many")
    assert shown.end() == 0
    assert "20,000 messages sent to orders" in shown.text


def test_colours_are_left_out_where_they_are_not_wanted(orders, terminal):
    orders.send(b"1")
    shown = terminal("doctor", NO_COLOR="1")
    assert shown.end() == 0
    assert "\x1b[3" not in shown.text


def test_a_reader_that_goes_away_is_no_error(orders):
    for _ in range(3):
        orders.send(b"x" * 100_000)
    with subprocess.Popen(
        [*PROGRAM, "peek", "orders", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.close()
        assert (run.stderr.read(), run.wait(20)) == (b"", 141)
