"""Anthropic Messages: one wire message to values and back.

What a block says becomes a part; the block's own JSON stays with it as ``raw``, so that ``cache_control``, citations
and fields of tomorrow survive. A document of plain words and what a search found are ``Text``, where such may stand: in
a user's message, and in a result that is no error. Blocks that Holdfast does not interpret are ``Opaque``. A user
message with nothing but tool results has the role ``tool``. A message of an unknown role is one
``Opaque("message", raw)`` in a ``system`` message: it starts no turn, answers no call, and goes out byte for byte. A
system message without content that sets the options of its turn (``output_config``, of pi 1.6) is one
``Opaque("options", raw)``: it goes out byte for byte too, where a system message may stand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.messages import strip_foreign as foreign
from holdfast.messages.message import Message, format_part_placeholder
from holdfast.messages.parts import (
    Media,
    MediaForm,
    Opaque,
    Part,
    ProviderSignature,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from holdfast.providers.anthropic.cache_control import keep_nested_breakpoint
from holdfast.providers.common.block_alignment import align_parts_with_blocks, get_call_identity
from holdfast.providers.common.json.raw_json import (
    JsonBytes,
    count_base64_bytes,
    decode_json,
    decode_json_fields,
    encode_json,
    overlay_fields,
    wrap_call_arguments,
)
from holdfast.providers.common.media import add_document_title, decode_text_document, is_web_media

API_NAME = "anthropic"

__all__ = ["API_NAME", "decode_message", "encode_message"]


# -- the shapes on the wire --------------------------------------------------------------------------------------------


class _WireMessage(Struct, gc=False):
    role: str
    content: str | list[Raw] | None = None
    output_config: Raw = Raw(b"")


class _TextBlock(Struct, gc=False, tag_field="type", tag="text"):
    text: str


class _ThinkingBlock(Struct, gc=False, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""


class _RedactedThinkingBlock(Struct, gc=False, tag_field="type", tag="redacted_thinking"):
    data: str


class _CallerRef(Struct, gc=False):
    tool_id: str = ""


class _ToolUseBlock(Struct, gc=False, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Raw = Raw(b"{}")
    caller: _CallerRef | None = None


class _ToolResultBlock(Struct, gc=False, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[Raw] | None = None
    is_error: bool | None = None


class _InnerBlock(Struct, gc=False):
    type: str = ""
    text: str = ""


class _MediaSource(Struct, gc=False):
    type: str = ""
    media_type: str = ""
    data: str = ""
    url: str = ""
    file_id: str = ""
    content: str | list[_InnerBlock] = ""


class _ImageBlock(Struct, gc=False, tag_field="type", tag="image"):
    source: _MediaSource


class _DocumentBlock(Struct, gc=False, tag_field="type", tag="document"):
    source: _MediaSource
    title: str | None = None
    context: str | None = None


class _SearchResultBlock(Struct, gc=False, tag_field="type", tag="search_result"):
    """What a search found."""


class _BlockType(Struct, gc=False):
    type: str = "unknown"
    id: Any = ""
    tool_use_id: Any = ""


_WHOLE_MESSAGE_KINDS = frozenset({"message", "options"})
"""Kinds of opaque parts whose bytes are a message, and no block of one."""
_MESSAGE_DECODER = Decoder(_WireMessage)
_BLOCK_DECODER = Decoder(
    _TextBlock
    | _ThinkingBlock
    | _RedactedThinkingBlock
    | _ToolUseBlock
    | _ToolResultBlock
    | _ImageBlock
    | _DocumentBlock
    | _SearchResultBlock
)
_RESULT_BLOCK_DECODER = Decoder(_TextBlock | _ImageBlock | _DocumentBlock | _SearchResultBlock)
_BLOCK_TYPE_DECODER = Decoder(_BlockType)
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading one block may raise: another shape, text that is no UTF-8, too deep."""


# -- from the wire -----------------------------------------------------------------------------------------------------


def decode_message(raw: JsonBytes) -> Message:
    """Return one wire message as values; its blocks keep their bytes.

    Raises ``FormatError`` when ``raw`` is no JSON object with a ``role`` and a ``content`` of text or blocks.
    """
    wire = decode_json(_MESSAGE_DECODER, raw, "the message")
    role, content = wire.role, wire.content
    if role not in ("user", "assistant", "system"):
        return Message("system", (Opaque("message", raw if isinstance(raw, Raw) else Raw(raw)),))
    if role == "system" and not content and bytes(wire.output_config) not in (b"", b"null"):
        return Message("system", (Opaque("options", raw if isinstance(raw, Raw) else Raw(raw)),))
    if content is None or isinstance(content, str):
        return Message(role, () if content is None else (Text(content),))  # type: ignore[arg-type]
    parts = tuple(map(_decode_block if role == "user" else _decode_non_user_block, content))
    if role == "user" and {*map(type, parts)} == {ToolResult}:
        return Message("tool", parts)
    return Message(role, parts)  # type: ignore[arg-type]


