"""One request: what the model saw, message by message, and what the log holds in its place."""

from __future__ import annotations

from msgspec import Struct

from holdfast.errors import HoldfastError, UnknownId
from holdfast.inspector.charts import Piece, draw_bar
from holdfast.inspector.pages.timeline import get_page_of_request
from holdfast.inspector.sources import InspectedStore
from holdfast.reports.messages.message_events import find_answered_request
from holdfast.reports.requests.request_view import (
    DecisionInForce,
    HiddenMessages,
    RequestView,
    ShownMessage,
    load_request_view,
)
from holdfast.reports.sessions.timeline import Timeline, TimelineRequest, read_request_contents
from holdfast.state.cache_misses import describe_cache_miss
from holdfast.state.entries import MessageEntry
from holdfast.store.base import SessionInfo

ITEMS_PER_PAGE = 200
"""Messages of a request that a page shows. Chosen by judgement: more make a page of megabytes."""


class RequestPage(Struct, frozen=True):
    """A request with its neighbors."""

    request: TimelineRequest
    previous: TimelineRequest | None
    following: TimelineRequest | None
    timeline_page: int
    """The page of the timeline that has it."""
    view: RequestView
    items: tuple[ShownMessage | HiddenMessages, ...]
    """One page of those of ``view``."""
    page: int
    page_count: int
    pieces: tuple[Piece, ...]
    full_tokens: int
    new_decisions: tuple[DecisionInForce, ...]
    """Those that were made for it."""
    earlier_decisions: tuple[DecisionInForce, ...]
    """Those that it repeats."""
    cached_share: float | None
    cache_miss: str
    """Why less was read from the cache than could have been, in a sentence; empty if it is not so, or not known."""
    answer: int | None
    """Number of the message that is its answer; None if the log has none."""
    message_ids: tuple[str, ...]
    """Ids of the entries of the conversation's messages, by number."""


def find_request(source: InspectedStore, info: SessionInfo, name: str) -> TimelineRequest:
    """Return the request with that number, or with an entry whose id begins so. Raises ``UnknownId``."""
    requests = source.load_timeline(info).requests
    if name.isdecimal() and 1 <= int(name) <= len(requests):
        return requests[int(name) - 1]
    matches = [request for request in requests if request.request.startswith(name)] if name else []
    exact = [request for request in matches if request.request == name]
    if len(exact or matches) != 1:
        raise UnknownId(f"the current branch of {info.key} has no request {name!r}: its timeline lists them")
    return (exact or matches)[0]


def load_request_page(source: InspectedStore, info: SessionInfo, name: str, page: int | None = None) -> RequestPage:
    """Load the page of a request, named as for ``find_request``.

    ``page`` is that of its messages, by default the last.
    """
    request = find_request(source, info, name)
    timeline = source.load_timeline(info)
    view = load_request_view(source.store, info, request)
    full_tokens = max(request.window, view.tokens, 1)
    made_for_it = {mark.entry for mark in request.marks}
    page_count = max(1, -(-len(view.items) // ITEMS_PER_PAGE))
    page = page_count if page is None else min(max(1, page), page_count)
    index = request.number - 1
    usage = request.usage
    previous = timeline.requests[index - 1] if index else None
    return RequestPage(
        request=request,
        previous=previous,
        following=timeline.requests[index + 1] if index + 1 < len(timeline.requests) else None,
        timeline_page=get_page_of_request(request.number),
        view=view,
        items=view.items[(page - 1) * ITEMS_PER_PAGE : page * ITEMS_PER_PAGE],
        page=page,
        page_count=page_count,
        pieces=draw_bar(view.kinds, full_tokens),
        full_tokens=full_tokens,
        new_decisions=tuple(decision for decision in view.decisions if decision.entry in made_for_it),
        earlier_decisions=tuple(decision for decision in view.decisions if decision.entry not in made_for_it),
        cached_share=usage.cache_read / usage.input if usage.input else None,
        cache_miss=_describe_cache_miss(source, info, request, previous),
        answer=_find_answer(source, info, request, timeline),
        message_ids=timeline.message_ids,
    )


def _find_answer(source: InspectedStore, info: SessionInfo, request: TimelineRequest, timeline: Timeline) -> int | None:
    """Return the number of the message that answers ``request``; None where there is none, as after a refusal."""
    number = request.messages
    if number >= len(timeline.message_ids) or find_answered_request(timeline, number) != request:
        return None
    body = source.store.get_entry(info.key, timeline.message_ids[number]).body
    is_answer = isinstance(body, MessageEntry) and body.sized_message.message.role == "assistant"
    return number if is_answer else None


def _describe_cache_miss(
    source: InspectedStore, info: SessionInfo, request: TimelineRequest, previous: TimelineRequest | None
) -> str:
    """Return why ``request`` missed the cache that ``previous`` left; empty if it did not, or if that is not known."""
    if previous is None:
        return ""
    catalog = source.configuration.catalog
    try:
        contents = read_request_contents(source.store, info, (request,), catalog, previous)
    except (HoldfastError, LookupError):
        # What the request showed can be read, or there would be no page; what came before it cannot.
        return ""
    miss = contents[request.request].cache_miss
    return "" if miss is None else describe_cache_miss(miss)
