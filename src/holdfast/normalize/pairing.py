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

from holdfast.messages.message import Message, format_part_placeholder, get_result_text, replace_all_parts
from holdfast.messages.parts import Media, Opaque, Part, Text, ToolCall, ToolResult
from holdfast.messages.strip_foreign import get_opaque_text
from holdfast.normalize.ids import NO_CALL_IDS, assign_wire_ids, get_assistant_calls, is_server_tool_call, is_wire_id
from holdfast.normalize.parts import clean_message, drop_parts_with_thinking, has_incomplete_arguments
from holdfast.normalize.tracked_messages import TrackedMessage, create_inserted_message
from holdfast.state.dialect import Dialect

SYNTHETIC_RESULT_TEXT = "[No result was recorded for this call: it was interrupted or its output was lost.]"
"""Text of a synthetic result; it exists only in projections."""
CALL_ID_RULE = "call-id"
"""Rule of the edits that give a call, and its results, the id that it is sent under."""
ORPHAN_RESULT_LABEL = "[Result of a tool call that is not here]"
"""What stands before the words of a result that answers no call."""


class LocatedResult(NamedTuple):
    """A result where it stands: item ``message_index``, the ``result_index``-th result in it."""

    message_index: int
    result_index: int
    result: ToolResult


ResultsByAnswer = dict[int, list[LocatedResult | None]]
"""For each item of the assistant's, the result of each of its calls, or nothing."""
ResultIndexes = dict[int, set[int]]
"""Results, by the item they stand in."""


def drop_unfinished_calls(
    items: list[TrackedMessage], dialect: Dialect, *, interrupted: frozenset[int]
) -> list[TrackedMessage]:
    """Return the items without calls that never ran: nobody answered them, and they or their answer were cut off.

    ``interrupted`` are slots of answers that failed or were interrupted.
    """
    out = list(items)
    for index, results in find_results_of_calls([item.message for item in items]).items():
        item = items[index]
        calls = [place for place, part in enumerate(item.message.parts) if type(part) is ToolCall]
        dropped_places = {place for place, call, result in zip(calls, item.message.calls, results, strict=True)
                if result is None and has_never_run(item, call, interrupted)}  # fmt: skip
        if dropped_places:
            message = drop_parts_with_thinking(item.message, dropped_places, dialect)
            out[index] = item.replace_message(
                message, "unfinished-call", "the answer was interrupted and the call never ran"
            )
    return out


def has_never_run(item: TrackedMessage, call: ToolCall, interrupted: frozenset[int]) -> bool:
    """Return whether a call of ``item`` that has no result never ran: it or its answer was cut off, as
    ``interrupted`` were.
    """
    return item.start in interrupted or has_incomplete_arguments(call)


def pair_calls_with_results(
    items: list[TrackedMessage], dialect: Dialect, *, earlier_ids: frozenset[str] = NO_CALL_IDS
) -> list[TrackedMessage]:
    """Return the items with each call's result where it belongs, under the id of its call, and no other results.

    Ids that are sent ``earlier_ids`` them are not used again where an API wants each once.
    """
    messages = [item.message for item in items]
    answers = find_results_of_calls(messages)
    stray = find_early_orphan_results(messages, answers)
    external_results = _detach_external_results(messages, answers, dialect)
    ids = assign_wire_ids(messages, dialect, earlier_ids)
    renamed_items = _rename_calls_and_results(
        items, answers, {index: ids[index] for index in answers if ids[index]}, dialect
    )
    near = dialect.results_adjacent
    out = list(
        _place_results_adjacent(renamed_items, answers, dialect, stray, external_results)
        if near
        else _place_results_after_calls(renamed_items, answers, dialect, stray)
    )
    if near or _has_assigned_ids([item.message for item in out], dialect, earlier_ids):
        return out
    return pair_calls_with_results(
        out, dialect, earlier_ids=earlier_ids
    )  # answers that became neighbours, whose ids clash now


# -- which result answers which call -----------------------------------------------------------------------------------


