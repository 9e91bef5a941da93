"""The lens over all four APIs: what no edit touched keeps its bytes."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.registry import API_NAMES, API_SPECS
from holdfast.providers.requests.request_body import (
    build_request_body,
    measure_body_as_setup,
    measure_parsed_request,
    parse_request,
    render_request,
)
from holdfast.state.plan import PlanOptions

ODD = rb"""{"u": "\u4f60\/\n",  "n": [12345678901234567890123, 1e5, -0.0, 1E+2 ],
  "x_new" : {"b":1,"a":{"c" : [ ]}} , "d":null}"""
"""JSON that no writer would make again: escapes, spaces, order, numbers."""
CORPUS = {api: (Path(__file__).parent / "bodies" / f"{api}.txt").read_bytes().replace(b"@", ODD) for api in API_NAMES}
"""A body for each API, with odd JSON wherever the file has an ``@``."""


@pytest.mark.parametrize("api", API_NAMES)
def test_render_request_without_edits_returns_the_same_object(api):
    """An unedited body comes back as the same object, however odd its JSON."""
    raw = CORPUS[api]
    lens = parse_request(raw)
    assert lens.api == api
    assert render_request(lens, lens.messages) is raw
    assert render_request(lens, measure_parsed_request(lens).messages) is raw
    assert (
        render_request(
            lens, [replace(slot) for slot in lens.messages], PlanOptions(max_tokens=lens.requested_max_tokens)
        )
        is raw
    )


def parts_of(lens):
    """Return everything in a body that has bytes of its own."""
    return [part for slot in lens.messages for part in slot.message.parts if part.raw is not None]


def changed(part):
    """Return ``part`` saying something else, or nothing when it is none that edits change."""
    if isinstance(part, Text):
        return Text("edited!")
    if isinstance(part, ToolCall):
        return replace(part, arguments='{"edited":1}', raw=None)
    return ToolResult(part.call_id, part.name, (Text("edited!"),)) if isinstance(part, ToolResult) else None


@pytest.mark.parametrize("api", API_NAMES)
def test_render_request_keeps_all_other_bytes_after_one_edit(api):
    """Whichever part is edited, the bytes of every other part and field are in the output."""
    raw = CORPUS[api]
    lens = parse_request(raw)
    for at, slot in enumerate(lens.messages):
        for place, part in enumerate(slot.message.parts):
            new = changed(part)
            if new is None:
                continue
            parts = (*slot.message.parts[:place], new, *slot.message.parts[place + 1 :])
            edited = SizedMessage(Message(slot.message.role, parts), api=api, base_raw=slot.raw)
            out = render_request(lens, [*lens.messages[:at], edited, *lens.messages[at + 1 :]])
            assert b"edited" in out
            assert out != raw
            assert all(its is part or bytes(its.raw) in out for its in parts_of(lens))
            for key in lens.fields.keys() - {API_SPECS[api].messages_field}:
                assert bytes(lens.fields[key]) in out


@pytest.mark.parametrize("api", API_NAMES)
def test_render_request_keeps_the_bytes_beside_a_removed_part(api):
    """The other parts of the message keep their bytes."""
    lens = parse_request(CORPUS[api])
    at = next(index for index, slot in enumerate(lens.messages) if slot.message.role == "assistant")
    slot = lens.messages[at]
    for place in range(1, len(slot.message.parts)):
        parts = slot.message.parts[:place] + slot.message.parts[place + 1 :]
        out = render_request(
            lens, [*lens.messages[:at], SizedMessage(Message("assistant", parts), api=api, base_raw=slot.raw)]
        )
        assert all(bytes(part.raw) in out for part in parts)


@pytest.mark.parametrize("api", API_NAMES)
def test_render_request_keeps_all_bytes_before_an_added_message(api):
    """An added message gets the body's spacing; everything else stays byte for byte."""
    lens = parse_request(CORPUS[api])
    out = render_request(lens, [*lens.messages, SizedMessage(Message.from_text("user", "more"))])
    assert all(bytes(slot.raw) in out for slot in lens.messages)
    again = parse_request(out)
    assert [slot.message for slot in again.messages[:-1]] == [slot.message for slot in lens.messages]
    assert again.messages[-1].message.text == "more"


