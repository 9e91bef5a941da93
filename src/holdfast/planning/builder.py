"""A draft: the branch as planned so far, and what the stages before decided."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from holdfast.planning.budget import TokenBudget
from holdfast.planning.policy_rules import PolicyRules
from holdfast.planning.settings import Settings
from holdfast.state.calibration.token_estimate import estimate_request_tokens, get_planning_ratio
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Blob, Edit
from holdfast.state.entries import FAILURE_OVERFLOW, TRIGGER_AUTO, CompactionEntry, DecisionEntry, Entry
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.plan import Notice, SummaryRequest
from holdfast.state.target import PlanInputs, Target
from holdfast.state.view import get_valid_measured_request


class PlanBuilder(Struct, frozen=True, dict=True):
    """What one stage hands to the next. ``state`` already shows every decision in ``record``."""

    state: ConversationState
    target: Target
    settings: Settings
    inputs: PlanInputs
    budget: TokenBudget
    rules: PolicyRules = PolicyRules()
    record: tuple[Edit, ...] = ()
    compaction: CompactionEntry | None = None
    summary_request: SummaryRequest | None = None
    blobs: tuple[Blob, ...] = ()
    notices: tuple[Notice, ...] = ()
    assumed_full_tokens: int = 0
    """Tokens of messages that count as a full room, where a compaction is asked for before there is need; 0 = all."""
    restores_files: bool = True
    """Whether a compaction may show files again behind its summary; the smallest request does not."""

    def compute_compaction_share(self, part: float) -> int:
        """Return ``part`` of the room that a compaction plans for."""
        return int(min(self.budget.message_tokens, self.assumed_full_tokens or self.budget.message_tokens) * part)

    def add_edits(self, edits: tuple[Edit, ...], blobs: tuple[Blob, ...] = ()) -> PlanBuilder:
        """Return the draft with ``edits`` decided."""
        if not edits:
            return self
        state = apply_entry(self.state, Entry("", None, DecisionEntry(edits)))
        return replace(self, state=state, record=(*self.record, *edits), blobs=(*self.blobs, *blobs))

    def replace_texts(self, pairs: Iterable[tuple[Edit, Blob | None]]) -> PlanBuilder:
        """Return the draft with texts given way: each edit, and the whole text to be stored for it, if there is one."""
        edit_pairs = list(pairs)
        return self.add_edits(
            tuple([edit for edit, _ in edit_pairs]), tuple([blob for _, blob in edit_pairs if blob is not None])
        )

    def add_compaction(self, compaction: CompactionEntry) -> PlanBuilder:
        """Return the draft with its head given way to a summary."""
        if self.inputs.overflow_step and compaction.trigger == TRIGGER_AUTO:
            compaction = replace(compaction, trigger=FAILURE_OVERFLOW)  # the log says what its event says
        state = apply_entry(self.state, Entry("", None, compaction))
        return replace(self, state=state, compaction=compaction)

    def request_summary(self, ask: SummaryRequest) -> PlanBuilder:
        """Return the draft with a summary to be made before it can go on."""
        return replace(self, summary_request=ask)

    def add_notice(self, rule: str, why: str) -> PlanBuilder:
        """Return the draft with one more thing to tell the caller."""
        return replace(self, notices=(*self.notices, Notice(rule, why)))

    @property
    def can_reduce(self) -> bool:
        """Whether something may give way for space: unasked, or because somebody or a refusal asks for it."""
        return self.settings.compaction.auto or self.inputs.force_compaction or bool(self.inputs.overflow_step)

    @property
    def has_summary_writer(self) -> bool:
        """Whether a model or a hook writes the summaries, or wrote this one."""
        return self.inputs.can_summarize or self.inputs.summary is not None

    @cached_property
    def estimated_tokens(self) -> int:
        """Tokens of the request as planned so far."""
        return estimate_request_tokens(self.state, self.target)

    @cached_property
    def upper_estimate(self) -> int:
        """The estimate with a margin on what no reported usage covers yet."""
        size, measured_request = self.estimated_tokens, get_valid_measured_request(self.state)
        unsure = size - (measured_request.reported_tokens if measured_request else self.budget.setup_tokens)
        return size + int(self.settings.window.estimate_margin_share * max(0, unsure))

    @cached_property
    def token_ratio(self) -> float:
        """Real tokens for one token of the estimator."""
        return get_planning_ratio(self.state, self.target)

    def to_estimator_tokens(self, tokens: float) -> int:
        """Return a number of real tokens in the estimator's tokens."""
        return int(tokens / self.token_ratio)
