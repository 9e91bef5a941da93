"""The database of an OpenClaw agent (``openclaw-agent.sqlite``, versions 2026.8 and later), read without writing to it.

The same file holds logins, tokens and devices. Only the tables and columns named here are read: events of sessions,
what session they belong to, and its name.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import zstandard

from holdfast.errors import UnrecognizedContent
from holdfast.formats.base import Recording
from holdfast.formats.openclaw.read import OpenclawStoredEvent, OpenclawStoredSession, build_openclaw_recording
from holdfast.store.foreign.session_list import ForeignSessionRow, choose_sessions, list_descendants
from holdfast.store.foreign.sqlite_files import (
    StableDatabase,
    decode_column_text,
    encode_column_value,
    get_column_number,
    translate_sqlite_errors,
)

EVENT_TABLE = "transcript_events"
EVENT_COLUMNS = frozenset({"session_id", "seq", "event_json"})
"""Columns by which the table of events is recognized."""
MAX_EVENT_BYTES = 64 * 1024 * 1024
"""Bytes to which a compressed event may expand. OpenClaw compresses none above 4 MiB; with room for later versions."""
_WINDOW_TABLES = ("session_windows", "sessions")
"""Names of the table with a row for each session: since 2026.8, and before."""
_WINDOW_COLUMNS = (
    "session_id", "session_key", "parent_session_key", "spawned_by", "display_name", "started_at", "created_at",
)  # fmt: skip
_NODE_COLUMNS = ("session_key", "current_session_id", "parent_session_key", "spawned_by", "label", "display_name")
_SUBAGENT_KEY = ":subagent:"
"""What the key of a sub-agent's conversation contains. Other conversations with a parent are forks and threads."""


class _Window(NamedTuple):
    """A session: a conversation has one after another, and all of these have its key."""

    id: str
    key: str = ""
    parent_key: str = ""
    """Key of the conversation that started it as a sub-agent; empty for any other."""
    title: str = ""
    started: float = 0


