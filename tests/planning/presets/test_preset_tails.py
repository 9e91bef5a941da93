"""Where the kept tail begins, by the rules of pi, opencode and Claude Code."""

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


def talk(script):
    """Return messages by letters: u a user, a an answer, c an answer with a call, r its result; each 100 tokens."""
    out, number = [], 0
    for letter in script:
        number += letter == "c"
        made = {
            "u": Message.from_text("user", "u" * 400),
            "a": Message.from_text("assistant", "a" * 400),
            "c": Message("assistant", (Text("c" * 393), ToolCall(f"c{number}", "tools"))),
            "r": Message("tool", (ToolResult(f"c{number}", "tools", (Text("r" * 400),)),)),
            "-": None,
        }
        out.append(made[letter])
    assert all(one is None or estimate_pi_tokens(one) == 100 for one in out)
    return out


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
def test_where_pi_cuts(script, keep, cut):
    """[P] at or behind where the tokens are reached, never at a result, settings before it come along, turns split."""
    assert find_pi_cut_point(talk(script), keep) == cut


def test_nowhere_to_cut():
    """Where there is nothing, or nothing but results, there is no place."""
    assert find_pi_cut_point([], 100) is None
    assert find_pi_cut_point(talk("rr"), 100) is None
    assert find_pi_cut_point(talk("ua"), 100, cut_points=[]) is None


@given(conversation_strategy(), st.integers(1, 3_000))
def test_a_cut_of_pi_is_as_far_back_as_it_must_be(messages, keep):
    """The tail less its first message is under the limit, or there is no place behind; no call loses its result."""
    legal = [cut for cut in find_cut_points(messages) if cut < len(messages)]
    found = find_pi_cut_point(messages, keep, legal)
    assert found is not None
    sizes = [estimate_pi_tokens(one) for one in messages]
    assert found.start in legal
    assert sum(sizes[found.start + 1 :]) < keep or found.start == legal[-1]
    assert all(sum(sizes[cut + 1 :]) >= keep for cut in legal if cut < found.start)
    behind = messages[found.start :]
    ids = {call.id for one in behind for call in one.calls}
    assert {result.call_id for one in behind for result in one.results} <= ids
    assert (found.split_turn_start is None) == (
        messages[found.start].is_turn_start or not any(one.is_turn_start for one in messages[: found.start])
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
def test_what_opencode_keeps(script, sizes, budget, turns, start):
    """[C] the last turns that fit, the first that does not split at its earliest fitting message; all is nothing."""
    assert find_opencode_tail_start(talk(script), sizes, budget, turns) == start


@given(st.data(), st.text("ua", max_size=12), st.integers(0, 40), st.integers(0, 4))
def test_a_tail_of_opencode_is_within_its_budget_and_the_largest(data, script, budget, turns):
    """Of all tails that begin in the last turns and fit there is no larger one, but for that of everything."""
    sizes = data.draw(st.lists(st.integers(1, 15), min_size=len(script), max_size=len(script)))
    messages = talk(script)
    start = find_opencode_tail_start(messages, sizes, budget, turns)
    starts = [at for at, one in enumerate(messages) if one.is_turn_start][-turns:] if turns else []
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
def test_the_budget_of_opencodes_tail(limits, changes, budget):
    """[C] a quarter of what is usable, from 2,000 to 8,000; exactly what is said where it is."""
    assert replace(OPENCODE, **changes).compute_tail_budget(limits) == budget


# -- all of them -------------------------------------------------------------------------------------------------------


STEP = (0, 1, [(1, 0, 1, 0)], False)
LATE = damage_history(build_conversation([STEP, STEP], system=False), [("interleaved batches", 0, 0)])
"""The result of a call comes behind two answers more."""


SHORT_TAILS = {
    "pi": {"tail_tokens": 300},
    "opencode": {"tail_tokens": 300, "tail_min_tokens": 0},
    "claude-code": {},
}


@pytest.mark.parametrize("name", SHORT_TAILS)
@given(messages=conversation_strategy(turns=4, steps=4) | broken_history_strategy())
@example(messages=LATE)
def test_what_leaves_is_in_the_summary_or_the_tail(name, messages):
    """A summary covers every message before the tail, the whole of it from the log; no call is without its result.

    A result that comes when its call has left with the summary before has none to be kept with.
    """
    policy = Policy.preset(name).with_settings(preset=SHORT_TAILS[name])
    where = get_target("anthropic", "claude-sonnet-4-5")
    kept = 0
    for step in drive_agent_loop(
        messages, where, policy, worlds=[PlanInputs(force_compaction=True)] * (len(messages) + 1)
    ):
        held = messages[: step.count]
        made = step.plan.compaction
        if made is not None:
            head = made.first_kept - step.plan.state.view.pinned_count
            assert f"({head} messages)" in made.summary.text
            assert made.first_kept - kept in find_cut_points(held[kept:])
            assert [slot.message for slot in step.plan.state.history.sized_messages.slice(made.first_kept)] == held[
                made.first_kept :
            ]
            kept = made.first_kept


def test_claude_code_keeps_what_waits_for_its_answer():
    """[K] everything is summarised but a message of the user that no answer follows yet."""
    said = [*talk("uaua"), Message.from_text("user", "and now?")]
    where, policy = get_target("anthropic", "claude-sonnet-4-5"), Policy.preset("claude-code")
    for count, keep in ((5, 4), (3, 2)):
        (step,) = drive_agent_loop(
            said[:count], where, policy, request_points=[count], worlds=[PlanInputs(force_compaction=True)]
        )
        assert step.plan.compaction.first_kept == keep


# -- files restored ----------------------------------------------------------------------------------------------------


def did(name, path, text="x", *, error=False, id_=None):
    id_ = id_ or f"{name}-{path}"
    call = Message("assistant", (ToolCall(id_, name, f'{{"file_path":"{path}"}}'),))
    return [call, Message("tool", (ToolResult(id_, name, (Text(text),), error),))]


def test_files_come_back_newest_first():
    """[K] at most so many files, those touched last first, each as it was last read; a long one only by its name."""
    head = [
        *did("Read", "a.py", "alpha", id_="1"),
        *did("Read", "b.py", "beta " * 9_000),
        *did("Read", "c.py", "gamma"),
        *did("Read", "a.py", "alpha 2", id_="2"),
        *did("Edit", "c.py", "ok"),
        *did("Write", "d.py", "ok"),
        *did("Read", "e.py", "no such file", error=True),
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
    assert "too long" in render_restored_files(did("Read", "a.py", "word " * 100), 1, 100, token_ratio=1.3)[0]
