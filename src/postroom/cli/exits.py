"""How a command ends: its exit code, and one line on stderr that says what, to what, and what to do.

Scripts branch on the codes, so they never change meaning.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Final

import postroom
from postroom.cli.safe import safe

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
EMPTY: Final = 3
STALE: Final = 4
PARTIAL: Final = 5
UNREACHABLE: Final = 69  # EX_UNAVAILABLE of sysexits.h
TIMEOUT: Final = 124  # as timeout(1) says it
INTERRUPTED: Final = 130  # 128 + SIGINT
BROKEN_PIPE: Final = 141  # 128 + SIGPIPE: what a shell shows for any program whose reader went away

MEANINGS: Final = (
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 nothing there, 4 stale (the lease was lost), 5 done in part, "
    "69 store unreachable, 124 timeout, 130 interrupted."
)

# The first that fits decides.
_CODES: Final[tuple[tuple[type[postroom.MailboxError], int], ...]] = (
    (postroom.InvalidParameterError, USAGE),
    (postroom.ConfigurationError, USAGE),  # a wrong address, an unknown scheme, a file that is not ours
    (postroom.ReceiptHandleExpiredError, STALE),
    (postroom.OperationTimeoutError, TIMEOUT),
    (postroom.NoReplyError, TIMEOUT),
    (postroom.MailboxConnectionError, UNREACHABLE),
    (postroom.ServiceUnavailableError, UNREACHABLE),
)


class Failure(Exception):
    """A command cannot go on; its text is the line the user reads."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


def code_of(error: BaseException) -> int:
    if isinstance(error, Failure):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def complain(text: str) -> None:
    """One line on stderr. What came from a message or a store may be in it, so it is made safe."""
    print(f"postroom: {safe(text)}", file=sys.stderr)


def debugging() -> bool:
    return os.environ.get("POSTROOM_DEBUG", "") not in ("", "0")


def explain(error: BaseException) -> int:
    """Say what went wrong; the exit code."""
    if debugging():
        traceback.print_exception(error)
    if isinstance(error, (Failure, postroom.MailboxError)):
        complain(str(error) or type(error).__name__)
    else:
        complain(f"{type(error).__name__}: {error} (unexpected; POSTROOM_DEBUG=1 shows where, please report it)")
    return code_of(error)
