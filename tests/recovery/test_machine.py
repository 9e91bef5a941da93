"""Recovery: the action for each kind of refusal, its limits, and the final error text."""

from __future__ import annotations

import math

import pytest
from sample_recovery_log import COMPACTED, CUT, SETTINGS, make_state

from holdfast import Policy
from holdfast.planning.presets.openclaw.rules import OPENCLAW_2026_9
from holdfast.providers.errors.report import OVERFLOW_KINDS, VERDICT_KINDS
from holdfast.recovery.machine import (
    CONTEXT_OVERFLOW_KIND,
    FIRST_STEP_BY_KIND,
    MAX_FIELD_CHANGES,
    MAX_UNCOUNTED_REQUESTS,
    SUMMARY_TOO_LARGE_MESSAGES,
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
    start_recovery,
    subtract_used_steps,
)
from holdfast.recovery.retry import compute_retry_delay, compute_summary_retry_delay
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

TRANSIENT = {"network", "rate_limit", "overloaded", "server", "unknown"}
BUSY = ProviderRefusal("overloaded")


def make_refusal(kind, **more):
    return ProviderRefusal(kind, is_overflow=kind in OVERFLOW_KINDS, **more)


TOO_LARGE = make_refusal("context_window", token_limit=32_768, counted_tokens=41_200, estimated_tokens=30_100)


SIGNATURE_ERROR = make_refusal("invalid_history", is_signature_error=True)
FIELD_ERROR = make_refusal("invalid_request", field_lessons=(FieldLesson("drop", ("store",)),))


def run_events(*events, settings=SETTINGS, conversation=ConversationState()):
    """Feed ``events`` to the machine; return the actions and the final state."""
    state, actions = start_recovery(conversation, settings), []
    for event in events:
        state, action = decide_next_action(state, event)
        actions.append(action)
    return actions, state


def list_actions(*events, **options):
    return [
        action.step if isinstance(action, Shrink) else type(action).__name__
        for action in run_events(*events, **options)[0]
    ]


# -- the overflow steps ------------------------------------------------------------------------------------------------


def test_decide_next_action_takes_overflow_steps_in_order():
    """bounded-attempts: the overflow steps follow in their order, with two compactions and one truncation."""
    assert list_actions(*[TOO_LARGE] * 6) == ["compact", "compact", "truncate", "media", "fallback", "Stop"]


def test_decide_next_action_drops_media_before_a_second_compaction():
    """An image still shown after a compaction is replaced before the message it came with is summarized."""
    with_media = make_refusal("context_window", has_media=True)
    state, _ = decide_next_action(start_recovery(make_state(), SETTINGS), with_media)
    steps = []
    for _ in range(4):
        state, action = decide_next_action(subtract_used_steps(state, make_state(COMPACTED)), with_media)
        steps.append(action.step)
    assert steps == ["media", "compact", "truncate", "fallback"]
    assert list_actions(with_media, NoProgress("nothing_to_compact")) == ["compact", "truncate"]


@pytest.mark.parametrize("outcome", SUMMARY_TOO_LARGE_MESSAGES)
def test_decide_next_action_stops_when_a_summary_is_impossible(outcome):
    """[C] nothing else is tried, and the text says whether a message was kept beside what was to be summarized."""
    actions, _ = run_events(TOO_LARGE, NoProgress(outcome), TOO_LARGE)
    assert (actions[1].kind, actions[1].rule) == (CONTEXT_OVERFLOW_KIND, "summary_too_large")
    assert actions[1].why == SUMMARY_TOO_LARGE_MESSAGES[outcome]
    assert actions[2] is actions[1]
    assert run_events(NoProgress(outcome))[0][0].kind == CONTEXT_OVERFLOW_KIND


def test_decide_next_action_skips_useless_steps():
    """A step that made nothing smaller is followed by the next one, and a useless compaction is not repeated."""
    useless = NoProgress("nothing_to_compact")
    assert list_actions(TOO_LARGE, useless, useless, useless, useless) == [
        "compact",
        "truncate",
        "media",
        "fallback",
        "Stop",
    ]


def test_decide_next_action_never_compacts_after_a_failed_summary():
    """There is no other compaction in this run, whatever is refused later."""
    assert "compact" not in list_actions(TOO_LARGE, NoProgress("provider_error"), *[TOO_LARGE] * 4)[1:]


