"""What a number, a duration or a name may be, checked in one place.

Nothing is ever clamped: a value out of range is a mistake of the caller's, and silently meaning something else
would hide it. bool is not a number here, and NaN is no duration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TypeAlias, TypeVar

from postroom.errors import InvalidParameterError, MessageTooLargeError

T = TypeVar("T")
Seconds: TypeAlias = int | float | timedelta

HOUR = 3600.0
DAY = 24 * HOUR
MAX_LEASE = 12 * HOUR  # as in SQS: from the receive on, extensions included
MAX_WAIT = DAY
MAX_DELAY = 3650 * DAY
MAX_BATCH = 1_000  # messages one receive may ask for
MAX_PRIORITY = 255
DEFAULT_PRIORITY = 10
DEFAULT_LEASE = 30.0
DEFAULT_MAX_BODY = 1 << 20  # 1 MiB: what the narrowest large store takes, so that a program can move
MAX_ATTRIBUTES = 64
MAX_ATTRIBUTE_BYTES = 64 << 10
MAX_TEXT = 255  # ids and correlation ids
MAX_DEPTH = 100
MAX_RETURNS = 1_000  # uncounted returns a message may have; after that they count
MIN_DEDUP_WINDOW = 20.0
MAX_DEDUP_WINDOW = 7 * DAY
_LONG = {MAX_LEASE: " (12 h)", DAY: " (24 h)", MAX_DEDUP_WINDOW: " (7 days)", MAX_DELAY: " (10 years)"}


def seconds(value: Seconds, what: str, low: float = 0.0, high: float = MAX_DELAY) -> float:
    """`value` as seconds, refused unless it is a real duration between `low` and `high`."""
    kind = type(value)
    if kind is float or kind is int:
        number = value
    elif isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    else:
        raise InvalidParameterError(
            f"{what} must be seconds (int or float) or a timedelta, not {type(value).__name__} {value!r:.80}"
        )
    if not low <= number <= high:  # type: ignore[operator]  # mypy keeps timedelta in the union; NaN fails here too
        raise InvalidParameterError(
            f"{what} must be between {low:.12g} and {high:.12g} seconds{_LONG.get(high, '')}, not {value!r:.80}"
        )
    return number  # type: ignore[return-value]  # an int is kept an int: it compares and adds the same


def whole(value: int, what: str, low: int, high: int) -> int:
    """`value` as a whole number between `low` and `high`."""
    if type(value) is not int:
        raise InvalidParameterError(f"{what} must be a whole number, not {type(value).__name__} {value!r:.80}")
    if not low <= value <= high:
        raise InvalidParameterError(f"{what} must be between {low} and {high}, not {value}")
    return value


def text(value: str, what: str, longest: int = MAX_TEXT) -> str:
    """`value` as a non-empty, printable text of at most `longest` characters that UTF-8 can carry."""
    if not isinstance(value, str):
        raise InvalidParameterError(f"{what} must be a str, not {type(value).__name__} {value!r:.80}")
    if not 0 < len(value) <= longest:
        raise InvalidParameterError(f"{what} must have 1 to {longest} characters, not {len(value)}")
    if not value.isprintable():
        raise InvalidParameterError(f"{what} must have no control characters or lone surrogates: {value!r:.80}")
    return value


def several(values: Iterable[T], what: str) -> list[T]:
    """`values` as a list. A single text or mapping is refused: taken apart, each letter or key would be one of them."""
    if isinstance(values, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(values, Iterable):
        raise InvalidParameterError(f"{what} must be a list or another iterable, not one {type(values).__name__}")
    return list(values)


def attributes(value: Mapping[str, str]) -> dict[str, str]:
    """A copy of the user's attributes: text to text, few and small."""
    if not isinstance(value, Mapping):
        raise InvalidParameterError(f"attributes must be a mapping of str to str, not {type(value).__name__}")
    if len(value) > MAX_ATTRIBUTES:
        raise InvalidParameterError(f"a message may have {MAX_ATTRIBUTES} attributes, not {len(value)}")
    size = 0
    for key, item in value.items():
        text(key, "an attribute's name")
        if not isinstance(item, str):
            raise InvalidParameterError(f"attribute {key!r} must be a str, not {type(item).__name__}")
        try:
            size += len(key.encode()) + len(item.encode())
        except UnicodeEncodeError as error:
            raise InvalidParameterError(f"attribute {key!r} cannot be written as UTF-8") from error
    if size > MAX_ATTRIBUTE_BYTES:
        raise MessageTooLargeError(f"attributes take {size} bytes; the limit is {MAX_ATTRIBUTE_BYTES}")
    return dict(value)
