"""``holdfast diff``: the request that the model saw at two moments, compared message by message."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from msgspec import Struct

from holdfast import config
from holdfast.cli.files.user_paths import open_named_store, store_option
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.session_line import format_session_line
from holdfast.cli.output.terminal import (
    ProgressBar,
    make_console,
    make_json_option,
    print_json,
    print_line,
    print_wrapped,
)
from holdfast.cli.reports.request_detail_text import format_client_size, format_upstream_size
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.requests.request_detail import REQUEST_BODIES, describe_request, find_request_position
from holdfast.reports.requests.request_diff import (
    MessageChange,
    RequestComparison,
    compare_requests,
    group_message_changes,
    scale_comparison,
)
from holdfast.reports.requests.request_size import (
    build_state_at_request,
    copy_later_calibration,
    format_tokens,
    measure_session_request,
)
from holdfast.reports.sessions.history import (
    SHORT_ID,
    BranchHistory,
    build_branch_history,
    find_entry,
    find_session_or_entry,
    load_branch_history,
    load_history_through_entry,
)
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, RequestEntry, RevokeEntry
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast diff 4d56 ..e77b         # what decision e77b changed
  holdfast diff 4d56 120..          # from just after message 120 until now
  holdfast diff 4d56 120..e77b --lines 20
  holdfast diff 9c41d7e2            # a request: from the client, and to the provider
"""
_CHANGE_SIGNS = {"same": " ", "changed": "~", "hidden": "-", "new": "+", "back": "+"}
_CHANGE_STYLES = {"same": "dim", "changed": "yellow", "hidden": "red", "new": "green", "back": "green"}
_CHANGE_TEXTS = {"same": "unchanged", "hidden": "no longer shown", "new": "new", "back": "shown again"}


class DiffSide(Struct, frozen=True):
    """One of the two moments that are compared: its name, and the log up to there."""

    name: str
    log: BranchHistory


@click.command("diff", epilog=EXAMPLES)
@click.argument("session")
@click.argument("moments", metavar="[A..B]", required=False)
@click.option(
    "--lines",
    type=IntegerParamType(0),
    default=4,
    show_default=True,
    help="Lines to show of each change.",
)
@store_option
@make_json_option("both requests, message by message,")
def diff_command(session: str, moments: str | None, lines: int, store: str | None, *, as_json: bool) -> None:
    """Show what the model saw at two moments: replaced, hidden, new and restored messages.

    SESSION is the beginning of an id. A and B are moments: just after the entry with that message number, label or id
    (its beginning is enough). A..B compares the two, ..B shows what entry B changed, and A.. compares A with now.

    Without A..B, SESSION is the id of a request, from the header x-holdfast-request, and the command compares the
    request as the client sent it with the request that went to the provider.

    Sizes are of whole requests, both measured with what was known at the later moment. A ~ marks an estimate; other
    sizes were counted by the provider.
    """
    endpoints = None
    if moments is not None:
        endpoints = _parse_moments(moments)
    with open_named_store(store, readonly=True) as there, ProgressBar("comparing", is_wanted=not as_json):
        info, entry = find_session_or_entry(there, session)
        log = load_branch_history(there, info.key)
        if endpoints is not None:
            before, after = _load_sides(there, info.key, log, *endpoints)
        elif entry is not None:
            # The request may be on another branch than the one that goes on.
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
    """Return the error for a session without A..B: it suggests moments that can be pasted as they stand."""
    examples = []
    if log.state.view.active_decisions:
        newest_id, _ = log.state.view.active_decisions[-1]
        examples.append(f"..{clean_single_line(newest_id)[:SHORT_ID]} (what the newest decision changed)")
    examples.append("0.. (everything since message 0)")
    return f"give two moments after the session, as A..B, for example {', '.join(examples)}; or give a request's id"


def _check_was_sent(entry: Entry) -> Entry:
    """Return ``entry`` if it is a request. Raises ``CommandError`` for one that was never sent."""
    if isinstance(entry.body, RequestEntry):
        return entry
    short = clean_single_line(entry.id[:SHORT_ID])
    raise CommandError(f"request {short} was never sent, so there is nothing to compare; see holdfast why {short}")


