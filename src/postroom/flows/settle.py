"""Settling: what we decided about a message, told to the store once, and its answer told truthfully."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from postroom.core import limits
from postroom.core.limits import Seconds
from postroom.core.message import Ack, Bury, Extend, Gone, Outcome, Refused, Release, Return, Settled, Stale, Verdict
from postroom.core.policy import MAX_DESCRIPTION, verdict_on
from postroom.errors import (
    Discard,
    HandlerOutcome,
    InvalidParameterError,
    MailboxError,
    MessageFinalizedError,
    ReceiptHandleExpiredError,
)
from postroom.flows.held import Held
from postroom.flows.link import Box, Link


@dataclass(frozen=True, slots=True)
class SettleResult:
    """What became of settling one message of a batch."""

    error: MailboxError | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


async def nack(held: Held[Any, Any], visibility_timeout: Seconds) -> None:
    delay = limits.seconds(visibility_timeout, "visibility_timeout", 0, limits.MAX_LEASE)
    await finish(held, Release(held._delivery.handle, delay))


async def dead_letter(held: Held[Any, Any], reason: str, description: str) -> None:
    limits.text(reason, "reason")
    if not isinstance(description, str):
        raise InvalidParameterError(f"description must be a str, not {type(description).__name__}")
    await finish(held, Bury(held._delivery.handle, reason, description[:MAX_DESCRIPTION]))


async def finish(held: Held[Any, Any], verdict: Verdict) -> None:
    """Settle a message for good. The object is final once the store has answered, whatever it said."""
    if held._final:
        raise MessageFinalizedError(
            f"{held._box.name}: message {held.id} was settled before; a message is settled once, by one caller"
        )
    held._final = True  # before the call: of two threads that settle at once, one is told
    try:
        [outcome] = await held._box.link.settle(held._box.name, (verdict,))
    except BaseException:
        # It may have happened or not. Let the caller try again, and then take "gone" for our own success.
        held._final, held._unsure = False, True
        raise
    if type(outcome) is not Settled:
        judge(held, outcome)


def judge(held: Held[Any, Any], outcome: Outcome) -> None:
    if isinstance(outcome, Refused):
        held._final = False  # nothing was done: the message is still ours
        raise outcome.error
    if isinstance(outcome, Gone) and held._unsure:
        return
    if not isinstance(outcome, Settled):
        held.lease.lost = True
        lost(held._box.name, held.id, outcome)


def lost(queue: str, id: str, outcome: Outcome) -> NoReturn:
    if isinstance(outcome, Stale):
        raise ReceiptHandleExpiredError(
            f"{queue}: stale handle: the lease on message {id} ended before it was settled, and the message was or "
            "will be delivered again. Raise visibility_timeout, or hold it with msg.keep_alive().",
            code="stale",
        )
    raise ReceiptHandleExpiredError(
        f"{queue}: message {id} is gone: it was acknowledged, purged, expired or dead-lettered meanwhile. "
        "Nothing is left to settle.",
        code="gone",
    )


async def extend(held: Held[Any, Any], timeout: Seconds) -> None:
    """The lease ends `timeout` from now; over 12 hours in total is an error."""
    lease = limits.seconds(timeout, "timeout", 0, limits.MAX_LEASE)
    if held._final:
        raise MessageFinalizedError(
            f"{held._box.name}: message {held.id} was settled before; there is no lease to extend"
        )
    now = held._box.driver.now()
    if now + lease - held._delivery.received_at > limits.MAX_LEASE + 1e-3:
        raise InvalidParameterError(
            f"{held._box.name}: a lease lasts {limits.MAX_LEASE:g} s in total; message {held.id} is held for "
            f"{now - held._delivery.received_at:.0f} s already, so {lease:g} s more are too many"
        )
    [outcome] = await held._box.link.settle(held._box.name, (Extend(held._delivery.handle, lease),))
    if isinstance(outcome, Settled):
        held._extended = outcome.lease_until if outcome.lease_until is not None else now + lease
    else:
        judge(held, outcome)


async def conclude(held: Held[Any, Any], failure: BaseException | None) -> bool:
    """The end of `with msg`: settle as the block ended; True if its exception was an outcome and is swallowed."""
    if held._final:
        return isinstance(failure, HandlerOutcome)
    if failure is None or isinstance(failure, Discard):
        await finish(held, Ack(held._delivery.handle))
    else:
        link, delivery = held._box.link, held._delivery
        verdict = verdict_on(failure, delivery, link.backoff, random.random())
        if isinstance(verdict, Release) and link.gives_up_after is not None and delivery.attempt >= link.gives_up_after:
            verdict = Bury(delivery.handle, "max_deliveries", verdict.note or "")
        try:
            await finish(held, verdict)
        except ReceiptHandleExpiredError:
            # The failure is the news; that the lease was lost meanwhile changes nothing about what happens next.
            if isinstance(failure, HandlerOutcome):
                raise
        except MailboxError as error:
            if isinstance(failure, HandlerOutcome):
                raise
            failure.add_note(f"and its message {held.id} could not be given back ({error}); its lease will lapse")
    return isinstance(failure, HandlerOutcome)


async def give_back(held: Sequence[Held[Any, Any]]) -> None:
    """Return what was fetched and not looked at, uncounted. If the store is away the leases lapse by themselves."""
    if held:
        try:
            await settle_many(held, Return)
        except MailboxError:
            pass


async def acknowledge_many(held: Sequence[Held[Any, Any]]) -> list[SettleResult]:
    return await settle_many(held, Ack)


async def nack_many(held: Sequence[Held[Any, Any]], visibility_timeout: Seconds) -> list[SettleResult]:
    delay = limits.seconds(visibility_timeout, "visibility_timeout", 0, limits.MAX_LEASE)
    return await settle_many(held, lambda handle: Release(handle, delay))


async def settle_many(held: Sequence[Held[Any, Any]], decide: Callable[[str], Verdict]) -> list[SettleResult]:
    """Settle messages of any mailboxes in as few calls as possible; a result each, aligned."""
    for message in held:  # all before any is marked: a refused call has settled nothing
        if not isinstance(message, Held):
            raise InvalidParameterError(f"a message is settled, not a {type(message).__name__}")
    results: list[SettleResult | None] = [None] * len(held)
    groups: dict[tuple[int, str], list[int]] = {}
    box: Box[Any, Any] | None = None
    places: list[int] = []
    for place, message in enumerate(held):
        if message._final:
            error = MessageFinalizedError(f"{message._box.name}: message {message.id} was settled before")
            results[place] = SettleResult(error)
            continue
        message._final = True  # at once: the same message twice in one batch is settled once
        if message._box is not box:
            box = message._box
            places = groups.setdefault((id(box.link), box.name), [])
        places.append(place)
    for (_, queue), places in groups.items():
        link: Link = held[places[0]]._box.link
        try:
            outcomes = await link.settle(queue, [decide(held[place]._delivery.handle) for place in places])
        except BaseException as error:
            for place in places:
                held[place]._final, held[place]._unsure = False, True
            if not isinstance(error, MailboxError):
                raise
            for place in places:
                results[place] = SettleResult(error)
            continue
        for place, outcome in zip(places, outcomes, strict=True):
            if type(outcome) is Settled:
                results[place] = _OK
                continue
            try:
                judge(held[place], outcome)
                results[place] = _OK
            except MailboxError as error:
                results[place] = SettleResult(error)
    return results  # type: ignore[return-value]  # every place was filled above


_OK = SettleResult()
