"""The loop: ask, do what the model calls for, say what came of it, ask again.

Every result is in the log before the next call begins. So after a crash only the first call without a result may have
been on its way: it is done again where that does no harm, and told to be unknown where it may. One agent at a time
works in a session, so that nobody takes a call for lost that another one is at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Literal, TypeAlias

from anyio import CancelScope, get_cancelled_exc_class, to_thread
from msgspec import Struct
from msgspec.structs import replace

from holdfast.agent.earlier_results import results_elsewhere
from holdfast.agent.stream_text import words_of
from holdfast.agent.tools import answered, result, spec_of
from holdfast.agent.workspace import Workplace
from holdfast.engine.session import Session
from holdfast.errors import HoldfastError, StoreLocked
from holdfast.messages.message import Message, result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.providers.responses import Answer
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.turns import newest_answer

AT_WORK = "agent at work: "
"""What the name of the lease begins with; the session's own lease is held for single writes."""
LOOKED = 64
"""[H] Newest calls that are compared; a circle of up to eight calls is one too."""
WARNED, STOPPED = 3, 8
"""[H] How often the same is done until the model is told, and until the work stops."""

STEPS = 1_000
"""[H] Answers of the model that one task may take: a long day of work."""
LOST = "interrupted: the program ended while this ran, so its effects are unknown; look before you do it again"
STOPPED_IN = "interrupted: the user stopped this while it ran, so its effects are unknown; look before you do it again"
NOT_RUN = "not run: the user stopped the work before this began"

Stop: TypeAlias = Literal["done", "steps", "repeating", "aborted", "error"]
"""Why the work ended: the model had nothing more to do · the limit of steps · it went round in circles · somebody
stopped it · something broke."""


class Outcome(Struct, frozen=True):
    """How the work on a task ended."""

    stop: Stop
    steps: int = 0
    """Answers of the model."""
    text: str = ""
    """What it said last."""
    why: str = ""
    """What broke, or what can be done."""


class Spoke(Struct, frozen=True):
    """The model said something; ``ends`` where its words are over."""

    text: str
    ends: bool = True


class Called(Struct, frozen=True):
    """A tool begins."""

    call: ToolCall


class Returned(Struct, frozen=True):
    """A tool ended, and its result is in the log."""

    call: ToolCall
    result: ToolResult


Step: TypeAlias = Spoke | Called | Returned
Tell: TypeAlias = Callable[[Step], object]


class Work:
    """One agent at work in one session."""

    def __init__(self, session: Session, place: Workplace, *, tell: Tell, streams: bool) -> None:
        self.session, self.tell, self.streams = session, tell, streams
        self.place, self._allow = replace(place, allow=self._allowed), place.allow
        self._waits = False
        self.circles = Circles()
        self.steps = 0
        self.text = ""

    async def go(self, task: str, most_steps: int) -> Outcome:
        """Return how the work on ``task`` ended; without one it goes on where the log ends."""
        await self._resume()
        if task:
            await self.session.append(task)
        if is_answered(self.session.journal.branch):
            return self.ended("done", "there is nothing to go on with; say what is to be done")
        while self.steps < most_steps:
            before = len(self.session.journal.branch.messages)
            answer = await self._asked()
            calls = self._open()
            await self._do(calls)
            if self.circles.is_one:
                return self.ended("repeating", f"the model did the same {STOPPED} times; tell it what to do instead")
            if not calls and answer.stop != "pause" and not self._is_spoken_to(before):
                return self.ended("done", _cut(answer))
        return self.ended("steps", f"{most_steps:,} steps are over; go on with the session to allow as many again")

    def ended(self, stop: Stop, why: str = "") -> Outcome:
        """Return how the work ended."""
        return Outcome(stop, self.steps, self.text, why)

    async def _asked(self) -> Answer:
        """Return the model's next answer, its words told as they come where that is wanted."""
        told = 0
        async with self.session.run(quiet=not self.streams) as run:
            async for event in run:
                words = words_of(self.session.api, event)
                told += len(words)
                if words:
                    self.tell(Spoke(words, ends=False))
        self.steps += 1
        text = run.answer.message.text
        self.text = text or self.text
        if text:
            self.tell(Spoke("" if told else text))
        return run.answer

    def _open(self) -> tuple[ToolCall, ...]:
        return open_calls(self.session.journal.branch)

    def _is_spoken_to(self, before: int) -> bool:
        """Return whether somebody said something since there were ``before`` messages, and has no answer yet."""
        messages = self.session.journal.branch.messages
        return len(messages) > before and messages[-1].role == "user"

    async def _resume(self) -> None:
        """Do the calls that are open where the log ends; those that were done on another branch have their results."""
        journal, calls = self.session.journal, self._open()
        if calls and journal.leaf is not None:
            found = partial(results_elsewhere, journal.store, journal.key, journal.leaf, calls)
            for call, made in await self.session.means.in_worker(found):
                await self._say(call, made)
        await self._do(self._open(), resumed=True)

    async def _allowed(self, command: str) -> bool:
        """Return whether a command may run; until then its call has not begun."""
        self._waits = True
        allowed = await self._allow(command)
        self._waits = False
        return allowed

    async def _do(self, calls: tuple[ToolCall, ...], *, resumed: bool = False) -> None:
        """Do ``calls`` one after the other; where somebody stops it, say so of those that have no result."""
        left = list(calls)
        try:
            while left:
                self._waits = False
                self.tell(Called(left[0]))
                again = spec_of(left[0].name)
                lost = resumed and len(left) == len(calls) and again is not None and not again.repeats
                made = result(left[0], LOST, is_error=True) if lost else await answered(self.place, left[0])
                await self._say(left.pop(0), made)
        except get_cancelled_exc_class():
            for number, call in enumerate(left):
                await self._say(call, result(call, NOT_RUN if number or self._waits else STOPPED_IN, is_error=True))
            raise

    async def _say(self, call: ToolCall, made: ToolResult) -> None:
        """Put a result into the log, whoever stops the work meanwhile."""
        note = self.circles.add(call, made)
        if note:
            made = replace(made, content=(*made.content, Text(note)))
        with CancelScope(shield=True):
            await self.session.append(Message("tool", (made,)))
        self.tell(Returned(call, made))


