"""The proxy as an ASGI application: the way of a request, from its first byte to the last of its answer.

It is *admitted* (``http/access.py``), unless it asks for what the proxy tells itself or is refused at once
(``replies.py``);
*read*, unless it is of no use here and passes as it comes (``http/request.py``, ``http/decompress.py``,
``forward.py``);
*identified*: who asks, what for, in which conversation (``conversation/clients.py``, ``identity.py``);
*planned*: the branch that it continues is found, and what would not fit gives way
(``conversation/cache.py``, ``answer.py``);
*sent* to its provider, and again where that takes less, and its answer *relayed* as it comes
(``http/relay.py``, ``http/response.py``);
*recorded*: what was said and decided stands in the log, what became of it is counted (``metrics/``).

The methods of ``ProxyApp`` stand in this order, and each hands a request on to the next.
"""

from __future__ import annotations

import sys
from asyncio import CancelledError, Lock, get_running_loop
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path

import httpx2
from anyio import move_on_after, to_thread
from msgspec.structs import replace

from holdfast.config.addresses import is_url_of_server
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.log.conversation_diff import plan_with_existing_decisions
from holdfast.engine.request_template import build_template_from_body
from holdfast.errors import (
    FormatError,
    HoldfastError,
    InvalidRequest,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    StoreReplaced,
    UpstreamError,
)
from holdfast.normalize.projection import build_messages_to_send
from holdfast.providers.common.json.surrogates import replace_surrogates_in_bytes
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.request_body import ParsedRequest, render_request
from holdfast.proxy.conversation.body_cache import BodyCache
from holdfast.proxy.conversation.clients import ToolClients, classify_purpose, identify_client
from holdfast.proxy.conversation.identity import make_session_key
from holdfast.proxy.conversation.open_branches import STALE_ERRORS, BranchPool
from holdfast.proxy.exchange import ConversationRequest, Exchange
from holdfast.proxy.forward_request import forward_body, pass_request_through, relay_answer
from holdfast.proxy.http.access import AccessRefusal, check_access
from holdfast.proxy.http.client_request import (
    BodyReceiver,
    ClientLeft,
    ClientRequest,
    Receive,
    Scope,
    discard_body_rest,
    is_client_left_error,
    read_whole_body,
    watch_client,
)
from holdfast.proxy.http.client_response import ClientResponse, Send, deliver_pieces, get_keep_alive_bytes
from holdfast.proxy.http.count_tokens import unwrap_count_tokens_body
from holdfast.proxy.http.decompress import BadBody, decompress_request_body
from holdfast.proxy.http.headers import RequestState, filter_request_headers, is_subscription_login
from holdfast.proxy.http.relay import ResponsePiece, UpstreamRelay
from holdfast.proxy.http.routes import Route, build_upstream_url, make_model_answer_route
from holdfast.proxy.local_responses import (
    make_error_reply,
    render_proxy_endpoint,
    send_body_refusal,
    send_pieces,
    send_refusal,
)
from holdfast.proxy.managed_request import (
    RequestTooLarge,
    answer_conversation_request,
    answer_too_large,
    has_message_budget,
    is_far_below_window,
    translate_overflow,
)
from holdfast.proxy.metrics.health import Health, RequestOutcome
from holdfast.proxy.modes import Mode, get_proxy_mode
from holdfast.proxy.run_alongside import run_alongside
from holdfast.proxy.settings import Settings
from holdfast.store.base import SessionStore

PARSED_ENDPOINTS = frozenset({"generate", "count", "compact"})
"""Endpoints whose bodies are looked at."""
REMOTE_STATE_FIELDS = frozenset({"previous_response_id", "conversation", "background"})
"""Fields of Responses by which the conversation is kept by the provider: there is nothing here to look at."""
UNSET_VALUES = (b"null", b"false")
SERVER_STOPPED_TEXT = "holdfast was stopped before the answer came; try again when it runs"
"""What a client is told that still waits for an answer when the server ends."""
SUBSCRIPTION_NOTICE = (
    "summaries are made without a model: none is asked for with the login of a subscription; "
    "set summaries to client for its own"
)
"""What is said where somebody asked for the summaries of a model that is not asked for them."""
TOO_LARGE_CONSEQUENCE = "nothing that fits can be made of a request, so it is refused"
"""What it means that a window is too small for a request."""
PASSED_ON_CONSEQUENCE = "what may fit all the same goes on as it is known"
"""The same, where its provider may know better."""
ERROR_SEND_SECONDS = 1.0
"""[H] Seconds in which a client takes the few words that it gets instead of an answer."""
REOPEN_INTERVAL = 5.0
"""[H] Seconds after which a store whose disk took no write is tried again."""
MAX_REQUEST_RETRIES = 2
"""[H] Times that a turn begins once more where the store, or its log, turned out to be another one."""


