"""What a repair found in a session file, and what it does about it."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

What = Literal[
    "torn", "welded", "encoding", "characters", "no object", "no line end",
    "orphan", "duplicate", "unanswered", "parent", "circle", "order",
]  # fmt: skip
"""The kinds of damage, a closed list: of lines, and of what the lines say together."""


class Finding(Struct, frozen=True):
    """One thing that is not as it should be, and what is done about it."""

    line: int
    """Its number in the damaged file, counted from 1."""
    kind: What
    what: str
    done: str


class Dropped(Struct, frozen=True):
    """Bytes that are not in the repaired file, where they stood, and why."""

    line: int
    why: str
    raw: bytes


class Change(Struct):
    """What becomes of one line. ``gone`` says why it is left out; ``behind`` is the line it is moved behind."""

    put: dict[str, Any] = {}
    """Fields that are set anew."""
    without: frozenset[str] = frozenset()
    """Calls whose results are taken out of it."""
    gone: str = ""
    behind: int | None = None
    answers: tuple[str, ...] = ()
    """Calls that get an error result on a line of its own behind this one."""
    named: str = ""
    """The id of that line."""


class Survey(Struct, frozen=True):
    """All that a file needs: ``changes`` by the place of a line among the good ones."""

    format: str
    findings: tuple[Finding, ...] = ()
    changes: dict[int, Change] = {}
    reason: str = ""
    """Why nothing is rewritten although something was found, or nothing."""

    @property
    def is_fine(self) -> bool:
        """Whether the file is to stay as it is, byte for byte."""
        return not self.findings and not self.reason


class Repaired(Struct, frozen=True):
    """A file after its repair: ``data`` is what it should hold, which is what it held if it is fine."""

    data: bytes
    survey: Survey
    dropped: tuple[Dropped, ...] = ()
