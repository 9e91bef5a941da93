"""Forecast the decisions of a policy for a session that was only observed, by planning its requests afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.config import Configuration
from holdfast.errors import WindowTooSmall
from holdfast.messages.text.counts import format_count
from holdfast.planning import budget as guard
from holdfast.planning.pipeline import Policy, plan_without_normalization
from holdfast.reports.requests.request_size import format_tokens, get_session_target
from holdfast.reports.sessions.branches import find_overflow_refusals, fold_branches
from holdfast.reports.sessions.history import get_entries_to_leaf
from holdfast.state.calibration.calibration import min_known_size
from holdfast.state.calibration.token_estimate import estimate_request_tokens
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import (
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    FailureEntry,
    RequestEntry,
    RevokeEntry,
    Usage,
)
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.target import PlanInputs, Target
from holdfast.state.view import get_valid_measured_request
from holdfast.store.base import SessionInfo

_DECISION_BODIES = (DecisionEntry, CompactionEntry, RevokeEntry)
"""Recorded decisions, which the forecast ignores and plans anew."""
MAX_PLANNED_SESSIONS = 32
"""The latest sessions that are planned when a proxy ends. Chosen by judgement: planning more would delay the exit by
more than a few seconds."""


class PolicyForecast(Struct, frozen=True):
    """The forecast for a policy. Tokens are estimates."""

    policy: str = ""
    window: int = 0
    requests: int = 0
    over_window: int = 0
    """Requests from the client that were larger than the window."""
    compactions: int = 0
    reduced_requests: int = 0
    """Requests that would have been reduced without a compaction."""
    largest: int = 0
    """Tokens of the largest request from the client."""
    largest_planned: int = 0
    """Tokens of the largest request that would have been sent."""

    def add_dry_run(self, other: PolicyForecast) -> PolicyForecast:
        """Return the sum of both forecasts."""
        # Of several windows the smallest one that overflowed is named, since the count of overflows refers to it.
        overflowed_windows = [part.window for part in (self, other) if part.over_window]
        if overflowed_windows:
            window = min(overflowed_windows)
        else:
            window = max(self.window, other.window)
        return PolicyForecast(
            policy=other.policy,
            window=window,
            requests=self.requests + other.requests,
            over_window=self.over_window + other.over_window,
            compactions=self.compactions + other.compactions,
            reduced_requests=self.reduced_requests + other.reduced_requests,
            largest=max(self.largest, other.largest),
            largest_planned=max(self.largest_planned, other.largest_planned),
        )


def forecast_session(
    info: SessionInfo,
    entries: Sequence[Entry],
    configuration: Configuration,
    policy: str,
    state: ConversationState | None = None,
    on_request: Callable[[], None] = lambda: None,
) -> PolicyForecast:
    """Forecast ``policy`` for the requests on all branches of a session, each once.

    Summaries are planned as extracts, without asking a model. A window without room for any request ends the forecast.
    ``state`` is the current branch's, if it was folded already; ``on_request`` is called for each planned request.
    """
    if state is None:
        by_id = {entry.id: entry for entry in entries}
        state = ConversationState.from_entries(get_entries_to_leaf(by_id, info.leaf_id))
    target = get_session_target(info, state, None, None, configuration.catalog)
    session_policy = configuration.build_policy(policy).for_session(info.key)
    start = _DryRunFold(target, session_policy, find_overflow_refusals(entries), on_request)
    current_branch, other_branches = fold_branches(entries, start, info.leaf_id)
    total = current_branch.forecast
    for branch in other_branches:
        total = total.add_dry_run(branch.forecast)
    return total


class _DryRunFold:
    """The fold behind ``forecast_session``: the branch as logged without decisions, and as planned."""

    def __init__(
        self,
        target: Target,
        policy: Policy,
        refusals: frozenset[str],
        on_request: Callable[[], None] = lambda: None,
    ) -> None:
        self.forecast = PolicyForecast(policy.name, target.limits.window)
        self._target = target
        self._policy = policy
        self._refusals = refusals
        self._on_request = on_request
        self._logged_state = self._planned = ConversationState()
        self._scale = 1.0
        """How much smaller the newest request would have been."""
        self._is_over = False
        """Whether that is counted as larger than the window."""
        self._largest_before = 0, 0
        """The largest requests before it, as sent and as planned."""
        self._is_ended = False
        """Whether no request had room in the window."""

    def start_branch(self) -> None:
        """Continue as a new branch, with an empty forecast."""
        self.forecast = PolicyForecast(self._policy.name, self.forecast.window)

    def add_entry(self, entry: Entry) -> None:
        """Continue with ``entry``, unless a request had no room in the window."""
        if not (self._is_ended or isinstance(entry.body, _DECISION_BODIES)):
            try:
                self._fold_entry(entry)
            except WindowTooSmall:
                self._is_ended = True

    def _fold_entry(self, entry: Entry) -> None:
        body, planned_body = entry.body, entry.body
        # A refusal of the full request says nothing about the smaller planned one, except for its limit.
        if isinstance(body, FailureEntry):
            if self._planned.view.active_decisions:
                planned_body = replace(body, requested_tokens=0, is_other_branch=True)
        elif isinstance(body, AnswerEntry):
            usage = Usage(round(body.usage.input * self._scale), body.usage.output)
            digest = body.prefix_digest
            # With another digest the answer belongs to another request than the logged one.
            if digest == self._logged_state.last_request.prefix_digest:
                digest = self._planned.last_request.prefix_digest
            planned_body = AnswerEntry(digest, usage, body.stop_reason)
        self._logged_state = apply_entry(self._logged_state, entry)
        if isinstance(body, RequestEntry):
            self._is_over = False
            self._largest_before = (self.forecast.largest, self.forecast.largest_planned)
            self._plan_request()
            self._on_request()
            self.forecast = replace(self.forecast, requests=self.forecast.requests + 1)
            return
        self._planned = apply_entry(self._planned, replace(entry, body=planned_body))
        if isinstance(body, AnswerEntry):
            self._apply_counted_size()
        if entry.id in self._refusals:
            # It would have been sent again, with the learned limits.
            self._plan_request(is_refused=True)

    def _apply_counted_size(self) -> None:
        """Replace the newest request's estimate by the count in its answer, and scale the planned size likewise."""
        anchor = get_valid_measured_request(self._logged_state)
        if anchor is not None and anchor.message_count == self._logged_state.last_request.seen_count:
            largest_before, largest_planned_before = self._largest_before
            planned_tokens = round(self._scale * anchor.reported_tokens)
            self.forecast = replace(
                self.forecast,
                largest=max(largest_before, anchor.reported_tokens),
                largest_planned=max(largest_planned_before, planned_tokens),
            )

    def _plan_request(self, *, is_refused: bool = False) -> None:
        place = replace(self._target, setup=self._logged_state.setup)
        # Measured with the same learned limits as its plan: otherwise one request would have two sizes.
        effective_target = guard.compute_effective_target(place, self._logged_state, self._policy.settings)
        size = estimate_request_tokens(self._logged_state, effective_target)
        window = min_known_size(place.limits.window, self._logged_state.usage.learned_limits.window_limit)
        plan = plan_without_normalization(self._planned, place, self._policy, PlanInputs())
        totals = self.forecast
        compacts = plan.compaction is not None
        is_over = (is_refused or size > window) and not self._is_over
        self.forecast = PolicyForecast(
            policy=totals.policy,
            window=window,
            requests=totals.requests,
            over_window=totals.over_window + is_over,
            compactions=totals.compactions + compacts,
            reduced_requests=totals.reduced_requests + (bool(plan.record) and not compacts),
            largest=max(self._largest_before[0], size),
            largest_planned=max(self._largest_before[1], plan.after),
        )
        # One request may be planned twice, before and after a refusal, but counts as over the window once.
        self._is_over = self._is_over or is_over
        self._planned = plan.state
        self._scale = plan.after / max(1, size)


def describe_forecast(dry_run: PolicyForecast) -> str:
    """Describe the forecast on one line."""
    largest = format_tokens(dry_run.largest)
    if not (dry_run.over_window or dry_run.compactions or dry_run.reduced_requests):
        return f"policy {dry_run.policy} would have changed nothing: the largest request had {largest} tokens"
    actions = []
    if dry_run.compactions:
        actions.append(f"compacted {format_count(dry_run.compactions, 'time')}")
    if dry_run.reduced_requests:
        actions.append(f"shortened texts before {format_count(dry_run.reduced_requests, 'request')}")
    would = f"policy {dry_run.policy} would have {' and '.join(actions) or 'changed nothing'}"
    over = f"{format_count(dry_run.over_window, 'request')} over the window of {dry_run.window:,}"
    return f"{over}; {would}: the largest request {largest} → {format_tokens(dry_run.largest_planned)} tokens"
