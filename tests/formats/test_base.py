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


def build_message_entry(role, text):
    return MessageEntry(make_sized_message(Message.from_text(role, text), "", None))


def build_sample() -> Recording:
    log = RecordingBuilder()
    one = log.add_entry("u1", None, build_message_entry("user", "one"), 1, 1)
    two = log.add_answer(
        "a1", one, build_message_entry("assistant", "two"), CallMetadata("m1", Usage(10, 2), "end_turn", 2), 2, 2
    )
    side = log.add_entry("x", two, build_message_entry("user", "never mind"), 3, 3)
    note = log.add_entry("n", two, NoteEntry("setting"), 4, 4)
    summary = CompactionEntry(first_kept=1, summary=Message.from_text("user", "so far"))
    cut = log.add_entry("c", note, summary, 5, 5)
    three = log.add_entry("u2", cut, build_message_entry("user", "three"), 6, 6)
    leaf = log.add_answer(
        "a2", three, build_message_entry("assistant", "(cut)"), CallMetadata("m2", Usage(), "aborted"), 7, 7
    )
    assert side == "x"
    return log.finish_recording(Recording("test", leaf=leaf))


def list_texts(entries):
    return [entry.body.sized_message.message.text for entry in entries if isinstance(entry.body, MessageEntry)]


def test_get_full_history_entries_ignores_compactions():
    """The history is the whole branch to the leaf without side branches and summaries, each answer followed by its
    usage.
    """
    found = get_full_history_entries(build_sample())
    assert list_texts(found) == ["one", "two", "three", "(cut)"]
    assert [type(entry.body) for entry in found] == [
        MessageEntry,
        MessageEntry,
        AnswerEntry,
        MessageEntry,
        MessageEntry,
        AnswerEntry,
    ]


def test_build_state_at_leaf_shows_what_the_tool_showed():
    """The context is the summary, the kept tail and later messages."""
    assert [sized_message.message.text for sized_message in build_projection(build_state_at_leaf(build_sample()))] == [
        "so far",
        "two",
        "three",
        "(cut)",
    ]


def test_list_model_calls_skips_unfinished_answers():
    """An aborted answer is no model call; the others have model, time and usage."""
    (step,) = list_model_calls(build_sample())
    assert (step.id, step.model, step.at, step.usage.input) == ("a1", "m1", 2, 10)


def test_get_branch_entries_takes_a_leaf():
    """Another leaf gives another branch, an unknown one means the last entry, and without any leaf the branch is
    empty.
    """
    recording = build_sample()
    assert list_texts(get_branch_entries(recording, "x")) == ["one", "two", "never mind"]
    assert get_branch_entries(recording, "nowhere")[-1] == recording.entries[-1]
    assert get_branch_entries(replace(recording, leaf=None)) == []


def test_make_recording_defaults_to_the_last_entry_as_leaf():
    """The leaf is the last entry unless it is given."""
    entries = build_sample().entries
    assert make_recording(entries).leaf == entries[-1].id
    assert make_recording(entries, "u1").leaf == "u1"
    assert make_recording([]).leaf is None
