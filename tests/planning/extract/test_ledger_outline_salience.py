"""Guard, history, cover, outline, ledger, salience and the policy itself, by example."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import PlanInputs, Policy, plan
from holdfast.config import get_target
from holdfast.errors import ConfigError, UnknownPolicy, WindowTooSmall
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.budget import check_budget, compute_budget
from holdfast.planning.extract.ledger import (
    find_first_error,
    format_command_lines,
    format_file_lines,
    list_tool_actions,
)
from holdfast.planning.extract.max_coverage import select_max_coverage
from holdfast.planning.extract.outline import build_text_outline
from holdfast.planning.extract.salience import (
    ReferenceUse,
    find_distinctive_references,
    find_reference_lines,
    trace_references,
    weigh_reference,
)
from holdfast.planning.pipeline import OVER_WINDOW_RULE
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings import Settings
from holdfast.planning.settings_check import get_setting_origin, list_setting_names
from holdfast.state.entries import RequestSetup

OURS = Settings()


def place(window, frame=0, asked=None):
    return get_target(
        "anthropic",
        "claude-sonnet-4-5",
        window=window,
        setup=RequestSetup("f", frame, is_exact=True),
        asked_output=asked,
    )


# -- guard -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "asked", "reserve"),
    [
        (200_000, None, 20_000),
        (64_000, None, 16_000),
        (64_000, 4_000, 4_000),
        (64_000, 100, 1_024),
        (3_000, None, 1_024),
    ],
)
def test_the_reserve(window, asked, reserve):
    """The reserve is what was asked for, between 1,024 and the smaller of 20,000 and a quarter of the window."""
    room = compute_budget(place(window, 2_000, asked), OURS)
    assert (room.reserve, room.usable, room.message_tokens) == (reserve, window - reserve, window - reserve - 2_000)


def test_the_smallest_room():
    """no-room-is-an-error: one token under the smallest room is refused with the numbers, the smallest room is not."""
    least = OURS.window.min_budget
    fits = place(20_000, 20_000 - 5_000 - least)
    assert check_budget(fits, OURS)[0].message_tokens == least
    with pytest.raises(WindowTooSmall, match=rf"leaves {least - 1} tokens; {least} are needed") as told:
        check_budget(place(20_000, 20_000 - 5_000 - least + 1), OURS)
    assert "window 20000 (asked for)" in str(told.value)
    assert isinstance(told.value, ValueError)


def test_openclaws_guard():
    """[O] under 16,000 is refused in its words, under 32,000 warned of, both strictly."""
    policy = Policy.preset("openclaw")
    said = [Message.from_text("user", "a")]
    with pytest.raises(WindowTooSmall, match=r"Model context window too small \(15999 tokens\). Minimum is 16000\."):
        plan(said, place(15_999), policy)
    assert [notice.rule for notice in plan(said, place(16_000), policy).notices] == ["small-window"]
    assert [notice.rule for notice in plan(said, place(31_999), policy).notices] == ["small-window"]
    assert plan(said, place(32_000), policy).notices == ()


# -- cover -------------------------------------------------------------------------------------------------------------


def ref(name):
    return ("id", name)


def test_the_heaviest_for_their_cost_come_first():
    """Candidates come by weight for their cost, each reference counts once, and the budget holds."""
    weights = {ref("a"): 3.0, ref("b"): 2.0, ref("c"): 1.0}
    candidates = [([ref("a"), ref("b")], 10), ([ref("a")], 2), ([ref("c")], 1), ([ref("b")], 4), ([ref("x")], 1)]
    left = dict(weights)
    assert list(select_max_coverage(candidates, left, 20)) == [1, 2, 3]
    assert left == {}
    assert list(select_max_coverage(candidates, dict(weights), 3)) == [1, 2]
    assert list(select_max_coverage(candidates, dict(weights), 0)) == []
    assert list(select_max_coverage([], dict(weights), 5)) == []


names = st.lists(st.sampled_from("abcdefg"), max_size=3).map(lambda found: [ref(name) for name in found])


@given(st.lists(st.tuples(names, st.integers(1, 9)), max_size=8), st.integers(0, 30))
def test_a_cover_is_greedy(candidates, budget):
    """Each one taken has the most weight left for its cost among those that still fit, and covers something new."""
    weights = {ref(name): float(number + 1) for number, name in enumerate("abcdefg")}
    left, spent = dict(weights), 0
    for number in select_max_coverage(candidates, dict(weights), budget):
        gains = [sum(left.get(one, 0.0) for one in refs) / cost for refs, cost in candidates]
        fitting = [gain for gain, (_, cost) in zip(gains, candidates, strict=True) if cost <= budget - spent]
        assert gains[number] == pytest.approx(max(fitting))
        assert gains[number] > 0
        refs, cost = candidates[number]
        spent += cost
        for one in refs:
            left.pop(one, None)
    assert spent <= budget


# -- outline -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 400), st.integers(1, 90))
def test_an_outline_is_within_its_budget_and_in_order(chars, first):
    """Lines come by their own numbers, in order, each a line of the text, together within the budget."""
    text = "\n".join(
        f"  def compute_total_{n}(price_{n % 3}):  # {'x' * (n % 140)}" if n % 2 else "" for n in range(30)
    )
    found = build_text_outline(text, chars, first)
    assert sum(len(line) + 1 for line in found) <= chars
    numbers = [int(line.split(":")[0]) for line in found]
    assert numbers == sorted(set(numbers))
    whole = text.split("\n")
    for line in found:
        number, _, said = line.partition(": ")
        assert " ".join(whole[int(number) - first].split()).startswith(said.rstrip("…"))


def test_an_outline_names_different_things():
    """A name that was told once is not told again while another one is left."""
    text = "call fold_ledger()\ncall fold_ledger()\ncall mend_spool()\nnothing here"
    assert build_text_outline(text, 60) == ["1: call fold_ledger()", "3: call mend_spool()"]
    assert build_text_outline("nothing of note\n" * 9, 500) == []


# -- ledger ------------------------------------------------------------------------------------------------------------


def did(name, arguments, text="ok", *, error=False, id_="t"):
    return [
        Message("assistant", (ToolCall(id_, name, arguments),)),
        Message("tool", (ToolResult(id_, name, (Text(text),), error),)),
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "verb", "what"),
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
def test_what_a_call_did(name, arguments, verb, what):
    """A path is read or edited, a command runs, anything else asks; broken arguments say nothing."""
    (one,) = list_tool_actions(did(name, arguments))
    assert (one.verb, one.subject, one.tool, one.has_failed) == (verb, what, name, False)


def test_how_a_command_ended():
    """A command failed when its result says so; what a file that was read says is no failure."""
    (ran,) = list_tool_actions(did("bash", '{"command":"make"}', "cc main.c\nfatal: no such file\nerror: 1"))
    assert (ran.has_failed, ran.error) == (True, "fatal: no such file")
    (read,) = list_tool_actions(did("read", '{"path":"a.py"}', "raise an error"))
    assert not read.has_failed
    (told,) = list_tool_actions(did("read", '{"path":"a.py"}', "permission denied", error=True))
    assert (told.has_failed, told.error) == (True, "permission denied")
    (waits,) = list_tool_actions(did("bash", '{"command":"sleep"}')[:1])
    assert not waits.has_failed


@pytest.mark.parametrize(
    "text",
    ["ValueError: no such row", "E   AssertionError: 3 != 4", "java.lang.NullPointerException: x", "error TS2304: y"],
)
def test_errors_by_their_own_names(text):
    """The line that names an error is told, also where the word is the end of a longer name."""
    assert find_first_error(f"some output\n{text}\nmore") == text.replace("   ", " ")


def test_lines_of_the_ledger():
    """A file is told once with how often, last touched first; a command once, newest first, as it ended last."""
    history = [
        *did("read", '{"path":"a.py"}', id_="1"),
        *did("read", '{"path":"b.py"}', id_="2"),
        *did("edit", '{"path":"a.py"}', id_="3"),
        *did("read", '{"path":"a.py"}', id_="4"),
        *did("bash", '{"command":"pytest"}', "error: 1", id_="5"),
        *did("bash", '{"command":"ls"}', id_="6"),
        *did("bash", '{"command":"pytest"}', "fine", id_="7"),
    ]
    done = list(list_tool_actions(history))
    assert format_file_lines(done) == ["a.py: edit, read x2", "b.py: read"]
    assert format_command_lines(done) == ["$ pytest", "$ ls"]


def test_ids_that_repeat_keep_their_own_ends():
    """Two commands under one id each end with their own result."""
    history = [*did("bash", '{"command":"one"}', "error: x"), *did("bash", '{"command":"two"}', "fine")]
    assert [(one.subject, one.has_failed) for one in list_tool_actions(history)] == [("one", True), ("two", False)]


# -- salience ----------------------------------------------------------------------------------------------------------


def test_lines_that_hold_references():
    """Lines without a reference go, numbers and blanks at their start go, long ones are cut, each stands once."""
    found = find_reference_lines(
        "1→ def load_config():\n\n  2: def load_config():\njust words\n- [ ] rename old_name\n" + "other_name x " * 40
    )
    assert [one.text for one in found[:2]] == ["def load_config():", "- [ ] rename old_name"]
    assert [one.is_list_item for one in found[:2]] == [False, True]
    assert all(len(one.text) <= 130 for one in found)
    assert ("id", "load_config") in found[0].refs


def test_what_is_used_often_and_lately_weighs_more():
    """More uses, a later one, a place in a plan: each makes a reference weigh more; a hash weighs least."""
    base = ReferenceUse(message_count=3, use_count=1, last_position=5_000, last_used_position=5_000)
    often = ReferenceUse(message_count=3, use_count=3, last_position=5_000, last_used_position=5_000)
    late = ReferenceUse(message_count=3, use_count=1, last_position=9_000, last_used_position=9_000)
    plan_ = ReferenceUse(message_count=3, use_count=1, last_position=5_000, last_used_position=5_000, in_list_item=True)
    name = ("id", "load_config")
    assert all(weigh_reference(name, one, 10_000) > weigh_reference(name, base, 10_000) for one in (often, late, plan_))
    assert (
        weigh_reference(("hex", "abcdef1"), base, 10_000)
        < weigh_reference(("number", "4242"), base, 10_000)
        < weigh_reference(name, base, 10_000)
    )


def test_traces_tell_use_from_sight():
    """What the agent or the user says is use, what a tool says is not."""
    history = [
        Message.from_text("user", "see load_config"),
        Message("tool", (ToolResult("t", "", (Text("old_name load_config"),)),)),
    ]
    found = trace_references([build_sized_message(one) for one in history])
    assert (found["id", "load_config"].message_count, found["id", "load_config"].use_count) == (2, 1)
    assert (found["id", "old_name"].use_count, found["id", "old_name"].last_used_position) == (0, -1)
    assert set(find_distinctive_references("load_config")) == {("id", "load_config")}


# -- the policy --------------------------------------------------------------------------------------------------------


def test_every_preset_is_a_policy():
    """Each preset has its name and settings; an unknown name is told with the list."""
    for name, preset in PRESETS.items():
        policy = Policy.preset(name)
        assert (policy.name, policy.settings, policy.rules) == (name, preset.settings, preset.rules)
    with pytest.raises(UnknownPolicy, match="holdfast") as told:
        Policy.preset("nobody")
    assert isinstance(told.value, LookupError)


def test_every_number_has_an_origin():
    """Each setting says where its number comes from."""
    for preset in PRESETS.values():
        names = list_setting_names(type(preset.rules))
        assert len(names) > 60
        assert [name for name in names if not get_setting_origin(name, type(preset.rules)).startswith("[")] == []


def test_stages_can_be_replaced_and_added():
    """A stage of one's own stands in place of another or before it; the policy it was made from stays."""
    seen = []

    def mine(draft):
        seen.append(len(draft.state.history.sized_messages))
        return draft.add_notice("mine", "was here")

    policy = Policy()
    names = [name for name, _ in policy.stages]
    changed = policy.replace_stage("prune", mine).insert_stage_before("compaction", "extra", mine)
    assert [name for name, _ in policy.stages] == names
    assert [name for name, _ in changed.stages if name != "extra"] == names
    made = plan([Message.from_text("user", "a")], place(50_000), changed)
    assert [notice.rule for notice in made.notices] == ["mine", "mine"]
    assert seen == [1, 1]
    for wrong in (
        lambda: policy.replace_stage("nobody", mine),
        lambda: policy.insert_stage_before("nobody", "x", mine),
    ):
        with pytest.raises(UnknownPolicy, match="prune"):
            wrong()


