"""Messages of pi and OpenClaw sessions, decoded into values and encoded again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.errors import FormatError
from holdfast.formats.common.lines import DECODE_ERRORS, LenientDecoder
from holdfast.formats.common.writing import get_redacted_thinking
from holdfast.messages.message import Message, Role, format_part_placeholder
from holdfast.messages.parts import Media, Opaque, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.common.json.raw_json import count_base64_bytes, wrap_call_arguments
from holdfast.state.entries import Usage

API = "pi"
API_OF_PI_NAME = {
    "anthropic-messages": "anthropic",
    "openai-completions": "openai-chat",
    "openai-responses": "openai-responses",
    "openai-codex-responses": "openai-responses",
    "azure-openai-responses": "openai-responses",
    "google-generative-ai": "gemini",
    "google-vertex": "gemini",
}
"""Our name of each API, by pi's name."""
REDACTED_TEXT = "[Reasoning redacted]"
"""pi's own text for redacted thinking."""


class PiMessage(Struct, rename="camel"):
    """The fields of a message; which are present depends on the role."""

    role: str = ""
    content: Raw = Raw(b"[]")
    api: str = ""
    provider: str = ""
    model: str = ""
    usage: Raw = Raw()
    stop_reason: str = ""
    timestamp: float | str | None = None
    tool_call_id: str = ""
    tool_name: str = ""
    is_error: bool = False
    command: str = ""
    output: str = ""
    exit_code: int | None = None
    cancelled: bool = False
    truncated: bool = False
    full_output_path: str | None = None
    exclude_from_context: bool = False
    summary: str = ""


class _PiText(Struct, tag_field="type", tag="text", rename="camel"):
    text: str
    text_signature: str | None = None


class _PiThinking(Struct, tag_field="type", tag="thinking", rename="camel"):
    thinking: str
    thinking_signature: str | None = None
    redacted: bool = False
    """Whether ``thinking_signature`` is the encrypted data of redacted thinking, and not a signature."""


class _PiImage(Struct, tag_field="type", tag="image", rename="camel"):
    data: str
    mime_type: str = ""


class _PiToolCall(Struct, tag_field="type", tag="toolCall", rename="camel"):
    id: str
    name: str
    arguments: Raw = Raw(b"{}")
    thought_signature: str | None = None


class _PiBlockType(Struct):
    type: str = "unknown"


class _PiTokens(Struct, rename="camel"):
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total_tokens: int = 0


PI_MESSAGE = LenientDecoder(PiMessage)
_PI_TOKENS = LenientDecoder(_PiTokens)
_PI_CONTENT: Decoder[str | list[Raw] | None] = Decoder(str | list[Raw] | None)
_PI_PART = Decoder(_PiText | _PiThinking | _PiImage | _PiToolCall)
_PI_BLOCK_TYPE = LenientDecoder(_PiBlockType)


def decode_pi_message(raw: Raw | bytes) -> Message:
    """Return the ``message`` of a line as a value; raises ``FormatError`` for an unknown role or broken content."""
    try:
        return convert_pi_message(PI_MESSAGE.decode_strict(raw))
    except DECODE_ERRORS as error:
        raise FormatError(f"the message cannot be read: {error}") from None


def convert_pi_message(message: PiMessage) -> Message:
    """Return a decoded message as a value; raises ``FormatError`` for an unknown role."""
    if message.role == "assistant":
        return Message("assistant", _decode_pi_parts(message))
    if message.role == "toolResult":
        content = [part for part in _decode_pi_parts(message) if isinstance(part, Text | Media | Opaque)]
        result = ToolResult(message.tool_call_id, message.tool_name, tuple(content), message.is_error)
        return Message("tool", (result,))
    if message.role == "bashExecution":
        return Message.from_text("user", format_bash_execution(message))
    if message.role in ("branchSummary", "compactionSummary"):
        return Message.from_text("user", message.summary)
    role = _ROLE_OF_PI_ROLE.get(message.role)
    if role is None:
        role_names = "user, assistant, toolResult, bashExecution, custom, system"
        raise FormatError(f"the message has the role {message.role!r}; known are {role_names}")
    return Message(role, _decode_pi_parts(message))


_ROLE_OF_PI_ROLE: dict[str, Role] = {"user": "user", "custom": "user", "hookMessage": "user", "system": "system"}


def format_bash_execution(message: PiMessage) -> str:
    """Return a command that the user ran and its output as text, word for word as pi sends it to the model."""
    output = f"```\n{message.output}\n```" if message.output else "(no output)"
    text = f"Ran `{message.command}`\n{output}"
    if message.cancelled:
        text += "\n\n(command cancelled)"
    elif message.exit_code:
        text += f"\n\nCommand exited with code {message.exit_code}"
    if message.truncated and message.full_output_path:
        text += f"\n\n[Output truncated. Full output: {message.full_output_path}]"
    return text


