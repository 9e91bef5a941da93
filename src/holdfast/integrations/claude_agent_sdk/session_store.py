"""``HoldfastSessionStore``: keeps the transcripts of the SDK's sessions in a store of Holdfast."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from anyio import to_thread
from claude_agent_sdk import SessionStore as SdkSessionStore
from platformdirs import user_data_path

from holdfast.integrations.claude_agent_sdk.transcript_log import (
    TranscriptLog,
    has_session,
    make_store_key,
    parse_store_key,
)
from holdfast.integrations.common.options import StoreChoice
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.open_store import open_store

if TYPE_CHECKING:
    from claude_agent_sdk import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
    )

Result = TypeVar("Result")
MAX_OPEN_LOGS = 256
"""Transcripts whose ids and summary are kept in memory; those of the others are read again. Chosen by judgement."""


class HoldfastSessionStore(SdkSessionStore):
    """A ``SessionStore`` of the SDK: ``ClaudeAgentOptions(session_store=HoldfastSessionStore())``.

    The SDK gives it each line of the transcripts of sessions and sub-agents, and takes them from it for ``resume``, in
    any process and on any machine that has the store. A line that the SDK gives twice is kept once. ``store`` is a
    store, or the path of one; by default ``claude-agent-sdk.db`` in the folder of the command line's store, which lists
    conversations and no transcripts. Methods may be called from several tasks and processes at once. They raise
    ``StoreError`` if the store cannot be read or written; the SDK then tries three times, and the agent goes on.
    """

    def __init__(self, store: StoreChoice = None) -> None:
        self._place = store
        self._open_store: SessionStore | None = None
        self._logs: OrderedDict[str, TranscriptLog] = OrderedDict()
        """By key; the one used last is last."""
        self._lock = Lock()
        """A store is used by one thread at a time."""

    # -- what the SDK asks of a store ----------------------------------------------------------------------------------

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append lines of a transcript, except those whose ``uuid`` is there already."""
        await self._run(lambda store: self._get_log(store, key).append(entries))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return all lines of a transcript, oldest first; None if there is none."""
        return await self._run(lambda store: self._load(store, key))

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project with the time of their last change, sub-agents aside."""
        infos = await self._run(lambda store: _list_infos(store, project_key))
        return [{"session_id": session_id, "mtime": info.updated_at or 0} for session_id, info in infos.items()]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the SDK's summary of each session of a project; only lines that are new are read for it."""
        return await self._run(lambda store: self._list_summaries(store, project_key))

    async def delete(self, key: SessionKey) -> None:
        """Delete a transcript for good; that of a session together with those of its sub-agents."""
        await self._run(lambda store: self._delete(store, key))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session's sub-agents."""
        return await self._run(lambda store: _list_subpaths(store, key["project_key"], key["session_id"]))

    # -- the same with the store, in a thread --------------------------------------------------------------------------

    async def _run(self, function: Callable[[SessionStore], Result]) -> Result:
        """Run ``function`` with the store in a thread, so that the agent's event loop goes on."""

        def run_locked() -> Result:
            with self._lock:
                if self._open_store is None:
                    self._open_store = _open_place(self._place)
                return function(self._open_store)

        return await to_thread.run_sync(run_locked)

    def _get_log(self, store: SessionStore, key: SessionKey) -> TranscriptLog:
        store_key = make_store_key(key["project_key"], key["session_id"], key.get("subpath", ""))
        log = self._logs.pop(store_key, None) or TranscriptLog(store, key)
        self._logs[store_key] = log
        while len(self._logs) > MAX_OPEN_LOGS:
            self._logs.popitem(last=False)
        return log

    def _load(self, store: SessionStore, key: SessionKey) -> list[SessionStoreEntry] | None:
        log = self._get_log(store, key)
        if not has_session(store, log.key):
            return None
        return log.read_lines() or None

    def _list_summaries(self, store: SessionStore, project_key: str) -> list[SessionSummaryEntry]:
        summaries: list[SessionSummaryEntry] = []
        for session_id, info in _list_infos(store, project_key).items():
            log = self._get_log(store, {"project_key": project_key, "session_id": session_id})
            log.read_new_lines()
            if log.summary is not None:
                # The time of the store, as in the list of sessions: the SDK compares the two.
                summaries.append({**log.summary, "mtime": info.updated_at or 0})
        return summaries

    def _delete(self, store: SessionStore, key: SessionKey) -> None:
        project_key, session_id, subpath = key["project_key"], key["session_id"], key.get("subpath", "")
        subpaths = [subpath] if subpath else ["", *_list_subpaths(store, project_key, session_id)]
        for deleted_subpath in subpaths:
            store_key = make_store_key(project_key, session_id, deleted_subpath)
            self._logs.pop(store_key, None)
            if has_session(store, store_key):
                store.remove_session(store_key)


def _open_place(place: StoreChoice) -> SessionStore:
    if place is None:
        return open_store(user_data_path("holdfast", appauthor=False) / "claude-agent-sdk.db")
    if isinstance(place, str | os.PathLike):
        return open_store(place)
    return place


def _list_infos(store: SessionStore, project_key: str) -> dict[str, SessionInfo]:
    """Return the sessions of a project by their ids, sub-agents aside."""
    infos = {}
    for info in store.list_sessions():
        names = parse_store_key(info.key)
        if names is not None and names[0] == project_key and not names[2]:
            infos[names[1]] = info
    return infos


def _list_subpaths(store: SessionStore, project_key: str, session_id: str) -> list[str]:
    subpaths = []
    for info in store.list_sessions():
        names = parse_store_key(info.key)
        if names is not None and names[:2] == (project_key, session_id) and names[2]:
            subpaths.append(names[2])
    return subpaths
