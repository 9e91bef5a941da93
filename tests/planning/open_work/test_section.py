"""The section of a summary that lists what is still open."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.open_work.find_open_work import list_open_work
from holdfast.planning.open_work.section import (
    OPEN_WORK_HEADING,
    compute_section_budget,
    render_open_work,
    select_hidden_items,
)
from holdfast.planning.open_work.work_events import OpenItem


def build_shells(count, name="npm run dev"):
    return [OpenItem("shell", f"b{number:03}", name, since=number, last_told=number) for number in range(count)]


def test_render_open_work_has_a_line_for_each_item():
    """Work that goes on stands before to-do items, the newest first; ids and states are verbatim."""
    items = [
        OpenItem("to-do", "", "Fix the login", "in_progress"),
        OpenItem("shell", "b12", "npm run dev", since=1),
        OpenItem("sub-agent", "a7470ed", "Review tests", since=2),
        OpenItem("sub-agent", "ses_1", "Review docs", "finished, not closed", since=3),
        OpenItem("to-do", "4", "Write the changelog", "pending"),
    ]
    assert render_open_work(items, 500).split("\n") == [
        OPEN_WORK_HEADING,
        "- sub-agent ses_1 [finished, not closed]: Review docs",
        "- sub-agent a7470ed: Review tests",
        "- shell b12: npm run dev",
        "- to-do [in_progress]: Fix the login",
        "- to-do 4 [pending]: Write the changelog",
    ]
    assert render_open_work([], 500) == ""


def test_render_open_work_is_short_for_each_item():
    """An item takes some 25 tokens at most, however long its command is, unless its id alone is longer."""
    (item,) = build_shells(1, "bun --filter @agentv/core typecheck && " * 50)
    one_line = estimate_text_tokens(render_open_work([item], 500)) - estimate_text_tokens(OPEN_WORK_HEADING)
    assert one_line <= 30


def test_render_open_work_names_the_ids_of_items_without_a_line():
    """Where the lines of all items do not fit, the newest have one and the ids of the others stand in the last line."""
    lines = render_open_work(build_shells(40), 300).split("\n")
    assert lines[1] == "- shell b039: npm run dev"
    assert lines[-1].startswith(f"[{40 - len(lines) + 2} more: shell b0")
    assert all(f"b{number:03}" in "\n".join(lines) for number in range(40))


@given(st.integers(0, 400), st.integers(20, 2_000))
def test_render_open_work_stays_within_its_budget(count, budget):
    """Law: the section has about its budget of tokens, and says how many items have no line."""
    items = build_shells(count)
    section = render_open_work(items, budget)
    assert estimate_text_tokens(section) <= 1.25 * budget + 40
    lines = section.split("\n")
    if count and lines[-1].startswith("["):
        assert int(lines[-1][1:].split()[0]) == count - (len(lines) - 2)
    else:
        assert len(lines) == count + 1


@given(st.integers(1, 60), st.integers(200, 2_000))
def test_list_open_work_reads_a_section_back(count, budget):
    """Law: who keeps only the messages that were sent finds all ids in the section, and so does the next summary."""
    items = [*build_shells(count), OpenItem("to-do", "", "Fix it", "pending"), OpenItem("to-do", "3", "And that")]
    section = render_open_work(items, budget)
    summary = Message("user", (Text("The conversation before …"), Text(section)))
    again = list_open_work([summary, Message.from_text("assistant", "Going on.")])
    named = {item.id for item in items if item.kind == "shell" and item.id in section}
    assert {item.id for item in again if item.kind == "shell"} == named
    if budget > 1_000 and count < 20:
        assert render_open_work(again, budget).split("\n")[-2:] == section.split("\n")[-2:]


def test_list_open_work_reads_the_plan_of_an_older_version():
    """Summaries of older versions have the to-do list as a text of its own."""
    summary = Message("user", (Text("The plan as it stands:\n- [completed] swim\n- [open] dive"),))
    assert [item.name for item in list_open_work([summary])] == ["dive"]


def test_select_hidden_items_leaves_out_what_the_tail_tells_of():
    """An item that a kept message tells of is not repeated."""
    items = build_shells(5)
    assert [item.id for item in select_hidden_items(items, 2)] == ["b000", "b001"]


def test_compute_section_budget_is_bounded():
    """The section gets a share of a summary, a few lines of the smallest and no more than some sixty of the largest."""
    assert compute_section_budget(100) == 120
    assert compute_section_budget(2_000) == 500
    assert compute_section_budget(100_000) == 1_500
