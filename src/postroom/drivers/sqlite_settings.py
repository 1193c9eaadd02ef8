"""What a URL and its options say, checked; and what the store can do with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self, cast

from postroom.core.address import Address, check_namespace
from postroom.core.capabilities import NO, WEAKER, YES, Capabilities
from postroom.core.limits import HOUR, seconds
from postroom.drivers.clock import Clock
from postroom.errors import ConfigurationError, InvalidParameterError

_LEVELS = ("strict", "sends", "relaxed")
_KNOWN = ("busy_timeout", "clock", "durability", "namespace", "safety_poll")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How to use one file."""

    path: str
    namespace: str = ""
    durability: Literal["strict", "sends", "relaxed"] = "sends"
    busy_timeout: float = 30.0  # seconds to wait for another process's transaction
    safety_poll: float = 0.5  # seconds between looks for what no bell told
    clock: Clock | None = None  # for tests; left out: the store's own

    @classmethod
    def of(cls, address: Address, options: dict[str, Any]) -> Self:
        given = {**address.options, **options}
        if unknown := sorted(given.keys() - set(_KNOWN)):
            raise ConfigurationError(f"sqlite:// knows the options {', '.join(_KNOWN)}, not {', '.join(unknown)}")
        durability = given.get("durability", "sends")
        if durability not in _LEVELS:
            raise ConfigurationError(f"durability is one of {', '.join(_LEVELS)}, not {durability!r:.80}")
        try:
            namespace = check_namespace(given.get("namespace", ""))
        except InvalidParameterError as error:
            raise ConfigurationError(str(error)) from error
        clock = given.get("clock")
        if clock is not None and not callable(getattr(clock, "now", None)):
            raise ConfigurationError(f"clock must be a Clock, not {type(clock).__name__}")
        return cls(
            path=path_of(address),
            namespace=namespace,
            durability=cast('Literal["strict", "sends", "relaxed"]', durability),
            busy_timeout=_seconds(given, "busy_timeout", 30.0, 0.0, HOUR),
            safety_poll=_seconds(given, "safety_poll", 0.5, 0.25, 60.0),
            clock=clock,
        )


def path_of(address: Address) -> str:
    """The path in a URL: after three slashes a relative one, after four an absolute one."""
    location = address.location
    if location in ("", "/", "/:memory:", ":memory:"):
        raise ConfigurationError(
            f"{address}: name a file, as in sqlite:///shop.db. For mailboxes that live in memory use memory://"
        )
    if not location.startswith("/"):
        raise ConfigurationError(
            f"{address}: a file's path begins after the third slash; did you mean sqlite:///{location}?"
        )
    if "\0" in location:
        raise ConfigurationError("a path has no NUL character")
    return location[1:]


def _seconds(given: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = given.get(name, default)
    try:
        return float(seconds(float(value) if isinstance(value, str) else value, name, low, high))
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from error


def capabilities(settings: Settings) -> Capabilities:
    notes = {"transactional": "sending in the caller's own transaction is not there yet"}
    if settings.durability == "relaxed":
        notes["survives_power_loss"] = "durability='relaxed' does not sync: a power cut may undo the latest sends"
    return Capabilities(
        store="SQLite",
        survives_crash=YES,
        survives_power_loss=WEAKER if settings.durability == "relaxed" else YES,
        transactional=NO,
        groups_commits=True,
        clock="boot-time clock with an offset kept in the file: never goes back, never jumps",
        notes=notes,
    )
