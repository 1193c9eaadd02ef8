"""The life of a message, as a table. The diagram in the docs is drawn from it.

States are derived from what is stored and the store's clock; nothing in the background ever moves a message.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class State(enum.StrEnum):
    """Where a message is in its life."""

    SCHEDULED = "scheduled"
    READY = "ready"
    IN_FLIGHT = "in_flight"
    LAPSED = "lapsed"
    ACKNOWLEDGED = "acknowledged"
    DEAD = "dead"
    EXPIRED = "expired"
    PURGED = "purged"


TERMINAL = frozenset({State.ACKNOWLEDGED, State.DEAD, State.EXPIRED, State.PURGED})


class Transition(NamedTuple):
    """`event` in `before` leads to one of `after`; `note` says when, or what is counted."""

    before: State | None
    event: str
    after: tuple[State, ...]
    note: str = ""


S = State
TRANSITIONS: tuple[Transition, ...] = (
    Transition(None, "send", (S.READY, S.SCHEDULED), "scheduled when given a delay"),
    Transition(S.SCHEDULED, "due", (S.READY,), "by the store's clock"),
    Transition(S.READY, "claim", (S.IN_FLIGHT,), "delivery_count + 1, new token"),
    Transition(S.READY, "limit", (S.DEAD,), "deliveries used up, seen by a claim"),
    Transition(S.READY, "ttl", (S.EXPIRED, S.DEAD), "dead where the definition says so"),
    Transition(S.SCHEDULED, "purge", (S.PURGED,)),
    Transition(S.READY, "purge", (S.PURGED,)),
    Transition(S.IN_FLIGHT, "purge", (S.PURGED,)),
    Transition(S.IN_FLIGHT, "acknowledge", (S.ACKNOWLEDGED,)),
    Transition(S.IN_FLIGHT, "nack", (S.READY, S.SCHEDULED, S.DEAD, S.EXPIRED), "dead when the count is used up"),
    Transition(S.IN_FLIGHT, "return", (S.READY, S.SCHEDULED), "delivery_count - 1"),
    Transition(S.IN_FLIGHT, "extend", (S.IN_FLIGHT,)),
    Transition(S.IN_FLIGHT, "dead_letter", (S.DEAD,)),
    Transition(S.IN_FLIGHT, "lapse", (S.LAPSED,), "lapsed_count + 1 at the next touch"),
    Transition(S.LAPSED, "acknowledge", (S.ACKNOWLEDGED,), "late; not in a session"),
    Transition(S.LAPSED, "nack", (S.READY, S.SCHEDULED, S.DEAD, S.EXPIRED), "late; not in a session"),
    Transition(S.LAPSED, "claim", (S.IN_FLIGHT,), "delivery_count + 1, the old token is stale"),
    Transition(S.LAPSED, "limit", (S.DEAD,), "deliveries used up"),
    Transition(S.DEAD, "redrive", (S.READY,), "counts reset, origin kept"),
)


def state_of(now: float, visible_at: float, lease_until: float | None) -> State:
    """The state of a stored, not yet terminal message."""
    if lease_until is not None:
        return State.IN_FLIGHT if lease_until > now else State.LAPSED
    return State.READY if visible_at <= now else State.SCHEDULED


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for before, event, after, _ in TRANSITIONS:
        lines += [f"    {before or '[*]'} --> {state}: {event}" for state in after]
    lines += [f"    {state} --> [*]" for state in sorted(TERMINAL - {State.DEAD})]
    return "\n".join(lines)
