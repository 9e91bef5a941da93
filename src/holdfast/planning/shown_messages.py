"""What the next request shows of each message, and sums of any measure over it.

The sums cost what is new or edited, not the whole history: they are asked for by every plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.messages.message import Message
from holdfast.messages.parts import Part
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit
from holdfast.state.view import get_next_shown_index, list_shown_messages_at


def list_shown_messages_from(state: ConversationState, start: int) -> list[Message]:
    """Return the messages from index ``start`` on as a request shows them, exactly one for each.

    A message that a custom stage replaced by several or by none is returned as it was said, so that offsets into the
    list are offsets into the history.
    """
    messages = state.history.messages.slice(start)
    if not state.view.edits:
        return messages
    for index in range(start, len(state.history.sized_messages)):
        shown = list_shown_messages_at(state, index)
        if len(shown) == 1:
            messages[index - start] = shown[0]
    return messages


def has_whole_message_edit(edits: Iterable[Edit]) -> bool:
    """Return whether one of ``edits`` replaces whole messages, as only a custom stage does, and not a part."""
    return any(edit.span.part is None for edit in edits)


def map_shown_parts(state: ConversationState, index: int) -> dict[int, Part]:
    """Return the parts of a message as a request shows them, by part index.

    Parts that are replaced by several, by none or by whole messages are left out; the dictionary is empty if the
    message itself is replaced.
    """
    replacements = {edit.span.part: edit.replacement for edit in state.view.edits.get(index, ())}
    shown_parts: dict[int, Part] = {}
    if None in replacements:
        return shown_parts
    for part_index, part in enumerate(state.history.messages[index].parts):
        replacement = replacements.get(part_index, (part,))
        if len(replacement) == 1 and not isinstance(replacement[0], Message):
            shown_parts[part_index] = replacement[0]
    return shown_parts


def sum_shown_messages(state: ConversationState, measure: Callable[[Message], int]) -> int:
    """Return the sum of ``measure`` over all messages that a request shows, the pinned ones and the summary included.

    ``measure`` must be the same function at each call: ``PersistentSequence.sum_from`` remembers its results by it.
    """
    leading_messages = state.history.messages.slice(0, state.view.pinned_count)
    if state.view.compaction is not None and state.view.compaction.summary is not None:
        leading_messages.append(state.view.compaction.summary)
    leading_sum = sum(map(measure, leading_messages))
    return leading_sum + sum_shown_messages_from(state, state.view.first_kept, measure)


def sum_shown_messages_from(state: ConversationState, start: int, measure: Callable[[Message], int]) -> int:
    """Return the sum of ``measure`` over the messages from index ``start`` on, as a request shows them.

    The remembered sum of the messages as they were said is corrected for those that are edited.
    """
    total = state.history.messages.sum_from(measure, start)
    next_shown = start
    for index, _ in state.view.edits.iter_from(start):
        if index < next_shown:
            # An edit before it took this message along.
            continue
        next_shown = get_next_shown_index(state, index)
        total += sum(map(measure, list_shown_messages_at(state, index)))
        total -= sum(map(measure, state.history.messages.slice(index, next_shown)))
    return total
