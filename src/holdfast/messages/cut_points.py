"""Legal cut points: where a history may be divided.

A position is legal when every property below allows it; position ``i`` divides the messages before ``i`` from
message ``i`` and what follows.

- *whole groups*: a call and all its results, the whole parallel batch, are on the same side, and so are other requests
  with their responses (an approval, a screenshot), which are signed with one id;
- *open calls stay*: a call of the newest assistant message that has no result yet is never on the far side;
- *no orphan first*: what follows does not begin with a result.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque


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
    """Return, for each message, the position after the last result of its calls.

    That is the position after the message itself if it has no calls, and ``len(messages) + 1`` for calls of the newest
    assistant message that are still open.
    """
    count = len(messages)
    ends = list(range(1, count + 1))
    # Ids repeat: models that number their calls begin anew after a gap. A result belongs to the newest call of its id
    # that still waits, so that one missing result does not shift all that follow.
    waiting: dict[str, deque[int]] = defaultdict(deque)
    newest_answer = -1
    for index, message in enumerate(messages):
        if message.role == "assistant":
            newest_answer = index
            for call in message.calls:
                waiting[call.id].appendleft(index)
            continue
        for result in message.results:
            callers = waiting.get(result.call_id)
            if callers:
                ends[callers.popleft()] = index + 1
    has_open_calls = newest_answer >= 0 and any(newest_answer in callers for callers in waiting.values())
    if has_open_calls:
        ends[newest_answer] = count + 1
    _extend_to_responses(messages, ends)
    return ends


def _extend_to_responses(messages: Sequence[Message], ends: list[int]) -> None:
    """Extend the ends of answers whose requests, other than calls, a later message responds to."""
    requests_by_id: dict[str, int] = {}  # nearly always empty
    for index, message in enumerate(messages):
        if message.role == "assistant":
            for id_ in _list_signed_ids(message, *_REQUEST_KINDS):
                requests_by_id[id_] = index
        elif requests_by_id:
            for id_ in _list_signed_ids(message, "message"):
                request_index = requests_by_id.pop(id_, None)
                if request_index is not None:
                    ends[request_index] = max(ends[request_index], index + 1)


_REQUEST_KINDS = ("mcp_approval_request", "computer_call")
"""Kinds of opaque parts of an answer that a client responds to with a message of its own (OpenAI)."""


def _list_signed_ids(message: Message, *kinds: str) -> list[str]:
    """Return the data of the signatures of the opaque parts of these kinds."""
    ids: list[str] = []
    for part in message.parts:
        if type(part) is Opaque and part.signature is not None and part.kind in kinds:
            ids.append(part.signature.data)
    return ids
