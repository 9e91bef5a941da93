"""The tree that the lines of a file form: missing parents are replaced, cycles cut, parents moved before children."""

from __future__ import annotations

from holdfast.formats.common.log import order_parents_first
from holdfast.formats.repair.repair_lines import RepairWork
from holdfast.formats.repair.tools import RepairTool


class RepairTree:
    """The parent of each line, by position (-1: none), after missing parents are replaced and cycles are cut."""

    def __init__(self, work: RepairWork, tool: RepairTool) -> None:
        self.work = work
        self.tool = tool
        self.missing_parents: list[int] = []
        """Positions of lines whose parent is not in the file, and which have another parent now."""
        self.positions: dict[str, int] = {}
        for position, summary in enumerate(work.summaries):
            if summary.id is not None:
                self.positions.setdefault(summary.id, position)
        self.parents = self._resolve_parents()
        order, cycle_starts = order_parents_first(self.parents)
        self.parents_first = order
        """All positions, parents before children."""
        for position in cycle_starts:
            work.get_change(position).set_fields[tool.parent_field] = None
            line = work.summaries[position].line
            work.add_finding(line, "circle", "its parents form a circle", "it begins a branch of its own")

    def _resolve_parents(self) -> list[int]:
        """Return the parent of each line; if it is not in the file, the line of the conversation before it."""
        missing = -2
        parents: list[int] = []
        # Whether all ancestors of a line precede it in the file. Only such a line can replace a missing parent:
        # otherwise its ancestors might come to include the line that is attached to it, which is a cycle.
        has_earlier_ancestors: list[bool] = []
        last_lines: dict[str, int] = {}
        conversations: set[str] = set()
        for position, summary in enumerate(self.work.summaries):
            parent = -1
            if summary.parent is not None:
                parent = self.positions.get(summary.parent, missing)
            if parent == missing:
                parent = last_lines.get(summary.conversation, -1)
                # The first line of a conversation may continue another file: its parent is there, and stays.
                if summary.conversation in conversations and summary.id is not None:
                    self.missing_parents.append(position)
            parents.append(parent if summary.id is not None else -1)
            is_anchored = parent < position and (parent < 0 or has_earlier_ancestors[parent])
            has_earlier_ancestors.append(is_anchored)
            if summary.id is not None:
                conversations.add(summary.conversation)
                if is_anchored:
                    last_lines[summary.conversation] = position
        return parents

    def _find_kept_ancestor(self, position: int) -> int:
        """Return the nearest ancestor that is not dropped, or -1."""
        ancestor = self.parents[position]
        while ancestor >= 0 and self.work.is_dropped(ancestor):
            ancestor = self.parents[ancestor]
        return ancestor

    def attach_children_of_dropped(self) -> None:
        """Give each child of a dropped line the nearest ancestor that stays as its parent."""
        for position, parent in enumerate(self.parents):
            is_cut_off = parent >= 0 and self.work.is_dropped(parent)
            if is_cut_off and not self.work.is_dropped(position):
                self._set_parent(position, self._find_kept_ancestor(position))

    def write_replaced_parents(self) -> None:
        """Write and report the parents that ``_resolve_parents`` chose for lines whose own parent is missing.

        Called after ``attach_children_of_dropped``, since a chosen parent may have been dropped.
        """
        for position in self.missing_parents:
            if not self.work.is_dropped(position):
                self._write_replaced_parent(position)

    def _set_parent(self, position: int, parent: int) -> None:
        self.parents[position] = parent
        parent_id = self.work.summaries[parent].id if parent >= 0 else None
        self.work.get_change(position).set_fields[self.tool.parent_field] = parent_id

    def _write_replaced_parent(self, position: int) -> None:
        """Write the parent that replaces the missing one of a line, and report it."""
        parent = self.parents[position]
        self._set_parent(position, parent)
        repair = "it begins the conversation now"
        if parent >= 0:
            parent_summary = self.work.summaries[parent]
            repair = f"it hangs on {parent_summary.id} now, on line {parent_summary.line:,}"
        summary = self.work.summaries[position]
        self.work.add_finding(
            summary.line,
            "parent",
            f"its parent {summary.parent} is not in the file",
            repair,
        )

    def order_parents_first_in_file(self) -> None:
        """Move lines that precede their parent in the file to a place after it."""
        # Where each line will be: a moved line counts as being where its parent is, so its children move too.
        new_positions = list(range(len(self.parents)))
        for position in self.parents_first:
            parent = self.parents[position]
            if parent < 0 or new_positions[parent] < position:
                continue
            new_positions[position] = new_positions[parent]
            self.work.get_change(position).move_behind = parent
            line = self.work.summaries[position].line
            message = f"it is before its parent on line {self.work.summaries[parent].line:,}"
            self.work.add_finding(line, "order", message, "moved after it")
