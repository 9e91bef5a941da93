"""Calls and their results: each call has one, where its API wants it, and no result is without its call.

Matching is by occurrence. A displaced result moves behind its call, a second one goes, an orphan is told in words, a
missing one is made up; a real result wins over a made-up one, wherever it stands.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Container, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.messages.message import Message, placeholder, result_text, with_parts
from holdfast.messages.parts import Media, Opaque, Part, Text, ToolCall, ToolResult
from holdfast.messages.strip_foreign import words_of
from holdfast.normalize.ids import NONE, calls_of, fresh_ids, is_sent, is_use
from holdfast.normalize.items import Item, inserted
from holdfast.normalize.parts import clean_message, is_cut_off, without
from holdfast.state.dialect import Dialect

MISSING = "[No result was recorded for this call: it was interrupted or its output was lost.]"
"""Text of a synthetic result; it exists only in projections."""
RENAMED = "call-id"
"""Rule of the edits that give a call, and its results, the id that it is sent under."""
STRAY = "[Result of a tool call that is not here]"
"""What stands before the words of a result that answers no call."""


class Found(NamedTuple):
    """A result where it stands: item ``home``, the ``place``-th result in it."""

    home: int
    place: int
    result: ToolResult


Answers = dict[int, list[Found | None]]
"""For each item of the assistant's, the result of each of its calls, or nothing."""
Places = dict[int, set[int]]
"""Results, by the item they stand in."""


def drop_unfinished(items: list[Item], dialect: Dialect, *, cut: frozenset[int]) -> list[Item]:
    """Return the items without calls that never ran: nobody answered them, and they or their answer were cut off.

    ``cut`` are slots of answers that failed or were interrupted.
    """
    out = list(items)
    for index, found in matched([item.message for item in items]).items():
        item = items[index]
        calls = [place for place, part in enumerate(item.message.parts) if type(part) is ToolCall]
        gone = {place for place, call, one in zip(calls, item.message.calls, found, strict=True)
                if one is None and never_ran(item, call, cut)}  # fmt: skip
        if gone:
            message = without(item.message, gone, dialect)
            out[index] = item.changed(message, "unfinished-call", "the answer was interrupted and the call never ran")
    return out


def never_ran(item: Item, call: ToolCall, cut: frozenset[int]) -> bool:
    """Return whether a call of ``item`` that has no result never ran: it or its answer was cut off, as ``cut`` were."""
    return item.start in cut or is_cut_off(call)


def pair(items: list[Item], dialect: Dialect, *, before: frozenset[str] = NONE) -> list[Item]:
    """Return the items with each call's result where it belongs, under the id of its call, and no other results.

    Ids that are sent ``before`` them are not used again where an API wants each once.
    """
    messages = [item.message for item in items]
    answers = matched(messages)
    stray = strays(messages, answers)
    given = _given_elsewhere(messages, answers, dialect)
    ids = fresh_ids(messages, dialect, before)
    named = _named(items, answers, {index: ids[index] for index in answers if ids[index]}, dialect)
    near = dialect.results_adjacent
    out = list(_near(named, answers, dialect, stray, given) if near else _anywhere(named, answers, dialect, stray))
    if near or _is_named([item.message for item in out], dialect, before):
        return out
    return pair(out, dialect, before=before)  # answers that became neighbours, whose ids clash now


# -- which result answers which call -----------------------------------------------------------------------------------


def matched(messages: Sequence[Message]) -> Answers:
    """Return the results of the calls of each assistant message.

    A result answers the newest call of its id that waits: an id may be used again over an old gap. What is left then
    answers the use of its id that it is near, if that has no result, or one that was made up.
    """
    found: Answers = {}
    spare: dict[str, list[Found]] = defaultdict(list)
    waiting: dict[str, deque[tuple[int, int]]] = defaultdict(deque)
    run = 0
    for index, message in enumerate(messages):
        if message.role == "assistant":
            calls = message.calls
            run = run if index - 1 in found else index
            found[index] = [None] * len(calls)
            for place in reversed(range(len(calls))):
                wait = waiting[calls[place].id]
                while wait and wait[-1][0] < run:  # no later result answers what its id was used for before
                    wait.pop()
                wait.appendleft((index, place))
            continue
        for place, result in enumerate(message.results):
            queue = waiting.get(result.call_id)
            if queue:
                owner, number = queue.popleft()
                found[owner][number] = Found(index, place, result)
            else:
                spare[result.call_id].append(Found(index, place, result))
    return _with_spare(messages, found, spare) if spare else found


