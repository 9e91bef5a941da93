"""Messages that wait for an answer on its way: stored at once as notes, said behind it, each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from holdfast.errors import StoreCorrupt
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.codec.packing import pack_value, unpack_value
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import NOTE_DELIVERED, NOTE_QUEUED, Entry, NoteEntry
from holdfast.store.base import SessionStore


def make_queued_note(message: Message) -> NoteEntry:
    """Return the note that holds ``message``."""
    return NoteEntry(NOTE_QUEUED, pack_value(message))


def is_queued_note(entry: Entry) -> bool:
    """Return whether ``entry`` holds a message that waits."""
    return isinstance(entry.body, NoteEntry) and entry.body.reason == NOTE_QUEUED


def is_user_message(message: Message | SizedMessage) -> TypeGuard[Message]:
    """Return whether ``message`` are a user's words: they wait, and what else there is does not."""
    return isinstance(message, Message) and message.role == "user"


def make_delivered_note(ids: Sequence[str]) -> NoteEntry:
    """Return the note that says that the messages of those notes were said."""
    return NoteEntry(NOTE_DELIVERED, data={"notes": list(ids)})


def read_queued_messages(store: SessionStore, key: str, leaf: str | None) -> list[tuple[str, Message]]:
    """Return the messages that wait on the branch at ``leaf``, oldest first, with the ids of their notes."""
    return decode_queued_messages(store.open_state(key, leaf), key)


def decode_queued_messages(state: ConversationState, key: str) -> list[tuple[str, Message]]:
    """Return the messages that wait on ``state``, of session ``key``, oldest first, with the ids of their notes."""
    return [(id_, _decode_queued_message(key, id_, raw)) for id_, raw in state.history.queued_messages]


def _decode_queued_message(key: str, id_: str, raw: bytes) -> Message:
    try:
        return unpack_value(raw, Message)
    except ValueError as error:
        text = f"the message of {key!r} that waits in note {id_} cannot be read: {error}"
        raise StoreCorrupt(f"{text}; go on from an entry before it: engine.session({key!r}, leaf=…)") from error
