"""What the next request shows of one message, from the small entries of the log and that message alone.

The whole state would need the messages of a branch: hundreds of megabytes after an undo, which may bring back any of
them. The decisions alone say which message is hidden, replaced or whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.reports.sessions.history import (
    MessageState,
    find_revoking_entries,
    get_shown_messages,
    list_message_visibility,
)
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edit_map import EditMap
from holdfast.state.edits import Edit
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry
from holdfast.state.persistent_sequence import PersistentSequence


class MessageView(Struct, frozen=True):
    """How the next request shows one message."""

    visibility: MessageState
    shown: tuple[SizedMessage, ...]
    """What it shows of it; empty if that is nothing."""
    summary: Message | None
    """The summary that hides it; None if it is not hidden, or by a compaction without a summary."""


def view_message(
    message: SizedMessage, number: int, message_count: int, pinned_count: int, decisions: Iterable[Entry]
) -> MessageView:
    """Return how ``message`` is shown, which is number ``number`` among ``message_count``.

    ``decisions`` are the decisions, compactions and undos of the branch in order, ``pinned_count`` is the number of
    system messages at its start.
    """
    state = _build_state(message, message_count, pinned_count, decisions)
    visibility = list_message_visibility(state)[number]
    if visibility != "hidden":
        return MessageView(visibility, get_shown_messages(state, number), None)
    compaction = state.view.compaction
    return MessageView(visibility, (), None if compaction is None else compaction.summary)


def _build_state(
    message: SizedMessage, message_count: int, pinned_count: int, decisions: Iterable[Entry]
) -> ConversationState:
    """Build a state that shows ``message`` as the real one does, at whatever number it stands.

    Only the view and the number of messages are those of the branch: every message of it is ``message``, so what it
    says of another one is wrong, and it must not leave this module.
    """
    entries = [*decisions]
    undone_ids = find_revoking_entries(entries)
    compaction: CompactionEntry | None = None
    edits: list[Edit] = []
    for entry in entries:
        if entry.id in undone_ids or not isinstance(entry.body, DecisionEntry | CompactionEntry):
            continue
        edits += entry.body.edits
        if isinstance(entry.body, CompactionEntry):
            compaction = entry.body
    state = ConversationState()
    view = replace(
        state.view,
        pinned_count=pinned_count,
        first_kept=pinned_count if compaction is None else compaction.first_kept,
        compaction=compaction,
        edits=EditMap(edits),
    )
    messages = PersistentSequence([message] * message_count)
    return replace(state, view=view, history=replace(state.history, sized_messages=messages))
