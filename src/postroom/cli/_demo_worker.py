"""A worker of the demo, a process of its own: `python -m postroom.cli._demo_worker NAME URL QUEUE LEDGER PRICES`.

A plain receive loop, as anybody would write it. It leaves when its stdin ends, so that it never outlives the demo,
however that ended.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path

import postroom
from postroom.cli.demo_ledger import Ledger, Order

PIANO = "grand piano"
PACKING = 0.2
DAWDLE = 30.0


def price_of(order: Order, prices: Path) -> float:
    price: float | None = json.loads(prices.read_text()).get(order.item)
    if price is None:
        raise LookupError(f"{order.item} is not in the price list")
    return price * order.quantity


def pack(order: Order, delivery: int) -> None:
    # The first one to pack the piano is to be killed at it. It dawdles, so that the kill strikes in the middle of the
    # message however slow the machine is; nobody but the killer ends it, or the demo fails.
    time.sleep(DAWDLE if order.item == PIANO and delivery == 1 else PACKING)


def work(box: postroom.Mailbox[Order, None], ledger: Ledger, prices: Path) -> None:
    for message in box.stream(max_messages=1):
        about = (message.id, message.delivery_count, message.body)
        ledger.write("took", *about)
        try:
            with message, message.keep_alive():
                total = price_of(message.body, prices)
                pack(message.body, message.delivery_count)
                ledger.write("shipped", *about, f"{total:,.2f}")
        except postroom.ReceiptHandleExpiredError as lost:
            ledger.write("lost", *about, str(lost))  # shipped, but somebody else has the message now
        except LookupError as failure:
            ledger.write("failed", *about, str(failure))  # given back by `with`: it comes again after a moment
        else:
            ledger.write("acknowledged", *about)


def main(name: str, url: str, queue: str, ledger: str, prices: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the demo; we see its end on stdin
    backoff = postroom.Backoff(base=0.2, cap=0.4, jitter=0)  # an impatient demo; the default starts at a second
    with postroom.connect(url, backoff=backoff) as client:
        box = client.mailbox(queue, Order)

        def leave_with_the_demo() -> None:
            sys.stdin.buffer.read()
            box.close()  # wakes the loop, which is done then

        threading.Thread(target=leave_with_the_demo, daemon=True).start()
        work(box, Ledger(Path(ledger), name), Path(prices))


if __name__ == "__main__":
    main(*sys.argv[1:])
