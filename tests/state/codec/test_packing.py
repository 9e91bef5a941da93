"""Values as bytes and back, and what a message computes from its parts."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import message_strategy
from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.message import Message, format_part_placeholder, get_result_text
from holdfast.messages.parts import Media, Opaque, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.codec.packing import join_raw_bytes, pack_value, split_raw_bytes, unpack_value
from holdfast.state.costs import compute_cost
from holdfast.state.entries import CompactionEntry, MessageEntry, NoteEntry, Usage
from holdfast.state.target import Prices

RAW = Raw(b'{ "a" :1.0, "a":[2 ]}')


@given(message_strategy())
def test_unpack_value_restores_any_packed_message(message):
    """Any message comes back equal, with NUL bytes, lone surrogates and empty parts."""
    packed_message = build_sized_message(message)
    assert unpack_value(pack_value(packed_message), SizedMessage) == packed_message
    assert join_raw_bytes(*split_raw_bytes(packed_message), SizedMessage) == packed_message


def test_message_text_joins_signed_pieces_of_an_answer():
    """A signature or citation may split a word of an answer, so its texts join directly; a user's two texts stay two
    lines.
    """
    parts = (Text("ok 4"), Text("41", ProviderSignature("gemini", "m", "s")), ToolCall("t", "f", "{}"), Text("Done."))
    assert Message("assistant", parts).text == "ok 441\nDone."
    assert Message("user", parts[:2]).text == "ok 4\n41"


def test_unpack_value_restores_raw_bytes_at_any_depth():
    """Wire bytes at any depth keep their spacing, doubled keys and number forms; absent ones stay absent."""
    parts = (Text("a", None, RAW), ToolResult("t", "", (Text("b", None, RAW), Opaque("x", RAW)), raw=RAW))
    packed_message = replace(build_sized_message(Message("user", parts)), raw=RAW, api="anthropic")
    back = unpack_value(pack_value(MessageEntry(packed_message, RAW)), MessageEntry)
    assert bytes(back.sized_message.raw) == bytes(back.recording_envelope) == bytes(RAW)
    assert bytes(back.sized_message.message.parts[1].content[1].raw) == bytes(RAW)
    assert back.sized_message.base_raw is None
    native = unpack_value(pack_value(CompactionEntry(3, native=RAW)), CompactionEntry)
    assert bytes(native.native) == bytes(RAW)


@pytest.mark.parametrize(
    "value", [NoteEntry("n", b"\x00\xff", {"big": 2**80, "half": "\ud83d"}), NoteEntry("\ud83d", data={"a": [None]})]
)
def test_pack_value_keeps_note_values_that_json_cannot_hold(value):
    """Bytes, integers of any size and lone surrogates of a note survive."""
    assert unpack_value(pack_value(value), NoteEntry) == value


def test_unpack_value_rejects_damaged_bytes():
    """Bytes of another type, or truncated ones, raise ``ValueError``."""
    packed = pack_value(build_sized_message(Message.from_text("user", "a")))
    for broken in (packed[:-1], b"", b"\xff"):
        with pytest.raises(ValueError, match=r".+"):
            unpack_value(broken, SizedMessage)
    with pytest.raises(msgspec.ValidationError):
        unpack_value(packed, MessageEntry)


def test_message_properties_come_from_its_parts_in_order():
    """Calls, results, text and whether a turn starts here are computed from the parts."""
    call, result = ToolCall("a", "t"), ToolResult("a", "t", (Text("x"), Media("image", "image/png"), Text("y")))
    mixed = Message("user", (result, Text("1"), Thinking("hm"), Text("2")))
    assert (mixed.results, mixed.text, mixed.is_turn_start) == ((result,), "1\n2", True)
    assert Message("assistant", (call, Text("z"), call)).calls == (call, call)
    assert not Message("user", (result,)).is_turn_start
    assert not Message.from_text("assistant", "a").is_turn_start
    assert get_result_text(result) == "x\ny"


def test_format_part_placeholder_names_what_is_known():
    """A placeholder names the part it replaces by its media type, kind and file name, as far as they are known."""
    assert format_part_placeholder(Media("image", "image/png", 3, "a.png")) == "[Attached image/png: a.png]"
    assert format_part_placeholder(Media("image", "")) == "[Attached image]"
    assert format_part_placeholder(Opaque("x_future")) == "[Attached x_future]"


@pytest.mark.parametrize("usage", [Usage(7, 2, 4, 2), Usage(7, 2, 4, 2, cache_write_1h=1)])
def test_usage_without_one_hour_writes_is_encoded_as_in_old_logs(usage):
    """A log without ``cache_write_1h`` can be read and is written without it again."""
    stored = b'{"input":7,"output":2,"cache_read":4,"cache_write":2}'
    assert (msgspec.json.encode(usage) == stored) is not bool(usage.cache_write_1h)
    assert msgspec.json.decode(msgspec.json.encode(usage), type=Usage) == usage


@given(st.tuples(*[st.integers(0, 10**6)] * 4), st.integers(0, 10**6))
def test_compute_cost_charges_one_hour_writes_twice_the_input_price(counts, hour):
    """Each token of a prompt is paid once: read from the cache, written for an hour or for minutes, or neither."""
    fresh, read, minutes, output = counts
    usage = Usage(fresh + read + minutes + hour, output, read, minutes + hour, cache_write_1h=hour)
    each = fresh * 3.0 + read * 0.3 + minutes * 3.75 + hour * 6.0 + output * 15.0
    assert compute_cost(usage, Prices()) == pytest.approx(each / 1e6)


@pytest.mark.parametrize(
    ("stored", "form"),
    [
        (b'{"type":"media","kind":"image","mime":"image/png","size":4,"source":"QUJDRA=="}', "base64"),
        (b'{"type":"media","kind":"image","mime":"","source":"https://example.org/a.png"}', "url"),
        (b'{"type":"media","kind":"document","mime":"text/plain","size":2,"source":"hi"}', "text"),
        (b'{"type":"media","kind":"document","mime":"text/plain","size":2,"source":"aGk="}', "base64"),
        (b'{"type":"media","kind":"document","mime":"application/pdf","source":"file_abc"}', "file"),
        (b'{"type":"media","kind":"document","mime":"application/pdf","source":"gs://b/o.pdf"}', "file"),
    ],
)
def test_media_of_old_logs_get_the_form_they_were_sent_in(stored, form):
    """A log once written stays readable: media stored without a form get the one they were sent in."""
    media = msgspec.json.decode(stored, type=Media)
    assert media.form == form
    assert msgspec.json.decode(msgspec.json.encode(media), type=Media) == media
