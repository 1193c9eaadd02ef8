"""Names and URLs: what a queue may be called and where a store is.

Names are values, never identifiers: they reach SQL and keys as parameters. The alphabet is narrow so that every
store can carry every name, and so that `!` and `:` stay free for what we add ourselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from postroom.errors import ConfigurationError, InvalidParameterError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}\Z")
_DEAD = "!dead"  # outside the alphabet: no user's queue can be called so
_SECRETS = ("password", "secret", "token", "key")
_HARMLESS = re.compile(r"[\w./\\~-]{1,80}\Z")  # a path or a name: nothing a password could stand in


def check_name(name: str, what: str = "a queue name") -> str:
    """`name` if it is one we can carry everywhere; else an error that says what is wrong with it."""
    if isinstance(name, str) and _NAME.match(name):
        return name
    if not isinstance(name, str):
        raise InvalidParameterError(f"{what} must be a str, not {type(name).__name__} {name!r:.80}")
    hint = ""
    if "://" in name or name.startswith("arn:"):
        hint = " A URL or ARN is not a name: give connect() the URL and the mailbox its bare name."
    elif ":" in name:
        hint = " For tenants or environments use namespace= when connecting instead of a colon."
    raise InvalidParameterError(
        f"{what} must match [A-Za-z0-9][A-Za-z0-9_.-]{{0,79}} (80 characters at most), not {name!r:.120}.{hint}"
    )


def check_queue(name: str) -> str:
    """Like `check_name`, for calls that also take the name of a dead-letter queue."""
    if isinstance(name, str) and name.endswith(_DEAD):
        check_name(name[: -len(_DEAD)])
        return name
    return check_name(name)


def check_namespace(namespace: str) -> str:
    """The default namespace is the empty one; any other follows the rules for names."""
    return namespace if namespace == "" else check_name(namespace, "a namespace")


def dead_letters_of(name: str) -> str:
    """The queue that keeps the dead letters of `name`."""
    return name + _DEAD


def is_dead_letters(name: str) -> bool:
    return name.endswith(_DEAD)


def origin_of(name: str) -> str:
    """The queue whose dead letters `name` keeps."""
    return name.removesuffix(_DEAD)


@dataclass(frozen=True)
class Address:
    """Where a store is, taken from a URL. Its text never shows the password."""

    scheme: str
    location: str = ""  # the path or host part, as the driver of that scheme reads it
    host: str | None = None
    port: int | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    options: dict[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        user = f"{self.user}{':***' if self.password else ''}@" if self.user or self.password else ""
        shown = "&".join(
            f"{key}={'***' if any(word in key.lower() for word in _SECRETS) else value}"
            for key, value in self.options.items()
        )
        return f"{self.scheme}://{user}{self.location}{'?' + shown if shown else ''}"


def parse_url(url: str) -> Address:
    """Split a store's URL; nothing is opened.

    `sqlite:///shop.db` is a relative path and `sqlite:////var/lib/shop.db` an absolute one, as in SQLAlchemy.
    """
    if not isinstance(url, str) or "://" not in url:
        raise ConfigurationError(f"a store's URL looks like sqlite:///shop.db or memory://, not like {_shown(url)}")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"{url.partition('://')[0]:.20}://…: this is no URL: {error}") from error
    if parts.fragment or url.endswith("#"):
        # Cut off silently, it would name another file or, within a password, another host.
        raise ConfigurationError(f"{parts.scheme}://…: '#' ends a URL; write it as %23")
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise ConfigurationError(f"{parts.scheme}://…: the options after '?' must be name=value pairs") from error
    options: dict[str, str] = {}
    for key, value in pairs:
        if key in options:
            raise ConfigurationError(f"{parts.scheme}://…: option {key!r} is given twice")
        options[key] = value
    authority = parts.netloc.rpartition("@")[2]
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None  # several hosts, as cluster URLs have: the driver reads `location`
    return Address(
        scheme=parts.scheme,
        location=unquote(authority + parts.path),
        host=host,
        port=port,
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        options=options,
    )


def _shown(url: object) -> str:
    """What was given instead of a URL. A text is repeated only if no password can be in it."""
    if not isinstance(url, str):
        return f"a {type(url).__name__}"
    if url and not _HARMLESS.match(url):
        return "a text without '://'"
    return repr(url)
