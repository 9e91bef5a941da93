"""Messages that change the API."""

from __future__ import annotations

import json

from msgspec import Raw

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.strip_foreign import strip_foreign_content
from holdfast.providers.requests.message_dicts import decode_messages, encode_messages

RAW = Raw(b'{"of":"the other API"}')


def test_nothing_of_the_other_wire_is_left():
    """Bytes and seals go from every part, thinking goes altogether, an opaque part leaves its placeholder."""
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


def test_results_and_media_keep_what_they_say():
    """A result keeps id, words and error; an image its type and data."""
    image = Media("image", "image/png", 4, "", "QUJDRA==", RAW)
    result = ToolResult("t", "n", (Text("a", None, RAW), image, Opaque("x", RAW)), is_error=True, raw=RAW)
    (out,) = strip_foreign_content(Message("tool", (result,)), "openai-chat").parts
    assert out.content == (Text("a"), Media("image", "image/png", 4, "", "QUJDRA=="), Text("[Attached x]"))
    assert (out.call_id, out.is_error, out.raw) == ("t", True, None)


def test_a_conversation_crosses_over():
    """Calls and results of Chat become a conversation that Anthropic takes, and the other way round."""
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"p":1}'}}
    chat = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJDRA=="}}]},
        {"role": "assistant", "content": "ok", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "out"},
    ]
    values = [strip_foreign_content(one, "anthropic") for one in decode_messages("openai-chat", chat)]
    wire = encode_messages("anthropic", values)
    assert wire[0]["content"][0]["source"] == {"type": "base64", "media_type": "image/png", "data": "QUJDRA=="}
    assert wire[1]["content"][1] == {"type": "tool_use", "id": "c1", "name": "ls", "input": {"p": 1}}
    assert wire[2] == {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "out"}]}
    back = [strip_foreign_content(one, "openai-chat") for one in decode_messages("anthropic", wire)]
    assert json.dumps(encode_messages("openai-chat", back)) == json.dumps(chat)
