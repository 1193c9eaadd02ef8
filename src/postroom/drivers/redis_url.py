"""Where a Redis is, read from a URL: one server, a cluster, or what Sentinel watches over.

Several hosts stand in one URL (`redis+cluster://a:7000,b:7000`), so the host part is read here and not by `urlsplit`. A
part that cannot be a host is never repeated in an error: with a password that was not quoted it may be half of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Literal, Self, TypeAlias

from postroom.core.address import Address
from postroom.errors import ConfigurationError

Kind: TypeAlias = Literal["single", "cluster", "sentinel", "unix"]
SCHEMES = (
    *("redis", "rediss", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel", "redis+unix"),
    *("valkey", "valkeys", "valkey+cluster", "valkeys+cluster", "valkey+sentinel", "valkeys+sentinel", "valkey+unix"),
)
MAX_DB = 65_535
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})\Z")
_KINDS: dict[str, Kind] = {"": "single", "cluster": "cluster", "sentinel": "sentinel", "unix": "unix"}
_PORTS = {"single": 6379, "cluster": 6379, "sentinel": 26379}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One store's whereabouts, without credentials."""

    kind: Kind
    tls: bool = False
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""  # of a unix socket
    service: str = ""  # what Sentinel calls the primary
    db: int | None = None  # None: the URL does not say
    name: str  # for errors: scheme, hosts and path; no user, no password, no options

    @classmethod
    def of(cls, address: Address) -> Self:
        base, _, suffix = address.scheme.partition("+")
        kind = _KINDS.get(suffix, "single")
        name = f"{address.scheme}://{address.location}"
        if kind == "unix":
            if not address.location.startswith("/") or len(address.location) == 1 or "\0" in address.location:
                raise _malformed(address, "a unix socket's path begins with the third slash, as in /run/redis.sock")
            return cls(kind=kind, path=address.location, name=name)
        authority, _, rest = address.location.partition("/")
        hosts = _hosts(address, authority, _PORTS[kind])
        service = ""
        if kind == "sentinel":
            service, _, rest = rest.partition("/")
            if not service or not service.isprintable() or "@" in service:
                raise _malformed(
                    address, "after the Sentinels comes the name of what they watch, as in h:26379/mymaster"
                )
        if kind == "single" and len(hosts) > 1:
            raise ConfigurationError(
                f"{address.scheme}:// names one server; for a cluster say {base}+cluster://a:7000,b:7000, for "
                f"Sentinel {base}+sentinel://a:26379,b:26379/mymaster"
            )
        return cls(
            kind=kind,
            tls=base.endswith("s") and base != "redis",
            hosts=hosts,
            service=service,
            db=_db(address, rest.rstrip("/"), kind),
            name=name,
        )


def _hosts(address: Address, authority: str, port: int) -> tuple[tuple[str, int], ...]:
    if not authority and port == _PORTS["sentinel"]:
        raise _malformed(address, "name at least one Sentinel, as in h:26379/mymaster")
    if not authority and address.scheme.endswith("+cluster"):
        raise _malformed(address, "name at least one node, as in a:7000,b:7000")
    return tuple(_host(address, part, port) for part in (authority or "localhost").split(","))


def _host(address: Address, text: str, port: int) -> tuple[str, int]:
    """`h`, `h:p`, `[::1]` or `[::1]:p`."""
    wrong = "after the slashes comes host:port"
    if text.startswith("["):
        host, closed, after = text[1:].partition("]")
        try:
            IPv6Address(host)
        except ValueError:
            closed = ""
        if not closed or (after and not after.startswith(":")):
            raise _malformed(address, "an IPv6 address stands in brackets, as in [::1]:6379")
        number = after[1:]
    else:
        host, _, number = text.partition(":")
        if not _HOST.match(host):
            raise _malformed(address, wrong)
    if not number:
        return host, port
    if not number.isascii() or not number.isdigit() or not 0 < int(number[:6]) <= 65_535 or len(number) > 5:
        raise _malformed(address, f"{wrong}, and a port is a number from 1 to 65535")
    return host, int(number)


def _db(address: Address, text: str, kind: Kind) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 5 or int(text) > MAX_DB:
        raise _malformed(address, f"what follows the last slash is the number of a database, 0 to {MAX_DB}")
    if kind == "cluster" and int(text):
        raise ConfigurationError(f"{address.scheme}://…: a cluster has database 0 alone; use namespace= to keep apart")
    return int(text)


def _malformed(address: Address, hint: str) -> ConfigurationError:
    return ConfigurationError(
        f"{address.scheme}://…: {hint}. Characters like @ : / # ? in a user or password are written as %40 %3A %2F "
        "%23 %3F, or given apart: connect(url, username=..., password=...)"
    )
