"""The list of sessions: how large each is, what it cost, what was done to keep it in its window."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import HoldfastError
from holdfast.inspector.charts import draw_sparkline
from holdfast.inspector.rendering import show_invisible
from holdfast.inspector.sources import InspectedStore
from holdfast.reports.describe import get_client_name
from holdfast.reports.sessions.timeline import Timeline
from holdfast.store.base import SessionInfo

SESSIONS_PER_PAGE = 25
"""Chosen by judgement: one screen, and each costs some milliseconds."""


FIGURES_SECONDS = 0.5
"""Seconds for which figures of sessions are computed before the list is shown. Chosen by judgement: the figures of the
others are filled in."""
PATIENT_SECONDS = 3.0
"""The same where the list is filled in. Chosen by judgement: a reader sees it grow, and goes on reading meanwhile."""


class SessionListFilter(Struct, frozen=True):
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
    tokens: int = 0
    """Tokens of all its requests and answers together."""
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


BY_CHANGE = "changed"
"""The order that needs no figures: by the last change."""
_FIGURES: Mapping[str, Callable[[SessionRow], float | None]] = MappingProxyType(
    {
        "requests": lambda row: row.requests,
        "tokens": lambda row: row.tokens,
        "largest": lambda row: row.largest,
        "cost": lambda row: row.dollars,
        "cache": lambda row: row.cached_share,
        "compactions": lambda row: row.compactions,
        "overflows": lambda row: row.overflows,
    }
)
"""What the list can be sorted by, beside the last change."""


class SessionOrder(Struct, frozen=True):
    """How the list is sorted; an unknown name sorts by the last change."""

    sort: str = ""
    order: str = ""
    """``up`` for the smallest, or the oldest, first; anything else is the other way."""

    @property
    def name(self) -> str:
        """What it is sorted by."""
        return self.sort if self.sort in _FIGURES else BY_CHANGE

    @property
    def is_ascending(self) -> bool:
        """Whether the smallest, or the oldest, comes first."""
        return self.order == "up"

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of a link to a list in this order."""
        names = {} if self.name == BY_CHANGE else {"sort": self.name}
        return {**names, "order": "up"} if self.is_ascending else names

    def get_direction(self, name: str) -> str:
        """Return the value of ``aria-sort`` for the column ``name``."""
        if name != self.name:
            return "none"
        return "ascending" if self.is_ascending else "descending"

    def choose(self, name: str) -> SessionOrder:
        """Return the order that a click at the column ``name`` leads to: the other way round if it is sorted by it."""
        is_turned = name == self.name and not self.is_ascending
        return SessionOrder(name, "up" if is_turned else "")


