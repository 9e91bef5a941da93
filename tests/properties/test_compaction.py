"""Compaction: when it happens, where it cuts, what the summary contains, and that it is worth it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import broken_history_strategy, conversation_strategy
from msgspec.structs import replace
from planning_loop import drive_agent_loop, find_request_points
from sample_conversations import make_text

from holdfast import ConversationState, PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.cut_points import find_cut_points
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.normalize.projection import build_messages_to_send
from holdfast.planning.budget import compute_budget
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.extract.extract import build_extract
from holdfast.planning.extract.user_words import OLDER_SHARE
from holdfast.planning.pipeline import plan_request
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings import Settings
from holdfast.state.entries import AnswerEntry, Entry, FailureEntry, MessageEntry, RequestSetup, Usage
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.target import ModelLimits
from holdfast.state.view import build_projection

POLICY = Policy()
HEADINGS = [
    "## Goal",
    "## Constraints & Preferences",
    "## Progress",
    "### Done",
    "### Blocked",
    "## Key Decisions",
    "## Next Steps",
    "## Critical Context",
    "## Relevant Files",
]
NOT_COMPACTED = {"breaker", "compaction-limit", "nothing-to-compact", "not-smaller"}
SUMMARISING = [name for name, preset in PRESETS.items() if preset.settings.compaction.enabled]
TARGET = get_target("anthropic", "claude-sonnet-4-5", window=9_000)
windows = st.sampled_from([7_000, 9_000, 20_000])
long_conversations = conversation_strategy(turns=4, steps=6, longest=6_000, pictures=False)


def build_target(window, setup_tokens=0):
    return get_target(
        "anthropic", "claude-sonnet-4-5", window=window, setup=RequestSetup("f" * bool(setup_tokens), setup_tokens)
    )


def list_compaction_steps(steps):
    return [step for step in steps if step.plan.compaction is not None]


def build_turns(turns, chars=4_000, start=0):
    """Return a conversation of ``turns`` finished turns that each read a file of ``chars`` characters."""
    messages = []
    for turn in range(start, start + turns):
        messages += [
            Message.from_text(
                "user", f"Request number {turn}: look at src/app/part_{turn}.py and never touch main_{turn}.py"
            ),
            Message("assistant", (ToolCall(f"c{turn}", "read", f'{{"path":"src/app/part_{turn}.py"}}'),)),
            Message("tool", (ToolResult(f"c{turn}", "read", (Text(make_text(turn, chars)),)),)),
            Message.from_text("assistant", f"Part {turn} reads config_{turn}, because compute_total_{turn} needs it."),
        ]
    return messages


# -- gain --------------------------------------------------------------------------------------------------------------


@given(long_conversations, windows, st.integers(0, 1_000))
def test_compaction_shrinks_the_request_and_stays_below_the_trigger(messages, window, setup_tokens):
    """compaction-must-gain: a committed compaction makes the request smaller, meets its goal, stays below its own
    trigger, and gains the minimum.
    """
    target = build_target(window, setup_tokens)
    budget, settings = compute_budget(target, POLICY.settings), POLICY.settings
    for step in list_compaction_steps(drive_agent_loop(messages, target, POLICY)):
        new_plan = step.plan
        assert new_plan.after < new_plan.before
        assert new_plan.after <= budget.setup_tokens + budget.compute_share(settings.compaction.goal_share)
        assert new_plan.compaction.tokens_before <= new_plan.before
        assert new_plan.after == new_plan.compaction.tokens_after
        gain = max(settings.compaction.min_gain_share * (new_plan.compaction.tokens_before - budget.setup_tokens), 0)
        minimum = min(settings.compaction.min_gain_tokens, budget.compute_share(settings.compaction.min_gain_share))
        assert (
            new_plan.compaction.tokens_before - new_plan.after >= min(gain, minimum) or new_plan.before > budget.usable
        )
        builder = PlanBuilder(new_plan.state, target, settings, PlanInputs(), budget)
        assert not POLICY.rules.is_over_trigger(builder)


@given(long_conversations | broken_history_strategy(longest=6_000), windows)
def test_compaction_without_gain_changes_nothing_and_gives_a_notice(messages, window):
    """compaction-must-gain, failed-attempt-changes-nothing: over the trigger there is either a compaction or a notice
    that says why, and then nothing is hidden.
    """
    target = build_target(window)
    policy = POLICY.replace_stage("largest", lambda builder: builder)
    for step in drive_agent_loop(
        messages, target, policy, plan_inputs=[PlanInputs(force_compaction=True), PlanInputs()]
    ):
        new_plan = step.plan
        problems = [notice for notice in new_plan.notices if notice.rule in NOT_COMPACTED]
        assert not (problems and new_plan.compaction)
        if problems:
            assert all(notice.why for notice in problems)
            assert new_plan.state.view.first_kept == max(step.state.view.first_kept, new_plan.state.view.pinned_count)
            assert new_plan.state.view.compaction == step.state.view.compaction
        budget = compute_budget(target, POLICY.settings)
        builder = PlanBuilder(new_plan.state, target, POLICY.settings, step.inputs, budget)
        assert problems or new_plan.compaction or not POLICY.rules.is_over_trigger(builder)


@pytest.mark.parametrize("name", [name for name in SUMMARISING if name != "opencode"])
def test_compaction_continues_in_a_loop_that_reports_no_usage(name):
    """bounded-attempts counts compactions between answers; answers without usage count as answers too, so compaction
    continues.
    """
    target = get_target("anthropic", "claude-sonnet-4-5", window=60_000)
    policy = Policy.preset(name)
    if name == "openclaw":  # its guard in the loop leaves nothing to compact
        policy = policy.with_settings(preset={"loop_share": 0.0})
    steps = drive_agent_loop(build_turns(60, 12_000), target, policy)
    assert len(list_compaction_steps(steps)) > 3
    assert all(notice.rule not in ("breaker", "compaction-limit") for step in steps for notice in step.plan.notices)


def test_compaction_happens_at_most_twice_between_two_answers():
    """bounded-attempts: requests repeated without an answer are compacted automatically at most twice."""
    state = ConversationState()
    compaction_count = 0
    for message in build_turns(16, 6_000):
        state = apply_entry(state, Entry("", None, MessageEntry(build_sized_message(message))))
        if message.role != "tool":
            continue
        new_plan = plan_request(state, TARGET, POLICY)
        compaction_count += new_plan.compaction is not None
        state = new_plan.state
    assert compaction_count > 2
    user = [Message.from_text("user", make_text(number, 9_000)) for number in range(12)]
    state_without_answers, compaction_count = ConversationState(), 0
    for message in user:
        state_without_answers = apply_entry(
            state_without_answers, Entry("", None, MessageEntry(build_sized_message(message)))
        )
        new_plan = plan_request(state_without_answers, TARGET, POLICY)
        compaction_count += new_plan.compaction is not None
        state_without_answers = new_plan.state
    assert compaction_count <= 2


def test_compaction_stops_after_repeated_failures():
    """After the configured number of failures in a row no automatic compaction is tried; a forced one still is."""
    state = ConversationState.from_entries(
        Entry("", None, MessageEntry(build_sized_message(message))) for message in build_turns(6)
    )
    assert plan_request(state, TARGET, POLICY).compaction is not None
    for _ in range(POLICY.settings.compaction.breaker_failures):
        state = apply_entry(state, Entry("", None, FailureEntry("no-gain")))
    stopped = plan_request(state, TARGET, POLICY)
    assert stopped.compaction is None
    assert "breaker" in [notice.rule for notice in stopped.notices]
    assert plan_request(state, TARGET, POLICY, PlanInputs(force_compaction=True)).compaction is not None


@pytest.mark.parametrize("name", SUMMARISING)
def test_open_breaker_stops_only_automatic_compaction(name):
    """With an open breaker nothing is compacted automatically, but a forced compaction is made."""
    policy = Policy.preset(name)
    messages = build_turns(8, 20_000)
    target = get_target("anthropic", "claude-sonnet-4-5", window=60_000)
    automatic_plan = plan(messages, target, policy, inputs=PlanInputs(allow_auto_compaction=False))
    assert automatic_plan.compaction is None
    assert "breaker" not in [notice.rule for notice in automatic_plan.notices]
    forced_plan = plan(messages, target, policy, inputs=PlanInputs(allow_auto_compaction=False, force_compaction=True))
    assert forced_plan.compaction is not None
    assert (
        plan(
            messages,
            target,
            policy.with_settings(compaction={"enabled": False}),
            inputs=PlanInputs(force_compaction=True),
        ).compaction
        is None
    )


@given(long_conversations, windows, st.booleans())
def test_compaction_off_shows_the_whole_history(messages, window, force):
    """``compact = "off"`` shows everything, forced or not, however small the window."""
    policy = POLICY.with_settings(compaction={"enabled": False})
    for step in drive_agent_loop(
        messages, build_target(window), policy, plan_inputs=[PlanInputs(force_compaction=force)]
    ):
        assert step.plan.compaction is None
        assert len(build_projection(step.plan.state)) == step.count


def test_forced_compaction_of_a_short_history_changes_nothing():
    """A forced compaction of a short history changes nothing and says so."""
    for messages in ([], [Message.from_text("system", "s")], [Message.from_text("user", "a")]):
        new_plan = plan(messages, TARGET, POLICY, inputs=PlanInputs(force_compaction=True))
        assert new_plan.compaction is None
        assert new_plan.record == ()
        assert [notice.rule for notice in new_plan.notices] in (["nothing-to-compact"], ["not-smaller"])


# -- cut points --------------------------------------------------------------------------------------------------------


@given(
    long_conversations | broken_history_strategy(longest=6_000),
    windows,
    st.sampled_from(SUMMARISING),
    st.sampled_from([0, 3, 3, 3]),
)
def test_compaction_keeps_a_tail_that_starts_at_a_cut_point(messages, window, name, forced):
    """calls-with-results: a call and its results are on one side of the cut, and no open call is cut off."""
    window = max(window, 16_000) if name == "openclaw" else window
    inputs = [PlanInputs(force_compaction=number == forced) for number in range(4)]
    for step in list_compaction_steps(
        drive_agent_loop(messages, build_target(window), Policy.preset(name), plan_inputs=inputs)
    ):
        before = max(step.state.view.first_kept, step.plan.state.view.pinned_count)
        shown = messages[before : step.count]
        assert step.plan.compaction.first_kept - before in find_cut_points(shown)
        assert step.plan.compaction.first_kept > before


@given(
    long_conversations | broken_history_strategy(max_damages=3, longest=3_000), windows, st.sampled_from(SUMMARISING)
)
def test_compaction_loses_no_message_between_head_and_tail(messages, window, name):
    """Every message is either shown or before the cut; none is lost between two compactions."""
    window = max(window, 16_000) if name == "openclaw" else window
    for step in drive_agent_loop(messages, build_target(window), Policy.preset(name)):
        state = step.plan.state
        assert (
            len(build_projection(state))
            == state.view.pinned_count + (state.view.compaction is not None) + step.count - state.view.first_kept
        )
        assert list(state.history.messages) == messages[: step.count]


positions = st.integers(0, 40)


@given(broken_history_strategy(max_damages=5))
def test_find_cut_points_never_separates_a_call_from_its_result(messages):
    """calls-with-results: no cut point has a call before it and its result after it, and none is directly before a
    result.
    """
    cuts = find_cut_points(messages)
    assert cuts == sorted(set(cuts))
    assert all(0 <= cut <= len(messages) for cut in cuts)
    ids = [call.id for message in messages for call in message.calls if message.role == "assistant"]
    for cut in cuts:
        assert cut == len(messages) or messages[cut].role != "tool"
        for id_ in {one for one in ids if ids.count(one) == 1}:
            call_index = next(at for at, one in enumerate(messages) if id_ in [call.id for call in one.calls])
            result_indexes = [
                at for at, one in enumerate(messages) if at > call_index and id_ in [r.call_id for r in one.results]
            ]
            assert not (result_indexes and call_index < cut <= result_indexes[0])
    newest = max((at for at, one in enumerate(messages) if one.role == "assistant"), default=None)
    newest_call_ids = [] if newest is None else [call.id for call in messages[newest].calls]
    result_ids = [] if newest is None else [r.call_id for message in messages[newest:] for r in message.results]
    if any(newest_call_ids.count(id_) > result_ids.count(id_) for id_ in newest_call_ids):
        assert all(cut <= newest for cut in cuts)


@given(conversation_strategy())
def test_find_cut_points_allows_every_message_except_results(messages):
    """calls-with-results forbids no more than needed: every group of a sound conversation is a cut point."""
    assert find_cut_points(messages) == [
        index for index in range(len(messages) + 1) if index == len(messages) or messages[index].role != "tool"
    ]


# -- extracts ----------------------------------------------------------------------------------------------------------


def list_headings(text):
    return [line for line in text.split("\n") if line in HEADINGS]


def has_empty_section(text):
    """Return whether a heading is followed by the next one of its level, or by the end."""
    lines = text.split("\n")
    for line, next_line in zip(lines, [*lines[1:], "## end"], strict=True):
        is_parent = line == "## Progress" and next_line.startswith("### ")
        if line in HEADINGS and next_line in [*HEADINGS, "## end"] and not is_parent:
            return True
    return False


@given(
    long_conversations | broken_history_strategy(max_damages=4, longest=2_000),
    st.sampled_from([300, 1_000, 4_000, 20_000]),
    positions,
)
def test_build_extract_has_headings_in_order_within_its_budget(messages, budget, cut):
    """summary-form: the headings are in order, none stands above nothing, and the size is within the budget or what the
    newest request needs. Beside the request that is fixed lines and half of the user's share for older text.
    """
    sized_messages = [build_sized_message(message) for message in messages]
    cut = min(cut, len(sized_messages))
    text = build_extract(sized_messages[:cut], sized_messages[cut:], budget)
    assert list_headings(text) == [heading for heading in HEADINGS if heading in list_headings(text)]
    assert not has_empty_section(text)
    newest = [message.text.strip() for message in messages[:cut] if message.is_turn_start and message.text.strip()][-1:]
    newest_tokens = sum(estimate_text_tokens(message) for message in newest)
    assert estimate_text_tokens(text) <= max(
        budget, newest_tokens + 400 + round(OLDER_SHARE * Settings().summary.user_share * budget)
    )


@pytest.mark.parametrize("budget", [600, 1_000, 2_000, 5_000, 10_000])
def test_build_extract_counts_source_headings_in_its_budget(budget):
    """summary-form: the headings that name the sources of quoted lines are within the budget, as the lines are."""
    messages = []
    for turn in range(400):
        path = f"src/app/module_{turn}/part_{turn}.py"
        text = f"def compute_{turn}(): return total_{turn}\n"
        messages += [
            Message("assistant", (ToolCall(f"c{turn}", "read", f'{{"path":"{path}"}}'),)),
            Message("tool", (ToolResult(f"c{turn}", "read", (Text(text),)),)),
        ]
    text = build_extract(
        [build_sized_message(message) for message in [Message.from_text("user", "Go."), *messages]], [], budget
    )
    assert 0.75 * budget <= estimate_text_tokens(text) <= budget
    assert "\n[module_" in text


@given(long_conversations, st.sampled_from([400, 3_000]))
def test_build_extract_is_deterministic(messages, budget):
    """no-clock-in-decisions: the same head and tail give the same text."""
    sized_messages = [build_sized_message(message) for message in messages]
    half = len(sized_messages) // 2
    assert build_extract(sized_messages[:half], sized_messages[half:], budget) == build_extract(
        list(sized_messages[:half]), list(sized_messages[half:]), budget
    )


SCRIPT = """
from holdfast.planning.extract.extract import build_extract
from sample_conversations import build_conversation
from holdfast.messages.size.tokens import build_sized_message
turns = [(n, 200, [(3, n, 3_000, 1), (2, n + 5, 900, 0)], True) for n in range(12)]
slots = [build_sized_message(message) for message in build_conversation(turns)]
print(build_extract(slots[:-3], slots[-3:], 900))
"""


def test_build_extract_does_not_depend_on_the_hash_seed():
    """no-clock-in-decisions: another process with another hash seed writes the same summary."""
    support = str(Path(__file__).parents[1] / "support")
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": support},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert b"## Goal" in outputs.pop()


def test_build_extract_quotes_user_messages():
    """The newest request is quoted verbatim, the first one too, and those between while there is room."""
    messages = build_turns(6, 500)
    messages[0] = Message.from_text("user", "First: build the ☂ importer.\nSecond line of it.")
    text = build_extract([build_sized_message(message) for message in messages], [], 4_000)
    assert "First: build the ☂ importer.\nSecond line of it." in text
    assert "Request number 5: look at src/app/part_5.py and never touch main_5.py" in text
    assert "User: Request number 3: look at src/app/part_3.py and never touch main_3.py" in text
    small = build_extract([build_sized_message(message) for message in messages], [], 300)
    assert "Request number 5: look at src/app/part_5.py and never touch main_5.py" in small


def test_build_extract_names_files_commands_and_errors():
    """files-and-commands-kept: files read and edited, commands with their outcome, and errors are listed without a
    model.
    """
    messages = [
        Message.from_text("user", "fix it"),
        Message(
            "assistant",
            (
                ToolCall("a", "read", '{"path":"src/app/billing.py"}'),
                ToolCall("b", "bash", '{"command":"pytest -k totals"}'),
            ),
        ),
        Message(
            "tool",
            (
                ToolResult("a", "", (Text("def total(): ..."),)),
                ToolResult("b", "", (Text("..F\nerror: total is 3, not 4"),), is_error=True),
            ),
        ),
        Message("assistant", (ToolCall("c", "edit", '{"file_path":"src/app/billing.py"}'),)),
        Message("tool", (ToolResult("c", "", (Text("ok"),)),)),
        Message.from_text("assistant", "Fixed, because the root cause is an off-by-one in total_price."),
        Message.from_text("user", "thanks"),
    ]
    text = build_extract([build_sized_message(message) for message in messages], [], 3_000)
    assert "src/app/billing.py: edit, read" in text.split("## Relevant Files")[1]
    assert "$ pytest -k totals -> FAILED error: total is 3, not 4" in text
    assert "root cause is an off-by-one" in text.split("## Key Decisions")[1]
    assert "error: total is 3, not 4" in text.split("### Blocked")[1].split("## Key")[0]


@pytest.mark.parametrize("name", SUMMARISING)
def test_compaction_sends_the_summary_as_a_user_message(name):
    """summary-is-user-data: the summary follows the pinned system prompt as a user message with its headings."""
    messages = [Message.from_text("system", "Be brief."), *build_turns(20, 8_000), Message.from_text("user", "go on")]
    target = get_target("openai-chat", "gpt-5", window=100_000)
    new_plan = plan(messages, target, Policy.preset(name), inputs=PlanInputs(force_compaction=True))
    sent = apply(messages, new_plan)
    assert new_plan.compaction is not None
    assert sent[0] == messages[0]
    assert sent[1].role == "user"
    assert list_headings(sent[1].text) == [
        heading for heading in HEADINGS if heading not in ("## Progress", "### Done", "### Blocked")
    ]
    assert f"({new_plan.compaction.first_kept - 1} messages)" in sent[1].text
    assert "go on" in sent[-1].text


def test_compaction_builds_the_second_extract_from_the_log():
    """Y: a later summary covers the whole head from the log, not the previous summary."""
    messages = build_turns(30, 6_000)
    target = build_target(20_000)
    steps = list_compaction_steps(drive_agent_loop(messages, target, POLICY, usage=lambda planned: planned.after))
    assert len(steps) >= 2
    first, last = steps[0].plan.compaction.summary.text, steps[-1].plan.compaction.summary.text
    assert "Request number 0:" in first
    assert "Request number 0:" in last
    assert last.count("replaced by this extract") == 1


def test_compaction_quotes_spilled_text_as_shown():
    """A user's text that was spilled is quoted in the summary as it was shown."""
    messages = [Message.from_text("user", make_text(7, 60_000)), *build_turns(8, 4_000)[1:]]
    target = build_target(20_000)
    steps = list_compaction_steps(drive_agent_loop(messages, target, POLICY))
    assert steps
    text = steps[-1].plan.compaction.summary.text
    assert "<persisted_tool_result" in text
    assert len(text) < 40_000


