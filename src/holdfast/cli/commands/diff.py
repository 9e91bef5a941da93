"""``holdfast diff``: what the model saw before and after."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from msgspec import Struct

from holdfast import config
from holdfast.cli.files.user_paths import open_named_store, store_option
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.terminal import (
    ProgressBar,
    clean_single_line,
    format_count,
    make_console,
    make_json_option,
    print_json,
    print_line,
    print_wrapped,
)
from holdfast.cli.reports.describe import format_session_line
from holdfast.cli.reports.history import (
    SHORT_ID,
    BranchHistory,
    build_branch_history,
    find_entry,
    find_session_or_entry,
    load_branch_history,
    load_history_through_entry,
)
from holdfast.cli.reports.request_detail import (
    REQUEST_BODIES,
    describe_request,
    find_request_position,
    format_client_size,
    format_upstream_size,
)
from holdfast.cli.reports.request_diff import (
    MessageChange,
    RequestComparison,
    compare_requests,
    group_message_changes,
    scale_comparison,
)
from holdfast.cli.reports.request_size import (
    build_state_at_request,
    copy_later_calibration,
    format_tokens,
    measure_session_request,
)
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, RequestEntry, RevokeEntry
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast diff 4d56 ..e77b         # what decision e77b changed
  holdfast diff 4d56 120..          # the moment after message 120, and now
  holdfast diff 4d56 120..e77b --lines 20
  holdfast diff 9c41d7e2            # a request: as its client sent it, and as it went up
"""
_CHANGE_SIGNS = {"same": " ", "changed": "~", "hidden": "-", "new": "+", "back": "+"}
_CHANGE_STYLES = {"same": "dim", "changed": "yellow", "hidden": "red", "new": "green", "back": "green"}


class DiffSide(Struct, frozen=True):
    """One of the two moments: its name, and the log up to there."""

    name: str
    log: BranchHistory


@click.command("diff", epilog=EXAMPLES)
@click.argument("session")
@click.argument("moments", metavar="[A..B]", required=False)
@click.option("--lines", type=IntegerParamType(0), default=4, show_default=True, help="How many lines of each change.")
@store_option
@make_json_option("both requests, message by message,")
def command(session: str, moments: str | None, lines: int, store: str | None, *, as_json: bool) -> None:
    """Show what the model saw before and after: replaced, hidden, said, back.

    SESSION is the beginning of an id. A and B are moments: just after the entry that a message's number, a label, or
    the beginning of an id names. ..B compares the moment before B with the one after it, A.. compares A with now.
    Without moments SESSION is the id of a request, as x-holdfast-request tells it, and what its client sent is compared
    with what went up. The size of B is that of the whole request, as holdfast context says it; that of A is by the same
    measure. Sizes with ~ are estimates, by what the provider counted in the session; others the provider counted.
    """
    endpoints = _parse_moments(moments) if moments is not None else None
    with open_named_store(store, readonly=True) as there, ProgressBar("comparing", is_wanted=not as_json):
        info, entry = find_session_or_entry(there, session)
        log = load_branch_history(there, info.key)
        if endpoints is not None:
            before, after = _load_sides(there, info.key, log, *endpoints)
        elif entry is not None:
            log = load_history_through_entry(there, info.key, log, entry)
            if isinstance(entry.body, REQUEST_BODIES):
                entry = _check_was_sent(log.entries[find_request_position(log, entry)])
            before, after = _split_request_sides(_get_log_until(there, info.key, log, entry))
        else:
            raise CommandError(_suggest_moments(log))
        if endpoints is None and entry is not None and isinstance(entry.body, RequestEntry):
            comparison, sizes = _compare_request(info, log, entry, compare_requests(before.log, after.log))
        else:
            comparison, sizes = _compare_moments(info, before, after)
    if as_json:
        record = {"session": info.key, "from": before.name, "to": after.name}
        print_json(record | msgspec.to_builtins(comparison))
    else:
        _print_diff(comparison, info, (f"{before.name}: {sizes[0]}", f"{after.name}: {sizes[1]}"), lines)


