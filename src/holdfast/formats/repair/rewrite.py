"""The second pass over a damaged file: it yields the repaired file, and the bytes that are left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.formats.common.lines import set_json_fields
from holdfast.formats.repair.damaged_lines import LineInspection, ObjectPiece, inspect_lines
from holdfast.formats.repair.findings import DroppedBytes, LineChange, RepairSurvey
from holdfast.formats.repair.tools import RepairTool, make_claude_error_results, remove_claude_results


def rewrite_lines(raws: Iterable[bytes], tool: RepairTool, survey: RepairSurvey) -> Iterator[bytes | DroppedBytes]:
    """Yield the repaired file line by line, and the bytes left out of it."""
    rewrite_pass = _RewritePass(survey.changes)
    for line in inspect_lines(raws, tool.is_line):
        yield from rewrite_pass.rewrite_line(line)


class _RewritePass:
    """Yields lines in their new order; lines that are moved back wait here for the line they follow."""

    def __init__(self, changes: dict[int, LineChange]) -> None:
        self._changes = changes
        self._next_position = 0
        self._moved_lines: dict[int, list[tuple[int, bytes]]] = {}
        """Lines that are moved, by the position of the line that they follow."""

    def rewrite_line(self, line: LineInspection) -> Iterator[bytes | DroppedBytes]:
        """Yield the repaired form of one line, and the bytes left out of it."""
        if line.loses_bytes:
            yield DroppedBytes(line.number, line.description, line.raw)
        elif not line.pieces:
            yield line.raw
        for piece in line.pieces:
            position = self._next_position
            self._next_position += 1
            change = self._changes.get(position)
            if change is None:
                yield from self._emit_with_waiting(position, _apply_change(line, piece, None))
                continue
            if change.drop_reason:
                yield DroppedBytes(line.number, change.drop_reason, piece.raw)
                continue
            if change.removed_results:
                yield DroppedBytes(line.number, f"results of {', '.join(sorted(change.removed_results))}", piece.raw)
            repaired = _apply_change(line, piece, change)
            if change.move_behind is not None:
                self._moved_lines.setdefault(change.move_behind, []).append((position, repaired))
            else:
                yield from self._emit_with_waiting(position, repaired)

    def _emit_with_waiting(self, position: int, line: bytes) -> Iterator[bytes]:
        """Yield a line, then the error results added after it, then all lines that waited for it."""
        stack = [(position, line)]
        while stack:
            position, line = stack.pop()
            yield line
            change = self._changes.get(position)
            if change is not None and change.added_results:
                yield make_claude_error_results(line, change.added_results, change.added_id) + b"\n"
            stack += reversed(self._moved_lines.pop(position, []))


def _apply_change(line: LineInspection, piece: ObjectPiece, change: LineChange | None) -> bytes:
    """Return an object as a line with its line end; the original bytes if nothing changes."""
    has_new_content = change is not None and bool(change.set_fields or change.removed_results)
    is_intact = line.damage is None and line.raw.endswith(b"\n")
    if is_intact and not has_new_content:
        return line.raw
    content = piece.raw
    if change is not None and change.removed_results:
        content = remove_claude_results(content, change.removed_results)
    if change is not None and change.set_fields:
        content = set_json_fields(content, change.set_fields)
    # A file edited on Windows keeps its line ends; an object from a welded line gets a plain one.
    line_end = b"\r\n" if line.raw.endswith(b"\r\n") else b"\n"
    return content + line_end