def _decode_block(raw: Raw) -> Part:
    """Return one block as a part."""
    return _decode_block_with(_BLOCK_DECODER, raw, _BLOCK_READERS)


def _decode_non_user_block(raw: Raw) -> Part:
    """Return one block as a part, where only text blocks may say words."""
    return _decode_block_with(_BLOCK_DECODER, raw, _STRICT_BLOCK_READERS)


def _decode_block_with(decoder: Decoder[Any], raw: Raw, readers: Mapping[type, Callable[[Any, Raw], Part]]) -> Part:
    try:
        block = decoder.decode(raw)
        return readers[type(block)](block, raw)
    except _DECODE_ERRORS:
        return _build_opaque(raw)


def _build_opaque(raw: Raw) -> Opaque:
    """Return a block that is kept as it came; what a server's tool was asked and gave back is sealed with its id."""
    try:
        block = _BLOCK_TYPE_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return Opaque("unknown", raw)
    ids = {"_tool_use": block.id, "_tool_result": block.tool_use_id}
    id_ = next((id_ for end, id_ in ids.items() if block.type.endswith(end)), "")
    return Opaque(block.type, raw, _build_signature(id_ if isinstance(id_, str) else ""))


def _build_signature(data: str) -> ProviderSignature | None:
    """Return the seal of a block: a signature, or the id of another block that it belongs to."""
    return ProviderSignature(API_NAME, "", data) if data else None


def _read_tool_result(block: _ToolResultBlock, raw: Raw) -> ToolResult:
    content = block.content
    inner: tuple[Text | Media | Opaque, ...] = ()
    if isinstance(content, str):
        inner = (Text(content),)
    elif content:
        readers = _STRICT_BLOCK_READERS if block.is_error else _BLOCK_READERS
        inner = tuple([_decode_block_with(_RESULT_BLOCK_DECODER, raw_block, readers) for raw_block in content])  # type: ignore[misc]
    return ToolResult(block.tool_use_id, "", inner, bool(block.is_error), raw)


def _read_document(block: _DocumentBlock, raw: Raw) -> Text | Media:
    """Return a document of nothing but words as these, under its title and what is told about it."""
    source = block.source
    blocks = source.content if source.type == "content" and isinstance(source.content, list) else []
    if source.type not in ("text", "content") or any(block.type != "text" for block in blocks):
        return _read_media(block, raw)
    words = source.data if source.type == "text" else _join_document_text(source.content)
    above = [block.context] if block.context else []
    return (
        Text(add_document_title(block.title or "", "\n".join([*above, words])), None, raw)
        if words.strip()
        else _read_media(block, raw)
    )


def _read_search_result(_block: _SearchResultBlock, raw: Raw) -> Text | Opaque:
    """Return the words of what a search found; without any it is not interpreted."""
    opaque = _build_opaque(raw)
    words = foreign.get_opaque_text(opaque)
    return Text(words, None, raw) if words else opaque


def _read_media(block: _ImageBlock | _DocumentBlock, raw: Raw) -> Media:
    source = block.source
    kind, name = ("document", block.title or "") if type(block) is _DocumentBlock else ("image", "")
    if source.type == "base64":
        return Media(kind, source.media_type, count_base64_bytes(source.data), name, source.data, raw, "base64")
    if source.type == "text" or (source.type == "content" and source.content):
        words = source.data if source.type == "text" else _join_document_text(source.content)
        return Media(kind, "text/plain", len(words), name, words, raw, "text")
    form: MediaForm = "url" if source.type == "url" else "file"
    return Media(kind, source.media_type, 0, name, source.url or source.file_id, raw, form)


def _join_document_text(content: str | list[_InnerBlock]) -> str:
    """Return the words of a document's blocks, and a line for each that has none."""
    if isinstance(content, str):
        return content
    return "\n".join([block.text if block.type == "text" else f"[Attached {block.type}]" for block in content])


_BLOCK_READERS: dict[type, Callable[[Any, Raw], Part]] = {
    _TextBlock: lambda block, raw: Text(block.text, None, raw),
    _ThinkingBlock: lambda block, raw: Thinking(block.thinking, _build_signature(block.signature), raw),
    _RedactedThinkingBlock: lambda block, raw: Thinking("", _build_signature(block.data), raw),
    _ToolUseBlock: lambda block, raw: ToolCall(
        block.id,
        block.name,
        bytes(block.input).decode(),
        _build_signature(block.caller.tool_id if block.caller else ""),
        raw,
    ),
    _ToolResultBlock: _read_tool_result,
    _ImageBlock: _read_media,
    _DocumentBlock: _read_document,
    _SearchResultBlock: _read_search_result,
}
_STRICT_BLOCK_READERS = _BLOCK_READERS | {
    _DocumentBlock: _read_media,
    _SearchResultBlock: lambda _, raw: _build_opaque(raw),
}


# -- to the wire -------------------------------------------------------------------------------------------------------


