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

from holdfast.agent.earlier_results import find_results_on_other_branches
from holdfast.agent.stream_text import get_event_text
from holdfast.agent.tools import find_tool_spec, make_tool_result, run_tool_call
from holdfast.agent.workspace import Workspace
from holdfast.engine.session import Session
from holdfast.errors import HoldfastError, StoreLocked
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.state.conversation_state import ConversationState
from holdfast.state.turns import find_newest_answer_index

LEASE_PREFIX = "agent at work: "
"""What the name of the lease begins with; the session's own lease is held for single writes."""
COMPARED_CALLS = 64
"""[H] Newest calls that are compared; a circle of up to eight calls is one too."""
WARN_AFTER, STOP_AFTER = 3, 8
"""[H] How often the same is done until the model is told, and until the work stops."""

MAX_AGENT_STEPS = 1_000
"""[H] Answers of the model that one task may take: a long day of work."""
LOST_RESULT_TEXT = (
    "interrupted: the program ended while this ran, so its effects are unknown; look before you do it again"
)
STOPPED_RESULT_TEXT = (
    "interrupted: the user stopped this while it ran, so its effects are unknown; look before you do it again"
)
NOT_RUN_RESULT_TEXT = "not run: the user stopped the work before this began"

AgentStopReason: TypeAlias = Literal["done", "steps", "repeating", "aborted", "error"]
"""Why the work ended: the model had nothing more to do · the limit of steps · it went round in circles · somebody
stopped it · something broke."""


class TaskOutcome(Struct, frozen=True):
    """How the work on a task ended."""

    stop: AgentStopReason
    steps: int = 0
    """Answers of the model."""
    text: str = ""
    """What it said last."""
    reason: str = ""
    """What broke, or what can be done."""


class TextDelivered(Struct, frozen=True):
    """The model said something; ``is_end`` where its words are over."""

    text: str
    is_end: bool = True


class ToolStarted(Struct, frozen=True):
    """A tool begins."""

    call: ToolCall


class ToolFinished(Struct, frozen=True):
    """A tool ended, and its result is in the log."""

    call: ToolCall
    result: ToolResult


AgentEvent: TypeAlias = TextDelivered | ToolStarted | ToolFinished
AgentListener: TypeAlias = Callable[[AgentEvent], object]


class AgentRun:
    """One agent at work in one session."""

    def __init__(self, session: Session, place: Workspace, *, tell: AgentListener, streams: bool) -> None:
        self.session, self.listener, self.streams_text = session, tell, streams
        self.workspace, self._ask_user = replace(place, ask_permission=self._ask_permission), place.ask_permission
        self._is_waiting_for_permission = False
        self.repetition = RepetitionDetector()
        self.steps = 0
        self.text = ""

    async def run_task(self, task: str, most_steps: int) -> TaskOutcome:
        """Return how the work on ``task`` ended; without one it goes on where the log ends."""
        await self._resume_open_calls()
        if task:
            await self.session.append(task)
        if is_conversation_answered(self.session.journal.state):
            return self.make_outcome("done", "there is nothing to go on with; say what is to be done")
        while self.steps < most_steps:
            before = len(self.session.journal.state.history.messages)
            answer = await self._ask_model()
            calls = self._get_open_calls()
            await self._run_calls(calls)
            if self.repetition.is_stuck:
                return self.make_outcome(
                    "repeating", f"the model did the same {STOP_AFTER} times; tell it what to do instead"
                )
            if not calls and answer.stop_reason != "pause" and not self._has_new_user_message(before):
                return self.make_outcome("done", _describe_incomplete_answer(answer))
        return self.make_outcome(
            "steps", f"{most_steps:,} steps are over; go on with the session to allow as many again"
        )

    def make_outcome(self, stop: AgentStopReason, why: str = "") -> TaskOutcome:
        """Return how the work ended."""
        return TaskOutcome(stop, self.steps, self.text, why)

    async def _ask_model(self) -> ParsedAnswer:
        """Return the model's next answer, its words told as they come where that is wanted."""
        streamed_chars = 0
        async with self.session.run(quiet=not self.streams_text) as run:
            async for event in run:
                words = get_event_text(self.session.api, event)
                streamed_chars += len(words)
                if words:
                    self.listener(TextDelivered(words, is_end=False))
        self.steps += 1
        text = run.answer.message.text
        self.text = text or self.text
        if text:
            self.listener(TextDelivered("" if streamed_chars else text))
        return run.answer

    def _get_open_calls(self) -> tuple[ToolCall, ...]:
        return find_open_calls(self.session.journal.state)

    def _has_new_user_message(self, before: int) -> bool:
        """Return whether somebody said something since there were ``before`` messages, and has no answer yet."""
        messages = self.session.journal.state.history.messages
        return len(messages) > before and messages[-1].role == "user"

    async def _resume_open_calls(self) -> None:
        """Do the calls that are open where the log ends; those that were done on another branch have their results."""
        journal, calls = self.session.journal, self._get_open_calls()
        if calls and journal.leaf is not None:
            find_results = partial(find_results_on_other_branches, journal.store, journal.key, journal.leaf, calls)
            for call, tool_result in await self.session.resources.run_in_worker(find_results):
                await self._append_result(call, tool_result)
        await self._run_calls(self._get_open_calls(), is_resumed=True)

    async def _ask_permission(self, command: str) -> bool:
        """Return whether a command may run; until then its call has not begun."""
        self._is_waiting_for_permission = True
        allowed = await self._ask_user(command)
        self._is_waiting_for_permission = False
        return allowed

    async def _run_calls(self, calls: tuple[ToolCall, ...], *, is_resumed: bool = False) -> None:
        """Do ``calls`` one after the other; where somebody stops it, say so of those that have no result."""
        remaining_calls = list(calls)
        try:
            while remaining_calls:
                self._is_waiting_for_permission = False
                self.listener(ToolStarted(remaining_calls[0]))
                again = find_tool_spec(remaining_calls[0].name)
                is_lost = (
                    is_resumed and len(remaining_calls) == len(calls) and again is not None and not again.is_repeatable
                )
                tool_result = (
                    make_tool_result(remaining_calls[0], LOST_RESULT_TEXT, is_error=True)
                    if is_lost
                    else await run_tool_call(self.workspace, remaining_calls[0])
                )
                await self._append_result(remaining_calls.pop(0), tool_result)
        except get_cancelled_exc_class():
            for number, call in enumerate(remaining_calls):
                await self._append_result(
                    call,
                    make_tool_result(
                        call,
                        NOT_RUN_RESULT_TEXT if number or self._is_waiting_for_permission else STOPPED_RESULT_TEXT,
                        is_error=True,
                    ),
                )
            raise

    async def _append_result(self, call: ToolCall, tool_result: ToolResult) -> None:
        """Put a result into the log, whoever stops the work meanwhile."""
        note = self.repetition.add_call(call, tool_result)
        if note:
            tool_result = replace(tool_result, content=(*tool_result.content, Text(note)))
        with CancelScope(shield=True):
            await self.session.append(Message("tool", (tool_result,)))
        self.listener(ToolFinished(call, tool_result))


