"""A session that was exported and is read again has nothing that is new to the log."""

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


def build_file(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def build_claude_line(kind: str, uuid: str, parent: str | None, content: Any = "", id_: str = "") -> dict[str, Any]:
    api = {"id": id_, "model": "claude-x", "usage": USED} if kind == "assistant" else {}
    message = {"message": {"role": kind} | api | {"content": content}} if kind != "progress" else {}
    head = {"parentUuid": parent, "isSidechain": False, "type": kind, "sessionId": "S", "uuid": uuid}
    return head | message | {"timestamp": TIME}


def build_tool_use(id_: str) -> list[dict[str, Any]]:
    return [{"type": "tool_use", "id": id_, "name": "bash", "input": {}}]


def build_tool_result(id_: str) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": id_, "content": f"result of {id_}"}]


def build_codex_message(role: str, text: str) -> dict[str, Any]:
    payload = {"type": "message", "role": role, "content": [{"type": "output_text", "text": text}]}
    return {"timestamp": TIME, "type": "response_item", "payload": payload}


def build_codex_event(kind: str, **more: Any) -> dict[str, Any]:
    return {"timestamp": TIME, "type": "event_msg", "payload": {"type": kind} | more}


def build_gemini_line(id_: str, kind: str, content: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "timestamp": TIME, "type": kind, "content": content} | more


SESSIONS = {
    "claude-code, parallel results between the lines of an answer": build_file(
        build_claude_line("user", "u1", None, "do it"),
        build_claude_line("progress", "p1", "u1"),
        build_claude_line("assistant", "a1", "p1", build_tool_use("c1"), "m1"),
        build_claude_line("assistant", "a2", "a1", build_tool_use("c2"), "m1"),
        build_claude_line("user", "r2", "a2", build_tool_result("c2")),
        build_claude_line("progress", "p2", "r2"),
        build_claude_line("user", "r1", "a1", build_tool_result("c1")),
        build_claude_line("assistant", "b1", "r2", [{"type": "text", "text": "done"}], "m2"),
        build_claude_line("user", "u2", "b1", "do it"),
        build_claude_line("user", "u3", "b1", "do it"),
    ),
    "claude-code, with a result that it cleared": build_file(
        build_claude_line("user", "u1", None, "do it"),
        build_claude_line("assistant", "a1", "u1", build_tool_use("c1"), "m1"),
        build_claude_line("user", "r1", "a1", build_tool_result("c1")),
        build_claude_line("progress", "p1", "r1"),
        {"type": "system", "subtype": "microcompact_boundary", "uuid": "k1", "parentUuid": "p1", "sessionId": "S"}
        | {"microcompactMetadata": {"tokensSaved": 5, "compactedToolIds": ["c1"]}, "timestamp": TIME},
        build_claude_line("assistant", "b1", "k1", [{"type": "text", "text": "done"}], "m2"),
    ),
    "codex, items without ids behind lines that are not written": build_file(
        {"timestamp": TIME, "type": "session_meta", "payload": {"id": "S", "cwd": "/w"}},
        build_codex_event("task_started"),
        build_codex_message("user", "one"),
        build_codex_event("task_started"),
        build_codex_message("assistant", "two"),
        build_codex_event("token_count", info={"last_token_usage": USED, "total_token_usage": USED}),
        {"timestamp": TIME, "type": "compacted", "payload": {"message": "so far", "replacement_history": []}},
        build_codex_event("task_started"),
        build_codex_message("user", "one"),
        build_codex_message("user", "one"),
    ),
    "pi, of version 1": build_file(
        {"type": "session", "id": "S", "timestamp": TIME, "cwd": "/w", "provider": "p", "modelId": "m"},
        {"type": "message", "timestamp": TIME, "message": {"role": "user", "content": "one"}},
        {"type": "model_change", "timestamp": TIME, "provider": "p", "modelId": "n"},
        {"type": "message", "timestamp": TIME, "message": {"role": "user", "content": "two"}},
    ),
    "gemini-cli, with a message that another replaced": build_file(
        {"sessionId": "S", "projectHash": "h", "startTime": TIME, "lastUpdated": TIME, "kind": "main"},
        build_gemini_line("m1", "user", "one"),
        build_gemini_line("m2", "gemini", "two", model="gemini-x"),
        {"$rewindTo": "m2"},
        build_gemini_line("m3", "gemini", "three", model="gemini-x"),
    ),
}


def read_session(name: str) -> Recording:
    return read_recording(SESSIONS[name])


def add_compaction(log: Recording) -> Recording:
    """Return ``log`` with a compaction by Holdfast after its leaf, and a message after that."""
    kept = sum(isinstance(entry.body, MessageEntry) for entry in get_branch_entries(log)) - 1
    compaction = Entry("c0", log.leaf, CompactionEntry(kept, Message("user", (Text("in short"),)), 3, trigger="manual"))
    message_body = next(
        MessageEntry(entry.body.sized_message)
        for entry in get_branch_entries(log)
        if isinstance(entry.body, MessageEntry)
    )
    return replace(
        log, entries=(*log.entries, compaction, Entry("new-message", "c0", message_body)), leaf="new-message"
    )


@pytest.mark.parametrize("name", SESSIONS)
def test_select_new_entries_finds_nothing_new_in_an_export(name):
    """Whatever the format, an exported session that is read again has no new entries, wherever its lines are and
    link to now.
    """
    log = read_session(name)
    new = select_new_entries(read_recording(export_bytes(log, log.format)), log.entries)
    assert new.entries == ()
    assert new.leaf == log.leaf


@pytest.mark.parametrize("name", [name for name in SESSIONS if not name.startswith("gemini")])
def test_select_new_entries_recognizes_a_holdfast_compaction(name):
    """A compaction written as the tool's lines, and the messages after it, are matched to the log's entries."""
    log = add_compaction(read_session(name))
    new = select_new_entries(read_recording(export_bytes(log, log.format)), log.entries)
    assert [entry for entry in new.entries if isinstance(entry.body, MessageEntry | CompactionEntry)] == []
    assert new.leaf == log.leaf


def test_select_new_entries_attaches_new_messages_to_the_log():
    """Messages that a tool added after an export are new, follow the log's leaf and get ids of the log."""
    log = read_session("codex, items without ids behind lines that are not written")
    continued = read_recording(
        export_bytes(log, "codex")
        + build_file(build_codex_message("user", "and now"), build_codex_message("assistant", "this"))
    )
    new = select_new_entries(continued, log.entries)
    message_bodies = [entry.body for entry in new.entries if isinstance(entry.body, MessageEntry)]
    assert [body.sized_message.message.text for body in message_bodies] == ["and now", "this"]
    assert new.entries[0].parent == log.leaf
    whole = replace(new, entries=(*log.entries, *new.entries))
    assert select_new_entries(continued, whole.entries).entries == ()
    assert len({entry.id for entry in whole.entries}) == len(whole.entries)


def test_select_new_entries_keeps_the_id_of_a_changed_message():
    """Other text under a known id is neither matched nor renamed, so that the store rejects it."""
    log = read_recording(build_file(build_claude_line("user", "u1", None, "one")))
    other = read_recording(build_file(build_claude_line("user", "u1", None, "other")))
    assert [entry.id for entry in select_new_entries(other, log.entries).entries] == ["u1"]


def test_select_new_entries_adds_usage_reported_later():
    """An answer in the log gets the usage that only the second reading has."""
    lines = [
        build_claude_line("user", "u1", None, "one"),
        build_claude_line("assistant", "a1", "u1", build_tool_use("c1"), "m1"),
    ]
    del lines[1]["message"]["usage"]
    log = read_recording(build_file(*lines))
    lines[1]["message"]["usage"] = USED
    (new,) = select_new_entries(read_recording(build_file(*lines)), log.entries).entries
    assert new.body == AnswerEntry("", Usage(7, 2))
    assert new.parent == "a1"


def test_select_new_entries_keeps_a_damaged_line_once():
    """A damaged line is a note of the log and is not new when the file is read again."""
    data = SESSIONS["pi, of version 1"] + b"damaged\n"
    log = read_recording(data)
    assert any(isinstance(entry.body, NoteEntry) and entry.body.raw == b"damaged" for entry in log.entries)
    assert select_new_entries(read_recording(data), log.entries).entries == ()


@pytest.mark.parametrize("name", SESSIONS)
@pytest.mark.parametrize("key_separators", [(",", ":"), (", ", ": ")])
def test_select_new_entries_matches_messages_with_old_digests(name, key_separators):
    """A message whose digest an older version computed differently is matched by its content, also if the tool
    rewrote its line; nothing is added twice.
    """
    log_entries = []
    for entry in read_recording(SESSIONS[name]).entries:
        body = entry.body
        if isinstance(body, MessageEntry):
            body = replace(body, sized_message=replace(body.sized_message, digest=b"as it was read then"))
        log_entries.append(replace(entry, body=body))
    lines = [json.loads(line) for line in SESSIONS[name].splitlines()]
    rewritten = (
        build_file(*lines)
        if key_separators == (", ", ": ")
        else b"".join(json.dumps(line, separators=key_separators).encode() + b"\n" for line in lines)
    )
    new = select_new_entries(read_recording(rewritten), log_entries).entries
    assert [entry for entry in new if isinstance(entry.body, MessageEntry | CompactionEntry)] == []
    assert {entry.parent for entry in new} <= {entry.id for entry in (*log_entries, *new)}
