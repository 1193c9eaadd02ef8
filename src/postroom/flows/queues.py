"""Queues as their owners see them: made, described, purged, deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from postroom.core.address import check_name, check_queue
from postroom.core.capabilities import Finding
from postroom.core.definition import QueueDefinition, QueueInfo, QueueStatus, Rules
from postroom.core.message import Stats
from postroom.errors import ConfigurationError, InvalidParameterError
from postroom.flows.link import Box, Link, open_box


async def create(link: Link, definition: QueueDefinition) -> QueueInfo:
    """Make the queue, or let an existing one take these rules over."""
    if not isinstance(definition, QueueDefinition):
        raise InvalidParameterError(f"create_queue takes a QueueDefinition, not {type(definition).__name__}")
    rules = definition.rules(link.driver.capabilities)
    if rules.dead_letter_queue is not None:
        await link.driver.ensure(rules.dead_letter_queue)  # without it nothing could die, and be seen only then
    await link.driver.ensure(definition.name, rules)
    return await describe(link, definition.name)


async def delete(link: Link, name: str, force: bool) -> int:
    """Delete a queue; refused while messages are there, unless forced. The number of messages that went with it."""
    check_name(name)
    gone = await link.driver.drop(name, only_empty=not force)
    if gone is None:
        raise ConfigurationError(
            f"{name}: there are messages in the queue or its dead letters; receive or purge them, or pass force=True"
        )
    return gone


async def describe(link: Link, name: str) -> QueueInfo:
    stats, rules, status = await link.driver.info(check_queue(name))
    return info_of(name, stats, rules, status)


def info_of(name: str, stats: Stats, rules: Rules, status: QueueStatus) -> QueueInfo:
    return QueueInfo(
        name=name,
        total=stats.ready + stats.scheduled + stats.in_flight + stats.dead,
        ready=stats.ready,
        scheduled=stats.scheduled,
        in_flight=stats.in_flight,
        dead=stats.dead,
        size_bytes=stats.bytes,
        oldest_age=stats.oldest_age,
        dropped=stats.dropped,
        expired=stats.expired,
        exact=stats.exact,
        created_at=datetime.fromtimestamp(stats.created_at, UTC),
        updated_at=datetime.fromtimestamp(stats.updated_at, UTC),
        status=status,
        definition=QueueDefinition.of(name.removesuffix("!dead"), rules),
    )


async def set_status(link: Link, name: str, status: QueueStatus | str) -> None:
    try:
        wanted = QueueStatus(status)
    except ValueError as error:
        raise InvalidParameterError(f"status must be one of {', '.join(QueueStatus)}, not {status!r:.80}") from error
    if wanted in (QueueStatus.CREATING, QueueStatus.DELETING, QueueStatus.UNKNOWN):
        raise InvalidParameterError(f"a queue can be told to be active or disabled; {wanted} is for it to say")
    await link.driver.set_status(check_name(name), wanted)


async def box_info(box: Box[Any, Any]) -> QueueInfo:
    if not box.ready:
        await open_box(box)
    return await describe(box.link, box.name)


async def approximate_count(box: Box[Any, Any]) -> int:
    """Ready, scheduled and in flight."""
    if not box.ready:
        await open_box(box)
    stats, _, _ = await box.driver.info(box.name)
    return stats.ready + stats.scheduled + stats.in_flight


async def purge_queue(link: Link, name: str) -> int:
    return await link.driver.purge(check_queue(name))


async def purge(box: Box[Any, Any]) -> int:
    if not box.ready:
        await open_box(box)
    return await box.driver.purge(box.name)


async def examine(link: Link) -> list[Finding]:
    """What the store's owner should know; a driver that has nothing to say has no such verb."""
    look: Callable[[], Awaitable[list[Finding]]] | None = getattr(link.driver, "examine", None)
    return [] if look is None else await look()
