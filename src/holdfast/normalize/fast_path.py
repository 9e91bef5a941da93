"""Whether a history needs no repair: one look at each message, for most histories need none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, ToolCall, ToolResult
from holdfast.normalize.ids import NO_CALL_IDS, has_only_valid_ids, is_wire_id, list_server_call_ids
from holdfast.normalize.media_limit import is_within_media_limits
from holdfast.normalize.misplaced_results import find_unanswered_computer_calls
from holdfast.normalize.pairing import find_results_of_calls, has_distinguishable_results, is_misnamed_result
from holdfast.normalize.parts import (
    can_be_empty,
    clean_message,
    has_only_valid_calls,
    is_empty_prefill,
    is_unsigned_text,
)
from holdfast.normalize.roles import can_follow_results, has_valid_system_position, is_merge_required
from holdfast.normalize.server_tools import find_unpaired_server_parts
from holdfast.normalize.signatures import has_required_signatures
from holdfast.state.dialect import Dialect


class _HistoryIndex(Struct, frozen=True, gc=False):
    """What is to be seen of a history at once."""

    messages: Sequence[Message]
    calls_by_message: dict[int, list[ToolCall]]
    """The calls of each answer that makes some."""
    calls: list[ToolCall]
    """All of them, in order."""
    results_by_message: dict[int, list[ToolResult]]
    """The results in each message that holds some, answers aside."""
    unusual_messages: list[int]
    """The messages that hold nothing, or anything but words, those calls, and those results of nothing but words."""


def _index_history(messages: Sequence[Message]) -> _HistoryIndex:
    calls_by_message: dict[int, list[ToolCall]] = {}
    results_by_message: dict[int, list[ToolResult]] = {}
    odd: list[int] = []
    for at, message in enumerate(messages):
        is_answer, is_odd = message.role == "assistant", not message.parts
        for part in message.parts:
            if type(part) is ToolCall and is_answer:
                calls_by_message.setdefault(at, []).append(part)
            elif type(part) is ToolResult and not is_answer:
                results_by_message.setdefault(at, []).append(part)
                is_odd = is_odd or not part.content
                for inner in part.content:
                    is_odd = is_odd or not is_unsigned_text(inner)
            else:
                is_odd = is_odd or not is_unsigned_text(part)
        if is_odd:
            odd.append(at)
    return _HistoryIndex(
        messages,
        calls_by_message,
        [call for calls in calls_by_message.values() for call in calls],
        results_by_message,
        odd,
    )


def is_normalized_inside(
    messages: Sequence[Message],
    dialect: Dialect,
    *,
    has_system_field: bool = True,
    earlier_ids: frozenset[str] = NO_CALL_IDS,
) -> bool:
    """Return whether ``messages`` need no repair inside (their two ends aside).

    ``has_system_field`` is true where system messages at the start go into a field of their own.
    """
    if dialect.keeps_client_content:
        return all(clean_message(original, dialect) is original for original in messages) and is_within_media_limits(
            messages, dialect
        )
    look = _index_history(messages)
    if look.calls and not has_only_valid_calls(look.calls, dialect):
        return False
    if not (
        _has_valid_placement(look, dialect, has_system_field=has_system_field)
        and _has_valid_pairing(look, dialect, earlier_ids)
    ):
        return False
    odd = [messages[at] for at in look.unusual_messages]
    unread = any(type(part) is Opaque for message in odd for part in message.parts)
    if unread and (find_unpaired_server_parts(messages, dialect) or find_unanswered_computer_calls(messages)):
        return False
    return has_required_signatures(messages, dialect) and (not odd or is_within_media_limits(messages, dialect))


def _has_valid_placement(look: _HistoryIndex, dialect: Dialect, *, has_system_field: bool) -> bool:
    """Return whether each message, and its place among its neighbours, is fine."""
    messages, last = look.messages, len(look.messages) - 1
    if not all(_is_clean_message(messages[at], dialect, is_last=at == last) for at in look.unusual_messages):
        return False
    minds = dialect.merges_same_role or dialect.calls_follow_user or dialect.needs_answer_after_results
    if minds and not all(_can_be_neighbors(first, second, dialect) for first, second in pairwise(messages)):
        return False
    systems = [at for at, message in enumerate(messages) if message.role == "system"]
    return all(
        has_valid_system_position(
            messages[at],
            messages[at - 1 : at],
            messages[at + 1 : at + 2],
            dialect,
            is_leading=has_system_field and at == number,
        )
        for number, at in enumerate(systems)
    )


def _can_be_neighbors(first: Message, second: Message, dialect: Dialect) -> bool:
    """Return whether two neighbours may stay as they are."""
    return not is_merge_required(first, second, dialect) and can_follow_results(first, second, dialect)


def _is_clean_message(message: Message, dialect: Dialect, *, is_last: bool) -> bool:
    if is_last and is_empty_prefill(message, dialect):
        return True
    return bool(message.parts or can_be_empty(message, dialect)) and clean_message(message, dialect) is message


def _has_valid_pairing(look: _HistoryIndex, dialect: Dialect, earlier_ids: frozenset[str]) -> bool:
    """Return whether calls and results stand as they should, under ids that may be sent."""
    if not _has_valid_ids(look, dialect, earlier_ids) or (
        dialect.results_carry_name and not _has_valid_result_names(look.messages, dialect)
    ):
        return False
    return _has_adjacent_results(look, dialect) if dialect.results_adjacent else _has_later_results(look.messages)


def _has_valid_ids(look: _HistoryIndex, dialect: Dialect, earlier_ids: frozenset[str]) -> bool:
    """Return whether ids have the letters and length they should, and none occurs twice where it may not."""
    call_ids = [call.id for call in look.calls]
    if not has_only_valid_ids(call_ids, dialect) or not (
        _has_no_duplicates(call_ids) or all(map(_has_no_duplicates, _group_call_ids(look, dialect)))
    ):
        return False
    if not dialect.unique_ids:
        return True
    server_call_ids = [id_ for at in look.unusual_messages for id_ in list_server_call_ids(look.messages[at])]
    sent_ids = [*server_call_ids, *[id_ for id_ in call_ids if is_wire_id(id_, dialect)]]
    return _has_no_duplicates(sent_ids) and earlier_ids.isdisjoint(sent_ids)


def _group_call_ids(look: _HistoryIndex, dialect: Dialect) -> list[list[str]]:
    """Return the ids of the calls in each answer; neighbours that the API reads as one are one answer."""
    if not dialect.server_joins_same_role:
        return [[call.id for call in calls] for calls in look.calls_by_message.values()]
    runs = groupby(range(len(look.messages)), lambda at: look.messages[at].role)
    return [[call.id for at in run for call in look.calls_by_message.get(at, ())] for _, run in runs]


def _has_no_duplicates(ids: Sequence[str]) -> bool:
    return len(set(ids)) == len(ids)


def _has_valid_result_names(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether each result says the name of its call, or another beside its id; without one it has its place."""
    matches = find_results_of_calls(messages)
    return has_distinguishable_results([result for answers in matches.values() for result in answers], dialect) and all(
        result is None
        or result.result.name == call.name
        or not is_misnamed_result(result.result, messages[index].calls, dialect)
        for index, answers in matches.items()
        for call, result in zip(messages[index].calls, answers, strict=True)
    )


