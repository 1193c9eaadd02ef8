"""Replying. `reply_to` comes from outside and is not trusted: it chooses among mailboxes, it never makes one.

Without a resolver of your own, a reply goes to a mailbox that was opened on the same client, or to an existing queue
whose name begins with `reply-`. The reply's id is made from the request's, and is its dedup id: a request that is
handled twice is answered once.
"""

from __future__ import annotations

from typing import Any, TypeVar

from postroom.core.codec import Reference, codec_for
from postroom.core.limits import MAX_TEXT
from postroom.core.message import Envelope, Put
from postroom.errors import (
    MailboxResolutionError,
    MessageFinalizedError,
    MessageTooLargeError,
    QueueNotFoundError,
    ReplyNotAvailableError,
)
from postroom.flows.events import ReplyDropped
from postroom.flows.held import Held
from postroom.flows.link import Box, Link
from postroom.flows.send import judged

T = TypeVar("T")
R = TypeVar("R")

REPLY_PREFIX = "reply-"


async def reply(held: Held[T, R], body: R) -> str:
    """Send an answer to whoever asked; the id of the reply."""
    if held._final:
        raise MessageFinalizedError(f"{held._box.name}: message {held.id} is settled; reply before you acknowledge")
    link, name = target_of(held)
    held._replies += 1
    number = held._replies
    try:
        envelope = answer(held, link, body, str(number))
        try:
            [put] = await _put(link, name, envelope)
        except QueueNotFoundError:
            # Whoever asked is gone. That is no reason to fail the request: it was handled.
            held._box.link.emit(ReplyDropped(name, envelope.id))
            return envelope.id
        return judged(link, name, put)
    except BaseException:
        # It may have arrived, its answer lost. Repeated under the same number it is known to be the same reply.
        if held._replies == number:
            held._replies -= 1
        raise


async def _put(link: Link, name: str, envelope: Envelope) -> list[Put]:
    try:
        return await link.put(name, (envelope,))
    except QueueNotFoundError:
        if link.box_of(name) is None:
            raise
    await link.driver.ensure(name)  # a mailbox of ours that was opened and not used so far
    return await link.put(name, (envelope,))


def target_of(held: Held[Any, Any]) -> tuple[Link, str]:
    """Where a reply goes."""
    envelope = held._delivery.envelope
    box = getattr(envelope.reply_ref, "_box", None)
    if isinstance(box, Box):
        return box.link, box.name
    name = envelope.reply_to
    if name is None:
        raise ReplyNotAvailableError(
            f"{held._box.name}: message {held.id} has no reply_to: its sender did not ask for an answer"
        )
    link = held._box.link
    if name not in link.opened and not name.startswith(REPLY_PREFIX):
        raise MailboxResolutionError(
            f"{held._box.name}: message {held.id} wants its reply in {name!r}, which this client has not opened; "
            f"open that mailbox first, or use names that begin with {REPLY_PREFIX!r}"
        )
    return link, name


def answer(held: Held[T, R], link: Link, body: R, suffix: str) -> Envelope:
    """The envelope of a reply to this message."""
    request = held._delivery.envelope
    by_reference = link.driver.capabilities.by_reference
    codec = Reference(held._box.reply_type) if by_reference else codec_for(held._box.reply_type)
    data, kind = codec.encode(body)
    size = 0 if by_reference else len(data)
    if size > link.max_body:
        raise MessageTooLargeError(f"{held._box.name}: the reply takes {size} bytes and the limit is {link.max_body}")
    id = f"{request.id}/{suffix}"
    return Envelope(
        id,
        data,
        kind,
        correlation_id=request.correlation_id or request.id,
        dedup_id=id[-MAX_TEXT:],
        size=size,
    )
