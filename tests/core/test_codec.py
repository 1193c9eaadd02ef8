"""Bodies: what is sent is what arrives, and what could not arrive is not sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.core.codec import MSGPACK, codec_for
from postroom.errors import ConfigurationError, InvalidMessageError, InvalidParameterError, SerializationError


@dataclass
class Order:
    sku: str
    qty: int


@dataclass
class Total:
    pass


class Point(msgspec.Struct):
    x: float
    y: float | None = None


class Row(TypedDict):
    a: int


class Model(pydantic.BaseModel):
    x: int


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def there_and_back(body_type: Any, body: Any, content_type: str | None = None) -> Any:
    codec = codec_for(body_type)
    return codec.decode(*codec.encode(body, content_type))


@pytest.mark.parametrize(
    ("body_type", "body"),
    [
        (Order, Order("A", 1)),
        (Point, Point(1.5)),
        (Row, {"a": 1}),
        (Model, Model(x=1)),
        (list[Order], [Order("A", 1)]),
        (dict[str, int], {"a": 1}),
        (Order | None, None),
        (int | str, "x"),
        (Order | Total, Total()),
        (Order | Total, Order("A", 2)),
        (Model | Order, Model(x=3)),
        (Model | Order, Order("A", 3)),
        (bytes | str, b"\x00"),
        (bytes | str, "text"),
        (bytes, b"\xff\x00"),
        (str, "héllo"),
        (None, {"a": [1, 2.5, None, True, "x"]}),
    ],
    ids=repr,
)
def test_every_kind_of_body_comes_back_as_it_was(body_type: Any, body: Any) -> None:
    assert there_and_back(body_type, body) == body


@given(json_values)
def test_plain_json_values_come_back_equal(value: Any) -> None:
    assert there_and_back(None, value) == value


@given(st.text(), st.integers(-(2**63), 2**63 - 1))
def test_msgpack_on_request(sku: str, qty: int) -> None:
    assert there_and_back(Order, Order(sku, qty), MSGPACK) == Order(sku, qty)


@given(st.binary())
def test_bytes_that_are_no_body_are_an_invalid_message_and_nothing_else(data: bytes) -> None:
    for body_type in (Order, Point, Model, None, Order | Total):
        try:
            codec_for(body_type).decode(data, "application/json")
        except InvalidMessageError:
            pass


@pytest.mark.parametrize(
    ("body_type", "body"),
    [
        (Order, {"sku": "A", "qty": 1}),
        (Order, Order("A", "three")),  # type: ignore[arg-type]  # the mistake under test
        (Order, None),
        (Point, Point(math.nan)),
        (float | None, math.nan),
        (None, math.inf),
        (None, (1, 2)),
        (None, {1: "a"}),
        (None, {"a": Order("A", 1)}),
        (None, b"raw"),
        (str, b"raw"),
        (bytes, "text"),
        (bytes, bytearray(b"x")),
        (str, "\ud800"),
        (Row, {"a": "x"}),
        (Model, Order("A", 1)),
        (Order | Total, Point(1.0)),
    ],
    ids=repr,
)
def test_a_body_that_its_receiver_could_not_read_is_not_written(body_type: Any, body: Any) -> None:
    with pytest.raises(SerializationError):
        codec_for(body_type).encode(body)


def test_a_body_nested_too_deep_is_refused_both_ways() -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(SerializationError, match="deeper"):
        codec_for(None).encode(deep)
    with pytest.raises(InvalidMessageError, match="deeper"):
        codec_for(None).decode(b"[" * 200 + b"]" * 200, "application/json")


@pytest.mark.parametrize("body_type", [None, Order, Model])
def test_a_key_given_twice_is_refused(body_type: Any) -> None:
    with pytest.raises(InvalidMessageError):
        codec_for(body_type).decode(b'{"sku":"A","qty":1,"x":1,"qty":2,"x":2}', "application/json")


def test_json_that_was_written_with_other_spacing_is_read() -> None:
    assert codec_for(Order).decode(b' { "qty": 1 , "sku": "A" } ', "application/json") == Order("A", 1)


def test_a_tag_outside_the_union_is_refused_and_never_imported() -> None:
    codec = codec_for(Order | Total)
    with pytest.raises(InvalidMessageError, match="not in this mailbox's type"):
        codec.decode(b"{}", "application/json; type=os.system")


def test_an_untagged_body_becomes_the_first_member_that_fits() -> None:
    assert codec_for(Order | Total).decode(b'{"sku":"A","qty":1}', "application/json") == Order("A", 1)


def test_an_unknown_content_type_is_refused_for_typed_bodies_and_kept_for_raw_ones() -> None:
    with pytest.raises(InvalidParameterError, match="bytes"):
        codec_for(Order).encode(Order("A", 1), "image/png")
    assert codec_for(bytes).encode(b"x", "image/png") == (b"x", "image/png")


def test_what_is_no_type_is_a_configuration_error() -> None:
    for wrong in (3, "Order", object()):
        with pytest.raises(ConfigurationError):
            codec_for(wrong)


def test_a_class_that_nothing_can_write_is_refused_before_the_first_send() -> None:
    class Plain:
        """No dataclass, no Struct, no model."""

    with pytest.raises(ConfigurationError, match="make it a dataclass"):
        codec_for(Plain)


def test_members_of_one_name_are_refused() -> None:
    first = dataclass(type("Same", (), {"__annotations__": {"a": int}}))
    second = dataclass(type("Same", (), {"__annotations__": {"b": int}}))
    with pytest.raises(ConfigurationError, match="only the name travels"):
        codec_for(first | second)
