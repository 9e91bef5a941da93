"""``holdfast why``: explain what happened to a message or request, which decision did it, and how to get it back."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from shlex import quote
from typing import Any

import click
import msgspec

from holdfast import config
from holdfast.cli.files.user_paths import open_named_store, store_option
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.session_line import format_session_line
from holdfast.cli.output.terminal import (
    ProgressBar,
    make_console,
    make_json_option,
    print_command,
    print_json,
    print_line,
    print_more_hint,
    print_wrapped,
)
from holdfast.cli.reports.request_detail_text import print_request_detail
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.describe import format_time, shorten_session_keys
from holdfast.reports.messages.message_story import MessageStory, explain_message
from holdfast.reports.messages.original_text import count_original_characters, iter_original_text
from holdfast.reports.requests.cache_misses import find_session_misses
from holdfast.reports.requests.changed_fields import list_change_lines
from holdfast.reports.requests.request_detail import REQUEST_BODIES, describe_request, find_request_position
from holdfast.reports.requests.request_size import format_tokens, measure_session_request
from holdfast.reports.sessions.history import (
    SHORT_ID,
    BranchHistory,
    MessageAction,
    find_entry,
    find_session_or_entry,
    load_branch_history,
    load_history_through_entry,
)
from holdfast.state.entries import Entry
from holdfast.store.base import SessionInfo

EXAMPLES = """\
\b
Examples:
  holdfast why 4d56 128
  holdfast why 4d56 8ab9d04e --lines 20
  holdfast why 4d56 128 --said > result.txt
  holdfast why 9c41d7e2             # a request, by the id in x-holdfast-request
