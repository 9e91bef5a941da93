"""What a repair found in a session file, and what it does about it."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

DamageKind = Literal[
    "torn", "welded", "encoding", "characters", "no object", "no line end",
    "orphan", "duplicate", "unanswered", "parent", "circle", "order",
]  # fmt: skip
"""The kinds of damage, a closed list: of lines, and of what the lines say together."""


class RepairFinding(Struct, frozen=True):
    """One thing that is not as it should be, and what is done about it."""

    line: int
    """Its number in the damaged file, counted from 1."""
    kind: DamageKind
    description: str
    repair: str


class DroppedBytes(Struct, frozen=True):
    """Bytes that are not in the repaired file, where they stood, and why."""

    line: int
    reason: str
    raw: bytes


class LineChange(Struct):
    """What becomes of one line. ``drop_reason`` says why it is left out; ``move_behind`` is the line it is moved
    behind.
    """

    set_fields: dict[str, Any] = {}
    """Fields that are set anew."""
    removed_results: frozenset[str] = frozenset()
    """Calls whose results are taken out of it."""
    drop_reason: str = ""
    move_behind: int | None = None
    added_results: tuple[str, ...] = ()
    """Calls that get an error result on a line of its own behind this one."""
    added_id: str = ""
    """The id of that line."""


class RepairSurvey(Struct, frozen=True):
    """All that a file needs: ``changes`` by the place of a line among the good ones."""

    format: str
    findings: tuple[RepairFinding, ...] = ()
    changes: dict[int, LineChange] = {}
    reason: str = ""
    """Why nothing is rewritten although something was found, or nothing."""

    @property
    def is_fine(self) -> bool:
        """Whether the file is to stay as it is, byte for byte."""
        return not self.findings and not self.reason


class RepairedFile(Struct, frozen=True):
    """A file after its repair: ``data`` is what it should hold, which is what it held if it is fine."""

    data: bytes
    survey: RepairSurvey
    dropped_lines: tuple[DroppedBytes, ...] = ()
