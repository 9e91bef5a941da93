"""The findings of a repair of a store."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

DamageKind = Literal["file", "entry", "parent", "session", "index", "blob"]
"""The kinds of damage, a closed list."""


class StoreRepairFinding(Struct, frozen=True, omit_defaults=True):
    """One defect of the store, and its repair."""

    kind: DamageKind
    problem: str
    action: str
    session_key: str = ""
    entry_id: str = ""


class StoreRepairReport(Struct, frozen=True, omit_defaults=True):
    """The result of checking a store, and repairing it if something was found."""

    file: str
    findings: tuple[StoreRepairFinding, ...] = ()
    entry_count: int = 0
    """Number of entries checked."""
    backup: str = ""
    """Path of the backup made before the file was changed; empty if it was not."""

    @property
    def is_undamaged(self) -> bool:
        """Whether no damage was found."""
        return not self.findings
