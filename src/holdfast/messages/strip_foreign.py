"""Make a message that came over one API ready for another; signed content stays behind in the log."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from holdfast.messages.message import Message, format_part_placeholder
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult


class _ResultTextBlock(Struct):
    text: str = ""


class _SearchResult(Struct):
    title: str = ""
    source: str = ""
    content: list[_ResultTextBlock] = []


class _FoundPage(Struct):
    title: str = ""
    url: str = ""


class _SearchResults(Struct):
    content: list[_FoundPage] = []


class _ServerCall(Struct):
    name: str = ""
    input: Raw = Raw(b"{}")


class _CodeOutput(Struct, frozen=True):
    stdout: str = ""
    stderr: str = ""


class _CodeResult(Struct):
    content: _CodeOutput = _CodeOutput()


class _CompactionBlock(Struct):
    content: str = ""


class _RefusalBlock(Struct):
    refusal: str = ""


SEALED_SEARCH_KINDS = frozenset({"web_search_tool_result"})
"""Kinds of parts with search results whose text only their provider can read."""
_SEARCH_RESULT_DECODER = msgspec.json.Decoder(_SearchResult)
_FOUND_PAGES_DECODER = msgspec.json.Decoder(_SearchResults)
_SERVER_CALL_DECODER = msgspec.json.Decoder(_ServerCall)
_CODE_RESULT_DECODER = msgspec.json.Decoder(_CodeResult)
_COMPACTION_DECODER = msgspec.json.Decoder(_CompactionBlock)
_REFUSAL_DECODER = msgspec.json.Decoder(_RefusalBlock)
_STRING_DECODER = msgspec.json.Decoder(str)


def strip_foreign_content(message: Message, api: str, *, keeps_file_ids: bool = False) -> Message:
    """Return ``message`` without anything that only another API can read: wire bytes, signatures, opaque parts.

    Content that ``api`` itself signed is kept. Thinking of others is dropped. Opaque parts are replaced by their text
    or by a placeholder; of the fields of a message only a refusal has text. With ``keeps_file_ids`` references to
    uploaded files are kept, which is right only for the provider that the message came from.
    """
    kept_parts: list[Part] = []
    for part in message.parts:
        stripped_part = _strip_part(part, api, keeps_file_ids=keeps_file_ids)
        if stripped_part is not None:
            kept_parts.append(stripped_part)
    return Message(message.role, tuple(kept_parts))


def can_contain_thinking(raw: Raw) -> bool:
    """Return whether a message of the Messages API in these bytes may contain thinking, with false positives."""
    return b'thinking"' in bytes(raw)


def _strip_part(part: Part, api: str, *, keeps_file_ids: bool) -> Part | None:
    if isinstance(part, Thinking):
        is_own = part.signature is not None and part.signature.api == api
        return Thinking(part.text, part.signature) if is_own else None
    if isinstance(part, ToolCall):
        is_own = part.signature is not None and part.signature.api == api
        return ToolCall(part.id, part.name, part.arguments, part.signature if is_own else None)
    if isinstance(part, ToolResult):
        content = tuple(_strip_content_part(inner, keeps_file_ids=keeps_file_ids) for inner in part.content)
        return ToolResult(part.call_id, part.name, content, part.is_error)
    if isinstance(part, Opaque) and is_message_or_field(part):
        text = get_opaque_text(part)
        return Text(text) if text else None
    return _strip_content_part(part, keeps_file_ids=keeps_file_ids)


def _strip_content_part(part: Text | Media | Opaque, *, keeps_file_ids: bool) -> Text | Media:
    if isinstance(part, Text):
        return Text(part.text)
    if isinstance(part, Opaque):
        return Text(get_opaque_text(part) or format_part_placeholder(part))
    if part.form == "file" and not keeps_file_ids:
        return Text(format_part_placeholder(part))
    return Media(
        part.kind,
        part.mime,
        part.size,
        part.name,
        part.source,
        None,
        part.form,
    )


def is_message_or_field(part: Opaque) -> bool:
    """Return whether ``part`` is a whole message or a field of one; without text it means nothing on another API."""
    return part.kind in ("message", "options") or part.kind.startswith("message.")


def get_opaque_text(part: Opaque) -> str:
    """Return the plain text of an opaque part, or ``""`` for kinds without one.

    It is that of a search result, a summary, a refusal, or of a tool that the provider ran: its call, the titles and
    addresses of pages that it found (their text is encrypted), the output of code.
    """
    if part.raw is None:
        return ""
    try:
        return _decode_opaque_text(part.kind, part.raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _format_found_pages(pages: list[_FoundPage]) -> str:
    """Return the titles and addresses of pages that a search found, a line each; empty without any."""
    lines = []
    for page in pages:
        line = " ".join(filter(None, (page.title, page.url)))
        if line:
            lines.append(line)
    return "\n".join(["[search results, without their text]", *lines]) if lines else ""


def _decode_opaque_text(kind: str, raw: Raw) -> str:
    if kind == "compaction":
        return _COMPACTION_DECODER.decode(raw).content
    if kind == "message.refusal":
        return _STRING_DECODER.decode(raw)
    if kind == "refusal":
        return _REFUSAL_DECODER.decode(raw).refusal
    if kind == "server_tool_use":
        call = _SERVER_CALL_DECODER.decode(raw)
        return f"[{call.name}: {bytes(call.input).decode()}]" if call.name else ""
    if kind in SEALED_SEARCH_KINDS:
        return _format_found_pages(_FOUND_PAGES_DECODER.decode(raw).content)
    if kind.endswith("code_execution_tool_result"):
        output = _CODE_RESULT_DECODER.decode(raw).content
        return "\n".join(filter(None, (output.stdout.strip(), output.stderr.strip())))
    if kind != "search_result":
        return ""
    search_result = _SEARCH_RESULT_DECODER.decode(raw)
    texts = [block.text for block in search_result.content if block.text.strip()]
    if not texts:
        return ""
    heading = [line for line in (search_result.title, search_result.source) if line]
    return "\n".join([*heading, *texts])