def _parse_moments(moments: str) -> tuple[str, str]:
    """Return both sides of ``A..B``, an empty one where it is left out. Raises ``CommandError`` for other text."""
    first, dots, second = moments.partition("..")
    has_one_range = bool(dots) and ".." not in second
    if not has_one_range or not (first or second):
        raise CommandError(
            f"{clean_single_line(moments, 60)!r} is not A..B; give two moments, or one as ..B (what B changed) "
            "or A.. (until now)"
        )
    return first.strip(), second.strip()


def _load_sides(
    store: SessionStore,
    key: str,
    log: BranchHistory,
    first: str,
    second: str,
) -> tuple[DiffSide, DiffSide]:
    """Load the log up to both moments of ``A..B``; an empty ``first`` is the moment before ``second``."""
    after_log = log
    after_name = "now"
    if second:
        after_log = _get_log_until(store, key, log, find_entry(store, key, log, second))
        after_name = f"after {second}"
    after = DiffSide(after_name, after_log)
    if not first:
        return DiffSide(f"before {second}", build_branch_history(after_log.entries[:-1])), after
    before_log = _get_log_until(store, key, log, find_entry(store, key, log, first))
    return DiffSide(f"after {first}", before_log), after


def _split_request_sides(log: BranchHistory) -> tuple[DiffSide, DiffSide]:
    """Return the request as its client sent it, without any decision, and as it went to the provider."""
    undecided_entries = []
    for entry in log.entries:
        if not isinstance(entry.body, DecisionEntry | CompactionEntry | RevokeEntry):
            undecided_entries.append(entry)
    undecided = build_branch_history(undecided_entries)
    return DiffSide("as its client sent it", undecided), DiffSide("as it was sent to the provider", log)


def _get_log_until(store: SessionStore, key: str, log: BranchHistory, entry: Entry) -> BranchHistory:
    """Return the log up to and including ``entry``, on whichever branch that lies."""
    for number, log_entry in enumerate(log.entries):
        if log_entry.id == entry.id:
            return build_branch_history(log.entries[: number + 1])
    return load_branch_history(store, key, entry.id)


def _compare_moments(info: SessionInfo, before: DiffSide, after: DiffSide) -> tuple[RequestComparison, tuple[str, str]]:
    """Compare two moments, and describe the size of the request at each.

    Both sizes use what was known at the later moment, so that ``A..B`` and ``B..A`` show the same two figures. The
    earlier moment alone may have seen no usage at all, and its own estimate would lack the system prompt and tools.
    """
    comparison = compare_requests(before.log, after.log)
    is_backward = _is_later_on_same_branch(before.log, after.log)
    later = after
    earlier = before
    later_messages = comparison.after
    earlier_messages = comparison.before
    if is_backward:
        later, earlier = earlier, later
        later_messages, earlier_messages = earlier_messages, later_messages

    size = measure_session_request(info, later.log.state)
    earlier_tokens = size.tokens - size.scale_tokens(later_messages - earlier_messages)
    # The calibration belongs to a model: after a switch of models only the difference in messages can be compared.
    if earlier.log.state.last_request.model == later.log.state.last_request.model:
        calibrated = copy_later_calibration(earlier.log.state, later.log.state)
        earlier_tokens = measure_session_request(info, calibrated).tokens

    if is_backward:
        comparison = scale_comparison(comparison, size.tokens, earlier_tokens, size)
    else:
        comparison = scale_comparison(comparison, earlier_tokens, size.tokens, size)
    # The provider counted the later request; the earlier one shares that count only where nothing differs.
    is_same_size = size.is_counted and comparison.before == comparison.after
    is_before_counted = is_same_size
    is_after_counted = size.is_counted
    if is_backward:
        is_before_counted, is_after_counted = is_after_counted, is_before_counted
    before_text = format_tokens(comparison.before, is_counted=is_before_counted)
    after_text = format_tokens(comparison.after, is_counted=is_after_counted)
    return comparison, _format_sides(comparison, before_text, after_text)


def _is_later_on_same_branch(log: BranchHistory, other: BranchHistory) -> bool:
    """Return whether ``log`` goes on from the last entry of ``other``."""
    count = len(other.entries)
    if count == 0 or len(log.entries) <= count:
        return False
    return log.entries[count - 1].id == other.entries[-1].id