def test_decide_next_action_after_a_failed_first_compaction():
    """When a compaction fails before anything was refused, the other overflow steps are tried, and the end names the
    compaction.
    """
    events = [NoProgress("timed_out")] * 4
    assert list_actions(*events) == ["truncate", "media", "fallback", "Stop"]
    assert run_events(*events)[0][-1].rule == "compaction_failed"


@pytest.mark.parametrize("kind", sorted(OVERFLOW_KINDS))
def test_decide_next_action_picks_the_first_step_by_kind(kind):
    """DESIGN 7: the first step is the output where it was counted in, media where there were too many bytes, else a
    compaction.
    """
    first = {"input_plus_output": "output", "request_bytes": "media", "oversized_part": "media"}
    assert list_actions(make_refusal(kind)) == [first.get(kind, "compact")]


@pytest.mark.parametrize("kind", sorted(FIRST_STEP_BY_KIND))
def test_decide_next_action_takes_a_special_first_step_once(kind):
    """A kind with its own first step continues with the ordinary steps; a refused image has no further step."""
    actions = list_actions(*[make_refusal(kind)] * 2)
    assert actions == [FIRST_STEP_BY_KIND[kind], "Stop" if kind == "media" else "compact"]


def test_refused_image_stops_with_kind_media():
    """A refused image is not reported as an overflow."""
    assert run_events(*[make_refusal("media")] * 2)[0][-1].kind == "media"


# -- what is never tried -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted({*VERDICT_KINDS} - OVERFLOW_KINDS - TRANSIENT - {"media"}))
def test_decide_next_action_stops_at_permanent_refusals(kind):
    """retries-shrink: the same request is never sent again after a refusal that will not change."""
    (stop,), _ = run_events(make_refusal(kind))
    assert (stop.kind, stop.rule) == (kind, "permanent")


@pytest.mark.parametrize("kind", VERDICT_KINDS)
def test_decide_next_action_stops_once_the_answer_has_started(kind):
    """DESIGN 7: after bytes of an answer reached the client every refusal ends the run."""
    (stop,), _ = run_events(make_refusal(kind, has_answer_started=True))
    assert stop.rule == "seen"


@pytest.mark.parametrize("kind", sorted({*OVERFLOW_KINDS, "media"}))
def test_recovery_enabled_false_stops_at_overflows(kind):
    """Recovery has its own switch, the stop names it, and transient faults are still retried."""
    (stop,), _ = run_events(make_refusal(kind), settings=Policy().with_settings(recovery={"enabled": False}).settings)
    assert stop.rule == "switched_off"
    assert "recovery.enabled" in stop.why
    assert list_actions(BUSY, settings=Policy().with_settings(recovery={"enabled": False}).settings) == ["Retry"]


def test_rate_ceiling_is_compacted_under_or_stops_by_setting():
    """DESIGN 7: the window shrinks to a per-minute ceiling; OpenClaw since 2026.9 stops instead."""
    terminal = Policy.preset("openclaw").with_settings(**OPENCLAW_2026_9).settings
    assert list_actions(make_refusal("tpm_ceiling")) == ["compact"]
    assert run_events(make_refusal("tpm_ceiling"), settings=terminal)[0][0].rule == "terminal"


@pytest.mark.parametrize("status", [404, 405, 414, 501])
def test_decide_next_action_never_retries_a_wrong_address(status):
    """These statuses count as the server's, and waiting does not change them."""
    assert list_actions(make_refusal("server", status=status)) == ["Stop"]
    assert list_actions(make_refusal("server", status=500)) == ["Retry"]


def test_decide_next_action_after_a_stop_returns_the_same_stop():
    """A machine that has stopped stays stopped."""
    actions, state = run_events(make_refusal("auth"), TOO_LARGE, BUSY, NoProgress("cancelled"))
    assert len({*actions}) == 1
    assert not compute_termination_rank(state)[0]


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_retry_waits_double_up_to_a_cap():
    """The same bytes are sent again after 0.5 s, 1 s, 2 s … 30 s, without randomness."""
    actions, _ = run_events(*[BUSY] * 9)
    assert [action.seconds for action in actions[:-1]] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert actions[-1].rule == "retry_limit"


def test_retry_honours_the_wait_of_the_provider():
    """The provider's wait is used; one longer than the limit ends the run with that reason and the provider's kind."""
    assert run_events(make_refusal("rate_limit", retry_after=42.0))[0] == [Retry(42.0)]
    (stop,), _ = run_events(make_refusal("rate_limit", retry_after=3_600.0))
    assert (stop.kind, stop.rule) == ("rate_limit", "wait_too_long")
    assert "3,600 s" in stop.why


