"""Recovery: what is done about each kind of refusal, how often, and what is said in the end."""

from __future__ import annotations

import math

import pytest

from holdfast import Policy
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.presets.openclaw.rules import OPENCLAW_2026_9
from holdfast.planning.settings import Settings
from holdfast.providers.errors.report import OVERFLOW_KINDS, VERDICT_KINDS
from holdfast.recovery.machine import (
    CONTEXT_OVERFLOW_KIND,
    FIRST_STEP_BY_KIND,
    SUMMARY_TOO_LARGE_MESSAGES,
    DropSignatures,
    NoProgress,
    ProviderRefusal,
    Retry,
    Shrink,
    Stop,
    compute_max_requests,
    compute_termination_rank,
    decide_next_action,
    start_recovery,
    subtract_used_steps,
)
from holdfast.recovery.retry import compute_retry_delay, compute_summary_retry_delay
from holdfast.recovery.stop_message import format_stop_message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    FAILURE_OVERFLOW,
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    FailureEntry,
    MessageEntry,
)
from holdfast.state.fold.fold_entries import apply_entry

OURS = Settings()
TRANSIENT = {"network", "rate_limit", "overloaded", "server", "unknown"}
BUSY = ProviderRefusal("overloaded")


def refused(kind, **more):
    return ProviderRefusal(kind, is_overflow=kind in OVERFLOW_KINDS, **more)


TOO_LARGE = refused("context_window", token_limit=32_768, counted_tokens=41_200, estimated_tokens=30_100)


SEALED = refused("invalid_history", is_signature_error=True)


def done(*events, settings=OURS, branch=ConversationState()):
    """Return the actions for ``events``, and the state after them."""
    state, actions = start_recovery(branch, settings), []
    for event in events:
        state, action = decide_next_action(state, event)
        actions.append(action)
    return actions, state


def list_actions(*events, **how):
    return [one.step if isinstance(one, Shrink) else type(one).__name__ for one in done(*events, **how)[0]]


def log(*bodies):
    """Return the branch of one question and ``bodies``."""
    said = MessageEntry(build_sized_message(Message.from_text("user", "go")))
    return ConversationState.from_entries(Entry(str(at), None, body) for at, body in enumerate([said, *bodies]))


COMPACTED = CompactionEntry(1, Message.from_text("user", "what was"))
CUT = DecisionEntry((Edit(Span(0, 1), (), "truncate"),))


# -- the ladder --------------------------------------------------------------------------------------------------------


def test_an_overflow_compacts_twice_then_cuts_then_drops_media_then_falls_back_then_stops():
    """bounded-attempts: the steps in their order, two compactions and one truncation."""
    assert list_actions(*[TOO_LARGE] * 6) == ["compact", "compact", "truncate", "media", "fallback", "Stop"]


def test_media_go_before_a_second_compaction():
    """A picture that is still shown after a compaction is a line before the message that it came with is folded."""
    shown = refused("context_window", has_media=True)
    state, _ = decide_next_action(start_recovery(log(), OURS), shown)
    steps = []
    for _ in range(4):
        state, action = decide_next_action(subtract_used_steps(state, log(COMPACTED)), shown)
        steps.append(action.step)
    assert steps == ["media", "compact", "truncate", "fallback"]
    assert list_actions(shown, NoProgress("nothing_to_compact")) == ["compact", "truncate"]


@pytest.mark.parametrize("outcome", SUMMARY_TOO_LARGE_MESSAGES)
def test_a_summary_that_could_not_be_asked_for_ends_the_run(outcome):
    """[C] nothing else is tried, with a text that says whether a message was kept beside what was to be summarized."""
    actions, _ = done(TOO_LARGE, NoProgress(outcome), TOO_LARGE)
    assert (actions[1].kind, actions[1].rule) == (CONTEXT_OVERFLOW_KIND, "summary_too_large")
    assert actions[1].why == SUMMARY_TOO_LARGE_MESSAGES[outcome]
    assert actions[2] is actions[1]
    assert done(NoProgress(outcome))[0][0].kind == CONTEXT_OVERFLOW_KIND


def test_what_was_useless_goes_on_without_a_request():
    """A step that made nothing smaller is followed by the next one; a compaction that was useless is not made twice."""
    useless = NoProgress("nothing_to_compact")
    assert list_actions(TOO_LARGE, useless, useless, useless, useless) == [
        "compact",
        "truncate",
        "media",
        "fallback",
        "Stop",
    ]


def test_a_failed_summary_is_never_answered_with_another_compaction():
    """BEHAVIOUR 15: not in this run, whatever is refused later."""
    assert "compact" not in list_actions(TOO_LARGE, NoProgress("provider_error"), *[TOO_LARGE] * 4)[1:]


