"""How compactions of opencode and Claude Code treat the turn that they interrupt.

After an overflow the kept tail begins at the user's newest message, which is repeated without its media: they may be
what was too large, and a message that waits for its answer must not disappear in a summary. If that message cannot be
kept, and whenever an automatic compaction cuts a turn, the summary ends with a sentence that tells the model to go on,
since nothing else in the request does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec.structs import replace

from holdfast.messages.message import Message, collect_media_in_messages
from holdfast.messages.parts import Text
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.extract.client_notes import split_client_notes
from holdfast.planning.extract.previous_summary import iter_user_texts
from holdfast.planning.presets.common.reserve_trigger import ReserveTriggerRules
from holdfast.planning.settings import describe
from holdfast.planning.stages.media import build_media_edits
from holdfast.planning.stages.tail_selection import find_answer_with_unread_results, find_tail_cut_points
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import TRIGGER_REPLAY, CompactionEntry

CONTINUE_INSTRUCTION = (
    "Go on with the next steps if there are any; if something is unclear, or nothing is left to do, stop and ask."
)
"""Last text after the summary of an automatic compaction that cut a turn. As opencode does it; the wording is ours."""
MEDIA_REMOVED_TEXT = (
    "Images or documents were taken out of the conversation because they did not fit. If one of them is needed, say"
    " so and ask for a smaller one."
)
"""Stands before ``CONTINUE_INSTRUCTION``, as in opencode, but only if the compaction hid media."""
_MEDIA_REMOVED_AND_CONTINUE = f"{MEDIA_REMOVED_TEXT}\n\n{CONTINUE_INSTRUCTION}"
_REPLAY_REASON = "the request was refused as too large: the message is repeated without its media"


class OverflowReplayRules(ReserveTriggerRules, frozen=True):
    """Repeat the user's newest message after an overflow; tell the model to go on with a turn that was cut."""

    overflow_replay: Annotated[
        bool,
        describe(
            "[C] After an overflow, keep the user's newest message without its media, and everything after it: the "
            "media may be what was too large."
        ),
    ] = True
    auto_continue: Annotated[
        bool,
        describe(
            "[C] After an automatic compaction that cuts a turn, tell the model to continue: nothing else in the "
            "request does. The hook auto_continue may refuse it."
        ),
    ] = True

    def find_replayed_message(self, builder: PlanBuilder) -> int | None:
        """Return the index of the user message that a compaction after an overflow repeats, or None.

        There must be something before it to summarize. It is repeated once between two answers: if the request is
        refused again, doing the same a second time gains nothing.
        """
        state = builder.state
        if not self._is_overflow_replay(builder) or _has_replayed(state):
            return None
        newest = find_newest_user_content_index(state, state.view.first_kept)
        if newest > state.view.first_kept and newest in find_tail_cut_points(state):
            return newest
        return None

    def order_overflow_cuts(self, builder: PlanBuilder, cut_points: Sequence[int]) -> list[int]:
        """Return where a compaction after an overflow may cut: at the repeated message, then at unread results.

        ``cut_points`` are those of the tool's own rule. They come last, since they may summarize results that the model
        has not read.
        """
        if not self._is_overflow_replay(builder):
            return list(cut_points)
        state = builder.state
        legal_cuts = find_tail_cut_points(state)
        start, stop = state.view.first_kept, len(state.history.sized_messages)
        candidates = (self.find_replayed_message(builder), find_answer_with_unread_results(state))
        preferred_cuts = []
        for index in candidates:
            if index is not None and start < index < stop and index in legal_cuts:
                preferred_cuts.append(index)
        if _has_replayed(state) and _is_tail_unanswered(state):
            return preferred_cuts  # any other cut would summarize the message that waits for its answer
        return list(dict.fromkeys([*preferred_cuts, *cut_points]))

    def explain_useless_cut(
        self,
        before: PlanBuilder,
        after: PlanBuilder,
        cut_points: Sequence[int],
    ) -> str:
        """Return why a cut after an overflow is not made (no gain, or a later one helps), or an empty string."""
        if not self._is_overflow_replay(before):
            return ""
        tokens_after, tokens_before = after.estimated_tokens, before.estimated_tokens
        if tokens_after >= tokens_before:
            return f"the request would not get smaller: {tokens_after:,} tokens instead of {tokens_before:,}"
        is_last = after.state.view.first_kept == cut_points[-1]
        if not is_last and after.upper_estimate > before.budget.usable:
            return f"still too large: {after.upper_estimate:,} tokens where {before.budget.usable:,} fit"
        return ""

    def finish_compaction(self, builder: PlanBuilder, compaction: CompactionEntry) -> CompactionEntry:
        """Add edits that replace the media of the repeated message, if ``compaction`` repeats one."""
        if compaction.first_kept != self.find_replayed_message(builder):
            return compaction
        edits = build_media_edits(builder, compaction.first_kept, _REPLAY_REASON)
        return replace(compaction, edits=edits, trigger=TRIGGER_REPLAY)

    def build_continue_text(self, builder: PlanBuilder, keep: int) -> str:
        """Return the sentence that tells the model to go on after a summary of all before ``keep``.

        It is empty if somebody asked for the compaction, if a hook refuses it, or if no turn is cut.
        """
        inputs = builder.inputs
        is_manual = inputs.force_compaction and inputs.overflow_step != "compact"
        if not self.auto_continue or not inputs.can_auto_continue or is_manual:
            return ""
        if not _is_turn_cut(builder.state, keep):
            return ""
        if _is_media_hidden(builder.state, keep):
            return _MEDIA_REMOVED_AND_CONTINUE
        return CONTINUE_INSTRUCTION

    def has_continue_text(self, compaction: CompactionEntry) -> bool:
        """Return whether the summary of ``compaction`` ends with the text of ``build_continue_text``."""
        if compaction.summary is None or not compaction.summary.parts:
            return False
        last_part = compaction.summary.parts[-1]
        return isinstance(last_part, Text) and last_part.text in {CONTINUE_INSTRUCTION, _MEDIA_REMOVED_AND_CONTINUE}

    def _is_overflow_replay(self, builder: PlanBuilder) -> bool:
        """Return whether this compaction follows an overflow, with replay switched on."""
        return self.overflow_replay and builder.inputs.overflow_step == "compact"


