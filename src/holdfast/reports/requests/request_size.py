"""The size of a request and its parts: one measure for all commands, the same that decisions are based on."""

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

RECORDED_ORIGIN = "recorded in the session"
"""``window_source`` of a window that the tool of an imported session recorded."""
_DEFAULT_ORIGIN = "default"
"""Beginning of ``window_source`` of a window that nobody stated."""


class RequestSize(Struct, frozen=True):
    """The size of a branch's next request, in tokens of the model."""

    tokens: int
    setup_tokens: int
    """Tokens of system prompt and tools, as far as known."""
    scale: float
    """Tokens of the model per token of the estimator, for messages; limited so that they do not exceed ``tokens``."""
    is_counted: bool
    """Whether the provider counted exactly this request."""

    def scale_tokens(self, size: int) -> int:
        """Return the model's tokens for ``size`` tokens of the estimator."""
        return round(self.scale * size)


ESTIMATOR_SIZE = RequestSize(0, 0, 1.0, is_counted=False)
"""The estimator's own tokens."""


def get_session_target(
    info: SessionInfo,
    state: ConversationState,
    model: str | None,
    window: int | None,
    catalog: Catalog,
) -> Target:
    """Return the target of a stored session's next request: ``model`` and ``window`` if given, else as recorded."""
    place = config.get_target(
        _get_state_api(state),
        model or state.last_request.model or info.model,
        window=window,
        setup=state.setup,
        catalog=catalog,
    )
    # The window that the tool recorded belongs to the model of the recording.
    if place.model == (state.last_request.model or info.model):
        place = use_recorded_window(place, info.recorded_window)
    # The window of the last request belongs to its model, and a window that was asked for wins.
    if window is not None or not state.last_request.configured_window or place.model != state.last_request.model:
        return place
    as_recorded = replace(
        place.limits,
        window=state.last_request.configured_window,
        window_source="as it was asked last",
    )
    if place.limits.window == state.last_request.configured_window:
        return place
    return replace(place, limits=as_recorded)


def use_recorded_window(target: Target, window: int | None) -> Target:
    """Return ``target`` with the window that a tool recorded, if there is one and nothing better is known."""
    if window is None or not target.limits.window_source.startswith(_DEFAULT_ORIGIN):
        return target
    return replace(target, limits=replace(target.limits, window=window, window_source=RECORDED_ORIGIN))


def _get_state_api(state: ConversationState) -> str:
    """Return the API of the first message that came through one, else the first API known."""
    for sized_message in build_projection(state):
        if sized_message.api in API_NAMES:
            return sized_message.api
    return API_NAMES[0]


def measure_request(state: ConversationState, target: Target, settings: Settings = Settings()) -> RequestSize:
    """Measure the request that ``state`` makes to ``target`` now."""
    target = guard.compute_effective_target(target, state, settings)
    measured_request = get_valid_measured_request(state)
    tokens = estimate_request_tokens(state, target)
    setup_tokens = estimate_request_tokens(state, target, 0)
    scale = get_planning_ratio(state, target)
    is_counted = get_counted_tokens(state) > 0 and is_last_model(state, target)
    if measured_request is not None and state.view.shown_tokens:
        # The planning ratio is rounded up for safety; messages must not add up to more than the counted request.
        scale = min(scale, max(0, tokens - setup_tokens) / state.view.shown_tokens)
    return RequestSize(tokens, setup_tokens, scale, is_counted)


def get_counted_tokens(state: ConversationState) -> int:
    """Return the provider's count of exactly the request that ``state`` makes now, or 0 without one."""
    measured_request = get_valid_measured_request(state)
    if measured_request is None or measured_request.shown_tokens != state.view.shown_tokens:
        return 0
    return measured_request.reported_tokens


def count_omitted_tokens(state: ConversationState) -> int:
    """Return the tokens of messages that the next request does not show, in the estimator's tokens."""
    total = 0
    if len(state.history.sized_messages):
        total = state.history.cumulative_tokens[-1]
    return total - state.view.shown_tokens


