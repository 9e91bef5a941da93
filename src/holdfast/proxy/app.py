"""The proxy as an ASGI application: the way of a request from its first byte to the last byte of its answer.

A request is

- *admitted* (``http/access.py``), or answered at once: the proxy's own status, a refusal (``local_responses.py``);
- *read* (``http/client_request.py``, ``http/decompress.py``), unless there is nothing to do with its body; then it is
  relayed as it comes (``forward_request.py``);
- *identified*: which client asks, for which purpose, in which conversation (``conversation/clients.py``,
  ``conversation/identity.py``);
- *planned*: the stored branch that it continues is found, and the request is made to fit
  (``conversation/open_branches.py``, ``managed_request.py``);
- *sent* to its provider, again if recovery says so, and its answer *relayed* as it comes (``http/relay.py``,
  ``http/client_response.py``);
- *recorded*: messages and decisions in the log, its outcome in the metrics (``metrics/``).

The methods of ``ProxyApp`` stand in this order, and each hands the request on to the next. Requests of gateways and of
plugins leave this way after they are admitted (``http/local_endpoints.py``): they are answered from the store, and no
provider is asked (``gateway/``, ``hosts/``).

Whatever fails in Holdfast itself, the client's request is still sent: unrecorded, with the decisions known so far, or
unchanged. Only after bytes of an answer have reached the client is there nothing left to try.
"""

from __future__ import annotations

import re
import sys
from asyncio import CancelledError, Lock, get_running_loop
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import httpx2
from anyio import CapacityLimiter, move_on_after, to_thread
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
    UnknownId,
    UpstreamError,
    WindowTooSmall,
)
from holdfast.hosts.compact_transcript import (
    PLUGIN_API,
    CompactedTranscript,
    add_cache_write_prices,
    compact_transcript,
)
from holdfast.hosts.transcript import TranscriptError, read_transcript
from holdfast.normalize.projection import build_messages_to_send
from holdfast.providers.common.json.lenient_json import read_json_fields, read_json_text
from holdfast.providers.common.json.surrogates import replace_surrogates_in_bytes
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.parsed_request import ParsedRequest
from holdfast.providers.requests.request_body import render_request
from holdfast.proxy.conversation.body_cache import BodyCache
from holdfast.proxy.conversation.clients import ToolClients, classify_purpose, identify_client
from holdfast.proxy.conversation.identity import make_session_key
from holdfast.proxy.conversation.open_branches import STALE_ERRORS, BranchPool
from holdfast.proxy.exchange import ConversationRequest, Exchange
from holdfast.proxy.forward_request import forward_body, pass_request_through, relay_answer
from holdfast.proxy.gateway.compress_messages import CompressedMessages, MessageCompressor
from holdfast.proxy.gateway.compress_request import CompressRequest, get_affinity, parse_compress_request
from holdfast.proxy.gateway.endpoints import take_gateway_token, wants_bypass, write_compressed, write_retrieved
from holdfast.proxy.gateway.retrieve_text import parse_retrieve_request, retrieve_text
from holdfast.proxy.hosts.endpoints import write_plugin_answer, write_plugin_error
from holdfast.proxy.hosts.plan_messages import HostPlanner, PlannedMessages
from holdfast.proxy.hosts.plan_request import PlanRequest, PlanRequestReader
from holdfast.proxy.hosts.recall_request import answer_recall_request, parse_recall_request
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
from holdfast.proxy.http.local_endpoints import LocalEndpoint, find_local_endpoint
from holdfast.proxy.http.relay import RelayedCall, ResponsePiece, UpstreamRelay
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

if TYPE_CHECKING:
    from holdfast.telemetry.telemetry import ServedRequest, Telemetry

