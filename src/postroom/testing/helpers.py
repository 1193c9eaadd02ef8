"""What tests say about mailboxes: drained, sent, acknowledged."""

from __future__ import annotations

from typing import Any, Protocol

from postroom.flows.link import Box
from postroom.flows.receive import body_of
from postroom.testing.mailboxes import recorder_of


class Runs(Protocol):
    """A worker, or anything that does one round of work and says what it did."""

    def run_once(self) -> Any: ...


def drain(worker: Runs, *, limit: int = 10_000) -> int:
    """Let a worker run until a round finds nothing to do; how many rounds did something.

    A round has done nothing when `run_once()` returns something false: 0, an empty list, None.
    """
    for rounds in range(limit):
        if not worker.run_once():
            return rounds
    raise AssertionError(
        f"{worker!r} still had something to do after {limit} rounds: does a message come back for ever?"
    )


def assert_sent(mailbox: object, *bodies: object, times: int | None = None) -> None:
    """These bodies were sent to this mailbox, in this order, among others or not; or `times` messages in all."""
    _check("sent", _bodies(mailbox, "sent"), bodies, times)


def assert_acknowledged(mailbox: object, *bodies: object, times: int | None = None) -> None:
    """Messages with these bodies were acknowledged, in this order, among others or not; or `times` in all."""
    _check("acknowledged", _bodies(mailbox, "acknowledged"), bodies, times)


def _bodies(mailbox: object, what: str) -> list[object]:
    recording = recorder_of(mailbox)
    box = getattr(mailbox, "_box", None)
    if recording is None or not recording.keeps or not isinstance(box, Box):
        raise AssertionError(
            f"{mailbox!r} keeps no record: use a FakeMailbox or CollectingMailbox, or the fixture `postroom`"
        )
    if what == "acknowledged":
        return [body_of(box, delivery) for delivery in recording.acknowledged.get(box.name, ())]
    return [box.codec.decode(each.body, each.content_type) for each in recording.sent.get(box.name, ())]


def _check(what: str, seen: list[object], wanted: tuple[object, ...], times: int | None) -> None:
    if times is not None and len(seen) != times:
        raise AssertionError(f"{len(seen)} were {what} and not {times}: {seen!r:.500}")
    if times is None and not wanted and not seen:
        raise AssertionError(f"nothing was {what}")
    rest = iter(seen)
    for body in wanted:
        if not any(body == other for other in rest):
            raise AssertionError(f"{body!r:.200} was not {what}" + (f" (in this order); these were: {seen!r:.500}"))
