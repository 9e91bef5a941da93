"""The simulation: for each recorded answer, the request that a policy would have sent.

A policy sees only the messages before the answer, and the usage of the requests it sent itself.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.sized_message import SizedMessage
from holdfast.normalize.projection import build_messages_to_send, normalize_projection
from holdfast.planning.pipeline import Policy, plan_request
from holdfast.replay.session import AnswerStep, ReplaySession
from holdfast.replay.written_summaries import ModelSummaries, WrittenSummary
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import AnswerEntry, Entry, MessageEntry, Usage
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, Target
from holdfast.state.view import apply_normalization, build_projection

MessageCounter: TypeAlias = Callable[[SizedMessage], int]
"""Counts the tokens of one message as sent, with the tokenizer that judges."""


class SimulatedRequest(Struct, frozen=True):
    """One request of the simulation."""

    step: AnswerStep
    plan: Plan
    sized_messages: list[SizedMessage]
    tokens: int
    """Of the whole request, counted by the tokenizer that judges."""
    seconds: float
    """Time that planning took."""
    before_compaction: list[SizedMessage] = []
    """The request without this plan's compaction, if there is one: the call for a summary would have sent it."""
    written_summary: WrittenSummary | None = None
    """What came of asking a model for a summary; None if none was asked."""


class ProviderTokenCounter(Struct, frozen=True):
    """Counts tokens as the provider would: with a tokenizer and a factor that the policy does not know."""

    count: MessageCounter
    setup_tokens: int

    def count_request(self, messages: list[SizedMessage]) -> int:
        """Return the tokens of a request: its messages and the setup."""
        return self.setup_tokens + sum(map(self.count, messages))


def simulate_session(
    session: ReplaySession,
    policy: Policy,
    target: Target,
    judge: ProviderTokenCounter,
    summaries: ModelSummaries | None = None,
) -> Iterator[SimulatedRequest]:
    """Yield the requests that ``policy`` would have sent, in order.

    With ``summaries`` a model writes the summaries that the policy asks for; an extract takes the place of one that
    fails.
    """
    state = ConversationState()
    next_index = 0
    last_answer_at: int | None = None
    for step in session.steps:
        for sized_message in session.messages[next_index : step.index]:
            state = apply_entry(state, Entry("", None, MessageEntry(sized_message)))
        next_index = step.index
        if not len(state.history.sized_messages):
            continue
        idle_seconds = 0
        if step.at is not None and last_answer_at is not None:
            idle_seconds = (step.at - last_answer_at) // 1000
        is_cold = idle_seconds > target.cache_rules.ttl_seconds
        inputs = PlanInputs("cold" if is_cold else "warm", idle_seconds=idle_seconds)
        simulated_request = _plan_and_count(state, step, policy, target, judge, inputs, summaries)
        yield simulated_request
        # The provider reports usage for the request that was sent, so the policy may calibrate on it.
        state = simulated_request.plan.state
        usage = Usage(simulated_request.tokens, judge.count(session.messages[step.index]))
        answer = AnswerEntry(state.last_request.prefix_digest, usage)
        state = apply_entry(state, Entry("", None, answer))
        if step.at is not None:
            last_answer_at = step.at


def _plan_and_count(
    state: ConversationState,
    step: AnswerStep,
    policy: Policy,
    target: Target,
    judge: ProviderTokenCounter,
    inputs: PlanInputs,
    summaries: ModelSummaries | None,
) -> SimulatedRequest:
    if summaries is not None:
        inputs = replace(inputs, can_summarize=True)
    plan, seconds = _plan_timed(state, target, policy, inputs)
    written_summary = None
    if summaries is not None and plan.summary_request is not None:
        request = plan.summary_request
        head = state.history.sized_messages.slice(request.start, request.stop)
        written_summary = summaries.write(head, request, policy)
        final_inputs = replace(inputs, can_summarize=False, summary=written_summary.result)
        plan, seconds_after = _plan_timed(state, target, policy, final_inputs)
        seconds += seconds_after
    # Only planning is timed: building the messages costs the same with any policy.
    sized_messages = build_messages_to_send(plan)
    before_compaction: list[SizedMessage] = []
    if plan.compaction is not None:
        before_compaction = _project_undecided(state, target)
    tokens = judge.count_request(sized_messages)
    return SimulatedRequest(step, plan, sized_messages, tokens, seconds, before_compaction, written_summary)


def _plan_timed(
    state: ConversationState,
    target: Target,
    policy: Policy,
    inputs: PlanInputs,
) -> tuple[Plan, float]:
    """Return the plan of the next request, and the seconds that planning took.

    As in ``timeit``, the garbage collector waits meanwhile: it would search all that the replay itself holds.
    """
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        started_at = time.perf_counter()
        plan = plan_request(state, target, policy, inputs)
        return plan, time.perf_counter() - started_at
    finally:
        if was_collecting:
            gc.enable()


def _project_undecided(state: ConversationState, target: Target) -> list[SizedMessage]:
    """Return the messages of a request for ``state`` without any new decision."""
    repair, _ = normalize_projection(state, target.dialect)
    return apply_normalization(build_projection(state), repair)
