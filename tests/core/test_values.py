"""Limits, names, backoff, handles, stored heads: the small decisions everything rests on."""

from __future__ import annotations

import math
import pickle
import string
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import postroom.errors
from postroom.core import address, limits
from postroom.core.capabilities import YES, Capabilities
from postroom.core.definition import QueueDefinition, QueueMessage, ReceiveOptions, Rules, SendOptions
from postroom.core.lifecycle import TERMINAL, TRANSITIONS, State, state_of
from postroom.core.message import (
    MAX_HISTORY,
    Attempt,
    Death,
    Envelope,
    add_attempt,
    make_handle,
    pack_head,
    pack_record,
    parse_handle,
    unpack_head,
    unpack_record,
)
from postroom.core.policy import Backoff
from postroom.errors import ConfigurationError, InvalidParameterError, MailboxError, MessageTooLargeError

# --- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [True, False, None, "1", math.nan, math.inf, -math.inf, -1, -0.001, 43_201, [], 10**400]
)
def test_what_is_no_duration_in_range_is_refused(value: Any) -> None:
    with pytest.raises(InvalidParameterError, match="visibility_timeout"):
        limits.seconds(value, "visibility_timeout", 0, limits.MAX_LEASE)


@given(st.floats(0, limits.MAX_LEASE) | st.integers(0, 43_200))
def test_a_duration_in_range_is_kept_exactly(value: float) -> None:
    assert limits.seconds(value, "x", 0, limits.MAX_LEASE) == value


def test_a_timedelta_is_its_seconds() -> None:
    assert limits.seconds(timedelta(minutes=1.5), "x") == 90


@pytest.mark.parametrize("value", [True, 1.0, None, "1", 0, 1001])
def test_what_is_no_whole_number_in_range_is_refused(value: Any) -> None:
    with pytest.raises(InvalidParameterError, match="max_messages"):
        limits.whole(value, "max_messages", 1, 1000)


def test_a_range_is_told_in_figures_that_people_read() -> None:
    with pytest.raises(InvalidParameterError, match=r"between 0 and 315360000 seconds \(10 years\), not -1"):
        limits.seconds(-1, "delay_seconds")


@pytest.mark.parametrize("wrong", ["abc", b"abc", {"a": 1}, 5, None])
def test_one_thing_is_not_several(wrong: Any) -> None:
    """The letters of a text and the keys of a mapping can be gone through, and are never what was meant."""
    with pytest.raises(InvalidParameterError, match="bodies must be a list"):
        limits.several(wrong, "bodies")
    assert limits.several((letter for letter in "abc"), "bodies") == ["a", "b", "c"]


def test_attributes_are_few_small_texts() -> None:
    given = {"a": "b"}
    kept = limits.attributes(given)
    assert kept == given
    assert kept is not given
    for wrong in (
        {"a": 1},
        {1: "a"},
        {"": "a"},
        {"a\n": "b"},
        [("a", "b")],
        {"a": "\ud800"},
        {str(n): "" for n in range(65)},
    ):
        with pytest.raises(InvalidParameterError):
            limits.attributes(wrong)  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(MessageTooLargeError):
        limits.attributes({"a": "x" * (64 << 10)})


# --- names and URLs ------------------------------------------------------------------------------------------------


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}", fullmatch=True))
def test_a_name_in_the_alphabet_is_kept(name: str) -> None:
    assert address.check_name(name) == name


@given(st.text(max_size=100))
def test_any_other_name_is_refused(name: str) -> None:
    alphabet = set(string.ascii_letters + string.digits + "_.-")
    fits = 0 < len(name) <= 80 and set(name) <= alphabet and name[0] not in "_.-"
    if fits:
        return
    with pytest.raises(InvalidParameterError):
        address.check_name(name)


@pytest.mark.parametrize("name", ["a\n", "é", "a b", "a/b", "a!dead", "{a}", "", "a" * 81, None, 7, b"a"])
def test_names_that_nearly_fit_are_refused(name: Any) -> None:
    with pytest.raises(InvalidParameterError):
        address.check_name(name)


