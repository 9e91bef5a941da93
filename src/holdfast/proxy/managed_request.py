"""One managed request: the engine's path on the wire, and what its client gets whatever happens."""

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
"""[H] Share of the window that what is estimated may have and surely fit."""
FIRST_ERROR_STATUS = 400
"""The first status that is an error."""
TRUSTED_WINDOW_SOURCES = frozenset({LEARNED_ORIGIN, "asked for", "cap"})
"""Origins of a window that its provider or its user told; any other is what we know of a model, or assume."""


class RequestTooLarge(Exception):
    """Nothing that fits can be made of a request; ``attempt`` is what was refused before, if anything went out."""

    def __init__(
        self, why: WindowTooSmall, attempt: Attempt | None, turn: ConversationRequest, *, may_fit: bool
    ) -> None:
        super().__init__(str(why))
        self.reason, self.attempt = why, attempt
        self.can_pass_on = may_fit and attempt is None
        """Whether that is for its provider to say, which was not asked yet."""
        self.state: RequestState = "refused" if attempt is None else turn.state
        """What was done with the request, where it does not go on."""


async def answer_conversation_request(session: Session, request: ConversationRequest) -> AsyncGenerator[ResponsePiece]:
    """Yield the answer to ``request``, by which ``session`` goes on: the provider's own bytes.

    An overflow that nothing helps against is said in the client's own API, with true numbers; any other refusal comes
    as it came, and so does an answer that its provider ends too early. Raises what is Holdfast's own fault before
    anything was yielded, and ``RequestTooLarge``; and what breaks off behind that.
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
        if has_started and run.attempt is not None and run.attempt.has_ended:
            return  # its provider ended the answer there
        if has_started:
            raise
        for piece in _make_failure_reply(error, run.attempt, session, request):
            yield piece
    except StoreError:
        for piece in _make_unrecorded_reply(run.attempt, session, request, has_started=has_started):
            yield piece
        raise


def _is_waiting_on_proxy(run: Run) -> bool:
    """Whether a client hears of us while it waits: not before the provider's first word to the first request.

    What that says before its model does is held, so it is for us to say that somebody is there.
    """
    if run.attempts != 1:
        return True
    reply = run.attempt.reply if run.attempt is not None and run.attempt.is_streaming else None
    return reply is not None and has_readable_encoding(reply.raw_headers)


def _get_outcome_if_left(run: Run, request: ConversationRequest) -> RequestOutcome:
    """Return what becomes of ``request`` if its client leaves now: it is answered where the answer came to its end."""
    is_whole = request.client_response.is_answered and run.attempt is not None and run.attempt.is_complete
    return request.state if is_whole else "failed"


def _make_answer_head(run: Run, session: Session, request: ConversationRequest) -> ResponsePiece:
    """Return the head of what ``run`` answers: the provider's, with ours."""
    reply = run.attempt.reply if run.attempt is not None else None
    assert reply is not None
    return _add_session_headers(make_response_head(reply.status, reply.raw_headers), request.state, session, request)


def _add_session_headers(
    piece: ResponsePiece, state: RequestState, session: Session, request: ConversationRequest
) -> ResponsePiece:
    """Return ``piece``, a head with what says which session this is, and which of its requests, where that is kept."""
    if request.is_ephemeral:
        return add_holdfast_headers(piece, state)
    return add_holdfast_headers(piece, state, session.key, session.journal.leaf or "")


# -- refusals ----------------------------------------------------------------------------------------------------------


async def answer_too_large(
    error: RequestTooLarge, session: Session, request: ConversationRequest
) -> list[ResponsePiece]:
    """Return the overflow of a request of which nothing that fits could be made, once that is in the log."""
    await session.record_window_too_small(error.reason)
    pieces = _make_refusal_reply(error.reason, error.attempt, session, request)
    return [_add_session_headers(piece, error.state, session, request) for piece in pieces]


