"""Sessions of Gemini CLI as entries."""

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


def said(id_: str, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"id": id_, "timestamp": TIME, "type": kind, "content": content} | more


def answer(id_: str, content: Any = "", **more: Any) -> dict[str, Any]:
    return said(id_, "gemini", content, thoughts=[], tokens=TOKENS, model="gemini-x", **more)


def response(id_: str, words: str) -> dict[str, Any]:
    return {"functionResponse": {"id": id_, "name": "ls", "response": {"output": words}}}


def call(id_: str, result: Any = None) -> dict[str, Any]:
    return {"id": id_, "name": "ls", "args": {"p": id_}, "result": result, "status": "success"}


def file(*lines: Any) -> bytes:
    return b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines)


def told(recording: Recording) -> list[str]:
    """Return what was said: role, words, ``!`` calls and ``=`` results with theirs."""
    out = []
    for entry in get_full_history_entries(recording):
        if isinstance(entry.body, MessageEntry):
            message = entry.body.sized_message.message
            marks = [f"!{one.id}" for one in message.calls]
            marks += [f"={one.call_id}:{get_result_text(one)}" for one in message.results]
            out.append(" ".join([message.role, *([message.text] if message.text else []), *marks]))
    return out


SESSION = file(
    HEADER,
    {"$set": {"messages": [said("0", "user", [{"text": "context"}])], "lastUpdated": TIME}},
    said("1", "user", [{"text": "list"}]),
    {"$set": {"lastUpdated": TIME}},
    answer("2"),
    answer("2", toolCalls=[call("a", [response("a", "out")])]),
    said("3", "user", [response("a", "out")]),
    answer("4", "done"),
)


def test_a_session() -> None:
    """A later line completes an answer; its result stands once, on the line that was sent."""
    recording = read_recording(SESSION)
    assert (recording.format, recording.session, recording.model, recording.api) == (
        "gemini-cli",
        "S",
        "gemini-x",
        "gemini",
    )
    assert told(recording) == ["user context", "user list", "assistant !a", "tool =a:out", "assistant done"]
    assert [(step.model, step.usage) for step in list_model_calls(recording)] == [
        ("gemini-x", Usage(103, 12, 40, 0, 5))
    ] * 2
    assert (recording.problems, recording.skipped_counts) == ((), {"$set": 2})


def test_slots_hold_contents_of_the_api() -> None:
    """The bytes of a slot are a content of the Gemini API that says its message."""
    for entry in read_recording(SESSION).entries:
        if isinstance(entry.body, MessageEntry):
            slot = entry.body.sized_message
            assert slot.raw is not None
            assert (slot.api, gemini.decode_message(slot.raw)) == ("gemini", slot.message)


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ([response("a", "out")], ["tool =a:out"]),
        (response("a", "out"), ["tool =a:out"]),
        ("out", ["tool =a:out"]),
        (None, []),
        ([], []),
    ],
)
def test_results_that_stand_only_beside_their_calls(result: Any, shown: list[str]) -> None:
    """A result that no line of the user's holds comes right behind the answer that called."""
    recording = read_recording(
        file(HEADER, said("1", "user", "go"), answer("2", toolCalls=[call("a", result)]), answer("3", "so"))
    )
    assert told(recording) == ["user go", "assistant !a", *shown, "assistant so"]


def test_one_object_that_grew() -> None:
    """A message that was completed in an object has another id than before."""
    before = HEADER | {"messages": [said("1", "user", "hi"), answer("2")]}
    after = HEADER | {"messages": [said("1", "user", "hi"), answer("2", toolCalls=[call("a")])]}
    old, new = ({entry.id for entry in read_recording(json.dumps(one).encode()).entries} for one in (before, after))
    assert {id_[0] for id_ in old & new} == {"S", "1"}


@pytest.mark.parametrize("indent", [None, 1])
def test_one_object(indent: int | None) -> None:
    """An older file is one object that holds all messages; what else it says is kept."""
    whole = HEADER | {"messages": [said("1", "user", "hi"), answer("2", [{"text": "ho"}])]}
    recording = read_recording(json.dumps(whole, indent=indent).encode())
    assert told(recording) == ["user hi", "assistant ho"]
    (head, *_) = recording.entries
    assert isinstance(head.body, NoteEntry)
    assert json.loads(bytes(head.body.raw)) == HEADER | {"messages": None}


