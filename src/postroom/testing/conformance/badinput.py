"""Bad input: refused with its own error before anything is stored, and never clamped."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from postroom.core.definition import QueueDefinition, QueueMessage, ReceiveOptions, SendOptions
from postroom.core.limits import MAX_ATTRIBUTE_BYTES, MAX_ATTRIBUTES, MAX_DELAY, MAX_LEASE, MAX_WAIT
from postroom.errors import (
    ConfigurationError,
    InvalidParameterError,
    MailboxError,
    MessageTooLargeError,
    Reject,
    Retry,
    SerializationError,
)
from postroom.testing.conformance.world import Box, Client, Suite, World

NAN, INF = math.nan, math.inf
NO_DURATION: list[Any] = [-1, -0.001, NAN, INF, -INF, True, False, "5", b"5", [5], timedelta(seconds=-1)]
NO_COUNT: list[Any] = [0, -1, 1_001, 1.0, True, "1", None, NAN, 10**30]
NO_TEXT: list[Any] = ["", "x" * 256, "a\n", "a\x00", "\ud800", 7, True, b"x", ["x"]]
SEND_OPTIONS: list[tuple[str, list[Any]]] = [
    ("delay_seconds", [*NO_DURATION, None, MAX_DELAY + 1]),
    ("ttl", [*NO_DURATION, 0, MAX_DELAY + 1]),
    ("priority", [-1, 256, 1.5, True, "10", None, NAN]),
    ("id", NO_TEXT),
    ("correlation_id", NO_TEXT),
    ("session_id", NO_TEXT),
    ("dedup_id", NO_TEXT),
    ("content_type", NO_TEXT),
    ("attributes", [[], "k=v", 7, {"k": 1}, {1: "v"}, {"": "v"}, {"k": None}, {"k": "\ud800"}, {"k\n": "v"}]),
    ("attributes", [{str(n): "" for n in range(MAX_ATTRIBUTES + 1)}]),
]


@dataclass
class Point:
    x: int
    y: int


class Unlike:
    pass


BAD_BODIES: list[tuple[Any, Any]] = [
    (Point, {"x": 1, "y": 2}),
    (Point, Point("one", 2)),  # type: ignore[arg-type]  # what the test is about
    (Point, Point(1, NAN)),  # type: ignore[arg-type]  # as above
    (Point, None),
    (str, b"bytes"),
    (str, "\ud800"),
    (bytes, "text"),
    (bytes, bytearray(b"x")),
    (int, "1"),
    (int, True),
    (None, Unlike()),
    (None, {1: "key"}),
    (None, (1, 2)),
    (None, {1, 2}),
    (None, NAN),
    (None, [INF]),
    (None, b"bytes"),
    (None, datetime(2030, 1, 1, tzinfo=UTC)),
]
BY_CLASS = [Point, str, bytes, int]  # what a store that hands over references can still tell


def nested(depth: int) -> Any:
    body: Any = []
    for _ in range(depth):
        body = [body]
    return body


async def refused(error: type[MailboxError], call: Callable[..., Awaitable[object]], *args: Any, **kwargs: Any) -> None:
    with pytest.raises(error):
        await call(*args, **kwargs)


class BadInput(Suite):
    @pytest.mark.parametrize(("option", "wrongs"), SEND_OPTIONS, ids=[option for option, _ in SEND_OPTIONS])
    async def test_a_wrong_send_option_stores_nothing(self, box: Box, option: str, wrongs: list[Any]) -> None:
        for wrong in wrongs:
            await refused(InvalidParameterError, box.send, 1, **{option: wrong})
            if option not in ("id", "dedup_id"):
                await refused(InvalidParameterError, box.send_many, [1, 2], **{option: wrong})
        assert await box.approximate_count() == 0

    async def test_attributes_over_the_limit_are_too_large(self, box: Box) -> None:
        await refused(MessageTooLargeError, box.send, 1, attributes={"k": "x" * MAX_ATTRIBUTE_BYTES})
        await box.send(2, attributes={"k": "x" * (MAX_ATTRIBUTE_BYTES - 1)})
        assert await box.approximate_count() == 1

    async def test_one_id_cannot_serve_several_messages(self, box: Box) -> None:
        await refused(InvalidParameterError, box.send_many, [1, 2], id="m")
        await refused(InvalidParameterError, box.send_many, [1, 2], dedup_id="d")
        assert await box.approximate_count() == 0

    async def test_an_unknown_option_is_a_type_error(self, box: Box, client: Client) -> None:
        with pytest.raises(TypeError):
            await box.send(1, delay=5)  # type: ignore[call-arg]  # what the test is about
        with pytest.raises(TypeError):
            await box.receive(max_message=5)  # type: ignore[call-arg]  # as above
        with pytest.raises(TypeError):
            SendOptions(delay_seconds=5)  # type: ignore[call-arg]  # as above
        assert await box.approximate_count() == 0

    async def test_an_unknown_option_of_the_client_is_refused(self, world: World) -> None:
        with pytest.raises(ConfigurationError, match="colour"):
            world.open(colour="blue")

    @pytest.mark.parametrize(
        ("option", "wrongs"),
        [
            ("max_messages", NO_COUNT),
            ("visibility_timeout", [*NO_DURATION, MAX_LEASE + 1]),
            ("wait_time_seconds", [*NO_DURATION, None, MAX_WAIT + 1]),
            ("session_id", ["", 7, True, b"s"]),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    async def test_a_wrong_receive_option_takes_nothing(self, box: Box, option: str, wrongs: list[Any]) -> None:
        await box.send(1)
        for wrong in wrongs:
            await refused(InvalidParameterError, box.receive, **{option: wrong})
        [message] = await box.receive()
        assert message.delivery_count == 1

    async def test_a_wrong_duration_settles_nothing(self, box: Box) -> None:
        await box.send(1)
        [message] = await box.receive()
        for wrong in [*NO_DURATION, None, MAX_LEASE + 1]:
            await refused(InvalidParameterError, message.nack, visibility_timeout=wrong)
            await refused(InvalidParameterError, message.extend_visibility, wrong)
            await refused(InvalidParameterError, box.nack_many, [message], visibility_timeout=wrong)
        for wrong in [*NO_TEXT, None]:
            await refused(InvalidParameterError, message.dead_letter, wrong)
        for wrong in (None, 7, b"x"):
            await refused(InvalidParameterError, message.dead_letter, "why", wrong)
        assert not message.is_finalized
        await message.acknowledge()

    async def test_a_wrong_outcome_fails_in_the_handler_and_settles_nothing(self, box: Box) -> None:
        """Not at the settling, when nobody can tell any more where it came from."""
        await box.send(1)
        [message] = await box.receive()
        for wrong in [*NO_DURATION, None]:
            with pytest.raises(InvalidParameterError):
                Retry(delay=wrong)
        for wrong in [*NO_TEXT, None, "two\nlines", "x" * 256]:
            with pytest.raises(InvalidParameterError):
                Reject(wrong)
        for wrong in (None, 7, b"x"):
            with pytest.raises(InvalidParameterError):
                Reject("why", wrong)  # type: ignore[arg-type]  # what the test is about
        await message.acknowledge()

    async def test_a_handle_with_a_number_that_no_message_has_is_malformed(self, client: Client, world: World) -> None:
        await client.mailbox("q").send(1)
        [taken] = await client.receive("q")
        seq, _, claim = taken.receipt.receipt_id.partition(".")
        if not seq.isdigit():
            pytest.skip("capability: handles of our own")
        for wrong in (str(1 << 63), "9" * 40):
            receipt = replace(taken.receipt, receipt_id=f"{wrong}.{claim}")
            await refused(InvalidParameterError, client.acknowledge, receipt)
        await client.acknowledge(taken.receipt)

    async def test_only_messages_are_settled(self, box: Box) -> None:
        for wrong in ([7], ["handle"], [None]):
            with pytest.raises(InvalidParameterError):
                await box.acknowledge_many(wrong)  # type: ignore[arg-type]  # what the test is about

    async def test_a_wrong_peek_is_refused(self, box: Box, client: Client) -> None:
        await box.approximate_count()
        for wrong in NO_COUNT:
            await refused(InvalidParameterError, box.peek, wrong)
        for wrong in (-1, True, 1.5, None, "1"):
            await refused(InvalidParameterError, box.peek, after=wrong)
            await refused(InvalidParameterError, client.peek, "box", after=wrong)
        await refused(InvalidParameterError, client.peek, "a:b")

    async def test_a_wrong_session_request_is_refused(self, box: Box, world: World) -> None:
        world.needs("sessions")
        wrong: Any
        for wrong in ("", 7, True, b"s", "x" * 256):
            await refused(InvalidParameterError, box.accept_session, wrong)
        for wrong in [*NO_DURATION, 0, MAX_LEASE + 1]:
            await refused(InvalidParameterError, box.accept_session, "s", lock_duration=wrong)
        for wrong in [*NO_DURATION, None, MAX_WAIT + 1]:
            await refused(InvalidParameterError, box.accept_session, "s", wait_time_seconds=wrong)
        async with await box.accept_session("s") as session:
            for wrong in [*NO_DURATION, 0, MAX_LEASE + 1]:
                await refused(InvalidParameterError, session.renew, wrong)
            for wrong in NO_COUNT:
                await refused(InvalidParameterError, session.receive, max_messages=wrong)

    @pytest.mark.parametrize(("body_type", "body"), BAD_BODIES, ids=[f"{n}" for n in range(len(BAD_BODIES))])
    async def test_a_body_that_does_not_fit_is_not_sent(
        self, client: Client, world: World, body_type: Any, body: Any
    ) -> None:
        if world.capabilities.by_reference and not (body_type in BY_CLASS and not isinstance(body, body_type)):
            pytest.skip("capability: bodies that are bytes")
        box = client.mailbox("box", body_type)
        await refused(SerializationError, box.send, body)
        [result] = await box.send_many([body])
        assert isinstance(result.error, SerializationError)
        assert await box.approximate_count() == 0

    async def test_a_body_nested_too_deep_is_not_sent(self, box: Box, world: World) -> None:
        world.needs_bytes()
        await box.send(nested(99))
        for depth in (101, 10_000):
            await refused(SerializationError, box.send, nested(depth))
        assert await box.approximate_count() == 1

    async def test_an_oversize_body_is_not_sent(self, client: Client, world: World) -> None:
        world.needs_bytes()
        box = client.mailbox("box", bytes)
        await refused(MessageTooLargeError, box.send, bytes((1 << 20) + 1))
        good, bad = await box.send_many([b"x", bytes((1 << 20) + 1)])
        assert good.ok
        assert isinstance(bad.error, MessageTooLargeError)
        assert await box.approximate_count() == 1

    async def test_the_limit_of_a_body_can_be_set(self, world: World) -> None:
        world.needs_bytes()
        box = world.open(max_body=10).mailbox("box", bytes)
        await box.send(bytes(10))
        await refused(MessageTooLargeError, box.send, bytes(11))
        assert await box.approximate_count() == 1
        for wrong in (0, -1, "many"):
            with pytest.raises(ConfigurationError):
                world.open(max_body=wrong)

    @pytest.mark.parametrize(
        ("field", "wrongs"),
        [
            ("max_delivery_count", [0, -1, 1.5, True, "3", 10**7]),
            ("message_ttl", [*NO_DURATION, 0]),
            ("lock_duration", [*NO_DURATION, 0, MAX_LEASE + 1]),
            ("sessions", ["sometimes", True, 1]),
            ("on_dead", ["stop", True]),
            ("dead_lettering", ["yes", 1]),
            ("dead_letter_queue", ["q", "a:b", 7, ""]),
            ("dead_letter_on_expiry", ["yes", 1]),
            ("duplicate_detection", ["yes", 1]),
            ("duplicate_detection_window", [*NO_DURATION, 19, 7 * 86_400 + 1]),
            ("max_messages", [0, -1, 1.5, True, "3"]),
            ("max_bytes", [0, -1, 1.5, True, "3"]),
            ("overflow", ["maybe", True]),
            ("auto_delete_on_idle", [*NO_DURATION, 0]),
            ("batching", [1, "yes"]),
            ("express", [1, "yes"]),
            ("partitioning", [1, "yes"]),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    async def test_a_wrong_definition_is_refused_when_it_is_written(self, field: str, wrongs: list[Any]) -> None:
        for wrong in wrongs:
            with pytest.raises(InvalidParameterError):
                QueueDefinition(name="q", **{field: wrong})

    async def test_a_definition_that_contradicts_itself_is_refused(self) -> None:
        contradictions: tuple[dict[str, Any], ...] = (
            {"dead_lettering": False, "dead_letter_queue": "d"},
            {"dead_lettering": False, "dead_letter_on_expiry": True},
            {"duplicate_detection": False, "duplicate_detection_window": 60},
            {"overflow": "reject", "overflow_timeout": 5},
        )
        for contradiction in contradictions:
            with pytest.raises(InvalidParameterError):
                QueueDefinition(name="q", **contradiction)

    async def test_wrong_raw_options_are_refused(self, client: Client) -> None:
        await client.create_queue(QueueDefinition(name="q"))
        naive = datetime(2030, 1, 1)  # noqa: DTZ001  # what the test is about
        makers: list[Callable[[], object]] = [
            lambda: SendOptions(delay=1, scheduled_enqueue_time=datetime(2030, 1, 1, tzinfo=UTC)),
            lambda: SendOptions(scheduled_enqueue_time=naive),
            lambda: QueueMessage(body="text"),  # type: ignore[arg-type]  # as above
            lambda: ReceiveOptions(session_id="s", accept_any_session=True),
            lambda: ReceiveOptions(from_sequence_number=5),
            lambda: ReceiveOptions(peek=True, timeout=5),
            *[partial(ReceiveOptions, max_messages=wrong) for wrong in NO_COUNT],
            *[partial(ReceiveOptions, timeout=wrong) for wrong in [*NO_DURATION, None]],
        ]
        for make in makers:
            with pytest.raises(InvalidParameterError):
                make()
        await refused(InvalidParameterError, client.send, "q", QueueMessage(body=b"", scheduled_enqueue_time=naive))
        for wrong in NO_DURATION:
            await refused(InvalidParameterError, client.send, "q", QueueMessage(body=b""), SendOptions(delay=wrong))
            await refused(InvalidParameterError, client.send, "q", QueueMessage(body=b""), SendOptions(ttl=wrong))
            await refused(InvalidParameterError, client.receive, "q", ReceiveOptions(lock_duration=wrong))
        for wrong in NO_TEXT:
            await refused(InvalidParameterError, client.send, "q", QueueMessage(body=b"", message_id=wrong))
            await refused(InvalidParameterError, client.send, "q", QueueMessage(body=b"", session_id=wrong))
        assert (await client.info("q")).total == 0
