"""Calls and results by their ids, as the fold counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.messages.message import Message
from holdfast.messages.parts import ToolCall
from holdfast.messages.sized_message import Slot
from holdfast.state.sequence import Seq


def called(callers: dict[str, int], before: Seq[Slot], slots: Seq[Slot], new: Sequence[Slot]) -> dict[str, int]:
    """Return the first uses of call ids: ``callers``, and those of the ``new`` slots."""
    count = len(before)
    if not before.grew_into(slots):
        callers = {id_: index for id_, index in callers.copy().items() if index < count}
    for index, slot in enumerate(new, count):
        if slot.message.role == "assistant":
            for part in slot.message.parts:
                if type(part) is ToolCall:
                    callers.setdefault(part.id, index)
    return callers


def still_open(waiting: tuple[str, ...], message: Message) -> tuple[str, ...]:
    """Return the ids of ``waiting`` calls that have no result yet once ``message`` is said."""
    if message.role == "assistant":
        return tuple([call.id for call in message.calls])
    if not waiting:
        return waiting
    told = tuple([result.call_id for result in message.results])
    if told == waiting:
        return ()
    given = Counter(told)
    left: list[str] = []
    for place, id_ in enumerate(waiting):
        if not given:
            return (*left, *waiting[place:])
        if not _taken(given, id_):
            left.append(id_)
    return tuple(left)


def _taken(given: Counter[str], id_: str) -> bool:
    """Take one ``id_`` out of what is given; return whether there was one."""
    if id_ not in given:
        return False
    given[id_] -= 1
    if not given[id_]:
        del given[id_]
    return True
