"""What a URL and its options say, checked; the client they make; and what the store can do with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from postroom.core.address import Address, check_namespace
from postroom.core.capabilities import NO, WEAKER, YES, Capabilities
from postroom.core.limits import HOUR, seconds, text, whole
from postroom.drivers.clock import Clock
from postroom.drivers.redis_kinds import where_of
from postroom.drivers.redis_url import MAX_DB, Place
from postroom.errors import ConfigurationError, InvalidParameterError

MAX_SILENCE = 5.0  # seconds: how long a connection may say nothing before it counts as dead
MAX_REPLICAS_TIMEOUT = 4.0  # WAIT blocks its connection: it must end before that
_SECRETS = ("password", "sentinel_password")
_FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to use one store. The first part is for every client, the second for those that we make."""

    namespace: str = ""
    clock: Clock | None = None  # for tests; left out: the server's
    replicas: int = 0  # how many must have a send before it returns
    replicas_timeout: float = 1.0  # seconds to wait for them
    timeout: float = 10.0  # seconds a call may take, reconnects and retries included
    eviction: Literal["refuse", "allow"] = "refuse"  # of a server that throws keys away when its memory is full

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    db: int | None = None
    client_name: str | None = None
    health_check_interval: float = 0.0  # seconds of rest after which a connection is tried before it is used; 0: never
    max_connections: int | None = None
    protocol: Literal[2, 3] | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    ssl_ca_certs: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_check_hostname: bool = True

    where: str = "redis://"  # for errors; nothing secret

    @classmethod
    def of(cls, address: Address, options: dict[str, Any]) -> Self:
        """What a URL and the options beside it say. An option beats the URL."""
        given: dict[str, Any] = {"username": address.user, "password": address.password}
        given = {name: value for name, value in given.items() if value is not None}
        given |= {**address.options, **options}
        if unknown := sorted(given.keys() - set(OPTIONS)):
            raise ConfigurationError(
                f"{address.scheme}:// knows the options {', '.join(OPTIONS)}, not {', '.join(unknown)}"
            )
        place = Place.of(address)
        read = cls(**_read(given), where=place.name)
        read._check(place)
        return read

    @classmethod
    def of_client(cls, client: object, options: dict[str, Any]) -> Self:
        """The options of a mailbox over a client that the user made."""
        if alien := sorted(options.keys() - set(USE_OPTIONS)):
            theirs = [name for name in alien if name in OPTIONS]
            raise ConfigurationError(
                f"{', '.join(theirs)}: say so when you make the client"
                if theirs == alien
                else f"a Redis mailbox knows the options {', '.join(USE_OPTIONS)}, not {', '.join(alien)}"
            )
        read = cls(**_read(options), where=where_of(client))
        read._check(None)
        return read

    def _check(self, place: Place | None) -> None:
        if self.replicas and self.replicas_timeout >= self.timeout:
            raise ConfigurationError(
                f"replicas_timeout ({self.replicas_timeout:g} s) is to be shorter than timeout ({self.timeout:g} s)"
            )
        if place is None:
            return
        name = place.name
        if self.db is not None and place.db is not None and self.db != place.db:
            raise ConfigurationError(f"{name}: the URL says database {place.db}, the option db says {self.db}")
        if self.db and place.kind == "cluster":
            raise ConfigurationError(f"{name}: a cluster has database 0 alone; use namespace= to keep apart")
        if place.kind != "sentinel" and (self.sentinel_username or self.sentinel_password):
            raise ConfigurationError(f"{name}: sentinel_username and sentinel_password go with redis+sentinel://")
        tls = [option for option in OPTIONS if option.startswith("ssl_") and getattr(self, option) not in (None, True)]
        if tls and not place.tls:
            raise ConfigurationError(f"{name}: without TLS there is no {', '.join(tls)}; its scheme is rediss://")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ConfigurationError(f"{name}: ssl_keyfile goes with ssl_certfile")

    @property
    def silence(self) -> float:
        """The limit of one connect and of one answer."""
        return min(MAX_SILENCE, self.timeout)


def _within(what: Callable[[Any, str, Any, Any], Any], low: float, high: float) -> Callable[[Any, str], Any]:
    """A number between `low` and `high`, as a number or, from a URL, as text."""
    kind = int if what is whole else float

    def read(value: Any, name: str) -> Any:
        return what(kind(value) if isinstance(value, str) else value, name, low, high)

    return read


