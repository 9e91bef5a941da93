"""``holdfast show``: a session, a message a line, with what was decided about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import click
import msgspec
from msgspec import Struct

from holdfast.cli.files.user_paths import open_named_store, store_option
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.terminal import (
    ProgressBar,
    clean_single_line,
    format_count,
    make_console,
    make_json_option,
    print_json,
    print_line,
)
from holdfast.cli.reports.describe import (
    MAX_LINE_TEXT,
    format_session_line,
    format_time,
    shorten_entry_ids,
    summarize_message,
)
from holdfast.cli.reports.history import (
    SHORT_ID,
    build_state_at_entry,
    find_session_or_entry,
    get_shown_messages,
    list_message_visibility,
    sum_message_sizes,
)
from holdfast.cli.reports.request_size import ESTIMATOR_SIZE, RequestSize, format_tokens, measure_session_request
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
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast show 4d56
  holdfast show 4d56 --last 20
  holdfast show 4d56 --all --json
"""
_KIND_MARKS = {"compaction": "⟱", "decision": "✂", "note": "!", "failure": "✗", "revoke": "↺"}
_DECISION_KINDS = frozenset({"decision", "compaction"})
_SIDE_KINDS = frozenset({"request", "answer", "frame"})
"""Kinds that are shown only with ``--all``."""
DEFAULT_LINE_LIMIT = 1_000
"""[H] Lines that are shown to a person, unless another number is asked for."""
SINGLE_READ_LIMIT = 100
"""[H] Lines whose entries are read more quickly one by one than with all that lies before them."""
_ROLE_STYLES = {
    "user": "bright_green", "assistant": "blue", "tool": "yellow", "system": "bright_black",
    "compaction": "magenta", "decision": "yellow", "note": "dim", "failure": "red",
}  # fmt: skip
_MAX_ID_WIDTH = 12
"""[H] Characters of an id that are shown at most: a message that needs more has its number."""
_WIDTH_FOR_ID, _WIDTH_FOR_TIME = 50, 72
"""[H] Columns from which on there is room for ids, and for times too: else too little of the words is left."""


class EntryLine(Struct, frozen=True, omit_defaults=True):
    """One entry of the log. ``tokens`` are an estimate, those of an answer as reported."""

    id: str
    kind: str
    text: str
    message: int | None = None
    """Which message it is, counted from the root."""
    role: str = ""
    tokens: int | None = None
    at: int | None = None
    shown_tokens: int | None = None
    """Tokens that a request holds for a message that was reduced; 0 for one that is hidden."""


@click.command("show", epilog=EXAMPLES)
@click.argument("session")
@click.option(
    "--last",
    type=IntegerParamType(1),
    help=f"The last so many lines only. [default: {DEFAULT_LINE_LIMIT}, as JSON all]",
)
@click.option("--all", "everything", is_flag=True, help="Requests, answers and frames too.")
@store_option
@make_json_option("the entries")
def command(session: str, last: int | None, store: str | None, *, everything: bool, as_json: bool) -> None:
    """Show a session, a message a line, with what was decided about it.

    SESSION is the beginning of an id; that of an entry, as x-holdfast-request tells it, shows what there was up to it.
    Lines are the branch from its root to where it goes on: messages with their number and size in tokens, compactions
    (⟱) and other decisions (✂) where they were made. A message that requests show reduced begins with ✂ and the tokens
    that are left of it, one that they do not show with ⟱; holdfast why tells more. Sizes with ~ are estimates, by what
    the provider counted in the session so far, as holdfast context gives them; others the provider counted.
    """
    max_lines = last or (None if as_json else DEFAULT_LINE_LIMIT)
    with open_named_store(store, readonly=True) as there, ProgressBar("reading", is_wanted=not as_json):
        info, entry = find_session_or_entry(there, session)
        end = entry.id if entry is not None else info.leaf_id
        state = build_state_at_entry(there, info.key, entry)
        entries, is_all = _load_newest_entries(there, info, end, max_lines, everything=everything)
        lines = [
            *make_entry_lines(
                entries, there.open_state(info.key, end) if entry else state, measure_session_request(info, state)
            )
        ]
    if as_json:
        print_json(msgspec.to_builtins([line for line in lines if everything or line.kind not in _SIDE_KINDS]))
    else:
        _print_entries(info, [line for line in lines if everything or line.kind not in _SIDE_KINDS])
        if not (is_all or last):
            click.echo(
                f"these are the last {format_count(DEFAULT_LINE_LIMIT, 'line')}; --last shows more, --json all",
                err=True,
            )


