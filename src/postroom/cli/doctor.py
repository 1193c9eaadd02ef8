"""`postroom doctor`: can this store be used, and what should its owner know?

Only what public names tell, and what anybody can see of the file.
"""

from __future__ import annotations

import platform
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

import postroom
from postroom.cli import exits, show
from postroom.cli.exits import Failure
from postroom.cli.safe import safe
from postroom.cli.store import Command, Settings, file_of, pass_settings
from postroom.cli.words import many

# Before this, two connections that checkpoint at once can damage a WAL (sqlite.org/wal.html, the WAL-reset bug).
_WAL_FIXED = (3, 51, 3)

_SCARCE = 100 * 10**6  # bytes of free space below which somebody should make room
_NONE = 10**6  # and below which sends will fail: the log alone needs more


class Finding(NamedTuple):
    level: str  # ok, note, bad
    about: str
    text: str
    code: int = exits.OK


@click.command(cls=Command)
@pass_settings
def doctor(settings: Settings) -> int:
    """Check the store, and say what its owner should know.

    In a pipe a line each, between tabs: level (ok, note or bad), about, text. Exit code 0 unless something is bad.
    """
    findings = list(examine(settings))
    if settings.json:
        show.document([{"level": f.level, "about": f.about, "text": f.text} for f in findings])
    elif show.on_terminal():
        from rich.text import Text

        marks = {"ok": ("✓", "green"), "note": ("!", "yellow"), "bad": ("✗", "bold red")}
        for found in findings:
            mark, style = marks[found.level]
            text = Text.assemble((mark, style), f" {found.about:<11} {safe(found.text)}")
            show.console().print(text, soft_wrap=True)
    else:
        for found in findings:
            show.line("\t".join((found.level, found.about, safe(found.text))))
    return next((found.code for found in findings if found.code), exits.OK)


def examine(settings: Settings) -> Iterator[Finding]:
    yield Finding("ok", "versions", f"postroom {postroom.__version__}, Python {platform.python_version()}")
    try:
        with settings.client() as client:
            names = client.list_queues()
            infos = [client.info(name) for name in names]
            yield Finding("ok", "store", f"{client.capabilities.store} answers")
            yield from _promises(client.capabilities)
            for told in client.examine():
                yield Finding(told.level, told.about, told.text, exits.FAILED if told.level == "bad" else exits.OK)
    except (Failure, postroom.MailboxError) as error:
        yield Finding("bad", "store", str(error), exits.code_of(error) or exits.FAILED)
        path = file_of(settings.url)
        if path is not None and path.exists():
            yield from _room(path)  # may well be why
        return
    yield Finding("ok", "queues", f"{many(len(names), 'queue')}, {many(sum(i.total for i in infos), 'message')}")
    for info in infos:
        if info.dead:
            hint = f"'postroom dlq ls {info.name}' shows why"
            yield Finding("note", "dead", f"{info.name}: {many(info.dead, 'dead letter')}; {hint}")
        if info.status != postroom.QueueStatus.ACTIVE:
            yield Finding("note", "status", f"{info.name} is {info.status.replace('_', ' ')}")
    path = file_of(settings.url)
    if path is not None:
        yield from _file(path)


def _promises(store: postroom.Capabilities) -> Iterator[Finding]:
    kept = {postroom.Level.YES: "ok", postroom.Level.WEAKER: "note", postroom.Level.NO: "note"}
    for level, what, key in (
        (store.survives_crash, "a crash of the process", "survives_crash"),
        (store.survives_power_loss, "a power cut", "survives_power_loss"),
    ):
        text = f"{'kept over' if level is postroom.Level.YES else 'not safe over'} {what}"
        yield Finding(kept[level], "durability", text + (f": {store.notes[key]}" if key in store.notes else ""))


def _room(path: Path) -> Iterator[Finding]:
    import shutil

    free = shutil.disk_usage(path).free
    text = f"{free // 10**6:,} MB free on the filesystem of {path}"
    if free < _NONE:
        yield Finding("bad", "room", f"{text}: nothing can be sent or acknowledged; make room", exits.FAILED)
    elif free < _SCARCE:
        yield Finding("note", "room", f"{text}: make room; when it is used up, nothing can be sent or acknowledged")
    else:
        yield Finding("ok", "room", text)


def _file(path: Path) -> Iterator[Finding]:
    yield from _room(path)
    for part in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        try:
            mode = stat.S_IMODE(part.stat().st_mode)
        except OSError:
            continue  # -wal and -shm are there only while somebody has the file open
        if mode & 0o077:
            yield Finding("note", "file", f"{part} is open to other users ({mode:04o}): chmod 600 {part}")
        elif part == path:
            yield Finding("ok", "file", f"{part}, for its owner only ({mode:04o})")
    from sqlite3 import sqlite_version, sqlite_version_info

    if sqlite_version_info >= _WAL_FIXED:
        yield Finding("ok", "SQLite", sqlite_version)
    else:
        yield Finding(
            "note",
            "SQLite",
            f"{sqlite_version} has the WAL-reset bug (fixed in 3.51.3): Postroom's processes checkpoint in turn and "
            "are safe from it; a program that opens this file by itself should say PRAGMA wal_autocheckpoint=0 on each "
            "connection, or all use a SQLite of 3.51.3 or later",
        )
