"""Recovery cannot loop: whatever is refused, in whatever order, the run ends within its bound of requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sample_entries import make_message_entry_body
from sample_recovery_log import COMPACTED, CUT, SETTINGS, make_state

from holdfast.events import COMPACTION_OUTCOMES
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings import CompactionSettings, RecoverySettings, RetrySettings, Settings
from holdfast.providers.errors.report import OVERFLOW_KINDS, VERDICT_KINDS
from holdfast.recovery.machine import (
    FIRST_STEP_BY_KIND,
    MAX_FIELD_CHANGES,
    OVERFLOW_STEPS,
    TRANSIENT_KINDS,
    ChangeFields,
    DropSignatures,
    NoProgress,
    ProviderRefusal,
    Retry,
    Shrink,
    Stop,
    compute_max_requests,
    compute_termination_rank,
    decide_next_action,
    is_transient_refusal,
    start_recovery,
    subtract_used_steps,
)
from holdfast.recovery.stop_message import format_stop_message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import (
    FAILURE_OVERFLOW,
    AnswerEntry,
    Entry,
    FailureEntry,
)
from holdfast.state.field_lessons import FieldLesson
from holdfast.state.fold.fold_entries import apply_entry

numbers = st.none() | st.integers(-5, 10**7)
refusals = st.builds(
    lambda kind, overflow, **more: ProviderRefusal(
        kind, overflow if overflow is not None else kind in OVERFLOW_KINDS, **more
    ),
    st.sampled_from(VERDICT_KINDS) | st.text(max_size=8),
    st.sampled_from([None, None, None, True, False]),
    retry_after=st.none() | st.floats(),
    token_limit=numbers,
    counted_tokens=numbers,
    estimated_tokens=st.integers(0, 10**7),
    has_answer_started=st.sampled_from([False] * 9 + [True]),
    status=st.none() | st.integers(0, 999),
    is_signature_error=st.sampled_from([False] * 4 + [True]),
    field_lessons=st.sampled_from([(), (), (FieldLesson("drop", ("store",)),)]),
)
events = refusals | st.builds(NoProgress, st.sampled_from(COMPACTION_OUTCOMES) | st.text(max_size=8))
transient_refusals = st.builds(ProviderRefusal, st.sampled_from(sorted(TRANSIENT_KINDS)))
settings_strategy = st.builds(
    Settings,
    compaction=st.builds(CompactionSettings, max_per_answer=st.integers(0, 6)),
    recovery=st.builds(
        RecoverySettings,
        enabled=st.sampled_from([True, True, True, False]),
        max_compactions=st.integers(0, 6),
        steps=st.permutations(OVERFLOW_STEPS).flatmap(
            lambda steps: st.integers(0, 4).map(lambda count: tuple(steps[:count]))
        ),
        stops_at_rate_ceiling=st.booleans(),
    ),
    retry=st.builds(RetrySettings, max_retries=st.integers(0, 12), max_wait_seconds=st.floats(0, 600)),
) | st.sampled_from([preset.settings for preset in PRESETS.values()])
bodies = st.sampled_from(
    [
        COMPACTED,
        CUT,
        AnswerEntry(""),
        FailureEntry("not_smaller"),
        FailureEntry(FAILURE_OVERFLOW),
        make_message_entry_body("u"),
    ]
)
logs = st.lists(bodies, max_size=12).map(lambda bodies_after: make_state(*bodies_after))


@given(logs, settings_strategy, st.lists(events, min_size=1, max_size=80))
def test_compute_termination_rank_falls_with_every_event(conversation, settings, events_before):
    """The rank falls lexicographically, no part of it ever rises, and after the stop nothing changes."""
    state = start_recovery(conversation, settings)
    for event in events_before:
        before, (state, action) = state, decide_next_action(state, event)
        if before.stop is not None:
            assert (state, action) == (before, before.stop)
            continue
        assert compute_termination_rank(state) < compute_termination_rank(before)
        assert all(
            new <= old
            for new, old in zip(compute_termination_rank(state), compute_termination_rank(before), strict=True)
        )
        assert min(compute_termination_rank(state)) >= 0
        assert (action == state.stop) == isinstance(action, Stop)


@given(logs, settings_strategy, st.data())
def test_recovery_never_exceeds_compute_max_requests(conversation, settings, data):
    """The first request and one for each action that sends one are never more than ``compute_max_requests``."""
    state, requests, action = start_recovery(conversation, settings), 1, None
    while not isinstance(action, Stop):
        event = data.draw(events)
        state, action = decide_next_action(state, event)
        if isinstance(action, Retry) or (
            isinstance(action, Shrink | DropSignatures | ChangeFields) and data.draw(st.booleans())
        ):
            requests += 1  # a useless step sends nothing
        assert requests <= compute_max_requests(settings)


@given(logs, settings_strategy, st.lists(events, max_size=30) | st.lists(st.nothing()), refusals | transient_refusals)
def test_decide_next_action_retries_only_transient_refusals(conversation, settings, events_before, event):
    """retries-shrink: the same bytes are sent again only after a transient fault, and a smaller request only after an
    overflow.
    """
    state = start_recovery(conversation, settings)
    for earlier in events_before:
        state, _ = decide_next_action(state, earlier)
    _, action = decide_next_action(state, event)
    if isinstance(action, Retry):
        assert is_transient_refusal(event)
        assert not event.is_overflow
        assert not event.has_answer_started
        assert 0 <= action.seconds <= max(settings.retry.max_wait_seconds, settings.retry.cap_seconds)
    if isinstance(action, Shrink):
        assert event.is_overflow or event.kind in FIRST_STEP_BY_KIND
    if isinstance(action, Shrink | DropSignatures | ChangeFields):
        assert settings.recovery.enabled
        assert not event.has_answer_started
    assert event.is_signature_error or not isinstance(action, DropSignatures)
    assert event.field_lessons or not isinstance(action, ChangeFields)


@given(logs, settings_strategy, st.lists(events, max_size=30))
def test_signatures_are_dropped_at_most_once(conversation, settings, events_before):
    """In any run the signed parts are dropped at most once, and never without recovery steps."""
    state, actions = start_recovery(conversation, settings), []
    for event in events_before:
        state, action = decide_next_action(state, event)
        actions.append(action)
    assert actions.count(DropSignatures()) <= (settings.recovery.enabled and settings.recovery.steps != ())


@given(logs, settings_strategy, st.lists(events, max_size=30))
def test_fields_are_changed_a_bounded_number_of_times(conversation, settings, events_before):
    """In any run fields are changed at most so often, and never without recovery steps."""
    state, actions = start_recovery(conversation, settings), []
    for event in events_before:
        state, action = decide_next_action(state, event)
        actions.append(action)
    changes = sum(isinstance(action, ChangeFields) for action in actions)
    assert changes <= MAX_FIELD_CHANGES * (settings.recovery.enabled and settings.recovery.steps != ())


@given(logs, settings_strategy, st.lists(events, max_size=30))
def test_overflow_steps_never_exceed_their_limits(conversation, settings, events_before):
    """bounded-attempts: no step is taken more often than allowed, including what the log had used up before."""
    state, steps = start_recovery(conversation, settings), []
    for event in events_before:
        state, action = decide_next_action(state, event)
        steps += [action.step] if isinstance(action, Shrink) else []
    most = min(settings.compaction.max_per_answer, settings.recovery.max_compactions)
    assert steps.count("compact") <= max(0, most - conversation.counters.compactions_since_answer)
    assert steps.count("truncate") <= max(0, 1 - conversation.counters.truncations_since_answer)
    assert all(steps.count(step) <= 1 for step in ("output", "media", "fallback"))
    assert {*steps} <= {*settings.recovery.steps, "output"}


@given(logs, settings_strategy, st.lists(events, max_size=10))
def test_no_compaction_follows_a_useless_one(conversation, settings, events_before):
    """After a compaction that made nothing smaller there is no other one, however many are allowed."""
    state, useless = start_recovery(conversation, settings), 0
    for event in (ProviderRefusal("context_window", is_overflow=True), *events_before):
        state, action = decide_next_action(state, event)
        while action == Shrink("compact"):
            useless += 1
            state, action = decide_next_action(state, NoProgress("not_smaller"))
    assert useless <= 1


@given(settings_strategy, refusals, st.integers(0, 10**6), st.integers(0, 10**6), st.text(max_size=2_000))
def test_format_stop_message_is_bounded_for_any_stop(settings, event, window, min_tokens, message):
    """Whatever the numbers and the provider's message are, there is a text of bounded length."""
    _, action = decide_next_action(start_recovery(ConversationState(), settings), event)
    if isinstance(action, Stop):
        assert (
            len(format_stop_message(action, event, window=window, min_tokens=min_tokens, provider_message=message))
            < 1_200
        )