async def run_agent(
    session: Session,
    task: str,
    workspace: Workspace,
    *,
    max_steps: int = MAX_AGENT_STEPS,
    listener: AgentListener = lambda _: None,
    streams_text: bool = False,
    scope: CancelScope | None = None,
) -> TaskOutcome:
    """Return how the work on ``task`` ended; nothing is raised for what providers, models and stores do.

    Without a task the session goes on where it ended. ``scope.cancel()`` stops it: what was done is in the log, and the
    session can go on. ``streams_text`` tells words as they come; an answer that breaks off is then not asked for again.
    """
    at_work = AgentRun(session, workspace, tell=listener, streams=streams_text)
    with scope or CancelScope():
        try:
            async with hold_agent_lock(session):
                return await at_work.run_task(task, max_steps)
        except HoldfastError as error:
            return at_work.make_outcome("error", str(error))
    return at_work.make_outcome("aborted", "stopped; go on with the session whenever you like")


def find_open_calls(state: ConversationState) -> tuple[ToolCall, ...]:
    """Return the calls of the newest answer that have no result yet; where it broke off its calls are not open."""
    if not state.history.open_call_ids:
        return ()
    waiting, calls = list(state.history.open_call_ids), list[ToolCall]()
    for call in reversed(state.history.messages[find_newest_answer_index(state, 0)].calls):
        if waiting and call.id == waiting[-1]:
            calls.append(call)
            waiting.pop()
    return tuple(reversed(calls))


def is_conversation_answered(state: ConversationState) -> bool:
    """Return whether the newest message is an answer that came to its end, and calls for nothing any more."""
    last = len(state.history.sized_messages) - 1
    return (
        last < 0
        or state.history.messages[last].role == "system"
        or (
            state.history.messages[last].role == "assistant"
            and last not in state.history.failed_answer_indexes
            and not find_open_calls(state)
        )
    )


def _describe_incomplete_answer(answer: ParsedAnswer) -> str:
    """Return why the model's last words may not be all."""
    explanations = {
        "length": "the answer was cut at its limit",
        "refusal": "the model refused",
        "content_filter": "it was cut",
    }
    silent = "" if answer.message.text else "the model ended without a word; ask again if something is missing"
    return explanations.get(answer.stop_reason, silent)


@asynccontextmanager
async def hold_agent_lock(session: Session) -> AsyncIterator[None]:
    """Be the only agent that works in ``session`` until the end of the block; ``StoreLocked`` where another one does.

    One that ends within the store's ``LEASE_WAIT`` seconds is waited for.
    """
    with ExitStack() as stack:
        lease = session.resources.store.hold_lease(LEASE_PREFIX + session.key)
        try:
            await to_thread.run_sync(stack.enter_context, lease)
        except StoreLocked:
            msg = f"another agent works in session {session.key!r} now; end it, or wait until it has ended"
            raise StoreLocked(msg) from None
        yield


class FinishedCall(Struct, frozen=True):
    """A finished tool call. Arguments and result are compared as they are: a result that changes is progress."""

    tool: str
    arguments: str
    result: str


class RepetitionDetector:
    """The newest calls of a run."""

    def __init__(self) -> None:
        self._newest: deque[FinishedCall] = deque(maxlen=COMPARED_CALLS)
        self.repeat_count = 0
        """How often the newest call was made with this result, among those that are compared."""

    def add_call(self, call: ToolCall, result: ToolResult) -> str:
        """Take a call and its result; return what the model is told of it, or nothing."""
        outcome = FinishedCall(call.name, call.arguments, get_result_text(result))
        self._newest.append(outcome)
        self.repeat_count = self._newest.count(outcome)
        if self.repeat_count < WARN_AFTER:
            return ""
        return f"\n[call {self.repeat_count} of the same with the same result; it will not change: do something else]"

    @property
    def is_stuck(self) -> bool:
        """Whether the run goes round in circles."""
        return self.repeat_count >= STOP_AFTER
