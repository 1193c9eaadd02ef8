"""Receiving: claim, decode, and make sure that nothing claimed is lost on the way to the caller.

The claim id is chosen before the claim, so that a receive that was cancelled, interrupted or left without an answer can
be abandoned by that id: what it took goes back at once, uncounted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from postroom.core import limits
from postroom.core.limits import Seconds
from postroom.core.message import Bury, Claimed, Delivery, Refused, Return, SessionClaim, Verdict
from postroom.drivers.io import Bell
from postroom.errors import (
    InvalidMessageError,
    InvalidParameterError,
    MailboxConnectionError,
    MailboxError,
    OperationTimeoutError,
    UnsupportedError,
)
from postroom.flows.events import Undecodable
from postroom.flows.ids import new_token
from postroom.flows.link import Box, Link, open_box

T = TypeVar("T")
R = TypeVar("R")

ABANDON_LIMIT = 1.0  # seconds; after that the lease lapses by itself
UNREADABLE_PAUSE = 60.0  # seconds an undecodable message with no dead letters to go to is put away


async def receive(
    box: Box[T, R],
    n: int,
    lease: float | None,
    wait: float,
    session: SessionClaim | None = None,
    max_deliveries: int | None = None,
) -> list[tuple[Delivery, T]]:
    """Take up to `n` messages, waiting up to `wait` seconds for the first one; [] when there was none."""
    if box.closing.rung:
        return []
    if not box.ready:
        try:
            await open_box(box)
        except MailboxConnectionError:
            if box.closing.rung:
                return []  # closed while we were on our way
            raise
    deadline = box.driver.now() + wait if wait > 0 else 0.0
    while True:
        claimed = await claim(box.link, box.name, n, lease, wait, session, max_deliveries, box.closing)
        deliveries = claimed.deliveries
        if deliveries:
            taken, bad = decode(box, deliveries)
            if bad:
                kept = await put_away(box.link, box.name, bad, [delivery for delivery, _ in taken])
                taken = [(delivery, body) for delivery, body in taken if delivery in kept]
            if taken:
                return taken
        elif box.link.max_poll is None:
            return []
        # What came was undecodable, or the store's own poll is shorter than ours: go on with what is left.
        wait = deadline - box.driver.now() if deadline else 0.0
        if wait <= 0 or box.closing.rung:
            return []


async def claim(
    link: Link,
    queue: str,
    n: int,
    lease: float | None,
    wait: float,
    session: SessionClaim | None,
    max_deliveries: int | None,
    stop: Bell,
    settle: Sequence[Verdict] = (),
) -> Claimed:
    """One claim, abandoned if it does not come back to us. `settle` rides along."""
    claim_id = new_token()
    try:
        longest = link.max_poll
        return await link.driver.claim(
            queue,
            n,
            lease=lease,
            wait=wait if longest is None else min(wait, longest),
            claim_id=claim_id,
            session=session,
            max_deliveries=max_deliveries,
            settle=settle,
            stop=stop,
        )
    except BaseException as error:
        # Where the store says that it did not do it there is nothing to abandon; without an answer there may be.
        if not isinstance(error, MailboxError) or isinstance(error, (MailboxConnectionError, OperationTimeoutError)):
            await _abandon(link, queue, claim_id)
        raise


async def _abandon(link: Link, queue: str, claim_id: str) -> None:
    try:
        await link.driver.io.shield(link.driver.abandon(queue, claim_id), ABANDON_LIMIT)
    except MailboxError:
        pass  # the store is away: the lease lapses by itself, and the caller has an error already


def decode(
    box: Box[T, R], deliveries: Sequence[Delivery]
) -> tuple[list[tuple[Delivery, T]], list[tuple[Delivery, str]]]:
    """(delivery, body) of those that decode, and (delivery, why not) of the others, which never hide them."""
    decode = box.codec.decode
    taken: list[tuple[Delivery, T]] = []
    bad: list[tuple[Delivery, str]] = []
    for delivery in deliveries:
        envelope = delivery.envelope
        try:
            if envelope.fault is not None:
                raise InvalidMessageError(envelope.fault)
            taken.append((delivery, decode(envelope.body, envelope.content_type)))
        except InvalidMessageError as error:
            if box.dead:
                # Who reads dead letters wants to see just these: as raw bytes.
                taken.append((delivery, envelope.body))  # type: ignore[arg-type]  # documented: bytes where undecodable
            else:
                bad.append((delivery, str(error)))
    return taken, bad


async def put_away(
    link: Link, queue: str, bad: Sequence[tuple[Delivery, str]], good: Sequence[Delivery]
) -> Sequence[Delivery]:
    """Undecodable messages go to the dead letters; where there are none they are given back, for a while. Which of the
    good ones are still ours: never stranded, whatever happens here."""
    try:
        verdicts: list[Verdict] = [Bury(delivery.handle, "undecodable", why) for delivery, why in bad]
        outcomes = await link.settle(queue, verdicts)
        kept = [delivery for (delivery, _), outcome in zip(bad, outcomes, strict=True) if isinstance(outcome, Refused)]
        if kept:
            await link.settle(queue, [Return(delivery.handle, UNREADABLE_PAUSE) for delivery in kept])
    except BaseException as error:
        if isinstance(error, MailboxError) and good:
            return good  # the store would not do it now: the bad ones lapse, and whoever gets them next tries again
        await _give_back(link, queue, [*good, *(delivery for delivery, _ in bad)])
        raise
    for (delivery, why), outcome in zip(bad, outcomes, strict=True):
        link.emit(Undecodable(queue, delivery.envelope.id, why, not isinstance(outcome, Refused)))
    # In a session the store took the later ones of the claim back together with the bad one, as with any failure.
    first: dict[str, int] = {}
    for delivery, _ in bad:
        if (session := delivery.envelope.session_id) is not None:
            first[session] = min(delivery.seq, first.get(session, delivery.seq))
    if not first:
        return good
    return [d for d in good if d.envelope.session_id is None or d.seq < first.get(d.envelope.session_id, d.seq + 1)]


async def _give_back(link: Link, queue: str, deliveries: Sequence[Delivery]) -> None:
    try:
        verdicts = [Return(delivery.handle) for delivery in deliveries]
        await link.driver.io.shield(link.driver.settle(queue, verdicts), ABANDON_LIMIT)
    except MailboxError:
        pass  # the store is away: the leases lapse by themselves


async def peek(box: Box[T, R], n: int, after: int) -> list[Delivery]:
    """Look at up to `n` messages, in order of their sequence numbers, without taking them."""
    check_peek(box.link, n, after)
    if not box.ready:
        await open_box(box)
    return await box.driver.peek(box.name, n, after=after)


def check_peek(link: Link, n: int, after: int) -> None:
    limits.whole(n, "max_messages", 1, limits.MAX_BATCH)
    limits.whole(after, "after", 0, 1 << 62)
    store = link.driver.capabilities
    if not store.can("peek"):
        raise UnsupportedError(f"{store.store} cannot show messages without taking them; receive them instead")


def body_of(box: Box[T, R], delivery: Delivery) -> T:
    """The body of a message that is only looked at: its bytes where it cannot be decoded."""
    envelope = delivery.envelope
    try:
        if envelope.fault is not None:
            raise InvalidMessageError(envelope.fault)
        return box.codec.decode(envelope.body, envelope.content_type)
    except InvalidMessageError:
        return envelope.body  # type: ignore[return-value]  # documented: bytes where undecodable


def check(
    box: Box[T, R], max_messages: int, visibility_timeout: Seconds | None, wait_time_seconds: Seconds
) -> tuple[float | None, float]:
    """(lease, wait) of a receive's arguments; None as the lease is the queue's own."""
    if type(max_messages) is not int or not 1 <= max_messages <= limits.MAX_BATCH:
        limits.whole(max_messages, "max_messages", 1, limits.MAX_BATCH)
    lease = None
    if visibility_timeout is not None:
        if not box.driver.capabilities.visibility_per_receive:
            raise UnsupportedError(
                f"{box.driver.capabilities.store} has one lock duration a queue; leave out visibility_timeout"
            )
        lease = limits.seconds(visibility_timeout, "visibility_timeout", 0, limits.MAX_LEASE)
    if wait_time_seconds == 0 and type(wait_time_seconds) is int:
        return lease, 0
    return lease, limits.seconds(wait_time_seconds, "wait_time_seconds", 0, limits.MAX_WAIT)


def named_session(session_id: str) -> SessionClaim:
    if not isinstance(session_id, str) or not session_id:
        raise InvalidParameterError(f"session_id must be a non-empty str, not {session_id!r:.80}")
    return SessionClaim(session_id)
