"""Compaction with all that the planner cannot do itself: hooks, the provider's own, a model's summary, the events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from anyio import CancelScope
from msgspec import Struct
from msgspec.structs import replace

from holdfast import events
from holdfast.engine.compaction import native
from holdfast.engine.compaction.summarizer import Terms, TooLarge, Writer, summarise
from holdfast.engine.hooks import Before
from holdfast.engine.log.new_entries import is_pressed
from holdfast.engine.requests import Request
from holdfast.engine.session_runtime import Course
from holdfast.errors import CompactionFailed
from holdfast.events import Outcome
from holdfast.messages.sized_message import Slot
from holdfast.planning.breaker import is_closed
from holdfast.planning.budget import in_force
from holdfast.planning.pipeline import OVER_WINDOW
from holdfast.planning.presets.overflow_replay import tells_to_continue
from holdfast.planning.summary.prompts import Order
from holdfast.providers.common.native_compaction import can_compact
from holdfast.recovery.machine import SUMMARY_TOO_LARGE
from holdfast.state.calibration.token_estimate import estimate
from holdfast.state.calibration.usage import cache_lives
from holdfast.state.entries import Compaction
from holdfast.state.plan import Ask, Notice, Plan, asked_for
from holdfast.state.target import Target, World, Written

_OUTCOMES: dict[str, Outcome] = {
    "nothing-to-compact": "nothing_to_compact",
    "not-smaller": "not_smaller",
    "breaker": "not_smaller",
    "cancelled": "cancelled",
}
"""What the planner's notices say of a compaction that did not come about."""


class Occasion(Struct, frozen=True):
    """What a summary is asked for."""

    request: Request
    trigger: str
    instructions: str
    is_warm: bool
    """Whether the provider still holds what it read last."""


class Made(Struct, frozen=True):
    """What came of asking for a summary: the summary, or why there is none."""

    written: Written | None = None
    outcome: Outcome = "compacted"
    why: str = ""
    is_too_large: bool = False
    """Whether each writer was asked for too much at once, however short it was told."""


def world(course: Course, request: Request, *, asked: bool = False) -> World:
    """Return what the planner is told, asked for in the worker: how old the cache is, and who writes summaries.

    Who wrote none several times in a row is left alone for a while, unless somebody ``asked`` for a compaction.
    """
    means, target, branch = course.means, request.target, course.journal.branch
    idle = course.journal.idle()
    there = bool(writers(course, request) or _is_native(course, target) or means.hooks.before_compaction)
    return World(
        cache="cold" if idle > cache_lives(branch, target.cache) else "warm",
        idle=idle,
        writes=there and (asked or is_closed(branch.unwritten, branch.failed_at, means.clock(), course.settings)),
        cooled=course.journal.is_cooled(),
    )


def writers(course: Course, request: Request) -> tuple[Writer, ...]:
    """Return the models that write summaries for ``request``, the first to be asked first."""
    return (*request.way.writers, *course.means.writers)


async def planned(
    course: Course,
    request: Request,
    world: World,
    plan: Plan | None = None,
    *,
    trigger: str = "auto",
    instructions: str = "",
) -> tuple[Plan, World]:
    """Return the plan of the next request with its summary made, and what the planner was told for it.

    ``plan`` is the one to begin with, where it is made already.
    A summary that does not come, or does not help, is told, written down, and replaced by an extract. A hook may take
    back the sentence at its end that tells the model to go on.
    """
    occasion = Occasion(request, trigger, instructions, world.cache == "warm")
    try:
        plan, world = await _planned(course, occasion, world, plan)
    finally:
        course.tell_repairs()
    made = plan.compaction
    if made is None or made is course.journal.branch.compaction or not tells_to_continue(made):
        return plan, world
    if await course.hooked("autocontinue") is False:
        world = replace(world, writes=False, continues=False)
        plan = await course.means.in_worker(lambda: course.journal.plan(request.target, world))
    return plan, world


