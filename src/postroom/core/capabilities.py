"""What a store can do, what it does in a weaker way, and what it refuses.

Tests, docs and flows ask these fields and never a store's name. A driver states every gap here; one that is not
stated is a bug, and the conformance suite treats it as one.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from postroom.errors import InvalidParameterError


class Level(enum.IntEnum):
    """How well a store does something."""

    NO = 0  # refused with UnsupportedError
    WEAKER = 1  # done, with the weakness named in `notes`
    YES = 2


NO, WEAKER, YES = Level.NO, Level.WEAKER, Level.YES


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """One store's abilities. The levels are the rows of the table in the reference."""

    store: str
    survives_crash: Level  # of the process
    survives_power_loss: Level
    survives_failover: Level | None = None  # None: nothing to fail over
    stale_token_refused: Level = YES
    late_acknowledge: Level = YES
    extend_to_any_time: Level = YES
    visibility_per_receive: Level = YES
    delayed_nack: Level = YES
    uncounted_return: Level = YES
    claim_retry: Level = YES  # repeat or abandon a claim by its id
    schedule: Level = YES
    ttl: Level = YES
    dedup: Level = YES
    sessions: Level = YES
    session_state: Level = YES
    priority: Level = YES
    capacity: Level = YES
    dead_letters: Level = YES  # with reason, in one atomic step
    transactional: Level = NO  # enqueue in the caller's transaction
    exact_stats: Level = YES
    peek: Level = YES
    purge: Level = YES
    atomic_reply: Level = YES  # an acknowledge and its replies in one step
    clock: str
    max_body: int | None = None  # the store's own limit in bytes; None: as configured
    max_delay: float | None = None
    max_poll: float | None = None  # the longest wait of one claim; longer ones are looped above
    by_reference: bool = False  # bodies are the sender's objects, not bytes
    groups_commits: bool = False  # concurrent callers gain by sharing one call: coalesce them
    notes: dict[str, str] = {}

    def can(self, ability: str) -> bool:
        """Whether the store does `ability` at all, be it in a weaker way."""
        if ability not in LABELS:
            raise InvalidParameterError(f"{ability!r:.80} is no ability; there are {', '.join(LABELS)}")
        return bool(getattr(self, ability))


LABELS = {
    "survives_crash": "kept after a process crash",
    "survives_power_loss": "kept after power loss",
    "survives_failover": "kept after failover",
    "stale_token_refused": "stale token changes nothing",
    "late_acknowledge": "late acknowledge",
    "extend_to_any_time": "extend to any time up to 12 h",
    "visibility_per_receive": "visibility chosen per receive",
    "delayed_nack": "delayed nack",
    "uncounted_return": "uncounted return",
    "claim_retry": "claim retry and abandon by id",
    "schedule": "schedule",
    "ttl": "message TTL",
    "dedup": "deduplication",
    "sessions": "sessions",
    "session_state": "session state",
    "priority": "priority",
    "capacity": "capacity",
    "dead_letters": "dead letters with reason, atomic",
    "transactional": "enqueue in the caller's transaction",
    "exact_stats": "exact stats",
    "peek": "peek",
    "purge": "purge",
    "atomic_reply": "reply and acknowledge in one step",
}


class Finding(msgspec.Struct, frozen=True):
    """Something the owner of a store should know about it."""

    level: Literal["ok", "note", "bad"]
    about: str
    text: str
