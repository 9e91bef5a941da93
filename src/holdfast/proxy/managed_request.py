"""One managed request: run it through the engine, and make sure that its client gets an answer whatever happens.

Errors are answered in the words of the client's own API with true numbers, because clients act on both: they recognise
an overflow by its wording, and size their own compaction by the limit and the size it names.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from holdfast.engine.log.conversation_diff import add_system_messages_to_setup
from holdfast.engine.request_template import build_template_from_body
from holdfast.engine.run.attempt import Attempt
from holdfast.engine.run.record import BYTE_OVERFLOWS
from holdfast.engine.run.recover import can_recover
from holdfast.engine.run.run import Run
from holdfast.engine.session import Session
from holdfast.errors import ContextOverflow, HoldfastError, StoreError, UpstreamError, WindowTooSmall
from holdfast.planning.budget import (
    LEARNED_ORIGIN,
    MIN_REPORTED_BUDGET,
    REFUSED_SIZE_SHARE,
    REFUSED_WINDOW_SHARE,
    compute_budget,
    compute_effective_target,
)
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.render import render_error_event
from holdfast.providers.errors.report import ErrorReport, Verdict
from holdfast.providers.registry import API_SPECS
from holdfast.proxy.exchange import ConversationRequest
from holdfast.proxy.http.client_response import EVENT_STREAM_HEADER
from holdfast.proxy.http.headers import RequestState, has_readable_encoding, headers_to_dict
from holdfast.proxy.http.relay import ResponseHead, ResponsePiece, make_response_head
from holdfast.proxy.local_responses import BAD_GATEWAY, add_holdfast_headers, make_error_reply
from holdfast.proxy.metrics.health import RequestOutcome
from holdfast.state.calibration.token_estimate import estimate_request_tokens
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import Entry, RequestSetup
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.target import Target

SAFE_SHARE = 0.5
"""Share of the window up to which a request surely fits by our estimate alone.

Recorded sessions had up to 1.6 real tokens for an estimated one, so half of the window is on the safe side. A request
above it is at worst recorded needlessly.
"""
FIRST_ERROR_STATUS = 400
TRUSTED_WINDOW_SOURCES = frozenset({LEARNED_ORIGIN, "asked for", "cap"})
"""Sources of a window that its provider or its user told us. From any other source it is only what we believe."""


class RequestTooLarge(Exception):
    """A request cannot be made to fit. ``attempt`` is the one that was refused before, if any went out."""

    def __init__(
        self,
        reason: WindowTooSmall,
        attempt: Attempt | None,
        request: ConversationRequest,
        *,
        may_fit: bool,
    ) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.attempt = attempt
        self.can_pass_on = may_fit and attempt is None
        """Whether to let the provider decide, which was not asked yet and may have a larger window than we believe."""
        self.state: RequestState = "refused"
        """State of the request if it is not passed on."""
        if attempt is not None:
            self.state = request.state


async def answer_conversation_request(session: Session, request: ConversationRequest) -> AsyncGenerator[ResponsePiece]:
    """Continue ``session`` with ``request`` and yield the answer, in the provider's own bytes.

    An overflow that recovery cannot help is answered in the client's API with true numbers. Any other refusal is passed
    on as it came, and so is an answer that its provider ends early. Before anything was yielded it raises
    ``RequestTooLarge``, or an error of Holdfast itself; afterwards it raises the error that breaks the answer off.
    """
    run = session.run(
        request.parsed_body,
        stream=request.route.stream or None,
        model=request.route.model,
        upstream=request.relay,
        as_it_is=request.observe_only,
        writers=request.writers,
    )
    request.client_response.is_waiting_on_proxy = lambda: _is_waiting_on_proxy(run)
    request.client_response.get_outcome_if_left = lambda: _get_outcome_if_left(run, request)
    has_started = False
    try:
        async with run:
            async for events in run.iter_batches():
                if not has_started:
                    yield _make_answer_head(run, session, request)
                    has_started = True
                yield b"".join([event.raw for event in events])
    except (UpstreamError, WindowTooSmall) as error:
        if has_started:
            # The provider ended its answer here, so the client's answer ends here too.
            if run.attempt is not None and run.attempt.has_ended:
                return
            raise
        for piece in _make_failure_reply(error, run.attempt, session, request):
            yield piece
    except StoreError:
        # The provider has answered, and only storing that failed: give out what there is before the error is handled.
        for piece in _make_unrecorded_reply(run.attempt, session, request, has_started=has_started):
            yield piece
        raise


def _is_waiting_on_proxy(run: Run) -> bool:
    """Return whether the client waits for our own work, so that keep-alives are ours to send.

    That is not so before the first attempt got the provider's first word. After it, events that come before the model's
    own words are held back, so the client hears nothing unless we say that somebody is there.
    """
    if run.attempts != 1:
        return True
    if run.attempt is None or not run.attempt.is_streaming:
        return False
    reply = run.attempt.reply
    return reply is not None and has_readable_encoding(reply.raw_headers)


def _get_outcome_if_left(run: Run, request: ConversationRequest) -> RequestOutcome:
    """Return the outcome of ``request`` if its client leaves now: ``failed`` unless it has the whole answer."""
    is_whole = request.client_response.is_answered and run.attempt is not None and run.attempt.is_complete
    if not is_whole:
        return "failed"
    return request.state


def _make_answer_head(run: Run, session: Session, request: ConversationRequest) -> ResponsePiece:
    """Return the provider's head of the answer, with Holdfast's headers."""
    assert run.attempt is not None
    reply = run.attempt.reply
    assert reply is not None
    head = make_response_head(reply.status, reply.raw_headers)
    return _add_session_headers(head, request.state, session, request)


def _add_session_headers(
    piece: ResponsePiece,
    state: RequestState,
    session: Session,
    request: ConversationRequest,
) -> ResponsePiece:
    """Return ``piece``, if it is a head with headers that name the session and the stored request, if there is one."""
    if request.is_ephemeral:
        return add_holdfast_headers(piece, state)
    return add_holdfast_headers(piece, state, session.key, session.journal.leaf or "")


# -- refusals ----------------------------------------------------------------------------------------------------------


async def answer_too_large(
    error: RequestTooLarge,
    session: Session,
    request: ConversationRequest,
) -> list[ResponsePiece]:
    """Record that a request could not be made to fit, and return the overflow error for its client."""
    await session.record_window_too_small(error.reason)
    pieces = _make_refusal_reply(error.reason, error.attempt, session, request)
    return [_add_session_headers(piece, error.state, session, request) for piece in pieces]


async def translate_overflow(
    pieces: AsyncGenerator[ResponsePiece],
    request: ConversationRequest,
    target: Target,
) -> AsyncGenerator[ResponsePiece]:
    """Yield ``pieces``, the answer to a forwarded ``request``; an overflow is rendered in the client's own API."""
    async with aclosing(pieces):
        async for piece in pieces:
            if not isinstance(piece, ResponseHead) or piece.status < FIRST_ERROR_STATUS:
                yield piece
                continue
            error_body = b"".join([chunk async for chunk in pieces if isinstance(chunk, bytes)])
            estimated_tokens = _estimate_request_tokens(request)
            report = ErrorReport(
                "",
                piece.status,
                body=error_body,
                headers=headers_to_dict(piece.headers),
                estimate=estimated_tokens,
            )
            # Overflows that are about bytes (images) would be misread as a limit of tokens, so they are passed on.
            verdict = classify_error(report)
            if not verdict.is_overflow or verdict.kind in BYTE_OVERFLOWS:
                yield piece
                yield error_body
                continue
            requested_tokens = verdict.requested or estimated_tokens
            limit = verdict.limit or min(target.limits.window, int(REFUSED_WINDOW_SHARE * requested_tokens))
            overflow = _make_over_limit_verdict(limit, requested_tokens)
            for error_piece in _render_verdict(request, overflow, report.message_line):
                yield error_piece