@pytest.mark.parametrize(
    ("raw", "limit", "out"),
    [
        (b'{"input":[], "max_output_tokens" : 5}', 5, b'{"input":[], "max_output_tokens" : 7}'),
        (b'{"input":[]}', None, b'{"input":[],"max_output_tokens":7}'),
        (
            b'{"contents":[], "generationConfig":{ "topP" : 1.0 , "maxOutputTokens": 5 }}',
            5,
            b'{"contents":[], "generationConfig":{ "topP" : 1.0 , "maxOutputTokens": 7 }}',
        ),
        (b'{"contents":[],"generation_config":{"max_output_tokens":5}}', 5, b'"max_output_tokens":7'),
        (b'{"contents":[],"generationConfig":{"topP":1}}', None, b'"generationConfig":{"topP":1,"maxOutputTokens":7}'),
        (b'{"contents":[]}', None, b'"generationConfig":{"maxOutputTokens":7}'),
        (b'{"contents":[],"generationConfig":null}', None, b'"generationConfig":{"maxOutputTokens":7}'),
    ],
)
def test_render_request_sets_the_limit_in_place(raw, limit, out):
    """The limit is read and replaced in its place, also inside Gemini's options; else it is added."""
    lens = parse_request(raw)
    assert lens.requested_max_tokens == limit
    assert out in render_request(lens, lens.messages, PlanOptions(max_tokens=7))


def test_render_request_turns_string_input_into_an_item_when_needed():
    """A plain string is a user message; with others it becomes an item."""
    raw = b'{"model":"m", "input": "h\\u0069" }'
    lens = parse_request(raw)
    assert [slot.message for slot in lens.messages] == [Message.from_text("user", "hi")]
    assert render_request(lens, lens.messages) is raw
    out = render_request(lens, [*lens.messages, SizedMessage(Message.from_text("assistant", "ho"))])
    assert b'[{"role":"user","content":"h\\u0069"},{"type":"message","role":"assistant",' in out
    (edited,) = [SizedMessage(Message.from_text("user", "more"), api="openai-responses", base_raw=lens.messages[0].raw)]
    assert parse_request(render_request(lens, [edited])).messages[0].message.text == "more"


def test_parse_request_gives_a_group_one_stretch_of_the_body():
    """The raw bytes of a group reach from its first item to its last, including what is in between."""
    lens = parse_request(CORPUS["openai-responses"])
    assert [slot.message.role for slot in lens.messages] == ["system", "user", "assistant", "tool", "tool", "system"]
    assert all(bytes(slot.raw) in lens.body for slot in lens.messages)
    assert bytes(lens.messages[2].raw).count(b"},\n") == 2


SYSTEM = [
    SizedMessage(Message.from_text("system", "one")),
    SizedMessage(Message.from_text("system", "two")),
    SizedMessage(Message.from_text("user", "hi")),
]


@pytest.mark.parametrize(
    ("api", "wanted"),
    [
        ("anthropic", {"system": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}),
        ("gemini", {"systemInstruction": {"parts": [{"text": "one"}, {"text": "two"}]}}),
        ("openai-chat", {}),
        ("openai-responses", {}),
    ],
)
def test_build_request_body_moves_leading_system_messages(api, wanted):
    """Leading system messages go to the field of an API that has one, and stay messages elsewhere."""
    for slots in (SYSTEM, parse_request(build_request_body("openai-chat", "m", SYSTEM)).messages):
        out = json.loads(build_request_body(api, "m", slots))
        assert {key: out.get(key) for key in wanted} == wanted
        assert len(out[API_SPECS[api].messages_field]) == (1 if wanted else 3)
        assert ("model" in out) is API_SPECS[api].has_model_field


