"""What really happened, and whether it was allowed to happen.

Every process of a fault test notes what it is about to do and what came of it, one JSON line each, in one file. `check`
reads that history and proves what SEMANTICS promises of it, whatever was killed on the way:

| rule        | what it says                                                                                       |
|-------------|----------------------------------------------------------------------------------------------------|
| lost        | whatever a send returned for was acknowledged, is dead, was purged, or is still there               |
| invented    | whatever is received was sent, and was not refused; and not from an acknowledge on                  |
| duplicate   | a second delivery has a cause: the lease lapsed, or the holder gave the message back               |
| two holders | no lease begins before the one before it ended                                                     |
| stale       | a settle that began after the redelivery was received is refused                                   |
| overtaken   | in a session nothing is delivered while an earlier message is still to come                        |
| count       | a delivery is counted before the holder sees it; a killed holder's counts too; none is made up     |
| fencing     | tokens rise with the store's time, in a message's life and over the whole store                    |
| order       | of two sends one after the other the first has the smaller seq, and a seq is fixed                 |

An event is written before the act (`sending`, `acking`) and after it (`sent`, `acked`). A process that is killed in
between leaves the first without the second: that act may have happened or not, and both must be allowed. A line says
only when it was *written*; so leases are compared by the store's own times, which the deliveries carry.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

Event = dict[str, Any]

# The store's times are floats near 1.7e9, where neighbours are 2.4e-7 apart.
INSTANT = 1e-5
ON_THE_WAY = 0.25  # seconds between a client's look at the tests' clock and the server's turn to act


class History:
    """A file of events that any number of processes append to."""

    def __init__(self, path: Path | str, by: str = "", *, sync: bool = True) -> None:
        self.path = str(path)
        self.by = by
        self._sync = sync
        self._fd = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def note(self, event: str, **facts: Any) -> None:
        """One write, one line: appended as a whole however many write, and there whatever kills us next.

        The kernel has it when `write` returns, and a kill does not take that back. The sync is for a machine that goes
        down during a soak; where a process is to be struck in the middle of a verb it is left out, for else nearly
        every blow would fall on it.
        """
        line = json.dumps({"event": event, "by": self.by or str(os.getpid()), **facts}, separators=(",", ":"))
        os.write(self._fd, b"\n" + line.encode() + b"\n")
        if self._sync:
            os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def events(self) -> list[Event]:
        """All that was noted. A write that crosses a page may be cut in two by a kill: so every line begins with a line
        end of its own, and there may be as many scraps as there were blows, and no more."""
        events: list[Event] = []
        scraps = 0
        for line in Path(self.path).read_bytes().split(b"\n"):
            if line:
                try:
                    events.append(json.loads(line))
                except ValueError:
                    scraps += 1
        struck = sum(event["event"] == "struck" for event in events)
        assert scraps <= struck, f"{scraps} lines of the history are torn, after {struck} faults"
        return events

    def count(self, event: str, **facts: Any) -> int:
        return sum(e["event"] == event and all(e.get(k) == v for k, v in facts.items()) for e in self.events())


@dataclass
class Report:
    """What a history amounts to."""

    violations: list[str] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)  # faults that really happened, by kind
    sent: int = 0
    deliveries: int = 0
    acked: int = 0
    dead: int = 0
    left: int = 0
    redelivered: int = 0

    def __str__(self) -> str:
        return (
            f"{self.sent} sent, {self.deliveries} deliveries ({self.redelivered} again), {self.acked} acknowledged, "
            f"{self.dead} dead, {self.left} left; struck: {dict(self.struck)}"
        )


@dataclass
class _Delivery:
    key: str
    seq: int
    token: int
    count: int
    at: float
    until: float
    by: str
    session: str | None
    line: int
    given_back: bool = False  # nacked or returned, perhaps without an answer
    returned: bool = False  # uncounted, perhaps without an answer
    buried: bool = False  # if it comes again it was redriven: counted anew, and behind whatever did not wait for it


def check(
    events: Sequence[Event],
    *,
    drained: bool = True,
    acks_may_be_undone: bool = False,
    leases_may_be_undone: bool = False,
    clients_tell_time: bool = False,
) -> Report:
    """Everything a history proves or disproves.

    `drained`: the history ends with what was left and what was dead, so that what is missing is lost.
    `acks_may_be_undone`: a power cut came, after which claims and acknowledges may be forgotten; sends may not.
    `leases_may_be_undone`: a failover came, and moreover those whose claims were forgotten live on; and a send that was
    under way may have been stored by the old primary and, asked again, by the new one.
    `clients_tell_time`: each call told the store the tests' clock: of two on their way the one that looked first may
    come second.
    """
    undone, slack = acks_may_be_undone or leases_may_be_undone, ON_THE_WAY if clients_tell_time else INSTANT
    return _Checker(events, drained, undone, leases_may_be_undone, slack).report


def prove(history: History, *faults: str, **options: bool) -> Report:
    """Assert that nothing was violated, and that each of these faults struck at least once."""
    report = check(history.events(), **options)
    assert not report.violations, "\n".join(report.violations[:20]) + f"\n({report})"
    for fault in faults:
        assert report.struck[fault], f"no {fault} struck, so this run proves nothing ({report})"
    return report


class _Checker:
    def __init__(
        self,
        events: Sequence[Event],
        drained: bool,
        acks_may_be_undone: bool,
        leases_may_be_undone: bool,
        slack: float,
    ) -> None:
        self.report = Report()
        self.undone = acks_may_be_undone
        self.leases_undone = leases_may_be_undone
        self.slack = slack
        self.lines: dict[str, dict[str, int]] = defaultdict(dict)  # event -> key -> its first line
        self.deliveries: dict[str, list[_Delivery]] = defaultdict(list)
        self.by_token: dict[tuple[str, int], _Delivery] = {}
        self.settling: dict[tuple[str, int, str], int] = {}  # (key, token, who) -> the line the settle began at
        self.refusable: list[tuple[str, str, int, int]] = []  # settles that succeeded: what, key, token, begun at
        self.acked: dict[str, int] = {}  # key -> token that acknowledged it
        self.maybe_acked: dict[str, set[int]] = defaultdict(set)  # key -> tokens of acknowledges without an answer
        self.purged = -1  # whatever began to be sent before this line may have been purged
        self.seqs: dict[str, int] = {}
        self.unseen_claims = 0  # claims that may have taken something nobody wrote down
        for line, event in enumerate(events):
            self._read(line, event)
        self._sends()
        self._failed_together()
        for key, deliveries in self.deliveries.items():
            self._one_message(key, sorted(deliveries, key=lambda d: d.token))
        self._tokens()
        self._settles()
        self._sessions()
        if drained:
            self._nothing_lost()

    def violation(self, rule: str, text: str) -> None:
        self.report.violations.append(f"{rule}: {text}")

    # --- reading -----------------------------------------------------------------------------------------------

    def _read(self, line: int, e: Event) -> None:
        kind, report = e["event"], self.report
        first = self.lines[kind]
        if (key := e.get("key")) is not None:
            first.setdefault(key, line)
        match kind:
            case "struck":
                report.struck[e["fault"]] += e.get("times", 1)
                self.unseen_claims += e.get("unseen_claims", 1)
            case "sending":
                if key in self.lines["sent"]:
                    self.violation("history", f"{key} is sent under a name that was used before")
            case "sent":
                report.sent += 1
            case "received":
                self._received(line, e)
            case "purging" | "purged":
                self.purged = line if kind == "purged" else 1 << 60
            case "stale":
                self.maybe_acked[e["key"]].discard(e["token"])
            case "acking" | "nacking" | "returning" | "extending" | "burying":
                self._settling(line, e)
            case "acked" | "nacked" | "returned" | "extended" | "buried":
                self._settled(line, e)
            case "left":
                report.left += 1
                self._seq(e["key"], e.get("seq"))
            case "dead":
                report.dead += 1
                self._seq(e["key"], e.get("seq"))

    def _seq(self, key: str, seq: int | None) -> None:
        if seq is not None and self.seqs.setdefault(key, seq) != seq:
            if self.leases_undone:
                self.seqs[key] = seq
            else:
                self.violation("order", f"{key} had seq {self.seqs[key]} and has {seq}")

    def _received(self, line: int, e: Event) -> None:
        delivery = _Delivery(
            e["key"], e["seq"], e["token"], e["count"], e["at"], e["until"], e["by"], e.get("session"), line
        )
        self.report.deliveries += 1
        self._seq(delivery.key, delivery.seq)
        place = (delivery.key, delivery.token)
        if place in self.by_token:
            self.violation("duplicate", f"{delivery.key} was delivered twice under one lease (token {delivery.token})")
            return
        self.by_token[place] = delivery
        self.deliveries[delivery.key].append(delivery)

    def _settling(self, line: int, e: Event) -> None:
        self.settling[e["key"], e["token"], e["by"]] = line
        delivery = self.by_token.get((e["key"], e["token"]))
        if e["event"] == "acking":
            self.maybe_acked[e["key"]].add(e["token"])
        if delivery is not None and e["event"] in ("nacking", "returning", "burying"):
            delivery.given_back = True
            delivery.returned |= e["event"] == "returning"
            delivery.buried |= e["event"] == "burying"
        if delivery is not None and e["event"] == "extending" and e.get("until", delivery.until) < delivery.until:
            delivery.until = e["until"]  # asked to be shortened: from now on the early end may be the true one

    def _settled(self, line: int, e: Event) -> None:
        key, token = e["key"], e["token"]
        begun = self.settling.get((key, token, e["by"]), line)
        self.refusable.append((e["event"], key, token, begun))
        if e["event"] == "acked":
            self.report.acked += key not in self.acked
            if self.acked.setdefault(key, token) != token and not self.undone:
                self.violation("stale", f"{key} was acknowledged under two leases, {self.acked[key]} and {token}")
        delivery = self.by_token.get((key, token))
        if e["event"] == "extended" and delivery is not None:
            delivery.until = max(delivery.until, e["until"])

    # --- the rules ---------------------------------------------------------------------------------------------

    def _sends(self) -> None:
        sending, sent = self.lines["sending"], self.lines["sent"]
        refused = self.lines["refused"]
        for where in ("received", "left", "dead"):
            for key in self.lines[where]:
                if key not in sending:
                    self.violation("invented", f"{key} was {where} and never sent")
                elif key in refused and key not in sent:
                    self.violation("invented", f"{key} was {where} although its send was refused")
        # Sends that had returned before another began: walk the file once, with the greatest seq so far.
        highest, holder = 0, ""
        for _, key, returned in sorted(
            [(line, key, True) for key, line in sent.items()] + [(line, key, False) for key, line in sending.items()]
        ):
            seq = self.seqs.get(key)
            if seq is None:
                continue
            if returned and seq > highest:
                highest, holder = seq, key
            elif not returned and seq < highest:
                self.violation("order", f"{key} has seq {seq}, though {holder} ({highest}) had been sent before")
        users = Counter(self.seqs.values())
        for key, seq in self.seqs.items():
            if users[seq] > 1:
                self.violation("order", f"{key} shares seq {seq} with another message")

    def _failed_together(self) -> None:
        """In a session a message that fails or lapses takes the later ones of its claim back with it, uncounted."""
        claims: dict[tuple[str, int], list[_Delivery]] = defaultdict(list)
        for deliveries in self.deliveries.values():
            for delivery in deliveries:
                if delivery.session is not None:
                    claims[delivery.session, delivery.token].append(delivery)
        for claim in claims.values():
            failed = False
            for delivery in sorted(claim, key=lambda d: d.seq):
                if failed:
                    delivery.given_back = delivery.returned = True
                came_again = any(other.token > delivery.token for other in self.deliveries[delivery.key])
                failed = failed or delivery.given_back or came_again

    def _one_message(self, key: str, deliveries: list[_Delivery]) -> None:
        acked_under = self.acked.get(key)
        for before, after in pairwise(deliveries):
            self.report.redelivered += 1
            if acked_under == before.token and not self.undone:
                self.violation("duplicate", f"{key} came again (token {after.token}) after it had been acknowledged")
            elif not before.given_back and after.at < before.until - INSTANT and not self.leases_undone:
                self.violation(
                    "two holders",
                    f"{key}: {after.by} got it at {after.at:.4f}, and {before.by} held it until {before.until:.4f}",
                )
            least = 1 if before.buried else before.count if before.returned else before.count + 1
            if after.count < least and not self.undone:
                self.violation(
                    "count", f"{key}: delivery {after.count} (token {after.token}) came after delivery {before.count}"
                )
        for number, delivery in enumerate(deliveries, 1):
            if delivery.count > number + self.unseen_claims:
                self.violation(
                    "count",
                    f"{key}: called delivery {delivery.count}, and was the {number}. that anybody saw, "
                    f"with {self.unseen_claims} claims that nobody may have seen",
                )
            if delivery.count < 1:
                self.violation("count", f"{key}: delivery {delivery.count}")

    def _tokens(self) -> None:
        everything = sorted(
            (delivery for deliveries in self.deliveries.values() for delivery in deliveries), key=lambda d: d.token
        )
        latest: _Delivery | None = None
        for delivery in everything:
            if latest is not None and delivery.at < latest.at - self.slack:
                self.violation(
                    "fencing",
                    f"token {delivery.token} ({delivery.key}) was given out at {delivery.at:.4f}, and the smaller "
                    f"{latest.token} ({latest.key}) later, at {latest.at:.4f}",
                )
            if latest is None or delivery.at > latest.at:
                latest = delivery
        own: dict[str, int] = {}
        for delivery in sorted(everything, key=lambda d: d.line):
            if delivery.token < own.get(delivery.by, 0):
                self.violation("fencing", f"{delivery.by} got token {delivery.token} after {own[delivery.by]}")
            own[delivery.by] = max(delivery.token, own.get(delivery.by, 0))

    def _settles(self) -> None:
        for what, key, token, begun in self.refusable:
            if (key, token) not in self.by_token:
                self.violation("invented", f"{key} was {what} under token {token}, which nobody received")
            for other in self.deliveries[key]:
                if other.token > token and other.line < begun and not self.undone:
                    self.violation(
                        "stale", f"{key} was {what} under token {token}, after {other.by} had it under {other.token}"
                    )

    def _sessions(self) -> None:
        sessions: dict[str, list[_Delivery]] = defaultdict(list)
        for deliveries in self.deliveries.values():
            if any(delivery.buried for delivery in deliveries):
                continue
            for delivery in deliveries:
                if delivery.session is not None:
                    sessions[delivery.session].append(delivery)
        for session, deliveries in sessions.items():
            last: dict[int, int] = {}  # seq -> token of its last delivery; of its first, if that may have been undone
            for delivery in deliveries:
                before = last.get(delivery.seq, delivery.token)
                last[delivery.seq] = (min if self.leases_undone else max)(delivery.token, before)
            together = {(delivery.seq, delivery.token) for delivery in deliveries}
            highest = 0  # token of any last delivery of an earlier message: mostly that is all that must be looked at
            places = iter(sorted(last))
            place = next(places, None)
            for delivery in sorted(deliveries, key=lambda d: d.seq):
                while place is not None and place < delivery.seq:
                    highest = max(highest, last[place])
                    place = next(places, None)
                if highest <= delivery.token:
                    continue
                for seq, token in last.items():
                    if seq < delivery.seq and token > delivery.token and (seq, delivery.token) not in together:
                        self.violation(
                            "overtaken",
                            f"session {session}: {delivery.key} (seq {delivery.seq}) was delivered under token "
                            f"{delivery.token}, and seq {seq} came after it, under {token}",
                        )

    def _nothing_lost(self) -> None:
        for key in self.lines["sent"]:
            if key in self.acked:
                if key in self.lines["left"] and not self.undone:
                    self.violation("duplicate", f"{key} is still there after it was acknowledged")
                continue
            if key in self.lines["left"] or key in self.lines["dead"] or self.lines["sending"][key] < self.purged:
                continue
            # An acknowledge without an answer explains its absence, unless the message was seen again afterwards.
            last = max((delivery.token for delivery in self.deliveries[key]), default=0)
            if not any(token >= last for token in self.maybe_acked[key]):
                self.violation("lost", f"{key} was accepted, and it is nowhere")


def keys(events: Iterable[Event], kind: str) -> set[str]:
    return {e["key"] for e in events if e["event"] == kind}