T = TypeVar("T")
PARSED_ENDPOINTS = frozenset({"generate", "count", "compact"})
"""Endpoints whose request bodies are parsed; requests to others are relayed while they arrive."""
REMOTE_STATE_FIELDS = frozenset({"previous_response_id", "conversation", "background"})
"""Fields of the Responses API with which the provider keeps the conversation, so that we never see all of it."""
UNSET_VALUES = (b"null", b"false")
SERVER_STOPPED_TEXT = "holdfast was stopped before the answer came; send the request again when it is running"
"""Error for clients that still wait for an answer when the server stops."""
SUBSCRIPTION_NOTICE = (
    "summaries are made without a model: a subscription login is only for the client's own requests; "
    "set summaries to client to use the client's model"
)
"""Notice for a user who configured a summary model that must not be asked."""
CLOUD_SUMMARY_NOTICE = (
    "summaries are made without a model: the request goes to a cloud whose address names the model, and summaries are "
    "not asked for there; set summaries to extract"
)
"""Notice for a user who configured a summary model for a client whose requests go to such a cloud."""
SIGNED_REQUEST_NOTICE = (
    "requests to Amazon Bedrock (/model/…/invoke, /model/…/converse) are signed over their body, so they are only "
    "relayed and no window is kept; send the client's requests to Anthropic's API or to Google Cloud for that"
)
"""Notice for a user whose client's requests cannot be changed."""
_SIGNED_REQUEST_PATTERN = re.compile(r"/model/[^/]+/(?:invoke|converse)(?:-with-response-stream|-stream)?\Z")
UPGRADE_REQUIRED = 426
"""The HTTP status after which a client that asked for a WebSocket uses HTTP at once."""
TOO_LARGE_CONSEQUENCE = "a request was refused, because it cannot be made to fit into the window"
"""Consequence that is reported when a request cannot be made to fit."""
PASSED_ON_CONSEQUENCE = "a request that seems too large was sent to the provider anyway"
"""Consequence if the size of the window is only our guess, so that the provider decides."""
UNRECORDED_CONSEQUENCE = "requests are answered, but not recorded"
"""Consequence that is reported when the store cannot be written."""
UNCHANGED_CONSEQUENCE = "a gateway got its messages back unchanged"
"""Consequence if messages of a gateway could not be made smaller."""
UNPLANNED_CONSEQUENCE = "a plugin got its messages back unchanged"
"""Consequence if a request of a plugin could not be planned."""
WINDOW_ADVICE = "give the window of the model in tokens if it is larger, or begin a new conversation"
"""What to do if messages do not fit into the window that a plugin names."""
REPLACED_CONSEQUENCE = (
    "the file of the store was replaced, so it was opened again; messages are recorded in the new file"
)
"""Consequence that is reported when the store's file was removed or exchanged while the proxy was running."""
ERROR_SEND_SECONDS = 1.0
"""Seconds that a client has to receive an error while the server stops.

Long enough for a slow connection; a client that is gone must not hold up the shutdown. Chosen by judgement.
"""
REOPEN_INTERVAL = 5.0
"""Seconds until a store whose disk was full is opened again.

Each attempt costs the request at hand the time to open a database; a longer wait leaves more of them unrecorded after
space was made. Chosen by judgement.
"""
MAX_REQUEST_RETRIES = 2
"""How often a request is begun anew because the store, or the session's log, turned out to be another one.

The first retry reads the log as it is now. A second is for a session that changed again meanwhile; after that something
else is wrong, and the request is answered without recording it. Chosen by judgement.
"""


