"""Printing: tables on a terminal, tab-separated lines in a pipe, JSON when asked.

rich is imported only when something is drawn on a terminal: it costs more than the rest of a command.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from postroom.cli.exits import Failure
from postroom.cli.safe import body_fields, safe

if TYPE_CHECKING:
    from rich.console import Console

    import postroom


def on_terminal() -> bool:
    return sys.stdout.isatty()


def console() -> Console:
    from rich.console import Console

    # No markup, emoji or highlighting: nothing in a message may style the output.
    return Console(markup=False, emoji=False, highlight=False)


class Unwritable(Failure):
    """The output cannot be written: a disk is full, most often."""


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # no failure: the reader has seen enough
    except OSError as error:
        raise Unwritable(f"cannot write the output: {error.strerror}") from error


def line(text: str = "") -> None:
    """One line, flushed: who reads a pipe is not kept waiting, and a reader that went away is noticed at once."""
    with _writing():
        print(text, flush=True)


def raw(data: bytes) -> None:
    """Bytes as they are, for programs; the caller sees to it that no terminal gets them."""
    with _writing():
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def part(text: str) -> None:
    """Some of many lines, not flushed one by one."""
    with _writing():
        sys.stdout.write(text)


def flush() -> None:
    """What was printed by other means, out now."""
    with _writing():
        sys.stdout.flush()


def result(text: str) -> None:
    """What a command did, in one line: output, also where nobody watches."""
    line(safe(text))


def document(value: Any) -> None:
    """The one JSON document of a command."""
    line(json.dumps(value, indent=2, default=_plain))


def json_line(value: Any) -> None:
    """One of several JSON objects. Only ASCII: whatever a message holds, a terminal sees escapes."""
    line(json.dumps(value, default=_plain))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is nothing for JSON")


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = (), cut: Sequence[str] = ()
) -> None:
    """Rows under a head; piped, the rows alone. On a terminal the columns in `cut` share what width is left."""
    if not on_terminal():
        for row in rows:
            line("\t".join(safe(str(cell)) for cell in row))
        return
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    screen = console()
    lines = [[safe(str(cell)) for cell in row] for row in rows]
    wanted = [max(cell_len(text) for text in column) for column in zip(head, *lines, strict=True)]
    # Names and numbers are there to be copied, so they are shown whole; what may be long shares the rest. rich would
    # take it from all alike, down to nothing.
    long = [at for at, name in enumerate(head) if name in cut]
    room = screen.width - sum(wanted) - 2 * len(head) + sum(wanted[at] for at in long)
    for at in sorted(long, key=lambda at: wanted[at]):
        wanted[at] = max(6, min(wanted[at], room // len(long)))
        room -= wanted[at]
        long = long[1:]
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, width in zip(head, wanted, strict=True):
        justify: Any = "right" if name in right else "left"
        drawn.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", width=width)
    for row in lines:
        drawn.add_row(*(Text(cell, style="dim" if cell in ("", "0") else "") for cell in row))
    screen.print(drawn, soft_wrap=True)


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, one pair a line."""
    known = [(name, safe(str(value))) for name, value in pairs if value is not None]
    width = max(len(name) for name, _ in known)
    for name, value in known:
        line(f"{name:<{width}}  {value}" if on_terminal() else f"{name}\t{value}")


def tell(text: str) -> None:
    """What a person wants to know and a pipe does not: only on a terminal."""
    if on_terminal():
        line(safe(text))


def message_fields(message: postroom.Peeked[bytes] | postroom.Message[bytes, Any]) -> dict[str, Any]:
    """A message as `--json` shows it, the same for all commands. Keys are added over time, never renamed."""
    shown: dict[str, Any] = {
        "id": message.id,
        "sequence_number": message.sequence_number,
        "delivery_count": message.delivery_count,
        "enqueued_at": message.enqueued_at,
        "content_type": message.content_type,
        "priority": message.priority,
        "session_id": message.session_id,
        "correlation_id": message.correlation_id,
        "reply_to": message.reply_to,
        "attributes": dict(message.attributes),
        **body_fields(message.body, message.content_type),
    }
    if message.death is not None:
        shown["death"] = {
            "reason": message.death.reason,
            "description": message.death.description,
            "source": message.death.source,
            "at": moment(message.death.at),
            "delivery_count": message.death.delivery_count,
        }
    if message.history:
        shown["history"] = [
            {"delivery": attempt.number, "at": moment(attempt.at), "error": attempt.error}
            for attempt in message.history
        ]
    return shown


def moment(seconds: float) -> datetime:
    from datetime import UTC

    return datetime.fromtimestamp(seconds, UTC)


def ago(then: datetime) -> float:
    """Seconds since then. The store's clock and ours may differ a little; nothing happens in the future."""
    return max(0.0, (datetime.now(then.tzinfo) - then).total_seconds())