@pytest.mark.parametrize(
    ("retry_after", "seconds"), [(-5.0, 0.0), (0.0, 0.0), (math.nan, 0.5), (math.inf, None), (300.0, 300)]
)
def test_compute_retry_delay_handles_odd_headers(retry_after, seconds):
    """A header may hold any float, and each gives a delay or None."""
    assert compute_retry_delay(0, retry_after, SETTINGS) == seconds


def test_compute_retry_delay_caps_before_doubling():
    """The doubling is capped before it is computed, so any number of retries works."""
    assert compute_retry_delay(10**9, None, SETTINGS) == SETTINGS.retry.cap_seconds


@pytest.mark.parametrize(
    ("attempts", "retry_after", "seconds"),
    [(1, None, 0.5), (2, None, 1.0), (2, 3.0, 3.0), (3, 0.1, 2.0), (10**9, 1e9, 5.0)],
)
def test_compute_summary_retry_delay_is_capped(attempts, retry_after, seconds):
    """The delay doubles or is the provider's, and never exceeds its cap."""
    assert compute_summary_retry_delay(attempts, retry_after, SETTINGS) == seconds


def test_retries_and_overflow_steps_are_counted_separately():
    """A transient fault between two overflow steps uses up neither, and an overflow step gives no retry back."""
    assert list_actions(BUSY, TOO_LARGE, BUSY, TOO_LARGE, BUSY) == ["Retry", "compact", "Retry", "compact", "Retry"]
    assert run_events(BUSY, TOO_LARGE, BUSY)[0][-1] == Retry(1.0)


# -- steps counted in the log ------------------------------------------------------------------------------------------


def test_start_recovery_subtracts_steps_in_the_log():
    """bounded-attempts: compactions and truncations since the last answer are counted from the log, also after a
    restart.
    """
    assert list_actions(TOO_LARGE, TOO_LARGE, conversation=make_state(COMPACTED)) == ["compact", "truncate"]
    assert list_actions(TOO_LARGE, conversation=make_state(COMPACTED, COMPACTED)) == ["truncate"]
    assert list_actions(TOO_LARGE, conversation=make_state(COMPACTED, COMPACTED, CUT)) == ["media"]


def test_start_recovery_after_an_answer_has_all_steps():
    """The limits apply between answers, so an answer restores every step."""
    assert start_recovery(make_state(COMPACTED, CUT, AnswerEntry("")), SETTINGS) == start_recovery(
        ConversationState(), SETTINGS
    )


def test_open_breaker_skips_compaction_steps():
    """After three failures compaction is not tried, and the run continues with the next overflow step."""
    failed = FailureEntry("not_smaller")
    assert list_actions(TOO_LARGE, conversation=make_state(failed, failed)) == ["compact"]
    assert list_actions(TOO_LARGE, conversation=make_state(failed, failed, failed)) == ["truncate"]
    assert list_actions(TOO_LARGE, conversation=make_state(*[FailureEntry(FAILURE_OVERFLOW)] * 5)) == ["compact"]


def test_cooled_breaker_allows_one_compaction():
    """After the cool-down one compaction is tried, and if it fails the breaker is open again."""
    failed = FailureEntry("not_smaller")
    conversation = make_state(failed, failed, failed)
    state = start_recovery(conversation, SETTINGS, is_breaker_cooled=True)
    compacting, action = decide_next_action(subtract_used_steps(state, conversation), TOO_LARGE)
    assert action == Shrink("compact")
    assert subtract_used_steps(state, conversation) == state
    failed_again = apply_entry(conversation, Entry("again", None, failed))
    assert subtract_used_steps(state, failed_again).compact == 0
    assert decide_next_action(subtract_used_steps(compacting, failed_again), NoProgress("not_smaller"))[1] == Shrink(
        "truncate"
    )
    assert start_recovery(failed_again, SETTINGS).compact == 0


def test_subtract_used_steps_counts_the_planners_compactions():
    """Compactions that the planner makes by itself count too, so the sum stays under the limit."""
    conversation = make_state()
    state = start_recovery(conversation, SETTINGS)
    conversation = apply_entry(conversation, Entry("c", None, COMPACTED))
    assert subtract_used_steps(state, conversation).compact == 1
    compacting, _ = decide_next_action(state, TOO_LARGE)
    assert compute_termination_rank(subtract_used_steps(compacting, conversation)) == compute_termination_rank(
        compacting
    )


