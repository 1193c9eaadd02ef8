"""The waist itself: promises of the driver's verbs that no mailbox shows, and everything above relies on."""

from __future__ import annotations

import time

import pytest

from postroom.core.capabilities import YES
from postroom.core.definition import PLAIN, QueueDefinition, Rules
from postroom.core.message import (
    Accepted,
    Ack,
    Bury,
    Delivery,
    Duplicate,
    Envelope,
    Extend,
    Gone,
    Refused,
    Release,
    Return,
    SessionClaim,
    Settled,
    Stale,
)
from postroom.drivers.api import Driver
from postroom.drivers.io import Bell
from postroom.errors import InvalidParameterError, QueueNotFoundError, ReceiptHandleExpiredError, UnsupportedError
from postroom.flows.ids import new_token
from postroom.testing.conformance.world import Client, Suite, World


def envelope(id: str = "m", body: bytes = b"0", **fields: object) -> Envelope:
    return Envelope(id, body, size=len(body), **fields)  # type: ignore[arg-type]  # one call for many fields


async def claim(driver: Driver, n: int = 1, **options: object) -> list[Delivery]:
    given = {"lease": 30.0, "wait": 0.0, "claim_id": new_token(), **options}
    return list((await driver.claim("q", n, **given)).deliveries)  # type: ignore[arg-type]  # as above


