"""Two requests side by side: what the second one shows that the first did not, and the other way round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Literal

from msgspec import Struct

from holdfast.inspector.pages.request import find_request
from holdfast.inspector.sources import InspectedStore
from holdfast.reports.requests.request_diff import ChangeKind
from holdfast.reports.requests.request_view import SUMMARY_NUMBER, RequestView, ShownMessage, load_request_view
from holdfast.reports.sessions.timeline import TimelineRequest
from holdfast.store.base import SessionInfo

MAX_COMPARED_LINES = 2_000
"""Lines of a text that are compared. Chosen by judgement: comparing takes the square of it, at most a second."""
MAX_SHOWN_LINES = 200
"""Lines of one change that a page shows."""


class LineChange(Struct, frozen=True):
    """Neighboring lines that only one of the two texts has."""

    sign: Literal["-", "+"]
    lines: tuple[str, ...]


class MessageDifference(Struct, frozen=True):
    """A message in which the two requests differ, or a run of messages that both show alike."""

    kind: ChangeKind
    number: int
    """Of the message, or of the first of a run; that of a summary is ``SUMMARY_NUMBER``."""
    count: int
    role: str
    tokens_before: int
    tokens_after: int
    summary: str
    line_changes: tuple[LineChange, ...] = ()


class DiffPage(Struct, frozen=True):
    """The two requests, and how they differ."""

    first: TimelineRequest
    second: TimelineRequest
    first_view: RequestView
    second_view: RequestView
    differences: tuple[MessageDifference, ...]
    first_change_tokens: int
    """Tokens with which both begin, system prompt and tools included: the second could read them from the cache."""


def load_diff_page(source: InspectedStore, info: SessionInfo, first_name: str, second_name: str) -> DiffPage:
    """Load the comparison of two requests, each named as for ``find_request``."""
    first, second = find_request(source, info, first_name), find_request(source, info, second_name)
    first_view = load_request_view(source.store, info, first)
    second_view = load_request_view(source.store, info, second)
    before, after = _list_shown(first_view), _list_shown(second_view)
    return DiffPage(
        first=first,
        second=second,
        first_view=first_view,
        second_view=second_view,
        differences=tuple(_join_same(_iterate_differences(before, after))),
        first_change_tokens=second_view.setup_tokens + _count_same_beginning(before, after),
    )


def _list_shown(view: RequestView) -> list[ShownMessage]:
    return [item for item in view.items if isinstance(item, ShownMessage)]


def _count_same_beginning(before: Sequence[ShownMessage], after: Sequence[ShownMessage]) -> int:
    tokens = 0
    for old, new in zip(before, after, strict=False):
        if (old.number, old.text) != (new.number, new.text):
            break
        tokens += new.tokens
    return tokens


def _iterate_differences(before: Sequence[ShownMessage], after: Sequence[ShownMessage]) -> Iterator[MessageDifference]:
    """Yield what became of each message, in the order of the conversation; summaries come first."""
    old_by_number = {message.number: message for message in before}
    new_by_number = {message.number: message for message in after}
    newest_old = max(old_by_number, default=SUMMARY_NUMBER)
    for number in sorted({*old_by_number, *new_by_number}):
        old, new = old_by_number.get(number), new_by_number.get(number)
        if new is None:
            assert old is not None
            yield MessageDifference("hidden", number, 1, old.role, old.tokens, 0, old.summary)
        elif old is None:
            is_later = number > newest_old or number == SUMMARY_NUMBER
            kind: ChangeKind = "new" if is_later else "back"
            yield MessageDifference(kind, number, 1, new.role, 0, new.tokens, new.summary)
        elif old.text == new.text:
            yield MessageDifference("same", number, 1, new.role, old.tokens, new.tokens, new.summary)
        else:
            changes = tuple(_compare_lines(old.text, new.text))
            yield MessageDifference("changed", number, 1, new.role, old.tokens, new.tokens, new.summary, changes)


def _join_same(differences: Iterator[MessageDifference]) -> Iterator[MessageDifference]:
    """Yield ``differences`` with neighbors that are the same in both, or hidden or back, as one."""
    run: MessageDifference | None = None
    for difference in differences:
        if run is not None and difference.kind == run.kind and run.kind in {"same", "hidden", "back"}:
            run = MessageDifference(
                kind=run.kind,
                number=run.number,
                count=run.count + 1,
                role="",
                tokens_before=run.tokens_before + difference.tokens_before,
                tokens_after=run.tokens_after + difference.tokens_after,
                summary="",
            )
            continue
        if run is not None:
            yield run
        run = difference
    if run is not None:
        yield run


def _compare_lines(old: str, new: str) -> Iterator[LineChange]:
    """Yield the lines that only one text has; of long texts only the first lines are compared."""
    old_lines, new_lines = old.splitlines()[:MAX_COMPARED_LINES], new.splitlines()[:MAX_COMPARED_LINES]
    shown = 0
    for tag, start, stop, new_start, new_stop in SequenceMatcher(None, old_lines, new_lines).get_opcodes():
        if tag == "equal":
            continue
        for sign, lines in (("-", old_lines[start:stop]), ("+", new_lines[new_start:new_stop])):
            if lines and shown < MAX_SHOWN_LINES:
                yield LineChange("-" if sign == "-" else "+", tuple(lines[: MAX_SHOWN_LINES - shown]))
                shown += len(lines)
