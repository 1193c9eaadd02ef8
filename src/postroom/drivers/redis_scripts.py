"""The Lua files, put together: one script a verb, and the keys that every one of them is given.

A script is `keys.lua` and `begin.lua`, the short way of the verb if it has one, `life.lua`, and the verb's own file;
what comes first may return before the rest is looked at, so the usual case pays for little.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from postroom.core.address import is_dead_letters, origin_of

KEYS = (
    "pending", "invisible", "later", "data", "meta", "bell",
    "info", "memo", "timers", "expiry", "dedup", "dedup:until",
    "line", "heads", "locks", "waiters", "all",
    "dead:pending", "dead:invisible", "dead:later", "dead:data", "dead:meta", "dead:bell",
)  # fmt: skip


def _read(name: str) -> str:
    return files("postroom.drivers").joinpath(f"redis_lua/{name}.lua").read_text(encoding="utf-8")


class Script:
    """One verb: its text, its name in the server's cache, and the start of the command that calls it."""

    __slots__ = ("by_sha", "by_text", "sha", "verb")

    def __init__(self, verb: str, *parts: str) -> None:
        text = "\n".join(_read(part) for part in parts).encode()
        self.sha = hashlib.sha1(text, usedforsecurity=False).hexdigest()
        self.verb = verb
        count = bulk(b"%d" % len(KEYS))
        self.by_sha = bulk(b"EVALSHA") + bulk(self.sha.encode()) + count
        self.by_text = bulk(b"EVAL") + bulk(text) + count


_PARTS: dict[str, tuple[str, ...]] = {
    "put": ("keys", "begin", "put_plain", "life", "put"),
    "claim": ("keys", "begin", "acknowledge", "lend", "claim_plain", "life", "settling", "claim"),
    "claims": ("keys", "begin", "lend", "claims"),
    "settle": ("keys", "begin", "acknowledge", "settle_plain", "life", "settling", "settle"),
    "ensure": ("keys", "ensure"),
}


@cache
def script(verb: str) -> Script:
    return Script(verb, *_PARTS.get(verb, ("keys", "begin", "life", verb)))


class Keys:
    """The keys of one queue, ready for the wire."""

    __slots__ = ("all", "bell", "dead", "half", "name", "packed", "routing", "title")

    def __init__(self, namespace: str, queue: str) -> None:
        origin = origin_of(queue)
        root = f"{{queue:{namespace}/{origin}}}:" if namespace else f"{{queue:{origin}}}:"
        self.name = queue
        self.dead = is_dead_letters(queue)
        self.half = b"dead" if self.dead else b""
        self.title = origin.encode()
        self.packed = b"".join(bulk((root + key).encode()) for key in KEYS)
        self.routing = root  # any key of the slot
        self.bell = (root + ("dead:bell" if self.dead else "bell")).encode()
        self.all = (root + "all").encode()


def registry(namespace: str) -> str:
    """The set that names the queues of a namespace. No queue's name is empty, so it is no key of a queue."""
    return f"{{queue:{namespace}/}}:names" if namespace else "{queue:}:names"


def bulk(value: bytes) -> bytes:
    """A bulk string of the wire protocol."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


_CONSTANT = len(KEYS) + 3


def command(called: bytes, keys: Keys, arguments: list[bytes]) -> bytes:
    """An EVALSHA or EVAL, packed: the constant part was packed once."""
    packed = [b"$%d\r\n%b\r\n" % (len(one), one) for one in arguments]
    return b"".join((b"*%d\r\n" % (_CONSTANT + len(packed)), called, keys.packed, *packed))


def plain(*words: bytes) -> bytes:
    """Any other command, packed."""
    return b"*%d\r\n" % len(words) + b"".join(map(bulk, words))
