"""The tree that the lines of a file make, without holes: each parent is there, and stands where the tool needs it."""

from __future__ import annotations

from holdfast.formats.common.log import order_parents_first
from holdfast.formats.repair.repair_lines import RepairWork
from holdfast.formats.repair.tools import RepairTool


class RepairTree:
    """Parents by place (-1: none), holes closed and circles opened."""

    def __init__(self, work: RepairWork, tool: RepairTool) -> None:
        self.work = work
        self.tool = tool
        self.missing_parents: list[int] = []
        """Lines whose parent is not in the file, and which hang on another now."""
        self.positions: dict[str, int] = {}
        for at, sketch in enumerate(work.summaries):
            if sketch.id is not None:
                self.positions.setdefault(sketch.id, at)
        self.parents = self._resolve_parents()
        order, cycle_starts = order_parents_first(self.parents)
        self.parents_first = order
        """All places, parents first."""
        for at in cycle_starts:
            work.get_change(at).set_fields[tool.parent_field] = None
            work.add_finding(
                work.summaries[at].line, "circle", "its parents form a circle", "it begins a branch of its own"
            )

    def _resolve_parents(self) -> list[int]:
        """Return the parent of each line; where that is not in the file, the line of its conversation before it."""
        up: list[int] = []
        firm: list[bool] = []
        """Whether all above a line stands before it, so that what comes later can hang on it without a circle."""
        before: dict[str, int] = {}
        chains: set[str] = set()
        for at, sketch in enumerate(self.work.summaries):
            parent = -1 if sketch.parent is None else self.positions.get(sketch.parent, -2)
            if parent == -2:
                parent = before.get(sketch.conversation, -1)
                if sketch.conversation in chains and sketch.id is not None:  # else it goes on from another file
                    self.missing_parents.append(at)
            up.append(parent if sketch.id is not None else -1)
            firm.append(parent < at and (parent < 0 or firm[parent]))
            if sketch.id is not None:
                chains.add(sketch.conversation)
                if firm[at]:
                    before[sketch.conversation] = at
        return up

    def _find_kept_ancestor(self, at: int) -> int:
        """Return the nearest line above ``at`` that stays."""
        above = self.parents[at]
        while above >= 0 and self.work.is_dropped(above):
            above = self.parents[above]
        return above

    def relink_dropped(self) -> None:
        """Hang what hung on lines that are left out on what those hung on."""
        for at, above in enumerate(self.parents):
            if above >= 0 and self.work.is_dropped(above) and not self.work.is_dropped(at):
                self._set_parent(at, self._find_kept_ancestor(at))
        for at in self.missing_parents:
            if not self.work.is_dropped(at):
                self._close_gap(at)

    def _set_parent(self, at: int, parent: int) -> None:
        self.parents[at] = parent
        self.work.get_change(at).set_fields[self.tool.parent_field] = (
            self.work.summaries[parent].id if parent >= 0 else None
        )

    def _close_gap(self, at: int) -> None:
        """Hang a line whose parent is missing on the one that was found for it."""
        sketch, parent = self.work.summaries[at], self.parents[at]
        self._set_parent(at, parent)
        above = self.work.summaries[parent]
        now = f"it hangs on {above.id} now, on line {above.line:,}" if parent >= 0 else "it begins the conversation now"
        self.work.add_finding(sketch.line, "parent", f"its parent {sketch.parent} is not in the file", now)

    def order_parents_first_in_file(self) -> None:
        """Move lines behind their parents that stand before them."""
        stands = list(range(len(self.parents)))
        for at in self.parents_first:
            above = self.parents[at]
            if above >= 0 and stands[above] >= at:
                stands[at] = stands[above]
                sketch, parent = self.work.summaries[at], self.work.summaries[above]
                self.work.get_change(at).move_behind = above
                message = f"it stands before its parent on line {parent.line:,}"
                self.work.add_finding(sketch.line, "order", message, "moved behind it")
