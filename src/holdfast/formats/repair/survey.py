"""A first walk over a session file: what is wrong with it, and what becomes of each line.

What a line holds is forgotten when the next one is read; a few words of each stay. So the size of a file costs nothing
but time.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from holdfast.formats.repair.damaged_lines import LineInspection, ObjectPiece, inspect_lines
from holdfast.formats.repair.findings import DamageKind, RepairFinding, RepairSurvey
from holdfast.formats.repair.pairs import pair_results_in_order, pair_results_in_tree
from holdfast.formats.repair.repair_lines import RepairWork
from holdfast.formats.repair.tools import LineSummary, RepairTool
from holdfast.formats.repair.trees import RepairTree

NO_HEADER_REASON = "its first line is no session header"
"""Why nothing of a file is rewritten whose tool wants a header: without one the tool does not open it."""
NOTHING_LEFT_REASON = "no line of it would be left"
"""Why nothing of a file is rewritten of which all is damaged: it may be worth more as it is than an empty one."""
_REPAIR_OF_DAMAGE = {
    "torn": "left out",
    "welded": "parted",
    "encoding": "U+FFFD in its place",
    "characters": "U+FFFD or null in its place",
    "no object": "left out",
}
_LEFT_AS_IT_IS = "left as it is"


def survey_session_file(raws: Iterable[bytes], tool: RepairTool) -> RepairSurvey:
    """Return what a file of ``tool`` needs, its lines given with their ends."""
    look = _SurveyPass(tool)
    for line in inspect_lines(raws, tool.is_line):
        look.add_line(line)
    return look.finish_survey()


class _SurveyPass:
    """The walk."""

    def __init__(self, tool: RepairTool) -> None:
        self.tool = tool
        self.work = RepairWork()
        self.header: bool | None = None
        """Whether the first object is the header; nothing before there is one."""
        self._seen: dict[bytes, int] = {}
        self._open: LineInspection | None = None
        """The newest line, where it has no end."""

    def add_line(self, line: LineInspection) -> None:
        """Take one line into account."""
        if line.damage is not None:
            self.work.add_finding(line.number, line.damage, line.description, _describe_line_repair(line))
        for piece in line.pieces:
            self._add_piece(line.number, piece)
        self._open = line if line.pieces and line.damage is None and not line.raw.endswith(b"\n") else None

    def _add_piece(self, number: int, piece: ObjectPiece) -> None:
        value, tool = piece.value, self.tool
        if self.header is None:
            self.header = tool.is_header is None or (value is not None and tool.is_header(value))
        sketch = LineSummary(number) if value is None else tool.summarize_line(number, value)
        self.work.summaries.append(sketch)
        if tool.needs_order and not tool.parent_field and sketch.is_message and sketch.is_unique:
            self._drop_if_copy(piece.raw)

    def _drop_if_copy(self, raw: bytes) -> None:
        """Leave a line out that says again, byte for byte, what an earlier one says, its time or id included."""
        place = len(self.work.summaries) - 1
        first = self._seen.setdefault(blake2b(raw, digest_size=16).digest(), place)
        if first != place:
            line = self.work.summaries[first].line
            self.work.drop_line(place, "duplicate", f"the line is a copy of line {line:,}")

    def finish_survey(self) -> RepairSurvey:
        """Return what was found."""
        work, tool = self.work, self.tool
        if self._open is not None:
            message = "the last line has no line end: the next one would be welded to it"
            work.add_finding(self._open.number, "no line end", message, "added")
        if tool.is_header is not None and not self.header:
            return self._give_up(NO_HEADER_REASON)
        if tool.parent_field:
            tree = RepairTree(work, tool)
            pair_results_in_tree(tree)
            if tool.needs_order:
                tree.order_parents_first_in_file()
        elif tool.needs_order:
            pair_results_in_order(work)
        if all(map(work.is_dropped, range(len(work.summaries)))):
            return self._give_up(NOTHING_LEFT_REASON)
        return RepairSurvey(tool.name, work.get_sorted_findings(), work.changes)

    def _give_up(self, reason: str) -> RepairSurvey:
        """Return what was found, where nothing is done about it."""
        findings = tuple(
            RepairFinding(finding.line, finding.kind, finding.description, _LEFT_AS_IT_IS)
            for finding in self.work.get_sorted_findings()
        )
        return RepairSurvey(self.tool.name, findings, {}, reason)


def _describe_line_repair(line: LineInspection) -> str:
    """Return what is done about a damaged line."""
    kind: DamageKind = line.damage or "torn"
    if kind == "welded" and line.loses_bytes:
        return "the half is left out"
    if kind == "encoding" and not line.loses_bytes:
        return "taken away"
    return _REPAIR_OF_DAMAGE[kind]
