"""The provider-agnostic client's messages: bytes, properties and receipts instead of typed bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from postroom.core import limits
from postroom.core.address import check_queue, is_dead_letters
from postroom.core.codec import BINARY, bytes_of
from postroom.core.definition import MessageReceipt, QueueMessage, ReceiveOptions, SendOptions, aware
from postroom.core.limits import Seconds
from postroom.core.message import (
    Ack,
    Bury,
    Delivery,
    Envelope,
    Extend,
    Outcome,
    Refused,
    Release,
    SessionClaim,
    Settled,
    Verdict,
)
from postroom.errors import InvalidParameterError, MailboxError, MessageTooLargeError, UnsupportedError
from postroom.flows import receive as receiving
from postroom.flows.ids import new_id, new_token
from postroom.flows.link import Link, closed_client
from postroom.flows.send import Options, SendResult, judged, put_all, result_of
from postroom.flows.settle import SettleResult, lost

_PLAIN = SendOptions()
_GLANCE = 5.0  # seconds a session is locked only to learn which one is next


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message and the receipt that settles it. A peeked one has no lock: `lock_expires_at` is None."""

    message: QueueMessage
    receipt: MessageReceipt
    lock_expires_at: datetime | None
    sequence_number: int
    _link: Link

    @property
    def remaining_lock(self) -> float:
        """Seconds of the lock that are left; 0 when it is over or there is none."""
        if self.lock_expires_at is None:
            return 0.0
        return max(0.0, self.lock_expires_at.timestamp() - self._link.driver.now())

    @property
    def is_lock_expired(self) -> bool:
        return self.remaining_lock <= 0

    def __repr__(self) -> str:
        return f"<ReceivedMessage {self.message.message_id} of {self.receipt.queue_name}>"


def seal(link: Link, queue: str, message: QueueMessage, options: SendOptions | None) -> Envelope:
    """The envelope of a raw message; options beat its own fields."""
    if not isinstance(message, QueueMessage):
        raise InvalidParameterError(f"send takes a QueueMessage, not {type(message).__name__}")
    if options is not None and not isinstance(options, SendOptions):
        raise InvalidParameterError(f"options are SendOptions, not {type(options).__name__}")
    o = options or _PLAIN
    at = o.scheduled_enqueue_time
    if at is None and o.delay is None:
        at = aware(message.scheduled_enqueue_time, "scheduled_enqueue_time")
    delay: Seconds = o.delay if o.delay is not None else 0
    if at is not None:
        delay = max(0.0, at.timestamp() - link.driver.now())
    checked = Options(
        link,
        o.reply_to or message.reply_to,
        delay,
        _properties(o.properties, message.properties),
        o.correlation_id or message.correlation_id,
        o.session_id or message.session_id,
        o.dedup_id,
        o.ttl if o.ttl is not None else message.ttl,
        limits.DEFAULT_PRIORITY if o.priority is None else o.priority,
        o.content_type or message.content_type,
    )
    if len(message.body) > link.max_body:
        raise MessageTooLargeError(
            f"{queue}: the body takes {len(message.body)} bytes and the limit is {link.max_body}; raise max_body"
        )
    return Envelope(
        new_id() if message.message_id is None else limits.text(message.message_id, "message_id"),
        message.body,
        checked.content_type or BINARY,
        checked.attributes,
        checked.reply_to,
        checked.correlation_id,
        checked.session_id,
        checked.dedup_id,
        checked.ttl,
        checked.delay,
        checked.priority,
        len(message.body) + checked.size,
    )


def _properties(first: Mapping[str, str] | None, second: Mapping[str, str] | None) -> Mapping[str, str] | None:
    return first if first is not None else second or None


def _check_open(link: Link, queue: str) -> None:
    check_queue(queue)
    if link.closing.rung:
        raise closed_client(queue)


async def send(link: Link, queue: str, message: QueueMessage, options: SendOptions | None) -> str:
    _check_open(link, queue)
    [put] = await link.put(queue, (seal(link, queue, message, options),))
    return judged(link, queue, put)


async def send_batch(
    link: Link, queue: str, messages: Sequence[QueueMessage], options: SendOptions | None
) -> list[SendResult]:
    _check_open(link, queue)
    results: list[SendResult | None] = [None] * len(messages)
    envelopes: list[Envelope] = []
    places: list[int] = []
    for place, message in enumerate(messages):
        try:
            envelopes.append(seal(link, queue, message, options))
            places.append(place)
        except MailboxError as error:
            results[place] = SendResult(None, error)
    for place, put in zip(places, await put_all(link, queue, envelopes), strict=True):
        results[place] = result_of(link, queue, put)
    return results  # type: ignore[return-value]  # every place was filled above


async def receive(link: Link, queue: str, options: ReceiveOptions | None) -> list[ReceivedMessage]:
    check_queue(queue)
    o = options or ReceiveOptions()
    if not isinstance(o, ReceiveOptions):
        raise InvalidParameterError(f"options are ReceiveOptions, not {type(o).__name__}")
    if link.closing.rung:
        return []
    if o.peek:
        after = (
            0
            if o.from_sequence_number is None
            else limits.whole(o.from_sequence_number, "from_sequence_number", 0, 1 << 62) - 1
        )
        return await peek(link, queue, o.max_messages, max(after, 0))
    if o.lock_duration is not None and not link.driver.capabilities.can("visibility_per_receive"):
        raise UnsupportedError(
            f"{link.driver.capabilities.store} has one lock duration a queue; leave lock_duration out"
        )
    lease = None if o.lock_duration is None else limits.seconds(o.lock_duration, "lock_duration", 0, limits.MAX_LEASE)
    session = None if o.session_id is None else receiving.named_session(o.session_id)
    wait: float = limits.seconds(o.timeout, "timeout", 0, limits.MAX_WAIT)
    if o.accept_any_session:
        return await _from_any_session(link, queue, o.max_messages, lease, wait)
    claimed = await receiving.claim(link, queue, o.max_messages, lease, wait, session, None, link.closing)
    return await _readable(link, queue, claimed.deliveries)


