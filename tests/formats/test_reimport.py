"""A session that was exported and is read again: the log has all of it already."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.formats import Recording, export_bytes, get_branch_entries, read_recording, select_new_entries
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.state.entries import AnswerEntry, CompactionEntry, Entry, MessageEntry, NoteEntry, Usage

TIME = "2026-11-21T01:14:54.000Z"
USED = {"input_tokens": 7, "output_tokens": 2}


def file(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def claude(kind: str, uuid: str, parent: str | None, content: Any = "", id_: str = "") -> dict[str, Any]:
    api = {"id": id_, "model": "claude-x", "usage": USED} if kind == "assistant" else {}
    message = {"message": {"role": kind} | api | {"content": content}} if kind != "progress" else {}
    head = {"parentUuid": parent, "isSidechain": False, "type": kind, "sessionId": "S", "uuid": uuid}
    return head | message | {"timestamp": TIME}


def called(id_: str) -> list[dict[str, Any]]:
    return [{"type": "tool_use", "id": id_, "name": "bash", "input": {}}]


def came(id_: str) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": id_, "content": f"result of {id_}"}]


def item(role: str, text: str) -> dict[str, Any]:
    payload = {"type": "message", "role": role, "content": [{"type": "output_text", "text": text}]}
    return {"timestamp": TIME, "type": "response_item", "payload": payload}


def event(kind: str, **more: Any) -> dict[str, Any]:
    return {"timestamp": TIME, "type": "event_msg", "payload": {"type": kind} | more}


def gemini(id_: str, kind: str, content: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "timestamp": TIME, "type": kind, "content": content} | more


SESSIONS = {
    "claude-code, parallel results between the lines of an answer": file(
        claude("user", "u1", None, "do it"),
        claude("progress", "p1", "u1"),
        claude("assistant", "a1", "p1", called("c1"), "m1"),
        claude("assistant", "a2", "a1", called("c2"), "m1"),
        claude("user", "r2", "a2", came("c2")),
        claude("progress", "p2", "r2"),
        claude("user", "r1", "a1", came("c1")),
        claude("assistant", "b1", "r2", [{"type": "text", "text": "done"}], "m2"),
        claude("user", "u2", "b1", "do it"),
        claude("user", "u3", "b1", "do it"),
    ),
    "codex, items without ids behind lines that are not written": file(
        {"timestamp": TIME, "type": "session_meta", "payload": {"id": "S", "cwd": "/w"}},
        event("task_started"),
        item("user", "one"),
        event("task_started"),
        item("assistant", "two"),
        event("token_count", info={"last_token_usage": USED, "total_token_usage": USED}),
        {"timestamp": TIME, "type": "compacted", "payload": {"message": "so far", "replacement_history": []}},
        event("task_started"),
        item("user", "one"),
        item("user", "one"),
    ),
    "pi, of version 1": file(
        {"type": "session", "id": "S", "timestamp": TIME, "cwd": "/w", "provider": "p", "modelId": "m"},
        {"type": "message", "timestamp": TIME, "message": {"role": "user", "content": "one"}},
        {"type": "model_change", "timestamp": TIME, "provider": "p", "modelId": "n"},
        {"type": "message", "timestamp": TIME, "message": {"role": "user", "content": "two"}},
    ),
    "gemini-cli, with a message that another replaced": file(
        {"sessionId": "S", "projectHash": "h", "startTime": TIME, "lastUpdated": TIME, "kind": "main"},
        gemini("m1", "user", "one"),
        gemini("m2", "gemini", "two", model="gemini-x"),
        {"$rewindTo": "m2"},
        gemini("m3", "gemini", "three", model="gemini-x"),
    ),
}


def first(name: str) -> Recording:
    return read_recording(SESSIONS[name])


def compacted(log: Recording) -> Recording:
    """Return ``log`` with a compaction of ours behind its leaf, and words behind that."""
    kept = sum(isinstance(entry.body, MessageEntry) for entry in get_branch_entries(log)) - 1
    made = Entry("c0", log.leaf, CompactionEntry(kept, Message("user", (Text("in short"),)), 3, trigger="manual"))
    said = next(
        MessageEntry(entry.body.sized_message)
        for entry in get_branch_entries(log)
        if isinstance(entry.body, MessageEntry)
    )
    return replace(log, entries=(*log.entries, made, Entry("said-here", "c0", said)), leaf="said-here")


@pytest.mark.parametrize("name", SESSIONS)
def test_what_was_written_says_nothing_new(name):
    """Read, written and read again, of every format: nothing is new, wherever the lines stand and link to now."""
    log = first(name)
    new = select_new_entries(read_recording(export_bytes(log, log.format)), log.entries)
    assert new.entries == ()
    assert new.leaf == log.leaf


@pytest.mark.parametrize("name", [name for name in SESSIONS if not name.startswith("gemini")])
def test_our_own_compaction_comes_back_as_what_it_is(name):
    """A compaction of ours that a tool's lines tell, and what was said behind it, are known again."""
    log = compacted(first(name))
    new = select_new_entries(read_recording(export_bytes(log, log.format)), log.entries)
    assert [entry for entry in new.entries if isinstance(entry.body, MessageEntry | CompactionEntry)] == []
    assert new.leaf == log.leaf


