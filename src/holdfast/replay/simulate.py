"""The simulation: at each recorded answer, the request a policy would have sent for it.

A policy is online: it sees the messages before the answer and the usage of the requests it sent itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

from msgspec import Struct

from holdfast.model.branch import Branch, extend
from holdfast.model.entries import Answer, Entry, Said, Usage
from holdfast.model.plan import Plan
from holdfast.model.slots import Slot
from holdfast.model.target import Target, World
from holdfast.policy.pipeline import Policy, advance, send_slots
from holdfast.replay.session import Session, Step

TokenCount: TypeAlias = Callable[[Slot], int]
"""Tokens of one message, by some tokenizer."""


class Sent(Struct, frozen=True):
    """One request of the simulation."""

    step: Step
    plan: Plan
    slots: list[Slot]
    tokens: int
    """Of the whole request, as the judge counts."""
    seconds: float
    """What planning took."""
    cold: bool = False


class Judge:
    """Counts tokens as the provider would: a tokenizer the policy does not know, times the session's own factor."""

    def __init__(self, count: TokenCount, factor: float, frame: int) -> None:
        self._count = count
        self._factor = factor
        self._frame = frame
        self._known: dict[bytes, int] = {}

    def slot(self, slot: Slot) -> int:
        """Return the tokens of one message as sent."""
        tokens = self._known.get(slot.digest)
        if tokens is None:
            tokens = self._known[slot.digest] = round(self._factor * self._count(slot))
        return tokens

    def request(self, slots: list[Slot]) -> int:
        """Return the tokens of a request: its messages and the frame."""
        return self._frame + sum(map(self.slot, slots))


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
        began = time.perf_counter()
        plan = advance(branch, target, policy, World("cold" if cold else "warm", idle=idle))
        seconds = time.perf_counter() - began
        slots = send_slots(plan)
        tokens = judge.request(slots)
        yield Sent(step, plan, slots, tokens, seconds, cold)
        usage = Usage(tokens, judge.slot(session.slots[step.index]))
        branch = extend(plan.branch, Entry("", None, Answer(plan.branch.basis, usage)))
        last = step.at if step.at is not None else last
