"""Search for words in what was said in a session.

A query is words and no language: each of them must occur in the text, as a word or inside one, in any case; a
phrase in double quotes is searched as it is, with its blanks. A copied branch repeats its messages, so the same
text at the same time is found once, at its newest entry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from holdfast.errors import StoreError
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.text.text_runs import merge_adjacent_texts
from holdfast.state.entries import BranchSummaryEntry, CompactionEntry, Entry, MessageEntry, NoteEntry
from holdfast.store.base import BlobStore, SearchHit
from holdfast.store.blobs.blob_names import NOTE_CAPPED, iter_named_hashes

SNIPPET_BEFORE, SNIPPET_AFTER = 80, 160
"""Characters of a snippet before and after its match.

Chosen by judgement: about two lines of a terminal with the match; the text after it usually tells more.
"""
MATCH_OPEN, MATCH_CLOSE = "«", "»"
"""Marks around the match in a snippet."""
BLOB_SLICE_CHARS = 1 << 20
"""Characters of a blob that are searched at once, so that a large one is never in memory as a whole."""
MAX_SEARCH_CHARS = 500
"""Characters of a query that are used. Chosen by judgement: a pasted text as a query must not take minutes."""
SUMMARY_AUTHORS = frozenset({"model", "hook"})
"""Authors of summaries that are searched. An extract only repeats messages, which are searched themselves."""
_TERM_PATTERN = re.compile(r'"([^"]+)"|(\S+)')


def parse_search_terms(query: str) -> tuple[str, ...]:
    """Return the terms of ``query`` in lower case, each once; empty if it has no word."""
    terms: dict[str, None] = {}
    for phrase, word in _TERM_PATTERN.findall(query[:MAX_SEARCH_CHARS]):
        term = lower_keeping_length(phrase or word)
        if term.strip():
            terms[term] = None
    return tuple(terms)


def lower_keeping_length(text: str) -> str:
    """Return ``text`` in lower case with every character at its index.

    A few characters, such as ``İ``, become two in lower case; positions in the result must be valid in ``text``.
    """
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join([character.lower()[0] for character in text])


def is_searchable_entry(entry: Entry) -> bool:
    """Return whether ``entry`` has words of its own, or names a blob that has."""
    return _get_searchable_message(entry) is not None or _is_capped_note(entry)


def get_searchable_text(entry: Entry) -> str:
    """Return the words of ``entry`` itself: text, thinking, calls and results."""
    message = _get_searchable_message(entry)
    return "" if message is None else _join_searchable_text(message)


def search_entries(
    entries: Iterable[Entry],
    blobs: BlobStore,
    search_terms: Sequence[str],
    limit: int,
) -> list[SearchHit]:
    """Return the first ``limit`` places in ``entries`` that have all terms, each with a snippet."""
    hits: list[SearchHit] = []
    if not search_terms or limit <= 0:
        return hits
    seen_keys: set[tuple[bytes | str, int | None]] = set()
    for entry in entries:
        content: bytes | str
        if isinstance(entry.body, MessageEntry | BranchSummaryEntry):
            content = entry.body.sized_message.digest
        else:
            content = get_searchable_text(entry)
        # With the time: the same words said twice are two hits, a copy of an entry is none.
        key = (content, entry.time_ms)
        if content and key in seen_keys:
            continue  # a copy of an entry that was found before
        seen_keys.add(key)
        hits += _search_entry(entry, blobs, search_terms)
        if len(hits) >= limit:
            break
    return hits[:limit]


def _search_entry(entry: Entry, blobs: BlobStore, search_terms: Sequence[str]) -> Iterator[SearchHit]:
    if _is_capped_note(entry):
        for hash_ in iter_named_hashes(entry.body):
            with suppress(StoreError):  # a missing blob is no reason to fail a search
                snippet = _search_blob(blobs, hash_, search_terms)
                if snippet:
                    yield SearchHit(
                        entry.id,
                        entry.seq,
                        "",
                        entry.time_ms,
                        snippet,
                        hash_,
                    )
        return
    message = _get_searchable_message(entry)
    if message is None:
        return
    snippet = _find_snippet([_join_searchable_text(message)], search_terms)
    if snippet:
        yield SearchHit(entry.id, entry.seq, message.role, entry.time_ms, snippet)


def _get_searchable_message(entry: Entry) -> Message | None:
    """Return the message or the written summary in ``entry``, or None."""
    body = entry.body
    if isinstance(body, MessageEntry | BranchSummaryEntry):
        return body.sized_message.message
    if isinstance(body, CompactionEntry) and body.author in SUMMARY_AUTHORS:
        return body.summary
    return None


def _search_blob(blobs: BlobStore, hash_: str, search_terms: Sequence[str]) -> str:
    """Return a snippet of a blob that has all terms, or "" if it does not."""
    # Slices overlap by a term and its surroundings, so that no match is cut in two.
    overlap = max(map(len, search_terms)) + SNIPPET_BEFORE + SNIPPET_AFTER
    starts = range(0, blobs.count_characters(hash_), BLOB_SLICE_CHARS)
    slices = (blobs.read_text(hash_, start, start + BLOB_SLICE_CHARS + overlap) for start in starts)
    return _find_snippet(slices, search_terms)


def _find_snippet(slices: Iterable[str], search_terms: Sequence[str]) -> str:
    """Return a snippet around the first match of the first term, or "" if one of the terms does not occur."""
    missing = set(search_terms)
    snippet = ""
    for piece in slices:
        lowered = lower_keeping_length(piece)
        if not snippet:
            start = lowered.find(search_terms[0])
            if start >= 0:
                snippet = _format_snippet(piece, start, start + len(search_terms[0]))
        # Terms may be in different slices; the snippet is that of the first term, wherever the others are.
        missing = {term for term in missing if term not in lowered}
        if not missing:
            return snippet
    return ""


def _format_snippet(text: str, start: int, stop: int) -> str:
    """Return a match and the text around it on one line."""
    first = max(0, start - SNIPPET_BEFORE)
    last = min(len(text), stop + SNIPPET_AFTER)
    before = _collapse_whitespace(text[first:start])
    match = _collapse_whitespace(text[start:stop])
    after = _collapse_whitespace(text[stop:last])
    before = f"…{before}" if first else before.lstrip()
    if last < len(text):
        after += "…"
    return f"{before}{MATCH_OPEN}{match}{MATCH_CLOSE}{after}"


def _collapse_whitespace(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _is_capped_note(entry: Entry) -> bool:
    return isinstance(entry.body, NoteEntry) and entry.body.reason == NOTE_CAPPED


def _join_searchable_text(message: Message) -> str:
    # A streamed answer may be stored in pieces; merged, a word that lies across two of them is found.
    texts = [_get_searchable_part_text(part) for part in merge_adjacent_texts(message)]
    return "\n".join([text for text in texts if text])


def _get_searchable_part_text(part: Part) -> str:
    if isinstance(part, Text | Thinking):
        return part.text
    if isinstance(part, ToolCall):
        return f"{part.name} {_unescape_json(part.arguments)}"
    if isinstance(part, ToolResult):
        return get_result_text(part)
    return ""


def _unescape_json(arguments: str) -> str:
    """Return JSON text with escaped characters as themselves, so that a search finds them."""
    if "\\u" in arguments:
        with suppress(ValueError, RecursionError):
            return json.dumps(json.loads(arguments), ensure_ascii=False)
    return arguments
