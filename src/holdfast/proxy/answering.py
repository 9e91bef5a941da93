"""One managed request: the engine's path on the wire, and what its client gets whatever happens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import ContextOverflow, HoldfastError, UpstreamError, WindowTooSmall
from holdfast.policy.guard import in_force
from holdfast.proxy.headers import State, ours
from holdfast.proxy.outgoing import EVENTS, Outgoing
from holdfast.proxy.relay import Head, Onward, Piece, head
from holdfast.proxy.routes import Route
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.running import Run
from holdfast.runtime.session import Session
from holdfast.runtime.summarise import Writer
from holdfast.view.tokens import estimate
from holdfast.wire.lens import Lens
from holdfast.wire.native_errors import render, stream_event
from holdfast.wire.overflow import KINDS, Kind, Verdict

BAD_GATEWAY = 502
OF_BYTES = frozenset({"request_bytes", "oversized_part"})
"""Overflows that no smaller conversation is the cure for: the client is told of them as they came."""


class Asked(Struct, frozen=True):
    """A request as it came in: what it is, its body opened, and where it and its answer go."""

    route: Route
    lens: Lens
    onward: Onward
    outgoing: Outgoing
    observe: bool = False
    """Whether it goes out as it came, and is only looked at and written down."""
    writers: tuple[Writer, ...] = ()
    """Models that write a summary, where one is due."""

    @property
    def streams(self) -> bool:
        """Whether the answer is to come as events."""
        if self.route.api == "gemini":  # it says so in the address alone
            return self.route.stream
        return bytes(self.lens.fields.get("stream", b"")) == b"true"

    @property
    def state(self) -> State:
        """What is done with it."""
        return "observed" if self.observe else "managed"


class Unfit(Exception):
    """Nothing that fits can be made of a request; ``attempt`` is what was refused before, if anything went out."""

    def __init__(self, why: WindowTooSmall, attempt: Attempt | None) -> None:
        super().__init__(str(why))
        self.why, self.attempt = why, attempt

    @property
    def state(self) -> State:
        """What was done with the request."""
        return "refused" if self.attempt is None else "managed"


async def answered(session: Session, asked: Asked) -> AsyncGenerator[Piece]:
    """Yield the answer to ``asked``, by which ``session`` goes on: the provider's own bytes.

    An overflow that nothing helps against is said in the client's own API, with true numbers; any other refusal comes
    as it came. Raises what is Holdfast's own fault before anything was yielded, and ``Unfit``; and what breaks off
    behind that.
    """
    run = session.run(
        asked.lens,
        stream=asked.route.stream or None,
        model=asked.route.model,
        upstream=asked.onward,
        as_it_is=asked.observe,
        writers=asked.writers,
    )
    asked.outgoing.is_ours = lambda: run.attempts != 1  # the first time it is the provider alone who is waited for
    asked.outgoing.outcome = lambda: asked.state if run.attempt is not None and run.attempt.is_whole else "failed"
    begun = False
    try:
        async with run:
            async for events in run.together():
                if not begun:
                    yield _head(run, session, asked)
                    begun = True
                yield b"".join([event.raw for event in events])
    except (UpstreamError, WindowTooSmall) as error:
        if begun or (asked.observe and run.attempt is None):  # nothing went out: what is looked at alone has to
            raise
        if isinstance(error, WindowTooSmall) and not asked.observe:
            raise Unfit(error, run.attempt) from error
        for piece in _refused(error, run.attempt, session, asked):
            yield _marked(piece, session, asked) if isinstance(piece, Head) else piece


def _head(run: Run, session: Session, asked: Asked) -> Head:
    """Return the head of what ``run`` answers: the provider's, with ours."""
    reply = run.attempt.reply if run.attempt is not None else None
    assert reply is not None
    return _marked(head(reply.status, reply.raw), session, asked)


def _marked(told: Head, session: Session, asked: Asked) -> Head:
    """Return ``told`` with the headers that say which session this is, and which of its requests."""
    return marked(told, asked.state, session.key, session.journal.leaf or "")


def marked(told: Head, state: State, session: str = "", request: str = "") -> Head:
    """Return ``told`` with headers of ours that it has not yet."""
    known = {name for name, _ in told.headers}
    return replace(
        told, headers=[*told.headers, *(one for one in ours(state, session, request) if one[0] not in known)]
    )


# -- refusals ----------------------------------------------------------------------------------------------------------


async def unfit(error: Unfit, session: Session, asked: Asked) -> list[Piece]:
    """Return the overflow of a request of which nothing that fits could be made, once that is in the log."""
    await session.unfit(error.why)
    pieces = _refused(error.why, error.attempt, session, asked)
    known = (session.key, session.journal.leaf or "")
    return [marked(piece, error.state, *known) if isinstance(piece, Head) else piece for piece in pieces]


def _refused(error: HoldfastError, attempt: Attempt | None, session: Session, asked: Asked) -> list[Piece]:
    """Return an overflow in the client's own words, else the refusal as it came, else the error in such words."""
    reply = attempt.reply if attempt is not None else None
    in_bytes = attempt is not None and attempt.verdict.kind in OF_BYTES
    if isinstance(error, ContextOverflow | WindowTooSmall) and not (asked.observe or in_bytes):
        return _told(asked, _overflow(attempt, session, asked), str(error))
    if attempt is None or attempt.verdict.kind == "network":
        asked.outgoing.is_unreached = True
        return _told(asked, Verdict("network"), str(error) if attempt is None else attempt.why, status=BAD_GATEWAY)
    if reply is not None and attempt.held and not asked.outgoing.is_alive:
        return [head(reply.status, reply.raw), attempt.held]
    return _told(asked, attempt.verdict, str(error))


def _overflow(attempt: Attempt | None, session: Session, asked: Asked) -> Verdict:
    """Return the overflow with its true numbers: the provider's as far as it gave any, then ours."""
    branch, verdict = session.journal.branch, Verdict("context_window")
    target = session.means.target_of(asked.lens.api, asked.lens.model or asked.route.model)
    planned = estimate(branch, target)
    if attempt is not None:
        target, verdict, planned = attempt.target, attempt.verdict, attempt.plan.after
    limit = verdict.limit or in_force(target, branch, session.settings).limits.window
    return Verdict("context_window", limit=limit, requested=max(verdict.requested or planned, limit + 1))


def _told(asked: Asked, verdict: Verdict, message: str, *, status: int = 0) -> list[Piece]:
    """Return ``verdict`` as a client of this API understands it.

    Codex takes an overflow from the events of a stream alone, and so does everybody whose stream has begun.
    """
    api = asked.route.api
    if asked.outgoing.is_alive or (api == "openai-responses" and asked.streams and verdict.is_overflow):
        return [Head(200, [EVENTS]), stream_event(api, verdict, message=message)]
    return errs(api, verdict.kind, message, verdict, status=status)


def errs(api: str, kind: str, message: str, verdict: Verdict | None = None, *, status: int = 0) -> list[Piece]:
    """Return an error as ``api`` says it, in OpenAI's way where none is known; ``status`` over its own."""
    known = verdict or Verdict(cast("Kind", kind) if kind in KINDS else "server")
    native = render(api or "openai-chat", known, message=message, status=status)
    headers = [(name.encode(), value.encode()) for name, value in native.headers.items()]
    return [Head(native.status, headers), native.body]
