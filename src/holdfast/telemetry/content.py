"""What a request and its answer say, in the form of the conventions, for spans whose reader asked for the words.

The forms are the JSON schemas of ``gen_ai.input.messages``, ``gen_ai.output.messages`` and
``gen_ai.system_instructions``. Secrets that are known by their form are masked, long texts are cut, and bytes of images
and documents are never included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.messages.message import Message, format_part_placeholder
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.masking import mask_secrets
from holdfast.telemetry import conventions as names

# Long enough for nearly everything that people and models write; what is longer is mostly a tool's output, and the log
# has all of it. Chosen by judgement.
MAX_TEXT_CHARS = 4_000
"""Characters of one text that are recorded; the rest is cut, and how much is said in its place."""
# The SDK sends up to 512 spans at a time, and a collector refuses what is too large (20 MB by default). Chosen by
# judgement: full spans are rare, since a request rarely says much that is new.
MAX_ATTRIBUTE_CHARS = 32_000
"""Characters of one attribute; the oldest parts that do not fit are left out."""
# Keys of providers have up to some 200 characters.
_MASK_MARGIN_CHARS = 256
"""Characters behind a cut in which a secret is looked for that begins before it."""
_INSTRUCTION_FIELDS = ("system", "systemInstruction", "system_instruction", "instructions")
"""Fields of a request that hold instructions beside its messages, for all APIs."""
_DOCUMENT_KINDS = frozenset({"file", "document"})


class RecordedContent(Struct, frozen=True):
    """What spans of a conversation have recorded already, so that no later one repeats it."""

    digests: frozenset[bytes] = frozenset()
    """Digests of the messages of the request before."""
    instructions: bytes = b""
    """The instructions beside them, as JSON."""


class _SizeLimit:
    """Cuts texts to their limit and takes them from the limit of one attribute."""

    def __init__(self) -> None:
        self.left_chars = MAX_ATTRIBUTE_CHARS
        self.cut_chars = 0
        """Characters that were cut from texts."""

    def cut_text(self, text: str) -> str:
        """Return ``text`` with its secrets masked, cut to ``MAX_TEXT_CHARS``, with what was cut said."""
        beginning = mask_secrets(_replace_surrogates(text[: MAX_TEXT_CHARS + _MASK_MARGIN_CHARS]))
        if len(text) <= MAX_TEXT_CHARS:
            return beginning
        cut_chars = len(text) - MAX_TEXT_CHARS
        self.cut_chars += cut_chars
        return f"{beginning[:MAX_TEXT_CHARS]}… [{cut_chars:,} characters cut]"

    def has_space(self, encoded_part: dict[str, Any]) -> bool:
        """Take ``encoded_part`` from the limit of the attribute; return whether it fits."""
        self.left_chars -= len(msgspec.json.encode(encoded_part).decode())
        return self.left_chars >= 0


# -- attributes --------------------------------------------------------------------------------------------------------


def describe_input(
    messages: Sequence[SizedMessage], fields: Mapping[str, Any], recorded: RecordedContent
) -> tuple[dict[str, str | int], RecordedContent]:
    """Return the attributes of a request, and what is recorded from then on.

    Only those of ``messages`` are described that the request before did not have (``recorded``), and the instructions
    in ``fields`` only if they changed, so that the cost goes with what is new and not with the conversation.
    """
    new_messages = [message.message for message in messages if message.digest not in recorded.digests]
    attributes = _describe_messages(new_messages)
    if len(new_messages) < len(messages):
        attributes[names.REPEATED_MESSAGES] = len(messages) - len(new_messages)
    instructions = _encode_instructions(fields)
    if instructions and instructions != recorded.instructions:
        attributes[names.SYSTEM_INSTRUCTIONS] = _describe_instructions(instructions)
    return attributes, RecordedContent(frozenset([message.digest for message in messages]), instructions)


def describe_output(message: Message, finish_reason: str) -> dict[str, str | int]:
    """Return the attributes of an answer."""
    limit = _SizeLimit()
    parts, omitted_parts = _encode_newest_parts(message.parts, limit)
    # Older backends require the reason here; newer conventions have it in an attribute of its own alone.
    encoded_message = {"role": message.role, "parts": parts, "finish_reason": finish_reason}
    attributes: dict[str, str | int] = {names.OUTPUT_MESSAGES: _encode_json([encoded_message])}
    return attributes | _describe_reduction(limit, omitted_parts, "output")


def _describe_messages(messages: Sequence[Message]) -> dict[str, str | int]:
    """Describe ``messages``, the newest first if not all fit, in their own order."""
    limit = _SizeLimit()
    encoded_messages: list[dict[str, Any]] = []
    omitted_parts = 0
    for message in reversed(messages):
        if limit.left_chars <= 0:
            omitted_parts += len(message.parts)
            continue
        parts, omitted_here = _encode_newest_parts(message.parts, limit)
        omitted_parts += omitted_here
        encoded_messages.append({"role": message.role, "parts": parts})
    attributes: dict[str, str | int] = {names.INPUT_MESSAGES: _encode_json(encoded_messages[::-1])}
    return attributes | _describe_reduction(limit, omitted_parts, "input")


def _describe_reduction(limit: _SizeLimit, omitted_parts: int, direction: str) -> dict[str, str | int]:
    reduction: dict[str, str | int] = {}
    if omitted_parts:
        reduction[f"holdfast.content.{direction}.omitted_parts"] = omitted_parts
    if limit.cut_chars:
        reduction[f"holdfast.content.{direction}.cut_characters"] = limit.cut_chars
    return reduction


def _encode_instructions(fields: Mapping[str, Any]) -> bytes:
    """Return the instructions among the fields of a request as JSON; empty without any."""
    values = [fields[name] for name in _INSTRUCTION_FIELDS if fields.get(name)]
    try:
        return msgspec.json.encode(values) if values else b""
    except (TypeError, ValueError):
        return b""  # whatever is wrong with them is for the provider to say


def _describe_instructions(instructions: bytes) -> str:
    limit = _SizeLimit()
    parts: list[dict[str, Any]] = []
    try:
        values = msgspec.json.decode(instructions)
    except msgspec.DecodeError:
        values = None
    for text in _iter_texts(values):
        part = {"type": "text", "content": limit.cut_text(text)}
        if not limit.has_space(part):
            break
        parts.append(part)
    return _encode_json(parts)


def _iter_texts(value: Any) -> Iterable[str]:
    """Yield the texts of a system prompt: a text, blocks with texts, or an object with such blocks."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for element in value:
            yield from _iter_texts(element)
    elif isinstance(value, dict):
        for key in ("text", "parts", "content"):
            if key in value:
                yield from _iter_texts(value[key])
                break


