"""Truncation where a tool's output arrives: so many lines and bytes of one end stay.

Lines stay whole, except one that has more bytes than a result may show: it is cut, since nothing of it would be seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Literal

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

_ENCODE_CHUNK_CHARS = 1 << 16


class TruncatedText(Struct, frozen=True):
    """One end of a text: ``lines`` whole lines of it, and how much is missing of what ran out."""

    text: str
    lines: int
    removed_count: int
    unit: Literal["lines", "bytes"]


def truncate_lines(text: str, lines: int, size: int, end: Literal["head", "tail"] = "head") -> TruncatedText | None:
    """Return the most whole lines of one end within ``lines`` lines and ``size`` bytes; nothing where all of it is.

    A limit of 0 is none. Where the first line alone is too long nothing of the text stays.
    """
    edge = 0 if end == "head" else len(text)
    line_count = byte_count = 0
    for start, stop in _find_line_spans(text, end):
        if lines and line_count == lines:
            return TruncatedText(_take_end(text, edge, end), line_count, text.count("\n") + 1 - line_count, "lines")
        line_bytes = _count_utf8_bytes(text, start, stop, size) + (line_count > 0)
        if size and byte_count + line_bytes > size:
            return TruncatedText(
                _take_end(text, edge, end), line_count, _count_utf8_bytes(text, 0, len(text)) - byte_count, "bytes"
            )
        line_count, byte_count = line_count + 1, byte_count + line_bytes
        edge = stop if end == "head" else start
    return None


def add_partial_line(
    truncated: TruncatedText, text: str, size: int, end: Literal["head", "tail"] = "head"
) -> TruncatedText:
    """Return ``truncated`` with as much of the next line of ``text`` as ``size`` bytes leave, where it never fits
    whole.

    ``truncated`` is what ``truncate_lines`` made of ``text`` with the same ``size`` and ``end``. It comes back as it is
    where the next line is no longer than ``size`` and blanks are not all it shows, or where it leaves no byte for that
    line.
    """
    if truncated.unit != "bytes":
        return truncated
    beside = len(truncated.text) + (truncated.lines > 0)  # with the line break behind, or before, the whole lines
    if end == "head":
        start = beside
        stop = text.find("\n", start)
        stop = stop if stop >= 0 else len(text)
    else:
        stop = len(text) - beside
        start = text.rfind("\n", 0, stop) + 1
    remaining = size - _count_utf8_bytes(truncated.text, 0, len(truncated.text)) - (truncated.lines > 0)
    fits_alone = _count_utf8_bytes(text, start, stop, size) <= size
    if remaining <= 0 or (fits_alone and truncated.text.strip()):
        return truncated
    if end == "head":
        excerpt = text[: start + _count_chars_fitting_bytes(text[start : min(stop, start + remaining)], remaining)]
    else:
        excerpt = text[stop - _count_chars_fitting_bytes(text[max(start, stop - remaining) : stop][::-1], remaining) :]
    missing = _count_utf8_bytes(text, 0, len(text)) - _count_utf8_bytes(excerpt, 0, len(excerpt))
    return TruncatedText(excerpt, truncated.lines, missing, "bytes")


def _count_chars_fitting_bytes(text: str, size: int) -> int:
    """Return how many characters from the start of ``text`` fit into ``size`` bytes of UTF-8."""
    if text.isascii():
        return min(len(text), size)
    byte_offsets = accumulate(len(character.encode("utf-8", "surrogatepass")) for character in text)
    return sum(1 for bytes_so_far in byte_offsets if bytes_so_far <= size)


class OutputLimits(Struct, frozen=True):
    """Lines and bytes that a result may show; 0 is no limit."""

    lines: int
    bytes: int
    exempt_tools: tuple[str, ...] = ()
    """Tools whose output stays whole."""
    end_tools: tuple[str, ...] = ()
    """Tools whose output shows its end, not its beginning."""


def limit_result_lines(builder: PlanBuilder, limits: OutputLimits) -> PlanBuilder:
    """Return the plan with every fresh result within its ``limits``, the whole text kept away.

    Where texts cannot be stored away every result stays whole; so does one that would not get shorter.
    """
    state = builder.state
    if not (limits.lines or limits.bytes) or not builder.inputs.can_spill:
        return builder
    names = build_tool_name_lookup(state)
    fresh = find_spillable_texts(
        state, list_shown_indexes(state, max(state.last_request.seen_count, state.view.first_kept))
    )
    return builder.replace_texts(
        pair for text in fresh if (pair := _build_truncation_edit(limits, text, names)) is not None
    )


def _build_truncation_edit(
    limits: OutputLimits, spillable: SpillableText, names: ToolNameLookup
) -> tuple[Edit, Blob] | None:
    """Return the edit that leaves one end of a result, and its text to be stored; None where it is short."""
    if not isinstance(spillable.part, ToolResult):
        return None
    tool = names(spillable.message_index, spillable.part)
    if {tool, strip_mcp_prefix(tool)} & set(limits.exempt_tools):
        return None
    end: Literal["head", "tail"] = "tail" if tool in limits.end_tools else "head"
    shortened_text = truncate_lines(spillable.text, limits.lines, limits.bytes, end)
    if shortened_text is None:
        return None
    whole_lines, shortened_text = (
        shortened_text,
        add_partial_line(shortened_text, spillable.text, limits.bytes, end),
    )
    blob = Blob(hash_text(spillable.text), spillable.text)
    short = add_truncation_notice(shortened_text, blob.hash, end)
    stay = (
        f"{shortened_text.lines:,} lines"
        if shortened_text is whole_lines
        else f"{shortened_text.lines:,} lines and a part of one"
    )
    why = f"{shortened_text.removed_count:,} {shortened_text.unit} left out, {stay} of the {end} stay"
    edit = build_text_edit(spillable, short, blob, "lines", why)
    return (edit, blob) if edit.saves > 0 and len(short) < len(spillable.text) else None


def add_truncation_notice(truncated: TruncatedText, hash_: str, end: Literal["head", "tail"]) -> str:
    """Return what stays of a text with the line that says what went; in front of a tail, behind a head.

    Look-alikes of our tag in it are escaped.
    """
    notice = (
        f'...{truncated.removed_count} {truncated.unit} truncated...\n\n[recall(id="{hash_[:HANDLE_CHARS]}") '
        "returns the whole text]"
    )
    escaped_text = escape_look_alike_tags(truncated.text)
    parts = [escaped_text, notice] if end == "head" else [notice, escaped_text]
    return "\n\n".join(part for part in parts if part)


def _find_line_spans(text: str, end: Literal["head", "tail"]) -> Iterator[tuple[int, int]]:
    """Yield where each line starts and stops, from the wanted end on; nothing is copied."""
    start, stop = 0, len(text)
    while end == "head":
        edge = text.find("\n", start)
        yield start, edge if edge >= 0 else len(text)
        if edge < 0:
            return
        start = edge + 1
    while end == "tail":
        start = text.rfind("\n", 0, stop) + 1
        yield start, stop
        if start == 0:
            return
        stop = start - 1


def _take_end(text: str, edge: int, end: Literal["head", "tail"]) -> str:
    return text[:edge] if end == "head" else text[edge:]


def _count_utf8_bytes(text: str, start: int, stop: int, max_bytes: int = 0) -> int:
    """Return the bytes of a part of ``text`` in UTF-8; its characters where these are over ``max_bytes`` already."""
    if 0 < max_bytes < stop - start:
        return stop - start
    pieces = (text[at : min(stop, at + _ENCODE_CHUNK_CHARS)] for at in range(start, stop, _ENCODE_CHUNK_CHARS))
    return sum(len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass")) for piece in pieces)
