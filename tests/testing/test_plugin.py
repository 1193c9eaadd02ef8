"""The pytest plugin, as its users load it: from the entry point."""

import subprocess
import sys

import pytest

from postroom.testing import CollectingMailbox, FakeMailbox, NullMailbox
from postroom.testing import assert_acknowledged as check_acknowledged
from postroom.testing import assert_sent as check_sent
from postroom.testing import drain as drain_worker


class Rounds:
    """A worker that finds something to do a few times."""

    def __init__(self, mailbox):
        self.mailbox = mailbox

    def run_once(self):
        messages = self.mailbox.receive(max_messages=2)
        for message in messages:
            message.acknowledge()
        return len(messages)


def test_the_fixture_is_a_fresh_client(postroom, assert_sent, assert_acknowledged, drain):
    box = postroom.mailbox("box")
    assert postroom.list_queues() == []
    box.send_many([1, 2, 3])
    assert drain(Rounds(box)) == 2
    assert_sent(box, 1, 3)
    assert_acknowledged(box, 1, 2, 3, times=3)


def test_the_next_test_gets_another_one(postroom):
    assert postroom.list_queues() == []


def test_the_fixtures_clock_is_the_tests_to_move(postroom, postroom_clock):
    box = postroom.mailbox("box")
    box.send("later", delay_seconds=3600)
    assert box.receive() == []
    postroom_clock.advance(3600)
    assert [message.body for message in box.receive()] == ["later"]


def test_a_wait_of_the_fixture_takes_no_time(postroom):
    assert postroom.mailbox("box").receive(wait_time_seconds=3600) == []


@pytest.mark.parametrize(
    ("bodies", "times", "complaint"),
    [
        ((4,), None, "4 was not sent"),
        ((2, 1), None, "in this order"),
        ((1, 1), None, "1 was not sent"),
        ((), 3, "2 were sent and not 3"),
    ],
)
def test_a_wrong_claim_fails_and_says_what_was_sent(bodies, times, complaint):
    box = FakeMailbox("box")
    box.send_many([1, 2])
    with pytest.raises(AssertionError, match=complaint):
        check_sent(box, *bodies, times=times)


def test_nothing_sent_is_told():
    with pytest.raises(AssertionError, match="nothing was sent"):
        check_sent(CollectingMailbox("box"))
    check_sent(CollectingMailbox("box"), times=0)
    with pytest.raises(AssertionError, match="nothing was acknowledged"):
        check_acknowledged(FakeMailbox("box"))


def test_a_mailbox_without_a_record_is_told_what_to_use(tmp_path):
    from postroom import InMemoryMailbox

    with pytest.raises(AssertionError, match="FakeMailbox"):
        check_sent(InMemoryMailbox("box"), 1)


def test_a_mailbox_that_keeps_nothing_is_told_what_to_use():
    null = NullMailbox("nowhere", str)
    null.send("gone")
    with pytest.raises(AssertionError, match="keeps no record: use a FakeMailbox"):
        check_sent(null, "gone")


def test_a_worker_that_never_ends_is_found_out():
    class Restless:
        def run_once(self):
            return 1

    with pytest.raises(AssertionError, match="5 rounds"):
        drain_worker(Restless(), limit=5)


def test_loading_the_plugin_imports_no_store_and_no_event_loop():
    """It is loaded in every pytest run of everybody who has Postroom installed."""
    code = (
        "import sys, pytest; import postroom.testing.plugin;"
        "print([m for m in sys.modules if m.startswith(('postroom.drivers.memory', 'postroom.drivers.sqlite',"
        " 'postroom.testing.', 'postroom.aio', 'sqlite3'))])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "['postroom.testing.plugin']"


@pytest.mark.slow
def test_a_test_file_of_a_user_finds_the_fixtures(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "def test_a(postroom, assert_sent):\n"
        "    box = postroom.mailbox('box')\n"
        "    box.send('x')\n"
        "    assert_sent(box, 'x')\n",
        encoding="utf-8",
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr
