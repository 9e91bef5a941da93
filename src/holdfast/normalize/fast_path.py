"""Whether a history needs no repair: one look at each message, for most histories need none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, ToolCall, ToolResult
from holdfast.normalize.ids import NONE, all_fit, is_sent, server_ids
from holdfast.normalize.media_limit import within
from holdfast.normalize.misplaced_results import unseen
from holdfast.normalize.pairing import are_told_apart, matched, misnamed
from holdfast.normalize.parts import calls_fit, clean_message, is_said, may_be_empty, may_hold_nothing
from holdfast.normalize.roles import belong, fits, may_follow
from holdfast.normalize.server_tools import halves
from holdfast.normalize.signatures import all_signed
from holdfast.state.dialect import Dialect


class _Look(Struct, frozen=True, gc=False):
    """What is to be seen of a history at once."""

    messages: Sequence[Message]
    asked: dict[int, list[ToolCall]]
    """The calls of each answer that makes some."""
    calls: list[ToolCall]
    """All of them, in order."""
    told: dict[int, list[ToolResult]]
    """The results in each message that holds some, answers aside."""
    odd: list[int]
    """The messages that hold nothing, or anything but words, those calls, and those results of nothing but words."""


def _look(messages: Sequence[Message]) -> _Look:
    asked: dict[int, list[ToolCall]] = {}
    told: dict[int, list[ToolResult]] = {}
    odd: list[int] = []
    for at, message in enumerate(messages):
        is_answer, is_odd = message.role == "assistant", not message.parts
        for part in message.parts:
            if type(part) is ToolCall and is_answer:
                asked.setdefault(at, []).append(part)
            elif type(part) is ToolResult and not is_answer:
                told.setdefault(at, []).append(part)
                is_odd = is_odd or not part.content
                for one in part.content:
                    is_odd = is_odd or not is_said(one)
            else:
                is_odd = is_odd or not is_said(part)
        if is_odd:
            odd.append(at)
    return _Look(messages, asked, [call for calls in asked.values() for call in calls], told, odd)


def tidy(messages: Sequence[Message], dialect: Dialect, *, lead: bool = True, before: frozenset[str] = NONE) -> bool:
    """Return whether ``messages`` need no repair inside (their two ends aside).

    ``lead`` is true where system messages at the start go into a field of their own.
    """
    if dialect.as_written:
        return all(clean_message(one, dialect) is one for one in messages) and within(messages, dialect)
    look = _look(messages)
    if look.calls and not calls_fit(look.calls, dialect):
        return False
    if not (_stand_well(look, dialect, lead=lead) and _paired(look, dialect, before)):
        return False
    odd = [messages[at] for at in look.odd]
    unread = any(type(part) is Opaque for message in odd for part in message.parts)
    if unread and (halves(messages, dialect) or unseen(messages)):
        return False
    return all_signed(messages, dialect) and (not odd or within(messages, dialect))


def _stand_well(look: _Look, dialect: Dialect, *, lead: bool) -> bool:
    """Return whether each message, and its place among its neighbours, is fine."""
    messages, last = look.messages, len(look.messages) - 1
    if not all(_is_clean(messages[at], dialect, end=at == last) for at in look.odd):
        return False
    minds = dialect.merge or dialect.calls_after_user or dialect.results_answered
    if minds and not all(_may_stand(first, second, dialect) for first, second in pairwise(messages)):
        return False
    systems = [at for at, message in enumerate(messages) if message.role == "system"]
    return all(
        fits(messages[at], messages[at - 1 : at], messages[at + 1 : at + 2], dialect, lead=lead and at == number)
        for number, at in enumerate(systems)
    )


def _may_stand(first: Message, second: Message, dialect: Dialect) -> bool:
    """Return whether two neighbours may stay as they are."""
    return not belong(first, second, dialect) and may_follow(first, second, dialect)


def _is_clean(message: Message, dialect: Dialect, *, end: bool) -> bool:
    if end and may_be_empty(message, dialect):
        return True
    return bool(message.parts or may_hold_nothing(message, dialect)) and clean_message(message, dialect) is message


def _paired(look: _Look, dialect: Dialect, before: frozenset[str]) -> bool:
    """Return whether calls and results stand as they should, under ids that may be sent."""
    if not _ids_fit(look, dialect, before) or (dialect.named_results and not _names_fit(look.messages, dialect)):
        return False
    return _near(look, dialect) if dialect.results_adjacent else _anywhere(look.messages)


def _ids_fit(look: _Look, dialect: Dialect, before: frozenset[str]) -> bool:
    """Return whether ids have the letters and length they should, and none occurs twice where it may not."""
    called = [call.id for call in look.calls]
    if not all_fit(called, dialect) or not (_differ(called) or all(map(_differ, _called(look, dialect)))):
        return False
    if not dialect.unique_ids:
        return True
    served = [id_ for at in look.odd for id_ in server_ids(look.messages[at])]
    sent = [*served, *[id_ for id_ in called if is_sent(id_, dialect)]]
    return _differ(sent) and before.isdisjoint(sent)


def _called(look: _Look, dialect: Dialect) -> list[list[str]]:
    """Return the ids of the calls in each answer; neighbours that the API reads as one are one answer."""
    if not dialect.joined:
        return [[call.id for call in calls] for calls in look.asked.values()]
    runs = groupby(range(len(look.messages)), lambda at: look.messages[at].role)
    return [[call.id for at in run for call in look.asked.get(at, ())] for _, run in runs]


def _differ(ids: Sequence[str]) -> bool:
    return len(set(ids)) == len(ids)


def _names_fit(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether each result says the name of its call, or another beside its id; without one it has its place."""
    found = matched(messages)
    return are_told_apart([one for answers in found.values() for one in answers], dialect) and all(
        one is None or one.result.name == call.name or not misnamed(one.result, messages[index].calls, dialect)
        for index, answers in found.items()
        for call, one in zip(messages[index].calls, answers, strict=True)
    )


