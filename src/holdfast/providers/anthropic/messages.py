"""Anthropic Messages: decode one wire message into a value, and encode it back.

Each block becomes a part that keeps the block's own JSON as ``raw``, so that ``cache_control``, citations and fields
that do not exist yet survive. Plain-text documents and search results become ``Text`` where they are allowed: in a
user's message, and in a result that is not an error. Blocks that Holdfast does not interpret become ``Opaque``. A user
message of nothing but tool results has the role ``tool``.

A message of an unknown role becomes one ``Opaque("message", raw)`` in a ``system`` message: it starts no turn, answers
no call, and is sent byte for byte. A system message without content that sets options for its turn (``output_config``,
as pi 1.6 writes it) becomes one ``Opaque("options", raw)`` and is sent byte for byte too, where a system message is
allowed.
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
    """A search result; its text is read by ``get_opaque_text``."""


class _BlockType(Struct, gc=False):
    type: str = "unknown"
    id: Any = ""
    tool_use_id: Any = ""


_WHOLE_MESSAGE_KINDS = frozenset({"message", "options"})
"""Kinds of opaque parts with a whole message as their bytes, not one block of it."""
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
"""Errors from decoding one block: another shape, invalid UTF-8, nested too deeply."""


# -- from the wire -----------------------------------------------------------------------------------------------------


def decode_message(raw: JsonBytes) -> Message:
    """Decode one wire message; its parts keep the bytes of their blocks.

    Raises ``FormatError`` if ``raw`` is not a JSON object with a ``role`` and a ``content`` of text or blocks.
    """
    wire = decode_json(_MESSAGE_DECODER, raw, "the message")
    role, content = wire.role, wire.content
    if role not in ("user", "assistant", "system"):
        return _build_opaque_message("message", raw)
    sets_options = bytes(wire.output_config) not in (b"", b"null")
    if role == "system" and not content and sets_options:
        return _build_opaque_message("options", raw)
    if content is None:
        return Message(role, ())  # type: ignore[arg-type]
    if isinstance(content, str):
        return Message(role, (Text(content),))  # type: ignore[arg-type]
    decode_block = _decode_block if role == "user" else _decode_non_user_block
    parts = tuple(map(decode_block, content))
    if role == "user" and parts and all(type(part) is ToolResult for part in parts):
        return Message("tool", parts)
    return Message(role, parts)  # type: ignore[arg-type]


def _decode_block(raw: Raw) -> Part:
    """Decode a block of a user's message."""
    return _decode_block_with(_BLOCK_DECODER, raw, _BLOCK_READERS)


def _decode_non_user_block(raw: Raw) -> Part:
    """Decode a block of another role's message, where documents and search results are invalid and stay as they are."""
    return _decode_block_with(_BLOCK_DECODER, raw, _STRICT_BLOCK_READERS)


def _decode_block_with(decoder: Decoder[Any], raw: Raw, readers: Mapping[type, Callable[[Any, Raw], Part]]) -> Part:
    try:
        block = decoder.decode(raw)
        return readers[type(block)](block, raw)
    except _DECODE_ERRORS:
        return _build_opaque(raw)


def _build_opaque(raw: Raw) -> Opaque:
    """Keep a block uninterpreted. Calls and results of server tools are signed with the id that pairs them."""
    try:
        block = _BLOCK_TYPE_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return Opaque("unknown", raw)
    # A call and its result must both be sent or both be dropped, so pairing has to know them.
    pairing_id: Any = ""
    if block.type.endswith("_tool_use"):
        pairing_id = block.id
    elif block.type.endswith("_tool_result"):
        pairing_id = block.tool_use_id
    return Opaque(block.type, raw, _build_signature(pairing_id if isinstance(pairing_id, str) else ""))


def _build_signature(data: str) -> ProviderSignature | None:
    """Sign a part with a thinking signature, or with the id of another block that it belongs to."""
    return ProviderSignature(API_NAME, "", data) if data else None


