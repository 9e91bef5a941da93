"""Entries as sessions of Gemini CLI, and read again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.formats import (
    apply_decisions_to_messages,
    build_state_at_leaf,
    export_bytes,
    get_branch_entries,
    get_full_history_entries,
    read_recording,
)
from holdfast.formats.base import Recording
from holdfast.formats.common.log import CallMetadata, RecordingBuilder, make_sized_message
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Media, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, MessageEntry, Usage
from holdfast.state.view import build_projection

TIME = "2026-11-21T01:15:00.939Z"
HEADER = {"sessionId": "S", "projectHash": "h", "startTime": TIME, "lastUpdated": TIME, "kind": "main"}
TOKENS = {"input": 100, "output": 7, "cached": 40, "thoughts": 5, "tool": 0, "total": 112}


def said(id_: str, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"id": id_, "timestamp": TIME, "type": kind, "content": content} | more


def response(id_: str, words: str) -> dict[str, Any]:
    return {"functionResponse": {"id": id_, "name": "ls", "response": {"output": words}}}


def call(id_: str, result: Any) -> dict[str, Any]:
    return {"id": id_, "name": "ls", "args": {"p": 1}, "result": result, "status": "success", "resultDisplay": "x"}


def file(*lines: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def parsed(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def words(messages: list[Message]) -> list[tuple[Any, ...]]:
    """Return what messages say, without the bytes of their parts."""
    return [(one.role, one.text, *_tools(one)) for one in messages]


def _tools(one: Message) -> tuple[Any, Any]:
    calls = [(it.id, it.name, json.loads(it.arguments)) for it in one.calls]
    return calls, [(it.call_id, get_result_text(it), it.is_error) for it in one.results]


def told(recording: Recording) -> list[tuple[Any, ...]]:
    return words(
        [
            entry.body.sized_message.message
            for entry in get_full_history_entries(recording)
            if isinstance(entry.body, MessageEntry)
        ]
    )


def shown(recording: Recording) -> list[tuple[Any, ...]]:
    return words([slot.message for slot in build_projection(build_state_at_leaf(recording))])


SESSION = file(
    HEADER,
    {"$set": {"messages": [said("0", "user", [{"text": "context"}])], "lastUpdated": TIME}},
    said("1", "user", [{"text": "list"}]),
    said("2", "gemini", "", thoughts=[], tokens=TOKENS, model="g"),
    said("2", "gemini", "", tokens=TOKENS, model="g", toolCalls=[call("ls__ls_1", [response("ls__ls_1", "o")])]),
    said("3", "user", [response("ls__ls_1", "o")]),
    said("4", "info", "a notice"),
    said("5", "gemini", "", tokens=TOKENS, model="g", toolCalls=[call("ls__ls_2", [response("ls__ls_2", "beside")])]),
    said("6", "gemini", "done", thoughts=[], tokens=TOKENS, model="g"),
)  # fmt: skip


@pytest.mark.parametrize("odd", [{"functionCall": "x"}, {"functionResponse": 1}, 7, {"functionCall": None}])
def test_parts_that_cannot_be_read_take_no_ones_place(odd: Any) -> None:
    """What a recorded request had for a part, and is none, leaves the calls and results beside it under their ids."""
    called = {"functionCall": {"id": "ls_1", "name": "ls", "args": {}}}
    answered = {"functionResponse": {"id": "ls_1", "name": "ls", "response": {"output": "o"}}}
    turns = [("user", [{"text": "list"}]), ("model", [odd, called]), ("user", [odd, answered])]
    body = {"contents": [{"role": role, "parts": parts} for role, parts in turns]}
    written = export_bytes(read_recording(json.dumps(body).encode()), "gemini-cli")
    assert told(read_recording(written))[1][2:] == ([("ls_1", "ls", {})], [])
    assert b'"id":"ls__ls_1"' in written


def test_there_and_back() -> None:
    """Read, written and read again: the same messages, usage and order, under the same ids."""
    first = read_recording(SESSION)
    second = read_recording(export_bytes(first, "gemini-cli"))
    assert told(second) == told(first)
    assert [entry.body for entry in get_branch_entries(second)] == [entry.body for entry in get_branch_entries(first)]
    assert export_bytes(second, "gemini-cli") == export_bytes(first, "gemini-cli")
    assert second.problems == ()


def test_lines_go_out_as_they_came() -> None:
    """Every line of a message stands in the file that is written, byte for byte and in its order."""
    lines = [line for line in SESSION.splitlines() if b"$set" not in line]
    out = export_bytes(read_recording(SESSION), "gemini-cli").splitlines()
    assert [line for line in out if line in lines] == lines
    assert len(out) == len(lines) + 1
    assert json.loads(out[1]) == said("0", "user", [{"text": "context"}])


def test_one_object_becomes_lines() -> None:
    """What an older file held in one object is written as lines, the header without messages first."""
    whole = json.dumps(HEADER | {"messages": [said("1", "user", "hi"), said("2", "gemini", "ho")]}).encode()
    assert parsed(export_bytes(read_recording(whole), "gemini-cli")) == [
        HEADER,
        said("1", "user", "hi"),
        said("2", "gemini", "ho"),
    ]


def test_ids_are_those_that_were_sent() -> None:
    """A file has the name of the tool before each id; what was read has the ids that the API got."""
    calls = [one for _, _, calls, _ in told(read_recording(SESSION)) for one in calls]
    results = [one for *_, results in told(read_recording(SESSION)) for one in results]
    assert [id_ for id_, *_ in calls] == ["ls_1", "ls_2"]
    assert [(id_, text) for id_, text, _ in results] == [("ls_1", "o"), ("ls_2", "beside")]


def test_what_was_taken_back() -> None:
    """``$rewindTo`` takes a message back and all behind it; all messages where it names none of them."""
    lines = [HEADER, *(said(str(number), "user", [{"text": str(number)}]) for number in range(4))]
    back = read_recording(file(*lines, {"$rewindTo": "2"}, said("9", "user", [{"text": "9"}])))
    assert [text for _, text, *_ in told(back)] == ["0", "1", "9"]
    assert back.skipped_counts == {"$rewindTo": 1, "message (replaced)": 2}
    none = read_recording(file(*lines, {"$rewindTo": "7"}))
    assert (told(none), [problem.line for problem in none.problems]) == ([], [len(lines) + 1])


def test_a_list_of_all_messages_that_is_none_is_told() -> None:
    """It changes nothing, and stands among the problems of the file; a ``$set`` without one is fine."""
    lines = [HEADER, said("1", "user", [{"text": "1"}]), {"$set": {"messages": "no"}}, {"$set": {"lastUpdated": TIME}}]
    found = read_recording(file(*lines))
    assert (told(found), [problem.line for problem in found.problems]) == ([("user", "1", [], [])], [3])


@pytest.mark.parametrize("content", [[{"functionCall": {"id": "ls__a", "name": "ls", "args": {}}}], ""])
def test_calls_in_the_content_count_once(content: Any) -> None:
    """After its own compaction the tool has the calls in the content and beside it: they are the same."""
    answer = said("2", "gemini", content, toolCalls=[call("ls__a", [response("ls__a", "o")]) | {"args": {}}])
    assert told(read_recording(file(HEADER, said("1", "user", "go"), answer)))[1:] == [
        ("assistant", "", [("a", "ls", {})], []),
        ("tool", "", [], [("a", "o", False)]),
    ]


def ours(*, seal: ProviderSignature | None = None) -> Recording:
    """Return a log of our own: an image, calls, results, a compaction that keeps two messages."""
    log = RecordingBuilder()

    def said(*parts: Any, role: Any = "user") -> MessageEntry:
        return MessageEntry(make_sized_message(Message(role, parts), "", None))

    one = log.add_entry("u1", None, said(Text("one"), Media("image", "image/png", 2, "", "aGk=")), 1_000, 1)
    asked = said(Thinking("hm"), Text("I look"), ToolCall("c1", "bash", '{"a":1}', seal), role="assistant")
    two = log.add_answer("a1", one, asked, CallMetadata("model-x", Usage(100, 5, 40, 0, 2), "tool_use", 2), 2_000, 2)
    three = log.add_entry(
        "r1", two, said(ToolResult("c1", "bash", (Text("out"),), is_error=True), role="tool"), 3_000, 3
    )
    cut = log.add_entry(
        "k1",
        three,
        CompactionEntry(first_kept=1, summary=Message.from_text("user", "what was"), head_tokens=4),
        4_000,
        4,
    )
    leaf = log.add_entry("u2", cut, said(Text("next")), 5_000, 5)
    return log.finish_recording(
        Recording("holdfast", session="ours", cwd="/w", model="model-x", api="anthropic", leaf=leaf)
    )


@pytest.mark.parametrize("seal", [None, ProviderSignature("gemini", "", "sig")])
def test_a_log_of_our_own(seal: ProviderSignature | None) -> None:
    """Its context, with the summary in place of what gave way, is the same in the file."""
    first = ours(seal=seal)
    second = read_recording(export_bytes(first, "gemini-cli"))
    assert shown(second) == shown(first)
    assert second.problems == ()
    assert (second.model, second.api) == ("model-x", "gemini")
    calls = [call for slot in build_projection(build_state_at_leaf(second)) for call in slot.message.calls]
    assert [call.signature for call in calls] == [seal]


def test_lines_of_our_own() -> None:
    """A result stands beside its call, ids are as the tool's; a compaction sets all messages."""
    header, user, answer, cut, later = parsed(export_bytes(ours(), "gemini-cli"))
    assert header["kind"] == "main"
    assert user["content"] == [{"text": "one"}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}]
    assert (answer["content"], answer["model"]) == ("I look", "model-x")
    assert answer["tokens"] == {"input": 100, "output": 3, "cached": 40, "thoughts": 2, "tool": 0, "total": 105}
    assert answer["thoughts"] == [{"subject": "", "description": "hm"}]
    assert [one["id"] for one in answer["toolCalls"]] == ["bash__c1"]
    told = [{"functionResponse": {"id": "bash__c1", "name": "bash", "response": {"error": "out"}}}]
    assert answer["toolCalls"][0]["result"] == told
    assert cut["$set"]["messages"][1:] == [answer]
    assert cut["$set"]["messages"][0]["content"] == [{"text": "what was"}]
    assert later["content"] == [{"text": "next"}]


