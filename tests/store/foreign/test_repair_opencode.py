"""Databases of opencode are repaired in place, with a copy beside them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import StoreLocked, UnrecognizedContent
from holdfast.store.foreign.open_database import recognize_database
from holdfast.store.foreign.opencode import open_opencode_database
from holdfast.store.foreign.repair_opencode import repair_opencode_database

AT = 1_796_000_000_000
INFO = {"role": "assistant", "modelID": "m", "providerID": "p"}
RUNNING = {
    "type": "tool",
    "tool": "bash",
    "callID": "c1",
    "state": {"status": "running", "input": {"a": 1}, "time": {"start": 7}},
}
DONE = {"type": "tool", "tool": "bash", "callID": "c0", "state": {"status": "completed", "input": {}, "output": "ok"}}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Return a database with a session of each version, and no damage."""
    with closing(sqlite3.connect(tmp_path / "opencode.db", isolation_level=None)) as connection:
        connection.executescript(files("holdfast.data").joinpath("opencode.sql").read_text("utf-8"))
        connection.execute(
            "INSERT INTO project (id, worktree, time_created, time_updated, sandboxes) VALUES ('p','/',0,0,'')"
        )
        connection.execute(
            "INSERT INTO session (id, project_id, slug, directory, title, version, time_created, time_updated) "
            "VALUES ('ses_1', 'p', 's', '/w', 't', '1.18.33', 1, 1)"
        )
        connection.execute("INSERT INTO message VALUES ('msg_1', 'ses_1', 1, 1, ?)", (json.dumps(INFO),))
        insert_part(connection, "prt_0", DONE)
        connection.execute("DROP TABLE IF EXISTS session_message")
        connection.execute(
            "CREATE TABLE session_message (id text PRIMARY KEY, session_id text, type text, seq integer, "
            "time_created integer, data text)"
        )
        yield connection


def insert_part(db: sqlite3.Connection, id_: str, part: Any) -> None:
    data = part if isinstance(part, str | bytes) else json.dumps(part)
    db.execute("INSERT INTO part VALUES (?, 'msg_1', 'ses_1', ?, ?, ?)", (id_, AT, AT, data))


def insert_new_row(db: sqlite3.Connection, data: Any, type_: str = "assistant") -> None:
    text = data if isinstance(data, str) else json.dumps(data)
    db.execute("INSERT INTO session_message VALUES ('msg_n', 'ses_2', ?, 0, ?, ?)", (type_, AT, text))


def get_path(db: sqlite3.Connection) -> Path:
    return Path(db.execute("PRAGMA database_list").fetchone()[2])


def repair(db: sqlite3.Connection, *, dry_run: bool = False) -> Any:
    path = get_path(db)
    db.close()
    return path, repair_opencode_database(path, dry_run=dry_run)


def read_row(path: Path, table: str, id_: str) -> Any:
    with closing(sqlite3.connect(path)) as db:
        row = db.execute(f"SELECT data FROM {table} WHERE id = ?", (id_,)).fetchone()
    return None if row is None else json.loads(row[0])


def test_an_undamaged_database_is_not_touched(db: sqlite3.Connection) -> None:
    """Without findings not a byte changes, and no file is made."""
    before = get_path(db).read_bytes()
    path, result = repair(db)
    assert (result.findings, result.backup, result.left_out) == ((), "", "")
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["opencode.db"]


@pytest.mark.parametrize("status", ["pending", "running"])
def test_a_call_that_never_ended_gets_an_error(db: sqlite3.Connection, status: str) -> None:
    """It keeps its arguments; the error does not say that the call failed, because that is not known."""
    insert_part(db, "prt_1", RUNNING | {"state": RUNNING["state"] | {"status": status}})
    path, result = repair(db)
    assert [(finding.kind, "c1" in finding.description) for finding in result.findings] == [("unanswered", True)]
    state = read_row(path, "part", "prt_1")["state"]
    assert (state["status"], state["input"], state["time"]) == ("error", {"a": 1}, {"start": 7, "end": 7})
    assert "not known" in state["error"]
    assert read_row(path, "part", "prt_0") == DONE
    assert read_row(Path(result.backup), "part", "prt_1")["state"]["status"] == status
    assert Path(result.backup).stat().st_mode & 0o777 == 0o600
    assert repair_opencode_database(path, dry_run=False).findings == ()


def test_calls_of_opencode_2_get_an_error(db: sqlite3.Connection) -> None:
    """Also one whose arguments were being written: they are kept if they are whole."""
    tool = {"type": "tool", "id": "c1", "name": "bash"}
    states = [{"status": "streaming", "input": '{"a": 1}'}, {"status": "streaming", "input": '{"a": '}]
    insert_new_row(db, {"content": [{"type": "text", "text": "hm"}, *[tool | {"state": state} for state in states]]})
    path, result = repair(db)
    (finding,) = result.findings
    assert finding.kind == "unanswered"
    content = read_row(path, "session_message", "msg_n")["content"]
    assert [part["state"]["input"] for part in content[1:]] == [{"a": 1}, {}]
    assert {part["state"]["status"] for part in content[1:]} == {"error"}
    assert repair_opencode_database(path, dry_run=False).findings == ()


