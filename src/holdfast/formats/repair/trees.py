"""The tree that the lines of a file make, without holes: each parent is there, and stands where the tool needs it."""

from __future__ import annotations

from holdfast.formats.common.log import ordered
from holdfast.formats.repair.tools import Tool
from holdfast.formats.repair.work import Work


class Tree:
    """Parents by place (-1: none), holes closed and circles opened."""

    def __init__(self, work: Work, tool: Tool) -> None:
        self.work = work
        self.tool = tool
        self.lost: list[int] = []
        """Lines whose parent is not in the file, and which hang on another now."""
        self.place: dict[str, int] = {}
        for at, sketch in enumerate(work.sketches):
            if sketch.id is not None:
                self.place.setdefault(sketch.id, at)
        self.up = self._linked()
        order, cut = ordered(self.up)
        self.parents_first = order
        """All places, parents first."""
        for at in cut:
            work.change(at).put[tool.link] = None
            work.found(work.sketches[at].line, "circle", "its parents form a circle", "it begins a branch of its own")

    def _linked(self) -> list[int]:
        """Return the parent of each line; where that is not in the file, the line of its conversation before it."""
        up: list[int] = []
        firm: list[bool] = []
        """Whether all above a line stands before it, so that what comes later can hang on it without a circle."""
        before: dict[str, int] = {}
        begun: set[str] = set()
        for at, sketch in enumerate(self.work.sketches):
            parent = -1 if sketch.parent is None else self.place.get(sketch.parent, -2)
            if parent == -2:
                parent = before.get(sketch.chain, -1)
                if sketch.chain in begun and sketch.id is not None:  # else it goes on from another file
                    self.lost.append(at)
            up.append(parent if sketch.id is not None else -1)
            firm.append(parent < at and (parent < 0 or firm[parent]))
            if sketch.id is not None:
                begun.add(sketch.chain)
                if firm[at]:
                    before[sketch.chain] = at
        return up

    def _climb(self, at: int) -> int:
        """Return the nearest line above ``at`` that stays."""
        above = self.up[at]
        while above >= 0 and self.work.is_gone(above):
            above = self.up[above]
        return above

    def settle(self) -> None:
        """Hang what hung on lines that are left out on what those hung on."""
        for at, above in enumerate(self.up):
            if above >= 0 and self.work.is_gone(above) and not self.work.is_gone(at):
                self._relink(at, self._climb(at))
        for at in self.lost:
            if not self.work.is_gone(at):
                self._close(at)

    def _relink(self, at: int, parent: int) -> None:
        self.up[at] = parent
        self.work.change(at).put[self.tool.link] = self.work.sketches[parent].id if parent >= 0 else None

    def _close(self, at: int) -> None:
        """Hang a line whose parent is missing on the one that was found for it."""
        sketch, parent = self.work.sketches[at], self.up[at]
        self._relink(at, parent)
        above = self.work.sketches[parent]
        now = f"it hangs on {above.id} now, on line {above.line:,}" if parent >= 0 else "it begins the conversation now"
        self.work.found(sketch.line, "parent", f"its parent {sketch.parent} is not in the file", now)

    def put_in_order(self) -> None:
        """Move lines behind their parents that stand before them."""
        stands = list(range(len(self.up)))
        for at in self.parents_first:
            above = self.up[at]
            if above >= 0 and stands[above] >= at:
                stands[at] = stands[above]
                sketch, parent = self.work.sketches[at], self.work.sketches[above]
                self.work.change(at).behind = above
                what = f"it stands before its parent on line {parent.line:,}"
                self.work.found(sketch.line, "order", what, "moved behind it")
