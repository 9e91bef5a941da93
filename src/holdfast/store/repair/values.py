"""What was wrong in a store, and what was done about it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Kind = Literal["file", "entry", "parent", "session", "index", "blob"]
"""What was damaged, a closed list."""


class Mended(Struct, frozen=True, omit_defaults=True):
    """One thing that was wrong."""

    kind: Kind
    what: str
    done: str
    session: str = ""
    entry: str = ""


class Repaired(Struct, frozen=True, omit_defaults=True):
    """A store that was looked through, and put right where something was found."""

    file: str
    found: tuple[Mended, ...] = ()
    entries: int = 0
    """How many entries were looked at."""
    backup: str = ""
    """The file as it was, where it was changed."""

    @property
    def is_fine(self) -> bool:
        """Whether nothing was wrong."""
        return not self.found