async def _from_any_session(link: Link, queue: str, n: int, lease: float | None, wait: float) -> list[ReceivedMessage]:
    """Messages of the one session that is next in line. Their leases hold it, and nothing else: once they are settled
    it is free, which a lock of its own would prevent."""
    until = link.driver.now() + wait
    while True:
        left = max(0.0, until - link.driver.now())
        lock = await link.driver.lock(queue, None, lease=_GLANCE, wait=left, token=new_token(), stop=link.closing)
        if lock is None:
            return []
        await link.driver.unlock(queue, lock)
        session = SessionClaim(lock.id)
        claimed = await receiving.claim(link, queue, n, lease, 0, session, None, link.closing)
        if claimed.deliveries:
            return await _readable(link, queue, claimed.deliveries)
        if left <= 0:
            return []  # another was quicker


async def _readable(link: Link, queue: str, deliveries: Sequence[Delivery]) -> list[ReceivedMessage]:
    """Without those whose stored form is damaged: they go where undecodable ones go."""
    bad = [(delivery, delivery.envelope.fault) for delivery in deliveries if delivery.envelope.fault is not None]
    if bad and not is_dead_letters(queue):
        good = [delivery for delivery in deliveries if delivery.envelope.fault is None]
        deliveries = await receiving.put_away(link, queue, bad, good)
    return [received(link, queue, delivery) for delivery in deliveries]


async def peek(link: Link, queue: str, n: int, after: int) -> list[ReceivedMessage]:
    check_queue(queue)
    receiving.check_peek(link, n, after)
    return [received(link, queue, delivery) for delivery in await link.driver.peek(queue, n, after=after)]


def received(link: Link, queue: str, delivery: Delivery) -> ReceivedMessage:
    e = delivery.envelope
    body, content_type = bytes_of(e.body, e.content_type)
    return ReceivedMessage(
        message=QueueMessage(
            body=body,
            message_id=e.id,
            session_id=e.session_id,
            correlation_id=e.correlation_id,
            content_type=content_type,
            properties=e.attributes or {},
            ttl=e.ttl,
            reply_to=e.reply_to,
        ),
        receipt=MessageReceipt(
            receipt_id=delivery.handle,
            message_id=e.id,
            queue_name=queue,
            delivery_count=delivery.attempt,
            enqueued_at=datetime.fromtimestamp(delivery.enqueued_at, UTC),
            received_at=datetime.fromtimestamp(delivery.received_at, UTC),
            session_id=e.session_id,
        ),
        lock_expires_at=datetime.fromtimestamp(delivery.lease_until, UTC) if delivery.handle else None,
        sequence_number=delivery.seq,
        _link=link,
    )


async def settle(link: Link, receipt: MessageReceipt, verdict: Verdict) -> Outcome:
    [outcome] = await link.settle(receipt.queue_name, (verdict,))
    if isinstance(outcome, Refused):
        raise outcome.error
    if not isinstance(outcome, Settled):
        lost(receipt.queue_name, receipt.message_id, outcome)
    return outcome


async def settle_batch(
    link: Link, receipts: Sequence[MessageReceipt], verdicts: Sequence[Verdict]
) -> list[SettleResult]:
    """A result each, aligned; one call a queue."""
    results: list[SettleResult] = [SettleResult()] * len(receipts)
    queues: dict[str, list[int]] = {}
    for place, receipt in enumerate(receipts):
        queues.setdefault(receipt.queue_name, []).append(place)
    for queue, places in queues.items():
        try:
            outcomes: list[Any] = list(await link.settle(queue, [verdicts[place] for place in places]))
        except MailboxError as error:
            outcomes = [Refused(error)] * len(places)
        for place, outcome in zip(places, outcomes, strict=True):
            try:
                if isinstance(outcome, Refused):
                    raise outcome.error
                if not isinstance(outcome, Settled):
                    lost(queue, receipts[place].message_id, outcome)
            except MailboxError as error:
                results[place] = SettleResult(error)
    return results


def check_receipt(link: Link, receipt: MessageReceipt) -> MessageReceipt:
    if not isinstance(receipt, MessageReceipt):
        raise InvalidParameterError(f"a message is settled by its MessageReceipt, not by a {type(receipt).__name__}")
    if not receipt.receipt_id:
        raise InvalidParameterError(f"{receipt.queue_name}: a peeked message has no lock, so nothing settles it")
    if link.closing.rung:
        raise closed_client(receipt.queue_name)
    return receipt


def acknowledged(link: Link, receipt: MessageReceipt) -> Verdict:
    return Ack(check_receipt(link, receipt).receipt_id)


def rejected(link: Link, receipt: MessageReceipt, reason: str, description: str) -> Verdict:
    return Bury(check_receipt(link, receipt).receipt_id, limits.text(reason, "reason"), description)


def requeued(link: Link, receipt: MessageReceipt, delay: Seconds) -> Verdict:
    return Release(check_receipt(link, receipt).receipt_id, limits.seconds(delay, "delay", 0, limits.MAX_LEASE))


def extended(link: Link, receipt: MessageReceipt, duration: Seconds) -> Verdict:
    return Extend(check_receipt(link, receipt).receipt_id, limits.seconds(duration, "duration", 0, limits.MAX_LEASE))


def lease_of(outcome: Outcome) -> datetime | None:
    until = outcome.lease_until if isinstance(outcome, Settled) else None
    return None if until is None else datetime.fromtimestamp(until, UTC)
