"""One managed request: the engine's path on the wire, and what its client gets whatever happens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from holdfast.engine.log.conversation_diff import reframed
from holdfast.engine.requests import of_body
from holdfast.engine.run.attempt import Attempt
from holdfast.engine.run.record import OF_BYTES
from holdfast.engine.run.recover import may_help
from holdfast.engine.run.run import Run
from holdfast.engine.session import Session
from holdfast.errors import ContextOverflow, HoldfastError, StoreError, UpstreamError, WindowTooSmall
from holdfast.planning.budget import LEARNED, LEAST_TOLD, REFUSED, UNDER, in_force, measure_room
from holdfast.providers.overflow import ErrorReport, Verdict, classify
from holdfast.providers.overflow.native_errors import stream_event
from holdfast.proxy.exchange import Turn
from holdfast.proxy.http.headers import State, is_unpacked, named
from holdfast.proxy.http.relay import Head, Piece, head
from holdfast.proxy.http.response import EVENTS
from holdfast.proxy.metrics.health import Ended
from holdfast.proxy.replies import BAD_GATEWAY, error_reply, labelled
from holdfast.state.branch.branch import Branch, extend
from holdfast.state.calibration.token_estimate import estimate
from holdfast.state.entries import Entry, Frame
from holdfast.state.target import Target

SAFE_SHARE = 0.5
"""[H] Share of the window that what is estimated may have and surely fit."""
ERRORS_FROM = 400
"""The first status that is an error."""
TOLD = frozenset({LEARNED, "asked for", "cap"})
"""Origins of a window that its provider or its user told; any other is what we know of a model, or assume."""


class Unfit(Exception):
    """Nothing that fits can be made of a request; ``attempt`` is what was refused before, if anything went out."""

    def __init__(self, why: WindowTooSmall, attempt: Attempt | None, turn: Turn, *, may_fit: bool) -> None:
        super().__init__(str(why))
        self.why, self.attempt = why, attempt
        self.goes_on = may_fit and attempt is None
        """Whether that is for its provider to say, which was not asked yet."""
        self.state: State = "refused" if attempt is None else turn.state
        """What was done with the request, where it does not go on."""


async def answer(session: Session, turn: Turn) -> AsyncGenerator[Piece]:
    """Yield the answer to ``turn``, by which ``session`` goes on: the provider's own bytes.

    An overflow that nothing helps against is said in the client's own API, with true numbers; any other refusal comes
    as it came, and so does an answer that its provider ends too early. Raises what is Holdfast's own fault before
    anything was yielded, and ``Unfit``; and what breaks off behind that.
    """
    run = session.run(
        turn.lens,
        stream=turn.route.stream or None,
        model=turn.route.model,
        upstream=turn.onward,
        as_it_is=turn.observe,
        writers=turn.writers,
    )
    turn.outgoing.is_wait_ours = lambda: _is_wait_ours(run)
    turn.outgoing.if_left = lambda: _if_left(run, turn)
    begun = False
    try:
        async with run:
            async for events in run.together():
                if not begun:
                    yield _head(run, session, turn)
                    begun = True
                yield b"".join([event.raw for event in events])
    except (UpstreamError, WindowTooSmall) as error:
        if begun and run.attempt is not None and run.attempt.is_ended:
            return  # its provider ended the answer there
        if begun:
            raise
        for piece in _given_up(error, run.attempt, session, turn):
            yield piece
    except StoreError:
        for piece in _unwritten(run.attempt, session, turn, begun=begun):
            yield piece
        raise


def _is_wait_ours(run: Run) -> bool:
    """Whether a client hears of us while it waits: not before the provider's first word to the first request.

    What that says before its model does is held, so it is for us to say that somebody is there.
    """
    if run.attempts != 1:
        return True
    reply = run.attempt.reply if run.attempt is not None and run.attempt.is_coming else None
    return reply is not None and is_unpacked(reply.raw)


def _if_left(run: Run, turn: Turn) -> Ended:
    """Return what becomes of ``turn`` if its client leaves now: it is answered where the answer came to its end."""
    is_whole = turn.outgoing.is_answered and run.attempt is not None and run.attempt.is_whole
    return turn.state if is_whole else "failed"


def _head(run: Run, session: Session, turn: Turn) -> Piece:
    """Return the head of what ``run`` answers: the provider's, with ours."""
    reply = run.attempt.reply if run.attempt is not None else None
    assert reply is not None
    return _named(head(reply.status, reply.raw), turn.state, session, turn)


