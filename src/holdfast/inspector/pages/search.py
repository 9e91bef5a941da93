"""Search over everything that was said in all sessions."""

from __future__ import annotations

from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.inspector.sources import InspectedStore
from holdfast.state.entries import CompactionEntry, DecisionEntry
from holdfast.store.base import SearchHit, SessionInfo

HITS_PER_SESSION = 5
HITS_OF_NEAR_SESSION = 20
MAX_HITS = 100
"""All chosen by judgement: a screen or two; more words narrow it down. Of the session from whose page the reader comes
there are more, since what is looked for is often its oldest hit."""


class FoundText(Struct, frozen=True):
    """A place where the words were found."""

    kind: str
    """Role of the message, ``summary``, or ``stored text``."""
    name: str
    """What the message's page is named by: the entry of a message or of a compaction, or the number of a message."""
    at: int | None
    snippet: str
    """The text around the first match, the match between « and »."""


class SessionHits(Struct, frozen=True):
    """What was found in one session, the newest first."""

    info: SessionInfo
    hits: tuple[FoundText, ...]
    has_more: bool
    problem: str = ""
    """Why it could not be searched; empty if it could."""


class SearchPage(Struct, frozen=True):
    """The sessions in which the words were found, the most recently changed first."""

    query: str
    results: tuple[SessionHits, ...]
    searched_count: int
    total_count: int
    near: SessionInfo | None = None
    """The session from whose page the reader searched; it comes first."""


def load_search_page(source: InspectedStore, query: str, session: str = "", near: str = "") -> SearchPage:
    """Search all sessions, or only ``session``, for the words of ``query``; with no words nothing is found.

    The session called ``near``, if there is one, comes before the others.
    """
    infos = [source.get_session(session)] if session else source.store.list_sessions()
    infos.sort(key=lambda info: info.key != near)
    results: list[SessionHits] = []
    searched_count = hit_count = 0
    for info in infos if query.strip() else ():
        if hit_count >= MAX_HITS:
            break
        searched_count += 1
        limit = HITS_OF_NEAR_SESSION if info.key == near else HITS_PER_SESSION
        limit = MAX_HITS if session else limit
        try:
            hits = source.store.search_session(info.key, query, limit + 1)
        except HoldfastError as error:
            results.append(SessionHits(info, (), has_more=False, problem=str(error)))
            continue
        if hits:
            found = tuple(describe_hit(source, info, hit) for hit in hits[:limit])
            results.append(SessionHits(info, found, has_more=len(hits) > limit))
            hit_count += len(found)
    near_info = infos[0] if near and infos and infos[0].key == near else None
    return SearchPage(query, tuple(results), searched_count, len(infos), near_info)


def describe_hit(source: InspectedStore, info: SessionInfo, hit: SearchHit) -> FoundText:
    """Describe what a hit is a part of: a summary enters as a message of the user, which it is not."""
    kind, name = hit.role or "stored text", hit.entry_id
    # Of messages only those of the user are read: a summary is said in that role, and results are large.
    if hit.role == "user" or hit.blob_hash:
        body = source.store.get_entry(info.key, hit.entry_id).body
        if isinstance(body, CompactionEntry):
            kind = "summary" if not hit.blob_hash else kind
        elif isinstance(body, DecisionEntry):
            numbers = [edit.span.start for edit in body.edits if edit.blob_hash == hit.blob_hash]
            name = str(numbers[0]) if numbers else name
    return FoundText(kind, name, hit.time_ms, hit.snippet)
