"""Entries are written as sessions of Gemini CLI and read again."""

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


def build_line(id_: str, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"id": id_, "timestamp": TIME, "type": kind, "content": content} | more


def response(id_: str, words: str) -> dict[str, Any]:
    return {"functionResponse": {"id": id_, "name": "ls", "response": {"output": words}}}


def call(id_: str, result: Any) -> dict[str, Any]:
    return {"id": id_, "name": "ls", "args": {"p": 1}, "result": result, "status": "success", "resultDisplay": "x"}


def build_file(*lines: Any) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def parse_lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def words(messages: list[Message]) -> list[tuple[Any, ...]]:
    """Return role, text, calls and results of each message, without raw bytes."""
    return [(message.role, message.text, *_list_tools(message)) for message in messages]


def _list_tools(message: Message) -> tuple[Any, Any]:
    calls = [(call.id, call.name, json.loads(call.arguments)) for call in message.calls]
    return calls, [(result.call_id, get_result_text(result), result.is_error) for result in message.results]


def list_history(recording: Recording) -> list[tuple[Any, ...]]:
    return words(
        [
            entry.body.sized_message.message
            for entry in get_full_history_entries(recording)
            if isinstance(entry.body, MessageEntry)
        ]
    )


def list_shown(recording: Recording) -> list[tuple[Any, ...]]:
    return words([sized_message.message for sized_message in build_projection(build_state_at_leaf(recording))])


SESSION = build_file(
    HEADER,
    {"$set": {"messages": [build_line("0", "user", [{"text": "context"}])], "lastUpdated": TIME}},
    build_line("1", "user", [{"text": "list"}]),
    build_line("2", "gemini", "", thoughts=[], tokens=TOKENS, model="g"),
    build_line("2", "gemini", "", tokens=TOKENS, model="g", toolCalls=[call("ls__ls_1", [response("ls__ls_1", "o")])]),
    build_line("3", "user", [response("ls__ls_1", "o")]),
    build_line("4", "info", "a notice"),
    build_line(
        "5", "gemini", "", tokens=TOKENS, model="g", toolCalls=[call("ls__ls_2", [response("ls__ls_2", "beside")])]
    ),
    build_line("6", "gemini", "done", thoughts=[], tokens=TOKENS, model="g"),
)  # fmt: skip


@pytest.mark.parametrize("malformed", [{"functionCall": "x"}, {"functionResponse": 1}, 7, {"functionCall": None}])
def test_export_keeps_ids_beside_unreadable_parts(malformed: Any) -> None:
    """An unreadable part of a recorded request leaves the calls and results beside it with their ids."""
    called = {"functionCall": {"id": "ls_1", "name": "ls", "args": {}}}
    answered = {"functionResponse": {"id": "ls_1", "name": "ls", "response": {"output": "o"}}}
    turns = [("user", [{"text": "list"}]), ("model", [malformed, called]), ("user", [malformed, answered])]
    body = {"contents": [{"role": role, "parts": parts} for role, parts in turns]}
    written = export_bytes(read_recording(json.dumps(body).encode()), "gemini-cli")
    assert list_history(read_recording(written))[1][2:] == ([("ls_1", "ls", {})], [])
    assert b'"id":"ls__ls_1"' in written


def test_export_and_read_give_the_same_session() -> None:
    """Read, written and read again: the same messages, usage and order, under the same ids."""
    first = read_recording(SESSION)
    second = read_recording(export_bytes(first, "gemini-cli"))
    assert list_history(second) == list_history(first)
    assert [entry.body for entry in get_branch_entries(second)] == [entry.body for entry in get_branch_entries(first)]
    assert export_bytes(second, "gemini-cli") == export_bytes(first, "gemini-cli")
    assert second.problems == ()


def test_export_writes_message_lines_byte_for_byte() -> None:
    """Every line of a message is in the written file, unchanged and in its order."""
    lines = [line for line in SESSION.splitlines() if b"$set" not in line]
    out = export_bytes(read_recording(SESSION), "gemini-cli").splitlines()
    assert [line for line in out if line in lines] == lines
    assert len(out) == len(lines) + 1
    assert json.loads(out[1]) == build_line("0", "user", [{"text": "context"}])