# -- triggers of the presets -------------------------------------------------------------------------------------------


def build_plan_builder(policy, window, tokens, *, setup_tokens=0, output=None, inputs=PlanInputs()):
    """Return a builder whose last reported usage, given twice, is ``tokens``, followed by an empty answer at most."""
    target = replace(build_target(window, setup_tokens), limits=ModelLimits(window, output))
    first_plan = plan([Message.from_text("user", "a")], target, policy)
    answer = Entry("", None, AnswerEntry(first_plan.state.last_request.prefix_digest, Usage(tokens, 0)))
    state = apply_entry(apply_entry(first_plan.state, answer), answer)
    if policy.name == "opencode":
        state = apply_entry(
            state, Entry("", None, MessageEntry(replace(build_sized_message(Message("assistant")), tokens=0)))
        )
    return PlanBuilder(state, target, policy.settings, inputs, compute_budget(target, policy.settings), policy.rules)


@pytest.mark.parametrize(
    ("name", "window", "output", "last_quiet"),
    [
        ("pi", 200_000, None, 200_000 - 16_384),
        ("pi", 64_000, None, 64_000 - 16_384),
        ("opencode", 200_000, 32_000, 200_000 - 32_000 - 1),
        ("opencode", 200_000, 64_000, 200_000 - 32_000 - 1),
        ("opencode", 200_000, 8_192, 200_000 - 8_192 - 1),
        ("claude-code", 200_000, 64_000, 200_000 - 20_000 - 13_000),
        ("claude-code", 200_000, 8_000, 200_000 - 8_000 - 13_000),
        ("openclaw", 200_000, None, 200_000 - 20_000),
        ("openclaw", 40_000, None, 40_000 - 10_000),
    ],
)
def test_is_over_trigger_matches_the_documented_number_of_each_preset(name, window, output, last_quiet):
    """Each preset's trigger is the documented one to the token: opencode at its limit, the others above it."""
    policy = Policy.preset(name)
    assert not policy.rules.is_over_trigger(build_plan_builder(policy, window, last_quiet, output=output))
    assert policy.rules.is_over_trigger(build_plan_builder(policy, window, last_quiet + 1, output=output))


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_is_over_trigger_uses_a_share_of_the_budget(cache):
    """Holdfast compacts strictly above setup plus a share of the budget, a smaller share when the cache is cold."""
    settings = POLICY.settings
    budget = compute_budget(build_target(64_000, 10_000), settings)
    share = settings.compaction.trigger_share if cache == "warm" else settings.compaction.cold_trigger_share
    limit = budget.setup_tokens + int(budget.message_tokens * share)
    assert not POLICY.rules.is_over_trigger(
        build_plan_builder(POLICY, 64_000, limit, setup_tokens=10_000, inputs=PlanInputs(cache))
    )
    assert POLICY.rules.is_over_trigger(
        build_plan_builder(POLICY, 64_000, limit + 1, setup_tokens=10_000, inputs=PlanInputs(cache))
    )


