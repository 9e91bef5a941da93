"""A branch cut back knows of the slots that stay what it knew, and of those that went nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from strategies import logs

from holdfast import Branch, Policy, plan
from holdfast.config import target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import measure
from holdfast.state.branch.branch import TRUNCATE, extend, extended
from holdfast.state.branch.fork import cut_back
from holdfast.state.branch.view import prefix_basis, project
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import HISTORY, Compaction, Decision, Entry, Frame, Request, Revoke, Said

COUNTS = ("seen", "standing", "framed", "counted")
"""Fields that count slots from the first one on."""
KEPT = (
    *("slots", "messages", "sums", "born", "pinned", "keep", "edits", "held", "callers", "open", "broken"),
    *("frame", "model", "window", "measured", "gauge", "learned", "aside", "failures", "unwritten", "failed_at"),
    *("law", "spared", "policy"),
)
WHERE = target("anthropic", "claude-sonnet-4-5", window=200_000)


def said(*texts):
    """Return entries of a user's and an assistant's words in turn."""
    told = [Message.of("assistant" if at % 2 else "user", text) for at, text in enumerate(texts)]
    return [Entry(f"s{at}", None, Said(measure(one))) for at, one in enumerate(told)]


def behind(branch, *bodies):
    """Return ``branch`` with ``bodies`` behind it, by their number."""
    for number, body in enumerate(bodies):
        branch = extend(branch, Entry(str(number), None, body))
    return branch


def limiting(entries):
    """Return the log with limits of turns in place of compactions that nobody wrote a summary for."""
    bare = [isinstance(one.body, Compaction) and one.body.summary is None for one in entries]
    return [
        replace(one, body=replace(one.body, trigger=HISTORY)) if is_bare else one
        for one, is_bare in zip(entries, bare, strict=True)
    ]


def same(branch, before):
    """Assert that ``branch`` knows what ``before`` knew, with nothing used up: an edited past is asked of anew."""
    for name in (*KEPT, *COUNTS, "found"):
        assert getattr(branch, name) == getattr(before, name), name
    assert (branch.compactions, branch.truncations) == (0, 0)
    assert project(branch) == project(before)


@given(logs().map(limiting))
def test_what_was_only_said_behind_leaves_no_trace(entries):
    """Cut back to where it was, the branch knows what it knew before more was said."""
    before = Branch.build(entries)
    same(replace(cut_back(extended(before, said("x", "y")), len(before.slots)), callers=before.callers), before)


ASKED = Request("b", 4, "m", 9_000)
CUT = Decision((Edit(Span(1, 2, 0), (Text("-"),), "r", "w", 1),))
KNOWN = {
    "seen": [ASKED],
    "standing": [ASKED, CUT],
    "framed": [Frame("f", 9), ASKED, Frame("g", 9)],
    "counted": [Compaction(2, trigger=HISTORY), Revoke("0")],
}
"""What leaves each of the counts at a number of its own, behind four messages."""


@pytest.mark.parametrize("name", COUNTS)
def test_each_count_stands(name):
    """What a request showed, and shows otherwise since, what another frame came behind and what a limit counts."""
    before = behind(Branch.build(said("a", "b", "c", "d")), *KNOWN[name])
    assert getattr(before, name) == (1 if name == "standing" else 4)
    same(replace(cut_back(extended(before, said("x", "y")), 4), callers=before.callers), before)


@given(logs().map(limiting))
def test_no_count_is_of_a_slot_that_is_no_more(entries):
    """Whatever is said in its place is new."""
    branch = Branch.build(entries)
    for count in range(len(branch.slots)):
        shorter = cut_back(branch, count)
        assert all(getattr(shorter, name) == min(getattr(branch, name), count) for name in COUNTS)
        assert shorter.found == tuple(min(number, count) for number in branch.found)


@given(logs().map(limiting), st.sampled_from(["auto", "overflow", "manual"]))
def test_an_edited_past_has_as_many_attempts_as_any(entries, trigger):
    """P2: what was compacted and cut since the last answer was for another request than the one that comes now."""
    branch = Branch.build(entries)
    count = len(branch.slots)
    cut = Decision((Edit(Span(max(0, count - 1), count, 0), (Text("-"),), TRUNCATE, "", 1),))
    used = behind(branch, Compaction(branch.keep, Message.of("user", "sum"), 3, trigger=trigger), *[cut][: bool(count)])
    shorter = cut_back(extended(used, said("x")), count)
    assert (used.compactions > 0, used.truncations > 0) == (True, count > 0)
    assert (shorter.compactions, shorter.truncations) == (0, 0)
    assert [what for _, what in shorter.law] == [what for _, what in used.law]


def test_what_stands_in_the_place_of_an_edited_message_is_looked_at():
    """A long result that the model saw whole stays whole; the one in place of another is cut as any new one is."""
    rows = "\n".join(f"row {number} of a long table" for number in range(2_000))
    talk = [Message.of("user", "go")]
    for name in ("c1", "c2"):
        talk += [
            Message("assistant", (ToolCall(name, "read"),)),
            Message("tool", (ToolResult(name, "read", (Text(f"{name} {rows}"),)),)),
        ]
    whole, small = (Policy().with_settings(spill_chars=chars) for chars in (10_000_000, 2_000))
    branch = plan(talk, WHERE, whole).branch
    other = Message("tool", (ToolResult("c2", "read", (Text(f"other {rows}"),)),))
    record = plan([*talk[:-1], other], WHERE, small, branch=branch).record
    assert {edit.span.start for edit in record} == {4}


def test_an_undone_limit_of_turns_counts_from_there():
    """What it hid stays shown where the last message is said in other words."""
    policy = Policy().with_settings(history_turns=1)
    talk = [Message.of(role, f"{role} {number}") for number in range(3) for role in ("user", "assistant")][:-1]
    branch = plan(talk, WHERE, policy).branch
    ((id_, limit),) = branch.law
    assert limit.trigger == HISTORY
    branch = extend(branch, Entry("undo", None, Revoke(id_)))
    other = plan([*talk, Message.of("assistant", "x")], WHERE, policy, branch=branch).branch
    assert other.compaction is None
    again = plan([*talk[:-1], Message.of("user", "in other words")], WHERE, policy, branch=branch)
    assert again.compaction is None
    assert prefix_basis(again.branch) != prefix_basis(branch)
