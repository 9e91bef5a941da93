"""Which blobs a session's log names: nothing else may be read back or collected by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, EntryBody, NoteEntry
from holdfast.store.base import SessionStore

BLOB_NAMING_KINDS = ("decision", "compaction", "note")
"""The kinds of entries that can name a blob."""
NOTE_CAPPED = "capped"
"""``NoteEntry.reason`` of a note whose ``data["blobs"]`` are texts that a message was too long for."""


def collect_named_blobs(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the hash of each blob that ``entries`` name, with the id of the entry that names it first."""
    blob_entry_ids: dict[str, str] = {}
    for entry in entries:
        for hash_ in iter_named_hashes(entry.body):
            blob_entry_ids.setdefault(hash_, entry.id)
    return blob_entry_ids


def iter_named_hashes(body: EntryBody) -> Iterator[str]:
    """Yield the hashes that one entry names, in its order; one that is repeated comes again."""
    if isinstance(body, DecisionEntry | CompactionEntry):
        yield from (edit.blob_hash for edit in body.edits if edit.blob_hash)
    elif isinstance(body, NoteEntry) and body.reason == NOTE_CAPPED:
        hashes = body.data.get("blobs")
        yield from (hash_ for hash_ in hashes if isinstance(hash_, str)) if isinstance(hashes, list | tuple) else ()


def read_session_blobs(store: SessionStore, key: str) -> dict[str, str]:
    """Return the blobs that a session names on any branch; only the entries that can are read."""
    entries = [entry for kind in BLOB_NAMING_KINDS for entry in store.read_entries(key, kind)]
    return collect_named_blobs(sorted(entries, key=lambda entry: entry.seq))
