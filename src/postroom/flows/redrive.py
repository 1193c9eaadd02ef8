"""Redrive: dead letters go back to work, chosen, limited, paced, and safe to start again.

It walks the dead letters by sequence number, a page at a time, and moves those chosen in one call a page. Nothing is
remembered between pages but the last number, so an interrupted redrive is finished by starting it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from postroom.core import limits
from postroom.core.address import check_name, is_dead_letters, origin_of
from postroom.core.message import Refused, Settled
from postroom.drivers.io import sleep
from postroom.errors import InvalidParameterError, MailboxError
from postroom.flows.held import DeadLetter
from postroom.flows.link import Box, open_box
from postroom.flows.receive import body_of

T = TypeVar("T")
R = TypeVar("R")

PAGE = 100


@dataclass(frozen=True, slots=True)
class Redriven:
    """What a redrive did, or with dry_run what it would have done."""

    moved: int
    skipped: int  # looked at and not chosen, or held by a consumer
    refused: tuple[tuple[str, MailboxError], ...] = ()  # (message id, why): these stayed where they are
    dry_run: bool = False


async def redrive(
    box: Box[T, R],
    origin: str,
    where: Callable[[DeadLetter[T]], bool] | None,
    limit: int | None,
    rate: float | None,
    dry_run: bool,
    target: str | None,
) -> Redriven:
    if limit is not None:
        limits.whole(limit, "limit", 1, 1 << 60)
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < 1e9):
        raise InvalidParameterError(f"rate is messages a second, above 0, not {rate!r:.80}")
    if where is not None and not callable(where):
        raise InvalidParameterError(f"where is a function of a dead letter, not {type(where).__name__}")
    if target is not None:
        check_name(target, "target")
    if not box.ready:
        await open_box(box)
    own = origin_of(origin)
    moved = skipped = 0
    refused: list[tuple[str, MailboxError]] = []
    after = 0
    while limit is None or moved < limit:
        page = await box.driver.peek(box.name, PAGE, after=after)
        if not page:
            break
        after = page[-1].seq
        chosen = [
            delivery
            for delivery in page
            # A dead-letter queue can be shared: each mailbox redrives its own.
            if delivery.death is not None
            and (is_dead_letters(box.name) or delivery.death.source == own)
            and delivery.state != "in_flight"
            and (where is None or where(DeadLetter(delivery, body_of(box, delivery))))
        ]
        if limit is not None:
            chosen = chosen[: limit - moved]
        if dry_run or not chosen:
            moved += len(chosen)
            skipped += len(page) - len(chosen)
            continue
        step = len(chosen) if rate is None else max(1, int(rate / 10))
        for start in range(0, len(chosen), step):
            part = chosen[start : start + step]
            outcomes = await box.driver.redrive(box.name, [delivery.seq for delivery in part], target=target)
            for delivery, outcome in zip(part, outcomes, strict=True):
                if isinstance(outcome, Settled):
                    moved += 1
                elif isinstance(outcome, Refused):
                    refused.append((delivery.envelope.id, outcome.error))
            if rate is not None and await sleep(box.driver.io, len(part) / rate, box.closing):
                return Redriven(moved, skipped, tuple(refused), dry_run)
        skipped += len(page) - len(chosen)
    return Redriven(moved, skipped, tuple(refused), dry_run)
