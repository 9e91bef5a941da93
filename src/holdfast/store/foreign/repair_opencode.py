"""Repair of an opencode database: calls that never ended, rows that no version can read, indexes that differ.

A pending or running call that a crash left behind stays so for ever: opencode shows it as running and does not answer
in that session any more (opencode#27871, 2026-05; #43277, 2026-09-13). One row that is no JSON keeps a whole session
from being opened (opencode#42671, 2026-08-15). opencode must be closed meanwhile; a lock tells.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import copyfileobj
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.errors import FormatError, StoreLocked
from holdfast.formats.common.lines import DECODE_ERRORS
from holdfast.formats.repair.findings import RepairFinding
from holdfast.formats.repair.tools import MISSING_RESULT_TEXT
from holdfast.store.foreign.opencode import open_opencode_database
from holdfast.store.private_files import create_private_file, sync_directory, write_and_sync

_JOURNAL = "-wal"
_DATA_TABLES = ("message", "part", "session_message")
"""Tables whose column ``data`` holds the JSON of a message or a part."""
_OPEN_STATUSES = ("pending", "running", "streaming")
"""States of a call that has not ended."""
_INDEX_FAULTS = ("missing from index", "wrong # of entries in index", "non-unique entry in index")
"""SQLite's messages for an index that differs from its table, from which it can be built again."""
_LOCK_SECONDS = 1.0
"""Seconds to wait for a lock. Chosen by judgement: opencode holds its own as long as it runs."""


class OpencodeRepair(Struct, frozen=True):
    """What was found in a database and done."""

    findings: tuple[RepairFinding, ...] = ()
    reason: str = ""
    """Why nothing was changed in spite of the findings; empty if it was, or if there are none."""
    backup: str = ""
    left_out: str = ""


class _RowChange(Struct, frozen=True):
    """A new value for the ``data`` of a row, or None if the row is taken out."""

    table: str
    id: bytes
    finding: RepairFinding
    old: bytes
    new: bytes | None


def repair_opencode_database(path: Path, *, dry_run: bool) -> OpencodeRepair:
    """Repair the database at ``path``, which is kept beside the repaired one; an undamaged one is not touched.

    Raises ``FormatError`` if SQLite cannot read it, ``UnrecognizedContent`` if it is not opencode's, and
    ``StoreLocked`` while opencode has it open.
    """
    with open_opencode_database(path) as database:
        changes, index_findings, reason = _survey_database(database.connection)
    findings = (*index_findings, *[change.finding for change in changes])
    if not findings or reason or dry_run:
        return OpencodeRepair(findings, reason)
    stamp = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
    with closing(sqlite3.connect(path, isolation_level=None, timeout=_LOCK_SECONDS)) as db:
        db.text_factory = bytes
        _lock_database(db, path)
        try:
            return _repair_locked_database(db, path, stamp)
        except sqlite3.Error as error:
            raise FormatError(f"{path} could not be repaired ({error}); nothing was changed") from error


def _repair_locked_database(db: sqlite3.Connection, path: Path, stamp: str) -> OpencodeRepair:
    """Look again, now that nobody else can write, and change what was found."""
    changes, index_findings, _ = _survey_database(db)
    backup = _back_up(path, f".bak-{stamp}")
    if index_findings:
        db.execute("REINDEX")
    _apply_changes(db, changes)
    dropped = [change for change in changes if change.new is None]
    left_out = _write_left_out(path, f".left-out-{stamp}", dropped) if dropped else ""
    db.execute("COMMIT")
    return OpencodeRepair((*index_findings, *[change.finding for change in changes]), "", backup, left_out)


def _lock_database(db: sqlite3.Connection, path: Path) -> None:
    """Begin a transaction that nobody else can read or write beside; raises ``StoreLocked`` if somebody has it open."""
    try:
        # In this mode the lock also fails if another connection is merely open, as that of an idle opencode.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        raise StoreLocked(f"{path} is open in another program ({error}); end opencode and try again") from error


def _survey_database(db: sqlite3.Connection) -> tuple[list[_RowChange], tuple[RepairFinding, ...], str]:
    """Return the changes to rows, the findings about indexes, and why nothing can be changed (or an empty string)."""
    faults = [_decode_text(row[0]) for row in db.execute("PRAGMA integrity_check(20)")]
    if faults == ["ok"]:
        faults = []
    reason = ""
    index_findings = []
    for fault in faults:
        if any(kind in fault for kind in _INDEX_FAULTS):
            index_findings.append(RepairFinding(0, "index", fault, "the indexes are built again"))
        else:
            index_findings.append(RepairFinding(0, "index", fault, "left as it is"))
            reason = "SQLite cannot read all of it; `sqlite3 FILE .recover` saves what can be read into a new database"
    return list(_iter_row_changes(db)), tuple(index_findings), reason