def _named(piece: Piece, state: State, session: Session, turn: Turn) -> Piece:
    """Return ``piece``, a head with what says which session this is, and which of its requests, where that is kept."""
    if turn.is_unkept:
        return labelled(piece, state)
    return labelled(piece, state, session.key, session.journal.leaf or "")


# -- refusals ----------------------------------------------------------------------------------------------------------


async def unfit(error: Unfit, session: Session, turn: Turn) -> list[Piece]:
    """Return the overflow of a request of which nothing that fits could be made, once that is in the log."""
    await session.unfit(error.why)
    pieces = _refusal(error.why, error.attempt, session, turn)
    return [_named(piece, error.state, session, turn) for piece in pieces]


async def in_words(pieces: AsyncGenerator[Piece], turn: Turn, target: Target) -> AsyncGenerator[Piece]:
    """Yield ``pieces``, what a provider answers to ``turn`` as it is; an overflow is said in the client's own API."""
    async with aclosing(pieces):
        async for piece in pieces:
            if not isinstance(piece, Head) or piece.status < ERRORS_FROM:
                yield piece
                continue
            told = b"".join([chunk async for chunk in pieces if isinstance(chunk, bytes)])
            said = _said(turn)
            report = ErrorReport("", piece.status, body=told, headers=named(piece.headers), estimate=said)
            verdict = classify(report)
            if verdict.is_overflow and verdict.kind not in OF_BYTES:
                requested = verdict.requested or said
                limit = verdict.limit or min(target.limits.window, int(REFUSED * requested))
                for one in _rendered(turn, _over(limit, requested), report.words):
                    yield one
            else:
                yield piece
                yield told


def _given_up(
    error: UpstreamError | WindowTooSmall, attempt: Attempt | None, session: Session, turn: Turn
) -> list[Piece]:
    """Return what a client is told of a turn that nothing helped; raise ``Unfit``, or what is ours, to be helped."""
    if isinstance(error, WindowTooSmall) and (attempt is None or not turn.observe):
        raise Unfit(error, attempt, turn, may_fit=turn.observe or _may_fit(session, turn)) from error
    if turn.observe and attempt is None:  # nothing went out: it has to
        raise error
    turn.outgoing.is_unreached = _is_unreached(attempt)
    return [_named(piece, turn.state, session, turn) for piece in _refusal(error, attempt, session, turn)]


def _refusal(error: HoldfastError, attempt: Attempt | None, session: Session, turn: Turn) -> list[Piece]:
    """Return an overflow in the client's own words, else that nobody answers, else the refusal as it came."""
    in_bytes = attempt is not None and attempt.verdict.kind in OF_BYTES
    if isinstance(error, ContextOverflow | WindowTooSmall) and not (turn.observe or in_bytes):
        return _rendered(turn, _overflow(attempt, session, turn), str(error))
    if attempt is None or _is_unreached(attempt):
        why = str(error) if attempt is None else attempt.why
        return _rendered(turn, Verdict("network"), why, status=BAD_GATEWAY)
    if attempt.reply is not None and attempt.is_ended and not turn.outgoing.has_signs:
        return [head(attempt.reply.status, attempt.reply.raw), attempt.held]
    return _rendered(turn, attempt.verdict, str(error))


