"""`postroom send`: one message, or one a line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import BinaryIO

import click

import postroom
from postroom.cli import exits, show
from postroom.cli.exits import Failure, complain
from postroom.cli.store import QUEUE, Command, Settings, existing, pass_settings
from postroom.cli.words import ATTRIBUTE, DURATION, content_type_of, many, piped_in, read_body

_CHUNK = 1 << 18  # bytes read at once; with short lines some thousand messages, sent in one call
_NAMED = 5  # refusals that are told one by one


@click.command(cls=Command)
@QUEUE
@click.argument("body", required=False)
@click.option("--delay", type=DURATION, help="Deliver it that much later.")
@click.option("--attr", "attributes", type=ATTRIBUTE, multiple=True, help="An attribute, key=value; repeatable.")
@click.option("--session", help="The session it belongs to: its messages are handled one after the other.")
@click.option("--dedup-id", help="A second send with the same id within the queue's window stores nothing.")
@click.option("--ttl", type=DURATION, help="It expires that long after it is due.")
@click.option("--priority", type=click.IntRange(0, 255), help="Lower goes first.  [default: 10]")
@click.option("--reply-to", metavar="QUEUE", help="Where replies go.")
@click.option("--correlation-id", metavar="ID", help="What replies carry, to be told apart.")
@click.option("--content-type", metavar="TYPE", help="Left out: JSON if it is JSON, else text or bytes.")
@click.option("--id", "id", metavar="ID", help="The message's own id; left out, one is made.")
@click.option("--lines", is_flag=True, help="Every line of the input is a message; empty ones are passed over.")
@click.option("--create", is_flag=True, help="Make the queue, a plain one, if it is not there.")
@pass_settings
def send(
    settings: Settings, queue: str, body: str | None, delay: float | None, attributes: tuple[tuple[str, str], ...],
    session: str | None, dedup_id: str | None, ttl: float | None, priority: int | None, reply_to: str | None,
    correlation_id: str | None, content_type: str | None, id: str | None, lines: bool, create: bool,
) -> int:  # fmt: skip
    """Send a message, or one a line, and print its id.

    BODY is the text itself, @file, or - for stdin; left out, what is piped in, which must not be empty. It is sent as
    the bytes it is. In a pipe --lines prints the ids, too, one a line.

    \b
    postroom send orders '{"sku": "A-1"}' --delay 5m
    postroom send orders @order.json --attr source=import
    jq -c '.[]' orders.json | postroom send orders --lines
    """
    options = postroom.SendOptions(
        session_id=session, correlation_id=correlation_id, delay=delay, ttl=ttl, properties=dict(attributes) or None,
        content_type=content_type, dedup_id=dedup_id, priority=priority, reply_to=reply_to,
    )  # fmt: skip
    if lines and (id or dedup_id):
        raise click.UsageError("--id and --dedup-id name one message; with --lines all would have the same")
    if lines and body not in (None, "-") and not (body or "").startswith("@"):
        raise click.UsageError("--lines reads stdin or @file, not a BODY")
    if lines and body is None and not piped_in():
        raise click.UsageError("--lines reads stdin: pipe something in, or give @file")
    data = b"" if lines else read_body(body)
    options = options if lines else replace(options, content_type=content_type_of(data, content_type))
    with settings.client(may_create=create) as client:
        if create:
            client.mailbox(queue, bytes).approximate_count()  # whatever opens a mailbox makes its queue
        else:
            existing(client, queue, hint=", or send with --create")
        if lines:
            with _source(body) as source:
                return _send_lines(settings, client, queue, source, options)
        message = postroom.QueueMessage(body=data, message_id=id)
        [sent] = client.send_batch(queue, [message], options)  # tells of a duplicate, which `send` does not
    if sent.error is not None:
        raise sent.error
    try:
        _tell(settings, queue, sent, options.content_type, len(data))
    except show.Unwritable as error:
        raise show.Unwritable(f"{error}; the message was sent, as {sent.id}") from error
    return exits.OK


def _tell(settings: Settings, queue: str, sent: postroom.SendResult, content_type: str | None, size: int) -> None:
    if settings.json:
        told = {"queue": queue, "id": sent.id, "content_type": content_type, "bytes": size}
        show.document({**told, "duplicate": sent.duplicate})
        return
    show.line(str(sent.id))
    if sent.duplicate:
        show.tell("not stored again: a message with this dedup id was sent before, and this is its id")


@contextmanager
def _source(body: str | None) -> Iterator[BinaryIO]:
    if body is None or body == "-":
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open(body[1:], "rb"))
        except OSError as error:
            raise click.UsageError(f"cannot read {body[1:]}: {error.strerror}") from error
        yield file


def _pieces(source: BinaryIO) -> Iterator[list[bytes]]:
    """The lines that have come so far, as soon as any have: a slow writer's messages do not wait for the next ones."""
    read = getattr(source, "read1", source.read)
    rest = b""
    while data := read(_CHUNK):
        *whole, rest = (rest + data).split(b"\n")
        yield whole
    yield [rest]


def _send_lines(
    settings: Settings,
    client: postroom.QueueClient,
    queue: str,
    source: BinaryIO,
    options: postroom.SendOptions,
) -> int:
    sent = refused = number = 0
    started = time.monotonic()
    with _progress() as advance:
        for piece in _pieces(source):
            numbered = [(number + at, text.rstrip(b"\r")) for at, text in enumerate(piece, 1)]
            number += len(piece)
            messages = [(at, text) for at, text in numbered if text.strip()]
            try:
                results = client.send_batch(queue, [_message(text, options) for _, text in messages], options)
            except click.UsageError as error:
                # What was read before is sent already; say how far it came, so that it can be taken up again.
                raise Failure(
                    f"{error.format_message()}; {many(sent, 'message')} sent before it",
                    exits.PARTIAL if sent else exits.USAGE,
                ) from error
            sent += sum(result.ok for result in results)
            for (at, _), result in zip(messages, results, strict=True):
                if not result.ok and (refused := refused + 1) <= _NAMED:
                    complain(f"line {at} not sent: {result.error}")
            try:
                _list(settings, messages, results)
            except show.Unwritable as error:
                raise show.Unwritable(
                    f"{error}; {many(sent, 'message')} sent before it, up to line {number}"
                ) from error
            advance(len(messages))
    took = time.monotonic() - started
    if not settings.json:
        show.tell(f"{many(sent, 'message')} sent to {queue} in {took:.1f} s ({sent / max(took, 1e-9):,.0f}/s)")
    if refused > _NAMED:
        complain(f"and {many(refused - _NAMED, 'more line')} not sent")
    return exits.OK if not refused else exits.PARTIAL if sent else exits.FAILED


def _list(settings: Settings, messages: Sequence[tuple[int, bytes]], results: Sequence[postroom.SendResult]) -> None:
    """The ids, for who reads them; a terminal is told a sum instead."""
    for (at, text), result in zip(messages, results, strict=True):
        if settings.json:
            outcome = {"id": result.id} if result.ok else {"error": str(result.error)}
            show.json_line({"line": at, "bytes": len(text), **outcome})
        elif result.id is not None and not show.on_terminal():
            show.part(f"{result.id}\n")
    show.flush()


def _message(text: bytes, options: postroom.SendOptions) -> postroom.QueueMessage:
    # Options beat the message's own fields, so a content type that was given stands.
    return postroom.QueueMessage(body=text, content_type=content_type_of(text, options.content_type))


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """A call that counts messages, shown on a terminal while it runs."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(),
        TextColumn("{task.completed:,.0f} sent"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task("", total=None)
        yield lambda count: progress.advance(task, count)