def _iter_row_changes(db: sqlite3.Connection) -> Iterator[_RowChange]:
    for table in _DATA_TABLES:
        columns = {_decode_text(row[1]) for row in db.execute(f"PRAGMA table_info({table})")}
        if not {"id", "data"} <= columns:
            continue
        is_new = "type" in columns
        at = "time_created" if "time_created" in columns else "0"
        kind = "type" if is_new else "NULL"
        query = f"SELECT id, {kind}, {at}, data FROM {table}"  # noqa: S608 -- our names
        for id_, type_, created, data in db.execute(query):
            raw = data if isinstance(data, bytes) else str(data).encode()
            change = _plan_row_change(table, id_, _decode_text(type_), created, raw)
            if change is not None:
                yield change


def _plan_row_change(table: str, id_: bytes, type_: str, created: Any, raw: bytes) -> _RowChange | None:
    name = f"{table} {_decode_text(id_)}"
    try:
        value = msgspec.json.decode(raw)
    except DECODE_ERRORS as error:
        return _drop_row(table, id_, raw, f"{name}: its data is no JSON ({error})")
    if not isinstance(value, dict):
        return _drop_row(table, id_, raw, f"{name}: its data is no JSON object")
    at = created if isinstance(created, int) else 0
    calls = _end_open_calls(value, at, is_new=table == "session_message") if table != "message" else []
    if not calls or (table == "session_message" and type_ != "assistant"):
        return None
    description = f"{name}: the call {', '.join(calls)} never ended"
    finding = RepairFinding(0, "unanswered", description, "it has an error now that says so")
    return _RowChange(table, id_, finding, raw, msgspec.json.encode(value))


def _drop_row(table: str, id_: bytes, raw: bytes, description: str) -> _RowChange:
    return _RowChange(table, id_, RepairFinding(0, "no object", description, "left out"), raw, None)


def _end_open_calls(value: dict[str, Any], at: int, *, is_new: bool) -> list[str]:
    """Give every call of a part, or of a message of opencode 2, that has not ended an error; return the calls' ids."""
    parts = value.get("content") if is_new else [value]
    calls = []
    for part in parts if isinstance(parts, list) else []:
        state = part.get("state") if isinstance(part, dict) and part.get("type") == "tool" else None
        if isinstance(state, dict) and state.get("status") in _OPEN_STATUSES:
            part["state"] = _make_interrupted_state(state, at, is_new=is_new)
            calls.append(str(part.get("id" if is_new else "callID")))
    return calls


def _make_interrupted_state(state: dict[str, Any], at: int, *, is_new: bool) -> dict[str, Any]:
    arguments = state.get("input")
    if isinstance(arguments, str):
        # What was being written as the arguments: kept if it is whole.
        try:
            arguments = msgspec.json.decode(arguments)
        except DECODE_ERRORS:
            arguments = {}
    arguments = arguments if isinstance(arguments, dict) else {}
    if is_new:
        error = {"type": "unknown", "message": MISSING_RESULT_TEXT}
        return {"status": "error", "input": arguments, "error": error}
    time_fields = state.get("time")
    start = time_fields.get("start", at) if isinstance(time_fields, dict) else at
    return {
        "status": "error",
        "input": arguments,
        "error": MISSING_RESULT_TEXT,
        "metadata": {"interrupted": True},
        "time": {"start": start, "end": start},
    }


def _apply_changes(db: sqlite3.Connection, changes: list[_RowChange]) -> None:
    for change in changes:
        # The id as text: bytes are another value for SQLite.
        id_ = _decode_text(change.id)
        if change.new is not None:
            db.execute(f"UPDATE {change.table} SET data = ? WHERE id = ?", (change.new.decode(), id_))  # noqa: S608
            continue
        db.execute(f"DELETE FROM {change.table} WHERE id = ?", (id_,))  # noqa: S608 -- our names


def _back_up(path: Path, ending: str) -> str:
    """Copy the database and its journal, with the same ending, and return the name of the copy."""
    backup = path.with_name(f"{path.name}{ending}")
    for suffix in ("", _JOURNAL):
        source = path.with_name(f"{path.name}{suffix}")
        if source.is_file():
            descriptor = create_private_file(backup.with_name(f"{backup.name}{suffix}"))
            with source.open("rb") as old, os.fdopen(descriptor, "wb") as new:
                copyfileobj(old, new)
                new.flush()
                os.fsync(new.fileno())
    sync_directory(path.parent)
    return str(backup)


def _write_left_out(path: Path, ending: str, dropped: list[_RowChange]) -> str:
    """Write the rows that are left out, an object each, and return the name of that file."""
    target = path.with_name(f"{path.name}{ending}")
    lines = []
    for change in dropped:
        record: dict[str, Any] = {
            "table": change.table,
            "id": _decode_text(change.id),
            "why": change.finding.description,
        }
        try:
            record["text"] = change.old.decode()
        except UnicodeDecodeError:
            record["base64"] = base64.b64encode(change.old).decode()
        lines.append(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    descriptor = create_private_file(target)
    try:
        write_and_sync(descriptor, lines)
    finally:
        os.close(descriptor)
    return str(target)


def _decode_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)
