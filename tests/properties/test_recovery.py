"""Recovery cannot loop: whatever is refused, in whatever order, the run ends, and within its bound of requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.events import OUTCOMES
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import measure
from holdfast.planning.presets.presets import PRESETS
from holdfast.planning.settings import Settings
from holdfast.providers.overflow import KINDS, OVERFLOWS
from holdfast.recovery.machine import (
    ENTRY,
    LADDER,
    TRANSIENT,
    Press,
    Refused,
    Retry,
    Stop,
    Unseal,
    Useless,
    after,
    begin,
    bound,
    counted,
    is_transient,
    rank,
)
from holdfast.recovery.messages import explain
from holdfast.state.branch.branch import Branch, extend
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import OVERFLOW, Answer, Compaction, Decision, Entry, Failure, Said

OURS = Settings()
numbers = st.none() | st.integers(-5, 10**7)
refusals = st.builds(
    lambda kind, overflow, **more: Refused(kind, overflow if overflow is not None else kind in OVERFLOWS, **more),
    st.sampled_from(KINDS) | st.text(max_size=8),
    st.sampled_from([None, None, None, True, False]),
    retry_after=st.none() | st.floats(),
    limit=numbers,
    requested=numbers,
    tokens=st.integers(0, 10**7),
    seen=st.sampled_from([False] * 9 + [True]),
    status=st.none() | st.integers(0, 999),
    sealed=st.sampled_from([False] * 4 + [True]),
)
events = refusals | st.builds(Useless, st.sampled_from(OUTCOMES) | st.text(max_size=8))
passing = st.builds(Refused, st.sampled_from(sorted(TRANSIENT)))
rules = st.builds(
    Settings,
    emergency=st.sampled_from([True, True, True, False]),
    compactions_most=st.integers(0, 6),
    recovery_compactions=st.integers(0, 6),
    recovery_rungs=st.permutations(LADDER).flatmap(lambda all_: st.integers(0, 4).map(lambda n: tuple(all_[:n]))),
    retries_most=st.integers(0, 12),
    retry_wait_most=st.floats(0, 600),
    tpm_terminal=st.booleans(),
) | st.sampled_from([*PRESETS.values()])
COMPACTED = Compaction(1, Message.of("user", "what was"))
CUT = Decision((Edit(Span(0, 1), (), "truncate"),))
bodies = st.sampled_from(
    [COMPACTED, CUT, Answer(""), Failure("not_smaller"), Failure(OVERFLOW), Said(measure(Message.of("user", "u")))]
)
logs = st.lists(bodies, max_size=12).map(
    lambda told: Branch.build(
        Entry(str(at), None, body) for at, body in enumerate([Said(measure(Message.of("user", "go"))), *told])
    )
)


@given(logs, rules, st.lists(events, min_size=1, max_size=80))
def test_the_rank_falls_with_every_event_until_the_run_ends(branch, settings, told):
    """Lexicographically, and no part of it ever rises; behind the end nothing moves."""
    state = begin(branch, settings)
    for event in told:
        before, (state, action) = state, after(state, event)
        if before.ended is not None:
            assert (state, action) == (before, before.ended)
            continue
        assert rank(state) < rank(before)
        assert all(new <= old for new, old in zip(rank(state), rank(before), strict=True))
        assert min(rank(state)) >= 0
        assert (action == state.ended) == isinstance(action, Stop)


@given(logs, rules, st.data())
def test_every_run_ends_within_its_bound_of_requests(branch, settings, data):
    """However unlucky: the first request, and one for each action that sends one, are never more than ``bound``."""
    state, requests, action = begin(branch, settings), 1, None
    while not isinstance(action, Stop):
        event = data.draw(events)
        state, action = after(state, event)
        if isinstance(action, Retry) or (isinstance(action, Press | Unseal) and data.draw(st.booleans())):
            requests += 1  # a press that was useless sends nothing
        assert requests <= bound(settings)


@given(logs, rules, st.lists(events, max_size=30) | st.lists(st.nothing()), refusals | passing)
def test_what_is_refused_for_good_is_never_sent_again(branch, settings, told, event):
    """P8: the same bytes go out again for what may pass, and a smaller request for what was too large, or never."""
    state = begin(branch, settings)
    for one in told:
        state, _ = after(state, one)
    _, action = after(state, event)
    if isinstance(action, Retry):
        assert is_transient(event)
        assert not event.is_overflow
        assert not event.seen
        assert 0 <= action.seconds <= max(settings.retry_wait_most, settings.retry_cap)
    if isinstance(action, Press):
        assert event.is_overflow or event.kind in ENTRY
    if isinstance(action, Press | Unseal):
        assert settings.emergency
        assert not event.seen
    assert event.sealed or not isinstance(action, Unseal)


@given(logs, rules, st.lists(events, max_size=30))
def test_what_is_sealed_is_left_out_once(branch, settings, told):
    """The same refusal again, with nothing sealed any more, is refused for good."""
    state, actions = begin(branch, settings), []
    for event in told:
        state, action = after(state, event)
        actions.append(action)
    assert actions.count(Unseal()) <= (settings.emergency and settings.recovery_rungs != ())


@given(logs, rules, st.lists(events, max_size=30))
def test_no_rung_is_pressed_more_often_than_it_may(branch, settings, told):
    """P2, with what the log had used up before."""
    state, pressed = begin(branch, settings), []
    for event in told:
        state, action = after(state, event)
        pressed += [action.rung] if isinstance(action, Press) else []
    most = min(settings.compactions_most, settings.recovery_compactions)
    assert pressed.count("compact") <= max(0, most - branch.compactions)
    assert pressed.count("truncate") <= max(0, 1 - branch.truncations)
    assert all(pressed.count(rung) <= 1 for rung in ("output", "media", "fallback"))
    assert {*pressed} <= {*settings.recovery_rungs, "output"}


@given(logs, rules, st.lists(events, max_size=10))
def test_a_useless_compaction_is_the_last_one(branch, settings, told):
    """What did not get smaller is not summarised once more, however many compactions there might be."""
    state, useless = begin(branch, settings), 0
    for event in (Refused("context_window", is_overflow=True), *told):
        state, action = after(state, event)
        while action == Press("compact"):
            useless += 1
            state, action = after(state, Useless("not_smaller"))
    assert useless <= 1


@given(rules, refusals, st.integers(0, 10**6), st.integers(0, 10**6), st.text(max_size=2_000))
def test_every_end_can_be_told(settings, event, window, floor, said):
    """Whatever the numbers and the provider's words are, there is a text, of bounded length."""
    _, action = after(begin(Branch(), settings), event)
    if isinstance(action, Stop):
        assert len(explain(action, event, window=window, floor=floor, said=said)) < 1_200