def test_a_compaction_that_fails_before_any_request_climbs_without_compacting():
    """Nothing was refused yet: the other overflow steps are tried, and the end tells of the compaction."""
    events = [NoProgress("timed_out")] * 4
    assert list_actions(*events) == ["truncate", "media", "fallback", "Stop"]
    assert done(*events)[0][-1].rule == "compaction_failed"


@pytest.mark.parametrize("kind", sorted(OVERFLOW_KINDS))
def test_the_kind_picks_the_first_overflow_step(kind):
    """DESIGN 7: the output where it was counted in, media where bytes were too many, else a compaction."""
    first = {"input_plus_output": "output", "request_bytes": "media", "oversized_part": "media"}
    assert list_actions(refused(kind)) == [first.get(kind, "compact")]


@pytest.mark.parametrize("kind", sorted(FIRST_STEP_BY_KIND))
def test_another_entry_is_taken_once(kind):
    """A kind that enters elsewhere goes on with the ladder; a picture that no API takes has no ladder."""
    again = list_actions(*[refused(kind)] * 2)
    assert again == [FIRST_STEP_BY_KIND[kind], "Stop" if kind == "media" else "compact"]


def test_a_refused_picture_ends_as_what_it_is():
    """No overflow, no word of one."""
    assert done(*[refused("media")] * 2)[0][-1].kind == "media"


# -- what is never tried -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted({*VERDICT_KINDS} - OVERFLOW_KINDS - TRANSIENT - {"media"}))
def test_what_time_does_not_heal_is_not_sent_again(kind):
    """retries-shrink: the same request is never sent twice to a refusal that will not change."""
    (stop,), _ = done(refused(kind))
    assert (stop.kind, stop.rule) == (kind, "permanent")


@pytest.mark.parametrize("kind", VERDICT_KINDS)
def test_nothing_is_done_once_the_client_has_bytes(kind):
    """DESIGN 7: after bytes of an answer have gone out, every refusal ends the run."""
    (stop,), _ = done(refused(kind, has_answer_started=True))
    assert stop.rule == "seen"


@pytest.mark.parametrize("kind", sorted({*OVERFLOW_KINDS, "media"}))
def test_emergency_recovery_can_be_switched_off(kind):
    """BEHAVIOUR 8: a switch of its own; the end names it. What waiting heals is still waited for."""
    (stop,), _ = done(refused(kind), settings=Policy().with_settings(recovery={"enabled": False}).settings)
    assert stop.rule == "switched_off"
    assert "recovery.enabled" in stop.why
    assert list_actions(BUSY, settings=Policy().with_settings(recovery={"enabled": False}).settings) == ["Retry"]


def test_a_ceiling_of_a_minute_is_compacted_under_or_ends_the_run_by_a_setting():
    """DESIGN 7: the window shrinks to it; OpenClaw since 2026.9 spends no calls on it."""
    terminal = Policy.preset("openclaw").with_settings(**OPENCLAW_2026_9).settings
    assert list_actions(refused("tpm_ceiling")) == ["compact"]
    assert done(refused("tpm_ceiling"), settings=terminal)[0][0].rule == "terminal"


@pytest.mark.parametrize("status", [404, 405, 414, 501])
def test_a_wrong_address_is_no_bad_luck(status):
    """These statuses count as the server's, and no waiting changes them."""
    assert list_actions(refused("server", status=status)) == ["Stop"]
    assert list_actions(refused("server", status=500)) == ["Retry"]


def test_after_the_end_there_is_only_the_end():
    """A machine that has stopped stays where it is."""
    actions, state = done(refused("auth"), TOO_LARGE, BUSY, NoProgress("cancelled"))
    assert len({*actions}) == 1
    assert not compute_termination_rank(state)[0]


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_each_wait_is_twice_the_last_up_to_a_cap():
    """The same bytes again: 0.5 s, 1 s, 2 s … 30 s; nothing in it is random."""
    actions, _ = done(*[BUSY] * 9)
    assert [one.seconds for one in actions[:-1]] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert actions[-1].rule == "retry_limit"


def test_the_wait_that_a_provider_asks_for_counts():
    """It knows best; where it asks for longer than we wait, the run ends with that reason and the provider's kind."""
    assert done(refused("rate_limit", retry_after=42.0))[0] == [Retry(42.0)]
    (stop,), _ = done(refused("rate_limit", retry_after=3_600.0))
    assert (stop.kind, stop.rule) == ("rate_limit", "wait_too_long")
    assert "3,600 s" in stop.why


@pytest.mark.parametrize(
    ("told", "seconds"), [(-5.0, 0.0), (0.0, 0.0), (math.nan, 0.5), (math.inf, None), (300.0, 300)]
)
def test_odd_waits_are_no_trouble(told, seconds):
    """A header may hold anything that a float holds."""
    assert compute_retry_delay(0, told, OURS) == seconds