def _load_newest_entries(
    store: SessionStore, info: SessionInfo, end: str | None, max_lines: int | None, *, everything: bool
) -> tuple[Sequence[Entry], bool]:
    """Return the entries up to ``end``, as far back as ``max_lines`` lines are of, and whether those are all.

    A few are read one by one, from the end on: what lies before them is left alone.
    """
    if max_lines is None or max_lines > SINGLE_READ_LIMIT:
        entries = store.read_path(info.key, end) if end is not None else []
        lines = [at for at, entry in enumerate(entries) if everything or _get_entry_kind(entry) not in _SIDE_KINDS]
        start = lines[-max_lines] if max_lines is not None and max_lines < len(lines) else 0
        return entries[start:], start == 0
    newest_entries, count = list[Entry](), 0
    while end is not None and count < max_lines:
        newest_entries.append(store.get_entry(info.key, end))
        count += everything or _get_entry_kind(newest_entries[-1]) not in _SIDE_KINDS
        end = newest_entries[-1].parent
    return newest_entries[::-1], end is None


def _get_entry_kind(entry: Entry) -> str:
    return str(entry.body.__struct_config__.tag)


def make_entry_lines(
    entries: Sequence[Entry], state: ConversationState, size: RequestSize = ESTIMATOR_SIZE
) -> Iterator[EntryLine]:
    """Yield a line for each of ``entries``, the last ones of ``state``, with its tokens by ``size``."""
    how = list_message_visibility(state)
    slot = len(how) - sum(isinstance(entry.body, MessageEntry | BranchSummaryEntry) for entry in entries)
    for entry in entries:
        body = entry.body
        kind = _get_entry_kind(entry)
        if isinstance(body, MessageEntry | BranchSummaryEntry):
            message, shown_tokens = body.sized_message.message, None
            if how[slot] != "whole":
                shown_tokens = (
                    0
                    if how[slot] == "hidden"
                    else size.scale_tokens(sum_message_sizes(get_shown_messages(state, slot)))
                )
            yield EntryLine(
                entry.id,
                kind,
                summarize_message(message),
                slot,
                message.role,
                size.scale_tokens(body.sized_message.tokens),
                entry.time_ms,
                shown_tokens,
            )
            slot += 1
        else:
            tokens = body.usage.input or None if isinstance(body, AnswerEntry) else None
            yield EntryLine(entry.id, kind, describe_entry_body(body, size), None, "", tokens, entry.time_ms)


