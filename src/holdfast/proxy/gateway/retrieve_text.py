"""Read back a text that messages of a gateway stand for, by its hash: ``GET /v1/retrieve/HASH``.

Only texts that the conversation's own log names are found: with the gateway's name for the conversation those of that
conversation, without one those of conversations that were sent without a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, unquote

from msgspec import Struct

from holdfast.engine.recall import recall_page
from holdfast.engine.recall_sources import TextSource, find_text_source
from holdfast.errors import FormatError, UnknownId
from holdfast.messages.text.search import MAX_ALTERNATIVES, MAX_QUERY_CHARS
from holdfast.proxy.gateway.compress_request import is_unnamed_session_key, list_named_session_keys
from holdfast.store.base import SessionStore

MAX_RETRIEVED_CHARS = 200_000
"""Characters that are returned at once, some 50,000 tokens. Gateways put them into the conversation as they are, so a
larger text would overflow most windows. Chosen by judgement."""
MAX_SEARCHED_SESSIONS = 1_000
"""Sessions without a name, the newest first, that are searched for a hash. Chosen by judgement."""
_HASH_PATTERN = re.compile(r"[0-9a-f]{12,64}\Z")
_WORD_PATTERN = re.compile(r"[^\W_]{3,}")


class RetrieveRequest(Struct, frozen=True):
    """A request for a stored text, or for a part of it."""

    hash: str
    affinity: str = ""
    query: str = ""
    """Words to look for; the lines with them are returned."""
    lines: str = ""
    """Lines, counted from 1: ``12-480``."""
    chars: str = ""
    """Characters, counted from 0: ``0-4000``."""


def parse_retrieve_request(hash_segment: str, query_string: str, affinity: str) -> RetrieveRequest:
    """Return the request for the last segment of a path and its query string; raise ``FormatError`` for no hash."""
    hash_ = unquote(hash_segment).strip().lower()
    if not _HASH_PATTERN.match(hash_):
        raise FormatError(
            f"{hash_[:80]!r} in the path is no hash: those have 12 or more hexadecimal digits; give one of ccr_hashes"
        )
    values = parse_qs(query_string)

    def get_value(name: str) -> str:
        return values.get(name, [""])[0]

    return RetrieveRequest(hash_, affinity, get_value("query"), get_value("lines"), get_value("chars"))


def retrieve_text(store: SessionStore, request: RetrieveRequest) -> dict[str, Any]:
    """Return the answer as JSON values. Reads the store, so it is called in the worker.

    Raises ``UnknownId`` if the conversation has no such text, and ``FormatError`` for a range that does not exist.
    """
    key, source = _find_text(store, request)
    answer: dict[str, Any] = {"hash": source.id, "total_chars": source.extent.chars}
    if request.lines or request.chars:
        page = recall_page(store, key, request.hash, lines=request.lines, chars=request.chars)
        return {"original_content": page.text, **answer, "truncated": page.next_arguments is not None}
    if request.query:
        matches = _search_text(store, key, request)
        if matches:
            heading = f"[The lines that match, of {source.extent.chars:,} characters; leave out query for all of them]"
            return {"original_content": f"{heading}\n{matches}", **answer, "truncated": True}
    text = source.read_text(0, min(source.extent.chars, MAX_RETRIEVED_CHARS))
    is_truncated = len(text) < source.extent.chars
    if is_truncated:
        text += (
            f"\n[The first {len(text):,} of {source.extent.chars:,} characters; ask again with query for the lines "
            "that match it]"
        )
    return {"original_content": text, **answer, "truncated": is_truncated}


def _find_text(store: SessionStore, request: RetrieveRequest) -> tuple[str, TextSource]:
    """Return the text with the session that names it."""
    for key in _list_candidate_keys(store, request.affinity):
        with suppress(UnknownId):
            return key, find_text_source(store, key, request.hash)
    raise UnknownId(
        f"no text of this conversation has the hash {request.hash[:80]!r}; give one of ccr_hashes, with the same "
        "x-headroom-affinity as the call that returned it"
    )


def _list_candidate_keys(store: SessionStore, affinity: str) -> Iterator[str]:
    if affinity:
        yield from list_named_session_keys(affinity)
        return
    sessions = [info for info in store.list_sessions() if is_unnamed_session_key(info.key)]
    sessions.sort(key=lambda info: info.updated_at or 0, reverse=True)
    for info in sessions[:MAX_SEARCHED_SESSIONS]:
        yield info.key


def _search_text(store: SessionStore, key: str, request: RetrieveRequest) -> str:
    """Return the lines with the whole query, or else those with any of its words; empty if there are none."""
    query = request.query[:MAX_QUERY_CHARS]
    words = list(dict.fromkeys(_WORD_PATTERN.findall(query.lower())))
    for pattern in (query, "|".join(words[:MAX_ALTERNATIVES])):
        if not pattern:
            continue
        with suppress(FormatError):
            page = recall_page(store, key, request.hash, search=pattern)
            if page.match_count:
                return page.text
    return ""
