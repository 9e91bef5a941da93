"""Truncation where a tool's output arrives: so many lines and bytes of one end stay.

Lines stay whole, except one that has more bytes than a result may show: it is cut, since nothing of it would be seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Literal

from msgspec import Struct

from holdfast.messages.parts import ToolResult
from holdfast.messages.text.cutting import fingerprint
from holdfast.planning.builder import Draft
from holdfast.planning.settings import HANDLE, Settings
from holdfast.planning.stages.escape_tags import harmless
from holdfast.planning.stages.spill import Whole, shown_as, wholes
from holdfast.planning.stages.tool_results import ToolNames, own_name, tool_names
from holdfast.state.branch.view import shown_slots
from holdfast.state.edits import Blob, Edit

_CHUNK = 1 << 16


class Shortened(Struct, frozen=True):
    """One end of a text: ``lines`` whole lines of it, and how much is missing of what ran out."""

    text: str
    lines: int
    removed: int
    unit: Literal["lines", "bytes"]


def truncate(text: str, lines: int, size: int, end: Literal["head", "tail"] = "head") -> Shortened | None:
    """Return the most whole lines of one end within ``lines`` lines and ``size`` bytes; nothing where all of it is.

    A limit of 0 is none. Where the first line alone is too long nothing of the text stays.
    """
    edge = 0 if end == "head" else len(text)
    taken = held = 0
    for start, stop in _lines(text, end):
        if lines and taken == lines:
            return Shortened(_end(text, edge, end), taken, text.count("\n") + 1 - taken, "lines")
        more = _size(text, start, stop, size) + (taken > 0)
        if size and held + more > size:
            return Shortened(_end(text, edge, end), taken, _size(text, 0, len(text)) - held, "bytes")
        taken, held = taken + 1, held + more
        edge = stop if end == "head" else start
    return None


def add_part_of_line(found: Shortened, text: str, size: int, end: Literal["head", "tail"] = "head") -> Shortened:
    """Return ``found`` with as much of the next line of ``text`` as ``size`` bytes leave, where it never fits whole.

    ``found`` is what ``truncate`` made of ``text`` with the same ``size`` and ``end``. It comes back as it is where
    the next line is no longer than ``size`` and blanks are not all it shows, or where it leaves no byte for that line.
    """
    if found.unit != "bytes":
        return found
    beside = len(found.text) + (found.lines > 0)  # with the line break behind, or before, the whole lines
    if end == "head":
        start = beside
        stop = text.find("\n", start)
        stop = stop if stop >= 0 else len(text)
    else:
        stop = len(text) - beside
        start = text.rfind("\n", 0, stop) + 1
    left = size - _size(found.text, 0, len(found.text)) - (found.lines > 0)
    fits_alone = _size(text, start, stop, size) <= size
    if left <= 0 or (fits_alone and found.text.strip()):
        return found
    if end == "head":
        kept = text[: start + _characters_within(text[start : min(stop, start + left)], left)]
    else:
        kept = text[stop - _characters_within(text[max(start, stop - left) : stop][::-1], left) :]
    missing = _size(text, 0, len(text)) - _size(kept, 0, len(kept))
    return Shortened(kept, found.lines, missing, "bytes")


def _characters_within(text: str, size: int) -> int:
    """Return how many characters from the start of ``text`` fit into ``size`` bytes of UTF-8."""
    if text.isascii():
        return min(len(text), size)
    held = accumulate(len(character.encode("utf-8", "surrogatepass")) for character in text)
    return sum(1 for bytes_so_far in held if bytes_so_far <= size)


def limit_lines(draft: Draft) -> Draft:
    """Return the draft with every fresh result within the lines and bytes of the policy, the whole text kept away.

    Where texts cannot be stored away every result stays whole; so does one that would not get shorter.
    """
    settings, branch = draft.settings, draft.branch
    if not (settings.output_lines or settings.output_bytes) or not draft.world.spill:
        return draft
    names = tool_names(branch)
    fresh = wholes(branch, shown_slots(branch, max(branch.seen, branch.keep)))
    return draft.give_way(pair for one in fresh if (pair := _limited(settings, one, names)) is not None)


def _limited(settings: Settings, one: Whole, names: ToolNames) -> tuple[Edit, Blob] | None:
    """Return the edit that leaves one end of a result, and its text to be stored; None where it is short."""
    if not isinstance(one.part, ToolResult):
        return None
    tool = names(one.slot, one.part)
    if {tool, own_name(tool)} & set(settings.spill_exempt):
        return None
    end: Literal["head", "tail"] = "tail" if tool in settings.output_tail else "head"
    found = truncate(one.text, settings.output_lines, settings.output_bytes, end)
    if found is None:
        return None
    whole_lines, found = found, add_part_of_line(found, one.text, settings.output_bytes, end)
    blob = Blob(fingerprint(one.text), one.text)
    short = noticed(found, blob.hash, end)
    stay = f"{found.lines:,} lines" if found is whole_lines else f"{found.lines:,} lines and a part of one"
    why = f"{found.removed:,} {found.unit} left out, {stay} of the {end} stay"
    edit = shown_as(one, short, blob, "lines", why)
    return (edit, blob) if edit.saves > 0 and len(short) < len(one.text) else None


def noticed(found: Shortened, hash_: str, end: Literal["head", "tail"]) -> str:
    """Return what stays of a text with the line that says what went; in front of a tail, behind a head.

    Look-alikes of our tag in it are escaped.
    """
    notice = f'...{found.removed} {found.unit} truncated...\n\n[recall(id="{hash_[:HANDLE]}") returns the whole text]'
    said = harmless(found.text)
    parts = [said, notice] if end == "head" else [notice, said]
    return "\n\n".join(part for part in parts if part)


def _lines(text: str, end: Literal["head", "tail"]) -> Iterator[tuple[int, int]]:
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


def _end(text: str, edge: int, end: Literal["head", "tail"]) -> str:
    return text[:edge] if end == "head" else text[edge:]


def _size(text: str, start: int, stop: int, most: int = 0) -> int:
    """Return the bytes of a part of ``text`` in UTF-8; its characters where these are over ``most`` already."""
    if 0 < most < stop - start:
        return stop - start
    pieces = (text[at : min(stop, at + _CHUNK)] for at in range(start, stop, _CHUNK))
    return sum(len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass")) for piece in pieces)