def encode_message(message: Message, base: Raw | None = None) -> list[bytes]:
    """Return ``message`` as one wire message, or none when nothing in it can be sent.

    A part with ``raw`` goes out as those bytes. A part without is written anew; of the block that stood in its place
    in ``base`` it keeps the fields that it does not say itself (``cache_control``). Other fields of ``base`` stay.
    Thinking without a seal of this API cannot be sent and is left out.
    """
    if len(message.parts) == 1 and type(message.parts[0]) is Opaque and message.parts[0].kind in _WHOLE_MESSAGE_KINDS:
        return [bytes(message.parts[0].raw)] if message.parts[0].raw is not None else []
    role = "user" if message.role == "tool" else message.role
    stood = None if base is None else decode_json(_MESSAGE_DECODER, base, "the base message")
    content = _encode_content(message.parts, None if stood is None else stood.content)
    if message.parts and not content and not isinstance(content, str):
        return []
    role_base = base if stood is not None and stood.role == role else None  # fields of a role are no other role's
    return [encode_json(overlay_fields(role_base, {"role": role, "content": content}))]


def _encode_content(parts: Sequence[Part], old: str | list[Raw] | None) -> str | list[Raw]:
    """Return the ``content`` of a message: a string where one plain text stands alone, else blocks."""
    if len(parts) == 1 and type(parts[0]) is Text and parts[0].raw is None and not isinstance(old, list):
        return parts[0].text
    stand = align_parts_with_blocks(parts, old, partial(map, _decode_block)) if isinstance(old, list) else {}
    blocks = (_encode_block(part, stand.get(index)) for index, part in enumerate(parts))
    return [block for block in blocks if block is not None]


_CONTENT_FIELDS = frozenset({"citations", "content", "is_error", "source", "title", "context"})
"""Fields that belong to what a block said; they go when it says something else."""


def _encode_block(part: Part, old_block: Raw | None = None) -> Raw | None:
    """Return one part as a block, or nothing when this API has no form for it."""
    if part.raw is not None:
        return part.raw
    new = _build_block(part)
    if new is None or old_block is None:
        return None if new is None else Raw(encode_json(new))
    if decode_json_fields(old_block).get("type") == Raw(encode_json(new["type"])) and get_call_identity(
        _decode_block(old_block)
    ) == get_call_identity(part):
        dropped_keys = (
            _CONTENT_FIELDS | {"caller"} if type(part) is ToolCall and part.signature is None else _CONTENT_FIELDS
        )
        return Raw(
            encode_json(
                _drop_invalid_breakpoint(
                    keep_nested_breakpoint(overlay_fields(old_block, new, dropped_keys), old_block)
                )
            )
        )
    breakpoint_fields = {key: value for key, value in decode_json_fields(old_block).items() if key == "cache_control"}
    return Raw(encode_json(_drop_invalid_breakpoint(new | breakpoint_fields)))


def _drop_invalid_breakpoint(block: dict[str, Any]) -> dict[str, Any]:
    """Return ``block`` without a cache breakpoint where none may stand: on thinking and on empty text."""
    text = block.get("text")
    if block.get("type") == "thinking" or (isinstance(text, str) and not text.strip()):
        block.pop("cache_control", None)
    return block


def _build_block(part: Part) -> dict[str, Any] | None:
    """Return the fields of a block that says what ``part`` says."""
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, ToolCall):
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": wrap_call_arguments(part.arguments)}
    if isinstance(part, ToolResult):
        return _build_tool_result(part)
    if isinstance(part, Media):
        return _build_media_block(part) or {"type": "text", "text": format_part_placeholder(part)}
    if (
        isinstance(part, Thinking)
        and part.signature is not None
        and part.signature.api == API_NAME
        and part.signature.data
    ):
        return {"type": "thinking", "thinking": part.text, "signature": part.signature.data}
    return None


def _build_tool_result(part: ToolResult) -> dict[str, Any]:
    content = part.content
    new_content: str | list[Raw | None] = [
        _encode_block(inner) for inner in content if inner.raw or type(inner) is not Opaque
    ]
    if not content or (len(content) == 1 and type(content[0]) is Text and content[0].raw is None):
        new_content = content[0].text if content and type(content[0]) is Text else ""
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": part.call_id, "content": new_content}
    return block | {"is_error": True} if part.is_error else block


def _build_media_block(part: Media) -> dict[str, Any] | None:
    """Return a block that shows ``part``, or nothing where the Messages API has no form for it."""
    source = _build_media_source(part) if part.kind in ("image", "document") else None
    title_fields = {"title": part.name} if part.name and part.kind == "document" else {}
    return None if source is None else {"type": part.kind, "source": source} | title_fields


def _build_media_source(part: Media) -> dict[str, str] | None:
    words = decode_text_document(part)
    if words is not None:
        return {"type": "text", "media_type": "text/plain", "data": words} if words else None
    if part.form == "base64":
        return {"type": "base64", "media_type": part.mime, "data": part.source} if part.source else None
    if part.form == "file":
        return {"type": "file", "file_id": part.source} if part.source else None
    is_url_kind = part.kind == "image" or part.mime in ("", "application/pdf")
    return {"type": "url", "url": part.source} if is_url_kind and is_web_media(part) else None
