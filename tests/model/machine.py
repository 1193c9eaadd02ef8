"""Any driver against the reference, under any sequence of verbs that Hypothesis can think of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from postroom.core.definition import Rules
from postroom.core.message import (
    Accepted,
    Ack,
    Bury,
    Delivery,
    Duplicate,
    Envelope,
    Extend,
    Gone,
    Release,
    Return,
    SessionClaim,
    SessionLock,
    Settled,
    Stale,
)
from postroom.drivers.api import Driver
from postroom.drivers.io import drive
from postroom.errors import ReceiptHandleExpiredError
from postroom.flows.ids import new_token
from postroom.testing import ManualClock
from tests.model.reference import Reference, Row

Q = "q"
WORDS = {Settled: "settled", Stale: "stale", Gone: "gone"}
short = st.integers(0, 4)
sessions = st.sampled_from([None, None, "a", "a", "b"])


class Machine(RuleBasedStateMachine):
    """Subclass with `open`: a driver of the sync flavour on a fresh store, with this clock."""

    def open(self, clock: ManualClock) -> Driver:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(start=1_000_000.0)
        self.driver = self.open(self.clock)
        self.model = Reference(self.clock.now())
        self.handles: list[str] = []
        self.claims: list[str] = []
        self.held: list[SessionLock] = []
        self.serial = 0
        self.last_seq = 0
        self.last_token = 0

    def teardown(self) -> None:
        drive(self.driver.close())

    @initialize(
        max_deliveries=st.sampled_from([None, None, 1, 2, 3]),
        ttl=st.sampled_from([None, None, 3, 8]),
        expired_die=st.booleans(),
        on_dead=st.sampled_from(["continue", "block"]),
    )
    def define(self, max_deliveries: int | None, ttl: float | None, expired_die: bool, on_dead: Any) -> None:
        rules = Rules(
            plain=False,
            max_deliveries=max_deliveries,
            ttl=ttl,
            expired_to_dead_letters=expired_die,
            on_dead=on_dead,
            dedup_window=20.0,
        )
        assert drive(self.driver.ensure(Q, rules))
        m = self.model
        m.max_deliveries, m.ttl, m.expired_die, m.on_dead, m.dedup_window = (
            max_deliveries, ttl, expired_die, on_dead, 20.0,
        )  # fmt: skip

    # --- in --------------------------------------------------------------------------------------------------------

    @rule(
        delay=st.sampled_from([0, 0, 0, 1, 3]),
        ttl=st.sampled_from([None, None, 1, 4]),
        priority=st.sampled_from([10, 10, 5]),
        session=sessions,
        dedup_id=st.sampled_from([None, None, None, "d", "e"]),
        times=st.integers(1, 3),
    )
    def put(
        self, delay: float, ttl: float | None, priority: int, session: str | None, dedup_id: str | None, times: int
    ) -> None:
        batch = []
        for _ in range(times):
            self.serial += 1
            batch.append(
                Envelope(
                    f"m{self.serial}",
                    b"0",
                    session_id=session,
                    dedup_id=dedup_id,
                    ttl=ttl,
                    delay=delay,
                    priority=priority,
                    size=1,
                )
            )
        for envelope, result in zip(batch, drive(self.driver.put(Q, batch)), strict=True):
            first = None if dedup_id is None else self.model.duplicate_of(dedup_id)
            if first is not None:
                assert result == Duplicate(first)
                continue
            assert isinstance(result, Accepted)
            assert result.id == envelope.id
            assert result.seq > self.last_seq, "a seq is given in order"
            self.last_seq = result.seq
            self.model.put(envelope.id, result.seq, delay=delay, ttl=ttl, priority=priority, session=session)
            if dedup_id is not None:
                self.model.remember(dedup_id, envelope.id)

    # --- out -------------------------------------------------------------------------------------------------------

    @rule(n=st.integers(1, 5), lease=short, limit=st.sampled_from([None, None, None, 1, 2]), session=sessions)
    def claim(self, n: int, lease: int, limit: int | None, session: str | None) -> None:
        id = new_token()
        asked = None if session is None else SessionClaim(session)
        claimed = drive(self.driver.claim(Q, n, lease=lease, wait=0, claim_id=id, session=asked, max_deliveries=limit))
        expected = self.model.claim(n, id, self.model.now + lease, limit=limit, session=session)
        self.agree(claimed.deliveries, expected, id)

    @precondition(lambda self: self.held)
    @rule(n=st.integers(1, 3), data=st.data())
    def claim_under_a_lock(self, n: int, data: st.DataObject) -> None:
        lock = data.draw(st.sampled_from(self.held))
        id = new_token()
        asked = SessionClaim(lock.id, lock.token)
        if not self.model.holds(lock.id, lock.token):
            with pytest.raises(ReceiptHandleExpiredError):
                drive(self.driver.claim(Q, n, lease=None, wait=0, claim_id=id, session=asked))
            self.look()  # whether a refused claim has tidied is for the store to say
            return
        claimed = drive(self.driver.claim(Q, n, lease=None, wait=0, claim_id=id, session=asked))
        until = self.model.locks[lock.id][1]
        expected = self.model.claim(n, id, until, session=lock.id, own=True)
        self.agree(claimed.deliveries, expected, id)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.claims[-5:]))
        if not self.model.retried(id):
            return
        self.model.tidy()  # first: a lease that ends takes along what was held behind it in its session
        expected = self.model.retried(id)
        if not expected:
            self.look()
        else:
            claimed = drive(self.driver.claim(Q, 9, lease=1, wait=0, claim_id=id, again=True))
            assert sorted(d.seq for d in claimed.deliveries) == [row.seq for row in expected]
            assert {d.seq: (d.attempt, d.lease_until) for d in claimed.deliveries} == {
                row.seq: (row.count, row.lease_until) for row in expected
            }

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.claims[-5:]))
        drive(self.driver.abandon(Q, id))
        self.model.abandon(id)

    def agree(self, deliveries: Any, expected: list[Row], id: str) -> None:
        got, wanted = [d.envelope.id for d in deliveries], [row.id for row in expected]
        assert got == wanted, (got, wanted)
        for delivery, row in zip(deliveries, expected, strict=True):
            self.agree_on(delivery, row)
            assert delivery.lease_until == row.lease_until
            assert delivery.token >= self.last_token, "a fencing token never falls"
            self.last_token = delivery.token
            self.handles.append(delivery.handle)
        self.claims.append(id)

    @staticmethod
    def agree_on(delivery: Delivery, row: Row) -> None:
        assert (delivery.seq, delivery.attempt, delivery.nacks, delivery.returns, delivery.lapsed) == (
            row.seq, row.count, row.nacks, row.returns, row.lapses,
        )  # fmt: skip

    # --- settling --------------------------------------------------------------------------------------------------

    def handle(self, data: st.DataObject) -> tuple[str, tuple[int, str]]:
        """Any handle there ever was; the youngest are the likeliest to mean something."""
        text = data.draw(st.sampled_from(self.handles[-8:]) | st.sampled_from(self.handles))
        seq, _, token = text.partition(".")
        return text, (int(seq), token)

    def settle(self, verdict: Any) -> str:
        [outcome] = drive(self.driver.settle(Q, [verdict]))
        return WORDS[type(outcome)]

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        text, handle = self.handle(data)
        assert self.settle(Ack(text)) == self.model.acknowledge(handle)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), delay=st.sampled_from([0, 0, 2]), counted=st.booleans())
    def release(self, data: st.DataObject, delay: int, counted: bool) -> None:
        text, handle = self.handle(data)
        verdict = Release(text, delay) if counted else Return(text, delay)
        assert self.settle(verdict) == self.model.release(handle, delay, counted=counted)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), lease=short)
    def extend(self, data: st.DataObject, lease: int) -> None:
        text, handle = self.handle(data)
        row = self.model.find(handle)
        if row is not None and row.session is not None and self.model.locked(row.session):
            return  # under a lock it is the lock that is renewed
        assert self.settle(Extend(text, lease)) == self.model.extend(handle, lease)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def bury(self, data: st.DataObject) -> None:
        text, handle = self.handle(data)
        assert self.settle(Bury(text, "why")) == self.model.dead_letter(handle, "why")

    # --- sessions --------------------------------------------------------------------------------------------------

    @rule(session=st.sampled_from(["a", "b"]), lease=st.integers(1, 4))
    def lock(self, session: str, lease: int) -> None:
        token = new_token()
        lock = drive(self.driver.lock(Q, session, lease=lease, wait=0, token=token))
        assert (lock is not None) == self.model.lock(session, token, lease)
        if lock is not None:
            assert lock.until == self.model.locks[session][1]
            self.held.append(lock)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), lease=st.integers(1, 4))
    def renew(self, data: st.DataObject, lease: int) -> None:
        lock = data.draw(st.sampled_from(self.held))
        renewed = drive(self.driver.renew(Q, lock, lease))
        assert (renewed is not None) == self.model.renew(lock.id, lock.token, lease)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        lock = data.draw(st.sampled_from(self.held))
        assert drive(self.driver.unlock(Q, lock)) == self.model.unlock(lock.id, lock.token)

    # --- time and upkeep -------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 1, 2, 3, 5, 21]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.model.now = self.clock.now()

    @precondition(lambda self: self.serial > 3)
    @rule()
    def purge(self) -> None:
        self.model.tidy()
        drive(self.driver.info(Q))
        assert drive(self.driver.purge(Q)) == self.model.purge()

    @precondition(lambda self: self.model.dead)
    @rule(data=st.data())
    def redrive(self, data: st.DataObject) -> None:
        seqs = [row.seq for row in self.model.dead]
        chosen = data.draw(st.lists(st.sampled_from(seqs), unique=True, min_size=1))
        outcomes = drive(self.driver.redrive("q!dead", chosen))
        assert [isinstance(outcome, Settled) for outcome in outcomes] == [self.model.redrive(seq) for seq in chosen]

    @rule()
    def look(self) -> None:
        """Counts, and every message with everything that was counted about it."""
        ready, scheduled, in_flight, dead = self.model.counts()
        stats, _, _ = drive(self.driver.info(Q))
        assert (stats.ready, stats.scheduled, stats.in_flight, stats.dead, stats.expired) == (
            ready, scheduled, in_flight, dead, self.model.expired_count,
        )  # fmt: skip
        assert stats.bytes == ready + scheduled + in_flight
        for queue, rows in ((Q, self.model.rows), ("q!dead", self.model.dead)):
            seen = drive(self.driver.peek(queue, 1_000))
            expected = sorted(rows, key=lambda row: row.seq)
            assert [delivery.seq for delivery in seen] == [row.seq for row in expected]
            for delivery, row in zip(seen, expected, strict=True):
                if queue == Q:
                    self.agree_on(delivery, row)
                else:
                    assert delivery.death is not None
                    assert (delivery.death.reason, delivery.death.delivery_count) == (row.reason, row.count)
