"""The simulation: at each recorded answer, the request a policy would have sent for it.

A policy is online: it sees the messages before the answer and the usage of the requests it sent itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

from msgspec import Struct

from holdfast.messages.sized_message import Slot
from holdfast.normalize.projection import repair_projection, send_slots
from holdfast.planning.pipeline import Policy, advance
from holdfast.replay.session import Session, Step
from holdfast.state.branch.branch import Branch, extend
from holdfast.state.branch.view import patched, project
from holdfast.state.entries import Answer, Entry, Said, Usage
from holdfast.state.plan import Plan
from holdfast.state.target import Target, World

TokenCount: TypeAlias = Callable[[Slot], int]
"""Tokens of one message as sent, as the judge counts them."""


class Sent(Struct, frozen=True):
    """One request of the simulation."""

    step: Step
    plan: Plan
    slots: list[Slot]
    tokens: int
    """Of the whole request, as the judge counts."""
    seconds: float
    """What planning took."""
    before: list[Slot] = []
    """The request as it stood before this plan's compaction, if there is one: valid, so that a cache knows it."""


class Judge(Struct, frozen=True):
    """Counts tokens as the provider would: by a tokenizer and a factor that the policy does not know."""

    count: TokenCount
    frame: int

    def request(self, slots: list[Slot]) -> int:
        """Return the tokens of a request: its messages and the frame."""
        return self.frame + sum(map(self.count, slots))


def simulate(session: Session, policy: Policy, target: Target, judge: Judge) -> Iterator[Sent]:
    """Yield the requests that ``policy`` would have sent, in order."""
    branch = Branch()
    fed = 0
    last: int | None = None
    for step in session.steps:
        for slot in session.slots[fed : step.index]:
            branch = extend(branch, Entry("", None, Said(slot)))
        fed = step.index
        if not len(branch.slots):
            continue
        idle = (step.at - last) // 1000 if step.at is not None and last is not None else 0
        cold = idle > target.cache.ttl
        sent = _send(branch, step, policy, target, judge, World("cold" if cold else "warm", idle=idle))
        yield sent
        usage = Usage(sent.tokens, judge.count(session.slots[step.index]))
        branch = extend(sent.plan.branch, Entry("", None, Answer(sent.plan.branch.basis, usage)))
        last = step.at if step.at is not None else last


def _send(branch: Branch, step: Step, policy: Policy, target: Target, judge: Judge, world: World) -> Sent:
    began = time.perf_counter()
    plan = advance(branch, target, policy, world)
    seconds = time.perf_counter() - began
    slots = send_slots(plan)
    before = _as_it_stood(branch, target) if plan.compaction is not None else []
    return Sent(step, plan, slots, judge.request(slots), seconds, before)


def _as_it_stood(branch: Branch, target: Target) -> list[Slot]:
    """Return the request that shows ``branch`` without a new decision."""
    repair, _ = repair_projection(branch, target.dialect)
    return patched(project(branch), repair)