class OpenclawDatabase:
    """An open database of an OpenClaw agent."""

    def __init__(self, database: StableDatabase) -> None:
        self._database = database
        tables = (EVENT_TABLE, *_WINDOW_TABLES, "session_nodes", "session_entries")
        self._columns = {table: database.list_columns(table) for table in tables}
        missing = sorted(f"{EVENT_TABLE}.{name}" for name in EVENT_COLUMNS - self._columns[EVENT_TABLE])
        if missing:
            raise UnrecognizedContent(f"this resembles the database of OpenClaw, but {', '.join(missing)} is missing")
        self._archived_counts = self._read_archived_counts()
        self._sessions = self._list_sessions()

    def list_root_sessions(self, id_prefix: str = "") -> list[ForeignSessionRow]:
        """Return the sessions that are not a sub-agent's, the one with the newest event last; or the one whose id
        begins with ``id_prefix``.

        Raises ``UnknownId``, with the newest candidates, if there is no such session or more than one.
        """
        return choose_sessions(self._sessions, id_prefix)

    def read_recording(self, id_: str) -> Recording:
        """Return a session with those of its sub-agents, at any depth.

        Raises ``StoreLocked`` if OpenClaw wrote in the meantime.
        """
        with translate_sqlite_errors(self._database.path):
            subagents = [self._read_one_recording(child) for child in list_descendants(self._sessions, id_)]
            recording = self._read_one_recording(id_, tuple(subagents))
        self._database.raise_if_changed()
        return recording

    def _list_selected(self, table: str, names: tuple[str, ...]) -> str:
        """Return what to select: each column by name, or NULL if this version has none of that name."""
        return ", ".join(name if name in self._columns[table] else "NULL" for name in names)

    def _read_archived_counts(self) -> dict[str, int]:
        """Return how many events of each session OpenClaw moved out of the database."""
        table = "session_transcript_cold_archives"
        if not {"session_id", "event_count"} <= self._database.list_columns(table):
            return {}
        rows = self._database.connection.execute(f"SELECT session_id, event_count FROM {table}")  # noqa: S608
        return {decode_column_text(id_): int(get_column_number(count)) for id_, count in rows}

    def _list_sessions(self) -> dict[str, ForeignSessionRow]:
        """Return the sessions that have events, by their id, the one with the newest event last."""
        newest_time = "MAX(created_at)" if "created_at" in self._columns[EVENT_TABLE] else "MAX(seq)"
        query = f"SELECT session_id, {newest_time} FROM {EVENT_TABLE} GROUP BY session_id"  # noqa: S608 -- our names
        times = {decode_column_text(id_): get_column_number(at) for id_, at in self._database.connection.execute(query)}
        windows = self._read_windows()
        for id_ in self._archived_counts:
            times.setdefault(id_, windows[id_].started if id_ in windows else 0)
        sessions = {}
        for id_ in sorted(times, key=lambda id_: (times[id_], id_)):
            window = windows.get(id_, _Window(id_))
            parent = _find_parent_window(window, windows)
            sessions[id_] = ForeignSessionRow(id_, parent, window.title)
        return sessions

    def _read_windows(self) -> dict[str, _Window]:
        """Return what is known of each session, by its id."""
        table = next((name for name in _WINDOW_TABLES if "session_id" in self._columns[name]), "")
        if not table:
            return {}
        nodes = self._read_nodes()
        keys = self._read_old_keys()
        windows = {}
        selected = self._list_selected(table, _WINDOW_COLUMNS)
        for values in self._database.connection.execute(f"SELECT {selected} FROM {table}"):  # noqa: S608 -- our names
            *texts, started, created = values
            id_, key, parent_key, spawned_by, title = map(decode_column_text, texts)
            key = key or keys.get(id_, "")
            node = nodes.get(key, {})
            parent_key = spawned_by or node.get("spawned_by") or parent_key or node.get("parent_session_key", "")
            windows[id_] = _Window(
                id=id_,
                key=key,
                parent_key=parent_key if _SUBAGENT_KEY in key else "",
                title=node.get("label") or node.get("display_name") or title,
                started=get_column_number(started) or get_column_number(created),
            )
        return windows

    def _read_nodes(self) -> dict[str, dict[str, str]]:
        """Return the columns of each conversation, by its key."""
        if "session_key" not in self._columns["session_nodes"]:
            return {}
        nodes = {}
        query = f"SELECT {self._list_selected('session_nodes', _NODE_COLUMNS)} FROM session_nodes"  # noqa: S608
        for values in self._database.connection.execute(query):
            row = dict(zip(_NODE_COLUMNS, map(decode_column_text, values), strict=True))
            nodes[row["session_key"]] = row
        return nodes

    def _read_old_keys(self) -> dict[str, str]:
        """Return the key of the conversation of each session as versions before 2026.8 stored it."""
        if not {"session_key", "session_id"} <= self._columns["session_entries"]:
            return {}
        rows = self._database.connection.execute("SELECT session_id, session_key FROM session_entries")
        return {decode_column_text(id_): decode_column_text(key) for id_, key in rows}

    def _read_one_recording(self, id_: str, sidechains: tuple[Recording, ...] = ()) -> Recording:
        columns = self._list_selected(EVENT_TABLE, ("seq", "event_json", "event_zstd", "event_utf8_bytes"))
        query = f"SELECT {columns} FROM {EVENT_TABLE} WHERE session_id = ? ORDER BY seq"  # noqa: S608 -- our names
        events = []
        for seq, text, compressed, size in self._database.connection.execute(query, (id_,)):
            if text is not None:
                events.append(OpenclawStoredEvent(encode_column_value(text)))
                continue
            content, fault = _decompress_event(compressed, size)
            if not fault:
                events.append(OpenclawStoredEvent(content))
                continue
            event_id, parent = self._find_identity(id_, seq)
            events.append(OpenclawStoredEvent(b"", fault, event_id, parent))
        session = OpenclawStoredSession(
            id=id_,
            title=self._sessions[id_].title,
            events=events,
            archived_count=self._archived_counts.get(id_, 0),
            queued_count=self._count_queued_inputs(id_),
        )
        return build_openclaw_recording(session, sidechains)

    def _find_identity(self, session: str, seq: Any) -> tuple[str, str | None]:
        """Return the id of an event and that of the one before it; an empty id if the database does not know it."""
        table = "transcript_event_identities"
        if not {"session_id", "seq", "event_id", "parent_id"} <= self._database.list_columns(table):
            return "", None
        query = f"SELECT event_id, parent_id FROM {table} WHERE session_id = ? AND seq = ?"  # noqa: S608 -- our names
        row = self._database.connection.execute(query, (session, seq)).fetchone()
        if row is None:
            return "", None
        return decode_column_text(row[0]), decode_column_text(row[1]) or None

    def _count_queued_inputs(self, session: str) -> int:
        """Return how many messages were accepted and not used by any turn yet."""
        table = "session_pending_inputs"
        if not {"session_id", "state", "consumed_event_id"} <= self._database.list_columns(table):
            return 0
        condition = "session_id = ? AND state = 'queued' AND consumed_event_id IS NULL"
        query = f"SELECT COUNT(*) FROM {table} WHERE {condition}"  # noqa: S608 -- our names
        return int(self._database.connection.execute(query, (session,)).fetchone()[0])


def _find_parent_window(window: _Window, windows: dict[str, _Window]) -> str:
    """Return the id of the session that started ``window`` as a sub-agent, or an empty string.

    The parent's conversation may have had several sessions: it is the newest that began before the sub-agent.
    """
    if not window.parent_key or window.parent_key == window.key:
        return ""
    candidates = [other for other in windows.values() if other.key == window.parent_key]
    earlier = [other for other in candidates if other.started <= window.started] or candidates
    return max(earlier, key=lambda other: (other.started, other.id)).id if earlier else ""


def _decompress_event(compressed: Any, size: Any) -> tuple[bytes, str]:
    """Return the JSON of a compressed event, and why it cannot be had; one of the two is empty."""
    if not isinstance(compressed, bytes):
        return b"", "the row has no content"
    try:
        # A frame tells its size before it is expanded; one that claims too much is not.
        if zstandard.frame_content_size(compressed) > MAX_EVENT_BYTES:
            return b"", f"it would be longer than {MAX_EVENT_BYTES:,} bytes"
        content = zstandard.ZstdDecompressor().decompress(compressed, max_output_size=MAX_EVENT_BYTES)
    except zstandard.ZstdError as error:
        return b"", f"its compressed content is damaged ({error})"
    if isinstance(size, int) and size != len(content):
        return b"", f"its compressed content has {len(content):,} bytes instead of {size:,}"
    return content, ""
