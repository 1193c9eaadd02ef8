"""What flows hold on to: a Link per client, a Box per mailbox.

A Link is one driver and what all its mailboxes share. A Box is one queue seen through one body type. Both are plain
holders; what happens with them is in the other flows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic
from weakref import WeakSet

from typing_extensions import TypeVar

from postroom.core.address import check_queue, dead_letters_of, is_dead_letters, origin_of
from postroom.core.codec import Codec, Reference, codec_for
from postroom.core.definition import Rules
from postroom.core.limits import DEFAULT_MAX_BODY
from postroom.core.message import Envelope, Outcome, Put, Verdict
from postroom.core.policy import Backoff
from postroom.drivers.api import Driver
from postroom.drivers.io import Bell
from postroom.errors import MailboxConnectionError
from postroom.flows.coalesce import Gatherer
from postroom.flows.events import Emit

T = TypeVar("T", default=Any)
R = TypeVar("R", default=Any)


def _nobody(event: object) -> None:
    return None


class Link:
    """One client's way to its store."""

    def __init__(
        self, driver: Driver, *, max_body: int | None = None, emit: Emit = _nobody, backoff: Backoff | None = None
    ) -> None:
        self.driver = driver
        limits = [limit for limit in (max_body or DEFAULT_MAX_BODY, driver.capabilities.max_body) if limit is not None]
        self.max_body = min(limits)
        self.max_poll = driver.capabilities.max_poll
        self.emit = emit
        self.backoff = backoff or Backoff()
        # Only who says how often gets that: by default the queue's own limit decides, and a plain queue has none.
        self.gives_up_after = None if backoff is None else backoff.max_attempts
        self.opened: set[str] = set()  # names a mailbox of this client was opened for: where replies may go
        self.boxes: WeakSet[Box[Any, Any]] = WeakSet()
        self.closing = Bell()
        self._puts: dict[str, Gatherer[Envelope, Put]] = {}
        self._settles: dict[str, Gatherer[Verdict, Outcome]] = {}
        # Where sharing a call gains nothing the driver is called directly: a coroutine less on the hot path.
        grouped = driver.capabilities.groups_commits
        self.put: Callable[[str, Sequence[Envelope]], Awaitable[list[Put]]]
        self.settle: Callable[[str, Sequence[Verdict]], Awaitable[list[Outcome]]]
        self.put, self.settle = (self._put, self._settle) if grouped else (driver.put, driver.settle)

    def _put(self, queue: str, batch: Sequence[Envelope]) -> Awaitable[list[Put]]:
        """Store a batch, together with what other callers of this client are storing at this moment."""
        gatherer = self._puts.get(queue)
        if gatherer is None:
            gatherer = self._puts.setdefault(queue, Gatherer(self.driver.io, partial(self.driver.put, queue)))
        return gatherer.run(batch)

    def _settle(self, queue: str, batch: Sequence[Verdict]) -> Awaitable[list[Outcome]]:
        """Carry out verdicts, together with those of other callers."""
        gatherer = self._settles.get(queue)
        if gatherer is None:
            gatherer = self._settles.setdefault(queue, Gatherer(self.driver.io, partial(self.driver.settle, queue)))
        return gatherer.run(batch)

    def box_of(self, name: str) -> Box[Any, Any] | None:
        """An open mailbox of this client with that name, if there is one."""
        if name not in self.opened:
            return None
        return next((box for box in list(self.boxes) if box.name == name and not box.closing.rung), None)

    async def close(self) -> None:
        """Nobody waits here any more, nothing is sent from here any more, and the store is let go of."""
        self.closing.ring_for_good()
        for box in list(self.boxes):
            box.closing.ring_for_good()
        await self.driver.close()


class Box(Generic[T, R]):
    """One queue, seen through a body type and a reply type."""

    def __init__(
        self,
        link: Link,
        name: str,
        body_type: type[T] | object,
        reply_type: type[R] | object = None,
        *,
        rules: Rules | None = None,
    ) -> None:
        self.link = link
        self.driver = link.driver
        self.name = check_queue(name)
        self.dead = is_dead_letters(name)
        self.rules = rules  # those the queue gets when it is opened; None: a new one is plain, another stays as it is
        self.body_type = body_type
        self.reply_type = reply_type
        self.by_reference = link.driver.capabilities.by_reference
        self.codec: Codec[T] = Reference(body_type) if self.by_reference else codec_for(body_type)
        self.closing = Bell()  # rung when this mailbox is closed, or its client
        self.ready = False  # the queue is known to exist
        self._dead_letters: Box[T, R] | None = None
        link.opened.add(self.name)
        link.boxes.add(self)
        if link.closing.rung:
            raise closed_client(self.name)

    def dead_letters(self) -> Box[T, R]:
        """The box of the dead letters; which queue that is, is found out when it is first used."""
        if self._dead_letters is None or self._dead_letters.closing.rung:
            self._dead_letters = Box(self.link, dead_letters_of(self.name), self.body_type, self.reply_type)
        return self._dead_letters


async def open_box(box: Box[T, R]) -> None:
    """Make sure the queue is there; a new one is plain. Dead letters may live in a queue of another name."""
    if box.closing.rung:
        raise why_closed(box)
    if not box.dead:
        await box.driver.ensure(box.name, box.rules)
    else:
        origin = origin_of(box.name)
        await box.driver.ensure(origin)
        _, rules, _ = await box.driver.info(origin)
        if rules.dead_letter_queue is not None:
            box.name = rules.dead_letter_queue
            await box.driver.ensure(box.name)
    box.ready = True


def closed_client(name: str) -> MailboxConnectionError:
    return MailboxConnectionError(f"{name}: this client is closed; connect() again", transient=False)


def why_closed(box: Box[Any, Any]) -> MailboxConnectionError:
    if box.link.closing.rung:
        return closed_client(box.name)
    return MailboxConnectionError(
        f"{box.name}: this mailbox is closed; open it again with client.mailbox()", transient=False
    )