def _format_usage(usage: Usage) -> str:
    cached = f", {usage.cache_read:,} of them cached" if usage.cache_read else ""
    text = f"{usage.input:,} tokens in{cached}, {usage.output:,} out"
    return text if usage.total else "its tokens were not told"


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
    """Return what an entry that is no message says, sizes in it ``by`` what is known."""
    match body:
        case CompactionEntry():
            after = f"{format_tokens(body.tokens_before)} → {format_tokens(body.tokens_after)} tokens"
            sizes = (
                after
                if body.tokens_after
                else f"from {format_tokens(body.tokens_before)} tokens"
                if body.tokens_before
                else ""
            )
            size = f", {sizes}" if sizes else ""
            summary = (
                f"a summary of {format_tokens(by.scale_tokens(body.head_tokens))} tokens stands"
                if body.summary
                else "nothing stands"
            )
            return (
                f"compaction ({clean_single_line(body.trigger, 20)}){size}: {summary} for what came before "
                f"#{body.first_kept}"
            )
        case DecisionEntry():
            return "; ".join(
                f"{edit.rule} #{edit.span.start}: {clean_single_line(edit.why, MAX_LINE_TEXT)}" for edit in body.edits
            )
        case AnswerEntry():
            return f"answer: {_format_usage(body.usage)} {clean_single_line(body.stop_reason, 40)}".rstrip()
        case RequestEntry():
            return (
                f"request of {format_count(body.message_count, 'message')} to "
                f"{clean_single_line(body.model, 60) or 'an unnamed model'}"
            )
        case RequestSetup():
            return f"system prompt and tools: {format_tokens(by.scale_tokens(body.tokens))} tokens"
        case RevokeEntry():
            return f"{clean_single_line(body.revoked_id, 40)} no longer counts"
        case LabelEntry():
            return f"{clean_single_line(body.target, 40)} is called {clean_single_line(body.name, 80)!r}"
        case FailureEntry():
            return f"{clean_single_line(body.kind, 40)}: {clean_single_line(body.reason, MAX_LINE_TEXT)}"
        case NoteEntry():
            details = ", ".join(
                f"{clean_single_line(name, 40)} {clean_single_line(str(value), 80)}"
                for name, value in body.data.items()
            )
            return f"{clean_single_line(body.reason, MAX_LINE_TEXT)} ({details or f'{len(body.raw):,} bytes'})"


def _print_entries(info: SessionInfo, lines: list[EntryLine]) -> None:
    from rich.text import Text

    out = make_console()
    origin = " · ".join(
        piece for piece in (info.format, clean_single_line(info.model), clean_single_line(info.cwd)) if piece
    )
    print_line(out, format_session_line(info))
    print_line(out, Text(origin, style="dim"))
    ids = _shorten_ids(lines)
    for line in lines:
        style = _ROLE_STYLES.get(line.role or line.kind, "")
        tokens = format_tokens(line.tokens, is_counted=line.kind == "answer") if line.tokens is not None else ""
        role_part = (f"{line.role or line.kind:10}", style)
        text_parts = (f" {tokens:>8}  ", (_format_reduction_mark(line), "yellow"), clean_single_line(line.text))
        print_line(out, Text.assemble((_format_entry_head(line, ids, out.width), "dim"), role_part, *text_parts))


def _shorten_ids(lines: Iterable[EntryLine]) -> dict[str, str]:
    """Return the beginnings of ids that mean the entries, as far as they are short or nothing else names the entry."""
    short_ids = shorten_entry_ids(line.id for line in lines if line.message is not None)
    short = {id_: short_id if len(short_id) <= _MAX_ID_WIDTH else "" for id_, short_id in short_ids.items()}
    law = shorten_entry_ids(line.id for line in lines if line.kind in _DECISION_KINDS)
    return {line.id: line.id[:SHORT_ID] for line in lines} | short | law


def _format_entry_head(line: EntryLine, ids: Mapping[str, str], width: int) -> str:
    """Return which entry a line is: its number, and where ``width`` has room its id and when it was made."""
    number = f"#{line.message}" if line.message is not None else _KIND_MARKS.get(line.kind, "·")
    wide = max(SHORT_ID, min(_MAX_ID_WIDTH, max(map(len, ids.values()))))
    id_ = f"{clean_single_line(ids[line.id]):{wide}} " if width >= _WIDTH_FOR_ID else ""
    return f"{number:>6} {id_}{f'{format_time(line.at):14} ' if width >= _WIDTH_FOR_TIME else ''}"


def _format_reduction_mark(line: EntryLine) -> str:
    """Return the mark of a message that requests show otherwise than it was said."""
    if line.shown_tokens is None:
        return ""
    return f"✂ {format_tokens(line.shown_tokens)} left: " if line.shown_tokens else "⟱ "
