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
from holdfast.messages.message import Message, result_text
from holdfast.messages.parts import Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.text_runs import parts_said
from holdfast.state.entries import BranchSummary, Compaction, Entry, Note, Said
from holdfast.store.base import BlobStore, Found
from holdfast.store.blobs.blob_names import CAPPED, blobs_of

BEFORE, AFTER = 80, 160
"""[H] Characters of a snippet before and after its match."""
OPEN, CLOSE = "«", "»"
"""What stands around the match in a snippet."""
SLICE = 1 << 20
"""Characters of a blob that are looked at together."""
LONGEST = 500
"""[H] Characters of a query that are looked at."""
WRITERS = frozenset({"model", "hook"})
"""Who writes what stands nowhere else; beside what a provider compacted stands an extract of ours."""
_TERM = re.compile(r'"([^"]+)"|(\S+)')


def terms(query: str) -> tuple[str, ...]:
    """Return what must stand in a text for ``query``, in small letters; nothing if it has no word."""
    found = (small(quoted or word) for quoted, word in _TERM.findall(query[:LONGEST]))
    return tuple(dict.fromkeys(term for term in found if term.strip()))


def small(text: str) -> str:
    """Return ``text`` in small letters, each character in its place."""
    low = text.lower()
    return low if len(low) == len(text) else "".join([one.lower()[0] for one in text])


def is_searched(entry: Entry) -> bool:
    """Return whether ``entry`` holds words that somebody said or wrote, or names a blob that does."""
    return _message(entry) is not None or _is_capped(entry)


def words(entry: Entry) -> str:
    """Return what is said in ``entry`` itself: text, thinking, calls and results."""
    message = _message(entry)
    return "" if message is None else _words(message)


def search(entries: Iterable[Entry], blobs: BlobStore, wanted: Sequence[str], limit: int) -> list[Found]:
    """Return the first ``limit`` of ``entries`` that hold all of ``wanted``, with a piece of their text each."""
    found: list[Found] = []
    seen: set[tuple[bytes | str, int | None]] = set()
    for entry in entries if wanted and limit > 0 else ():
        what = entry.body.slot.digest if isinstance(entry.body, Said | BranchSummary) else words(entry)
        if what and (what, entry.at) in seen:
            continue
        seen.add((what, entry.at))
        found += _in_entry(entry, blobs, wanted)
        if len(found) >= limit:
            break
    return found[:limit]


def _in_entry(entry: Entry, blobs: BlobStore, wanted: Sequence[str]) -> Iterator[Found]:
    if _is_capped(entry):
        for hash_ in blobs_of(entry.body):
            with suppress(StoreError):  # a blob that is gone is none to read back
                snippet = _in_blob(blobs, hash_, wanted)
                if snippet:
                    yield Found(entry.id, entry.seq, "", entry.at, snippet, hash_)
    elif (message := _message(entry)) is not None:
        snippet = _snippet([_words(message)], wanted)
        if snippet:
            yield Found(entry.id, entry.seq, message.role, entry.at, snippet)


def _message(entry: Entry) -> Message | None:
    """Return what ``entry`` says: a summary that somebody wrote, too; an extract says what messages say already."""
    body = entry.body
    if isinstance(body, Said | BranchSummary):
        return body.slot.message
    return body.summary if isinstance(body, Compaction) and body.by in WRITERS else None


def _in_blob(blobs: BlobStore, hash_: str, wanted: Sequence[str]) -> str:
    ahead = max(map(len, wanted)) + BEFORE + AFTER
    starts = range(0, blobs.characters(hash_), SLICE)
    return _snippet((blobs.text(hash_, at, at + SLICE + ahead) for at in starts), wanted)


def _snippet(slices: Iterable[str], wanted: Sequence[str]) -> str:
    """Return a piece of a text around its first match of the first term, or nothing if a term is not there at all."""
    missing, snippet = set(wanted), ""
    for piece in slices:
        low = small(piece)
        if not snippet and (at := low.find(wanted[0])) >= 0:
            snippet = _marked(piece, at, at + len(wanted[0]))
        missing = {term for term in missing if term not in low}
        if not missing:
            return snippet
    return ""


def _marked(text: str, start: int, stop: int) -> str:
    """Return the surroundings of a match on one line."""
    low, high = max(0, start - BEFORE), min(len(text), stop + AFTER)
    flat = partial(re.sub, r"\s+", " ")
    before, match, after = flat(text[low:start]), flat(text[start:stop]), flat(text[stop:high])
    lead, end = "…" if low else "", "…" if high < len(text) else ""
    return f"{lead}{before.lstrip() if not lead else before}{OPEN}{match}{CLOSE}{after}{end}"


def _is_capped(entry: Entry) -> bool:
    return isinstance(entry.body, Note) and entry.body.reason == CAPPED


def _words(message: Message) -> str:
    return "\n".join([text for text in map(_said, parts_said(message)) if text])


def _said(part: Part) -> str:
    if isinstance(part, Text | Thinking):
        return part.text
    if isinstance(part, ToolCall):
        return f"{part.name} {_readable(part.arguments)}"
    return result_text(part) if isinstance(part, ToolResult) else ""


def _readable(arguments: str) -> str:
    """Return JSON text with the characters that it may have escaped."""
    if "\\u" in arguments:
        with suppress(ValueError, RecursionError):
            return json.dumps(json.loads(arguments), ensure_ascii=False)
    return arguments
