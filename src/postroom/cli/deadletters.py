"""`postroom dlq`: what could not be handled, why, and back to work with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import click

import postroom
from postroom.cli import exits, show
from postroom.cli.exits import Failure, complain
from postroom.cli.queues import confirm
from postroom.cli.safe import body_text, safe
from postroom.cli.store import QUEUE, Group, Settings, existing, pass_settings
from postroom.cli.words import DURATION, lasting, many

F = TypeVar("F", bound=Callable[..., Any])
Letter = postroom.Peeked[bytes]
Letters = postroom.DeadLetters[bytes, Any]

PAGE = 100


@click.group(cls=Group)
def dlq() -> None:
    """Dead letters: ls, show, redrive, drop, purge."""


def choosing(command: F) -> F:
    """The options that choose among dead letters; given together, all must fit."""
    for option in reversed(
        (
            click.option("--id", "ids", metavar="ID", multiple=True, help="Only this one; repeatable."),
            click.option("--reason", metavar="PATTERN", help="Only those that died of this; * and ? fit anything."),
            click.option("--error", metavar="TEXT", help="Only those whose last error has TEXT in it."),
            click.option("--older-than", type=DURATION, help="Only those that died longer ago."),
        )
    ):
        command = option(command)
    return command


@dataclass
class Choice:
    """Which dead letters a command line means; called with one after the other, it notes which of its ids came by."""

    ids: tuple[str, ...]
    reason: str | None
    error: str | None
    older_than: float | None
    seen: set[str] = field(default_factory=set)

    def __call__(self, letter: Letter) -> bool:
        death = letter.death
        self.seen.add(letter.id)
        return (
            (not self.ids or letter.id in self.ids)
            and (self.reason is None or (death is not None and fnmatchcase(death.reason, self.reason)))
            and (self.error is None or self.error in last_error(letter))
            and (self.older_than is None or (death is not None and show.ago(show.moment(death.at)) >= self.older_than))
        )

    def judge(self, queue: str, done: int) -> int:
        """The exit code of a command that has met every dead letter; says which ids were not there."""
        absent = [id for id in dict.fromkeys(self.ids) if id not in self.seen]
        for id in absent:
            complain(f"{queue}: no dead letter {id}; 'postroom dlq ls {queue}' lists them")
        return exits.EMPTY if not done else exits.PARTIAL if absent else exits.OK


def last_error(letter: Letter) -> str:
    """What its last handler said."""
    if letter.history:
        return letter.history[-1].error
    return letter.death.description if letter.death is not None else ""


def walk(letters: Letters, after: int = 0) -> Iterator[Letter]:
    """Every dead letter, oldest first, a page at a time."""
    while page := letters.peek(PAGE, after=after):
        yield from page
        after = page[-1].sequence_number


def opened(client: postroom.QueueClient, queue: str) -> tuple[Letters, postroom.QueueInfo]:
    found = existing(client, queue)
    return client.mailbox(queue, bytes).dead_letters, found


@dlq.command("ls")
@QUEUE
@choosing
@click.option("-n", "--max", "count", type=click.IntRange(1), default=50, show_default=True, help="How many.")
@click.option("--after", type=click.IntRange(0), default=0, help="Go on after this sequence number.")
@pass_settings
def list_(settings: Settings, queue: str, count: int, after: int, **chosen: Any) -> int:
    """List dead letters with their reasons.

    In a pipe a line each, between tabs: seq, id, died, deliveries, reason, last error, body.
    """
    fits, rows = Choice(**chosen), []
    with settings.client() as client:
        letters, _ = opened(client, queue)
        for letter in walk(letters, after):
            if fits(letter):
                rows.append(letter)
                if len(rows) == count:
                    break
    if not rows:
        show.tell(f"{queue}: no dead letters" + (" that fit" if any(chosen.values()) else ""))
        return exits.EMPTY
    if settings.json:
        for letter in rows:
            show.json_line(show.message_fields(letter))
        return exits.OK
    show.table(
        ("seq", "id", "died", "deliveries", "reason", "last error", "body"),
        (
            (
                letter.sequence_number,
                letter.id,
                "" if letter.death is None else f"{lasting(show.ago(show.moment(letter.death.at)))} ago",
                "" if letter.death is None else letter.death.delivery_count,
                "" if letter.death is None else letter.death.reason,
                last_error(letter),
                body_text(letter.body, letter.content_type),
            )
            for letter in rows
        ),
        right=("seq", "deliveries"),
        cut=("reason", "last error", "body"),
    )
    if len(rows) == count:
        show.tell(f"more with --after {rows[-1].sequence_number}")
    return exits.OK


@dlq.command("show")
@QUEUE
@click.argument("id")
@pass_settings
def show_(settings: Settings, queue: str, id: str) -> int:
    """Show one: why it died, each failed delivery, its body.

    In a pipe a line each, between a tab: name, value.
    """
    with settings.client() as client:
        letters, _ = opened(client, queue)
        letter = next((letter for letter in walk(letters) if letter.id == id), None)
    if letter is None:
        raise Failure(f"{queue}: no dead letter {id}; 'postroom dlq ls {queue}' lists them")
    if settings.json:
        show.document(show.message_fields(letter))
        return exits.OK
    death = letter.death
    show.fields(
        (
            ("id", letter.id),
            ("reason", death and death.reason),
            ("description", (death and death.description) or None),
            ("died in", death and f"{death.source}, {lasting(show.ago(show.moment(death.at)))} ago"),
            ("deliveries", death and death.delivery_count),
            *((f"delivery {attempt.number}", attempt.error) for attempt in letter.history),
            ("sent", f"{lasting(show.ago(letter.enqueued_at))} ago"),
            ("content type", letter.content_type),
            ("session", letter.session_id),
            ("reply to", letter.reply_to),
            ("correlation", letter.correlation_id),
            *((f"attribute {safe(name)}", value) for name, value in letter.attributes.items()),
        )
    )
    text = body_text(letter.body, letter.content_type, pretty=show.on_terminal())
    show.line(f"\n{text}" if show.on_terminal() else f"body\t{text}")
    return exits.OK


@dlq.command()
@QUEUE
@choosing
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="So many a second.  [default: at once]")
@click.option("--target", metavar="QUEUE", help="Where to.  [default: where each of them died]")
@click.option("--dry-run", is_flag=True, help="Only say how many it would be.")
@pass_settings
def redrive(
    settings: Settings, queue: str, limit: int | None, rate: float | None, target: str | None, dry_run: bool,
    **chosen: Any,
) -> int:  # fmt: skip
    """Send them back to work: all, or those chosen.

    They keep their ids and their place, and their deliveries are counted anew. Interrupted, it is finished by calling
    it again. Exit code 3 if there was none to send; 5 if an --id was not there and others were.
    """
    fits = Choice(**chosen)
    with settings.client() as client:
        letters, _ = opened(client, queue)
        done = letters.redrive(where=fits, limit=limit, rate=rate, target=target, dry_run=dry_run)
    for id, error in done.refused[:5]:
        complain(f"{id} stays a dead letter: {error}")
    if settings.json:
        refused = [{"id": id, "error": str(error)} for id, error in done.refused]
        show.document({"moved": done.moved, "skipped": done.skipped, "refused": refused, "dry_run": done.dry_run})
    else:
        where = f"to {target}" if target else "back to work"
        verb = "would go" if dry_run else "went"
        show.result(f"{queue}: {many(done.moved, 'dead letter')} {verb} {where}, {done.skipped:,} not chosen")
    if done.refused:
        return exits.PARTIAL if done.moved else exits.FAILED
    if done.moved == limit:
        return exits.OK  # it stopped there; whether an id comes later it has not seen
    return fits.judge(queue, done.moved)


@dlq.command()
@QUEUE
@choosing
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_settings
def drop(settings: Settings, queue: str, yes: bool, **chosen: Any) -> int:
    """Remove chosen ones for good.

    Exit code 3 if none fits; 5 if an --id was not there and others were.
    """
    if not any(chosen.values()):
        raise click.UsageError("choose which: --id, --reason, --error or --older-than; 'dlq purge' removes all")
    fits = Choice(**chosen)
    with settings.client() as client:
        letters, found = opened(client, queue)
        # A dead-letter queue may be shared: others' letters are not ours to drop.
        shared = found.definition.dead_letter_queue is not None
        wanted = {
            letter.sequence_number
            for letter in walk(letters)
            if not (shared and (letter.death is None or letter.death.source != queue)) and fits(letter)
        }
        if wanted:
            confirm(f"Remove {many(len(wanted), 'dead letter')} of {queue}?", yes)
        dropped = _drop(letters, wanted) if wanted else 0
    if settings.json:
        show.document({"queue": queue, "dropped": dropped, "kept": len(wanted) - dropped})
    else:
        show.result(f"{queue}: {many(dropped, 'dead letter')} dropped")
    if dropped == len(wanted):
        return fits.judge(queue, dropped)
    complain(f"{queue}: {many(len(wanted) - dropped, 'dead letter')} could not be dropped, somebody else holds them")
    return exits.PARTIAL if dropped else exits.FAILED


def _drop(letters: Letters, wanted: set[int]) -> int:
    """Take dead letters until all that are wanted have been seen; those are acknowledged, the others go back.

    A message is removed by who holds it, so what comes before the wanted ones has to be held for the moment.
    """
    left, dropped = set(wanted), 0
    held: list[postroom.Message[bytes, Any]] = []
    try:
        while left and (page := letters.receive(max_messages=PAGE, visibility_timeout=300)):
            hits = [message for message in page if message.sequence_number in left]
            held.extend(message for message in page if message.sequence_number not in left)
            left.difference_update(message.sequence_number for message in hits)
            dropped += sum(result.ok for result in letters.acknowledge_many(hits))
    finally:
        for message in held:
            try:
                with message:
                    raise postroom.Retry
            except postroom.MailboxError:
                pass  # its lease will end
    return dropped


@dlq.command()
@QUEUE
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_settings
def purge(settings: Settings, queue: str, yes: bool) -> int:
    """Remove all of them for good."""
    with settings.client() as client:
        letters, _ = opened(client, queue)
        count = letters.approximate_count()
        whose = "" if letters.name.startswith(queue) else f" in {letters.name}, which other queues may share"
        confirm(f"Remove all {many(count, 'dead letter')} of {queue}{whose}?", yes)
        gone = letters.purge()
    if settings.json:
        show.document({"queue": queue, "messages": gone})
    else:
        show.result(f"{queue}: {many(gone, 'dead letter')} removed")
    return exits.OK
