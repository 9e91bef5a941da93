"""The plan under construction: the state as planned so far, and the decisions of the stages that ran.

Every stage takes a ``PlanBuilder`` and returns it with decisions added. It is immutable, so a stage may try several
reductions on copies and keep the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.parts import Part
from holdfast.messages.text.text_cuts import hash_text
from holdfast.planning.budget import TokenBudget
from holdfast.planning.edit_checks import require_valid_edits
from holdfast.planning.lasting_options import find_options_in_force
from holdfast.planning.policy_rules import PolicyRules
from holdfast.planning.settings import Settings
from holdfast.state.calibration.token_estimate import estimate_request_tokens, get_planning_ratio
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Blob, Edit, Span
from holdfast.state.entries import TRIGGER_AUTO, TRIGGER_OVERFLOW, CompactionEntry, DecisionEntry, Entry
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.plan import Notice, SummaryRequest
from holdfast.state.target import PlanInputs, Target
from holdfast.state.view import get_valid_measured_request


class PlanBuilder(Struct, frozen=True, dict=True):
    """The plan under construction. ``state`` already shows every decision in ``record``."""

    state: ConversationState
    target: Target
    settings: Settings
    inputs: PlanInputs
    budget: TokenBudget
    rules: PolicyRules = PolicyRules()
    record: tuple[Edit, ...] = ()
    """The edits decided so far."""
    compaction: CompactionEntry | None = None
    summary_request: SummaryRequest | None = None
    """A summary that must be written before this plan can be finished."""
    blobs: tuple[Blob, ...] = ()
    """Texts to be stored before the edits that name them are recorded."""
    notices: tuple[Notice, ...] = ()
    assumed_full_tokens: int = 0
    """Real tokens of messages that a compaction plans for as if they were the whole budget, because it is asked for
    before there is need; 0 for the real budget."""
    restores_files: bool = True
    """Whether a compaction may show files again after its summary. The smallest request leaves them out."""

    def compute_compaction_share(self, part: float) -> int:
        """Return the share ``part`` (0 to 1) of the message budget that a compaction plans for, in tokens."""
        tokens = self.budget.message_tokens
        if self.assumed_full_tokens:
            tokens = min(tokens, self.assumed_full_tokens)
        return int(tokens * part)

    @property
    def pinned_tokens(self) -> int:
        """Estimator tokens of the system messages that stand before the conversation and stay."""
        pinned_messages = self.state.history.sized_messages.slice(0, self.state.view.pinned_count)
        return sum(sized_message.tokens for sized_message in pinned_messages)

    def add_edits(self, edits: Sequence[Edit], blobs: tuple[Blob, ...] = ()) -> PlanBuilder:
        """Return the builder with ``edits`` decided and ``blobs`` to be stored; the builder itself without edits.

        Raises ``TypeError`` for a value of a wrong type, and ``IndexError`` for a span outside the history.
        """
        if not edits:
            return self
        require_valid_edits(edits, self.state.history)
        state = apply_entry(self.state, Entry("", None, DecisionEntry(tuple(edits))))
        record = (*self.record, *edits)
        return replace(
            self,
            state=state,
            record=record,
            blobs=(*self.blobs, *blobs),
        )

    def replace_texts(self, pairs: Iterable[tuple[Edit, Blob | None]]) -> PlanBuilder:
        """Return the builder with edits decided that replace texts, each with the blob of its text if it is stored."""
        edits: list[Edit] = []
        blobs: list[Blob] = []
        for edit, blob in pairs:
            edits.append(edit)
            if blob is not None:
                blobs.append(blob)
        return self.add_edits(tuple(edits), tuple(blobs))

    def make_blob(self, text: str) -> Blob | None:
        """Return the blob of ``text``, or None if texts cannot be stored."""
        if self.inputs.can_spill:
            return Blob(hash_text(text), text)
        return None

    def add_compaction(self, compaction: CompactionEntry) -> PlanBuilder:
        """Return the builder with everything before ``compaction.first_kept`` replaced by its summary.

        Options that hidden messages set and that are still in force are stated again.
        """
        if self.inputs.overflow_step and compaction.trigger == TRIGGER_AUTO:
            # Recovery asked for it. The log and the event of the compaction then give the same reason.
            compaction = replace(compaction, trigger=TRIGGER_OVERFLOW)
        if compaction.native is None:  # a provider states them itself
            restated = find_options_in_force(self.state, compaction.first_kept)
            compaction = replace(compaction, restated=restated)
        state = apply_entry(self.state, Entry("", None, compaction))
        return replace(self, state=state, compaction=compaction)

    def request_summary(self, request: SummaryRequest) -> PlanBuilder:
        """Return the builder with a summary to be written before it can be finished."""
        return replace(self, summary_request=request)

    def add_notice(self, rule: str, why: str) -> PlanBuilder:
        """Return the builder with one more notice for the caller."""
        return replace(self, notices=(*self.notices, Notice(rule, why)))

    @property
    def can_reduce(self) -> bool:
        """Whether content may be reduced for space: unasked, or because the caller or recovery asks for it."""
        return self.settings.compaction.auto or self.inputs.force_compaction or bool(self.inputs.overflow_step)

    @property
    def has_summary_writer(self) -> bool:
        """Whether a model or a hook can write the summary, or has written it."""
        return self.inputs.can_summarize or self.inputs.summary is not None

    @cached_property
    def estimated_tokens(self) -> int:
        """Estimated tokens of the request as planned so far."""
        return estimate_request_tokens(self.state, self.target)

    @cached_property
    def upper_estimate(self) -> int:
        """The estimate with a margin on the tokens that no reported usage covers yet."""
        measured_request = get_valid_measured_request(self.state)
        known_tokens = self.budget.setup_tokens
        if measured_request is not None:
            known_tokens = measured_request.reported_tokens
        # Only our own count can be too low: what the provider reported needs no margin.
        estimated_part = max(0, self.estimated_tokens - known_tokens)
        return self.estimated_tokens + int(self.settings.window.estimate_margin_share * estimated_part)

    @cached_property
    def token_ratio(self) -> float:
        """Real tokens for one token of the estimator."""
        return get_planning_ratio(self.state, self.target)

    def to_estimator_tokens(self, tokens: float) -> int:
        """Convert a number of real tokens, such as a share of the budget, into tokens of the estimator."""
        return int(tokens / self.token_ratio)


def build_part_edit(
    message_index: int,
    part_index: int,
    replacement: Part | None,
    rule: str,
    why: str,
    saves: int,
    blob_hash: str = "",
) -> Edit:
    """Return the edit that shows ``replacement`` in place of one part of a message; None removes the part.

    ``saves`` is in estimator tokens, negative if the replacement is larger. ``blob_hash`` names the stored text behind
    it.
    """
    span = Span(message_index, message_index + 1, part_index)
    parts = () if replacement is None else (replacement,)
    return Edit(span, parts, rule, why, saves, blob_hash)


def sum_saved_tokens(pairs: Iterable[tuple[Edit, Blob | None]]) -> int:
    """Return the estimator tokens that edits save together; ``pairs`` are edits with their blobs."""
    return sum(edit.saves for edit, _ in pairs)
