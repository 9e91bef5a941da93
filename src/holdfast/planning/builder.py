"""A draft: the branch as planned so far, and what the stages before decided."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from holdfast.planning.budget import Room
from holdfast.planning.settings import Settings
from holdfast.state.branch.branch import Branch, extend
from holdfast.state.calibration.token_estimate import cautious_ratio, estimate
from holdfast.state.edits import Blob, Edit
from holdfast.state.entries import AUTO, OVERFLOW, Compaction, Decision, Entry
from holdfast.state.plan import Ask, Notice
from holdfast.state.target import Target, World


class Draft(Struct, frozen=True, dict=True):
    """What one stage hands to the next. ``branch`` already shows every decision in ``record``."""

    branch: Branch
    target: Target
    settings: Settings
    world: World
    room: Room
    record: tuple[Edit, ...] = ()
    compaction: Compaction | None = None
    ask: Ask | None = None
    blobs: tuple[Blob, ...] = ()
    notices: tuple[Notice, ...] = ()
    full: int = 0
    """Tokens of messages that count as a full room, where a compaction is asked for before there is need; 0 = all."""

    def share(self, part: float) -> int:
        """Return ``part`` of the room that a compaction plans for."""
        return int(min(self.room.size, self.full or self.room.size) * part)

    def decide(self, edits: tuple[Edit, ...], blobs: tuple[Blob, ...] = ()) -> Draft:
        """Return the draft with ``edits`` decided."""
        if not edits:
            return self
        branch = extend(self.branch, Entry("", None, Decision(edits)))
        return replace(self, branch=branch, record=(*self.record, *edits), blobs=(*self.blobs, *blobs))

    def give_way(self, pairs: Iterable[tuple[Edit, Blob | None]]) -> Draft:
        """Return the draft with texts given way: each edit, and the whole text to be stored for it, if there is one."""
        held = list(pairs)
        return self.decide(tuple([edit for edit, _ in held]), tuple([blob for _, blob in held if blob is not None]))

    def compact(self, compaction: Compaction) -> Draft:
        """Return the draft with its head given way to a summary."""
        if self.world.rung and compaction.trigger == AUTO:
            compaction = replace(compaction, trigger=OVERFLOW)  # the log says what its event says
        branch = extend(self.branch, Entry("", None, compaction))
        return replace(self, branch=branch, compaction=compaction)

    def wait(self, ask: Ask) -> Draft:
        """Return the draft with a summary to be made before it can go on."""
        return replace(self, ask=ask)

    def note(self, rule: str, why: str) -> Draft:
        """Return the draft with one more thing to tell the caller."""
        return replace(self, notices=(*self.notices, Notice(rule, why)))

    @property
    def may_make_room(self) -> bool:
        """Whether something may give way for space: unasked, or because somebody or a refusal asks for it."""
        return self.settings.auto or self.world.force or bool(self.world.rung)

    @cached_property
    def estimate(self) -> int:
        """Tokens of the request as planned so far."""
        return estimate(self.branch, self.target)

    @cached_property
    def at_most(self) -> int:
        """The estimate with a margin on what no reported usage covers yet."""
        size, anchor = self.estimate, self.branch.anchor
        unsure = size - (anchor.tokens if anchor else self.room.frame)
        return size + int(self.settings.margin * max(0, unsure))

    @cached_property
    def scale(self) -> float:
        """Real tokens for one token of the estimator."""
        return cautious_ratio(self.branch, self.target)

    def own(self, tokens: float) -> int:
        """Return a number of real tokens in the estimator's tokens."""
        return int(tokens / self.scale)
