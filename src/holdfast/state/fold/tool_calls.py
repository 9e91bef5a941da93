"""Track tool calls by their ids: which message used an id first, and which calls have no result yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.messages.message import Message
from holdfast.messages.parts import ToolCall
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.persistent_sequence import PersistentSequence


def record_first_calls(
    first_index_by_call_id: dict[str, int],
    before: PersistentSequence[SizedMessage],
    sized_messages: PersistentSequence[SizedMessage],
    new: Sequence[SizedMessage],
) -> dict[str, int]:
    """Return ``first_index_by_call_id`` with the call ids of the ``new`` messages added.

    The dictionary is changed in place and shared with the state before, as long as nobody forked: copying it for every
    message would make a long session quadratic.
    """
    count = len(before)
    if not before.is_storage_of(sized_messages):
        first_index_by_call_id = {id_: index for id_, index in first_index_by_call_id.copy().items() if index < count}
    for index, sized_message in enumerate(new, count):
        if sized_message.message.role == "assistant":
            for part in sized_message.message.parts:
                # Exact type comparison: this runs for every part of every message, and parts are never subclassed.
                if type(part) is ToolCall:
                    first_index_by_call_id.setdefault(part.id, index)
    return first_index_by_call_id


def update_open_calls(open_call_ids: tuple[str, ...], message: Message) -> tuple[str, ...]:
    """Return the ids of calls that have no result yet after ``message``, given those open before it.

    Ids may repeat within a message, so each result closes one call of its id.
    """
    if message.role == "assistant":
        return tuple([call.id for call in message.calls])
    if not open_call_ids:
        return open_call_ids
    result_ids = tuple([result.call_id for result in message.results])
    # The usual case: all results of an answer come together and in order.
    if result_ids == open_call_ids:
        return ()
    # Counted, since ids may repeat; the loop ends early once all results are used up.
    id_counts = Counter(result_ids)
    open_ids: list[str] = []
    for place, id_ in enumerate(open_call_ids):
        if not id_counts:
            return (*open_ids, *open_call_ids[place:])
        if not _take_one(id_counts, id_):
            open_ids.append(id_)
    return tuple(open_ids)


def _take_one(id_counts: Counter[str], id_: str) -> bool:
    """Remove one ``id_`` from ``id_counts`` and return whether there was one."""
    if id_ not in id_counts:
        return False
    id_counts[id_] -= 1
    if not id_counts[id_]:
        del id_counts[id_]
    return True
