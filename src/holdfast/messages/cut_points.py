"""Legal cut points: where a history may be divided.

A position is legal when every property below allows it; position ``i`` divides the messages before ``i`` from
message ``i`` and what follows.

- *whole groups*: a call and all its results, the whole parallel batch, are on the same side;
- *open calls stay*: a call of the newest assistant message that has no result yet is never on the far side;
- *no orphan first*: what follows does not begin with a result.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from holdfast.messages.message import Message


def find_cut_points(messages: Sequence[Message]) -> list[int]:
    """Return the legal positions from 0 to ``len(messages)``, ascending."""
    ends = find_call_group_ends(messages)
    legal: list[int] = []
    group_end = 0
    for index, message in enumerate(messages):
        if index >= group_end and message.role != "tool":
            legal.append(index)
        group_end = max(group_end, ends[index])
    if group_end <= len(messages):
        legal.append(len(messages))
    return legal


def find_call_group_ends(messages: Sequence[Message]) -> list[int]:
    """Return, for each message, the first position behind the last result of its calls.

    It is ``len(messages) + 1`` for calls of the newest assistant message that are still open, and the position
    behind the message itself where there is nothing to wait for. Calls and results are matched by occurrence, a result
    with the newest call of its id that waits: an id that is used again over a gap must not shift all that follow.
    """
    count = len(messages)
    ends = list(range(1, count + 1))
    waiting: dict[str, deque[int]] = defaultdict(deque)
    newest = -1
    for index, message in enumerate(messages):
        if message.role == "assistant":
            newest = index
            for call in message.calls:
                waiting[call.id].appendleft(index)
            continue
        for result in message.results:
            owners = waiting.get(result.call_id)
            if owners:
                ends[owners.popleft()] = index + 1
    if newest >= 0 and any(newest in owners for owners in waiting.values()):
        ends[newest] = count + 1
    return ends