class ProxyApp:
    """Answers clients with what their provider answers, after making their requests fit into the window."""

    _settings: Settings
    _branches: BranchPool

    def __init__(
        self,
        resources: EngineResources,
        client: httpx2.AsyncClient,
        health: Health,
        reopen: Callable[[], SessionStore] | None = None,
        bypass_file: Path | None = None,
    ) -> None:
        self.resources = resources
        self.health = health
        self._client = client
        self._reopen = reopen
        self._bypass_file = bypass_file
        self._reopen_lock = Lock()
        self._reopened_at = -inf
        self._body_cache = BodyCache()
        self._tool_clients = ToolClients()
        self._compressor = MessageCompressor(resources)
        self._host_planner = HostPlanner(resources)
        self._plan_request_reader = PlanRequestReader()
        self._compact_limiter = CapacityLimiter(1)
        """One compaction for a plugin at a time: several that compute together would hold up the event loop."""
        health.mode = self._get_mode

    def use_settings(self, settings: Settings, branches: BranchPool) -> None:
        """Answer later requests with ``settings``; requests under way end as they began."""
        self._settings = settings
        self._branches = branches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; stop working on it when its client leaves."""
        if scope["type"] != "http":
            return
        incoming = ClientRequest.from_scope(scope)
        outgoing = ClientResponse(send)
        try:
            await self._admit_and_answer(incoming, receive, outgoing)
        except CancelledError:
            # The server stops and waits no longer. A client that was told so can send its request again later.
            await _send_error_if_unanswered(incoming, outgoing, "overloaded", SERVER_STOPPED_TEXT)
            raise
        except Exception as error:  # noqa: BLE001 -- whatever it is, the client must get an answer
            if is_client_left_error(error):
                return
            self._report_trouble(error, "a request could not be answered")
            await _send_error_if_unanswered(
                incoming,
                outgoing,
                "server",
                f"holdfast failed: {type(error).__name__}",
            )

    # -- admitted ------------------------------------------------------------------------------------------------------

    async def _admit_and_answer(
        self,
        incoming: ClientRequest,
        receive: Receive,
        outgoing: ClientResponse,
    ) -> None:
        # Access comes first: a client without the token does not even get the proxy's status.
        refusal = self._check_access(incoming)
        if refusal is not None:
            await self._send_refusal(incoming, outgoing, refusal)
            return
        status_pieces = self._render_own_endpoint(incoming)
        if status_pieces is not None:
            await send_pieces(outgoing, status_pieces)
            return
        refusal = self._find_refusal(incoming)
        if refusal is not None:
            await self._send_refusal(incoming, outgoing, refusal)
            return
        if self.resources.telemetry is None:
            await self._answer_and_count(incoming, receive, outgoing)
        else:
            await self._answer_in_span(self.resources.telemetry, incoming, receive, outgoing)

    async def _answer_in_span(
        self,
        telemetry: Telemetry,
        incoming: ClientRequest,
        receive: Receive,
        outgoing: ClientResponse,
    ) -> None:
        """Answer a request in a span that continues the trace of its client."""
        route = _get_route_template(incoming)
        with telemetry.trace_served_request(incoming.method, route, incoming.headers) as served:
            await self._answer_and_count(incoming, receive, outgoing, served)

    def _check_access(self, incoming: ClientRequest) -> AccessRefusal | None:
        """Return why this client is not answered, or None if it may ask."""
        headers: Mapping[str, str] = incoming.headers
        local_endpoint = find_local_endpoint(incoming.route)
        if local_endpoint is not None and local_endpoint.is_for_gateways:
            headers = take_gateway_token(headers)
        return check_access(headers, self._settings.host, self._settings.token)

    def _render_own_endpoint(self, incoming: ClientRequest) -> list[ResponsePiece] | None:
        """Return the proxy's status or metrics if the request asks for them, else None.

        A path with the address of another server belongs to that server, even if it ends like one of ours.
        """
        route = incoming.route
        is_for_another = self._has_upstream(route) and (route.base or route.shown_path == "/")
        if incoming.method not in {"GET", "HEAD"} or is_for_another:
            return None
        return render_proxy_endpoint(route.shown_path, self.health)

    def _find_refusal(self, incoming: ClientRequest) -> AccessRefusal | None:
        """Return why no provider can be asked, or None if one can."""
        route = incoming.route
        if incoming.method == "CONNECT":
            why = (
                "CONNECT is not supported; set the client's base address to this proxy, or to /u/https://HOST below it"
            )
            return AccessRefusal("invalid_request", why, 405)
        local_endpoint = find_local_endpoint(route)
        if local_endpoint is not None:
            refusal = local_endpoint.find_refusal(incoming.method)
            if refusal is not None:
                return refusal
        # An unknown path is never sent to a default provider: that would give away the client's API key.
        elif not self._has_upstream(route):
            return AccessRefusal("invalid_request", _describe_no_upstream(incoming), 404)
        # Codex tries a WebSocket first. On 426 it uses HTTP at once; on 404 it tries six times more, for 6.6 seconds.
        if route.endpoint == "probe":
            return AccessRefusal(
                "invalid_request", "WebSockets are not supported; send a POST request", UPGRADE_REQUIRED
            )
        in_progress = self.health.in_progress
        if in_progress >= self._settings.concurrent:
            why = (
                f"the limit of requests at a time, {in_progress}, is reached; try again, or raise concurrent in [proxy]"
            )
            return AccessRefusal("overloaded", why)
        return None

    def _has_upstream(self, route: Route) -> bool:
        """Return whether the path leads to a provider, or to a server it names that is not this proxy itself."""
        if not route.base:
            return bool(route.upstream_setting)
        return not is_url_of_server(route.base, self._settings.host, self._settings.port)

    async def _send_refusal(
        self,
        incoming: ClientRequest,
        outgoing: ClientResponse,
        refusal: AccessRefusal,
    ) -> None:
        """Send ``refusal`` in the words of the requested API, and count it.

        A client that only asks for a WebSocket goes on over HTTP, so for its user nothing was refused.
        """
        pieces = make_error_reply(incoming.route.api, refusal.kind, refusal.reason, status=refusal.status)
        await send_refusal(outgoing, pieces)
        if refusal.status != UPGRADE_REQUIRED:
            self.health.count_refused(_get_counted_api(incoming), outgoing.status)

    # -- read, and recorded in the end ---------------------------------------------------------------------------------

    async def _answer_and_count(
        self,
        incoming: ClientRequest,
        receive: Receive,
        outgoing: ClientResponse,
        served: ServedRequest | None = None,
    ) -> None:
        """Answer a request and count its outcome, whatever that is; ``served`` is its span, if it has one."""
        counted_request = self.health.begin_request(_get_counted_api(incoming))
        outgoing.on_last_piece = counted_request.mark_answered
        started_at = get_running_loop().time()
        outcome: RequestOutcome = "failed"
        try:
            outcome = await self._read_or_pass_through(incoming, receive, outgoing)
            # The client got an error of ours, whatever was done with its request.
            if outgoing.is_unreached:
                outcome = "failed"
        except ClientLeft:
            outcome = outgoing.get_outcome_if_left()
            raise
        finally:
            if outgoing.first_byte_at is None:
                first_byte_seconds = None
            else:
                first_byte_seconds = outgoing.first_byte_at - started_at
            counted_request.finish(
                outcome,
                outgoing.status,
                first_byte_seconds,
                session=outgoing.session_key,
            )
            if served is not None:
                served.note_response(outgoing.status, outcome)

    async def _read_or_pass_through(
        self,
        incoming: ClientRequest,
        receive: Receive,
        outgoing: ClientResponse,
    ) -> RequestState:
        """Answer a request, reading its body only if that is needed; return the state of the request."""
        local_endpoint = find_local_endpoint(incoming.route)
        if local_endpoint is not None:
            return await self._answer_locally(local_endpoint, incoming, receive, outgoing)
        unread_state: RequestState | None = None
        if self._get_mode() == "bypass":
            unread_state = "bypassed"
        elif incoming.method != "POST" or incoming.route.endpoint not in PARSED_ENDPOINTS:
            unread_state = "relayed"
        if unread_state is not None:
            is_signed = _SIGNED_REQUEST_PATTERN.search(incoming.route.shown_path) is not None
            if unread_state == "relayed" and is_signed and self.health.add_note(SIGNED_REQUEST_NOTICE):
                _print_to_stderr(SIGNED_REQUEST_NOTICE)
            # The body is not read, so it need not be decompressed and its encoding stays.
            exchange = Exchange(incoming, self._make_relay(incoming, as_it_came=True), outgoing)
            return await pass_request_through(exchange, receive, unread_state)
        receive = BodyReceiver(receive)
        try:
            body = await self._read_body(incoming, receive)
        except BadBody as error:
            # Closing while the client still sends resets the connection, and the client never sees the refusal.
            if incoming.closes_connection:
                outgoing.before_end = partial(discard_body_rest, receive)
            return await send_body_refusal(outgoing, error, incoming.route.api)
        # A client that leaves must stop the request to its provider, which would go on costing money.
        with run_alongside(partial(watch_client, receive, lambda: outgoing.is_ended)):
            state = await self._answer_by_purpose(Exchange(incoming, self._make_relay(incoming), outgoing), body)
        return state  # noqa: RET504 -- for the type checker a block may swallow a return

    async def _read_body(self, incoming: ClientRequest, receive: Receive) -> bytes:
        """Return the whole request body, decompressed; raise ``BadBody`` for one that is too large or damaged."""
        max_bytes = self._settings.body_bytes
        headers = incoming.headers
        body = await read_whole_body(receive, max_bytes, headers.get("content-length", ""))
        encoding = headers.get("content-encoding", "")
        if not encoding:
            return decompress_request_body(body, encoding, max_bytes)
        # In a thread, because decompressing a large body would hold up the answers of other clients.
        return await to_thread.run_sync(decompress_request_body, body, encoding, max_bytes)

    async def _answer_by_purpose(self, exchange: Exchange, body: bytes) -> RequestState:
        """Manage, count or forward a request after its body was read, depending on its purpose."""
        # Whatever the engine makes of an observed request, the body that is sent is the client's.
        if self._settings.observe:
            exchange = replace(exchange, relay=exchange.relay.with_body(body))
        body, wrap = unwrap_count_tokens_body(body, exchange.route)
        parsed_request = await self._parse_body(body, exchange.api)
        if parsed_request is None:
            return await forward_body(exchange, wrap(body), "relayed")
        exchange.relay.note_model(parsed_request.model)
        request = self._identify_conversation(exchange, parsed_request)
        if request is None:
            return await forward_body(exchange, wrap(parsed_request.body), "relayed")
        # A client decides by token counts when to compact, so they must be those of the request that we would send.
        if request.route.endpoint == "count":
            reduced_body = await self._reduce_body(request)
            state: RequestState = "managed"
            if reduced_body is request.parsed_body.body:
                state = "relayed"
            return await forward_body(request, wrap(reduced_body), state)
        if request.is_summary and await self._is_standalone(request):
            request = replace(request, is_ephemeral=True)
        if request.is_ephemeral and request.observe_only:
            return await forward_body(request, request.parsed_body.body, "relayed")
        return await self._answer_by_engine(request)

    async def _is_standalone(self, request: ConversationRequest) -> bool:
        """Return whether a request surely fits and its session is unknown, so that recording it has no use."""
        target = request.resolve_target(self.resources)
        return is_far_below_window(request, target) and not await self._branches.has_session(request.session_key)

    # -- asked by a gateway or by a plugin -----------------------------------------------------------------------------

    async def _answer_locally(
        self,
        endpoint: LocalEndpoint,
        incoming: ClientRequest,
        receive: Receive,
        outgoing: ClientResponse,
    ) -> RequestState:
        """Answer a request that works on messages without a provider; a mistake in it is explained."""
        receive = BodyReceiver(receive)
        try:
            body = await self._read_body(incoming, receive)
            with run_alongside(partial(watch_client, receive, lambda: outgoing.is_ended)):
                if endpoint.name == "compress":
                    pieces = await self._compress_for_gateway(incoming, body, outgoing)
                elif endpoint.name == "retrieve":
                    pieces = await self._retrieve_for_gateway(incoming, endpoint.hash_segment)
                elif endpoint.name == "compact":
                    pieces = await self._compact_for_plugin(body, outgoing)
                elif endpoint.name == "plan":
                    pieces = await self._plan_for_plugin(body, outgoing)
                else:
                    pieces = await self._recall_for_plugin(body, outgoing)
                await send_pieces(outgoing, pieces)
        except BadBody as error:
            if incoming.closes_connection:
                outgoing.before_end = partial(discard_body_rest, receive)
            return await send_body_refusal(outgoing, error, incoming.route.api)
        except TranscriptError as error:
            return await send_refusal(outgoing, write_plugin_error(400, error.path, error.why, error.advice))
        except (FormatError, UnknownId) as error:
            status = 404 if isinstance(error, UnknownId) else 400
            refusal = make_error_reply(incoming.route.api, "invalid_request", str(error), status=status)
            return await send_refusal(outgoing, refusal)
        return outgoing.state

    async def _compact_for_plugin(self, body: bytes, outgoing: ClientResponse) -> list[ResponsePiece]:
        """Return one compaction of the transcript in ``body``; nothing is stored."""
        try:
            # In a thread: it takes half a second for the largest transcripts, and other requests go on meanwhile.
            compacted = await to_thread.run_sync(self._compact_transcript, body, limiter=self._compact_limiter)
        except WindowTooSmall as error:
            raise TranscriptError("window", str(error), WINDOW_ADVICE) from error
        outgoing.state = "managed"
        return write_plugin_answer(compacted, outgoing.state)

    def _compact_transcript(self, body: bytes) -> CompactedTranscript:
        transcript = read_transcript(body)
        compacted = compact_transcript(transcript)
        if not transcript.model:
            return compacted
        return add_cache_write_prices(compacted, self.resources.catalog.get_prices(PLUGIN_API, transcript.model))

    async def _plan_for_plugin(self, body: bytes, outgoing: ClientResponse) -> list[ResponsePiece]:
        """Return what to send of the conversation in ``body``; all of it if Holdfast is switched off or fails."""
        request = await self._body_cache.run_off_loop(body, self._plan_request_reader.read)
        mode = self._get_mode()
        if mode != "manage":
            outgoing.state = "bypassed"
            notice = f"Holdfast is in the mode {mode}, so the messages stay as they are"
            return write_plugin_answer(self._host_planner.leave_unchanged(request, notice), outgoing.state)
        answer, outgoing.state = await self._plan_messages(request)
        outgoing.session_key = answer.session_key
        return write_plugin_answer(answer, outgoing.state, answer.session_key)

    async def _plan_messages(self, request: PlanRequest) -> tuple[PlannedMessages, RequestState]:
        """Return the plan for ``request``; its messages unchanged if Holdfast fails.

        Raise ``TranscriptError`` if the messages cannot be made to fit.
        """
        try:
            answer = await self._work_on_branches(lambda branches: self._host_planner.plan(request, branches))
        except WindowTooSmall as error:
            raise TranscriptError("messages", str(error), WINDOW_ADVICE) from error
        except Exception as error:  # noqa: BLE001 -- whatever it is, the plugin gets its messages back
            self._report_trouble(error, UNPLANNED_CONSEQUENCE)
            notice = f"Holdfast failed ({type(error).__name__}), so the messages stay as they are; see its log"
            return self._host_planner.leave_unchanged(request, notice), "unrecorded"
        return answer, "managed"

    async def _recall_for_plugin(self, body: bytes, outgoing: ClientResponse) -> list[ResponsePiece]:
        request = parse_recall_request(body)
        answer = await self.resources.run_in_worker(lambda: answer_recall_request(self.resources.store, request))
        outgoing.state = "managed"
        return write_plugin_answer(answer, outgoing.state)

    async def _work_on_branches(self, work: Callable[[BranchPool], Awaitable[T]]) -> T:
        """Return what ``work`` makes of the branches, done again if the store or the session was replaced meanwhile."""
        for _ in range(MAX_REQUEST_RETRIES):
            store = self.resources.store
            branches = self._branches
            try:
                return await work(branches)
            except STALE_ERRORS:
                continue
            except StoreError as error:
                if not await self._reopen_failed_store(error, store, branches):
                    raise
        return await work(self._branches)

    async def _compress_for_gateway(
        self,
        incoming: ClientRequest,
        body: bytes,
        outgoing: ClientResponse,
    ) -> list[ResponsePiece]:
        request = await self._body_cache.run_off_loop(body, parse_compress_request, incoming.headers)
        is_left_alone = wants_bypass(incoming.headers) or not request.parsed_body.messages
        if is_left_alone or self._get_mode() != "manage":
            outgoing.state = "bypassed"
            return write_compressed(self._compressor.leave_unchanged(request), outgoing.state, "")
        answer, outgoing.state = await self._compress_messages(request)
        outgoing.session_key = request.session_key
        return write_compressed(answer, outgoing.state, request.session_key)

    async def _compress_messages(self, request: CompressRequest) -> tuple[CompressedMessages, RequestState]:
        """Return the messages of ``request``, smaller where that is due; unchanged if Holdfast fails.

        Raise ``FormatError`` if the window that the gateway wants is too small for any conversation.
        """
        try:
            answer = await self._work_on_branches(lambda branches: self._compressor.compress(request, branches))
        except WindowTooSmall as error:
            if request.config.window is not None:
                raise FormatError(f"$.config.window is too small. {error}") from error
            self._report_trouble(error, UNCHANGED_CONSEQUENCE, is_ours=False)
            return self._compressor.leave_unchanged(request), "relayed"
        except Exception as error:  # noqa: BLE001 -- whatever it is, the gateway gets its messages back
            # A gateway that gets an error may refuse its client's request, which would be sent without us.
            self._report_trouble(error, UNCHANGED_CONSEQUENCE)
            return self._compressor.leave_unchanged(request), "unrecorded"
        return answer, "managed"

    async def _retrieve_for_gateway(self, incoming: ClientRequest, hash_segment: str) -> list[ResponsePiece]:
        query_string = incoming.route.path.partition("?")[2]
        request = parse_retrieve_request(hash_segment, query_string, get_affinity(incoming.headers))
        answer = await self.resources.run_in_worker(lambda: retrieve_text(self.resources.store, request))
        return write_retrieved(answer)

    # -- identified ----------------------------------------------------------------------------------------------------

    def _identify_conversation(self, exchange: Exchange, parsed_request: ParsedRequest) -> ConversationRequest | None:
        """Identify the conversation this request belongs to, or return None.

        None is returned for side requests (titles, quota checks) and for conversations that the provider keeps.
        """
        incoming = exchange.client_request
        if _has_remote_state(parsed_request):
            return None
        client = identify_client(parsed_request.api, incoming.headers, parsed_request)
        # Whether a client's conversations have tools must be noted for every request, also for one that turns out to be
        # a side request.
        purpose = classify_purpose(
            client,
            incoming.headers,
            parsed_request,
            has_tools_before=self._tool_clients.has_had_tools(client, parsed_request),
        )
        if purpose == "side":
            return None
        writers: tuple[SummaryWriter, ...] = ()
        if incoming.route.endpoint == "generate":
            writers = self._make_summary_writers(incoming, parsed_request)
        return ConversationRequest(
            incoming,
            exchange.relay,
            exchange.client_response,
            parsed_request,
            make_session_key(client, parsed_request, incoming.route.base),
            is_summary=purpose == "compaction",
            is_ephemeral=incoming.route.endpoint == "compact",
            observe_only=self._settings.observe,
            writers=writers,
        )

    async def _parse_body(self, body: bytes, api: str) -> ParsedRequest | None:
        """Parse a request body, or return None if it is no conversation of ``api``.

        Such a body is forwarded, so that the client gets the provider's own error.
        """
        try:
            parsed_request = await self._parse_or_fix_body(body, api)
        except FormatError:
            return None
        is_conversation = bool(parsed_request.messages) and parsed_request.api == api
        if not is_conversation:
            return None
        return parsed_request

    async def _parse_or_fix_body(self, body: bytes, api: str) -> ParsedRequest:
        """Parse ``body``, if necessary after replacing lone surrogates; raise ``FormatError`` if it is no request.

        Some clients cut texts inside a character. Providers refuse such a body too, so repairing it only helps.
        """
        try:
            return await self._body_cache.parse_body(body, api)
        except FormatError:
            repaired_body = await self._body_cache.run_off_loop(body, replace_surrogates_in_bytes)
            if repaired_body is body:
                raise
        return await self._body_cache.parse_body(repaired_body, api)

    def _make_summary_writers(
        self,
        incoming: ClientRequest,
        parsed_request: ParsedRequest,
    ) -> tuple[SummaryWriter, ...]:
        """Return the model that writes summaries for a request: none, its own, or the configured one with its key.

        The login of a subscription is meant for the requests of its client only. It is not used for another model.
        """
        summarizer = self._settings.summaries
        if summarizer == "extract":
            return ()
        if summarizer != "client" and is_subscription_login(incoming.headers):
            if self.health.add_note(SUBSCRIPTION_NOTICE):
                _print_to_stderr(SUBSCRIPTION_NOTICE)
            return ()
        route = incoming.route
        if route.is_cloud:
            if self.health.add_note(CLOUD_SUMMARY_NOTICE):
                _print_to_stderr(CLOUD_SUMMARY_NOTICE)
            return ()
        model = summarizer
        if summarizer == "client":
            model = parsed_request.model or route.model
        # Gemini's addresses name the model and whether to stream; for the other APIs the body does.
        if API_SPECS[route.api].endpoints.names_model:
            route = make_model_answer_route(route, model)
        relay = self._make_relay(replace(incoming, route=route))
        return (SummaryWriter(relay, self.resources.resolve_target(parsed_request.api, model, relay)),)

    # -- planned, sent and relayed -------------------------------------------------------------------------------------

    async def _answer_by_engine(self, request: ConversationRequest, retries: int = MAX_REQUEST_RETRIES) -> RequestState:
        """Answer a request through the engine, or without the part of it that failed before anything was sent.

        If the log turns out to be another one than was in memory, begin anew with the log as it is, ``retries`` times.
        """
        outgoing = request.client_response
        outgoing.session_key = request.session_key
        # Noted before the request fails, so that it can tell whether another request has replaced them meanwhile.
        store = self.resources.store
        branches = self._branches
        try:
            return await self._continue_session(request)
        except InvalidRequest:
            # Our rules call the request invalid. The provider has the last word, so it is sent unchanged.
            if outgoing.is_answered:
                raise
            return await forward_body(request, request.parsed_body.body, "relayed")
        except UpstreamError:
            # The answer broke off after it had begun, and so it does for the client.
            return request.state
        except Exception as error:
            if outgoing.is_answered and outgoing.get_outcome_if_left() == "failed":
                raise
            is_store_replaced = False
            if isinstance(error, StoreError):
                is_store_replaced = await self._reopen_failed_store(error, store, branches)
            is_stale = isinstance(error, STALE_ERRORS)
            if outgoing.is_answered:
                # A session that somebody removed while it was answered is no fault.
                if not is_stale:
                    self._report_trouble(error)
                # The client has the whole answer and brings it along with its next request, which records it then.
                await outgoing.send_end()
                return "unrecorded"
            if retries and (is_store_replaced or is_stale):
                return await self._answer_by_engine(request, retries - 1)
            self._report_trouble(error)
            return await self._answer_unrecorded(request, error)

    async def _answer_unrecorded(self, request: ConversationRequest, cause: Exception) -> RequestState:
        """Answer a request that cannot be recorded because of ``cause``: on a copy of its branch, else as it is known.

        Decisions made on the copy are forgotten once the store can be written again, so no model is paid for a summary
        there. A store that could not be locked in time is not read again either: that would wait as long once more.
        """
        outgoing = request.client_response
        outgoing.state = "unrecorded"
        can_read_store = True
        if isinstance(cause, StoreError) and not (request.is_ephemeral or request.observe_only):
            try:
                return await self._continue_session(replace(request, is_ephemeral=True, writers=()))
            except UpstreamError:
                # The answer broke off after it had begun, and so it does for the client.
                return "unrecorded"
            except Exception as error:
                if outgoing.is_answered:
                    raise
                if not isinstance(error, HoldfastError):
                    self._report_trouble(error)
                can_read_store = not isinstance(error, StoreLocked)
        body = request.parsed_body.body
        if can_read_store:
            body = await self._reduce_body(request)
        return await self._forward_with_known_decisions(request, body, "unrecorded")

    async def _continue_session(self, request: ConversationRequest) -> RequestState:
        """Continue the session of ``request`` with it, and relay the answer to the client piece by piece."""
        outgoing = request.client_response
        keep_alive_bytes = get_keep_alive_bytes(request.api, stream=request.wants_stream and not request.observe_only)
        if request.is_ephemeral:
            hold_branch = partial(self._branches.continue_copy, stays=outgoing.state == "unrecorded")
        else:
            hold_branch = partial(self._branches.continue_branch, aside=request.is_summary)
        async with hold_branch(request.session_key, request.parsed_body.messages) as session:
            try:
                pieces = answer_conversation_request(session, request)
                await deliver_pieces(pieces, outgoing, keep_alive_bytes, self._settings.keepalive)
                await outgoing.send_end()
            except RequestTooLarge as error:
                # If the window has room without the client's setup, the setup is at fault and not Holdfast.
                is_ours = not has_message_budget(session, request)
                if not error.can_pass_on:
                    self._report_trouble(error.reason, TOO_LARGE_CONSEQUENCE, is_ours=is_ours)
                    await send_pieces(outgoing, await answer_too_large(error, session, request))
                    return error.state
                self._report_trouble(error.reason, PASSED_ON_CONSEQUENCE, is_ours=is_ours)
            else:
                return request.state
        # Outside of the block: the branch must be free again before the request is sent without it.
        return await self._forward_with_known_decisions(request, await self._reduce_body(request), "relayed")

    async def _forward_with_known_decisions(
        self,
        request: ConversationRequest,
        body: bytes,
        state: RequestState,
    ) -> RequestState:
        """Forward ``body`` and relay the answer; an overflow is translated into the words of the client's API."""
        pieces = request.relay.relay(body)
        if not request.observe_only:
            pieces = translate_overflow(pieces, request, request.resolve_target(self.resources))
        return await relay_answer(pieces, request, state)

    async def _reopen_failed_store(
        self,
        error: StoreError,
        store: SessionStore,
        branches: BranchPool,
    ) -> bool:
        """Reopen the store if it failed for good; return whether others are in use now than ``store`` and ``branches``.

        Of the many requests that fail at the same time only the first reopens it; the rest find it replaced.
        """
        async with self._reopen_lock:
            is_still_in_use = self.resources.store is store
            if self._has_store_failed(error) and is_still_in_use and self._reopen is not None:
                self._reopened_at = get_running_loop().time()
                try:
                    await self.resources.run_in_worker(partial(self._replace_store, self._reopen))
                except (StoreError, OSError):
                    # The disk is still full. The next request after REOPEN_INTERVAL tries again.
                    return False
                if isinstance(error, StoreReplaced):
                    self._report_trouble(error, REPLACED_CONSEQUENCE)
        return self.resources.store is not store or self._branches is not branches

    def _has_store_failed(self, error: StoreError) -> bool:
        """Return whether to open the store anew: its file is gone, or it is read-only and an attempt is due."""
        if isinstance(error, StoreReplaced):
            return True
        is_due = get_running_loop().time() - self._reopened_at >= REOPEN_INTERVAL
        return isinstance(error, StoreReadOnly) and is_due

    def _replace_store(self, reopen: Callable[[], SessionStore]) -> None:
        """Put a newly opened store in place of the current one; requests that began with that fail from now on.

        This runs in one piece on the store's thread, so that no cancellation can leave branches of a closed store.
        """
        old_store = self.resources.store
        self.resources.store = reopen()
        old_store.close()
        self.use_settings(self._settings, self._branches.make_empty_copy())

    # -- shared by several of these ------------------------------------------------------------------------------------

    async def _reduce_body(self, request: ConversationRequest) -> bytes:
        """Return the body of ``request`` with the recorded decisions applied; nothing new is decided or written.

        If there are no decisions, or applying them fails, the very same body object is returned.
        """
        parsed_request = request.parsed_body
        if request.observe_only:
            return parsed_request.body
        try:
            state, policy = await self._branches.find_closest_state(request.session_key, parsed_request.messages)
            # Without messages in the log there are no decisions about them either.
            if not state.history.sized_messages:
                return parsed_request.body

            def render_reduced_body(_: bytes) -> bytes:
                target = request.resolve_target(self.resources)
                target = build_template_from_body(target, parsed_request).target
                plan = plan_with_existing_decisions(state, policy, parsed_request.messages, target)
                return render_request(parsed_request, build_messages_to_send(plan))

            return await self._body_cache.run_off_loop(parsed_request.body, render_reduced_body)
        except HoldfastError:
            # Without our reductions the request can still be sent unchanged.
            return parsed_request.body

    def _make_relay(self, incoming: ClientRequest, *, as_it_came: bool = False) -> UpstreamRelay:
        """Return the connection to the server that ``incoming`` asks for, with the headers to forward."""
        route = incoming.route
        base = route.base or getattr(self._settings, route.upstream_setting)
        headers = filter_request_headers(incoming.raw_headers, keeps_encoding=as_it_came)
        url = build_upstream_url(base, route)
        return UpstreamRelay(
            self._client, url, headers, incoming.method, relayed_call=self._describe_relayed_call(route, url)
        )

    def _describe_relayed_call(self, route: Route, url: str) -> RelayedCall | None:
        """Describe a request to a model, in case it is relayed; None for other requests, or if nobody wants spans."""
        telemetry = self.resources.telemetry
        if telemetry is None or route.endpoint != "generate":
            return None
        provider = self.resources.catalog.find_provider(route.api, route.model, address=url)
        return RelayedCall(telemetry, route.api, provider.name, route.model)

    def _get_mode(self) -> Mode:
        return get_proxy_mode(self._settings, self._bypass_file)

    def _report_trouble(
        self,
        error: Exception,
        consequence: str = UNRECORDED_CONSEQUENCE,
        *,
        is_ours: bool = True,
    ) -> None:
        """Report an error and its consequence once; with ``is_ours`` the proxy counts as unhealthy from then on."""
        if self.health.add_trouble(type(error).__name__, str(error), is_ours=is_ours):
            _print_to_stderr(f"{consequence}: {type(error).__name__}: {error}")


