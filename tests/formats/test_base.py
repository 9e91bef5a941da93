from __future__ import annotations

from msgspec.structs import replace

from holdfast.formats.base import Recording, context, history, path, recording_of, steps
from holdfast.formats.common.log import Call, Log, slot_of
from holdfast.messages.message import Message
from holdfast.state.branch.view import project
from holdfast.state.entries import Answer, Compaction, Note, Said, Usage


def said(role, text):
    return Said(slot_of(Message.of(role, text), "", None))


def sample() -> Recording:
    log = Log()
    one = log.add("u1", None, said("user", "one"), 1, 1)
    two = log.answer("a1", one, said("assistant", "two"), Call("m1", Usage(10, 2), "end_turn", 2), 2, 2)
    side = log.add("x", two, said("user", "never mind"), 3, 3)
    note = log.add("n", two, Note("setting"), 4, 4)
    summary = Compaction(keep=1, summary=Message.of("user", "so far"))
    cut = log.add("c", note, summary, 5, 5)
    three = log.add("u2", cut, said("user", "three"), 6, 6)
    leaf = log.answer("a2", three, said("assistant", "(cut)"), Call("m2", Usage(), "aborted"), 7, 7)
    assert side == "x"
    return log.finish(Recording("test", leaf=leaf))


def words(entries):
    return [entry.body.slot.message.text for entry in entries if isinstance(entry.body, Said)]


def test_history_is_everything_said_with_compactions_undone():
    """The whole way to the leaf, side branches and summaries left out, each answer with its usage behind it."""
    found = history(sample())
    assert words(found) == ["one", "two", "three", "(cut)"]
    assert [type(entry.body) for entry in found] == [Said, Said, Answer, Said, Said, Answer]


def test_context_is_what_the_tool_showed():
    """The fold over the same way: summary, kept tail, what came later."""
    assert [slot.message.text for slot in project(context(sample()))] == ["so far", "two", "three", "(cut)"]


def test_steps_are_the_answers_a_model_finished():
    """An answer that was cut off is no step; the others come with model, time and usage."""
    (step,) = steps(sample())
    assert (step.id, step.model, step.at, step.usage.input) == ("a1", "m1", 2, 10)


def test_leaf_is_a_parameter():
    """Another leaf gives another branch; an unknown one means the last entry; none at all is an empty way."""
    recording = sample()
    assert words(path(recording, "x")) == ["one", "two", "never mind"]
    assert path(recording, "nowhere")[-1] == recording.entries[-1]
    assert path(replace(recording, leaf=None)) == []


def test_entries_of_a_log_are_a_recording():
    """The leaf is the last entry unless it is given."""
    entries = sample().entries
    assert recording_of(entries).leaf == entries[-1].id
    assert recording_of(entries, "u1").leaf == "u1"
    assert recording_of([]).leaf is None
