"""What was wrong in a store, and what was done about it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

DamageKind = Literal["file", "entry", "parent", "session", "index", "blob"]
"""What was damaged, a closed list."""


class StoreRepairFinding(Struct, frozen=True, omit_defaults=True):
    """One thing that was wrong."""

    kind: DamageKind
    problem: str
    action: str
    session_key: str = ""
    entry_id: str = ""


class StoreRepairReport(Struct, frozen=True, omit_defaults=True):
    """A store that was looked through, and put right where something was found."""

    file: str
    findings: tuple[StoreRepairFinding, ...] = ()
    entry_count: int = 0
    """How many entries were looked at."""
    backup: str = ""
    """The file as it was, where it was changed."""

    @property
    def is_undamaged(self) -> bool:
        """Whether nothing was wrong."""
        return not self.findings
