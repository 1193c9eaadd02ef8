"""The demo, end to end: what it proves, and that it fails when it does not."""

import json
import os
import subprocess
from dataclasses import replace

import pytest

import postroom
from postroom.cli.demo_ledger import Entry, Order
from postroom.cli.demo_tally import count
from tests.cli.conftest import PROGRAM


def start(*arguments, env=None):
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )


@pytest.mark.slow
def test_the_demo_loses_nothing_and_leaves_nothing_behind(tmp_path):
    demo = start("demo", env={"TMPDIR": str(tmp_path), "POSTROOM_URL": "nosuch://store"})
    out, err = demo.communicate(timeout=55)
    assert (demo.returncode, err) == (0, "")
    assert "kill -9" in out
    assert "delivery 2  shipped, 9,800.00" in out
    assert "Reason: max_deliveries." in out
    assert "unicorn is not in the price list" in out
    assert out.endswith("Nothing is missing.\n")
    assert "\x1b" not in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_demos_share_a_file_and_each_keeps_its_own_count(tmp_path):
    where = ("--path", str(tmp_path / "kept.db"))
    demos = [
        start("--json", "demo", *where),
        start("--json", "demo", *where, env={"POSTROOM_NAMESPACE": "set for others"}),
        start("--json", "--namespace", "tenant", "demo", *where),
    ]
    for demo in demos:
        out, err = demo.communicate(timeout=55)
        assert (demo.returncode, err) == (0, "")
        tally = json.loads(out)
        assert (tally["sent"], tally["acknowledged"], tally["missing"], tally["wrong"]) == (18, 18, [], [])
        assert (tally["left_in_queue"], tally["dead"]) == (0, 0)
    for namespace, queues in (("", 2), ("tenant", 1)):
        with postroom.connect(f"sqlite:///{tmp_path}/kept.db", namespace=namespace) as client:
            assert len(client.list_queues()) == queues


def test_the_demo_has_a_store_of_its_own(cli):
    assert cli("demo", "--url", "memory://").code == 2
    assert cli("--url", "memory://", "demo").code == 2


def test_the_demo_refuses_a_file_that_is_none_of_its_own(cli, tmp_path):
    (tmp_path / "list.db").write_bytes(b"milk and honey, " * 64)
    assert cli("demo", "--path", tmp_path / "list.db").code == 2


ORDERS = (Order(1, "teapot", 1), Order(2, "grand piano", 1))


def story():
    """A ledger of a demo that went well."""
    return [
        Entry(worker, did, id, delivery, ORDERS[id == "b"])
        for worker, did, id, delivery in (
            ("Ann", "took", "a", 1), ("Bob", "took", "b", 1), ("Ann", "shipped", "a", 1),
            ("Ann", "acknowledged", "a", 1), ("Ann", "took", "b", 2), ("Ann", "shipped", "b", 2),
            ("Ann", "acknowledged", "b", 2),
        )
    ]  # fmt: skip


@pytest.fixture
def nothing_left(orders):
    return orders.info()


def tally(entries, info):
    return count(("a", "b"), ORDERS, entries, info, victim="Bob", piano="b")


def test_a_true_story_adds_up(nothing_left):
    result = tally(story(), nothing_left)
    assert (result.wrong, result.missing, result.deliveries) == ((), (), 3)


@pytest.mark.parametrize(
    ("tell", "wrong"),
    [
        (lambda e: [x for x in e if not (x.id == "a" and x.did == "shipped")], "missing: 1"),
        (lambda e: [x for x in e if not (x.id == "b" and x.did == "acknowledged")], "missing: 2"),
        (lambda e: [*e, replace(e[3])], "acknowledged twice"),
        (lambda e: [*e, replace(e[1], did="shipped")], "did not strike in the middle"),
        (lambda e: [replace(x, worker="Bob") if x.id == "b" else x for x in e], "not acknowledged by another"),
        (lambda e: [*e, replace(e[0], id="stranger")], "nobody sent"),
    ],
)
def test_a_ledger_that_does_not_bear_the_story_out_is_found(nothing_left, tell, wrong):
    assert any(wrong in text for text in tally(tell(story()), nothing_left).wrong)


def test_what_the_store_still_has_is_found(orders):
    orders.send(b"1")
    assert any("left in the queue" in text for text in tally(story(), orders.info()).wrong)
