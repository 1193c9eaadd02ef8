"""Names for messages and claims, cheap enough for the hot path.

A message id needs to be unique: a random prefix a process and a counter (0.1 us; uuid4 takes 1.5). A claim id must also
be impossible to guess, because it proves a lease: 128 random bits, drawn from a pool, as one system call gives many.
"""

from __future__ import annotations

import os
from itertools import count

_POOL = 256


class _Source:
    prefix: str
    number: count[int]
    pool: list[str]

    def __init__(self) -> None:
        self.reseed()

    def reseed(self) -> None:
        self.prefix = os.urandom(8).hex() + "-"
        self.number = count(1)
        self.pool = []


_source = _Source()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_source.reseed)  # else parent and child would hand out the same ids


def new_id() -> str:
    """A message id nobody else has."""
    return f"{_source.prefix}{next(_source.number):x}"


def new_token() -> str:
    """128 random bits in hex."""
    try:
        return _source.pool.pop()
    except IndexError:
        drawn = os.urandom(16 * _POOL).hex()
        _source.pool.extend([drawn[i : i + 32] for i in range(32, len(drawn), 32)])
        return drawn[:32]
