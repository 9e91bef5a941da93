"""Which sessions a report is about: by folder, by model, by the tool that they come from."""

from __future__ import annotations

from fnmatch import fnmatchcase

from msgspec import Struct

from holdfast.reports.sessions.watched_sessions import find_session_client
from holdfast.store.base import SessionInfo, SessionStore


class SessionFilter(Struct, frozen=True):
    """What sessions must be like; an empty field allows all."""

    session: str = ""
    """The id of the only session."""
    project: str = ""
    """An absolute folder: that of the session, or one above it."""
    model: str = ""
    """A model, or a pattern with ``*``; case does not count."""
    tool: str = ""
    """The client, API or tool that the session comes from; case does not count."""

    def matches_session(self, info: SessionInfo) -> bool:
        """Return whether a session matches in all but its models, which only its log tells."""
        if self.session and info.key != self.session:
            return False
        if self.tool and find_session_client(info).casefold() != self.tool.casefold():
            return False
        return not self.project or _is_folder_within(info.cwd, self.project)

    def matches_model(self, model: str) -> bool:
        """Return whether ``model`` is the one that is asked for."""
        return not self.model or fnmatchcase(model.casefold(), self.model.casefold())

    def matches_any_model(self, store: SessionStore, info: SessionInfo) -> bool:
        """Return whether any request of a session went to the model that is asked for.

        Raises ``StoreCorrupt`` if its requests cannot be read.
        """
        if not self.model:
            return True
        # The type of the body is known from the kind.
        models = {getattr(entry.body, "model", "") for entry in store.read_entries(info.key, "request")}
        return any(self.matches_model(model or info.model) for model in models or {info.model})


def _is_folder_within(folder: str, project: str) -> bool:
    """Return whether ``folder`` is ``project`` or below it. Both are texts: a recording may be another machine's."""
    start = project.rstrip("/\\")
    return folder.rstrip("/\\") == start or folder.startswith((f"{start}/", f"{start}\\"))
