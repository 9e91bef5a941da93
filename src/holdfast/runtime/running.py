"""A run: a request and all it takes to get its answer into the log."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Self

from anyio import CancelScope

from holdfast.errors import Aborted
from holdfast.model.branch import Branch
from holdfast.model.gauging import FEWEST, LEAST_LIMIT, LOWEST, has_grown, is_whole
from holdfast.model.learning import cut_at, fresh
from holdfast.model.messages import Message
from holdfast.model.parts import Opaque, Thinking
from holdfast.policy.guard import least_window
from holdfast.policy.hygiene.neighbours import GO_ON
from holdfast.policy.settings import Settings
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.beginning import begun, read
from holdfast.runtime.course import Course
from holdfast.runtime.journal import Prepared
from holdfast.runtime.native import taken_over
from holdfast.runtime.recovering import recovered
from holdfast.runtime.replies import as_said
from holdfast.runtime.requests import Asked, Request, Way
from holdfast.runtime.trying import attempt_at, interrupted
from holdfast.telemetry import events
from holdfast.view.text import one_line
from holdfast.view.tokens import estimate, measure
from holdfast.wire.answers import Answer
from holdfast.wire.overflow import Verdict
from holdfast.wire.sse import Event


class Run:
    """One request of a session, as ``async with``; iterate it for the API's own events as they come, one by one.

    Behind the block ``answer`` is in the log, or the error was raised. Who leaves early has what was said so far in
    the log, as an answer that was interrupted.
    """

    def __init__(self, course: Course, asked: Asked, way: Way = Way(), *, quiet: bool = False) -> None:
        self._course, self._asked, self._way, self._quiet = course, asked, way, quiet
        self.attempt: Attempt | None = None
        """The newest request that went out, with what came back."""
        self.attempts = 0
        """How many requests went out, or are about to."""
        self._stack = AsyncExitStack()
        self._events: AsyncGenerator[list[Event]] | None = None
        self._left: deque[Event] = deque()
        """What came at once and was not read yet."""
        self._answer: Answer | None = None

    @property
    def answer(self) -> Answer:
        """The model's answer; ``Aborted`` where the run was not read to its end."""
        if self._answer is None:
            raise Aborted("this run has no answer: it was not read to its end; iterate it, or use session.ask")
        return self._answer

    async def __aenter__(self) -> Self:
        """Hold the branch's lane until the end of the block; ``Aborted`` the second time."""
        if self._events is not None:
            raise Aborted("a run is one request and this one was begun already; call session.run for another")
        await self._stack.enter_async_context(self._course.lane())
        self._events = self._going()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            self._left.clear()
            if self._events is not None:
                await self._events.aclose()
        finally:
            self._course.inflight.settled()
            await self._stack.aclose()

    def together(self) -> AsyncIterator[list[Event]]:
        """Return the API's own events, those together that came at once."""
        if self._events is None:
            raise Aborted("a run is read inside of its block: async with session.run(…) as run")
        return self._events

    def __aiter__(self) -> Self:
        """Return the run, for its events."""
        self.together()
        return self

    async def __anext__(self) -> Event:
        """Return the next event."""
        while not self._left:
            self._left += await anext(self.together())
        return self._left.popleft()

    async def _going(self) -> AsyncGenerator[list[Event]]:
        course = self._course
        said = read(course, self._asked)
        with course.answering():
            first, prepared = await begun(course, said, self._way)
            request, state = first.request, first.state
            while True:
                self.attempts += 1
                attempt = self.attempt = await attempt_at(course, request, prepared, quiet=self._quiet)
                try:
                    async with course.means.permits.hold(), aclosing(attempt.events()) as coming:
                        async for came in coming:
                            yield came
                except BaseException as error:
                    if isinstance(error, Exception) or not attempt.settled():
                        await _broken(course, attempt, error)
                    else:  # the caller has all it waited for
                        await self._record(request, prepared)
                    raise
                if attempt.is_answered:
                    await self._record(request, prepared)
                    break
                request, prepared, state = await recovered(course, request, prepared, state, attempt)
        await course.delivered()

    async def _record(self, request: Request, prepared: Prepared) -> None:
        """Write the answer down, also where the caller leaves meanwhile."""
        assert self.attempt is not None
        self._answer = await recorded(self._course, self.attempt, prepared, ours=request.lens is None)


