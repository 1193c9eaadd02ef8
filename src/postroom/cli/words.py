"""What users write on the command line: durations, sizes, attributes, bodies."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from postroom.cli.safe import says_json, strict_json

# Newer clicks say which type a parameter has; the oldest we take cannot be asked at run time.
if TYPE_CHECKING:
    FloatType: TypeAlias = click.ParamType[float]
    IntType: TypeAlias = click.ParamType[int]
    PairType: TypeAlias = click.ParamType[tuple[str, str]]
else:
    FloatType = IntType = PairType = click.ParamType

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|m|h|d|w)")
_SIZES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


class Duration(FloatType):
    """Seconds, or a text such as 500ms, 30s, 5m, 1h30m, 7d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return value
        text = value.strip().lower()
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return float(text)
        if text and re.fullmatch(f"(?:{_PART.pattern})+", text):
            return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        self.fail(f"{value!r} is no duration; write seconds, or 500ms, 30s, 5m, 1h30m, 7d", param, ctx)


class Size(IntType):
    """Bytes, or a text such as 64Ki, 10M, 1Gi."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+)\s*(|[kmg]i?)b?", value.strip().lower())
        if found is None:
            self.fail(f"{value!r} is no size; write bytes, or 64Ki, 10M, 1Gi", param, ctx)
        return int(found[1]) * _SIZES[found[2]]


class Attribute(PairType):
    """key=value."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, item = value.partition("=")
        if not (key and equals):
            self.fail(f"{value!r} is no attribute; write key=value", param, ctx)
        return key, item


DURATION = Duration()
SIZE = Size()
ATTRIBUTE = Attribute()


def read_body(word: str | None) -> bytes:
    """The body a word stands for: itself, `-` for stdin, `@file`. Left out: stdin, if something is piped into it."""
    if word is None:
        # A cron job or a unit with a forgotten BODY has an empty stdin; an empty message would only trouble its reader.
        if body := sys.stdin.buffer.read() if piped_in() else b"":
            return body
        raise click.UsageError("no body: write it after the queue ('' for an empty one), or give @file, or pipe it in")
    if word == "-":
        if sys.stdin is None:
            raise click.UsageError("no body: - reads stdin, and it is closed")
        return sys.stdin.buffer.read()
    if word.startswith("@") and len(word) > 1:
        return read_file(word[1:])
    return word.encode("utf-8", "surrogateescape")  # arguments that were no UTF-8 are sent as the bytes they were


def piped_in() -> bool:
    """Whether stdin may have something for us: it is there, and nobody would have to type it."""
    return sys.stdin is not None and not sys.stdin.isatty()


def read_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise click.UsageError(f"cannot read the body from {path}: {error.strerror}") from error


def content_type_of(body: bytes, given: str | None) -> str:
    """What was given, checked where we can; else valid JSON is JSON, other UTF-8 is text, the rest is bytes."""
    try:
        strict_json(body)
    except ValueError as error:
        if says_json(given):
            # Stored as it is, it would only be found out by the consumer, which puts it among the dead letters.
            raise click.UsageError(f"--content-type says JSON, and the body is not: {error}") from error
    else:
        return given or "application/json"
    if given:
        return given
    try:
        body.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "text/plain; charset=utf-8"


def many(count: int, one: str, several: str | None = None) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def exactly(seconds: float) -> str:
    """A duration without rounding, as one would write it: `24 h`, `90 s`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds > size and seconds % size == 0:  # 24 h and 60 s are what people say, not 1 d and 1 min
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def lasting(seconds: float) -> str:
    """A duration in one unit, as people say it."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
