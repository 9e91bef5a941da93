"""Calls that a server answers, and their results: both stand in the same answer, or neither does.

Where a client was called beside them, its results stand alone between the two answers that hold the halves.
Policy does not read their JSON: the id of such a call, and of its result, is the part's seal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, ToolCall, ToolResult
from holdfast.normalize.ids import NO_CALL_IDS, is_server_tool_call
from holdfast.normalize.parts import PartIndexes, drop_tracked_parts
from holdfast.normalize.tracked_messages import TrackedMessage
from holdfast.state.dialect import Dialect


def drop_unpaired_server_parts(
    items: list[TrackedMessage], dialect: Dialect, *, earlier_ids: frozenset[str] = NO_CALL_IDS
) -> list[TrackedMessage]:
    """Return the items with no half of a server's call and result, and none that has an id sent ``earlier_ids``."""
    why = "a call that the server answered and its result stand together or not at all"
    while broken := find_unpaired_server_parts([item.message for item in items], dialect, earlier_ids):
        items = drop_tracked_parts(items, broken, dialect, "server-pair", why)
    return items


def find_unpaired_server_parts(
    messages: Sequence[Message], dialect: Dialect, earlier_ids: frozenset[str] = NO_CALL_IDS
) -> PartIndexes:
    """Return the places of calls of a server's tool without a result, of results without a call, of second calls.

    Calls with the ids ``earlier_ids`` are sent in front of ``messages``.
    """
    if not any(_get_server_call_id(part) for message in messages for part in message.parts):
        return {}
    out: PartIndexes = {}
    waiting: set[str] = set()
    seen_ids = set(earlier_ids)
    answers = list(_find_answer_spans(messages, dialect))
    for (start, stop), behind in zip(answers, [*answers[1:], (len(messages), 0)], strict=True):
        parts = [(index, place) for index in range(start, stop) for place in range(len(messages[index].parts))]
        marks = [(spot, _classify_server_part(messages[spot[0]].parts[spot[1]])) for spot in parts]
        awaited_ids = {id_ for _, (id_, kind) in marks if kind == _CALLER}
        awaited_ids |= _find_deferred_ids(messages, (start, stop), behind)
        may_wait = stop == len(messages) and (not dialect.must_end_with_user or is_paused_answer(messages[-1]))
        keep_flags = list(
            _flag_kept_parts([mark for _, mark in marks], waiting, seen_ids, awaited_ids, may_wait=may_wait)
        )
        for (index, place), (_, kind) in (mark for mark, keep in zip(marks, keep_flags, strict=True) if not keep):
            if kind in {_USE, _RESULT}:
                out.setdefault(index, set()).add(place)
        used = {id_ for _, (id_, kind) in marks if kind == _USE}
        result_ids = {id_ for _, (id_, kind) in marks if kind == _RESULT}
        waiting = (used | waiting) & awaited_ids - result_ids
        seen_ids |= {id_ for (_, (id_, kind)), keep in zip(marks, keep_flags, strict=True) if keep and kind == _USE}
    return out


def _find_deferred_ids(messages: Sequence[Message], answer: tuple[int, int], next_answer: tuple[int, int]) -> set[str]:
    """Return the ids that wait for the client: its results stand alone behind them, then comes what was waited for."""
    between = [message for message in messages[answer[1] : next_answer[0]] if message.role != "system"]
    has_calls = any(message.calls for message in messages[slice(*answer)])
    alone = all(type(part) is ToolResult for message in between for part in message.parts)
    if not (has_calls and between and alone):
        return set()
    used, result_ids = (
        {
            id_
            for message in messages[slice(*place)]
            for id_, kind in map(_classify_server_part, message.parts)
            if kind == wanted_kind
        }
        for place, wanted_kind in ((answer, _USE), (next_answer, _RESULT))
    )
    return used & result_ids if next_answer[1] else used


_USE, _RESULT, _CALLER, _OTHER = "use", "result", "caller", ""
"""What a part is here; a *caller* is a client's call that code on the server made."""
ServerPartMark = tuple[str, str]
"""The id that a part names, and what it is."""


def _classify_server_part(part: Part) -> ServerPartMark:
    if isinstance(part, ToolCall) and part.signature is not None:
        return part.signature.data, _CALLER
    id_ = _get_server_call_id(part)
    return (id_, _USE if isinstance(part, Opaque) and is_server_tool_call(part) else _RESULT) if id_ else ("", _OTHER)


def _flag_kept_parts(
    marks: Sequence[ServerPartMark], waiting: set[str], seen_ids: set[str], awaited_ids: set[str], *, may_wait: bool
) -> Iterator[bool]:
    """Yield for each part of an answer whether it stays: each call once and before its results."""
    open_ids = set(waiting)
    last = {id_: number for number, (id_, kind) in enumerate(marks) if kind == _RESULT}
    for number, (id_, kind) in enumerate(marks):
        if kind == _USE:
            has_result = last.get(id_, -1) > number or may_wait or id_ in awaited_ids
            yield has_result and id_ not in open_ids and id_ not in seen_ids
            open_ids |= {id_} if has_result and id_ not in seen_ids else set()
        elif kind == _RESULT:
            yield id_ in open_ids
        else:
            yield True


def is_paused_answer(message: Message) -> bool:
    """Return whether a message is an answer that a server's tool or a compaction interrupted: it is sent as it is."""
    last = message.parts[-1] if message.role == "assistant" and message.parts else None
    return isinstance(last, Opaque) and (
        is_server_tool_call(last) or _is_server_tool_result(last) or last.kind == "compaction"
    )


def _is_server_tool_result(part: Opaque) -> bool:
    return part.kind.endswith("_tool_result")


def _get_server_call_id(part: object) -> str:
    if (
        not isinstance(part, Opaque)
        or part.signature is None
        or not (is_server_tool_call(part) or _is_server_tool_result(part))
    ):
        return ""
    return part.signature.data


def _find_answer_spans(messages: Sequence[Message], dialect: Dialect) -> Iterator[tuple[int, int]]:
    """Yield where each answer of the model begins and ends; a system message inside one that paused does not end it."""
    start = 0
    while start < len(messages):
        stop = start + 1
        if messages[start].role == "assistant":
            while dialect.server_joins_same_role and (
                extra_messages := _count_continuation_messages(messages, stop, dialect)
            ):
                stop += extra_messages
            yield start, stop
        start = stop


def _count_continuation_messages(messages: Sequence[Message], at: int, dialect: Dialect) -> int:
    """Return how many messages from ``at`` on belong to the answer before it, up to its next piece."""
    between = dialect.system_position == "turn" and at + 1 < len(messages) and messages[at].role == "system"
    at_next = at + (between and is_paused_answer(messages[at - 1]))
    return at_next + 1 - at if at_next < len(messages) and messages[at_next].role == "assistant" else 0
