"""The simulation: at each recorded answer, the request a policy would have sent for it.

A policy is online: it sees the messages before the answer and the usage of the requests it sent itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

from msgspec import Struct

from holdfast.messages.sized_message import SizedMessage
from holdfast.normalize.projection import build_messages_to_send, normalize_projection
from holdfast.planning.pipeline import Policy, plan_request
from holdfast.replay.session import AnswerStep, ReplaySession
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import AnswerEntry, Entry, MessageEntry, Usage
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, Target
from holdfast.state.view import apply_normalization, build_projection

MessageCounter: TypeAlias = Callable[[SizedMessage], int]
"""Tokens of one message as sent, as the judge counts them."""


class SimulatedRequest(Struct, frozen=True):
    """One request of the simulation."""

    step: AnswerStep
    plan: Plan
    sized_messages: list[SizedMessage]
    tokens: int
    """Of the whole request, as the judge counts."""
    seconds: float
    """What planning took."""
    before_compaction: list[SizedMessage] = []
    """The request as it stood before this plan's compaction, if there is one: valid, so that a cache knows it."""


class ProviderTokenCounter(Struct, frozen=True):
    """Counts tokens as the provider would: by a tokenizer and a factor that the policy does not know."""

    count: MessageCounter
    setup_tokens: int

    def count_request(self, messages: list[SizedMessage]) -> int:
        """Return the tokens of a request: its messages and the frame."""
        return self.setup_tokens + sum(map(self.count, messages))


def simulate_session(
    session: ReplaySession, policy: Policy, target: Target, judge: ProviderTokenCounter
) -> Iterator[SimulatedRequest]:
    """Yield the requests that ``policy`` would have sent, in order."""
    state = ConversationState()
    next_index = 0
    last: int | None = None
    for step in session.steps:
        for sized_message in session.messages[next_index : step.index]:
            state = apply_entry(state, Entry("", None, MessageEntry(sized_message)))
        next_index = step.index
        if not len(state.history.sized_messages):
            continue
        idle = (step.at - last) // 1000 if step.at is not None and last is not None else 0
        cold = idle > target.cache_rules.ttl_seconds
        simulated_request = _plan_and_count(
            state, step, policy, target, judge, PlanInputs("cold" if cold else "warm", idle_seconds=idle)
        )
        yield simulated_request
        usage = Usage(simulated_request.tokens, judge.count(session.messages[step.index]))
        state = apply_entry(
            simulated_request.plan.state,
            Entry("", None, AnswerEntry(simulated_request.plan.state.last_request.prefix_digest, usage)),
        )
        last = step.at if step.at is not None else last


def _plan_and_count(
    state: ConversationState,
    step: AnswerStep,
    policy: Policy,
    target: Target,
    judge: ProviderTokenCounter,
    inputs: PlanInputs,
) -> SimulatedRequest:
    began = time.perf_counter()
    plan = plan_request(state, target, policy, inputs)
    seconds = time.perf_counter() - began
    sized_messages = build_messages_to_send(plan)
    before = _project_undecided(state, target) if plan.compaction is not None else []
    return SimulatedRequest(step, plan, sized_messages, judge.count_request(sized_messages), seconds, before)


def _project_undecided(state: ConversationState, target: Target) -> list[SizedMessage]:
    """Return the request that shows ``state`` without a new decision."""
    repair, _ = normalize_projection(state, target.dialect)
    return apply_normalization(build_projection(state), repair)
