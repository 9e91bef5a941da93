"""What is known of each model that a conversation asked: how it counts, and what overflows told of its window."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import to_builtins
from msgspec.structs import replace

from holdfast.state.calibration.calibration import Calibration, LearnedLimits, ModelStats
from holdfast.state.codec.reading import convert_value
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import NOTE_MODEL_STATS, NoteEntry

MAX_OTHER_MODELS = 8
"""[H] Models beside the one asked last of which a branch knows what they told: no conversation goes among more."""


def get_model_stats(state: ConversationState, model: str) -> ModelStats:
    """Return what is known of ``model``, asked last or before; where either has no name it is taken to be the last."""
    last = ModelStats(
        state.last_request.model,
        state.last_request.configured_window,
        state.usage.calibration,
        state.usage.learned_limits,
    )
    if (
        state.last_request.model == model
        or not model
        or (state.last_request.seen_count and not state.last_request.model)
    ):
        return last
    match = next(
        (stats for stats in state.usage.other_model_stats if stats.model == model),
        ModelStats(model) if state.last_request.model else last,
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
    own, other_stats = (
        _find_model_stats(state.last_request.model, every),
        [stats for stats in every if stats.model != state.last_request.model],
    )
    return replace(
        state,
        last_request=replace(state.last_request, configured_window=own.window),
        usage=replace(
            state.usage,
            calibration=own.calibration,
            learned_limits=own.learned_limits,
            other_model_stats=tuple(other_stats[-MAX_OTHER_MODELS:]),
        ),
    )


def switch_model(state: ConversationState, model: str, window: int) -> ConversationState:
    """Return the branch with what is known of ``model`` in force, which is asked next; that of the last is put aside.

    No count of another model's is a measure of it: the newest of its own is. What overflows told is old once another
    ``window`` was configured.
    """
    if model != state.last_request.model:
        every = _list_model_stats(state)
        state = replace_model_stats(
            replace(
                state,
                last_request=replace(state.last_request, model=model),
                usage=replace(state.usage, measured_request=_find_model_stats(model, every).measured_request),
            ),
            every,
        )
    is_other = 0 < state.last_request.configured_window != window > 0
    return replace(
        state,
        last_request=replace(state.last_request, configured_window=window),
        usage=replace(
            state.usage,
            learned_limits=_keep_form_flags(state.usage.learned_limits) if is_other else state.usage.learned_limits,
        ),
    )


def forget_learned_limits(state: ConversationState) -> ConversationState:
    """Return the branch without what overflows told of any model; how each counts stands."""
    aside = tuple(
        replace(stats, learned_limits=_keep_form_flags(stats.learned_limits)) for stats in state.usage.other_model_stats
    )
    return replace(
        state,
        usage=replace(
            state.usage, learned_limits=_keep_form_flags(state.usage.learned_limits), other_model_stats=aside
        ),
    )


def apply_server_format_note(state: ConversationState, note: NoteEntry) -> ConversationState:
    """Return the branch knowing of the model asked last which form its server wants, as ``note`` says."""
    limits = replace(
        state.usage.learned_limits,
        fixes_client_content=note.data.get("mends") is True,
        validates_client_content=note.data.get("judges") is True,
    )
    return replace(state, usage=replace(state.usage, learned_limits=limits))


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
    is_told = replace(last, window=0) != ModelStats(state.last_request.model)
    return (
        (*state.usage.other_model_stats, last)
        if state.last_request.model and is_told
        else state.usage.other_model_stats
    )


def _get_last_model_stats(state: ConversationState) -> ModelStats:
    return ModelStats(
        state.last_request.model,
        state.last_request.configured_window,
        state.usage.calibration,
        state.usage.learned_limits,
        state.usage.measured_request,
    )


def _find_model_stats(model: str, every: Sequence[ModelStats]) -> ModelStats:
    return next((stats for stats in every if stats.model == model), ModelStats(model))
