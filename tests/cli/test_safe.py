"""Nothing that came from a message reaches a terminal as it is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.cli.safe import body_fields, body_text, safe, strict_json
from postroom.cli.words import DURATION, SIZE, exactly, lasting

EVIL = (
    "\x1b[31mred", "\x1b]0;title\x07", "\x9b31m", "back\x08\x08", "\u202egnp.exe", "in\u200bvisible", "\r\nfake line",
    "\u2028next", "\x7f", "\U000e0041tag", "lone \ud800",
)  # fmt: skip


@pytest.mark.parametrize("text", EVIL)
def test_what_cannot_be_seen_is_escaped(text):
    shown = safe(text)
    assert shown.isprintable()
    assert "\\" in shown


@given(st.text(st.characters(codec=None)))
def test_every_text_becomes_printable_and_stays_itself_if_it_was(text):
    assert safe(text).isprintable()
    assert safe(text, lines=True).replace("\n", "").isprintable()
    if text.isprintable():
        assert safe(text) == text


@given(st.binary(), st.sampled_from(["application/json", "text/plain", "application/octet-stream", ""]))
def test_every_body_is_shown_on_a_line_and_told_as_json(body, kind):
    assert body_text(body, kind).isprintable()
    assert json.dumps(body_fields(body, kind)).isprintable()


@pytest.mark.parametrize("text", [text for text in EVIL if text.isprintable() or "\ud800" not in text])
def test_json_cannot_carry_it_in_either(text):
    body = json.dumps({"a": text}, ensure_ascii=False).encode()
    assert body_text(body, "application/json").isprintable()


def test_json_is_laid_out_and_other_bytes_are_readable():
    assert body_text(b'{"a":"\xc3\xbc"}', "application/json", pretty=True) == '{\n  "a": "ü"\n}'
    assert body_text(b"line\nline", "text/plain", pretty=True) == "line\nline"
    assert body_text(b"PNG\xff\x00", "image/png") == "PNG\\xff\\u0000"


def test_a_body_that_is_an_object_is_shown_by_its_repr():
    assert body_text({"a": "\x1b"}, "application/json") == "{'a': '\\x1b'}"
    assert body_fields(3, "application/json") == {"body": "3"}


@pytest.mark.parametrize("text", [b'{"a":1,"a":2}', b"NaN", b"[Infinity]", b"1e999", b"\xff", b"", b"[" * 100_000])
def test_json_that_two_readers_could_take_differently_is_none(text):
    with pytest.raises(ValueError):
        strict_json(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("1.5", 1.5), ("500ms", 0.5), ("5m", 300), ("1h30m", 5400), ("7d", 604800)]
)
def test_durations(text, seconds):
    assert DURATION.convert(text, None, None) == seconds


def test_sizes_and_how_durations_are_said():
    assert [SIZE.convert(text, None, None) for text in ("10", "64Ki", "10M", "1GiB")] == [10, 65536, 10**7, 2**30]
    assert [lasting(s) for s in (0.25, 4, 30, 600, 10_000, 500_000)] == [
        "250 ms",
        "4.0 s",
        "30 s",
        "10 min",
        "3 h",
        "6 d",
    ]
    assert [exactly(s) for s in (0.5, 60, 90, 120, 86400, 172800)] == ["0.5 s", "60 s", "90 s", "2 min", "24 h", "2 d"]
