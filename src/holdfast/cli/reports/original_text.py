"""A message as it came: what was too long for its entry is read where it was stored, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cli.reports.describe import words
from holdfast.cli.reports.history import Log
from holdfast.errors import UnknownId
from holdfast.messages.message import Message
from holdfast.messages.sized_message import Slot
from holdfast.planning.settings import HANDLE
from holdfast.state.entries import BranchSummary, Note, Said
from holdfast.store.base import SessionStore
from holdfast.store.blobs.blob_names import blobs_of

PIECE = 1_000_000
"""Characters of a stored text that are held at once."""


def as_it_came(store: SessionStore, log: Log, number: int) -> Iterator[str]:
    """Yield the words of message ``number`` as it came, in pieces; raises ``UnknownId`` where a text of it is gone."""
    for at, (text, hash_) in enumerate(_parts(log, number)):
        yield "\n" if at else ""
        if not hash_:
            yield text
            continue
        for start in range(0, store.blobs.characters(hash_), PIECE):
            yield store.blobs.text(hash_, start, start + PIECE)


def size_as_it_came(store: SessionStore, log: Log, number: int) -> int:
    """Return the characters of message ``number`` as it came; of a text that is gone, what its entry holds."""
    parts = list(_parts(log, number))
    return sum(_size(store, text, hash_) for text, hash_ in parts) + max(0, len(parts) - 1)


def _size(store: SessionStore, text: str, hash_: str) -> int:
    try:
        return store.blobs.characters(hash_) if hash_ else len(text)
    except UnknownId:
        return len(text)


def _parts(log: Log, number: int) -> Iterator[tuple[str, str]]:
    """Yield the words of each part, with the hash of the whole text where they are what was left of it."""
    hashes, slot = _cut(log, number), log.branch.slots[number]
    for part in slot.message.parts:
        text = "\n".join(words([Slot(Message(slot.message.role, (part,)))]))
        yield text, next((hash_ for hash_ in hashes if f'recall(id="{hash_[:HANDLE]}"' in text), "")


def _cut(log: Log, number: int) -> list[str]:
    """Return the hashes of the texts that message ``number`` was too long for."""
    hashes: list[str] = []
    for entry in log.entries:
        if entry.id == log.said[number].id:
            break
        if isinstance(entry.body, Note):
            hashes += blobs_of(entry.body)
        elif isinstance(entry.body, Said | BranchSummary):
            hashes = []
    return hashes
