"""The timeline of a session: all requests at a glance, and a page of them with what each was made of."""

from __future__ import annotations

from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.inspector.charts import Overview, Piece, draw_bar, draw_overview
from holdfast.inspector.pages.sessions import SessionRow, make_row
from holdfast.inspector.sources import InspectedStore
from holdfast.reports.timeline import TimelineMark, TimelineRequest, compose_requests
from holdfast.store.base import SessionInfo

REQUESTS_PER_PAGE = 50
"""Chosen by judgement: two screens; what they are made of is read in some tenths of a second."""


MAX_MESSAGES_AT_ONCE = 500
"""Messages that are read before a page is shown. Chosen by judgement: some tenths of a second. For more, the page comes
first without what its requests were made of."""


class RequestRow(Struct, frozen=True):
    """A request of the page."""

    request: TimelineRequest
    pieces: tuple[Piece, ...]
    """What it was made of; one piece without a group if its messages cannot be read."""
    tokens: int
    """The provider's count, or else an estimate."""
    cached_share: float | None


class TimelinePage(Struct, frozen=True):
    """The overview of a session and one page of its requests."""

    figures: SessionRow
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


def load_timeline_page(
    source: InspectedStore, info: SessionInfo, page: int | None = None, *, is_patient: bool = False
) -> TimelinePage:
    """Load a page of a session's requests; the last page if none is asked for.

    Unless it ``is_patient``, what the requests were made of is only read if that is quick.
    """
    timeline = source.load_timeline(info)
    requests = timeline.requests
    page_count = max(1, -(-len(requests) // REQUESTS_PER_PAGE))
    page = page_count if page is None else min(max(1, page), page_count)
    start = (page - 1) * REQUESTS_PER_PAGE
    shown_requests = requests[start : start + REQUESTS_PER_PAGE]
    composed: dict[str, dict[str, int]] = {}
    problem = ""
    message_count = sum(request.messages - request.first_kept for request in shown_requests[:1])
    is_complete = is_patient or message_count <= MAX_MESSAGES_AT_ONCE
    try:
        if is_complete:
            composed = compose_requests(source.store, info, shown_requests)
    except (HoldfastError, LookupError) as error:
        problem = str(error)
    overview = draw_overview(requests)
    sizes = {request.request: _get_size(request, composed) for request in shown_requests}
    full_tokens = max(overview.window_tokens, *sizes.values(), 1)
    return TimelinePage(
        figures=make_row(info, timeline),
        overview=overview,
        rows=tuple(_make_row(request, composed, sizes[request.request], full_tokens) for request in shown_requests),
        page=page,
        page_count=page_count,
        message_count=len(timeline.message_ids),
        pending_marks=timeline.pending_marks,
        full_tokens=full_tokens,
        is_complete=is_complete,
        problem=problem,
    )


def get_page_of_request(number: int) -> int:
    """Return the page that shows the request with that number."""
    return (number - 1) // REQUESTS_PER_PAGE + 1


def _get_size(request: TimelineRequest, composed: dict[str, dict[str, int]]) -> int:
    return request.usage.input or sum(composed.get(request.request, {}).values())


def _make_row(
    request: TimelineRequest, composed: dict[str, dict[str, int]], tokens: int, full_tokens: int
) -> RequestRow:
    kinds = composed.get(request.request)
    pieces = draw_bar(kinds, full_tokens) if kinds else (Piece("unknown", tokens, 0.0, 100 * tokens / full_tokens),)
    usage = request.usage
    return RequestRow(request, pieces, tokens, usage.cache_read / usage.input if usage.input else None)
