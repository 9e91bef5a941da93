"""What is known of each model that a conversation asked: how it counts, and what overflows told of its window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from holdfast.state.calibration.calibration import Calibration, LearnedLimits, MeasuredRequest
from holdfast.state.codec.reading import convert_value
from holdfast.state.entries import NOTE_MODEL_STATS, NoteEntry

if TYPE_CHECKING:
    from holdfast.state.branch.branch import ConversationState

MAX_OTHER_MODELS = 8
"""[H] Models beside the one asked last of which a branch knows what they told: no conversation goes among more."""


class ModelStats(
    Struct,
    frozen=True,
    omit_defaults=True,
    rename={"calibration": "gauge", "learned_limits": "learned", "measured_request": "measured"},
):
    """What was told of one model, in the window that was configured for it: it counts when that is asked again."""

    model: str
    window: int = 0
    """As ``Request.window`` of the newest request to it."""
    calibration: Calibration = Calibration()
    learned_limits: LearnedLimits = LearnedLimits()
    measured_request: MeasuredRequest | None = None
    """As of the branch: of another one no count is a measure."""


def get_model_stats(state: ConversationState, model: str) -> ModelStats:
    """Return what is known of ``model``, asked last or before; where either has no name it is taken to be the last."""
    last = ModelStats(state.model, state.configured_window, state.calibration, state.learned_limits)
    if state.model == model or not model or (state.seen_count and not state.model):
        return last
    match = next(
        (stats for stats in state.other_model_stats if stats.model == model), ModelStats(model) if state.model else last
    )
    return replace(match, measured_request=None)


def list_nonempty_model_stats(state: ConversationState) -> tuple[ModelStats, ...]:
    """Return what is known of each model that told anything, the one asked last at the end, whatever branch it is.

    What waits for the next answer is not of it: that may be another model's, or one to another request.
    """
    every = [replace(stats, measured_request=None) for stats in _list_model_stats(state)]
    return tuple(
        [stats for stats in every if (stats.calibration, stats.learned_limits) != (Calibration(), LearnedLimits())]
    )


def replace_model_stats(state: ConversationState, every: Sequence[ModelStats]) -> ConversationState:
    """Return the branch knowing of models what ``every`` says and no more."""
    own, other_stats = _find_model_stats(state.model, every), [stats for stats in every if stats.model != state.model]
    return replace(
        state,
        configured_window=own.window,
        calibration=own.calibration,
        learned_limits=own.learned_limits,
        other_model_stats=tuple(other_stats[-MAX_OTHER_MODELS:]),
    )


def switch_model(state: ConversationState, model: str, window: int) -> ConversationState:
    """Return the branch with what is known of ``model`` in force, which is asked next; that of the last is put aside.

    No count of another model's is a measure of it: the newest of its own is. What overflows told is old once another
    ``window`` was configured.
    """
    if model != state.model:
        every = _list_model_stats(state)
        state = replace_model_stats(
            replace(state, model=model, measured_request=_find_model_stats(model, every).measured_request), every
        )
    is_other = 0 < state.configured_window != window > 0
    return replace(
        state,
        configured_window=window,
        learned_limits=_keep_form_flags(state.learned_limits) if is_other else state.learned_limits,
    )


def forget_learned_limits(state: ConversationState) -> ConversationState:
    """Return the branch without what overflows told of any model; how each counts stands."""
    aside = tuple(
        replace(stats, learned_limits=_keep_form_flags(stats.learned_limits)) for stats in state.other_model_stats
    )
    return replace(state, learned_limits=_keep_form_flags(state.learned_limits), other_model_stats=aside)


def apply_server_format_note(state: ConversationState, note: NoteEntry) -> ConversationState:
    """Return the branch knowing of the model asked last which form its server wants, as ``note`` says."""
    limits = replace(
        state.learned_limits,
        fixes_client_content=note.data.get("mends") is True,
        validates_client_content=note.data.get("judges") is True,
    )
    return replace(state, learned_limits=limits)


def _keep_form_flags(limits: LearnedLimits) -> LearnedLimits:
    """Return what of ``limits`` is not of sizes."""
    return LearnedLimits(
        fixes_client_content=limits.fixes_client_content, validates_client_content=limits.validates_client_content
    )


def build_model_stats_note(state: ConversationState) -> NoteEntry:
    """Return the note by which another branch knows of models what this one does."""
    return NoteEntry(NOTE_MODEL_STATS, data={"models": to_builtins(list_nonempty_model_stats(state))})


def apply_model_stats_note(state: ConversationState, note: NoteEntry) -> ConversationState:
    """Return the branch knowing of models what ``build_model_stats_note`` says; the same branch where that cannot be
    read.
    """
    try:
        every = convert_value(note.data.get("models"), list[ModelStats])
    except (ValueError, TypeError):
        return state
    return replace_model_stats(state, every)


def _list_model_stats(state: ConversationState) -> tuple[ModelStats, ...]:
    """Return what is known of each model here, the one asked last at the end."""
    last = _get_last_model_stats(state)
    last = replace(last, learned_limits=replace(last.learned_limits, overflows_since_answer=0, doubted_tokens=0))
    is_told = replace(last, window=0) != ModelStats(state.model)
    return (*state.other_model_stats, last) if state.model and is_told else state.other_model_stats


def _get_last_model_stats(state: ConversationState) -> ModelStats:
    return ModelStats(
        state.model, state.configured_window, state.calibration, state.learned_limits, state.measured_request
    )


def _find_model_stats(model: str, every: Sequence[ModelStats]) -> ModelStats:
    return next((stats for stats in every if stats.model == model), ModelStats(model))
