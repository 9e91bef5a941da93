"""The agent's loop: ask the model, run the tools it calls, record their results, ask again.

Every result is in the log before the next call begins. So after a crash only the first call without a result may have
been running: it is run again if that does no harm, and otherwise its result says that its effects are unknown. Only one
agent works in a session at a time; otherwise one could mistake a call that another is running for a lost one.
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
"""Prefix of the lease that an agent holds; the lease of the session itself is held only for single writes."""
COMPARED_CALLS = 64
"""Number of newest calls that are compared. With ``STOP_AFTER`` 8 it finds circles of up to eight different calls."""
WARN_AFTER = 3
"""How often the same call has the same result when the model is told.

Two are common: a test run before and after a fix elsewhere. Chosen by judgement.
"""
STOP_AFTER = 8
"""How often the same call has the same result when the work stops. Eight cost money without any progress.

Chosen by judgement.
"""

MAX_AGENT_STEPS = 1_000
"""Answers of the model that one task may take: a long day of work. It stops what would run for ever."""
LOST_RESULT_TEXT = (
    "interrupted: the program ended while this ran, so its effects are unknown; look before you do it again"
)
STOPPED_RESULT_TEXT = (
    "interrupted: the user stopped this while it ran, so its effects are unknown; look before you do it again"
)
NOT_RUN_RESULT_TEXT = "not run: the user stopped the work before this began"

AgentStopReason: TypeAlias = Literal["done", "steps", "repeating", "aborted", "error"]
"""Why the work ended: the model had nothing more to do, the limit of steps was reached, the model went round in
circles, somebody stopped it, or something failed."""


class TaskOutcome(Struct, frozen=True):
    """How the work on a task ended."""

    stop: AgentStopReason
    steps: int = 0
    """Number of answers of the model."""
    text: str = ""
    """The model's last text."""
    reason: str = ""
    """The error, or what can be done next."""


class TextDelivered(Struct, frozen=True):
    """The model wrote some text; ``is_end`` if its text is complete."""

    text: str
    is_end: bool = True


class ToolStarted(Struct, frozen=True):
    """A tool starts."""

    call: ToolCall


class ToolFinished(Struct, frozen=True):
    """A tool finished, and its result is in the log."""

    call: ToolCall
    result: ToolResult


AgentEvent: TypeAlias = TextDelivered | ToolStarted | ToolFinished
AgentListener: TypeAlias = Callable[[AgentEvent], object]


