"""A first walk over a session file: what is wrong with it, and what becomes of each line.

What a line holds is forgotten when the next one is read; a few words of each stay. So the size of a file costs nothing
but time.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from holdfast.formats.repair.pairs import pair_in_order, pair_in_tree
from holdfast.formats.repair.pieces import Line, Piece, lines_of
from holdfast.formats.repair.tools import Sketch, Tool
from holdfast.formats.repair.trees import Tree
from holdfast.formats.repair.values import Finding, Survey, What
from holdfast.formats.repair.work import Work

HEADER = "its first line is no session header"
"""Why nothing of a file is rewritten whose tool wants a header: without one the tool does not open it."""
NOTHING = "no line of it would be left"
"""Why nothing of a file is rewritten of which all is damaged: it may be worth more as it is than an empty one."""
_DONE = {
    "torn": "left out",
    "welded": "parted",
    "encoding": "U+FFFD in its place",
    "characters": "U+FFFD or null in its place",
    "no object": "left out",
}
_LEFT = "left as it is"


def survey(raws: Iterable[bytes], tool: Tool) -> Survey:
    """Return what a file of ``tool`` needs, its lines given with their ends."""
    look = _Look(tool)
    for line in lines_of(raws, tool.fits):
        look.take(line)
    return look.survey()


class _Look:
    """The walk."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.work = Work()
        self.header: bool | None = None
        """Whether the first object is the header; nothing before there is one."""
        self._seen: dict[bytes, int] = {}
        self._open: Line | None = None
        """The newest line, where it has no end."""

    def take(self, line: Line) -> None:
        """Take one line into account."""
        if line.kind is not None:
            self.work.found(line.number, line.kind, line.what, _done(line))
        for piece in line.pieces:
            self._piece(line.number, piece)
        self._open = line if line.pieces and line.kind is None and not line.raw.endswith(b"\n") else None

    def _piece(self, number: int, piece: Piece) -> None:
        said, tool = piece.said, self.tool
        if self.header is None:
            self.header = tool.heads is None or (said is not None and tool.heads(said))
        sketch = Sketch(number) if said is None else tool.sketch(number, said)
        self.work.sketches.append(sketch)
        if tool.orders and not tool.link and sketch.said and sketch.is_once:
            self._copy(piece.raw)

    def _copy(self, raw: bytes) -> None:
        """Leave a line out that says again, byte for byte, what an earlier one says, its time or id included."""
        place = len(self.work.sketches) - 1
        first = self._seen.setdefault(blake2b(raw, digest_size=16).digest(), place)
        if first != place:
            line = self.work.sketches[first].line
            self.work.drop(place, "duplicate", f"the line is a copy of line {line:,}")

    def survey(self) -> Survey:
        """Return what was found."""
        work, tool = self.work, self.tool
        if self._open is not None:
            what = "the last line has no line end: the next one would be welded to it"
            work.found(self._open.number, "no line end", what, "added")
        if tool.heads is not None and not self.header:
            return self._stuck(HEADER)
        if tool.link:
            tree = Tree(work, tool)
            pair_in_tree(tree)
            if tool.orders:
                tree.put_in_order()
        elif tool.orders:
            pair_in_order(work)
        if all(map(work.is_gone, range(len(work.sketches)))):
            return self._stuck(NOTHING)
        return Survey(tool.name, work.sorted(), work.changes)

    def _stuck(self, reason: str) -> Survey:
        """Return what was found, where nothing is done about it."""
        findings = tuple(Finding(one.line, one.kind, one.what, _LEFT) for one in self.work.sorted())
        return Survey(self.tool.name, findings, {}, reason)


def _done(line: Line) -> str:
    """Return what is done about a damaged line."""
    kind: What = line.kind or "torn"
    if kind == "welded" and line.loses:
        return "the half is left out"
    if kind == "encoding" and not line.loses:
        return "taken away"
    return _DONE[kind]
