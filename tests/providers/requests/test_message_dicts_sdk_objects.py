"""Objects of the official SDKs are accepted as messages, or inside of a dict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

import pytest
from anthropic.types import TextBlock, ToolUseBlock
from google.genai.types import Content, FunctionCall, Part
from openai.types.chat import ChatCompletionMessage

from holdfast.errors import FormatError
from holdfast.messages.parts import Text, ToolCall
from holdfast.providers.requests.message_dicts import decode_messages, encode_messages

CALL = {"id": "call_1", "type": "function", "function": {"name": "sh", "arguments": '{"c":"ls"}'}}


def test_decode_messages_accepts_an_sdk_message() -> None:
    """Text and calls are decoded, and absent fields (``refusal``, ``audio``) are not in the next request either."""
    sdk_message = ChatCompletionMessage.model_validate({"role": "assistant", "content": None, "tool_calls": [CALL]})
    (message,) = decode_messages("openai-chat", [sdk_message])
    assert message.calls == (ToolCall("call_1", "sh", '{"c":"ls"}', raw=message.calls[0].raw),)
    assert encode_messages("openai-chat", [message]) == [{"role": "assistant", "content": None, "tool_calls": [CALL]}]


def test_decode_messages_accepts_sdk_blocks_in_a_dict() -> None:
    """The content of an answer can be put behind a role as it is."""
    blocks = [
        TextBlock(type="text", text="I look."),
        ToolUseBlock(type="tool_use", id="toolu_1", name="sh", input={"c": "ls"}),
    ]
    (message,) = decode_messages("anthropic", [{"role": "assistant", "content": blocks}])
    assert message.text == "I look."
    assert [call.id for call in message.calls] == ["toolu_1"]
    assert None not in encode_messages("anthropic", [message])[0]["content"][0].values()


def test_decode_messages_accepts_a_gemini_sdk_content() -> None:
    """The request has Gemini's own field names, not those of the Python SDK."""
    sdk_message = Content(
        role="model", parts=[Part(text="I look."), Part(function_call=FunctionCall(name="sh", args={}))]
    )
    (message,) = decode_messages("gemini", [sdk_message])
    assert isinstance(message.parts[0], Text)
    assert encode_messages("gemini", [message])[0]["parts"][1]["functionCall"]["name"] == "sh"


@pytest.mark.parametrize("value", [object(), print, ChatCompletionMessage, {1, 2}.__iter__()])
def test_decode_messages_rejects_values_without_a_json_form(value: object) -> None:
    """The ``FormatError`` names the type and says what to give."""
    with pytest.raises(
        FormatError, match=f"a value of type {type(value).__name__} has no form in JSON; give plain values"
    ):
        decode_messages("openai-chat", [{"role": "user", "content": value}])


def test_decode_and_encode_messages_are_typed_for_sdk_objects() -> None:
    """Neither signature says ``dict``: SDKs return objects, and accept types that plain dicts do not match."""
    assert get_type_hints(decode_messages)["dicts"] == str | Sequence[Any]
    assert get_type_hints(encode_messages)["return"] == list[Any]