class AgentRun:
    """One agent at work in one session."""

    def __init__(
        self,
        session: Session,
        workspace: Workspace,
        *,
        listener: AgentListener,
        streams_text: bool,
    ) -> None:
        self.session = session
        self.listener = listener
        self.streams_text = streams_text
        self._ask_user = workspace.ask_permission
        self.workspace = replace(workspace, ask_permission=self._ask_permission)
        self._is_waiting_for_permission = False
        self.repetition = RepetitionDetector()
        self.steps = 0
        self.text = ""

    async def run_task(self, task: str, max_steps: int) -> TaskOutcome:
        """Work on ``task`` and return how that ended; with an empty task, continue where the log ends."""
        # Before the task is appended: calls must have their results right after them.
        await self._resume_open_calls()
        if task:
            await self.session.append(task)
        if is_conversation_answered(self.session.journal.state):
            return self.make_outcome("done", "there is no open task in this session; give a task")
        while self.steps < max_steps:
            message_count = len(self.session.journal.state.history.messages)
            answer = await self._ask_model()
            calls = self._get_open_calls()
            await self._run_calls(calls)
            if self.repetition.is_stuck:
                reason = f"the model made the same call {STOP_AFTER} times; tell it what to do instead"
                return self.make_outcome("repeating", reason)
            # With server-side tools a provider may pause, and wants to be asked again.
            is_paused = answer.stop_reason == "pause"
            if not calls and not is_paused and not self._has_new_user_message(message_count):
                return self.make_outcome("done", _describe_incomplete_answer(answer))
        reason = f"the limit of {max_steps:,} steps is reached; continue the session to allow as many again"
        return self.make_outcome("steps", reason)

    def make_outcome(self, stop: AgentStopReason, reason: str = "") -> TaskOutcome:
        """Build the outcome of the work so far."""
        return TaskOutcome(stop, self.steps, self.text, reason)

    async def _ask_model(self) -> ParsedAnswer:
        """Return the model's next answer; its text is passed to the listener, as it arrives if ``streams_text``."""
        streamed_chars = 0
        # A quiet run yields no events and can therefore retry an answer that broke off. Events are needed only if the
        # text is to be shown as it arrives.
        async with self.session.run(quiet=not self.streams_text) as run:
            async for event in run:
                # A run yields the provider's events in the API's own format; only those with text of the answer are
                # shown, not thinking and calls.
                text_piece = get_event_text(self.session.api, event)
                streamed_chars += len(text_piece)
                if text_piece:
                    self.listener(TextDelivered(text_piece, is_end=False))
        self.steps += 1
        text = run.answer.message.text
        if text:
            self.text = text
            # If the text was streamed, the listener has it already and only needs to know that it is complete.
            self.listener(TextDelivered("" if streamed_chars else text))
        return run.answer

    def _get_open_calls(self) -> tuple[ToolCall, ...]:
        return find_open_calls(self.session.journal.state)

    def _has_new_user_message(self, message_count: int) -> bool:
        """Return whether a user's message arrived since there were ``message_count``, and is not answered yet."""
        messages = self.session.journal.state.history.messages
        return len(messages) > message_count and messages[-1].role == "user"

    async def _resume_open_calls(self) -> None:
        """Complete the calls that are open where the log ends; results on other branches are used if there are any."""
        journal = self.session.journal
        calls = self._get_open_calls()
        if calls and journal.leaf is not None:
            find_results = partial(
                find_results_on_other_branches,
                journal.store,
                journal.key,
                journal.leaf,
                calls,
            )
            for call, tool_result in await self.session.resources.run_in_worker(find_results):
                await self._append_result(call, tool_result)
        await self._run_calls(self._get_open_calls(), is_resumed=True)

    async def _ask_permission(self, command: str) -> bool:
        """Ask the user whether a command may run; until they allow it the call does not count as begun."""
        self._is_waiting_for_permission = True
        allowed = await self._ask_user(command)
        self._is_waiting_for_permission = False
        return allowed

    async def _run_calls(self, calls: tuple[ToolCall, ...], *, is_resumed: bool = False) -> None:
        """Run ``calls`` one after the other; if somebody stops that, record it for those without a result.

        With ``is_resumed`` the first of them may have been running when the program ended.
        """
        remaining_calls = list(calls)
        try:
            while remaining_calls:
                call = remaining_calls[0]
                self._is_waiting_for_permission = False
                self.listener(ToolStarted(call))
                may_have_run = is_resumed and len(remaining_calls) == len(calls)
                spec = find_tool_spec(call.name)
                if may_have_run and spec is not None and not spec.is_repeatable:
                    tool_result = make_tool_result(call, LOST_RESULT_TEXT, is_error=True)
                else:
                    tool_result = await run_tool_call(self.workspace, call)
                # Removed before the result is appended, which no cancellation can prevent any more.
                await self._append_result(remaining_calls.pop(0), tool_result)
        except get_cancelled_exc_class():
            # An API refuses calls without results, so each gets one.
            for number, call in enumerate(remaining_calls):
                has_begun = number == 0 and not self._is_waiting_for_permission
                text = STOPPED_RESULT_TEXT if has_begun else NOT_RUN_RESULT_TEXT
                await self._append_result(call, make_tool_result(call, text, is_error=True))
            raise

    async def _append_result(self, call: ToolCall, tool_result: ToolResult) -> None:
        """Append a result to the log, even if the work is stopped meanwhile."""
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
    """Work on ``task`` in ``session`` and return how that ended, also if a provider, the model or the store failed.

    Without a task the session continues where it ended. ``scope.cancel()`` stops the work: everything done is in the
    log, and the session can continue. With ``streams_text`` the listener gets text as it arrives; an answer that breaks
    off is then not retried.
    """
    agent_run = AgentRun(session, workspace, listener=listener, streams_text=streams_text)
    with scope or CancelScope():
        try:
            # Inside of the scope, so that waiting for another agent can be stopped too.
            async with hold_agent_lock(session):
                return await agent_run.run_task(task, max_steps)
        except HoldfastError as error:
            return agent_run.make_outcome("error", str(error))
    return agent_run.make_outcome("aborted", "stopped; continue the session to go on")