class Run(RuleBasedStateMachine):
    """A log and a run over it: the planner compacts of its own accord, answers come, the process starts again."""

    def __init__(self):
        super().__init__()
        self.branch = self._said(Branch(), Message.of("user", "go"))
        self.state = begin(self.branch, OURS)
        self.pressed, self.requests, self.since = "", 1, 1

    @staticmethod
    def _said(branch, message):
        return extend(branch, Entry("", None, Said(measure(message))))

    def _put(self, body):
        self.branch = extend(self.branch, Entry("", None, body))
        self.state = counted(self.state, self.branch)

    @property
    def alive(self):
        return self.state.ended is None

    @precondition(lambda self: self.alive)
    @rule(event=refusals)
    def refuse(self, event):
        before = rank(self.state)
        self.state, action = after(self.state, event)
        assert rank(self.state) < before
        self.pressed = action.rung if isinstance(action, Press) else ""
        self.requests += not isinstance(action, Stop)

    @precondition(lambda self: self.alive and self.pressed)
    @rule(outcome=st.sampled_from(OUTCOMES))
    def press_in_vain(self, outcome):
        self.state, action = after(self.state, Useless(outcome))
        self.requests -= isinstance(action, Stop)
        self.pressed = action.rung if isinstance(action, Press) else ""

    @precondition(lambda self: self.alive and self.pressed in ("compact", "fallback"))
    @rule()
    def compact(self):
        self._put(COMPACTED)
        self.pressed = ""

    @precondition(lambda self: self.alive and self.branch.compactions < 2)
    @rule()
    def compact_unasked(self):
        self._put(COMPACTED)

    @precondition(lambda self: self.alive and self.pressed == "truncate")
    @rule()
    def cut(self):
        self._put(CUT)
        self.pressed = ""

    @rule()
    def answer(self):
        self.branch = self._said(self.branch, Message.of("assistant", "well"))
        self._put(Answer(""))
        self.state, self.requests, self.since, self.pressed = begin(self.branch, OURS), 1, 1, ""

    @rule()
    def start_again(self):
        """A new process folds the same log: what the log counts is not given back."""
        fresh = begin(self.branch, OURS)
        assert fresh.compact <= max(0, 2 - self.branch.compactions)
        assert fresh.truncate <= max(0, 1 - self.branch.truncations)
        self.state, self.requests, self.pressed = fresh, 1, ""

    @invariant()
    def no_more_than_the_bound(self):
        assert self.requests <= bound(OURS)

    @invariant()
    def no_more_than_the_log_allows(self):
        assert self.state.compact <= max(0, 2 - self.branch.compactions)
        assert self.state.truncate <= max(0, 1 - self.branch.truncations)


TestRun = Run.TestCase


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_has_a_bound_that_can_be_waited_for(name):
    """P8 and P2 are relaxed by no preset as far as to have no bound."""
    assert 1 < bound(PRESETS[name]) < 64