def test_an_error_about_a_colon_names_the_namespace_option() -> None:
    with pytest.raises(InvalidParameterError, match="namespace="):
        address.check_name("tenant:orders")
    with pytest.raises(InvalidParameterError, match="connect"):
        address.check_name("arn:aws:sqs:eu-west-1:1:orders")


def test_a_url_is_taken_apart_and_never_shows_its_password() -> None:
    where = address.parse_url("redis://ann:s3cr%40t@host:6379/0?ssl_password=hidden&db=1")
    assert (where.host, where.port, where.user, where.password) == ("host", 6379, "ann", "s3cr@t")
    assert where.options == {"ssl_password": "hidden", "db": "1"}
    for text in (str(where), repr(where)):
        assert "s3cr" not in text
        assert "hidden" not in text


def test_a_text_that_is_no_url_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ConfigurationError) as raised:
        address.parse_url("ann:s3cret@host")
    assert "s3cret" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="twice"):
        address.parse_url("memory://?a=1&a=2")


def test_a_bracket_without_its_partner_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="redis://…: this is no URL") as raised:
        address.parse_url("redis://ann:s3cret@[host/0")
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("given", ["sqlite:///a#b.db", "redis://ann:1234#x@host", "memory://a#"])
def test_a_hash_in_a_url_is_refused_as_it_would_cut_it_off(given: str) -> None:
    with pytest.raises(ConfigurationError, match="%23") as raised:
        address.parse_url(given)
    assert "1234" not in str(raised.value)


@pytest.mark.parametrize("given", ["shop.db", "/var/lib/shop.db", ""])
def test_a_path_that_is_no_url_is_shown_beside_one(given: str) -> None:
    with pytest.raises(ConfigurationError, match=f"sqlite:///shop.db.*, not like '{given}'"):
        address.parse_url(given)


# --- definitions and options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_delivery_count": 0},
        {"max_delivery_count": True},
        {"message_ttl": 0},
        {"lock_duration": 43_201},
        {"sessions": "maybe"},
        {"overflow": "explode"},
        {"duplicate_detection_window": 19},
        {"duplicate_detection_window": 8 * 86_400},
        {"duplicate_detection": False, "duplicate_detection_window": 60},
        {"dead_lettering": False, "dead_letter_queue": "x"},
        {"dead_letter_queue": "q"},
        {"overflow_timeout": 5},
        {"max_messages": 0},
        {"max_bytes": -1},
        {"auto_delete_on_idle": math.nan},
    ],
    ids=repr,
)
def test_a_definition_out_of_range_cannot_be_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError):
        QueueDefinition(name="q", **wrong)


def test_what_a_definition_or_a_message_is_about_comes_first() -> None:
    assert QueueDefinition("q", max_delivery_count=5) == QueueDefinition(name="q", max_delivery_count=5)
    assert QueueMessage(b"x", message_id="1") == QueueMessage(body=b"x", message_id="1")


def test_the_definition_in_force_answers_what_happens_on_expiry() -> None:
    assert QueueDefinition.of("q", QueueDefinition("q").rules()).dead_letter_on_expiry is False


def test_an_unknown_ability_is_refused_by_name() -> None:
    store = Capabilities(store="shelf", survives_crash=YES, survives_power_loss=YES, clock="its own")
    assert store.can("sessions")
    with pytest.raises(InvalidParameterError, match=r"'sesions' is no ability; there are .*sessions"):
        store.can("sesions")


def test_what_a_definition_leaves_open_is_as_recommended() -> None:
    rules = QueueDefinition(name="q").rules()
    assert (rules.max_deliveries, rules.ttl, rules.lease, rules.dedup_window, rules.max_bytes) == (
        3, 86_400, 60, 600, 1 << 30,
    )  # fmt: skip
    assert (rules.max_messages, rules.overflow, rules.sessions, rules.dead_lettering) == (
        None,
        "reject",
        "optional",
        True,
    )
    plain = Rules()
    assert (plain.max_deliveries, plain.ttl, plain.lease, plain.max_bytes) == (None, None, 30, None)


