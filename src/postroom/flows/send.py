"""Sending: seal bodies into envelopes, put them, say what became of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from postroom.core import limits
from postroom.core.address import check_name
from postroom.core.limits import DEFAULT_PRIORITY, Seconds
from postroom.core.message import Accepted, Dropped, Duplicate, Envelope, Put, Refused
from postroom.errors import (
    InvalidParameterError,
    MailboxError,
    MessageTooLargeError,
    SerializationError,
    UnsupportedError,
)
from postroom.flows.events import Overflowed
from postroom.flows.ids import new_id
from postroom.flows.link import Box, Link, open_box, why_closed

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 1_000


class SendResult(msgspec.Struct, frozen=True):
    """What became of one message of a batch: its id, or the error that kept it out."""

    id: str | None
    error: MailboxError | None = None
    duplicate: bool = False  # not stored again: `id` is the first one's

    @property
    def ok(self) -> bool:
        return self.error is None


class Options:
    """Checked send options, ready to be put on many bodies."""

    __slots__ = (
        "attributes", "content_type", "correlation_id", "dedup_id", "delay", "plain", "priority", "reply_box",
        "reply_ref", "reply_to", "session_id", "size", "ttl",
    )  # fmt: skip

    def __init__(
        self,
        link: Link,
        reply_to: object = None,
        delay_seconds: Seconds = 0,
        attributes: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        session_id: str | None = None,
        dedup_id: str | None = None,
        ttl: Seconds | None = None,
        priority: int = DEFAULT_PRIORITY,
        content_type: str | None = None,
    ) -> None:
        store = link.driver.capabilities
        longest = store.max_delay if store.max_delay is not None else limits.MAX_DELAY
        self.delay = limits.seconds(delay_seconds, "delay_seconds", 0, longest)
        self.reply_to: str | None = None
        self.reply_ref: object = None
        self.reply_box: Box[Any, Any] | None = None
        if reply_to is not None:
            self.reply_to, self.reply_ref, self.reply_box = _reply_target(link, reply_to)
        self.attributes = None if not attributes else limits.attributes(attributes)
        self.correlation_id = None if correlation_id is None else limits.text(correlation_id, "correlation_id")
        self.session_id = None if session_id is None else limits.text(session_id, "session_id")
        self.dedup_id = None if dedup_id is None else limits.text(dedup_id, "dedup_id")
        self.ttl = None if ttl is None else limits.seconds(ttl, "ttl", 0.001)
        self.priority = limits.whole(priority, "priority", 0, limits.MAX_PRIORITY)
        self.content_type = None if content_type is None else limits.text(content_type, "content_type")
        if attributes is not None and not isinstance(attributes, Mapping):
            limits.attributes(attributes)  # an empty list is no mapping either
        for what, ability, given in (
            ("session_id", "sessions", session_id is not None),
            ("dedup_id", "dedup", dedup_id is not None),
            ("priority", "priority", priority != DEFAULT_PRIORITY),
            ("ttl", "ttl", ttl is not None),
            ("delay_seconds", "schedule", self.delay > 0),
        ):
            if given and not store.can(ability):
                raise UnsupportedError(f"{store.store} cannot do {what}; leave it out")
        kept = self.attributes
        self.size = sum(len(k.encode()) + len(v.encode()) for k, v in kept.items()) if kept else 0
        self.plain = (
            reply_to is None
            and not attributes
            and correlation_id is None
            and session_id is None
            and dedup_id is None
            and ttl is None
            and self.delay == 0
            and priority == DEFAULT_PRIORITY
        )


def _reply_target(link: Link, reply_to: object) -> tuple[str, object, Box[Any, Any] | None]:
    """A mailbox or a name. Only a store in the same process can carry the mailbox itself."""
    if isinstance(reply_to, str):
        return check_name(reply_to, "reply_to"), None, link.box_of(reply_to)
    box = getattr(reply_to, "_box", None)
    if not isinstance(box, Box):
        raise InvalidParameterError(f"reply_to must be a mailbox or a name, not {type(reply_to).__name__}")
    if link.driver.capabilities.by_reference:
        return box.name, reply_to, box
    if box.driver.place != link.driver.place:
        # Only its name would travel, and mean another queue there, perhaps another tenant's.
        raise InvalidParameterError(
            f"reply_to is a mailbox of another store or namespace, which whoever answers in this one "
            f"({link.driver.capabilities.store}) cannot reach; reply through a mailbox of the same store and namespace"
        )
    return box.name, None, box


async def open_boxes(box: Box[T, R], options: Options | None) -> None:
    """Make sure that the queue is there, and the one for replies: they may come before anybody looks for them."""
    if not box.ready:
        await open_box(box)
    if options is not None and options.reply_box is not None and not options.reply_box.ready:
        await open_box(options.reply_box)


def seal(box: Box[T, R], body: T, options: Options | None, id: str | None) -> Envelope:
    """The envelope of a body, or the error that keeps it from being sent."""
    data, kind = box.codec.encode(body, None if options is None else options.content_type)
    # On a by-reference store `data` is the object itself and has no size to speak of.
    size = 0 if box.by_reference else len(data)
    if size > box.link.max_body:
        raise MessageTooLargeError(
            f"{box.name}: the body takes {size} bytes and the limit is {box.link.max_body}; raise max_body when "
            "connecting, or send a reference to where the data is"
        )
    if options is None or options.plain:
        return Envelope(new_id() if id is None else limits.text(id, "id"), data, kind, size=size)
    o = options
    return Envelope(
        new_id() if id is None else limits.text(id, "id"),
        data,
        kind,
        o.attributes,
        o.reply_to,
        o.correlation_id,
        o.session_id,
        o.dedup_id,
        o.ttl,
        o.delay,
        o.priority,
        size + o.size,
        o.reply_ref,
    )


def chosen(
    link: Link,
    reply_to: object,
    delay_seconds: Seconds,
    attributes: Mapping[str, str] | None,
    correlation_id: str | None,
    session_id: str | None,
    dedup_id: str | None,
    ttl: Seconds | None,
    priority: int,
    content_type: str | None,
) -> Options | None:
    """The options of a send, checked; None in the common case, in which there is nothing to check."""
    if (
        reply_to is None
        and delay_seconds is _ZERO
        and attributes is None
        and correlation_id is None
        and session_id is None
        and dedup_id is None
        and ttl is None
        and priority is _TEN
        and content_type is None
    ):
        return None
    return Options(
        link, reply_to, delay_seconds, attributes, correlation_id, session_id, dedup_id, ttl, priority, content_type
    )


async def send(box: Box[T, R], body: T, options: Options | None, id: str | None) -> str:
    """Store one message and return its id; of a duplicate, the first one's."""
    envelope = seal(box, body, options, id)
    if box.closing.rung:
        raise why_closed(box)
    if not box.ready or options is not None:
        await open_boxes(box, options)
    [put] = await box.link.put(box.name, (envelope,))
    if type(put) is Accepted and not put.displaced:
        return put.id
    return judged(box.link, box.name, put)