def _compare_request(
    info: SessionInfo,
    log: BranchHistory,
    entry: Entry,
    comparison: RequestComparison,
) -> tuple[RequestComparison, tuple[str, str]]:
    """Compare a request with the one its client sent, and describe the size of both."""
    at = find_request_position(log, entry)
    detail = describe_request(info, log, at, config.load_configuration())
    size = measure_session_request(info, build_state_at_request(log.entries, at))
    comparison = scale_comparison(comparison, detail.tokens, detail.shown_tokens, size)
    return comparison, _format_sides(comparison, format_client_size(detail), format_upstream_size(detail))


# -- in words ----------------------------------------------------------------------------------------------------------


def _print_diff(
    comparison: RequestComparison,
    info: SessionInfo,
    heads: tuple[str, str],
    lines: int,
) -> None:
    from rich.text import Text

    out = make_console()
    print_line(out, format_session_line(info))
    growth = comparison.after - comparison.before
    print_wrapped(out, Text(f"--- {clean_single_line(heads[0])}", "red"))
    print_wrapped(out, Text(f"+++ {clean_single_line(heads[1])} ({growth:+,})", "green"))
    for group in group_message_changes(comparison.changes):
        _print_change_group(out, group, lines)
    if all(change.kind == "same" for change in comparison.changes):
        out.print("nothing changed in between")


def _format_sides(comparison: RequestComparison, before: str, after: str) -> tuple[str, str]:
    before_count = format_count(comparison.before_messages, "message")
    after_count = format_count(comparison.after_messages, "message")
    return f"{before_count}, {before} tokens", f"{after_count}, {after} tokens"


def _print_change_group(console: Any, group: list[MessageChange], lines: int) -> None:
    """Print one changed message with its lines, or a group of neighbors that changed alike on one line."""
    from rich.text import Text

    first_change = group[0]
    sign = _CHANGE_SIGNS[first_change.kind]
    style = _CHANGE_STYLES[first_change.kind]
    cause = _format_cause(first_change)
    if len(group) == 1 and first_change.kind != "same":
        head = f"{sign} {_name_message(first_change)} {_describe_change(first_change)}{cause}"
        print_wrapped(console, Text(head, style))
        _print_change_lines(console, "-", first_change.removed_lines, lines)
        _print_change_lines(console, "+", first_change.added_lines, lines)
        return
    span = _name_message(first_change)
    if len(group) > 1:
        span = f"#{first_change.number} to #{group[-1].number}"
    tokens = format_tokens(sum(change.before or change.after for change in group))
    description = _CHANGE_TEXTS[first_change.kind]
    head = f"{sign} {span}: {format_count(len(group), 'message')}, {tokens} tokens, {description}{cause}"
    print_wrapped(console, Text(head, style))


def _name_message(change: MessageChange) -> str:
    if change.number < 0:
        return "summary"
    return f"#{change.number} {clean_single_line(change.entry)[:SHORT_ID]} {change.role}"


def _describe_change(change: MessageChange) -> str:
    if change.kind == "changed":
        return f"{format_tokens(change.before)} → {format_tokens(change.after)} tokens"
    description = _CHANGE_TEXTS[change.kind]
    if change.number < 0:
        description = "removed" if change.kind == "hidden" else "replaces the hidden messages"
    return f"{format_tokens(change.before or change.after)} tokens, {description}"


def _format_cause(change: MessageChange) -> str:
    """Return the rule, decision and reason behind a change, or an empty string where no decision made it."""
    if not change.decided_by:
        return ""
    rule = clean_single_line(change.rule)
    why = clean_single_line(change.why)
    return f"  {rule} ({clean_single_line(change.decided_by)[:SHORT_ID]}): {why}"


def _print_change_lines(console: Any, sign: str, text: tuple[str, ...], max_lines: int) -> None:
    from rich.text import Text

    for line in text[:max_lines]:
        print_line(console, Text(f"    {sign} {clean_single_line(line)}", style="dim"))
    if len(text) > max_lines > 0:
        console.print(Text(f"    {sign} … {format_count(len(text) - max_lines, 'more line')}", style="dim"))
