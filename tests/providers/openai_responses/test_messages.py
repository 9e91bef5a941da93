"""Items of the Responses API are decoded to values and encoded again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.openai_responses.items import decode_item, find_message_spans
from holdfast.providers.openai_responses.messages import (
    API_NAME,
    adapt_outputs_to_calls,
    decode_message,
    encode_message,
    group_items_by_message,
    strip_list_brackets,
)
from holdfast.providers.requests.message_dicts import decode_messages, encode_messages

USER = b'{"role": "user",  "content": "h\\u0069"}'
THOUGHT = (
    b'{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"gA\\/A"}'
)
TEXT_ITEM = (
    b'{"type":"message","id":"msg_1","role":"assistant","phase":"commentary",'
    b'"content":[{"type":"output_text","text":"a"}]}'
)
CALL = (
    b'{"type":"function_call","id":"fc_1","call_id":"c1","name":"ls","arguments":"{\\"p\\": 1e5}","status":"completed"}'
)
SECOND = b'{"type":"function_call", "id":"fc_2", "call_id":"c2", "name":"ls", "arguments":"{}"}'
SEARCH = b'{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search"}}'
OUTPUT = b'{"type":"function_call_output","call_id":"c1","output":"out"}'
GROUP = b" ,\n ".join([THOUGHT, TEXT_ITEM, CALL, SECOND, SEARCH])
MEDIA = (
    b'{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AAAA"},'
    b'{"type":"input_image","file_id":"f"},{"type":"input_file","filename":"a.pdf","file_url":"https://x/a.pdf"}]}'
)
TWO = (
    b'{"type":"message","id":"msg_2","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[]},'
    b'{"type":"refusal", "refusal":"no"},{"type":"new_kind", "x": [1, {"y" : 2}]}]}'
)


def drop_raw_bytes(message):
    """Return ``message`` without the raw bytes of its parts."""
    return Message(message.role, tuple(drop_raw_bytes_of_part(part) for part in message.parts))


def drop_raw_bytes_of_part(part):
    if isinstance(part, ToolResult):
        part = replace(part, content=tuple(drop_raw_bytes_of_part(inner) for inner in part.content))
    return part if isinstance(part, Opaque) else replace(part, raw=None)


def test_decode_message_joins_adjacent_model_items():
    """Reasoning, text, calls and server calls without other items in between are one message; each part keeps its
    item.
    """
    message = decode_message(Raw(GROUP))
    assert drop_raw_bytes(message) == Message(
        "assistant",
        (
            Thinking("hm", ProviderSignature(API_NAME, "", "gA/A")),
            Text("a"),
            ToolCall("c1", "ls", '{"p": 1e5}'),
            ToolCall("c2", "ls"),
            Opaque("web_search_call", Raw(SEARCH)),
        ),
    )
    assert [bytes(part.raw) for part in message.parts] == [THOUGHT, TEXT_ITEM, CALL, SECOND, SEARCH]
    assert encode_message(message) == [THOUGHT, TEXT_ITEM, CALL, SECOND, SEARCH]
    assert encode_message(message, Raw(GROUP)) == [THOUGHT, TEXT_ITEM, CALL, SECOND, SEARCH]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'"hi"', Message.from_text("user", "hi")),
        (USER, Message.from_text("user", "hi")),
        (
            b'{"type":"message","role":"developer","content":[{"type":"input_text","text":"s"}]}',
            Message.from_text("system", "s"),
        ),
        (b'{"role":"system","content":"s"}', Message.from_text("system", "s")),
        (b'{"role":"assistant","content":"a"}', Message.from_text("assistant", "a")),
        (OUTPUT, Message("tool", (ToolResult("c1", "", (Text("out"),)),))),
        (
            b'{"type":"reasoning","id":"rs_9","summary":[]}',
            Message("assistant", (Thinking("", ProviderSignature(API_NAME, "", "rs_9")),)),
        ),
        (
            b'{"type":"custom_tool_call","call_id":"c","name":"patch","input":"*** \\"a\\""}',
            Message("assistant", (ToolCall("c", "patch", '"*** \\"a\\""'),)),
        ),
        (
            b'{"type":"local_shell_call","id":"lsh","call_id":"c","action":{"type":"exec","command":["ls"]}}',
            Message("assistant", (ToolCall("c", "local_shell", '{"type":"exec","command":["ls"]}'),)),
        ),
        (
            b'{"type":"shell_call_output","call_id":"c","output":[{"stdout":"o","stderr":"e","outcome":{}}]}',
            Message("tool", (ToolResult("c", "", (Text("oe"),)),)),
        ),
        (
            b'{"type":"local_shell_call_output","id":"c","output":"o"}',
            Message("tool", (ToolResult("c", "", (Text("o"),)),)),
        ),
        (
            MEDIA,
            Message(
                "user",
                (
                    Media("image", "image/png", 3, "", "AAAA"),
                    Media("image", "", 0, "", "f"),
                    Media("document", "", 0, "a.pdf", "https://x/a.pdf"),
                ),
            ),
        ),
    ],
)
def test_decode_message_reads_every_kind_of_item(raw, expected):
    """Each kind of item that is interpreted becomes its part, and is sent unchanged."""
    message = decode_message(Raw(raw))
    assert drop_raw_bytes(message) == expected
    if not raw.startswith(b'"'):
        assert json.loads(encode_message(message, Raw(raw))[0]) == json.loads(raw)


@pytest.mark.parametrize(
    ("kind", "role"),
    [
        ("item_reference", "system"),
        ("compaction_trigger", "system"),
        ("additional_tools", "system"),
        ("mcp_approval_response", "system"),
        ("computer_call_output", "tool"),
        ("program_output", "tool"),
        ("kind_of_tomorrow_output", "tool"),
    ],
)
def test_decode_message_keeps_unknown_client_items_as_messages(kind, role):
    """An uninterpreted client item is a message of its own that starts no turn and answers no call."""
    raw = b'{ "type":"' + kind.encode() + b'", "id": "x", "odd": [1, 2e400] }'
    message = decode_message(Raw(raw))
    assert message == Message(role, (Opaque("message", Raw(raw)),))
    assert encode_message(message) == [raw]


@pytest.mark.parametrize(
    "kind", ["compaction", "mcp_call", "image_generation_call", "computer_call", "tomorrow", "program"]
)
def test_decode_message_keeps_unknown_model_items_in_the_answer(kind):
    """An uninterpreted item of the model survives byte for byte inside the answer."""
    raw = b'{"type":"' + kind.encode() + b'","id":5,"call_id":null,"content":{"a":1.0e5}}'
    message = decode_message(Raw(TEXT_ITEM + b"," + raw))
    assert message.parts[1] == Opaque(kind, Raw(raw))
    assert encode_message(message) == [TEXT_ITEM, raw]


def test_encode_message_keeps_the_pieces_of_an_item_together():
    """Several pieces of one message item are sent as that item; an edit changes its own piece only."""
    message = decode_message(Raw(TWO))
    assert [getattr(part, "text", "") for part in message.parts] == ["a", "no", ""]
    assert message.parts[2].kind == "content.new_kind"
    assert encode_message(message, Raw(TWO)) == [TWO]
    edited = replace(message, parts=(Text("b"), *message.parts[1:]))
    (out,) = encode_message(edited, Raw(TWO))
    assert b'{"type":"refusal", "refusal":"no"},{"type":"new_kind", "x": [1, {"y" : 2}]}' in out
    assert json.loads(out)["content"][0] == {"type": "output_text", "text": "b"}
    assert "id" not in json.loads(out)
    assert json.loads(encode_message(message)[0])["content"] == json.loads(TWO)["content"]


def test_encode_message_changes_only_the_edited_item_of_an_answer():
    """After an edited call all other items stay as they were; the edited one keeps its fields but not its id."""
    message = decode_message(Raw(GROUP))
    call = replace(message.parts[2], arguments='{"p":2}', raw=None)
    out = encode_message(replace(message, parts=(*message.parts[:2], call, *message.parts[3:])), Raw(GROUP))
    assert [out[0], out[1], out[3], out[4]] == [THOUGHT, TEXT_ITEM, SECOND, SEARCH]
    assert json.loads(out[2]) == {
        "type": "function_call",
        "call_id": "c1",
        "name": "ls",
        "arguments": '{"p":2}',
        "status": "completed",
    }


def test_encode_message_keeps_an_item_of_pieces_beside_an_edit():
    """An untouched item of several pieces keeps its bytes, also if its neighbour is edited or removed."""
    group = Raw(TWO + b"," + CALL + b"," + SECOND)
    message = decode_message(group)
    call = replace(message.parts[3], arguments="{}", raw=None)
    for parts in ((*message.parts[:3], call, message.parts[4]), message.parts[:3]):
        assert encode_message(replace(message, parts=parts), group)[0] == TWO


def test_encode_message_keeps_other_fields_of_an_edited_text():
    """Fields of a message item that an edit does not touch stay, and so does the form of its content."""
    message = decode_message(Raw(TEXT_ITEM))
    (out,) = encode_message(replace(message, parts=(Text("b"),)), Raw(TEXT_ITEM))
    assert json.loads(out) == {
        "type": "message",
        "role": "assistant",
        "phase": "commentary",
        "content": [{"type": "output_text", "text": "b"}],
    }
    short = b'{"role":"assistant","content":"a","x":1}'
    (out,) = encode_message(replace(decode_message(Raw(short)), parts=(Text("b"),)), Raw(short))
    assert out == b'{"role":"assistant","content":"b","x":1}'


def test_encode_message_drops_ids_after_removed_reasoning():
    """Without its reasoning an item is sent without its id; the call id stays, and earlier items stay unchanged."""
    message = decode_message(Raw(GROUP))
    out = encode_message(replace(message, parts=message.parts[1:]), Raw(GROUP))
    assert [json.loads(item).get("id") for item in out] == [None] * 4
    assert [json.loads(item).get("call_id") for item in out] == [None, "c1", "c2", None]
    later = Raw(TEXT_ITEM + b"," + THOUGHT + b"," + CALL)
    message = decode_message(later)
    out = encode_message(replace(message, parts=(message.parts[0], message.parts[2])), later)
    assert out[0] == TEXT_ITEM
    assert "id" not in json.loads(out[1])


def test_encode_message_keeps_the_item_of_an_edited_result():
    """Another text is put into the existing output item; media are kept as pieces."""
    original = Raw(b'{"type":"custom_tool_call_output", "call_id":"c", "output":"long", "status":"completed"}')
    result = ToolResult("c", "", (Text("short"),))
    (out,) = encode_message(Message("tool", (result,)), original)
    assert out == b'{"type":"custom_tool_call_output","call_id":"c","output":"short","status":"completed"}'
    shown = ToolResult("c", "", (Text("see"), Media("image", "image/png", 3, "", "AAAA")))
    (out,) = encode_message(Message("tool", (shown,)), original)
    assert json.loads(out)["output"] == [
        {"type": "input_text", "text": "see"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
    ]


def test_adapt_outputs_to_calls_matches_the_kind_of_call():
    """A result built from values is written as the output for the kind of call that it answers."""
    calls = (
        b'{"type":"custom_tool_call","call_id":"a","name":"x","input":""}',
        b'{"type":"local_shell_call","id":"l","call_id":"b","action":{}}',
        b'{"type":"shell_call","call_id":"c","action":{"commands":[]}}',
        b'{"type":"apply_patch_call","call_id":"d","operation":{}}',
        b'{"type":"function_call","call_id":"e","name":"x","arguments":"{}"}',
    )
    results = [encode_message(Message("tool", (ToolResult(id_, "", (Text("o"),)),))) for id_ in "abcde"]
    out = [json.loads(group[0]) for group in adapt_outputs_to_calls([[Raw(b",".join(calls))], *results])[1:]]
    assert [item["type"].removesuffix("_output") for item in out] == [
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "function_call",
    ]
    assert [item.get("call_id", item.get("id")) for item in out] == list("abcde")
    assert out[2]["output"] == [{"stdout": "o", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]


def test_encode_message_keeps_the_exit_code_of_a_shortened_output():
    """How a command ended stays when its output is edited."""
    chunk = b'{"stdout":"long","stderr":"","outcome":{"type":"exit","exit_code":2}}'
    original = Raw(b'{"type":"shell_call_output","call_id":"c","output":[%s]}' % chunk)
    (out,) = encode_message(Message("tool", (ToolResult("c", "", (Text("short"),)),)), original)
    assert json.loads(out)["output"] == [json.loads(chunk) | {"stdout": "short"}]


@pytest.mark.parametrize("id_field", [b'"id":"lsh"', b'"id":"c"', b'"call_id":"c"', b'"id":"o","call_id":"lsh"'])
def test_group_items_pairs_local_shell_outputs_by_either_id(id_field):
    """The output has the id or the call_id of its call; both are paired by the call_id."""
    call = b'{"type":"local_shell_call","id":"lsh","call_id":"c","action":{}}'
    raws = [Raw(call), Raw(b'{"type":"local_shell_call_output",%s,"output":"o"}' % id_field)]
    (_, _, call_message), (_, _, output_message) = group_items_by_message(raws)
    assert [call_message.calls[0].id, output_message.results[0].call_id, output_message.results[0].raw] == [
        "c",
        "c",
        raws[1],
    ]


def test_encode_message_drops_thinking_of_other_apis():
    """Reasoning is sent only with a signature of this API."""
    foreign = Thinking("hm", ProviderSignature("anthropic", "", "s"))
    assert encode_message(Message("assistant", (foreign, Thinking("hm"), Text("a")))) == encode_message(
        Message.from_text("assistant", "a")
    )
    assert encode_message(Message("assistant", (foreign,))) == []


def test_find_message_spans_joins_adjacent_model_items():
    """Only adjacent items of the model belong together; the raw bytes of a message are a list without brackets."""
    raws = [Raw(item) for item in (USER, THOUGHT, CALL, OUTPUT, SECOND, USER)]
    assert find_message_spans([decode_item(raw) for raw in raws]) == [(0, 1), (1, 3), (3, 4), (4, 5), (5, 6)]
    assert strip_list_brackets(Raw(b'[ {"a":1} , {"b":[2]} ]')) == b'{"a":1} , {"b":[2]}'
    assert strip_list_brackets(Raw(b'"hi"')) == b'{"role":"user","content":"hi"}'


@pytest.mark.parametrize("raw", [b"5", b"[]", b"[5]", b"", b'{"type":', b"null"])
def test_decode_message_rejects_what_is_no_item(raw):
    """Anything but objects is refused."""
    with pytest.raises(FormatError):
        decode_message(Raw(raw))


def test_encode_messages_inverts_decode_messages():
    """Lists of dicts become values, with groups joined, and back; a string is a user message."""
    wire = [json.loads(item) for item in (USER, THOUGHT, TEXT_ITEM, CALL, OUTPUT)]
    values = decode_messages("openai-responses", wire)
    assert [message.role for message in values] == ["user", "assistant", "tool"]
    assert encode_messages("openai-responses", values)[1:] == wire[1:]
    assert decode_messages("openai-responses", "hi") == [Message.from_text("user", "hi")]


# -- laws --------------------------------------------------------------------------------------------------------------

_TEXT = st.text(max_size=6)
_ID = st.text("abc_1", min_size=1, max_size=4)
_CALLS = st.builds(ToolCall, _ID, _TEXT, st.dictionaries(_TEXT, st.integers() | _TEXT, max_size=2).map(json.dumps))
_THOUGHTS = st.builds(Thinking, _TEXT, st.builds(ProviderSignature, st.just(API_NAME), st.just(""), _ID))
_PICTURES = st.builds(Media, st.just("image"), st.just("image/png"), st.just(3), st.just(""), st.just("AAAA"))
_SHOWN = st.lists(st.builds(Text, _TEXT) | _PICTURES, min_size=1, max_size=3).map(tuple)
_VALUES = st.one_of(
    st.builds(
        Message, st.just("assistant"), st.lists(st.builds(Text, _TEXT) | _CALLS | _THOUGHTS, min_size=1).map(tuple)
    ),
    st.builds(Message, st.sampled_from(["user", "system"]), _SHOWN),
    st.builds(Message, st.just("tool"), st.tuples(st.builds(ToolResult, _ID, st.just(""), _SHOWN))),
)


@given(_VALUES)
def test_decode_message_reads_what_encode_message_writes(message):
    """Every message that this API can express is the same after encoding and decoding."""
    wire = encode_message(message)
    assert drop_raw_bytes(decode_message(Raw(b",".join(wire)))) == message


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)
_FIELDS = ["role", "id", "call_id", "content", "summary", "arguments", "output", "input", "action", "text", "name"]
_ITEMS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["message", "reasoning", "function_call", "shell_call", "function_call_output", "odd"])
        | _JSON
    },
    optional=dict.fromkeys(_FIELDS, _JSON)
    | {"role": st.sampled_from(["user", "assistant", "developer"])}
    | {"content": st.lists(st.fixed_dictionaries({"type": st.just("output_text"), "text": _TEXT}) | _JSON, max_size=3)},
)


@given(st.lists(_ITEMS, min_size=1, max_size=4), st.booleans())
def test_encode_message_returns_any_items_byte_for_byte(items, spaced):
    """Whatever the fields of items hold, the items decode, and every byte comes back."""
    raws = [Raw(json.dumps(item, indent=1 if spaced else None).encode()) for item in items]
    for start, stop, _ in group_items_by_message(raws):
        group = Raw(b" , ".join(map(bytes, raws[start:stop])))
        assert encode_message(decode_message(group), group) == [bytes(raw) for raw in raws[start:stop]]
