"""Plan the next request of a plugin's conversation, and say which of its messages to send, and how.

The session's log keeps what was decided, so a message that was shortened once is the same in every later call, also
after a restart, and the provider's prompt cache holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast import events
from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.log.journal import PreparedRequest
from holdfast.hosts.given_conversation import list_shown_messages, plan_given_conversation
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text
from holdfast.messages.sized_message import SizedMessage
from holdfast.proxy.conversation.open_branches import BranchPool
from holdfast.proxy.hosts.plan_request import PlanRequest
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, Target
from holdfast.state.view import build_projection

HOST_ORIGIN = "the host's"
"""``window_source`` of a window that the plugin names."""


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
        inputs = PlanInputs(force_compaction=request.wants_compaction)
        messages = request.conversation.messages
        hold_branch = branches.continue_branch(request.session_key, messages, accepts_answers=True)
        async with hold_branch as session:
            journal = session.journal
            known_decisions = journal.state.view.active_decisions
            prepared_request = await self._resources.run_in_worker(
                lambda: plan_given_conversation(journal, request.conversation, target, inputs)
            )
        plan = prepared_request.plan
        # A call that is repeated gets the plan of the first one, whose decisions the log had before.
        has_decided = plan.state.view.active_decisions != known_decisions
        if has_decided:
            self._emit_decisions(request.session_key, plan)
        is_compacted = has_decided and plan.compaction is not None
        return _write_messages(request, prepared_request, is_compacted=is_compacted)

    def leave_unchanged(self, request: PlanRequest, notice: str) -> PlannedMessages:
        """Return all messages of ``request`` as they are, and why; nothing was stored."""
        tokens = _count_tokens(request.conversation.messages, self._resolve_target(request))
        rows = [{"handle": handle} for handle in request.handles]
        return PlannedMessages(rows, tokens, tokens, notices=[notice])

    def _resolve_target(self, request: PlanRequest) -> Target:
        target = self._resources.resolve_target(request.api, request.model)
        limits = target.limits
        if request.window is not None:
            max_input = min(limits.max_input, request.window) if limits.max_input else None
            limits = replace(limits, window=request.window, max_input=max_input, window_source=HOST_ORIGIN)
        return replace(target, limits=limits)

    def _emit_decisions(self, session_key: str, plan: Plan) -> None:
        saved_tokens = sum(edit.saves for edit in plan.record)
        if plan.record:
            self._resources.emit_event(events.EditsDecided(session_key, "plugin", len(plan.record), saved_tokens))
        if plan.compaction is not None:
            ended = events.CompactionEnded(session_key, tokens_before=plan.before, tokens_after=plan.after)
            self._resources.emit_event(ended)


def _write_messages(request: PlanRequest, prepared_request: PreparedRequest, *, is_compacted: bool) -> PlannedMessages:
    """Return what the request shows, in terms of the plugin's own messages."""
    plan = prepared_request.plan
    rows: list[dict[str, Any]] = []
    for shown in list_shown_messages(prepared_request, request.conversation.messages):
        if shown.index is None:
            rows.append(_write_new_message(shown.message))
        else:
            rows.append(_write_own_message(request, shown.index, shown.message))
    return PlannedMessages(
        rows,
        _count_tokens(request.conversation.messages, prepared_request.target),
        _count_tokens(build_projection(plan.state), prepared_request.target),
        request.session_key,
        is_compacted,
        [notice.why for notice in plan.notices],
    )


def _write_own_message(request: PlanRequest, index: int, shown: Message) -> dict[str, Any]:
    """Return message ``index`` of the plugin with the texts that ``shown`` has in place of its own."""
    row: dict[str, Any] = {"handle": request.handles[index]}
    given = request.conversation.messages[index].message
    if shown is given:
        return row
    if shown.text != given.text:
        row["text"] = shown.text
    changed_results: list[dict[str, Any]] = []
    for result, given_result in zip(shown.results, given.results, strict=True):
        text = get_result_text(result)
        if text != get_result_text(given_result):
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
