"""One transcript of Claude Code in the log of a store: a note for each line, in order, each line once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from claude_agent_sdk import fold_session_summary

from holdfast.errors import UnknownId
from holdfast.state.entries import Entry, NoteEntry
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.tree.tree import get_time_ms, make_entry_ids

if TYPE_CHECKING:
    from claude_agent_sdk import SessionKey, SessionStoreEntry, SessionSummaryEntry

KEY_PREFIX = "claude-agent-sdk-transcript"
"""Begins the keys of these sessions, so that they are not taken for conversations."""
FORMAT = "claude-agent-sdk"
NOTE_TRANSCRIPT_LINE = "transcript line"
"""Reason of a note with one line of a transcript, as JSON."""
SEPARATOR = ":"
"""Between the parts of a key, which are percent-encoded, so that no name can be read as another one."""


def make_store_key(project_key: str, session_id: str, subpath: str = "") -> str:
    """Return the session key of a transcript; ``subpath`` is that of a sub-agent."""
    parts = [project_key, session_id]
    if subpath:
        parts.append(subpath)
    return SEPARATOR.join([KEY_PREFIX, *(_encode_name(part) for part in parts)])


def _encode_name(name: str) -> str:
    # A step '..' is not allowed in the key of a session.
    return quote(name, safe="").replace(".", "%2E")


def parse_store_key(key: str) -> tuple[str, str, str] | None:
    """Return project, session and subpath (or an empty string) of a transcript's key; None for any other key."""
    prefix, *names = key.split(SEPARATOR)
    if prefix != KEY_PREFIX or len(names) not in {2, 3}:
        return None
    project_key, session_id, *subpath = (unquote(name) for name in names)
    return project_key, session_id, subpath[0] if subpath else ""


def has_session(store: SessionStore, key: str) -> bool:
    """Return whether ``store`` has the session with exactly this key; the store also finds the beginning of one."""
    try:
        return store.get_session(key).key == key
    except UnknownId:
        return False


class TranscriptLog:
    """What is known of one stored transcript. Only lines that are new in the log are read, each once."""

    def __init__(self, store: SessionStore, key: SessionKey) -> None:
        self.key = make_store_key(key["project_key"], key["session_id"], key.get("subpath", ""))
        self._store = store
        self._sdk_key = key
        self._seq = 0
        """Of the newest entry that was read."""
        self._leaf: str | None = None
        self._known_ids: set[str] = set()
        """The ``uuid`` of each line that has one: the SDK may give a line twice."""
        self.summary: SessionSummaryEntry | None = None
        """The SDK's summary of the lines; None without one, and for a sub-agent."""

    def append(self, lines: list[SessionStoreEntry]) -> None:
        """Append ``lines``, except those that are there already. The caller holds no lease."""
        if not lines:
            return
        with self._store.hold_lease(self.key):
            self._begin()
            # Another process may have appended since.
            self.read_new_lines()
            new_lines = self._select_new_lines(lines)
            if not new_lines:
                return
            entries = []
            parent = self._leaf
            for id_, line in zip(make_entry_ids(len(new_lines)), new_lines, strict=True):
                note = NoteEntry(NOTE_TRANSCRIPT_LINE, json.dumps(line).encode())
                entries.append(Entry(id_, parent, note, time_ms=get_time_ms()))
                parent = id_
            self._store.append_entries(self.key, entries)
            self.read_new_lines()

    def _begin(self) -> None:
        if not has_session(self._store, self.key):
            title = f"transcript of {self._sdk_key['session_id']}"
            self._store.create_session(self.key, SessionInfo(self.key, title=title, format=FORMAT))

    def _has_entry(self, entry_id: str) -> bool:
        try:
            self._store.get_entry(self.key, entry_id)
        except UnknownId:
            return False
        return True

    def read_lines(self) -> list[SessionStoreEntry]:
        """Return all lines, oldest first."""
        return _decode_lines(self._store.read_entries(self.key, "note"))

    def read_new_lines(self) -> None:
        """Read what the log has more than before."""
        if self._leaf is not None and not self._has_entry(self._leaf):
            # Another process has deleted the transcript that this one had read, and may have begun it again.
            self._seq, self._leaf, self._known_ids, self.summary = 0, None, set(), None
        entries = self._store.read_entries(self.key, "note", after=self._seq)
        lines = _decode_lines(entries)
        if entries:
            self._seq, self._leaf = entries[-1].seq, entries[-1].id
        self._known_ids.update(line["uuid"] for line in lines if line.get("uuid"))
        if lines and "subpath" not in self._sdk_key:
            self.summary = fold_session_summary(self.summary, self._sdk_key, lines)

    def _select_new_lines(self, lines: list[SessionStoreEntry]) -> list[SessionStoreEntry]:
        seen_ids = set(self._known_ids)
        new_lines = []
        for line in lines:
            line_id = line.get("uuid")
            if line_id and line_id in seen_ids:
                continue
            if line_id:
                seen_ids.add(line_id)
            new_lines.append(line)
        return new_lines


def _decode_lines(entries: list[Entry]) -> list[SessionStoreEntry]:
    """Return the lines of the transcript in ``entries``; other notes are left out."""
    lines = []
    for entry in entries:
        if isinstance(entry.body, NoteEntry) and entry.body.reason == NOTE_TRANSCRIPT_LINE:
            lines.append(json.loads(entry.body.raw))
    return lines
