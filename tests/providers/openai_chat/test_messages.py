"""Chat messages to values and back."""

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
    return [json.loads(one) for one in openai_chat.encode_message(message, raw)]


def test_calls_stand_beside_the_words():
    """Text and calls of an assistant message become parts in that order; arguments are the string as it came."""
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


def told(call):
    """Return id, name and arguments of a call, as its fields are described; nothing for one that cannot be read."""
    function, custom = call.get("function") or {}, call.get("custom")
    names = [call.get("id") or "", function.get("name", ""), *([] if custom is None else [custom])]
    if custom is not None and isinstance(custom, dict):
        names[-1:] = [custom.get("name", ""), custom.get("input", "")]
    if not all(isinstance(name, str) for name in names):
        return None
    if custom is not None:
        return names[0], names[2], json.dumps(names[3], ensure_ascii=False)
    given_ = function.get("arguments", "")
    return names[0], names[1], given_ if isinstance(given_, str) else json.dumps(given_)


@given(CALLS)
@example({"id": "c", "function": {"name": "n", "arguments": "{}"}, "custom": {"name": "p", "input": "free"}})
@example({"id": "c", "function": {"name": "n", "arguments": {"b": [1.50, "\u00e9"]}}})
@example({"id": "c", "function": None})
def test_a_call_is_read_whatever_its_form(call):
    """Arguments are a text or JSON of any kind, as it came; fields may be absent; one of another type is opaque."""
    (part,) = decode({"role": "assistant", "tool_calls": [call]}).parts
    expected = told(call)
    assert json.loads(bytes(part.raw)) == call
    if expected is None:
        assert (type(part), part.kind) == (Opaque, "tool_call")
    else:
        assert (part.id, part.name, part.arguments) == expected


def test_a_tool_message_is_one_result():
    """A tool message is one result whose bytes are the whole message."""
    raw = b'{"role":"tool", "tool_call_id":"c1","content":"out"}'
    message = openai_chat.decode_message(raw)
    assert message.role == "tool"
    assert message.results == (ToolResult("c1", "", (Text("out"),), raw=Raw(raw)),)


def test_developer_is_system_and_stays_developer():
    """A developer message is a system message, and goes out under its own name."""
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
def test_nothing_is_lost_without_a_base(wire):
    """Every field that says something survives in the parts alone."""
    assert encode_messages("openai-chat", decode_messages("openai-chat", [wire])) == [wire]


def test_custom_input_is_a_json_string():
    """The free text of a custom tool becomes JSON text, since arguments always are."""
    call = {"id": "c", "type": "custom", "custom": {"name": "p", "input": 'say "x"'}}
    (part,) = decode({"role": "assistant", "content": None, "tool_calls": [call]}).calls
    assert json.loads(part.arguments) == 'say "x"'


def test_reasoning_is_sealed_with_its_field():
    """Reasoning beside the content is thinking that goes back into the same field, and nowhere else."""
    message = decode({"role": "assistant", "content": "a", "reasoning_content": "because"})
    assert message.parts[0] == Thinking(
        "because", ProviderSignature("openai-chat", "", "reasoning_content"), message.parts[0].raw
    )
    without = Message("assistant", message.parts[1:])
    assert encode(without, {"role": "assistant", "content": "a", "reasoning_content": "because"}) == [
        {"role": "assistant", "content": "a"}
    ]


def test_base_gives_the_empty_fields_and_their_order():
    """Fields that are empty come from the base, in its order; fields that were taken away do not come back."""
    base = {"refusal": None, "role": "assistant", "tool_calls": [CALL], "content": "a", "annotations": []}
    raw = Raw(json.dumps(base).encode())
    message = openai_chat.decode_message(raw)
    (same,) = openai_chat.encode_message(message, raw)
    assert list(json.loads(same).items()) == list(base.items())
    (less,) = openai_chat.encode_message(Message("assistant", message.parts[:1]), raw)
    assert json.loads(less) == {"refusal": None, "role": "assistant", "content": "a", "annotations": []}