def find_results_of_calls(messages: Sequence[Message]) -> ResultsByAnswer:
    """Return the results of the calls of each assistant message.

    A result answers the newest call of its id that waits: an id may be used again over an old gap. What is left then
    answers the use of its id that it is near, if that has no result, or one that was made up.
    """
    matches: ResultsByAnswer = {}
    spare: dict[str, list[LocatedResult]] = defaultdict(list)
    waiting: dict[str, deque[tuple[int, int]]] = defaultdict(deque)
    run = 0
    for index, message in enumerate(messages):
        if message.role == "assistant":
            calls = message.calls
            run = run if index - 1 in matches else index
            matches[index] = [None] * len(calls)
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
                matches[owner][number] = LocatedResult(index, place, result)
            else:
                spare[result.call_id].append(LocatedResult(index, place, result))
    return _assign_spare_results(messages, matches, spare) if spare else matches


def _assign_spare_results(
    messages: Sequence[Message], matches: ResultsByAnswer, spare: Mapping[str, Sequence[LocatedResult]]
) -> ResultsByAnswer:
    """Return the matches with those results that stand in an odd place, or came late."""
    uses: dict[str, list[int]] = defaultdict(list)
    for index in matches:
        for call in messages[index].calls:
            uses[call.id].append(index)
    for index, answers in matches.items():
        for place, call in enumerate(messages[index].calls if answers else ()):
            have = answers[place]
            if call.id in spare and (have is None or is_synthetic_result(have.result)):
                near = _find_nearby_results(spare[call.id], uses[call.id], index)
                real = (result for result in near if not is_synthetic_result(result.result))
                answers[place] = next(real, have or next(iter(near), None))
    return matches


def _find_nearby_results(spare: Sequence[LocatedResult], use_indexes: Sequence[int], index: int) -> list[LocatedResult]:
    """Return those of the ``spare`` results of an id that are of its use at ``index``, one of its ``use_indexes``.

    They stand before its next use, so that what comes later changes nothing, and behind this one unless it is the
    first. Of two uses in one answer nobody knows which is meant.
    """
    at = bisect_left(use_indexes, index)
    start, stop = (0 if at == 0 else index), (use_indexes[at + 1] if at + 1 < len(use_indexes) else inf)
    return [result for result in spare if start <= result.message_index < stop] if stop > index else []


def has_distinguishable_results(results: Sequence[LocatedResult | None], dialect: Dialect) -> bool:
    """Return whether results tell which calls they answer: by their ids, or those of one name by the calls' order."""
    last: dict[str, tuple[int, int]] = {}
    for result in results:
        if result is not None and not is_wire_id(result.result.call_id, dialect):
            place = (result.message_index, result.result_index)
            if place < last.get(result.result.name, place):
                return False
            last[result.result.name] = place
    return True


def is_synthetic_result(result: ToolResult) -> bool:
    """Return whether a result is one that a repair made up, which came back with the history."""
    text = get_result_text(result)
    return len(text) < 2 * len(SYNTHETIC_RESULT_TEXT) and SYNTHETIC_RESULT_TEXT in text


def find_orphan_ids(messages: Sequence[Message]) -> frozenset[str]:
    """Return the ids of the results that answer no call among ``messages``, those of servers' tools too."""
    call_ids, result_ids = set(), set()
    for message in messages:
        for part in message.parts:
            if type(part) is ToolCall and message.role == "assistant":  # nobody else's call has a result
                call_ids.add(part.id)
            elif type(part) is ToolResult:
                result_ids.add(part.call_id)
            elif type(part) is Opaque and part.signature is not None:
                (call_ids if is_server_tool_call(part) else result_ids).add(part.signature.data)
    return frozenset(result_ids - call_ids)


def index_first_calls(messages: Sequence[Message]) -> dict[str, int]:
    """Return the first message with a call of each id, those of servers' tools too."""
    first: dict[str, int] = {}
    for at, message in enumerate(messages):
        for part in message.parts:
            if type(part) is ToolCall and message.role == "assistant":
                first.setdefault(part.id, at)
            elif type(part) is Opaque and part.signature is not None and is_server_tool_call(part):
                first.setdefault(part.signature.data, at)
    return first


