"""Recovery, driven: what ``recovery/machine.py`` says is done, until a request can be sent or an error is raised."""

from __future__ import annotations

from contextlib import suppress

from anyio import sleep
from msgspec.structs import replace

from holdfast import events
from holdfast.engine.compaction import compact as compacting
from holdfast.engine.log.journal import Prepared
from holdfast.engine.requests import Request
from holdfast.engine.run import drop_signatures as unsealing
from holdfast.engine.run import record as recording
from holdfast.engine.run.attempt import Attempt
from holdfast.engine.run.check_request import checked
from holdfast.engine.run.decide import next_request, smaller_request
from holdfast.engine.session_runtime import Course
from holdfast.errors import ContextOverflow, InvalidRequest, UpstreamError
from holdfast.planning.budget import in_force
from holdfast.planning.stages.smallest_request import floor
from holdfast.providers.overflow import Verdict
from holdfast.providers.request_body import open_body
from holdfast.recovery.machine import (
    ENTRY,
    OVERFLOWED,
    Press,
    Recovery,
    Refused,
    Retry,
    Stop,
    Unseal,
    Useless,
    after,
    counted,
)
from holdfast.recovery.messages import explain
from holdfast.state.calibration.token_estimate import estimate
from holdfast.state.plan import Options
from holdfast.state.target import World

_FORM = frozenset({"invalid_history", "invalid_request", "unknown"})
"""Kinds of refusals that may be about the form of a request."""
_AS_MADE = "the server refused a conversation as its client wrote it; it goes out by the rules of the API's maker"


def may_help(verdict: Verdict) -> bool:
    """Whether something else may be asked in place of a request that was refused like this."""
    return verdict.is_overflow or verdict.kind in _FORM or verdict.kind in ENTRY


async def recovered(
    course: Course, request: Request, prepared: Prepared, state: Recovery, attempt: Attempt
) -> tuple[Request, Prepared, Recovery]:
    """Return what is sent next after an attempt that failed: the same again, or less. Raises where nothing is left.

    Where nothing was said, and nothing smaller can be asked, the same is asked once more: what comes then is taken.
    """
    refused = attempt.refused
    request = replace(request, takes_silence=request.takes_silence or attempt.is_silent)
    await recording.refused(course, attempt)
    mended = await _mended(course, request, prepared, refused)
    if mended is not None:
        return *mended, state
    event: Refused | Useless = refused
    while True:
        before, (state, action) = state, after(counted(state, course.journal.branch), event)
        if isinstance(action, Stop) and attempt.is_silent:
            return request, prepared, before
        if isinstance(action, Stop):
            await course.means.in_worker(course.journal.form)
            if refused.sealed and not request.way.as_it_is:
                await unsealing.show_again(course)
            raise stopped(course, prepared, action, attempt)
        if isinstance(action, Retry):
            attempts = course.settings.retries_most - state.retries
            course.tell(events.Retrying(course.key, refused.kind, action.seconds, attempts))
            await sleep(action.seconds)
            return request, prepared, state
        if isinstance(action, Unseal):
            without = await unsealed(course, request)
            if without is not None:
                return request, without, state
            event = refused  # said again: now that nothing is sealed, it stops
        else:
            course.tell(events.Pressed(course.key, action.rung, course.journal.branch.compactions))
            smaller = await pressed(course, _in_half(request, attempt, action), prepared, action)
            if not isinstance(smaller, str):
                return *smaller, state
            event = Useless(smaller)


async def _mended(
    course: Course, request: Request, prepared: Prepared, refused: Refused
) -> tuple[Request, Prepared] | None:
    """Return what went out as its client wrote it and was refused for its form, made what the API's maker takes.

    Nothing where it has that form already. What comes next in this session goes out like that too.
    """
    written = request.target.dialect
    if refused.seen or refused.kind not in _FORM or request.way.as_it_is:
        return None
    if not written.as_written:
        return await _judged_now(course, request, prepared)
    strict = replace(request, target=replace(request.target, dialect=replace(written, as_written=False)))
    world = await course.means.in_worker(lambda: compacting.world(course, strict))
    plan = await course.means.in_worker(lambda: course.journal.plan(strict.target, world))
    if plan.repair == prepared.plan.repair:
        return None
    await course.means.in_worker(lambda: course.journal.form(mends=True, judges=course.judges))
    course.tell(events.Noticed(course.key, "form", _AS_MADE))
    return strict, await next_request(course, strict, world, plan)


