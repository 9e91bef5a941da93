"""Conversion between rows of opencode's database and the objects that it exports.

A session is columns there and one object here; messages and parts are JSON in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.formats.common.lines import DECODE_ERRORS, decode_raw_fields
from holdfast.formats.opencode.parts import OPENCODE_INFO
from holdfast.formats.opencode.read import OpencodeStoredSession
from holdfast.providers.common.json.raw_json import encode_json

DatabaseRow = dict[str, Any]
_FIELD_OF_COLUMN = {
    "id": "id", "slug": "slug", "project_id": "projectID", "workspace_id": "workspaceID", "parent_id": "parentID",
    "directory": "directory", "path": "path", "title": "title", "version": "version", "agent": "agent", "cost": "cost",
}  # fmt: skip
"""For each column of a session, the field of the exported object."""
_JSON_COLUMNS = ("revert", "permission", "metadata", "model")
"""Columns that hold JSON."""
_TIME_FIELDS = ("created", "updated", "compacting", "archived")
_TOKEN_COLUMNS = {"input": "tokens_input", "output": "tokens_output", "reasoning": "tokens_reasoning"}
_SESSION_DEFAULTS: DatabaseRow = {"project_id": "global", "slug": "", "directory": "/", "title": "", "version": ""}
_MAX_INTEGER = 2**63
"""Smallest number that an SQLite integer column cannot hold."""


def encode_opencode_session_info(row: Mapping[str, Any]) -> bytes:
    """Return the ``info`` of a session from its columns, without those that are missing or empty."""
    info = {}
    for column, field in _FIELD_OF_COLUMN.items():
        if row.get(column) is not None:
            info[field] = _decode_column_text(row[column])
    for column in _JSON_COLUMNS:
        json_value = _decode_json_column(row.get(column))
        if json_value is not None:
            info[column] = json_value
    times = {}
    for name in _TIME_FIELDS:
        time = row.get(f"time_{name}")
        if isinstance(time, int | float):
            times[name] = time
    return encode_json(info | {"time": times})


def _decode_column_text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _decode_json_column(value: Any) -> Raw | None:
    """Return the value of a JSON column, or None if it holds no valid JSON."""
    data = value.encode() if isinstance(value, str) else value
    if not isinstance(data, bytes):
        return None
    try:
        return msgspec.json.decode(data, type=Raw)
    except DECODE_ERRORS:
        return None


def build_opencode_rows(sessions: Iterable[OpencodeStoredSession]) -> dict[str, list[DatabaseRow]]:
    """Return the rows that hold ``sessions``, by table."""
    tables: dict[str, list[DatabaseRow]] = {"project": [], "session": [], "message": [], "part": []}
    for stored_session in sessions:
        session = _build_session_row(stored_session)
        project_ids = {row["id"] for row in tables["project"]}
        if session["project_id"] not in project_ids:
            tables["project"].append(_build_project_row(session))
        tables["session"].append(session)
        for message in stored_session.messages:
            info = OPENCODE_INFO.decode_or_default(message.info)
            # opencode lists messages by this column; without a time of its own a message must not come first.
            at = info.time.created_ms or session["time_created"]
            stamp = {"session_id": stored_session.id, "time_created": at, "time_updated": at}
            message_data = _encode_data_column(message.info)
            tables["message"].append({"id": message.id, **stamp, "data": message_data})
            for part_id, raw in message.parts:
                part_data = _encode_data_column(raw)
                tables["part"].append({"id": part_id, "message_id": message.id, **stamp, "data": part_data})
    return tables


def _build_session_row(session: OpencodeStoredSession) -> DatabaseRow:
    info = msgspec.json.decode(session.info, type=dict[str, Any])
    row = dict(_SESSION_DEFAULTS)
    for column, field in _FIELD_OF_COLUMN.items():
        if isinstance(info.get(field), str):
            row[column] = info[field]
    for column in _JSON_COLUMNS:
        if column in info:
            row[column] = encode_json(info[column]).decode()
    for name, at in info["time"].items():
        if name in _TIME_FIELDS:
            row[f"time_{name}"] = at
    row["cost"] = float(_get_number(info, "cost"))
    return row | _build_token_columns(info.get("tokens"))


def _build_token_columns(fields: Any) -> DatabaseRow:
    return {column: _get_number(fields, name) for name, column in _TOKEN_COLUMNS.items()}


def _get_number(fields: Any, name: str) -> int | float:
    """Return the number in field ``name``, or 0 without one that a column can hold."""
    number = fields.get(name) if isinstance(fields, dict) else None
    if isinstance(number, int | float) and abs(number) < _MAX_INTEGER:
        return number
    return 0


def _build_project_row(session: DatabaseRow) -> DatabaseRow:
    times = {name: session[name] for name in ("time_created", "time_updated")}
    return {"id": session["project_id"], "worktree": session["directory"], "sandboxes": "[]", **times}


def _encode_data_column(raw: bytes) -> str:
    """Return the ``data`` column of a message or part: its object without the id, which is a column of its own."""
    fields = decode_raw_fields(raw)
    fields.pop("id", None)
    return encode_json(fields).decode()
