"""Which API a request body speaks, told from its keys; and whether its bytes are JSON at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.errors import FormatError, Unrecognised
from holdfast.providers.common.json.raw_json import fields, spans
from holdfast.providers.registry import APIS, FORMS, form_of

__all__ = ["APIS", "body_fields", "recognise", "spoken", "wide"]

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
_OWN_KEYS = {
    "anthropic": frozenset({"system", "anthropic_version"}),
    "openai-chat": frozenset({"max_completion_tokens", "stream_options", "functions", "function_call"}),
}
"""Those of them that no server takes for the other API; gateways pass ``thinking`` on, for instance."""
_KEYS = {"anthropic": _ANTHROPIC_KEYS, "openai-chat": _CHAT_KEYS}
_GEMINI_KEYS = frozenset({"systemInstruction", "system_instruction", "generationConfig", "safetySettings"})
_RESPONSES_KEYS = frozenset({"previous_response_id", "instructions", "conversation", "max_output_tokens"})
"""Fields that tell the API of a body in which no messages stand."""
_NO_RESPONSES_KEYS = frozenset({"voice", "dimensions", "encoding_format", "assistant_id", "thread"})
"""Fields of other calls that have an ``input`` or ``instructions``: speech, embeddings, assistants."""
_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document", "compaction"})
_PIECES = frozenset({"image_url", "input_audio", "file", "refusal"})
_CHAT_ROLES = frozenset({"tool", "developer", "function"})


_UTF32 = (
    b"\xff\xfe\x00\x00",
    b"\x00\x00\xfe\xff",
    b"{\x00\x00\x00",
    b"\x00\x00\x00{",
    b"[\x00\x00\x00",
    b"\x00\x00\x00[",
)
_UTF16 = (b"\xff\xfe", b"\xfe\xff", b"{\x00", b"\x00{", b"[\x00", b"\x00[")
"""How JSON in four and in two bytes a character begins: with its mark, or without."""


class _Block(Struct):
    type: str = ""


class _Peek(Struct):
    role: str = ""
    content: Raw = Raw(b"")
    tool_calls: Raw = Raw(b"")


_PEEKS = Decoder(list[_Peek])
_TOOLS = Decoder(list[dict[str, Raw]])
_BLOCK_LIST = Decoder(list[_Block])


def body_fields(body: bytes) -> dict[str, Raw]:
    """Return the top-level fields of a request body in their order, values as they stand.

    Raises ``FormatError`` with the reason and the place for anything that is not one JSON object in UTF-8, and for a
    field that stands twice.
    """
    if not isinstance(body, bytes):
        raise FormatError(f"the body is of type {type(body).__name__}; give the bytes of a request")
    if coded := wide(body):
        raise FormatError(f"the body is {coded}; encode it as UTF-8")
    if body.startswith(b"\xef\xbb\xbf"):
        raise FormatError("the body begins with a byte order mark (byte 0); send it without")
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"the body is not UTF-8 at byte {error.start}; encode it as UTF-8") from None
    found = fields(body, "the body")
    spans(body, found)
    return found


def wide(data: bytes) -> str:
    """Return the encoding of JSON in two or four bytes a character, told by its first four; nothing for any other."""
    if not data.startswith(_UTF16) and not data.startswith(_UTF32):
        return ""
    return "UTF-32" if data.startswith(_UTF32) else "UTF-16"


def recognise(found: Mapping[str, Raw]) -> str:
    """Return the API of a body with these top-level fields; it need not name its messages if another field tells.

    Raises ``Unrecognised`` for anything else.
    """
    if "messages" in found:
        return _of_messages(found)
    keys = found.keys()
    if "contents" in found or keys & _GEMINI_KEYS:
        return "gemini"
    if ("input" in found or keys & _RESPONSES_KEYS) and not keys & _NO_RESPONSES_KEYS:
        return "openai-responses"
    names = ", ".join(list(found)[:8]) or "none"
    lists = " or ".join(dict.fromkeys(f"'{form.field}'" for form in FORMS.values()))
    raise Unrecognised(f"no API is known by these fields: {names}; a request needs {lists}")


def spoken(found: Mapping[str, Raw], likely: str) -> str:
    """Return the API of a body with these top-level fields that is most likely one of ``likely``.

    It is another where ``likely`` has no list of messages of that name, or where what only the other API with such a
    list has stands in the body, and nothing of its own does. A role or a picture of the other's may have slipped in:
    that is mended. Raises ``Unrecognised`` for what is no body.
    """
    if form_of(likely).field not in found:
        return recognise(found)
    if likely not in _OWN_KEYS or not _KEYS[likely].isdisjoint(found):
        return likely
    other = likely
    for api in _marks(found):
        if api == likely:
            return likely
        other = api
    return other


def _marks(found: Mapping[str, Raw]) -> Iterator[str]:
    """Yield whose a body with ``messages`` is, by fields that only one API has, and by how it calls tools."""
    for api, keys in _OWN_KEYS.items():
        if not keys.isdisjoint(found):
            yield api
    yield from _offered(found)
    for peek in _peeks(found):
        if peek.role == "tool" or bytes(peek.tool_calls).startswith(b"["):
            yield "openai-chat"
        if peek.role == "assistant" and "tool_use" in _kinds(peek.content):
            yield "anthropic"


def _offered(found: Mapping[str, Raw]) -> Iterator[str]:
    """Yield in whose form tools are offered."""
    try:
        tools = _TOOLS.decode(found.get("tools", b"[]"))
    except msgspec.DecodeError:
        return
    if any("input_schema" in tool for tool in tools):
        yield "anthropic"
    if any("function" in tool or bytes(tool.get("type", b"")) == b'"function"' for tool in tools):
        yield "openai-chat"


def _of_messages(found: Mapping[str, Raw]) -> str:
    for keys, api in ((_ANTHROPIC_KEYS, "anthropic"), (_CHAT_KEYS, "openai-chat")):
        if not keys.isdisjoint(found):
            return api
    for verdict in _hints(found):
        return verdict
    model = bytes(found.get("model", Raw(b""))).lower()
    return "anthropic" if b"claude" in model else "openai-chat"


def _hints(found: Mapping[str, Raw]) -> Iterator[str]:
    """Yield what tools and messages say about the API."""
    yield from _offered(found)
    peeks = _peeks(found)
    for peek in peeks:
        if peek.role in _CHAT_ROLES or bytes(peek.tool_calls).startswith(b"["):
            yield "openai-chat"
        kinds = _kinds(peek.content)
        if kinds & _BLOCKS or any(kind.endswith(("_tool_use", "_tool_result")) for kind in kinds):
            yield "anthropic"
        if kinds & _PIECES:
            yield "openai-chat"
    if peeks and peeks[0].role == "system":
        yield "openai-chat"


def _peeks(found: Mapping[str, Raw]) -> list[_Peek]:
    try:
        return _PEEKS.decode(found["messages"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def _kinds(content: Raw) -> frozenset[str]:
    """Return the types of the blocks of a content; nothing where it is no list of such."""
    try:
        return frozenset(block.type for block in _BLOCK_LIST.decode(content))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return frozenset()
