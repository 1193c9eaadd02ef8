"""The end of the demo: what was sent against what was done, and whether the story is true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import postroom
from postroom.cli.demo_ledger import Entry, Order


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers, and what is wrong with them."""

    sent: int
    shipped: int
    acknowledged: int
    deliveries: int
    failures: int
    by_worker: dict[str, int]
    killed: str
    left_in_queue: int
    dead: int
    missing: tuple[int, ...]  # numbers of orders
    wrong: tuple[str, ...]

    def rows(self) -> Iterator[tuple[str, int, str]]:
        yield "sent", self.sent, ""
        by = ", ".join(f"{name} {n}{' and died' if name == self.killed else ''}" for name, n in self.by_worker.items())
        yield "shipped", self.shipped, by
        yield "acknowledged", self.acknowledged, "each of them once"
        more = self.deliveries - self.acknowledged - self.failures
        ends = f"{self.acknowledged} acknowledged, {self.failures} failed, {more} cut short by the kill"
        yield "deliveries", self.deliveries, ends
        yield "left in queue", self.left_in_queue, ""
        yield "dead letters", self.dead, ""
        yield "missing", len(self.missing), ", ".join(f"order {number}" for number in self.missing)


def count(
    sent: Sequence[str],
    orders: Sequence[Order],
    entries: Sequence[Entry],
    info: postroom.QueueInfo,
    *,
    victim: str,
    piano: str,
) -> Tally:
    """Hold the ledger against what was sent, and the story against the ledger."""
    ours = [entry for entry in entries if entry.id in set(sent)]
    times = {did: Counter(entry.id for entry in ours if entry.did == did) for did in ("shipped", "acknowledged")}
    missing = [
        order.number
        for id, order in zip(sent, orders, strict=True)
        if not (times["shipped"][id] and times["acknowledged"][id])
    ]
    left = info.ready + info.scheduled + info.in_flight
    by_worker = Counter(entry.worker for entry in ours if entry.did == "shipped")
    of_victim = [entry.did for entry in ours if entry.id == piano and entry.worker == victim]
    # Not "exactly at delivery 2": on a machine that stalls for longer than the lease, others take over once more.
    rescued = [e for e in ours if e.id == piano and e.did == "acknowledged" and e.worker != victim and e.delivery > 1]
    checks = (
        (len(sent) != len(orders), f"{len(orders) - len(sent)} orders were not accepted"),
        (bool(missing), f"missing: {', '.join(map(str, missing))}"),
        (len(entries) != len(ours), "the workers saw messages that nobody sent"),
        (any(n != 1 for n in times["acknowledged"].values()), "a message was acknowledged twice"),
        (of_victim != ["took"], f"the kill did not strike in the middle of a message: {victim} {of_victim}"),
        (not rescued, "the killed worker's message was not acknowledged by another"),
        (left > 0, f"{left} messages are left in the queue"),
        (info.dead > 0, f"{info.dead} dead letters are left"),
    )
    return Tally(
        sent=len(sent),
        shipped=len(times["shipped"]),
        acknowledged=len(times["acknowledged"]),
        deliveries=sum(entry.did == "took" for entry in ours),
        failures=sum(entry.did == "failed" for entry in ours),
        by_worker=dict(sorted(by_worker.items())),
        killed=victim,
        left_in_queue=left,
        dead=info.dead,
        missing=tuple(missing),
        wrong=tuple(text for bad, text in checks if bad),
    )
