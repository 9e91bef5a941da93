"""The findings of a repair of a session file, and the changes that it makes."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

DamageKind = Literal[
    "torn", "welded", "encoding", "characters", "no object", "no line end",
    "orphan", "duplicate", "unanswered", "parent", "circle", "order",
    "ordinal", "index",
]  # fmt: skip
"""The kinds of damage, a closed list: first those of single lines, then those of lines that do not fit together.

``index`` is of databases alone.
"""


class RepairFinding(Struct, frozen=True):
    """One defect of the file, and its repair."""

    line: int
    """Line number in the damaged file, counted from 1; 0 in a database."""
    kind: DamageKind
    description: str
    repair: str


class DroppedBytes(Struct, frozen=True):
    """Bytes that are left out of the repaired file, with their line and the reason."""

    line: int
    reason: str
    raw: bytes


class LineChange(Struct):
    """The changes to one line."""

    set_fields: dict[str, Any] = {}
    """Fields with new values."""
    removed_results: frozenset[str] = frozenset()
    """Ids of the calls whose results are removed from the line."""
    drop_reason: str = ""
    """Why the line is left out; empty if it stays."""
    move_behind: int | None = None
    """Position of the line after which this one is moved."""
    added_results: tuple[str, ...] = ()
    """Ids of calls for which a line with error results is added after this one."""
    added_id: str = ""
    """Id of that added line."""


class RepairSurvey(Struct, frozen=True):
    """The findings of a file, and ``changes`` by the position of a line among the readable ones."""

    format: str
    findings: tuple[RepairFinding, ...] = ()
    changes: dict[int, LineChange] = {}
    reason: str = ""
    """Why nothing is rewritten in spite of the findings; empty if the file is rewritten or has none."""

    @property
    def is_fine(self) -> bool:
        """Whether the file stays as it is, byte for byte."""
        return not self.findings and not self.reason


class RepairedFile(Struct, frozen=True):
    """A file after its repair: ``data`` is the repaired content, or the same bytes if nothing had to be changed."""

    data: bytes
    survey: RepairSurvey
    dropped_lines: tuple[DroppedBytes, ...] = ()
