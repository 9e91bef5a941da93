"""The readers of server-sent events and of Gemini's JSON array."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import FormatError
from holdfast.providers.common.sse import JsonArrayReader, SseReader, StreamEvent

CLAUDE = (
    b'event: message_start\ndata: {"type":"message_start"}\n\n: keep-alive\n\n'
    b'event: ping\ndata: {"type": "ping"}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
)


def read(data, cuts=(), reader=SseReader, **options):
    """Return the events of ``data``, fed in chunks split at ``cuts``, and whether the reader raised ``FormatError``."""
    reading, out, start = reader(**options), [], 0
    try:
        for cut in [*sorted({min(cut, len(data)) for cut in cuts}), len(data)]:
            out += reading.feed(data[start:cut])
            start = cut
        out += reading.close()
    except FormatError:
        return out, True
    return out, False


def list_named_events(data):
    return [(event.event, event.data) for event in read(data)[0] if event.data]


ENDS = [b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n"]
FIELDS = [b"data: ", b"data:x", b"data", b": c", b"event: a", b"id: 1", b"retry: 5", b"[DONE]"]
ODD = ["\ufeff".encode(), "é你😀".encode(), b"\xff", b"\0"]
JSON = [b'{"a": "}"}', b"[", b",", b"]", b'"', b"\\", b"{", b"}"]
PIECES = st.sampled_from([*ENDS, *FIELDS, *ODD, *JSON])
STREAMS = st.lists(PIECES, max_size=30).map(b"".join) | st.binary(max_size=60)
CUTS = st.lists(st.integers(0, 200), max_size=12)


@given(STREAMS, CUTS, st.sampled_from([SseReader, JsonArrayReader]), st.sampled_from([5, 40, 10_000]))
def test_readers_give_the_same_events_for_any_chunking(data, cuts, reader, limit):
    """However the bytes are chunked, the same events come out, followed by the same error."""
    whole = read(data, (), reader, limit=limit)
    assert read(data, cuts, reader, limit=limit) == whole
    assert read(data, range(len(data)), reader, limit=limit) == whole


@pytest.mark.parametrize("mark", [b"", ODD[0]], ids=["plain", "marked"])
def test_sse_reader_gives_the_same_events_byte_by_byte(mark):
    """Holds for every order of fields, comments and line ends up to six characters."""
    for length in range(1, 7):
        for letters in product(*[(b"x", b":", b"\n", b"\r")] * length):
            data = mark + b"".join(letters)
            assert read(data) == read(data, range(len(data))), data


@given(STREAMS, CUTS, st.sampled_from([SseReader, JsonArrayReader]))
def test_readers_return_every_byte_once(data, cuts, reader):
    """The raw bytes of all events, and what a failed reader left unread, are the input."""
    events, broken = read(data, cuts, reader)
    raw = b"".join(event.raw for event in events)
    assert data.startswith(raw)
    assert broken or raw == data
    if not broken:
        reading = reader()
        returned_bytes = b"".join(event.raw for event in reading.feed(data))
        assert returned_bytes + reading.unread_bytes == data


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_sse_reader_accepts_every_line_end(end):
    """Lines end with LF, CRLF or CR, and the events are the same."""
    assert list_named_events(CLAUDE.replace(b"\n", end)) == list_named_events(CLAUDE)
    assert [name for name, _ in list_named_events(CLAUDE)] == ["message_start", "ping", "message_stop"]


def test_sse_reader_reads_fields_as_the_standard_says():
    """One space after the colon is removed, data lines are joined, unknown fields and bad values are ignored."""
    (event,) = SseReader().feed(
        b"\xef\xbb\xbfid: 7\nretry: 20\nretry: x\nother: 1\nevent: n\ndata:  a\ndata\ndata:b\n\n"
    )
    assert (event.id, event.retry, event.event, event.data, event.is_complete) == ("7", 20, "n", b" a\n\nb", True)
    (event,) = SseReader().feed(b"id: 1\0\nretry: " + b"9" * 5000 + b"\ndata: x\n\n")
    assert (event.id, event.retry) == ("", None)


def test_sse_reader_skips_a_byte_order_mark_at_the_start_only():
    """At the start the mark is no part of the first field; later it is a character like any other."""
    first, second = SseReader().feed("\ufeffdata: a\n\n\ufeffdata: b\n\n".encode())
    assert (first.data, second.data) == (b"a", b"")


def test_sse_reader_returns_keep_alives_at_once():
    """A comment on its own is an event without data before its blank line arrives, so a relay can pass it on."""
    (event,) = SseReader().feed(b": OPENROUTER PROCESSING\n")
    assert (event.data, event.raw) == (b"", b": OPENROUTER PROCESSING\n")


def test_sse_reader_marks_a_last_event_without_its_blank_line():
    """The rest at the end has ``is_complete`` off: whole JSON in it is usable, truncated JSON does not decode."""
    reader = SseReader()
    assert reader.feed(b"data: [DONE]") == []
    (event,) = reader.close()
    assert (event.data, event.is_complete, event.raw) == (b"[DONE]", False, b"data: [DONE]")
    assert reader.close() == []


def test_sse_reader_ends_an_event_at_a_carriage_return():
    """Events of a server that ends lines with bare CRs arrive at once; an LF after a CR adds nothing."""
    for stream in (b"data: x\r\r", b"data: x\r\n\r", b"data: x\n\r"):
        reader = SseReader()
        (event,) = reader.feed(stream)
        assert (event.data, event.is_complete, event.raw) == (b"x", True, stream)
        (rest,) = reader.feed(b"\n")
        assert (rest.data, rest.raw) == (b"", b"\n")
        assert reader.feed(b"data: y\r") == []
        assert reader.feed(b"\ndata: z\r") == []
        assert [event.data for event in reader.feed(b"\r")] == [b"y\nz"]
        assert reader.close() == []


@pytest.mark.parametrize("reader", [SseReader, JsonArrayReader])
def test_readers_reject_an_event_over_the_limit(reader):
    """Memory is bounded: an event over the limit is a typed error, raised after the events before it."""
    small, large = (b"data: a\n\n", b"data: ") if reader is SseReader else (b'[{"a":1},', b'{"')
    reading = reader(limit=64)
    assert len(reading.feed(small + large + b"x" * 100)) == 1
    with pytest.raises(FormatError, match=r"more than 64 bytes, at byte [89] "):
        reading.feed(b"")
    with pytest.raises(FormatError):
        reading.close()
    assert reading.unread_bytes.endswith(large + b"x" * 100)


@pytest.mark.parametrize(("reader", "filler"), [(SseReader, b"x"), (JsonArrayReader, b"x"), (JsonArrayReader, b" ")])
def test_readers_take_linear_time_byte_by_byte(reader, filler, assert_subquadratic):
    """A large event fed byte by byte takes time proportional to its size."""

    def reading(size):
        data = (b'{"a": "' if filler == b"x" else b"[") + filler * size

        def read():
            active = reader()
            events = [event for at in range(len(data)) for event in active.feed(data[at : at + 1])] + active.close()
            assert sum(len(event.raw) for event in events) == len(data)

        return read

    assert_subquadratic(reading, 30_000)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_sse_reader_takes_linear_time_for_many_small_events(end, assert_subquadratic):
    """A chunk of many events is scanned once, not once for each."""

    def reading(count):
        data = (b"data: x" + end + end) * count
        return lambda: len(SseReader().feed(data)) >= count or pytest.fail("events are missing")

    assert_subquadratic(reading, 5_000)


CHUNKS = [{"a": '}{"\\'}, {"b": [{"c": {}}]}, {"d": "é\u2028"}]


def test_json_array_reader_returns_each_object_as_it_closes():
    """Each object of a JSON array is an event as soon as it closes, whatever its strings contain."""
    reader = JsonArrayReader()
    (first,) = reader.feed(b"[" + json.dumps(CHUNKS[0]).encode())
    assert json.loads(first.data) == CHUNKS[0]
    rest = reader.feed(b",\r\n" + b",".join(json.dumps(chunk, indent=1).encode() for chunk in CHUNKS[1:]) + b"\n]")
    assert [json.loads(event.data) for event in rest] == CHUNKS[1:]
    assert reader.close() == [StreamEvent(raw=b"\n]")]


def test_json_array_reader_accepts_a_bare_object_and_rejects_others():
    """An error that arrives as one object is one event; anything that is no object is a typed error with its
    position.
    """
    (event,) = JsonArrayReader().feed(b'{"error": {"code": 400}}')
    assert json.loads(event.data)["error"]["code"] == 400
    with pytest.raises(FormatError, match="begins with b'<'"):
        JsonArrayReader().feed(b"<html>")
