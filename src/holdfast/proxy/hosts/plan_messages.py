"""Plan the next request of a plugin's conversation, and say which of its messages to send, and how.

The session's log keeps what was decided, so a message that was shortened once is the same in every later call, also
after a restart, and the provider's prompt cache holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import ceil
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast import events
from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.log.journal import Journal, PreparedRequest
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text
from holdfast.messages.sized_message import SizedMessage
from holdfast.proxy.conversation.open_branches import BranchPool
from holdfast.proxy.hosts.plan_request import PlanRequest
from holdfast.state.calibration.usage import get_cache_lifetime
from holdfast.state.entries import RequestSetup, Usage
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, Target
from holdfast.state.view import build_projection, list_projection_origins

HOST_ORIGIN = "the host's"
"""``window_source`` of a window that the plugin names."""
SETUP_TOLERANCE = 0.25
"""Share by which a host's size of system prompt and tools may differ from the last one without being another setup:
hosts estimate it anew for each request. Chosen by judgement."""
REGROUPED_NOTICE = "the stored conversation groups its messages differently, so they stay as they are"
"""Notice if the messages of the log do not correspond to the plugin's one by one."""
SUMMARY_ORIGIN = -1
"""Where ``list_projection_origins`` says that a summary came from."""


class PlannedMessages(Struct, frozen=True, rename="camel"):
    """The answer of ``POST /v1/plan``. Tokens are our estimates of the messages, without system prompt and tools."""

    messages: list[dict[str, Any]]
    """What to send, in order: a ``handle`` alone is the host's message as it is; ``text`` and ``toolResults`` beside it
    replace those of the host's message; without a handle it is a new message."""
    tokens_before: int
    tokens_after: int
    session_key: str = ""
    """The session in the store, which ``holdfast recall`` and the other commands take; empty if nothing is stored."""
    is_compacted: bool = False
    """Whether this call made a compaction."""
    notices: list[str] = []


class HostPlanner:
    """Plans the requests of plugins."""

    def __init__(self, resources: EngineResources) -> None:
        self._resources = resources

    async def plan(self, request: PlanRequest, branches: BranchPool) -> PlannedMessages:
        """Append the new messages to the log, decide what the next request shows of all, and commit that.

        Raises ``WindowTooSmall`` if the messages cannot be made to fit, and ``StoreError`` if the log cannot be read or
        written.
        """
        target = self._resolve_target(request)
        hold_branch = branches.continue_branch(request.session_key, request.messages, accepts_answers=True)
        async with hold_branch as session:
            journal = session.journal
            known_decisions = journal.state.view.active_decisions
            prepared_request = await self._resources.run_in_worker(lambda: _plan_and_commit(journal, request, target))
        plan = prepared_request.plan
        if len(plan.state.history.sized_messages) != len(request.messages):
            return self.leave_unchanged(request, REGROUPED_NOTICE, request.session_key)
        # A call that is repeated gets the plan of the first one, whose decisions are known.
        is_new = plan.state.view.active_decisions != known_decisions
        if is_new:
            self._emit_decisions(request.session_key, plan)
        is_compacted = is_new and plan.compaction is not None
        return _write_messages(request, prepared_request, is_compacted=is_compacted)

    def leave_unchanged(self, request: PlanRequest, notice: str, session_key: str = "") -> PlannedMessages:
        """Return all messages of ``request`` as they are, and why. Without a ``session_key`` nothing is stored."""
        tokens = _count_tokens(request.messages, self._resolve_target(request))
        rows = [{"handle": handle} for handle in request.handles]
        return PlannedMessages(rows, tokens, tokens, session_key, notices=[notice])

    def _resolve_target(self, request: PlanRequest) -> Target:
        target = self._resources.resolve_target(request.api, request.model)
        limits = target.limits
        if request.window is not None:
            max_input = min(limits.max_input, request.window) if limits.max_input else None
            limits = replace(limits, window=request.window, max_input=max_input, window_source=HOST_ORIGIN)
        return replace(target, limits=limits, setup=RequestSetup(tokens=request.setup_tokens))

    def _emit_decisions(self, session_key: str, plan: Plan) -> None:
        saved_tokens = sum(edit.saves for edit in plan.record)
        if plan.record:
            self._resources.emit_event(events.EditsDecided(session_key, "plugin", len(plan.record), saved_tokens))
        if plan.compaction is not None:
            ended = events.CompactionEnded(session_key, tokens_before=plan.before, tokens_after=plan.after)
            self._resources.emit_event(ended)


