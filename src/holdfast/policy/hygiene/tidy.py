"""Whether a history needs no repair: one look at each message, for most histories need none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from msgspec import Struct

from holdfast.model.dialect import Dialect
from holdfast.model.messages import Message
from holdfast.model.parts import Opaque, ToolCall, ToolResult
from holdfast.policy.hygiene.budget import within
from holdfast.policy.hygiene.ids import all_fit, is_sent, server_ids
from holdfast.policy.hygiene.neighbours import belong, fits, may_follow
from holdfast.policy.hygiene.pairing import matched, misnamed
from holdfast.policy.hygiene.parts import clean_message, is_plain, may_be_empty, may_hold_nothing
from holdfast.policy.hygiene.servers import halves
from holdfast.policy.hygiene.signatures import all_signed
from holdfast.policy.hygiene.strays import unseen


class _Look(Struct, frozen=True, gc=False):
    """What is to be seen of a message at once."""

    message: Message
    calls: list[ToolCall]
    results: list[ToolResult]
    is_plain: bool
    """Whether it holds nothing else but words, and all of it is fine."""


def _look(message: Message, dialect: Dialect) -> _Look:
    calls: list[ToolCall] = []
    results: list[ToolResult] = []
    plain = bool(message.parts)
    for part in message.parts:
        if type(part) is ToolCall:
            calls.append(part)
        elif type(part) is ToolResult:
            results.append(part)
        plain = plain and is_plain(part, dialect, message.role)
    return _Look(message, calls, results, plain)


def tidy(messages: Sequence[Message], dialect: Dialect, *, lead: bool = True) -> bool:
    """Return whether ``messages`` need no repair inside (their two ends aside).

    ``lead`` is true where system messages at the start go into a field of their own.
    """
    looks = [_look(message, dialect) for message in messages]
    if not (_stand_well(messages, looks, dialect, lead=lead) and _paired(messages, looks, dialect)):
        return False
    odd = [look.message for look in looks if not look.is_plain]
    unread = any(type(part) is Opaque for message in odd for part in message.parts)
    if unread and (halves(messages, dialect) or unseen(messages)):
        return False
    return all_signed(messages, dialect) and (not odd or within(messages, dialect))


def _stand_well(messages: Sequence[Message], looks: Sequence[_Look], dialect: Dialect, *, lead: bool) -> bool:
    """Return whether each message, and its place among its neighbours, is fine."""
    last = len(messages) - 1
    is_apart = not (dialect.merge or dialect.calls_after_user or dialect.results_answered)
    for at, look in enumerate(looks):
        message = look.message
        if not (look.is_plain or _is_clean(message, dialect) or (at == last and may_be_empty(message, dialect))):
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


def _paired(messages: Sequence[Message], looks: Sequence[_Look], dialect: Dialect) -> bool:
    """Return whether calls and results stand as they should, under ids that may be sent."""
    if not _ids_fit(looks, dialect) or (dialect.named_results and not _names_fit(messages, dialect)):
        return False
    return _near(looks, dialect) if dialect.results_adjacent else _anywhere(messages)


def _ids_fit(looks: Sequence[_Look], dialect: Dialect) -> bool:
    """Return whether ids have the letters and length they should, and none occurs twice where it may not."""
    called = [call.id for look in looks for call in look.calls]
    if not all_fit(called, dialect) or not (_differ(called) or all(map(_differ, _called(looks, dialect)))):
        return False
    if not dialect.unique_ids:
        return True
    served = [id_ for look in looks if not look.is_plain for id_ in server_ids(look.message)]
    return _differ([*served, *[id_ for id_ in called if is_sent(id_, dialect)]])


def _called(looks: Sequence[_Look], dialect: Dialect) -> list[list[str]]:
    """Return the ids of the calls in each answer; neighbours that the API reads as one are one answer."""
    if not dialect.joined:
        return [[call.id for call in look.calls] for look in looks]
    runs = groupby(looks, lambda look: look.message.role)
    return [[call.id for look in run for call in look.calls] for _, run in runs]


def _differ(ids: Sequence[str]) -> bool:
    return len(set(ids)) == len(ids)


def _names_fit(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether each result says the name of its call, or another beside its id."""
    return all(
        one is None or one.result.name == call.name or not misnamed(one.result, messages[index].calls, dialect)
        for index, answers in matched(messages).items()
        for call, one in zip(messages[index].calls, answers, strict=True)
    )


def _near(looks: Sequence[_Look], dialect: Dialect) -> bool:
    """Return whether each answer has all its results right behind it, and there are no others."""
    waiting: dict[str, int] = {}
    spoken = False
    previous = ""
    for look in looks:
        if look.message.role == "assistant":
            if waiting and not (dialect.joined and previous == "assistant"):
                return False
            for call in look.calls:
                waiting[call.id] = waiting.get(call.id, 0) + 1
            spoken = False
        elif look.results or waiting:
            if not _takes(look, waiting, dialect, spoken=spoken):
                return False
            spoken = spoken or len(look.results) < len(look.message.parts)
        previous = look.message.role
    return not waiting


def _takes(look: _Look, waiting: dict[str, int], dialect: Dialect, *, spoken: bool) -> bool:
    """Take the results of a message off ``waiting``; False when one is not waited for, or stands where it may not."""
    results, parts = look.results, look.message.parts
    if look.message.role == "system" or not (results or dialect.joined):
        return False
    late = spoken or (len(results) < len(parts) and {*map(type, parts[: len(results)])} != {ToolResult})
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