def test_export_writes_an_older_one_object_file_as_lines() -> None:
    """The messages of an older one-object file become lines, after a header without messages."""
    whole = json.dumps(HEADER | {"messages": [build_line("1", "user", "hi"), build_line("2", "gemini", "ho")]}).encode()
    assert parse_lines(export_bytes(read_recording(whole), "gemini-cli")) == [
        HEADER,
        build_line("1", "user", "hi"),
        build_line("2", "gemini", "ho"),
    ]


def test_read_strips_the_tool_name_from_call_ids() -> None:
    """A file has the tool's name in front of each id; the entries have the ids that the API got."""
    calls = [call for _, _, calls, _ in list_history(read_recording(SESSION)) for call in calls]
    results = [result for *_, results in list_history(read_recording(SESSION)) for result in results]
    assert [id_ for id_, *_ in calls] == ["ls_1", "ls_2"]
    assert [(id_, text) for id_, text, _ in results] == [("ls_1", "o"), ("ls_2", "beside")]


def test_read_applies_rewind_to() -> None:
    """``$rewindTo`` removes a message and everything after it, or all messages if it names none of them."""
    lines = [HEADER, *(build_line(str(number), "user", [{"text": str(number)}]) for number in range(4))]
    back = read_recording(build_file(*lines, {"$rewindTo": "2"}, build_line("9", "user", [{"text": "9"}])))
    assert [text for _, text, *_ in list_history(back)] == ["0", "1", "9"]
    assert back.skipped_counts == {"$rewindTo": 1, "message (replaced)": 2}
    without_target = read_recording(build_file(*lines, {"$rewindTo": "7"}))
    assert (list_history(without_target), [problem.line for problem in without_target.problems]) == (
        [],
        [len(lines) + 1],
    )


def test_read_reports_a_set_messages_that_is_no_list() -> None:
    """It changes nothing and is listed among the problems; a ``$set`` without messages is fine."""
    lines = [
        HEADER,
        build_line("1", "user", [{"text": "1"}]),
        {"$set": {"messages": "no"}},
        {"$set": {"lastUpdated": TIME}},
    ]
    found = read_recording(build_file(*lines))
    assert (list_history(found), [problem.line for problem in found.problems]) == ([("user", "1", [], [])], [3])


@pytest.mark.parametrize("content", [[{"functionCall": {"id": "ls__a", "name": "ls", "args": {}}}], ""])
def test_read_counts_calls_repeated_in_the_content_once(content: Any) -> None:
    """After its own compaction the tool records the calls in the content and beside it; they are the same calls."""
    answer = build_line("2", "gemini", content, toolCalls=[call("ls__a", [response("ls__a", "o")]) | {"args": {}}])
    assert list_history(read_recording(build_file(HEADER, build_line("1", "user", "go"), answer)))[1:] == [
        ("assistant", "", [("a", "ls", {})], []),
        ("tool", "", [], [("a", "o", False)]),
    ]


def build_holdfast_log(*, seal: ProviderSignature | None = None) -> Recording:
    """Build a log that Holdfast wrote: an image, calls, results, a compaction that keeps two messages."""
    log = RecordingBuilder()

    def build_line(*parts: Any, role: Any = "user") -> MessageEntry:
        return MessageEntry(make_sized_message(Message(role, parts), "", None))

    user_id = log.add_entry("u1", None, build_line(Text("one"), Media("image", "image/png", 2, "", "aGk=")), 1_000, 1)
    call = build_line(Thinking("hm"), Text("I look"), ToolCall("c1", "bash", '{"a":1}', seal), role="assistant")
    two = log.add_answer("a1", user_id, call, CallMetadata("model-x", Usage(100, 5, 40, 0, 2), "tool_use", 2), 2_000, 2)
    three = log.add_entry(
        "r1", two, build_line(ToolResult("c1", "bash", (Text("out"),), is_error=True), role="tool"), 3_000, 3
    )
    cut = log.add_entry(
        "k1",
        three,
        CompactionEntry(first_kept=1, summary=Message.from_text("user", "what was"), head_tokens=4),
        4_000,
        4,
    )
    leaf = log.add_entry("u2", cut, build_line(Text("next")), 5_000, 5)
    return log.finish_recording(
        Recording("holdfast", session="ours", cwd="/w", model="model-x", api="anthropic", leaf=leaf)
    )


