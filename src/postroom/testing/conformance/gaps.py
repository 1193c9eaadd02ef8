"""Gaps: which abilities a store may lack, and that a gap is refused or labelled, never papered over."""

from __future__ import annotations

import pytest

from postroom.core.capabilities import LABELS, NO, WEAKER, YES, Capabilities, Level
from postroom.core.definition import QueueDefinition
from postroom.errors import UnsupportedError
from postroom.testing.conformance.world import Box, Client, Suite, World

# What some store may honestly say (the table of the semantics, all columns). Every other gap is a bug.
ALLOWED: dict[str, tuple[Level, ...]] = {
    "survives_crash": (NO, WEAKER, YES),
    "survives_power_loss": (NO, WEAKER, YES),
    "survives_failover": (NO, WEAKER, YES),
    "stale_token_refused": (WEAKER, YES),
    "late_acknowledge": (NO, YES),
    "extend_to_any_time": (WEAKER, YES),
    "visibility_per_receive": (NO, YES),
    "delayed_nack": (WEAKER, YES),
    "uncounted_return": (NO, WEAKER, YES),
    "claim_retry": (NO, WEAKER, YES),
    "schedule": (NO, WEAKER, YES),
    "ttl": (WEAKER, YES),
    "dedup": (NO, WEAKER, YES),
    "sessions": (NO, YES),
    "session_state": (NO, YES),
    "priority": (NO, YES),
    "capacity": (NO, WEAKER, YES),
    "dead_letters": (WEAKER, YES),
    "transactional": (NO, YES),
    "exact_stats": (NO, YES),
    "peek": (NO, YES),
    "purge": (WEAKER, YES),
    "atomic_reply": (NO, WEAKER, YES),
}


def unlawful(store: Capabilities) -> list[str]:
    """What is wrong with these capabilities."""
    wrong = [
        f"{LABELS[ability]}: {Level(level).name} is not allowed to any store"
        for ability, allowed in ALLOWED.items()
        if (level := getattr(store, ability)) is not None and level not in allowed
    ]
    wrong += [
        f"{LABELS[ability]}: weaker, and notes do not say how"
        for ability in ALLOWED
        if getattr(store, ability) is WEAKER and not store.notes.get(ability)
    ]
    wrong += [f"notes name {name}, which is no ability" for name in store.notes.keys() - ALLOWED.keys()]
    if store.session_state and not store.sessions:
        wrong.append("a session cannot have a state where there are no sessions")
    if store.by_reference and store.survives_crash:
        wrong.append("what is passed by reference is gone with its process")
    return wrong


async def unsupported(box: Box, **options: object) -> None:
    """An option that the store cannot honour is refused, and nothing is stored."""
    with pytest.raises(UnsupportedError):
        await box.send(1, **options)  # type: ignore[arg-type]  # one call for many options
    assert await box.approximate_count() == 0


class Gaps(Suite):
    def test_every_ability_has_a_row(self) -> None:
        levels = {field for field in Capabilities.__struct_fields__ if field in LABELS}
        assert levels == ALLOWED.keys()

    async def test_no_gap_but_those_the_semantics_allow(self, client: Client) -> None:
        assert unlawful(client.capabilities) == []
        assert client.capabilities.store
        assert client.capabilities.clock

    @pytest.mark.parametrize(
        ("ability", "options"),
        [
            ("schedule", {"delay_seconds": 5}),
            ("ttl", {"ttl": 5}),
            ("dedup", {"dedup_id": "d"}),
            ("sessions", {"session_id": "s"}),
            ("priority", {"priority": 1}),
        ],
    )
    async def test_a_send_option_is_honoured_or_refused(
        self, box: Box, client: Client, ability: str, options: dict[str, object]
    ) -> None:
        if client.capabilities.can(ability):
            await box.send(1, **options)  # type: ignore[arg-type]  # one row an option
            assert await box.approximate_count() == 1
        else:
            await unsupported(box, **options)

    async def test_a_lease_of_ones_choice_is_honoured_or_refused(self, box: Box, client: Client) -> None:
        await box.send(1)
        if client.capabilities.can("visibility_per_receive"):
            [message] = await box.receive(visibility_timeout=300)
            assert message.remaining > 200
        else:
            with pytest.raises(UnsupportedError):
                await box.receive(visibility_timeout=300)
            [message] = await box.receive()
            assert message.delivery_count == 1

    async def test_sessions_are_there_or_refused(self, box: Box, client: Client) -> None:
        if client.capabilities.can("sessions"):
            await (await box.accept_session("s")).close()
        else:
            with pytest.raises(UnsupportedError):
                await box.accept_session("s")
            with pytest.raises(UnsupportedError):
                await client.create_queue(QueueDefinition(name="q", sessions="required"))

    async def test_bounds_are_there_or_refused(self, client: Client) -> None:
        definition = QueueDefinition(name="q", max_messages=5)
        if client.capabilities.can("capacity"):
            assert (await client.create_queue(definition)).definition.max_messages == 5
        else:
            with pytest.raises(UnsupportedError):
                await client.create_queue(definition)
            assert await client.list_queues() == []

    async def test_peeks_are_there_or_refused(self, box: Box, client: Client) -> None:
        await box.send(1)
        if client.capabilities.can("peek"):
            assert len(await box.peek()) == 1
        else:
            with pytest.raises(UnsupportedError):
                await box.peek()

    async def test_numbers_that_are_estimates_say_so(self, box: Box, world: World) -> None:
        await box.send(1)
        assert (await box.info()).exact is (world.capabilities.exact_stats is YES)