async def _planned(course: Course, occasion: Occasion, world: World, plan: Plan | None) -> tuple[Plan, World]:
    """Return the plan of the next request with its summary made, whether or not it tells the model to go on."""
    request = occasion.request
    target, journal = request.target, course.journal
    if plan is None:
        plan = await course.means.in_worker(lambda: journal.plan(target, world))
    if plan.compaction is not None and plan.compaction is journal.branch.compaction:
        return plan, world  # that request again
    if plan.ask is not None and not is_pressed(world) and _by(course, request) == "extract":
        known = replace(world, writes=False)  # a hook is asked early: not before there is anything to compact
        extract = await course.means.in_worker(lambda: journal.plan(target, known))
        if extract.compaction is None:
            return extract, known
    if plan.ask is not None or plan.compaction is not None:
        world = replace(world, restored=await course.means.in_worker(lambda: _restored(course)))
    if plan.ask is not None:
        return await _summarised(course, occasion, plan.ask, world)
    if plan.compaction is not None:
        course.tell(events.Compacting(course.key, occasion.trigger))
        plan = await course.means.in_worker(lambda: journal.plan(target, world)) if world.restored else plan
    return plan, world


async def _summarised(course: Course, occasion: Occasion, ask: Ask, world: World) -> tuple[Plan, World]:
    """Return the plan with the summary that was asked for, or with an extract; what hooks said meanwhile is in it.

    Where the request for a summary was too large after an overflow, a policy may want neither: the plan says so.
    """
    target = occasion.request.target
    try:
        made = await _in_flight(course, occasion, ask)
    finally:
        await course.means.in_worker(course.note_costs)
    written, outcome, why = made.written, made.outcome, made.why
    stops = made.is_too_large and occasion.trigger == "overflow" and course.settings.summary_overflow == "stop"
    await _told(course, target, _by(course, occasion.request), outcome, why)
    plan, world = await _with(course, target, world, written, without=stops or outcome == "cancelled")
    if stops:
        plan = _without_compaction(plan, "history_too_large" if ask.is_replay else "session_too_large", why)
    elif outcome == "cancelled":
        plan = _without_compaction(plan, "cancelled", why)
    if written is not None and plan.compaction is None:
        outcome, why = _why(plan)
        await _told(course, target, written.by, outcome, why)
        plan, world = await _with(course, target, world, None)
    if outcome not in {"compacted", "nothing_to_compact", "cancelled"}:
        await course.means.in_worker(lambda: course.journal.fail(why, outcome))
    return plan, world


async def made(course: Course, plan: Plan, outcome: Outcome = "compacted") -> None:
    """Tell of the compaction of ``plan``, if there is one: it is in the log now, or came to nothing."""
    if plan.compaction is not None:
        await course.tell_compacted(_event(course, plan.compaction, outcome))


def tell_decided(course: Course, plan: Plan) -> None:
    """Tell what ``plan`` decided, also about what its compaction keeps."""
    rules: dict[str, list[int]] = {}
    kept = plan.compaction.edits if plan.compaction is not None else ()
    for edit in (*plan.record, *kept):
        rules.setdefault(edit.rule, []).append(edit.saves)
    for rule, saves in rules.items():
        course.tell(events.Decided(course.key, rule, len(saves), sum(saves)))
    for notice in plan.notices:
        course.tell(events.Noticed(course.key, notice.rule, notice.why))


def _is_native(course: Course, target: Target) -> bool:
    """Whether the provider is to compact by itself, and can."""
    return course.means.native and can_compact(target)


def _by(course: Course, request: Request) -> str:
    """Return who is asked for a summary first; an extract is made where nobody is."""
    if _is_native(course, request.target):
        return "native"
    return "model" if writers(course, request) else "extract"


async def _with(
    course: Course, target: Target, world: World, written: Written | None, *, without: bool = False
) -> tuple[Plan, World]:
    """Return the plan with what was written, or with an extract; ``without`` any compaction where none is wanted."""
    known = replace(world, writes=False, written=written)
    if without:
        known = replace(known, force=False, rung="", breaker=False)
    return await course.means.in_worker(lambda: course.journal.plan(target, known)), known