def _with_spare(messages: Sequence[Message], found: Answers, spare: Mapping[str, Sequence[Found]]) -> Answers:
    """Return the matches with those results that stand in an odd place, or came late."""
    uses: dict[str, list[int]] = defaultdict(list)
    for index in found:
        for call in messages[index].calls:
            uses[call.id].append(index)
    for index, answers in found.items():
        for place, call in enumerate(messages[index].calls if answers else ()):
            have = answers[place]
            if call.id in spare and (have is None or is_made_up(have.result)):
                near = _near_use(spare[call.id], uses[call.id], index)
                real = (one for one in near if not is_made_up(one.result))
                answers[place] = next(real, have or next(iter(near), None))
    return found


def _near_use(spare: Sequence[Found], uses: Sequence[int], index: int) -> list[Found]:
    """Return those of the ``spare`` results of an id that are of its use at ``index``, one of its ``uses``.

    They stand before its next use, so that what comes later changes nothing, and behind this one unless it is the
    first. Of two uses in one answer nobody knows which is meant.
    """
    at = bisect_left(uses, index)
    start, stop = (0 if at == 0 else index), (uses[at + 1] if at + 1 < len(uses) else inf)
    return [one for one in spare if start <= one.home < stop] if stop > index else []


def are_told_apart(every: Sequence[Found | None], dialect: Dialect) -> bool:
    """Return whether results tell which calls they answer: by their ids, or those of one name by the calls' order."""
    last: dict[str, tuple[int, int]] = {}
    for one in every:
        if one is not None and not is_sent(one.result.call_id, dialect):
            place = (one.home, one.place)
            if place < last.get(one.result.name, place):
                return False
            last[one.result.name] = place
    return True


def is_made_up(result: ToolResult) -> bool:
    """Return whether a result is one that a repair made up, which came back with the history."""
    text = result_text(result)
    return len(text) < 2 * len(MISSING) and MISSING in text


def orphans(messages: Sequence[Message]) -> frozenset[str]:
    """Return the ids of the results that answer no call among ``messages``, those of servers' tools too."""
    called, told = set(), set()
    for message in messages:
        for part in message.parts:
            if type(part) is ToolCall and message.role == "assistant":  # nobody else's call has a result
                called.add(part.id)
            elif type(part) is ToolResult:
                told.add(part.call_id)
            elif type(part) is Opaque and part.seal is not None:
                (called if is_use(part) else told).add(part.seal.data)
    return frozenset(told - called)


def asked_first(messages: Sequence[Message]) -> dict[str, int]:
    """Return the first message with a call of each id, those of servers' tools too."""
    first: dict[str, int] = {}
    for at, message in enumerate(messages):
        for part in message.parts:
            if type(part) is ToolCall and message.role == "assistant":
                first.setdefault(part.id, at)
            elif type(part) is Opaque and part.seal is not None and is_use(part):
                first.setdefault(part.seal.data, at)
    return first


def strays(messages: Sequence[Message], answers: Answers) -> Places:
    """Return the results that answer none of the calls, and stand before all calls of their id.

    What was told of them stays when such a call comes later and has a result of its own.
    """
    first = asked_first(messages)
    used = {(one.home, one.place) for found in answers.values() for one in found if one is not None}
    out: Places = {}
    for home, message in enumerate(messages):
        for place, result in enumerate(message.results):
            if first.get(result.call_id, inf) > home and (home, place) not in used:
                out.setdefault(home, set()).add(place)
    return out


def told(result: ToolResult) -> tuple[Text | Media, ...]:
    """Return what a result that answers no call says, as a user says it; nothing of one that is empty or made up."""
    said: list[Text | Media] = []
    for part in result.content:
        if isinstance(part, Media):
            said.append(replace(part, raw=None))
        elif text := part.text if isinstance(part, Text) else words_of(part) or placeholder(part):
            said.append(Text(text))
    if is_made_up(result) or not any(isinstance(one, Media) or one.text.strip() for one in said):
        return ()
    return (Text(f"{STRAY[:-1]}: {result.name}]" if result.name else STRAY), *said)


def _given_elsewhere(messages: Sequence[Message], answers: Answers, dialect: Dialect) -> Places:
    """Return the results without an id before all answers, whose calls lie elsewhere; take them off ``answers``."""
    first = next((at for at, message in enumerate(messages) if message.role == "assistant"), len(messages))
    given: Places = {}
    for home, message in enumerate(messages[:first] if dialect.elsewhere else ()):
        given[home] = {place for place, one in enumerate(message.results) if not is_sent(one.call_id, dialect)}
    for found in answers.values() if given else ():
        found[:] = [None if one is not None and one.place in given.get(one.home, ()) else one for one in found]
    return given