def test_an_edited_call_keeps_its_extra_fields():
    """A call written anew keeps what stood beside its function under the same id."""
    base = {"role": "assistant", "content": None, "tool_calls": [CALL | {"extra_content": {"google": 1}}]}
    (out,) = encode(Message("assistant", (ToolCall("c1", "ls", "{}"),)), base)
    assert out["tool_calls"][0]["extra_content"] == {"google": 1}
    assert out["tool_calls"][0]["function"] == {"name": "ls", "arguments": "{}"}


def test_an_edited_result_keeps_its_name():
    """A result written anew keeps the other fields of its message."""
    base = {"role": "tool", "tool_call_id": "c1", "name": "ls", "content": "long"}
    assert encode(Message("tool", (ToolResult("c1", content=(Text("short"),)),)), base) == [base | {"content": "short"}]


def test_results_of_one_message_become_many():
    """A message with two results and words becomes two tool messages and a user message."""
    message = Message("user", (ToolResult("a", content=(Text("1"),)), ToolResult("b"), Text("go")))
    assert [(one["role"], one["content"]) for one in encode(message)] == [("tool", "1"), ("tool", ""), ("user", "go")]


def test_media_have_forms_for_the_user_alone():
    """Images, sound and files are written in user messages; in results they leave a placeholder."""
    image = Media("image", "image/png", 4, "", "QUJDRA==")
    sound = Media("audio", "audio/wav", 4, "", "QUJDRA==")
    paper = Media("document", "application/pdf", 4, "a.pdf", "QUJDRA==")
    (out,) = encode(Message("user", (image, sound, paper)))
    assert [part["type"] for part in out["content"]] == ["image_url", "input_audio", "file"]
    assert out["content"][0]["image_url"]["url"] == "data:image/png;base64,QUJDRA=="
    (result,) = encode(Message("tool", (ToolResult("a", content=(image,)),)))
    assert result["content"] == "[Attached image/png]"


def test_media_of_the_wire_are_unpacked():
    """A data URL tells type, size and data, so that another API can show the image."""
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJDRA=="}}
    (part,) = decode({"role": "user", "content": [url]}).parts
    assert part == Media("image", "image/png", 4, "", "QUJDRA==", part.raw)


def test_a_malformed_call_is_kept():
    """A call that is no call is opaque and goes out again."""
    message = decode({"role": "assistant", "content": None, "tool_calls": [{"id": 5}]})
    assert [type(part) for part in message.parts] == [Opaque]
    assert encode(message)[0]["tool_calls"] == [{"id": 5}]


def test_edited_text_keeps_its_neighbours_bytes():
    """One part written anew leaves the other parts as they came."""
    raw = Raw(b'{"role":"user","content":[{"type":"text","text":"\\u0041"},{"type":"text","text":"b"}]}')
    first, second = openai_chat.decode_message(raw).parts
    (out,) = openai_chat.encode_message(Message("user", (first, replace(second, text="c", raw=None))), raw)
    assert out == b'{"role":"user","content":[{"type":"text","text":"\\u0041"},{"type":"text","text":"c"}]}'


@pytest.mark.parametrize("raw", [b"[]", b"{}", b'{"role":"user","content":{}}', b'{"role":"user","tool_calls":5}'])
def test_what_is_no_message_is_a_format_error(raw):
    """A message that is not the API's shape is refused with a FormatError."""
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
def test_pieces_that_cannot_be_read(message, inside):
    """Text that is no UTF-8, or half a surrogate pair, in a piece raises nothing but our own error."""
    try:
        found = openai_chat.decode_message(message % inside)
    except FormatError:
        return
    assert found.parts


def test_numbers_that_python_has_not():
    """Fields with a number that is out of range are told, where dicts are asked for."""
    field = Opaque("message.x", Raw(b"1e999"))
    with pytest.raises(FormatError, match="the message"):
        encode_messages("openai-chat", [Message("assistant", (Text("a"), field))])
