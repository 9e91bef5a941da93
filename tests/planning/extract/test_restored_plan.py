"""The agent's to-do list after a compaction: the newest one is shown again while items of it are open."""

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


def build_todo_call(name, *items, key="todos"):
    return Message("assistant", (ToolCall("1", name, json.dumps({key: items})),))


OPEN = {"content": "dive", "status": "in_progress"}
DONE = {"content": "swim", "status": "completed"}


@pytest.mark.parametrize(("name", "key"), [("TodoWrite", "todos"), ("todo", "items"), ("update_plan", "plan")])
def test_render_restored_todos_shows_the_newest_list(name, key):
    """The newest call that writes a to-do list counts, whatever its tool is called; every item has a line of
    its own.
    """
    head = [
        build_todo_call(name, {"step": "old"}, key=key),
        build_todo_call(name, DONE, OPEN, key=key),
        Message.from_text("user", "go on"),
    ]
    (text,) = render_restored_todos(head, 5_000)
    assert text.split("\n") == [PLAN_OPENING, "- [completed] swim", "- [in_progress] dive"]


def test_render_restored_todos_returns_nothing_for_a_finished_list():
    """Nothing is restored when every item is done, when no call wrote a list, or when the budget is 0."""
    assert render_restored_todos([build_todo_call("todo", OPEN), build_todo_call("todo", DONE)], 5_000) == ()
    assert render_restored_todos([build_todo_call("read", OPEN), build_todo_call("todo", "text")], 5_000) == ()
    assert render_restored_todos([build_todo_call("todo", OPEN)], 0) == ()


def test_render_restored_todos_skips_withdrawn_and_rejected_lists():
    """An empty list withdraws the to-dos; a call that the tool rejected leaves the list before it in force."""
    assert render_restored_todos([build_todo_call("todo", OPEN), build_todo_call("todo")], 5_000) == ()
    rejected_call = Message(
        "assistant", (ToolCall("2", "todo", json.dumps({"todos": [DONE | {"status": "finished"}]})),)
    )
    rejection = Message("tool", (ToolResult("2", "todo", (Text("no such status"),), is_error=True),))
    open_todos = render_restored_todos([build_todo_call("todo", OPEN)], 5_000)
    assert render_restored_todos([build_todo_call("todo", OPEN), rejected_call, rejection], 5_000) == open_todos
    assert (
        render_restored_todos([build_todo_call("todo", OPEN), build_todo_call("todo", "text", key="files")], 5_000)
        == open_todos
    )


def test_render_restored_todos_survives_the_next_compaction():
    """A to-do list in an earlier summary counts until a newer list is written."""
    todos = render_restored_todos([build_todo_call("todo", OPEN)], 5_000)
    summary = Message("user", (Text("the summary"), *map(Text, todos)))
    assert render_restored_todos([summary, Message.from_text("user", "go on")], 5_000) == todos
    assert render_restored_todos([summary, build_todo_call("todo", {"text": "rest"})], 5_000) == (
        f"{PLAN_OPENING}\n- [open] rest",
    )


def test_render_restored_todos_cuts_a_long_list():
    """A long list keeps its first lines within its tokens and states how much is left out."""
    (text,) = render_restored_todos(
        [build_todo_call("todo", *[{"text": f"step {n} of the way"} for n in range(500)])], 200
    )
    assert estimate_text_tokens(text) < 220
    assert "characters of the plan are left out here]" in text


@given(st.lists(message_strategy(), max_size=6))
def test_render_restored_todos_accepts_any_history(head):
    """No combination of calls raises."""
    assert len(render_restored_todos(head, 100)) <= 1
