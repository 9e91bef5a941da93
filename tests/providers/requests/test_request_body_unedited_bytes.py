"""Parsed requests of all four APIs: everything that no edit touched keeps its bytes."""

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
from holdfast.providers.requests.parsed_request import measure_body_as_setup, measure_parsed_request, parse_request
from holdfast.providers.requests.request_body import build_request_body, render_request
from holdfast.state.plan import PlanOptions

ODD_JSON = rb"""{"u": "\u4f60\/\n",  "n": [12345678901234567890123, 1e5, -0.0, 1E+2 ],
  "x_new" : {"b":1,"a":{"c" : [ ]}} , "d":null}"""
"""JSON that no encoder would reproduce: escapes, spaces, order, numbers."""
BODIES = {
    api: (Path(__file__).parent / "bodies" / f"{api}.txt").read_bytes().replace(b"@", ODD_JSON) for api in API_NAMES
}
"""A body for each API, with odd JSON wherever the file has an ``@``."""


@pytest.mark.parametrize("api", API_NAMES)
def test_render_request_without_edits_returns_the_same_object(api):
    """An unedited body comes back as the same object, however odd its JSON."""
    raw = BODIES[api]
    parsed_request = parse_request(raw)
    assert parsed_request.api == api
    assert render_request(parsed_request, parsed_request.messages) is raw
    assert render_request(parsed_request, measure_parsed_request(parsed_request).messages) is raw
    assert (
        render_request(
            parsed_request,
            [replace(sized_message) for sized_message in parsed_request.messages],
            PlanOptions(max_tokens=parsed_request.requested_max_tokens),
        )
        is raw
    )


def list_raw_parts(parsed_request):
    """Return all parts in a body that have raw bytes."""
    return [
        part
        for sized_message in parsed_request.messages
        for part in sized_message.message.parts
        if part.raw is not None
    ]


def edit_part(part):
    """Return ``part`` with other content, or None for a kind of part that edits do not change."""
    if isinstance(part, Text):
        return Text("edited!")
    if isinstance(part, ToolCall):
        return replace(part, arguments='{"edited":1}', raw=None)
    return ToolResult(part.call_id, part.name, (Text("edited!"),)) if isinstance(part, ToolResult) else None


@pytest.mark.parametrize("api", API_NAMES)
def test_render_request_keeps_all_other_bytes_after_one_edit(api):
    """Whichever part is edited, the bytes of every other part and field are in the output."""
    raw = BODIES[api]
    parsed_request = parse_request(raw)
    for at, sized_message in enumerate(parsed_request.messages):
        for place, part in enumerate(sized_message.message.parts):
            new = edit_part(part)
            if new is None:
                continue
            parts = (*sized_message.message.parts[:place], new, *sized_message.message.parts[place + 1 :])
            edited = SizedMessage(Message(sized_message.message.role, parts), api=api, base_raw=sized_message.raw)
            out = render_request(
                parsed_request, [*parsed_request.messages[:at], edited, *parsed_request.messages[at + 1 :]]
            )
            assert b"edited" in out
            assert out != raw
            assert all(other is part or bytes(other.raw) in out for other in list_raw_parts(parsed_request))
            for key in parsed_request.fields.keys() - {API_SPECS[api].messages_field}:
                assert bytes(parsed_request.fields[key]) in out


@pytest.mark.parametrize("api", API_NAMES)
def test_render_request_keeps_the_bytes_beside_a_removed_part(api):
    """The other parts of the message keep their bytes."""
    parsed_request = parse_request(BODIES[api])
    at = next(
        index
        for index, sized_message in enumerate(parsed_request.messages)
        if sized_message.message.role == "assistant"
    )
    sized_message = parsed_request.messages[at]
    for place in range(1, len(sized_message.message.parts)):
        parts = sized_message.message.parts[:place] + sized_message.message.parts[place + 1 :]
        out = render_request(
            parsed_request,
            [
                *parsed_request.messages[:at],
                SizedMessage(Message("assistant", parts), api=api, base_raw=sized_message.raw),
            ],
        )
        assert all(bytes(part.raw) in out for part in parts)


@pytest.mark.parametrize("api", API_NAMES)
def test_render_request_keeps_all_bytes_before_an_added_message(api):
    """An added message gets the body's spacing; everything else stays byte for byte."""
    parsed_request = parse_request(BODIES[api])
    out = render_request(parsed_request, [*parsed_request.messages, SizedMessage(Message.from_text("user", "more"))])
    assert all(bytes(sized_message.raw) in out for sized_message in parsed_request.messages)
    again = parse_request(out)
    assert [sized_message.message for sized_message in again.messages[:-1]] == [
        sized_message.message for sized_message in parsed_request.messages
    ]
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
    parsed_request = parse_request(raw)
    assert parsed_request.requested_max_tokens == limit
    assert out in render_request(parsed_request, parsed_request.messages, PlanOptions(max_tokens=7))


def test_render_request_turns_string_input_into_an_item_when_needed():
    """A plain string is a user message; with others it becomes an item."""
    raw = b'{"model":"m", "input": "h\\u0069" }'
    parsed_request = parse_request(raw)
    assert [sized_message.message for sized_message in parsed_request.messages] == [Message.from_text("user", "hi")]
    assert render_request(parsed_request, parsed_request.messages) is raw
    out = render_request(parsed_request, [*parsed_request.messages, SizedMessage(Message.from_text("assistant", "ho"))])
    assert b'[{"role":"user","content":"h\\u0069"},{"type":"message","role":"assistant",' in out
    (edited,) = [
        SizedMessage(Message.from_text("user", "more"), api="openai-responses", base_raw=parsed_request.messages[0].raw)
    ]
    assert parse_request(render_request(parsed_request, [edited])).messages[0].message.text == "more"


