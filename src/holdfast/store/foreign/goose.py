"""The database of goose (``sessions.db``, versions 1.10 and later), read without writing to it.

Columns come and go with its versions, so only those that are there are asked for. Other tables (schedules, providers,
projects) are not read.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import UnrecognizedContent
from holdfast.formats.base import Recording
from holdfast.formats.goose.read import GooseStoredMessage, GooseStoredSession, build_goose_recording
from holdfast.store.foreign.session_list import ForeignSessionRow, choose_sessions, list_descendants
from holdfast.store.foreign.sqlite_files import (
    StableDatabase,
    decode_column_text,
    encode_column_value,
    get_column_number,
    translate_sqlite_errors,
)

GOOSE_TABLES = frozenset({"sessions", "messages", "schema_version"})
"""Tables by which the database is recognized."""
_REQUIRED_COLUMNS = {"sessions": {"id"}, "messages": {"id", "session_id", "role", "content_json"}}
"""Columns without which no session can be read; others may be missing, as in older versions."""
_SESSION_COLUMNS = (
    "id", "parent_session_id", "name", "description", "working_dir", "provider_name", "model_config_json",
)  # fmt: skip
_MESSAGE_COLUMNS = ("id", "message_id", "role", "content_json", "created_timestamp", "metadata_json")


class GooseDatabase:
    """An open database of goose."""

    def __init__(self, database: StableDatabase) -> None:
        self._database = database
        self._columns = {table: database.list_columns(table) for table in _REQUIRED_COLUMNS}
        missing: list[str] = []
        for table, names in _REQUIRED_COLUMNS.items():
            missing += [f"{table}.{name}" for name in names - self._columns[table]]
        if missing:
            raise UnrecognizedContent(
                f"this resembles the database of goose, but {', '.join(sorted(missing))} is missing; goose keeps its "
                "sessions in ~/.local/share/goose/sessions/sessions.db"
            )
        self._rows: dict[str, dict[str, bytes]] = {}
        """The columns of each session, by its id."""
        self._sessions: dict[str, ForeignSessionRow] = {}
        self._read_sessions()

    def _read_sessions(self) -> None:
        """Read all sessions, oldest first."""
        order = "created_at, id" if "created_at" in self._columns["sessions"] else "id"
        query = f"SELECT {self._list_selected('sessions', _SESSION_COLUMNS)} FROM sessions ORDER BY {order}"  # noqa: S608
        for values in self._database.connection.execute(query):
            row = dict(zip(_SESSION_COLUMNS, map(encode_column_value, values), strict=True))
            id_, parent, name, description, *_ = map(decode_column_text, row.values())
            self._rows[id_] = row
            self._sessions[id_] = ForeignSessionRow(id_, parent, name or description)

    def _list_selected(self, table: str, names: tuple[str, ...]) -> str:
        """Return what to select: each column by name, or NULL if this version has none of that name."""
        return ", ".join(name if name in self._columns[table] else "NULL" for name in names)

    def list_root_sessions(self, id_prefix: str = "") -> list[ForeignSessionRow]:
        """Return the sessions that are not a sub-agent's, oldest first; or the one whose id begins with ``id_prefix``.

        Raises ``UnknownId``, with the newest candidates, if there is no such session or more than one.
        """
        return choose_sessions(self._sessions, id_prefix)

    def read_recording(self, id_: str) -> Recording:
        """Return a session with those of its sub-agents, at any depth.

        Raises ``StoreLocked`` if goose wrote in the meantime.
        """
        with translate_sqlite_errors(self._database.path):
            subagents = [self._read_one_recording(child) for child in list_descendants(self._sessions, id_)]
            recording = self._read_one_recording(id_, tuple(subagents))
        self._database.raise_if_changed()
        return recording

    def _read_one_recording(self, id_: str, sidechains: tuple[Recording, ...] = ()) -> Recording:
        row = self._rows[id_]
        # goose's own order: a message that was prepared early gets the time of the newest one.
        has_time = "created_timestamp" in self._columns["messages"]
        order = "created_timestamp, id" if has_time else "id"
        columns = self._list_selected("messages", _MESSAGE_COLUMNS)
        query = f"SELECT {columns} FROM messages WHERE session_id = ? ORDER BY {order}"  # noqa: S608 -- our names
        values = self._database.connection.execute(query, (id_,))
        session = GooseStoredSession(
            id=id_,
            title=self._sessions[id_].title,
            folder=decode_column_text(row["working_dir"]),
            provider=decode_column_text(row["provider_name"]),
            model_config=row["model_config_json"],
            messages=[_to_stored_message(*message) for message in values],
        )
        return build_goose_recording(session, sidechains)


def _to_stored_message(
    number: int, message_id: Any, role: Any, content: Any, created: Any, metadata: Any
) -> GooseStoredMessage:
    return GooseStoredMessage(
        id=decode_column_text(message_id) or f"row-{number}",
        role=decode_column_text(role),
        content=encode_column_value(content),
        created=get_column_number(created),
        metadata=encode_column_value(metadata),
    )