def test_what_a_tool_went_on_with_hangs_on_the_log():
    """What was said behind an export is new, and follows what the log has, under names of the log."""
    log = first("codex, items without ids behind lines that are not written")
    grown = read_recording(export_bytes(log, "codex") + file(item("user", "and now"), item("assistant", "this")))
    new = select_new_entries(grown, log.entries)
    said = [entry.body for entry in new.entries if isinstance(entry.body, MessageEntry)]
    assert [one.sized_message.message.text for one in said] == ["and now", "this"]
    assert new.entries[0].parent == log.leaf
    whole = replace(new, entries=(*log.entries, *new.entries))
    assert select_new_entries(grown, whole.entries).entries == ()
    assert len({entry.id for entry in whole.entries}) == len(whole.entries)


def test_other_words_under_a_tool_s_id_keep_it():
    """Words that differ under one id are not taken for the same, nor called otherwise: the store refuses them."""
    log = read_recording(file(claude("user", "u1", None, "one")))
    other = read_recording(file(claude("user", "u1", None, "other")))
    assert [entry.id for entry in select_new_entries(other, log.entries).entries] == ["u1"]


def test_usage_that_came_later_is_new():
    """An answer that is there gets the usage that only the second reading told."""
    lines = [claude("user", "u1", None, "one"), claude("assistant", "a1", "u1", called("c1"), "m1")]
    del lines[1]["message"]["usage"]
    log = read_recording(file(*lines))
    lines[1]["message"]["usage"] = USED
    (new,) = select_new_entries(read_recording(file(*lines)), log.entries).entries
    assert new.body == AnswerEntry("", Usage(7, 2))
    assert new.parent == "a1"


def test_a_note_of_damage_is_kept_once():
    """A damaged line is a note of the log, and no new one when the file is read again."""
    data = SESSIONS["pi, of version 1"] + b"damaged\n"
    log = read_recording(data)
    assert any(isinstance(entry.body, NoteEntry) and entry.body.raw == b"damaged" for entry in log.entries)
    assert select_new_entries(read_recording(data), log.entries).entries == ()


@pytest.mark.parametrize("name", SESSIONS)
@pytest.mark.parametrize("spelled", [(",", ":"), (", ", ": ")])
def test_what_an_older_version_measured_is_there(name, spelled):
    """A message that a version before read otherwise is the one that is in the log, though its tool wrote it anew.

    Its words are taken for the same as they are read today; what is behind them hangs on them, and nothing comes twice.
    """
    there = []
    for entry in read_recording(SESSIONS[name]).entries:
        body = entry.body
        if isinstance(body, MessageEntry):
            body = replace(body, sized_message=replace(body.sized_message, digest=b"as it was read then"))
        there.append(replace(entry, body=body))
    lines = [json.loads(line) for line in SESSIONS[name].splitlines()]
    anew = (
        file(*lines)
        if spelled == (", ", ": ")
        else b"".join(json.dumps(line, separators=spelled).encode() + b"\n" for line in lines)
    )
    new = select_new_entries(read_recording(anew), there).entries
    assert [entry for entry in new if isinstance(entry.body, MessageEntry | CompactionEntry)] == []
    assert {entry.parent for entry in new} <= {entry.id for entry in (*there, *new)}
