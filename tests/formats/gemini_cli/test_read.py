"""Sessions of Gemini CLI are read into entries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from holdfast.formats import read_recording
from holdfast.formats.base import (
    STALE_USAGE_BASIS,
    Recording,
    get_branch_entries,
    get_full_history_entries,
    list_model_calls,
)
from holdfast.formats.gemini_cli import read as gemini_cli
from holdfast.messages.message import get_result_text
from holdfast.messages.parts import Media, Text
from holdfast.providers.gemini import messages as gemini
from holdfast.state.entries import AnswerEntry, MessageEntry, NoteEntry, Usage
from holdfast.store.open_store import open_store

TIME = "2026-11-21T01:15:00.939Z"
HEADER = {"sessionId": "S", "projectHash": "h", "startTime": TIME, "lastUpdated": TIME, "kind": "main"}
TOKENS = {"input": 100, "output": 7, "cached": 40, "thoughts": 5, "tool": 3, "total": 115}


def build_line(id_: str, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"id": id_, "timestamp": TIME, "type": kind, "content": content} | more


def answer(id_: str, content: Any = "", **more: Any) -> dict[str, Any]:
    return build_line(id_, "gemini", content, thoughts=[], tokens=TOKENS, model="gemini-x", **more)


def response(id_: str, words: str) -> dict[str, Any]:
    return {"functionResponse": {"id": id_, "name": "ls", "response": {"output": words}}}


def call(id_: str, result: Any = None) -> dict[str, Any]:
    return {"id": id_, "name": "ls", "args": {"p": id_}, "result": result, "status": "success"}


def build_file(*lines: Any) -> bytes:
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


def list_messages(recording: Recording) -> list[str]:
    """Return the messages of the history in short form: role, text, calls as !id, results as =id:text."""
    out = []
    for entry in get_full_history_entries(recording):
        if isinstance(entry.body, MessageEntry):
            message = entry.body.sized_message.message
            marks = [f"!{call.id}" for call in message.calls]
            marks += [f"={result.call_id}:{get_result_text(result)}" for result in message.results]
            out.append(" ".join([message.role, *([message.text] if message.text else []), *marks]))
    return out


SESSION = build_file(
    HEADER,
    {"$set": {"messages": [build_line("0", "user", [{"text": "context"}])], "lastUpdated": TIME}},
    build_line("1", "user", [{"text": "list"}]),
    {"$set": {"lastUpdated": TIME}},
    answer("2"),
    answer("2", toolCalls=[call("a", [response("a", "out")])]),
    build_line("3", "user", [response("a", "out")]),
    answer("4", "done"),
)


def test_read_joins_repeated_lines_of_an_answer() -> None:
    """A later line completes an answer; its result appears once, on the line that was sent."""
    recording = read_recording(SESSION)
    assert (recording.format, recording.session, recording.model, recording.api) == (
        "gemini-cli",
        "S",
        "gemini-x",
        "gemini",
    )
    assert list_messages(recording) == ["user context", "user list", "assistant !a", "tool =a:out", "assistant done"]
    assert [(step.model, step.usage) for step in list_model_calls(recording)] == [
        ("gemini-x", Usage(103, 12, 40, 0, 5))
    ] * 2
    assert (recording.problems, recording.skipped_counts) == ((), {"$set": 2})


def test_read_keeps_api_contents_as_raw_bytes() -> None:
    """The raw bytes of a message are a content of the Gemini API that decodes to it."""
    for entry in read_recording(SESSION).entries:
        if isinstance(entry.body, MessageEntry):
            sized_message = entry.body.sized_message
            assert sized_message.raw is not None
            assert (sized_message.api, gemini.decode_message(sized_message.raw)) == ("gemini", sized_message.message)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ([response("a", "out")], ["tool =a:out"]),
        (response("a", "out"), ["tool =a:out"]),
        ("out", ["tool =a:out"]),
        (None, []),
        ([], []),
    ],
)
def test_read_places_results_recorded_only_with_their_calls(result: Any, expected: list[str]) -> None:
    """A result that no user line holds comes right after the answer with its call."""
    recording = read_recording(
        build_file(HEADER, build_line("1", "user", "go"), answer("2", toolCalls=[call("a", result)]), answer("3", "so"))
    )
    assert list_messages(recording) == ["user go", "assistant !a", *expected, "assistant so"]


def test_read_gives_a_completed_message_another_id() -> None:
    """In a file that is one object, a message completed later gets another id; the others keep theirs."""
    before = HEADER | {"messages": [build_line("1", "user", "hi"), answer("2")]}
    after = HEADER | {"messages": [build_line("1", "user", "hi"), answer("2", toolCalls=[call("a")])]}
    old, new = (
        {entry.id for entry in read_recording(json.dumps(session).encode()).entries} for session in (before, after)
    )
    assert {id_[0] for id_ in old & new} == {"S", "1"}


@pytest.mark.parametrize("indent", [None, 1])
def test_read_accepts_an_older_file_of_one_object(indent: int | None) -> None:
    """An older file is one object with all messages; its other fields are kept as a note."""
    whole = HEADER | {"messages": [build_line("1", "user", "hi"), answer("2", [{"text": "ho"}])]}
    recording = read_recording(json.dumps(whole, indent=indent).encode())
    assert list_messages(recording) == ["user hi", "assistant ho"]
    (head, *_) = recording.entries
    assert isinstance(head.body, NoteEntry)
    assert json.loads(bytes(head.body.raw)) == HEADER | {"messages": None}


def test_read_set_messages_replaces_all_messages() -> None:
    """After ``$set.messages`` only those messages are in the history; the others are kept as notes and counted."""
    kept = build_line("2", "user", "two")
    recording = read_recording(
        build_file(HEADER, build_line("1", "user", "one"), kept, {"$set": {"messages": [kept, answer("3", "three")]}})
    )
    assert list_messages(recording) == ["user two", "assistant three"]
    assert recording.skipped_counts["message (replaced)"] == 1
    notes = [entry.body for entry in recording.entries if isinstance(entry.body, NoteEntry)]
    assert any(b'"one"' in bytes(note.raw) for note in notes)
    assert [entry.id for entry in get_branch_entries(recording)].count("2") == 1
    with open_store(":memory:") as store:
        assert store.import_entries("S", recording.entries, leaf=recording.leaf).added_count == len(recording.entries)


def test_read_marks_usage_after_a_replaced_message_as_stale() -> None:
    """In a list of all messages, answers after the first different one measure nothing, but their tokens were paid."""
    before = [build_line("1", "user", "one"), answer("2", "two"), build_line("3", "user", "three"), answer("4", "four")]
    same = [*before, build_line("5", "user", "five"), answer("6", "six")]
    other = [*before[:2], build_line("s", "user", "what was said"), before[3]]
    for now, bases in ((same, ["", "", ""]), (other, ["", STALE_USAGE_BASIS])):
        recording = read_recording(build_file(HEADER, *before, {"$set": {"messages": now}}))
        answers = [entry.body for entry in recording.entries if isinstance(entry.body, AnswerEntry)]
        assert [answer.prefix_digest for answer in answers] == bases
        assert all(answer.usage.input == 103 for answer in answers)


def test_read_keeps_notices_and_damaged_lines_as_notes() -> None:
    """Notices of the tool are notes on the branch; damaged lines are kept and reported."""
    recording = read_recording(
        build_file(
            HEADER, build_line("1", "user", "hi"), build_line("2", "error", "boom"), b'{"id":', answer("3", "ho")
        )
    )
    assert list_messages(recording) == ["user hi", "assistant ho"]
    assert recording.skipped_counts == {"error": 1}
    assert [problem.line for problem in recording.problems] == [4]
    assert b'{"id":' in [bytes(entry.body.raw) for entry in recording.entries if isinstance(entry.body, NoteEntry)]


def test_read_uses_the_first_header() -> None:
    """A second header is counted and changes nothing."""
    recording = read_recording(
        build_file(HEADER, build_line("1", "user", "hi"), HEADER | {"sessionId": "T"}, answer("2"))
    )
    assert (recording.session, recording.skipped_counts) == ("S", {"header (again)": 1})
    assert [
        entry.body.sized_message.message.parts
        for entry in get_full_history_entries(recording)
        if isinstance(entry.body, MessageEntry)
    ][1] == ()


def test_read_reports_a_missing_header() -> None:
    """A file without its header is read, and the loss is reported."""
    recording = read_recording(build_file(build_line("1", "user", "hi"), answer("2", "ho")))
    assert list_messages(recording) == ["user hi", "assistant ho"]
    assert "session header" in recording.problems[0].reason


def test_read_never_reuses_an_id_as_the_file_grows() -> None:
    """Read again after it has grown, a file gives no id to two messages."""
    lines = SESSION.splitlines(keepends=True)
    seen: dict[str, bytes] = {}
    for count in range(1, len(lines) + 1):
        for entry in gemini_cli.read_gemini_cli(b"".join(lines[:count])).entries:
            if isinstance(entry.body, MessageEntry):
                raw = bytes(entry.body.sized_message.raw or b"")
                assert seen.setdefault(entry.id, raw) == raw


def test_read_keeps_text_and_media_of_a_user_message_as_parts() -> None:
    """The parts of a user message stay separate parts."""
    image = {"inlineData": {"mimeType": "image/png", "data": "QUJDRA=="}}
    recording = read_recording(build_file(HEADER, build_line("1", "user", [{"text": "see"}, image]), answer("2", "ok")))
    (first, *_) = [
        entry.body.sized_message.message for entry in recording.entries if isinstance(entry.body, MessageEntry)
    ]
    text, media = first.parts
    assert (type(text), media) == (
        Text,
        Media("image", "image/png", 4, "", "QUJDRA==", Raw(json.dumps(image).encode())),
    )


def test_read_entries_survive_a_store() -> None:
    """Entries come back from a store as they were read."""
    recording = read_recording(SESSION)
    with open_store(":memory:") as store:
        store.create_session("s")
        store.append_entries("s", recording.entries)
        assert [entry.body for entry in store.read_path("s")] == [entry.body for entry in get_branch_entries(recording)]


_ODD = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.none() | st.just("x"), max_size=2)
_PARTS = st.lists(
    st.sampled_from([{"text": "x"}, {}, "x", response("a", "o"), {"functionCall": {"name": "ls"}}, {"text": 5}]) | _ODD,
    max_size=3,
)
_CALLS = st.lists(st.builds(call, st.sampled_from(["a", "b"]), _PARTS | _ODD) | _ODD, max_size=2) | _ODD
_MESSAGES = st.fixed_dictionaries(
    {"type": st.sampled_from(["user", "gemini", "info"])},
    optional={
        "id": st.sampled_from(["a", "b"]) | _ODD,
        "timestamp": st.just(TIME) | _ODD,
        "content": _PARTS | _ODD,
        "toolCalls": _CALLS,
        "tokens": st.just(TOKENS) | _ODD,
        "model": _ODD,
    },
)
_LINES = st.one_of(
    _MESSAGES,
    st.builds(lambda messages: {"$set": {"messages": messages}}, st.lists(_MESSAGES | _ODD, max_size=3) | _ODD),
    st.just(HEADER),
    _ODD,
)


@given(st.lists(_LINES, max_size=8))
def test_read_builds_a_valid_tree_from_any_lines(lines: list[Any]) -> None:
    """For any lines, ids are unique, parents come first, and every message has its raw bytes."""
    seen: set[str | None] = {None}
    for entry in gemini_cli.read_gemini_cli(build_file(HEADER, *lines)).entries:
        assert entry.parent in seen
        assert entry.id not in seen
        seen.add(entry.id)
        if isinstance(entry.body, MessageEntry):
            assert gemini.decode_message(entry.body.sized_message.raw or b"") == entry.body.sized_message.message
