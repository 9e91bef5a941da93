"""Messages of goose, decoded into values."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.formats.common.lines import LenientDecoder
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.common.json.raw_json import count_base64_bytes, encode_json

API_OF_PROVIDER = {"anthropic": "anthropic", "google": "gemini"}
"""The API of each provider, by goose's name, that has only one."""
SILENT_TYPES = frozenset(
    {"actionRequired", "toolConfirmationRequest", "systemNotification"}
    | {"contextLengthExceeded", "summarizationRequested", "conversationCompacted"}
)
"""Types of content that goose shows or waits for, and never sends to a model."""
INVALID_CALL = "invalid_call"
"""Name of a call that goose could not read; its arguments hold the error that the model got."""


class _Annotations(Struct):
    audience: list[str] | None = None


class GooseContent(Struct, rename="camel"):
    """One element of a message's content, or of a result's; which fields are present depends on the type."""

    type: str = ""
    id: str = ""
    text: str | None = None
    data: str | None = None
    mime_type: str | None = None
    thinking: str | None = None
    signature: str | None = None
    tool_call: Raw = Raw()
    tool_result: Raw = Raw()
    resource: Raw = Raw()
    annotations: _Annotations | None = None


class _Outcome(Struct):
    """What was read of a call or came of one: a value or an error."""

    status: str = ""
    value: Raw = Raw()
    error: Raw = Raw()


class _Call(Struct):
    name: str = ""
    arguments: Raw = Raw(b"{}")


class _Output(Struct, rename="camel"):
    content: list[Raw] | None = None
    is_error: bool | None = None
    structured_content: Raw = Raw()


class _Resource(Struct, rename="camel"):
    uri: str = ""
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None


_CONTENT = LenientDecoder(GooseContent)
_OUTCOME = LenientDecoder(_Outcome)
_CALL = LenientDecoder(_Call)
_OUTPUT = LenientDecoder(_Output)
_RESOURCE = LenientDecoder(_Resource)
_LIST: Decoder[list[Raw]] = Decoder(list[Raw])


def decode_goose_content(raw: bytes | Raw) -> list[tuple[GooseContent, Raw]]:
    """Return the elements of a message's content with their JSON; raises one of ``DECODE_ERRORS`` if it is no list."""
    return [(_CONTENT.decode_or_default(element), element) for element in _LIST.decode(raw)]


def decode_goose_messages(
    role: str,
    content: Sequence[tuple[GooseContent, Raw]],
    names: dict[str, str],
    signer: tuple[str, str],
) -> list[Message]:
    """Return what a model was sent of a message: results of tools first, then everything else.

    ``names`` holds the names of the tools by call and gets those of new calls. ``signer`` is the API and the model of
    thinking. Content for the user alone is left out, so the list may be empty.
    """
    parts: list[Part] = []
    results: list[ToolResult] = []
    for item, raw in content:
        if item.type in SILENT_TYPES or not is_for_model(item):
            continue
        if item.type == "toolResponse":
            results.append(_decode_result(item, names))
        else:
            part = _decode_part(item, raw, signer)
            if isinstance(part, ToolCall):
                names[part.id] = part.name
            parts.append(part)
    messages = []
    if results:
        messages.append(Message("tool", tuple(results)))
    if parts:
        messages.append(Message("assistant" if role == "assistant" else "user", tuple(parts)))
    return messages


def is_for_model(item: GooseContent) -> bool:
    """Return whether the model is among those that an element is for; without a list it is for everybody."""
    audience = item.annotations.audience if item.annotations is not None else None
    return audience is None or "assistant" in audience


def _decode_part(item: GooseContent, raw: Raw, signer: tuple[str, str]) -> Part:
    if item.type in ("toolRequest", "frontendToolRequest"):
        return _decode_call(item)
    if item.type == "thinking":
        signature = ProviderSignature(*signer, item.signature) if item.signature else None
        return Thinking(item.thinking or "", signature)
    if item.type == "reasoning" and item.text is not None:
        return Thinking(item.text)
    return _decode_block(item, raw)


def _decode_block(item: GooseContent, raw: Raw) -> Text | Media | Opaque:
    """Return a text, an image, or the text or file of a resource; what is unknown is kept as it is."""
    if item.type == "text" and item.text is not None:
        return Text(item.text)
    if item.type in ("image", "audio") and item.data:
        return Media(item.type, item.mime_type or "", count_base64_bytes(item.data), "", item.data)
    if item.type == "resource":
        resource = _RESOURCE.decode_or_default(item.resource)
        if resource.text is not None:
            return Text(resource.text)
        if resource.blob:
            size = count_base64_bytes(resource.blob)
            return Media("document", resource.mime_type or "", size, resource.uri, resource.blob)
    return Opaque(item.type or "content without a type", raw)


def _decode_call(item: GooseContent) -> ToolCall:
    outcome = _OUTCOME.decode_or_default(item.tool_call)
    if outcome.status == "error":
        return ToolCall(item.id, INVALID_CALL, encode_json({"error": _decode_error(outcome)}).decode())
    call = _CALL.decode_or_default(outcome.value or item.tool_call)
    arguments = bytes(call.arguments)
    if arguments == b"null":
        arguments = b"{}"
    return ToolCall(item.id, call.name, arguments.decode("utf-8", "replace"))


def _decode_result(item: GooseContent, names: dict[str, str]) -> ToolResult:
    """Return the result of a call, of which only the parts for the model count."""
    name = names.get(item.id, "")
    outcome = _OUTCOME.decode_or_default(item.tool_result)
    if outcome.status == "error":
        return ToolResult(item.id, name, (Text(_decode_error(outcome)),), is_error=True)
    value = outcome.value or item.tool_result
    # Until 2025 the value was the list of blocks itself.
    is_list = bytes(value).startswith(b"[")
    output = _Output(content=_LIST.decode(value)) if is_list else _OUTPUT.decode_or_default(value)
    content: list[Text | Media | Opaque] = []
    for raw in output.content or ():
        block = _CONTENT.decode_or_default(raw)
        if is_for_model(block):
            content.append(_decode_block(block, raw))
    if not output.content and output.structured_content:
        content.append(Text(bytes(output.structured_content).decode("utf-8", "replace")))
    return ToolResult(item.id, name, tuple(content), bool(output.is_error))


def _decode_error(outcome: _Outcome) -> str:
    try:
        return msgspec.json.decode(outcome.error, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return bytes(outcome.error).decode("utf-8", "replace")