def find_open_calls(state: ConversationState) -> tuple[ToolCall, ...]:
    """Return the calls of the newest answer that have no result yet. An answer that broke off has no open calls."""
    open_ids = list(state.history.open_call_ids)
    if not open_ids:
        return ()
    # From the end, since ids may repeat within an answer and results come in order: the last ones are open.
    open_calls: list[ToolCall] = []
    for call in reversed(state.history.messages[find_newest_answer_index(state, 0)].calls):
        if open_ids and call.id == open_ids[-1]:
            open_calls.append(call)
            open_ids.pop()
    return tuple(reversed(open_calls))


def is_conversation_answered(state: ConversationState) -> bool:
    """Return whether there is nothing to answer: no message at all, or a complete answer without open calls."""
    last = len(state.history.sized_messages) - 1
    if last < 0:
        return True
    role = state.history.messages[last].role
    # A system message asks for nothing.
    if role == "system":
        return True
    is_whole_answer = role == "assistant" and last not in state.history.failed_answer_indexes
    return is_whole_answer and not find_open_calls(state)


def _describe_incomplete_answer(answer: ParsedAnswer) -> str:
    """Return why the model's last answer may be incomplete, or ``""``."""
    explanations = {
        "length": "the answer was cut at its limit",
        "refusal": "the model refused to answer",
        "content_filter": "the answer was cut by a content filter",
    }
    if answer.stop_reason in explanations:
        return explanations[answer.stop_reason]
    if answer.message.text:
        return ""
    return "the model ended without any text; ask again if something is missing"


@asynccontextmanager
async def hold_agent_lock(session: Session) -> AsyncIterator[None]:
    """Be the only agent at work in ``session`` for the duration of the block.

    Raises ``StoreLocked`` if another one is and does not end within the store's ``LEASE_WAIT`` seconds.
    """
    with ExitStack() as stack:
        lease = session.resources.store.hold_lease(LEASE_PREFIX + session.key)
        try:
            await to_thread.run_sync(stack.enter_context, lease)
        except StoreLocked:
            message = f"another agent is working in session {session.key!r}; wait until it has ended"
            raise StoreLocked(message) from None
        yield


class FinishedCall(Struct, frozen=True):
    """A finished tool call. Calls are equal only with equal results: a result that changes is progress."""

    tool: str
    arguments: str
    result: str


class RepetitionDetector:
    """Notices when the model makes the same call again and again, among its newest calls."""

    def __init__(self) -> None:
        self._newest: deque[FinishedCall] = deque(maxlen=COMPARED_CALLS)
        self.repeat_count = 0
        """How often the newest call was made with the same result, among those that are compared."""

    def add_call(self, call: ToolCall, result: ToolResult) -> str:
        """Add a call and its result; return a note for the model if it repeats itself, else ``""``."""
        finished_call = FinishedCall(call.name, call.arguments, get_result_text(result))
        self._newest.append(finished_call)
        self.repeat_count = self._newest.count(finished_call)
        if self.repeat_count < WARN_AFTER:
            return ""
        return f"\n[call {self.repeat_count} of the same with the same result; it will not change: do something else]"

    @property
    def is_stuck(self) -> bool:
        """Whether the model goes round in circles."""
        return self.repeat_count >= STOP_AFTER