async def recorded(course: Course, attempt: Attempt, prepared: Prepared, *, ours: bool = True) -> Answer:
    """Return the answer of ``attempt``, once it is in the log with what it cost, and what its size teaches.

    ``ours`` is false where a client sends the whole conversation: what it goes on with is its own to say.
    """
    told, journal = attempt.answer, course.journal
    slot, usage, stop = as_said(told, prepared.target.api, prepared.target.model)
    verdict, as_planned = attempt.verdict, attempt.as_planned
    if slot.message.parts:
        await course.means.in_worker(lambda: journal.record(slot, usage, stop, as_planned=as_planned))
    else:
        await course.means.in_worker(lambda: journal.silent(usage, stop, as_planned=as_planned))
    limit = _learned(prepared, verdict, usage.input, course.settings) if verdict.is_overflow else 0
    if not limit and (limit := _flat(prepared, journal.branch, course.settings)):
        verdict = Verdict("silent_truncation")
    if limit:
        requested = verdict.requested or 0
        await course.means.in_worker(lambda: journal.learn(verdict.kind, limit, requested, as_planned=as_planned))
        course.tell(events.Noticed(course.key, verdict.kind.replace("_", "-"), _noticed(prepared, usage.input, limit)))
    course.prefix = attempt.prefix
    await _taken_over(course, prepared)
    if verdict.kind == "context_window" and ours:
        await _continued(course)
    course.tell(events.Answered(course.key, stop, usage.input, usage.output, usage.cache_read, usage.cache_write))
    return told


def _learned(prepared: Prepared, verdict: Verdict, read: int, settings: Settings) -> int:
    """Return the window that an answer tells of without saying so, or 0.

    What was taken before fits too, and no guess ends a session.
    """
    if verdict.kind != "silent_truncation":
        return verdict.limit or 0
    branch = prepared.plan.branch
    if read < LEAST_LIMIT or not _is_cut(branch, prepared.plan.after, read):
        return 0
    anchor = branch.anchor
    return _unknown(branch, max(read, anchor.tokens if anchor else 0, least_window(prepared.target, settings)))


def _is_cut(branch: Branch, size: int, read: int) -> bool:
    """Whether a prompt far smaller than its estimate of ``size`` was cut by the provider.

    Or else nothing has proven the estimate yet, or it is the count of what no cache held: at first all messages, later
    what is new.
    """
    anchor, asked = branch.anchor, branch.asked
    if anchor is None:
        return branch.found[0] == 0 and read < min(FEWEST * size, LOWEST * asked)
    is_proven = branch.gauge.estimated > 0 or read < FEWEST * size
    is_new = has_grown(anchor, asked, read) or not is_whole(anchor, asked, branch.frame.tokens, fresh(branch), read)
    return is_proven and not is_new


def _flat(prepared: Prepared, branch: Branch, settings: Settings) -> int:
    """Return the window that counts tell of which stand still while the conversation grows, or 0.

    Reasoning, and what is opaque, a provider may leave out of older turns: nothing of it is taken for read.
    """
    if not cut_at(branch, 0):
        return 0
    shown = branch.messages.slice(branch.keep)
    aside = [part for message in shown for part in message.parts if isinstance(part, Thinking | Opaque)]
    most = cut_at(branch, measure(Message("assistant", tuple(aside))).size)
    return _unknown(branch, max(most, least_window(prepared.target, settings))) if most else 0


def _unknown(branch: Branch, limit: int) -> int:
    """Return ``limit``, or 0 where as little was learned before: a policy that removes nothing meets it each time."""
    return 0 if 0 < branch.learned.limit <= limit else limit


def _noticed(prepared: Prepared, read: int, limit: int) -> str:
    """Return what is told of a window that an answer taught."""
    plan = prepared.plan
    size = max(plan.after, estimate(plan.branch, prepared.target, plan.branch.held))  # the last count may be a cut one
    return f"the provider counted {read:,} tokens of a request of about {size:,}: {limit:,} count as its window now"


async def _taken_over(course: Course, prepared: Prepared) -> None:
    """Write down the compaction that the answer brought along, where the provider compacted by itself."""
    journal, target = course.journal, prepared.target
    taken = taken_over(journal.branch, target, course.settings)
    if taken is not None:
        await course.means.in_worker(lambda: journal.compact(taken))
        await course.tell_compacted(events.Compacted(course.key, "compacted", "native", taken.before, taken.after))


async def _continued(course: Course) -> None:
    """Let the next request go on where the window cut this answer, unless a hook says no."""
    if await course.hooked("autocontinue") is not False:
        await course.means.in_worker(lambda: course.journal.append(Message.of("user", GO_ON)))


WHY = 200
"""Characters that the log repeats of an error that is none of ours."""


async def _broken(course: Course, attempt: Attempt, error: BaseException) -> None:
    """Record what was said before the caller left or an upstream raised what it may not, or that nothing was."""
    why = one_line(f"{type(error).__name__}: {error}", WHY) if isinstance(error, Exception) else "the caller left"
    with CancelScope(shield=True):
        if not await interrupted(course, attempt):
            await course.means.in_worker(lambda: course.journal.fail(f"{why} before the answer"))