def _suggest_moments(log: BranchHistory) -> str:
    """Return what is said where no moments were given: the ones that somebody may have meant."""
    newest = [
        f"..{clean_single_line(id_)[:SHORT_ID]} for what the newest decision changed"
        for id_, _ in log.state.view.active_decisions[-1:]
    ]
    examples = ", ".join([*newest, "0.. for all since message 0"])
    return (
        f"give two moments behind the session: {examples}, A..B for what is between; only a request's id stands alone"
    )


def _check_was_sent(entry: Entry) -> Entry:
    """Return ``entry``, a request; ``CommandError`` for one that was sent to nobody."""
    if isinstance(entry.body, RequestEntry):
        return entry
    short = clean_single_line(entry.id[:SHORT_ID])
    raise CommandError(
        f"request {short} was sent to nobody, so nothing stands beside it: holdfast why {short} tells why"
    )


def _parse_moments(moments: str) -> tuple[str, str]:
    """Return both sides of ``A..B``; ``CommandError`` where that is not what was written."""
    first, dots, second = moments.partition("..")
    if not dots or ".." in second or not (first or second):
        msg = (
            f"{clean_single_line(moments, 60)!r} is not A..B: give two moments, or one as ..B (what B changed) "
            "or A.. (until now)"
        )
        raise CommandError(msg)
    return first.strip(), second.strip()


def _load_sides(
    store: SessionStore, key: str, log: BranchHistory, first: str, second: str
) -> tuple[DiffSide, DiffSide]:
    last = find_entry(store, key, log, second) if second else None
    after = _get_log_until(store, key, log, last) if last else log
    if not first:
        return DiffSide(f"before {second}", build_branch_history(after.entries[:-1])), DiffSide(
            f"after {second}", after
        )
    before = _get_log_until(store, key, log, find_entry(store, key, log, first))
    return DiffSide(f"after {first}", before), DiffSide(f"after {second}" if second else "now", after)


def _split_request_sides(log: BranchHistory) -> tuple[DiffSide, DiffSide]:
    """Return what a client sent, and what went up in its place."""
    whole = build_branch_history(
        entry for entry in log.entries if not isinstance(entry.body, DecisionEntry | CompactionEntry | RevokeEntry)
    )
    return DiffSide("as its client sent it", whole), DiffSide("as it went up", log)


def _get_log_until(store: SessionStore, key: str, log: BranchHistory, entry: Entry) -> BranchHistory:
    """Return the log up to ``entry``, on whichever branch it lies."""
    at = next((number for number, log_entry in enumerate(log.entries) if log_entry.id == entry.id), None)
    return load_branch_history(store, key, entry.id) if at is None else build_branch_history(log.entries[: at + 1])


def _compare_moments(info: SessionInfo, before: DiffSide, after: DiffSide) -> tuple[RequestComparison, tuple[str, str]]:
    """Return two moments compared, and how large a request was at either: at the first by what the second knows."""
    size, comparison = measure_session_request(info, after.log.state), compare_requests(before.log, after.log)
    first, second = before.log.state, after.log.state
    earlier = size.tokens - size.scale_tokens(comparison.after - comparison.before)
    if first.last_request.model == second.last_request.model:
        earlier = measure_session_request(info, copy_later_calibration(first, second)).tokens
    comparison = scale_comparison(comparison, earlier, size.tokens, size)
    is_same = size.is_counted and comparison.before == comparison.after
    counts = (
        format_tokens(comparison.before, is_counted=is_same),
        format_tokens(comparison.after, is_counted=size.is_counted),
    )
    return comparison, _format_sides(comparison, *counts)