def test_parse_request_gives_a_group_one_stretch_of_the_body():
    """The raw bytes of a group reach from its first item to its last, including what is in between."""
    parsed_request = parse_request(BODIES["openai-responses"])
    assert [sized_message.message.role for sized_message in parsed_request.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "system",
    ]
    assert all(bytes(sized_message.raw) in parsed_request.body for sized_message in parsed_request.messages)
    assert bytes(parsed_request.messages[2].raw).count(b"},\n") == 2


SYSTEM = [
    SizedMessage(Message.from_text("system", "one")),
    SizedMessage(Message.from_text("system", "two")),
    SizedMessage(Message.from_text("user", "hi")),
]


@pytest.mark.parametrize(
    ("api", "expected"),
    [
        ("anthropic", {"system": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}),
        ("gemini", {"systemInstruction": {"parts": [{"text": "one"}, {"text": "two"}]}}),
        ("openai-chat", {}),
        ("openai-responses", {}),
    ],
)
def test_build_request_body_moves_leading_system_messages(api, expected):
    """Leading system messages go to the field of an API that has one, and stay messages elsewhere."""
    for sized_messages in (SYSTEM, parse_request(build_request_body("openai-chat", "m", SYSTEM)).messages):
        out = json.loads(build_request_body(api, "m", sized_messages))
        assert {key: out.get(key) for key in expected} == expected
        assert len(out[API_SPECS[api].messages_field]) == (1 if expected else 3)
        assert ("model" in out) is API_SPECS[api].has_model_field


@pytest.mark.parametrize("api", API_NAMES)
def test_build_request_body_names_results_for_gemini(api):
    """Results of an API without names get the names of their calls."""
    parsed_request = parse_request(BODIES[api])
    out = json.loads(build_request_body("gemini", "m", parsed_request.messages))
    named = [
        part["functionResponse"]["name"]
        for content in out["contents"]
        for part in content["parts"]
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
    pieces = BODIES[api].split(ODD_JSON)
    filled = b"".join(
        piece + (json.dumps(hole, indent=indent).encode() if piece is not pieces[-1] else b"")
        for piece, hole in zip(pieces, [*holes, *holes], strict=False)
    )
    parsed_request = parse_request(filled, api)
    assert render_request(parsed_request, parsed_request.messages) is filled
    again = [
        SizedMessage(sized_message.message, api=api, base_raw=sized_message.raw)
        for sized_message in parsed_request.messages
    ]
    assert msgspec.json.decode(render_request(parsed_request, again)) == msgspec.json.decode(filled)


@given(st.sampled_from(API_NAMES), st.dictionaries(st.text(max_size=5), _JSON, max_size=3), st.integers(0, 9))
def test_render_request_keeps_unknown_fields_beside_the_messages(api, more, limit):
    """Unknown fields keep their bytes when messages and limit change."""
    spec = API_SPECS[api]
    known = {spec.messages_field, "model", *(path[0] for path in spec.max_tokens_paths)}
    fields = {key: Raw(json.dumps(value, indent=1).encode()) for key, value in more.items() if key not in known}
    raw = msgspec.json.encode({**fields, spec.messages_field: []})
    out = render_request(
        parse_request(raw, api), [SizedMessage(Message.from_text("user", "hi"))], PlanOptions(max_tokens=limit)
    )
    found = msgspec.json.decode(out, type=dict[str, Raw])
    assert all(bytes(found[key]) == bytes(value) for key, value in fields.items())
    assert parse_request(out, api).requested_max_tokens == limit


def test_render_request_keeps_an_opaque_client_item():
    """A client item that is not interpreted is sent between the others unchanged."""
    parsed_request = parse_request(BODIES["openai-responses"])
    assert parsed_request.messages[-1].message.parts[0].kind == "message"
    assert isinstance(parsed_request.messages[-1].message.parts[0], Opaque)
    assert bytes(parsed_request.messages[-1].raw) in render_request(parsed_request, parsed_request.messages[1:])


@pytest.mark.parametrize("api", API_NAMES)
def test_build_request_body_puts_setup_messages_first(api):
    """Messages in the setup fields precede the others unchanged and count as setup; breakpoints stay in place."""
    spec = API_SPECS[api]
    lead = {"role": "system" if api == "openai-chat" else "user", "content": "First."}
    lead = {"role": "user", "parts": [{"text": "First."}]} if api == "gemini" else lead
    sized_messages = [
        build_sized_message(Message.from_text("user", "Second.")),
        build_sized_message(Message.from_text("assistant", "Third.")),
    ]
    body = build_request_body(
        api,
        "m",
        sized_messages,
        setup_fields={spec.messages_field: [lead]},
        options=PlanOptions(cache_breakpoints=(1,)),
    )
    texts = [sized_message.message.text for sized_message in parse_request(body, api).messages]
    assert texts == ["First.", "Second.", "Third."]
    assert msgspec.json.decode(body)[spec.messages_field][0] == lead
    assert body.count(b"cache_control") == (1 if spec.supports_cache_control else 0)
    assert body.find(b"cache_control") in (-1, body.rfind(b"cache_control"))
    assert not spec.supports_cache_control or body.index(b"cache_control") > body.index(b"Third.")
    alone = parse_request(build_request_body(api, "m", (), setup_fields={spec.messages_field: [lead]}), api)
    assert measure_body_as_setup(alone).tokens > alone.setup.tokens == 0
    assert measure_body_as_setup(alone).digest != alone.setup.digest
    empty = parse_request(build_request_body(api, "m", ()), api)
    assert measure_body_as_setup(empty) == empty.setup
