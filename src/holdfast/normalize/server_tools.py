"""Calls that a server answers, and their results: both stand in the same answer, or neither does.

Where a client was called beside them, its results stand alone between the two answers that hold the halves.
Policy does not read their JSON: the id of such a call, and of its result, is the part's seal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, ToolCall, ToolResult
from holdfast.normalize.ids import NONE, is_use
from holdfast.normalize.items import Item
from holdfast.normalize.parts import Places, left_out
from holdfast.state.dialect import Dialect


def pair_servers(items: list[Item], dialect: Dialect, *, before: frozenset[str] = NONE) -> list[Item]:
    """Return the items with no half of a server's call and result, and none that has an id sent ``before``."""
    why = "a call that the server answered and its result stand together or not at all"
    while broken := halves([item.message for item in items], dialect, before):
        items = left_out(items, broken, dialect, "server-pair", why)
    return items


def halves(messages: Sequence[Message], dialect: Dialect, before: frozenset[str] = NONE) -> Places:
    """Return the places of calls of a server's tool without a result, of results without a call, of second calls.

    Calls with the ids ``before`` are sent in front of ``messages``.
    """
    if not any(_id(part) for message in messages for part in message.parts):
        return {}
    out: Places = {}
    waiting: set[str] = set()
    seen = set(before)
    answers = list(_answers(messages, dialect))
    for (start, stop), behind in zip(answers, [*answers[1:], (len(messages), 0)], strict=True):
        parts = [(index, place) for index in range(start, stop) for place in range(len(messages[index].parts))]
        marks = [(spot, _mark(messages[spot[0]].parts[spot[1]])) for spot in parts]
        awaited = {id_ for _, (id_, kind) in marks if kind == _CALLER}
        awaited |= _deferred(messages, (start, stop), behind)
        may_wait = stop == len(messages) and (not dialect.end_user or is_paused(messages[-1]))
        kept = list(_kept([mark for _, mark in marks], waiting, seen, awaited, may_wait=may_wait))
        for (index, place), (_, kind) in (mark for mark, keep in zip(marks, kept, strict=True) if not keep):
            if kind in {_USE, _RESULT}:
                out.setdefault(index, set()).add(place)
        used = {id_ for _, (id_, kind) in marks if kind == _USE}
        told = {id_ for _, (id_, kind) in marks if kind == _RESULT}
        waiting = (used | waiting) & awaited - told
        seen |= {id_ for (_, (id_, kind)), keep in zip(marks, kept, strict=True) if keep and kind == _USE}
    return out


def _deferred(messages: Sequence[Message], answer: tuple[int, int], behind: tuple[int, int]) -> set[str]:
    """Return the ids that wait for the client: its results stand alone behind them, then comes what was waited for."""
    between = [message for message in messages[answer[1] : behind[0]] if message.role != "system"]
    called = any(message.calls for message in messages[slice(*answer)])
    alone = all(type(part) is ToolResult for message in between for part in message.parts)
    if not (called and between and alone):
        return set()
    used, told = (
        {id_ for message in messages[slice(*place)] for id_, kind in map(_mark, message.parts) if kind == which}
        for place, which in ((answer, _USE), (behind, _RESULT))
    )
    return used & told if behind[1] else used


_USE, _RESULT, _CALLER, _OTHER = "use", "result", "caller", ""
"""What a part is here; a *caller* is a client's call that code on the server made."""
Mark = tuple[str, str]
"""The id that a part names, and what it is."""


def _mark(part: Part) -> Mark:
    if isinstance(part, ToolCall) and part.seal is not None:
        return part.seal.data, _CALLER
    id_ = _id(part)
    return (id_, _USE if isinstance(part, Opaque) and is_use(part) else _RESULT) if id_ else ("", _OTHER)


def _kept(
    marks: Sequence[Mark], waiting: set[str], seen: set[str], awaited: set[str], *, may_wait: bool
) -> Iterator[bool]:
    """Yield for each part of an answer whether it stays: each call once and before its results."""
    asked = set(waiting)
    last = {id_: number for number, (id_, kind) in enumerate(marks) if kind == _RESULT}
    for number, (id_, kind) in enumerate(marks):
        if kind == _USE:
            answered = last.get(id_, -1) > number or may_wait or id_ in awaited
            yield answered and id_ not in asked and id_ not in seen
            asked |= {id_} if answered and id_ not in seen else set()
        elif kind == _RESULT:
            yield id_ in asked
        else:
            yield True


def is_paused(message: Message) -> bool:
    """Return whether a message is an answer that a server's tool or a compaction interrupted: it is sent as it is."""
    last = message.parts[-1] if message.role == "assistant" and message.parts else None
    return isinstance(last, Opaque) and (is_use(last) or _is_result(last) or last.kind == "compaction")


def _is_result(part: Opaque) -> bool:
    return part.kind.endswith("_tool_result")


def _id(part: object) -> str:
    if not isinstance(part, Opaque) or part.seal is None or not (is_use(part) or _is_result(part)):
        return ""
    return part.seal.data


def _answers(messages: Sequence[Message], dialect: Dialect) -> Iterator[tuple[int, int]]:
    """Yield where each answer of the model begins and ends; a system message inside one that paused does not end it."""
    start = 0
    while start < len(messages):
        stop = start + 1
        if messages[start].role == "assistant":
            while dialect.joined and (more := _more(messages, stop, dialect)):
                stop += more
            yield start, stop
        start = stop


def _more(messages: Sequence[Message], at: int, dialect: Dialect) -> int:
    """Return how many messages from ``at`` on belong to the answer before it, up to its next piece."""
    between = dialect.system_place == "turn" and at + 1 < len(messages) and messages[at].role == "system"
    at_next = at + (between and is_paused(messages[at - 1]))
    return at_next + 1 - at if at_next < len(messages) and messages[at_next].role == "assistant" else 0