def _compare_request(
    info: SessionInfo, log: BranchHistory, entry: Entry, comparison: RequestComparison
) -> tuple[RequestComparison, tuple[str, str]]:
    """Return a request compared with what its client sent, and how large it was as either."""
    at = find_request_position(log, entry)
    detail, size = (
        describe_request(info, log, at, config.load_configuration()),
        measure_session_request(info, build_state_at_request(log.entries, at)),
    )
    comparison = scale_comparison(comparison, detail.tokens, detail.shown_tokens, size)
    return comparison, _format_sides(comparison, format_client_size(detail), format_upstream_size(detail))


# -- in words ----------------------------------------------------------------------------------------------------------


def _print_diff(comparison: RequestComparison, info: SessionInfo, heads: tuple[str, str], lines: int) -> None:
    from rich.text import Text

    out = make_console()
    print_line(out, format_session_line(info))
    growth = comparison.after - comparison.before
    print_wrapped(out, Text(f"--- {clean_single_line(heads[0])}", "red"))
    print_wrapped(out, Text(f"+++ {clean_single_line(heads[1])} ({growth:+,})", "green"))
    for run in group_message_changes(comparison.changes):
        _print_change_group(out, run, lines)
    if all(change.kind == "same" for change in comparison.changes):
        out.print("nothing changed in between")


def _format_sides(comparison: RequestComparison, before: str, after: str) -> tuple[str, str]:
    messages = format_count(comparison.before_messages, "message"), format_count(comparison.after_messages, "message")
    return f"{messages[0]}, {before} tokens", f"{messages[1]}, {after} tokens"


def _print_change_group(console: Any, run: list[MessageChange], lines: int) -> None:
    from rich.text import Text

    first_change = run[0]
    sign, style = _CHANGE_SIGNS[first_change.kind], _CHANGE_STYLES[first_change.kind]
    if len(run) == 1 and first_change.kind != "same":
        print_wrapped(
            console,
            Text(
                f"{sign} {_name_message(first_change)} {_describe_change(first_change)}{_format_cause(first_change)}",
                style,
            ),
        )
        _print_change_lines(console, "-", first_change.removed_lines, lines)
        _print_change_lines(console, "+", first_change.added_lines, lines)
        return
    description = {"same": "as before", "hidden": "no longer shown", "new": "said", "back": "shown again"}[
        first_change.kind
    ]
    span = f"#{first_change.number} to #{run[-1].number}" if len(run) > 1 else _name_message(first_change)
    tokens = format_tokens(sum(change.before or change.after for change in run))
    print_wrapped(
        console,
        Text(
            f"{sign} {span}: {format_count(len(run), 'message')}, {tokens} tokens, "
            f"{description}{_format_cause(first_change)}",
            style,
        ),
    )


def _name_message(change: MessageChange) -> str:
    return (
        f"#{change.number} {clean_single_line(change.entry)[:SHORT_ID]} {change.role}"
        if change.number >= 0
        else "summary"
    )


def _describe_change(change: MessageChange) -> str:
    if change.kind == "changed":
        return f"{format_tokens(change.before)} → {format_tokens(change.after)} tokens"
    if change.number < 0:
        description = "gone" if change.kind == "hidden" else "in place of what is hidden"
    else:
        description = {"hidden": "no longer shown", "new": "said", "back": "shown again"}[change.kind]
    return f"{format_tokens(change.before or change.after)} tokens, {description}"


def _format_cause(change: MessageChange) -> str:
    return (
        f"  {clean_single_line(change.rule)} ({clean_single_line(change.decided_by)[:SHORT_ID]}): "
        f"{clean_single_line(change.why)}"
        if change.decided_by
        else ""
    )


def _print_change_lines(console: Any, sign: str, text: tuple[str, ...], max_lines: int) -> None:
    from rich.text import Text

    for line in text[:max_lines]:
        print_line(console, Text(f"    {sign} {clean_single_line(line)}", style="dim"))
    if len(text) > max_lines > 0:
        console.print(Text(f"    {sign} … {format_count(len(text) - max_lines, 'more line')}", style="dim"))