def find_newest_user_content_index(state: ConversationState, start: int) -> int:
    """Return the index, from ``start`` on, of the newest message with a user's own content, or -1."""
    for index in range(len(state.history.sized_messages) - 1, start - 1, -1):
        if _has_user_content(state.history.messages[index]):
            return index
    return -1


def _has_user_content(message: Message) -> bool:
    """Return whether a message holds a user's words or media; notes and summaries of a client do not count."""
    if not message.is_turn_start:
        return False
    text = "\n".join(iter_user_texts([message]))
    return bool(split_client_notes(text).own_words) or bool(collect_media_in_messages(message))


def _has_replayed(state: ConversationState) -> bool:
    """Return whether the newest compaction repeated a message, and no answer came since."""
    if not state.counters.compactions_since_answer:
        return False
    compaction = state.view.compaction
    return compaction is not None and compaction.trigger == TRIGGER_REPLAY


def _is_tail_unanswered(state: ConversationState) -> bool:
    """Return whether the kept tail holds user messages only."""
    return all(message.role == "user" for message in state.history.messages.slice(state.view.first_kept))


def _is_turn_cut(state: ConversationState, keep: int) -> bool:
    """Return whether a compaction at ``keep`` summarizes the request that the agent is working on."""
    last = state.history.messages[len(state.history.messages) - 1]
    is_turn_over = last.role == "assistant" and not last.calls
    return not is_turn_over and find_newest_user_content_index(state, state.view.pinned_count) < keep


def _is_media_hidden(state: ConversationState, keep: int) -> bool:
    """Return whether a compaction at ``keep`` hides media that are shown now."""
    return any(state.view.first_kept <= index < keep for index in state.view.media_indexes)