class RecoveryRun(RuleBasedStateMachine):
    """A log and a run over it: the planner compacts by itself, answers arrive, and the process restarts."""

    def __init__(self):
        super().__init__()
        self.conversation = make_state()
        self.state = start_recovery(self.conversation, SETTINGS)
        self.current_step, self.requests = "", 1

    def _append(self, body):
        self.conversation = apply_entry(self.conversation, Entry("", None, body))
        self.state = subtract_used_steps(self.state, self.conversation)

    @property
    def is_running(self):
        return self.state.stop is None

    @precondition(lambda self: self.is_running)
    @rule(event=refusals)
    def refuse(self, event):
        before = compute_termination_rank(self.state)
        self.state, action = decide_next_action(self.state, event)
        assert compute_termination_rank(self.state) < before
        self.current_step = action.step if isinstance(action, Shrink) else ""
        self.requests += not isinstance(action, Stop)

    @precondition(lambda self: self.is_running and self.current_step)
    @rule(outcome=st.sampled_from(COMPACTION_OUTCOMES))
    def make_no_progress(self, outcome):
        self.state, action = decide_next_action(self.state, NoProgress(outcome))
        self.requests -= isinstance(action, Stop)
        self.current_step = action.step if isinstance(action, Shrink) else ""

    @precondition(lambda self: self.is_running and self.current_step in ("compact", "fallback"))
    @rule()
    def compact(self):
        self._append(COMPACTED)
        self.current_step = ""

    @precondition(lambda self: self.is_running and self.conversation.counters.compactions_since_answer < 2)
    @rule()
    def compact_by_planner(self):
        self._append(COMPACTED)

    @precondition(lambda self: self.is_running and self.current_step == "truncate")
    @rule()
    def truncate(self):
        self._append(CUT)
        self.current_step = ""

    @rule()
    def answer(self):
        self._append(make_message_entry_body("well", "assistant"))
        self._append(AnswerEntry(""))
        self.state, self.requests, self.current_step = start_recovery(self.conversation, SETTINGS), 1, ""

    @rule()
    def restart(self):
        """A new process folds the same log, so steps counted in the log are not given back."""
        fresh = start_recovery(self.conversation, SETTINGS)
        assert fresh.compact <= max(0, 2 - self.conversation.counters.compactions_since_answer)
        assert fresh.truncate <= max(0, 1 - self.conversation.counters.truncations_since_answer)
        self.state, self.requests, self.current_step = fresh, 1, ""

    @invariant()
    def no_more_than_the_bound(self):
        assert self.requests <= compute_max_requests(SETTINGS)

    @invariant()
    def no_more_than_the_log_allows(self):
        assert self.state.compact <= max(0, 2 - self.conversation.counters.compactions_since_answer)
        assert self.state.truncate <= max(0, 1 - self.conversation.counters.truncations_since_answer)


TestRun = RecoveryRun.TestCase


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_has_a_small_request_bound(name):
    """retries-shrink and bounded-attempts: no preset relaxes the limits so far that a run is unbounded."""
    assert 1 < compute_max_requests(PRESETS[name].settings) < 64