def _plan_and_commit(journal: Journal, request: PlanRequest, target: Target) -> PreparedRequest:
    """Append the new messages, and plan and commit the next request. Called in the worker."""
    with journal.batch_writes():
        idle_seconds = journal.get_idle_seconds()
        is_cold = idle_seconds > get_cache_lifetime(journal.state, target.cache_rules)
        _record_answer(journal, request)
        # The answer names the plugin's messages one by one, so the branch must have the same ones.
        journal.follow_conversation(request.messages, allows_regrouping=False)
        journal.describe_session(target.model)
        target = replace(target, setup=_choose_setup(journal.state.setup, request.setup_tokens))
        inputs = PlanInputs(
            cache_state="cold" if is_cold else "warm",
            idle_seconds=idle_seconds,
            force_compaction=request.wants_compaction,
            is_breaker_cooled=journal.is_breaker_cooled(),
        )
        return journal.prepare_request(target, inputs)


def _choose_setup(known_setup: RequestSetup, setup_tokens: int) -> RequestSetup:
    """Return the setup of the next request: the known one, unless its size has changed too much for an estimate.

    A new setup means that the provider's cache holds nothing of the request.
    """
    difference = abs(setup_tokens - known_setup.tokens)
    if difference <= SETUP_TOLERANCE * known_setup.tokens:
        return known_setup
    return RequestSetup(tokens=setup_tokens)


def _record_answer(journal: Journal, request: PlanRequest) -> None:
    """Record the answer to the request that was planned last, with its usage, if it is the first new message.

    What a provider counted makes our estimates better, and the commands show what a session cost. A plugin that had no
    answer from us in time sent everything; the calibration takes no count that is so far from our estimate.
    """
    state = journal.state
    known_count = len(state.history.sized_messages)
    is_answer_due = known_count > 0 and known_count == state.last_request.seen_count
    has_new_messages = len(request.messages) > known_count
    if not is_answer_due or not has_new_messages:
        return
    is_continued = journal.match_conversation(request.messages).one_to_one_count == known_count
    if not is_continued:
        return
    answer, usage = request.messages[known_count], request.usages[known_count]
    if usage is None or answer.message.role != "assistant":
        return
    prompt_tokens = usage.input + usage.cache_read + usage.cache_write
    journal.record_answer(answer, Usage(prompt_tokens, usage.output, usage.cache_read, usage.cache_write))


def _write_messages(request: PlanRequest, prepared_request: PreparedRequest, *, is_compacted: bool) -> PlannedMessages:
    """Return what the projection shows, in terms of the plugin's own messages.

    Not normalized for an API: that is the host's own work, which knows what its messages hold beside the transcript.
    """
    plan = prepared_request.plan
    projection = build_projection(plan.state)
    origins = list_projection_origins(plan.state)
    shown_counts = Counter(origins)
    rows: list[dict[str, Any]] = []
    for sized_message, origin in zip(projection, origins, strict=True):
        row = None
        if origin != SUMMARY_ORIGIN and shown_counts[origin] == 1:
            row = _write_own_message(request, origin, sized_message.message)
        rows.append(_write_new_message(sized_message.message) if row is None else row)
    return PlannedMessages(
        rows,
        _count_tokens(request.messages, prepared_request.target),
        _count_tokens(projection, prepared_request.target),
        request.session_key,
        is_compacted,
        [notice.why for notice in plan.notices],
    )


def _write_own_message(request: PlanRequest, index: int, shown: Message) -> dict[str, Any] | None:
    """Return message ``index`` of the plugin with the texts that ``shown`` has in place of its own.

    None if the two differ in anything but texts.
    """
    row: dict[str, Any] = {"handle": request.handles[index]}
    # Compared with what the plugin sent: the log may hold a large text shortened from the start.
    original = request.messages[index].message
    if shown is original or shown == original:
        return row
    has_same_calls = [call.id for call in shown.calls] == [call.id for call in original.calls]
    has_same_results = [result.call_id for result in shown.results] == [result.call_id for result in original.results]
    if shown.role != original.role or not has_same_calls or not has_same_results:
        return None
    if shown.text != original.text:
        row["text"] = shown.text
    changed_results: list[dict[str, Any]] = []
    for result, original_result in zip(shown.results, original.results, strict=True):
        text = get_result_text(result)
        if text != get_result_text(original_result):
            changed_results.append({"tool_use_id": result.call_id, "text": text})
    if changed_results:
        row["toolResults"] = changed_results
    return row


def _write_new_message(message: Message) -> dict[str, Any]:
    """Return a message that the plugin does not have, as a message of a transcript without a handle."""
    row: dict[str, Any] = {"role": "assistant" if message.role == "assistant" else "user"}
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    row["text"] = "\n\n".join(texts)
    if message.calls:
        row["toolUses"] = [
            {"tool_use_id": call.id, "tool": call.name, "input": Raw(call.arguments.encode())} for call in message.calls
        ]
    if message.results:
        row["toolResults"] = [
            {"tool_use_id": result.call_id, "text": get_result_text(result), "isError": result.is_error}
            for result in message.results
        ]
    return row


def _count_tokens(messages: Iterable[SizedMessage], target: Target) -> int:
    """Return the tokens of ``messages`` as the target's model counts them, before any usage was reported."""
    return ceil(sum(message.tokens for message in messages) * target.prior_ratio)