def find_early_orphan_results(messages: Sequence[Message], answers: ResultsByAnswer) -> ResultIndexes:
    """Return the results that answer none of the calls, and stand before all calls of their id.

    What was told of them stays when such a call comes later and has a result of its own.
    """
    first = index_first_calls(messages)
    used = {
        (match.message_index, match.result_index)
        for matches in answers.values()
        for match in matches
        if match is not None
    }
    out: ResultIndexes = {}
    for home, message in enumerate(messages):
        for place, result in enumerate(message.results):
            if first.get(result.call_id, inf) > home and (home, place) not in used:
                out.setdefault(home, set()).add(place)
    return out


def render_orphan_result(result: ToolResult) -> tuple[Text | Media, ...]:
    """Return what a result that answers no call says, as a user says it; nothing of one that is empty or made up."""
    content: list[Text | Media] = []
    for part in result.content:
        if isinstance(part, Media):
            content.append(replace(part, raw=None))
        elif text := part.text if isinstance(part, Text) else get_opaque_text(part) or format_part_placeholder(part):
            content.append(Text(text))
    if is_synthetic_result(result) or not any(isinstance(item, Media) or item.text.strip() for item in content):
        return ()
    return (Text(f"{ORPHAN_RESULT_LABEL[:-1]}: {result.name}]" if result.name else ORPHAN_RESULT_LABEL), *content)


def _detach_external_results(messages: Sequence[Message], answers: ResultsByAnswer, dialect: Dialect) -> ResultIndexes:
    """Return the results without an id before all answers, whose calls lie elsewhere; take them off ``answers``."""
    first = next((at for at, message in enumerate(messages) if message.role == "assistant"), len(messages))
    external_results: ResultIndexes = {}
    for home, message in enumerate(messages[:first] if dialect.has_server_history else ()):
        external_results[home] = {
            place for place, result in enumerate(message.results) if not is_wire_id(result.call_id, dialect)
        }
    for matches in answers.values() if external_results else ():
        matches[:] = [
            None
            if result is not None and result.result_index in external_results.get(result.message_index, ())
            else result
            for result in matches
        ]
    return external_results


# -- the ids of both ---------------------------------------------------------------------------------------------------


def _has_assigned_ids(messages: Sequence[Message], dialect: Dialect, earlier_ids: frozenset[str]) -> bool:
    """Return whether every call has the id that it is sent with."""
    names = [tuple([call.id for call in get_assistant_calls(message)]) for message in messages]
    return names == assign_wire_ids(messages, dialect, earlier_ids)


WireNames = dict[int, tuple[str, str]]
"""What a call or a result in a message is sent as, by its number: its id, and its name where that is said."""


def _rename_calls_and_results(
    items: Sequence[TrackedMessage], answers: ResultsByAnswer, ids: Mapping[int, Sequence[str]], dialect: Dialect
) -> list[TrackedMessage]:
    """Return the items with calls, and the results that answer them, under the ids that they are sent with."""
    why = "an id has letters or a length that the API does not take, or was used before, or a result names another tool"
    out = list(items)
    new: dict[int, WireNames] = defaultdict(dict)
    for index, own_ids in ids.items():
        out[index] = apply_wire_names(
            out[index], {number: (id_, "") for number, id_ in enumerate(own_ids)}, ToolCall, why
        )
        calls = items[index].message.calls
        for call, id_, result in zip(calls, own_ids, answers[index], strict=True):
            if result is not None:
                new[result.message_index][result.result_index] = (
                    id_,
                    call.name if is_misnamed_result(result.result, calls, dialect) else "",
                )
    for home, names in new.items():
        out[home] = apply_wire_names(out[home], names, ToolResult, why)
    return out


def is_misnamed_result(result: ToolResult, calls: Sequence[ToolCall], dialect: Dialect) -> bool:
    """Return whether a result must get the name of its call: it has that of none, or no id tells which one it is."""
    if not dialect.results_carry_name:
        return False
    return not is_wire_id(result.call_id, dialect) or all(call.name != result.name for call in calls)