async def translate_overflow(
    pieces: AsyncGenerator[ResponsePiece], request: ConversationRequest, target: Target
) -> AsyncGenerator[ResponsePiece]:
    """Yield ``pieces``, what a provider answers to ``request`` as it is; an overflow is said in the client's own
    API.
    """
    async with aclosing(pieces):
        async for piece in pieces:
            if not isinstance(piece, ResponseHead) or piece.status < FIRST_ERROR_STATUS:
                yield piece
                continue
            error_body = b"".join([chunk async for chunk in pieces if isinstance(chunk, bytes)])
            estimated_tokens = _estimate_request_tokens(request)
            report = ErrorReport(
                "", piece.status, body=error_body, headers=headers_to_dict(piece.headers), estimate=estimated_tokens
            )
            verdict = classify_error(report)
            if verdict.is_overflow and verdict.kind not in BYTE_OVERFLOWS:
                requested_tokens = verdict.requested or estimated_tokens
                limit = verdict.limit or min(target.limits.window, int(REFUSED_WINDOW_SHARE * requested_tokens))
                for error_piece in _render_verdict(
                    request, _make_over_limit_verdict(limit, requested_tokens), report.message_line
                ):
                    yield error_piece
            else:
                yield piece
                yield error_body


def _make_failure_reply(
    error: UpstreamError | WindowTooSmall, attempt: Attempt | None, session: Session, request: ConversationRequest
) -> list[ResponsePiece]:
    """Return what a client is told of a turn that nothing helped; raise ``RequestTooLarge``, or what is ours, to be
    helped.
    """
    if isinstance(error, WindowTooSmall) and (attempt is None or not request.observe_only):
        raise RequestTooLarge(
            error, attempt, request, may_fit=request.observe_only or _can_fit(session, request)
        ) from error
    if request.observe_only and attempt is None:  # nothing went out: it has to
        raise error
    request.client_response.is_unreached = _is_provider_unreached(attempt)
    return [
        _add_session_headers(piece, request.state, session, request)
        for piece in _make_refusal_reply(error, attempt, session, request)
    ]


def _make_refusal_reply(
    error: HoldfastError, attempt: Attempt | None, session: Session, request: ConversationRequest
) -> list[ResponsePiece]:
    """Return an overflow in the client's own words, else that nobody answers, else the refusal as it came."""
    in_bytes = attempt is not None and attempt.verdict.kind in BYTE_OVERFLOWS
    if isinstance(error, ContextOverflow | WindowTooSmall) and not (request.observe_only or in_bytes):
        return _render_verdict(request, _make_overflow_verdict(attempt, session, request), str(error))
    if attempt is None or _is_provider_unreached(attempt):
        why = str(error) if attempt is None else attempt.failure_text
        return _render_verdict(request, Verdict("network"), why, status=BAD_GATEWAY)
    if attempt.reply is not None and attempt.has_ended and not request.client_response.has_keep_alive:
        return [make_response_head(attempt.reply.status, attempt.reply.raw_headers), attempt.held_bytes]
    return _render_verdict(request, attempt.verdict, str(error))


def _make_unrecorded_reply(
    attempt: Attempt | None, session: Session, request: ConversationRequest, *, has_started: bool
) -> list[ResponsePiece]:
    """Return what is left to give out of a refusal that could not be written down, where nothing else is to be asked.

    Of one that ended an answer which had ``has_started`` all was given out.
    """
    if attempt is None or attempt.is_answered or (has_started and not attempt.has_ended):
        return []
    if not (has_started or request.observe_only) and can_recover(attempt.verdict):
        return []
    request.client_response.get_outcome_if_left = lambda: "unrecorded"
    if has_started:
        return []
    request.client_response.is_unreached = _is_provider_unreached(attempt)
    pieces = _make_refusal_reply(UpstreamError(attempt.failure_text, attempt.verdict.kind), attempt, session, request)
    return [add_holdfast_headers(piece, "unrecorded") for piece in pieces]


