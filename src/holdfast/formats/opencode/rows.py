"""opencode's rows and what it exports, one made of the other: a session is columns there and an object here."""

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
"""Columns of a session, and the fields that hold them."""
_JSON_COLUMNS = ("revert", "permission", "metadata", "model")
"""Columns that hold JSON."""
_TIME_FIELDS = ("created", "updated", "compacting", "archived")
_TOKEN_COLUMNS = {"input": "tokens_input", "output": "tokens_output", "reasoning": "tokens_reasoning"}
_SESSION_DEFAULTS: DatabaseRow = {"project_id": "global", "slug": "", "directory": "/", "title": "", "version": ""}
_MAX_INTEGER = 2**63
"""More than any number that a column holds."""


def encode_opencode_session_info(row: Mapping[str, Any]) -> bytes:
    """Return what stands about a session, from its columns; those that are missing or empty are left out."""
    info = {
        name: _decode_column_text(row[column])
        for column, name in _FIELD_OF_COLUMN.items()
        if row.get(column) is not None
    }
    for column in _JSON_COLUMNS:
        if (json_value := _decode_json_column(row.get(column))) is not None:
            info[column] = json_value
    times = {name: row[f"time_{name}"] for name in _TIME_FIELDS if isinstance(row.get(f"time_{name}"), int | float)}
    return encode_json(info | {"time": times})


def _decode_column_text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _decode_json_column(value: Any) -> Raw | None:
    """Return a column that holds JSON, if it does."""
    data = value.encode() if isinstance(value, str) else value
    if not isinstance(data, bytes):
        return None
    try:
        return msgspec.json.decode(data, type=Raw)
    except DECODE_ERRORS:
        return None


def build_opencode_rows(sessions: Iterable[OpencodeStoredSession]) -> dict[str, list[DatabaseRow]]:
    """Return the rows of each table that hold ``sessions``."""
    out: dict[str, list[DatabaseRow]] = {"project": [], "session": [], "message": [], "part": []}
    for stored_session in sessions:
        session = _build_session_row(stored_session)
        if all(row["id"] != session["project_id"] for row in out["project"]):
            out["project"].append(_build_project_row(session))
        out["session"].append(session)
        for message in stored_session.messages:
            at = OPENCODE_INFO.decode_or_default(message.info).time.created_ms or session["time_created"]
            stamp = {"session_id": stored_session.id, "time_created": at, "time_updated": at}
            out["message"].append({"id": message.id, **stamp, "data": _encode_data_column(message.info)})
            for id_, raw in message.parts:
                out["part"].append({"id": id_, "message_id": message.id, **stamp, "data": _encode_data_column(raw)})
    return out


def _build_session_row(session: OpencodeStoredSession) -> DatabaseRow:
    info = msgspec.json.decode(session.info, type=dict[str, Any])
    row = _SESSION_DEFAULTS | {
        column: info[name] for column, name in _FIELD_OF_COLUMN.items() if isinstance(info.get(name), str)
    }
    row |= {column: encode_json(info[column]).decode() for column in _JSON_COLUMNS if column in info}
    row |= {f"time_{name}": at for name, at in info["time"].items() if name in _TIME_FIELDS}
    return row | {"cost": float(_get_number(info, "cost"))} | _build_token_columns(info.get("tokens"))


def _build_token_columns(fields: Any) -> DatabaseRow:
    return {column: _get_number(fields, name) for name, column in _TOKEN_COLUMNS.items()}


def _get_number(fields: Any, name: str) -> int | float:
    """Return the number that ``fields`` has under ``name``, 0 where there is none that a column holds."""
    amount = fields.get(name) if isinstance(fields, dict) else None
    return amount if isinstance(amount, int | float) and abs(amount) < _MAX_INTEGER else 0


def _build_project_row(session: DatabaseRow) -> DatabaseRow:
    times = {name: session[name] for name in ("time_created", "time_updated")}
    return {"id": session["project_id"], "worktree": session["directory"], "sandboxes": "[]", **times}


def _encode_data_column(raw: bytes) -> str:
    """Return the column ``data``: an object without its id, which is a column too."""
    return encode_json({key: value for key, value in decode_raw_fields(raw).items() if key != "id"}).decode()