def test_decide_next_action_drops_signatures_once():
    """A signature refusal drops the signed parts once and uses up no other step; the second one is permanent."""
    actions, state = run_events(SIGNATURE_ERROR)
    assert actions == [DropSignatures()]
    assert decide_next_action(state, TOO_LARGE)[1] == Shrink("compact")
    both_actions, ended = run_events(SIGNATURE_ERROR, SIGNATURE_ERROR)
    assert both_actions[1] == ended.stop
    assert (ended.stop.kind, ended.stop.rule) == ("invalid_history", "permanent")
    assert isinstance(run_events(make_refusal("invalid_history"))[0][0], Stop)


def test_unchangeable_request_is_only_retried():
    """When the request may not change, transient faults are retried and every other refusal stops at once."""
    state = start_recovery(make_state(), SETTINGS, can_change_request=False)
    assert compute_termination_rank(state) == (1, *[0] * 7, SETTINGS.retry.max_retries)
    assert compute_termination_rank(subtract_used_steps(state, make_state(COMPACTED))) == compute_termination_rank(
        state
    )
    assert isinstance(decide_next_action(state, BUSY)[1], Retry)
    ends = [
        decide_next_action(state, event)[1]
        for event in (TOO_LARGE, make_refusal("media"), make_refusal("input_plus_output"), SIGNATURE_ERROR)
    ]
    assert [end.rule for end in ends] == ["exhausted", "exhausted", "exhausted", "permanent"]
    assert ends[0].why.endswith("tried: nothing")


@pytest.mark.parametrize(
    "settings", [Policy().with_settings(recovery={"enabled": False}).settings, Policy.preset("append-only").settings]
)
def test_signatures_are_not_dropped_without_recovery(settings):
    """Where recovery is off or has no steps, or the answer has started, a signature refusal stops the run."""
    assert isinstance(run_events(SIGNATURE_ERROR, settings=settings)[0][0], Stop)
    assert isinstance(
        run_events(make_refusal("invalid_history", is_signature_error=True, has_answer_started=True))[0][0], Stop
    )


# -- refusals that name a field ----------------------------------------------------------------------------------------


def make_field_refusals(count):
    """Return refusals that name a different field each."""
    lessons = [FieldLesson("drop", (f"f{number}",)) for number in range(count)]
    return [make_refusal("invalid_request", field_lessons=(lesson,)) for lesson in lessons]


def test_fields_are_changed_as_often_as_different_ones_are_named():
    """A new field is changed, up to the bound; then the run stops as for any invalid request."""
    refusals = make_field_refusals(MAX_FIELD_CHANGES + 1)
    actions, _ = run_events(*refusals)
    assert actions[:-1] == [ChangeFields(refusal.field_lessons) for refusal in refusals[:-1]]
    assert isinstance(actions[-1], Stop)
    assert actions[-1].rule == "permanent"


def test_a_field_is_changed_once_and_a_limit_only_lowered():
    """A field that is named again was misread, or cannot be made right; a cap may be followed by a lower one."""
    assert list_actions(FIELD_ERROR, FIELD_ERROR) == ["ChangeFields", "Stop"]
    caps = [FieldLesson("cap", ("max_tokens",), limit=limit) for limit in (9_000, 5_000, 5_000)]
    refusals = [make_refusal("invalid_request", field_lessons=(cap,)) for cap in caps]
    assert list_actions(*refusals) == ["ChangeFields", "ChangeFields", "Stop"]
    renames = [FieldLesson("rename", (name,), value=other) for name, other in (("a", "b"), ("b", "a"), ("a", "b"))]
    refusals = [make_refusal("invalid_request", field_lessons=(rename,)) for rename in renames]
    assert list_actions(*refusals) == ["ChangeFields", "ChangeFields", "Stop"]


def test_a_field_is_changed_before_an_unknown_error_is_waited_out():
    """An error that nobody knows but that names a field does not pass by waiting."""
    unknown = make_refusal("unknown", field_lessons=FIELD_ERROR.field_lessons)
    assert list_actions(unknown, make_refusal("unknown")) == ["ChangeFields", "Retry"]


def test_no_field_is_changed_once_the_answer_has_begun_or_recovery_is_off():
    """What reached the client is not asked for again, and without recovery nothing changes."""
    begun = make_refusal("invalid_request", field_lessons=FIELD_ERROR.field_lessons, has_answer_started=True)
    assert list_actions(begun) == ["Stop"]
    for policy in (Policy().with_settings(recovery={"enabled": False}), Policy.preset("append-only")):
        assert isinstance(run_events(FIELD_ERROR, settings=policy.settings)[0][0], Stop)


