"""Files of other tools that resemble ours are refused by name."""

from __future__ import annotations

import json

import pytest

from holdfast.errors import UnrecognizedContent
from holdfast.formats import read_recording
from holdfast.formats.look_alikes import LOOK_ALIKES
from holdfast.formats.repair.repair_session import repair_session_file
from holdfast.store.foreign.other_databases import recognize_foreign_database

LINKS = {"uuid": "u", "parentUuid": None, "sessionId": "S", "timestamp": "t"}
CASES = [
    ("Qwen Code", LINKS | {"type": "user", "message": {"role": "user", "parts": [{"text": "hi"}]}}),
    ("Qwen Code", LINKS | {"type": "tool_result", "message": {"role": "user", "parts": []}}),
    (
        "logs.json",
        [{"sessionId": "S", "messageId": 0, "type": "user", "message": "hi", "timestamp": "2026-01-01T00:00:00Z"}],
    ),
    ("Factory Droid", {"type": "session_start", "id": "a", "title": "T", "owner": "me", "version": 2}),
    ("VS Code", {"version": 3, "requesterUsername": "me", "responderUsername": "it", "requests": []}),
    ("Cursor", {"role": "user", "message": {"content": [{"type": "text", "text": "hi"}]}}),
    ("Kimi CLI", {"role": "_checkpoint", "id": 0}),
    ("Kimi CLI", {"timestamp": 1.5, "message": {"type": "TurnBegin", "payload": {}}}),
    ("Amp", {"v": 3, "id": "T-1", "created": 1, "messages": [{"role": "user", "content": []}]}),
    ("Cline", [{"ts": 1, "type": "say", "say": "text", "text": "hi"}]),
    ("Continue", {"sessionId": "S", "title": "T", "workspaceDirectory": "/w", "history": []}),
    ("Kiro CLI", {"version": "v1", "kind": "Prompt", "data": {"content": []}}),
    ("Antigravity", {"step_index": 0, "source": "USER", "type": "USER_INPUT"}),
    ("Augment", {"sessionId": "S", "created": "t", "chatHistory": []}),
    ("OpenHands", {"id": 1, "timestamp": "t", "source": "user", "action": "message"}),
    ("Claude Code (history.jsonl)", {"display": "hi", "pastedContents": {}, "timestamp": 1, "project": "/w"}),
    ("Codex (history.jsonl)", {"session_id": "S", "ts": 1, "text": "hi"}),
    ("session_index.jsonl", {"id": "a", "thread_name": "T", "updated_at": "t"}),
    ("prompt-history.jsonl", {"input": "hi", "parts": []}),
    ("ChatGPT", {"title": "T", "mapping": {}, "current_node": "a"}),
    ("claude.ai", {"uuid": "u", "name": "T", "chat_messages": []}),
]


@pytest.mark.parametrize(("name", "document"), CASES)
def test_read_refuses_the_file_of_another_tool_by_name(name, document):
    """The error names the tool and says what to do; nothing is read as the format that it resembles."""
    with pytest.raises(UnrecognizedContent) as raised:
        read_recording(json.dumps(document).encode() + b"\n")
    assert name in str(raised.value).partition(";")[0]
    assert ";" in str(raised.value)


def test_every_look_alike_has_a_case():
    """A row that no file matches would refuse nothing, or what it should not."""
    texts = []
    for _, document in CASES:
        with pytest.raises(UnrecognizedContent) as raised:
            read_recording(json.dumps(document).encode() + b"\n")
        texts.append(str(raised.value))
    assert [row.title for row in LOOK_ALIKES if not any(row.title in text for text in texts)] == []


def test_repair_refuses_the_file_of_another_tool_by_name():
    """A repair must not change the file of a tool that it does not know."""
    with pytest.raises(UnrecognizedContent, match="Factory Droid"):
        repair_session_file(json.dumps(CASES[3][1]).encode() + b"\n")


def test_read_names_what_is_compressed():
    """Codex compresses its older rollouts; the error says how to unpack one."""
    with pytest.raises(UnrecognizedContent, match="zstd -d"):
        read_recording(b"\x28\xb5\x2f\xfd\x00\x01\x02")


@pytest.mark.parametrize(
    ("tables", "name"),
    [
        ({"sessions", "messages", "files", "goose_db_version"}, "Crush"),
        ({"sessions", "messages", "schema_version"}, "goose"),
        ({"thread_items", "thread_turns", "thread_history_projection_state"}, "Codex"),
        ({"ItemTable", "cursorDiskKV"}, "Cursor"),
        ({"sessions", "entries", "quarantine"}, "--store"),
        ({"people"}, ""),
    ],
)
def test_recognize_foreign_database_names_the_program(tables, name):
    """The tables tell whose database it is; an unknown one is not guessed."""
    text = recognize_foreign_database(tables)
    assert name in text
    assert bool(text) == bool(name)
