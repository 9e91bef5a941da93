"""Where the pages read from: a store, which others may be writing to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from msgspec import Struct

from holdfast.config import Configuration
from holdfast.errors import StoreReadOnly
from holdfast.inspector.comparison.jobs import Comparisons
from holdfast.reports.messages.read_backs import MAX_CALL_TOKENS, RecallCall, list_recall_calls
from holdfast.reports.sessions.session_lock import open_journal_at_leaf
from holdfast.reports.sessions.timeline import Timeline, load_timeline
from holdfast.store.base import SessionInfo, SessionStore

KEPT_TIMELINES = 50
"""Sessions whose timelines are kept in memory. Chosen by judgement: two pages of the list; one of 5,000 requests has
some megabytes."""


class InspectedStore:
    """A store as the pages read it. Safe to use from several threads."""

    def __init__(
        self,
        store: SessionStore,
        configuration: Configuration,
        *,
        name: str,
        open_writer: Callable[[], SessionStore] | None = None,
        location: str = "",
    ) -> None:
        """``name`` is what pages call it: the path of the store, or of the file that was opened. ``open_writer`` opens
        the same store for writing; without one, no decision can be undone from a page. ``location`` is the store as
        ``open_store`` takes it in another process; without it, no policies can be compared.
        """
        self.store = store
        self.configuration = configuration
        self.name = name
        self._open_writer = open_writer
        self.comparisons = Comparisons(location)
        self._lock = Lock()
        self._timelines: OrderedDict[str, _KnownTimeline] = OrderedDict()
        self._recall_calls: OrderedDict[str, _KnownCalls] = OrderedDict()

    def get_session(self, key: str) -> SessionInfo:
        """Return the session called ``key``, or the only one that begins so. Raises ``UnknownId``."""
        return self.store.get_session(key)

    @property
    def is_writable(self) -> bool:
        """Whether decisions may be undone from a page."""
        return self._open_writer is not None

    def undo_decision(self, info: SessionInfo, entry_id: str, *, is_restored: bool = False) -> None:
        """Undo a decision of a session, so that what it reduced is shown in full again; or restore an undone one.

        Raises ``StoreReadOnly`` if the store cannot be written, ``StoreLocked`` if another process holds the session,
        and ``UnknownId`` if the decision is not in force, or not undone.
        """
        if self._open_writer is None:
            raise StoreReadOnly(f"{self.name} is only read here, so nothing can be undone or restored in it")
        with self._open_writer() as store, open_journal_at_leaf(store, info.key) as journal:
            change = journal.restore_decisions if is_restored else journal.revoke_decisions
            change(entry_id)

    def load_timeline(self, info: SessionInfo) -> Timeline:
        """Return the timeline of a session's current branch; read again only if the session was changed since."""
        version = (info.leaf_id, info.entry_count)
        with self._lock:
            known = self._timelines.get(info.key)
            if known is not None and known.version == version:
                self._timelines.move_to_end(info.key)
                return known.timeline
        timeline = load_timeline(self.store, info, self.configuration.catalog)
        with self._lock:
            self._timelines[info.key] = _KnownTimeline(version, timeline)
            while len(self._timelines) > KEPT_TIMELINES:
                self._timelines.popitem(last=False)
        return timeline

    def load_recall_calls(self, info: SessionInfo) -> tuple[RecallCall, ...]:
        """Return the session's calls of the recall tool; only entries that are new since the last time are read."""
        with self._lock:
            known = self._recall_calls.get(info.key)
        if known is None or known.entry_count > info.entry_count:
            known = _KnownCalls()
        if known.entry_count < info.entry_count:
            new_entries = self.store.read_entries(info.key, "message", after=known.last_seq, max_tokens=MAX_CALL_TOKENS)
            last_seq = new_entries[-1].seq if new_entries else known.last_seq
            known = _KnownCalls(info.entry_count, last_seq, (*known.calls, *list_recall_calls(new_entries)))
            with self._lock:
                self._recall_calls[info.key] = known
                while len(self._recall_calls) > KEPT_TIMELINES:
                    self._recall_calls.popitem(last=False)
        return known.calls


class _KnownCalls(Struct, frozen=True):
    entry_count: int = 0
    last_seq: int = 0
    calls: tuple[RecallCall, ...] = ()


class _KnownTimeline(Struct, frozen=True):
    version: tuple[str | None, int]
    timeline: Timeline