def _near(look: _Look, dialect: Dialect) -> bool:
    """Return whether each answer has all its results right behind it, and there are no others."""
    asked, told = look.asked, look.told
    waiting: dict[str, int] = {}
    spoken = False
    previous = ""
    for at, message in enumerate(look.messages):
        role = message.role
        if role == "assistant":
            if waiting and not (dialect.joined and previous == "assistant"):
                return False
            for call in asked.get(at, ()):
                waiting[call.id] = waiting.get(call.id, 0) + 1
            spoken = False
        elif waiting or at in told:
            results = told.get(at, [])
            if not _takes(message, results, waiting, dialect, spoken=spoken):
                return False
            spoken = spoken or len(results) < len(message.parts)
        previous = role
    return not waiting


def _takes(
    message: Message, results: Sequence[ToolResult], waiting: dict[str, int], dialect: Dialect, *, spoken: bool
) -> bool:
    """Take the results of a message off ``waiting``; False when one is not waited for, or stands where it may not."""
    if message.role == "system" or not (results or dialect.joined):
        return False
    parts = message.parts
    late = spoken or (len(results) < len(parts) and {*map(type, parts[: len(results)])} != {ToolResult})
    if results and late and dialect.results_first:
        return False
    for result in results:
        count = waiting.pop(result.call_id, 0)
        if not count:
            return False
        if count > 1:
            waiting[result.call_id] = count - 1
    return not (waiting and dialect.results_grouped and not dialect.joined)


def _anywhere(messages: Sequence[Message]) -> bool:
    """Return whether each call has its result behind it, and no result is left over."""
    found = matched(messages)
    behind = [one for index, answers in found.items() for one in answers if one is not None and one.home > index]
    called = sum(len(answers) for answers in found.values())
    return len(behind) == called == sum(len(message.results) for message in messages)
