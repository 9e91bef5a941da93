"""What every adapter lets its user choose, and the histories that it keeps open."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from holdfast.events import Event
from holdfast.integrations.common.agent_history import AgentHistory
from holdfast.planning.pipeline import Policy
from holdfast.store.base import SessionStore
from holdfast.store.open_store import open_store

MAX_OPEN_HISTORIES = 256
"""Conversations that are kept open; those of the others are read from the log again. Chosen by judgement."""
_LOG = logging.getLogger("holdfast.integrations")


class AgentHistories:
    """The conversations of the agents that one adapter serves, in one store.

    ``store`` is a store, or the path of one; by default that of the command line, so that ``holdfast ls``, ``stats``
    and ``recall`` know the conversations.
    """

    def __init__(
        self,
        store: SessionStore | str | os.PathLike[str] | None = None,
        policy: Policy = Policy(),
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        self._store = store
        self._policy = policy
        self._listener = listener
        self._lock = Lock()
        self._open_store: SessionStore | None = None
        self._histories: OrderedDict[str, AgentHistory] = OrderedDict()
        """By key; the one used last is last."""
        self._told: set[str] = set()

    def open(self, key: str) -> AgentHistory:
        """Return the conversation called ``key``. Raises ``StoreError`` if the store cannot be opened."""
        with self._lock:
            history = self._histories.pop(key, None)
            if history is None:
                history = AgentHistory(self._get_store(), key, self._policy, self._listener)
            self._histories[key] = history
            while len(self._histories) > MAX_OPEN_HISTORIES:
                self._histories.popitem(last=False)
            return history

    def warn_once(self, error: Exception) -> None:
        """Log that Holdfast could not help, once for each kind of error: the agent goes on as without it."""
        kind = type(error).__name__
        if kind not in self._told:
            self._told.add(kind)
            _LOG.warning("holdfast shows the model the whole history: %s: %s", kind, error)

    def _get_store(self) -> SessionStore:
        if self._open_store is None:
            if isinstance(self._store, str | os.PathLike):
                self._open_store = open_store(self._store)
            elif self._store is None:
                self._open_store = open_store(_find_usual_store())
            else:
                self._open_store = self._store
        return self._open_store


def _find_usual_store() -> str:
    """Return the path of the store that the commands use."""
    from platformdirs import user_data_path

    return os.environ.get("HOLDFAST_STORE") or str(user_data_path("holdfast", appauthor=False) / "holdfast.db")
