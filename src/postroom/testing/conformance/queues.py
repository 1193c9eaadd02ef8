"""Queues: their names, their numbers, their definitions and statuses; purging and deleting them; tenants."""

from __future__ import annotations

from datetime import UTC, timedelta

import pytest

from postroom.core.definition import QueueDefinition, QueueStatus
from postroom.errors import (
    ConfigurationError,
    InvalidParameterError,
    QueueNotFoundError,
    ReceiptHandleExpiredError,
    ServiceUnavailableError,
    UnsupportedError,
)
from postroom.testing.conformance.world import Box, Client, Suite, World, bodies

GOOD_NAMES = ["a", "A", "0", "a.b_c-d", "x" * 80, "SELECT", "reply-1"]
BAD_NAMES = ["", "-a", ".a", "_a", "a b", "a/b", "a:b", "a!dead", "x" * 81, "ä", "a\n", "a'b", "sqs://a", "a\x00"]


class Queues(Suite):
    # --- names -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", GOOD_NAMES)
    async def test_a_name_in_the_alphabet_is_a_queue(self, client: Client, name: str) -> None:
        box = client.mailbox(name)
        await box.send(name)
        assert await bodies(box.receive()) == [name]

    @pytest.mark.parametrize("name", [*BAD_NAMES, None, 7, b"a", True])
    async def test_a_name_outside_the_alphabet_is_refused_everywhere(self, client: Client, name: object) -> None:
        with pytest.raises(InvalidParameterError):
            QueueDefinition(name=name)  # type: ignore[arg-type]  # what the test is about
        with pytest.raises(InvalidParameterError):
            await client.delete_queue(name)  # type: ignore[arg-type]  # as above
        if name != "a!dead":
            with pytest.raises(InvalidParameterError):
                client.mailbox(name)  # type: ignore[call-overload]  # as above
            with pytest.raises(InvalidParameterError):
                await client.info(name)  # type: ignore[arg-type]  # as above
            with pytest.raises(InvalidParameterError):
                await client.purge(name)  # type: ignore[arg-type]  # as above
        assert await client.list_queues() == []

    async def test_an_error_about_a_colon_names_the_namespace(self, client: Client) -> None:
        with pytest.raises(InvalidParameterError, match="namespace="):
            client.mailbox("tenant:orders")

    async def test_names_are_case_sensitive(self, client: Client) -> None:
        await client.mailbox("a").send("small")
        await client.mailbox("A").send("big")
        assert await bodies(client.mailbox("A").receive(max_messages=5)) == ["big"]

    async def test_queues_are_listed_sorted_without_their_dead_letters(self, client: Client) -> None:
        assert await client.list_queues() == []
        for name in ("b", "a", "C"):
            await client.mailbox(name).send(1)
        assert await client.list_queues() == ["C", "a", "b"]

    async def test_a_mailbox_that_was_opened_and_not_used_makes_no_queue(self, client: Client) -> None:
        client.mailbox("a")
        assert await client.list_queues() == []

    # --- tenants -----------------------------------------------------------------------------------------------

    async def test_namespaces_are_apart_in_everything(self, world: World) -> None:
        one, other = world.open(namespace="one"), world.open(namespace="other")
        plain = world.open()
        box = one.mailbox("q")
        await box.send(1)
        [message] = await box.receive()
        await message.dead_letter("why")
        await box.send(2)
        for stranger in (other, plain):
            assert await stranger.list_queues() == []
            with pytest.raises(QueueNotFoundError):
                await stranger.info("q")
            with pytest.raises(QueueNotFoundError):
                await stranger.delete_queue("q", force=True)
            assert await stranger.mailbox("q").receive() == []
            assert await stranger.mailbox("q").dead_letters.peek() == []
            assert await stranger.mailbox("q").purge() == 0
        info = await box.info()
        assert (info.ready, info.dead) == (1, 1)

    async def test_a_handle_of_one_tenant_settles_nothing_of_another(self, world: World) -> None:
        one, other = world.open(namespace="one"), world.open(namespace="other")
        await one.mailbox("q").send(1)
        await other.mailbox("q").send(1)
        [mine] = await one.receive("q")
        await other.receive("q")
        with pytest.raises(ReceiptHandleExpiredError):
            await other.acknowledge(mine.receipt)
        assert await one.mailbox("q").approximate_count() == 1
        assert await other.mailbox("q").approximate_count() == 1

    async def test_a_bad_namespace_is_refused(self, world: World) -> None:
        for wrong in ("a b", "a:b", "-", 7, None):
            with pytest.raises((InvalidParameterError, ConfigurationError)):
                world.open(namespace=wrong)

    # --- numbers -----------------------------------------------------------------------------------------------

    async def test_info_tells_the_parts(self, client: Client, world: World, second: float) -> None:
        world.needs("exact_stats", "schedule")
        box = client.mailbox("q", bytes)
        await box.send(b"dead")
        [message] = await box.receive()
        await message.dead_letter("why")
        await box.send(b"in flight")
        await box.receive(visibility_timeout=600)
        await box.send(b"scheduled", delay_seconds=600)
        await box.send(b"ready")
        await box.send(b"ready too")
        await world.advance(2 * second)
        info = await box.info()
        assert (info.name, info.total, info.ready, info.active) == ("q", 5, 2, 2)
        assert (info.scheduled, info.in_flight, info.dead, info.exact) == (1, 1, 1, True)
        if not world.capabilities.by_reference:
            assert info.size_bytes == len(b"in flightscheduledreadyready too")
        assert info.oldest_age is not None
        assert 1.9 * second <= info.oldest_age < 2 * second + 5
        assert info.status is QueueStatus.ACTIVE
        assert info.created_at.tzinfo is UTC
        assert await box.approximate_count() == 4

    async def test_an_empty_queue_has_no_oldest_age(self, box: Box) -> None:
        info = await box.info()
        assert (info.total, info.oldest_age, info.size_bytes) == (0, None, 0)

    async def test_bytes_leave_with_their_messages(self, client: Client, world: World) -> None:
        world.needs("exact_stats")
        world.needs_bytes()
        box = client.mailbox("q", bytes)
        await box.send_many([bytes(100)] * 3, attributes={"a": "b"})
        one, two, _ = await box.receive(max_messages=3)
        await one.acknowledge()
        await two.dead_letter("why")
        assert (await box.info()).size_bytes == 102
        await box.purge()
        assert (await box.info()).size_bytes == 0

    async def test_time_is_seen_by_info_without_any_claim(self, box: Box, world: World, second: float) -> None:
        world.needs("exact_stats", "schedule")
        await box.send("lapsing")
        await box.receive(visibility_timeout=second)
        await box.send("due soon", delay_seconds=second)
        await world.advance(2 * second)
        info = await box.info()
        assert (info.ready, info.scheduled, info.in_flight) == (2, 0, 0)

    async def test_info_of_a_queue_that_is_not_there(self, client: Client) -> None:
        with pytest.raises(QueueNotFoundError, match="nowhere"):
            await client.info("nowhere")

    # --- peek --------------------------------------------------------------------------------------------------

    async def test_a_peek_takes_nothing(self, box: Box, world: World) -> None:
        world.needs("peek")
        await box.send_many([1, 2, 3])
        for _ in range(2):
            assert [seen.body for seen in await box.peek()] == [1, 2, 3]
        assert [message.delivery_count for message in await box.receive(max_messages=3)] == [1, 1, 1]

    async def test_a_peek_shows_messages_of_every_state(self, box: Box, world: World, second: float) -> None:
        world.needs("peek", "schedule")
        await box.send("lapsed")
        await box.receive(visibility_timeout=second)
        await box.send("in flight")
        await world.advance(2 * second)
        await box.send("ready")
        await box.send("scheduled", delay_seconds=600)
        taken = {message.body for message in await box.receive(max_messages=2, visibility_timeout=600)}
        assert taken == {"lapsed", "in flight"}
        states = {seen.body: seen.state for seen in await box.peek()}
        assert states == {
            "lapsed": "in_flight",
            "in flight": "in_flight",
            "ready": "ready",
            "scheduled": "scheduled",
        }

    async def test_a_peek_goes_on_where_the_last_one_ended(self, box: Box, world: World) -> None:
        world.needs("peek")
        await box.send_many(range(25))
        after, seen = 0, []
        while page := await box.peek(10, after=after):
            seen += [one.body for one in page]
            after = page[-1].sequence_number
        assert seen == list(range(25))

    async def test_a_peek_of_a_priority_queue_is_by_sequence(self, box: Box, world: World) -> None:
        world.needs("peek", "priority")
        await box.send("first", priority=200)
        await box.send("second", priority=0)
        assert [(seen.body, seen.priority) for seen in await box.peek()] == [("first", 200), ("second", 0)]

    # --- definitions -------------------------------------------------------------------------------------------

    async def test_a_created_queue_has_the_recommended_values(self, client: Client) -> None:
        info = await client.create_queue(QueueDefinition(name="q"))
        d = info.definition
        assert (d.max_delivery_count, d.message_ttl, d.lock_duration) == (3, 86_400, 60)
        assert (d.sessions, d.on_dead, d.dead_lettering, d.duplicate_detection) == ("optional", "continue", True, True)
        assert (d.duplicate_detection_window, d.max_messages, d.overflow) == (600, None, "reject")
        assert (d.auto_delete_on_idle, d.batching, d.express, d.partitioning) == (None, True, False, False)

    async def test_a_plain_queue_has_no_limits(self, box: Box) -> None:
        d = (await box.info()).definition
        assert (d.max_delivery_count, d.message_ttl, d.max_messages, d.max_bytes) == (None, None, None, None)
        assert (d.lock_duration, d.duplicate_detection_window) == (30, 300)

    async def test_what_was_said_is_in_force(self, client: Client) -> None:
        definition = QueueDefinition(
            name="q",
            max_delivery_count=7,
            message_ttl=timedelta(hours=1),
            lock_duration=45,
            on_dead="block",
            duplicate_detection_window=30,
            max_messages=100,
            overflow="drop_oldest",
        )
        d = (await client.create_queue(definition)).definition
        assert (d.max_delivery_count, d.message_ttl, d.lock_duration, d.on_dead) == (7, 3600, 45, "block")
        assert (d.duplicate_detection_window, d.max_messages, d.overflow) == (30, 100, "drop_oldest")
        assert (await client.info("q")).definition == d

    async def test_a_definition_can_be_given_back(self, client: Client) -> None:
        """What info shows can be passed to create_queue, and changes nothing."""
        d = (await client.create_queue(QueueDefinition(name="q", max_messages=5))).definition
        assert (await client.create_queue(d)).definition == d

    async def test_an_existing_queue_takes_new_rules_over_and_keeps_its_messages(self, client: Client) -> None:
        box = client.mailbox("q")
        await box.send(1)
        await client.create_queue(QueueDefinition(name="q", lock_duration=99))
        [message] = await box.receive()
        assert abs(message.lease_expires_at - message.received_at - timedelta(seconds=99)) < timedelta(seconds=0.01)

    async def test_opening_a_mailbox_leaves_the_rules_alone(self, client: Client, world: World) -> None:
        await client.create_queue(QueueDefinition(name="q", max_delivery_count=9))
        await world.open().mailbox("q").send(1)
        assert (await client.info("q")).definition.max_delivery_count == 9

    async def test_rules_are_the_stores_and_hold_for_every_client(self, client: Client, world: World) -> None:
        await client.create_queue(QueueDefinition(name="q", max_delivery_count=1))
        other = world.open().mailbox("q")
        await other.send(1)
        [message] = await other.receive()
        await message.nack()
        assert await other.receive() == []
        assert (await other.info()).dead == 1

    @pytest.mark.parametrize("option", ["batching", "express", "partitioning"])
    async def test_what_no_store_of_ours_honours_is_refused(self, client: Client, option: str) -> None:
        with pytest.raises(UnsupportedError, match=option):
            await client.create_queue(QueueDefinition(name="q", **{option: option != "batching"}))  # type: ignore[arg-type]  # one row an option
        assert await client.list_queues() == []

    async def test_an_idle_queue_deletes_itself_where_told(self, client: Client, world: World, second: float) -> None:
        await client.create_queue(QueueDefinition(name="q", auto_delete_on_idle=3 * second))
        await client.create_queue(QueueDefinition(name="kept"))
        await world.advance(2 * second)
        await client.mailbox("q").send(1)  # which is no idleness
        await world.advance(2 * second)
        assert await client.list_queues() == ["kept", "q"]
        await world.advance(4 * second)
        assert await client.list_queues() == ["kept"]

    async def test_an_idle_queue_that_is_opened_again_begins_anew(
        self, client: Client, world: World, second: float
    ) -> None:
        await client.create_queue(QueueDefinition(name="q", auto_delete_on_idle=3 * second))
        await client.mailbox("q").send(1)
        await world.advance(4 * second)
        box = world.open().mailbox("q")
        assert await box.receive() == []
        await world.advance(4 * second)
        assert await client.list_queues() == ["q"], "it is a plain queue now"

    async def test_what_the_owner_should_know_is_told_in_a_line_each(self, client: Client) -> None:
        for finding in await client.examine():
            assert finding.level in ("ok", "note", "bad")
            assert finding.about
            assert finding.text
            assert "\n" not in finding.text

    # --- statuses ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("status", "takes", "gives"),
        [
            ("active", True, True),
            ("disabled", False, False),
            ("send_disabled", False, True),
            ("receive_disabled", True, False),
        ],
    )
    async def test_a_status_is_enforced(self, client: Client, status: str, takes: bool, gives: bool) -> None:
        box = client.mailbox("q")
        await box.send_many([1, 2])
        [held] = await box.receive()
        await client.set_status("q", status)
        assert (await client.info("q")).status is QueueStatus(status)
        if takes:
            await box.send(3)
        else:
            with pytest.raises(ServiceUnavailableError):
                await box.send(3)
        if gives:
            assert await bodies(box.receive()) == [2]
        else:
            with pytest.raises(ServiceUnavailableError):
                await box.receive()
        await held.acknowledge()  # settling works in every status
        await client.set_status("q", QueueStatus.ACTIVE)
        assert await box.approximate_count() == (2 if takes else 1)

    async def test_a_waiting_receive_ends_when_receiving_is_turned_off(self, client: Client, world: World) -> None:
        box = client.mailbox("q")
        await box.approximate_count()  # the queue is there: to open it may take longer than the pause
        waiting = world.spawn(box.receive, wait_time_seconds=20)
        await world.pause(0.06)
        await client.set_status("q", "disabled")
        with pytest.raises(ServiceUnavailableError):
            await waiting

    async def test_a_status_that_is_for_the_store_to_say_is_refused(self, client: Client) -> None:
        await client.mailbox("q").send(1)
        for wrong in ("creating", "deleting", "unknown", "asleep", None, 1):
            with pytest.raises(InvalidParameterError):
                await client.set_status("q", wrong)  # type: ignore[arg-type]  # what the test is about
        with pytest.raises(QueueNotFoundError):
            await client.set_status("nowhere", "disabled")

    # --- purge -------------------------------------------------------------------------------------------------

    async def test_a_purge_removes_all_but_the_dead_letters(self, box: Box, world: World) -> None:
        world.needs("purge", "schedule")
        await box.send("dead")
        [message] = await box.receive()
        await message.dead_letter("why")
        await box.send("in flight")
        await box.receive()
        await box.send("scheduled", delay_seconds=600)
        await box.send("ready")
        await box.send("session", session_id="s")
        assert await box.purge() == 4
        info = await box.info()
        assert (info.total, info.dead) == (1, 1)
        assert await box.receive(max_messages=5) == []
        assert await box.purge() == 0

    async def test_a_purge_makes_old_handles_gone(self, box: Box, world: World) -> None:
        world.needs("purge")
        await box.send(1)
        [message] = await box.receive()
        await box.purge()
        with pytest.raises(ReceiptHandleExpiredError) as refusal:
            await message.acknowledge()
        assert refusal.value.code == "gone"

    async def test_a_purge_takes_session_locks_away(self, box: Box, world: World) -> None:
        world.needs("purge", "sessions")
        session = await box.accept_session("s", lock_duration=600)
        await box.purge()
        with pytest.raises(ReceiptHandleExpiredError):
            await session.renew()
        await (await box.accept_session("s")).close()

    async def test_dead_letters_are_purged_by_themselves(self, box: Box, world: World) -> None:
        world.needs("purge")
        await box.send_many([1, 2])
        for message in await box.receive(max_messages=2):
            await message.dead_letter("why")
        await box.send(3)
        assert await box.dead_letters.purge() == 2
        info = await box.info()
        assert (info.dead, info.ready) == (0, 1)

    async def test_after_a_purge_the_queue_works_as_before(self, box: Box, world: World) -> None:
        world.needs("purge")
        await box.send(1, session_id="s")
        await box.receive()
        await box.purge()
        await box.send(2, session_id="s")
        await box.send(3)
        assert await bodies(box.receive(max_messages=5)) == [2, 3]

    # --- deleting ----------------------------------------------------------------------------------------------

    async def test_an_empty_queue_is_deleted(self, client: Client) -> None:
        await client.create_queue(QueueDefinition(name="q"))
        assert await client.delete_queue("q") == 0
        assert await client.list_queues() == []
        with pytest.raises(QueueNotFoundError):
            await client.info("q")

    @pytest.mark.parametrize("state", ["ready", "scheduled", "in flight", "dead"])
    async def test_a_queue_with_messages_is_not_deleted_unless_forced(self, client: Client, state: str) -> None:
        box = client.mailbox("q")
        await box.send(1, delay_seconds=600 if state == "scheduled" else 0)
        if state in ("in flight", "dead"):
            [message] = await box.receive()
            if state == "dead":
                await message.dead_letter("why")
        with pytest.raises(ConfigurationError, match="force"):
            await client.delete_queue("q")
        assert await client.list_queues() == ["q"]
        assert await client.delete_queue("q", force=True) == 1
        assert await client.list_queues() == []

    async def test_deleting_what_is_not_there_says_so(self, client: Client) -> None:
        with pytest.raises(QueueNotFoundError):
            await client.delete_queue("nowhere")

    async def test_a_deleted_queue_takes_everything_with_it(self, client: Client, world: World) -> None:
        world.needs("sessions", "dedup")
        box = client.mailbox("q")
        await box.send("old", dedup_id="d", session_id="s")
        [message] = await box.receive()
        await message.dead_letter("why")
        async with await box.accept_session("s") as session:
            await session.set_state(b"old")
        await client.delete_queue("q", force=True)
        again = world.open().mailbox("q")
        assert await again.dead_letters.peek() == []
        await again.send("new", dedup_id="d", session_id="s")
        async with await again.accept_session("s") as session:
            assert await session.state() is None
            assert await bodies(session.receive(max_messages=5)) == ["new"]

    async def test_a_receive_that_waits_at_a_queue_that_is_deleted_is_told(self, client: Client, world: World) -> None:
        await client.create_queue(QueueDefinition(name="q"))
        waiting = world.spawn(client.mailbox("q").receive, wait_time_seconds=20)
        await world.pause(0.06)
        await client.delete_queue("q")
        with pytest.raises(QueueNotFoundError):
            await waiting
