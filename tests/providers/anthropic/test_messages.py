"""Anthropic messages are decoded to values and encoded again."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.requests.message_dicts import decode_messages, encode_messages


def decode(wire):
    return anthropic.decode_message(json.dumps(wire).encode())


def encode(message, base=None):
    raw = None if base is None else Raw(json.dumps(base).encode())
    return [json.loads(element) for element in anthropic.encode_message(message, raw)]


def drop_raw(part):
    """Return a part without its raw bytes, as if the planner had built it."""
    return replace(part, raw=None)


def test_decode_message_reads_string_content_as_one_text():
    """String content is one text and nothing else."""
    assert decode({"role": "user", "content": "hi"}) == Message.from_text("user", "hi")


def test_decode_message_gives_results_alone_the_role_tool():
    """A user message with results only has the role tool; with text, or empty, it stays a user message."""
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
    alone = decode({"role": "user", "content": [result]})
    mixed = decode({"role": "user", "content": [result, {"type": "text", "text": "go"}]})
    assert (alone.role, mixed.role, mixed.is_turn_start) == ("tool", "user", True)
    assert decode({"role": "user", "content": []}) == Message("user")


@pytest.mark.parametrize("content", [{}, {"content": []}, {"content": ""}, {"content": None}])
def test_decode_message_keeps_a_system_message_of_options_only(content):
    """pi sets the effort of each turn in a system message without text; it is sent unchanged."""
    raw = json.dumps({"role": "system", **content, "output_config": {"effort": "high"}}).encode()
    message = anthropic.decode_message(raw)
    assert message == Message("system", (Opaque("options", Raw(raw)),))
    assert anthropic.encode_message(message) == [raw]


def test_decode_message_reads_the_text_of_a_system_message_with_options():
    """Claude Code sets the effort beside text, which must be readable to be quoted when the turn is reduced."""
    words = {"role": "system", "content": "Be brief.", "output_config": {"effort": "high"}}
    assert decode(words) == Message.from_text("system", "Be brief.")
    assert decode({"role": "system", "content": [], "output_config": None}) == Message("system")


def test_decode_message_keeps_the_exact_text_of_input():
    """Arguments keep the order, spacing and escapes of ``input``."""
    raw = b'{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"n","input":{"b": 1,  "a":"\\u00e9"}}]}'
    (call,) = anthropic.decode_message(raw).calls
    assert call.arguments == '{"b": 1,  "a":"\\u00e9"}'


def test_decode_message_converts_every_kind_of_block():
    """Each block becomes the part of its kind, other blocks are opaque, and all keep their bytes."""
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
        {"type": "text", "text": "words", "cache_control": {"type": "ephemeral"}},
        {"type": "tool_use", "id": "t", "name": "n", "input": {}},
        {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []},
        {"type": "compaction", "content": "S"},
        {"no": "type"},
    ]
    parts = decode({"role": "assistant", "content": blocks}).parts
    assert [type(part) for part in parts] == [Thinking, Thinking, Text, ToolCall, Opaque, Opaque, Opaque, Opaque]
    assert parts[0].signature == ProviderSignature("anthropic", "", "s")
    assert parts[1] == Thinking("", ProviderSignature("anthropic", "", "d"), parts[1].raw)
    assert [part.kind for part in parts[4:]] == ["server_tool_use", "web_search_tool_result", "compaction", "unknown"]
    assert [json.loads(bytes(part.raw)) for part in parts] == blocks


def test_decode_message_leaves_unsigned_thinking_unsigned():
    """Thinking without a signature is not sent."""
    (part,) = decode({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}).parts
    assert part.signature is None
    assert anthropic.encode_message(Message("assistant", (drop_raw(part),))) == []


def test_decode_message_keeps_a_malformed_block_as_opaque():
    """A block whose fields have other types is kept, not rejected."""
    (part,) = decode({"role": "user", "content": [{"type": "text", "text": 5}]}).parts
    assert (type(part), part.kind) == (Opaque, "text")


def test_decode_message_reads_type_size_and_name_of_media():
    """An image has its type and its size in decoded bytes; a document has its title."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJDRA=="}}
    paper = {"type": "document", "title": "a.pdf", "source": {"type": "url", "url": "https://x/a.pdf"}}
    first, second = decode({"role": "user", "content": [image, paper]}).parts
    assert (first.kind, first.mime, first.size, first.source) == ("image", "image/png", 4, "QUJDRA==")
    assert (second.kind, second.name, second.source) == ("document", "a.pdf", "https://x/a.pdf")


def test_decode_message_accepts_result_content_of_any_form():
    """A result's content may be a string, a list of blocks or missing."""
    inner = [{"type": "text", "text": "a"}, {"type": "tool_reference", "tool_name": "x"}]
    wires = [
        {"type": "tool_result", "tool_use_id": "t", "is_error": True, **more}
        for more in ({"content": "a"}, {"content": inner}, {})
    ]
    one, two, three = decode({"role": "user", "content": wires}).results
    assert one.content == (Text("a"),)
    assert [type(part) for part in two.content] == [Text, Opaque]
    assert (three.content, three.is_error) == ((), True)


@pytest.mark.parametrize("role", ["developer", "tool", "weird"])
def test_decode_message_keeps_an_unknown_role_byte_for_byte(role):
    """A message of an unknown role is one opaque part that starts no turn and is sent unchanged."""
    raw = b'{"role": "%s",  "content":"\\u0041", "x":1}' % role.encode()
    message = anthropic.decode_message(raw)
    assert (message.role, message.is_turn_start) == ("system", False)
    assert anthropic.encode_message(message) == [raw]