def _text(value: Any, name: str) -> str:
    if name in _SECRETS:  # any characters; and never in an error
        if not isinstance(value, str) or not value:
            raise InvalidParameterError(f"{name} is a text of at least one character, not {type(value).__name__}")
        return value
    return text(value, name)


def _label(value: Any, name: str) -> str:
    if " " in text(value, name) or not value.isascii():
        raise InvalidParameterError(f"{name} is ASCII without spaces: the server refuses others, not {value!r:.80}")
    return str(value)


def _flag(value: Any, name: str) -> bool:
    read = _FLAGS.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(read, bool):
        raise InvalidParameterError(f"{name} is true or false, not {value!r:.80}")
    return read


def _file(value: Any, name: str) -> str:
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    if not isinstance(path, str) or not os.path.isfile(path):
        raise InvalidParameterError(f"{name} is the path of a file, and there is none at {value!r:.200}")
    return path


def _eviction(value: Any, name: str) -> str:
    if value not in ("refuse", "allow"):
        raise InvalidParameterError(f"{name} is refuse or allow, not {value!r:.80}")
    return str(value)


def _clock(value: Any, name: str) -> Clock | None:
    if value is not None and not callable(getattr(value, "now", None)):
        raise InvalidParameterError(f"{name} must be a Clock, not {type(value).__name__}")
    return value  # type: ignore[no-any-return]  # a duck: `moved` and `patience` are asked for where they are used


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "namespace": lambda value, _: check_namespace(value),
    "clock": _clock,
    "replicas": _within(whole, 0, 10),
    "replicas_timeout": _within(seconds, 0.01, MAX_REPLICAS_TIMEOUT),
    "timeout": _within(seconds, 0.05, HOUR),
    "eviction": _eviction,
    "username": _text,
    "password": _text,
    "db": _within(whole, 0, MAX_DB),
    "client_name": _label,
    "health_check_interval": _within(seconds, 0.0, HOUR),
    "max_connections": _within(whole, 2, 100_000),
    "protocol": _within(whole, 2, 3),
    "sentinel_username": _text,
    "sentinel_password": _text,
    "ssl_ca_certs": _file,
    "ssl_certfile": _file,
    "ssl_keyfile": _file,
    "ssl_check_hostname": _flag,
}
OPTIONS = tuple(_READERS)
USE_OPTIONS = OPTIONS[: OPTIONS.index("username")]  # what is ours, whoever made the client
assert {*OPTIONS, "where"} == {known.name for known in fields(Settings)}


def _read(given: dict[str, Any]) -> dict[str, Any]:
    read = {}
    for name, value in given.items():
        try:
            read[name] = _READERS[name](value, name)
        except InvalidParameterError as error:
            raise ConfigurationError(str(error)) from error
        except ValueError as error:  # of int() and float()
            raise ConfigurationError(f"{name} is a number, not {value!r:.80}") from error
    return read


def capabilities(settings: Settings, *, cluster: bool) -> Capabilities:
    told = (
        f"a send returns when {settings.replicas} replicas have it, else raises DurabilityError; a failover may still "
        "prefer a replica that has not"
        if settings.replicas
        else "replication is asynchronous: a failover may undo the latest. replicas=n makes a send wait for n replicas"
    )
    notes = {
        "survives_crash": "of the server, with appendonly yes; without, it forgets what its last snapshot lacks",
        "survives_power_loss": "appendfsync everysec may lose the last second; appendfsync always loses nothing",
        "survives_failover": told,
        "atomic_reply": "replies to queues in other slots are sent before the acknowledge, each under its dedup id"
        if cluster
        else "replies are sent before the acknowledge, each under its dedup id, as a cluster with many slots needs it",
        "transactional": "a script on one slot takes part in no transaction of yours; use an outbox",
    }
    return Capabilities(
        store="Redis",
        survives_crash=YES,
        survives_power_loss=WEAKER,
        survives_failover=WEAKER,
        atomic_reply=WEAKER,
        transactional=NO,
        groups_commits=True,
        clock="TIME of the server, in the script",
        notes=notes,
    )