@given(
    st.builds(
        Rules,
        plain=st.just(False),
        max_deliveries=st.integers(1, 100),
        ttl=st.floats(1, 1e6),
        lease=st.floats(1, 43_200),
        dedup_window=st.floats(20, 86_400),
        max_bytes=st.integers(1, 1 << 40),
        max_messages=st.none() | st.integers(1, 1 << 40),
        sessions=st.sampled_from(["optional", "required", "off"]),
        on_dead=st.sampled_from(["continue", "block"]),
        overflow=st.sampled_from(["reject", "wait", "drop_oldest", "drop_newest"]),
        expired_to_dead_letters=st.booleans(),
    )
)
def test_the_definition_in_force_makes_the_same_rules_again(rules: Rules) -> None:
    assert QueueDefinition.of("q", rules).rules() == rules


def test_fluent_methods_leave_the_original_alone() -> None:
    first = SendOptions()
    second = first.with_delay(5).with_priority(1).with_properties(a="b").with_properties(c="d")
    assert first == SendOptions()
    assert (second.delay, second.priority) == (5, 1)
    assert second.properties == {"a": "b", "c": "d"}
    assert second.with_schedule(datetime.now(UTC)).delay is None
    assert ReceiveOptions().with_session("s").with_any_session().session_id is None
    assert QueueMessage(body=b"x").with_ttl(5).ttl == 5


def test_options_that_contradict_themselves_cannot_be_made() -> None:
    for make in (
        lambda: SendOptions(delay=1, scheduled_enqueue_time=datetime.now(UTC)),
        lambda: SendOptions(scheduled_enqueue_time=datetime(2026, 1, 1)),  # noqa: DTZ001  # the mistake under test
        lambda: ReceiveOptions(session_id="s", accept_any_session=True),
        lambda: ReceiveOptions(peek=True, timeout=1),
        lambda: ReceiveOptions(from_sequence_number=1),
        lambda: ReceiveOptions(max_messages=0),
        lambda: QueueMessage(body="text"),  # type: ignore[arg-type]  # the mistake under test
    ):
        with pytest.raises(InvalidParameterError):
            make()


# --- backoff ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_a_backoff_is_never_negative_nor_above_its_cap_and_jitter(attempt: int, chance: float) -> None:
    retry = Backoff(base=1, cap=900, jitter=0.2)
    assert 0 <= retry.after(attempt, chance) <= 900 * 1.2


@given(st.integers(1, 100))
def test_the_linear_backoff_is_sixty_seconds_an_attempt_up_to_a_quarter_of_an_hour(attempt: int) -> None:
    retry = Backoff(base=60, cap=900, growth="linear", jitter=0)
    assert retry.after(attempt) == min(60 * attempt, 900)


def test_a_backoff_out_of_range_cannot_be_made() -> None:
    for wrong in ({"max_attempts": 0}, {"base": -1}, {"cap": math.nan}, {"jitter": 2}, {"growth": "wild"}):
        with pytest.raises(InvalidParameterError):
            Backoff(**wrong)  # type: ignore[arg-type]  # the mistake under test


# --- handles and stored parts -------------------------------------------------------------------------------------


@given(st.integers(0, 2**62), st.from_regex(r"[0-9a-f]{32}", fullmatch=True))
def test_a_handle_is_read_back(seq: int, claim_id: str) -> None:
    assert parse_handle(make_handle(seq, claim_id)) == (seq, claim_id)


@pytest.mark.parametrize(
    "handle", ["", ".", "1", "1.", ".a", "x.a", "-1.a", "1.a!", "1." + "é", "9" * 20 + ".a", None, 5, b"1.a"]
)
def test_a_malformed_handle_is_the_callers_mistake(handle: Any) -> None:
    with pytest.raises(InvalidParameterError):
        parse_handle(handle)


texts = st.text(min_size=1, max_size=20)


