"""How large a request is, and what is in it: one measure for all commands, the one that decisions are made by."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast import config
from holdfast.config import Catalog, Configuration
from holdfast.planning import budget as guard
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings import Settings
from holdfast.providers.registry import API_NAMES
from holdfast.state.calibration.token_estimate import estimate_request_tokens, get_planning_ratio, is_last_model
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edit_map import EditMap
from holdfast.state.entries import AnswerEntry, CompactionEntry, DecisionEntry, Entry, FailureEntry, RequestEntry
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.target import Target
from holdfast.state.view import build_projection, get_projection_digest_at, get_valid_measured_request
from holdfast.store.base import SessionInfo


class RequestSize(Struct, frozen=True):
    """How large the request is that a branch makes now, in tokens of the model."""

    tokens: int
    setup_tokens: int
    """Of system prompt and tools, as far as they are known."""
    scale: float
    """Tokens for one of the estimator's, in messages: by what was counted so far, and no more than ``tokens`` hold."""
    is_counted: bool
    """Whether ``tokens`` are what the provider counted of just this request."""

    def scale_tokens(self, size: int) -> int:
        """Return the tokens of something that the estimator gives ``size``."""
        return round(self.scale * size)


ESTIMATOR_SIZE = RequestSize(0, 0, 1.0, is_counted=False)
"""The estimator's own tokens."""


def get_session_target(
    info: SessionInfo, state: ConversationState, model: str | None, window: int | None, catalog: Catalog
) -> Target:
    """Return where the next request of a stored session goes: to ``model``, or as it was recorded."""
    place = config.get_target(
        _get_state_api(state),
        model or state.last_request.model or info.model,
        window=window,
        setup=state.setup,
        catalog=catalog,
    )
    if window is not None or not state.last_request.configured_window or place.model != state.last_request.model:
        return place
    as_recorded = replace(
        place.limits, window=state.last_request.configured_window, window_source="as it was asked last"
    )
    return place if place.limits.window == state.last_request.configured_window else replace(place, limits=as_recorded)


def _get_state_api(state: ConversationState) -> str:
    """Return the API of the first message that came over one."""
    return next(
        (sized_message.api for sized_message in build_projection(state) if sized_message.api in API_NAMES), API_NAMES[0]
    )


def measure_request(state: ConversationState, target: Target, settings: Settings = Settings()) -> RequestSize:
    """Return how large the request is that ``state`` makes to ``target`` now."""
    target, measured_request = (
        guard.compute_effective_target(target, state, settings),
        get_valid_measured_request(state),
    )
    whole, frame, scale = (
        estimate_request_tokens(state, target),
        estimate_request_tokens(state, target, 0),
        get_planning_ratio(state, target),
    )
    is_counted = get_counted_tokens(state) > 0 and is_last_model(state, target)
    if measured_request is not None and state.view.shown_tokens:
        scale = min(scale, max(0, whole - frame) / state.view.shown_tokens)
    return RequestSize(whole, frame, scale, is_counted)


def get_counted_tokens(state: ConversationState) -> int:
    """Return the tokens that the provider counted of just the request that ``state`` makes now; 0 where it did not."""
    measured_request = get_valid_measured_request(state)
    return (
        measured_request.reported_tokens
        if measured_request is not None and measured_request.shown_tokens == state.view.shown_tokens
        else 0
    )


def count_omitted_tokens(state: ConversationState) -> int:
    """Return what the request that ``state`` makes lacks of all that was said, in the estimator's tokens."""
    return (state.history.cumulative_tokens[-1] if len(state.history.sized_messages) else 0) - state.view.shown_tokens


