"""Compaction by the provider itself: the head of a conversation goes out as it was shown, and comes back as its items.

Nothing is written down here. What the provider makes only it can read, and only for the same model: the readable twin
is the planner's.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyio import move_on_after
from msgspec import Raw
from msgspec.structs import replace

from holdfast.engine.compaction.summary_writer import Terms
from holdfast.engine.log.journal import Prepared
from holdfast.engine.requests import Request
from holdfast.engine.upstream.replies import ask as asked
from holdfast.engine.upstream.upstream import Sent, Upstream
from holdfast.errors import CompactionFailed, HoldfastError, UpstreamError
from holdfast.messages.message import Message
from holdfast.messages.sized_message import Slot
from holdfast.planning.budget import guard, in_window, learned
from holdfast.planning.builder import Draft
from holdfast.planning.extract.summary_builder import stand_in, told
from holdfast.planning.extract.user_words import user_words
from holdfast.planning.pipeline import Policy, advance
from holdfast.planning.settings import Settings
from holdfast.planning.stages.compaction import summary_share
from holdfast.planning.summary.prompts import focused
from holdfast.providers.common.native_compaction import Made, Unmade, asking, brought, by_itself, made
from holdfast.providers.common.server_compaction import ANTHROPIC, betas, headers
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import origins, patched, project
from holdfast.state.entries import PASSING, Compaction
from holdfast.state.plan import Ask, Plan
from holdfast.state.target import Target, World


async def compacted(
    upstream: Upstream,
    sent: Sent,
    terms: Terms = Terms(),
    *,
    instructions: str = "",
    beside: Sequence[str] = (),
) -> Raw:
    """Return what the provider made of all that ``sent`` shows, as ``Compaction.native``.

    The texts ``beside`` it follow as the user's. Raises ``CompactionFailed`` with what became of it:
    ``nothing_to_compact``, ``summary_rejected``, ``provider_error``, ``cancelled``, or ``timed_out`` after
    ``summary_deadline`` seconds.
    """
    settings = terms.settings
    order = asking(sent.api, sent.body, instructions=focused(instructions, settings.summary_focus_chars))
    needed = headers(sent.headers, betas(sent.api, order.body))
    wanted = replace(sent, body=order.body, endpoint=order.endpoint, stream=False, headers=needed)
    with move_on_after(settings.summary_deadline):
        found = await _made(upstream, wanted, terms)
        return found.beside(sent.api, beside).native(sent.api, sent.model)
    late = f"the provider did not compact in {settings.summary_deadline:g} s; raise summary_deadline, or go on without"
    raise CompactionFailed(late, "timed_out")


async def _made(upstream: Upstream, sent: Sent, terms: Terms) -> Made:
    """Return the compaction; where only the provider is at fault it is asked again, ``summary_tries`` times in all."""
    attempt = 1
    while True:
        found = await _tried(upstream, sent, terms)
        if isinstance(found, Made):
            return found
        if not found.again or attempt >= terms.settings.summary_tries:
            raise CompactionFailed(found.why, found.outcome)
        await terms.pause(found.outcome, attempt, found.retry_after)
        attempt += 1


async def _tried(upstream: Upstream, sent: Sent, terms: Terms) -> Made | Unmade:
    try:
        async with terms.call():
            told = await asked(upstream, sent)
            terms.paid(sent, told)
            return made(sent.api, told)
    except UpstreamError as error:
        why = f"the provider did not compact ({error.kind}): {error}"
        return Unmade("provider_error", why, error.kind in PASSING, error.retry_after)
    except Exception as error:
        if isinstance(error, HoldfastError):
            raise
        why = f"the provider did not compact ({type(error).__name__}): {error}"
        return Unmade("provider_error", why, again=isinstance(error, OSError))


# -- the request -------------------------------------------------------------------------------------------------------


def head_request(branch: Branch, request: Request, stop: int, policy: Policy = Policy()) -> Sent:
    """Return ``request`` as it shows the slots before ``stop`` and no more, just as they were shown before."""
    plan = advance(branch, request.target, replace(policy, stages=()))
    slots = _head(plan, stop)
    last = len(slots) - 1
    markers = (last, *[place for place in plan.options.markers if place < last]) if plan.options.markers else ()
    options = replace(plan.options, markers=markers)
    return request.sent(Prepared(replace(plan, options=options), slots, "", request.target))


def _head(plan: Plan, stop: int) -> tuple[Slot, ...]:
    place = sum(index < stop for index in origins(plan.branch))
    repairs = [edit for edit in plan.repair if edit.span.stop <= place]
    return tuple(patched(project(plan.branch)[:place], repairs))


def quoted(branch: Branch, target: Target, ask: Ask, settings: Settings) -> str:
    """Return the user's words before the slot where ``ask`` stops, as an extract quotes them.

    They stand beside a compaction that keeps none of them: the request under way may be one, and rules are. Nothing
    where the provider keeps them itself.
    """
    if target.api != ANTHROPIC:
        return ""
    draft = _draft(branch, target, settings)
    is_open = not any(slot.message.starts_turn for slot in branch.slots.slice(ask.stop))
    budget = int(draft.own(ask.cap) * settings.summary_user_share)
    goal, others = user_words([slot.message for slot in told(draft, ask.stop)], budget, is_open=is_open)
    return "\n\n".join([*goal, *others])


# -- what the provider compacted while it answered ---------------------------------------------------------------------


def taken_over(branch: Branch, target: Target, settings: Settings) -> Compaction | None:
    """Return the compaction that the newest answer brought along, with its readable twin; nothing where it has none.

    Once it is in the log, no later request shows what lies before it.
    """
    index = len(branch.slots) - 1
    if index < 0 or not brought(branch.slots[index].message):
        return None
    draft = _draft(branch, target, settings)
    extract = stand_in(draft, index, draft.room.share(summary_share(draft.room, settings)))
    twin = extract.summary if extract is not None else None
    taken = by_itself(target.api, target.model, branch.slots[index].message, index, twin or Message("user"))
    if taken is None:
        return None
    return replace(taken, before=draft.estimate, after=draft.compact(taken).estimate)


def _draft(branch: Branch, target: Target, settings: Settings) -> Draft:
    known = learned(target, branch, settings)
    return Draft(branch, in_window(known, settings), settings, World(), guard(known, settings)[0])
