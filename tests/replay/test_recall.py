"""Online recall of a session of six messages, with figures counted by hand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.message import Message
from holdfast.messages.parts import Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.references import iter_reference_texts
from holdfast.replay.recall import RecallCounts, StepDependencies, find_answer_positions


def make_call(id_: str, **arguments: str) -> ToolCall:
    """Return a call with ``arguments``."""
    return ToolCall(id_, "tool", json.dumps(arguments))


def make_message(role: str, *parts: Part) -> Message:
    """Return a message of ``parts``."""
    return Message(role, parts)  # type: ignore[arg-type]


def make_result(id_: str, text: str) -> Message:
    """Return the message that answers call ``id_``."""
    return make_message("tool", ToolResult(id_, "tool", (Text(text),)))


SESSION = [
    Message.from_text("user", "Please repair the scan_header function in wire_reader, ticket 8123"),
    make_message("assistant", Text("I look."), make_call("c1", path="src/wire_reader/parse.py")),
    make_result("c1", "def scan_header(raw): return split_fields(raw)\nMAX_FIELDS = 64"),
    make_message("assistant", Text("split_fields is wrong"), make_call("c2", cmd="grep split_fields")),
    make_result("c2", "split_fields found once"),
    make_message("assistant", Text("Ticket 8123: scan_header used MAX_FIELDS and new_name of wire_reader/parse.py")),
]
"""Step 1 uses wire_reader (just shown). Step 3 uses split_fields (just shown). Step 5 uses 8123, scan_header,
MAX_FIELDS, the path and its file, wire_reader (in the path): all known, none shown since step 3. new_name is new.
"""


def list_texts(messages: list[Message]) -> list[str]:
    """Return the texts of ``messages``."""
    return [text for message in messages for text in iter_reference_texts(message)]


def test_get_dependencies_of_each_step() -> None:
    """A step depends on what it uses, what was known before, and what was not shown since the previous step."""
    found = StepDependencies(SESSION)
    assert found.get_dependencies(1) == []
    assert found.get_dependencies(3) == []
    assert found.get_dependencies(5) == [
        ("file", "parse.py"),
        ("id", "MAX_FIELDS"),
        ("id", "scan_header"),
        ("id", "wire_reader"),
        ("number", "8123"),
        ("path", "wire_reader/parse.py"),
    ]


def test_score_request_with_the_whole_history_recalls_all() -> None:
    """A request that holds every message holds every dependency with its evidence."""
    assert StepDependencies(SESSION).score_request(5, list_texts(SESSION[:5])) == RecallCounts(6, 6, 6)


def test_score_request_empty_recalls_nothing() -> None:
    """An empty request recalls none of six dependencies."""
    assert StepDependencies(SESSION).score_request(5, []) == RecallCounts(0, 0, 6)


def test_score_request_misses_dropped_messages() -> None:
    """Without the first two messages the ticket, wire_reader and the path are missing: two of six remain."""
    assert StepDependencies(SESSION).score_request(5, list_texts(SESSION[2:5])) == RecallCounts(2, 2, 6)


def test_score_request_counts_bare_names_as_names_only() -> None:
    """Names without their lines count as names only; two of six become facts because a listed path brings words of its
    line along.
    """
    listed = "8123\nscan_header\nMAX_FIELDS\nwire_reader\nwire_reader/parse.py"
    assert StepDependencies(SESSION).score_request(5, [listed]) == RecallCounts(6, 2, 6)


def test_score_request_counts_quoted_lines_as_facts() -> None:
    """A quoted line of the history keeps its references as facts, and no others."""
    summary = "Summary of the talk\n- Please repair the scan_header function in wire_reader, ticket 8123"
    assert StepDependencies(SESSION).score_request(5, [summary]) == RecallCounts(3, 3, 6)


def test_score_request_needs_half_of_the_words_for_a_fact() -> None:
    """The line of 8123 has eight other words: four of them keep the fact, three do not."""
    found = StepDependencies(SESSION)
    assert found.score_request(5, ["8123: please repair function ticket, Please"]).facts == 1
    assert found.score_request(5, ["8123: repair function ticket"]).facts == 0


def test_get_dependencies_ignores_references_of_the_setup() -> None:
    """A reference in the system prompt or the tools is not a dependency."""
    found = StepDependencies(SESSION, setup_texts=["use scan_header and MAX_FIELDS, ticket 8123"])
    assert found.score_request(5, []) == RecallCounts(0, 0, 3)


def test_get_dependencies_ignores_the_shipped_common_names() -> None:
    """A name that belongs to every project is not a dependency."""
    session = [
        Message.from_text("user", "read_text and own_thing"),
        Message.from_text("assistant", "ok"),
        Message.from_text("user", "go"),
    ]
    session.append(Message.from_text("assistant", "read_text own_thing"))
    assert StepDependencies(session).get_dependencies(3) == [("id", "own_thing")]


def test_get_dependencies_ignores_thinking() -> None:
    """A reference that the assistant only thinks of is not used."""
    session = [
        Message.from_text("user", "own_thing"),
        Message.from_text("assistant", "ok"),
        make_message("assistant", Thinking("own_thing")),
    ]
    assert StepDependencies(session).get_dependencies(2) == []


def test_get_dependencies_treats_aborted_answers_as_shown_text() -> None:
    """An assistant message that is not a step, such as an aborted one, shows its text to the next step."""
    session = [Message.from_text("user", "own_thing"), *[Message.from_text("assistant", "own_thing")] * 3]
    assert [StepDependencies(session, steps=[1, 3]).get_dependencies(step) for step in (1, 2, 3)] == [[], [], []]
    assert StepDependencies(session).get_dependencies(3) == [("id", "own_thing")]


def test_score_request_ignores_later_messages() -> None:
    """A request is judged by the messages before its step, also when it contains text that comes later."""
    session = [
        Message.from_text("user", "the own_thing is red and heavy and round"),
        Message.from_text("assistant", "ok"),
        Message.from_text("user", "go"),
        Message.from_text("assistant", "own_thing"),
        Message.from_text("user", "own_thing was never blue"),
        Message.from_text("assistant", "own_thing"),
    ]
    assert StepDependencies(session).score_request(3, ["own_thing was never blue"]) == RecallCounts(1, 0, 1)


def test_recall_counts_add_up() -> None:
    """Counts of several steps add up to shares of all dependencies, and no dependencies give None."""
    both = RecallCounts(1, 0, 2) + RecallCounts(2, 2, 2)
    assert (both.recall, both.fact_recall) == (0.75, 0.5)
    assert (RecallCounts().recall, RecallCounts().fact_recall) == (None, None)


def test_score_request_of_an_unknown_step_is_empty() -> None:
    """A position that is not a step has no dependencies."""
    assert StepDependencies(SESSION).score_request(2, list_texts(SESSION)) == RecallCounts()


lines = st.lists(
    st.sampled_from(["alpha_one", "betaTwo", "src/gamma/delta.py", "4711", "plain", "words", "between", "them"]),
    min_size=1,
    max_size=5,
).map(" ".join)
messages = st.builds(
    Message.from_text, st.sampled_from(["user", "assistant"]), st.lists(lines, max_size=3).map("\n".join)
)
sessions = st.lists(messages, max_size=12)


@given(sessions)
def test_score_request_has_bounds(session: list[Message]) -> None:
    """The whole history recalls all dependencies as facts, and an empty request none."""
    found = StepDependencies(session)
    for step in find_answer_positions(session):
        full = found.score_request(step, list_texts(session[:step]))
        assert full.facts == full.names == full.total
        assert found.score_request(step, []) == RecallCounts(0, 0, full.total)


@given(sessions, st.data())
def test_score_request_never_falls_with_more_context(session: list[Message], data: st.DataObject) -> None:
    """More context never recalls less."""
    found = StepDependencies(session)
    for step in find_answer_positions(session):
        extra = data.draw(st.lists(lines, max_size=3))
        some = data.draw(st.lists(st.sampled_from([*list_texts(session[:step]), ""]), max_size=4)) + extra[:1]
        less, more = found.score_request(step, some), found.score_request(step, some + extra)
        assert less.names <= more.names
        assert less.facts <= more.facts


@given(sessions)
def test_score_request_facts_never_exceed_names(session: list[Message]) -> None:
    """A fact is always present by name, whatever text holds it."""
    found = StepDependencies(session)
    for step in find_answer_positions(session):
        hits = found.score_request(step, [text.replace("plain", "other") for text in list_texts(session[: step // 2])])
        assert hits.facts <= hits.names <= hits.total


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 4, 5])
def test_score_request_of_the_newest_messages(kept: int) -> None:
    """Of the six dependencies of the last step this many remain when only the newest messages are kept."""
    hits = StepDependencies(SESSION).score_request(5, list_texts(SESSION[5 - kept : 5]))
    assert hits.names == [0, 0, 0, 2, 5, 6][kept]