class SessionsPage(Struct, frozen=True):
    """One page of the list, with the choices of its filters."""

    rows: tuple[SessionRow, ...]
    filter: SessionListFilter
    order: SessionOrder
    page: int
    page_count: int
    matching_count: int
    total_count: int
    missing_count: int
    """Sessions whose figures are needed and not known yet: of the page, or of all that match if it is sorted by one."""
    tools: tuple[str, ...]
    models: tuple[str, ...]
    projects: tuple[str, ...]

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of a link to the same list."""
        return {**self.filter.parameters, **self.order.parameters}

    def make_sort_parameters(self, name: str) -> dict[str, str]:
        """Return the parameters of a link that sorts the list by the column ``name``."""
        return {**self.filter.parameters, **self.order.choose(name).parameters}


class SessionList:
    """The list of the sessions of a store. Figures that were computed once are kept until their session changes."""

    def __init__(self, source: InspectedStore) -> None:
        self._source = source
        self._rows: dict[str, tuple[tuple[str | None, int], SessionRow]] = {}
        """The newest known row of each session, with the version of the session that it is of."""

    def load_page(
        self,
        session_filter: SessionListFilter,
        order: SessionOrder = SessionOrder(),
        page: int = 1,
        *,
        is_patient: bool = False,
    ) -> SessionsPage:
        """Load a page of the sessions that match.

        Sessions whose figures would take too long come without, and last if the list is sorted by a figure. Loaded
        again, some more of them have theirs.
        """
        infos = self._source.store.list_sessions()
        self._forget_others(infos)
        matching = [info for info in infos if _matches(info, session_filter)]
        page_count = max(1, -(-len(matching) // SESSIONS_PER_PAGE))
        page = min(max(1, page), page_count)
        shown = slice((page - 1) * SESSIONS_PER_PAGE, page * SESSIONS_PER_PAGE)
        deadline = time.monotonic() + (PATIENT_SECONDS if is_patient else FIGURES_SECONDS)
        if order.name == BY_CHANGE:
            sorted_infos = matching[::-1] if order.is_ascending else matching
            needed_rows = rows = self._load_rows(sorted_infos[shown], deadline)
        else:
            needed_rows = self._load_rows(matching, deadline)
            rows = sort_rows(needed_rows, order)[shown]
        return SessionsPage(
            rows=tuple(rows),
            filter=session_filter,
            order=order,
            page=page,
            page_count=page_count,
            matching_count=len(matching),
            total_count=len(infos),
            missing_count=sum(not row.has_figures for row in needed_rows),
            tools=_list_choices([get_tool(info) for info in infos]),
            models=_list_choices([info.model for info in infos]),
            projects=_list_choices([info.cwd for info in infos]),
        )

    def _load_rows(self, infos: Sequence[SessionInfo], deadline: float) -> list[SessionRow]:
        """Return the row of each session; those that are not known at ``deadline`` have no figures."""
        rows = []
        for info in infos:
            version = (info.leaf_id, info.entry_count)
            known_version, row = self._rows.get(info.key, (None, None))
            if row is None or known_version != version:
                if time.monotonic() >= deadline:
                    rows.append(SessionRow(info, get_tool(info), has_figures=False))
                    continue
                row = self._load_row(info)
                self._rows[info.key] = version, row
            rows.append(replace(row, info=info))
        return rows

    def _load_row(self, info: SessionInfo) -> SessionRow:
        try:
            timeline = self._source.load_timeline(info)
        except HoldfastError as error:
            # One damaged session must not hide the others.
            return SessionRow(info, get_tool(info), damage=str(error))
        return make_row(info, timeline)

    def _forget_others(self, infos: Sequence[SessionInfo]) -> None:
        """Forget the rows of sessions that are gone."""
        if len(self._rows) > len(infos):
            keys = {info.key for info in infos}
            self._rows = {key: known for key, known in self._rows.items() if key in keys}


def sort_rows(rows: Sequence[SessionRow], order: SessionOrder) -> list[SessionRow]:
    """Return ``rows`` sorted by a figure. Equal ones keep their order, and those without the figure come last."""
    get_figure = _FIGURES[order.name]
    keyed_rows = []
    other_rows = []
    for row in rows:
        figure = get_figure(row)
        if row.has_figures and not row.damage and figure is not None:
            keyed_rows.append((figure, row))
        else:
            other_rows.append(row)
    keyed_rows.sort(key=lambda keyed_row: keyed_row[0], reverse=not order.is_ascending)
    return [*(row for _, row in keyed_rows), *other_rows]


def get_tool(info: SessionInfo) -> str:
    """Return what a session comes from: the recording's format, or the client or API that went through the proxy."""
    return info.format or get_client_name(info.key)


def _list_choices(values: Sequence[str]) -> tuple[str, ...]:
    """Return each value once, as a page shows it: a form sends it back so."""
    return tuple(sorted({show_invisible(value) for value in values if value}))


def _matches(info: SessionInfo, session_filter: SessionListFilter) -> bool:
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


def make_row(info: SessionInfo, timeline: Timeline) -> SessionRow:
    """Make the row of a session from its timeline, or from a part of it."""
    requests = timeline.requests
    input_tokens = sum(request.usage.input for request in requests)
    read_tokens = sum(request.usage.cache_read for request in requests)
    known_dollars = [request.dollars for request in requests if request.dollars is not None]
    marks = [mark for request in requests for mark in request.marks] + list(timeline.pending_marks)
    return SessionRow(
        info=info,
        tool=get_tool(info),
        requests=len(requests),
        tokens=input_tokens + sum(request.usage.output for request in requests),
        largest=timeline.largest,
        window=timeline.window,
        dollars=sum(known_dollars) if known_dollars else None,
        cached_share=read_tokens / input_tokens if input_tokens else None,
        compactions=sum(mark.kind == "compaction" for mark in marks),
        decisions=sum(mark.kind == "decision" for mark in marks),
        overflows=sum(mark.kind == "overflow" for mark in marks),
        sparkline=draw_sparkline(requests),
    )
