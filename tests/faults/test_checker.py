"""The checker is a test of others, so it is tested first: each rule catches the history that breaks it, and only it."""

import os
import threading

import pytest

from tests.faults.checker import History, check, prove

SENT = [("sending", {"key": "a"}), ("sent", {"key": "a"})]


def history(*parts, **options):
    events = []
    for part in parts:
        for event, facts in part if isinstance(part, list) else [part]:
            events.append({"event": event, "by": facts.get("by", "p"), **facts})
    return check(events, **options)


def received(key="a", token=10, count=1, at=100.0, lease=30.0, seq=1, by="p", **facts):
    return (
        "received",
        {"key": key, "token": token, "count": count, "at": at, "until": at + lease, "seq": seq, "by": by, **facts},
    )


def acked(key="a", token=10, by="p"):
    return [("acking", {"key": key, "token": token, "by": by}), ("acked", {"key": key, "token": token, "by": by})]


def one(event, key="a", **facts):
    return (event, {"key": key, **facts})


def sent(key):
    return [one("sending", key), one("sent", key)]


def killed(**facts):
    return ("struck", {"fault": "kill", **facts})


GOOD = {
    "sent, received, acknowledged": [SENT, received(), acked()],
    "sent and left": [SENT, one("left", seq=1)],
    "sent and dead": [SENT, one("dead", seq=1)],
    "a lapse explains a second delivery": [
        SENT,
        received(),
        received(token=11, count=2, at=130.0),
        acked(token=11),
    ],
    "a nack explains a second delivery": [
        SENT,
        received(),
        one("nacking", token=10),
        one("nacked", token=10),
        received(token=11, count=2, at=100.1),
        acked(token=11),
    ],
    "a return is not counted": [
        SENT,
        received(),
        one("returning", token=10),
        one("returned", token=10),
        received(token=11, count=1, at=100.1),
        acked(token=11),
    ],
    "a killed holder never wrote its delivery down, and it is counted": [
        SENT,
        killed(),
        received(token=11, count=2, at=130.0),
        acked(token=11),
    ],
    "an acknowledge without an answer may have happened": [SENT, received(), one("acking", token=10)],
    "an acknowledge without an answer may not have happened": [
        SENT,
        received(),
        one("acking", token=10),
        received(token=11, count=2, at=130.0),
        acked(token=11),
    ],
    "a send without an answer may have happened": [one("sending"), received(), acked()],
    "a send without an answer may not have happened": [one("sending")],
    "a refused send did not happen": [one("sending"), one("refused")],
    "what was purged is not lost": [SENT, ("purging", {}), ("purged", {})],
    "a stale settle that was refused": [
        SENT,
        received(),
        received(token=11, count=2, at=130.0, by="q"),
        one("acking", token=10),
        one("stale", token=10),
        acked(token=11, by="q"),
    ],
    "a session in order, two of it in one claim": [
        sent("a"),
        sent("b"),
        received("a", session="s"),
        received("b", seq=2, session="s"),
        acked("b"),
        received("a", token=11, count=2, at=130.0, session="s"),
        acked("a", token=11),
    ],
    "what fails in a session takes the later ones of its claim back": [
        sent("a"),
        sent("b"),
        received("a", session="s"),
        received("b", seq=2, session="s"),
        one("nacking", token=10),
        one("nacked", token=10),
        received("a", token=11, count=2, at=100.1, session="s"),
        acked("a", token=11),
        received("b", token=12, count=1, at=100.2, seq=2, session="s"),
        acked("b", token=12),
    ],
    "an extended lease lasts longer": [
        SENT,
        received(lease=10),
        one("extending", token=10),
        one("extended", token=10, until=140.0),
        received(token=11, count=2, at=140.0),
        acked(token=11),
    ],
}