def test_settings_are_checked_by_name():
    """A setting that does not exist is refused, with those that are spelled like it."""
    assert Policy().with_settings(compaction={"tail_share": 0.5}).settings.compaction.tail_share == 0.5
    with pytest.raises(ConfigError, match=r"'compaction\.tail_shares'.*mean compaction\.tail_share"):
        Policy().with_settings(compaction={"tail_shares": 0.5})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("results.spill_chars", -1, ">= 0; allowed is a whole number, 0 or more"),
        ("recovery.steps", ("x",), "'x'.* one of 'compact', 'truncate', 'media', 'fallback'"),
        ("compaction.enabled", "nope", "true or false"),
        ("compaction.tail_share", 1.5, "a number from 0 to 1"),
        ("reserve.min", 30_000, r"reserve\.min 30,000 is over reserve\.max 20,000"),
    ],
)
def test_settings_are_checked_by_value(name, value, said):
    """A value that a file may not have, alone or beside the others, a program may not have either."""
    group, _, key = name.partition(".")
    with pytest.raises(ConfigError, match=said):
        Policy().with_settings(**{group: {key: value}})


def test_a_plan_without_anything_to_do_is_empty():
    """Where nothing is decided or repaired the plan is empty and the world told it is warm."""
    made = plan([Message.from_text("user", "a")], place(50_000), inputs=PlanInputs())
    assert made.is_empty
    assert made.before == made.after > 0


