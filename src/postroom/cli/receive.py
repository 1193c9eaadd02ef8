"""`postroom receive` and `postroom peek`: take messages, or look at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

import postroom
from postroom.cli import exits, show
from postroom.cli.exits import complain
from postroom.cli.safe import body_text, safe
from postroom.cli.store import QUEUE, Command, Settings, existing, pass_settings
from postroom.cli.words import DURATION, lasting

Message = postroom.Message[bytes, Any]
Writer = Callable[[Message], None]


@click.command(cls=Command)
@QUEUE
@click.option("-n", "--max", "count", type=click.IntRange(1), help="How many at most.  [default: 1]")
@click.option("--wait", type=DURATION, help="Wait that long for the first one.  [default: do not wait]")
@click.option("--visibility", type=DURATION, help="The lease while they are printed.  [default: the queue's]")
@click.option("--session", help="Only messages of this session.")
@click.option("--ack", is_flag=True, help="Remove each message once it is printed.")
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C or -n messages; needs --ack.")
@click.option("--raw", is_flag=True, help="Write the bodies alone, byte for byte, with nothing in between.")
@pass_settings
def receive(
    settings: Settings, queue: str, count: int | None, wait: float | None, visibility: float | None,
    session: str | None, ack: bool, follow: bool, raw: bool,
) -> int:  # fmt: skip
    """Take messages and print them; they go back, or with --ack are removed.

    Nothing is lost by looking: without --ack each message is ready again as soon as it is printed, its delivery not
    counted. With --ack it is removed once it was written out, and what could not be written stays. What a pipe took
    counts as written, whether or not its reader reads it: say with -n how many you want, not with head.

    In a pipe a line each, between tabs: id, deliveries, session, body.
    """
    if raw and settings.json:
        raise click.UsageError("--raw writes bodies alone, --json all there is: choose one")
    if raw and show.on_terminal():
        raise click.UsageError(
            "--raw writes bodies as they are, which a terminal must not get: send it to a file or pipe"
        )
    write = _raw if raw else _json if settings.json else _print
    if follow and not ack:
        raise click.UsageError("--follow needs --ack: given back, the same message would come for ever")
    if follow and wait is not None:
        raise click.UsageError("--follow waits until Ctrl-C; leave --wait out")
    with settings.client() as client:
        existing(client, queue)
        with client.mailbox(queue, bytes) as box:
            held: list[Message] = []
            try:
                if follow:
                    return _follow(write, box, held, count, visibility, session)
                return _take(write, box, held, count or 1, wait or 0, visibility, session, ack)
            except show.Unwritable as error:
                raise show.Unwritable(f"{error}; what was not written stays in {queue}") from error
            finally:
                _give_back(held)


def _take(
    write: Writer, box: postroom.Mailbox[bytes, Any], held: list[Message], count: int, wait: float,
    visibility: float | None, session: str | None, ack: bool,
) -> int:  # fmt: skip
    """Print up to `count`; what is in `held` afterwards is ours and to be given back."""
    taken, results = 0, []
    while taken < count:
        page = box.receive(
            max_messages=min(count - taken, 100),
            visibility_timeout=visibility,
            wait_time_seconds=0 if taken else wait,
            session_id=session,
        )
        held.extend(page)
        for message in page:
            write(message)
        if not page:
            break
        taken += len(page)
        if ack:
            results += box.acknowledge_many(page)
            held[:] = [message for message in held if not message.is_finalized]
    if not taken:
        show.tell(f"{box.name}: nothing to receive")
        return exits.EMPTY
    return _judge(results) if ack else exits.OK


def _judge(results: Sequence[postroom.SettleResult]) -> int:
    lost = [result.error for result in results if result.error is not None]
    for error in lost[:5]:
        complain(str(error))
    if not lost:
        return exits.OK
    return exits.PARTIAL if len(lost) < len(results) else exits.code_of(lost[0])


def _give_back(held: Sequence[Message]) -> None:
    for message in held:
        # An acknowledge that was interrupted leaves its message unsettled here; if it did happen, this changes nothing.
        if not message.is_finalized:
            try:
                with message:
                    raise postroom.Retry  # uncounted, and ready at once
            except postroom.MailboxError:
                pass  # its lease ended while we printed: it is on its way to somebody else already


def _follow(
    write: Writer,
    box: postroom.Mailbox[bytes, Any],
    held: list[Message],
    count: int | None,
    visibility: float | None,
    session: str | None,
) -> int:
    """Print and remove one after the other; what is in `held` afterwards is ours and to be given back."""
    code = exits.OK
    for taken, message in enumerate(box.stream(visibility_timeout=visibility, session_id=session), 1):
        held[:] = [message]
        write(message)
        try:
            message.acknowledge()
        except postroom.ReceiptHandleExpiredError as error:
            complain(str(error))
            code = exits.STALE
        if taken == count:
            break
    return code


def _raw(message: Message) -> None:
    show.raw(message.body)


def _json(message: Message) -> None:
    show.json_line(show.message_fields(message))


def _print(message: Message) -> None:
    if not show.on_terminal():
        body = body_text(message.body, message.content_type)
        show.line("\t".join((message.id, str(message.delivery_count), safe(message.session_id or ""), body)))
        return
    from rich.text import Text

    head = Text()
    head.append(safe(message.id), style="bold cyan")
    head.append(f"  delivery {message.delivery_count}", style="" if message.delivery_count == 1 else "yellow")
    head.append(f"  sent {lasting(show.ago(message.enqueued_at))} ago  {safe(message.content_type)}", style="dim")
    for name, value in (
        ("session", message.session_id),
        ("reply to", message.reply_to),
        ("correlation", message.correlation_id),
        *message.attributes.items(),
    ):
        if value is not None:
            head.append(f"\n  {safe(name)}: {safe(value)}", style="dim")
    console = show.console()
    console.print(head, soft_wrap=True)
    console.print(Text(body_text(message.body, message.content_type, pretty=True) + "\n"), soft_wrap=True)


@click.command(cls=Command)
@QUEUE
@click.option("-n", "--max", "count", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many.")
@click.option("--after", type=click.IntRange(0), default=0, help="Go on after this sequence number.")
@pass_settings
def peek(settings: Settings, queue: str, count: int, after: int) -> int:
    """Look at messages without taking any.

    Ready, scheduled and in-flight ones, in the order in which they were sent.

    In a pipe a line each, between tabs: seq, state, id, deliveries, age, session, body.
    """
    with settings.client() as client:
        existing(client, queue)
        with client.mailbox(queue, bytes) as box:
            found = box.peek(count, after=after)
    if settings.json:
        for message in found:
            show.json_line({**show.message_fields(message), "state": message.state, "visible_at": message.visible_at})
    elif found:
        show.table(
            ("seq", "state", "id", "deliveries", "age", "session", "body"),
            (
                (
                    message.sequence_number,
                    message.state.replace("_", " "),
                    message.id,
                    message.delivery_count,
                    lasting(show.ago(message.enqueued_at)),
                    message.session_id or "",
                    body_text(message.body, message.content_type),
                )
                for message in found
            ),
            right=("seq", "deliveries", "age"),
            cut=("session", "body"),
        )
    if not found:
        show.tell(f"{queue}: nothing there" + (f" after {after}" if after else ""))
        return exits.EMPTY
    if len(found) == count and not settings.json:
        show.tell(f"more with --after {found[-1].sequence_number}")
    return exits.OK
