"""The second walk over a damaged file: it as it should be, and what is left out of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.formats.common.lines import set_json_fields
from holdfast.formats.repair.damaged_lines import LineInspection, ObjectPiece, inspect_lines
from holdfast.formats.repair.findings import DroppedBytes, LineChange, RepairSurvey
from holdfast.formats.repair.tools import RepairTool, make_claude_error_results, remove_claude_results


def rewrite_lines(raws: Iterable[bytes], tool: RepairTool, survey: RepairSurvey) -> Iterator[bytes | DroppedBytes]:
    """Yield the file as it should be, line by line, and what is left out of it."""
    writing = _RewritePass(tool, survey.changes)
    for line in inspect_lines(raws, tool.is_line):
        yield from writing.rewrite_line(line)


class _RewritePass:
    """The second walk: which line comes next, and what waits for a later one."""

    def __init__(self, tool: RepairTool, changes: dict[int, LineChange]) -> None:
        self._tool, self._changes = tool, changes
        self._next = 0
        self._moved_lines: dict[int, list[tuple[int, bytes]]] = {}
        """Lines that are moved, by the one they are to stand behind."""

    def rewrite_line(self, line: LineInspection) -> Iterator[bytes | DroppedBytes]:
        """Yield what becomes of one line."""
        if line.loses_bytes:
            yield DroppedBytes(line.number, line.description, line.raw)
        elif not line.pieces:
            yield line.raw
        for piece in line.pieces:
            at, self._next = self._next, self._next + 1
            change = self._changes.get(at)
            if change is not None and change.drop_reason:
                yield DroppedBytes(line.number, change.drop_reason, piece.raw)
                continue
            if change is not None and change.removed_results:
                yield DroppedBytes(line.number, f"results of {', '.join(sorted(change.removed_results))}", piece.raw)
            out = _apply_change(line, piece, change)
            if change is not None and change.move_behind is not None:
                self._moved_lines.setdefault(change.move_behind, []).append((at, out))
            else:
                yield from self._emit_with_waiting(at, out)

    def _emit_with_waiting(self, at: int, line: bytes) -> Iterator[bytes]:
        """Yield a line and all that waited for it."""
        stack = [(at, line)]
        while stack:
            at, line = stack.pop()
            yield line
            change = self._changes.get(at)
            if change is not None and change.added_results:
                yield make_claude_error_results(line, change.added_results, change.added_id) + b"\n"
            stack += reversed(self._moved_lines.pop(at, []))


def _apply_change(line: LineInspection, piece: ObjectPiece, change: LineChange | None) -> bytes:
    """Return an object as a line, with its end; untouched where nothing is to be changed."""
    if (
        line.damage is None
        and line.raw.endswith(b"\n")
        and (change is None or not (change.set_fields or change.removed_results))
    ):
        return line.raw
    out = piece.raw
    if change is not None:
        out = remove_claude_results(out, change.removed_results) if change.removed_results else out
        out = set_json_fields(out, change.set_fields) if change.set_fields else out
    return out + (b"\r\n" if line.raw.endswith(b"\r\n") else b"\n")
