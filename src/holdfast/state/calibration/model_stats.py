"""Statistics of each model that a conversation asked: how it counts tokens, and what overflows taught about its window.

The statistics of the model of the last request are spread over ``state.last_request`` and ``state.usage``, because
every estimate uses them. Those of other models wait in ``state.usage.other_model_stats`` until the model is asked
again.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import to_builtins
from msgspec.structs import replace

from holdfast.state.calibration.calibration import Calibration, LearnedLimits, MeasuredRequest, ModelStats
from holdfast.state.changed_options import MAX_CHANGED_OPTIONS, ChangedOption, find_new_options
from holdfast.state.codec.reading import convert_value
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import NOTE_MODEL_STATS, NoteEntry
from holdfast.state.field_lessons import MAX_FIELD_LESSONS, FieldLesson

MAX_OTHER_MODELS = 8
"""Number of models, beside the one asked last, whose statistics are kept.

It bounds the size of a state. No conversation we know of switches among more; one that does learns again from scratch.
"""


def get_model_stats(state: ConversationState, model: str) -> ModelStats:
    """Return the statistics of ``model``, without a measured request unless it was asked last.

    An empty model name, here or at the last request, is taken to mean the model asked last.
    """
    last = _get_last_model_stats(state)
    last_model = state.last_request.model
    is_last_unnamed = state.last_request.seen_count > 0 and not last_model
    if last_model == model or not model or is_last_unnamed:
        return replace(last, measured_request=None)
    for stats in state.usage.other_model_stats:
        if stats.model == model:
            return replace(stats, measured_request=None)
    if last_model:
        return ModelStats(model)
    # No request was sent yet, so the log does not name a model. Statistics that a note stored without a model name are
    # taken to be about the first model that is asked.
    return replace(last, measured_request=None)


def list_nonempty_model_stats(state: ConversationState) -> tuple[ModelStats, ...]:
    """Return the statistics of each model that taught anything, the one asked last at the end.

    They hold for any branch, so measured requests and counts that wait for confirmation are left out.
    """
    nothing = (Calibration(), LearnedLimits())
    nonempty = []
    for stats in _list_model_stats(state):
        if (stats.calibration, stats.learned_limits) != nothing:
            nonempty.append(stats)
    return tuple([replace(stats, measured_request=None) for stats in nonempty])


def replace_model_stats(state: ConversationState, all_stats: Sequence[ModelStats]) -> ConversationState:
    """Return the state with ``all_stats`` in place of everything known about models."""
    last_model = state.last_request.model
    own = _find_model_stats(last_model, all_stats)
    other_stats = [stats for stats in all_stats if stats.model != last_model]
    return replace(
        state,
        last_request=replace(state.last_request, configured_window=own.window),
        usage=replace(
            state.usage,
            calibration=own.calibration,
            learned_limits=own.learned_limits,
            # The first ones were left longest ago.
            other_model_stats=tuple(other_stats[-MAX_OTHER_MODELS:]),
        ),
    )


def switch_model(state: ConversationState, model: str, window: int) -> ConversationState:
    """Return the state for a request to ``model`` with ``window`` tokens configured: its statistics come into force.

    Those of the model asked before are put aside. Limits learned under another configured window are dropped: whoever
    changed the window knows better.
    """
    if model != state.last_request.model:
        all_stats = _list_model_stats(state)
        # Tokenizers differ, so only the model's own last measured request can be a base for its estimates.
        measured_request = _find_model_stats(model, all_stats).measured_request
        state = replace(
            state,
            last_request=replace(state.last_request, model=model),
            usage=replace(state.usage, measured_request=measured_request),
        )
        state = replace_model_stats(state, all_stats)
    learned_limits = state.usage.learned_limits
    is_other_window = 0 < state.last_request.configured_window != window > 0
    if is_other_window:
        learned_limits = _keep_form_flags(learned_limits)
    return replace(
        state,
        last_request=replace(state.last_request, configured_window=window),
        usage=replace(state.usage, learned_limits=learned_limits),
    )


def forget_learned_limits(state: ConversationState) -> ConversationState:
    """Return the state without the limits that overflows taught about any model; calibrations are kept."""
    other_stats = []
    for stats in state.usage.other_model_stats:
        other_stats.append(replace(stats, learned_limits=_keep_form_flags(stats.learned_limits)))
    learned_limits = _keep_form_flags(state.usage.learned_limits)
    return replace(
        state, usage=replace(state.usage, learned_limits=learned_limits, other_model_stats=tuple(other_stats))
    )


def apply_form_note(state: ConversationState, note: NoteEntry) -> ConversationState:
    """Return the state with the form of ``note`` for the server of the last model (``NOTE_FORM``)."""
    limits = replace(
        state.usage.learned_limits,
        requires_strict_form=note.data.get("mends") is True,
        requires_check=note.data.get("judges") is True,
    )
    return replace(state, usage=replace(state.usage, learned_limits=limits))


def apply_field_lessons_note(state: ConversationState, note: NoteEntry) -> ConversationState:
    """Return the state with the lessons of ``note`` (``NOTE_FIELDS``), or unchanged if they cannot be decoded."""
    try:
        lessons = convert_value(note.data.get("lessons"), tuple[FieldLesson, ...])
    except (ValueError, TypeError):
        return state
    limits = replace(state.usage.learned_limits, field_lessons=lessons[-MAX_FIELD_LESSONS:])
    return replace(state, usage=replace(state.usage, learned_limits=limits))


def apply_changed_options_note(state: ConversationState, note: NoteEntry) -> ConversationState:
    """Return the state with the options of ``note`` (``NOTE_OPTIONS``), or unchanged if they cannot be decoded."""
    try:
        options = convert_value(note.data.get("options"), tuple[ChangedOption, ...])
    except (ValueError, TypeError):
        return state
    known = state.usage.learned_limits.changed_options
    new_options = find_new_options(options, known)
    limits = replace(state.usage.learned_limits, changed_options=(*known, *new_options)[:MAX_CHANGED_OPTIONS])
    return replace(state, usage=replace(state.usage, learned_limits=limits))


def _keep_form_flags(limits: LearnedLimits) -> LearnedLimits:
    """Return only the part of ``limits`` that is about the form of requests and not about sizes."""
    return LearnedLimits(
        requires_strict_form=limits.requires_strict_form,
        requires_check=limits.requires_check,
        field_lessons=limits.field_lessons,
        changed_options=limits.changed_options,
    )


def build_model_stats_note(state: ConversationState, measured_request: MeasuredRequest | None = None) -> NoteEntry:
    """Build the note that carries this branch's statistics of models to another branch.

    ``measured_request`` is given if the other branch has that request too, with everything that it showed.
    """
    data = {"models": to_builtins(list_nonempty_model_stats(state))}
    if measured_request is not None:
        data["measured"] = to_builtins(measured_request)
    return NoteEntry(NOTE_MODEL_STATS, data=data)


def apply_model_stats_note(state: ConversationState, note: NoteEntry) -> ConversationState:
    """Return the state with the statistics of ``note`` in place of its own, or unchanged if they cannot be decoded."""
    try:
        all_stats = convert_value(note.data.get("models"), list[ModelStats])
        measured = note.data.get("measured")
        measured_request = None if measured is None else convert_value(measured, MeasuredRequest)
    except (ValueError, TypeError):
        return state
    state = replace_model_stats(state, all_stats)
    if measured_request is None:
        return state
    return replace(state, usage=replace(state.usage, measured_request=measured_request))


def _list_model_stats(state: ConversationState) -> tuple[ModelStats, ...]:
    """Return the statistics of all models, the one asked last at the end if it has a name and taught anything."""
    last = _get_last_model_stats(state)
    # These two wait for the next answer to this very request, so they must not be carried over to a later one.
    last = replace(last, learned_limits=replace(last.learned_limits, overflows_since_answer=0, doubted_tokens=0))
    has_evidence = replace(last, window=0) != ModelStats(last.model)
    if last.model and has_evidence:
        return (*state.usage.other_model_stats, last)
    return state.usage.other_model_stats


def _get_last_model_stats(state: ConversationState) -> ModelStats:
    return ModelStats(
        state.last_request.model,
        state.last_request.configured_window,
        state.usage.calibration,
        state.usage.learned_limits,
        state.usage.measured_request,
    )


def _find_model_stats(model: str, all_stats: Sequence[ModelStats]) -> ModelStats:
    for stats in all_stats:
        if stats.model == model:
            return stats
    return ModelStats(model)
