"""What replay needs of a recorded session: its messages in order, and which of them the model answered when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.formats.base import NO_STEP, PAID, Recording, path
from holdfast.messages.size.tokens import measure
from holdfast.messages.sized_message import Slot
from holdfast.messages.strip_foreign import native
from holdfast.replay.tokenizer import Counter, Reading, message_tokens, usage_ratio
from holdfast.state.entries import Answer, BranchSummary, Compaction, Entry, Frame, Said, Usage


class Step(Struct, frozen=True):
    """One answer of the model: slot ``index`` of the session."""

    index: int
    at: int | None = None
    """Milliseconds since 1970, if recorded."""
    usage: Usage | None = None
    after_compaction: bool = False
    """Whether the recording tool compacted since the step before."""


class Session(Struct, frozen=True):
    """A recorded session with its compactions undone."""

    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    model: str = ""
    frame: Frame = Frame()
    """What was recorded of system prompt and tools; usually nothing."""

    def factor(self, counter: Counter) -> float:
        """Return this session's own ratio of recorded usage to ``counter``; 1.0 where no usage was recorded."""
        sums = [0]
        for slot in self.slots:
            sums.append(sums[-1] + message_tokens(slot.message, counter))
        return usage_ratio(_readings(self.steps, sums))


def _readings(steps: Sequence[Step], sums: Sequence[int]) -> Iterator[Reading]:
    """Yield what usage says; a compaction since the reading before counts, also where its own answer told no usage."""
    restart = False
    for step in steps:
        restart |= step.after_compaction
        if step.usage is not None and step.usage.input > 0:
            yield Reading(step.usage.input, sums[step.index], restart)
            restart = False


def session_of(recording: Recording, api: str) -> Session:
    """Return the session at the recording's leaf, its messages in the form of ``api``."""
    slots: list[Slot] = []
    steps: list[Step] = []
    compacted = False
    newest: tuple[int, Entry] | None = None
    frame = Frame()
    for entry in path(recording):
        body = entry.body
        if isinstance(body, Said | BranchSummary):
            newest = (len(slots), entry)
            slots.append(_own(body.slot, api))
        elif isinstance(body, Compaction):
            compacted = True
        elif isinstance(body, Frame) and body.tokens:
            frame = body
        elif isinstance(body, Answer) and newest is not None and body.stop not in NO_STEP:
            usage = body.usage if body.usage.input and body.basis != PAID else None
            steps.append(Step(newest[0], newest[1].at, usage, compacted))
            compacted = False
    if not steps:  # a request body records no answers: every assistant message is one
        steps = [Step(index) for index, slot in enumerate(slots) if slot.message.role == "assistant"]
    return Session(tuple(slots), tuple(steps), recording.model, frame)


def _own(slot: Slot, api: str) -> Slot:
    """Return the slot as ``api`` would hold it: bytes of another API stay behind."""
    if slot.api == api:
        return slot
    message = native(slot.message, api)
    return slot if message is slot.message and slot.raw is None else replace(measure(message), api=api)