def decode_pi_content(content: Raw, api: str = "", model: str = "") -> tuple[Part, ...]:
    """Return a ``content`` (a text or a list) as parts; their signatures are those of ``api`` and ``model``."""
    decoded_content = _PI_CONTENT.decode(content)
    if decoded_content is None:
        return ()
    if isinstance(decoded_content, str):
        return (Text(decoded_content),)
    return tuple([_decode_pi_part(raw, api, model) for raw in decoded_content])


def _decode_pi_parts(message: PiMessage) -> tuple[Part, ...]:
    return decode_pi_content(message.content, API_OF_PI_NAME.get(message.api, message.api), message.model)


def _decode_pi_part(raw: Raw, api: str, model: str) -> Part:
    try:
        part = _PI_PART.decode(raw)
    except msgspec.ValidationError:
        # A block of a newer version: kept as it is, so that an export still has it.
        return Opaque(_PI_BLOCK_TYPE.decode_or_default(raw).type, raw)
    if isinstance(part, _PiImage):
        return Media("image", part.mime_type, count_base64_bytes(part.data), "", part.data)
    if isinstance(part, _PiText):
        return Text(part.text, _make_signature(api, model, part.text_signature))
    if isinstance(part, _PiThinking):
        if part.redacted:
            return Thinking(part.thinking)
        return Thinking(part.thinking, _make_signature(api, model, part.thinking_signature))
    signature = _make_signature(api, model, part.thought_signature)
    return ToolCall(part.id, part.name, bytes(part.arguments).decode(), signature)


def _make_signature(api: str, model: str, data: str | None) -> ProviderSignature | None:
    return ProviderSignature(api, model, data) if data else None


def decode_pi_usage(message: PiMessage) -> Usage | None:
    """Return the usage of an answer, or None if none is recorded. The result's ``input`` is the whole prompt."""
    tokens = _PI_TOKENS.decode_or_default(message.usage)
    if tokens == _PiTokens():
        return None
    prompt = tokens.input + tokens.cache_read + tokens.cache_write
    # A total that is not the sum of its parts is kept beside them.
    is_sum = tokens.total_tokens == prompt + tokens.output
    reported_total = 0 if is_sum else tokens.total_tokens
    return Usage(
        prompt,
        tokens.output,
        tokens.cache_read,
        tokens.cache_write,
        reported_total=reported_total,
    )


# -- encoding ----------------------------------------------------------------------------------------------------------


def encode_pi_messages(message: Message) -> list[dict[str, Any]]:
    """Return ``message`` as pi messages, without times and usage: one for each tool result, then one for the rest."""
    pi_messages = [_encode_pi_result(result) for result in message.results]
    other_parts = [part for part in message.parts if not isinstance(part, ToolResult)]
    if other_parts or not pi_messages:
        role = message.role if message.role in ("assistant", "system") else "user"
        pi_messages.append({"role": role, "content": _encode_pi_blocks(other_parts)})
    return pi_messages


def _encode_pi_result(result: ToolResult) -> dict[str, Any]:
    return {
        "role": "toolResult",
        "toolCallId": result.call_id,
        "toolName": result.name,
        "content": _encode_pi_blocks(result.content),
        "isError": result.is_error,
    }


def _encode_pi_blocks(parts: Sequence[Part]) -> list[object]:
    return [block for block in map(_encode_pi_block, parts) if block is not None]


def _encode_pi_block(part: Part) -> object:
    """Return a part as a block of pi's, or None for a tool result, which is a message there."""
    if isinstance(part, Text):
        return {"type": "text", "text": part.text} | _encode_signature_field("textSignature", part.signature)
    if isinstance(part, Thinking):
        redacted_data = get_redacted_thinking(part)
        if redacted_data:
            return {"type": "thinking", "thinking": REDACTED_TEXT, "thinkingSignature": redacted_data, "redacted": True}
        signature_field = _encode_signature_field("thinkingSignature", part.signature)
        return {"type": "thinking", "thinking": part.text} | signature_field
    if isinstance(part, ToolCall):
        call = {"type": "toolCall", "id": part.id, "name": part.name, "arguments": wrap_call_arguments(part.arguments)}
        return call | _encode_signature_field("thoughtSignature", part.signature)
    if isinstance(part, Media):
        if part.kind == "image" and part.form == "base64":
            return {"type": "image", "data": part.source, "mimeType": part.mime}
        return {"type": "text", "text": format_part_placeholder(part)}
    if isinstance(part, Opaque):
        return part.raw
    return None


def _encode_signature_field(field: str, signature: ProviderSignature | None) -> dict[str, str]:
    return {field: signature.data} if signature is not None and signature.data else {}
