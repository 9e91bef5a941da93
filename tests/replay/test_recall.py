"""Online recall of a session of six messages, counted by hand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.message import Message
from holdfast.messages.parts import Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.references import words
from holdfast.replay.recall import Dependencies, Hits, answers


def call(id_: str, **arguments: str) -> ToolCall:
    """Return a call with ``arguments``."""
    return ToolCall(id_, "tool", json.dumps(arguments))


def said(role: str, *parts: Part) -> Message:
    """Return a message of ``parts``."""
    return Message(role, parts)  # type: ignore[arg-type]


def result(id_: str, text: str) -> Message:
    """Return the message that answers call ``id_``."""
    return said("tool", ToolResult(id_, "tool", (Text(text),)))


SESSION = [
    Message.of("user", "Please repair the scan_header function in wire_reader, ticket 8123"),
    said("assistant", Text("I look."), call("c1", path="src/wire_reader/parse.py")),
    result("c1", "def scan_header(raw): return split_fields(raw)\nMAX_FIELDS = 64"),
    said("assistant", Text("split_fields is wrong"), call("c2", cmd="grep split_fields")),
    result("c2", "split_fields found once"),
    said("assistant", Text("Ticket 8123: scan_header used MAX_FIELDS and new_name of wire_reader/parse.py")),
]
"""Step 1 uses wire_reader (just shown). Step 3 uses split_fields (just shown). Step 5 uses 8123, scan_header,
MAX_FIELDS, the path and its file, wire_reader (in the path): all known, none shown since step 3. new_name is new.
"""


def texts(messages: list[Message]) -> list[str]:
    """Return the words of ``messages``."""
    return [text for message in messages for text in words(message)]


def test_dependencies_of_each_step() -> None:
    """A step depends on what it uses, knew, and was not shown since the step before."""
    found = Dependencies(SESSION)
    assert found.at(1) == []
    assert found.at(3) == []
    assert found.at(5) == [
        ("file", "parse.py"),
        ("id", "MAX_FIELDS"),
        ("id", "scan_header"),
        ("id", "wire_reader"),
        ("number", "8123"),
        ("path", "wire_reader/parse.py"),
    ]


def test_the_whole_history_recalls_all() -> None:
    """A request that holds every message holds every dependency with its evidence."""
    assert Dependencies(SESSION).score(5, texts(SESSION[:5])) == Hits(6, 6, 6)


def test_nothing_recalls_nothing() -> None:
    """An empty request recalls none of six."""
    assert Dependencies(SESSION).score(5, []) == Hits(0, 0, 6)


def test_what_is_dropped_is_missed() -> None:
    """Without the first two messages the ticket, wire_reader and the path are gone: two of six are left."""
    assert Dependencies(SESSION).score(5, texts(SESSION[2:5])) == Hits(2, 2, 6)


def test_a_bare_list_is_present_but_no_fact() -> None:
    """Names without their lines count as names only.

    Of the six, two are facts: the argument ``src/wire_reader/parse.py`` has two words beside ``parse.py`` and two
    beside ``wire_reader``, and the listed path brings one of each along.
    """
    listed = "8123\nscan_header\nMAX_FIELDS\nwire_reader\nwire_reader/parse.py"
    assert Dependencies(SESSION).score(5, [listed]) == Hits(6, 2, 6)


def test_a_summary_that_quotes_keeps_facts() -> None:
    """A line of the history inside a new text keeps its references as facts, the others not."""
    summary = "Summary of the talk\n- Please repair the scan_header function in wire_reader, ticket 8123"
    assert Dependencies(SESSION).score(5, [summary]) == Hits(3, 3, 6)


def test_half_of_the_words_are_enough() -> None:
    """The line of 8123 has eight other words: four of them keep the fact, three do not."""
    found = Dependencies(SESSION)
    assert found.score(5, ["8123: please repair function ticket, Please"]).facts == 1
    assert found.score(5, ["8123: repair function ticket"]).facts == 0


def test_the_frame_is_background() -> None:
    """What stands in system prompt or tools is no dependency."""
    found = Dependencies(SESSION, frame=["use scan_header and MAX_FIELDS, ticket 8123"])
    assert found.score(5, []) == Hits(0, 0, 3)


def test_the_shipped_list_is_background() -> None:
    """What belongs to every project is no dependency."""
    session = [Message.of("user", "read_text and own_thing"), Message.of("assistant", "ok"), Message.of("user", "go")]
    session.append(Message.of("assistant", "read_text own_thing"))
    assert Dependencies(session).at(3) == [("id", "own_thing")]


def test_thinking_is_no_use() -> None:
    """What the assistant only thinks is not used: neither tool arguments nor text."""
    session = [Message.of("user", "own_thing"), Message.of("assistant", "ok"), said("assistant", Thinking("own_thing"))]
    assert Dependencies(session).at(2) == []


def test_an_answer_that_is_no_step() -> None:
    """An assistant message that is no step (an aborted one) shows its words to the next step."""
    session = [Message.of("user", "own_thing"), *[Message.of("assistant", "own_thing")] * 3]
    assert [Dependencies(session, steps=[1, 3]).at(step) for step in (1, 2, 3)] == [[], [], []]
    assert Dependencies(session).at(3) == [("id", "own_thing")]


def test_the_future_is_not_history() -> None:
    """A text counts as history only from its own message on: a request that guesses it is judged by what was said."""
    session = [
        Message.of("user", "the own_thing is red and heavy and round"),
        Message.of("assistant", "ok"),
        Message.of("user", "go"),
        Message.of("assistant", "own_thing"),
        Message.of("user", "own_thing was never blue"),
        Message.of("assistant", "own_thing"),
    ]
    assert Dependencies(session).score(3, ["own_thing was never blue"]) == Hits(1, 0, 1)


def test_hits_add_up() -> None:
    """Hits of many steps add up to shares over all dependencies; none give nothing."""
    both = Hits(1, 0, 2) + Hits(2, 2, 2)
    assert (both.recall, both.fact_recall) == (0.75, 0.5)
    assert (Hits().recall, Hits().fact_recall) == (None, None)


def test_unknown_step() -> None:
    """A position that is no step has no dependencies."""
    assert Dependencies(SESSION).score(2, texts(SESSION)) == Hits()


lines = st.lists(
    st.sampled_from(["alpha_one", "betaTwo", "src/gamma/delta.py", "4711", "plain", "words", "between", "them"]),
    min_size=1,
    max_size=5,
).map(" ".join)
messages = st.builds(Message.of, st.sampled_from(["user", "assistant"]), st.lists(lines, max_size=3).map("\n".join))
sessions = st.lists(messages, max_size=12)


@given(sessions)
def test_bounds(session: list[Message]) -> None:
    """The whole history recalls all dependencies as facts, an empty request none."""
    found = Dependencies(session)
    for step in answers(session):
        full = found.score(step, texts(session[:step]))
        assert full.facts == full.present == full.total
        assert found.score(step, []) == Hits(0, 0, full.total)


@given(sessions, st.data())
def test_monotone(session: list[Message], data: st.DataObject) -> None:
    """More context never recalls less."""
    found = Dependencies(session)
    for step in answers(session):
        extra = data.draw(st.lists(lines, max_size=3))
        some = data.draw(st.lists(st.sampled_from([*texts(session[:step]), ""]), max_size=4)) + extra[:1]
        less, more = found.score(step, some), found.score(step, some + extra)
        assert less.present <= more.present
        assert less.facts <= more.facts


@given(sessions)
def test_facts_are_present(session: list[Message]) -> None:
    """A fact is always present by name, whatever text holds it."""
    found = Dependencies(session)
    for step in answers(session):
        hits = found.score(step, [text.replace("plain", "other") for text in texts(session[: step // 2])])
        assert hits.facts <= hits.present <= hits.total


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 4, 5])
def test_suffixes(kept: int) -> None:
    """Of the six dependencies of the last step, these many are left when only the newest messages are kept."""
    hits = Dependencies(SESSION).score(5, texts(SESSION[5 - kept : 5]))
    assert hits.present == [0, 0, 0, 2, 5, 6][kept]