def test_no_number_of_retries_is_too_many_to_reckon():
    """The doubling is capped before it is computed."""
    assert compute_retry_delay(10**9, None, OURS) == OURS.retry.cap_seconds


@pytest.mark.parametrize(
    ("tried", "told", "seconds"), [(1, None, 0.5), (2, None, 1.0), (2, 3.0, 3.0), (3, 0.1, 2.0), (10**9, 1e9, 5.0)]
)
def test_nobody_waits_long_for_a_summary(tried, told, seconds):
    """A wait for a summary doubles, or is as long as the provider says, and never longer than its cap."""
    assert compute_summary_retry_delay(tried, told, OURS) == seconds


def test_retries_and_overflow_steps_are_counted_apart():
    """Bad luck between two overflow steps takes none of them away, and an overflow step gives no retry back."""
    assert list_actions(BUSY, TOO_LARGE, BUSY, TOO_LARGE, BUSY) == ["Retry", "compact", "Retry", "compact", "Retry"]
    assert done(BUSY, TOO_LARGE, BUSY)[0][-1] == Retry(1.0)


# -- what the log says -------------------------------------------------------------------------------------------------


def test_what_was_used_up_since_the_last_answer_stays_used_up_after_a_restart():
    """bounded-attempts: compactions and truncations are folded from entries."""
    assert list_actions(TOO_LARGE, TOO_LARGE, branch=log(COMPACTED)) == ["compact", "truncate"]
    assert list_actions(TOO_LARGE, branch=log(COMPACTED, COMPACTED)) == ["truncate"]
    assert list_actions(TOO_LARGE, branch=log(COMPACTED, COMPACTED, CUT)) == ["media"]


def test_an_answer_gives_everything_back():
    """Between answers means between answers."""
    assert start_recovery(log(COMPACTED, CUT, AnswerEntry("")), OURS) == start_recovery(ConversationState(), OURS)


def test_an_open_breaker_leaves_the_overflow_steps_that_do_not_compact():
    """BEHAVIOUR 18: what failed three times is not tried again, and the turn goes on with the next overflow step."""
    failed = FailureEntry("not_smaller")
    assert list_actions(TOO_LARGE, branch=log(failed, failed)) == ["compact"]
    assert list_actions(TOO_LARGE, branch=log(failed, failed, failed)) == ["truncate"]
    assert list_actions(TOO_LARGE, branch=log(*[FailureEntry(FAILURE_OVERFLOW)] * 5)) == ["compact"]


def test_a_breaker_that_cooled_down_leaves_one_more_compaction():
    """BEHAVIOUR 18: after the cool-down one is tried again; where that fails too the breaker is open as before."""
    failed = FailureEntry("not_smaller")
    branch = log(failed, failed, failed)
    state = start_recovery(branch, OURS, is_breaker_cooled=True)
    pressed, action = decide_next_action(subtract_used_steps(state, branch), TOO_LARGE)
    assert action == Shrink("compact")
    assert subtract_used_steps(state, branch) == state
    again = apply_entry(branch, Entry("again", None, failed))
    assert subtract_used_steps(state, again).compact == 0
    assert decide_next_action(subtract_used_steps(pressed, again), NoProgress("not_smaller"))[1] == Shrink("truncate")
    assert start_recovery(again, OURS).compact == 0


def test_compactions_that_nobody_pressed_for_count_too():
    """The planner compacts of its own accord: the sum stays under the limit."""
    branch = log()
    state = start_recovery(branch, OURS)
    branch = apply_entry(branch, Entry("c", None, COMPACTED))
    assert subtract_used_steps(state, branch).compact == 1
    pressed, _ = decide_next_action(state, TOO_LARGE)
    assert compute_termination_rank(subtract_used_steps(pressed, branch)) == compute_termination_rank(pressed)


def test_what_is_sealed_is_left_out_once():
    """With nothing sealed any more the same refusal is one for good; nothing else is used up by it."""
    actions, state = done(SEALED)
    assert actions == [DropSignatures()]
    assert decide_next_action(state, TOO_LARGE)[1] == Shrink("compact")
    again, ended = done(SEALED, SEALED)
    assert again[1] == ended.stop
    assert (ended.stop.kind, ended.stop.rule) == ("invalid_history", "permanent")
    assert isinstance(done(refused("invalid_history"))[0][0], Stop)


def test_what_is_only_looked_at_is_sent_again_and_no_more():
    """Nothing of it may change: what may pass is waited for, every other refusal is for good at once."""
    state = start_recovery(log(), OURS, can_change_request=False)
    assert compute_termination_rank(state) == (1, *[0] * 6, OURS.retry.max_retries)
    assert compute_termination_rank(subtract_used_steps(state, log(COMPACTED))) == compute_termination_rank(state)
    assert isinstance(decide_next_action(state, BUSY)[1], Retry)
    ends = [
        decide_next_action(state, event)[1]
        for event in (TOO_LARGE, refused("media"), refused("input_plus_output"), SEALED)
    ]
    assert [end.rule for end in ends] == ["exhausted", "exhausted", "exhausted", "permanent"]
    assert ends[0].why.endswith("tried: nothing")