# -- presets and bounds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("openclaw", ["compact", "compact", "compact", "truncate", "Stop"]),
        ("pi", ["compact", "Stop"]),
        ("append-only", ["Stop"]),
        ("opencode", ["compact", "compact", "truncate", "media", "fallback", "Stop"]),
    ],
)
def test_presets_have_their_own_overflow_steps(name, steps):
    """[O] three compactions and a truncation, [P] one compaction; append-only, which changes nothing, recovers from
    nothing.
    """
    settings = Policy.preset(name).settings
    assert list_actions(*[TOO_LARGE] * len(steps), settings=settings) == steps


def test_compute_max_requests_is_reached_exactly():
    """If every action is used, that is all of ``compute_max_requests`` except the requests without a count."""
    events = [
        *[BUSY] * 8,
        SIGNATURE_ERROR,
        *make_field_refusals(MAX_FIELD_CHANGES),
        make_refusal("input_plus_output"),
        *[TOO_LARGE] * 5,
    ]
    actions, state = run_events(*events)
    assert not any(isinstance(action, Stop) for action in actions)
    assert 1 + len(actions) + MAX_UNCOUNTED_REQUESTS == compute_max_requests(SETTINGS)
    assert isinstance(decide_next_action(state, TOO_LARGE)[1], Stop)
    assert isinstance(decide_next_action(state, BUSY)[1], Stop)


# -- the stop message --------------------------------------------------------------------------------------------------


def test_format_stop_message_has_sizes_limit_steps_and_advice():
    """The text has the measured size, the limit, the smallest request, the steps tried and two things to
    do.
    """
    actions, state = run_events(*[TOO_LARGE] * 6)
    text = format_stop_message(
        actions[-1], state.overflow, window=32_768, min_tokens=9_800, provider_message="  prompt is\ntoo long "
    )
    for part in ("41,200", "32,768", "30,100", "9,800", "prompt is too long", "compact, compact, truncate", ", or "):
        assert part in text


@pytest.mark.parametrize("kind", VERDICT_KINDS)
def test_format_stop_message_names_the_kind_and_two_remedies(kind):
    """Every stop message names its kind and two things to do."""
    actions, state = run_events(*[make_refusal(kind)] * 16)
    text = format_stop_message(actions[-1], state.overflow)
    assert kind in text
    assert text.rpartition("; ")[2].count(", or ") == 1


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        *[(kind, "ask again later") for kind in sorted(TRANSIENT)],
        ("auth", "check the key"),
        ("invalid_request", "holdfast lint"),
        ("context_window", "a larger window"),
    ],
)
def test_format_stop_message_advice_matches_the_kind(kind, remedy):
    """A transient fault gives no advice about the request, and a fault of the request no advice to wait."""
    actions, state = run_events(*[make_refusal(kind)] * 16)
    assert remedy in format_stop_message(actions[-1], state.overflow)


def test_format_stop_message_advises_the_setting_that_would_help():
    """The advice is a longer wait where one was requested, more retries where they ran out, and neither at a wrong
    address.
    """
    ends = {
        "`retry.max_retries`": [make_refusal("rate_limit", retry_after=1.0)] * 16,
        "`retry.max_wait_seconds`": [make_refusal("rate_limit", retry_after=9_000.0)],
        "check the address": [make_refusal("server", status=404)],
    }
    for remedy, events in ends.items():
        actions, state = run_events(*events)
        text = format_stop_message(actions[-1], state.overflow)
        assert [advice for advice in ends if advice in text.rpartition("; ")[2]] == [remedy]
    assert "ask again" not in text


def test_format_stop_message_of_foreign_signatures_names_the_key():
    """The request's form is in order, so the advice is the key and account that signed it."""
    actions, state = run_events(SIGNATURE_ERROR, SIGNATURE_ERROR)
    assert "the key and account that the signed content was made with, or" in format_stop_message(
        actions[-1], state.overflow
    )


def test_format_stop_message_truncates_the_provider_message():
    """The provider's message is cut to a few lines, and an HTML page is not an error text."""
    assert (
        len(
            format_stop_message(
                Stop("server", "why"), make_refusal("server", status=502), provider_message="<p>" * 1_000
            )
        )
        < 700
    )