def _unwritten(attempt: Attempt | None, session: Session, turn: Turn, *, begun: bool) -> list[Piece]:
    """Return what is left to give out of a refusal that could not be written down, where nothing else is to be asked.

    Of one that ended an answer which had ``begun`` all was given out.
    """
    if attempt is None or attempt.is_answered or (begun and not attempt.is_ended):
        return []
    if not (begun or turn.observe) and may_help(attempt.verdict):
        return []
    turn.outgoing.if_left = lambda: "unrecorded"
    if begun:
        return []
    turn.outgoing.is_unreached = _is_unreached(attempt)
    pieces = _refusal(UpstreamError(attempt.why, attempt.verdict.kind), attempt, session, turn)
    return [labelled(piece, "unrecorded") for piece in pieces]


def _is_unreached(attempt: Attempt | None) -> bool:
    """Whether no provider answered, or none to the end."""
    return attempt is None or (attempt.verdict.kind == "network" and not attempt.is_ended)


def _rendered(turn: Turn, verdict: Verdict, message: str, *, status: int = 0) -> list[Piece]:
    """Return ``verdict`` as a client of this API understands it.

    Codex takes an overflow from the events of a stream alone, and so does everybody whose stream has begun.
    """
    api = turn.api
    if turn.outgoing.has_signs or (api == "openai-responses" and turn.streams and verdict.is_overflow):
        return [Head(200, [EVENTS]), stream_event(api, verdict, message=message)]
    return error_reply(api, verdict, message, status=status)


# -- sizes -------------------------------------------------------------------------------------------------------------


def surely_fits(turn: Turn, target: Target) -> bool:
    """Whether a request surely fits as it is: it is far smaller than the window of ``target``."""
    return _said(turn) < SAFE_SHARE * target.limits.window


def _said(turn: Turn) -> int:
    """Return the tokens of a request as it came, estimated."""
    return sum(slot.size for slot in turn.lens.slots) + turn.lens.frame.tokens


def _may_fit(session: Session, turn: Turn) -> bool:
    """Whether nobody told that a request is too large: it is smaller than the window, or that is only what we know."""
    branch, target = _in_force(session, turn)
    is_told = target.limits.origin in TOLD
    return not is_told or estimate(branch, target) <= target.limits.window


def has_room(session: Session, turn: Turn) -> bool:
    """Whether there is room in the window for a conversation, were it not for what this request brings along."""
    _, target = _in_force(session, turn)
    return measure_room(replace(target, frame=Frame()), session.settings).size >= LEAST_TOLD


def _in_force(session: Session, turn: Turn) -> tuple[Branch, Target]:
    """Return the branch with the frame of ``turn``, which no log may have, and whom it asks, by what was learned."""
    branch, lens = session.journal.branch, turn.lens
    target = of_body(session.means.target_of(lens.api, turn.model), lens).target
    frame = reframed(target.frame, branch.slots.slice(0, branch.pinned), lens.slots)
    branch = extend(branch, Entry("", None, frame))
    return branch, in_force(replace(target, frame=frame), branch, session.settings)


def _overflow(attempt: Attempt | None, session: Session, turn: Turn) -> Verdict:
    """Return the overflow with its true numbers: the provider's as far as it gave any, then ours.

    Clients size their own cut by the two. What was refused without a limit is over what the window counts as from now
    on, and never by a word alone: a guess that was made larger, so that there is room in it, is none of what fits.
    """
    if attempt is None:
        branch, target = _in_force(session, turn)
        return _over(target.limits.window, estimate(branch, target))
    verdict, requested = attempt.verdict, attempt.verdict.requested or attempt.plan.after
    window = in_force(attempt.target, session.journal.branch, session.settings).limits.window
    return _over(verdict.limit or min(window, int(REFUSED * requested)), requested)


def _over(limit: int, requested: int) -> Verdict:
    """Return that ``requested`` tokens are over ``limit``; an estimate that is not over it is too small."""
    return Verdict("context_window", limit=limit, requested=requested if requested > limit else int(limit / UNDER) + 1)