async def _judged_now(course: Course, request: Request, prepared: Prepared) -> tuple[Request, Prepared] | None:
    """Return the same, to be mended as it goes out, where it went as its client wrote it and breaks a known rule.

    Nothing where it was judged before, or breaks no rule that can be kept here.
    """
    if course.judges or course.means.check != "changed":
        return None
    sent = request.sent(prepared)
    if not request.is_own(sent.body):
        return None
    with suppress(InvalidRequest):
        if checked(sent)[1]:
            await course.means.in_worker(lambda: course.journal.form(mends=course.mends, judges=True))
    return (request, prepared) if course.judges else None


async def unsealed(course: Course, request: Request) -> Prepared | None:
    """Return the request without what the provider sealed, decided and in the log; nothing where nothing is."""
    target = request.target
    return await unsealing.leave_out(course, target, lambda plan: course.commit(plan, target, World()))


def _in_half(request: Request, attempt: Attempt, press: Press) -> Request:
    """Return ``request`` for half the bytes of a body that had too many, where nobody said how many it may have."""
    verdict, dialect = attempt.verdict, request.target.dialect
    if press.rung != "media" or verdict.kind != "request_bytes" or verdict.bytes:
        return request
    least = replace(dialect, max_bytes=min(dialect.max_bytes, attempt.size // 2))
    return replace(request, target=replace(request.target, dialect=least))


async def pressed(course: Course, request: Request, prepared: Prepared, press: Press) -> tuple[Request, Prepared] | str:
    """Return the request made smaller as ``press`` says, or why it does not get smaller."""
    world = await course.means.in_worker(lambda: compacting.world(course, request))
    if press.rung == "output":
        lower = _with_less_output(course, request, prepared)
        return lower if isinstance(lower, str) else (lower, await next_request(course, lower, world))
    writes = world.writes and press.rung == "compact"
    harder = replace(world, rung=press.rung, writes=writes)
    smaller = await smaller_request(course, request, harder, press.rung)
    return smaller if isinstance(smaller, str) else (request, smaller)


def _with_less_output(course: Course, request: Request, prepared: Prepared) -> Request | str:
    """Return ``request`` with a lower limit for the answer, or why that would not help."""
    branch, settings = course.journal.branch, course.settings
    target = in_force(request.target, branch, settings)
    left, asked = target.limits.window - estimate(branch, target), _output(request, prepared, prepared.plan.options)
    if asked is None:
        return "not_smaller"
    wanted = max(settings.reserve_min, min(asked // 2, left))
    lower = _output(request, prepared, Options(max_tokens=wanted)) or wanted
    if lower >= asked:
        return "not_smaller"
    if left < lower:
        return "too_large_without_it"
    limits = replace(request.target.limits, asked_output=lower)
    return replace(request, target=replace(request.target, limits=limits), output=lower)


def _output(request: Request, prepared: Prepared, options: Options) -> int | None:
    """Return the tokens that the body asks for with ``options``: always more than its model may think in.

    What it may think in is not lowered: with it the provider's cache of all messages would be gone.
    """
    shown = replace(prepared, plan=replace(prepared.plan, options=options))
    return open_body(request.body(shown, ()), request.target.api).asked_output


def stopped(course: Course, prepared: Prepared, stop: Stop, attempt: Attempt) -> UpstreamError:
    """Return the error that ends a run: what was measured, and what can be done."""
    verdict, target = attempt.verdict, prepared.target
    if stop.kind != OVERFLOWED:
        return UpstreamError(explain(stop, attempt.refused, said=attempt.why), verdict.kind, verdict.retry_after)
    least = floor(course.journal.branch, target, course.settings)
    text = explain(stop, attempt.refused, window=target.limits.window, floor=least, said=attempt.why)
    return ContextOverflow(text, verdict.kind)