@pytest.mark.parametrize(
    "raw",
    [
        b"5",
        b'"x"',
        b"{}",
        b'{"role":"user","content":5}',
        b"{",
        b'{"role":"user","content":"\\ud800"}',
        b'{"role":"user","content":[' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"]}",
    ],
)
def test_decode_message_rejects_malformed_messages_with_format_error(raw):
    """Whatever is wrong with the JSON, it is a FormatError: never a RecursionError or a UnicodeError."""
    with pytest.raises(FormatError):
        anthropic.decode_message(raw)


def test_encode_message_keeps_the_bytes_of_unedited_parts():
    """Replacing one part keeps the bytes of the others and the fields of the message."""
    raw = Raw(b'{"role":"user","x":{"y": 1},"content":[{"type":"text","text":"\\u0041"},{"text" : "b","type":"text"}]}')
    parts = anthropic.decode_message(raw).parts
    (out,) = anthropic.encode_message(Message("user", (parts[0], Text("new"))), raw)
    assert (
        out == b'{"role":"user","x":{"y": 1},"content":[{"type":"text","text":"\\u0041"},{"text":"new","type":"text"}]}'
    )


def test_encode_message_keeps_the_breakpoint_of_an_edited_result():
    """A replaced result keeps the block's other fields, except those that belonged to the old text."""
    block = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": "long",
        "is_error": True,
        "cache_control": {"type": "ephemeral"},
    }
    base = {"role": "user", "content": [block]}
    (out,) = encode(Message("tool", (ToolResult("t", content=(Text("short"),)),)), base)
    assert out["content"] == [
        {"type": "tool_result", "tool_use_id": "t", "content": "short", "cache_control": {"type": "ephemeral"}}
    ]


def test_encode_message_moves_a_breakpoint_to_another_kind_of_block():
    """A breakpoint moves to the block of another kind in its place, but never to a blank text."""
    image = {"type": "image", "source": {"type": "url", "url": "https://x"}, "cache_control": {"type": "ephemeral"}}
    base = {"role": "user", "content": [image]}
    (out,) = encode(Message.from_text("user", "[image]"), base)
    (blank,) = encode(Message.from_text("user", " "), base)
    assert out["content"] == [{"type": "text", "text": "[image]", "cache_control": {"type": "ephemeral"}}]
    assert "cache_control" not in blank["content"][0]


def test_encode_message_matches_edited_results_by_id():
    """If a block before it was dropped, an edited result is still matched to the block it came from."""
    one = {"type": "tool_result", "tool_use_id": "a", "content": "1"}
    two = {"type": "tool_result", "tool_use_id": "b", "content": "2", "cache_control": {"type": "ephemeral"}}
    (out,) = encode(Message("tool", (ToolResult("b", content=(Text("x"),)),)), {"role": "user", "content": [one, two]})
    assert out["content"][0]["cache_control"] == {"type": "ephemeral"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("not json", {"arguments": "not json"}),
        ("[1]", {"arguments": "[1]"}),
        ('"{\\"a\\":1}"', {"a": 1}),
    ],
)
def test_encode_message_writes_arguments_as_an_object(arguments, expected):
    """Arguments of any kind become the object that this API requires."""
    (out,) = encode(Message("assistant", (ToolCall("t", "n", arguments),)))
    assert out["content"][0]["input"] == expected


def test_encode_message_writes_parts_of_every_kind():
    """Parts built by hand become blocks of this API."""
    parts = (
        Text("a"),
        Media("image", "image/png", 4, "", "QUJDRA=="),
        Media("document", "application/pdf", 0, "t.pdf", "https://x/t.pdf"),
        Media("document", "", 0, "", "file_1"),
        Thinking("hm", ProviderSignature("anthropic", "", "s")),
        Thinking("hm", ProviderSignature("openai-chat", "", "reasoning_content")),
    )
    (out,) = encode(Message("assistant", parts))
    assert [block["type"] for block in out["content"]] == ["text", "image", "document", "document", "thinking"]
    assert out["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": "QUJDRA=="}
    assert out["content"][2]["title"] == "t.pdf"
    assert out["content"][3]["source"] == {"type": "file", "file_id": "file_1"}


def test_encode_message_replaces_lone_surrogates():
    """No provider accepts half a surrogate pair, so none is written."""
    (out,) = encode(Message.from_text("user", "a\ud800b"))
    assert out["content"] == "a\ufffdb"


def test_encode_messages_inverts_decode_messages():
    """A list of dicts becomes values in one line and dicts in another."""
    wire = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}]
    assert encode_messages("anthropic", decode_messages("anthropic", wire)) == wire


@pytest.mark.parametrize("inside", [b'"a\xff"', b'"\\ud800"', b'{"a":"\xff"}'])
@pytest.mark.parametrize(
    "block",
    [
        b'{"type":"text","text":%s}',
        b'{"type":"tool_use","id":"a","name":"b","input":%s}',
        b'{"type":%s}',
        b'{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":%s}]}',
    ],
)
def test_decode_message_rejects_invalid_text_in_blocks(block, inside):
    """Text that is no UTF-8, or half a surrogate pair, raises nothing but ``FormatError``."""
    try:
        message = anthropic.decode_message(b'{"role":"assistant","content":[' + block % inside + b"]}")
    except FormatError:
        return
    assert message.parts


def test_encode_messages_rejects_numbers_out_of_range():
    """A number out of Python's range is an error only if dicts are wanted."""
    with pytest.raises(FormatError, match="the message"):
        encode_messages("anthropic", [Message("assistant", (ToolCall("t", "n", '{"a":1e999}'),))])
