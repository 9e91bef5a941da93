"""Edits: the only way in which a request differs from the log."""

from __future__ import annotations

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Part
from holdfast.state.dialect import Dialect


class Span(Struct, frozen=True, omit_defaults=True):
    """Slots ``start`` to ``stop`` (exclusive) of a branch, or part ``part`` of slot ``start``.

    Numbers count the message entries from the root of the branch, so they mean the same after a restart.
    """

    start: int
    stop: int
    part: int | None = None


class Edit(Struct, frozen=True, omit_defaults=True, rename={"replacement": "put", "blob_hash": "blob"}):
    """A span of slots, or one part of one slot, replaced by ``replacement``. The only kind of edit there is."""

    span: Span
    replacement: tuple[Message | Part, ...] = ()
    rule: str = ""
    why: str = ""
    saves: int = 0
    """Estimator tokens that the edit frees (negative when it adds some)."""
    blob_hash: str = ""
    """Content hash of the text that stands behind the replacement, if it was spilled."""


class Blob(Struct, frozen=True):
    """A text to be stored under its content hash before any record names it."""

    hash: str
    text: str


class NormalizedPrefix(
    Struct,
    frozen=True,
    rename={"next_index": "slot", "normalization": "repairs", "orphan_result_ids": "orphans", "sent_call_ids": "ids"},
):
    """A prefix of the projection whose repairs are known: they need not be looked for again."""

    dialect: Dialect
    next_index: int
    """First slot that is not settled."""
    position: int
    """Where that slot stands in the projection."""
    normalization: tuple[Edit, ...] = ()
    orphan_result_ids: frozenset[str] = frozenset()
    """Ids of its results that answer no call in it: a call that comes later may be theirs."""
    sent_call_ids: frozenset[str] = frozenset()
    """Ids that its calls are sent under, where the API wants each of them once."""
