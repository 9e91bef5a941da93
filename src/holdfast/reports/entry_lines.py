"""One line for each entry of a log: messages as requests show them, decisions where they were made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.describe import (
    MAX_LINE_TEXT,
    summarize_message,
)
from holdfast.reports.requests.changed_fields import describe_change_note
from holdfast.reports.requests.request_size import ESTIMATOR_SIZE, RequestSize, format_tokens
from holdfast.reports.sessions.history import (
    get_shown_messages,
    list_message_visibility,
    sum_message_sizes,
)
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import (
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    FailureEntry,
    LabelEntry,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)


class EntryLine(Struct, frozen=True, omit_defaults=True):
    """One entry of the log on a line. ``tokens`` are an estimate, except for answers, which report them."""

    id: str
    kind: str
    text: str
    message: int | None = None
    """The message's number, counted from the root."""
    role: str = ""
    tokens: int | None = None
    at: int | None = None
    shown_tokens: int | None = None
    """Tokens that requests hold for a reduced message; 0 for a hidden one; None for one shown in full."""


def get_entry_kind(entry: Entry) -> str:
    """Return the kind of an entry: the tag of its body (``"message"``, ``"decision"``…)."""
    return str(entry.body.__struct_config__.tag)


def make_entry_lines(
    entries: Sequence[Entry],
    state: ConversationState,
    size: RequestSize = ESTIMATOR_SIZE,
) -> Iterator[EntryLine]:
    """Yield a line for each of ``entries``, the last ones of ``state``, with tokens measured by ``size``."""
    visibility = list_message_visibility(state)
    # The entries end where the state ends, so the number of the first message follows from the end.
    number = len(visibility) - sum(isinstance(entry.body, MessageEntry | BranchSummaryEntry) for entry in entries)
    for entry in entries:
        body = entry.body
        kind = get_entry_kind(entry)
        if not isinstance(body, MessageEntry | BranchSummaryEntry):
            tokens = None
            # A provider that reports no usage leaves 0, which is not a size.
            if isinstance(body, AnswerEntry):
                tokens = body.usage.input or None
            yield EntryLine(
                entry.id,
                kind,
                describe_entry_body(body, size),
                None,
                "",
                tokens,
                entry.time_ms,
            )
            continue
        message = body.sized_message.message
        shown_tokens = None
        if visibility[number] == "hidden":
            shown_tokens = 0
        elif visibility[number] == "reduced":
            shown_tokens = size.scale_tokens(sum_message_sizes(get_shown_messages(state, number)))
        yield EntryLine(
            entry.id,
            kind,
            summarize_message(message),
            number,
            message.role,
            size.scale_tokens(body.sized_message.tokens),
            entry.time_ms,
            shown_tokens,
        )
        number += 1


def _format_usage(usage: Usage) -> str:
    if not usage.total:
        return "no usage reported"
    cached = f", {usage.cache_read:,} of them cached" if usage.cache_read else ""
    return f"{usage.input:,} tokens in{cached}, {usage.output:,} out"


def describe_entry_body(
    body: RequestSetup
    | DecisionEntry
    | CompactionEntry
    | RequestEntry
    | AnswerEntry
    | RevokeEntry
    | LabelEntry
    | FailureEntry
    | NoteEntry,
    by: RequestSize = ESTIMATOR_SIZE,
) -> str:
    """Describe an entry that is not a message, with sizes measured by ``by``."""
    match body:
        case CompactionEntry():
            return _describe_compaction(body, by)
        case DecisionEntry():
            return _describe_edits(body)
        case AnswerEntry():
            return f"answer: {_format_usage(body.usage)} {clean_single_line(body.stop_reason, 40)}".rstrip()
        case RequestEntry():
            model = clean_single_line(body.model, 60) or "an unnamed model"
            return f"request of {format_count(body.message_count, 'message')} to {model}"
        case RequestSetup():
            return f"system prompt and tools: {format_tokens(by.scale_tokens(body.tokens))} tokens"
        case RevokeEntry():
            change = "in force again" if body.is_restored else "undone"
            return f"{clean_single_line(body.revoked_id, 40)} is {change}"
        case LabelEntry():
            return f"{clean_single_line(body.target, 40)} is named {clean_single_line(body.name, 80)!r}"
        case FailureEntry():
            return f"{clean_single_line(body.kind, 40)}: {clean_single_line(body.reason, MAX_LINE_TEXT)}"
        case NoteEntry():
            return _describe_note(body)


def _describe_edits(body: DecisionEntry) -> str:
    edits = []
    for edit in body.edits:
        edits.append(f"{edit.rule} #{edit.span.start}: {clean_single_line(edit.why, MAX_LINE_TEXT)}")
    return "; ".join(edits)


def _describe_note(body: NoteEntry) -> str:
    change = describe_change_note(body)
    if change is not None:
        return change
    fields = []
    for name, value in body.data.items():
        fields.append(f"{clean_single_line(name, 40)} {clean_single_line(str(value), 80)}")
    details = ", ".join(fields) or f"{len(body.raw):,} bytes"
    return f"{clean_single_line(body.reason, MAX_LINE_TEXT)} ({details})"


def _describe_compaction(body: CompactionEntry, by: RequestSize) -> str:
    # Compactions imported from other tools may lack one or both sizes.
    sizes = ""
    if body.tokens_after:
        sizes = f", {format_tokens(body.tokens_before)} → {format_tokens(body.tokens_after)} tokens"
    elif body.tokens_before:
        sizes = f", from {format_tokens(body.tokens_before)} tokens"
    summary = "it removes the messages"
    if body.summary:
        summary = f"a summary of {format_tokens(by.scale_tokens(body.head_tokens))} tokens replaces the messages"
    return f"compaction ({clean_single_line(body.trigger, 20)}){sizes}: {summary} before #{body.first_kept}"
