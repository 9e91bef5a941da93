"""What the steps of a repair share: a few words of each line, and what becomes of it."""

from __future__ import annotations

from holdfast.formats.repair.tools import Sketch
from holdfast.formats.repair.values import Change, Finding, What


class Work:
    """A repair in the making. Lines are named by their place among the good ones."""

    def __init__(self) -> None:
        self.sketches: list[Sketch] = []
        self.changes: dict[int, Change] = {}
        self.findings: list[Finding] = []

    def found(self, line: int, kind: What, what: str, done: str) -> None:
        """Take down a finding."""
        self.findings.append(Finding(line, kind, what, done))

    def change(self, place: int) -> Change:
        """Return what becomes of a line, to be written into."""
        return self.changes.setdefault(place, Change())

    def drop(self, place: int, kind: What, what: str) -> None:
        """Leave a line out."""
        self.change(place).gone = what
        self.found(self.sketches[place].line, kind, what, "left out")

    def is_gone(self, place: int) -> bool:
        """Return whether a line is left out."""
        change = self.changes.get(place)
        return change is not None and bool(change.gone)

    def sorted(self) -> tuple[Finding, ...]:
        """Return what was found in the order of the file."""
        return tuple(sorted(self.findings, key=lambda one: one.line))
