"""The rollouts that a fork's history lies in: each holds only what came after the one before.

The header of a fork names a thread and an ordinal (``history_base``): the history is all lines of that thread before
the ordinal, then the fork's own lines. That thread may be a fork too (codex#44432; measured with Codex 0.154.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec import Raw, Struct

from holdfast.formats.codex.read import CODEX_LINE, SESSION_META, HistoryBase
from holdfast.formats.common.lines import LenientDecoder, replace_bad_escapes

MAX_FORKS = 100
"""Forks of forks that are followed. Chosen by judgement: people fork a few times, and a damaged file may lead round."""


class FileSpan(Struct, frozen=True):
    """A span of bytes of a file, which begins and ends at a line."""

    file: int
    """Number of the file among those that were opened."""
    start: int
    end: int


class Rollout(Struct, frozen=True):
    """A rollout that was found: its number, and a function that yields its lines with their line ends."""

    file: int
    read_lines: Callable[[], Iterable[bytes]]


FindRollout = Callable[[HistoryBase], Rollout | None]
"""Returns the rollout that a fork goes on from, or None if it is not there."""


class _Ordinal(Struct):
    ordinal: int | None = None


_ORDINAL = LenientDecoder(_Ordinal)


def read_history_base(header: bytes) -> HistoryBase | None:
    """Return what the header of a rollout says that it goes on from, or None if it begins by itself."""
    line = CODEX_LINE.decode_or_default(replace_bad_escapes(header))
    if line.type != "session_meta":
        return None
    base = SESSION_META.decode_or_default(line.payload or Raw(b"{}")).history_base
    return base if base is not None and base.thread_id and base.end_ordinal_exclusive > 0 else None


def find_history_spans(rollout: Rollout, find_rollout: FindRollout) -> list[FileSpan]:
    """Return the spans of other files that come between the header of ``rollout`` and its other lines, oldest first.

    Empty if it is no fork, or if one of the rollouts is not there: half a history in the middle would look whole.
    """
    spans: list[FileSpan] = []
    seen = {rollout.file}
    base = read_history_base(_read_header(rollout))
    for _ in range(MAX_FORKS):
        if base is None:
            return spans
        parent = find_rollout(base)
        if parent is None or parent.file in seen:
            return []
        seen.add(parent.file)
        span = _find_lines_before(parent, base.end_ordinal_exclusive)
        if span.end > span.start:
            spans.insert(0, span)
        parent_base = read_history_base(_read_header(parent))
        # A fork may go on from a place before the one at which its parent was forked.
        if parent_base is not None and parent_base.end_ordinal_exclusive > base.end_ordinal_exclusive:
            end = base.end_ordinal_exclusive
            parent_base = HistoryBase(parent_base.thread_id, parent_base.rollout_id, end)
        base = parent_base
    return []


def _read_header(rollout: Rollout) -> bytes:
    return next(iter(rollout.read_lines()), b"")


def _find_lines_before(rollout: Rollout, end_ordinal: int) -> FileSpan:
    """Return the span of the lines after the header, up to the first with ``end_ordinal`` or a larger one."""
    start = end = 0
    for number, (offset, line) in enumerate(_iter_offsets(rollout.read_lines())):
        if number == 0:
            start = end = offset + len(line)
            continue
        ordinal = _ORDINAL.decode_or_default(line).ordinal
        # The last line may be one that is being written: half a line would be welded to the next file.
        if (ordinal is not None and ordinal >= end_ordinal) or not line.endswith(b"\n"):
            break
        end = offset + len(line)
    return FileSpan(rollout.file, start, end)


def _iter_offsets(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    offset = 0
    for line in lines:
        yield offset, line
        offset += len(line)
