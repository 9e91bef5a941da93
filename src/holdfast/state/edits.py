"""Edits: the only way in which a request differs from what the log says."""

from __future__ import annotations

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Part
from holdfast.state.dialect import Dialect


class Span(Struct, frozen=True, omit_defaults=True):
    """Messages ``start`` to ``stop`` (exclusive) of a history, or part ``part`` of message ``start``.

    Indexes count messages from the root of the log, so they mean the same after a restart.
    """

    start: int
    stop: int
    part: int | None = None

    @property
    def end(self) -> int:
        """The number after the last message that it concerns: message ``start`` always is one, whatever ``stop`` is."""
        return max(self.stop, self.start + 1)

    def covers(self, number: int) -> bool:
        """Return whether it concerns message ``number``."""
        return self.start <= number < self.end


class Edit(Struct, frozen=True, omit_defaults=True, rename={"replacement": "put", "blob_hash": "blob"}):
    """Replaces a span of messages, or one part of a message, by ``replacement``."""

    span: Span
    replacement: tuple[Message | Part, ...] = ()
    rule: str = ""
    why: str = ""
    saves: int = 0
    """Estimator tokens that the edit frees (negative when it adds some)."""
    blob_hash: str = ""
    """Content hash of the stored text that the replacement stands for; empty if nothing was stored."""


class Blob(Struct, frozen=True):
    """A text to be stored under its content hash before any entry names it."""

    hash: str
    text: str


class NormalizedPrefix(
    Struct,
    frozen=True,
    rename={"next_index": "slot", "normalization": "repairs", "orphan_result_ids": "orphans", "sent_call_ids": "ids"},
):
    """A prefix of the projection that was normalized before, so that the next request normalizes only the rest."""

    dialect: Dialect
    next_index: int
    """Index in the history of the first message after the prefix."""
    position: int
    """Position of that message in the projection."""
    normalization: tuple[Edit, ...] = ()
    orphan_result_ids: frozenset[str] = frozenset()
    """Ids of results in the prefix that answer no call in it; a call that follows may be theirs."""
    sent_call_ids: frozenset[str] = frozenset()
    """Ids under which calls of the prefix are sent, if the API wants ids to be unique."""
