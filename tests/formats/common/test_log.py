from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.formats.base import Recording
from holdfast.formats.common.log import CallMetadata, RecordingBuilder, make_sized_message, order_parents_first
from holdfast.messages.message import Message
from holdfast.state.entries import AnswerEntry, MessageEntry, NoteEntry, RequestEntry, Usage


@given(st.lists(st.integers(min_value=-1, max_value=30), max_size=31))
def test_order_parents_first_orders_any_links_and_cuts_circles(links):
    """Any links, also circular and forward ones, give an order of all indexes with each parent before its children."""
    up = [link if link < len(links) else -1 for link in links]
    order, cut = order_parents_first(up)
    place = {index: position for position, index in enumerate(order)}
    assert sorted(order) == list(range(len(up)))
    assert all(up[index] == -1 or place[up[index]] < place[index] for index in order)
    assert all(up[index] == -1 for index in cut)


def test_order_parents_first_cuts_a_circle_at_its_first_line():
    """The earliest line of a circle becomes the root of the others."""
    up = [2, 0, 1, 2]
    assert order_parents_first(up) == ([0, 1, 2, 3], [0])
    assert up == [-1, 0, 1, 2]


def test_add_entry_makes_ids_unique_and_non_empty():
    """An id that is taken or missing is replaced by another."""
    log = RecordingBuilder()
    ids = [log.add_entry(name, None, NoteEntry("x"), None, line) for line, name in enumerate(["a", "a", "", "a"], 1)]
    assert ids == ["a", "a~2", "line-3", "a~3"]


def test_add_entry_marks_ids_after_a_parent_completed_later():
    """An entry after one that a later line completed gets an id of its own, so that no id ever means two things."""
    log = RecordingBuilder()
    before = log.add_entry("a", None, NoteEntry("x"), None, 1, 5)
    assert log.add_entry("b", before, NoteEntry("y"), None, 3).startswith("b+")
    assert log.add_entry("c", before, NoteEntry("z"), None, 6) == "c"


def test_add_answer_appends_request_message_and_usage():
    """The request records how many messages it covered."""
    log = RecordingBuilder()
    root = log.add_entry("u", None, MessageEntry(make_sized_message(Message.from_text("user", "hi"), "", None)), 1, 1)
    message = MessageEntry(make_sized_message(Message.from_text("assistant", "ho"), "", None))
    log.add_answer("a", root, message, CallMetadata("m", Usage(5, 1), "end_turn", 2), 7, 2)
    bodies = [entry.body for entry in log.finish_recording(Recording("x")).entries[1:]]
    assert bodies[0] == RequestEntry(prefix_digest="", message_count=1, model="m")
    assert bodies[1] == message
    assert bodies[2] == AnswerEntry(prefix_digest="", usage=Usage(5, 1), stop_reason="end_turn")


def test_add_answer_without_a_model_adds_no_request():
    """An answer that the tool itself recorded was never requested."""
    log = RecordingBuilder()
    message = MessageEntry(make_sized_message(Message.from_text("assistant", "No response requested."), "", None))
    log.add_answer("a", None, message, CallMetadata("", Usage(), "synthetic"), None, 1)
    assert [type(entry.body) for entry in log.entries] == [MessageEntry, AnswerEntry]
