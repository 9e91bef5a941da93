"""Calls that the provider's servers execute (web search, code execution) and their results.

Such a call and its result stand in the same answer, and an API refuses one without the other. There is one exception:
if the answer calls the client's tools beside the server's, the result of the server's call comes in the next answer,
after a message with the client's results alone.

Both are opaque parts here: their JSON is not read, and the call's id is the data of their signature.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, ToolCall, ToolResult
from holdfast.normalize.ids import NO_CALL_IDS, is_server_tool_call
from holdfast.normalize.parts import PartIndexes, drop_tracked_parts
from holdfast.normalize.tracked_messages import TrackedMessage
from holdfast.state.dialect import Dialect


def drop_unpaired_server_parts(
    items: list[TrackedMessage], dialect: Dialect, *, earlier_ids: frozenset[str] = NO_CALL_IDS
) -> list[TrackedMessage]:
    """Drop server calls without result, results without call, and calls that repeat an id, also of ``earlier_ids``."""
    why = "the call of a server tool, or its result, is missing: the other half is dropped"
    # Dropping one half may leave the other half of a later pair alone, so the search is repeated until it finds
    # nothing. It ends, because each round drops at least one part.
    while unpaired := find_unpaired_server_parts([item.message for item in items], dialect, earlier_ids):
        items = drop_tracked_parts(items, unpaired, dialect, "server-pair", why)
    return items


class _PartRole(Enum):
    """The role of a part in pairing."""

    CALL = "call"
    RESULT = "result"
    CLIENT_CALL = "client call"
    """A client's call that code on the server made; it names the server's call that the code runs in."""
    OTHER = "other"


class _ServerPart(NamedTuple):
    """A part of an answer, the server call that it belongs to, and how."""

    message_index: int
    part_index: int
    call_id: str
    role: _PartRole


class _AnswerSpan(NamedTuple):
    """The messages ``start`` to ``stop`` that the API reads as one answer of the model."""

    start: int
    stop: int


def find_unpaired_server_parts(
    messages: Sequence[Message], dialect: Dialect, earlier_ids: frozenset[str] = NO_CALL_IDS
) -> PartIndexes:
    """Find server calls without result, results without call, and second calls of one id.

    Return the indexes of these parts by message index. ``earlier_ids`` are ids of calls sent before ``messages``.
    """
    if not any(_has_server_parts(message) for message in messages):
        return {}
    unpaired: PartIndexes = {}
    open_ids: set[str] = set()  # calls of earlier answers whose results may still come
    sent_ids = set(earlier_ids)
    answers = list(_find_answer_spans(messages, dialect))
    for number, answer in enumerate(answers):
        next_answer = answers[number + 1] if number + 1 < len(answers) else None
        parts = _list_server_parts(messages, answer)
        deferred_ids = _find_deferred_ids(messages, answer, next_answer)
        # Code that called the client runs on after the client's results, so its own result comes later.
        deferred_ids |= {part.call_id for part in parts if part.role is _PartRole.CLIENT_CALL}
        is_unfinished = _is_unfinished_answer(messages, answer, dialect)
        paired_parts = _select_paired_parts(
            parts,
            open_ids,
            sent_ids,
            deferred_ids,
            is_unfinished=is_unfinished,
        )
        for part in parts:
            if part in paired_parts:
                if part.role is _PartRole.CALL:
                    sent_ids.add(part.call_id)
            elif part.role in {_PartRole.CALL, _PartRole.RESULT}:
                unpaired.setdefault(part.message_index, set()).add(part.part_index)

        call_ids = {part.call_id for part in parts if part.role is _PartRole.CALL}
        result_ids = {part.call_id for part in parts if part.role is _PartRole.RESULT}
        open_ids = ((open_ids | call_ids) & deferred_ids) - result_ids
    return unpaired


def _has_server_parts(message: Message) -> bool:
    return any(_get_server_call_id(part) for part in message.parts)


def _is_unfinished_answer(messages: Sequence[Message], answer: _AnswerSpan, dialect: Dialect) -> bool:
    """Return whether the model goes on with ``answer``, so that results of its server calls may still come."""
    if answer.stop != len(messages):
        return False
    return not dialect.must_end_with_user or is_paused_answer(messages[-1])


def _find_deferred_ids(messages: Sequence[Message], answer: _AnswerSpan, next_answer: _AnswerSpan | None) -> set[str]:
    """Return the ids of server calls in ``answer`` that get their results after the client's.

    That is so if nothing but client results stands between the two answers. Without a next answer all results are still
    to come.
    """
    has_client_calls = any(message.calls for message in messages[answer.start : answer.stop])
    if not has_client_calls:
        return set()
    between_stop = len(messages) if next_answer is None else next_answer.start
    messages_between: list[Message] = []
    for message in messages[answer.stop : between_stop]:
        if message.role != "system":
            messages_between.append(message)
    has_only_results = all({ToolResult}.issuperset(map(type, message.parts)) for message in messages_between)
    if not messages_between or not has_only_results:
        return set()
    call_ids = _collect_ids(messages, answer, _PartRole.CALL)
    if next_answer is None:
        return call_ids
    return call_ids & _collect_ids(messages, next_answer, _PartRole.RESULT)


def _collect_ids(messages: Sequence[Message], answer: _AnswerSpan, role: _PartRole) -> set[str]:
    ids: set[str] = set()
    for part in _list_server_parts(messages, answer):
        if part.role is role:
            ids.add(part.call_id)
    return ids


def _list_server_parts(messages: Sequence[Message], answer: _AnswerSpan) -> list[_ServerPart]:
    """Return the parts of ``answer``, in order, that have a role in pairing."""
    parts: list[_ServerPart] = []
    for message_index in range(answer.start, answer.stop):
        for part_index, part in enumerate(messages[message_index].parts):
            call_id, role = _classify_server_part(part)
            if role is not _PartRole.OTHER:
                parts.append(_ServerPart(message_index, part_index, call_id, role))
    return parts


def _classify_server_part(part: Part) -> tuple[str, _PartRole]:
    """Return the id of the server call that a part belongs to, and the part's role; no id for other parts."""
    if isinstance(part, ToolCall) and part.signature is not None:
        return part.signature.data, _PartRole.CLIENT_CALL
    call_id = _get_server_call_id(part)
    if not call_id:
        return "", _PartRole.OTHER
    is_call = isinstance(part, Opaque) and is_server_tool_call(part)
    return call_id, _PartRole.CALL if is_call else _PartRole.RESULT