async def compact(course: Course, request: Request, instructions: str) -> events.Compacted:
    """Compact now; return what became of it. Nothing is sent to the model but what a summary needs.

    Where others said more in the session meanwhile, and nothing was said here beside it, that is compacted too.
    """
    along = goes_along(course)

    def begun() -> World:
        along()
        return replace(world(course, request, asked=True), force=True)

    forced = await course.means.in_worker(begun)
    while True:
        plan, known = await planned(course, request, forced, trigger="manual", instructions=instructions)
        if plan.compaction is not None:
            written = await course.means.in_worker(lambda: _decided(course, along, plan, request.target, known))  # noqa: B023
            if written is None:
                continue
            await made(course, plan := written)
            tell_decided(course, plan)
        if plan.compaction is not None:
            return _event(course, plan.compaction)
        outcome, why = _why(plan)
        return events.Compacted(course.key, outcome, _by(course, request), plan.before, plan.before, why)


def _decided(course: Course, along: Callable[[], bool], plan: Plan, target: Target, world: World) -> Plan | None:
    """Return the plan that is in the log: this one, or with the same summary one for what others said meanwhile.

    Nothing where it stands no more.
    """
    journal = course.journal
    with journal.leased():
        plan = asked_for(journal.plan(target, world) if along() else plan)
        return journal.decide(plan, target, world) if plan.compaction is not None else None


def goes_along(course: Course) -> Callable[[], bool]:
    """Return what joins the session where others said more in it, and tells whether they did.

    What is decided without a word of one's own is to count where the session goes on. A branch beside it stays there,
    and so does one that an answer is on its way to.
    """
    stays = course.is_answering or not course.journal.moves_leaf
    return lambda: not stays and course.journal.go_along()


def summary_overflow(plan: Plan) -> str:
    """Return the outcome of ``SUMMARY_TOO_LARGE`` that ended the compaction of ``plan``, or nothing."""
    return next((notice.rule for notice in plan.notices if notice.rule in SUMMARY_TOO_LARGE), "")


def useless(plan: Plan, rung: str) -> Outcome | Literal[""]:
    """Return why a plan that was pressed for is no smaller than the request that was refused, or nothing."""
    if plan.compaction is None and not plan.record:
        return _why(plan)[0]
    judged = rung not in {"fallback", "media"}  # what media take is reckoned high, and these were not too many tokens
    too_large = judged and any(notice.rule == OVER_WINDOW for notice in plan.notices)
    return "not_smaller" if plan.after >= plan.before or too_large else ""


async def _in_flight(course: Course, occasion: Occasion, ask: Ask) -> Made:
    """Return what ``_written`` does, while everybody may know that a compaction is under way, and stop it."""
    made = Made(outcome="cancelled", why="the session was closed")
    with CancelScope() as scope:
        course.inflight.start(scope.cancel)
        try:
            made = await _written(course, occasion, ask)
        finally:
            course.inflight.end(made.outcome)
    return made


async def _written(course: Course, occasion: Occasion, ask: Ask) -> Made:
    """Return the summary that was asked for; or nothing, with what became of it and why."""
    means, trigger = course.means, occasion.trigger
    head = await means.in_worker(lambda: course.journal.slots_said(ask.start, ask.stop))
    told = await course.hooked("before_compaction", [slot.message for slot in head], trigger)
    before = told if isinstance(told, Before) else Before()
    if before.cancel:
        return Made(outcome="cancelled", why="the hook before_compaction cancelled it")
    is_supplied = bool(before.summary.strip())
    by = "hook" if is_supplied else _by(course, occasion.request)
    course.tell(events.Compacting(course.key, trigger, by))
    if is_supplied:
        return Made(Written(ask.stop, before.summary, by="hook"))
    if by == "extract":
        return Made()
    try:
        return Made(await _asked(course, occasion, ask, head, before))
    except CompactionFailed as failed:
        return Made(None, _outcome(failed.outcome), str(failed), isinstance(failed, TooLarge))


