"""What replay needs of a recorded session: its messages in order, and when the model answered which of them."""

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
    """One answer of the model: message ``index`` of the session."""

    index: int
    at: int | None = None
    """Milliseconds since 1970, if recorded."""
    usage: Usage | None = None
    after_compaction: bool = False
    """Whether the recording tool compacted since the previous step."""


class ReplaySession(Struct, frozen=True):
    """A recorded session with its compactions undone."""

    messages: tuple[SizedMessage, ...]
    steps: tuple[AnswerStep, ...]
    model: str = ""
    setup: RequestSetup = RequestSetup()
    """The recorded system prompt and tools; most recordings have none."""

    def compute_factor(self, counter: TextCounter) -> float:
        """Return this session's ratio of recorded usage to ``counter``, or 1.0 if no usage was recorded."""
        sums = [0]
        for sized_message in self.messages:
            sums.append(sums[-1] + count_message_tokens(sized_message.message, counter))
        return compute_usage_ratio(_iterate_readings(self.steps, sums))


def _iterate_readings(steps: Sequence[AnswerStep], sums: Sequence[int]) -> Iterator[UsageReading]:
    """Yield the usage of each step that has one; a compaction at a step without usage counts for the next reading."""
    restart = False
    for step in steps:
        restart |= step.after_compaction
        if step.usage is not None and step.usage.input > 0:
            yield UsageReading(step.usage.input, sums[step.index], restart)
            restart = False


def make_replay_session(recording: Recording, api: str) -> ReplaySession:
    """Build the session at the recording's leaf, with its messages in the form of ``api``."""
    sized_messages: list[SizedMessage] = []
    steps: list[AnswerStep] = []
    was_compacted = False
    newest_message: tuple[int, Entry] | None = None
    setup = RequestSetup()
    for entry in get_branch_entries(recording):
        body = entry.body
        if isinstance(body, MessageEntry | BranchSummaryEntry):
            newest_message = (len(sized_messages), entry)
            sized_messages.append(_convert_message(body.sized_message, api))
        elif isinstance(body, CompactionEntry):
            was_compacted = True
        elif isinstance(body, RequestSetup) and body.tokens:
            setup = body
        elif isinstance(body, AnswerEntry) and newest_message and body.stop_reason not in UNFINISHED_STOPS:
            # Some tools repeat an old usage on later answers.
            has_usage = body.usage.input > 0 and body.prefix_digest != STALE_USAGE_BASIS
            index, message_entry = newest_message
            usage = body.usage if has_usage else None
            steps.append(AnswerStep(index, message_entry.time_ms, usage, was_compacted))
            was_compacted = False
    if not steps:
        # A request body records no answers, so every assistant message counts as one.
        for index, sized_message in enumerate(sized_messages):
            if sized_message.message.role == "assistant":
                steps.append(AnswerStep(index))
    return ReplaySession(tuple(sized_messages), tuple(steps), recording.model, setup)


def _convert_message(sized_message: SizedMessage, api: str) -> SizedMessage:
    """Return the message as ``api`` would contain it, without wire bytes of another API."""
    if sized_message.api == api:
        return sized_message
    message = strip_foreign_content(sized_message.message, api)
    is_unchanged = message is sized_message.message and sized_message.raw is None
    if is_unchanged:
        return sized_message
    return replace(build_sized_message(message), api=api)
