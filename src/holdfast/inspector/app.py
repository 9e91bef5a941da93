"""The inspector as an ASGI application: which address shows which page, and who may ask.

Pages are rendered in worker threads, since reading a store blocks. Nothing here changes the store, but for an undo or a
restore that a form asks for.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from hmac import compare_digest
from secrets import token_urlsafe
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
from anyio import sleep, to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.config.addresses import is_loopback_host
from holdfast.errors import HoldfastError, StoreError, StoreLocked, StoreReadOnly, UnknownId
from holdfast.inspector.pages.compare import (
    ComparisonChoice,
    describe_progress,
    load_compare_page,
    parse_choice,
)
from holdfast.inspector.pages.diff import load_diff_page
from holdfast.inspector.pages.message import MAX_LISTED_LINES, find_request_after, load_message_page
from holdfast.inspector.pages.raw import load_raw_body, load_raw_page
from holdfast.inspector.pages.request import find_request, load_request_page
from holdfast.inspector.pages.search import load_search_page
from holdfast.inspector.pages.sessions import SessionList, SessionListFilter, SessionOrder, SessionsPage
from holdfast.inspector.pages.timeline import load_timeline_page
from holdfast.inspector.rendering import ASSET_TYPES, SECURITY_HEADERS, PageWriter, read_asset
from holdfast.inspector.sources import InspectedStore
from holdfast.reports.messages.decision_undo import preview_undo
from holdfast.reports.requests.request_view import load_request_view
from holdfast.store.base import SessionInfo

FOLLOW_SECONDS = 1.0
"""How often a session that is followed is looked at. Chosen by judgement: one row of the store is read."""
ABOUT_PATH = "/about"
"""The address at which an inspector tells another one which store it shows."""
STORE_HEADER = "x-holdfast-inspected"
"""The header of that answer."""
_ERROR_STATUS = {UnknownId: 404, StoreLocked: 503, StoreReadOnly: 403}
"""The status of a page that says what is wrong; 500 for anything else."""
PIECE_BYTES = 65_536
"""Bytes of a download that are sent at once. Chosen by judgement: what a connection takes without waiting."""
PROGRESS_SECONDS = 0.5
"""How often a page is told of the progress of a comparison. Chosen by judgement: nothing is read for it."""
MAX_QUERY = 2_000
"""Characters of a parameter; no id or search is longer, and no page has to show more."""


def make_inspector_app(
    source: InspectedStore,
    root_path: str = "",
    *,
    is_for_this_machine: bool = True,
    is_stopping: Callable[[], bool] = lambda: False,
) -> Starlette:
    """Make the application that shows ``source``; ``root_path`` is where it is mounted.

    With ``is_for_this_machine`` it answers under names of this machine alone. Without, whoever mounts it must find out
    who asks. Once ``is_stopping``, answers that follow a session come to their end.
    """
    pages = InspectorPages(source, PageWriter(root_path, source.name), is_stopping)
    routes = [
        Route("/", pages.show_sessions, name="sessions"),
        Route("/session", pages.show_timeline),
        Route("/request", pages.show_request),
        Route("/raw", pages.show_raw_body),
        Route("/raw.json", pages.send_raw_body),
        Route("/diff", pages.show_diff),
        Route("/message", pages.show_message),
        Route("/search", pages.show_search),
        Route("/compare", pages.show_comparison),
        Route("/compare", pages.start_comparison, methods=["POST"]),
        Route("/compare/cancel", pages.cancel_comparison, methods=["POST"]),
        Route("/compare/progress", pages.send_progress),
        Route("/undo", pages.confirm_undo),
        Route("/sessions.json", pages.send_sessions),
        Route("/session.json", pages.send_timeline),
        Route("/request.json", pages.send_request),
        Route("/undo", pages.undo_decision, methods=["POST"]),
        Route("/changes", pages.send_changes),
        Route(ABOUT_PATH, pages.send_name),
        Route("/assets/{name}", pages.send_asset),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(OwnPagesOnly, is_for_this_machine=is_for_this_machine)],
        exception_handlers={HoldfastError: pages.show_error, 404: pages.show_missing_page},
    )


class OwnPagesOnly:
    """Refuses another host name than this machine's (DNS rebinding), and the form of another page."""

    def __init__(self, app: ASGIApp, *, is_for_this_machine: bool) -> None:
        self._app = app
        self._is_for_this_machine = is_for_this_machine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        why = explain_refusal(
            headers.get("host", ""), headers.get("origin"), is_for_this_machine=self._is_for_this_machine
        )
        if why:
            response = PlainTextResponse(why, 403, headers=SECURITY_HEADERS)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


