"""The second walk over a damaged file: it as it should be, and what is left out of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.formats.common.lines import edited
from holdfast.formats.repair.pieces import Line, Piece, lines_of
from holdfast.formats.repair.tools import Tool, answering, without_results
from holdfast.formats.repair.values import Change, Dropped, Survey


def mended(raws: Iterable[bytes], tool: Tool, found: Survey) -> Iterator[bytes | Dropped]:
    """Yield the file as it should be, line by line, and what is left out of it."""
    writing = _Writing(tool, found.changes)
    for line in lines_of(raws, tool.fits):
        yield from writing.line(line)


class _Writing:
    """The second walk: which line comes next, and what waits for a later one."""

    def __init__(self, tool: Tool, changes: dict[int, Change]) -> None:
        self._tool, self._changes = tool, changes
        self._next = 0
        self._held: dict[int, list[tuple[int, bytes]]] = {}
        """Lines that are moved, by the one they are to stand behind."""

    def line(self, line: Line) -> Iterator[bytes | Dropped]:
        """Yield what becomes of one line."""
        if line.loses:
            yield Dropped(line.number, line.what, line.raw)
        elif not line.pieces:
            yield line.raw
        for piece in line.pieces:
            at, self._next = self._next, self._next + 1
            change = self._changes.get(at)
            if change is not None and change.gone:
                yield Dropped(line.number, change.gone, piece.raw)
                continue
            if change is not None and change.without:
                yield Dropped(line.number, f"results of {', '.join(sorted(change.without))}", piece.raw)
            out = _written(line, piece, change)
            if change is not None and change.behind is not None:
                self._held.setdefault(change.behind, []).append((at, out))
            else:
                yield from self._out(at, out)

    def _out(self, at: int, out: bytes) -> Iterator[bytes]:
        """Yield a line and all that waited for it."""
        stack = [(at, out)]
        while stack:
            at, out = stack.pop()
            yield out
            change = self._changes.get(at)
            if change is not None and change.answers:
                yield answering(out, change.answers, change.named) + b"\n"
            stack += reversed(self._held.pop(at, []))


def _written(line: Line, piece: Piece, change: Change | None) -> bytes:
    """Return an object as a line, with its end; untouched where nothing is to be changed."""
    if line.kind is None and line.raw.endswith(b"\n") and (change is None or not (change.put or change.without)):
        return line.raw
    out = piece.raw
    if change is not None:
        out = without_results(out, change.without) if change.without else out
        out = edited(out, change.put) if change.put else out
    return out + (b"\r\n" if line.raw.endswith(b"\r\n") else b"\n")
