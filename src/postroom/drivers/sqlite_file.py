"""The file: found, refused or made, opened, and what its errors mean. Knows nothing of messages.

A file is refused before anything in it has changed: it is first looked at through a connection that cannot write.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from contextlib import closing
from importlib.resources import files
from typing import Final

from postroom.errors import (
    AuthenticationError,
    ConfigurationError,
    DurabilityError,
    InvalidParameterError,
    MailboxConnectionError,
    MailboxError,
    ServiceUnavailableError,
)

SCHEMA = 1
SCHEMA_KEY = "schema"
_SMALLEST = 512  # bytes of a database with anything in it
_OLDEST = (3, 35, 0)  # the first with RETURNING


def _statements() -> dict[str, str]:
    text = files("postroom.drivers").joinpath("sqlite.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.M)[1:]
    # Comments stay in the file: SQLite would parse them each time a statement leaves the cache.
    return {
        name: re.sub(r"^\s*--.*\n", "", body, flags=re.M).strip()
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


SQL: Final = _statements()


def _columns(create: str) -> dict[str, list[str]]:
    """table -> its columns, in order, read from our own CREATE statements by SQLite itself."""
    blank = sqlite3.connect(":memory:")
    try:
        blank.executescript(create)
        return _our_tables(blank)
    finally:
        blank.close()


def _our_tables(connection: sqlite3.Connection) -> dict[str, list[str]]:
    names = connection.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name GLOB 'postroom_*'"
    ).fetchall()
    return {
        name: [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (name,))]
        for (name,) in names
    }


def identity(path: str) -> tuple[int, int] | None:
    """Which file this is, whatever it is called. Never by opening it: closing any descriptor of a file drops all of
    the process's POSIX locks on it, SQLite's included."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def connect(path: str, busy_timeout: float) -> sqlite3.Connection:
    """A connection as every step expects it: no implicit transactions, no checkpoint within a commit."""
    connection = sqlite3.connect(
        path, timeout=busy_timeout, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    # Deleted messages are overwritten only where that writes no extra page (Debian's default writes each).
    connection.execute("PRAGMA secure_delete = FAST").close()
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def prepare(path: str, busy_timeout: float) -> None:
    """See to it that the file is there, is ours to use, is in WAL mode and has our tables; else refuse it untouched."""
    if sqlite3.sqlite_version_info < _OLDEST:
        raise ConfigurationError(
            f"this Python is linked with SQLite {sqlite3.sqlite_version}; Postroom needs "
            f"{'.'.join(map(str, _OLDEST))} or newer"
        )
    try:
        _create(path)
        if not _is_ready(path, busy_timeout):
            _adopt(path, busy_timeout)
    except sqlite3.Error as error:
        raise translate(error, path) from error
    except OSError as error:
        raise _cannot_open(path, error) from error


def _create(path: str) -> None:
    # SQLite would create it with the umask's mode; -wal and -shm take over the mode of the file.
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o600))
    except FileExistsError:
        if os.path.isdir(path):
            raise ConfigurationError(f"{path} is a directory; name a file in it: sqlite:///{path}/mail.db") from None


def _is_ready(path: str, busy_timeout: float) -> bool:
    """True if our tables are there in WAL mode, False if the file is empty or an application's without them."""
    if 0 < os.stat(path).st_size < _SMALLEST:  # SQLite would take it for empty, and write over it
        raise ConfigurationError(f"{path}: this file is not a SQLite database; it was not touched")
    if not any(os.path.exists(path + beside) for beside in ("-wal", "-journal")):
        # At rest. Read as if it could not change, SQLite makes no files beside it, which else it would for one in WAL
        # mode: a refused file is to be left without a trace.
        with closing(_only_reading(path, busy_timeout, immutable=True)) as connection:
            if ours := _our_tables(connection):
                _check_shape(path, connection, ours)
    with closing(_only_reading(path, busy_timeout)) as connection:
        connection.execute("BEGIN")  # one snapshot: another process may be making the tables right now
        ours = _our_tables(connection)
        if not ours:
            return False
        _check_shape(path, connection, ours)
        connection.execute("COMMIT")
        mode: str = connection.execute("PRAGMA journal_mode").fetchone()[0]
        return mode == "wal"


def _only_reading(path: str, busy_timeout: float, *, immutable: bool = False) -> sqlite3.Connection:
    quoted = os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    url = f"file:{quoted}?mode=ro{'&immutable=1' if immutable else ''}"
    return sqlite3.connect(url, uri=True, timeout=busy_timeout, isolation_level=None)