def explain_refusal(host: str, origin: str | None, *, is_for_this_machine: bool = True) -> str:
    """Return why a request with these headers is refused, or ``""`` if it comes from a page of ours."""
    if is_for_this_machine and not is_loopback_host(_parse_name(f"//{host}")):
        return f"host {host[:100]!r} is not this machine; use the address that holdfast inspect printed"
    if origin is not None and _parse_place(origin) != host:
        return f"the page {origin[:100]!r} may not use the inspector"
    return ""


def _parse_place(url: str) -> str:
    """Return the host and port in ``url``; an empty text if it is no address."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def _parse_name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


class InspectorPages:
    """The pages. Each method answers one address."""

    def __init__(self, source: InspectedStore, writer: PageWriter, is_stopping: Callable[[], bool]) -> None:
        self._source = source
        self._writer = writer
        self._is_stopping = is_stopping
        self._sessions = SessionList(source)
        self.form_token = token_urlsafe(16)
        """Stands in every form, so that no other page can send one."""

    def show_sessions(self, request: Request) -> Response:
        """List the sessions."""
        return self._writer.respond("sessions.html", page=self._load_sessions(request))

    def _load_sessions(self, request: Request) -> SessionsPage:
        session_filter = SessionListFilter(
            **{name: _get_parameter(request, name) for name in SessionListFilter.__struct_fields__}
        )
        order = SessionOrder(_get_parameter(request, "sort"), _get_parameter(request, "order"))
        number = _get_number(request, "page") or 1
        return self._sessions.load_page(session_filter, order, number, is_patient=_is_patient(request))

    def show_timeline(self, request: Request) -> Response:
        """Show the requests of a session, all or a range."""
        info = self._source.get_session(_get_parameter(request, "id"))
        page = load_timeline_page(
            self._source,
            info,
            _get_number(request, "page"),
            request=_get_number(request, "request"),
            first=_get_number(request, "from"),
            last=_get_number(request, "to"),
            is_patient=_is_patient(request),
        )
        return self._writer.respond("timeline.html", info=info, page=page)

    def show_request(self, request: Request) -> Response:
        """Show what the model saw in one request."""
        info = self._source.get_session(_get_parameter(request, "session"))
        page = load_request_page(self._source, info, _get_parameter(request, "id"), _get_number(request, "page"))
        return self._writer.respond("request.html", info=info, page=page)

    def show_raw_body(self, request: Request) -> Response:
        """Show the body of a request as JSON."""
        info = self._source.get_session(_get_parameter(request, "session"))
        page = load_raw_page(self._source, info, _get_parameter(request, "id"), _get_number(request, "page") or 1)
        return self._writer.respond("raw.html", info=info, page=page)

    def send_raw_body(self, request: Request) -> Response:
        """Send the body of a request, to be kept as a file."""
        info = self._source.get_session(_get_parameter(request, "session"))
        found, rebuilt = load_raw_body(self._source, info, _get_parameter(request, "id"))
        headers = {
            **SECURITY_HEADERS,
            "content-disposition": f'attachment; filename="request-{found.number}.json"',
            "content-length": str(len(rebuilt.body)),
        }
        pieces = _divide_bytes(rebuilt.body)
        return StreamingResponse(pieces, media_type="application/json", headers=headers)

    def show_diff(self, request: Request) -> Response:
        """Compare two requests."""
        info = self._source.get_session(_get_parameter(request, "session"))
        names = _get_parameter(request, "from"), _get_parameter(request, "to")
        page = load_diff_page(self._source, info, *names)
        return self._writer.respond("diff.html", info=info, page=page)

    def show_message(self, request: Request) -> Response:
        """Show the story of one message; a summary is shown in the first request that has it."""
        info = self._source.get_session(_get_parameter(request, "session"))
        name = _get_parameter(request, "id")
        summarized = find_request_after(self._source.load_timeline(info), name)
        if summarized is not None:
            address = self._writer.make_url("request", session=info.key, id=summarized.request, page=1)
            return RedirectResponse(f"{address}#summary", 303)
        page = load_message_page(self._source, info, name, _get_number(request, "page") or 1)
        return self._writer.respond(
            "message.html",
            info=info,
            page=page,
            listed_lines=MAX_LISTED_LINES,
            can_undo=self._source.is_writable,
            form_token=self.form_token,
        )

    def show_search(self, request: Request) -> Response:
        """Search everything that was said."""
        names = ("q", "session", "near")
        page = load_search_page(self._source, *(_get_parameter(request, name) for name in names))
        return self._writer.respond("search.html", page=page)

    def show_comparison(self, request: Request) -> Response:
        """Show the policies that can be compared on a session, how far the comparison is, or its result."""
        info = self._source.get_session(_get_parameter(request, "id"))
        given = None
        if "policies" in request.query_params:
            names = _get_parameter(request, "policies").split(",")
            given = ComparisonChoice(
                tuple(filter(None, names)), _get_parameter(request, "window"), _get_parameter(request, "model")
            )
        return self._write_comparison(info, given)

    def _write_comparison(self, info: SessionInfo, given: ComparisonChoice | None, problem: str = "") -> Response:
        page = load_compare_page(self._source, info, given, problem)
        status = 400 if page.problem else 200
        progress = describe_progress(page.running) if page.running is not None else ""
        return self._writer.respond(
            "compare.html", status=status, info=info, page=page, progress=progress, form_token=self.form_token
        )

    async def start_comparison(self, request: Request) -> Response:
        """Start a comparison that a form asks for, and lead to its page."""
        form = await _read_form(request)
        refusal = self._refuse_form(form)
        if refusal is not None:
            return refusal
        choice = ComparisonChoice(tuple(form.get("policy", [])), _get_field(form, "window"), _get_field(form, "model"))
        return await to_thread.run_sync(self._start_comparison, _get_parameter(request, "id"), choice)

    def _start_comparison(self, key: str, choice: ComparisonChoice) -> Response:
        info = self._source.get_session(key)
        try:
            question = parse_choice(self._source, info, choice)
            self._source.comparisons.start(question)
        except StoreError:
            raise
        except HoldfastError as error:
            return self._write_comparison(info, choice, str(error))
        address = self._writer.make_url(
            "compare", id=info.key, policies=",".join(question.policies), window=question.window, model=question.model
        )
        return RedirectResponse(address, 303)

    async def cancel_comparison(self, request: Request) -> Response:
        """Cancel the comparison that a form names, unless it has ended, and lead back to its session."""
        form = await _read_form(request)
        refusal = self._refuse_form(form)
        if refusal is not None:
            return refusal
        info = await to_thread.run_sync(self._source.get_session, _get_field(form, "session"))
        number = _get_field(form, "number")
        if number.isdecimal() and len(number) < 10:
            await to_thread.run_sync(self._source.comparisons.cancel, int(number))
        return RedirectResponse(self._writer.make_url("compare", id=info.key), 303)

    async def send_progress(self, _: Request) -> Response:
        """Send an event whenever the comparison gets on, and one when it ends, until the page is closed."""
        headers = {**SECURITY_HEADERS, "x-accel-buffering": "no"}
        return StreamingResponse(self._iterate_progress(), media_type="text/event-stream", headers=headers)

    async def _iterate_progress(self) -> AsyncIterator[bytes]:
        yield b": following\n\n"
        running = self._source.comparisons.get_running()
        shown_number: int | None = 0 if running is None else running.number
        while not self._is_stopping():
            running = self._source.comparisons.get_running()
            if running is not None and running.number == shown_number:
                share = running.progress.done / max(1, running.progress.total)
                data = msgspec.json.encode({"share": share, "text": describe_progress(running)})
                yield b"event: progress\ndata: " + data + b"\n\n"
            elif shown_number is not None:
                # Only a page that shows a running comparison asks, so its end is news, also at first.
                shown_number = None
                yield b"event: changed\ndata:\n\n"
            else:
                # So that a browser that is gone is noticed.
                yield b": nothing new\n\n"
            await sleep(PROGRESS_SECONDS)

    def confirm_undo(self, request: Request) -> Response:
        """Say what undoing a decision, or restoring it, would do, and ask."""
        info = self._source.get_session(_get_parameter(request, "session"))
        is_restored = _get_parameter(request, "restore") == "1"
        page = preview_undo(self._source.store, info, _get_parameter(request, "decision"), is_restored=is_restored)
        return self._writer.respond(
            "undo.html",
            info=info,
            page=page,
            is_restored=is_restored,
            message=_get_parameter(request, "message"),
            can_undo=self._source.is_writable,
            form_token=self.form_token,
        )

    def send_sessions(self, request: Request) -> Response:
        """Send a page of the list of sessions as JSON."""
        return _respond_json(self._load_sessions(request))

    def send_timeline(self, request: Request) -> Response:
        """Send the timeline of a session as JSON."""
        info = self._source.get_session(_get_parameter(request, "id"))
        timeline = self._source.load_timeline(info)
        return _respond_json({"session": info, "requests": timeline.requests, "pending_marks": timeline.pending_marks})

    def send_request(self, request: Request) -> Response:
        """Send what the model saw in a request as JSON."""
        info = self._source.get_session(_get_parameter(request, "session"))
        found = find_request(self._source, info, _get_parameter(request, "id"))
        view = load_request_view(self._source.store, info, found)
        return _respond_json({"request": found, "view": view})

    async def undo_decision(self, request: Request) -> Response:
        """Undo or restore a decision, and lead back to the message that the reader came from, or to the session."""
        form = await _read_form(request)
        refusal = self._refuse_form(form)
        if refusal is not None:
            return refusal
        values = {name: _get_field(form, name) for name in ("session", "decision", "restore", "message")}
        info = await to_thread.run_sync(self._source.get_session, values["session"])
        is_restored = values["restore"] == "1"
        change = partial(self._source.undo_decision, info, values["decision"], is_restored=is_restored)
        await to_thread.run_sync(change)
        if values["message"]:
            return RedirectResponse(self._writer.make_url("message", session=info.key, id=values["message"]), 303)
        return RedirectResponse(self._writer.make_url("session", id=info.key), 303)

    def _refuse_form(self, form: Mapping[str, Sequence[str]]) -> Response | None:
        """Return the answer to a form that is none of ours, or None."""
        if compare_digest(_get_field(form, "token").encode(), self.form_token.encode()):
            return None
        text = "this form is from an earlier start of the inspector; load its page again"
        return self._writer.respond("error.html", status=403, text=text)

    async def send_changes(self, request: Request) -> Response:
        """Send an event whenever a session changes, until the page is closed."""
        info = await to_thread.run_sync(self._source.get_session, _get_parameter(request, "id"))
        headers = {**SECURITY_HEADERS, "x-accel-buffering": "no"}
        return StreamingResponse(self._iterate_changes(info.key), media_type="text/event-stream", headers=headers)

    async def _iterate_changes(self, key: str) -> AsyncIterator[bytes]:
        version = await self._read_version(key)
        yield b": following\n\n"
        while not self._is_stopping():
            await sleep(FOLLOW_SECONDS)
            newest_version = await self._read_version(key)
            if newest_version != version:
                version = newest_version
                yield b"event: changed\ndata:\n\n"
            else:
                # So that a browser that is gone is noticed.
                yield b": nothing new\n\n"

    async def _read_version(self, key: str) -> tuple[str | None, int] | None:
        """Return what changes whenever a session does; None while it cannot be read."""
        try:
            info = await to_thread.run_sync(self._source.get_session, key)
        except HoldfastError:
            return None
        return info.leaf_id, info.entry_count

    def send_name(self, _: Request) -> Response:
        """Tell which store is shown."""
        headers = {**SECURITY_HEADERS, STORE_HEADER: quote(self._source.name)}
        return PlainTextResponse("an inspector of Holdfast", headers=headers)

    def send_asset(self, request: Request) -> Response:
        """Send a file that pages load."""
        name = request.path_params["name"]
        if name not in ASSET_TYPES:
            return self.show_missing_page(request, KeyError(name))
        headers = {**SECURITY_HEADERS, "cache-control": "max-age=3600"}
        return Response(read_asset(name), media_type=ASSET_TYPES[name], headers=headers)

    def show_error(self, _: Request, error: Exception) -> Response:
        """Say what is wrong with the store or with what was asked for."""
        status = 500
        for kind, status_of_kind in _ERROR_STATUS.items():
            if isinstance(error, kind):
                status = status_of_kind
        return self._writer.respond("error.html", status=status, text=str(error))

    def show_missing_page(self, request: Request, _: Exception) -> Response:
        """Say that there is no such page."""
        text = f"there is no page {request.url.path[:200]}"
        return self._writer.respond("error.html", status=404, text=text)


def _respond_json(value: object) -> Response:
    """Return a response with ``value``; half a surrogate, which a recording may hold, is escaped."""
    text = json.dumps(msgspec.to_builtins(value, str_keys=True))
    return Response(text, media_type="application/json", headers=SECURITY_HEADERS)


def _divide_bytes(data: bytes) -> Iterator[bytes]:
    """Yield ``data`` in pieces, so that a slow reader does not make the server hold it twice."""
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


def _get_parameter(request: Request, name: str) -> str:
    return request.query_params.get(name, "")[:MAX_QUERY]


async def _read_form(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form; each may have several values. What is beyond a form of ours is not read."""
    body = bytearray()
    async for piece in request.stream():
        body += piece[: MAX_QUERY - len(body)]
        if len(body) >= MAX_QUERY:
            break
    return parse_qs(body.decode("utf-8", "replace"))


def _get_field(form: Mapping[str, Sequence[str]], name: str) -> str:
    return form.get(name, [""])[0]


def _is_patient(request: Request) -> bool:
    """Return whether the page is to be complete, however long that takes."""
    return _get_parameter(request, "complete") == "1"


def _get_number(request: Request, name: str) -> int | None:
    """Return a parameter as a positive number; None for anything else."""
    text = request.query_params.get(name, "")
    if not text.isdecimal() or len(text) > 9:
        return None
    return int(text) or None