async def _send_error_if_unanswered(
    client_request: ClientRequest,
    client_response: ClientResponse,
    kind: str,
    message: str,
) -> None:
    """Send an error unless the client already has the beginning of an answer."""
    if not client_response.status:
        with move_on_after(ERROR_SEND_SECONDS, shield=True):
            await send_pieces(client_response, make_error_reply(client_request.route.api, kind, message))


def _print_to_stderr(line: str) -> None:
    """Write ``line`` to standard error if there is one; it may be closed or None under a service manager."""
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"holdfast: {line}\n")


def _has_remote_state(parsed_request: ParsedRequest) -> bool:
    """Return whether the request refers to a conversation that the provider keeps."""
    for name in REMOTE_STATE_FIELDS & parsed_request.fields.keys():
        if bytes(parsed_request.fields[name]) not in UNSET_VALUES:
            return True
    # A thread of Anthropic's: a request that creates one has the whole conversation, one that continues it has not
    # (page on message threads, 2026-11-02).
    return read_json_text(read_json_fields(parsed_request.fields.get("thread")).get("type")) == "continue"


def _describe_no_upstream(client_request: ClientRequest) -> str:
    """Return the error for a path that leads to no provider, with an address that would."""
    host = client_request.headers.get("host", "")[:100] or "HOST:PORT"
    request_line = f"{client_request.method} {client_request.route.shown_path[:200]}"
    own_address = f"http://{host}/u/"
    return (
        f"no provider is known for {request_line}; set the client's base address to {own_address} followed by the "
        f"provider's address, for example {own_address}https://openrouter.ai/api/v1"
    )


def _get_route_template(client_request: ClientRequest) -> str:
    """Return the path of the endpoint that a request asks for, as its API has it; empty for any other path.

    The path itself may have the name of a server, of a model or of a conversation in it.
    """
    route = client_request.route
    local_endpoint = find_local_endpoint(route)
    if local_endpoint is not None:
        return f"/v1/{local_endpoint.name}"
    if route.api not in API_SPECS:
        return ""
    return API_SPECS[route.api].endpoints.get_path(route.endpoint, stream=route.stream).partition("?")[0]


def _get_counted_api(client_request: ClientRequest) -> str:
    """Return the API, or the endpoint for gateways or plugins, under which a request is counted; else empty."""
    local_endpoint = find_local_endpoint(client_request.route)
    if local_endpoint is not None:
        return local_endpoint.name
    if client_request.method != "POST":
        return ""
    return client_request.route.api
