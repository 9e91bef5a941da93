"""Messages that wait for an answer on its way: stored at once as notes, said behind it, each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from holdfast.errors import StoreCorrupt
from holdfast.messages.message import Message
from holdfast.messages.sized_message import Slot
from holdfast.state.branch.branch import Branch
from holdfast.state.codec.packing import pack, unpack
from holdfast.state.entries import DELIVERED, QUEUED, Entry, Note
from holdfast.store.base import SessionStore


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
    return waiting_on(store.branch(key, leaf), key)


def waiting_on(branch: Branch, key: str) -> list[tuple[str, Message]]:
    """Return the messages that wait on ``branch``, of session ``key``, oldest first, with the ids of their notes."""
    return [(id_, _message(key, id_, raw)) for id_, raw in branch.waiting]


def _message(key: str, id_: str, raw: bytes) -> Message:
    try:
        return unpack(raw, Message)
    except ValueError as error:
        text = f"the message of {key!r} that waits in note {id_} cannot be read: {error}"
        raise StoreCorrupt(f"{text}; go on from an entry before it: engine.session({key!r}, leaf=…)") from error
