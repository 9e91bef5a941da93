"""What the next request shows of one message, from the small entries of the log and that message alone.

The whole state would need the messages of a branch: hundreds of megabytes after an undo, which may bring back any of
them. The decisions alone say which message is hidden, replaced or whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.messages.sized_message import SizedMessage
from holdfast.reports.history import find_revoking_entries
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edit_map import EditMap
from holdfast.state.edits import Edit
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry
from holdfast.state.persistent_sequence import PersistentSequence


def build_message_view(
    message: SizedMessage, message_count: int, pinned_count: int, decisions: Iterable[Entry]
) -> ConversationState:
    """Build a state that shows ``message`` as the real one does, wherever it stands among ``message_count``.

    ``decisions`` are the decisions, compactions and undos of the branch in order, ``pinned_count`` is the number of
    system messages at its start. Only the view and the number of messages are those of the branch: each message is
    ``message``, and nothing is known of requests.
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
