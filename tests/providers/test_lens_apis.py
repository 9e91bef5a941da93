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
from holdfast.messages.size.tokens import measure
from holdfast.messages.sized_message import Slot
from holdfast.providers.registry import APIS, FORMS
from holdfast.providers.request_body import body, measured, open_body, render, whole_frame
from holdfast.state.plan import Options

ODD = rb"""{"u": "\u4f60\/\n",  "n": [12345678901234567890123, 1e5, -0.0, 1E+2 ],
  "x_new" : {"b":1,"a":{"c" : [ ]}} , "d":null}"""
"""JSON that no writer would make again: escapes, spaces, order, numbers."""
CORPUS = {api: (Path(__file__).parent / "corpus" / f"{api}.txt").read_bytes().replace(b"@", ODD) for api in APIS}
"""A body for each API, with odd JSON wherever the file has an ``@``."""


@pytest.mark.parametrize("api", APIS)
def test_nothing_edited_is_the_same_object(api):
    """A body nobody edited comes back as the very object it was, however odd its JSON."""
    raw = CORPUS[api]
    lens = open_body(raw)
    assert lens.api == api
    assert render(lens, lens.slots) is raw
    assert render(lens, measured(lens).slots) is raw
    assert render(lens, [replace(slot) for slot in lens.slots], Options(max_tokens=lens.asked_output)) is raw


def parts_of(lens):
    """Return everything in a body that has bytes of its own."""
    return [part for slot in lens.slots for part in slot.message.parts if part.raw is not None]


def changed(part):
    """Return ``part`` saying something else, or nothing when it is none that edits change."""
    if isinstance(part, Text):
        return Text("edited!")
    if isinstance(part, ToolCall):
        return replace(part, arguments='{"edited":1}', raw=None)
    return ToolResult(part.call_id, part.name, (Text("edited!"),)) if isinstance(part, ToolResult) else None


@pytest.mark.parametrize("api", APIS)
def test_one_part_edited_leaves_every_other_part(api):
    """Whichever part is edited, the bytes of every other part and of every other field stand in the output."""
    raw = CORPUS[api]
    lens = open_body(raw)
    for at, slot in enumerate(lens.slots):
        for place, part in enumerate(slot.message.parts):
            new = changed(part)
            if new is None:
                continue
            parts = (*slot.message.parts[:place], new, *slot.message.parts[place + 1 :])
            edited = Slot(Message(slot.message.role, parts), api=api, base=slot.raw)
            out = render(lens, [*lens.slots[:at], edited, *lens.slots[at + 1 :]])
            assert b"edited" in out
            assert out != raw
            assert all(its is part or bytes(its.raw) in out for its in parts_of(lens))
            for key in lens.fields.keys() - {FORMS[api].field}:
                assert bytes(lens.fields[key]) in out


@pytest.mark.parametrize("api", APIS)
def test_a_part_taken_out_leaves_every_other_part(api):
    """Without one part of a message the others of it keep their bytes."""
    lens = open_body(CORPUS[api])
    at = next(index for index, slot in enumerate(lens.slots) if slot.message.role == "assistant")
    slot = lens.slots[at]
    for place in range(1, len(slot.message.parts)):
        parts = slot.message.parts[:place] + slot.message.parts[place + 1 :]
        out = render(lens, [*lens.slots[:at], Slot(Message("assistant", parts), api=api, base=slot.raw)])
        assert all(bytes(part.raw) in out for part in parts)


@pytest.mark.parametrize("api", APIS)
def test_a_message_more_leaves_the_others(api):
    """A message put behind the others goes in as the body spaces its own; all else stands byte for byte."""
    lens = open_body(CORPUS[api])
    out = render(lens, [*lens.slots, Slot(Message.of("user", "more"))])
    assert all(bytes(slot.raw) in out for slot in lens.slots)
    again = open_body(out)
    assert [slot.message for slot in again.slots[:-1]] == [slot.message for slot in lens.slots]
    assert again.slots[-1].message.text == "more"


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
def test_the_limit_is_set_where_it_stands(raw, limit, out):
    """The asked output is read and replaced in its own place, also inside Gemini's options; else it is put there."""
    lens = open_body(raw)
    assert lens.asked_output == limit
    assert out in render(lens, lens.slots, Options(max_tokens=7))


def test_a_string_is_one_message():
    """A plain string is a user's message; with others it becomes an item."""
    raw = b'{"model":"m", "input": "h\\u0069" }'
    lens = open_body(raw)
    assert [slot.message for slot in lens.slots] == [Message.of("user", "hi")]
    assert render(lens, lens.slots) is raw
    out = render(lens, [*lens.slots, Slot(Message.of("assistant", "ho"))])
    assert b'[{"role":"user","content":"h\\u0069"},{"type":"message","role":"assistant",' in out
    (edited,) = [Slot(Message.of("user", "more"), api="openai-responses", base=lens.slots[0].raw)]
    assert open_body(render(lens, [edited])).slots[0].message.text == "more"


