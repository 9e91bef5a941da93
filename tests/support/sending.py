"""A session driven through a day against the strict provider, request by request, with what each was and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace
from workday import Step, fields, results

from holdfast.engine.log.journal import Journal, Prepared
from holdfast.engine.requests import framed, rendered
from holdfast.engine.upstream.replies import as_said
from holdfast.errors import FormatError, UpstreamError
from holdfast.messages.message import Message
from holdfast.providers.overflow import ErrorReport
from holdfast.providers.registry import form_of
from holdfast.providers.request_body import wires
from holdfast.providers.responses import Answer, answer
from holdfast.state.entries import Usage
from holdfast.state.target import Target, World
from holdfast.testing.provider import Provider
from holdfast.testing.provider.calls import Asked
from holdfast.testing.provider.voices.speaking import Call, speak

COLD = 300
"""Seconds after which the agent takes the cache for cold."""


class Whole(Struct, frozen=True):
    """A reply that is there as a whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Turn(Struct, frozen=True):
    """One request and its reply."""

    step: int
    world: World
    prepared: Prepared
    body: bytes
    status: int
    answer: Answer

    @property
    def usage(self) -> Usage:
        """What the provider counted; nothing where it refused."""
        return self.answer.usage or Usage()

    @property
    def wires(self) -> list[bytes]:
        """The elements of the history that it shows, byte for byte, without cache breakpoints."""
        return elements(self.prepared)


def elements(prepared: Prepared) -> list[bytes]:
    """Return the elements of a request's history, byte for byte, without cache breakpoints."""
    shown = wires(form_of(prepared.target.api), prepared.slots)
    return [bytes(wire) for group in shown for wire in group]


def direct(provider: Provider, api: str) -> Callable[[bytes, str], Whole]:
    """Return what sends a body to ``provider`` without any wire."""

    def send(body: bytes, model: str) -> Whole:
        asked = Asked(api, "generate", body, model if api == "gemini" else "")
        told = speak(Call(api, "generate", "ticket"), asked, provider.answer(asked))
        return Whole(told.status, told.headers, b"".join(told.pieces))

    return send


def drive(
    journal: Journal,
    target: Target,
    day: Sequence[Step],
    send: Callable[[bytes, str], Whole],
    again: Callable[[Journal], Journal] = lambda journal: journal,
    wait: Callable[[int], object] = lambda _: None,
) -> Iterator[Turn]:
    """Yield the requests of ``day``, each sent and its answer recorded.

    ``wait`` is called with the seconds before each step, ``again`` with the journal before its request. A request that
    is refused is yielded and tried once more compacted, as recovery does it first; refused again, the day is over.
    """
    goal = framed(target, fields(target.api))
    for step in day:
        if step.user:
            journal.append(Message.of("user", step.user))
        journal = again(journal)
        wait(step.away)
        world = World(cache="cold" if step.away > COLD else "warm", idle=step.away)
        for tried in (world, replace(world, rung="compact")):
            turn = _sent(journal, goal, step, tried, send)
            yield turn
            if turn.answer.error is None:
                break
            journal.fail(f"refused with {turn.status}")
        else:
            return
        journal.record(*as_said(turn.answer, target.api, target.model))
        if turn.answer.message.calls:
            journal.append(results(turn.answer.message.calls, step))


def _sent(journal: Journal, goal: Target, step: Step, world: World, send: Callable[[bytes, str], Whole]) -> Turn:
    prepared = journal.prepare(goal, world)
    body = rendered(prepared, fields(goal.api))
    reply = send(body, goal.model)
    return Turn(step.number, world, prepared, body, reply.status, _told(reply, prepared))


def _told(reply: Whole, prepared: Prepared) -> Answer:
    """Return what a reply says, an error of any shape as an answer with ``error``."""
    api, fine = prepared.target.api, 200 <= reply.status < 300
    try:
        told = answer(api, reply.body)
    except FormatError as error:
        told = Answer()
        if fine:
            raise UpstreamError(f"HTTP {reply.status} came without an answer: {error}", "server") from error
    if fine and told.error is None:
        return told
    said = told.error or ErrorReport(api, body=reply.body)
    sizes = {"estimate": prepared.plan.after, "window": prepared.target.limits.window}
    return replace(told, error=replace(said, status=said.status if fine else reply.status, **sizes))


# -- what is said of a run ---------------------------------------------------------------------------------------------


class Break(Struct, frozen=True):
    """A request that does not go on where the one before it ended."""

    step: int
    element: int
    """The first element that is another one."""
    why: str
    """What was decided about something that the model had seen; empty = nothing, which breaks K1."""


def breaks(turns: Sequence[Turn]) -> list[Break]:
    """Return the requests whose history does not begin with the whole history of the one before, byte for byte."""
    shown = [turn.wires for turn in turns]
    return [
        Break(new.step, _parted(older, newer), reason(old, new))
        for (old, older), (new, newer) in pairwise(zip(turns, shown, strict=True))
        if newer[: len(older)] != older
    ]


def _parted(old: Sequence[bytes], new: Sequence[bytes]) -> int:
    return next(
        (at for at, (one, two) in enumerate(zip(old, new, strict=False)) if one != two), min(len(old), len(new))
    )


def reason(old: Turn, new: Turn) -> str:
    """Return why ``new`` may break with ``old``: a compaction, or decisions about what ``old`` showed."""
    plan, seen = new.prepared.plan, len(old.prepared.plan.branch.slots)
    if plan.compaction is not None:
        return "compaction"
    return ", ".join(sorted({edit.rule for edit in plan.record if edit.span.start < seen}))