def _make_failure_reply(
    error: UpstreamError | WindowTooSmall,
    attempt: Attempt | None,
    session: Session,
    request: ConversationRequest,
) -> list[ResponsePiece]:
    """Return the error for a client after its request failed for good.

    Raise ``RequestTooLarge`` if it does not fit, and the error itself if an observed request never went out: the caller
    then sends it in another way.
    """
    if isinstance(error, WindowTooSmall) and (attempt is None or not request.observe_only):
        may_fit = request.observe_only or _can_fit(session, request)
        raise RequestTooLarge(error, attempt, request, may_fit=may_fit) from error
    # Observing must never be the reason why a request is not sent.
    if request.observe_only and attempt is None:
        raise error
    request.client_response.is_unreached = _is_provider_unreached(attempt)
    pieces = _make_refusal_reply(error, attempt, session, request)
    return [_add_session_headers(piece, request.state, session, request) for piece in pieces]


def _make_refusal_reply(
    error: HoldfastError,
    attempt: Attempt | None,
    session: Session,
    request: ConversationRequest,
) -> list[ResponsePiece]:
    """Return an overflow in the client's own API, else a gateway error if nobody answered, else the refusal itself."""
    is_byte_overflow = attempt is not None and attempt.verdict.kind in BYTE_OVERFLOWS
    is_token_overflow = isinstance(error, ContextOverflow | WindowTooSmall) and not is_byte_overflow
    if is_token_overflow and not request.observe_only:
        return _render_verdict(request, _make_overflow_verdict(attempt, session, request), str(error))
    # A gateway error says that the fault is not in the request.
    if attempt is None or _is_provider_unreached(attempt):
        reason = str(error)
        if attempt is not None:
            reason = attempt.failure_text
        return _render_verdict(request, Verdict("network"), reason, status=BAD_GATEWAY)
    reply = attempt.reply
    if reply is not None and attempt.has_ended and not request.client_response.has_begun_stream:
        return [make_response_head(reply.status, reply.raw_headers), attempt.held_bytes]
    return _render_verdict(request, attempt.verdict, str(error))


