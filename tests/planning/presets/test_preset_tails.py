"""Where the kept tail begins under the rules of pi, opencode and Claude Code."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis_strategies import broken_history_strategy, conversation_strategy
from msgspec.structs import replace
from planning_loop import drive_agent_loop
from sample_conversations import build_conversation, damage_history

from holdfast import PlanInputs, Policy
from holdfast.config import get_target
from holdfast.messages.cut_points import find_cut_points
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.planning.presets.claude_code import render_restored_files
from holdfast.planning.presets.common.request_measures import estimate_pi_tokens
from holdfast.planning.presets.common.tail_by_tokens import PiCutPoint, find_pi_cut_point
from holdfast.planning.presets.opencode import find_opencode_tail_start
from holdfast.planning.presets.registry import PRESETS
from holdfast.state.target import ModelLimits

OPENCODE = PRESETS["opencode"].rules


def build_messages(script):
    """Return messages of 100 tokens by letter: u user, a answer, c answer with a call, r its result, - nothing."""
    messages, number = [], 0
    for letter in script:
        number += letter == "c"
        by_letter = {
            "u": Message.from_text("user", "u" * 400),
            "a": Message.from_text("assistant", "a" * 400),
            "c": Message("assistant", (Text("c" * 393), ToolCall(f"c{number}", "tools"))),
            "r": Message("tool", (ToolResult(f"c{number}", "tools", (Text("r" * 400),)),)),
            "-": None,
        }
        messages.append(by_letter[letter])
    assert all(message is None or estimate_pi_tokens(message) == 100 for message in messages)
    return messages


# -- pi ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "keep", "cut"),
    [
        ("uauaua", 200, PiCutPoint(4)),
        ("uauaua", 201, PiCutPoint(3, 2)),
        ("uauaua", 100, PiCutPoint(5, 4)),
        ("uauaua", 9_999, PiCutPoint(0)),
        ("ucrcra", 150, PiCutPoint(5, 0)),
        ("ucrcra", 250, PiCutPoint(3, 0)),
        ("ucrcra", 200, PiCutPoint(5, 0)),
        ("ua--ua", 200, PiCutPoint(2)),
        ("uc--ra", 100, PiCutPoint(5, 0)),
        ("u-a-cr", 150, PiCutPoint(3, 0)),
        ("uacrr", 100, PiCutPoint(2, 0)),
        ("--ua", 9_999, PiCutPoint(0)),
        ("aa", 100, PiCutPoint(1)),
    ],
)
def test_find_pi_cut_point_cuts_where_the_tokens_are_reached(script, keep, cut):
    """[P] The cut is at or after the point where the tokens are reached, never at a result; settings before it come
    along.
    """
    assert find_pi_cut_point(build_messages(script), keep) == cut


def test_find_pi_cut_point_returns_none_without_a_cut_point():
    """An empty history, or one of results only, has no cut point."""
    assert find_pi_cut_point([], 100) is None
    assert find_pi_cut_point(build_messages("rr"), 100) is None
    assert find_pi_cut_point(build_messages("ua"), 100, cut_points=[]) is None


@given(conversation_strategy(), st.integers(1, 3_000))
def test_find_pi_cut_point_keeps_no_more_than_needed(messages, keep):
    """The tail without its first message is under the limit or starts at the last cut point, and no call loses its
    result.
    """
    legal = [cut for cut in find_cut_points(messages) if cut < len(messages)]
    found = find_pi_cut_point(messages, keep, legal)
    assert found is not None
    sizes = [estimate_pi_tokens(message) for message in messages]
    assert found.start in legal
    assert sum(sizes[found.start + 1 :]) < keep or found.start == legal[-1]
    assert all(sum(sizes[cut + 1 :]) >= keep for cut in legal if cut < found.start)
    tail = messages[found.start :]
    ids = {call.id for message in tail for call in message.calls}
    assert {result.call_id for message in tail for result in message.results} <= ids
    assert (found.split_turn_start is None) == (
        messages[found.start].is_turn_start or not any(message.is_turn_start for message in messages[: found.start])
    )


# -- opencode ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "sizes", "budget", "turns", "start"),
    [
        ("uauaua", [9, 9, 1, 1, 1, 1], 8, 2, 2),
        ("uauaua", [9, 9, 1, 1, 1, 1], 8, 1, 4),
        ("uauaua", [1, 1, 1, 1, 1, 1], 8, 2, 2),
        ("uauaua", [9, 9, 1, 7, 1, 1], 8, 2, 4),
        ("uauaaua", [9, 9, 1, 7, 5, 1, 1], 8, 2, 4),
        ("uauaua", [1, 1, 1, 1, 9, 1], 8, 2, 5),
        ("uauaua", [1, 1, 1, 1, 1, 9], 8, 2, 6),
        ("uaua", [1, 1, 1, 1], 8, 2, 4),
        ("uaua", [1, 1, 1, 1], 8, 0, 4),
        ("uaua", [1, 1, 1, 1], 0, 2, 4),
        ("aa", [1, 1], 8, 2, 2),
        ("", [], 8, 2, 0),
    ],
)
def test_find_opencode_tail_start_keeps_the_last_turns_that_fit(script, sizes, budget, turns, start):
    """[C] The last turns that fit are kept, and the first that does not fit is split; keeping everything means keeping
    nothing.
    """
    assert find_opencode_tail_start(build_messages(script), sizes, budget, turns) == start


@given(st.data(), st.text("ua", max_size=12), st.integers(0, 40), st.integers(0, 4))
def test_find_opencode_tail_start_keeps_the_largest_tail_in_budget(data, script, budget, turns):
    """No larger tail begins in the last turns and fits, except the whole history."""
    sizes = data.draw(st.lists(st.integers(1, 15), min_size=len(script), max_size=len(script)))
    messages = build_messages(script)
    start = find_opencode_tail_start(messages, sizes, budget, turns)
    starts = [at for at, message in enumerate(messages) if message.is_turn_start][-turns:] if turns else []
    first = starts[0] if starts else len(messages)
    fitting = [at for at in range(first, len(messages) + 1) if sum(sizes[at:]) <= budget]
    best = min(fitting, default=len(messages))
    assert start == (best or len(messages))
    assert sum(sizes[start:]) <= budget


@pytest.mark.parametrize(
    ("limits", "changes", "budget"),
    [
        (ModelLimits(200_000, 32_000), {}, 8_000),
        (ModelLimits(36_000, 32_000), {}, 2_000),
        (ModelLimits(48_000, 32_000), {}, 4_000),
        (ModelLimits(0), {}, 2_000),
        (ModelLimits(200_000, 32_000), {"tail_tokens": 50_000, "tail_usable_share": 0.0}, 50_000),
        (ModelLimits(200_000, 32_000), {"tail_tokens": 0, "tail_usable_share": 0.0}, 0),
    ],
)
def test_compute_tail_budget_follows_opencode(limits, changes, budget):
    """[C] A quarter of the usable tokens, between 2,000 and 8,000; a configured number counts exactly."""
    assert replace(OPENCODE, **changes).compute_tail_budget(limits) == budget


# -- all three presets -------------------------------------------------------------------------------------------------


STEP = (0, 1, [(1, 0, 1, 0)], False)
LATE_RESULT = damage_history(build_conversation([STEP, STEP], system=False), [("interleaved batches", 0, 0)])
"""A history in which the result of a call comes after two more answers."""


SHORT_TAILS = {
    "pi": {"tail_tokens": 300},
    "opencode": {"tail_tokens": 300, "tail_min_tokens": 0},
    "claude-code": {},
}


@pytest.mark.parametrize("name", SHORT_TAILS)
@given(messages=conversation_strategy(turns=4, steps=4) | broken_history_strategy())
@example(messages=LATE_RESULT)
def test_plan_keeps_every_message_in_the_summary_or_the_tail(name, messages):
    """A summary covers every message before the tail, and no call loses its result. A result that arrives after its
    call was summarized has no call to stay with.
    """
    policy = Policy.preset(name).with_settings(preset=SHORT_TAILS[name])
    target = get_target("anthropic", "claude-sonnet-4-5")
    first_kept = 0
    for step in drive_agent_loop(
        messages, target, policy, plan_inputs=[PlanInputs(force_compaction=True)] * (len(messages) + 1)
    ):
        history = messages[: step.count]
        compaction = step.plan.compaction
        if compaction is not None:
            head = compaction.first_kept - step.plan.state.view.pinned_count
            assert f"({head} messages)" in compaction.summary.text
            assert compaction.first_kept - first_kept in find_cut_points(history[first_kept:])
            assert [
                sized.message for sized in step.plan.state.history.sized_messages.slice(compaction.first_kept)
            ] == history[compaction.first_kept :]
            first_kept = compaction.first_kept


def test_plan_claude_code_keeps_an_unanswered_user_message():
    """[K] Everything is summarized except a user message that no answer follows yet."""
    messages = [*build_messages("uaua"), Message.from_text("user", "and now?")]
    target, policy = get_target("anthropic", "claude-sonnet-4-5"), Policy.preset("claude-code")
    for count, keep in ((5, 4), (3, 2)):
        (step,) = drive_agent_loop(
            messages[:count], target, policy, request_points=[count], plan_inputs=[PlanInputs(force_compaction=True)]
        )
        assert step.plan.compaction.first_kept == keep


# -- restored files ----------------------------------------------------------------------------------------------------


def build_tool_step(name, path, text="x", *, error=False, id_=None):
    id_ = id_ or f"{name}-{path}"
    call = Message("assistant", (ToolCall(id_, name, f'{{"file_path":"{path}"}}'),))
    return [call, Message("tool", (ToolResult(id_, name, (Text(text),), error),))]


def test_render_restored_files_lists_the_newest_first():
    """[K] At most ``count`` files, last touched first, each as it was last read; a file that is too long is
    only named.
    """
    head = [
        *build_tool_step("Read", "a.py", "alpha", id_="1"),
        *build_tool_step("Read", "b.py", "beta " * 9_000),
        *build_tool_step("Read", "c.py", "gamma"),
        *build_tool_step("Read", "a.py", "alpha 2", id_="2"),
        *build_tool_step("Edit", "c.py", "ok"),
        *build_tool_step("Write", "d.py", "ok"),
        *build_tool_step("Read", "e.py", "no such file", error=True),
    ]
    texts = render_restored_files(head, 5, 5_000)
    assert texts == (
        "d.py was changed and never read; read it to see it",
        "c.py as it was last read, and changed since:\ngamma",
        "a.py as it was last read:\nalpha 2",
        "b.py was read; it is too long to show",
    )
    assert render_restored_files(head, 2, 5_000) == texts[:2]
    assert render_restored_files(head, 0, 5_000) == ()
    assert (
        "too long" in render_restored_files(build_tool_step("Read", "a.py", "word " * 100), 1, 100, token_ratio=1.3)[0]
    )
