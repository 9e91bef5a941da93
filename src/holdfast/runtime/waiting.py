"""Messages that wait for an answer on its way: stored at once as notes, said behind it, each of them once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

from holdfast.errors import StoreCorrupt
from holdfast.model.entries import Entry, Note
from holdfast.model.messages import Message
from holdfast.model.packing import pack, unpack
from holdfast.model.slots import Slot
from holdfast.store.base import SessionStore

QUEUED, DELIVERED = "queued", "delivered"
"""Reasons of the notes: a message that waits, and which of them were said."""


def queued(message: Message) -> Note:
    """Return the note that holds ``message``."""
    return Note(QUEUED, pack(message))


def is_queued(entry: Entry) -> bool:
    """Return whether ``entry`` holds a message that waits."""
    return isinstance(entry.body, Note) and entry.body.reason == QUEUED


def is_of_user(said: Message | Slot) -> TypeGuard[Message]:
    """Return whether ``said`` are a user's words: they wait, and what else there is does not."""
    return isinstance(said, Message) and said.role == "user"


def delivered(ids: Sequence[str]) -> Note:
    """Return the note that says that the messages of those notes were said."""
    return Note(DELIVERED, data={"notes": list(ids)})


def undelivered(store: SessionStore, key: str, leaf: str | None) -> list[tuple[str, Message]]:
    """Return the messages that wait on the branch at ``leaf``, oldest first, with the ids of their notes."""
    if not any(_notes(store.entries(key, "note"), QUEUED)):
        return []
    path = store.path(key, leaf)
    done = {id_ for _, note in _notes(path, DELIVERED) for id_ in note.data["notes"]}
    return [(id_, _message(key, id_, note)) for id_, note in _notes(path, QUEUED) if id_ not in done]


def _message(key: str, id_: str, note: Note) -> Message:
    try:
        return unpack(note.raw, Message)
    except ValueError as error:
        text = f"the message of {key!r} that waits in note {id_} cannot be read: {error}"
        raise StoreCorrupt(f"{text}; go on from an entry before it: engine.session({key!r}, leaf=…)") from error


def _notes(entries: Sequence[Entry], reason: str) -> Iterator[tuple[str, Note]]:
    for entry in entries:
        if isinstance(entry.body, Note) and entry.body.reason == reason:
            yield entry.id, entry.body
