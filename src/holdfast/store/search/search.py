"""What was said in a session, found by its words.

A query is words, not a language: each of them must stand somewhere in the text, as a word or within one, upper and
lower case alike; what stands in double quotes is looked for as it is, blanks and all. A copied branch says the same
again, so what was said once is found once, where it was said last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from holdfast.errors import StoreError
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.text.text_runs import merge_adjacent_texts
from holdfast.state.entries import BranchSummaryEntry, CompactionEntry, Entry, MessageEntry, NoteEntry
from holdfast.store.base import BlobStore, SearchHit
from holdfast.store.blobs.blob_names import NOTE_CAPPED, iter_named_hashes

SNIPPET_BEFORE, SNIPPET_AFTER = 80, 160
"""[H] Characters of a snippet before and after its match."""
MATCH_OPEN, MATCH_CLOSE = "«", "»"
"""What stands around the match in a snippet."""
BLOB_SLICE_CHARS = 1 << 20
"""Characters of a blob that are looked at together."""
MAX_SEARCH_CHARS = 500
"""[H] Characters of a query that are looked at."""
SUMMARY_AUTHORS = frozenset({"model", "hook"})
"""Who writes what stands nowhere else; beside what a provider compacted stands an extract of ours."""
_TERM_PATTERN = re.compile(r'"([^"]+)"|(\S+)')


def parse_search_terms(query: str) -> tuple[str, ...]:
    """Return what must stand in a text for ``query``, in small letters; nothing if it has no word."""
    all_terms = (
        lower_keeping_length(phrase or word) for phrase, word in _TERM_PATTERN.findall(query[:MAX_SEARCH_CHARS])
    )
    return tuple(dict.fromkeys(term for term in all_terms if term.strip()))


def lower_keeping_length(text: str) -> str:
    """Return ``text`` in small letters, each character in its place."""
    low = text.lower()
    return low if len(low) == len(text) else "".join([character.lower()[0] for character in text])


def is_searchable_entry(entry: Entry) -> bool:
    """Return whether ``entry`` holds words that somebody said or wrote, or names a blob that does."""
    return _get_searchable_message(entry) is not None or _is_capped_note(entry)


def get_searchable_text(entry: Entry) -> str:
    """Return what is said in ``entry`` itself: text, thinking, calls and results."""
    message = _get_searchable_message(entry)
    return "" if message is None else _join_searchable_text(message)


def search_entries(
    entries: Iterable[Entry], blobs: BlobStore, search_terms: Sequence[str], limit: int
) -> list[SearchHit]:
    """Return the first ``limit`` of ``entries`` that hold all of ``search_terms``, with a piece of their text each."""
    hits: list[SearchHit] = []
    seen_keys: set[tuple[bytes | str, int | None]] = set()
    for entry in entries if search_terms and limit > 0 else ():
        content_key = (
            entry.body.sized_message.digest
            if isinstance(entry.body, MessageEntry | BranchSummaryEntry)
            else get_searchable_text(entry)
        )
        if content_key and (content_key, entry.time_ms) in seen_keys:
            continue
        seen_keys.add((content_key, entry.time_ms))
        hits += _search_entry(entry, blobs, search_terms)
        if len(hits) >= limit:
            break
    return hits[:limit]


def _search_entry(entry: Entry, blobs: BlobStore, search_terms: Sequence[str]) -> Iterator[SearchHit]:
    if _is_capped_note(entry):
        for hash_ in iter_named_hashes(entry.body):
            with suppress(StoreError):  # a blob that is gone is none to read back
                snippet = _search_blob(blobs, hash_, search_terms)
                if snippet:
                    yield SearchHit(entry.id, entry.seq, "", entry.time_ms, snippet, hash_)
    elif (message := _get_searchable_message(entry)) is not None:
        snippet = _find_snippet([_join_searchable_text(message)], search_terms)
        if snippet:
            yield SearchHit(entry.id, entry.seq, message.role, entry.time_ms, snippet)


def _get_searchable_message(entry: Entry) -> Message | None:
    """Return what ``entry`` says: a summary that somebody wrote, too; an extract says what messages say already."""
    body = entry.body
    if isinstance(body, MessageEntry | BranchSummaryEntry):
        return body.sized_message.message
    return body.summary if isinstance(body, CompactionEntry) and body.author in SUMMARY_AUTHORS else None


def _search_blob(blobs: BlobStore, hash_: str, search_terms: Sequence[str]) -> str:
    ahead = max(map(len, search_terms)) + SNIPPET_BEFORE + SNIPPET_AFTER
    starts = range(0, blobs.count_characters(hash_), BLOB_SLICE_CHARS)
    return _find_snippet((blobs.read_text(hash_, at, at + BLOB_SLICE_CHARS + ahead) for at in starts), search_terms)


def _find_snippet(slices: Iterable[str], search_terms: Sequence[str]) -> str:
    """Return a piece of a text around its first match of the first term, or nothing if a term is not there at all."""
    missing, snippet = set(search_terms), ""
    for piece in slices:
        low = lower_keeping_length(piece)
        if not snippet and (at := low.find(search_terms[0])) >= 0:
            snippet = _format_snippet(piece, at, at + len(search_terms[0]))
        missing = {term for term in missing if term not in low}
        if not missing:
            return snippet
    return ""


def _format_snippet(text: str, start: int, stop: int) -> str:
    """Return the surroundings of a match on one line."""
    low, high = max(0, start - SNIPPET_BEFORE), min(len(text), stop + SNIPPET_AFTER)
    flat = partial(re.sub, r"\s+", " ")
    before, match, after = flat(text[low:start]), flat(text[start:stop]), flat(text[stop:high])
    lead, end = "…" if low else "", "…" if high < len(text) else ""
    return f"{lead}{before.lstrip() if not lead else before}{MATCH_OPEN}{match}{MATCH_CLOSE}{after}{end}"


def _is_capped_note(entry: Entry) -> bool:
    return isinstance(entry.body, NoteEntry) and entry.body.reason == NOTE_CAPPED


def _join_searchable_text(message: Message) -> str:
    return "\n".join([text for text in map(_get_searchable_part_text, merge_adjacent_texts(message)) if text])


def _get_searchable_part_text(part: Part) -> str:
    if isinstance(part, Text | Thinking):
        return part.text
    if isinstance(part, ToolCall):
        return f"{part.name} {_unescape_json(part.arguments)}"
    return get_result_text(part) if isinstance(part, ToolResult) else ""


def _unescape_json(arguments: str) -> str:
    """Return JSON text with the characters that it may have escaped."""
    if "\\u" in arguments:
        with suppress(ValueError, RecursionError):
            return json.dumps(json.loads(arguments), ensure_ascii=False)
    return arguments