def apply_wire_names(item: TrackedMessage, names: WireNames, kind: type, why: str) -> TrackedMessage:
    """Return the item with its parts of a ``kind`` under ``names``, by number; the same where they are so already."""
    parts: list[Part] = []
    number = 0
    for part in item.message.parts:
        if type(part) is kind:
            parts.append(_rename_part(part, *names.get(number, ("", ""))))
            number += 1
        else:
            parts.append(part)
    message = replace_all_parts(item.message, parts)
    return item if message is item.message else item.replace_message(message, CALL_ID_RULE, why)


def _rename_part(part: Part, id_: str, name: str) -> Part:
    if isinstance(part, ToolCall) and id_ not in {"", part.id}:
        return replace(part, id=id_, raw=None)
    if isinstance(part, ToolResult) and (id_ not in {"", part.call_id} or name not in {"", part.name}):
        return replace(part, call_id=id_ or part.call_id, name=name or part.name, raw=None)
    return part


# -- where results stand right behind their calls ----------------------------------------------------------------------


def _place_results_adjacent(
    items: Sequence[TrackedMessage],
    answers: ResultsByAnswer,
    dialect: Dialect,
    orphans: ResultIndexes,
    external_results: ResultIndexes,
) -> Iterator[TrackedMessage]:
    """Yield the items with all results of an answer right behind it; what stands there already stays as it is."""
    index = 0
    while index < len(items):
        stop = _find_answer_end(items, index, dialect)
        if stop == index:
            yield from _emit_permitted_results(
                items[index], orphans.get(index, ()), dialect, external_results.get(index, ())
            )
            index += 1
            continue
        start, end = _find_answers_in_order(items, answers, index, stop, dialect)
        for at in range(index, start):
            yield from _emit_answer_with_results(items, answers, at, dialect)
        yield from items[start:end]
        index = end


def _find_answer_end(items: Sequence[TrackedMessage], start: int, dialect: Dialect) -> int:
    """Return where the answer ends that begins at ``start``: a message, or neighbours that are read as one; or none."""
    stop = start
    while stop < len(items) and items[stop].message.role == "assistant":
        stop += 1
        if not dialect.server_joins_same_role:
            break
    return stop


def _find_answers_in_order(
    items: Sequence[TrackedMessage], answers: ResultsByAnswer, first: int, stop: int, dialect: Dialect
) -> tuple[int, int]:
    """Return from which of the answers ``first`` to ``stop`` on, and up to where, their results stand as they should.

    ``stop`` twice where they do not: no answer of these stays as it is then.
    """
    fits = _count_adjacent_results(items, stop, dialect)
    start = end = reach = stop
    result_count = 0
    for at in reversed(range(first, stop)):
        homes = [match.message_index if match is not None else -1 for match in answers[at]]
        if min(homes, default=stop) < stop:
            break
        result_count += len(homes)
        reach = max([reach, *[home + 1 for home in homes]])
        if reach - stop >= len(fits):
            break
        if result_count and fits[reach - stop] == result_count:
            start, end = at, reach
    every = [result for at in range(start, stop) for result in answers[at]]
    return (start, end) if has_distinguishable_results(every, dialect) else (stop, stop)


def _count_adjacent_results(items: Sequence[TrackedMessage], stop: int, dialect: Dialect) -> list[int]:
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
        late = late or (dialect.results_grouped and not dialect.server_joins_same_role and at > stop)
        late = late or (dialect.results_first and (any(kinds) if words else sorted(kinds, reverse=True) != kinds))
        words = words or not all(kinds)
        results += sum(kinds)
        out.append(-1 if late or (words and dialect.needs_answer_after_results) else results)
    return out


def _emit_answer_with_results(
    items: Sequence[TrackedMessage], answers: ResultsByAnswer, index: int, dialect: Dialect
) -> Iterator[TrackedMessage]:
    """Yield item ``index`` and new items that answer its calls, in call order."""
    item, calls = items[index], items[index].message.calls
    yield item
    if not calls:
        return
    final_results = _collect_results(items, answers[index], calls)
    real = [match for match in answers[index] if match is not None]
    reach = _find_result_run_end(items, index + 1) if real else (0, 0)
    moved_count = sum(
        match.message_index <= index or (match.message_index, match.result_index) > reach for match in real
    )
    counts = {"put behind their calls": moved_count, "made up": len(calls) - len(real)}
    summary = ", ".join(f"{count} result(s) {label}" for label, count in counts.items() if count)
    why = summary or "the results of its calls, and no others, stand behind an answer"
    groups = [tuple(final_results)] if dialect.results_grouped else [(result,) for result in final_results]
    for results in groups:
        yield create_inserted_message(item.stop, Message("tool", results), "pairing", why)


