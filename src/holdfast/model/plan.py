"""What a planner decides: edits, and the plan that holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from holdfast.model.messages import Message
from holdfast.model.parts import Part

if TYPE_CHECKING:
    from holdfast.model.branch import Branch


class Span(Struct, frozen=True, omit_defaults=True):
    """Slots ``start`` to ``stop`` (exclusive) of a branch, or part ``part`` of slot ``start``.

    Numbers count the message entries from the root of the branch, so they mean the same after a restart.
    """

    start: int
    stop: int
    part: int | None = None


class Edit(Struct, frozen=True, omit_defaults=True):
    """A span of slots, or one part of one slot, replaced by ``put``. The only kind of edit there is."""

    span: Span
    put: tuple[Message | Part, ...] = ()
    rule: str = ""
    why: str = ""
    saves: int = 0
    """Estimator tokens that the edit frees (negative when it adds some)."""
    blob: str = ""
    """Content hash of the text that stands behind the replacement, if it was spilled."""


class Blob(Struct, frozen=True):
    """A text to be stored under its content hash before any record names it."""

    hash: str
    text: str


class Ask(Struct, frozen=True):
    """A summary the planner wants from a model before it can go on: the head to cover and the cap in tokens."""

    stop: int
    cap: int
    anchor: str = ""


class Options(Struct, frozen=True, omit_defaults=True):
    """What Holdfast sets on the request beside its messages."""

    max_tokens: int | None = None
    markers: tuple[int, ...] = ()
    """Positions in the projected message list that carry a cache breakpoint, behind their last part."""
    frame_marker: bool = False
    """Whether the end of the frame (tools and system) carries a breakpoint too."""


class Notice(Struct, frozen=True, omit_defaults=True):
    """Something the caller should know: ``rule`` names it, ``why`` says it with its numbers."""

    rule: str
    why: str


class Plan(Struct, frozen=True):
    """What to do before the next request. An empty plan is common and means "bytes pass through"."""

    branch: Branch
    """The branch with this plan recorded; pass it into the next call."""
    record: tuple[Edit, ...] = ()
    """Edits that last: appended verbatim as one ``decision`` entry before the send."""
    compaction: object | None = None
    """The ``Compaction`` to commit before the send, if there is one."""
    repair: tuple[Edit, ...] = ()
    """Edits that make this one projection valid; recomputed each time, never stored."""
    options: Options = Options()
    blobs: tuple[Blob, ...] = ()
    """Texts to store before the record that names them."""
    ask: Ask | None = None
    before: int = 0
    """Estimated tokens of the request without this plan's new decisions."""
    after: int = 0
    """Estimated tokens of the request as planned."""
    notices: tuple[Notice, ...] = field(default=())

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes: no new decision, no repair, nothing to ask."""
        return not (self.record or self.repair or self.compaction or self.ask)