BAD = {
    "lost: accepted and nowhere": [SENT],
    "lost: received, and then nowhere": [SENT, received()],
    "lost: sent after the purge was over": [("purging", {}), ("purged", {}), SENT],
    "lost: the acknowledge in doubt was refused": [SENT, received(), one("acking", token=10), one("stale", token=10)],
    "lost: it was seen again after the acknowledge in doubt": [
        SENT,
        received(),
        one("acking", token=10),
        received(token=11, count=2, at=130.0),
    ],
    "invented: never sent": [received(), acked()],
    "invented: never sent and dead": [one("dead")],
    "invented: refused and there all the same": [one("sending"), one("refused"), received(), acked()],
    "invented: refused and left": [one("sending"), one("refused"), one("left")],
    "invented: acknowledged under a token nobody was given": [SENT, received(), acked(), acked(token=12)],
    "duplicate: after its acknowledge": [
        SENT,
        received(),
        acked(),
        received(token=11, count=2, at=130.0),
        one("left"),
    ],
    "duplicate: acknowledged and left": [SENT, received(), acked(), one("left", seq=1)],
    "duplicate: twice under one lease": [SENT, received(), received(), acked()],
    "two holders: no cause at all": [SENT, received(), received(token=11, count=2, at=129.0), acked(token=11)],
    "two holders: the lease had been extended": [
        SENT,
        received(lease=10),
        one("extending", token=10),
        one("extended", token=10, until=140.0),
        received(token=11, count=2, at=130.0),
        acked(token=11),
    ],
    "two holders: nothing failed in the session": [
        sent("a"),
        sent("b"),
        received("a", session="s"),
        received("b", seq=2, session="s"),
        acked("a"),
        received("b", token=12, count=2, at=100.2, seq=2, session="s"),
        acked("b", token=12),
    ],
    "stale: acknowledged after the redelivery": [
        SENT,
        received(),
        received(token=11, count=2, at=130.0, by="q"),
        acked(token=10),
    ],
    "stale: nacked after the redelivery": [
        SENT,
        received(),
        received(token=11, count=2, at=130.0, by="q"),
        one("nacking", token=10),
        one("nacked", token=10),
        acked(token=11, by="q"),
    ],
    "overtaken: the second of a session came before the first was over": [
        sent("a"),
        sent("b"),
        received("a", lease=1, session="s"),
        received("b", token=11, seq=2, at=101.0, session="s"),
        received("a", token=12, count=2, at=102.0, session="s"),
        acked("a", token=12),
        acked("b", token=11),
    ],
    "count: a killed holder's delivery was not counted": [
        SENT,
        received(),
        killed(),
        received(token=11, count=1, at=130.0),
        acked(token=11),
    ],
    "count: made up": [SENT, received(count=3), acked()],
    "count: more than the kills explain": [SENT, killed(), received(count=3), acked()],
    "fencing: a later lease with a smaller token": [
        sent("a"),
        sent("b"),
        received("a", token=10, at=100.0),
        acked("a"),
        received("b", token=9, seq=2, at=150.0, by="q"),
        acked("b", token=9, by="q"),
    ],
    "order: a later send with a smaller seq": [
        sent("a"),
        sent("b"),
        received("a", seq=2),
        acked("a"),
        received("b", token=11, seq=1, at=101.0),
        acked("b", token=11),
    ],
    "order: a seq that moved": [SENT, received(seq=1), one("left", seq=2)],
    "order: a seq for two": [sent("a"), sent("b"), received("a"), received("b"), acked("a"), acked("b")],
}


@pytest.mark.parametrize("name", GOOD)
def test_a_history_that_is_allowed_passes(name):
    assert history(*GOOD[name]).violations == []


@pytest.mark.parametrize("name", BAD)
def test_a_history_that_breaks_a_rule_is_caught(name):
    rules = {violation.partition(":")[0] for violation in history(*BAD[name]).violations}
    assert name.partition(":")[0] in rules


def test_after_a_power_cut_an_acknowledge_may_be_undone_and_a_send_may_not():
    again = [SENT, received(), acked(), received(token=11, count=1, at=130.0), acked(token=11)]
    assert history(*again, acks_may_be_undone=True).violations == []
    assert history(SENT, acks_may_be_undone=True).violations != []


def test_a_run_in_which_nothing_struck_proves_nothing(tmp_path):
    log = History(tmp_path / "history")
    log.note("sending", key="a")
    log.note("sent", key="a")
    log.note("left", key="a")
    with pytest.raises(AssertionError, match="no kill struck"):
        prove(log, "kill")
    log.note("struck", fault="kill")
    assert prove(log, "kill").struck["kill"] == 1
    log.close()


def test_lines_of_many_writers_are_never_torn(tmp_path):
    def write(by):
        own = History(tmp_path / "history", by)
        for n in range(50):
            own.note("sending", key=f"{by}-{n}", pad="x" * 200)
        own.close()

    writers = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    log = History(tmp_path / "history")
    assert len(log.events()) == 200
    log.close()


def test_a_line_torn_by_a_kill_spoils_no_other_and_without_a_kill_it_is_an_error(tmp_path):
    log = History(tmp_path / "history")
    os.write(log._fd, b'\n{"half')
    log.note("sending", key="a")
    with pytest.raises(AssertionError, match="torn"):
        log.events()
    log.note("struck", fault="kill")
    assert [event["event"] for event in log.events()] == ["sending", "struck"]
    log.close()
