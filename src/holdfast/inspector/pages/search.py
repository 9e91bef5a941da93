"""Search over everything that was said in all sessions."""

from __future__ import annotations

from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.inspector.sources import InspectedStore
from holdfast.store.base import SearchHit, SessionInfo

HITS_PER_SESSION = 5
MAX_HITS = 100
"""Both chosen by judgement: a screen or two; more words narrow it down."""


class SessionHits(Struct, frozen=True):
    """What was found in one session, the newest first."""

    info: SessionInfo
    hits: tuple[SearchHit, ...]
    has_more: bool
    problem: str = ""
    """Why it could not be searched; empty if it could."""


class SearchPage(Struct, frozen=True):
    """The sessions in which the words were found, the most recently changed first."""

    query: str
    results: tuple[SessionHits, ...]
    searched_count: int
    total_count: int


def load_search_page(source: InspectedStore, query: str, session: str = "") -> SearchPage:
    """Search all sessions, or only ``session``, for the words of ``query``; with no words nothing is found."""
    infos = [source.get_session(session)] if session else source.store.list_sessions()
    results: list[SessionHits] = []
    searched_count = hit_count = 0
    limit = MAX_HITS if session else HITS_PER_SESSION
    for info in infos if query.strip() else ():
        if hit_count >= MAX_HITS:
            break
        searched_count += 1
        try:
            hits = source.store.search_session(info.key, query, limit + 1)
        except HoldfastError as error:
            results.append(SessionHits(info, (), has_more=False, problem=str(error)))
            continue
        if hits:
            results.append(SessionHits(info, tuple(hits[:limit]), has_more=len(hits) > limit))
            hit_count += len(hits[:limit])
    return SearchPage(query, tuple(results), searched_count, len(infos))
