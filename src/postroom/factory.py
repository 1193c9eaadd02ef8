"""From a URL, the environment or a config to an open driver."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal, TypeAlias

from postroom.core.address import Address, check_namespace, parse_url
from postroom.drivers.api import Driver
from postroom.errors import ConfigurationError
from postroom.flows.link import Link

Flavour: TypeAlias = Literal["sync", "async"]
Opener: TypeAlias = Callable[..., Driver]  # open(address, *, flavour, **options)

# Module names, not functions: a store's client library is imported when its first URL is opened.
_BUILT_IN = {"memory": "postroom.drivers.memory", "sqlite": "postroom.drivers.sqlite"}
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
        opener: Opener = import_module(_BUILT_IN[scheme]).open
        return opener
    for point in entry_points(group="postroom.drivers", name=scheme):
        found: Opener = point.load()
        return found
    known = sorted({*_BUILT_IN, *_registered, *(point.name for point in entry_points(group="postroom.drivers"))})
    raise ConfigurationError(f"no driver for {scheme}://; known are {', '.join(f'{name}://' for name in known)}")


def url_from_environment() -> str:
    url = os.environ.get("POSTROOM_URL")
    if not url:
        raise ConfigurationError("no store given: pass a URL such as sqlite:///shop.db, or set POSTROOM_URL")
    return url


def open_link(url: str | None, flavour: Flavour, options: dict[str, Any]) -> tuple[Link, Address]:
    """The driver of a URL, opened for one flavour, and the link around it.

    `max_body`, `namespace`, `dispatcher` and `backoff` are understood for every store; the driver reads the rest, and
    refuses what it does not know.
    """
    address = parse_url(url_from_environment() if url is None else url)
    shared = {key: options.pop(key) for key in ("max_body", "dispatcher", "backoff") if key in options}
    from_url = dict(address.options)
    max_body = shared.get("max_body", from_url.pop("max_body", None))
    if max_body is not None:
        try:
            max_body = int(max_body)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"max_body is a number of bytes, not {max_body!r:.80}") from error
        if max_body < 1:
            raise ConfigurationError(f"max_body is a number of bytes above 0, not {max_body}")
    namespace = options.pop("namespace", from_url.pop("namespace", os.environ.get("POSTROOM_NAMESPACE", "")))
    bare = Address(
        address.scheme, address.location, address.host, address.port, address.user, address.password, from_url
    )
    driver = opener_of(address.scheme)(bare, flavour=flavour, namespace=check_namespace(namespace), **options)
    dispatcher = shared.get("dispatcher")
    link = Link(driver, max_body=max_body, backoff=shared.get("backoff"))
    if dispatcher is not None:
        link.emit = dispatcher.dispatch
    return link, address
