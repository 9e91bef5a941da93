"""The plan that stands behind a summary again: the newest one that was made, as long as it is not done."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import message_strategy

from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.extract.restored_plan import PLAN_OPENING, render_restored_todos


def made(name, *items, key="todos"):
    return Message("assistant", (ToolCall("1", name, json.dumps({key: items})),))


OPEN = {"content": "dive", "status": "in_progress"}
DONE = {"content": "swim", "status": "completed"}


@pytest.mark.parametrize(("name", "key"), [("TodoWrite", "todos"), ("todo", "items"), ("update_plan", "plan")])
def test_the_newest_plan_is_told(name, key):
    """The newest call that makes a plan counts, whatever its tool is called; every item stands on a line."""
    head = [made(name, {"step": "old"}, key=key), made(name, DONE, OPEN, key=key), Message.from_text("user", "go on")]
    (text,) = render_restored_todos(head, 5_000)
    assert text.split("\n") == [PLAN_OPENING, "- [completed] swim", "- [in_progress] dive"]


def test_a_plan_that_is_done_is_none():
    """Where all is done nothing is told, nor where no call made a plan, or nothing may be told."""
    assert render_restored_todos([made("todo", OPEN), made("todo", DONE)], 5_000) == ()
    assert render_restored_todos([made("read", OPEN), made("todo", "text")], 5_000) == ()
    assert render_restored_todos([made("todo", OPEN)], 0) == ()


def test_a_plan_that_is_taken_back_or_refused_does_not_count():
    """An empty list takes the plan back; a call whose tool says no leaves the one before as it stands."""
    assert render_restored_todos([made("todo", OPEN), made("todo")], 5_000) == ()
    refused = Message("assistant", (ToolCall("2", "todo", json.dumps({"todos": [DONE | {"status": "finished"}]})),))
    said_no = Message("tool", (ToolResult("2", "todo", (Text("no such status"),), is_error=True),))
    told = render_restored_todos([made("todo", OPEN)], 5_000)
    assert render_restored_todos([made("todo", OPEN), refused, said_no], 5_000) == told
    assert render_restored_todos([made("todo", OPEN), made("todo", "text", key="files")], 5_000) == told


def test_a_plan_outlives_the_next_compaction():
    """What an earlier summary told of the plan counts until a newer one is made."""
    told = render_restored_todos([made("todo", OPEN)], 5_000)
    summary = Message("user", (Text("the summary"), *map(Text, told)))
    assert render_restored_todos([summary, Message.from_text("user", "go on")], 5_000) == told
    assert render_restored_todos([summary, made("todo", {"text": "rest"})], 5_000) == (
        f"{PLAN_OPENING}\n- [open] rest",
    )


def test_a_long_plan_is_cut():
    """A plan keeps its first lines within its tokens and says what is left out."""
    (text,) = render_restored_todos([made("todo", *[{"text": f"step {n} of the way"} for n in range(500)])], 200)
    assert estimate_text_tokens(text) < 220
    assert "characters of the plan are left out here]" in text


@given(st.lists(message_strategy(), max_size=6))
def test_any_history_has_a_plan_or_none(head):
    """Whatever calls there are, nothing raises."""
    assert len(render_restored_todos(head, 100)) <= 1
