"""Truncate tool output as it arrives: keep a number of lines and bytes of one end.

Lines stay whole, except one that alone has more bytes than a result may show: it is cut, since nothing would be seen of
it otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.messages.parts import ToolResult
from holdfast.messages.text.text_cuts import hash_text
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.planning.stages.escape_tags import escape_look_alike_tags
from holdfast.planning.stages.spill import SpillableText, build_text_edit, find_spillable_texts
from holdfast.planning.stages.tool_results import ToolNameLookup, build_tool_name_lookup, strip_mcp_prefix
from holdfast.state.edits import Blob, Edit
from holdfast.state.view import list_shown_indexes

# Texts are encoded in pieces to count their bytes, so that a large one is not copied whole.
_ENCODE_CHUNK_CHARS = 1 << 16

TextEnd: TypeAlias = Literal["head", "tail"]


class TruncatedText(Struct, frozen=True):
    """One end of a text."""

    text: str
    lines: int
    """Whole lines in it."""
    removed_count: int
    """How much is missing, in ``unit``."""
    unit: Literal["lines", "bytes"]
    """The limit that was reached."""


def truncate_lines(text: str, lines: int, size: int, end: TextEnd = "head") -> TruncatedText | None:
    """Keep the most whole lines of one end within ``lines`` lines and ``size`` bytes; return None if all of it fits.

    A limit of 0 is no limit. If the first line alone is too long, no text is kept.
    """
    edge = 0 if end == "head" else len(text)
    byte_count = 0
    for line_count, (start, stop) in enumerate(_find_line_spans(text, end)):
        if lines and line_count == lines:
            removed_lines = text.count("\n") + 1 - line_count
            return TruncatedText(_take_end(text, edge, end), line_count, removed_lines, "lines")
        line_break_bytes = 1 if line_count else 0
        line_bytes = _count_utf8_bytes(text, start, stop, size) + line_break_bytes
        if size and byte_count + line_bytes > size:
            removed_bytes = _count_utf8_bytes(text, 0, len(text)) - byte_count
            return TruncatedText(_take_end(text, edge, end), line_count, removed_bytes, "bytes")
        byte_count += line_bytes
        edge = stop if end == "head" else start
    return None


def add_partial_line(
    truncated: TruncatedText,
    text: str,
    size: int,
    end: TextEnd = "head",
) -> TruncatedText:
    """Add as much of the next line of ``text`` as ``size`` bytes leave, if that line could never fit whole.

    ``truncated`` is the result of ``truncate_lines`` for ``text`` with the same ``size`` and ``end``. It is returned
    unchanged if the next line fits into ``size`` by itself and something visible is kept already, or if no byte is
    left.
    """
    if truncated.unit != "bytes":
        return truncated
    line_break = 1 if truncated.lines else 0  # between the kept lines and the next one
    kept_chars = len(truncated.text) + line_break
    if end == "head":
        start = kept_chars
        stop = text.find("\n", start)
        if stop < 0:
            stop = len(text)
    else:
        stop = len(text) - kept_chars
        start = text.rfind("\n", 0, stop) + 1
    kept_bytes = _count_utf8_bytes(truncated.text, 0, len(truncated.text))
    remaining_bytes = size - kept_bytes - line_break
    fits_alone = _count_utf8_bytes(text, start, stop, size) <= size
    if remaining_bytes <= 0 or (fits_alone and truncated.text.strip()):
        return truncated
    if end == "head":
        line_beginning = text[start : min(stop, start + remaining_bytes)]
        added_chars = _count_chars_fitting_bytes(line_beginning, remaining_bytes)
        excerpt = text[: start + added_chars]
    else:
        line_ending = text[max(start, stop - remaining_bytes) : stop]
        added_chars = _count_chars_fitting_bytes(line_ending[::-1], remaining_bytes)
        excerpt = text[stop - added_chars :]
    text_bytes = _count_utf8_bytes(text, 0, len(text))
    excerpt_bytes = _count_utf8_bytes(excerpt, 0, len(excerpt))
    return TruncatedText(excerpt, truncated.lines, text_bytes - excerpt_bytes, "bytes")


def _count_chars_fitting_bytes(text: str, size: int) -> int:
    """Return how many characters at the start of ``text`` fit into ``size`` bytes of UTF-8."""
    if text.isascii():
        return min(len(text), size)
    byte_offsets = accumulate(len(character.encode("utf-8", "surrogatepass")) for character in text)
    return sum(1 for bytes_so_far in byte_offsets if bytes_so_far <= size)


class OutputLimits(Struct, frozen=True):
    """The most lines and bytes that a result may show; 0 is no limit."""

    lines: int
    bytes: int
    exempt_tools: tuple[str, ...] = ()
    """Tools whose output stays whole."""
    end_tools: tuple[str, ...] = ()
    """Tools whose output is cut at its beginning, because its end matters."""


def limit_result_lines(builder: PlanBuilder, limits: OutputLimits) -> PlanBuilder:
    """Cut every result that the model has not seen to its ``limits``, and store the whole text.

    Results stay whole if texts cannot be stored, or if cutting would not shorten them.
    """
    state = builder.state
    if not (limits.lines or limits.bytes) or not builder.inputs.can_spill:
        return builder
    get_tool_name = build_tool_name_lookup(state)
    first_unseen = max(state.last_request.seen_count, state.view.first_kept)
    replacements: list[tuple[Edit, Blob | None]] = []
    for text in find_spillable_texts(state, list_shown_indexes(state, first_unseen)):
        replacement = _build_truncation_edit(limits, text, get_tool_name)
        if replacement is not None:
            replacements.append(replacement)
    return builder.replace_texts(replacements)


def _build_truncation_edit(
    limits: OutputLimits, spillable: SpillableText, get_tool_name: ToolNameLookup
) -> tuple[Edit, Blob] | None:
    """Return the edit that leaves one end of a result, and its whole text to store; None if the result stays whole."""
    if not isinstance(spillable.part, ToolResult):
        return None
    tool = get_tool_name(spillable.message_index, spillable.part)
    # The setting may name a tool of an MCP server with its prefix or without.
    if tool in limits.exempt_tools or strip_mcp_prefix(tool) in limits.exempt_tools:
        return None
    end: TextEnd = "tail" if tool in limits.end_tools else "head"
    whole_lines = truncate_lines(spillable.text, limits.lines, limits.bytes, end)
    if whole_lines is None:
        return None
    truncated = add_partial_line(whole_lines, spillable.text, limits.bytes, end)
    # pi and opencode write the whole output to a file; here it is a blob that recall reads.
    blob = Blob(hash_text(spillable.text), spillable.text)
    shown_text = add_truncation_notice(truncated, blob.hash, end)
    kept = f"{truncated.lines:,} lines"
    if truncated is not whole_lines:
        kept += " and a part of another"
    why = f"{truncated.removed_count:,} {truncated.unit} left out; the {end} with {kept} is shown"
    edit = build_text_edit(spillable, shown_text, blob, "lines", why)
    is_shorter = edit.saves > 0 and len(shown_text) < len(spillable.text)
    return (edit, blob) if is_shorter else None


def add_truncation_notice(truncated: TruncatedText, hash_: str, end: TextEnd) -> str:
    """Return a truncated text with a notice of the missing part and how to read it: after a head, before a tail.

    Look-alikes of our tag in the text are escaped.
    """
    notice = (
        f'...{truncated.removed_count} {truncated.unit} truncated...\n\n[recall(id="{hash_[:HANDLE_CHARS]}") '
        "returns the whole text]"
    )
    escaped_text = escape_look_alike_tags(truncated.text)
    parts = [escaped_text, notice] if end == "head" else [notice, escaped_text]
    return "\n\n".join(part for part in parts if part)


def _find_line_spans(text: str, end: TextEnd) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each line, beginning at ``end``; the text is not copied."""
    if end == "head":
        start = 0
        while (line_break := text.find("\n", start)) >= 0:
            yield start, line_break
            start = line_break + 1
        yield start, len(text)
        return
    stop = len(text)
    while (line_break := text.rfind("\n", 0, stop)) >= 0:
        yield line_break + 1, stop
        stop = line_break
    yield 0, stop


def _take_end(text: str, edge: int, end: TextEnd) -> str:
    return text[:edge] if end == "head" else text[edge:]


def _count_utf8_bytes(text: str, start: int, stop: int, max_bytes: int = 0) -> int:
    """Return the UTF-8 bytes of ``text[start:stop]``.

    If its characters alone exceed ``max_bytes``, return their number: that it is too much is known then.
    """
    if 0 < max_bytes < stop - start:
        return stop - start
    byte_count = 0
    for piece_start in range(start, stop, _ENCODE_CHUNK_CHARS):
        piece = text[piece_start : min(stop, piece_start + _ENCODE_CHUNK_CHARS)]
        byte_count += len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass"))
    return byte_count
