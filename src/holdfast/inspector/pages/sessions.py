"""The list of sessions: how large each is, what it cost, what was done to keep it in its window."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.inspector.charts import draw_sparkline
from holdfast.inspector.rendering import show_invisible
from holdfast.inspector.sources import InspectedStore
from holdfast.reports.describe import get_client_name
from holdfast.reports.timeline import Timeline
from holdfast.store.base import SessionInfo

SESSIONS_PER_PAGE = 25
"""Chosen by judgement: one screen, and each costs some milliseconds."""


FIGURES_SECONDS = 0.5
"""Seconds for which figures of sessions are computed before the list is shown. Chosen by judgement: the figures of the
others are filled in."""


class SessionFilter(Struct, frozen=True):
    """What the list is narrowed to; an empty field narrows nothing."""

    words: str = ""
    """Words that must occur in the title, the folder or the id, in any case."""
    tool: str = ""
    model: str = ""
    project: str = ""
    since: str = ""
    """First day of the last change, ``YYYY-MM-DD``."""

    @property
    def parameters(self) -> dict[str, str]:
        """The fields that are set, as the parameters of a link."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name))}


class SessionRow(Struct, frozen=True):
    """A session as the list shows it. Figures are those of its current branch."""

    info: SessionInfo
    tool: str
    """The client, the tool or the API that it comes from."""
    requests: int = 0
    largest: int = 0
    window: int = 0
    dollars: float | None = None
    cached_share: float | None = None
    """Share of the input that was read from the cache; None without usage."""
    compactions: int = 0
    decisions: int = 0
    overflows: int = 0
    sparkline: str = ""
    damage: str = ""
    """Why its log cannot be read; empty if it can."""
    has_figures: bool = True
    """Whether its log was read."""


class SessionsPage(Struct, frozen=True):
    """One page of the list, with the choices of its filters."""

    rows: tuple[SessionRow, ...]
    filter: SessionFilter
    page: int
    page_count: int
    matching_count: int
    total_count: int
    tools: tuple[str, ...]
    models: tuple[str, ...]
    projects: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether each row has its figures."""
        return all(row.has_figures for row in self.rows)


def load_sessions_page(
    source: InspectedStore, session_filter: SessionFilter, page: int = 1, *, is_patient: bool = False
) -> SessionsPage:
    """Load a page of the sessions that match, the most recently changed first.

    Unless it ``is_patient``, sessions whose figures would take too long come without.
    """
    infos = source.store.list_sessions()
    matching = [info for info in infos if _matches(info, session_filter)]
    page_count = max(1, -(-len(matching) // SESSIONS_PER_PAGE))
    page = min(max(1, page), page_count)
    start = (page - 1) * SESSIONS_PER_PAGE
    return SessionsPage(
        rows=tuple(_iterate_rows(source, matching[start : start + SESSIONS_PER_PAGE], is_patient=is_patient)),
        filter=session_filter,
        page=page,
        page_count=page_count,
        matching_count=len(matching),
        total_count=len(infos),
        tools=_list_choices([get_tool(info) for info in infos]),
        models=_list_choices([info.model for info in infos]),
        projects=_list_choices([info.cwd for info in infos]),
    )


def get_tool(info: SessionInfo) -> str:
    """Return what a session comes from: the recording's format, or the client or API that went through the proxy."""
    return info.format or get_client_name(info.key)


def _list_choices(values: Sequence[str]) -> tuple[str, ...]:
    """Return each value once, as a page shows it: a form sends it back so."""
    return tuple(sorted({show_invisible(value) for value in values if value}))


def _matches(info: SessionInfo, session_filter: SessionFilter) -> bool:
    text = f"{info.title} {info.cwd} {info.key}".casefold()
    if any(word not in text for word in session_filter.words.casefold().split()):
        return False
    if session_filter.tool and show_invisible(get_tool(info)) != session_filter.tool:
        return False
    if session_filter.model and show_invisible(info.model) != session_filter.model:
        return False
    if session_filter.project and show_invisible(info.cwd) != session_filter.project:
        return False
    if session_filter.since:
        return _format_day(info.updated_at) >= session_filter.since
    return True


def _format_day(at: int | None) -> str:
    from datetime import UTC, datetime

    return "" if at is None else datetime.fromtimestamp(at / 1_000, UTC).date().isoformat()


def _iterate_rows(source: InspectedStore, infos: Sequence[SessionInfo], *, is_patient: bool) -> Iterator[SessionRow]:
    deadline = time.monotonic() + FIGURES_SECONDS
    for info in infos:
        if is_patient or time.monotonic() < deadline:
            yield _load_row(source, info)
        else:
            yield SessionRow(info, get_tool(info), has_figures=False)


def _load_row(source: InspectedStore, info: SessionInfo) -> SessionRow:
    try:
        timeline = source.load_timeline(info)
    except HoldfastError as error:
        # One damaged session must not hide the others.
        return SessionRow(info, get_tool(info), damage=str(error))
    return make_row(info, timeline)


def make_row(info: SessionInfo, timeline: Timeline) -> SessionRow:
    """Make the row of a session from its timeline."""
    requests = timeline.requests
    input_tokens = sum(request.usage.input for request in requests)
    read_tokens = sum(request.usage.cache_read for request in requests)
    known_dollars = [request.dollars for request in requests if request.dollars is not None]
    marks = [mark for request in requests for mark in request.marks] + list(timeline.pending_marks)
    return SessionRow(
        info=info,
        tool=get_tool(info),
        requests=len(requests),
        largest=timeline.largest,
        window=timeline.window,
        dollars=sum(known_dollars) if known_dollars else None,
        cached_share=read_tokens / input_tokens if input_tokens else None,
        compactions=sum(mark.kind == "compaction" for mark in marks),
        decisions=sum(mark.kind == "decision" for mark in marks),
        overflows=sum(mark.kind == "overflow" for mark in marks),
        sparkline=draw_sparkline(requests),
    )