def remove_all_decisions(state: ConversationState) -> ConversationState:
    """Return ``state`` as far as its size goes, with every decision and compaction taken back at once.

    The request that was counted last stands again where it showed everything that was said, as it does after an undo.
    Its messages are not shown anew: that would cost the whole history, and no size needs it. So ``keep`` is the end,
    and what stands before it has one digest.
    """
    count = len(state.history.sized_messages)
    whole = state.history.cumulative_tokens[-1] if count else 0
    plain = replace(
        state,
        view=replace(
            state.view, edits=EditMap(), compaction=None, first_kept=count, shown_tokens=whole, native_tokens=0
        ),
    )
    measurement = state.usage.measured_request
    if measurement is None:
        return plain
    showed_all = (
        0 < measurement.message_count <= count
        and measurement.shown_tokens == state.history.cumulative_tokens[measurement.message_count - 1]
    )
    mark = get_projection_digest_at(plain, measurement.message_count) if showed_all else b""
    return replace(
        plain,
        usage=replace(
            plain.usage,
            measured_request=replace(
                measurement, projection_digest=mark, native_tokens=0 if showed_all else measurement.native_tokens
            ),
        ),
    )


def copy_later_calibration(before_state: ConversationState, after_state: ConversationState) -> ConversationState:
    """Return ``before_state`` with what was learned of the model's tokens until ``after_state``, to compare the sizes
    of the two.

    What was counted of a request that still stands at ``before_state`` is its size; else the estimate is that of
    ``after_state``.
    """
    measurement = after_state.usage.measured_request
    if get_valid_measured_request(before_state) is not None:
        measurement = before_state.usage.measured_request
    elif measurement is not None:
        measurement = replace(measurement, projection_digest=b"")
    return replace(
        before_state,
        usage=replace(
            before_state.usage,
            calibration=after_state.usage.calibration,
            learned_limits=after_state.usage.learned_limits,
            other_model_stats=after_state.usage.other_model_stats,
            measured_request=measurement,
        ),
    )


def get_session_settings(state: ConversationState, configuration: Configuration) -> Settings:
    """Return the settings that requests of ``state`` are planned by: of its own policy where that is a known one."""
    return configuration.build_policy(state.policy_name if state.policy_name in PRESETS else "holdfast").settings


def get_target_and_settings(
    info: SessionInfo, state: ConversationState, configuration: Configuration
) -> tuple[Target, Settings]:
    """Return where the next request of a stored session goes, as its last one did, and what it is planned by."""
    return get_session_target(info, state, None, None, configuration.catalog), get_session_settings(
        state, configuration
    )


class TargetCache:
    """Where the next requests of many stored sessions go; what is alike is found out once, for it takes a while."""

    def __init__(self, configuration: Configuration) -> None:
        self._known = configuration
        self._found: dict[tuple[object, ...], tuple[Target, Settings]] = {}

    def __call__(self, info: SessionInfo, state: ConversationState) -> tuple[Target, Settings]:
        """Return what ``get_target_and_settings`` does."""
        key = (
            _get_state_api(state),
            info.model,
            state.last_request.model,
            state.last_request.configured_window,
            state.setup,
            state.policy_name,
        )
        if key not in self._found:
            self._found[key] = get_target_and_settings(info, state, self._known)
        return self._found[key]


def measure_session_request(info: SessionInfo, state: ConversationState) -> RequestSize:
    """Return how large the next request of a stored session is that goes where its last one went."""
    return measure_request(state, *get_target_and_settings(info, state, config.load_configuration()))


def find_answer_or_failure(later_entries: Sequence[Entry]) -> Entry | None:
    """Return the answer to a request, or its failure, from the entries behind it; nothing where neither is told."""
    ends = (
        entry
        for entry in later_entries
        if isinstance(entry.body, AnswerEntry | FailureEntry | RequestEntry | DecisionEntry | CompactionEntry)
    )
    end = next(ends, None)
    return end if end is not None and isinstance(end.body, AnswerEntry | FailureEntry) else None


def build_state_at_request(entries: Sequence[Entry], at: int) -> ConversationState:
    """Return the branch of the request at place ``at`` of ``entries``, with what its end told of its size."""
    state, end = ConversationState.from_entries(entries[: at + 1]), find_answer_or_failure(entries[at + 1 :])
    return state if end is None else apply_entry(state, end)


def format_tokens(tokens: int, *, is_counted: bool = False) -> str:
    """Return a size as people read it; one that nobody counted has ``~`` before it."""
    return f"{tokens:,}" if is_counted else f"~{tokens:,}"