_ZERO, _TEN = 0, DEFAULT_PRIORITY  # small ints are one object each, so `is` tells "left out" faster than `==`


def judged(link: Link, queue: str, put: Put) -> str:
    """The id of a message that was put, or the error that kept it out."""
    if isinstance(put, Refused):
        raise put.error
    if isinstance(put, Dropped):
        link.emit(Overflowed(queue, 1))
    elif isinstance(put, Accepted) and put.displaced:
        link.emit(Overflowed(queue, put.displaced))
    return put.id


def result_of(link: Link, queue: str, put: Put) -> SendResult:
    try:
        return SendResult(judged(link, queue, put), None, isinstance(put, Duplicate))
    except MailboxError as error:
        return SendResult(None, error)


async def send_many(box: Box[T, R], bodies: Iterable[T], options: Options | None, id: str | None) -> list[SendResult]:
    """Store many messages; a result each, aligned. One body that does not fit never holds up the others."""
    bodies = list(bodies)
    if len(bodies) > 1 and (id is not None or (options is not None and options.dedup_id is not None)):
        raise InvalidParameterError("one id or dedup_id cannot serve several messages; send them one by one")
    if id is not None:
        limits.text(id, "id")
    if box.closing.rung:
        raise why_closed(box)
    await open_boxes(box, options)
    envelopes: list[Envelope] = []
    misfits: list[tuple[int, SendResult]] = []
    for place, body in enumerate(bodies):
        try:
            envelopes.append(seal(box, body, options, id))
        except (SerializationError, MessageTooLargeError) as error:
            misfits.append((place, SendResult(None, error)))
    puts = await put_all(box.link, box.name, envelopes)
    results = [
        # The plain case without a call: ten thousand of them count.
        SendResult(put.id) if type(put) is Accepted and not put.displaced else result_of(box.link, box.name, put)
        for put in puts
    ]
    for place, misfit in misfits:  # from the first to the last, so that each comes to its place
        results.insert(place, misfit)
    return results


async def put_all(link: Link, queue: str, envelopes: Sequence[Envelope]) -> list[Put]:
    """Put any number of messages in batches the store can take. When the store fails half-way, what was stored before
    is reported as stored and the rest as failed."""
    puts: list[Put] = []
    for start in range(0, len(envelopes), CHUNK):
        try:
            puts += await link.put(queue, envelopes[start : start + CHUNK])
        except MailboxError as error:
            if not puts:
                raise
            puts += [Refused(error)] * (len(envelopes) - start)
            break
    return puts
