"""Which API a request body speaks, told from its keys; and whether its bytes are JSON at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.errors import FormatError, UnrecognizedContent
from holdfast.providers.common.json.raw_json import decode_json_fields, find_field_spans
from holdfast.providers.registry import API_NAMES, API_SPECS, get_api_spec

__all__ = ["API_NAMES", "detect_wide_encoding", "parse_body_fields", "recognize_api", "recognize_expected_api"]

_ANTHROPIC_KEYS = frozenset(
    {"system", "anthropic_version", "anthropic_beta", "thinking", "stop_sequences", "context_management", "compaction",
     "output_config", "mcp_servers", "container", "betas"}
)  # fmt: skip
"""Top-level fields that Messages has and Chat has not."""
_CHAT_KEYS = frozenset(
    {"max_completion_tokens", "stream_options", "frequency_penalty", "presence_penalty", "response_format", "functions",
     "function_call", "logprobs", "top_logprobs", "logit_bias", "n", "seed", "stop", "parallel_tool_calls",
     "reasoning_effort", "store", "user", "modalities", "prediction", "web_search_options"}
)  # fmt: skip
"""Top-level fields that Chat has and Messages has not."""
_EXCLUSIVE_KEYS = {
    "anthropic": frozenset({"system", "anthropic_version"}),
    "openai-chat": frozenset({"max_completion_tokens", "stream_options", "functions", "function_call"}),
}
"""Those of them that no server takes for the other API; gateways pass ``thinking`` on, for instance."""
_TYPICAL_KEYS = {"anthropic": _ANTHROPIC_KEYS, "openai-chat": _CHAT_KEYS}
_GEMINI_KEYS = frozenset({"systemInstruction", "system_instruction", "generationConfig", "safetySettings"})
_RESPONSES_KEYS = frozenset({"previous_response_id", "instructions", "conversation", "max_output_tokens"})
"""Fields that tell the API of a body in which no messages stand."""
_NOT_RESPONSES_KEYS = frozenset({"voice", "dimensions", "encoding_format", "assistant_id", "thread"})
"""Fields of other calls that have an ``input`` or ``instructions``: speech, embeddings, assistants."""
_ANTHROPIC_BLOCK_TYPES = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document", "compaction"}
)
_CHAT_PART_TYPES = frozenset({"image_url", "input_audio", "file", "refusal"})
_CHAT_ROLES = frozenset({"tool", "developer", "function"})


_UTF32_STARTS = (
    b"\xff\xfe\x00\x00",
    b"\x00\x00\xfe\xff",
    b"{\x00\x00\x00",
    b"\x00\x00\x00{",
    b"[\x00\x00\x00",
    b"\x00\x00\x00[",
)
_UTF16_STARTS = (b"\xff\xfe", b"\xfe\xff", b"{\x00", b"\x00{", b"[\x00", b"\x00[")
"""How JSON in four and in two bytes a character begins: with its mark, or without."""


class _BlockType(Struct):
    type: str = ""


class _MessagePeek(Struct):
    role: str = ""
    content: Raw = Raw(b"")
    tool_calls: Raw = Raw(b"")


_PEEK_LIST_DECODER = Decoder(list[_MessagePeek])
_TOOL_LIST_DECODER = Decoder(list[dict[str, Raw]])
_BLOCK_TYPES_DECODER = Decoder(list[_BlockType])


def parse_body_fields(body: bytes) -> dict[str, Raw]:
    """Return the top-level fields of a request body in their order, values as they stand.

    Raises ``FormatError`` with the reason and the place for anything that is not one JSON object in UTF-8, and for a
    field that stands twice.
    """
    if not isinstance(body, bytes):
        raise FormatError(f"the body is of type {type(body).__name__}; give the bytes of a request")
    if encoding := detect_wide_encoding(body):
        raise FormatError(f"the body is {encoding}; encode it as UTF-8")
    if body.startswith(b"\xef\xbb\xbf"):
        raise FormatError("the body begins with a byte order mark (byte 0); send it without")
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"the body is not UTF-8 at byte {error.start}; encode it as UTF-8") from None
    raw_fields = decode_json_fields(body, "the body")
    find_field_spans(body, raw_fields)
    return raw_fields


def detect_wide_encoding(data: bytes) -> str:
    """Return the encoding of JSON in two or four bytes a character, told by its first four; nothing for any other."""
    if not data.startswith(_UTF16_STARTS) and not data.startswith(_UTF32_STARTS):
        return ""
    return "UTF-32" if data.startswith(_UTF32_STARTS) else "UTF-16"


def recognize_api(fields: Mapping[str, Raw]) -> str:
    """Return the API of a body with these top-level fields; it need not name its messages if another field tells.

    Raises ``UnrecognizedContent`` for anything else.
    """
    if "messages" in fields:
        return _recognize_messages_api(fields)
    keys = fields.keys()
    if "contents" in fields or keys & _GEMINI_KEYS:
        return "gemini"
    if ("input" in fields or keys & _RESPONSES_KEYS) and not keys & _NOT_RESPONSES_KEYS:
        return "openai-responses"
    names = ", ".join(list(fields)[:8]) or "none"
    lists = " or ".join(dict.fromkeys(f"'{spec.messages_field}'" for spec in API_SPECS.values()))
    raise UnrecognizedContent(f"no API is known by these fields: {names}; a request needs {lists}")


def recognize_expected_api(fields: Mapping[str, Raw], expected: str) -> str:
    """Return the API of a body with these top-level fields that is most likely one of ``expected``.

    It is another where ``expected`` has no list of messages of that name, or where what only the other API with such a
    list has stands in the body, and nothing of its own does. A role or a picture of the other's may have slipped in:
    that is mended. Raises ``UnrecognizedContent`` for what is no body.
    """
    if get_api_spec(expected).messages_field not in fields:
        return recognize_api(fields)
    if expected not in _EXCLUSIVE_KEYS or not _TYPICAL_KEYS[expected].isdisjoint(fields):
        return expected
    other_api = expected
    for api in _iter_certain_api_signs(fields):
        if api == expected:
            return expected
        other_api = api
    return other_api


def _iter_certain_api_signs(fields: Mapping[str, Raw]) -> Iterator[str]:
    """Yield whose a body with ``messages`` is, by fields that only one API has, and by how it calls tools."""
    for api, keys in _EXCLUSIVE_KEYS.items():
        if not keys.isdisjoint(fields):
            yield api
    yield from _iter_tool_api_signs(fields)
    for peek in _peek_messages(fields):
        if peek.role == "tool" or bytes(peek.tool_calls).startswith(b"["):
            yield "openai-chat"
        if peek.role == "assistant" and "tool_use" in _get_block_types(peek.content):
            yield "anthropic"


def _iter_tool_api_signs(fields: Mapping[str, Raw]) -> Iterator[str]:
    """Yield in whose form tools are offered."""
    try:
        tools = _TOOL_LIST_DECODER.decode(fields.get("tools", b"[]"))
    except msgspec.DecodeError:
        return
    if any("input_schema" in tool for tool in tools):
        yield "anthropic"
    if any("function" in tool or bytes(tool.get("type", b"")) == b'"function"' for tool in tools):
        yield "openai-chat"


def _recognize_messages_api(fields: Mapping[str, Raw]) -> str:
    for keys, api in ((_ANTHROPIC_KEYS, "anthropic"), (_CHAT_KEYS, "openai-chat")):
        if not keys.isdisjoint(fields):
            return api
    for verdict in _iter_likely_api_signs(fields):
        return verdict
    model = bytes(fields.get("model", Raw(b""))).lower()
    return "anthropic" if b"claude" in model else "openai-chat"


def _iter_likely_api_signs(fields: Mapping[str, Raw]) -> Iterator[str]:
    """Yield what tools and messages say about the API."""
    yield from _iter_tool_api_signs(fields)
    peeks = _peek_messages(fields)
    for peek in peeks:
        if peek.role in _CHAT_ROLES or bytes(peek.tool_calls).startswith(b"["):
            yield "openai-chat"
        kinds = _get_block_types(peek.content)
        if kinds & _ANTHROPIC_BLOCK_TYPES or any(kind.endswith(("_tool_use", "_tool_result")) for kind in kinds):
            yield "anthropic"
        if kinds & _CHAT_PART_TYPES:
            yield "openai-chat"
    if peeks and peeks[0].role == "system":
        yield "openai-chat"


def _peek_messages(fields: Mapping[str, Raw]) -> list[_MessagePeek]:
    try:
        return _PEEK_LIST_DECODER.decode(fields["messages"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def _get_block_types(content: Raw) -> frozenset[str]:
    """Return the types of the blocks of a content; nothing where it is no list of such."""
    try:
        return frozenset(block.type for block in _BLOCK_TYPES_DECODER.decode(content))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return frozenset()