@pytest.mark.parametrize(
    "settings", [Policy().with_settings(recovery={"enabled": False}).settings, Policy.preset("append-only").settings]
)
def test_who_changes_nothing_leaves_nothing_out(settings):
    """Where recovery is switched off, or has no overflow step, what is sealed is refused for good at once."""
    assert isinstance(done(SEALED, settings=settings)[0][0], Stop)
    assert isinstance(done(refused("invalid_history", is_signature_error=True, has_answer_started=True))[0][0], Stop)


# -- presets and bounds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ladder"),
    [
        ("openclaw", ["compact", "compact", "compact", "truncate", "Stop"]),
        ("pi", ["compact", "Stop"]),
        ("append-only", ["Stop"]),
        ("opencode", ["compact", "compact", "truncate", "media", "fallback", "Stop"]),
    ],
)
def test_presets_have_their_own_ladders(name, ladder):
    """[O] three compactions and a truncation, [P] one compaction; where nothing is changed, nothing recovers."""
    settings = Policy.preset(name).settings
    assert list_actions(*[TOO_LARGE] * len(ladder), settings=settings) == ladder


def test_the_bound_is_reached_and_no_more():
    """Every retry and every overflow step used: as many requests as ``compute_max_requests`` says."""
    events = [*[BUSY] * 8, SEALED, refused("input_plus_output"), *[TOO_LARGE] * 5]
    actions, state = done(*events)
    assert not any(isinstance(one, Stop) for one in actions)
    assert 1 + len(actions) == compute_max_requests(OURS)
    assert isinstance(decide_next_action(state, TOO_LARGE)[1], Stop)
    assert isinstance(decide_next_action(state, BUSY)[1], Stop)


# -- the last word -----------------------------------------------------------------------------------------------------


def test_the_last_word_tells_what_was_measured_the_limit_the_floor_and_two_things_to_do():
    """BEHAVIOUR 15."""
    actions, state = done(*[TOO_LARGE] * 6)
    text = format_stop_message(
        actions[-1], state.overflow, window=32_768, min_tokens=9_800, provider_message="  prompt is\ntoo long "
    )
    for said in ("41,200", "32,768", "30,100", "9,800", "prompt is too long", "compact, compact, truncate", ", or "):
        assert said in text


@pytest.mark.parametrize("kind", VERDICT_KINDS)
def test_every_end_names_its_kind_and_two_things_to_do(kind):
    """Errors: what happened, the numbers, things to do."""
    actions, state = done(*[refused(kind)] * 16)
    text = format_stop_message(actions[-1], state.overflow)
    assert kind in text
    assert text.rpartition("; ")[2].count(", or ") == 1


@pytest.mark.parametrize(
    ("kind", "cure"),
    [
        *[(kind, "ask again later") for kind in sorted(TRANSIENT)],
        ("auth", "check the key"),
        ("invalid_request", "holdfast lint"),
        ("context_window", "a larger window"),
    ],
)
def test_what_can_be_done_is_about_what_went_wrong(kind, cure):
    """Who waits for a provider is not sent to look for a fault in the request, nor the other way round."""
    actions, state = done(*[refused(kind)] * 16)
    assert cure in format_stop_message(actions[-1], state.overflow)


def test_the_advice_is_what_would_have_helped():
    """Longer waits where one was wanted, more tries where they ran out; at a wrong address neither helps."""
    ends = {
        "`retry.max_retries`": [refused("rate_limit", retry_after=1.0)] * 16,
        "`retry.max_wait_seconds`": [refused("rate_limit", retry_after=9_000.0)],
        "check the address": [refused("server", status=404)],
    }
    for cure, events in ends.items():
        actions, state = done(*events)
        text = format_stop_message(actions[-1], state.overflow)
        assert [one for one in ends if one in text.rpartition("; ")[2]] == [cure]
    assert "ask again" not in text


def test_what_another_key_sealed_wants_that_key():
    """Nothing is wrong with the shape of such a request, and no other model takes it."""
    actions, state = done(SEALED, SEALED)
    assert "the key and account that the signed content was made with, or" in format_stop_message(
        actions[-1], state.overflow
    )


def test_a_provider_says_no_more_than_a_few_lines():
    """Its words are cut, an HTML page is no error text."""
    assert (
        len(format_stop_message(Stop("server", "why"), refused("server", status=502), provider_message="<p>" * 1_000))
        < 700
    )
