"""The timeline of a session: its requests at a glance, all or a range, and a page of them, each with its contents."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import HoldfastError
from holdfast.inspector.charts import Overview, Piece, draw_bar, draw_overview
from holdfast.inspector.pages.sessions import SessionRow, make_row
from holdfast.inspector.sources import InspectedStore
from holdfast.reports.sessions.timeline import RequestContents, TimelineMark, TimelineRequest, read_request_contents
from holdfast.state.cache_misses import describe_cache_miss
from holdfast.store.base import SessionInfo

REQUESTS_PER_PAGE = 50
"""Chosen by judgement: two screens; what they are made of is read in some tenths of a second."""


MAX_MESSAGES_AT_ONCE = 500
"""Messages that are read before a page is shown. Chosen by judgement: some tenths of a second. For more, the page comes
first without what its requests were made of."""


class RequestRange(Struct, frozen=True):
    """Neighboring requests of a session, by number; ``first`` is 1 and ``last`` is 0 if it has none."""

    first: int
    last: int
    total: int
    """How many requests the session has."""

    @property
    def count(self) -> int:
        """How many requests it has."""
        return self.last - self.first + 1

    @property
    def is_whole(self) -> bool:
        """Whether it has all requests of the session."""
        return self.count >= self.total

    @property
    def parameters(self) -> dict[str, int]:
        """The parameters of a link that keeps the range."""
        return {} if self.is_whole else {"from": self.first, "to": self.last}

    @property
    def halves(self) -> tuple[RequestRange, ...]:
        """Its two halves; none of a range that is too short to be divided."""
        if self.count < 4:
            return ()
        middle = self.first + self.count // 2
        return (self._choose(self.first, middle - 1), self._choose(middle, self.last))

    @property
    def wider(self) -> RequestRange:
        """The range twice as long around it."""
        more = max(1, self.count // 2)
        return self._choose(max(1, self.first - more), min(self.total, self.last + more))

    @property
    def earlier(self) -> RequestRange | None:
        """The range of the same length before it; None at the beginning."""
        if self.first <= 1:
            return None
        first = max(1, self.first - self.count)
        return self._choose(first, first + self.count - 1)

    @property
    def later(self) -> RequestRange | None:
        """The range of the same length after it; None at the end."""
        if self.last >= self.total:
            return None
        last = min(self.total, self.last + self.count)
        return self._choose(last - self.count + 1, last)

    def _choose(self, first: int, last: int) -> RequestRange:
        return RequestRange(first, last, self.total)


def choose_range(total: int, first: int | None, last: int | None) -> RequestRange:
    """Return the range from ``first`` to ``last`` in a session of ``total`` requests; None is the end on that side.

    Numbers that are too large are the last request, and the wrong way round they are turned.
    """
    low = min(first or 1, max(1, total))
    high = total if last is None else min(last, total)
    return RequestRange(min(low, max(1, high)), max(low, high) if total else 0, total)


class RequestRow(Struct, frozen=True):
    """A request of the page."""

    request: TimelineRequest
    pieces: tuple[Piece, ...]
    """What it was made of; one piece without a group if its messages cannot be read."""
    tokens: int
    """The provider's count, or else an estimate."""
    cached_share: float | None
    marks: tuple[TimelineMark, ...]
    """What happened before it."""
    cache_miss: str = ""
    """Why less was read from the cache than could have been, in a sentence; empty if it is not so, or not known."""


class TimelinePage(Struct, frozen=True):
    """The overview of a session, or of a range of its requests, and one page of them."""

    figures: SessionRow
    """Those of the whole session."""
    range: RequestRange
    range_figures: SessionRow
    overview: Overview
    rows: tuple[RequestRow, ...]
    page: int
    page_count: int
    message_count: int
    pending_marks: tuple[TimelineMark, ...]
    full_tokens: int
    """What the full length of a bar stands for."""
    is_complete: bool = True
    """Whether it was read what the requests were made of."""
    problem: str = ""
    """Why it is not known what the requests were made of; empty if it is."""

    @property
    def shown_mark_kinds(self) -> frozenset[str]:
        """The kinds of marks that the overview has."""
        return frozenset(kind for column in self.overview.columns for kind in column.mark_kinds)

    @property
    def is_newest(self) -> bool:
        """Whether it ends with the newest request, so that what a running session adds belongs to it."""
        return self.page == self.page_count and self.range.last == self.range.total


