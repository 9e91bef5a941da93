"""The sessions of another tool's database, listed and chosen by the beginning of an id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from holdfast.errors import UnknownId
from holdfast.formats.base import Recording

_MAX_LISTED_IDS = 5
"""Number of session ids that an error lists."""


class ForeignSessionRow(Struct, frozen=True):
    """A session of a database as a list shows it."""

    id: str
    parent: str = ""
    """Id of the session that started it as a sub-agent; empty for a root."""
    title: str = ""


class ForeignDatabase(Protocol):
    """An open database of another tool."""

    def list_root_sessions(self, id_prefix: str = "") -> list[ForeignSessionRow]:
        """Return the sessions that are not a sub-agent's, the newest last; or the one whose id begins with
        ``id_prefix``.

        Raises ``UnknownId``, with the newest candidates, if there is no such session or more than one.
        """

    def read_recording(self, id_: str) -> Recording:
        """Return a session with those of its sub-agents.

        Raises ``StoreLocked`` if the tool wrote in the meantime.
        """


def choose_sessions(sessions: Mapping[str, ForeignSessionRow], id_prefix: str) -> list[ForeignSessionRow]:
    """Choose from the sessions of a database, by id and oldest first, as ``list_root_sessions`` says."""
    if id_prefix and id_prefix in sessions:
        return [sessions[id_prefix]]
    roots = [session for session in sessions.values() if session.parent not in sessions]
    if not id_prefix:
        return roots
    matches = [session for session in sessions.values() if session.id.startswith(id_prefix)]
    if len(matches) == 1:
        return matches
    problem = "several sessions begin" if matches else "no session begins"
    candidates = matches or roots
    recent_ids = ", ".join(session.id for session in candidates[-_MAX_LISTED_IDS:])
    raise UnknownId(f"{problem} with {id_prefix!r}; the last ones are {recent_ids or 'none, the database is empty'}")


def list_descendants(sessions: Mapping[str, ForeignSessionRow], id_: str) -> list[str]:
    """Return the ids of the sessions of sub-agents below ``id_``, nearest first."""
    found_ids = [id_]
    for parent_id in found_ids:  # grows while it is walked
        for session in sessions.values():
            if session.parent == parent_id and session.id not in found_ids:
                found_ids.append(session.id)
    return found_ids[1:]
