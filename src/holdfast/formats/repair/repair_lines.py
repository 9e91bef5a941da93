"""The state that the steps of a repair share: a summary of each line, and the changes to it."""

from __future__ import annotations

from holdfast.formats.repair.findings import DamageKind, LineChange, RepairFinding
from holdfast.formats.repair.tools import LineSummary


class RepairWork:
    """Findings and changes so far. Lines are referred to by their position among the readable ones."""

    def __init__(self) -> None:
        self.summaries: list[LineSummary] = []
        self.changes: dict[int, LineChange] = {}
        self.findings: list[RepairFinding] = []

    def add_finding(self, line: int, kind: DamageKind, description: str, repair: str) -> None:
        """Record a finding of line number ``line``."""
        self.findings.append(RepairFinding(line, kind, description, repair))

    def get_change(self, position: int) -> LineChange:
        """Return the changes to a line, for the caller to add to."""
        return self.changes.setdefault(position, LineChange())

    def drop_line(self, position: int, kind: DamageKind, description: str) -> None:
        """Leave a line out of the repaired file, and record why."""
        self.get_change(position).drop_reason = description
        self.add_finding(self.summaries[position].line, kind, description, "left out")

    def is_dropped(self, position: int) -> bool:
        """Return whether a line is left out."""
        change = self.changes.get(position)
        return change is not None and bool(change.drop_reason)

    def get_sorted_findings(self) -> tuple[RepairFinding, ...]:
        """Return the findings in the order of the file."""
        return tuple(sorted(self.findings, key=lambda finding: finding.line))