@pytest.mark.parametrize("data", ["{", "[1]", "7", b"\xff\xfe"])
def test_a_row_that_is_no_json_is_left_out_and_kept_beside(db: sqlite3.Connection, data: str | bytes) -> None:
    """Such a row keeps its session from being opened; its bytes are in the file beside."""
    insert_part(db, "prt_1", data)
    path, result = repair(db)
    assert [finding.kind for finding in result.findings] == ["no object"]
    assert read_row(path, "part", "prt_0") == DONE
    assert read_row(path, "part", "prt_1") is None
    (record,) = [json.loads(line) for line in Path(result.left_out).read_bytes().splitlines()]
    assert (record["table"], record["id"]) == ("part", "prt_1")
    assert record.get("text", "") == (data if isinstance(data, str) else "")


def test_a_dry_run_changes_nothing(db: sqlite3.Connection) -> None:
    """It has the findings, and the file its bytes."""
    insert_part(db, "prt_1", RUNNING)
    before = get_path(db).read_bytes()
    path, result = repair(db, dry_run=True)
    assert (len(result.findings), result.backup) == (1, "")
    assert path.read_bytes() == before


def test_a_database_that_is_open_elsewhere_is_not_changed(db: sqlite3.Connection) -> None:
    """While opencode runs a call may really be running."""
    db.execute("PRAGMA journal_mode = WAL")
    insert_part(db, "prt_1", RUNNING)
    with pytest.raises(StoreLocked, match="end opencode"):
        repair_opencode_database(get_path(db), dry_run=False)
    assert db.execute("SELECT count(*) FROM part WHERE data LIKE '%running%'").fetchone() == (1,)


def test_rows_in_the_journal_of_a_crash_are_repaired_too(db: sqlite3.Connection, tmp_path: Path) -> None:
    """After a crash the newest rows are only in the ``-wal``; the copy has it as well."""
    db.execute("PRAGMA journal_mode = WAL")
    insert_part(db, "prt_1", RUNNING)
    folder = tmp_path / "crashed"
    folder.mkdir()
    for name in ("opencode.db", "opencode.db-wal"):
        (folder / name).write_bytes((tmp_path / name).read_bytes())
    result = repair_opencode_database(folder / "opencode.db", dry_run=False)
    assert read_row(folder / "opencode.db", "part", "prt_1")["state"]["status"] == "error"
    assert read_row(Path(result.backup), "part", "prt_1")["state"]["status"] == "running"


def test_an_index_that_differs_is_built_again(db: sqlite3.Connection) -> None:
    """SQLite's own check finds it, and the rows are those of the table."""
    db.execute("PRAGMA writable_schema = ON")
    db.execute("UPDATE sqlite_master SET sql = replace(sql, '(session_id)', '(id)') WHERE name = 'part_session_idx'")
    path, result = repair(db)
    assert {finding.kind for finding in result.findings} == {"index"}
    assert repair_opencode_database(path, dry_run=False).findings == ()


def test_recognize_database_tells_opencode_from_other_programs(db: sqlite3.Connection, tmp_path: Path) -> None:
    """Its own name, what another one is, and nothing for a store of Holdfast."""
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE ItemTable (key text)")
    assert recognize_database(get_path(db)) == "opencode"
    assert "VS Code" in recognize_database(other)
    with pytest.raises(UnrecognizedContent, match="VS Code"), open_opencode_database(other):
        pass
    with closing(sqlite3.connect(tmp_path / "own.db")) as connection:
        connection.executescript("CREATE TABLE sessions (key text); CREATE TABLE entries (seq integer)")
    assert recognize_database(tmp_path / "own.db") == ""


def test_repair_command_repairs_a_database_of_opencode(db: sqlite3.Connection) -> None:
    """The command knows it by its tables, and reports as for session files."""
    from click.testing import CliRunner

    from holdfast.cli import holdfast_command

    insert_part(db, "prt_1", RUNNING)
    path = get_path(db)
    db.close()
    dry = CliRunner().invoke(holdfast_command, ["repair", str(path), "--dry-run", "--json"])
    (record,) = json.loads(dry.stdout)
    assert (dry.exit_code, record["format"], record["found"][0]["kind"]) == (1, "opencode", "unanswered")
    done = CliRunner().invoke(holdfast_command, ["repair", str(path)])
    assert done.exit_code == 0
    assert "the call c1 never ended" in done.stdout
    assert "line 0" not in done.stdout
    again = CliRunner().invoke(holdfast_command, ["repair", str(path)])
    assert "no damage found" in again.stdout
