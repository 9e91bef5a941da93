"""The numbers behind the charts: heights and widths in per cent, for a template that draws them as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeVar

from msgspec import Struct

from holdfast.reports.sessions.timeline import MarkKind, TimelineMark, TimelineRequest

MAX_COLUMNS = 240
"""Columns of the overview at most. Chosen by judgement: on a wide screen each is four pixels wide."""

Item = TypeVar("Item")
Group = Literal["setup", "summary", "user", "assistant", "tools", "shortened", "other"]
GROUPS: Mapping[Group, str] = {
    "setup": "system prompt and tools",
    "summary": "summary of older messages",
    "user": "user",
    "assistant": "assistant",
    "tools": "tool calls and results",
    "shortened": "shortened results",
    "other": "media and other",
}
"""What the colors stand for: the kinds of content in the groups that one can tell apart."""
_GROUPS_BY_KIND: Mapping[str, Group] = {
    "setup": "setup",
    "system": "setup",
    "summary": "summary",
    "user": "user",
    "assistant": "assistant",
    "thinking": "assistant",
    "calls": "tools",
    "results": "tools",
    "stubs": "shortened",
}


MARKS: Mapping[MarkKind, str] = {
    "compaction": "compaction: older messages were replaced by a summary",
    "decision": "shortened: long or old results were cut or replaced by a line",
    "overflow": "refused by the provider as too long",
    "failure": "a compaction or a request failed",
    "undo": "a compaction or a shortening was undone",
    "pause": "pause: longer than the cache keeps what it holds",
}
"""What the marks stand for that a timeline shows before a request."""


RULES: Mapping[str, str] = {
    "spill": "a long result is stored; its beginning and its end are shown",
    "prune": "an old result became one line",
    "largest": "the largest texts are stored, so that the request fits",
    "truncate": "results were cut, so that the request fits",
    "media": "images or documents were left out",
    "lines": "a result was cut at a number of lines",
    "neutralise": "text that looks like a mark of Holdfast was escaped",
    "fallback": "all was cut down to the smallest request that fits",
    "unread": "results that the model had not read yet were cut",
}
"""What the rules do that shorten a message. A policy may have others."""


class Piece(Struct, frozen=True):
    """A colored piece of a bar."""

    group: str
    tokens: int
    start: float
    """Where it begins, in per cent of the bar's full length."""
    length: float


class Column(Struct, frozen=True):
    """One or several neighboring requests in the overview of a session."""

    first: TimelineRequest
    last: TimelineRequest
    largest: TimelineRequest
    """The one that the column shows."""
    read: float
    """Heights in per cent of the chart: what was read from the cache, written into it, and neither."""
    written: float
    fresh: float
    marks: tuple[TimelineMark, ...]
    """What happened before any of them."""

    @property
    def mark_kinds(self) -> list[str]:
        """The kinds of its marks, each once."""
        return list(dict.fromkeys(mark.kind for mark in self.marks))


class Overview(Struct, frozen=True):
    """The chart of a whole session."""

    columns: tuple[Column, ...]
    full_tokens: int
    """Tokens at the top of the chart."""
    window: float
    """Height of the window's line in per cent; 0 if no window is known."""
    window_tokens: int


def draw_overview(requests: Sequence[TimelineRequest]) -> Overview:
    """Return the chart of ``requests``; neighbors share a column if they are many."""
    window = max((request.window for request in requests), default=0)
    largest = max((request.usage.input for request in requests), default=0)
    full_tokens = max(window, largest, 1)
    columns = tuple(_make_column(group, full_tokens) for group in _divide_evenly(requests, MAX_COLUMNS))
    return Overview(columns, full_tokens, 100 * window / full_tokens, window)


def _divide_evenly(requests: Sequence[Item], count: int) -> Iterator[Sequence[Item]]:
    """Yield at most ``count`` groups of neighbors, which differ in size by one at most."""
    count = min(count, len(requests))
    for number in range(count):
        yield requests[number * len(requests) // count : (number + 1) * len(requests) // count]


def _make_column(requests: Sequence[TimelineRequest], full_tokens: int) -> Column:
    largest = max(requests, key=lambda request: request.usage.input)
    usage = largest.usage
    fresh = max(0, usage.input - usage.cache_read - usage.cache_write)
    return Column(
        first=requests[0],
        last=requests[-1],
        largest=largest,
        read=100 * usage.cache_read / full_tokens,
        written=100 * usage.cache_write / full_tokens,
        fresh=100 * fresh / full_tokens,
        marks=tuple(mark for request in requests for mark in request.marks),
    )


def draw_bar(kinds: Mapping[str, int], full_tokens: int) -> tuple[Piece, ...]:
    """Return the pieces of a bar of ``kinds`` of content, whose full length stands for ``full_tokens``."""
    tokens_by_group = dict.fromkeys(GROUPS, 0)
    for kind, tokens in kinds.items():
        tokens_by_group[_GROUPS_BY_KIND.get(kind, "other")] += tokens
    pieces = []
    start = 0.0
    for group, tokens in tokens_by_group.items():
        if tokens:
            length = 100 * tokens / max(1, full_tokens)
            pieces.append(Piece(group, tokens, start, length))
            start += length
    return tuple(pieces)


def draw_sparkline(requests: Sequence[TimelineRequest], points: int = 40) -> str:
    """Return the points of a line of the requests' sizes, for an SVG of 100 by 20."""
    sizes = [max(request.usage.input for request in group) for group in _divide_evenly(requests, points)]
    if len(sizes) < 2:
        return ""
    full = max(*sizes, *(request.window for request in requests), 1)
    step = 100 / (len(sizes) - 1)
    return " ".join(f"{index * step:.1f},{20 - 20 * size / full:.1f}" for index, size in enumerate(sizes))


class SizeColumn(Struct, frozen=True):
    """One or several neighboring requests in a chart of sizes alone. Requests are numbered from 1."""

    first: int
    last: int
    tokens: int
    """The size of the largest."""
    event: str = ""
    """What made one of them smaller: ``compaction`` or ``decision``; empty for nothing."""


def group_sizes(sizes: Sequence[tuple[int, str]]) -> tuple[SizeColumn, ...]:
    """Return the columns of a chart of requests, each with its tokens and its event; neighbors share a column."""
    columns = []
    number = 1
    for group in _divide_evenly(sizes, MAX_COLUMNS):
        events = {event for _, event in group}
        # The one that removes more is the one to see.
        event = "compaction" if "compaction" in events else "decision" if "decision" in events else ""
        columns.append(SizeColumn(number, number + len(group) - 1, max(tokens for tokens, _ in group), event))
        number += len(group)
    return tuple(columns)