class Verbs(Suite):
    @pytest.fixture
    def driver(self, client: Client, world: World) -> Driver:
        driver = world.driver(client)
        world.run(driver.ensure("q"))
        return driver

    # --- queues ------------------------------------------------------------------------------------------------

    async def test_ensure_says_whether_it_made_the_queue(self, driver: Driver) -> None:
        assert await driver.ensure("new")
        assert not await driver.ensure("new")
        assert not await driver.ensure("new", Rules(plain=False, max_deliveries=7))
        _, rules, _ = await driver.info("new")
        assert rules.max_deliveries == 7
        assert not await driver.ensure("new")
        _, rules, _ = await driver.info("new")
        assert rules.max_deliveries == 7

    async def test_a_new_queue_without_rules_is_plain(self, driver: Driver) -> None:
        _, rules, _ = await driver.info("q")
        assert rules == PLAIN

    async def test_rules_come_back_as_they_were_given(self, driver: Driver) -> None:
        given = QueueDefinition(
            name="r",
            max_delivery_count=4,
            message_ttl=100.5,
            sessions="required",
            on_dead="block",
            dead_letter_queue="d",
            dead_letter_on_expiry=True,
            duplicate_detection_window=33,
            max_messages=9,
            overflow="wait",
            overflow_timeout=1.5,
            auto_delete_on_idle=1000,
        ).rules(driver.capabilities)
        await driver.ensure("r", given)
        _, rules, _ = await driver.info("r")
        assert rules == given

    async def test_the_dead_letter_queue_lives_with_its_queue(self, driver: Driver) -> None:
        stats, rules, _ = await driver.info("q!dead")
        assert (stats.ready, rules.max_deliveries, rules.bounded) == (0, None, False)
        with pytest.raises(UnsupportedError):
            await driver.drop("q!dead")
        with pytest.raises(UnsupportedError):
            await driver.put("q!dead", [envelope()])
        await driver.drop("q")
        with pytest.raises(QueueNotFoundError):
            await driver.info("q!dead")

    async def test_drop_tells_how_many_went_and_keeps_a_queue_that_is_not_empty(self, driver: Driver) -> None:
        await driver.put("q", [envelope(str(n)) for n in range(3)])
        [one, _] = await claim(driver, 2)
        await driver.settle("q", [Bury(one.handle, "why")])
        assert await driver.drop("q", only_empty=True) is None
        assert await driver.drop("q") == 3
        assert await driver.queues() == []

    async def test_every_verb_on_a_queue_that_is_not_there_says_so(self, driver: Driver) -> None:
        for call in (
            lambda: driver.put("no", [envelope()]),
            lambda: driver.claim("no", 1, lease=1, wait=0, claim_id=new_token()),
            lambda: driver.settle("no", [Ack("1.ab")]),
            lambda: driver.info("no"),
            lambda: driver.peek("no", 1),
            lambda: driver.purge("no"),
            lambda: driver.drop("no"),
            lambda: driver.redrive("no!dead", [1]),
        ):
            with pytest.raises(QueueNotFoundError):
                await call()

    # --- put ---------------------------------------------------------------------------------------------------

    async def test_put_is_aligned_with_its_batch(self, driver: Driver, world: World) -> None:
        world.needs("dedup")
        results = await driver.put(
            "q", [envelope("a", dedup_id="d"), envelope("b"), envelope("c", dedup_id="d"), envelope("e")]
        )
        assert [type(result) for result in results] == [Accepted, Accepted, Duplicate, Accepted]
        assert [result.id for result in results if not isinstance(result, Refused)] == ["a", "b", "a", "e"]
        seqs = [result.seq for result in results if isinstance(result, Accepted)]
        assert seqs == sorted(set(seqs))

    async def test_an_empty_batch_is_no_error(self, driver: Driver) -> None:
        assert await driver.put("q", []) == []
        assert await driver.settle("q", []) == []
        assert await driver.redrive("q!dead", []) == []

    # --- claim -------------------------------------------------------------------------------------------------

    async def test_a_retried_claim_returns_what_its_id_still_holds(self, driver: Driver, world: World) -> None:
        world.needs("claim_retry", level=YES)
        await driver.put("q", [envelope(str(n)) for n in range(4)])
        id = new_token()
        first = await claim(driver, 2, claim_id=id)
        again = await claim(driver, 2, claim_id=id, again=True)
        assert [(d.handle, d.attempt, d.lease_until, d.token) for d in again] == [
            (d.handle, d.attempt, d.lease_until, d.token) for d in first
        ]
        await driver.settle("q", [Ack(first[0].handle)])
        assert [d.handle for d in await claim(driver, 2, claim_id=id, again=True)] == [first[1].handle]
        await driver.settle("q", [Ack(first[1].handle)])
        fresh = await claim(driver, 2, claim_id=id, again=True)
        assert [d.envelope.id for d in fresh] == ["2", "3"]

    async def test_an_abandoned_claim_gives_back_uncounted_and_in_place(self, driver: Driver, world: World) -> None:
        world.needs("claim_retry", level=YES)
        await driver.put("q", [envelope(str(n)) for n in range(3)])
        id = new_token()
        taken = await claim(driver, 2, claim_id=id)
        await driver.abandon("q", id)
        assert await driver.settle("q", [Ack(taken[0].handle)]) == [Stale()]
        again = await claim(driver, 3)
        assert [(d.envelope.id, d.attempt) for d in again] == [("0", 1), ("1", 1), ("2", 1)]

    async def test_an_abandoned_id_is_fenced_for_a_minute(self, driver: Driver, world: World) -> None:
        world.needs("claim_retry", level=YES)
        id = new_token()
        await driver.abandon("q", id)
        await driver.put("q", [envelope()])
        assert await claim(driver, claim_id=id) == []
        assert await claim(driver, claim_id=id, again=True) == []
        if world.store.moves_time:
            await world.advance(59)
            assert await claim(driver, claim_id=id) == []
            await world.advance(2)
            assert len(await claim(driver, claim_id=id)) == 1

    async def test_a_fence_holds_for_other_clients_of_this_process(self, driver: Driver, world: World) -> None:
        world.needs("claim_retry", level=YES)
        other = world.driver(world.open())
        await driver.put("q", [envelope()])
        id = new_token()
        await driver.abandon("q", id)
        assert await claim(other, claim_id=id) == []

    async def test_abandoning_what_took_nothing_or_on_no_queue_is_no_error(self, driver: Driver) -> None:
        await driver.abandon("q", new_token())
        await driver.abandon("nowhere", new_token())

    async def test_abandon_leaves_settled_and_lapsed_ones_alone(
        self, driver: Driver, world: World, second: float
    ) -> None:
        world.needs("claim_retry", level=YES)
        await driver.put("q", [envelope("0"), envelope("1")])
        id = new_token()
        taken = await claim(driver, 2, claim_id=id, lease=second)
        await driver.settle("q", [Ack(taken[0].handle)])
        await world.advance(2 * second)
        [again] = await claim(driver)
        await driver.abandon("q", id)
        assert (again.envelope.id, again.attempt) == ("1", 2)
        assert isinstance((await driver.settle("q", [Ack(again.handle)]))[0], Settled)

    async def test_settling_rides_on_a_claim_and_comes_first(self, driver: Driver) -> None:
        await driver.put("q", [envelope("0"), envelope("1")])
        [first] = await claim(driver)
        claimed = await driver.claim(
            "q", 5, lease=30, wait=0, claim_id=new_token(), settle=[Release(first.handle), Ack("9999.ab")]
        )
        assert [type(outcome) for outcome in claimed.outcomes] == [Settled, Gone]
        assert [(d.envelope.id, d.attempt) for d in claimed.deliveries] == [("0", 2), ("1", 1)]

    async def test_a_claim_that_finds_nothing_still_settles(self, driver: Driver) -> None:
        await driver.put("q", [envelope()])
        [held] = await claim(driver)
        claimed = await driver.claim("q", 1, lease=30, wait=0, claim_id=new_token(), settle=[Ack(held.handle)])
        assert (list(claimed.deliveries), [type(o) for o in claimed.outcomes]) == ([], [Settled])
        assert (await driver.info("q"))[0].in_flight == 0

    async def test_outcomes_are_kept_through_a_wait(self, driver: Driver, world: World) -> None:
        await driver.put("q", [envelope()])
        [held] = await claim(driver)
        waiting = world.spawn(driver.claim, "q", 1, lease=30, wait=20, claim_id=new_token(), settle=[Ack(held.handle)])
        await world.pause()
        await driver.put("q", [envelope("next")])
        claimed = await waiting
        assert [d.envelope.id for d in claimed.deliveries] == ["next"]
        assert [type(outcome) for outcome in claimed.outcomes] == [Settled]

    async def test_stop_ends_a_wait(self, driver: Driver, world: World) -> None:
        stop = Bell()
        waiting = world.spawn(driver.claim, "q", 1, lease=30, wait=20, claim_id=new_token(), stop=stop)
        await world.pause()
        assert not waiting.done()
        started = time.monotonic()
        stop.ring_for_good()
        assert list((await waiting).deliveries) == []
        assert time.monotonic() - started < 2
        assert list((await driver.claim("q", 1, lease=30, wait=20, claim_id=new_token(), stop=stop)).deliveries) == []

    async def test_a_stopped_claim_still_takes_what_is_ready(self, driver: Driver) -> None:
        stop = Bell()
        stop.ring_for_good()
        await driver.put("q", [envelope()])
        claimed = await driver.claim("q", 1, lease=30, wait=20, claim_id=new_token(), stop=stop)
        assert len(claimed.deliveries) == 1

    async def test_the_smaller_limit_of_queue_and_claim_holds(self, driver: Driver) -> None:
        await driver.ensure("q", Rules(plain=False, max_deliveries=3))
        await driver.put("q", [envelope()])
        for _ in range(2):
            [held] = await claim(driver, max_deliveries=5)
            await driver.settle("q", [Release(held.handle)])
        claimed = await driver.claim("q", 1, lease=30, wait=0, claim_id=new_token(), max_deliveries=2)
        assert (list(claimed.deliveries), claimed.buried) == ([], 1)
        [dead] = await driver.peek("q!dead", 5)
        assert dead.death is not None
        assert (dead.death.reason, dead.death.delivery_count) == ("max_deliveries", 2)

    async def test_a_worker_without_a_limit_gets_what_another_would_bury(self, driver: Driver) -> None:
        await driver.put("q", [envelope()])
        [held] = await claim(driver, max_deliveries=1)
        await driver.settle("q", [Release(held.handle)])
        [again] = await claim(driver)
        assert again.attempt == 2

    async def test_a_claim_left_without_a_lease_takes_the_queues(self, driver: Driver) -> None:
        await driver.put("q", [envelope()])
        [held] = await claim(driver, lease=None)
        assert held.lease_until - held.received_at == pytest.approx(30, abs=0.01)

    async def test_tokens_never_fall(self, driver: Driver) -> None:
        await driver.put("q", [envelope(str(n)) for n in range(3)])
        tokens = []
        for _ in range(9):
            [held] = await claim(driver)
            tokens.append(held.token)
            await driver.settle("q", [Release(held.handle)])
        assert tokens == sorted(set(tokens))

    async def test_a_claim_gets_through_any_number_that_must_be_put_away_first(
        self, driver: Driver, world: World, second: float
    ) -> None:
        world.needs("ttl")
        for _ in range(3):
            await driver.put("q", [envelope(str(n), ttl=second) for n in range(1_000)])
        await driver.put("q", [envelope("good")])
        await world.advance(2 * second)
        assert [held.envelope.id for held in await claim(driver, wait=5.0)] == ["good"]

    # --- settle ------------------------------------------------------------------------------------------------

    async def test_settle_is_aligned_and_carried_out_in_order(self, driver: Driver) -> None:
        await driver.put("q", [envelope(str(n)) for n in range(4)])
        a, b, c, d = await claim(driver, 4)
        outcomes = await driver.settle(
            "q",
            [
                Ack(a.handle),
                Ack(a.handle),
                Ack("nonsense"),
                Release(b.handle, 600),
                Extend(c.handle, 60),
                Bury(d.handle, "why"),
            ],
        )
        assert [type(outcome) for outcome in outcomes] == [Settled, Gone, Refused, Settled, Settled, Settled]
        assert isinstance(outcomes[2], Refused)
        assert isinstance(outcomes[2].error, InvalidParameterError)

    async def test_an_extension_tells_until_when(self, driver: Driver) -> None:
        await driver.put("q", [envelope()])
        [held] = await claim(driver)
        [outcome] = await driver.settle("q", [Extend(held.handle, 100)])
        assert isinstance(outcome, Settled)
        assert outcome.lease_until is not None
        assert outcome.lease_until - driver.now() == pytest.approx(100, abs=5)

    async def test_a_lease_keeper_never_shortens(self, driver: Driver, world: World, second: float) -> None:
        await driver.put("q", [envelope()])
        [held] = await claim(driver, lease=600.0)
        [outcome] = await driver.settle("q", [Extend(held.handle, second, shorten=False)])
        assert isinstance(outcome, Settled)
        assert outcome.lease_until == held.lease_until
        await world.advance(2 * second)
        assert await claim(driver) == []

    async def test_returns_are_uncounted_a_thousand_times_and_then_count(self, driver: Driver, world: World) -> None:
        world.needs("uncounted_return", level=YES)
        await driver.put("q", [envelope()])
        [held] = await claim(driver)
        for _ in range(1_000):
            claimed = await driver.claim("q", 1, lease=30, wait=0, claim_id=new_token(), settle=[Return(held.handle)])
            [held] = claimed.deliveries
        assert (held.attempt, held.returns) == (1, 1_000)
        await driver.settle("q", [Return(held.handle)])
        [held] = await claim(driver)
        assert held.attempt == 2

    async def test_an_endless_return_is_ended_by_the_limit(self, driver: Driver, world: World) -> None:
        world.needs("uncounted_return", level=YES)
        await driver.ensure("q", Rules(plain=False, max_deliveries=1))
        await driver.put("q", [envelope()])
        for _ in range(1_001):
            [held] = await claim(driver)
            await driver.settle("q", [Return(held.handle)])
        assert await claim(driver) == []
        assert (await driver.info("q"))[0].dead == 1

    async def test_lapses_nacks_and_returns_are_told_apart(self, driver: Driver, world: World, second: float) -> None:
        world.needs("uncounted_return", level=YES)
        await driver.put("q", [envelope()])
        [held] = await claim(driver)
        await driver.settle("q", [Release(held.handle, note="failed")])
        [held] = await claim(driver)
        await driver.settle("q", [Return(held.handle)])
        await claim(driver, lease=second)
        await world.advance(2 * second)
        [held] = await claim(driver)
        assert (held.attempt, held.nacks, held.returns, held.lapsed) == (3, 1, 1, 1)
        assert [(past.number, past.error) for past in held.history] == [(1, "failed")]

    async def test_a_history_keeps_its_last_twenty(self, driver: Driver) -> None:
        await driver.put("q", [envelope()])
        for number in range(25):
            [held] = await claim(driver)
            await driver.settle("q", [Release(held.handle, note=f"failure {number} " + "x" * 5_000)])
        [held] = await claim(driver)
        assert [past.number for past in held.history] == list(range(6, 26))
        assert max(len(past.error) for past in held.history) <= 1_000

    async def test_an_acknowledge_carries_its_replies(self, driver: Driver, world: World) -> None:
        world.needs("atomic_reply")
        await driver.ensure("answers")
        await driver.put("q", [envelope()])
        [held] = await claim(driver)
        puts = (("answers", envelope("m/final", b"1")), ("nowhere", envelope("m/2", b"2")))
        [outcome] = await driver.settle("q", [Ack(held.handle, puts)])
        assert isinstance(outcome, Settled)
        assert [type(put) for put in outcome.puts] == [Accepted, Refused]
        assert [seen.envelope.id for seen in await driver.peek("answers", 5)] == ["m/final"]
        assert (await driver.info("q"))[0].in_flight == 0

    async def test_a_refused_acknowledge_puts_nothing(self, driver: Driver, world: World, second: float) -> None:
        world.needs("atomic_reply")
        await driver.ensure("answers")
        await driver.put("q", [envelope()])
        [first] = await claim(driver, lease=second)
        await world.advance(2 * second)
        [other] = await claim(driver)
        put = (("answers", envelope("m/final", b"1")),)
        assert await driver.settle("q", [Ack(first.handle, put)]) == [Stale()]
        await driver.settle("q", [Ack(other.handle)])
        assert await driver.settle("q", [Ack(other.handle, put)]) == [Gone()]
        assert await driver.peek("answers", 5) == []

    async def test_a_reply_with_a_known_dedup_id_is_not_put_again(self, driver: Driver, world: World) -> None:
        world.needs("atomic_reply", "dedup")
        await driver.ensure("answers")
        await driver.put("answers", [envelope("m/final", dedup_id="m/final")])
        await driver.put("q", [envelope()])
        [held] = await claim(driver)
        put = ("answers", envelope("m/final", b"again", dedup_id="m/final"))
        [outcome] = await driver.settle("q", [Ack(held.handle, (put,))])
        assert isinstance(outcome, Settled)
        assert outcome.puts == (Duplicate("m/final"),)

    async def test_a_reply_wakes_who_waits_for_it(self, driver: Driver, world: World) -> None:
        world.needs("atomic_reply")
        await driver.ensure("answers")
        await driver.put("q", [envelope()])
        [held] = await claim(driver)
        waiting = world.spawn(driver.claim, "answers", 1, lease=30, wait=20, claim_id=new_token())
        await world.pause()
        await driver.settle("q", [Ack(held.handle, (("answers", envelope("m/final")),))])
        assert [d.envelope.id for d in (await waiting).deliveries] == ["m/final"]

    # --- sessions ----------------------------------------------------------------------------------------------

    async def test_under_a_session_lock_leases_end_with_it(self, driver: Driver, world: World) -> None:
        world.needs("sessions")
        await driver.put("q", [envelope("0", session_id="s")])
        lock = await driver.lock("q", "s", lease=100, wait=0, token=new_token())
        assert lock is not None
        [held] = await claim(driver, lease=5.0, session=SessionClaim("s", lock.token))
        assert held.lease_until == lock.until
        renewed = await driver.renew("q", lock, 200)
        assert renewed is not None
        [seen] = await driver.peek("q", 1)
        assert seen.visible_at == renewed.until

    async def test_a_claim_under_a_lost_lock_is_refused(self, driver: Driver, world: World) -> None:
        world.needs("sessions")
        lock = await driver.lock("q", "s", lease=100, wait=0, token=new_token())
        assert lock is not None
        assert await driver.unlock("q", lock)
        assert not await driver.unlock("q", lock)
        assert await driver.renew("q", lock, 10) is None
        with pytest.raises(ReceiptHandleExpiredError):
            await claim(driver, session=SessionClaim("s", lock.token))
        with pytest.raises(ReceiptHandleExpiredError):
            await claim(driver, session=SessionClaim("s", new_token()))
        with pytest.raises(ReceiptHandleExpiredError):
            await driver.set_state("q", lock, b"x")

    async def test_the_version_of_a_state_rises_with_every_write(self, driver: Driver, world: World) -> None:
        world.needs("session_state")
        assert (await driver.get_state("q", "s")).version == 0
        lock = await driver.lock("q", "s", lease=100, wait=0, token=new_token())
        assert lock is not None
        first = await driver.set_state("q", lock, b"1")
        assert first is not None
        assert await driver.set_state("q", lock, b"2", version=first.version + 1) is None
        second = await driver.set_state("q", lock, b"2", version=first.version)
        assert second is not None
        assert 0 < first.version < second.version
        assert await driver.get_state("q", "s") == second

    # --- peek and redrive --------------------------------------------------------------------------------------

    async def test_peek_shows_lapsed_ones_or_what_became_of_them(
        self, driver: Driver, world: World, second: float
    ) -> None:
        await driver.put("q", [envelope()])
        await claim(driver, lease=second)
        await world.advance(2 * second)
        [seen] = await driver.peek("q", 5)
        assert seen.state in ("lapsed", "ready")
        assert (seen.handle, seen.attempt) == ("", 1)

    async def test_redrive_answers_for_each(self, driver: Driver, second: float, world: World) -> None:
        await driver.put("q", [envelope(str(n)) for n in range(3)])
        for held in await claim(driver, 3):
            await driver.settle("q", [Bury(held.handle, "why")])
        a, b, c = await driver.peek("q!dead", 5)
        taken = (await driver.claim("q!dead", 1, lease=30, wait=0, claim_id=new_token())).deliveries
        assert [d.seq for d in taken] == [a.seq]
        outcomes = await driver.redrive("q!dead", [a.seq, b.seq, b.seq, 10**12])
        assert [type(outcome) for outcome in outcomes] == [Gone, Settled, Gone, Gone]
        [refused] = await driver.redrive("q!dead", [c.seq], target="nowhere")
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, QueueNotFoundError)
        [again] = await claim(driver, 5)
        assert (again.seq, again.attempt, again.returns, again.nacks) == (b.seq, 1, 0, 0)

    async def test_closing_the_driver_twice_is_no_error(self, world: World) -> None:
        driver = world.driver(world.open())
        await driver.ensure("q")
        await driver.close()
        await driver.close()
