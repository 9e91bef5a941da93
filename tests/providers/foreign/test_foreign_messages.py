"""A message list of another API is rejected with advice; merely unknown fields are accepted."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Message
from holdfast.errors import FormatError
from holdfast.messages.parts import ToolCall, ToolResult
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.providers.openai_responses import messages as openai_responses
from holdfast.providers.requests.message_dicts import decode_messages, encode_messages

READERS = {
    "anthropic": anthropic,
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "gemini": gemini,
}
CALL = {"id": "c1", "type": "function", "function": {"name": "sh", "arguments": "{}"}}
LISTS: dict[str, list[dict[str, Any]]] = {
    "anthropic": [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "sh", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]},
    ],
    "openai-chat": [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ],
    "openai-responses": [
        {"role": "user", "content": "go"},
        {"type": "function_call", "call_id": "c1", "name": "sh", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
    ],
    "gemini": [
        {"role": "user", "parts": [{"text": "go"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "sh", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "sh", "response": {"output": "ok"}}}]},
    ],
}
PAIRS = [(reader, source) for reader in READERS for source in LISTS if reader != source]


@pytest.mark.parametrize(("reader", "source"), PAIRS, ids=[f"{source} to {reader}" for reader, source in PAIRS])
def test_decode_messages_rejects_a_list_of_another_api(reader: str, source: str) -> None:
    """The error names the first foreign place and the one reader that accepts the whole list."""
    with pytest.raises(FormatError) as raised:
        decode_messages(reader, LISTS[source])
    text = str(raised.value)
    assert re.match(r"\$\.(messages|input|contents)\[[012]\]\.\w+", text)
    assert text.endswith(f"read this list with decode_messages({source!r}, …)")


@pytest.mark.parametrize("api", READERS)
def test_decode_messages_reads_a_list_of_its_own_api(api: str) -> None:
    """The same three messages are a call and its result for the reader of their API."""
    read = decode_messages(api, LISTS[api])
    assert [call.name for message in read for call in message.calls] == ["sh"]
    assert len([result for message in read for result in message.results]) == 1


def test_decode_messages_names_foreign_elements_inside_a_content() -> None:
    """The path leads to the foreign element, also inside a result."""
    image = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "a"}, image]}
    with pytest.raises(
        FormatError, match=r"^\$\.messages\[0\]\.content\[0\]\.content\[1\]: a picture in the form of OpenAI Chat"
    ):
        decode_messages("anthropic", [{"role": "user", "content": [result]}])
    with pytest.raises(
        FormatError, match=r"^\$\.messages\[0\]\.content\[0\]: .*decode_messages\('openai-responses', …\)$"
    ):
        decode_messages("openai-chat", [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}])
    with pytest.raises(FormatError, match=r"the list mixes APIs"):
        decode_messages("gemini", [*LISTS["openai-chat"], *LISTS["anthropic"]])


SEARCH = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
FOREIGN: list[tuple[ModuleType, dict[str, Any], str]] = [
    (anthropic, {"functionCall": {"name": "sh", "args": {}}}, "a call of a tool in the form of Gemini"),
    (anthropic, {"inlineData": {"mimeType": "image/png", "data": ""}}, "a picture in the form of Gemini"),
    (anthropic, {"type": "file", "file": {"file_id": "f"}}, "a document in the form of OpenAI Chat"),
    (openai_chat, LISTS["openai-responses"][1], "a call of a tool in the form of OpenAI Responses"),
    (openai_chat, SEARCH, "a call of a built-in tool in the form of Anthropic"),
    (openai_responses, LISTS["anthropic"][1]["content"][0], "a call of a tool in the form of Anthropic"),
]


@pytest.mark.parametrize(("module", "block", "expected"), FOREIGN, ids=[expected for _, _, expected in FOREIGN])
def test_decode_messages_rejects_every_foreign_block(module: ModuleType, block: dict[str, Any], expected: str) -> None:
    """A call, result or picture in the content of the wrong API is rejected, wherever its own API writes it."""
    with pytest.raises(FormatError, match=rf"^\$\.\w+\[0\]\.content\[0\]: {expected}"):
        decode_messages(module.API_NAME, [{"role": "assistant", "content": [block]}])


KNOWN: list[tuple[ModuleType, dict[str, Any]]] = [
    (anthropic, {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {}}),
    (anthropic, {"role": "user", "content": [{"type": "block_of_tomorrow", "x": 1}], "field_of_tomorrow": {"a": 1}}),
    (anthropic, {"role": "assistant", "content": "ok", "tool_calls": [], "refusal": None, "audio": None}),
    (anthropic, {"role": "system", "content": "be brief"}),
    (openai_chat, {"role": "assistant", "content": "ok", "reasoning_details": [{"type": "reasoning.text"}]}),
    (
        openai_chat,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "m"}]}]},
    ),
    (openai_chat, {"role": "user", "content": [{"type": "image", "image": "https://x/y.png"}]}),
    (
        openai_chat,
        {"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "as LiteLLM takes it"}}]},
    ),
    (openai_chat, {"role": "user", "content": "ok", "parts": [{"type": "text", "text": "ok"}], "cache_control": {}}),
    (openai_responses, {"type": "item_of_tomorrow", "content": "x", "tool_calls": [1], "parts": [1]}),
    (openai_responses, {"type": "message", "role": "user", "content": [{"type": "text", "text": "hello"}]}),
    (openai_responses, {"type": "reasoning", "summary": [], "encrypted_content": "x"}),
    (gemini, {"role": "function", "parts": [{"functionResponse": {"name": "sh", "response": {}}}]}),
    (gemini, {"parts": [{"text": "go", "partOfTomorrow": 1}], "content": None, "type": "x"}),
]


@pytest.mark.parametrize(("module", "message"), KNOWN)
def test_decode_messages_accepts_unknown_fields_and_elements(module: ModuleType, message: dict[str, Any]) -> None:
    """Fields and elements that a provider adds, SDK answers and empty fields are no reason to reject a list."""
    assert len(decode_messages(module.API_NAME, [message])) == 1


@pytest.mark.parametrize("module", READERS.values(), ids=READERS)
def test_decode_messages_rejects_what_is_no_list_of_messages(module: ModuleType) -> None:
    """A body, a single message, decoded values and other things are rejected with what to give instead."""
    hello = {"role": "user", "content": "hello"}
    with pytest.raises(FormatError, match=r"a dict was given; give its 'messages'"):
        decode_messages(module.API_NAME, {"model": "m", "messages": [hello]})
    with pytest.raises(FormatError, match=r"a dict was given; put it into a list"):
        decode_messages(module.API_NAME, hello)
    with pytest.raises(FormatError, match=r"\[0\] is a Message already"):
        decode_messages(module.API_NAME, [Message.from_text("user", "hello")])
    with pytest.raises(FormatError, match=r"^\$\.\w+\[0\]: "):
        decode_messages(module.API_NAME, [7])
    with pytest.raises(FormatError, match=r"a NoneType was given"):
        decode_messages(module.API_NAME, None)


@pytest.mark.parametrize("role", [["user"], {}, 7, None], ids=str)
@pytest.mark.parametrize("module", READERS.values(), ids=READERS)
def test_decode_messages_keeps_or_rejects_a_role_that_is_no_string(module: ModuleType, role: object) -> None:
    """Responses keeps it as an unknown item; the other APIs report its path, also for unhashable values."""
    messages = [{"role": role, "content": "hello"}]
    if module is openai_responses:
        assert decode_messages(module.API_NAME, messages)[0].parts[0].kind == "message"
        return
    with pytest.raises(FormatError, match=r"^\$\.\w+\[0\]"):
        decode_messages(module.API_NAME, messages)


@pytest.mark.parametrize("module", READERS.values(), ids=READERS)
def test_encode_messages_rejects_dicts(module: ModuleType) -> None:
    """A list that was not decoded is rejected with what to do."""
    with pytest.raises(
        TypeError,
        match=r"^messages\[1\] is a dict; encode_messages\(\) takes what decode_messages\(\) makes of dicts",
    ):
        encode_messages(module.API_NAME, [Message.from_text("user", "a"), {"role": "user", "content": "b"}])


@pytest.mark.parametrize("module", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Message("user", "hello"), r"Expected `array`, got `str` - at `\$\.parts`"),  # type: ignore[arg-type]
        (Message("assistant", (ToolCall("c", "sh", {"a": 1}),)), r"Expected `str`, got `object`"),  # type: ignore[arg-type]
        (Message("user", ("hello",)), r"at `\$\.parts\[0\]`"),  # type: ignore[arg-type]
        (Message("tool", (ToolResult("c", "sh", "done"),)), r"at `\$\.parts\[0\]\.content`"),  # type: ignore[arg-type]
        (Message("tool", (ToolResult("c", "sh", ("done",)),)), r"at `\$\.parts\[0\]\.content\[0\]`"),  # type: ignore[arg-type]
        (Message("tool", (ToolResult(5, "sh"),)), r"at `\$\.parts\[0\]\.call_id`"),  # type: ignore[arg-type]
    ],
    ids=[
        "text for parts",
        "arguments as a dict",
        "text for a part",
        "text for content",
        "text in content",
        "number for id",
    ],
)
def test_encode_messages_rejects_malformed_values(module: ModuleType, value: Message, expected: str) -> None:
    """Messages are not checked on construction; what is wrong in one is reported with its path when it is encoded."""
    with pytest.raises(TypeError, match=r"^messages\[1\] is not a message: .*" + expected):
        encode_messages(module.API_NAME, [Message.from_text("user", "a"), value])
    with pytest.raises(TypeError, match=r"^messages is a Message; encode_messages\(\) takes a list"):
        encode_messages(module.API_NAME, value)


KEYS = ["role", "content", "parts", "type", "tool_calls", "tool_call_id", "text", "source", "file", "x"]
WORDS = [
    "user",
    "assistant",
    "tool",
    "model",
    "text",
    "tool_use",
    "image",
    "image_url",
    "function_call",
    "thinking",
    "x",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(JSON | st.lists(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4), max_size=3))
def test_decode_messages_accepts_or_rejects_any_json(value: Any) -> None:
    """A reader returns messages that can be encoded, or raises ``FormatError``."""
    for module in READERS.values():
        try:
            found = decode_messages(module.API_NAME, value)
        except FormatError:
            continue
        assert isinstance(encode_messages(module.API_NAME, found), list)


@pytest.mark.parametrize("api", READERS)
def test_decode_messages_rejects_deep_nesting(api):
    """No list ends in a ``RecursionError``: the error says what is wrong with it."""
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"more": [deep]}
    with pytest.raises(FormatError, match="nested too deeply"):
        decode_messages(api, [{"role": "user", "content": [{"type": "text", "text": "go", "more": deep}]}])
