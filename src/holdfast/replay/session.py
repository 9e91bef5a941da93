"""What replay needs of a recorded session: messages in order, which are answers of the model, when, and what they cost."""

from __future__ import annotations

from msgspec import Struct

from holdfast.model.entries import Usage
from holdfast.model.slots import Slot


class Step(Struct, frozen=True):
    """One answer of the model: slot ``index`` of the session."""

    index: int
    at: int | None = None
    """Milliseconds since 1970, if recorded."""
    usage: Usage | None = None
    after_compaction: bool = False
    """Whether the recording tool compacted since the step before."""


class Session(Struct, frozen=True):
    """A recorded session with its compactions undone."""

    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    model: str = ""