class ProxyApp:
    """Answers clients with what their provider answers, for requests that are made to fit."""

    _settings: Settings
    _branches: BranchPool

    def __init__(
        self,
        resources: EngineResources,
        web: httpx2.AsyncClient,
        health: Health,
        reopen: Callable[[], SessionStore] | None = None,
        switch: Path | None = None,
    ) -> None:
        self.resources, self.health = resources, health
        self._client, self._reopen, self._bypass_file = web, reopen, switch
        self._reopen_lock, self._reopened_at = Lock(), -inf
        self._body_cache, self._tool_clients = BodyCache(), ToolClients()
        health.mode = self._get_mode

    def use_settings(self, settings: Settings, branches: BranchPool) -> None:
        """Let later requests be answered by ``settings``; what is under way ends as it began."""
        self._settings, self._branches = settings, branches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; what is done for it is given up where its client leaves."""
        if scope["type"] != "http":
            return
        incoming, outgoing = ClientRequest.from_scope(scope), ClientResponse(send)
        try:
            if why := self._check_access(incoming):
                await self._send_refusal(incoming, outgoing, why)
            elif status_pieces := self._render_own_endpoint(incoming):
                await send_pieces(outgoing, status_pieces)
            elif why := self._find_refusal(incoming):
                await self._send_refusal(incoming, outgoing, why)
            else:
                await self._answer_and_count(incoming, receive, outgoing)
        except CancelledError:  # the server ends, and waits no longer
            await _send_error_if_unanswered(incoming, outgoing, "overloaded", SERVER_STOPPED_TEXT)
            raise
        except Exception as error:  # noqa: BLE001 -- a client is told, whatever it is
            if is_client_left_error(error):
                return
            self._report_trouble(error, "a request could not be answered")
            await _send_error_if_unanswered(incoming, outgoing, "server", f"holdfast failed: {type(error).__name__}")

    # -- admitted ------------------------------------------------------------------------------------------------------

    def _check_access(self, incoming: ClientRequest) -> AccessRefusal | None:
        """Return why who asks is not answered; nothing where they are."""
        return check_access(incoming.headers, self._settings.host, self._settings.token)

    def _render_own_endpoint(self, incoming: ClientRequest) -> list[ResponsePiece] | None:
        """Return what the proxy tells of itself, where that is asked and not the same of somebody behind it."""
        route = incoming.route
        is_for_another = self._has_upstream(route) and (route.base or route.shown_path == "/")
        if incoming.method not in {"GET", "HEAD"} or is_for_another:
            return None
        return render_proxy_endpoint(route.shown_path, self.health)

    def _find_refusal(self, incoming: ClientRequest) -> AccessRefusal | None:
        """Return why nobody can be asked for an answer; nothing where somebody can."""
        method, route, now = incoming.method, incoming.route, self.health.in_progress
        if method == "CONNECT":
            why = "no tunnels are made here; point the client at this address, or at /u/https://HOST below it"
            return AccessRefusal("invalid_request", why, 405)
        if not self._has_upstream(route):  # a key is sent to nobody whom it may not be for
            return AccessRefusal("invalid_request", _describe_no_upstream(incoming), 404)
        if route.endpoint == "probe":
            return AccessRefusal("invalid_request", "WebSockets are not spoken here; send POST over HTTP", 426)
        if now >= self._settings.concurrent:
            why = f"{now} requests are being answered already; try again, or raise concurrent in [proxy]"
            return AccessRefusal("overloaded", why)
        return None

    def _has_upstream(self, route: Route) -> bool:
        """Whether there is somebody who answers: a provider, or whom the path names, where that is not the proxy."""
        if not route.base:
            return bool(route.upstream_setting)
        return not is_url_of_server(route.base, self._settings.host, self._settings.port)

    async def _send_refusal(self, incoming: ClientRequest, outgoing: ClientResponse, why: AccessRefusal) -> None:
        """Say ``why`` a request is not answered, and count that."""
        await send_refusal(outgoing, make_error_reply(incoming.route.api, why.kind, why.reason, status=why.status))
        self.health.count_refused(_get_counted_api(incoming), outgoing.status)

    # -- read, and recorded in the end ---------------------------------------------------------------------------------

    async def _answer_and_count(self, incoming: ClientRequest, receive: Receive, outgoing: ClientResponse) -> None:
        """Have a request answered by its provider, and count what became of it."""
        request = self.health.begin_request(_get_counted_api(incoming))
        outgoing.on_last_piece = request.mark_answered
        began = get_running_loop().time()
        state: RequestOutcome = "failed"
        try:
            state = await self._read_or_pass_through(incoming, receive, outgoing)
            if outgoing.is_unreached:
                state = "failed"
        except ClientLeft:
            state = outgoing.get_outcome_if_left()
            raise
        finally:
            first_byte_seconds = None if outgoing.first_byte_at is None else outgoing.first_byte_at - began
            request.finish(state, outgoing.status, first_byte_seconds, session=outgoing.session_key)

    async def _read_or_pass_through(
        self, incoming: ClientRequest, receive: Receive, outgoing: ClientResponse
    ) -> RequestState:
        """Answer a request, its body read where that is of any use; return what was done with it."""
        is_bypassed = self._get_mode() == "bypass"
        if is_bypassed or incoming.method != "POST" or incoming.route.endpoint not in PARSED_ENDPOINTS:
            exchange = Exchange(incoming, self._make_relay(incoming, as_it_came=True), outgoing)
            return await pass_request_through(exchange, receive, "bypassed" if is_bypassed else "relayed")
        receive = BodyReceiver(receive)
        try:
            body = await self._read_body(incoming, receive)
        except BadBody as error:
            if incoming.closes_connection:
                outgoing.before_end = partial(discard_body_rest, receive)
            return await send_body_refusal(outgoing, error, incoming.route.api)
        with run_alongside(partial(watch_client, receive, lambda: outgoing.is_ended)):
            state = await self._answer_by_purpose(Exchange(incoming, self._make_relay(incoming), outgoing), body)
        return state  # noqa: RET504 -- for the type checker a block may swallow a return

    async def _read_body(self, incoming: ClientRequest, receive: Receive) -> bytes:
        """Return the whole body, unpacked."""
        max_bytes, headers = self._settings.body_bytes, incoming.headers
        body = await read_whole_body(receive, max_bytes, headers.get("content-length", ""))
        encoding = headers.get("content-encoding", "")
        return (
            await to_thread.run_sync(decompress_request_body, body, encoding, max_bytes)
            if encoding
            else decompress_request_body(body, encoding, max_bytes)
        )

    async def _answer_by_purpose(self, exchange: Exchange, body: bytes) -> RequestState:
        """Answer a request of which the whole body is here, by what it is for; who only looks sends that body on."""
        if self._settings.observe:
            exchange = replace(exchange, relay=exchange.relay.with_body(body))
        body, wrap = unwrap_count_tokens_body(body, exchange.route)
        parsed_request = await self._parse_body(body, exchange.api)
        turn = None if parsed_request is None else self._identify_conversation(exchange, parsed_request)
        if parsed_request is None or turn is None:
            return await forward_body(
                exchange, wrap(body if parsed_request is None else parsed_request.body), "relayed"
            )
        if turn.route.endpoint == "count":
            reduced_body = await self._reduce_body(turn)
            return await forward_body(
                turn, wrap(reduced_body), "relayed" if reduced_body is turn.parsed_body.body else "managed"
            )
        if turn.is_summary and await self._is_standalone(turn):
            turn = replace(turn, is_ephemeral=True)
        if turn.is_ephemeral and turn.observe_only:
            return await forward_body(turn, turn.parsed_body.body, "relayed")
        return await self._answer_by_engine(turn)

    async def _is_standalone(self, turn: ConversationRequest) -> bool:
        """Whether a request most likely needs nothing of ours: it is small, and nothing was said in its session."""
        target = self.resources.resolve_target(turn.api, turn.model)
        return is_far_below_window(turn, target) and not await self._branches.has_session(turn.session_key)

    # -- identified ----------------------------------------------------------------------------------------------------

    def _identify_conversation(self, exchange: Exchange, parsed_request: ParsedRequest) -> ConversationRequest | None:
        """Return the conversation that a body is part of; nothing for what is beside one, or is none of ours."""
        incoming = exchange.client_request
        if any(
            bytes(parsed_request.fields[name]) not in UNSET_VALUES
            for name in REMOTE_STATE_FIELDS & parsed_request.fields.keys()
        ):
            return None
        caller = identify_client(parsed_request.api, incoming.headers, parsed_request)
        purpose = classify_purpose(
            caller,
            incoming.headers,
            parsed_request,
            has_tools_before=self._tool_clients.has_had_tools(caller, parsed_request),
        )
        if purpose == "side":
            return None
        return ConversationRequest(
            incoming,
            exchange.relay,
            exchange.client_response,
            parsed_request,
            make_session_key(caller, parsed_request, incoming.route.base),
            is_summary=purpose == "compaction",
            is_ephemeral=incoming.route.endpoint == "compact",
            observe_only=self._settings.observe,
            writers=self._make_summary_writers(incoming, parsed_request)
            if incoming.route.endpoint == "generate"
            else (),
        )

    async def _parse_body(self, body: bytes, api: str) -> ParsedRequest | None:
        """Return the opened body, or nothing for what is no conversation of ``api``: its provider says so."""
        try:
            parsed_request = await self._parse_or_fix_body(body, api)
        except FormatError:
            return None
        return parsed_request if parsed_request.messages and parsed_request.api == api else None

    async def _parse_or_fix_body(self, body: bytes, api: str) -> ParsedRequest:
        """Return ``body`` opened, without what makes it unreadable to its provider too; ``FormatError`` for no body."""
        try:
            return await self._body_cache.parse_body(body, api)
        except FormatError:
            if (repaired_body := await self._body_cache.run_off_loop(body, replace_surrogates_in_bytes)) is body:
                raise
        return await self._body_cache.parse_body(repaired_body, api)

    def _make_summary_writers(
        self, incoming: ClientRequest, parsed_request: ParsedRequest
    ) -> tuple[SummaryWriter, ...]:
        """Return who writes summaries for a request: nobody, its own model, or another one with the same key.

        The login of a subscription is for what its client asks; for another model it is not used.
        """
        summarizer, route = self._settings.summaries, incoming.route
        if summarizer == "extract":
            return ()
        if summarizer != "client" and is_subscription_login(incoming.headers):
            if self.health.add_note(SUBSCRIPTION_NOTICE):
                _print_to_stderr(SUBSCRIPTION_NOTICE)
            return ()
        model = (parsed_request.model or route.model) if summarizer == "client" else summarizer
        if API_SPECS[route.api].endpoints.names_model:
            route = make_model_answer_route(route, model)
        to = replace(incoming, route=route)
        return (SummaryWriter(self._make_relay(to), self.resources.resolve_target(parsed_request.api, model)),)

    # -- planned, sent and relayed -------------------------------------------------------------------------------------

    async def _answer_by_engine(self, turn: ConversationRequest, tries: int = MAX_REQUEST_RETRIES) -> RequestState:
        """Answer a turn by the engine; where that fails before anything was said, without what failed.

        Where the log is another one than was held in memory the turn begins once more, by that.
        """
        outgoing, used = turn.client_response, (self.resources.store, self._branches)
        outgoing.session_key = turn.session_key
        try:
            return await self._continue_session(turn)
        except InvalidRequest:  # whether it is taken as it came is its provider's to say
            if outgoing.is_answered:
                raise
            return await forward_body(turn, turn.parsed_body.body, "relayed")
        except UpstreamError:  # what was begun broke off: so it does for the client
            return turn.state
        except Exception as error:
            if outgoing.is_answered and outgoing.get_outcome_if_left() == "failed":
                raise
            is_new = isinstance(error, StoreError) and await self._reopen_failed_store(error, *used)
            if not outgoing.is_answered and tries and (is_new or isinstance(error, STALE_ERRORS)):
                return await self._answer_by_engine(turn, tries - 1)
            if not (
                outgoing.is_answered and isinstance(error, STALE_ERRORS)
            ):  # what somebody removed is none of a fault
                self._report_trouble(error)
            if not outgoing.is_answered:
                return await self._answer_unrecorded(turn, error)
            await outgoing.send_end()  # all of the answer was given out; the next request brings it along
            return "unrecorded"

    async def _answer_unrecorded(self, turn: ConversationRequest, why: Exception) -> RequestState:
        """Answer a turn that cannot be recorded, and ``why``: by a copy of its branch, else as it is known.

        What is decided on the copy is forgotten once the store takes something again, so that no model is asked for a
        summary there. A store that was waited for in vain is not read once more.
        """
        turn.client_response.state, reads_on = "unrecorded", True
        if isinstance(why, StoreError) and not (turn.is_ephemeral or turn.observe_only):
            try:
                return await self._continue_session(replace(turn, is_ephemeral=True, writers=()))
            except UpstreamError:  # what was begun broke off
                return "unrecorded"
            except Exception as error:
                if turn.client_response.is_answered:
                    raise
                if not isinstance(error, HoldfastError):
                    self._report_trouble(error)
                reads_on = not isinstance(error, StoreLocked)
        return await self._forward_with_known_decisions(
            turn, await self._reduce_body(turn) if reads_on else turn.parsed_body.body, "unrecorded"
        )

    async def _continue_session(self, turn: ConversationRequest) -> RequestState:
        """Let the session that a turn belongs to go on with it, and give its answer to the client.

        Its run plans, sends and records; what comes of that is relayed piece by piece.
        """
        sign = get_keep_alive_bytes(turn.api, stream=turn.wants_stream and not turn.observe_only)
        if turn.is_ephemeral:
            hold = partial(self._branches.continue_copy, stays=turn.client_response.state == "unrecorded")
        else:
            hold = partial(self._branches.continue_branch, aside=turn.is_summary)
        async with hold(turn.session_key, turn.parsed_body.messages) as session:
            try:
                await deliver_pieces(
                    answer_conversation_request(session, turn), turn.client_response, sign, self._settings.keepalive
                )
                await turn.client_response.send_end()
            except RequestTooLarge as error:
                self._report_trouble(
                    error.reason,
                    PASSED_ON_CONSEQUENCE if error.can_pass_on else TOO_LARGE_CONSEQUENCE,
                    is_ours=not has_message_budget(session, turn),
                )
                if not error.can_pass_on:
                    await send_pieces(turn.client_response, await answer_too_large(error, session, turn))
                    return error.state
            else:
                return turn.state
        return await self._forward_with_known_decisions(turn, await self._reduce_body(turn), "relayed")

    async def _forward_with_known_decisions(
        self, turn: ConversationRequest, body: bytes, state: RequestState
    ) -> RequestState:
        """Send ``body`` on, what is known of ``turn``; its answer comes back, an overflow in the client's words."""
        pieces = turn.relay.relay(body)
        if not turn.observe_only:
            pieces = translate_overflow(pieces, turn, self.resources.resolve_target(turn.api, turn.model))
        return await relay_answer(pieces, turn, state)

    async def _reopen_failed_store(self, error: StoreError, store: SessionStore, branches: BranchPool) -> bool:
        """Whether others are in use now than ``store`` or ``branches``; a store that failed for good is opened anew."""
        async with self._reopen_lock:
            if self._has_store_failed(error) and self.resources.store is store and self._reopen is not None:
                self._reopened_at = get_running_loop().time()
                try:
                    await self.resources.run_in_worker(partial(self._replace_store, self._reopen))
                except (StoreError, OSError):
                    return False  # the one there is takes no more either, and is looked at again later
                if isinstance(error, StoreReplaced):
                    self._report_trouble(error, "the store was opened anew, what is said from now on is in that")
        return self.resources.store is not store or self._branches is not branches

    def _has_store_failed(self, error: StoreError) -> bool:
        """Whether a store takes no more: its file is gone, or its disk was full, which is looked at now and then."""
        is_due = get_running_loop().time() - self._reopened_at >= REOPEN_INTERVAL
        return isinstance(error, StoreReplaced) or (isinstance(error, StoreReadOnly) and is_due)

    def _replace_store(self, reopen: Callable[[], SessionStore]) -> None:
        """Take another store in the place of the one there is; what was begun with that fails from then on.

        All of it is one step, whoever leaves meanwhile: no branch goes on in a store that is closed.
        """
        before, self.resources.store = self.resources.store, reopen()
        before.close()
        self.use_settings(self._settings, self._branches.make_empty_copy())

    # -- what several of these need ------------------------------------------------------------------------------------

    async def _reduce_body(self, turn: ConversationRequest) -> bytes:
        """Return the body by the decisions there are, as it came where that fails; nothing is written."""
        parsed_request = turn.parsed_body
        if turn.observe_only:
            return parsed_request.body
        try:
            state, policy = await self._branches.find_closest_state(turn.session_key, parsed_request.messages)
            if not state.history.sized_messages:
                return parsed_request.body

            def reduced(_: bytes) -> bytes:
                target = build_template_from_body(
                    self.resources.resolve_target(parsed_request.api, turn.model), parsed_request
                ).target
                return render_request(
                    parsed_request,
                    build_messages_to_send(
                        plan_with_existing_decisions(state, policy, parsed_request.messages, target)
                    ),
                )

            return await self._body_cache.run_off_loop(parsed_request.body, reduced)
        except HoldfastError:
            return parsed_request.body

    def _make_relay(self, incoming: ClientRequest, *, as_it_came: bool = False) -> UpstreamRelay:
        """Return where ``incoming`` goes, with its headers."""
        route = incoming.route
        base = route.base or getattr(self._settings, route.upstream_setting)
        headers = filter_request_headers(incoming.raw_headers, keeps_encoding=as_it_came)
        return UpstreamRelay(self._client, build_upstream_url(base, route), headers, incoming.method)

    def _get_mode(self) -> Mode:
        return get_proxy_mode(self._settings, self._bypass_file)

    def _report_trouble(
        self, error: Exception, so: str = "requests go on, but are not recorded", *, is_ours: bool = True
    ) -> None:
        """Say once that something failed, and what that means; whether all is well it tells where it ``is_ours``."""
        if self.health.add_trouble(type(error).__name__, str(error), is_ours=is_ours):
            _print_to_stderr(f"{so}: {type(error).__name__}: {error}")


async def _send_error_if_unanswered(
    client_request: ClientRequest, client_response: ClientResponse, kind: str, why: str
) -> None:
    """Tell a client ``why`` it gets no answer, unless it has the beginning of one."""
    if not client_response.status:
        with move_on_after(ERROR_SEND_SECONDS, shield=True):
            await send_pieces(client_response, make_error_reply(client_request.route.api, kind, why))


def _print_to_stderr(line: str) -> None:
    """Write ``line`` on standard error, which nobody may read, or which there may not be."""
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"holdfast: {line}\n")


def _describe_no_upstream(client_request: ClientRequest) -> str:
    """Return that nobody is known who answers, and where the client is to be pointed then."""
    here = f"http://{client_request.headers.get('host', '')[:100] or 'HOST:PORT'}/u/"
    return (
        f"nobody is known who answers {client_request.method} {client_request.route.shown_path[:200]}; set the "
        "client's base address to "
        f"{here} with its server's own behind it, as {here}https://openrouter.ai/api/v1"
    )


def _get_counted_api(client_request: ClientRequest) -> str:
    """Return the API for which a request counts: what is not posted to one is no request of it."""
    return client_request.route.api if client_request.method == "POST" else ""
