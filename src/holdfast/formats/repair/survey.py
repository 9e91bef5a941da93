"""The first pass over a session file: it finds the damage and decides the change to each line.

A line is forgotten when the next one is read; only a small summary of it stays. So the memory needed does not grow
with the size of the messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from holdfast.formats.repair.damaged_lines import LineInspection, ObjectPiece, inspect_lines
from holdfast.formats.repair.findings import DamageKind, RepairFinding, RepairSurvey
from holdfast.formats.repair.ordinals import number_lines_on
from holdfast.formats.repair.pairs import pair_results_in_order, pair_results_in_tree
from holdfast.formats.repair.repair_lines import RepairWork
from holdfast.formats.repair.tools import LineSummary, RepairTool
from holdfast.formats.repair.trees import RepairTree

NO_HEADER_REASON = "its first line is no session header"
"""Why nothing is rewritten if the tool requires a header and there is none: it would not open the file anyway."""
NOTHING_LEFT_REASON = "no line of it would be left"
"""Why nothing is rewritten if all lines are damaged: as it is, the file may be worth more than an empty one."""
_REPAIR_OF_DAMAGE = {
    "torn": "left out",
    "welded": "parted",
    "encoding": "U+FFFD in its place",
    "characters": "U+FFFD or null in its place",
    "no object": "left out",
}
_LEFT_AS_IT_IS = "left as it is"


def survey_session_file(raws: Iterable[bytes], tool: RepairTool) -> RepairSurvey:
    """Return the findings of a file of ``tool`` and the changes to its lines, which are given with their line ends."""
    survey_pass = _SurveyPass(tool)
    for line in inspect_lines(raws, tool.is_line):
        survey_pass.add_line(line)
    return survey_pass.finish_survey()


class _SurveyPass:
    """Collects findings and summaries line by line."""

    def __init__(self, tool: RepairTool) -> None:
        self.tool = tool
        self.work = RepairWork()
        self.has_header: bool | None = None
        """Whether the first object is the header; None before the first object."""
        self._seen: dict[bytes, int] = {}
        """Position of the first line with each digest."""
        self._unterminated: LineInspection | None = None
        """The newest line if it has no line end."""

    def add_line(self, line: LineInspection) -> None:
        """Take one line into account."""
        if line.damage is not None:
            self.work.add_finding(line.number, line.damage, line.description, _describe_line_repair(line))
        for piece in line.pieces:
            self._add_piece(line.number, piece)
        is_intact = bool(line.pieces) and line.damage is None
        self._unterminated = line if is_intact and not line.raw.endswith(b"\n") else None

    def _add_piece(self, number: int, piece: ObjectPiece) -> None:
        tool = self.tool
        value = piece.value
        if self.has_header is None:
            self.has_header = tool.is_header is None or (value is not None and tool.is_header(value))
        summary = LineSummary(number) if value is None else tool.summarize_line(number, value)
        self.work.summaries.append(summary)
        # Where lines have ids and parents, the tree tells copies apart. Elsewhere only a line that cannot be written
        # twice on purpose, by its time or id, may be taken for a copy.
        is_sequence = tool.needs_order and not tool.parent_field
        if is_sequence and summary.is_message and summary.is_unique:
            self._drop_if_copy(piece.raw)

    def _drop_if_copy(self, raw: bytes) -> None:
        """Drop the newest line if an earlier one has the same bytes."""
        position = len(self.work.summaries) - 1
        first = self._seen.setdefault(blake2b(raw, digest_size=16).digest(), position)
        if first != position:
            line = self.work.summaries[first].line
            self.work.drop_line(position, "duplicate", f"the line is a copy of line {line:,}")

    def finish_survey(self) -> RepairSurvey:
        """Check how the lines fit together, and return the survey."""
        work = self.work
        tool = self.tool
        if self._unterminated is not None:
            message = "the last line has no line end: the next one would be welded to it"
            work.add_finding(self._unterminated.number, "no line end", message, "added")
        if tool.is_header is not None and not self.has_header:
            return self._give_up(NO_HEADER_REASON)
        if tool.parent_field:
            tree = RepairTree(work, tool)
            pair_results_in_tree(tree)
            # Last: dropped lines have changed the parents by now.
            if tool.needs_order:
                tree.order_parents_first_in_file()
        elif tool.needs_order:
            pair_results_in_order(work)
            number_lines_on(work)
        if all(map(work.is_dropped, range(len(work.summaries)))):
            return self._give_up(NOTHING_LEFT_REASON)
        return RepairSurvey(tool.name, work.get_sorted_findings(), work.changes)

    def _give_up(self, reason: str) -> RepairSurvey:
        """Return the findings without any changes, and the reason for that."""
        findings = []
        for finding in self.work.get_sorted_findings():
            findings.append(RepairFinding(finding.line, finding.kind, finding.description, _LEFT_AS_IT_IS))
        return RepairSurvey(self.tool.name, tuple(findings), {}, reason)


def _describe_line_repair(line: LineInspection) -> str:
    """Return how a damaged line is repaired."""
    kind: DamageKind = line.damage or "torn"
    if kind == "welded" and line.loses_bytes:
        return "the half is left out"
    if kind == "encoding" and not line.loses_bytes:
        return "taken away"
    return _REPAIR_OF_DAMAGE[kind]