def _read_tool_result(block: _ToolResultBlock, raw: Raw) -> ToolResult:
    content = block.content
    inner: tuple[Text | Media | Opaque, ...] = ()
    if isinstance(content, str):
        inner = (Text(content),)
    elif content:
        # An error result may hold nothing but text. A document in one stays media, so that the repair can move it out.
        readers = _STRICT_BLOCK_READERS if block.is_error else _BLOCK_READERS
        inner = tuple([_decode_block_with(_RESULT_BLOCK_DECODER, raw_block, readers) for raw_block in content])  # type: ignore[misc]
    return ToolResult(block.tool_use_id, "", inner, bool(block.is_error), raw)


def _read_document(block: _DocumentBlock, raw: Raw) -> Text | Media:
    """Read a plain-text document as text under its title and context, any other as media."""
    source = block.source
    if source.type == "text":
        words = source.data
    elif source.type == "content" and _holds_only_text(source.content):
        words = _join_document_text(source.content)
    else:
        return _read_media(block, raw)
    if not words.strip():
        return _read_media(block, raw)
    body = f"{block.context}\n{words}" if block.context else words
    return Text(add_document_title(block.title or "", body), None, raw)


def _holds_only_text(content: str | list[_InnerBlock]) -> bool:
    return isinstance(content, str) or all(inner.type == "text" for inner in content)


def _read_search_result(_block: _SearchResultBlock, raw: Raw) -> Text | Opaque:
    """Read a search result as its text; keep one without text uninterpreted."""
    opaque = _build_opaque(raw)
    words = foreign.get_opaque_text(opaque)
    return Text(words, None, raw) if words else opaque


def _build_opaque_message(kind: str, raw: JsonBytes) -> Message:
    return Message("system", (Opaque(kind, raw if isinstance(raw, Raw) else Raw(raw)),))


def _read_media(block: _ImageBlock | _DocumentBlock, raw: Raw) -> Media:
    source = block.source
    kind = "image"
    name = ""
    if type(block) is _DocumentBlock:
        kind = "document"
        name = block.title or ""
    if source.type == "base64":
        size = count_base64_bytes(source.data)
        return Media(kind, source.media_type, size, name, source.data, raw, "base64")
    words = None
    if source.type == "text":
        words = source.data
    elif source.type == "content" and source.content:
        words = _join_document_text(source.content)
    if words is not None:
        return Media(kind, "text/plain", len(words), name, words, raw, "text")
    form: MediaForm = "url" if source.type == "url" else "file"
    return Media(
        kind,
        source.media_type,
        0,
        name,
        source.url or source.file_id,
        raw,
        form,
    )


def _join_document_text(content: str | list[_InnerBlock]) -> str:
    """Join the texts of a document's blocks, with a placeholder line for each other block."""
    if isinstance(content, str):
        return content
    lines: list[str] = []
    for block in content:
        if block.type == "text":
            lines.append(block.text)
        else:
            lines.append(f"[Attached {block.type}]")
    return "\n".join(lines)


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
    """Encode ``message`` as one wire message, or none if nothing in it can be sent.

    A part with ``raw`` is sent as those bytes. One without is written anew, and keeps the fields of the block it
    replaces in ``base`` that do not describe content (``cache_control``). Other fields of ``base`` stay. Thinking that
    this API did not sign cannot be sent and is left out.
    """
    if len(message.parts) == 1:
        part = message.parts[0]
        if type(part) is Opaque and part.kind in _WHOLE_MESSAGE_KINDS:
            return [] if part.raw is None else [bytes(part.raw)]
    role = "user" if message.role == "tool" else message.role
    if base is None:
        old_message = None
    else:
        old_message = decode_json(_MESSAGE_DECODER, base, "the base message")
    content = _encode_content(message.parts, None if old_message is None else old_message.content)
    if message.parts and content == []:
        return []
    # A message that changed its role gets none of the old fields: ``output_config`` is only valid on system messages.
    has_same_role = old_message is not None and old_message.role == role
    return [encode_json(overlay_fields(base if has_same_role else None, {"role": role, "content": content}))]


def _encode_content(parts: Sequence[Part], old: str | list[Raw] | None) -> str | list[Raw]:
    """Encode ``content``: a string for one plain text that replaces no list, else a list of blocks."""
    if len(parts) == 1 and not isinstance(old, list):
        part = parts[0]
        if type(part) is Text and part.raw is None:
            return part.text
    old_blocks: dict[int, Raw] = {}
    if isinstance(old, list):
        old_blocks = align_parts_with_blocks(parts, old, partial(map, _decode_block))
    blocks = []
    for index, part in enumerate(parts):
        block = _encode_block(part, old_blocks.get(index))
        if block is not None:
            blocks.append(block)
    return blocks


