"""What replay needs of a recorded session: its messages in order, and which of them the model answered when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.formats.base import STALE_USAGE_BASIS, UNFINISHED_STOPS, Recording, get_branch_entries
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.strip_foreign import strip_foreign_content
from holdfast.replay.tokenizer import TextCounter, UsageReading, compute_usage_ratio, count_message_tokens
from holdfast.state.entries import (
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    Entry,
    MessageEntry,
    RequestSetup,
    Usage,
)


class AnswerStep(Struct, frozen=True):
    """One answer of the model: slot ``index`` of the session."""

    index: int
    at: int | None = None
    """Milliseconds since 1970, if recorded."""
    usage: Usage | None = None
    after_compaction: bool = False
    """Whether the recording tool compacted since the step before."""


class ReplaySession(Struct, frozen=True):
    """A recorded session with its compactions undone."""

    messages: tuple[SizedMessage, ...]
    steps: tuple[AnswerStep, ...]
    model: str = ""
    setup: RequestSetup = RequestSetup()
    """What was recorded of system prompt and tools; usually nothing."""

    def compute_factor(self, counter: TextCounter) -> float:
        """Return this session's own ratio of recorded usage to ``counter``; 1.0 where no usage was recorded."""
        sums = [0]
        for sized_message in self.messages:
            sums.append(sums[-1] + count_message_tokens(sized_message.message, counter))
        return compute_usage_ratio(_iterate_readings(self.steps, sums))


def _iterate_readings(steps: Sequence[AnswerStep], sums: Sequence[int]) -> Iterator[UsageReading]:
    """Yield what usage says; a compaction since the reading before counts, also where its own answer told no usage."""
    restart = False
    for step in steps:
        restart |= step.after_compaction
        if step.usage is not None and step.usage.input > 0:
            yield UsageReading(step.usage.input, sums[step.index], restart)
            restart = False


def make_replay_session(recording: Recording, api: str) -> ReplaySession:
    """Return the session at the recording's leaf, its messages in the form of ``api``."""
    sized_messages: list[SizedMessage] = []
    steps: list[AnswerStep] = []
    was_compacted = False
    newest: tuple[int, Entry] | None = None
    setup = RequestSetup()
    for entry in get_branch_entries(recording):
        body = entry.body
        if isinstance(body, MessageEntry | BranchSummaryEntry):
            newest = (len(sized_messages), entry)
            sized_messages.append(_convert_message(body.sized_message, api))
        elif isinstance(body, CompactionEntry):
            was_compacted = True
        elif isinstance(body, RequestSetup) and body.tokens:
            setup = body
        elif isinstance(body, AnswerEntry) and newest is not None and body.stop_reason not in UNFINISHED_STOPS:
            usage = body.usage if body.usage.input and body.prefix_digest != STALE_USAGE_BASIS else None
            steps.append(AnswerStep(newest[0], newest[1].time_ms, usage, was_compacted))
            was_compacted = False
    if not steps:  # a request body records no answers: every assistant message is one
        steps = [
            AnswerStep(index)
            for index, sized_message in enumerate(sized_messages)
            if sized_message.message.role == "assistant"
        ]
    return ReplaySession(tuple(sized_messages), tuple(steps), recording.model, setup)


def _convert_message(sized_message: SizedMessage, api: str) -> SizedMessage:
    """Return the slot as ``api`` would hold it: bytes of another API stay behind."""
    if sized_message.api == api:
        return sized_message
    message = strip_foreign_content(sized_message.message, api)
    return (
        sized_message
        if message is sized_message.message and sized_message.raw is None
        else replace(build_sized_message(message), api=api)
    )