def _make_unrecorded_reply(
    attempt: Attempt | None,
    session: Session,
    request: ConversationRequest,
    *,
    has_started: bool,
) -> list[ResponsePiece]:
    """Return the rest of a provider's refusal that could not be stored; empty if the request is sent once more.

    A refusal that ended an answer which ``has_started`` was given out already.
    """
    if attempt is None or attempt.is_answered:
        return []
    if has_started and not attempt.has_ended:
        return []
    will_recover = can_recover(attempt.verdict) and not (has_started or request.observe_only)
    if will_recover:
        return []
    # From here on the client has its answer, though the log does not.
    request.client_response.get_outcome_if_left = lambda: "unrecorded"
    if has_started:
        return []
    request.client_response.is_unreached = _is_provider_unreached(attempt)
    pieces = _make_refusal_reply(
        UpstreamError(attempt.failure_text, attempt.verdict.kind),
        attempt,
        session,
        request,
    )
    return [add_holdfast_headers(piece, "unrecorded") for piece in pieces]


def _is_provider_unreached(attempt: Attempt | None) -> bool:
    """Return whether no provider answered, or its answer broke off."""
    return attempt is None or (attempt.verdict.kind == "network" and not attempt.has_ended)


def _render_verdict(
    request: ConversationRequest,
    verdict: Verdict,
    message: str,
    *,
    status: int = 0,
) -> list[ResponsePiece]:
    """Return ``verdict`` as an error of the client's API: an error response, or an error event in a stream.

    It is an event if the client already got status 200 and the beginning of a stream. It is also one for an overflow in
    an API whose clients recognise that only as an event (Codex).
    """
    api = request.api
    wants_overflow_event = API_SPECS[api].errors.sends_overflow_as_event and request.wants_stream
    is_event = request.client_response.has_begun_stream or (wants_overflow_event and verdict.is_overflow)
    if is_event:
        # If the stream has begun, its head was sent with the first keep-alive, and ``send_piece`` drops this one.
        return [ResponseHead(200, [EVENT_STREAM_HEADER]), render_error_event(api, verdict, message=message)]
    return make_error_reply(api, verdict, message, status=status)


# -- sizes -------------------------------------------------------------------------------------------------------------


def is_far_below_window(request: ConversationRequest, target: Target) -> bool:
    """Return whether a request surely fits as it is into the window of ``target``."""
    return _estimate_request_tokens(request) < SAFE_SHARE * target.limits.window


def _estimate_request_tokens(request: ConversationRequest) -> int:
    """Return the uncalibrated estimate of a request as it came."""
    message_tokens = sum(sized_message.tokens for sized_message in request.parsed_body.messages)
    return message_tokens + request.parsed_body.setup.tokens


def _can_fit(session: Session, request: ConversationRequest) -> bool:
    """Return whether a request may fit: it is smaller than the window, or nobody told us how large the window is."""
    state, target = _get_effective_target(session, request)
    if target.limits.window_source not in TRUSTED_WINDOW_SOURCES:
        return True
    return estimate_request_tokens(state, target) <= target.limits.window


def has_message_budget(session: Session, request: ConversationRequest) -> bool:
    """Return whether the window has room for a conversation apart from the setup that this request brings along."""
    _, target = _get_effective_target(session, request)
    budget = compute_budget(replace(target, setup=RequestSetup()), session.settings)
    return budget.message_tokens >= MIN_REPORTED_BUDGET


def _get_effective_target(session: Session, request: ConversationRequest) -> tuple[ConversationState, Target]:
    """Return state and target as for planning ``request``, with its setup, which may not be in the log."""
    state = session.journal.state
    parsed_request = request.parsed_body
    target = request.resolve_target(session.resources)
    target = build_template_from_body(target, parsed_request).target
    pinned_messages = state.history.sized_messages.slice(0, state.view.pinned_count)
    setup = add_system_messages_to_setup(target.setup, pinned_messages, parsed_request.messages)
    state = apply_entry(state, Entry("", None, setup))
    return state, compute_effective_target(replace(target, setup=setup), state, session.settings)


def _make_overflow_verdict(attempt: Attempt | None, session: Session, request: ConversationRequest) -> Verdict:
    """Return an overflow with true numbers: those of the provider as far as it gave any, else ours.

    Clients size their own compaction by them. If the provider named no limit, the one reported is the window as it is
    planned with from now on, and clearly below the refused size: a guess that was raised to leave room must not be
    reported as a size that fits.
    """
    if attempt is None:
        state, target = _get_effective_target(session, request)
        return _make_over_limit_verdict(target.limits.window, estimate_request_tokens(state, target))
    requested_tokens = attempt.verdict.requested or attempt.plan.after
    window = compute_effective_target(attempt.target, session.journal.state, session.settings).limits.window
    limit = attempt.verdict.limit or min(window, int(REFUSED_WINDOW_SHARE * requested_tokens))
    return _make_over_limit_verdict(limit, requested_tokens)


def _make_over_limit_verdict(limit: int, requested_tokens: int) -> Verdict:
    """Return the verdict that ``requested_tokens`` exceed ``limit``; a size that does not is raised, as too low."""
    if requested_tokens <= limit:
        requested_tokens = int(limit / REFUSED_SIZE_SHARE) + 1
    return Verdict("context_window", limit=limit, requested=requested_tokens)
