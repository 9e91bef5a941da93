"""An agent loop that plans each of its requests, and the log it would write: what properties are stated over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.messages.message import Message
from holdfast.messages.size.tokens import measure
from holdfast.messages.sized_message import Slot
from holdfast.normalize.projection import send_slots
from holdfast.planning.pipeline import Policy, advance
from holdfast.providers.request_body import body
from holdfast.state.branch.branch import Branch, extend
from holdfast.state.branch.view import project
from holdfast.state.entries import Answer, Body, Decision, Entry, Request, Said, Usage
from holdfast.state.plan import Plan
from holdfast.state.target import Target, World

_MESSAGES = Decoder(dict[str, Raw])
_LIST = Decoder(list[Raw])


class Step(Struct, frozen=True):
    """One request of the loop: ``entries`` is the log before it, ``branch`` what the loop held then."""

    count: int
    """How many messages were said."""
    entries: tuple[Entry, ...]
    branch: Branch
    world: World
    plan: Plan

    @property
    def slots(self) -> list[Slot]:
        """What is sent."""
        return send_slots(self.plan)

    @property
    def shown(self) -> int:
        """How many slots the projection has before its repairs."""
        return len(project(self.plan.branch))


def points(messages: Sequence[Message]) -> list[int]:
    """Return after how many messages an agent loop calls its model: before each answer, and at the end."""
    places = [index for index, message in enumerate(messages) if message.role == "assistant" and index]
    return [*places, len(messages)] if messages and messages[-1].role != "assistant" else places


def drive(
    messages: Sequence[Message],
    target: Target,
    policy: Policy = Policy(),
    *,
    at: Sequence[int] | None = None,
    usage: Callable[[Plan], int] | None = None,
    worlds: Sequence[World] = (),
    again: Callable[[Branch], Branch] = lambda branch: branch,
) -> list[Step]:
    """Return the requests of a loop over ``messages`` that plans each from what it held after the one before.

    ``at`` are the numbers of messages at which it asks, those of ``points`` by default. ``usage`` tells the input
    tokens that are reported back; ``worlds`` are taken in turn; ``again`` is done to the branch before each request.
    """
    branch, entries = Branch(), [Entry("0", None, target.frame, 0)]
    branch = extend(branch, entries[0])
    steps: list[Step] = []
    for number, count in enumerate(points(messages) if at is None else at):
        for message in messages[len(branch.slots) : count]:
            entries.append(_next(entries, Said(measure(message))))
            branch = extend(branch, entries[-1])
        branch = again(branch)
        world = worlds[number % len(worlds)] if worlds else World()
        plan = advance(branch, target, policy, world)
        steps.append(Step(count, tuple(entries), branch, world, plan))
        entries += recorded(entries, plan, count, target.model)
        branch = plan.branch
        if usage is not None:
            entries.append(_next(entries, Answer(branch.basis, Usage(usage(plan), 1))))
            branch = extend(branch, entries[-1])
    return steps


def recorded(entries: Sequence[Entry], plan: Plan, count: int, model: str) -> list[Entry]:
    """Return what a store appends to ``entries`` for ``plan``: a decision, a compaction, a request."""
    out: list[Entry] = []
    if plan.record:
        out.append(_next([*entries, *out], Decision(plan.record)))
    if plan.compaction is not None:
        out.append(_next([*entries, *out], plan.compaction))
    asked = Request(plan.branch.basis, count, model, plan.branch.window, plan.branch.api)
    return [*out, _next([*entries, *out], asked)]


def _next(entries: Sequence[Entry], said: Body) -> Entry:
    last = entries[-1]
    return Entry(str(last.seq + 1), last.id, said, last.seq + 1)


def wires(target: Target, slots: Sequence[Slot]) -> list[bytes]:
    """Return the messages of the request that shows ``slots``, byte for byte, without cache breakpoints."""
    found = _MESSAGES.decode(body(target.api, target.model, slots))
    return [bytes(raw) for raw in _LIST.decode(found["messages"])]
