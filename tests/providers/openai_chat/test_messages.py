"""Chat messages are decoded to values and encoded again."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.providers.requests.message_dicts import decode_messages, encode_messages

CALL = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"p": 1}'}}


def decode(wire):
    return openai_chat.decode_message(json.dumps(wire).encode())


def encode(message, base=None):
    raw = None if base is None else Raw(json.dumps(base).encode())
    return [json.loads(element) for element in openai_chat.encode_message(message, raw)]


def test_decode_message_reads_text_then_calls():
    """Text and calls of an assistant message become parts in that order; arguments are the recorded string."""
    message = decode({"role": "assistant", "content": "ok", "tool_calls": [CALL]})
    text, call = message.parts
    assert text == Text("ok")
    assert (call.id, call.name, call.arguments) == ("c1", "ls", '{"p": 1}')
    assert json.loads(bytes(call.raw)) == CALL


MAYBE = st.sampled_from([None, "", "c", 3])
ARGUMENTS = st.sampled_from(['{"a": 1}', "", "free", "\u00e9\n", {"b": [1.50, "\u00e9"]}, {}, [], 7, None])
FUNCTIONS = st.fixed_dictionaries({}, optional={"name": MAYBE, "arguments": ARGUMENTS, "strict": st.booleans()})
CUSTOM = st.fixed_dictionaries({}, optional={"name": MAYBE, "input": MAYBE})
CALLS = st.fixed_dictionaries(
    {"type": st.just("function")},
    optional={"id": MAYBE, "function": st.none() | FUNCTIONS, "custom": st.none() | st.just(3) | CUSTOM},
)


def read_call(call):
    """Return id, name and arguments of a call as the API documents its fields, or None if it is malformed."""
    function, custom = call.get("function") or {}, call.get("custom")
    names = [call.get("id") or "", function.get("name", ""), *([] if custom is None else [custom])]
    if custom is not None and isinstance(custom, dict):
        names[-1:] = [custom.get("name", ""), custom.get("input", "")]
    if not all(isinstance(name, str) for name in names):
        return None
    if custom is not None:
        return names[0], names[2], json.dumps(names[3], ensure_ascii=False)
    arguments = function.get("arguments", "")
    return names[0], names[1], arguments if isinstance(arguments, str) else json.dumps(arguments)


@given(CALLS)
@example({"id": "c", "function": {"name": "n", "arguments": "{}"}, "custom": {"name": "p", "input": "free"}})
@example({"id": "c", "function": {"name": "n", "arguments": {"b": [1.50, "\u00e9"]}}})
@example({"id": "c", "function": None})
def test_decode_message_reads_calls_of_any_form(call):
    """Arguments are a string or any JSON, fields may be missing, and a call with fields of other types is opaque."""
    (part,) = decode({"role": "assistant", "tool_calls": [call]}).parts
    expected = read_call(call)
    assert json.loads(bytes(part.raw)) == call
    if expected is None:
        assert (type(part), part.kind) == (Opaque, "tool_call")
    else:
        assert (part.id, part.name, part.arguments) == expected


def test_decode_message_reads_a_tool_message_as_one_result():
    """Its raw bytes are the whole message."""
    raw = b'{"role":"tool", "tool_call_id":"c1","content":"out"}'
    message = openai_chat.decode_message(raw)
    assert message.role == "tool"
    assert message.results == (ToolResult("c1", "", (Text("out"),), raw=Raw(raw)),)


def test_decode_message_reads_developer_as_system():
    """A developer message is a system message, and is sent as developer again."""
    wire = {"role": "developer", "content": "rules"}
    message = decode(wire)
    assert message.role == "system"
    assert encode(message) == [wire]


@pytest.mark.parametrize(
    "wire",
    [
        {"role": "user", "content": "a", "name": "bob"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "a", "reasoning_content": "because"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "video_url", "video_url": {}}]},
        {"role": "function", "name": "f", "content": "out"},
        {"role": "weird", "content": "a"},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a"}], "name": "ls"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "p", "input": "free"}}],
        },
    ],
)
def test_encode_messages_keeps_every_field_without_a_base(wire):
    """Every field with content survives in the parts alone."""
    assert encode_messages("openai-chat", decode_messages("openai-chat", [wire])) == [wire]


def test_decode_message_reads_custom_input_as_a_json_string():
    """The free text of a custom tool becomes JSON text, because arguments always are."""
    call = {"id": "c", "type": "custom", "custom": {"name": "p", "input": 'say "x"'}}
    (part,) = decode({"role": "assistant", "content": None, "tool_calls": [call]}).calls
    assert json.loads(part.arguments) == 'say "x"'


def test_decode_message_signs_reasoning_with_its_field():
    """Reasoning beside the content is thinking that is sent back in the same field and nowhere else."""
    message = decode({"role": "assistant", "content": "a", "reasoning_content": "because"})
    assert message.parts[0] == Thinking(
        "because", ProviderSignature("openai-chat", "", "reasoning_content"), message.parts[0].raw
    )
    without = Message("assistant", message.parts[1:])
    assert encode(without, {"role": "assistant", "content": "a", "reasoning_content": "because"}) == [
        {"role": "assistant", "content": "a"}
    ]


def test_encode_message_takes_empty_fields_and_order_from_the_base():
    """Empty fields come from the base, in its order; removed fields do not come back."""
    base = {"refusal": None, "role": "assistant", "tool_calls": [CALL], "content": "a", "annotations": []}
    raw = Raw(json.dumps(base).encode())
    message = openai_chat.decode_message(raw)
    (same,) = openai_chat.encode_message(message, raw)
    assert list(json.loads(same).items()) == list(base.items())
    (less,) = openai_chat.encode_message(Message("assistant", message.parts[:1]), raw)
    assert json.loads(less) == {"refusal": None, "role": "assistant", "content": "a", "annotations": []}


def test_encode_message_keeps_extra_fields_of_an_edited_call():
    """A rewritten call keeps the fields beside its function, matched by id."""
    base = {"role": "assistant", "content": None, "tool_calls": [CALL | {"extra_content": {"google": 1}}]}
    (out,) = encode(Message("assistant", (ToolCall("c1", "ls", "{}"),)), base)
    assert out["tool_calls"][0]["extra_content"] == {"google": 1}
    assert out["tool_calls"][0]["function"] == {"name": "ls", "arguments": "{}"}


def test_encode_message_keeps_the_name_of_an_edited_result():
    """A rewritten result keeps the other fields of its message."""
    base = {"role": "tool", "tool_call_id": "c1", "name": "ls", "content": "long"}
    assert encode(Message("tool", (ToolResult("c1", content=(Text("short"),)),)), base) == [base | {"content": "short"}]


def test_encode_message_splits_results_into_tool_messages():
    """A message with two results and text becomes two tool messages and a user message."""
    message = Message("user", (ToolResult("a", content=(Text("1"),)), ToolResult("b"), Text("go")))
    assert [(element["role"], element["content"]) for element in encode(message)] == [
        ("tool", "1"),
        ("tool", ""),
        ("user", "go"),
    ]


def test_encode_message_writes_media_in_user_messages_only():
    """Images, audio and files are written in user messages; in results they become a placeholder."""
    image = Media("image", "image/png", 4, "", "QUJDRA==")
    sound = Media("audio", "audio/wav", 4, "", "QUJDRA==")
    paper = Media("document", "application/pdf", 4, "a.pdf", "QUJDRA==")
    (out,) = encode(Message("user", (image, sound, paper)))
    assert [part["type"] for part in out["content"]] == ["image_url", "input_audio", "file"]
    assert out["content"][0]["image_url"]["url"] == "data:image/png;base64,QUJDRA=="
    (result,) = encode(Message("tool", (ToolResult("a", content=(image,)),)))
    assert result["content"] == "[Attached image/png]"


def test_decode_message_reads_media_from_a_data_url():
    """A data URL has type, size and data, so that another API can show the image."""
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJDRA=="}}
    (part,) = decode({"role": "user", "content": [url]}).parts
    assert part == Media("image", "image/png", 4, "", "QUJDRA==", part.raw)


def test_decode_message_keeps_a_malformed_call_as_opaque():
    """A malformed call is opaque and is sent unchanged."""
    message = decode({"role": "assistant", "content": None, "tool_calls": [{"id": 5}]})
    assert [type(part) for part in message.parts] == [Opaque]
    assert encode(message)[0]["tool_calls"] == [{"id": 5}]


def test_encode_message_keeps_the_bytes_of_unedited_parts():
    """One rewritten part leaves the other parts as they were."""
    raw = Raw(b'{"role":"user","content":[{"type":"text","text":"\\u0041"},{"type":"text","text":"b"}]}')
    first, second = openai_chat.decode_message(raw).parts
    (out,) = openai_chat.encode_message(Message("user", (first, replace(second, text="c", raw=None))), raw)
    assert out == b'{"role":"user","content":[{"type":"text","text":"\\u0041"},{"type":"text","text":"c"}]}'


@pytest.mark.parametrize("raw", [b"[]", b"{}", b'{"role":"user","content":{}}', b'{"role":"user","tool_calls":5}'])
def test_decode_message_rejects_malformed_messages_with_format_error(raw):
    """A message that does not have the API's shape is a ``FormatError``."""
    with pytest.raises(FormatError):
        openai_chat.decode_message(raw)


