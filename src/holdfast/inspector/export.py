"""One session as one file that opens from disk: for a bug report, or a colleague."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.inspector.charts import Overview, Piece, draw_bar, draw_overview
from holdfast.inspector.pages.sessions import make_row
from holdfast.inspector.rendering import PageWriter, read_asset
from holdfast.inspector.sources import InspectedStore
from holdfast.messages.text.masking import MaskText
from holdfast.reports.describe import get_message_text_lines
from holdfast.reports.requests.request_view import HiddenMessages, RequestView, ShownMessage, build_request_view
from holdfast.reports.sessions.timeline import TimelineMark, TimelineRequest, iterate_request_states
from holdfast.state.entries import BranchSummaryEntry, MessageEntry
from holdfast.store.base import SessionInfo

MAX_MESSAGE_CHARACTERS = 20_000
"""Characters of a message that the file has. Chosen by judgement: of a longer one, beginning and end are enough to know
it by."""


class ExportedMessage(Struct, frozen=True):
    """A message as it was said."""

    number: int
    role: str
    tokens: int
    text: str
    left_out: int
    """Characters in its middle that the file does not have."""


class MessageRange(Struct, frozen=True):
    """Neighboring messages that a request shows alike: whole, shortened, or not at all."""

    kind: str
    first: int
    last: int
    tokens: int


class ExportedRequest(Struct, frozen=True):
    """A request, with what it was made of. Its texts are masked."""

    number: int
    at: int | None
    dollars: float | None
    answer_seconds: float | None
    cached_share: float | None
    marks: tuple[TimelineMark, ...]
    pieces: tuple[Piece, ...]
    ranges: tuple[MessageRange, ...]
    summary: str
    """The summary that it shows in place of older messages; empty if it is that of the request before."""
    dropped_lines: tuple[str, ...]
    """Lines of the summary before that a new one does not have."""
    tokens: int


class SessionFigures(Struct, frozen=True):
    """The figures above the list of requests."""

    largest: int
    window: int
    dollars: float | None
    cached_share: float | None
    compactions: int
    overflows: int


class ExportedSession(Struct, frozen=True):
    """All that the file shows. Every text is masked here, so that the template has none that is not."""

    title: str
    about: tuple[str, ...]
    """Its tool, model and folder, as far as they are known."""
    changed_at: int | None
    figures: SessionFigures
    overview: Overview
    requests: tuple[ExportedRequest, ...]
    messages: tuple[ExportedMessage, ...]
    full_tokens: int


def export_session(source: InspectedStore, info: SessionInfo, mask: MaskText) -> str:
    """Return the page of a session's current branch; every text of the session goes through ``mask``.

    All of the branch is read. Raises ``StoreError`` if it cannot be.
    """
    session = load_exported_session(source, info, mask)
    style, script = read_asset("inspector.css").decode(), read_asset("export.js").decode()
    policy = f"default-src 'none'; style-src '{_hash_source(style)}'; script-src '{_hash_source(script)}'"
    return PageWriter().render(
        "export.html", session=session, style=style, script=script, content_security_policy=policy
    )


def _hash_source(text: str) -> str:
    """Return the source expression of a Content-Security-Policy for a style or script that stands in the page."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def load_exported_session(source: InspectedStore, info: SessionInfo, mask: MaskText) -> ExportedSession:
    """Load what the file shows, with every text masked."""
    timeline = source.load_timeline(info)
    overview = draw_overview(timeline.requests)
    views = list(_iterate_views(source, info, timeline.requests))
    full_tokens = max([overview.window_tokens, 1, *(view.tokens for _, view in views)])
    requests: list[ExportedRequest] = []
    newest_summary = ""
    for request, view in views:
        summary = "\n".join(
            item.text for item in view.items if isinstance(item, ShownMessage) and item.shown_as == "summary"
        )
        is_new = summary != newest_summary
        dropped_lines = _list_dropped_lines(mask(newest_summary), mask(summary)) if is_new else ()
        newest_summary = summary
        requests.append(
            ExportedRequest(
                number=request.number,
                at=request.at,
                dollars=request.dollars,
                answer_seconds=request.answer_seconds,
                cached_share=request.usage.cache_read / request.usage.input if request.usage.input else None,
                marks=tuple(replace(mark, text=mask(mark.text)) for mark in request.marks),
                pieces=draw_bar(view.kinds, full_tokens),
                ranges=tuple(_list_ranges(view)),
                summary=mask(summary) if is_new else "",
                dropped_lines=dropped_lines,
                tokens=view.tokens,
            )
        )
    row = make_row(info, timeline)
    return ExportedSession(
        title=mask(info.title or info.key),
        about=tuple(mask(text) for text in (row.tool, info.model, info.cwd) if text),
        changed_at=info.updated_at,
        figures=SessionFigures(row.largest, row.window, row.dollars, row.cached_share, row.compactions, row.overflows),
        overview=overview,
        requests=tuple(requests),
        messages=tuple(_iterate_messages(source, info, timeline.message_ids, mask)),
        full_tokens=full_tokens,
    )


def _list_dropped_lines(before: str, after: str) -> tuple[str, ...]:
    """Return the lines of the summary ``before`` that ``after`` lacks, but for the first, which tells its size."""
    kept = set(after.splitlines())
    return tuple(line for line in before.splitlines()[1:] if line.strip() and line not in kept)


def _iterate_views(
    source: InspectedStore, info: SessionInfo, requests: Sequence[TimelineRequest]
) -> Iterator[tuple[TimelineRequest, RequestView]]:
    if not requests:
        return
    by_entry = {request.request: request for request in requests}
    states = iterate_request_states(source.store, info.key, requests[0].request, requests[-1].request)
    for entry, state in states:
        request = by_entry.get(entry.id)
        if request is not None:
            yield request, build_request_view(state, request)


def _list_ranges(view: RequestView) -> list[MessageRange]:
    """Return what a request shows of the conversation, with neighbors that it shows alike as one."""
    ranges: list[MessageRange] = []
    for item in view.items:
        if isinstance(item, HiddenMessages):
            ranges.append(MessageRange("hidden", item.first, item.last, item.tokens))
            continue
        if item.shown_as == "summary":
            continue
        before = ranges[-1] if ranges else None
        if before is not None and before.kind == item.shown_as and before.last in {item.number, item.number - 1}:
            ranges[-1] = MessageRange(before.kind, before.first, item.number, before.tokens + item.tokens)
        else:
            ranges.append(MessageRange(item.shown_as, item.number, item.number, item.tokens))
    return ranges


def _iterate_messages(
    source: InspectedStore, info: SessionInfo, ids: Sequence[str], mask: MaskText
) -> Iterator[ExportedMessage]:
    for number, id_ in enumerate(ids):
        body = source.store.get_entry(info.key, id_).body
        assert isinstance(body, MessageEntry | BranchSummaryEntry)
        message = body.sized_message
        # Masked before it is cut, so that no secret is cut in two and shown.
        text = mask("\n".join(get_message_text_lines([message])))
        left_out = max(0, len(text) - MAX_MESSAGE_CHARACTERS)
        if left_out:
            half = MAX_MESSAGE_CHARACTERS // 2
            text = f"{text[:half]}\n[… {left_out:,} characters …]\n{text[-half:]}"
        yield ExportedMessage(number, message.message.role, message.tokens, text, left_out)
