"""What the compactions of opencode and Claude Code do about the turn that they interrupt.

After an overflow the kept tail begins at the user's newest message, which is said again without its media: they may be
what was too large, and a message that waits for its answer must not be lost in a summary. Where the newest message
cannot be kept, and whenever an automatic compaction cuts a turn, the summary ends with a sentence that tells the model
to go on: nothing else in the request does.
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
"""[C] The last words behind the summary of an automatic compaction that cut a turn; the wording is ours."""
MEDIA_REMOVED_TEXT = (
    "Images or documents were taken out of the conversation because they did not fit. If one of them is needed, say"
    " so and ask for a smaller one."
)
"""[C] Stands before ``CONTINUE_INSTRUCTION``, but only where the compaction took media out of sight."""
_MEDIA_REMOVED_AND_CONTINUE = f"{MEDIA_REMOVED_TEXT}\n\n{CONTINUE_INSTRUCTION}"
_REPLAY_REASON = "the request was refused as too large: the message is said again without its media"


class OverflowReplayRules(ReserveTriggerRules, frozen=True):
    """After an overflow the newest message of the user is said again; a cut turn is told to go on."""

    overflow_replay: Annotated[
        bool,
        describe(
            "[C] A compaction after an overflow keeps the user's newest message, less its media, and what follows it: "
            "the media may be what was too large."
        ),
    ] = True
    auto_continue: Annotated[
        bool,
        describe(
            "[C] An automatic compaction that cuts a turn ends with a sentence to go on: nothing else in the request "
            "says so. A hook may refuse it."
        ),
    ] = True

    def find_replayed_message(self, builder: PlanBuilder) -> int | None:
        """Return the index of the user message that a compaction after an overflow says again, or None.

        There must be something before it to summarize, and it happens once between two answers: a message that was
        said again and refused once more gains nothing by a second time.
        """
        state = builder.state
        if not self._is_overflow_replay(builder) or _has_replayed(state):
            return None
        newest = find_newest_user_content_index(state, state.view.first_kept)
        return newest if newest > state.view.first_kept and newest in find_tail_cut_points(state) else None

    def order_overflow_cuts(self, builder: PlanBuilder, cut_points: Sequence[int]) -> list[int]:
        """Return where a compaction after an overflow may cut: at the message to be said again, else at unread results.

        ``cut_points`` are those of the tool's own rule; they come last, since they may fold what the model has not
        read.
        """
        if not self._is_overflow_replay(builder):
            return list(cut_points)
        state = builder.state
        legal = find_tail_cut_points(state)
        start, stop = state.view.first_kept, len(state.history.sized_messages)
        wanted = (self.find_replayed_message(builder), find_answer_with_unread_results(state))
        first = [place for place in wanted if place is not None and start < place < stop and place in legal]
        if _has_replayed(state) and _is_tail_unanswered(state):
            return first
        return list(dict.fromkeys([*first, *cut_points]))

    def explain_useless_cut(self, before: PlanBuilder, after: PlanBuilder, cut_points: Sequence[int]) -> str:
        """Return why a cut after an overflow is not made: it is no help, or a later place leaves less."""
        if not self._is_overflow_replay(before):
            return ""
        left, had = after.estimated_tokens, before.estimated_tokens
        if left >= had:
            return f"{left:,} tokens would be left of {had:,}: it would not get smaller"
        is_last = after.state.view.first_kept == cut_points[-1]
        if not is_last and after.upper_estimate > before.budget.usable:
            return f"{after.upper_estimate:,} tokens would be left, and {before.budget.usable:,} can be used"
        return ""

    def finish_compaction(self, builder: PlanBuilder, compaction: CompactionEntry) -> CompactionEntry:
        """Return ``compaction`` with the media of the message that it says again as words; any other unchanged."""
        if compaction.first_kept != self.find_replayed_message(builder):
            return compaction
        edits = build_media_edits(builder, compaction.first_kept, _REPLAY_REASON)
        return replace(compaction, edits=edits, trigger=TRIGGER_REPLAY)

    def build_continue_text(self, builder: PlanBuilder, keep: int) -> str:
        """Return what tells the model to go on behind a summary of all before ``keep``; mostly nothing.

        Nothing where somebody asked for the compaction, where a hook does not want it, and where no turn is cut.
        """
        inputs = builder.inputs
        is_manual = inputs.force_compaction and inputs.overflow_step != "compact"
        if not self.auto_continue or not inputs.can_auto_continue or is_manual:
            return ""
        if not _is_turn_cut(builder.state, keep):
            return ""
        return _MEDIA_REMOVED_AND_CONTINUE if _is_media_hidden(builder.state, keep) else CONTINUE_INSTRUCTION

    def has_continue_text(self, compaction: CompactionEntry) -> bool:
        """Return whether the summary of ``compaction`` ends with what ``build_continue_text`` returns."""
        last = compaction.summary.parts[-1] if compaction.summary is not None and compaction.summary.parts else None
        return isinstance(last, Text) and last.text in {CONTINUE_INSTRUCTION, _MEDIA_REMOVED_AND_CONTINUE}

    def _is_overflow_replay(self, builder: PlanBuilder) -> bool:
        """Return whether this compaction answers an overflow, under a policy that says the newest message again."""
        return self.overflow_replay and builder.inputs.overflow_step == "compact"


def find_newest_user_content_index(state: ConversationState, start: int) -> int:
    """Return the slot of the newest message in which a user really says something, from slot ``start`` on, or -1."""
    slots = range(len(state.history.sized_messages) - 1, start - 1, -1)
    return next((slot for slot in slots if _has_user_content(state.history.messages[slot])), -1)


def _has_user_content(message: Message) -> bool:
    """Return whether a user speaks, or shows something: notes and summaries of a client are neither."""
    if not message.is_turn_start:
        return False
    words = "\n".join(iter_user_texts([message]))
    return bool(split_client_notes(words)[0]) or bool(collect_media_in_messages(message))


def _has_replayed(state: ConversationState) -> bool:
    """Return whether the newest compaction said a message again, and no answer came since."""
    compaction = state.view.compaction
    return (
        state.counters.compactions_since_answer > 0 and compaction is not None and compaction.trigger == TRIGGER_REPLAY
    )


def _is_tail_unanswered(state: ConversationState) -> bool:
    """Return whether the kept tail is what a user said last, and nothing of the agent's."""
    return all(message.role == "user" for message in state.history.messages.slice(state.view.first_kept))


def _is_turn_cut(state: ConversationState, keep: int) -> bool:
    """Return whether a compaction at ``keep`` folds the words that the agent is at work on."""
    last = state.history.messages[len(state.history.messages) - 1]
    is_done = last.role == "assistant" and not last.calls
    return not is_done and find_newest_user_content_index(state, state.view.pinned_count) < keep


def _is_media_hidden(state: ConversationState, keep: int) -> bool:
    return any(state.view.first_kept <= slot < keep for slot in state.view.media_indexes)
