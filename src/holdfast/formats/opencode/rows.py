"""opencode's rows and what it exports, one made of the other: a session is columns there and an object here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.formats.common.lines import UNREADABLE, fields
from holdfast.formats.opencode.parts import INFO
from holdfast.formats.opencode.read import Held
from holdfast.providers.common.json.raw_json import write

Row = dict[str, Any]
_NAMED = {
    "id": "id", "slug": "slug", "project_id": "projectID", "workspace_id": "workspaceID", "parent_id": "parentID",
    "directory": "directory", "path": "path", "title": "title", "version": "version", "agent": "agent", "cost": "cost",
}  # fmt: skip
"""Columns of a session, and the fields that hold them."""
_JSON = ("revert", "permission", "metadata", "model")
"""Columns that hold JSON."""
_TIMES = ("created", "updated", "compacting", "archived")
_TOKENS = {"input": "tokens_input", "output": "tokens_output", "reasoning": "tokens_reasoning"}
_DEFAULTS: Row = {"project_id": "global", "slug": "", "directory": "/", "title": "", "version": ""}
_MOST = 2**63
"""More than any number that a column holds."""


def info_of(row: Mapping[str, Any]) -> bytes:
    """Return what stands about a session, from its columns; those that are missing or empty are left out."""
    info = {name: _text(row[column]) for column, name in _NAMED.items() if row.get(column) is not None}
    for column in _JSON:
        if (held := _json(row.get(column))) is not None:
            info[column] = held
    times = {name: row[f"time_{name}"] for name in _TIMES if isinstance(row.get(f"time_{name}"), int | float)}
    return write(info | {"time": times})


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _json(value: Any) -> Raw | None:
    """Return a column that holds JSON, if it does."""
    data = value.encode() if isinstance(value, str) else value
    if not isinstance(data, bytes):
        return None
    try:
        return msgspec.json.decode(data, type=Raw)
    except UNREADABLE:
        return None


def rows_of(sessions: Iterable[Held]) -> dict[str, list[Row]]:
    """Return the rows of each table that hold ``sessions``."""
    out: dict[str, list[Row]] = {"project": [], "session": [], "message": [], "part": []}
    for held in sessions:
        session = _session(held)
        if all(row["id"] != session["project_id"] for row in out["project"]):
            out["project"].append(_project(session))
        out["session"].append(session)
        for stored in held.messages:
            at = INFO.of(stored.info).time.at or session["time_created"]
            stamp = {"session_id": held.id, "time_created": at, "time_updated": at}
            out["message"].append({"id": stored.id, **stamp, "data": _data(stored.info)})
            for id_, raw in stored.parts:
                out["part"].append({"id": id_, "message_id": stored.id, **stamp, "data": _data(raw)})
    return out


def _session(held: Held) -> Row:
    info = msgspec.json.decode(held.info, type=dict[str, Any])
    row = _DEFAULTS | {column: info[name] for column, name in _NAMED.items() if isinstance(info.get(name), str)}
    row |= {column: write(info[column]).decode() for column in _JSON if column in info}
    row |= {f"time_{name}": at for name, at in info["time"].items() if name in _TIMES}
    return row | {"cost": float(_amount(info, "cost"))} | _tokens(info.get("tokens"))


def _tokens(told: Any) -> Row:
    return {column: _amount(told, name) for name, column in _TOKENS.items()}


def _amount(told: Any, name: str) -> int | float:
    """Return the number that ``told`` has under ``name``, 0 where there is none that a column holds."""
    found = told.get(name) if isinstance(told, dict) else None
    return found if isinstance(found, int | float) and abs(found) < _MOST else 0


def _project(session: Row) -> Row:
    times = {name: session[name] for name in ("time_created", "time_updated")}
    return {"id": session["project_id"], "worktree": session["directory"], "sandboxes": "[]", **times}


def _data(raw: bytes) -> str:
    """Return the column ``data``: an object without its id, which is a column too."""
    return write({key: value for key, value in fields(raw).items() if key != "id"}).decode()
