"""Which API a request body speaks, told from its keys; and whether its bytes are JSON at all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.errors import FormatError, Unrecognised
from holdfast.wire.splice import fields

APIS = ("anthropic", "openai-chat")

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
_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document", "compaction"})
_PIECES = frozenset({"image_url", "input_audio", "file", "refusal"})
_CHAT_ROLES = frozenset({"tool", "developer", "function"})


class _Block(Struct):
    type: str = ""


class _Peek(Struct):
    role: str = ""
    content: Raw = Raw(b"")
    tool_calls: Raw = Raw(b"")


_PEEKS = Decoder(list[_Peek])
_BLOCK_LIST = Decoder(list[_Block])


def body_fields(body: bytes) -> dict[str, Raw]:
    """Return the top-level fields of a request body in their order, values as they stand.

    Raises ``FormatError`` with the reason and the place for anything that is not one JSON object in UTF-8, and for a
    field that stands twice.
    """
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


_KEY = re.compile(rb'[\s{,]*("(?:[^"\\]|\\.)*")\s*:\s*', re.DOTALL)


def spans(body: bytes, found: Mapping[str, Raw]) -> dict[str, tuple[int, int]]:
    """Return where the value of each top-level field begins and ends in ``body``."""
    out: dict[str, tuple[int, int]] = {}
    position = 0
    for key, raw in found.items():
        match = _KEY.match(body, position)
        if match is None or msgspec.json.decode(match[1]) != key:
            raise FormatError(f"the body has a field twice, at byte {position}; send each field once")
        position = match.end() + memoryview(raw).nbytes
        out[key] = (match.end(), position)
    if body[position:].strip() not in (b"}", b"{}"):
        raise FormatError(f"the body has a field twice, at byte {position}; send each field once")
    return out


def recognise(found: Mapping[str, Raw]) -> str:
    """Return the API of a body with these top-level fields: ``anthropic`` or ``openai-chat``.

    Raises ``Unrecognised`` for bodies of Gemini and Responses, whose turn has not come, and for anything else.
    """
    if "messages" not in found:
        for key, name in (("contents", "Gemini generateContent"), ("input", "OpenAI Responses")):
            if key in found:
                known = " or ".join(APIS)
                raise Unrecognised(f"this is a body of {name} (it has {key!r}); that API comes later: send {known}")
        names = ", ".join(list(found)[:8]) or "none"
        raise Unrecognised(f"no API is known by these fields: {names}; a request needs 'messages'")
    for keys, api in ((_ANTHROPIC_KEYS, "anthropic"), (_CHAT_KEYS, "openai-chat")):
        if not keys.isdisjoint(found):
            return api
    for verdict in _hints(found):
        return verdict
    model = bytes(found.get("model", Raw(b""))).lower()
    return "anthropic" if b"claude" in model else "openai-chat"


def _hints(found: Mapping[str, Raw]) -> Iterator[str]:
    """Yield what tools and messages say about the API."""
    tools = bytes(found.get("tools", Raw(b"")))
    if b'"input_schema"' in tools:
        yield "anthropic"
    if b'"function"' in tools:
        yield "openai-chat"
    try:
        peeks = _PEEKS.decode(found["messages"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    for peek in peeks:
        if peek.role in _CHAT_ROLES or bytes(peek.tool_calls).startswith(b"["):
            yield "openai-chat"
        yield from _in_content(peek.content)
    if peeks and peeks[0].role == "system":
        yield "openai-chat"


def _in_content(content: Raw) -> Iterator[str]:
    try:
        kinds = {block.type for block in _BLOCK_LIST.decode(content)}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if kinds & _BLOCKS or any(kind.endswith(("_tool_use", "_tool_result")) for kind in kinds):
        yield "anthropic"
    if kinds & _PIECES:
        yield "openai-chat"
