"""``holdfast ls``: list the sessions of the store."""

from __future__ import annotations

import click

from holdfast.cli.files.user_paths import describe_missing_store, open_named_store, store_option
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.session_filters import SessionOptions, session_options
from holdfast.cli.output.terminal import (
    ProgressBar,
    choose_columns,
    make_console,
    make_json_option,
    print_json,
    print_line,
    print_more_hint,
)
from holdfast.errors import HoldfastError
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.describe import shorten_session_keys
from holdfast.reports.requests.request_size import format_tokens
from holdfast.reports.sessions.session_list import SessionListing, describe_session, format_age
from holdfast.reports.sessions.usage_groups import find_day
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.location import locate_store

EXAMPLES = """\
\b
Examples:
  holdfast ls
  holdfast ls --limit 5 --json
  holdfast ls --since yesterday --project .
  holdfast ls --model 'claude-opus*' --tool claude-code
"""
DEFAULT_LIST_LIMIT = 100
"""Sessions listed without --limit. Chosen by judgement: each costs a few reads of the store, and more do not fit a
screen."""
COLUMNS = ("id", "from", "began", "changed", "messages", "tokens", "title")
"""The columns of the list, by their headings."""
LEFT_ALIGNED_COLUMNS = frozenset({"id", "from"})
"""Columns of words; the others before the title are right-aligned, as numbers are."""
DROPPABLE_COLUMNS = ("began", "from", "changed", "messages")
"""Columns that are dropped in a narrow terminal, the first one first."""
MIN_TITLE_WIDTH = 12
"""Characters of a line that are kept for the title."""


@click.command("ls", epilog=EXAMPLES)
@click.option(
    "-n",
    "--limit",
    type=IntegerParamType(1),
    help=f"Number of sessions to list, most recently changed first. [default: {DEFAULT_LIST_LIMIT}; all with --json]",
)
@session_options
@store_option
@make_json_option("the sessions")
def ls_command(limit: int | None, chosen: SessionOptions, store: str | None, *, as_json: bool) -> None:
    """List the sessions of the store, the most recently changed first.

    Ids are shortened as far as they stay unique; every command accepts them like that. Messages and tokens are those of
    the newest request and its answer, for sessions that went through Holdfast. A ~ marks an estimate, where the
    provider gave no count or an implausible one. "no answer" means that none of the session's requests was answered;
    holdfast show says why. In a narrow terminal some columns are left out.

    Sessions can be chosen by folder, client, model (of any request) and days: those that began before the end of
    --until, and changed on the day of --since or later.
    """
    with open_named_store(store, readonly=True) as opened_store:
        all_infos = opened_store.list_sessions()
        keys = [info.key for info in all_infos]
        if chosen.has_any:
            all_infos = _choose_sessions(opened_store, all_infos, chosen)
        if limit is None and not as_json:
            limit = DEFAULT_LIST_LIMIT
        infos = all_infos[:limit]
        with ProgressBar(is_wanted=not as_json) as progress_bar:
            sessions = [describe_session(opened_store, info) for info in progress_bar.track_items("sessions", infos)]
    if not sessions and (why := describe_missing_store(store)):
        click.echo(why, err=True)
        if as_json:
            print_json([])
    elif as_json:
        print_json([session.to_record() for session in sessions])
    elif not sessions and chosen.has_any:
        click.echo("no session matches; holdfast ls without these options lists all")
    elif not sessions:
        click.echo(f"no sessions in {clean_single_line(locate_store(store).name)}; add one with holdfast import FILE")
    else:
        _print_sessions(sessions, keys)
        print_more_hint(len(all_infos) - len(sessions), "session", "--limit")


def _choose_sessions(store: SessionStore, infos: list[SessionInfo], chosen: SessionOptions) -> list[SessionInfo]:
    """Return the sessions that the options choose; those whose models cannot be read are named and left out."""
    since, until = chosen.resolve_days()
    session_filter = chosen.build_session_filter()
    chosen_infos = []
    for info in infos:
        began = find_day(info.created_at, chosen.time_zone)
        changed = find_day(info.updated_at, chosen.time_zone)
        is_too_old = since is not None and (changed is None or changed < since)
        is_too_new = until is not None and (began is None or began > until)
        if is_too_old or is_too_new or not session_filter.matches_session(info):
            continue
        try:
            if session_filter.matches_any_model(store, info):
                chosen_infos.append(info)
        except HoldfastError as error:
            name, reason = clean_single_line(info.key), clean_single_line(str(error), 200)
            click.echo(f"left out, since it cannot be read: {name} ({reason})", err=True)
    return chosen_infos


def _print_sessions(sessions: list[SessionListing], keys: list[str]) -> None:
    from rich.text import Text

    short_keys = shorten_session_keys(keys)
    rows: list[tuple[str, ...]] = [COLUMNS]
    for session in sessions:
        rows.append(_make_session_row(session, short_keys[session.info.key]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    out = make_console()
    # The title takes the rest of the line, so it plays no part in the choice of columns.
    droppable_indexes = [COLUMNS.index(name) for name in DROPPABLE_COLUMNS]
    shown_indexes = choose_columns([row[:-1] for row in rows], droppable_indexes, out.width - MIN_TITLE_WIDTH - 2)
    for number, row in enumerate(rows):
        cells = []
        for index in shown_indexes:
            alignment = "<" if COLUMNS[index] in LEFT_ALIGNED_COLUMNS else ">"
            cells.append(f"{row[index]:{alignment}{widths[index]}}")
        style = "bold" if number == 0 else ""
        print_line(out, Text("  ".join([*cells, row[-1]]).rstrip(), style=style))


def _make_session_row(session: SessionListing, short_key: str) -> tuple[str, ...]:
    """Return the cells of a session, in the order of ``COLUMNS``."""
    info = session.info
    messages = "-" if session.messages is None else f"{session.messages:,}"
    if session.tokens is None:
        tokens = "-"
    else:
        tokens = format_tokens(session.tokens, is_counted=session.is_counted)
    return (
        clean_single_line(short_key),
        session.client or info.format,
        format_age(info.created_at),
        format_age(info.updated_at),
        messages,
        tokens if session.is_answered else "no answer",
        clean_single_line(info.title),
    )
