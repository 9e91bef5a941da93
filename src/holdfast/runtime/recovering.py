"""Recovery, driven: what ``policy/recovery.py`` says is done, until there is a request to send or an error to raise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import sleep
from msgspec.structs import replace

from holdfast.errors import ContextOverflow, UpstreamError
from holdfast.policy.guard import in_force
from holdfast.policy.recovery import OVERFLOWED, Press, Recovery, Refused, Retry, Stop, Useless, after, counted
from holdfast.policy.smallest import floor
from holdfast.policy.stopping import explain
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.journal import Prepared
from holdfast.runtime.requests import Request
from holdfast.telemetry import events
from holdfast.view.tokens import estimate

if TYPE_CHECKING:
    from holdfast.runtime.session import Session


async def recovered(
    session: Session, request: Request, prepared: Prepared, state: Recovery, attempt: Attempt
) -> tuple[Request, Prepared, Recovery]:
    """Return what is sent next after an attempt that failed: the same again, or less. Raises where nothing is left."""
    refused = attempt.refused
    await session.refused(attempt)
    event: Refused | Useless = refused
    while True:
        state, action = after(counted(state, session.journal.branch), event)
        if isinstance(action, Stop):
            raise stopped(session, prepared, action, attempt)
        if isinstance(action, Retry):
            attempts = session.settings.retries_most - state.retries
            session.tell(events.Retrying(session.key, refused.kind, action.seconds, attempts))
            await sleep(action.seconds)
            return request, prepared, state
        session.tell(events.Pressed(session.key, action.rung, session.journal.branch.compactions))
        smaller = await pressed(session, request, prepared, action)
        if isinstance(smaller, str):
            event = Useless(smaller)
        else:
            return *smaller, state


async def pressed(
    session: Session, request: Request, prepared: Prepared, press: Press
) -> tuple[Request, Prepared] | str:
    """Return the request made smaller as ``press`` says, or why it does not get smaller."""
    if request.way.as_it_is:
        return "not_smaller"
    world = await session.world(request)
    if press.rung == "output":
        lower = _with_less_output(session, request, prepared)
        return lower if isinstance(lower, str) else (lower, await session.prepared(lower, world))
    harder = replace(world, force=True) if press.rung == "compact" else replace(world, rung=press.rung, writes=False)
    return await session.smaller(request, harder, press.rung)


def _with_less_output(session: Session, request: Request, prepared: Prepared) -> Request | str:
    """Return ``request`` with a lower limit for the answer, or why that would not help."""
    branch, settings = session.journal.branch, session.settings
    target = in_force(request.target, branch, settings)
    left, least = target.limits.window - estimate(branch, target), settings.reserve_min
    asked = prepared.plan.options.max_tokens or request.target.limits.asked_output
    if asked is None or asked <= least:
        return "not_smaller"
    if left < least:
        return "too_large_without_it"
    lower = max(least, min(asked // 2, left))
    limits = replace(request.target.limits, asked_output=lower)
    return replace(request, target=replace(request.target, limits=limits), output=lower)


def stopped(session: Session, prepared: Prepared, stop: Stop, attempt: Attempt) -> UpstreamError:
    """Return the error that ends a run: what was measured, and what can be done."""
    verdict, target = attempt.verdict, prepared.target
    if stop.kind != OVERFLOWED:
        return UpstreamError(explain(stop, attempt.refused, said=attempt.why), verdict.kind, verdict.retry_after)
    least = floor(session.journal.branch, target, session.settings)
    text = explain(stop, attempt.refused, window=target.limits.window, floor=least, said=attempt.why)
    return ContextOverflow(text, verdict.kind)
