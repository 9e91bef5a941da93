"""The blobs that a session's log names: only these may be read back through it, and they are never garbage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, EntryBody, NoteEntry
from holdfast.store.base import SessionStore

BLOB_NAMING_KINDS = ("decision", "compaction", "note")
"""Kinds of entries that can name a blob."""
NOTE_CAPPED = "capped"
"""``NoteEntry.reason`` of a note whose ``data["blobs"]`` are texts for which a message was too long."""


def collect_named_blobs(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the hash of each blob that ``entries`` name, with the id of the first entry that does."""
    blob_entry_ids: dict[str, str] = {}
    for entry in entries:
        for hash_ in iter_named_hashes(entry.body):
            blob_entry_ids.setdefault(hash_, entry.id)
    return blob_entry_ids


def iter_named_hashes(body: EntryBody) -> Iterator[str]:
    """Yield the hashes that one entry names, in its order and with repetitions."""
    if isinstance(body, DecisionEntry | CompactionEntry):
        for edit in body.edits:
            if edit.blob_hash:
                yield edit.blob_hash
    elif isinstance(body, NoteEntry) and body.reason == NOTE_CAPPED:
        hashes = body.data.get("blobs")
        if isinstance(hashes, list | tuple):
            for hash_ in hashes:
                if isinstance(hash_, str):
                    yield hash_


def read_session_blobs(store: SessionStore, key: str) -> dict[str, str]:
    """Return the blobs that a session names on any branch, reading only entries of kinds that can name one."""
    entries: list[Entry] = []
    for kind in BLOB_NAMING_KINDS:
        entries += store.read_entries(key, kind)
    entries.sort(key=lambda entry: entry.seq)
    return collect_named_blobs(entries)
