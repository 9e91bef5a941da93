"""Whether a history needs no repair: one look at each message, for most histories need none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from holdfast.model.dialect import Dialect
from holdfast.model.messages import Message
from holdfast.model.parts import Opaque, ToolResult
from holdfast.policy.hygiene.budget import within
from holdfast.policy.hygiene.ids import calls_of, is_sent, server_ids, wire_id
from holdfast.policy.hygiene.neighbours import belong, fits, may_follow
from holdfast.policy.hygiene.pairing import matched, misnamed
from holdfast.policy.hygiene.parts import clean_message, may_be_empty, may_hold_nothing
from holdfast.policy.hygiene.servers import halves
from holdfast.policy.hygiene.signatures import all_signed
from holdfast.policy.hygiene.strays import unseen


def tidy(messages: Sequence[Message], dialect: Dialect, *, lead: bool = True) -> bool:
    """Return whether ``messages`` need no repair inside (their two ends aside).

    ``lead`` is true where system messages at the start go into a field of their own.
    """
    if not (_stand_well(messages, dialect, lead=lead) and _paired(messages, dialect)):
        return False
    unread = any(type(part) is Opaque for message in messages for part in message.parts)
    if unread and (halves(messages, dialect) or unseen(messages)):
        return False
    return all_signed(messages, dialect) and within(messages, dialect)


def _stand_well(messages: Sequence[Message], dialect: Dialect, *, lead: bool) -> bool:
    """Return whether each message, and its place among its neighbours, is fine."""
    last = len(messages) - 1
    is_apart = not (dialect.merge or dialect.calls_after_user or dialect.results_answered)
    for at, message in enumerate(messages):
        if not _is_clean(message, dialect) and not (at == last and may_be_empty(message, dialect)):
            return False
        if not (is_apart or at == 0 or _may_stand(messages[at - 1], message, dialect)):
            return False
        if message.role != "system":
            lead = False
        elif not fits(message, messages[at - 1 : at], messages[at + 1 : at + 2], dialect, lead=lead):
            return False
    return True


def _may_stand(first: Message, second: Message, dialect: Dialect) -> bool:
    """Return whether two neighbours may stay as they are."""
    return not belong(first, second, dialect) and may_follow(first, second, dialect)


def _is_clean(message: Message, dialect: Dialect) -> bool:
    return bool(message.parts or may_hold_nothing(message, dialect)) and clean_message(message, dialect) is message


def _paired(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether calls and results stand as they should, under ids that may be sent."""
    if not _ids_fit(messages, dialect) or (dialect.named_results and not _names_fit(messages, dialect)):
        return False
    return _near(messages, dialect) if dialect.results_adjacent else _anywhere(messages)


def _ids_fit(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether ids have the letters and length they should, and none occurs twice where it may not."""
    answers = _called(messages, dialect)
    called = [id_ for ids in answers for id_ in ids]
    if [wire_id(id_, dialect) for id_ in called] != called or not all(map(_differ, answers)):
        return False
    if not dialect.unique_ids:
        return True
    served = [id_ for message in messages for id_ in server_ids(message)]
    return _differ([*served, *[id_ for id_ in called if is_sent(id_, dialect)]])


def _called(messages: Sequence[Message], dialect: Dialect) -> list[list[str]]:
    """Return the ids of the calls in each answer with calls; neighbours that the API reads as one are one answer."""
    if not dialect.joined:
        return [[call.id for call in calls] for message in messages if (calls := calls_of(message))]
    runs = groupby(messages, lambda message: message.role)
    return [[call.id for message in run for call in calls_of(message)] for _, run in runs]


def _differ(ids: Sequence[str]) -> bool:
    return len(set(ids)) == len(ids)


def _names_fit(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether each result says the name of its call, or another beside its id."""
    return all(
        one is None or one.result.name == call.name or not misnamed(one.result, messages[index].calls, dialect)
        for index, answers in matched(messages).items()
        for call, one in zip(messages[index].calls, answers, strict=True)
    )


def _near(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether each answer has all its results right behind it, and there are no others."""
    waiting: dict[str, int] = {}
    spoken = False
    previous = ""
    for message in messages:
        if message.role == "assistant":
            if waiting and not (dialect.joined and previous == "assistant"):
                return False
            for call in message.calls:
                waiting[call.id] = waiting.get(call.id, 0) + 1
            spoken = False
        elif (results := message.results) or waiting:
            if not _takes(message, results, waiting, dialect, spoken=spoken):
                return False
            spoken = spoken or len(results) < len(message.parts)
        previous = message.role
    return not waiting


def _takes(
    message: Message, results: Sequence[ToolResult], waiting: dict[str, int], dialect: Dialect, *, spoken: bool
) -> bool:
    """Take the results of ``message`` off ``waiting``; False when one is not waited for, or stands where it may not."""
    if message.role == "system" or not (results or dialect.joined):
        return False
    late = spoken or {*map(type, message.parts[: len(results)])} != {ToolResult}
    if results and late and dialect.results_first:
        return False
    for result in results:
        if result.call_id not in waiting:
            return False
        waiting[result.call_id] -= 1
        if not waiting[result.call_id]:
            del waiting[result.call_id]
    return not (waiting and dialect.results_grouped and not dialect.joined)


def _anywhere(messages: Sequence[Message]) -> bool:
    """Return whether each call has its result behind it, and no result is left over."""
    found = matched(messages)
    behind = [one for index, answers in found.items() for one in answers if one is not None and one.home > index]
    called = sum(len(answers) for answers in found.values())
    return len(behind) == called == sum(len(message.results) for message in messages)
