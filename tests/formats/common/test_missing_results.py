"""Calls that a crash left without a result have one in the session of another tool."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.formats import export_bytes, get_full_history_entries, read_recording
from holdfast.formats.base import Recording, build_state_at_leaf, get_branch_entries
from holdfast.formats.common.missing_results import add_missing_results
from holdfast.formats.repair.tools import MISSING_RESULT_TEXT
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import AnswerEntry, CompactionEntry, DecisionEntry, Entry, MessageEntry
from holdfast.state.view import build_projection
from tests.support.example_counts import choose

TOOL_FORMATS = ("atif", "claude-code", "codex", "gemini-cli", "opencode-json", "pi")


def say(role, words):
    return MessageEntry(build_sized_message(Message.from_text(role, words)))


def call(*ids):
    return MessageEntry(build_sized_message(Message("assistant", tuple(ToolCall(id_, "bash", "{}") for id_ in ids))))


def result(*ids):
    parts = tuple(ToolResult(id_, "bash", (Text(f"out of {id_}"),)) for id_ in ids)
    return MessageEntry(build_sized_message(Message("tool", parts)))


def compact(first_kept):
    return CompactionEntry(first_kept=first_kept, summary=Message.from_text("user", "so far"))


def build(*bodies):
    entries = []
    for number, body in enumerate(bodies):
        entries.append(Entry(f"e{number}", f"e{number - 1}" if number else None, body, number + 1, 1_000 + number))
    return Recording("holdfast", entries=tuple(entries), leaf=entries[-1].id)


def list_messages(recording):
    """Return the history in short form: texts, calls as !id, results as =id, with a question mark if it was added."""
    out = []
    for entry in get_full_history_entries(recording):
        if isinstance(entry.body, MessageEntry):
            message = entry.body.sized_message.message
            marks = [f"!{item.id}" for item in message.calls]
            for item in message.results:
                marks.append(f"={item.call_id}{'?' * (get_result_text(item) == MISSING_RESULT_TEXT)}")
            out.append(" ".join([*filter(None, [message.text]), *marks]))
    return out


CRASHED = (say("user", "go"), call("c1", "c2"), AnswerEntry(""), result("c1"), say("user", "go on"))


@pytest.mark.parametrize("format_name", TOOL_FORMATS)
def test_export_has_a_result_for_each_call(format_name):
    """Every tool reads a result for the call that was running when the recording ended."""
    exported = read_recording(export_bytes(build(*CRASHED), format_name))
    results = {}
    for entry in get_full_history_entries(exported):
        if isinstance(entry.body, MessageEntry):
            results |= {item.call_id: item for item in entry.body.sized_message.message.results}
    assert get_result_text(results["c1"]) == "out of c1"
    assert "interrupted" in get_result_text(results["c2"])


def test_add_missing_results_puts_them_behind_the_other_results():
    """The new message follows the results that there are, and what came next follows it."""
    recording = add_missing_results(build(*CRASHED), includes_recorded=True)
    assert list_messages(recording) == ["go", "!c1 !c2", "=c1", "=c2?", "go on"]


def test_add_missing_results_answers_the_last_call_too():
    """Another tool would drop a call at the end without a word."""
    recording = add_missing_results(build(say("user", "go"), call("c1"), AnswerEntry("")), includes_recorded=True)
    assert list_messages(recording) == ["go", "!c1", "=c1?"]


def test_add_missing_results_keeps_what_a_compaction_kept():
    """Compactions count messages: the kept tail begins at the same message as before."""
    bodies = (*CRASHED, say("assistant", "done"), compact(4), say("user", "next"))
    before, after = build(*bodies), add_missing_results(build(*bodies), includes_recorded=True)
    shown = [[item.message.text for item in build_projection(build_state_at_leaf(each))] for each in (before, after)]
    assert list_messages(after)[3] == "=c2?"
    assert shown[0] == shown[1]


def test_add_missing_results_leaves_sessions_with_later_edits_alone():
    """Edits name messages by their number, which must not change."""
    edit = Edit(Span(0, 1), (Text("x"),), "spill", "long", 1)
    recording = build(*CRASHED, DecisionEntry((edit,)))
    assert add_missing_results(recording, includes_recorded=True) == recording


def test_add_missing_results_leaves_lines_of_a_tool_in_its_own_session():
    """Without ``includes_recorded`` an answer that a tool recorded stays as that tool wrote it."""
    common = {"sessionId": "S"}
    block = {"type": "tool_use", "id": "c1", "name": "b", "input": {}}
    lines = [
        common | {"type": "user", "uuid": "u", "parentUuid": None, "message": {"role": "user", "content": "go"}},
        common
        | {"type": "assistant", "uuid": "a", "parentUuid": "u", "message": {"role": "assistant", "content": [block]}},
    ]
    recording = read_recording(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    assert add_missing_results(recording, includes_recorded=False) == recording
    assert export_bytes(recording, "claude-code").count(b"\n") == 2
    assert list_messages(read_recording(export_bytes(recording, "pi"))) == ["go", "!c1", "=c1?"]


_BODIES = st.lists(
    st.one_of(
        st.builds(lambda words: say("user", words), st.sampled_from(["a", "b"])),
        st.builds(
            lambda ids: call(*ids), st.lists(st.sampled_from(["c1", "c2", "c3"]), min_size=1, max_size=2, unique=True)
        ),
        st.builds(result, st.sampled_from(["c1", "c2", "c3"])),
        st.just(AnswerEntry("")),
        st.builds(compact, st.integers(0, 3)),
    ),
    min_size=1,
    max_size=10,
)


@given(_BODIES)
@settings(max_examples=choose(quick=50, ci=200, thorough=5_000), deadline=None)
@pytest.mark.counts
def test_add_missing_results_of_any_history_only_adds(bodies):
    """Every entry stays, in order; only results are added, and a second time adds none."""
    recording = build(*bodies)
    filled = add_missing_results(recording, includes_recorded=True)
    kept = [entry.id for entry in get_branch_entries(filled) if not entry.id.endswith("+interrupted")]
    assert kept == [entry.id for entry in get_branch_entries(recording)]
    assert [words for words in list_messages(filled) if "?" not in words] == list_messages(recording)
    assert list_messages(add_missing_results(filled, includes_recorded=True)) == list_messages(filled)