def test_a_list_of_all_messages_takes_their_place() -> None:
    """After ``$set.messages`` only those messages stand; the others are kept as notes and counted."""
    kept = said("2", "user", "two")
    recording = read_recording(
        file(HEADER, said("1", "user", "one"), kept, {"$set": {"messages": [kept, answer("3", "three")]}})
    )
    assert told(recording) == ["user two", "assistant three"]
    assert recording.skipped_counts["message (replaced)"] == 1
    notes = [entry.body for entry in recording.entries if isinstance(entry.body, NoteEntry)]
    assert any(b'"one"' in bytes(note.raw) for note in notes)
    assert [entry.id for entry in get_branch_entries(recording)].count("2") == 1
    with open_store(":memory:") as store:
        assert store.import_entries("S", recording.entries, leaf=recording.leaf).added_count == len(recording.entries)


def test_usage_behind_other_messages_than_it_counted_was_paid() -> None:
    """In a list of all messages the answers behind the first that is another one measure nothing; they were paid."""
    before = [said("1", "user", "one"), answer("2", "two"), said("3", "user", "three"), answer("4", "four")]
    same = [*before, said("5", "user", "five"), answer("6", "six")]
    other = [*before[:2], said("s", "user", "what was said"), before[3]]
    for now, bases in ((same, ["", "", ""]), (other, ["", STALE_USAGE_BASIS])):
        recording = read_recording(file(HEADER, *before, {"$set": {"messages": now}}))
        answers = [entry.body for entry in recording.entries if isinstance(entry.body, AnswerEntry)]
        assert [one.prefix_digest for one in answers] == bases
        assert all(one.usage.input == 103 for one in answers)


def test_lines_that_nobody_said() -> None:
    """Notices of the tool are notes on the way; damaged lines are kept and reported."""
    recording = read_recording(
        file(HEADER, said("1", "user", "hi"), said("2", "error", "boom"), b'{"id":', answer("3", "ho"))
    )
    assert told(recording) == ["user hi", "assistant ho"]
    assert recording.skipped_counts == {"error": 1}
    assert [problem.line for problem in recording.problems] == [4]
    assert b'{"id":' in [bytes(one.body.raw) for one in recording.entries if isinstance(one.body, NoteEntry)]


def test_the_first_header_counts() -> None:
    """A second header is counted, and changes nothing."""
    recording = read_recording(file(HEADER, said("1", "user", "hi"), HEADER | {"sessionId": "T"}, answer("2")))
    assert (recording.session, recording.skipped_counts) == ("S", {"header (again)": 1})
    assert [
        entry.body.sized_message.message.parts
        for entry in get_full_history_entries(recording)
        if isinstance(entry.body, MessageEntry)
    ][1] == ()


def test_without_a_header() -> None:
    """A file that lost its header is read without, and says so."""
    recording = read_recording(file(said("1", "user", "hi"), answer("2", "ho")))
    assert told(recording) == ["user hi", "assistant ho"]
    assert "session header" in recording.problems[0].reason


def test_a_file_that_grew() -> None:
    """Read again after it has grown, a file gives no id to two things."""
    lines = SESSION.splitlines(keepends=True)
    seen: dict[str, bytes] = {}
    for count in range(1, len(lines) + 1):
        for entry in gemini_cli.read_gemini_cli(b"".join(lines[:count])).entries:
            if isinstance(entry.body, MessageEntry):
                raw = bytes(entry.body.sized_message.raw or b"")
                assert seen.setdefault(entry.id, raw) == raw


def test_media_and_texts() -> None:
    """What a user said in parts stays in parts."""
    image = {"inlineData": {"mimeType": "image/png", "data": "QUJDRA=="}}
    recording = read_recording(file(HEADER, said("1", "user", [{"text": "see"}, image]), answer("2", "ok")))
    (first, *_) = [
        entry.body.sized_message.message for entry in recording.entries if isinstance(entry.body, MessageEntry)
    ]
    text, shown = first.parts
    assert (type(text), shown) == (
        Text,
        Media("image", "image/png", 4, "", "QUJDRA==", Raw(json.dumps(image).encode())),
    )


def test_it_can_be_stored() -> None:
    """What was read comes back from a store as it was."""
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
def test_any_lines_become_a_tree(lines: list[Any]) -> None:
    """Whatever lines say: ids are unique, parents come first, and every message has its bytes."""
    seen: set[str | None] = {None}
    for entry in gemini_cli.read_gemini_cli(file(HEADER, *lines)).entries:
        assert entry.parent in seen
        assert entry.id not in seen
        seen.add(entry.id)
        if isinstance(entry.body, MessageEntry):
            assert gemini.decode_message(entry.body.sized_message.raw or b"") == entry.body.sized_message.message