@pytest.mark.parametrize("api", API_NAMES)
def test_build_request_body_names_results_for_gemini(api):
    """Results of an API without names get the names of their calls."""
    lens = parse_request(CORPUS[api])
    out = json.loads(build_request_body("gemini", "m", lens.messages))
    named = [
        part["functionResponse"]["name"]
        for one in out["contents"]
        for part in one["parts"]
        if "functionResponse" in part
    ]
    assert named == ["n", "n"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_HOLES = st.lists(_JSON, min_size=24, max_size=24)


@given(st.sampled_from(API_NAMES), _HOLES, st.sampled_from([None, 1, "\t"]))
def test_render_request_keeps_any_json_in_unknown_places(api, holes, indent):
    """Whatever JSON is in unknown places comes back, also if every message is written from its parts."""
    pieces = CORPUS[api].split(ODD)
    filled = b"".join(
        piece + (json.dumps(hole, indent=indent).encode() if piece is not pieces[-1] else b"")
        for piece, hole in zip(pieces, [*holes, *holes], strict=False)
    )
    lens = parse_request(filled, api)
    assert render_request(lens, lens.messages) is filled
    again = [SizedMessage(slot.message, api=api, base_raw=slot.raw) for slot in lens.messages]
    assert msgspec.json.decode(render_request(lens, again)) == msgspec.json.decode(filled)


@given(st.sampled_from(API_NAMES), st.dictionaries(st.text(max_size=5), _JSON, max_size=3), st.integers(0, 9))
def test_render_request_keeps_unknown_fields_beside_the_messages(api, more, limit):
    """Unknown fields keep their bytes when messages and limit change."""
    form = API_SPECS[api]
    known = {form.messages_field, "model", *(path[0] for path in form.max_tokens_paths)}
    fields = {key: Raw(json.dumps(value, indent=1).encode()) for key, value in more.items() if key not in known}
    raw = msgspec.json.encode({**fields, form.messages_field: []})
    out = render_request(
        parse_request(raw, api), [SizedMessage(Message.from_text("user", "hi"))], PlanOptions(max_tokens=limit)
    )
    found = msgspec.json.decode(out, type=dict[str, Raw])
    assert all(bytes(found[key]) == bytes(value) for key, value in fields.items())
    assert parse_request(out, api).requested_max_tokens == limit


def test_render_request_keeps_an_opaque_client_item():
    """A client item that is not interpreted is sent between the others unchanged."""
    lens = parse_request(CORPUS["openai-responses"])
    assert lens.messages[-1].message.parts[0].kind == "message"
    assert isinstance(lens.messages[-1].message.parts[0], Opaque)
    assert bytes(lens.messages[-1].raw) in render_request(lens, lens.messages[1:])


@pytest.mark.parametrize("api", API_NAMES)
def test_build_request_body_puts_setup_messages_first(api):
    """Messages in the setup fields precede the others unchanged and count as setup; breakpoints stay in place."""
    form = API_SPECS[api]
    lead = {"role": "system" if api == "openai-chat" else "user", "content": "First."}
    lead = {"role": "user", "parts": [{"text": "First."}]} if api == "gemini" else lead
    slots = [
        build_sized_message(Message.from_text("user", "Second.")),
        build_sized_message(Message.from_text("assistant", "Third.")),
    ]
    made = build_request_body(
        api, "m", slots, setup_fields={form.messages_field: [lead]}, options=PlanOptions(cache_breakpoints=(1,))
    )
    said = [slot.message.text for slot in parse_request(made, api).messages]
    assert said == ["First.", "Second.", "Third."]
    assert msgspec.json.decode(made)[form.messages_field][0] == lead
    assert made.count(b"cache_control") == (1 if form.supports_cache_control else 0)
    assert made.find(b"cache_control") in (-1, made.rfind(b"cache_control"))
    assert not form.supports_cache_control or made.index(b"cache_control") > made.index(b"Third.")
    alone = parse_request(build_request_body(api, "m", (), setup_fields={form.messages_field: [lead]}), api)
    assert measure_body_as_setup(alone).tokens > alone.setup.tokens == 0
    assert measure_body_as_setup(alone).digest != alone.setup.digest
    empty = parse_request(build_request_body(api, "m", ()), api)
    assert measure_body_as_setup(empty) == empty.setup
