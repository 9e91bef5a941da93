"""Budget check, coverage selection, outline, ledger, salience and policy settings, each by example."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import PlanInputs, Policy, plan
from holdfast.config import get_target
from holdfast.errors import ConfigError, UnknownPolicy, WindowTooSmall
from holdfast.messages.message import Message, get_part_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.budget import check_budget, compute_budget
from holdfast.planning.extract.extract import select_coverage_lines
from holdfast.planning.extract.ledger import (
    find_first_error,
    format_command_lines,
    format_file_lines,
    list_tool_actions,
)
from holdfast.planning.extract.max_coverage import PlainCandidate, select_max_coverage
from holdfast.planning.extract.outline import build_text_outline
from holdfast.planning.extract.salience import (
    ReferenceUse,
    find_distinctive_references,
    find_list_references,
    find_reference_lines,
    scan_message,
    trace_references,
    weigh_reference,
)
from holdfast.planning.pipeline import OVER_WINDOW_RULE
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings import Settings
from holdfast.planning.settings_check import get_setting_origin, list_setting_names
from holdfast.state.entries import RequestSetup

SETTINGS = Settings()


def build_target(window, setup_tokens=0, requested_output=None):
    return get_target(
        "anthropic",
        "claude-sonnet-4-5",
        window=window,
        setup=RequestSetup("f", setup_tokens, is_exact=True),
        asked_output=requested_output,
    )


# -- budget ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "requested_output", "reserve"),
    [
        (200_000, None, 20_000),
        (64_000, None, 16_000),
        (64_000, 4_000, 4_000),
        (64_000, 100, 1_024),
        (3_000, None, 1_024),
    ],
)
def test_compute_budget_reserves_the_requested_output_within_its_limits(window, requested_output, reserve):
    """The reserve is the requested output, between 1,024 and the smaller of 20,000 and a quarter of the window."""
    budget = compute_budget(build_target(window, 2_000, requested_output), SETTINGS)
    assert (budget.reserve, budget.usable, budget.message_tokens) == (
        reserve,
        window - reserve,
        window - reserve - 2_000,
    )


def test_check_budget_rejects_a_window_one_token_below_the_minimum():
    """no-room-is-an-error: one token below the minimum budget is an error with the numbers; the minimum itself is
    accepted.
    """
    minimum = SETTINGS.window.min_budget
    target = build_target(20_000, 20_000 - 5_000 - minimum)
    assert check_budget(target, SETTINGS)[0].message_tokens == minimum
    with pytest.raises(WindowTooSmall, match=rf"leaves {minimum - 1} tokens; {minimum} are needed") as raised:
        check_budget(build_target(20_000, 20_000 - 5_000 - minimum + 1), SETTINGS)
    assert "window 20000 (asked for)" in str(raised.value)
    assert isinstance(raised.value, ValueError)


def test_plan_openclaw_rejects_or_warns_about_small_windows():
    """[O] A window under 16,000 is rejected in OpenClaw's words and one under 32,000 gives a notice; both limits are
    strict.
    """
    policy = Policy.preset("openclaw")
    messages = [Message.from_text("user", "a")]
    with pytest.raises(WindowTooSmall, match=r"Model context window too small \(15999 tokens\). Minimum is 16000\."):
        plan(messages, build_target(15_999), policy)
    assert [notice.rule for notice in plan(messages, build_target(16_000), policy).notices] == ["small-window"]
    assert [notice.rule for notice in plan(messages, build_target(31_999), policy).notices] == ["small-window"]
    assert plan(messages, build_target(32_000), policy).notices == ()


# -- coverage ----------------------------------------------------------------------------------------------------------


def make_id_reference(name):
    return ("id", name)


def test_select_max_coverage_takes_the_best_weight_per_cost_first():
    """Candidates are taken by weight per cost, each reference counts once, and the budget is never exceeded."""
    weights = {make_id_reference("a"): 3.0, make_id_reference("b"): 2.0, make_id_reference("c"): 1.0}
    candidates = [
        PlainCandidate([make_id_reference("a"), make_id_reference("b")], 10),
        PlainCandidate([make_id_reference("a")], 2),
        PlainCandidate([make_id_reference("c")], 1),
        PlainCandidate([make_id_reference("b")], 4),
        PlainCandidate([make_id_reference("x")], 1),
    ]
    uncovered = dict(weights)
    assert list(select_max_coverage(candidates, uncovered, 20)) == [1, 2, 3]
    assert uncovered == {}
    assert list(select_max_coverage(candidates, dict(weights), 3)) == [1, 2]
    assert list(select_max_coverage(candidates, dict(weights), 0)) == []
    assert list(select_max_coverage([], dict(weights), 5)) == []


names = st.lists(st.sampled_from("abcdefg"), max_size=3).map(lambda found: [make_id_reference(name) for name in found])


@given(
    st.lists(st.builds(PlainCandidate, names, st.integers(1, 9)), max_size=8),
    st.integers(0, 30),
    st.sampled_from([0.0, 1.0, 2.0]),
)
@example([PlainCandidate([make_id_reference("c")], 2)], 9, 1.0)
def test_select_max_coverage_is_greedy(candidates, budget, min_gain):
    """Each selected candidate has the most uncovered weight per cost among those that still fit, and more than asked.

    In the end no candidate is left that fits and has as much.
    """

    def compute_gains():
        gains = []
        for candidate in candidates:
            fits = candidate.cost <= budget - spent
            weight = sum(uncovered.get(reference, 0.0) for reference in candidate.refs)
            gains.append(weight / candidate.cost if fits else 0.0)
        return gains

    weights = {make_id_reference(name): float(number + 1) for number, name in enumerate("abcdefg")}
    uncovered, spent = dict(weights), 0
    for number in select_max_coverage(candidates, dict(weights), budget, min_gain):
        gains = compute_gains()
        assert gains[number] == pytest.approx(max(gains))
        assert gains[number] > min_gain
        spent += candidates[number].cost
        for reference in candidates[number].refs:
            uncovered.pop(reference, None)
    assert max(compute_gains(), default=0.0) <= min_gain
    assert spent <= budget


# -- outline -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 400), st.integers(1, 90))
def test_build_text_outline_stays_in_budget_and_in_order(chars, first):
    """Outline lines carry their line numbers, are in order, quote lines of the text, and together stay within the
    budget.
    """
    text = "\n".join(
        f"  def compute_total_{n}(price_{n % 3}):  # {'x' * (n % 140)}" if n % 2 else "" for n in range(30)
    )
    found = build_text_outline(text, chars, first)
    assert sum(len(line) + 1 for line in found) <= chars
    numbers = [int(line.split(":")[0]) for line in found]
    assert numbers == sorted(set(numbers))
    lines = text.split("\n")
    for line in found:
        number, _, shown = line.partition(": ")
        assert " ".join(lines[int(number) - first].split()).startswith(shown.rstrip("…"))


def test_build_text_outline_prefers_names_not_listed_yet():
    """A name that is already in the outline is not repeated while another name is left."""
    text = "call fold_ledger()\ncall fold_ledger()\ncall mend_spool()\nnothing here"
    assert build_text_outline(text, 60) == ["1: call fold_ledger()", "3: call mend_spool()"]
    assert build_text_outline("nothing of note\n" * 9, 500) == []


# -- ledger ------------------------------------------------------------------------------------------------------------


def build_tool_step(name, arguments, text="ok", *, error=False, id_="t"):
    return [
        Message("assistant", (ToolCall(id_, name, arguments),)),
        Message("tool", (ToolResult(id_, name, (Text(text),), error),)),
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "verb", "subject"),
    [
        ("Read", '{"file_path":"a/b.py"}', "read", "a/b.py"),
        ("str_replace", '{"path":"a/b.py"}', "edit", "a/b.py"),
        ("bash", '{"command":"ls  -l\\n"}', "run", "ls -l"),
        ("shell", '{"command":["git","log"]}', "run", "git log"),
        ("grep", '{"pattern":"TODO"}', "ask", "TODO"),
        ("odd", "[1]", "ask", ""),
        ("odd", "{", "ask", ""),
        ("odd", '{"path":7,"cmd":"make"}', "run", "make"),
    ],
)
def test_list_tool_actions_derives_the_verb_from_tool_and_arguments(name, arguments, verb, subject):
    """A path means read or edit, a command means run, anything else is a query; broken arguments give no subject."""
    (action,) = list_tool_actions(build_tool_step(name, arguments))
    assert (action.verb, action.subject, action.tool, action.has_failed) == (verb, subject, name, False)


def test_list_tool_actions_detects_failed_commands():
    """A command failed when its output says so; error words in a file that was read are no failure."""
    (failed_command,) = list_tool_actions(
        build_tool_step("bash", '{"command":"make"}', "cc main.c\nfatal: no such file\nerror: 1")
    )
    assert (failed_command.has_failed, failed_command.error) == (True, "fatal: no such file")
    (read,) = list_tool_actions(build_tool_step("read", '{"path":"a.py"}', "raise an error"))
    assert not read.has_failed
    (failed_read,) = list_tool_actions(build_tool_step("read", '{"path":"a.py"}', "permission denied", error=True))
    assert (failed_read.has_failed, failed_read.error) == (True, "permission denied")
    (pending_command,) = list_tool_actions(build_tool_step("bash", '{"command":"sleep"}')[:1])
    assert not pending_command.has_failed


@pytest.mark.parametrize(
    "text",
    ["ValueError: no such row", "E   AssertionError: 3 != 4", "java.lang.NullPointerException: x", "error TS2304: y"],
)
def test_find_first_error_finds_lines_with_named_errors(text):
    """The line that names an error is found, also where the error word is the end of a longer name."""
    assert find_first_error(f"some output\n{text}\nmore") == text.replace("   ", " ")


def test_format_lines_lists_each_file_and_command_once():
    """A file is listed once with its counts, last touched first; a command once, newest first, with its last
    outcome.
    """
    history = [
        *build_tool_step("read", '{"path":"a.py"}', id_="1"),
        *build_tool_step("read", '{"path":"b.py"}', id_="2"),
        *build_tool_step("edit", '{"path":"a.py"}', id_="3"),
        *build_tool_step("read", '{"path":"a.py"}', id_="4"),
        *build_tool_step("bash", '{"command":"pytest"}', "error: 1", id_="5"),
        *build_tool_step("bash", '{"command":"ls"}', id_="6"),
        *build_tool_step("bash", '{"command":"pytest"}', "fine", id_="7"),
    ]
    actions = list(list_tool_actions(history))
    assert format_file_lines(actions) == ["a.py: edit, read x2", "b.py: read"]
    assert format_command_lines(actions) == ["$ pytest", "$ ls"]


def test_list_tool_actions_pairs_repeated_ids_with_their_own_results():
    """Two commands with the same call id are each paired with their own result."""
    history = [
        *build_tool_step("bash", '{"command":"one"}', "error: x"),
        *build_tool_step("bash", '{"command":"two"}', "fine"),
    ]
    assert [(action.subject, action.has_failed) for action in list_tool_actions(history)] == [
        ("one", True),
        ("two", False),
    ]


# -- salience ----------------------------------------------------------------------------------------------------------


def test_find_reference_lines_cleans_and_deduplicates_lines():
    """Lines without a reference are dropped, leading numbers and blanks are stripped, long lines are cut, and
    duplicates go.
    """
    found = find_reference_lines(
        "1→ def load_config():\n\n  2: def load_config():\njust words\n- [ ] rename old_name\n" + "other_name x " * 40
    )
    assert [line.text for line in found[:2]] == ["def load_config():", "- [ ] rename old_name"]
    assert [line.is_list_item for line in found[:2]] == [False, True]
    assert all(len(line.text) <= 130 for line in found)
    assert ("id", "load_config") in found[0].refs


def test_weigh_reference_prefers_frequent_and_recent_use():
    """More uses, a later use and a place in a list each raise the weight of a reference; a hash weighs least."""
    base = ReferenceUse(is_repeated=True, use_count=1, last_position=5_000, last_used_position=5_000)
    often = ReferenceUse(is_repeated=True, use_count=3, last_position=5_000, last_used_position=5_000)
    late = ReferenceUse(is_repeated=True, use_count=1, last_position=9_000, last_used_position=9_000)
    plan_ = ReferenceUse(
        is_repeated=True, use_count=1, last_position=5_000, last_used_position=5_000, in_list_item=True
    )
    name = ("id", "load_config")
    assert all(weigh_reference(name, use, 10_000) > weigh_reference(name, base, 10_000) for use in (often, late, plan_))
    assert (
        weigh_reference(("hex", "abcdef1"), base, 10_000)
        < weigh_reference(("number", "4242"), base, 10_000)
        < weigh_reference(name, base, 10_000)
    )


def test_trace_references_counts_use_apart_from_appearance():
    """A reference in a user or assistant message counts as use; one in a tool result only as an appearance."""
    history = [
        Message.from_text("user", "see load_config"),
        Message("tool", (ToolResult("t", "", (Text("old_name load_config"),)),)),
    ]
    found = trace_references([build_sized_message(message) for message in history])
    assert (found["id", "load_config"].is_repeated, found["id", "load_config"].use_count) == (True, 1)
    assert not found["id", "old_name"].is_repeated
    assert (found["id", "old_name"].use_count, found["id", "old_name"].last_used_position) == (0, -1)
    assert set(find_distinctive_references("load_config")) == {("id", "load_config")}


words = st.sampled_from(["load_config", "src/app/main.py", "old_name", "4242", "plain", "- to_do item", "\n"])
histories = st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.lists(words, max_size=6)), max_size=8)


def build_history(contents):
    messages = []
    for role, texts in contents:
        text = Text(" ".join(texts))
        messages.append(Message(role, (ToolResult("t", "", (text,)) if role == "tool" else text,)))
    return [build_sized_message(message) for message in messages]


@given(histories)
def test_trace_references_is_what_counting_each_reference_gives(contents):
    """Law: merging whole messages gives what looking for one reference after another in each message gives."""
    history = build_history(contents)
    refs_by_message = [set(find_distinctive_references(get_part_text(sized.message.parts[0]))) for sized in history]
    ends = list(accumulate(sized.tokens for sized in history))
    traced = trace_references(history)
    assert set(traced) == set().union(*refs_by_message)
    for ref, use in traced.items():
        indexes = [index for index, refs in enumerate(refs_by_message) if ref in refs]
        used_indexes = [index for index in indexes if history[index].message.role != "tool"]
        assert use.is_repeated == (len(indexes) > 1)
        assert use.use_count == len(used_indexes)
        assert use.last_position == ends[indexes[-1]]
        assert use.last_used_position == (ends[used_indexes[-1]] if used_indexes else -1)


@given(histories, st.integers(0, 60))
def test_select_coverage_lines_is_the_same_whatever_was_scanned_before(contents, budget):
    """Law: what is remembered of the messages of a shorter head changes nothing in the lines of a longer one."""
    history = build_history(contents)
    weights = dict.fromkeys(trace_references(history), 1.0)
    for count in range(len(history)):
        select_coverage_lines(history[:count], weights, budget)
    lines = select_coverage_lines(history, weights, budget)
    for cached in (scan_message, find_reference_lines, find_distinctive_references, find_list_references):
        cached.cache_clear()
    assert select_coverage_lines(history, weights, budget) == lines
    shown_lines = [line for line in lines[0] if not line.startswith("[")]
    assert len(shown_lines) == len(set(shown_lines))


# -- the policy --------------------------------------------------------------------------------------------------------


def test_policy_preset_returns_each_preset_and_rejects_unknown_names():
    """Each preset has its own name, settings and rules; an unknown name raises an error that lists the presets."""
    for name, preset in PRESETS.items():
        policy = Policy.preset(name)
        assert (policy.name, policy.settings, policy.rules) == (name, preset.settings, preset.rules)
    with pytest.raises(UnknownPolicy, match="holdfast") as raised:
        Policy.preset("nobody")
    assert isinstance(raised.value, LookupError)


def test_get_setting_origin_is_known_for_every_setting():
    """Each setting states where its default comes from."""
    for preset in PRESETS.values():
        names = list_setting_names(type(preset.rules))
        assert len(names) > 60
        assert [name for name in names if not get_setting_origin(name, type(preset.rules)).startswith("[")] == []


def test_policy_replaces_and_inserts_stages_in_a_copy():
    """A custom stage can replace another or run before it, and the original policy stays unchanged."""
    message_counts = []

    def add_test_notice(builder):
        message_counts.append(len(builder.state.history.sized_messages))
        return builder.add_notice("mine", "was here")

    policy = Policy()
    names = [name for name, _ in policy.stages]
    changed = policy.replace_stage("prune", add_test_notice).insert_stage_before("compaction", "extra", add_test_notice)
    assert [name for name, _ in policy.stages] == names
    assert [name for name, _ in changed.stages if name != "extra"] == names
    new_plan = plan([Message.from_text("user", "a")], build_target(50_000), changed)
    assert [notice.rule for notice in new_plan.notices] == ["mine", "mine"]
    assert message_counts == [1, 1]
    for change in (
        lambda: policy.replace_stage("nobody", add_test_notice),
        lambda: policy.insert_stage_before("nobody", "x", add_test_notice),
    ):
        with pytest.raises(UnknownPolicy, match="prune"):
            change()


def test_with_settings_rejects_unknown_names_with_suggestions():
    """An unknown setting is rejected, and the error suggests names spelled like it."""
    assert Policy().with_settings(compaction={"tail_share": 0.5}).settings.compaction.tail_share == 0.5
    with pytest.raises(ConfigError, match=r"'compaction\.tail_shares'.*mean compaction\.tail_share"):
        Policy().with_settings(compaction={"tail_shares": 0.5})


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("results.spill_chars", -1, ">= 0; allowed is a whole number, 0 or more"),
        ("recovery.steps", ("x",), "'x'.* one of 'compact', 'truncate', 'media', 'fallback'"),
        ("compaction.enabled", "nope", "true or false"),
        ("compaction.tail_share", 1.5, "a number from 0 to 1"),
        ("reserve.min", 30_000, r"reserve\.min 30,000 is over reserve\.max 20,000"),
    ],
)
def test_with_settings_rejects_values_that_a_file_may_not_have(name, value, problem):
    """A value that a configuration file may not have, alone or combined with others, is rejected in code too."""
    group, _, key = name.partition(".")
    with pytest.raises(ConfigError, match=problem):
        Policy().with_settings(**{group: {key: value}})


def test_plan_is_empty_when_there_is_nothing_to_do():
    """When nothing is decided or normalized, the plan is empty and the size stays the same."""
    new_plan = plan([Message.from_text("user", "a")], build_target(50_000), inputs=PlanInputs())
    assert new_plan.is_empty
    assert new_plan.before == new_plan.after > 0


@pytest.mark.parametrize("name", PRESETS)
def test_plan_reports_a_request_that_does_not_fit(name):
    """Whatever the policy, a request over the window gives a notice with both sizes and one thing to do."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=20_000)
    policy = Policy.preset(name).with_settings(
        compaction={"enabled": False, "goal_share": 0.0},
        preset={"truncate_share": 0.0, "loop_share": 0.0} if name == "openclaw" else {},
    )
    for length, notice_count in ((2_000, 0), (40_000, 1)):
        new_plan = plan(
            [Message.from_text("user", " word" * length)], target, policy, inputs=PlanInputs(can_spill=False)
        )
        texts = [notice.why for notice in new_plan.notices if notice.rule == OVER_WINDOW_RULE]
        assert len(texts) == notice_count == (new_plan.after > 20_000)
        assert all(f"{new_plan.after:,}" in text and "20,000" in text and "larger window" in text for text in texts)


def test_plan_treats_an_input_limit_as_the_window():
    """When a model accepts less input than its window holds, the input limit is the size that is reported."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=200_000)
    target = replace(target, limits=replace(target.limits, max_input=20_000))
    new_plan = plan([Message.from_text("user", " word" * 40_000)], target, Policy.preset("append-only"))
    assert "20,000" in new_plan.notices[-1].why
    assert new_plan.notices[-1].rule == OVER_WINDOW_RULE
