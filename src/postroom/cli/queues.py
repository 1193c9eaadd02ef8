"""`postroom ls`, `info`, `create`, `delete`, `purge`: queues themselves."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

import postroom
from postroom.cli import exits, show
from postroom.cli.exits import Failure
from postroom.cli.safe import safe
from postroom.cli.store import QUEUE, Command, Settings, existing, pass_settings
from postroom.cli.words import DURATION, SIZE, exactly, lasting, many

F = TypeVar("F", bound=Callable[..., Any])

COUNTS = ("ready", "scheduled", "in_flight", "dead")


@click.command(cls=Command)
@pass_settings
def ls(settings: Settings) -> int:
    """List the queues and how much is in them.

    In a pipe a line each, between tabs: queue, ready, scheduled, in flight, dead, oldest, status.
    """
    found = []
    with settings.client() as client:
        for name in client.list_queues():
            try:
                found.append(client.info(name))
            except postroom.QueueNotFoundError:
                pass  # deleted between the two questions
    if settings.json:
        show.document(
            [
                {
                    "name": info.name,
                    **{part: getattr(info, part) for part in COUNTS},
                    "size_bytes": info.size_bytes,
                    "oldest_age": info.oldest_age,
                    "status": info.status,
                }
                for info in found
            ]
        )
        return exits.OK
    if not found:
        show.tell("no queues yet; make one with 'postroom create NAME'")
        return exits.OK
    show.table(
        ("queue", "ready", "scheduled", "in flight", "dead", "oldest", "status"),
        (
            (
                info.name,
                *(getattr(info, part) for part in COUNTS),
                "" if info.oldest_age is None else lasting(info.oldest_age),
                info.status,
            )
            for info in found
        ),
        right=("ready", "scheduled", "in flight", "dead", "oldest"),
    )
    return exits.OK


@click.command(cls=Command)
@QUEUE
@pass_settings
def info(settings: Settings, queue: str) -> int:
    """Show what is in a queue and the rules in force.

    In a pipe a line each, between a tab: name, value.
    """
    with settings.client() as client:
        found = existing(client, queue)
    if settings.json:
        show.document(found)
        return exits.OK
    rules = found.definition
    about = "" if found.exact else "about "
    show.fields(
        (
            ("queue", found.name),
            ("status", found.status),
            *((part.replace("_", " "), f"{about}{getattr(found, part):,}") for part in COUNTS),
            ("oldest ready", "-" if found.oldest_age is None else lasting(found.oldest_age)),
            ("size", f"{about}{found.size_bytes:,} bytes"),
            ("dropped", found.dropped or None),
            ("expired", found.expired or None),
            ("created", f"{found.created_at:%Y-%m-%d %H:%M:%S} UTC"),
            ("changed", f"{found.updated_at:%Y-%m-%d %H:%M:%S} UTC"),
        )
    )
    show.tell("")
    show.tell("rules in force")
    show.fields(
        (field.name.replace("_", " "), _rule(field.name, getattr(rules, field.name)))
        for field in dataclasses.fields(rules)
        if field.name != "name"
    )
    return exits.OK


_DURATIONS = ("message_ttl", "lock_duration", "duplicate_detection_window", "overflow_timeout", "auto_delete_on_idle")


def _rule(name: str, value: Any) -> str:
    if value is None:
        return "its own" if name == "dead_letter_queue" else "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    if name in _DURATIONS:
        return exactly(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def definition_options(command: F) -> F:
    """An option for every field of QueueDefinition."""

    def switch(name: str, what: str) -> Callable[[F], F]:
        return click.option(f"--{name}/--no-{name}", default=None, help=what)

    for option in reversed(
        (
            click.option("--max-delivery-count", type=int, help="The last delivery a message gets.  [default: 3]"),
            click.option("--message-ttl", type=DURATION, help="How long a message lives.  [default: 24h]"),
            click.option("--lock-duration", type=DURATION, help="How long a receiver has.  [default: 60s]"),
            click.option("--sessions", type=click.Choice(("optional", "required", "off")), help="[default: optional]"),
            click.option(
                "--on-dead",
                type=click.Choice(("continue", "block")),
                help="What a dead message means for its session.  [default: continue]",
            ),
            switch("dead-lettering", "Keep what cannot be handled.  [default: on]"),
            click.option("--dead-letter-queue", metavar="NAME", help="Where it is kept.  [default: its own]"),
            switch("dead-letter-on-expiry", "Keep what expired, too.  [default: off]"),
            switch("duplicate-detection", "Heed the dedup ids of messages.  [default: on]"),
            click.option("--duplicate-detection-window", type=DURATION, help="[default: 10m]"),
            click.option("--max-bytes", type=SIZE, help="How much may wait.  [default: 1Gi]"),
            click.option("--max-messages", type=int, help="How many may wait.  [default: no limit]"),
            click.option(
                "--overflow",
                type=click.Choice(("reject", "wait", "drop_oldest", "drop_newest")),
                help="What a full queue does.  [default: reject]",
            ),
            click.option("--overflow-timeout", type=DURATION, help="How long 'wait' waits.  [default: 30s]"),
            click.option("--auto-delete-on-idle", type=DURATION, help="[default: never]"),
            switch("batching", "[default: on]"),
            switch("express", "[default: off]"),
            switch("partitioning", "[default: off]"),
        )
    ):
        command = option(command)
    return command


@click.command(cls=Command)
@QUEUE
@definition_options
@click.option("--update", is_flag=True, help="Change the rules of a queue that is there; those not named stay.")
@pass_settings
def create(settings: Settings, queue: str, update: bool, **rules: Any) -> int:
    """Make a queue, or change its rules.

    What is left out is as recommended; a value that the store cannot honour is refused.
    """
    given = {name: value for name, value in rules.items() if value is not None}
    wanted = postroom.QueueDefinition(name=queue, **given)
    with settings.client(may_create=not update) as client:
        if update:
            wanted = dataclasses.replace(existing(client, queue).definition, **given)
        elif queue in client.list_queues():
            raise Failure(f"{queue}: is there already; change its rules with --update")
        made = client.create_queue(wanted)
    if settings.json:
        show.document(made)
    else:
        show.result(f"{queue}: {'changed' if update else 'created'}; 'postroom info {queue}' shows its rules")
    return exits.OK


@click.command(cls=Command)
@QUEUE
@click.option("--force", is_flag=True, help="Delete it with the messages that are in it.")
@pass_settings
def delete(settings: Settings, queue: str, force: bool) -> int:
    """Delete a queue.

    Refused while messages or dead letters are in it, unless --force.
    """
    with settings.client() as client:
        found = existing(client, queue)
        try:
            gone = client.delete_queue(queue, force=force)
        except postroom.ConfigurationError as error:
            if force:
                raise
            raise Failure(
                f"{queue}: not deleted, there are {many(found.total, 'message')} in it ({found.dead} of them dead); "
                "receive or purge them first, or give --force"
            ) from error
    if settings.json:
        show.document({"queue": queue, "messages": gone})
    else:
        show.result(f"{queue}: deleted" + (f", and {many(gone, 'message')} with it" if gone else ""))
    return exits.OK


@click.command(cls=Command)
@QUEUE
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_settings
def purge(settings: Settings, queue: str, yes: bool) -> int:
    """Remove every message of a queue but the dead letters.

    Ready, scheduled and in-flight ones; for dead letters there is 'postroom dlq purge'.
    """
    with settings.client() as client:
        found = existing(client, queue)
        confirm(f"Remove all {many(found.total - found.dead, 'message')} from {queue}?", yes)
        gone = client.purge(queue)
    if settings.json:
        show.document({"queue": queue, "messages": gone})
    else:
        show.result(f"{queue}: {many(gone, 'message')} removed")
    return exits.OK


def confirm(question: str, yes: bool) -> None:
    """Ask before something is lost. Where nobody can answer, --yes must have been said."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("this cannot be undone; say --yes")
    if not click.confirm(safe(question), err=True):
        raise Failure("nothing was done")