_CONTENT_FIELDS = frozenset({"citations", "content", "is_error", "source", "title", "context"})
"""Fields that describe the old content of a block; they are dropped when the content changes."""


def _encode_block(part: Part, old_block: Raw | None = None) -> Raw | None:
    """Encode one part as a block over the block it replaces, or return None if this API has no form for it."""
    if part.raw is not None:
        return part.raw
    new = _build_block(part)
    if new is None:
        return None
    if old_block is None:
        return Raw(encode_json(new))
    old_fields = decode_json_fields(old_block)
    has_same_type = old_fields.get("type") == Raw(encode_json(new["type"]))
    if has_same_type and get_call_identity(_decode_block(old_block)) == get_call_identity(part):
        dropped_fields = _CONTENT_FIELDS
        if type(part) is ToolCall and part.signature is None:
            dropped_fields |= {"caller"}  # names a server tool call, which this call no longer belongs to
        block = overlay_fields(old_block, new, dropped_fields)
        block = keep_nested_breakpoint(block, old_block)
    else:
        # Another block took this place. Only the breakpoint stays, so that the cached prefix ends where the client
        # meant it to.
        block = new
        if "cache_control" in old_fields:
            block["cache_control"] = old_fields["cache_control"]
    return Raw(encode_json(_drop_invalid_breakpoint(block)))


def _drop_invalid_breakpoint(block: dict[str, Any]) -> dict[str, Any]:
    """Remove the cache breakpoint from thinking and empty text, where the API refuses it."""
    text = block.get("text")
    is_blank_text = isinstance(text, str) and not text.strip()
    if block.get("type") == "thinking" or is_blank_text:
        block.pop("cache_control", None)
    return block


def _build_block(part: Part) -> dict[str, Any] | None:
    """Return the fields of a new block for ``part``, or None if this API has no form for it."""
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, ToolCall):
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": wrap_call_arguments(part.arguments)}
    if isinstance(part, ToolResult):
        return _build_tool_result(part)
    if isinstance(part, Media):
        return _build_media_block(part) or {"type": "text", "text": format_part_placeholder(part)}
    if isinstance(part, Thinking):
        signature = part.signature
        if signature is not None and signature.api == API_NAME and signature.data:
            return {"type": "thinking", "thinking": part.text, "signature": signature.data}
    return None


def _build_tool_result(part: ToolResult) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": part.call_id}
    block["content"] = _encode_result_content(part.content)
    if part.is_error:
        block["is_error"] = True
    return block


def _encode_result_content(content: Sequence[Text | Media | Opaque]) -> str | list[Raw | None]:
    if not content:
        return ""
    first = content[0]
    if len(content) == 1 and type(first) is Text and first.raw is None:
        return first.text
    # An opaque part without bytes has nothing to send.
    sendable = [part for part in content if part.raw or type(part) is not Opaque]
    return [_encode_block(part) for part in sendable]


def _build_media_block(part: Media) -> dict[str, Any] | None:
    """Return the fields of a block that shows ``part``, or None if the Messages API has no form for it."""
    if part.kind not in ("image", "document"):
        return None
    source = _build_media_source(part)
    if source is None:
        return None
    block = {"type": part.kind, "source": source}
    if part.name and part.kind == "document":
        block["title"] = part.name
    return block


def _build_media_source(part: Media) -> dict[str, str] | None:
    text = decode_text_document(part)
    if text is not None:
        if text:
            return {"type": "text", "media_type": "text/plain", "data": text}
        return None
    if part.form == "base64":
        if part.source:
            return {"type": "base64", "media_type": part.mime, "data": part.source}
        return None
    if part.form == "file":
        if part.source:
            return {"type": "file", "file_id": part.source}
        return None
    # Documents may only be fetched from a URL if they are PDFs.
    can_be_fetched = part.kind == "image" or part.mime in ("", "application/pdf")
    if can_be_fetched and is_web_media(part):
        return {"type": "url", "url": part.source}
    return None