def test_results_without_a_name_have_that_of_their_call() -> None:
    """APIs that pair by ids alone record no name with a result; this one needs it."""
    log = RecordingBuilder()
    one = log.add_entry(
        "a", None, MessageEntry(make_sized_message(Message("assistant", (ToolCall("c", "ls"),)), "", None)), 1, 1
    )
    results = Message("tool", (ToolResult("c", "", (Text("o"),)), ToolResult("gone", "", (Text("p"),))))
    two = log.add_entry("r", one, MessageEntry(make_sized_message(results, "", None)), 2, 2)
    out = export_bytes(log.finish_recording(Recording("holdfast", leaf=two)), "gemini-cli")
    (_, answer, stray) = parsed(out)
    assert answer["toolCalls"][0]["result"][0]["functionResponse"]["name"] == "ls"
    assert [part["functionResponse"]["id"] for part in stray["content"]] == ["gone__gone"]


def test_a_shortened_result_is_written_short() -> None:
    """With decisions in force applied, no line holds the words that gave way."""
    first = read_recording(SESSION)
    log = RecordingBuilder()
    log.entries, log.message_counts = list(first.entries), log.message_counts | {first.leaf: 7}
    log._last_lines[first.leaf] = 0
    short = ToolResult("ls_1", "ls", (Text("short"),))
    leaf = log.add_entry("d", first.leaf, DecisionEntry((Edit(Span(3, 4, 0), (short,), "trim"),)), None, 99)
    out = export_bytes(
        apply_decisions_to_messages(Recording("gemini-cli", entries=tuple(log.entries), leaf=leaf)), "gemini-cli"
    )
    answers = [one for one in parsed(out) if one.get("id") == "2"]
    assert answers[-1]["toolCalls"][0]["result"][0]["functionResponse"]["response"] == {"output": "short"}
    assert [text for *_, results in told(read_recording(out)) for _, text, _ in results] == ["short", "beside"]


@pytest.mark.parametrize(
    "calls", [None, {}, "x", [{"name": "ls"}], [{"id": None, "name": "ls"}], [{"id": 7}, "x", None]]
)
def test_words_behind_calls_of_any_shape(calls: Any) -> None:
    """What is said behind an answer of the tool's stands on a line of its own; the answer's line stays as it came."""
    first = read_recording(file(HEADER, said("1", "user", "go"), said("2", "gemini", "so", toolCalls=calls)))
    (*_, last) = get_branch_entries(first)
    words = MessageEntry(make_sized_message(Message.from_text("user", "and now?"), "", None))
    out = export_bytes(
        Recording("holdfast", entries=(*first.entries, Entry("u", last.id, words)), leaf="u"), "gemini-cli"
    )
    (_, _, answer, later) = out.splitlines()
    assert answer == file(said("2", "gemini", "so", toolCalls=calls)).strip()
    assert json.loads(later)["content"] == [{"text": "and now?"}]
