"""Decide with one look at each message whether a history needs no normalization, as most do.

The answer must agree with the passes of ``normalize_history``: a property test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, ToolCall, ToolResult
from holdfast.normalize.approvals import find_orphan_approvals
from holdfast.normalize.ids import NO_CALL_IDS, has_only_valid_ids, is_wire_id, list_server_call_ids
from holdfast.normalize.media_limit import is_within_media_limits
from holdfast.normalize.misplaced_results import find_unanswered_computer_calls
from holdfast.normalize.old_calls import has_refused_old_calls
from holdfast.normalize.pairing import is_misnamed_result
from holdfast.normalize.parts import (
    can_be_empty,
    clean_message,
    has_only_valid_calls,
    is_empty_prefill,
    is_unsigned_text,
    refuses_result_names,
)
from holdfast.normalize.result_matching import (
    find_results_of_calls,
    has_distinguishable_results,
    may_be_answered_later,
)
from holdfast.normalize.returned_reasoning import have_required_reasoning
from holdfast.normalize.roles import can_follow_results, has_valid_system_position, is_merge_required
from holdfast.normalize.server_tools import find_unpaired_server_parts
from holdfast.normalize.signatures import has_required_signatures
from holdfast.state.dialect import Dialect


class _HistoryIndex(Struct, frozen=True, gc=False):
    """The calls, results and unusual messages of a history, collected in one pass."""

    messages: Sequence[Message]
    calls_by_message: dict[int, list[ToolCall]]
    """The calls of each answer that makes some."""
    calls: list[ToolCall]
    """All calls, in order."""
    results_by_message: dict[int, list[ToolResult]]
    """The results in each message that holds some, answers aside."""
    unusual_messages: list[int]
    """Indexes of messages that are empty or hold anything but unsigned text, calls, and results of unsigned text."""


def _index_history(messages: Sequence[Message], dialect: Dialect) -> _HistoryIndex:
    refuses_names = refuses_result_names(dialect)
    calls_by_message: dict[int, list[ToolCall]] = {}
    results_by_message: dict[int, list[ToolResult]] = {}
    unusual_messages: list[int] = []
    for index, message in enumerate(messages):
        is_answer = message.role == "assistant"
        is_unusual = not message.parts
        for part in message.parts:
            if type(part) is ToolCall and is_answer:
                calls_by_message.setdefault(index, []).append(part)
            elif type(part) is ToolResult and not is_answer:
                results_by_message.setdefault(index, []).append(part)
                is_unusual = is_unusual or not part.content or (refuses_names and bool(part.name))
                for content_part in part.content:
                    is_unusual = is_unusual or not is_unsigned_text(content_part)
            else:
                is_unusual = is_unusual or not is_unsigned_text(part)
        if is_unusual:
            unusual_messages.append(index)
    all_calls = [call for calls in calls_by_message.values() for call in calls]
    return _HistoryIndex(
        messages,
        calls_by_message,
        all_calls,
        results_by_message,
        unusual_messages,
    )


def is_normalized_inside(
    messages: Sequence[Message],
    dialect: Dialect,
    *,
    has_system_field: bool = True,
    earlier_ids: frozenset[str] = NO_CALL_IDS,
) -> bool:
    """Return whether ``messages`` need no normalization, their two ends aside.

    ``has_system_field`` says that leading system messages go into a field of their own.
    """
    if dialect.keeps_client_content:
        if not all(clean_message(message, dialect) is message for message in messages):
            return False
        return not has_refused_old_calls(messages, dialect) and is_within_media_limits(messages, dialect)
    history = _index_history(messages, dialect)
    if history.calls and not has_only_valid_calls(history.calls, dialect):
        return False
    if not _has_valid_placement(history, dialect, has_system_field=has_system_field):
        return False
    if not _has_valid_pairing(history, dialect, earlier_ids):
        return False
    # Opaque parts, media and empty messages are all among the unusual messages, so the checks of these look at no
    # others.
    unusual_messages = [messages[index] for index in history.unusual_messages]
    has_opaque_parts = any(Opaque in map(type, message.parts) for message in unusual_messages)
    if has_opaque_parts and _has_unpaired_opaque_parts(messages, dialect):
        return False
    if has_opaque_parts and has_refused_old_calls(unusual_messages, dialect):
        return False
    if not has_required_signatures(messages, dialect) or not have_required_reasoning(messages, dialect):
        return False
    return not unusual_messages or is_within_media_limits(messages, dialect)


def _has_unpaired_opaque_parts(messages: Sequence[Message], dialect: Dialect) -> bool:
    if find_unpaired_server_parts(messages, dialect):
        return True
    return bool(find_unanswered_computer_calls(messages) or find_orphan_approvals(messages, dialect))


def _has_valid_placement(history: _HistoryIndex, dialect: Dialect, *, has_system_field: bool) -> bool:
    """Return whether each message is clean and may stand between its neighbours."""
    messages = history.messages
    last = len(messages) - 1
    for index in history.unusual_messages:
        if not _is_clean_message(messages[index], dialect, is_last=index == last):
            return False
    checks_neighbors = (
        dialect.merges_same_role
        or dialect.merges_system
        or dialect.calls_follow_user
        or dialect.needs_answer_after_results
    )
    if checks_neighbors:
        for first, second in pairwise(messages):
            if not _can_be_neighbors(first, second, dialect):
                return False
    system_indexes = [index for index, message in enumerate(messages) if message.role == "system"]
    for number, index in enumerate(system_indexes):
        is_leading = has_system_field and index == number
        before = messages[index - 1 : index]
        after = messages[index + 1 : index + 2]
        if not has_valid_system_position(
            messages[index],
            before,
            after,
            dialect,
            is_leading=is_leading,
        ):
            return False
    return True


def _can_be_neighbors(first: Message, second: Message, dialect: Dialect) -> bool:
    """Return whether two neighbours may stay as they are, neither merged nor apart."""
    return not is_merge_required(first, second, dialect) and can_follow_results(first, second, dialect)


def _is_clean_message(message: Message, dialect: Dialect, *, is_last: bool) -> bool:
    if is_last and is_empty_prefill(message, dialect):
        return True
    if not message.parts and not can_be_empty(message, dialect):
        return False
    return clean_message(message, dialect) is message


def _has_valid_pairing(history: _HistoryIndex, dialect: Dialect, earlier_ids: frozenset[str]) -> bool:
    """Return whether calls and results stand where they should, under ids and names that may be sent."""
    if not _has_valid_ids(history, dialect, earlier_ids):
        return False
    if dialect.results_carry_name and not _has_valid_result_names(history.messages, dialect):
        return False
    if dialect.results_adjacent:
        return _has_adjacent_results(history, dialect)
    return _has_later_results(history.messages)


def _has_valid_ids(history: _HistoryIndex, dialect: Dialect, earlier_ids: frozenset[str]) -> bool:
    """Return whether ids have a valid form and none is repeated where it may not be."""
    call_ids = [call.id for call in history.calls]
    if not has_only_valid_ids(call_ids, dialect):
        return False
    # Distinct in the whole history implies distinct in each answer, and is quicker to see.
    if not _has_no_duplicates(call_ids) and not all(map(_has_no_duplicates, _group_call_ids(history, dialect))):
        return False
    if not dialect.unique_ids:
        return True
    sent_ids = [id_ for id_ in call_ids if is_wire_id(id_, dialect)]
    for index in history.unusual_messages:
        sent_ids += list_server_call_ids(history.messages[index])
    return _has_no_duplicates(sent_ids) and earlier_ids.isdisjoint(sent_ids)


def _group_call_ids(history: _HistoryIndex, dialect: Dialect) -> list[list[str]]:
    """Return the ids of the calls of each answer; neighbours that the API reads as one are one answer."""
    if not dialect.server_joins_same_role:
        return [[call.id for call in calls] for calls in history.calls_by_message.values()]
    groups: list[list[str]] = []
    for _, run in groupby(range(len(history.messages)), lambda index: history.messages[index].role):
        ids: list[str] = []
        for index in run:
            ids += [call.id for call in history.calls_by_message.get(index, ())]
        groups.append(ids)
    return groups


def _has_no_duplicates(ids: Sequence[str]) -> bool:
    return len(set(ids)) == len(ids)


def _has_valid_result_names(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether each result has a valid tool name, and can be told from the others if its id is not sent."""
    matches_by_answer = find_results_of_calls(messages)
    all_matches = [match for matches in matches_by_answer.values() for match in matches]
    if not has_distinguishable_results(all_matches, dialect):
        return False
    for index, matches in matches_by_answer.items():
        calls = messages[index].calls
        for call, match in zip(calls, matches, strict=True):
            if match is None or match.result.name == call.name:
                continue
            if is_misnamed_result(match.result, calls, dialect):
                return False
    return True


