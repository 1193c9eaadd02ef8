"""The demo's story, scene by scene, and how it is told.

Every scene waits for what really happened, in the workers' ledger or in the store, and fails if it did not.
"""

from __future__ import annotations

import time
from typing import Any

import postroom
from postroom.cli import show
from postroom.cli._demo_worker import PIANO
from postroom.cli.demo_ledger import Entry, Order
from postroom.cli.demo_stage import Stage
from postroom.cli.demo_tally import Tally, count
from postroom.cli.exits import Failure
from postroom.cli.safe import safe
from postroom.cli.words import lasting

LEASE = 2
DELIVERIES = 3
UNICORN = "unicorn"
PRICES = {
    "desk lamp": 49.0, "teapot": 24.5, "bicycle": 390.0, "umbrella": 19.0, "typewriter": 120.0, "globe": 75.0,
    "violin": 860.0, "kite": 12.0, PIANO: 9800.0,
}  # fmt: skip
ITEMS = (
    "desk lamp", "teapot", "bicycle", PIANO, "umbrella", UNICORN, "typewriter", "globe", "violin", "kite",
    "desk lamp", "umbrella", "globe", "teapot", "bicycle", "kite", "violin", "typewriter",
)  # fmt: skip
ORDERS = tuple(Order(number, item, 1 + number * 7 % 4) for number, item in enumerate(ITEMS, 1))
WORKERS = {"Ann": "cyan", "Bob": "magenta", "Cat": "yellow"}


def play(client: postroom.QueueClient, stage: Stage, teller: Teller) -> Tally:
    """The whole story; what it came to."""
    ledger = stage.ledger
    client.create_queue(postroom.QueueDefinition(name=stage.queue, max_delivery_count=DELIVERIES, lock_duration=LEASE))
    orders = client.mailbox(stage.queue, Order)
    teller.title(stage.url)

    teller.scene("Send")
    started = time.monotonic()
    sent = [str(result.id) for result in orders.send_many(ORDERS) if result.ok]
    took = time.monotonic() - started
    teller.say(f"{len(sent)} orders in {lasting(took)}, all on the disk before send_many() returned.")
    piano, unicorn = (sent[ITEMS.index(item)] for item in (PIANO, UNICORN))

    teller.scene("Work: three processes on one mailbox")
    stage.set_prices(PRICES)
    pids = {name: stage.start(name) for name in WORKERS}
    teller.say(", ".join(f"{name} is process {pid}" for name, pid in pids.items()) + ".")
    teller.say(f"A lease is {LEASE} s here, so that a dead worker is noticed soon; 30 s is the default.")
    stage.until("somebody packs the piano", lambda: any(ledger.of(piano, "took")))

    victim = next(ledger.of(piano, "took")).worker
    stage.kill(victim)
    struck = time.monotonic()
    teller.scene(f"kill -9 {pids[victim]}: {victim} dies in the middle of order {ITEMS.index(PIANO) + 1}")
    for left in orders.peek(100):
        if left.id == piano:
            state = f"{left.state.replace('_', ' ')}, delivery {left.delivery_count}"
            teller.say(f"{victim} could give nothing back. The store still has the message: {state}.")
    teller.say(f"Its lease runs out within {LEASE} s; meanwhile the others go on.")
    stage.until("somebody else ships the piano", lambda: any(ledger.of(piano, "acknowledged")))
    again = next(entry for entry in ledger.of(piano, "took") if entry.worker != victim)
    teller.say(
        f"Redelivered to {again.worker} {lasting(again.at - struck)} after the kill, and acknowledged "
        f"(delivery {again.delivery})."
    )

    teller.scene("Poison: an order that nobody can handle")
    stage.until("all but the poison is done", lambda: done(stage, sent) >= set(sent) - {unicorn})
    stage.until("the poison is a dead letter", lambda: orders.info().dead == 1)
    [dead] = orders.dead_letters.peek()
    teller.letter(dead)

    teller.scene("Repair and redrive")
    stage.set_prices({**PRICES, UNICORN: 99999.0})
    moved = orders.dead_letters.redrive(where=lambda letter: letter.id == unicorn)
    teller.say(f"Unicorns are in the price list now; redrive() sends {moved.moved} dead letter back to work.")
    stage.until("the unicorn is shipped", lambda: done(stage, sent) >= set(sent))
    stage.close()  # every worker has written its last line now
    return count(sent, ORDERS, ledger.entries, orders.info(), victim=victim, piano=piano)


def done(stage: Stage, sent: list[str]) -> set[str]:
    return {entry.id for entry in stage.ledger.entries if entry.did == "acknowledged"}


class Teller:
    """Tells the story: coloured on a terminal, the same words in a pipe."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._scenes = 0

    def _print(self, *parts: tuple[str, str]) -> None:
        if self._quiet:
            return
        if not show.on_terminal():
            show.line("".join(text for text, _ in parts))
            return
        from rich.text import Text

        self._console = getattr(self, "_console", None) or show.console()
        self._console.print(Text.assemble(*parts), soft_wrap=True)

    def title(self, url: str) -> None:
        self._print(("Postroom demo", "bold"), (f"  {safe(url)}", "dim"))

    def scene(self, text: str) -> None:
        self._scenes += 1
        self._print(("\n", ""), (f"{self._scenes}  {text}", "bold"))

    def say(self, text: str) -> None:
        self._print((f"   {safe(text)}", ""))

    def entry(self, entry: Entry) -> None:
        """A line of the ledger; taking and acknowledging go without saying, except where that is the story."""
        order = entry.order
        what = {
            "took": ("packs it ...", "bold yellow") if order.item == PIANO and entry.delivery == 1 else None,
            "shipped": (f"shipped, {entry.note}", "green"),
            "failed": (f"failed: {entry.note}", "red"),
            "lost": (f"lost its lease: {entry.note}", "red"),
        }.get(entry.did)
        if what is None:
            return
        self._print(
            (f"   {entry.worker}", WORKERS.get(entry.worker, "")),
            (f"  order {order.number:>2}  {f'{order.quantity} {order.item}':<14}", ""),
            (f"  delivery {entry.delivery}", "bold yellow" if entry.delivery > 1 else "dim"),
            (f"  {safe(what[0])}", what[1]),
        )

    def letter(self, letter: postroom.Peeked[Any]) -> None:
        if letter.death is None:
            raise Failure("demo: the dead letter does not say why it died")
        self._print(
            (f"   After {letter.death.delivery_count} deliveries it is a dead letter. Reason: ", ""),
            (safe(letter.death.reason), "bold red"),
            (".", ""),
        )
        for attempt in letter.history:
            self._print((f"   delivery {attempt.number}: {safe(attempt.error)}", "dim"))

    def tally(self, tally: Tally) -> None:
        self.scene("Tally, from what the workers wrote down and from the store")
        for name, number, note in tally.rows():
            self._print((f"   {name:<16}", ""), (f"{number:>4}", "bold"), (f"  {note}" if note else "", "dim"))
        if not tally.wrong:
            self._print(("\n", ""), ("Nothing is missing.", "bold green"))