# -- the ids of both ---------------------------------------------------------------------------------------------------


def _is_named(messages: Sequence[Message], dialect: Dialect, before: frozenset[str]) -> bool:
    """Return whether every call has the id that it is sent with."""
    names = [tuple([call.id for call in calls_of(message)]) for message in messages]
    return names == fresh_ids(messages, dialect, before)


Names = dict[int, tuple[str, str]]
"""What a call or a result in a message is sent as, by its number: its id, and its name where that is said."""


def _named(items: Sequence[Item], answers: Answers, ids: Mapping[int, Sequence[str]], dialect: Dialect) -> list[Item]:
    """Return the items with calls, and the results that answer them, under the ids that they are sent with."""
    why = "an id has letters or a length that the API does not take, or was used before, or a result names another tool"
    out = list(items)
    new: dict[int, Names] = defaultdict(dict)
    for index, mine in ids.items():
        out[index] = with_names(out[index], {number: (id_, "") for number, id_ in enumerate(mine)}, ToolCall, why)
        calls = items[index].message.calls
        for call, id_, found in zip(calls, mine, answers[index], strict=True):
            if found is not None:
                new[found.home][found.place] = id_, call.name if misnamed(found.result, calls, dialect) else ""
    for home, names in new.items():
        out[home] = with_names(out[home], names, ToolResult, why)
    return out


def misnamed(result: ToolResult, calls: Sequence[ToolCall], dialect: Dialect) -> bool:
    """Return whether a result must get the name of its call: it has that of none, or no id tells which one it is."""
    if not dialect.named_results:
        return False
    return not is_sent(result.call_id, dialect) or all(call.name != result.name for call in calls)


def with_names(item: Item, names: Names, kind: type, why: str) -> Item:
    """Return the item with its parts of a ``kind`` under ``names``, by number; the same where they are so already."""
    parts: list[Part] = []
    number = 0
    for part in item.message.parts:
        if type(part) is kind:
            parts.append(_with_name(part, *names.get(number, ("", ""))))
            number += 1
        else:
            parts.append(part)
    message = with_parts(item.message, parts)
    return item if message is item.message else item.changed(message, RENAMED, why)


def _with_name(part: Part, id_: str, name: str) -> Part:
    if isinstance(part, ToolCall) and id_ not in {"", part.id}:
        return replace(part, id=id_, raw=None)
    if isinstance(part, ToolResult) and (id_ not in {"", part.call_id} or name not in {"", part.name}):
        return replace(part, call_id=id_ or part.call_id, name=name or part.name, raw=None)
    return part


# -- where results stand right behind their calls ----------------------------------------------------------------------


def _near(items: Sequence[Item], answers: Answers, dialect: Dialect, stray: Places, given: Places) -> Iterator[Item]:
    """Yield the items with all results of an answer right behind it; what stands there already stays as it is."""
    index = 0
    while index < len(items):
        stop = _run(items, index, dialect)
        if stop == index:
            yield from _only(items[index], stray.get(index, ()), dialect, given.get(index, ()))
            index += 1
            continue
        start, end = _in_place(items, answers, index, stop, dialect)
        for at in range(index, start):
            yield from _answered(items, answers, at, dialect)
        yield from items[start:end]
        index = end


def _run(items: Sequence[Item], start: int, dialect: Dialect) -> int:
    """Return where the answer ends that begins at ``start``: a message, or neighbours that are read as one; or none."""
    stop = start
    while stop < len(items) and items[stop].message.role == "assistant":
        stop += 1
        if not dialect.joined:
            break
    return stop


def _in_place(items: Sequence[Item], answers: Answers, first: int, stop: int, dialect: Dialect) -> tuple[int, int]:
    """Return from which of the answers ``first`` to ``stop`` on, and up to where, their results stand as they should.

    ``stop`` twice where they do not: no answer of these stays as it is then.
    """
    fits = _standing(items, stop, dialect)
    start = end = reach = stop
    wanted = 0
    for at in reversed(range(first, stop)):
        homes = [one.home if one is not None else -1 for one in answers[at]]
        if min(homes, default=stop) < stop:
            break
        wanted += len(homes)
        reach = max([reach, *[home + 1 for home in homes]])
        if reach - stop >= len(fits):
            break
        if wanted and fits[reach - stop] == wanted:
            start, end = at, reach
    every = [found for at in range(start, stop) for found in answers[at]]
    return (start, end) if are_told_apart(every, dialect) else (stop, stop)


