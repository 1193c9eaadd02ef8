"""Which store a command talks to, and how it is opened.

The global options may stand before or after the command's name; all of them land in one Settings.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import click

import postroom
from postroom.cli.exits import FAILED, UNREACHABLE, Failure, complain
from postroom.cli.safe import safe


@dataclass
class Settings:
    """The global options."""

    url: str | None = None
    namespace: str | None = None
    json: bool = False

    def connect(self) -> postroom.QueueClient:
        if not self.url:
            raise click.UsageError("no store: give --url, such as sqlite:///shop.db, or set POSTROOM_URL")
        return postroom.connect(self.url, **self._options())

    def _options(self) -> dict[str, str]:
        """What the URL leaves open, from the environment. `connect` reads these variables only where it reads the URL
        from there, too, and here a --url must not lead to another tenant's queues."""
        in_url = dict(parse_qsl(_parts(self.url).query))
        options = {
            name: os.environ[variable]
            for name, variable in (("namespace", "POSTROOM_NAMESPACE"), ("max_body", "POSTROOM_MAX_BODY"))
            if os.environ.get(variable) and name not in in_url
        }
        return options if self.namespace is None else {**options, "namespace": self.namespace}

    @contextmanager
    def client(self, *, may_create: bool = False) -> Iterator[postroom.QueueClient]:
        """An open client. Unless the command makes queues, a file that is not there is an error and is not made."""
        path = file_of(self.url)
        if path is not None and not may_create and not path.exists():
            raise Failure(
                f"{path}: no such file, so there are no queues; check --url, or make one with 'postroom create'",
                UNREACHABLE,
            )
        with self.connect() as client:
            if not client.capabilities.survives_crash:
                complain(f"note: {client.capabilities.store} keeps its messages only while this command runs")
            yield client


pass_settings: Callable[..., Any] = click.make_pass_decorator(Settings, ensure=True)


def _parts(url: str | None) -> SplitResult:
    try:
        return urlsplit(url or "")
    except ValueError:
        return urlsplit("")  # what is wrong with it is for `connect` to say


def file_of(url: str | None) -> Path | None:
    """The file a URL names, if its store is one file."""
    parts = _parts(url)
    if parts.scheme != "sqlite" or not parts.path.startswith("/") or len(parts.path) < 2:
        return None
    return Path(unquote(parts.path)[1:])


def existing(client: postroom.QueueClient, queue: str, *, hint: str = "") -> postroom.QueueInfo:
    """What the store knows about a queue. Opening a mailbox would make it, and a typo must not."""
    try:
        return client.info(queue)
    except postroom.QueueNotFoundError:
        names = client.list_queues()
        near = difflib.get_close_matches(queue, names, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        make = f"'postroom create {safe(queue)}' makes it"
        look = "'postroom ls' shows those there are; " if names and not near else ""
        raise Failure(f"{queue}: no such queue{meant}; {look}{make}{hint}", FAILED) from None


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value not in (None, False):
            setattr(ctx.ensure_object(Settings), name, value)

    return callback


def global_options(*, hidden: bool) -> list[click.Parameter]:
    """The options every command takes; shown in the help of the group only."""
    return [
        click.Option(
            ["--url"],
            metavar="URL",
            envvar=None if hidden else "POSTROOM_URL",
            show_envvar=True,
            help="The store: sqlite:///shop.db (relative), sqlite:////var/lib/shop.db (absolute), ...",
            expose_value=False,
            hidden=hidden,
            callback=_set("url"),
        ),
        click.Option(
            ["--namespace"],
            metavar="NAME",
            help="Keeps tenants or environments apart in one store.  [env var: POSTROOM_NAMESPACE]",
            expose_value=False,
            hidden=hidden,
            callback=_set("namespace"),
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            help="Print JSON: one document, or one object a line where messages are listed.",
            expose_value=False,
            hidden=hidden,
            callback=_set("json"),
        ),
    ]


class ReaderGone(Exception):
    """Who reads our output has gone away. click would take a BrokenPipeError for a failure and exit with 1."""


class Command(click.Command):
    """A command that takes the global options too: people write `postroom ls --json`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(global_options(hidden=True))


class Group(click.Group):
    """Lists its commands in the order in which they were added: what one needs first comes first."""

    command_class = Command
    group_class = type

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


QUEUE = click.argument("queue")
