"""Messages that arrive while an answer is on its way.

They are stored at once as notes, so that a crash loses none, and appended as messages once the answer is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from holdfast.errors import StoreCorrupt
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.codec.packing import pack_value, unpack_value
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import NOTE_DELIVERED, NOTE_QUEUED, Entry, NoteEntry


def make_queued_note(message: Message) -> NoteEntry:
    """Make the note that stores ``message`` until it is delivered."""
    return NoteEntry(NOTE_QUEUED, pack_value(message))


def is_queued_note(entry: Entry) -> bool:
    """Return whether ``entry`` stores a queued message."""
    return isinstance(entry.body, NoteEntry) and entry.body.reason == NOTE_QUEUED


def is_user_message(message: Message | SizedMessage) -> TypeGuard[Message]:
    """Return whether ``message`` comes from the user, and so has to wait for the answer; tool results do not wait."""
    return isinstance(message, Message) and message.role == "user"


def make_delivered_note(ids: Sequence[str]) -> NoteEntry:
    """Make the note that marks the messages of the notes ``ids`` as delivered."""
    return NoteEntry(NOTE_DELIVERED, data={"notes": list(ids)})


def decode_queued_messages(state: ConversationState, key: str) -> list[tuple[str, Message]]:
    """Return the queued messages of ``state``, oldest first, with the ids of their notes.

    Raises ``StoreCorrupt``, naming session ``key``, if one cannot be decoded.
    """
    return [(id_, _decode_queued_message(key, id_, raw)) for id_, raw in state.history.queued_messages]


def _decode_queued_message(key: str, id_: str, raw: bytes) -> Message:
    try:
        return unpack_value(raw, Message)
    except ValueError as error:
        text = f"the message of {key!r} that waits in note {id_} cannot be read: {error}"
        raise StoreCorrupt(f"{text}; continue from an entry before it: engine.session({key!r}, leaf=…)") from error