def _standing(items: Sequence[Item], stop: int, dialect: Dialect) -> list[int]:
    """Return how many results stand in so many items from ``stop`` on, if nothing else is in the way; else -1.

    They end where an answer or a system message stands.
    """
    out, results, words, late = [0], 0, False, False
    for at in range(stop, len(items)):
        message = items[at].message
        if message.role in {"assistant", "system"}:
            break
        kinds = [type(part) is ToolResult for part in message.parts]
        late = late or (not dialect.results_grouped and not any(kinds))
        late = late or (dialect.results_grouped and not dialect.joined and at > stop)
        late = late or (dialect.results_first and (any(kinds) if words else sorted(kinds, reverse=True) != kinds))
        words = words or not all(kinds)
        results += sum(kinds)
        out.append(-1 if late or (words and dialect.results_answered) else results)
    return out


def _answered(items: Sequence[Item], answers: Answers, index: int, dialect: Dialect) -> Iterator[Item]:
    """Yield item ``index`` and new items that answer its calls, in call order."""
    item, calls = items[index], items[index].message.calls
    yield item
    if not calls:
        return
    told = _told(items, answers[index], calls)
    real = [found for found in answers[index] if found is not None]
    reach = _reach(items, index + 1) if real else (0, 0)
    moved = sum(found.home <= index or (found.home, found.place) > reach for found in real)
    counts = {"put behind their calls": moved, "made up": len(calls) - len(real)}
    said = ", ".join(f"{count} result(s) {what}" for what, count in counts.items() if count)
    why = said or "the results of its calls, and no others, stand behind an answer"
    groups = [tuple(told)] if dialect.results_grouped else [(one,) for one in told]
    for results in groups:
        yield inserted(item.stop, Message("tool", results), "pairing", why)


def _reach(items: Sequence[Item], start: int) -> tuple[int, int]:
    """Return the item, and the part in it, up to which nothing but results stands from item ``start`` on."""
    for at in range(start, len(items)):
        for place, part in enumerate(items[at].message.parts):
            if type(part) is not ToolResult:
                return at, place
    return len(items), 0


def _told(items: Sequence[Item], found: Sequence[Found | None], calls: Sequence[ToolCall]) -> list[ToolResult]:
    """Return the results of calls as they stand now, or such that are made up."""
    homes = {home: items[home].message.results for home in {one.home for one in found if one is not None}}
    return [
        ToolResult(call.id, call.name, (Text(MISSING),), is_error=True) if one is None else homes[one.home][one.place]
        for call, one in zip(calls, found, strict=True)
    ]


def _only(item: Item, stray: Container[int], dialect: Dialect, places: Container[int]) -> Iterator[Item]:
    """Yield the item with those results that may stand here: at ``places``, or where those that are ``stray`` may.

    Where they may not, a user tells them.
    """
    results = iter(range(len(item.message.parts)))
    parts: list[Part] = []
    words: list[Part] = []
    for part in item.message.parts:
        place = next(results) if isinstance(part, ToolResult) else -1
        if not isinstance(part, ToolResult) or place in places or (dialect.elsewhere and place in stray):
            parts.append(part)
        elif place in stray:
            words += told(part)
    if len(parts) == len(item.message.parts):
        yield item
        return
    left = clean_message(Message(item.message.role, tuple(parts)), dialect)
    said = clean_message(Message("user", tuple(words)), dialect)
    why = "a result that answers no call is told"
    aside = inserted(item.stop if left.results else item.start, said, "pairing", why)
    kept = item.changed(left, "pairing", "its results stand behind their calls, or answer none")
    yield from [one for one in ((kept, aside) if left.results else (aside, kept)) if one.message.parts]


# -- where results stand anywhere behind their calls -------------------------------------------------------------------


def _anywhere(items: Sequence[Item], answers: Answers, dialect: Dialect, stray: Places) -> Iterator[Item]:
    """Yield the items with a result for each call somewhere behind it; those that stand so stay."""
    fine: dict[int, set[int]] = defaultdict(set)
    for index, found in answers.items():
        for one in found:
            if one is not None and one.home > index:
                fine[one.home].add(one.place)
    for index, item in enumerate(items):
        if item.message.role == "assistant":
            yield item
            yield from _added(items, answers[index], index)
        else:
            yield from _only(item, stray.get(index, ()), dialect, fine[index])


def _added(items: Sequence[Item], found: Sequence[Found | None], index: int) -> Iterator[Item]:
    """Yield new items for the calls of item ``index`` that no result stands behind."""
    for one, result in zip(found, _told(items, found, items[index].message.calls), strict=True):
        if one is None or one.home < index:
            why = "the call had no result" if one is None else "its result stood before the call"
            yield inserted(items[index].stop, Message("tool", (result,)), "pairing", why)