def _has_adjacent_results(history: _HistoryIndex, dialect: Dialect) -> bool:
    """Return whether each answer has all its results right after it, and there are no others."""
    calls_by_message, results_by_message = history.calls_by_message, history.results_by_message
    open_counts: dict[str, int] = {}  # calls without a result yet, by id
    has_words = False
    previous_role = ""
    for index, message in enumerate(history.messages):
        role = message.role
        if role == "assistant":
            is_joined = dialect.server_joins_same_role and previous_role == "assistant"
            if open_counts and not is_joined:
                return False
            for call in calls_by_message.get(index, ()):
                open_counts[call.id] = open_counts.get(call.id, 0) + 1
            has_words = False
        elif open_counts or index in results_by_message:
            results = results_by_message.get(index, [])
            if not _try_consume_results(
                message,
                results,
                open_counts,
                dialect,
                has_text_before=has_words,
            ):
                return False
            has_words = has_words or len(results) < len(message.parts)
        previous_role = role
    return not open_counts


def _try_consume_results(
    message: Message,
    results: Sequence[ToolResult],
    open_counts: dict[str, int],
    dialect: Dialect,
    *,
    has_text_before: bool,
) -> bool:
    """Take the results of a message off ``open_counts``; return False if one answers no open call or is misplaced."""
    if message.role == "system" or not (results or dialect.server_joins_same_role):
        return False
    if results and dialect.results_first:
        has_text_between = False
        if len(results) < len(message.parts):
            leading_types = {*map(type, message.parts[: len(results)])}
            has_text_between = leading_types != {ToolResult}
        if has_text_before or has_text_between:
            return False
    for result in results:
        open_count = open_counts.pop(result.call_id, 0)
        if not open_count:
            return False
        if open_count > 1:
            open_counts[result.call_id] = open_count - 1
    must_be_complete = dialect.results_grouped and not dialect.server_joins_same_role
    return not (open_counts and must_be_complete)


def _has_later_results(messages: Sequence[Message]) -> bool:
    """Return whether each call has its result somewhere after it, and no result is left over."""
    call_count = 0
    answered_count = 0
    for index, matches in find_results_of_calls(messages).items():
        for call, match in zip(messages[index].calls, matches, strict=True):
            if match is None and may_be_answered_later(call):
                continue
            call_count += 1
            if match is not None and match.message_index > index:
                answered_count += 1
    result_count = sum(len(message.results) for message in messages)
    return answered_count == call_count == result_count