@pytest.mark.parametrize("seal", [None, ProviderSignature("gemini", "", "sig")])
def test_export_keeps_the_context_of_a_holdfast_log(seal: ProviderSignature | None) -> None:
    """The context, with the summary in place of the compacted head, is the same after reading the file."""
    first = build_holdfast_log(seal=seal)
    second = read_recording(export_bytes(first, "gemini-cli"))
    assert list_shown(second) == list_shown(first)
    assert second.problems == ()
    assert (second.model, second.api) == ("model-x", "gemini")
    calls = [
        call for sized_message in build_projection(build_state_at_leaf(second)) for call in sized_message.message.calls
    ]
    assert [call.signature for call in calls] == [seal]


def test_export_writes_a_holdfast_log_in_the_tools_form() -> None:
    """A result is written beside its call, ids have the tool's prefix, and a compaction sets all messages."""
    header, user, answer, cut, later = parse_lines(export_bytes(build_holdfast_log(), "gemini-cli"))
    assert header["kind"] == "main"
    assert user["content"] == [{"text": "one"}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}]
    assert (answer["content"], answer["model"]) == ("I look", "model-x")
    assert answer["tokens"] == {"input": 100, "output": 3, "cached": 40, "thoughts": 2, "tool": 0, "total": 105}
    assert answer["thoughts"] == [{"subject": "", "description": "hm"}]
    assert [call["id"] for call in answer["toolCalls"]] == ["bash__c1"]
    results = [{"functionResponse": {"id": "bash__c1", "name": "bash", "response": {"error": "out"}}}]
    assert answer["toolCalls"][0]["result"] == results
    assert cut["$set"]["messages"][1:] == [answer]
    assert cut["$set"]["messages"][0]["content"] == [{"text": "what was"}]
    assert later["content"] == [{"text": "next"}]


def test_export_names_results_after_their_calls() -> None:
    """APIs that pair by ids alone record no name with a result; this format needs it."""
    log = RecordingBuilder()
    answer_id = log.add_entry(
        "a", None, MessageEntry(make_sized_message(Message("assistant", (ToolCall("c", "ls"),)), "", None)), 1, 1
    )
    results = Message("tool", (ToolResult("c", "", (Text("o"),)), ToolResult("gone", "", (Text("p"),))))
    two = log.add_entry("r", answer_id, MessageEntry(make_sized_message(results, "", None)), 2, 2)
    out = export_bytes(log.finish_recording(Recording("holdfast", leaf=two)), "gemini-cli")
    (_, answer, stray) = parse_lines(out)
    assert answer["toolCalls"][0]["result"][0]["functionResponse"]["name"] == "ls"
    assert [part["functionResponse"]["id"] for part in stray["content"]] == ["gone__gone"]


def test_export_writes_a_shortened_result_short() -> None:
    """With the decisions in force applied, no line holds the original text."""
    first = read_recording(SESSION)
    log = RecordingBuilder()
    log.entries, log.message_counts = list(first.entries), log.message_counts | {first.leaf: 7}
    log._last_lines[first.leaf] = 0
    short = ToolResult("ls_1", "ls", (Text("short"),))
    leaf = log.add_entry("d", first.leaf, DecisionEntry((Edit(Span(3, 4, 0), (short,), "trim"),)), None, 99)
    out = export_bytes(
        apply_decisions_to_messages(Recording("gemini-cli", entries=tuple(log.entries), leaf=leaf)), "gemini-cli"
    )
    answers = [line for line in parse_lines(out) if line.get("id") == "2"]
    assert answers[-1]["toolCalls"][0]["result"][0]["functionResponse"]["response"] == {"output": "short"}
    assert [text for *_, results in list_history(read_recording(out)) for _, text, _ in results] == ["short", "beside"]


@pytest.mark.parametrize(
    "calls", [None, {}, "x", [{"name": "ls"}], [{"id": None, "name": "ls"}], [{"id": 7}, "x", None]]
)
def test_export_appends_a_message_after_calls_of_any_shape(calls: Any) -> None:
    """A message after one of the tool's answers gets a line of its own; the answer's line stays as it was."""
    first = read_recording(
        build_file(HEADER, build_line("1", "user", "go"), build_line("2", "gemini", "so", toolCalls=calls))
    )
    (*_, last) = get_branch_entries(first)
    words = MessageEntry(make_sized_message(Message.from_text("user", "and now?"), "", None))
    out = export_bytes(
        Recording("holdfast", entries=(*first.entries, Entry("u", last.id, words)), leaf="u"), "gemini-cli"
    )
    (_, _, answer, later) = out.splitlines()
    assert answer == build_file(build_line("2", "gemini", "so", toolCalls=calls)).strip()
    assert json.loads(later)["content"] == [{"text": "and now?"}]