@given(
    st.builds(
        Envelope,
        id=texts,
        body=st.binary(max_size=20),
        content_type=texts,
        attributes=st.none() | st.dictionaries(texts, texts, min_size=1, max_size=3),
        reply_to=st.none() | texts,
        correlation_id=st.none() | texts,
        session_id=st.none() | texts,
        priority=st.integers(0, 255),
    )
)
def test_an_envelope_survives_being_stored(envelope: Envelope) -> None:
    head = pack_head(envelope)
    assert envelope == unpack_head(
        envelope.id, envelope.body, head, session_id=envelope.session_id, priority=envelope.priority
    )


def test_a_plain_envelope_stores_no_head() -> None:
    assert pack_head(Envelope("1", b"{}")) is None


@given(st.binary(max_size=40))
@example(b"\xdd\x00\x00\x00\x05\x00\xa1\x80")  # a text that is not UTF-8
@example(b"\x91" * 100_000)
def test_a_damaged_head_is_a_fault_and_never_an_exception(head: bytes) -> None:
    found = unpack_head("1", b"body", head)
    assert found.body == b"body"
    assert found.fault is not None or pack_head(found) is not None or head == b""


@pytest.mark.parametrize(("id", "body"), [(None, b"x"), ("1", None), ("1", "text"), (3, 4)])
def test_columns_of_other_types_are_a_fault(id: Any, body: Any) -> None:
    assert unpack_head(id, body, None).fault


@given(st.lists(st.builds(Attempt, st.integers(1, 99), st.floats(0, 1e9), st.text(max_size=20)), max_size=30))
def test_a_history_keeps_its_last_entries(attempts: list[Attempt]) -> None:
    death = Death("why", "so", "q", 1.0, 3)
    assert unpack_record(pack_record(death, attempts)) == (death, tuple(attempts[-MAX_HISTORY:]))
    longer = add_attempt(attempts, 100, 2.0, "x" * 5_000)
    assert len(longer) <= MAX_HISTORY
    assert longer[-1].number == 100
    assert len(longer[-1].error) == 1_000


@given(st.binary(max_size=30))
def test_a_damaged_past_reads_as_none(record: bytes) -> None:
    death, history = unpack_record(record)
    assert (death is None and history == ()) or pack_record(death, history)


# --- life and errors ----------------------------------------------------------------------------------------------


def test_every_state_can_be_reached_and_only_terminal_ones_cannot_be_left() -> None:
    reached = {state for transition in TRANSITIONS for state in transition.after}
    left = {transition.before for transition in TRANSITIONS if transition.before is not None}
    assert reached == set(State)
    assert set(State) - left == TERMINAL - {State.DEAD}  # the dead can be redriven


@given(st.floats(0, 100), st.floats(0, 100), st.none() | st.floats(0, 100))
def test_a_stored_message_is_in_one_state(now: float, visible_at: float, lease_until: float | None) -> None:
    state = state_of(now, visible_at, lease_until)
    assert (state in (State.IN_FLIGHT, State.LAPSED)) == (lease_until is not None)
    assert state not in TERMINAL


def errors() -> list[type[MailboxError]]:
    found = [MailboxError]
    for kind in found:
        found += kind.__subclasses__()
    return found


@pytest.mark.parametrize("kind", errors(), ids=lambda kind: kind.__name__)
def test_an_error_says_whose_fault_it_is_and_travels_between_processes(kind: type[MailboxError]) -> None:
    error = kind("what happened", retry_after=2.5, code="X1")
    for twin in (pickle.loads(pickle.dumps(error)), error.copy()):  # our own bytes
        assert type(twin) is kind
        assert (str(twin), twin.transient, twin.retry_after, twin.code) == ("what happened", error.transient, 2.5, "X1")


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    described = postroom.errors.__doc__ or ""
    for kind in errors():
        assert f" {kind.__name__}" in described
        if kind.default_transient:
            [line] = [line for line in described.splitlines() if f"─ {kind.__name__} " in line]
            assert line.rstrip().endswith("transient")
