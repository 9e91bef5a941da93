"""Which blobs a session's log names: nothing else may be read back or collected by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.state.entries import Body, Compaction, Decision, Entry, Note
from holdfast.store.base import SessionStore

NAMERS = ("decision", "compaction", "note")
"""The kinds of entries that can name a blob."""
CAPPED = "capped"
"""``Note.reason`` of a note whose ``data["blobs"]`` are texts that a message was too long for."""


def named_blobs(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the hash of each blob that ``entries`` name, with the id of the entry that names it first."""
    named: dict[str, str] = {}
    for entry in entries:
        for hash_ in blobs_of(entry.body):
            named.setdefault(hash_, entry.id)
    return named


def blobs_of(body: Body) -> Iterator[str]:
    """Yield the hashes that one entry names, in its order; one that is repeated comes again."""
    if isinstance(body, Decision | Compaction):
        yield from (edit.blob for edit in body.edits if edit.blob)
    elif isinstance(body, Note) and body.reason == CAPPED:
        hashes = body.data.get("blobs")
        yield from (hash_ for hash_ in hashes if isinstance(hash_, str)) if isinstance(hashes, list | tuple) else ()


def session_blobs(store: SessionStore, key: str) -> dict[str, str]:
    """Return the blobs that a session names on any branch; only the entries that can are read."""
    entries = [entry for kind in NAMERS for entry in store.entries(key, kind)]
    return named_blobs(sorted(entries, key=lambda entry: entry.seq))