def remove_all_decisions(state: ConversationState) -> ConversationState:
    """Return ``state`` with all decisions and compactions undone, exact only in its size.

    The last counted request is valid again if it showed every message, as after an undo. Messages are not rendered
    again: that would cost the whole history, and no size needs it. So ``first_kept`` is the end, and everything before
    has one digest.
    """
    count = len(state.history.sized_messages)
    total_tokens = state.history.cumulative_tokens[-1] if count else 0
    view = replace(
        state.view,
        edits=EditMap(),
        compaction=None,
        first_kept=count,
        shown_tokens=total_tokens,
        native_tokens=0,
    )
    plain = replace(state, view=view)
    measurement = state.usage.measured_request
    if measurement is None:
        return plain
    showed_all = (
        0 < measurement.message_count <= count
        and measurement.shown_tokens == state.history.cumulative_tokens[measurement.message_count - 1]
    )
    if showed_all:
        digest = get_projection_digest_at(plain, measurement.message_count)
        measurement = replace(measurement, projection_digest=digest, native_tokens=0)
    else:
        # This digest equals that of no request, so the count is not valid.
        measurement = replace(measurement, projection_digest=b"")
    return replace(plain, usage=replace(plain.usage, measured_request=measurement))


def copy_later_calibration(before_state: ConversationState, after_state: ConversationState) -> ConversationState:
    """Return ``before_state`` with the calibration of ``after_state``, so that their sizes can be compared.

    A count that is valid at ``before_state`` stays its size; otherwise the estimate uses the later calibration.
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
    """Return the settings that plan the requests of ``state``: its own policy's if known, else the default policy's."""
    name = state.policy_name if state.policy_name in PRESETS else "holdfast"
    return configuration.build_policy(name).settings


def get_target_and_settings(
    info: SessionInfo,
    state: ConversationState,
    configuration: Configuration,
) -> tuple[Target, Settings]:
    """Return the target of a session's next request, as of its last one, and the settings that plan it."""
    target = get_session_target(info, state, None, None, configuration.catalog)
    return target, get_session_settings(state, configuration)


class TargetCache:
    """Targets and settings for many sessions, computed once for equal ones, since looking them up is slow."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._cache: dict[tuple[object, ...], tuple[Target, Settings]] = {}

    def __call__(self, info: SessionInfo, state: ConversationState) -> tuple[Target, Settings]:
        """Return the result of ``get_target_and_settings``."""
        key = (
            _get_state_api(state),
            info.model,
            info.recorded_window,
            state.last_request.model,
            state.last_request.configured_window,
            state.setup,
            state.policy_name,
        )
        if key not in self._cache:
            self._cache[key] = get_target_and_settings(info, state, self._configuration)
        return self._cache[key]


def measure_session_request(info: SessionInfo, state: ConversationState) -> RequestSize:
    """Measure the next request of a stored session to the target of its last one."""
    return measure_request(state, *get_target_and_settings(info, state, config.load_configuration()))


def find_answer_or_failure(later_entries: Sequence[Entry]) -> Entry | None:
    """Return the answer or failure of a request, given the entries after it, or None if neither is recorded."""
    for entry in later_entries:
        if isinstance(entry.body, AnswerEntry | FailureEntry):
            return entry
        # A new request or decision means that the first one ended without a record.
        if isinstance(entry.body, RequestEntry | DecisionEntry | CompactionEntry):
            return None
    return None


def build_state_at_request(entries: Sequence[Entry], at: int) -> ConversationState:
    """Return the state at the request at index ``at``, including the size that its answer or failure reported."""
    state = ConversationState.from_entries(entries[: at + 1])
    end = find_answer_or_failure(entries[at + 1 :])
    if end is None:
        return state
    return apply_entry(state, end)


def format_tokens(tokens: int, *, is_counted: bool = False) -> str:
    """Format a size; an estimate gets a ``~`` before it."""
    if is_counted:
        return f"{tokens:,}"
    return f"~{tokens:,}"
