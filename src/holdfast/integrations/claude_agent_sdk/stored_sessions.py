"""Find the sessions of an agent in the store that its proxy records into."""

from __future__ import annotations

from holdfast.config.files import get_target
from holdfast.engine.log.journal import Journal
from holdfast.engine.session import Report, build_report
from holdfast.planning.pipeline import Policy
from holdfast.proxy.conversation.clients import make_claude_code_scope
from holdfast.store.base import SessionStore
from holdfast.store.open_store import open_store

API = "anthropic"


class StoredSessions:
    """The sessions of Claude Code in the store at ``path``. It is opened for each question: others write to it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def open(self) -> SessionStore:
        """Open the store to read. Raises ``StoreError`` if it cannot be read."""
        return open_store(self._path, readonly=True)

    def list_keys(self, store: SessionStore, session_id: str, agent_id: str = "") -> list[str]:
        """Return the keys of the sessions in ``store`` that one conversation of Claude Code has, the newest first.

        ``agent_id`` names a sub-agent, which is a conversation of its own.
        """
        prefix = f"claude-code-{make_claude_code_scope(session_id, agent_id)}-"
        return [info.key for info in store.list_sessions() if info.key.startswith(prefix)]

    def get_report(self, session_id: str, agent_id: str = "") -> Report | None:
        """Return how full the context of a conversation is; None if no request of it was recorded.

        Raises ``StoreError`` if the store cannot be read.
        """
        with self.open() as store:
            for key in self.list_keys(store, session_id, agent_id):
                report = _build_stored_report(store, key)
                if report is not None:
                    return report
        return None


def _build_stored_report(store: SessionStore, key: str) -> Report | None:
    leaf = store.get_session(key).leaf_id
    if leaf is None:
        return None
    # With a leaf nothing is written.
    journal = Journal.open(store, key, Policy(), leaf=leaf)
    last_request = journal.state.last_request
    if not last_request.model:
        return None
    window = last_request.configured_window or None
    return build_report(journal, get_target(API, last_request.model, window=window, setup=journal.state.setup))
