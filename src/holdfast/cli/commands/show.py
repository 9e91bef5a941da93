"""``holdfast show``: show a session, one line per message, with the decisions about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import click
import msgspec

from holdfast.cli.files.user_paths import open_named_store, store_option
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.session_line import format_session_line
from holdfast.cli.output.terminal import ProgressBar, make_console, make_json_option, print_json, print_line
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.describe import format_time, shorten_entry_ids
from holdfast.reports.entry_lines import EntryLine, get_entry_kind, make_entry_lines
from holdfast.reports.requests.request_size import format_tokens, measure_session_request
from holdfast.reports.sessions.history import (
    SHORT_ID,
    build_state_at_entry,
    find_session_or_entry,
)
from holdfast.state.entries import (
    Entry,
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
"""Kinds shown only with ``--all``."""
DEFAULT_LINE_LIMIT = 1_000
"""Lines shown without --last. Chosen by judgement: more scrolls out of any terminal's buffer."""
SINGLE_READ_LIMIT = 100
"""Up to this many lines, entries are read one by one from the end; beyond it, reading the whole branch is faster.
Chosen by judgement."""
_ROLE_STYLES = {
    "user": "bright_green", "assistant": "blue", "tool": "yellow", "system": "bright_black",
    "compaction": "magenta", "decision": "yellow", "note": "dim", "failure": "red",
}  # fmt: skip
_MAX_ID_WIDTH = 12
"""Characters of an id shown at most. A message whose id needs more is named by its number."""
_WIDTH_FOR_ID, _WIDTH_FOR_TIME = 50, 72
"""Terminal columns from which ids, and times as well, are shown; in a narrower one too little of the text would be
left."""


@click.command("show", epilog=EXAMPLES)
@click.argument("session")
@click.option(
    "--last",
    type=IntegerParamType(1),
    help=f"Show only this many lines from the end. [default: {DEFAULT_LINE_LIMIT}; all with --json]",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also show requests, answers, and system prompts with tools.",
)
@store_option
@make_json_option("the entries")
def show_command(session: str, last: int | None, store: str | None, *, everything: bool, as_json: bool) -> None:
    """Show a session, one line per message, with the decisions about it.

    SESSION is the beginning of an id; the id of an entry, for example from x-holdfast-request, shows the session up to
    that entry. Lines follow the branch from its root to its end: messages with number and size in tokens, and
    compactions (⟱) and other decisions (✂) where they were made. A message that requests show reduced begins with ✂ and
    the tokens left of it, a hidden one with ⟱; holdfast why explains either. A ~ marks an estimate, calibrated by the
    provider's counts in this session, as in holdfast context; other sizes were counted by the provider.
    """
    max_lines = last
    # A script gets all lines, a person the newest ones.
    if last is None and not as_json:
        max_lines = DEFAULT_LINE_LIMIT
    with open_named_store(store, readonly=True) as there, ProgressBar("reading", is_wanted=not as_json):
        info, entry = find_session_or_entry(there, session)
        end = entry.id if entry is not None else info.leaf_id
        state = build_state_at_entry(there, info.key, entry)
        entries, is_all = _load_newest_entries(there, info, end, max_lines, everything=everything)
        size = measure_session_request(info, state)
        # The state at a request already includes its answer, which is not among the lines.
        shown_state = there.open_state(info.key, end) if entry else state
        lines = list(make_entry_lines(entries, shown_state, size))
    if not everything:
        lines = [line for line in lines if line.kind not in _SIDE_KINDS]
    if as_json:
        print_json(msgspec.to_builtins(lines))
    else:
        _print_entries(info, lines)
        if not (is_all or last):
            click.echo(
                f"showing the last {format_count(DEFAULT_LINE_LIMIT, 'line')}; --last shows more, --json all",
                err=True,
            )


def _load_newest_entries(
    store: SessionStore,
    info: SessionInfo,
    end: str | None,
    max_lines: int | None,
    *,
    everything: bool,
) -> tuple[Sequence[Entry], bool]:
    """Load the entries up to ``end`` that make the last ``max_lines`` lines, and whether these are all.

    A few are read one by one from the end, so that a long log before them is not read at all.
    """
    if max_lines is None or max_lines > SINGLE_READ_LIMIT:
        entries = store.read_path(info.key, end) if end is not None else []
        line_places = []
        for at, entry in enumerate(entries):
            if everything or get_entry_kind(entry) not in _SIDE_KINDS:
                line_places.append(at)
        start = 0
        if max_lines is not None and max_lines < len(line_places):
            start = line_places[-max_lines]
        return entries[start:], start == 0
    newest_entries = list[Entry]()
    count = 0
    while end is not None and count < max_lines:
        entry = store.get_entry(info.key, end)
        newest_entries.append(entry)
        if everything or get_entry_kind(entry) not in _SIDE_KINDS:
            count += 1
        end = entry.parent
    return newest_entries[::-1], end is None


def _print_entries(info: SessionInfo, lines: list[EntryLine]) -> None:
    from rich.text import Text

    out = make_console()
    origin = " · ".join(filter(None, (info.format, clean_single_line(info.model), clean_single_line(info.cwd))))
    print_line(out, format_session_line(info))
    print_line(out, Text(origin, style="dim"))
    ids = _shorten_ids(lines)
    for line in lines:
        style = _ROLE_STYLES.get(line.role or line.kind, "")
        tokens = ""
        if line.tokens is not None:
            tokens = format_tokens(line.tokens, is_counted=line.kind == "answer")
        role_part = (f"{line.role or line.kind:10}", style)
        text_parts = (f" {tokens:>8}  ", (_format_reduction_mark(line), "yellow"), clean_single_line(line.text))
        print_line(out, Text.assemble((_format_entry_head(line, ids, out.width), "dim"), role_part, *text_parts))


def _shorten_ids(lines: Iterable[EntryLine]) -> dict[str, str]:
    """Return a beginning of each line's id that names its entry, as far as it is short.

    Ids of decisions are given in full uniqueness, since undo needs them. A message with a long one has none, because
    its number names it; other entries get a fixed length.
    """
    lines = list(lines)
    shown_ids = {line.id: line.id[:SHORT_ID] for line in lines}
    message_ids = shorten_entry_ids(line.id for line in lines if line.message is not None)
    for id_, short_id in message_ids.items():
        shown_ids[id_] = short_id if len(short_id) <= _MAX_ID_WIDTH else ""
    shown_ids |= shorten_entry_ids(line.id for line in lines if line.kind in _DECISION_KINDS)
    return shown_ids


def _format_entry_head(line: EntryLine, ids: Mapping[str, str], width: int) -> str:
    """Format the start of a line: its number and, if ``width`` allows, its id and its time."""
    number = f"#{line.message}" if line.message is not None else _KIND_MARKS.get(line.kind, "·")
    head = f"{number:>6} "
    # In a narrow terminal the text of the message is worth more than its id and its time.
    if width >= _WIDTH_FOR_ID:
        longest_id = max(map(len, ids.values()))
        id_width = max(SHORT_ID, min(_MAX_ID_WIDTH, longest_id))
        head += f"{clean_single_line(ids[line.id]):{id_width}} "
    if width >= _WIDTH_FOR_TIME:
        head += f"{format_time(line.at):14} "
    return head


def _format_reduction_mark(line: EntryLine) -> str:
    """Return the mark of a message that requests show reduced (✂) or not at all (⟱), else an empty string."""
    if line.shown_tokens is None:
        return ""
    if line.shown_tokens == 0:
        return "⟱ "
    return f"✂ {format_tokens(line.shown_tokens)} left: "
