from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from holdfast.formats.common.lines import (
    LenientDecoder,
    decode_lines,
    format_iso_time,
    parse_millis,
    set_json_fields,
    split_json_lines,
)


class Thing(Struct, rename="camel"):
    name: str = ""
    how_many: int = 0
    inner: msgspec.Raw = msgspec.Raw()


THING = LenientDecoder(Thing)


def decode_one_line(data: bytes):
    (row,) = decode_lines(data, THING)
    return row


def test_split_json_lines_splits_at_newlines_only():
    """Other line separators stay text, line numbers count blank lines, and CRLF and a BOM are tolerated."""
    data = b'\xef\xbb\xbf{"name":"a\xe2\x80\xa8b\xc2\x85c"}\r\n\r\n  \n{"name":"d"}'
    assert [(number, len(line)) for number, line in split_json_lines(data)] == [(1, 19), (4, 12)]
    assert [row.value.name for row in decode_lines(data, THING) if row.value] == ["a\u2028b\x85c", "d"]


def test_decode_lines_drops_a_field_of_a_wrong_type():
    """A field of a wrong type costs that field, not the line."""
    row = decode_one_line(b'{"name":5,"howMany":3,"inner":[1,{"a":2}]}\n')
    assert row.value is not None
    assert (row.value.name, row.value.how_many, bytes(row.value.inner), row.fault) == ("", 3, b'[1,{"a":2}]', "")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"name":"a"}{"name":"b"}\n', "is not JSON"),
        (b'{"name":"a\n', "is not JSON"),
        (b"[1,2]\n", "is no JSON object"),
        (b"7\n", "is no JSON object"),
        (b'{"name":"\xff"}\n', "is not UTF-8 (byte 9)"),
        (b"\x00\x00\x00\n", "is not JSON"),
        (b'{"x":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}\n", "nested too deeply"),
        (b'{"name":"abc","how', "the last line is cut off after 18 bytes"),
    ],
)
def test_decode_lines_returns_a_damaged_line_with_its_fault(line, reason):
    """A line that cannot be decoded raises nothing; it comes with its bytes and a description of the damage."""
    row = decode_one_line(line)
    assert row.value is None
    assert reason in row.fault
    assert row.raw == line.removesuffix(b"\n")


def test_decode_lines_replaces_lone_surrogates_in_values():
    """A lone surrogate escape becomes U+FFFD in values; the raw line keeps its bytes."""
    line = rb'{"name":"a\ud83d","howMany":2}'
    row = decode_one_line(line)
    assert row.value is not None
    assert (row.value.name, row.value.how_many, row.raw) == ("a\ufffd", 2, line)
    assert "U+FFFD" in row.fault
    assert msgspec.json.decode(row.decodable) == {"name": "a\ufffd", "howMany": 2}


def test_decode_lines_accepts_an_escaped_nul():
    """An escaped NUL is a character like any other."""
    row = decode_one_line(rb'{"name":"a\u0000b"}')
    assert row.value is not None
    assert (row.value.name, row.fault) == ("a\x00b", "")


def test_decode_lines_reads_the_lines_around_a_damaged_one():
    """Lines before and after a damaged one are decoded, and numbers stay those of the file."""
    found = list(decode_lines(b'{"name":"a"}\n{"na\n{"name":"c"}\n', THING))
    assert [(row.number, row.value.name if row.value else None) for row in found] == [(1, "a"), (2, None), (3, "c")]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-11-21T01:12:48.115Z", 1795223568115),
        ("2026-11-21T01:12:48.115999+00:00", 1795223568115),
        ("2026-11-21T01:12:48", 1795223568000),
        (1795223568115, 1795223568115),
        ("yesterday", None),
        ("", None),
        (None, None),
        (1e300, None),
        (float("nan"), None),
    ],
)
def test_parse_millis_accepts_iso_times_and_numbers(text, at):
    """ISO times and numbers become ms since 1970; everything else becomes None."""
    assert parse_millis(text) == at


@given(st.integers(min_value=0, max_value=4_102_444_800_000))
def test_parse_millis_inverts_format_iso_time(at):
    """Every time until 2100 survives being written."""
    assert parse_millis(format_iso_time(at)) == at


def test_set_json_fields_changes_only_what_differs():
    """A line that has the values already is returned as it is; otherwise the field changes in place and the rest
    stays.
    """
    line = b'{"a": 1, "b":"x", "c":[1, 2]}'
    assert set_json_fields(line, {"b": "x"}) is line
    assert set_json_fields(line, {"b": "y", "d": None}) == b'{"a":1,"b":"y","c":[1, 2],"d":null}'
    assert set_json_fields(b'{"b":"\\ud800","p":1}', {"p": 2}) == '{"b":"\ufffd","p":2}'.encode()