def _find_result_run_end(items: Sequence[TrackedMessage], start: int) -> tuple[int, int]:
    """Return the item, and the part in it, up to which nothing but results stands from item ``start`` on."""
    for at in range(start, len(items)):
        for place, part in enumerate(items[at].message.parts):
            if type(part) is not ToolResult:
                return at, place
    return len(items), 0


def _collect_results(
    items: Sequence[TrackedMessage], matches: Sequence[LocatedResult | None], calls: Sequence[ToolCall]
) -> list[ToolResult]:
    """Return the results of calls as they stand now, or such that are made up."""
    homes = {
        home: items[home].message.results for home in {match.message_index for match in matches if match is not None}
    }
    return [
        ToolResult(call.id, call.name, (Text(SYNTHETIC_RESULT_TEXT),), is_error=True)
        if match is None
        else homes[match.message_index][match.result_index]
        for call, match in zip(calls, matches, strict=True)
    ]


def _emit_permitted_results(
    item: TrackedMessage, orphans: Container[int], dialect: Dialect, kept_results: Container[int]
) -> Iterator[TrackedMessage]:
    """Yield the item with those results that may stand here: at ``kept_results``, or where those that are ``orphans``
    may.

    Where they may not, a user tells them.
    """
    results = iter(range(len(item.message.parts)))
    parts: list[Part] = []
    words: list[Part] = []
    for part in item.message.parts:
        place = next(results) if isinstance(part, ToolResult) else -1
        if (
            not isinstance(part, ToolResult)
            or place in kept_results
            or (dialect.has_server_history and place in orphans)
        ):
            parts.append(part)
        elif place in orphans:
            words += render_orphan_result(part)
    if len(parts) == len(item.message.parts):
        yield item
        return
    remaining_message = clean_message(Message(item.message.role, tuple(parts)), dialect)
    user_message = clean_message(Message("user", tuple(words)), dialect)
    why = "a result that answers no call is told"
    aside = create_inserted_message(
        item.stop if remaining_message.results else item.start, user_message, "pairing", why
    )
    changed_item = item.replace_message(
        remaining_message, "pairing", "its results stand behind their calls, or answer none"
    )
    yield from [
        candidate
        for candidate in ((changed_item, aside) if remaining_message.results else (aside, changed_item))
        if candidate.message.parts
    ]


# -- where results stand anywhere behind their calls -------------------------------------------------------------------


def _place_results_after_calls(
    items: Sequence[TrackedMessage], answers: ResultsByAnswer, dialect: Dialect, orphans: ResultIndexes
) -> Iterator[TrackedMessage]:
    """Yield the items with a result for each call somewhere behind it; those that stand so stay."""
    fine: dict[int, set[int]] = defaultdict(set)
    for index, matches in answers.items():
        for match in matches:
            if match is not None and match.message_index > index:
                fine[match.message_index].add(match.result_index)
    for index, item in enumerate(items):
        if item.message.role == "assistant":
            yield item
            yield from _emit_missing_results(items, answers[index], index)
        else:
            yield from _emit_permitted_results(item, orphans.get(index, ()), dialect, fine[index])


def _emit_missing_results(
    items: Sequence[TrackedMessage], results: Sequence[LocatedResult | None], index: int
) -> Iterator[TrackedMessage]:
    """Yield new items for the calls of item ``index`` that no result stands behind."""
    for match, result in zip(results, _collect_results(items, results, items[index].message.calls), strict=True):
        if match is None or match.message_index < index:
            why = "the call had no result" if match is None else "its result stood before the call"
            yield create_inserted_message(items[index].stop, Message("tool", (result,)), "pairing", why)