def _has_adjacent_results(look: _HistoryIndex, dialect: Dialect) -> bool:
    """Return whether each answer has all its results right behind it, and there are no others."""
    calls_by_message, results_by_message = look.calls_by_message, look.results_by_message
    waiting: dict[str, int] = {}
    has_words = False
    previous = ""
    for at, message in enumerate(look.messages):
        role = message.role
        if role == "assistant":
            if waiting and not (dialect.server_joins_same_role and previous == "assistant"):
                return False
            for call in calls_by_message.get(at, ()):
                waiting[call.id] = waiting.get(call.id, 0) + 1
            has_words = False
        elif waiting or at in results_by_message:
            results = results_by_message.get(at, [])
            if not _try_consume_results(message, results, waiting, dialect, has_text_before=has_words):
                return False
            has_words = has_words or len(results) < len(message.parts)
        previous = role
    return not waiting


def _try_consume_results(
    message: Message, results: Sequence[ToolResult], waiting: dict[str, int], dialect: Dialect, *, has_text_before: bool
) -> bool:
    """Take the results of a message off ``waiting``; False when one is not waited for, or stands where it may not."""
    if message.role == "system" or not (results or dialect.server_joins_same_role):
        return False
    parts = message.parts
    late = has_text_before or (len(results) < len(parts) and {*map(type, parts[: len(results)])} != {ToolResult})
    if results and late and dialect.results_first:
        return False
    for result in results:
        count = waiting.pop(result.call_id, 0)
        if not count:
            return False
        if count > 1:
            waiting[result.call_id] = count - 1
    return not (waiting and dialect.results_grouped and not dialect.server_joins_same_role)


def _has_later_results(messages: Sequence[Message]) -> bool:
    """Return whether each call has its result behind it, and no result is left over."""
    matches = find_results_of_calls(messages)
    behind = [
        result
        for index, answers in matches.items()
        for result in answers
        if result is not None and result.message_index > index
    ]
    call_count = sum(len(answers) for answers in matches.values())
    return len(behind) == call_count == sum(len(message.results) for message in messages)