def test_groups_are_stretches_of_the_body():
    """The bytes of a group reach from its first item to its last, with what stands between them."""
    lens = open_body(CORPUS["openai-responses"])
    assert [slot.message.role for slot in lens.slots] == ["system", "user", "assistant", "tool", "tool", "system"]
    assert all(bytes(slot.raw) in lens.body for slot in lens.slots)
    assert bytes(lens.slots[2].raw).count(b"},\n") == 2


SYSTEM = [Slot(Message.of("system", "one")), Slot(Message.of("system", "two")), Slot(Message.of("user", "hi"))]


@pytest.mark.parametrize(
    ("api", "wanted"),
    [
        ("anthropic", {"system": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}),
        ("gemini", {"systemInstruction": {"parts": [{"text": "one"}, {"text": "two"}]}}),
        ("openai-chat", {}),
        ("openai-responses", {}),
    ],
)
def test_leading_system_messages_go_where_the_api_has_them(api, wanted):
    """System messages at the front become the field of an API that has one, and stay messages elsewhere."""
    for slots in (SYSTEM, open_body(body("openai-chat", "m", SYSTEM)).slots):
        out = json.loads(body(api, "m", slots))
        assert {key: out.get(key) for key in wanted} == wanted
        assert len(out[FORMS[api].field]) == (1 if wanted else 3)
        assert ("model" in out) is FORMS[api].named


@pytest.mark.parametrize("api", APIS)
def test_ids_and_names_reach_gemini(api):
    """Results of an API without names get the names of their calls where a name is needed."""
    lens = open_body(CORPUS[api])
    out = json.loads(body("gemini", "m", lens.slots))
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


@given(st.sampled_from(APIS), _HOLES, st.sampled_from([None, 1, "\t"]))
def test_any_json_in_the_corpus_comes_back(api, holes, indent):
    """Whatever JSON stands in unknown places, it comes back; also when every message is written from its parts."""
    pieces = CORPUS[api].split(ODD)
    filled = b"".join(
        piece + (json.dumps(hole, indent=indent).encode() if piece is not pieces[-1] else b"")
        for piece, hole in zip(pieces, [*holes, *holes], strict=False)
    )
    lens = open_body(filled, api)
    assert render(lens, lens.slots) is filled
    again = [Slot(slot.message, api=api, base=slot.raw) for slot in lens.slots]
    assert msgspec.json.decode(render(lens, again)) == msgspec.json.decode(filled)


@given(st.sampled_from(APIS), st.dictionaries(st.text(max_size=5), _JSON, max_size=3), st.integers(0, 9))
def test_any_fields_beside_the_messages_stay(api, more, limit):
    """Fields that nobody knows keep their bytes when messages and limit change."""
    form = FORMS[api]
    known = {form.field, "model", *(path[0] for path in form.limits)}
    fields = {key: Raw(json.dumps(value, indent=1).encode()) for key, value in more.items() if key not in known}
    raw = msgspec.json.encode({**fields, form.field: []})
    out = render(open_body(raw, api), [Slot(Message.of("user", "hi"))], Options(max_tokens=limit))
    found = msgspec.json.decode(out, type=dict[str, Raw])
    assert all(bytes(found[key]) == bytes(value) for key, value in fields.items())
    assert open_body(out, api).asked_output == limit


def test_an_opaque_item_is_nobodys_turn():
    """What a client says that is not interpreted goes out between the others as it came."""
    lens = open_body(CORPUS["openai-responses"])
    assert lens.slots[-1].message.parts[0].kind == "message"
    assert isinstance(lens.slots[-1].message.parts[0], Opaque)
    assert bytes(lens.slots[-1].raw) in render(lens, lens.slots[1:])


@pytest.mark.parametrize("api", APIS)
def test_messages_among_the_frame_stand_first(api):
    """Messages given beside the others stand before them as given, count in the frame, and markers stay in place."""
    form = FORMS[api]
    lead = {"role": "system" if api == "openai-chat" else "user", "content": "First."}
    lead = {"role": "user", "parts": [{"text": "First."}]} if api == "gemini" else lead
    slots = [measure(Message.of("user", "Second.")), measure(Message.of("assistant", "Third."))]
    made = body(api, "m", slots, frame_fields={form.field: [lead]}, options=Options(markers=(1,)))
    said = [slot.message.text for slot in open_body(made, api).slots]
    assert said == ["First.", "Second.", "Third."]
    assert msgspec.json.decode(made)[form.field][0] == lead
    assert made.count(b"cache_control") == (1 if form.markers else 0)
    assert made.find(b"cache_control") in (-1, made.rfind(b"cache_control"))
    assert not form.markers or made.index(b"cache_control") > made.index(b"Third.")
    alone = open_body(body(api, "m", (), frame_fields={form.field: [lead]}), api)
    assert whole_frame(alone).tokens > alone.frame.tokens == 0
    assert whole_frame(alone).digest != alone.frame.digest
    empty = open_body(body(api, "m", ()), api)
    assert whole_frame(empty) == empty.frame