"""
DEFAULT_ACTION_LIMIT = 20
"""Decisions about a message shown without --limit, the first and the last ones. Chosen by judgement: one screen."""
_STATE_TEXTS = {
    "whole": "requests show it in full",
    "reduced": "requests show a shorter text in its place",
    "hidden": "requests no longer show it",
}


@click.command("why", epilog=EXAMPLES)
@click.argument("session")
@click.argument("message", required=False)
@click.option(
    "--lines",
    type=IntegerParamType(0),
    default=5,
    show_default=True,
    help="Lines to show of each text.",
)
@click.option(
    "-n",
    "--limit",
    type=IntegerParamType(1),
    default=DEFAULT_ACTION_LIMIT,
    show_default=True,
    help="Number of decisions to show.",
)
@click.option("--said", is_flag=True, help="Print only the original message, in full.")
@store_option
@make_json_option("the explanation")
def why_command(
    session: str,
    message: str | None,
    store: str | None,
    *,
    said: bool,
    as_json: bool,
    **given: int,
) -> None:
    """Explain what happened to a message: the original, what requests show now, and each decision about it.

    SESSION is the beginning of an id; MESSAGE is a number as holdfast show prints it, a label, or the beginning of an
    entry's id, which is enough by itself. Each decision is shown with its rule, its reason, the tokens it saves, the
    command that reads the text back, and the command that undoes it. Repairs that only make a request valid are redone
    for each request and not listed. A ~ marks an estimate, calibrated by the provider's counts in the session; other
    sizes were counted by the provider.

    For a request, named by the id in the header x-holdfast-request of its answer: its size from the client and as sent,
    the decisions made for it and before it, the fields that were sent changed, its cost, and why it read less from the
    provider's cache than it could have.
    """
    with open_named_store(store, readonly=True) as there:
        with ProgressBar("reading", is_wanted=not as_json):
            info, entry = find_session_or_entry(there, session)
            log = load_branch_history(there, info.key)
            keys = [session_info.key for session_info in there.list_sessions()]
            if message is not None:
                entry = find_entry(there, info.key, log, message)
            if entry is None:
                raise CommandError(
                    "name a message of the session: its number as holdfast show prints it, or an entry's id"
                )
            log = load_history_through_entry(there, info.key, log, entry)
        if isinstance(entry.body, REQUEST_BODIES) and not said:
            entries = there.read_entries(info.key)
            _print_request_story(info, log, entry, entries, shorten_session_keys(keys)[info.key], as_json=as_json)
            return
        number = _get_message_number(log, entry)
        if said:
            _print_original(info, number, entry, iter_original_text(there, log, number), as_json=as_json)
            return
        with ProgressBar("reading", is_wanted=not as_json):
            story = explain_message(
                info,
                log,
                number,
                count_original_characters(there, log, number),
                measure_session_request(info, log.state),
            )
    if as_json:
        print_json(msgspec.to_builtins(story))
    else:
        _print_story(story, info, shorten_session_keys(keys)[info.key], **given)


def _print_original(
    info: SessionInfo,
    number: int,
    entry: Entry,
    pieces: Iterable[str],
    *,
    as_json: bool,
) -> None:
    """Print the original text of a message; on a terminal a missing line end is added."""
    if as_json:
        print_json({"session": info.key, "message": number, "entry": entry.id, "text": "".join(pieces)})
        return
    # As bytes, so that lone surrogates are replaced and do not raise, and piece by piece: a text may be very long.
    for piece in pieces:
        click.echo(piece.encode("utf-8", "replace"), nl=False)
    if sys.stdout is not None and sys.stdout.isatty():
        click.echo()


def _print_request_story(
    info: SessionInfo,
    log: BranchHistory,
    entry: Entry,
    entries: Sequence[Entry],
    short_key: str,
    *,
    as_json: bool,
) -> None:
    """Explain the request of ``entry``, which is the request itself, its answer or its failure.

    ``entries`` are those of all branches: the request before it, on another branch, may have been cached.
    """
    configuration = config.load_configuration()
    with ProgressBar("reading", is_wanted=not as_json):
        request_detail = describe_request(
            info,
            log,
            find_request_position(log, entry),
            configuration,
            find_session_misses(entries, configuration.catalog, info.model or ""),
        )
    if as_json:
        print_json(msgspec.to_builtins(request_detail))
        return
    out = make_console()
    print_line(out, format_session_line(info))
    print_request_detail(out, request_detail, quote(clean_single_line(short_key)))


def _get_message_number(log: BranchHistory, entry: Entry) -> int:
    """Return the number of the message in ``entry``. Raises ``CommandError`` if it is not a message."""
    for number, message_entry in enumerate(log.message_entries):
        if message_entry.id == entry.id:
            return number
    kind = entry.body.__struct_config__.tag
    short = clean_single_line(entry.id[:SHORT_ID])
    hint = ""
    # A decision has no text of its own, but its effect can be shown.
    if kind in {"decision", "compaction"}:
        hint = f"; holdfast diff SESSION ..{short} shows what it changed"
    raise CommandError(f"entry {short} is a {kind}, not a message; give a number as holdfast show prints it{hint}")


# -- in words ----------------------------------------------------------------------------------------------------------


def _print_story(story: MessageStory, info: SessionInfo, short_key: str, lines: int, limit: int) -> None:
    from rich.text import Text

    out = make_console()
    print_line(out, format_session_line(info))
    head = f"#{story.message} {clean_single_line(story.entry)[:SHORT_ID]} {format_time(story.at)} {story.role}"
    out.print(Text.assemble((" ".join(head.split()), "bold"), f": {_STATE_TEXTS[story.state]}"))
    size = f"{format_tokens(story.tokens)} tokens, {len(story.text):,} characters"
    if story.characters != len(story.text):
        lengths = f"{story.characters:,} characters, of which the log holds {size}"
    else:
        lengths = size
    _print_text_block(out, f"original: {lengths}", story.text, lines)
    if story.replacement is not None and story.state != "whole":
        title = "shown instead" if story.state == "reduced" else "shown for it"
        if story.replacement.entry:
            title = f"the summary shown instead (compaction {clean_single_line(story.replacement.entry)[:SHORT_ID]})"
        _print_text_block(
            out,
            f"{title}: {format_tokens(story.replacement.tokens)} tokens",
            story.replacement.text,
            lines,
        )
    if not story.actions:
        out.print("no decision is about it")
    omitted_count = len(story.actions) - limit
    shown_actions = story.actions
    if omitted_count > 0:
        # The first decisions and the last ones tell most: how it began, and the state now.
        shown_actions = (*story.actions[: limit // 2], *story.actions[limit // 2 + omitted_count :])
    for action in shown_actions:
        out.print()
        _print_action(out, short_key, action)
    print_more_hint(omitted_count, "decision", "--limit")
    for read_back in story.read_backs[-limit:]:
        place = f"at request {read_back.request:,}" if read_back.request else "before any request"
        call = f"entry {clean_single_line(read_back.entry)[:SHORT_ID]}"
        when = f" {format_time(read_back.at)}".rstrip()
        print_wrapped(out, Text(f"the model read it back {place}{when} ({call})"))
    for line in list_change_lines(story.changed_fields):
        print_wrapped(out, Text(line))


def _print_text_block(console: Any, head: str, text: str, lines: int) -> None:
    from rich.text import Text

    console.print(Text(head))
    every = text.split("\n")
    for line in every[:lines]:
        print_line(console, Text(f"  | {clean_single_line(line)}", style="dim"))
    if len(every) > lines > 0:
        console.print(Text(f"  | … {format_count(len(every) - lines, 'more line')}", style="dim"))


def _print_action(console: Any, session: str, action: MessageAction) -> None:
    from rich.text import Text

    short = clean_single_line(action.entry)[:SHORT_ID]
    key = quote(clean_single_line(session))
    state, style = "in force", "yellow"
    if action.revoked_by:
        state = f"undone by {clean_single_line(action.revoked_by)[:SHORT_ID]}"
        style = "dim"
    by = f", by {clean_single_line(action.decided_by)}" if action.decided_by else ""
    head = f"  {action.kind} {short} {format_time(action.at)}{by}: {state}"
    console.print(Text.assemble((clean_single_line(action.rule), style), head))
    reason = f"  {clean_single_line(action.why)}"
    if action.saves:
        reason += f"; it saves {format_tokens(action.saves)} tokens of this message"
    print_wrapped(console, Text(reason))
    for handle in action.recall:
        print_command(console, Text(f"  read it back: holdfast recall {key} {handle}", style="dim"))
    # A capped message cannot be shown again: its full text never was in an entry.
    if not action.revoked_by and action.kind != "capped":
        print_command(console, Text(f"  undo it: holdfast undo {key} {short}", style="dim"))
    if action.revoked_by:
        print_command(console, Text(f"  restore it: holdfast undo {key} {short} --restore", style="dim"))
