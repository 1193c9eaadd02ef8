"""A queue as the semantics describe it, written as plainly as possible: one list, walked from end to end every time.

Independent of every driver on purpose, the memory driver included: when the two disagree, one of them is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Row:
    id: str
    seq: int
    visible_at: float
    priority: int = 10
    session: str | None = None
    ttl: float | None = None  # its own, or the queue's
    expires_at: float | None = None
    token: str | None = None  # of the last claim, while it still says something
    lease_until: float | None = None  # None: not leased
    count: int = 0
    returns: int = 0
    nacks: int = 0
    lapses: int = 0
    delivered: bool = False
    reason: str | None = None  # why it died


@dataclass
class Reference:
    """One queue with its dead letters. Time is `now`, moved by the test."""

    now: float
    max_deliveries: int | None = None
    ttl: float | None = None
    expired_die: bool = False
    on_dead: str = "continue"
    dedup_window: float = 300.0
    rows: list[Row] = field(default_factory=list)
    dead: list[Row] = field(default_factory=list)
    dedup: dict[str, tuple[str, float]] = field(default_factory=dict)
    locks: dict[str, tuple[str, float]] = field(default_factory=dict)  # session -> (token, until)
    blocked: set[tuple[str, int]] = field(default_factory=set)  # (session, seq) of dead ones that hold it up
    expired_count: int = 0  # dropped at the end of their time

    # --- time ----------------------------------------------------------------------------------------------------

    def tidy(self, limit: int | None = None) -> None:
        """What time has done up to now: leases lapse, messages expire or are used up."""
        for row in sorted(self.rows, key=lambda row: (row.lease_until or 0.0, row.seq)):
            if row.lease_until is not None and row.lease_until <= self.now:
                self.lapse(row)
                if self.expired(row):
                    self.expire(row)
                elif self.used_up(row, limit):
                    self.bury(row, "max_deliveries")
        for row in list(self.rows):
            if row.lease_until is None and self.expired(row):
                self.expire(row)

    def expired(self, row: Row) -> bool:
        return row.expires_at is not None and row.expires_at <= self.now

    def used_up(self, row: Row, limit: int | None = None) -> bool:
        return any(row.count >= most for most in (limit, self.max_deliveries) if most is not None)

    def lapse(self, row: Row) -> None:
        row.lapses += 1
        row.visible_at = self.now
        row.lease_until = None
        if row.session is not None:
            row.token = None  # in a session a lapsed token is stale
            self.fail_later(row)

    def fail_later(self, row: Row) -> None:
        """What the holder took of the session behind this one goes back uncounted."""
        if row.session is None:
            return
        for later in self.rows:
            if later.session == row.session and later.seq > row.seq and later.lease_until is not None:
                self.uncount(later)
                later.lease_until, later.token, later.visible_at = None, None, self.now

    def expire(self, row: Row) -> None:
        if self.expired_die:
            self.bury(row, "expired")
        else:
            self.rows.remove(row)
            self.expired_count += 1

    def bury(self, row: Row, reason: str) -> None:
        self.rows.remove(row)
        row.reason, row.lease_until, row.token = reason, None, None
        row.visible_at = self.now
        self.dead.append(row)
        if row.session is not None and self.on_dead == "block":
            self.blocked.add((row.session, row.seq))

    @staticmethod
    def uncount(row: Row) -> None:
        row.returns += 1
        if row.returns <= 1_000:
            row.count -= 1

    # --- verbs ---------------------------------------------------------------------------------------------------

    def put(
        self,
        id: str,
        seq: int,
        *,
        delay: float = 0.0,
        ttl: float | None = None,
        priority: int = 10,
        session: str | None = None,
    ) -> None:
        visible = self.now + delay
        ttl = self.ttl if ttl is None else ttl
        self.rows.append(Row(id, seq, visible, priority, session, ttl, None if ttl is None else visible + ttl))

    def duplicate_of(self, dedup_id: str) -> str | None:
        known = self.dedup.get(dedup_id)
        return known[0] if known is not None and known[1] > self.now else None

    def remember(self, dedup_id: str, id: str) -> None:
        self.dedup[dedup_id] = (id, self.now + self.dedup_window)

    def locked(self, session: str) -> bool:
        return session in self.locks and self.locks[session][1] > self.now

    def line(self, session: str, taken: Sequence[Row] = (), *, own: bool = False) -> list[Row]:
        """What can be had of a session now, in order; `own` says that the caller holds its lock."""
        if any(held_up == session for held_up, _ in self.blocked):
            return []
        members = sorted((row for row in self.rows if row.session == session), key=lambda row: row.seq)
        waiting = [row for row in members if row.lease_until is None]
        if not own and any(row not in taken for row in members if row.lease_until is not None):
            return []  # somebody holds it
        line = []
        for row in waiting:
            if row.visible_at <= self.now:
                line.append(row)
            elif row.delivered:
                break  # it was out once: everybody behind it waits; never delivered and not due, it blocks nobody
        return line

    def claim(
        self,
        n: int,
        token: str,
        until: float,
        *,
        limit: int | None = None,
        session: str | None = None,
        own: bool = False,
    ) -> list[Row]:
        self.tidy(limit)
        taken: list[Row] = []
        while len(taken) < n:
            row = self.next(session, own, taken)
            if row is None:
                break
            if self.used_up(row, limit):
                self.bury(row, "max_deliveries")
                continue
            row.count += 1
            row.delivered = True
            row.token, row.lease_until = token, until
            taken.append(row)
        return taken

    def next(self, session: str | None, own: bool, taken: list[Row]) -> Row | None:
        if session is not None:
            line = [] if self.locked(session) and not own else self.line(session, taken, own=own)
            return line[0] if line else None
        if taken and (begun := taken[-1].session) is not None:  # a session that was begun is taken on
            line = self.line(begun, taken)
            if line:
                return line[0]
        sessions = sorted({row.session for row in self.rows if row.session is not None})
        heads = [line[0] for name in sessions if not self.locked(name) and (line := self.line(name, taken))]
        free = [row for row in self.rows if row.session is None and row.lease_until is None]
        ready = [row for row in free if row.visible_at <= self.now]
        return min(heads + ready, key=lambda row: (row.priority, row.seq), default=None)

    def retried(self, token: str) -> list[Row]:
        """What a claim still holds, should it be asked for again."""
        return sorted(
            (row for row in self.rows if row.token == token and (row.lease_until or 0) > self.now),
            key=lambda row: row.seq,
        )

    def abandon(self, token: str) -> None:
        for row in self.retried(token):
            self.uncount(row)
            row.lease_until, row.token, row.visible_at = None, None, self.now

    # --- sessions ------------------------------------------------------------------------------------------------

    def lock(self, session: str, token: str, lease: float) -> bool:
        self.tidy()
        if self.locked(session) or any(r.session == session and r.lease_until is not None for r in self.rows):
            return False
        self.locks[session] = (token, self.now + lease)
        return True

    def holds(self, session: str, token: str) -> bool:
        return self.locked(session) and self.locks[session][0] == token

    def renew(self, session: str, token: str, lease: float) -> bool:
        if not self.holds(session, token):
            return False
        self.locks[session] = (token, self.now + lease)
        for row in self.rows:
            if row.session == session and row.lease_until is not None:
                row.lease_until = self.now + lease
        return True

    def unlock(self, session: str, token: str) -> bool:
        if not self.holds(session, token):
            return False
        del self.locks[session]
        for row in self.rows:
            if row.session == session and row.lease_until is not None:
                self.uncount(row)
                row.lease_until, row.token, row.visible_at = None, None, self.now
        return True

    # --- settling ------------------------------------------------------------------------------------------------

    def find(self, handle: tuple[int, str]) -> Row | None:
        return next((row for row in self.rows if row.seq == handle[0]), None)

    def verdict(self, handle: tuple[int, str]) -> tuple[str, Row | None]:
        """(settled | stale | gone, row), for everything but an extension."""
        row = self.find(handle)
        if row is None:
            return "gone", None
        if row.token != handle[1]:
            return "stale", row
        late = row.lease_until is None or row.lease_until <= self.now
        if late and row.session is not None:
            return "stale", row
        return "settled", row

    def acknowledge(self, handle: tuple[int, str]) -> str:
        outcome, row = self.verdict(handle)
        if outcome == "settled" and row is not None:
            self.rows.remove(row)
        return outcome

    def extend(self, handle: tuple[int, str], lease: float) -> str:
        outcome, row = self.verdict(handle)
        if row is None or outcome != "settled":
            return outcome
        if row.lease_until is None or row.lease_until <= self.now:
            return "stale"
        row.lease_until = self.now + lease
        return "settled"

    def release(self, handle: tuple[int, str], delay: float, *, counted: bool) -> str:
        outcome, row = self.verdict(handle)
        if row is None or outcome != "settled":
            return outcome
        self.fail_later(row)
        row.lease_until, row.token = None, None
        if counted:
            row.nacks += 1
            if self.expired(row):
                self.expire(row)
                return "settled"
            if self.used_up(row):
                self.bury(row, "max_deliveries")
                return "settled"
        else:
            self.uncount(row)
        row.visible_at = self.now + delay
        return "settled"

    def dead_letter(self, handle: tuple[int, str], reason: str) -> str:
        outcome, row = self.verdict(handle)
        if row is not None and outcome == "settled":
            self.fail_later(row)
            self.bury(row, reason)
        return outcome

    def redrive(self, seq: int) -> bool:
        row = next((row for row in self.dead if row.seq == seq), None)
        if row is None:
            return False
        self.dead.remove(row)
        row.count = row.returns = row.nacks = row.lapses = 0
        row.delivered, row.visible_at = False, self.now
        row.expires_at = None if row.ttl is None else self.now + row.ttl
        if row.session is not None:
            self.blocked.discard((row.session, row.seq))
        self.rows.append(row)
        return True

    def purge(self) -> int:
        removed = len(self.rows)
        self.rows.clear()
        self.dedup.clear()
        self.locks.clear()
        return removed

    def counts(self) -> tuple[int, int, int, int]:
        """(ready, scheduled, in flight, dead)."""
        self.tidy()
        flying = sum(row.lease_until is not None for row in self.rows)
        scheduled = sum(row.lease_until is None and row.visible_at > self.now for row in self.rows)
        return len(self.rows) - flying - scheduled, scheduled, flying, len(self.dead)
