"""Messages that move to another API."""

from __future__ import annotations

import json

from msgspec import Raw

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.strip_foreign import strip_foreign_content
from holdfast.providers.requests.message_dicts import decode_messages, encode_messages

RAW = Raw(b'{"of":"the other API"}')


def test_strip_foreign_content_removes_bytes_signatures_and_thinking():
    """Wire bytes and signatures go from every part, thinking goes completely, and an opaque part leaves a
    placeholder.
    """
    message = Message(
        "assistant",
        (
            Thinking("hm", ProviderSignature("anthropic", "", "s"), RAW),
            Text("a", ProviderSignature("anthropic", "", "c"), RAW),
            ToolCall("t", "n", "{}", None, RAW),
            Opaque("server_tool_use", RAW),
            Opaque("message.name", RAW),
        ),
    )
    assert strip_foreign_content(message, "openai-chat").parts == (
        Text("a"),
        ToolCall("t", "n", "{}"),
        Text("[Attached server_tool_use]"),
    )


def test_strip_foreign_content_keeps_the_words_of_tools_of_the_provider():
    """A search becomes its query and the titles and addresses that it found, without what is encrypted; code becomes
    itself and its output. An error, or a result of another kind, stays a placeholder.
    """
    page = {"type": "web_search_result", "title": "Tides", "url": "https://example.org/t", "encrypted_content": "Eqg"}
    output = {"type": "code_execution_result", "stdout": "41\n", "stderr": "", "return_code": 0, "content": []}
    blocks = (
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "tides"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [page, {**page, "title": ""}]},
        {"type": "web_search_tool_result", "tool_use_id": "s2", "content": {"error_code": "max_uses_exceeded"}},
        {"type": "code_execution_tool_result", "tool_use_id": "s3", "content": output},
        {"type": "advisor_tool_result", "tool_use_id": "s4", "content": {}},
    )
    parts = tuple(Opaque(block["type"], Raw(json.dumps(block).encode())) for block in blocks)
    texts = [part.text for part in strip_foreign_content(Message("assistant", parts), "gemini").parts]
    assert texts == [
        '[web_search: {"query": "tides"}]',
        "[search results, without their text]\nTides https://example.org/t\nhttps://example.org/t",
        "[Attached web_search_tool_result]",
        "41",
        "[Attached advisor_tool_result]",
    ]


def test_strip_foreign_content_keeps_results_and_media():
    """A result keeps its id, text and error flag; an image its type and data."""
    image = Media("image", "image/png", 4, "", "QUJDRA==", RAW)
    result = ToolResult("t", "n", (Text("a", None, RAW), image, Opaque("x", RAW)), is_error=True, raw=RAW)
    (stripped,) = strip_foreign_content(Message("tool", (result,)), "openai-chat").parts
    assert stripped.content == (Text("a"), Media("image", "image/png", 4, "", "QUJDRA=="), Text("[Attached x]"))
    assert (stripped.call_id, stripped.is_error, stripped.raw) == ("t", True, None)


def test_strip_foreign_content_converts_a_conversation_both_ways():
    """Calls and results of Chat become a conversation that Anthropic accepts, and the other way round."""
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"p":1}'}}
    chat = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJDRA=="}}]},
        {"role": "assistant", "content": "ok", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "out"},
    ]
    values = [strip_foreign_content(message, "anthropic") for message in decode_messages("openai-chat", chat)]
    wire = encode_messages("anthropic", values)
    assert wire[0]["content"][0]["source"] == {"type": "base64", "media_type": "image/png", "data": "QUJDRA=="}
    assert wire[1]["content"][1] == {"type": "tool_use", "id": "c1", "name": "ls", "input": {"p": 1}}
    assert wire[2] == {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "out"}]}
    back = [strip_foreign_content(message, "openai-chat") for message in decode_messages("anthropic", wire)]
    assert json.dumps(encode_messages("openai-chat", back)) == json.dumps(chat)