# -- parts -------------------------------------------------------------------------------------------------------------


def _encode_newest_parts(parts: Sequence[Part], limit: _SizeLimit) -> tuple[list[dict[str, Any]], int]:
    """Return ``parts`` in the form of the conventions and how many of the oldest do not fit."""
    encoded_parts: list[dict[str, Any]] = []
    for part in reversed(parts):
        cut_chars_before = limit.cut_chars
        encoded_part = _encode_part(part, limit)
        if not limit.has_space(encoded_part):
            limit.cut_chars = cut_chars_before
            break
        encoded_parts.append(encoded_part)
    return encoded_parts[::-1], len(parts) - len(encoded_parts)


def _encode_part(part: Part, limit: _SizeLimit) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "content": limit.cut_text(part.text)}
        case Thinking():
            return {"type": "reasoning", "content": limit.cut_text(part.text)}
        case ToolCall():
            call = {"type": "tool_call", "id": limit.cut_text(part.id), "name": limit.cut_text(part.name)}
            return {**call, "arguments": _encode_arguments(part.arguments, limit)}
        case ToolResult():
            response = limit.cut_text(_get_response_text(part))
            return {"type": "tool_call_response", "id": limit.cut_text(part.call_id), "response": response}
        case Media():
            return _encode_media(part, limit)
        case Opaque():
            return {"type": limit.cut_text(part.kind)}


def _get_response_text(result: ToolResult) -> str:
    """Return the texts of a result, with the kind of everything else in its place."""
    texts = [part.text if isinstance(part, Text) else format_part_placeholder(part) for part in result.content]
    return "\n".join(texts)


def _encode_arguments(arguments: str, limit: _SizeLimit) -> Any:
    """Return the arguments of a call as a JSON value; as text if they are too long, or no JSON."""
    text = limit.cut_text(arguments)
    if len(arguments) > MAX_TEXT_CHARS:
        return text
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return _mask_strings(value)


def _mask_strings(value: Any) -> Any:
    """Return a JSON value with its strings masked: inside of JSON a secret may be behind an escaped quote."""
    if isinstance(value, str):
        return mask_secrets(value)
    if isinstance(value, list):
        return [_mask_strings(element) for element in value]
    if isinstance(value, dict):
        return {mask_secrets(key): _mask_strings(element) for key, element in value.items()}
    return value


def _encode_media(media: Media, limit: _SizeLimit) -> dict[str, Any]:
    """Return a reference to an image or a document; of one that is in the request itself only type and size."""
    modality = "document" if media.kind in _DOCUMENT_KINDS else limit.cut_text(media.kind)
    described = {"modality": modality, "mime_type": limit.cut_text(media.mime)}
    if media.form == "url":
        return {"type": "uri", **described, "uri": limit.cut_text(media.source)}
    if media.form == "file":
        return {"type": "file", **described, "file_id": limit.cut_text(media.source)}
    return {"type": "holdfast.media", **described, "byte_size": media.size}


# -- texts -------------------------------------------------------------------------------------------------------------


def _encode_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _replace_surrogates(text: str) -> str:
    """Return ``text`` with a question mark in place of half of a surrogate pair, which no exporter can send."""
    return text.encode("utf-8", "replace").decode()