def test_append_only_and_sliding_write_no_summary():
    """append-only shows everything for ever; sliding drops the oldest groups and puts nothing in their place."""
    messages = build_turns(20, 6_000)
    target = build_target(20_000)
    append_only_plan = plan(messages, target, Policy.preset("append-only"))
    assert (
        apply(messages, append_only_plan)
        == [*messages, Message.from_text("user", "Continue.")][: len(apply(messages, append_only_plan))]
    )
    sliding_plan = plan(messages, target, Policy.preset("sliding"))
    sent = apply(messages, sliding_plan)
    assert sliding_plan.compaction.summary is None
    assert sliding_plan.compaction.first_kept in find_cut_points(messages)
    assert sent[-2:] == [messages[-1], Message.from_text("user", "Continue.")] or sent[-1] == messages[-1]
    budget = compute_budget(target, Policy.preset("sliding").settings)
    assert sliding_plan.after <= budget.usable


# -- history limit -----------------------------------------------------------------------------------------------------


def test_history_limit_cuts_in_steps():
    """With hysteresis the limit cuts to half when it is exceeded, so between n/2 and n turns are shown."""
    policy = POLICY.with_settings(history={"max_turns": 6})
    target = build_target(200_000)
    shown, cuts = [], 0
    for step in drive_agent_loop(build_turns(30, 100), target, policy):
        turns = sum(sized.message.is_turn_start for sized in step.sent_messages)
        shown.append(turns)
        cuts += step.plan.compaction is not None
    assert max(shown) == 6
    assert min(shown[12:]) == 3
    assert cuts == len(range(7, 31, 4))


