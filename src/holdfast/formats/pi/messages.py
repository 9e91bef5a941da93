"""One message of a pi or OpenClaw session, to values and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.errors import FormatError
from holdfast.formats.common.lines import UNREADABLE, Shape
from holdfast.formats.common.writing import redacted
from holdfast.messages.message import Message, Role, placeholder
from holdfast.messages.parts import Media, Opaque, Part, Seal, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.common.json.raw_json import as_object, decoded_size
from holdfast.state.entries import Usage

API = "pi"
APIS = {
    "anthropic-messages": "anthropic",
    "openai-completions": "openai-chat",
    "openai-responses": "openai-responses",
    "openai-codex-responses": "openai-responses",
    "azure-openai-responses": "openai-responses",
    "google-generative-ai": "gemini",
    "google-vertex": "gemini",
}
"""pi's names of the APIs, and ours."""
REDACTED = "[Reasoning redacted]"
"""[M] pi's words for thinking that nobody is shown."""


class PiMessage(Struct, rename="camel"):
    """The fields of a message; which are there depends on the role."""

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


class _Text(Struct, tag_field="type", tag="text", rename="camel"):
    text: str
    text_signature: str | None = None


class _Thinking(Struct, tag_field="type", tag="thinking", rename="camel"):
    thinking: str
    thinking_signature: str | None = None
    redacted: bool = False
    """The signature is none then, but what stands for thinking that nobody is shown."""


class _Image(Struct, tag_field="type", tag="image", rename="camel"):
    data: str
    mime_type: str = ""


class _Call(Struct, tag_field="type", tag="toolCall", rename="camel"):
    id: str
    name: str
    arguments: Raw = Raw(b"{}")
    thought_signature: str | None = None


class _Kind(Struct):
    type: str = "unknown"


class _Tokens(Struct, rename="camel"):
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total_tokens: int = 0


MESSAGE = Shape(PiMessage)
_TOKENS = Shape(_Tokens)
_CONTENT: Decoder[str | list[Raw] | None] = Decoder(str | list[Raw] | None)
_PART = Decoder(_Text | _Thinking | _Image | _Call)
_KIND = Shape(_Kind)


def decode_message(raw: Raw | bytes) -> Message:
    """Return the ``message`` of a line as values; ``FormatError`` for an unknown role or a broken content."""
    try:
        return message_of(MESSAGE.fit(raw))
    except UNREADABLE as error:
        raise FormatError(f"the message cannot be read: {error}") from None


def message_of(found: PiMessage) -> Message:
    """Return a message that was read already."""
    if found.role == "assistant":
        return Message("assistant", _parts(found))
    if found.role == "toolResult":
        inner = tuple([part for part in _parts(found) if isinstance(part, Text | Media | Opaque)])
        return Message("tool", (ToolResult(found.tool_call_id, found.tool_name, inner, found.is_error),))
    if found.role == "bashExecution":
        return Message.of("user", bash_text(found))
    if found.role in ("branchSummary", "compactionSummary"):
        return Message.of("user", found.summary)
    role = _ROLES.get(found.role)
    if role is None:
        known = "user, assistant, toolResult, bashExecution, custom, system"
        raise FormatError(f"the message has the role {found.role!r}; known are {known}")
    return Message(role, _parts(found))


_ROLES: dict[str, Role] = {"user": "user", "custom": "user", "hookMessage": "user", "system": "system"}


def bash_text(found: PiMessage) -> str:
    """Return a command that the user ran, with its output, as the words the model sees."""
    said = f"Ran `{found.command}`\n" + (f"```\n{found.output}\n```" if found.output else "(no output)")
    if found.cancelled:
        said += "\n\n(command cancelled)"
    elif found.exit_code:
        said += f"\n\nCommand exited with code {found.exit_code}"
    if found.truncated and found.full_output_path:
        said += f"\n\n[Output truncated. Full output: {found.full_output_path}]"
    return said


def content_parts(content: Raw, api: str = "", model: str = "") -> tuple[Part, ...]:
    """Return a ``content`` (text or a list) as parts, sealed for ``api`` and ``model``."""
    found = _CONTENT.decode(content)
    if found is None or isinstance(found, str):
        return () if found is None else (Text(found),)
    return tuple([_part(raw, api, model) for raw in found])


def _parts(found: PiMessage) -> tuple[Part, ...]:
    return content_parts(found.content, APIS.get(found.api, found.api), found.model)


def _part(raw: Raw, api: str, model: str) -> Part:
    try:
        part = _PART.decode(raw)
    except msgspec.ValidationError:
        return Opaque(_KIND.of(raw).type, raw)
    if isinstance(part, _Image):
        return Media("image", part.mime_type, decoded_size(part.data), "", part.data)
    if isinstance(part, _Text):
        return Text(part.text, _seal(api, model, part.text_signature))
    if isinstance(part, _Thinking):
        return Thinking(part.thinking, None if part.redacted else _seal(api, model, part.thinking_signature))
    seal = _seal(api, model, part.thought_signature)
    return ToolCall(part.id, part.name, bytes(part.arguments).decode(), seal)


def _seal(api: str, model: str, data: str | None) -> Seal | None:
    return Seal(api, model, data) if data else None


def usage_of(found: PiMessage) -> Usage | None:
    """Return the usage of an answer, if one is recorded; ``input`` is the whole prompt."""
    tokens = _TOKENS.of(found.usage)
    if tokens == _Tokens():
        return None
    read, written = tokens.cache_read, tokens.cache_write
    prompt, total = tokens.input + read + written, tokens.total_tokens
    return Usage(prompt, tokens.output, read, written, told=0 if total == prompt + tokens.output else total)


# -- to pi -------------------------------------------------------------------------------------------------------------


def encode_message(message: Message) -> list[dict[str, Any]]:
    """Return ``message`` as pi messages, without times and usage: one for each tool result, then one for the rest."""
    out: list[dict[str, Any]] = [
        {
            "role": "toolResult",
            "toolCallId": result.call_id,
            "toolName": result.name,
            "content": _written(result.content),
            "isError": result.is_error,
        }
        for result in message.results
    ]
    rest = [part for part in message.parts if not isinstance(part, ToolResult)]
    if rest or not out:
        role = "assistant" if message.role == "assistant" else "system" if message.role == "system" else "user"
        out.append({"role": role, "content": _written(rest)})
    return out


def _written(parts: Sequence[Part]) -> list[object]:
    return [block for block in map(_block, parts) if block is not None]


def _block(part: Part) -> object:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text} | _signed("textSignature", part.seal)
    if isinstance(part, Thinking) and (data := redacted(part)):
        return {"type": "thinking", "thinking": REDACTED, "thinkingSignature": data, "redacted": True}
    if isinstance(part, Thinking):
        return {"type": "thinking", "thinking": part.text} | _signed("thinkingSignature", part.seal)
    if isinstance(part, ToolCall):
        call = {"type": "toolCall", "id": part.id, "name": part.name, "arguments": as_object(part.arguments)}
        return call | _signed("thoughtSignature", part.seal)
    if isinstance(part, Media) and part.kind == "image" and part.form == "base64":
        return {"type": "image", "data": part.source, "mimeType": part.mime}
    if isinstance(part, Opaque):
        return part.raw
    return {"type": "text", "text": placeholder(part)} if isinstance(part, Media) else None


def _signed(field: str, seal: Seal | None) -> dict[str, str]:
    return {field: seal.data} if seal is not None and seal.data else {}