def load_timeline_page(
    source: InspectedStore,
    info: SessionInfo,
    page: int | None = None,
    *,
    request: int | None = None,
    first: int | None = None,
    last: int | None = None,
    is_patient: bool = False,
) -> TimelinePage:
    """Load a page of a session's requests from number ``first`` to ``last``, by default of all.

    Without ``page`` it is the one that has ``request``, or the last. A ``request`` out of the range widens it to the
    whole session. Unless it ``is_patient``, what the requests were made of is only read if that is quick.
    """
    timeline = source.load_timeline(info)
    chosen = choose_range(len(timeline.requests), first, last)
    if request is not None and not chosen.first <= request <= chosen.last:
        chosen = choose_range(len(timeline.requests), None, None)
    requests = timeline.requests[chosen.first - 1 : chosen.last]
    page_count = max(1, -(-len(requests) // REQUESTS_PER_PAGE))
    if request is not None:
        page = get_page_of_request(request - chosen.first + 1)
    page = page_count if page is None else min(max(1, page), page_count)
    start = (page - 1) * REQUESTS_PER_PAGE
    shown_requests = requests[start : start + REQUESTS_PER_PAGE]
    previous = None
    if shown_requests and shown_requests[0].number > 1:
        previous = timeline.requests[shown_requests[0].number - 2]
    contents: dict[str, RequestContents] = {}
    problem = ""
    is_complete = is_patient or _count_messages_to_read(previous, shown_requests) <= MAX_MESSAGES_AT_ONCE
    try:
        if is_complete:
            catalog = source.configuration.catalog
            contents = read_request_contents(source.store, info, shown_requests, catalog, previous)
    except (HoldfastError, LookupError) as error:
        problem = str(error)
    overview = draw_overview(requests)
    sizes = {request.request: _get_size(request, contents) for request in shown_requests}
    full_tokens = max(overview.window_tokens, *sizes.values(), 1)
    selected = replace(timeline, requests=requests, pending_marks=())
    return TimelinePage(
        figures=make_row(info, timeline),
        range=chosen,
        range_figures=make_row(info, selected),
        overview=overview,
        rows=tuple(_make_row(request, contents, sizes[request.request], full_tokens) for request in shown_requests),
        page=page,
        page_count=page_count,
        message_count=len(timeline.message_ids),
        pending_marks=timeline.pending_marks,
        full_tokens=full_tokens,
        is_complete=is_complete,
        problem=problem,
    )


def get_page_of_request(number: int) -> int:
    """Return the page of the whole session that shows the request with that number."""
    return (number - 1) // REQUESTS_PER_PAGE + 1


def _count_messages_to_read(previous: TimelineRequest | None, requests: tuple[TimelineRequest, ...]) -> int:
    """Return how many messages the first request that is read shows."""
    first = previous or (requests[0] if requests else None)
    return 0 if first is None else first.messages - first.first_kept


def _get_size(request: TimelineRequest, contents: Mapping[str, RequestContents]) -> int:
    if request.usage.input or request.request not in contents:
        return request.usage.input
    return sum(contents[request.request].kinds.values())


def _make_row(
    request: TimelineRequest, contents: Mapping[str, RequestContents], tokens: int, full_tokens: int
) -> RequestRow:
    content = contents.get(request.request, RequestContents({}))
    pieces = draw_bar(content.kinds, full_tokens)
    if not content.kinds:
        pieces = (Piece("unknown", tokens, 0.0, 100 * tokens / full_tokens),)
    usage = request.usage
    marks = request.marks
    if content.cache_miss is not None and content.cache_miss.cause == "expired":
        # The reason of the miss says how long the pause was.
        marks = tuple(mark for mark in marks if mark.kind != "pause")
    return RequestRow(
        request=request,
        pieces=pieces,
        tokens=tokens,
        cached_share=usage.cache_read / usage.input if usage.input else None,
        marks=marks,
        cache_miss="" if content.cache_miss is None else describe_cache_miss(content.cache_miss),
    )
