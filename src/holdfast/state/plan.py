"""The plan: what to do before the next request."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Blob, Edit
from holdfast.state.entries import CompactionEntry


class SummaryRequest(Struct, frozen=True):
    """A summary the planner wants before it can go on: of slots ``start`` to ``stop``, which give way to it."""

    start: int
    stop: int
    max_tokens: int
    """Real tokens it may have."""
    previous_summary: str = ""
    """The summary in force, to be brought up to date; ``start`` is then the first slot that it does not cover."""
    is_replay: bool = False
    """Whether the user's newest message is said again behind it, without its media."""


class PlanOptions(Struct, frozen=True, omit_defaults=True):
    """What Holdfast sets on the request beside its messages."""

    max_tokens: int | None = None
    cache_breakpoints: tuple[int, ...] = ()
    """Positions in the projected message list that carry a cache breakpoint, behind their last part; where there is
    no room for all, the first ones go first."""
    setup_breakpoint: bool = False
    """Whether the end of the frame (tools and system) carries a breakpoint too."""


class Notice(Struct, frozen=True, omit_defaults=True):
    """Something the caller should know: ``rule`` names it, ``why`` says it with its numbers."""

    rule: str
    why: str


class Plan(Struct, frozen=True):
    """What to do before the next request. An empty plan is common and means "bytes pass through"."""

    state: ConversationState
    """The branch with this plan recorded; pass it into the next call."""
    record: tuple[Edit, ...] = ()
    """Edits that last: appended verbatim as one ``decision`` entry before the send; of two for one part, the later is
    sent."""
    compaction: CompactionEntry | None = None
    """To commit before the send, as one record."""
    normalization: tuple[Edit, ...] = ()
    """Edits that make this one projection valid; recomputed each time, never stored."""
    options: PlanOptions = PlanOptions()
    blobs: tuple[Blob, ...] = ()
    """Texts to store before the record that names them."""
    summary_request: SummaryRequest | None = None
    """A summary to be made first: plan again with it as ``PlanInputs.summary``, or without
    ``PlanInputs.can_summarize``.

    From the branch that this plan began with: what ``state`` leaves out to bridge the wait would stay left out.
    """
    window: int = 0
    """Tokens of the window that was planned for: as told, capped, or as an overflow taught it."""
    before: int = 0
    """Estimated tokens of the request without this plan's new decisions."""
    after: int = 0
    """Estimated tokens of the request as planned."""
    notices: tuple[Notice, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes: no new decision, no repair, nothing to ask."""
        return not (self.record or self.normalization or self.compaction or self.summary_request)


def mark_compaction_manual(plan: Plan) -> Plan:
    """Return ``plan`` with its compaction told as one that somebody asked for: no request was too large."""
    compaction = plan.compaction
    return plan if compaction is None else replace(plan, compaction=replace(compaction, trigger="manual"))
