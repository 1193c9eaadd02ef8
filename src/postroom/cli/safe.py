"""Text that came from messages, made safe to show.

Whoever can send a message could otherwise move the cursor, retitle the window or reverse the line of whoever looks at
it. So nothing unprintable leaves here: no control characters of either set, no bidirectional overrides, nothing
invisible, no lone surrogates. They are shown as escapes.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def safe(text: str, *, lines: bool = False) -> str:
    """`text` on one line, or with `lines` on as many as it has, with everything unprintable escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else _escape(c) for c in text)


def _escape(char: str) -> str:
    code = ord(char)
    return _SHORT.get(char) or (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def strict_json(data: bytes) -> Any:
    """The value of a JSON text; ValueError unless every reader would understand the same by it."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            raise ValueError("a key is given twice in one object")
        return value

    def never(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise ValueError(f"{number} is too large")
        return value

    try:
        return json.loads(data.decode(), object_pairs_hook=once, parse_constant=never, parse_float=finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def says_json(content_type: str | None) -> bool:
    kind = (content_type or "").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def body_text(body: object, content_type: str, *, pretty: bool = False) -> str:
    """A body as people read it: JSON laid out (`pretty`) or on one line, text as it is, other bytes escaped."""
    if not isinstance(body, bytes):
        return safe(repr(body))  # a store in this process hands over objects
    if says_json(content_type):
        try:
            value = strict_json(body)
        except ValueError:
            pass  # it only says so
        else:
            return safe(json.dumps(value, indent=2 if pretty else None, ensure_ascii=False), lines=pretty)
    return safe(body.decode("utf-8", "backslashreplace"), lines=pretty)


def body_fields(body: object, content_type: str) -> dict[str, Any]:
    """A body for `--json`: `body` is the value of a JSON body or the text of another, `body_base64` is for the rest."""
    if not isinstance(body, bytes):
        return {"body": repr(body)}
    if says_json(content_type):
        try:
            return {"body": strict_json(body)}
        except ValueError:
            pass
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