def _is_provider_unreached(attempt: Attempt | None) -> bool:
    """Whether no provider answered, or none to the end."""
    return attempt is None or (attempt.verdict.kind == "network" and not attempt.has_ended)


def _render_verdict(
    request: ConversationRequest, verdict: Verdict, message: str, *, status: int = 0
) -> list[ResponsePiece]:
    """Return ``verdict`` as a client of this API understands it.

    Codex takes an overflow from the events of a stream alone, and so does everybody whose stream has begun.
    """
    api = request.api
    if request.client_response.has_keep_alive or (
        API_SPECS[api].errors.sends_overflow_as_event and request.wants_stream and verdict.is_overflow
    ):
        return [ResponseHead(200, [EVENT_STREAM_HEADER]), render_error_event(api, verdict, message=message)]
    return make_error_reply(api, verdict, message, status=status)


# -- sizes -------------------------------------------------------------------------------------------------------------


def is_far_below_window(request: ConversationRequest, target: Target) -> bool:
    """Whether a request surely fits as it is: it is far smaller than the window of ``target``."""
    return _estimate_request_tokens(request) < SAFE_SHARE * target.limits.window


def _estimate_request_tokens(request: ConversationRequest) -> int:
    """Return the tokens of a request as it came, estimated."""
    return (
        sum(sized_message.tokens for sized_message in request.parsed_body.messages) + request.parsed_body.setup.tokens
    )


def _can_fit(session: Session, request: ConversationRequest) -> bool:
    """Whether nobody told that a request is too large: it is smaller than the window, or that is only what we know."""
    state, target = _get_effective_target(session, request)
    is_told = target.limits.window_source in TRUSTED_WINDOW_SOURCES
    return not is_told or estimate_request_tokens(state, target) <= target.limits.window


def has_message_budget(session: Session, request: ConversationRequest) -> bool:
    """Whether there is room in the window for a conversation, were it not for what this request brings along."""
    _, target = _get_effective_target(session, request)
    return compute_budget(replace(target, setup=RequestSetup()), session.settings).message_tokens >= MIN_REPORTED_BUDGET


def _get_effective_target(session: Session, request: ConversationRequest) -> tuple[ConversationState, Target]:
    """Return the branch with the frame of ``request``, which no log may have, and whom it asks, by what was learned."""
    state, parsed_request = session.journal.state, request.parsed_body
    target = build_template_from_body(
        session.resources.resolve_target(parsed_request.api, request.model), parsed_request
    ).target
    setup = add_system_messages_to_setup(
        target.setup, state.history.sized_messages.slice(0, state.view.pinned_count), parsed_request.messages
    )
    state = apply_entry(state, Entry("", None, setup))
    return state, compute_effective_target(replace(target, setup=setup), state, session.settings)


def _make_overflow_verdict(attempt: Attempt | None, session: Session, request: ConversationRequest) -> Verdict:
    """Return the overflow with its true numbers: the provider's as far as it gave any, then ours.

    Clients size their own cut by the two. What was refused without a limit is over what the window counts as from now
    on, and never by a word alone: a guess that was made larger, so that there is room in it, is none of what fits.
    """
    if attempt is None:
        state, target = _get_effective_target(session, request)
        return _make_over_limit_verdict(target.limits.window, estimate_request_tokens(state, target))
    verdict, requested_tokens = attempt.verdict, attempt.verdict.requested or attempt.plan.after
    window = compute_effective_target(attempt.target, session.journal.state, session.settings).limits.window
    return _make_over_limit_verdict(
        verdict.limit or min(window, int(REFUSED_WINDOW_SHARE * requested_tokens)), requested_tokens
    )


def _make_over_limit_verdict(limit: int, requested_tokens: int) -> Verdict:
    """Return that ``requested_tokens`` tokens are over ``limit``; an estimate that is not over it is too small."""
    return Verdict(
        "context_window",
        limit=limit,
        requested=requested_tokens if requested_tokens > limit else int(limit / REFUSED_SIZE_SHARE) + 1,
    )