@pytest.mark.parametrize("inside", [b'"a\xff"', b'"\\ud800"', b'{"a":"\xff"}'])
@pytest.mark.parametrize(
    "message",
    [
        b'{"role":"user","content":[{"type":"text","text":%s}]}',
        b'{"role":"user","content":[{"type":%s}]}',
        b'{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"b","arguments":%s}}]}',
        b'{"role":"assistant","content":null,"reasoning_content":%s}',
    ],
)
def test_decode_message_rejects_invalid_text_in_pieces(message, inside):
    """Text that is no UTF-8, or half a surrogate pair, raises nothing but ``FormatError``."""
    try:
        found = openai_chat.decode_message(message % inside)
    except FormatError:
        return
    assert found.parts


def test_encode_messages_rejects_numbers_out_of_range():
    """A number out of Python's range is an error only if dicts are wanted."""
    field = Opaque("message.x", Raw(b"1e999"))
    with pytest.raises(FormatError, match="the message"):
        encode_messages("openai-chat", [Message("assistant", (Text("a"), field))])


def test_encode_message_drops_the_fields_of_a_result_that_became_a_users_message():
    """Mistral refuses ``tool_call_id`` on a user's message, also an empty one."""
    base = Raw(b'{"role":"tool","tool_call_id":"","content":"a.py"}')
    [encoded] = openai_chat.encode_message(Message.from_text("user", "[Result] a.py"), base)
    assert json.loads(encoded) == {"role": "user", "content": "[Result] a.py"}


def test_encode_message_joins_reasoning_of_one_field():
    """Merged answers have several pieces of reasoning for one field: no word is lost, and blanks add nothing."""
    signature = ProviderSignature("openai-chat", "", "reasoning_content")
    pieces = [Thinking(text, signature) for text in ("First look.", "", "Then edit.")]
    message = Message("assistant", (pieces[0], Text("Done."), *pieces[1:]))
    assert encode(message) == [
        {"role": "assistant", "content": "Done.", "reasoning_content": "First look.\n\nThen edit."}
    ]


def test_decode_message_keeps_empty_reasoning():
    """DeepSeek wants the field back and takes it empty, so an empty one is told from a missing one."""
    raw = Raw(b'{"role":"assistant","content":"Yes.","reasoning_content":""}')
    message = openai_chat.decode_message(raw)
    assert message.parts[0] == Thinking("", ProviderSignature("openai-chat", "", "reasoning_content"), Raw(b'""'))
    without_reasoning = replace(message, parts=message.parts[1:])
    [encoded] = openai_chat.encode_message(without_reasoning, raw)
    assert json.loads(encoded) == {"role": "assistant", "content": "Yes."}
