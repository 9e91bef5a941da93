"""Databases of opencode 2: new tables beside the old ones."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.formats import EXPORT_FORMATS, export_bytes, get_full_history_entries, read_recording
from holdfast.formats.base import Recording, build_state_at_leaf, list_model_calls
from holdfast.formats.opencode.read import OpencodeStoredSession, build_opencode_recording
from holdfast.formats.opencode.rows import build_opencode_rows
from holdfast.formats.opencode.session_messages import SessionMessageRow, iter_stored_messages
from holdfast.formats.opencode.write import iter_opencode_sessions
from holdfast.messages.message import get_result_text
from holdfast.messages.parts import Media, Thinking
from holdfast.state.entries import MessageEntry
from holdfast.state.view import build_projection
from holdfast.store.foreign import opencode as foreign
from tests.support.example_counts import choose

AT = 1_796_000_000_000
MODEL = {"providerID": "anthropic", "id": "claude-x"}
TOKENS = {"input": 700, "output": 9, "reasoning": 0, "cache": {"read": 200, "write": 0}}
SESSION_V2 = (
    "CREATE TABLE session_v2 (id text PRIMARY KEY, parent_id text, directory text, title text, time_created integer)"
)
SESSION_MESSAGE = (
    "CREATE TABLE session_message (id text PRIMARY KEY, session_id text, type text, seq integer, "
    "time_created integer, time_updated integer, data text)"
)
SESSION_INPUT = (
    "CREATE TABLE session_input (id text PRIMARY KEY, session_id text, prompt text, admitted_seq integer, "
    "promoted_seq integer)"
)


def answer(*content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"agent": "build", "model": MODEL, "content": list(content), "tokens": TOKENS, "finish": "stop"} | more


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def tool(id_: str = "c1", **state: Any) -> dict[str, Any]:
    whole = {"status": "completed", "input": {"a": 1}, "content": [{"type": "text", "text": "out"}]}
    return {"type": "tool", "id": id_, "name": "bash", "state": state or whole}


def build_recording(*rows: tuple[str, Any]) -> Recording:
    """Return the recording of rows that are given as type and data."""
    encoded = [data if isinstance(data, bytes) else json.dumps(data).encode() for _, data in rows]
    made = [SessionMessageRow(f"msg_{at}", rows[at][0], AT + at, data) for at, data in enumerate(encoded)]
    info = json.dumps({"id": "ses_1", "directory": "/w", "version": "2.0.12"}).encode()
    return build_opencode_recording(OpencodeStoredSession("ses_1", info, iter_stored_messages(iter(made), "/w")))


def list_history(recording: Recording) -> list[str]:
    """Return the history in short form: role, text, calls as !id, results as =id:text."""
    out = []
    for entry in get_full_history_entries(recording):
        if isinstance(entry.body, MessageEntry):
            message = entry.body.sized_message.message
            marks = [f"!{call.id}" for call in message.calls]
            marks += [f"={item.call_id}:{get_result_text(item)}{'!' * item.is_error}" for item in message.results]
            out.append(" ".join([message.role, *filter(None, [message.text]), *marks]))
    return out


def create_database(path: Path, *tables: str) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    for table in tables:
        db.execute(table)
    return db


def insert_rows(db: sqlite3.Connection, session: str, *rows: tuple[str, Any], at: int = AT) -> None:
    for seq, (type_, data) in enumerate(rows):
        values = (f"msg_{session}{seq}", session, type_, seq, at + seq, at + seq, json.dumps(data))
        db.execute("INSERT INTO session_message VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    db.commit()


def insert_session(db: sqlite3.Connection, id_: str, parent: str | None = None, at: int = AT) -> None:
    db.execute("INSERT INTO session_v2 VALUES (?, ?, '/w', ?, ?)", (id_, parent, f"about {id_}", at))


def insert_old_session(db: sqlite3.Connection, id_: str, words: str, at: int) -> None:
    """Insert a session of opencode 1 with one message."""
    db.execute(
        "INSERT INTO session (id, project_id, slug, directory, title, version, time_created, time_updated) "
        "VALUES (?, 'p', 's', '/w', 'old title', '1.18.33', ?, ?)",
        (id_, at, at),
    )
    info = {"role": "user", "agent": "build", "model": {"providerID": "p", "modelID": "m"}, "time": {"created": at}}
    db.execute("INSERT INTO message VALUES (?, ?, ?, ?, ?)", (f"msg_old{id_}", id_, at, at, json.dumps(info)))
    part = json.dumps(text(words))
    db.execute("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", (f"prt_{id_}", f"msg_old{id_}", id_, at, at, part))
    db.commit()


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """Return a database with the tables of both versions, without sessions."""
    path = tmp_path / "opencode.db"
    with closing(create_database(path)) as db:
        db.executescript(files("holdfast.data").joinpath("opencode.sql").read_text("utf-8"))
        db.execute("INSERT INTO project (id, worktree, time_created, time_updated, sandboxes) VALUES ('p','/w',0,0,'')")
        existing = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
        for table in (SESSION_V2, SESSION_MESSAGE):
            if table.split()[2] in existing:
                db.execute(f"DROP TABLE {table.split()[2]}")
            db.execute(table)
        db.commit()
    return path


def read_all(path: Path) -> dict[str, Recording]:
    with foreign.open_opencode_database(path) as database:
        return {info.id: database.read_recording(info.id) for info in database.list_root_sessions()}


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_become_the_messages_that_the_model_was_shown() -> None:
    """Each kind of row is read as opencode sends it; kinds that it does not send are counted."""
    recording = build_recording(
        ("agent-switched", {"agent": "build"}),
        ("user", {"text": "run them"}),
        ("assistant", answer({"type": "reasoning", "text": "hm"}, text("I run them"), tool(), finish="tool-calls")),
        ("assistant", answer(text("three passed"))),
        ("shell", {"command": "ls", "output": {"output": "a.py"}}),
        ("skill", {"name": "git", "text": "how to commit"}),
        ("system", {"text": "the date changed"}),
        ("synthetic", {"text": "a comment"}),
        ("idle", {"outcome": "succeeded"}),
    )
    assert list_history(recording) == [
        "user run them",
        "assistant I run them !c1",
        "tool =c1:out",
        "assistant three passed",
        "user Shell command: ls\n\na.py",
        "user how to commit",
        "user the date changed",
        "user a comment",
    ]
    assert recording.model == "claude-x"
    assert [(call.usage.input, call.usage.output) for call in list_model_calls(recording)] == [(900, 9)] * 2
    assert (recording.skipped_counts["agent-switched"], recording.skipped_counts["idle"]) == (1, 1)


def test_a_completed_compaction_hides_what_was_before_it() -> None:
    """The summary and the recent context stand for everything before; failed and running compactions hide nothing."""
    recording = build_recording(
        ("user", {"text": "one"}),
        ("compaction", {"status": "failed", "reason": "auto", "error": {"message": "x"}}),
        ("user", {"text": "two"}),
        ("compaction", {"status": "completed", "reason": "manual", "summary": "so far", "recent": "two was said"}),
        ("compaction", {"status": "running", "reason": "auto", "summary": "half", "recent": ""}),
        ("user", {"text": "three"}),
    )
    shown = [item.message.text for item in build_projection(build_state_at_leaf(recording))]
    assert shown[-1] == "three"
    assert "so far" in shown[0]
    assert "two was said" in shown[0]
    assert not any("half" in words or words == "one" for words in shown)
    assert list_history(recording) == ["user one", "user two", "user three"]
    assert (recording.skipped_counts["compaction:failed"], recording.skipped_counts["compaction:running"]) == (1, 1)


def test_a_compaction_of_a_beta_without_a_status_counts_as_completed() -> None:
    """Rows of betas have no status."""
    recording = build_recording(("user", {"text": "one"}), ("compaction", {"reason": "auto", "summary": "so far"}))
    assert [item.message.text for item in build_projection(build_state_at_leaf(recording))] == ["so far"]


def test_a_providers_own_checkpoint_leaves_the_messages() -> None:
    """Only its provider can read it, and opencode goes on from the messages when it asks another."""
    data = {"status": "completed", "reason": "auto", "summary": "", "providerContext": {"type": "x"}}
    recording = build_recording(("user", {"text": "one"}), ("compaction", data))
    assert [item.message.text for item in build_projection(build_state_at_leaf(recording))] == ["one"]
    assert recording.skipped_counts == {"compaction:native": 1}


@pytest.mark.parametrize(
    ("state", "result"),
    [
        ({"status": "error", "input": {}, "error": {"type": "x", "message": "gone"}}, "gone!"),
        (
            {"status": "error", "input": {}, "error": "gone", "content": [{"type": "text", "text": "so far"}]},
            "gone\nso far!",
        ),
        ({"status": "running", "input": {"a": 1}, "metadata": {}}, "[Tool execution was interrupted]!"),
        ({"status": "streaming", "input": '{"a": 1'}, "[Tool execution was interrupted]!"),
        ({"status": "pending", "input": '{"a": 1}'}, "[Tool execution was interrupted]!"),
        ({}, "out"),
    ],
)
def test_each_state_of_a_tool_has_a_result(state: dict[str, Any], result: str) -> None:
    """A failed run has its error, and one that never ended is interrupted, in each format that is written."""
    recording = build_recording(
        ("user", {"text": "go"}), ("assistant", answer(tool(**state))), ("user", {"text": "on"})
    )
    assert list_history(recording) == ["user go", "assistant !c1", f"tool =c1:{result}", "user on"]
    for format_name in EXPORT_FORMATS:
        assert json.dumps(result.rstrip("!"))[1:-1] in export_bytes(recording, format_name).decode()


def test_attachments_are_text_or_media() -> None:
    """A text file is sent as text, a picture as media, under the fields of betas and of today."""
    recording = build_recording(
        (
            "user",
            {
                "text": "see",
                "files": [
                    {
                        "mime": "text/plain",
                        "name": "a.txt",
                        "data": "aGVsbG8=",
                        "source": {"type": "uri", "uri": "file:///a"},
                    },
                    {"mime": "image/png", "data": "QUJD", "source": {"type": "inline"}},
                    {"mime": "image/png", "uri": "data:image/png;base64,QUJD"},
                ],
            },
        )
    )
    parts = recording.entries[1].body.sized_message.message.parts
    assert parts[1].text == "Attached file: a.txt\n\nhello"
    assert [(part.mime, part.source) for part in parts if isinstance(part, Media)] == [("image/png", "QUJD")] * 2


@pytest.mark.parametrize("name", ["native", "state"])
def test_signatures_of_thoughts_are_kept(name: str) -> None:
    """What the provider signed is kept under the name of its API, whichever version wrote the field."""
    thought = {"type": "reasoning", "text": "hm", name: {"signature": "sig=="}}
    recording = build_recording(("user", {"text": "go"}), ("assistant", answer(thought, text("done"))))
    (part,) = [item for item in recording.entries[3].body.sized_message.message.parts if isinstance(item, Thinking)]
    assert part.signature is not None
    assert (part.signature.api, part.signature.data) == ("anthropic", "sig==")


def test_an_answer_that_failed_is_kept_as_far_as_it_got() -> None:
    """opencode 2 sends it on; it counts as no model call."""
    failed = answer(text("half"), error={"type": "provider", "message": "overloaded"})
    recording = build_recording(("user", {"text": "go"}), ("assistant", failed), ("user", {"text": "on"}))
    assert list_history(recording) == ["user go", "assistant half", "user on"]
    assert list_model_calls(recording) == []


# -- databases ---------------------------------------------------------------------------------------------------------


def test_sessions_of_both_versions_are_listed(both: Path) -> None:
    """Old sessions stay, new ones are read from the new tables, oldest first."""
    with closing(sqlite3.connect(both)) as db:
        insert_old_session(db, "ses_old", "long ago", AT - 1_000)
        insert_session(db, "ses_new")
        insert_session(db, "ses_sub", parent="ses_new")
        insert_rows(db, "ses_new", ("user", {"text": "today"}))
        insert_rows(db, "ses_sub", ("user", {"text": "look"}))
    recordings = read_all(both)
    assert list(recordings) == ["ses_old", "ses_new"]
    assert list_history(recordings["ses_old"]) == ["user long ago"]
    assert list_history(recordings["ses_new"]) == ["user today"]
    assert [list_history(chain) for chain in recordings["ses_new"].sidechains] == [["user look"]]
    assert recordings["ses_new"].title == "about ses_new"


def test_a_session_in_both_tables_is_read_from_the_new_ones(both: Path) -> None:
    """The old rows are a copy that is out of date."""
    with closing(sqlite3.connect(both)) as db:
        insert_old_session(db, "ses_1", "the old copy", AT - 1_000)
        insert_session(db, "ses_1")
        insert_rows(db, "ses_1", ("user", {"text": "the old words"}), ("user", {"text": "and more"}))
    (recording,) = read_all(both).values()
    assert (list_history(recording), recording.title) == (["user the old words", "user and more"], "about ses_1")


def test_a_session_that_opencode_1_continued_is_read_from_the_old_tables(both: Path) -> None:
    """opencode 2 copies once (opencode#49641): what version 1 wrote later is only in its own tables."""
    with closing(sqlite3.connect(both)) as db:
        insert_old_session(db, "ses_1", "continued", AT + 1_000)
        insert_session(db, "ses_1")
        insert_rows(db, "ses_1", ("user", {"text": "the copy"}))
    (recording,) = read_all(both).values()
    assert list_history(recording) == ["user continued"]


def test_a_session_without_new_messages_is_read_from_the_old_tables(both: Path) -> None:
    """A row in ``session_v2`` alone does not hide what was said."""
    with closing(sqlite3.connect(both)) as db:
        insert_old_session(db, "ses_1", "long ago", AT - 1_000)
        insert_session(db, "ses_1")
        db.commit()
    (recording,) = read_all(both).values()
    assert list_history(recording) == ["user long ago"]


def test_a_database_without_the_old_tables_is_read(tmp_path: Path) -> None:
    """A fresh installation of opencode 2 has only the new tables."""
    path = tmp_path / "opencode.db"
    with closing(create_database(path, SESSION_V2, SESSION_MESSAGE)) as db:
        insert_session(db, "ses_1")
        insert_rows(db, "ses_1", ("user", {"text": "hello"}))
    assert list_history(read_all(path)["ses_1"]) == ["user hello"]


def test_prompts_that_wait_are_messages_at_the_end(tmp_path: Path) -> None:
    """What the user typed while the agent worked and the model did not get is said too, and once."""
    path = tmp_path / "opencode.db"
    with closing(create_database(path, SESSION_V2, SESSION_MESSAGE, SESSION_INPUT)) as db:
        insert_session(db, "ses_1")
        insert_rows(db, "ses_1", ("user", {"text": "hello"}))
        waiting = json.dumps({"text": "and the footer"})
        rows = [("msg_ses_10", 0, 0), ("msg_w", 1, None), ("msg_done", 2, 2)]
        for id_, admitted, promoted in rows:
            db.execute("INSERT INTO session_input VALUES (?, 'ses_1', ?, ?, ?)", (id_, waiting, admitted, promoted))
        db.commit()
    assert list_history(read_all(path)["ses_1"]) == ["user hello", "user and the footer"]


def test_a_session_of_version_2_is_exported_as_a_database_of_version_1(both: Path, tmp_path: Path) -> None:
    """The database that is written has the same conversation, and reads back as such."""
    with closing(sqlite3.connect(both)) as db:
        insert_session(db, "ses_1")
        compaction = {"status": "completed", "reason": "auto", "summary": "so far", "recent": ""}
        rows = [("user", {"text": "go"}), ("assistant", answer(text("ran"), tool())), ("compaction", compaction)]
        insert_rows(db, "ses_1", *rows, ("user", {"text": "on"}), ("assistant", answer(text("done"))))
    (recording,) = read_all(both).values()
    path = tmp_path / "written.db"
    path.write_bytes(foreign.build_opencode_database(build_opencode_rows(iter_opencode_sessions(recording))))
    (written,) = read_all(path).values()
    assert list_history(written) == list_history(recording)
    assert list_history(read_recording(export_bytes(recording, "opencode-json"))) == list_history(recording)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["text", "type", "state", "content", "input", "files", "time", "status"]), inner
        )
    ),
    max_leaves=8,
)
_TYPES = st.sampled_from(["user", "assistant", "compaction", "shell", "system", "idle", "odd", ""])
_DATA = st.one_of(
    st.builds(lambda value: json.dumps(value).encode(), _VALUES),
    st.builds(
        lambda words: json.dumps({"text": words, "content": [text(words), tool()]}).encode(), st.text(max_size=5)
    ),
    st.binary(max_size=12),
)


@given(st.lists(st.tuples(_TYPES, _DATA), max_size=6))
@settings(max_examples=choose(quick=50, ci=200, thorough=5_000), deadline=None)
@pytest.mark.counts
def test_damaged_rows_cost_no_other_row(rows: list[tuple[str, bytes]]) -> None:
    """Whatever is in a row, the rows beside it are read, and every format can be written."""
    framed = [("user", {"text": "first words"}), *rows, ("user", {"text": "last words"})]
    recording = build_recording(*framed)
    history = list_history(recording)
    assert history[0] == "user first words"
    assert history[-1] == "user last words"
    for format_name in EXPORT_FORMATS:
        assert b"last words" in export_bytes(recording, format_name)