def _select_paired_parts(
    parts: Sequence[_ServerPart],
    open_ids: Collection[str],
    sent_ids: Collection[str],
    deferred_ids: Collection[str],
    *,
    is_unfinished: bool,
) -> set[_ServerPart]:
    """Select the calls and results of an answer that are in pairs: each call once, and before its results.

    ``open_ids`` are calls of earlier answers that wait for a result, ``sent_ids`` all calls sent so far, and
    ``deferred_ids`` calls whose result may come in a later answer.
    """
    paired_parts: set[_ServerPart] = set()
    answered_ids = set(open_ids)
    last_result: dict[str, int] = {}
    for number, part in enumerate(parts):
        if part.role is _PartRole.RESULT:
            last_result[part.call_id] = number
    for number, part in enumerate(parts):
        if part.role is _PartRole.RESULT:
            if part.call_id in answered_ids:
                paired_parts.add(part)
        elif part.role is _PartRole.CALL and part.call_id not in sent_ids:
            is_answered_here = last_result.get(part.call_id, -1) > number
            may_be_answered_later = is_unfinished or part.call_id in deferred_ids
            if (is_answered_here or may_be_answered_later) and part.call_id not in answered_ids:
                paired_parts.add(part)
                answered_ids.add(part.call_id)
    return paired_parts


def is_paused_answer(message: Message) -> bool:
    """Return whether ``message`` is an answer that a server's tool or a compaction interrupted.

    The provider finishes such an answer if it is sent back as it is.
    """
    if message.role != "assistant" or not message.parts:
        return False
    last = message.parts[-1]
    if not isinstance(last, Opaque):
        return False
    return is_server_tool_call(last) or _is_server_tool_result(last) or last.kind == "compaction"


def _is_server_tool_result(part: Opaque) -> bool:
    return part.kind.endswith("_tool_result")


def _get_server_call_id(part: object) -> str:
    """Return the id of a server call or of its result, or an empty string for other parts."""
    if not isinstance(part, Opaque) or part.signature is None:
        return ""
    if is_server_tool_call(part) or _is_server_tool_result(part):
        return part.signature.data
    return ""


def _find_answer_spans(messages: Sequence[Message], dialect: Dialect) -> Iterator[_AnswerSpan]:
    """Yield the span of each answer of the model: one message, or several that the API reads as one."""
    start = 0
    while start < len(messages):
        stop = start + 1
        if messages[start].role == "assistant":
            while dialect.server_joins_same_role:
                continuation_count = _count_continuation_messages(messages, stop, dialect)
                if not continuation_count:
                    break
                stop += continuation_count
            yield _AnswerSpan(start, stop)
        start = stop


def _count_continuation_messages(messages: Sequence[Message], index: int, dialect: Dialect) -> int:
    """Return how many messages from ``index`` on belong to the answer before it, up to and with its next piece.

    A system message may stand inside an answer that paused, and does not end it.
    """
    next_index = index
    may_be_system = dialect.system_position == "turn" and index < len(messages)
    if may_be_system and messages[index].role == "system" and is_paused_answer(messages[index - 1]):
        next_index += 1
    if next_index < len(messages) and messages[next_index].role == "assistant":
        return next_index + 1 - index
    return 0