@pytest.mark.parametrize("name", PRESETS)
def test_a_request_that_does_not_fit_says_so(name):
    """Whatever the policy could do: a request over the window is told with its numbers and one thing to do."""
    where = get_target("anthropic", "claude-sonnet-4-5", window=20_000)
    policy = Policy.preset(name).with_settings(
        compaction={"enabled": False, "goal_share": 0.0},
        preset={"truncate_share": 0.0, "loop_share": 0.0} if name == "openclaw" else {},
    )
    for length, told in ((2_000, 0), (40_000, 1)):
        made = plan([Message.from_text("user", " word" * length)], where, policy, inputs=PlanInputs(can_spill=False))
        why = [notice.why for notice in made.notices if notice.rule == OVER_WINDOW_RULE]
        assert len(why) == told == (made.after > 20_000)
        assert all(f"{made.after:,}" in one and "20,000" in one and "larger window" in one for one in why)


def test_an_input_limit_counts_as_the_window():
    """Where a model takes less than its window holds, that is what must not be passed."""
    where = get_target("anthropic", "claude-sonnet-4-5", window=200_000)
    where = replace(where, limits=replace(where.limits, max_input=20_000))
    made = plan([Message.from_text("user", " word" * 40_000)], where, Policy.preset("append-only"))
    assert "20,000" in made.notices[-1].why
    assert made.notices[-1].rule == OVER_WINDOW_RULE
