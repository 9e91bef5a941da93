"""The plan: what to do before the next request."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Blob, Edit
from holdfast.state.entries import CompactionEntry


class SummaryRequest(Struct, frozen=True):
    """A summary the planner needs before it can go on: of messages ``start`` to ``stop``, which it will replace."""

    start: int
    stop: int
    max_tokens: int
    """How long it may be, in tokens of the model."""
    previous_summary: str = ""
    """The summary in force, to be updated; ``start`` is then the first message that it does not cover."""
    is_replay: bool = False
    """Whether the user's newest message is repeated after the summary, without its media."""


class PlanOptions(Struct, frozen=True, omit_defaults=True):
    """What Holdfast sets on the request apart from its messages."""

    max_tokens: int | None = None
    max_tokens_field: str = ""
    """The field for it, if the request has none yet; empty for the API's own. See ``Dialect.max_tokens_field``."""
    cache_breakpoints: tuple[int, ...] = ()
    """Positions in the projected message list whose last part carries a cache breakpoint. They are ordered by worth:
    if the request has no room for all of them, the last ones are left out."""
    inner_breakpoint: tuple[int, int] | None = None
    """One of these positions, and the number of parts of its message that the breakpoint there stands after: it is in
    the message, and not at its end. The parts after it are those that the next compaction makes anew."""
    setup_breakpoint: bool = False
    """Whether the end of the setup (tools and system prompt) carries a breakpoint too."""


class Notice(Struct, frozen=True, omit_defaults=True):
    """Something the caller should know: ``rule`` is its name, ``why`` the text with its numbers."""

    rule: str
    why: str


class Plan(Struct, frozen=True):
    """What to do before the next request. An empty plan is common and means that the bytes pass through."""

    state: ConversationState
    """The state with this plan recorded; pass it into the next call."""
    record: tuple[Edit, ...] = ()
    """Edits that last. They are appended verbatim as one ``decision`` entry before the send; the later of two edits of
    one part wins."""
    compaction: CompactionEntry | None = None
    """A compaction to append before the send, as one entry."""
    normalization: tuple[Edit, ...] = ()
    """Edits that make this one projection valid; recomputed each time, never stored."""
    options: PlanOptions = PlanOptions()
    blobs: tuple[Blob, ...] = ()
    """Texts to store before the entry that names them."""
    summary_request: SummaryRequest | None = None
    """A summary to be made first. Then plan again with it as ``PlanInputs.summary``, or, if it failed, without
    ``PlanInputs.can_summarize``.

    Plan again from the state that this plan began with, not from ``state``: that one leaves out messages only to bridge
    the wait.
    """
    window: int = 0
    """The window that was planned for, in tokens: as configured, capped, or learned from an overflow."""
    before: int = 0
    """Estimated tokens of the request without this plan's new decisions."""
    after: int = 0
    """Estimated tokens of the request as planned."""
    notices: tuple[Notice, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the plan changes nothing: no decision, no normalization, no summary to ask for."""
        return not (self.record or self.normalization or self.compaction or self.summary_request)


def mark_compaction_manual(plan: Plan) -> Plan:
    """Return ``plan`` with its compaction, if any, marked as one that somebody asked for."""
    compaction = plan.compaction
    if compaction is None:
        return plan
    return replace(plan, compaction=replace(compaction, trigger="manual"))