def test_history_limit_without_hysteresis_keeps_exactly_the_limit():
    """As in the presets, always exactly the last n turns are shown, with everything that belongs to them."""
    policy = POLICY.with_settings(history={"max_turns": 4, "hysteresis": False})
    messages = build_turns(10, 100)
    for step in drive_agent_loop(messages, build_target(200_000), policy, request_points=find_request_points(messages)):
        turns = sum(message.is_turn_start for message in messages[: step.count])
        assert sum(sized.message.is_turn_start for sized in step.sent_messages) == min(4, turns)


def test_history_limit_orphans_no_result():
    """A cut at a turn that begins while a tool runs leaves no result without its call."""
    policy = POLICY.with_settings(history={"max_turns": 1, "hysteresis": False})
    messages = [
        *build_turns(2, 50),
        Message.from_text("user", "start"),
        Message("assistant", (ToolCall("slow", "bash"),)),
        Message.from_text("user", "hurry"),
        Message("tool", (ToolResult("slow", "bash", (Text("done"),)),)),
    ]
    new_plan = plan(messages, build_target(200_000), policy)
    sent = apply(messages, new_plan)
    ids = {call.id for message in sent for call in message.calls}
    assert all(result.call_id in ids for message in sent for result in message.results)
    assert any("hurry" in message.text for message in sent)


def test_build_extract_lists_a_file_once():
    """A file is listed once, however often it was read."""
    messages = [
        *build_turns(1, 200),
        Message("assistant", (ToolCall("x", "read", '{"path":"src/app/part_0.py"}'),)),
        Message("tool", (ToolResult("x", "", (Text("again"),)),)),
        Message.from_text("assistant", "ok"),
    ]
    text = build_extract([build_sized_message(message) for message in messages], [], 2_000)
    assert len(re.findall(r"src/app/part_0\.py: read x2", text)) == 1


def test_forced_compaction_sends_summary_and_tail():
    """After ``/compact`` the request has the summary and the tail, in that order, as planned."""
    messages = [*build_turns(12, 3_000), Message.from_text("user", "and now?")]
    new_plan = plan(messages, build_target(60_000), POLICY, inputs=PlanInputs(force_compaction=True))
    sent = [sized.message for sized in build_messages_to_send(new_plan)]
    assert sent[0] == new_plan.compaction.summary
    assert sent[1:] == messages[new_plan.compaction.first_kept :]
