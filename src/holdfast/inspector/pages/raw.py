"""The body of a request as JSON, as exactly as the log can tell, with what is certain about it."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from holdfast.inspector.pages.request import find_request
from holdfast.inspector.sources import InspectedStore
from holdfast.reports.requests.rebuilt_request import RebuiltRequest, describe_certainty, load_rebuilt_request
from holdfast.reports.sessions.timeline import TimelineRequest
from holdfast.store.base import SessionInfo

CHARACTERS_PER_PAGE = 100_000
"""Of the text. Chosen by judgement: a browser lays it out at once, and most bodies have a few such pages."""


class RawPage(Struct, frozen=True):
    """One page of the body of a request."""

    request: TimelineRequest
    sentences: tuple[str, ...]
    """What is exact, what is rebuilt and what is missing."""
    size: int
    """Bytes of the body."""
    text: str
    """One page of the body, indented to be read."""
    page: int
    page_count: int


def load_raw_body(source: InspectedStore, info: SessionInfo, name: str) -> tuple[TimelineRequest, RebuiltRequest]:
    """Rebuild the body of a request, named as for ``find_request``."""
    request = find_request(source, info, name)
    return request, load_rebuilt_request(source.store, info, request.request, source.configuration.catalog)


def load_raw_page(source: InspectedStore, info: SessionInfo, name: str, page: int = 1) -> RawPage:
    """Load a page of the body of a request, named as for ``find_request``."""
    request, rebuilt = load_raw_body(source, info, name)
    text = msgspec.json.format(rebuilt.body, indent=2).decode("utf-8", "replace")
    page_count = max(1, -(-len(text) // CHARACTERS_PER_PAGE))
    page = min(max(1, page), page_count)
    return RawPage(
        request=request,
        sentences=tuple(describe_certainty(rebuilt, info.format)),
        size=len(rebuilt.body),
        text=text[(page - 1) * CHARACTERS_PER_PAGE : page * CHARACTERS_PER_PAGE],
        page=page,
        page_count=page_count,
    )