async def work(
    session: Session,
    task: str,
    place: Workplace,
    *,
    most_steps: int = STEPS,
    tell: Tell = lambda _: None,
    streams: bool = False,
    scope: CancelScope | None = None,
) -> Outcome:
    """Return how the work on ``task`` ended; nothing is raised for what providers, models and stores do.

    Without a task the session goes on where it ended. ``scope.cancel()`` stops it: what was done is in the log, and the
    session can go on. ``streams`` tells words as they come; an answer that breaks off is then not asked for again.
    """
    at_work = Work(session, place, tell=tell, streams=streams)
    with scope or CancelScope():
        try:
            async with alone(session):
                return await at_work.go(task, most_steps)
        except HoldfastError as error:
            return at_work.ended("error", str(error))
    return at_work.ended("aborted", "stopped; go on with the session whenever you like")


def open_calls(branch: Branch) -> tuple[ToolCall, ...]:
    """Return the calls of the newest answer that have no result yet; where it broke off its calls are not open."""
    if not branch.open:
        return ()
    waiting, found = list(branch.open), list[ToolCall]()
    for call in reversed(branch.messages[newest_answer(branch, 0)].calls):
        if waiting and call.id == waiting[-1]:
            found.append(call)
            waiting.pop()
    return tuple(reversed(found))


def is_answered(branch: Branch) -> bool:
    """Return whether the newest message is an answer that came to its end, and calls for nothing any more."""
    last = len(branch.slots) - 1
    return (
        last < 0
        or branch.messages[last].role == "system"
        or (branch.messages[last].role == "assistant" and last not in branch.broken and not open_calls(branch))
    )


def _cut(answer: Answer) -> str:
    """Return why the model's last words may not be all."""
    told = {"length": "the answer was cut at its limit", "refusal": "the model refused", "content_filter": "it was cut"}
    silent = "" if answer.message.text else "the model ended without a word; ask again if something is missing"
    return told.get(answer.stop, silent)


@asynccontextmanager
async def alone(session: Session) -> AsyncIterator[None]:
    """Be the only agent that works in ``session`` until the end of the block; ``StoreLocked`` where another one does.

    One that ends within the store's ``LEASE_WAIT`` seconds is waited for.
    """
    with ExitStack() as stack:
        lease = session.means.store.writing(AT_WORK + session.key)
        try:
            await to_thread.run_sync(stack.enter_context, lease)
        except StoreLocked:
            msg = f"another agent works in session {session.key!r} now; end it, or wait until it has ended"
            raise StoreLocked(msg) from None
        yield


class Done(Struct, frozen=True):
    """A finished tool call. Arguments and result are compared as they are: a result that changes is progress."""

    tool: str
    arguments: str
    result: str


class Circles:
    """The newest calls of a run."""

    def __init__(self) -> None:
        self._newest: deque[Done] = deque(maxlen=LOOKED)
        self.times = 0
        """How often the newest call was made with this result, among those that are compared."""

    def add(self, call: ToolCall, result: ToolResult) -> str:
        """Take a call and its result; return what the model is told of it, or nothing."""
        done = Done(call.name, call.arguments, result_text(result))
        self._newest.append(done)
        self.times = self._newest.count(done)
        if self.times < WARNED:
            return ""
        return f"\n[call {self.times} of the same with the same result; it will not change: do something else]"

    @property
    def is_one(self) -> bool:
        """Whether the run goes round in circles."""
        return self.times >= STOPPED
