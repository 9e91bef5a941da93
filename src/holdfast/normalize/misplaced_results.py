"""Results where nobody would look for them, and calls that nobody can answer in a client's place.

A result in the answer that made its call stands behind that answer. One without an id answers the call that it stands
behind, where there are as many of the one as of the other. A call that Holdfast does not read goes without its output.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, ToolCall, ToolResult
from holdfast.normalize.ids import is_sent, minted_id
from holdfast.normalize.items import Item, inserted
from holdfast.normalize.pairing import Answers, Names, asked_first, is_made_up, matched, with_names
from holdfast.normalize.parts import Places, left_out
from holdfast.state.dialect import Dialect

Spot = tuple[int, int]
"""A result: the message that holds it, and the how-manieth of its results it is."""
_SCREEN = "computer_call"
"""A call whose output is no text: none can be made up."""


# -- results in an answer ----------------------------------------------------------------------------------------------


def set_free(items: list[Item], _dialect: Dialect) -> list[Item]:
    """Return the items with results out of answers behind them, where their calls have no other or are not here."""
    if not any(item.message.role == "assistant" and item.message.results for item in items):
        return items
    messages = [item.message for item in items]
    found = matched(messages)
    wanted = {
        call.id
        for index, answers in found.items()
        for call, one in zip(messages[index].calls, answers, strict=True)
        if one is None or is_made_up(one.result)
    }
    first = asked_first(messages)
    return [one for at, item in enumerate(items) for one in _apart(item, _freed(item.message, wanted, first, at))]


def _freed(message: Message, wanted: Container[str], first: Mapping[str, int], at: int) -> set[str]:
    """Return the ids of results in message ``at`` that are ``wanted``, or that nobody called ``first`` by then."""
    ids = {result.call_id for result in message.results}
    return {id_ for id_ in ids if id_ in wanted or first.get(id_, inf) > at}


def _apart(item: Item, wanted: Container[str]) -> Iterator[Item]:
    """Yield an answer as answers with messages of those results between them that are ``wanted``."""
    if item.message.role != "assistant" or all(result.call_id not in wanted for result in item.message.results):
        yield item
        return
    why = "only the other side tells what a call gave back"
    runs = groupby(item.message.parts, lambda part: isinstance(part, ToolResult) and part.call_id in wanted)
    for number, (told, parts) in enumerate(runs):
        message = Message("tool" if told else "assistant", tuple(parts))
        if number:
            yield inserted(item.stop, message, "result-place", why)
        else:
            yield item.changed(message, "result-place", why)


# -- calls and results without an id -----------------------------------------------------------------------------------


def name(items: list[Item], dialect: Dialect) -> list[Item]:
    """Return the items with calls without an id that are answered under one of their own, and their results under it.

    They answer each other by their order. An id tells of its message alone, so what goes before renames nobody.
    """
    if not any(not call.id for item in items for call in item.message.calls):
        return items
    messages = [item.message for item in items]
    new: dict[type, dict[int, Names]] = {ToolCall: defaultdict(dict), ToolResult: defaultdict(dict)}
    for index, found in matched(messages).items():
        for place, (call, one) in enumerate(zip(messages[index].calls, found, strict=True)):
            if one is not None and not call.id:
                id_ = minted_id(f"{messages[index].text!r} {call.arguments} {place}", dialect)
                new[ToolCall][index][place] = id_, ""
                new[ToolResult][one.home][one.place] = id_, ""
    for kind, names in new.items():
        why = "a call without an id is answered by the result that stands behind it"
        items = [with_names(item, names[at], kind, why) for at, item in enumerate(items)]
    return items


def tie(items: list[Item], dialect: Dialect) -> list[Item]:
    """Return the items with results that name no call under the id of the one they stand behind."""
    messages = [item.message for item in items]
    if not any(_is_nameless(result, dialect) for message in messages for result in message.results):
        return items
    found = matched(messages)
    used = {(one.home, one.place) for answers in found.values() for one in answers if one is not None}
    names: dict[int, Names] = defaultdict(dict)
    for index in found:
        for (home, place), call in _by_place(messages, found, index, used, dialect):
            names[home][place] = call.id, call.name if dialect.named_results else ""
    why = "a result that names no call answers the one it stands behind"
    return [with_names(item, names[home], ToolResult, why) for home, item in enumerate(items)]


def _is_nameless(result: ToolResult, dialect: Dialect) -> bool:
    return not result.call_id or not is_sent(result.call_id, dialect)


def _by_place(
    messages: Sequence[Message], found: Answers, index: int, used: set[Spot], dialect: Dialect
) -> Iterator[tuple[Spot, ToolCall]]:
    """Yield the nameless results right behind an answer with its open calls, where they are as many."""
    calls = [call for call, one in zip(messages[index].calls, found[index], strict=True) if one is None]
    if not calls:
        return
    spots: list[Spot] = []
    for home in range(index + 1, len(messages)):
        if messages[home].role == "assistant":
            break
        told = enumerate(messages[home].results)
        spots += [(home, place) for place, one in told if _is_nameless(one, dialect) and (home, place) not in used]
    if len(spots) == len(calls):
        yield from zip(spots, calls, strict=True)


# -- calls that are not read -------------------------------------------------------------------------------------------


def drop_unseen(items: list[Item], dialect: Dialect) -> list[Item]:
    """Return the items without calls for a screenshot that none came of."""
    why = "no screenshot came of the call, and none can be made up"
    return left_out(items, unseen([item.message for item in items]), dialect, "pairing", why)


def unseen(messages: Sequence[Message]) -> Places:
    """Return the places of calls for a screenshot that none stands behind."""
    told: set[str] = set()
    out: Places = {}
    for index in reversed(range(len(messages))):
        for place, part in enumerate(messages[index].parts):
            if isinstance(part, Opaque) and part.seal is not None:
                if messages[index].role == "tool":
                    told.add(part.seal.data)
                elif part.kind == _SCREEN and part.seal.data not in told:
                    out.setdefault(index, set()).add(place)
    return out
