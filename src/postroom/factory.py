"""From a URL, the environment or a config to an open driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, cast
from urllib.parse import quote

from postroom.core.address import Address, check_namespace, parse_url
from postroom.core.policy import Backoff
from postroom.drivers.api import Driver
from postroom.errors import ConfigurationError
from postroom.flows.link import Link

C = TypeVar("C")

Flavour: TypeAlias = Literal["sync", "async"]
Opener: TypeAlias = Callable[..., Driver]  # open(address, *, flavour, **options)

# Module names, not functions: a store's client library is imported when its first URL is opened.
_REDIS = "postroom.drivers.redis"
_BUILT_IN = {
    "memory": "postroom.drivers.memory",
    "sqlite": "postroom.drivers.sqlite",
    **dict.fromkeys(
        ["redis+unix", "valkey+unix"]
        + [name + kind for name in ("redis", "rediss", "valkey", "valkeys") for kind in ("", "+cluster", "+sentinel")],
        _REDIS,
    ),
}
_registered: dict[str, Opener] = {}


def register(scheme: str, opener: Opener) -> None:
    """Teach connect() a scheme. Packages do the same with an entry point in the group `postroom.drivers`."""
    if not scheme or not scheme.replace("+", "").isalnum() or scheme != scheme.lower():
        raise ConfigurationError(f"a scheme is lower-case letters, digits and '+', not {scheme!r:.80}")
    _registered[scheme] = opener


def opener_of(scheme: str) -> Opener:
    if scheme in _registered:
        return _registered[scheme]
    if scheme in _BUILT_IN:
        opener: Opener = driver_module(scheme).open
        return opener
    from importlib.metadata import entry_points  # 15 ms, needed for drivers of other packages only

    for point in entry_points(group="postroom.drivers", name=scheme):
        found: Opener = point.load()
        return found
    known = sorted({*_BUILT_IN, *_registered, *(point.name for point in entry_points(group="postroom.drivers"))})
    raise ConfigurationError(f"no driver for {scheme}://; known are {', '.join(f'{name}://' for name in known)}")


def driver_module(scheme: str) -> ModuleType:
    """The module of one of our own drivers. It is called as the extra that brings its client library."""
    name = _BUILT_IN[scheme]
    try:
        return import_module(name)
    except ImportError as error:
        if (error.name or "postroom").partition(".")[0] == "postroom":
            raise
        extra = name.rpartition(".")[2]
        raise ConfigurationError(
            f"{scheme}:// needs a package that is missing or too old here ({error}): pip install 'postroom[{extra}]'"
        ) from error


@dataclass(frozen=True, slots=True, repr=False)
class QueueConfig:
    """Where a store is and how to open it: what `connect` takes, as a value. Its text never shows a password."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"QueueConfig({str(parse_url(self.url))!r}, options={sorted(self.options)})"

    @classmethod
    def from_env(cls) -> QueueConfig:
        """POSTROOM_URL, and POSTROOM_NAMESPACE and POSTROOM_MAX_BODY where they are set."""
        url = os.environ.get("POSTROOM_URL")
        if not url:
            raise ConfigurationError("no store given: pass a URL such as sqlite:///shop.db, or set POSTROOM_URL")
        options = {name: os.environ[variable] for name, variable in _VARIABLES if variable in os.environ}
        return cls(url, options)


_VARIABLES = (("namespace", "POSTROOM_NAMESPACE"), ("max_body", "POSTROOM_MAX_BODY"))


def open_link(url: str | None, flavour: Flavour, options: dict[str, Any]) -> tuple[Link, Address]:
    """The driver of a URL, opened for one flavour, and the link around it.

    Without a URL the environment says where and how. `namespace`, `max_body`, `dispatcher` and `backoff` are understood
    for every store; the driver reads the rest, and refuses what it does not know.
    """
    if url is None:
        config = QueueConfig.from_env()
        url, options = config.url, {**config.options, **options}
    given = parse_url(url)
    in_url = dict(given.options)

    def take(name: str, default: Any = None) -> Any:
        from_url = in_url.pop(name, default)
        return options.pop(name, from_url)

    namespace, max_body = check_namespace(take("namespace", "")), _bytes(take("max_body"))
    dispatcher, backoff = options.pop("dispatcher", None), options.pop("backoff", None)
    if backoff is not None and not isinstance(backoff, Backoff):
        raise ConfigurationError(f"backoff is a Backoff, such as Backoff(base=5), not {backoff!r:.80}")
    if dispatcher is not None and not callable(getattr(dispatcher, "dispatch", None)):
        raise ConfigurationError(f"dispatcher is a Dispatcher, not {dispatcher!r:.80}")
    address = Address(given.scheme, given.location, given.host, given.port, given.user, given.password, in_url)
    driver = opener_of(given.scheme)(address, flavour=flavour, namespace=namespace, **options)
    link = Link(driver, max_body=max_body, backoff=backoff)
    if dispatcher is not None:
        link.emit = dispatcher.dispatch
    return link, given


def _bytes(value: object) -> int | None:
    if value is None:
        return None
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if type(number) is not int or number < 1:
        raise ConfigurationError(f"max_body is a number of bytes above 0, not {value!r:.80}")
    return number


class Factory(Generic[C]):
    """The parts of `connect`, by name: from a URL, the environment, a config, or one method a store."""

    _connect: ClassVar[Callable[..., Any]]

    @classmethod
    def from_url(cls, url: str, **options: Any) -> C:
        return cast("C", cls._connect(url, **options))

    @classmethod
    def from_env(cls, **options: Any) -> C:
        """The store that POSTROOM_URL names; POSTROOM_NAMESPACE and POSTROOM_MAX_BODY are honoured."""
        return cast("C", cls._connect(None, **options))

    @classmethod
    def create(cls, config: QueueConfig) -> C:
        return cls.from_url(config.url, **config.options)

    @classmethod
    def memory(cls, name: str = "", **options: Any) -> C:
        """A store in this process: one of its own, or the one that all who say the same name share."""
        return cls.from_url(f"memory://{quote(name)}", **options)

    @classmethod
    def sqlite(cls, path: str | os.PathLike[str], **options: Any) -> C:
        """A store in a file, shared by any number of processes of this machine."""
        return cls.from_url(f"sqlite:///{quote(os.fspath(path))}", **options)

    @classmethod
    def redis(cls, server: str = "localhost", **options: Any) -> C:
        """A store in Redis or Valkey: `host`, `host:port`, or a URL that says more."""
        url = server if "://" in server else f"redis://{server}"
        if _BUILT_IN.get(parse_url(url).scheme) != _REDIS:
            raise ConfigurationError(f"redis() takes a host or a URL such as redis://host:6379/0, not {parse_url(url)}")
        return cls.from_url(url, **options)

    @staticmethod
    def register(scheme: str, opener: Opener) -> None:
        """Teach `connect` a scheme: `opener(address, *, flavour, namespace, **options)` returns a Driver."""
        register(scheme, opener)