def _check_shape(path: str, connection: sqlite3.Connection, ours: dict[str, list[str]]) -> None:
    version: object = None
    if ours.get("postroom_store") == ["name", "value"]:
        row = connection.execute("SELECT value FROM postroom_store WHERE name = ?", (SCHEMA_KEY,)).fetchone()
        version = None if row is None else row[0]
    if isinstance(version, int) and version > SCHEMA:
        raise ConfigurationError(
            f"{path} was written by a newer Postroom (tables of version {version}, this one knows {SCHEMA}); "
            "upgrade postroom. The file was not touched."
        )
    expected = _columns(SQL["create"])
    if version != SCHEMA or any(ours.get(table) != columns for table, columns in expected.items()):
        raise ConfigurationError(
            f"{path} has tables called postroom_… which are not Postroom's (version {version!r:.40}, "
            f"tables {', '.join(sorted(ours))}); use another file. It was not touched."
        )


def _adopt(path: str, busy_timeout: float) -> None:
    connection = connect(path, busy_timeout)
    try:
        _use_wal(path, connection, busy_timeout)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            if ours := _our_tables(connection):  # somebody was faster
                _check_shape(path, connection, ours)
            else:
                for statement in SQL["create"].split(";"):
                    if statement.strip():
                        connection.execute(statement)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    finally:
        connection.close()


def _use_wal(path: str, connection: sqlite3.Connection, busy_timeout: float) -> None:
    # The switch needs the file for itself and does not call the busy handler, so eight processes that open a new
    # file at once must take turns here.
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise ConfigurationError(
                f"{path}: SQLite cannot use write-ahead logging here ({mode!r} stays); put the file on a local disk"
            )
        return


def is_busy(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


# --- what the errors mean -----------------------------------------------------------------------------------


def failed_to_sync(error: BaseException) -> bool:
    """Whether this is the failure after which a commit may be on the disk although it was refused."""
    code = getattr(error, "sqlite_errorcode", 0)
    return isinstance(error, sqlite3.Error) and (code & 0xFF) == sqlite3.SQLITE_IOERR


def translate(error: sqlite3.Error, path: str) -> MailboxError:
    """The one mapping of SQLite's errors. The caller raises it `from` the original."""
    name: str = getattr(error, "sqlite_errorname", type(error).__name__)
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    text = f"{path}: {error} ({name})"
    match primary:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return ServiceUnavailableError(
                f"{text}: another connection holds the database; nothing was changed. Try again, keep foreign "
                "transactions short, or raise busy_timeout",
                code=name,
            )
        case sqlite3.SQLITE_FULL:
            return ServiceUnavailableError(f"{text}: no room on the disk; nothing was changed. Make room", code=name)
        case sqlite3.SQLITE_IOERR:
            return ServiceUnavailableError(
                f"{text}: the disk failed; nothing was changed. Look at the disk and the kernel's log", code=name
            )
        case sqlite3.SQLITE_NOMEM:
            return ServiceUnavailableError(f"{text}: out of memory; nothing was changed", code=name)
        case sqlite3.SQLITE_NOTADB:
            return ConfigurationError(f"{text}: this file is not a SQLite database; it was not touched", code=name)
        case sqlite3.SQLITE_CORRUPT:
            return ConfigurationError(
                f"{text}: the database is damaged; recover it with the sqlite3 shell's .recover", code=name
            )
        case sqlite3.SQLITE_SCHEMA:
            return ConfigurationError(f"{text}: the tables were changed by somebody else; open it anew", code=name)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return AuthenticationError(
                f"{text}: this user may not write there; the file and its directory must be writable", code=name
            )
        case sqlite3.SQLITE_CANTOPEN:
            return MailboxConnectionError(
                f"{text}: does the directory exist, and may this user write to it?", code=name
            )
        case sqlite3.SQLITE_TOOBIG:
            return InvalidParameterError(f"{text}: a value is larger than SQLite can hold", code=name)
        case sqlite3.SQLITE_ERROR if "no such table" in str(error) or "no such column" in str(error):
            return ConfigurationError(f"{text}: Postroom's tables were changed or removed while it ran", code=name)
        case _:
            return MailboxError(text, code=name)


def unsure(error: BaseException, path: str) -> MailboxError:
    """The disk failed to sync, and then failed again when we tried to make sure that nothing is left of it."""
    return DurabilityError(
        f"{path}: {error}: the disk failed while a change was made durable, and it is not known whether "
        "the change will be there after a restart. Look at the disk before you send again",
        code=getattr(error, "sqlite_errorname", None),
    )


def _cannot_open(path: str, error: OSError) -> MailboxError:
    kind = AuthenticationError if isinstance(error, PermissionError) else MailboxConnectionError
    return kind(f"{path}: {error.strerror}: does the directory exist, and may this user write to it?")