async def _asked(course: Course, occasion: Occasion, ask: Ask, head: Sequence[Slot], before: Before) -> Written:
    """Return the summary of the first that makes one: the provider's own compaction, then the models in their order."""
    if _is_native(course, occasion.request.target) and not before.prompt:
        try:
            return await _by_provider(course, occasion, ask)
        except CompactionFailed:
            if not writers(course, occasion.request):
                raise
    order = Order(focus=occasion.instructions, context=tuple(before.add), prompt=before.prompt)
    prefix = course.prefix if occasion.is_warm else None
    if prefix is not None and prefix.frame != occasion.request.target.frame.digest:
        prefix = None  # somebody else said the same, under instructions of their own
    target = in_force(occasion.request.target, course.journal.branch, course.settings)
    asked = [one.beside(target) for one in writers(course, occasion.request)]
    return await summarise(head, ask, asked, _terms(course), order, prefix=prefix)


async def _by_provider(course: Course, occasion: Occasion, ask: Ask) -> Written:
    """Return what the provider made of the slots that were asked for."""
    means, journal, stop = course.means, course.journal, ask.stop
    sent = await means.in_worker(lambda: native.head_request(journal.branch, occasion.request, stop, journal.policy))
    beside = await means.in_worker(lambda: _beside(course, occasion, ask))
    terms = _terms(course)
    made = await native.compacted(means.upstream, sent, terms, instructions=occasion.instructions, beside=beside)
    return Written(stop, "", "native", made)


def _beside(course: Course, occasion: Occasion, ask: Ask) -> tuple[str, ...]:
    """Return the texts that stand behind what the provider makes: the user's words where it keeps none, and sources."""
    journal = course.journal
    journal.slots_said(0, ask.stop)  # a branch that was opened again may not have the oldest at hand
    words = native.quoted(journal.branch, occasion.request.target, ask, course.settings)
    return tuple(filter(None, (words, *_restored(course))))


def _restored(course: Course) -> tuple[str, ...]:
    """Return the texts that stand behind a summary again: rules that changed, skills that were used, the plan."""
    environment, branch = course.means.environment, course.journal.branch
    if environment is None:
        return ()
    summary = branch.compaction.summary if branch.compaction is not None else None
    shown = [slot.message for slot in branch.slots.slice(branch.keep)]
    return environment.restored(shown if summary is None else [summary, *shown])


def _terms(course: Course) -> Terms:
    """Return the terms on which models are asked for a compaction here."""
    return Terms(course.settings, course.means.permits.hold, course.tell, course.unpaid.append, course.key)


async def _told(course: Course, target: Target, by: str, outcome: Outcome, why: str) -> None:
    """Tell of a compaction that failed, and ``by`` whom it would have been."""
    if outcome != "compacted":
        branch = course.journal.branch
        size = estimate(branch, in_force(target, branch, course.settings))
        await course.tell_compacted(events.Compacted(course.key, outcome, by, size, size, why))


def _event(course: Course, made: Compaction, outcome: Outcome = "compacted") -> events.Compacted:
    """Return what is told of the compaction ``made``."""
    return events.Compacted(course.key, outcome, made.by or "extract", made.before, made.after)


def _why(plan: Plan) -> tuple[Outcome, str]:
    """Return why there is no compaction in ``plan``."""
    told: Sequence[Notice] = [notice for notice in plan.notices if notice.rule in _OUTCOMES]
    if not told:
        return "nothing_to_compact", "there is nothing to compact"
    return _OUTCOMES[told[-1].rule], told[-1].why


def _without_compaction(plan: Plan, rule: str, why: str) -> Plan:
    """Return ``plan``, made as if the breaker were open, with the reason that is known in place of that one."""
    others = [notice for notice in plan.notices if notice.rule != "breaker"]
    return replace(plan, notices=(*others, Notice(rule, why)))


def _outcome(word: str) -> Outcome:
    return word if word in events.OUTCOMES else "provider_error"  # type: ignore[return-value]
