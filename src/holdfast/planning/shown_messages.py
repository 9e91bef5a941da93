"""What a request shows of each message, and how large that is by any measure of a message."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.messages.message import Message
from holdfast.messages.parts import Part
from holdfast.state.conversation_state import ConversationState
from holdfast.state.view import get_next_shown_index, list_shown_messages_at


def list_shown_messages_from(state: ConversationState, start: int) -> list[Message]:
    """Return the messages from slot ``start`` on as the projection shows them, one for each slot."""
    if not state.view.edits:
        return state.history.messages.slice(start)
    slots = [(index, list_shown_messages_at(state, index)) for index in range(start, len(state.history.sized_messages))]
    return [
        visible_messages[0] if len(visible_messages) == 1 else state.history.messages[index]
        for index, visible_messages in slots
    ]


def map_shown_parts(state: ConversationState, index: int) -> dict[int, Part]:
    """Return by its place what is shown of each part of a slot; nothing of those for which not one other stands."""
    replacements = {edit.span.part: edit.replacement for edit in state.view.edits.get(index, ())}
    parts = enumerate(state.history.messages[index].parts if None not in replacements else ())
    parts_by_place = {place: replacements.get(place, (part,)) for place, part in parts}
    return {
        place: new_parts[0]
        for place, new_parts in parts_by_place.items()
        if len(new_parts) == 1 and not isinstance(new_parts[0], Message)
    }


def sum_shown_messages(state: ConversationState, measure: Callable[[Message], int]) -> int:
    """Return the sum of ``measure``, as ``PersistentSequence.sum_from`` takes it, over the messages of the
    projection.
    """
    summary = state.view.compaction.summary if state.view.compaction is not None else None
    first = [*state.history.messages.slice(0, state.view.pinned_count), *([] if summary is None else [summary])]
    return sum(map(measure, first)) + sum_shown_messages_from(state, state.view.first_kept, measure)


def sum_shown_messages_from(state: ConversationState, start: int, measure: Callable[[Message], int]) -> int:
    """Return the same of what stands for the slots from ``start`` on; only what is new or edited is measured."""
    total = state.history.messages.sum_from(measure, start)
    after = start
    for index, _ in state.view.edits.iter_from(start):
        if index >= after:
            after = get_next_shown_index(state, index)
            total += sum(map(measure, list_shown_messages_at(state, index)))
            total -= sum(map(measure, state.history.messages.slice(index, after)))
    return total
