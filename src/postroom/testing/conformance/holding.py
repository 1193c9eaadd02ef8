"""Accepted sessions: an explicit lock, what it covers, how it ends, and the state that travels with it."""

from __future__ import annotations

import asyncio

import pytest

from postroom.core.capabilities import YES
from postroom.errors import (
    InvalidParameterError,
    MessageTooLargeError,
    ReceiptHandleExpiredError,
    SessionNotFoundError,
)
from postroom.testing.conformance.world import Box, Suite, World, bodies, only_tasks


class HeldSessions(Suite):
    async def test_an_accepted_session_is_closed_to_others(self, box: Box, world: World) -> None:
        world.needs("sessions")
        await box.send(1, session_id="s")
        async with await box.accept_session("s") as session:
            assert session.session_id == "s"
            assert await box.receive(max_messages=5) == []
            assert await box.receive(max_messages=5, session_id="s") == []
            with pytest.raises(SessionNotFoundError):
                await box.accept_session("s")
            assert await bodies(session.receive(max_messages=5)) == [1]

    async def test_an_accepted_session_covers_arrivals_to_come(self, box: Box, world: World) -> None:
        world.needs("sessions")
        async with await box.accept_session("s") as session:
            await box.send(1, session_id="s")
            assert await box.receive() == []
            [message] = await session.receive()
            await message.acknowledge()
            waiting = world.spawn(session.receive, wait_time_seconds=20)
            await world.pause()
            await box.send(2, session_id="s")
            assert [message.body for message in await waiting] == [2]

    async def test_the_next_session_is_the_one_first_in_line(self, box: Box, world: World) -> None:
        world.needs("sessions")
        for session in "abc":
            await box.send(session, session_id=session)
        first = await box.accept_session()
        other = await box.accept_session()
        assert [first.session_id, other.session_id] == ["a", "b"]

    async def test_there_is_no_next_session_without_ready_messages(self, box: Box, world: World, second: float) -> None:
        world.needs("sessions")
        await box.send("plain")
        with pytest.raises(SessionNotFoundError):
            await box.accept_session()

    async def test_accepting_waits_for_a_session_to_come(self, box: Box, world: World) -> None:
        world.needs("sessions")
        waiting = world.spawn(box.accept_session, wait_time_seconds=20)
        await world.pause()
        await box.send(1, session_id="s")
        assert (await waiting).session_id == "s"

    async def test_accepting_waits_for_the_holder_to_leave(self, box: Box, world: World) -> None:
        world.needs("sessions")
        held = await box.accept_session("s")
        waiting = world.spawn(box.accept_session, "s", wait_time_seconds=20)
        await world.pause()
        assert not waiting.done()
        await held.close()
        assert (await waiting).session_id == "s"

    async def test_a_session_with_messages_in_flight_cannot_be_accepted(self, box: Box, world: World) -> None:
        world.needs("sessions")
        await box.send(1, session_id="s")
        [message] = await box.receive()
        with pytest.raises(SessionNotFoundError):
            await box.accept_session("s")
        await message.acknowledge()
        await box.accept_session("s")

    async def test_closing_gives_back_what_is_not_settled_uncounted(self, box: Box, world: World) -> None:
        world.needs("sessions")
        world.needs("uncounted_return", level=YES)
        for number in range(3):
            await box.send(number, session_id="s")
        async with await box.accept_session("s") as session:
            first, *_ = await session.receive(max_messages=3)
            await first.acknowledge()
        again = await box.receive(max_messages=3)
        assert [(message.body, message.delivery_count) for message in again] == [(1, 1), (2, 1)]

    async def test_a_closed_session_is_of_no_more_use(self, box: Box, world: World) -> None:
        world.needs("sessions")
        session = await box.accept_session("s")
        await session.close()
        await session.close()
        assert session.closed
        with pytest.raises(ReceiptHandleExpiredError):
            await session.receive()
        with pytest.raises(ReceiptHandleExpiredError):
            await session.renew()

    async def test_a_lock_runs_out_and_with_it_the_leases_under_it(self, box: Box, world: World, second: float) -> None:
        world.needs("sessions")
        await box.send(1, session_id="s")
        session = await box.accept_session("s", lock_duration=2 * second)
        [message] = await session.receive()
        assert message.lease_expires_at == session.locked_until
        await world.advance(3 * second)
        with pytest.raises(ReceiptHandleExpiredError):
            await message.acknowledge()
        with pytest.raises(ReceiptHandleExpiredError):
            await session.receive()
        with pytest.raises(ReceiptHandleExpiredError):
            await session.renew()
        assert session.remaining == 0
        [again] = await box.receive()
        assert (again.body, again.delivery_count) == (1, 2)

    async def test_a_renewed_lock_keeps_the_leases_under_it(self, box: Box, world: World, second: float) -> None:
        world.needs("sessions")
        await box.send(1, session_id="s")
        session = await box.accept_session("s", lock_duration=3 * second)
        [message] = await session.receive()
        for _ in range(3):
            await world.advance(2 * second)
            await session.renew()
        assert await box.receive() == []
        await message.acknowledge()
        await session.close()

    async def test_a_lock_that_ran_out_can_be_taken_by_another(self, box: Box, world: World, second: float) -> None:
        world.needs("sessions")
        first = await box.accept_session("s", lock_duration=second)
        waiting = world.spawn(box.accept_session, "s", wait_time_seconds=20)
        await world.pause()
        await world.advance(2 * second)
        held = await waiting
        with pytest.raises(ReceiptHandleExpiredError):
            await first.renew()
        await first.close()  # and takes nothing from the second holder
        with pytest.raises(SessionNotFoundError):
            await box.accept_session("s")
        await held.close()

    @only_tasks
    async def test_a_cancelled_accept_does_not_keep_the_session(self, box: Box, world: World, second: float) -> None:
        world.needs("sessions")
        held = await box.accept_session("s")
        waiting = world.spawn(box.accept_session, "s", wait_time_seconds=20)
        await world.pause()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await held.close()
        await (await box.accept_session("s")).close()

    # --- state -------------------------------------------------------------------------------------------------

    async def test_a_session_carries_its_state_from_holder_to_holder(self, box: Box, world: World) -> None:
        world.needs("session_state")
        async with await box.accept_session("s") as session:
            assert await session.state() is None
            await session.set_state(b"step 1")
        async with await box.accept_session("s") as session:
            assert await session.state() == b"step 1"
            await session.set_state(None)
            assert await session.state() is None

    async def test_a_state_outlives_the_messages(self, box: Box, world: World) -> None:
        world.needs("session_state")
        await box.send(1, session_id="s")
        async with await box.accept_session("s") as session:
            await session.set_state(b"x")
            for message in await session.receive():
                await message.acknowledge()
        assert await box.approximate_count() == 0
        async with await box.accept_session("s") as session:
            assert await session.state() == b"x"

    async def test_each_session_has_a_state_of_its_own(self, box: Box, world: World) -> None:
        world.needs("session_state")
        async with await box.accept_session("a") as a, await box.accept_session("b") as b:
            await a.set_state(b"a")
            assert await b.state() is None

    async def test_compare_and_set_writes_only_over_what_was_expected(self, box: Box, world: World) -> None:
        world.needs("session_state")
        async with await box.accept_session("s") as session:
            assert await session.compare_and_set(None, b"1")
            assert not await session.compare_and_set(None, b"2")
            assert not await session.compare_and_set(b"2", b"3")
            assert await session.compare_and_set(b"1", b"")
            assert await session.state() == b""
            assert await session.compare_and_set(b"", None)

    async def test_a_state_cannot_be_written_under_a_lost_lock(self, box: Box, world: World, second: float) -> None:
        world.needs("session_state")
        session = await box.accept_session("s", lock_duration=second)
        await session.set_state(b"mine")
        await world.advance(2 * second)
        with pytest.raises(ReceiptHandleExpiredError):
            await session.set_state(b"late")
        with pytest.raises(ReceiptHandleExpiredError):
            await session.compare_and_set(b"mine", b"late")
        async with await box.accept_session("s") as other:
            assert await other.state() == b"mine"

    async def test_a_state_is_bytes_and_of_bounded_size(self, box: Box, world: World) -> None:
        world.needs("session_state")
        async with await box.accept_session("s") as session:
            for wrong in ("text", 1, {"a": 1}, bytearray(b"x")):
                with pytest.raises(InvalidParameterError):
                    await session.set_state(wrong)  # type: ignore[arg-type]  # what a test of wrong types is about
            with pytest.raises(MessageTooLargeError):
                await session.set_state(bytes((256 << 10) + 1))
            assert await session.state() is None
