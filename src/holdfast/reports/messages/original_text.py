"""Read a message's original text, in pieces; parts too long for its entry are read from stored texts."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.errors import UnknownId
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.reports.describe import get_message_text_lines
from holdfast.reports.sessions.history import BranchHistory
from holdfast.state.entries import BranchSummaryEntry, MessageEntry, NoteEntry
from holdfast.store.base import SessionStore
from holdfast.store.blobs.blob_names import iter_named_hashes

CHUNK_CHARACTERS = 1_000_000
"""Characters of a stored text that are held in memory at once. Chosen by judgement."""


def iter_original_text(store: SessionStore, log: BranchHistory, number: int) -> Iterator[str]:
    """Yield the original text of message ``number`` in pieces. Raises ``UnknownId`` if a stored text is gone."""
    for at, (text, hash_) in enumerate(_iterate_original_parts(log, number)):
        yield "\n" if at else ""
        if not hash_:
            yield text
            continue
        for start in range(0, store.blobs.count_characters(hash_), CHUNK_CHARACTERS):
            yield store.blobs.read_text(hash_, start, start + CHUNK_CHARACTERS)


def count_original_characters(store: SessionStore, log: BranchHistory, number: int) -> int:
    """Count the characters of the original message ``number``; for a stored text that is gone, those of its preview."""
    parts = list(_iterate_original_parts(log, number))
    line_ends = max(0, len(parts) - 1)  # one between each two parts
    return line_ends + sum(_count_characters(store, text, hash_) for text, hash_ in parts)


def _count_characters(store: SessionStore, text: str, hash_: str) -> int:
    if not hash_:
        return len(text)
    try:
        return store.blobs.count_characters(hash_)
    except UnknownId:
        return len(text)


def _iterate_original_parts(log: BranchHistory, number: int) -> Iterator[tuple[str, str]]:
    """Yield the text of each part with the hash of its full stored text, or an empty string if it is complete."""
    hashes = _find_spilled_hashes(log, number)
    message = log.state.history.sized_messages[number].message
    for part in message.parts:
        text = "\n".join(get_message_text_lines([SizedMessage(Message(message.role, (part,)))]))
        # The preview left in the entry quotes the call that reads back the full text.
        stored_hash = ""
        for hash_ in hashes:
            if f'recall(id="{hash_[:HANDLE_CHARS]}"' in text:
                stored_hash = hash_
                break
        yield text, stored_hash


def _find_spilled_hashes(log: BranchHistory, number: int) -> list[str]:
    """Return the hashes of stored texts that message ``number`` was too long for."""
    hashes: list[str] = []
    for entry in log.entries:
        if entry.id == log.message_entries[number].id:
            break
        if isinstance(entry.body, NoteEntry):
            hashes += iter_named_hashes(entry.body)
        elif isinstance(entry.body, MessageEntry | BranchSummaryEntry):
            hashes = []
    return hashes
