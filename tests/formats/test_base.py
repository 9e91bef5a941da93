from __future__ import annotations

from msgspec.structs import replace

from holdfast.formats.base import (
    Recording,
    build_state_at_leaf,
    get_branch_entries,
    get_full_history_entries,
    list_model_calls,
    make_recording,
)
from holdfast.formats.common.log import CallMetadata, RecordingBuilder, make_sized_message
from holdfast.messages.message import Message
from holdfast.state.entries import AnswerEntry, CompactionEntry, MessageEntry, NoteEntry, Usage
from holdfast.state.view import build_projection


def said(role, text):
    return MessageEntry(make_sized_message(Message.from_text(role, text), "", None))


def sample() -> Recording:
    log = RecordingBuilder()
    one = log.add_entry("u1", None, said("user", "one"), 1, 1)
    two = log.add_answer("a1", one, said("assistant", "two"), CallMetadata("m1", Usage(10, 2), "end_turn", 2), 2, 2)
    side = log.add_entry("x", two, said("user", "never mind"), 3, 3)
    note = log.add_entry("n", two, NoteEntry("setting"), 4, 4)
    summary = CompactionEntry(first_kept=1, summary=Message.from_text("user", "so far"))
    cut = log.add_entry("c", note, summary, 5, 5)
    three = log.add_entry("u2", cut, said("user", "three"), 6, 6)
    leaf = log.add_answer("a2", three, said("assistant", "(cut)"), CallMetadata("m2", Usage(), "aborted"), 7, 7)
    assert side == "x"
    return log.finish_recording(Recording("test", leaf=leaf))


def words(entries):
    return [entry.body.sized_message.message.text for entry in entries if isinstance(entry.body, MessageEntry)]


def test_history_is_everything_said_with_compactions_undone():
    """The whole way to the leaf, side branches and summaries left out, each answer with its usage behind it."""
    found = get_full_history_entries(sample())
    assert words(found) == ["one", "two", "three", "(cut)"]
    assert [type(entry.body) for entry in found] == [
        MessageEntry,
        MessageEntry,
        AnswerEntry,
        MessageEntry,
        MessageEntry,
        AnswerEntry,
    ]


def test_context_is_what_the_tool_showed():
    """The fold over the same way: summary, kept tail, what came later."""
    assert [slot.message.text for slot in build_projection(build_state_at_leaf(sample()))] == [
        "so far",
        "two",
        "three",
        "(cut)",
    ]


def test_steps_are_the_answers_a_model_finished():
    """An answer that was cut off is no step; the others come with model, time and usage."""
    (step,) = list_model_calls(sample())
    assert (step.id, step.model, step.at, step.usage.input) == ("a1", "m1", 2, 10)


def test_leaf_is_a_parameter():
    """Another leaf gives another branch; an unknown one means the last entry; none at all is an empty way."""
    recording = sample()
    assert words(get_branch_entries(recording, "x")) == ["one", "two", "never mind"]
    assert get_branch_entries(recording, "nowhere")[-1] == recording.entries[-1]
    assert get_branch_entries(replace(recording, leaf=None)) == []


def test_entries_of_a_log_are_a_recording():
    """The leaf is the last entry unless it is given."""
    entries = sample().entries
    assert make_recording(entries).leaf == entries[-1].id
    assert make_recording(entries, "u1").leaf == "u1"
    assert make_recording([]).leaf is None
