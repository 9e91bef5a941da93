"""The table of ``holdfast stats --by``: a pure function of the report, the number of rows and the width."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.cli.output.terminal import COLUMN_GAP, choose_columns
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.describe import shorten_session_keys
from holdfast.reports.requests.request_size import format_tokens
from holdfast.reports.sessions.usage_groups import LeftOutSession, UsageReport, UsageTotal

MAX_NAME_WIDTH = 32
"""Columns that a name may take before figures are left out for it; a longer one goes on in the next line. Chosen by
judgement: the last folders of a path still fit."""
_FIRST_HEADINGS = {"week": "week of"}
_UNKNOWN_NAMES = {
    "project": "no folder recorded",
    "model": "no model recorded",
    "tool": "no client recorded",
}


class UsageColumn(Struct, frozen=True):
    """A column of figures: its heading, what it shows, and when it is left out in a narrow terminal."""

    heading: str
    format_cell: Callable[[UsageTotal], str]
    drop_rank: int
    """Columns with a lower rank are left out first; 0 is never left out."""


def has_known_cost(total: UsageTotal) -> bool:
    """Return whether there are dollars to show: a 0 would look like a price of nothing if no price is known."""
    return bool(total.input) and (total.dollars > 0 or not total.unpriced_calls)


def has_known_savings(total: UsageTotal) -> bool:
    """Return whether the saved dollars are known."""
    return total.saved_dollars > 0 or not total.unpriced_calls


def _format_cost(part: str) -> Callable[[UsageTotal], str]:
    """Return the function that formats the dollars in the field ``part``."""
    return lambda total: f"{getattr(total, part):,.2f}" if has_known_cost(total) else "-"


def _format_tokens_used(part: str) -> Callable[[UsageTotal], str]:
    return lambda total: f"{getattr(total, part):,}" if total.answers or total.input else "-"


def _format_saved_tokens(total: UsageTotal) -> str:
    saved_tokens = round(total.saved_tokens)
    # That nothing was saved is no estimate.
    return format_tokens(saved_tokens, is_counted=not saved_tokens)


def _format_saved_dollars(total: UsageTotal) -> str:
    return f"{total.saved_dollars:,.2f}" if has_known_savings(total) else "-"


COLUMNS = (
    UsageColumn("sessions", lambda total: f"{total.sessions:,}", 4),
    UsageColumn("requests", lambda total: f"{total.requests:,}", 9),
    UsageColumn("input", _format_tokens_used("input"), 11),
    UsageColumn("output", _format_tokens_used("output"), 8),
    UsageColumn("cache written", _format_tokens_used("cache_write"), 7),
    UsageColumn("cache read", _format_tokens_used("cache_read"), 10),
    UsageColumn("dollars", _format_cost("dollars"), 0),
    UsageColumn("for reads", _format_cost("cache_read_dollars"), 6),
    UsageColumn("for writes", _format_cost("cache_write_dollars"), 5),
    UsageColumn("for fresh input", _format_cost("fresh_input_dollars"), 2),
    UsageColumn("for output", _format_cost("output_dollars"), 1),
    UsageColumn("saved tokens", _format_saved_tokens, 12),
    UsageColumn("saved dollars", _format_saved_dollars, 3),
)
"""The columns after the name. Dollars stay longest, then what was saved and the tokens behind both."""


def render_usage(report: UsageReport, limit: int, width: int) -> Group:
    """Return the first ``limit`` groups and the total of all, with no line wider than ``width`` columns."""
    names = list(report.groups)[:limit]
    rows = [
        ("", *[column.heading for column in COLUMNS]),
        *[_make_row(_format_group_name(report, name), report.groups[name]) for name in names],
        _make_row("all", report.total),
    ]
    by_rank = sorted(range(len(COLUMNS)), key=lambda at: COLUMNS[at].drop_rank)
    spare = [at + 1 for at in by_rank if COLUMNS[at].drop_rank]
    # A long name is folded, so it needs no more than this of the line.
    measured_rows = [(row[0][:MAX_NAME_WIDTH], *row[1:]) for row in rows]
    shown_indexes = choose_columns(measured_rows, spare, width)
    lines: list[RenderableType] = [_build_table(report, rows, shown_indexes, width)]
    lines += [Text(line, "dim") for line in _list_remarks(report, shown_indexes)]
    return Group(*lines)


def _build_table(report: UsageReport, rows: list[tuple[str, ...]], shown_indexes: list[int], width: int) -> Table:
    table = Table(box=None, padding=(0, COLUMN_GAP, 0, 0), pad_edge=False, header_style="bold")
    natural_width = sum(max(len(row[at]) for row in rows) + COLUMN_GAP for at in shown_indexes) - COLUMN_GAP
    for at in shown_indexes:
        heading = COLUMNS[at - 1].heading if at else _FIRST_HEADINGS.get(report.by, report.by)
        # Figures are narrower than most headings, so headings on several lines save width.
        if natural_width > width:
            heading = heading.replace(" ", "\n")
        justify: Literal["left", "right"] = "right" if at else "left"
        table.add_column(heading, justify=justify, vertical="bottom", overflow="fold", no_wrap=at > 0)
    for number, row in enumerate(rows[1:], 1):
        is_total = number == len(rows) - 1
        table.add_row(*[row[at] for at in shown_indexes], style="bold" if is_total else "")
    return table


def _make_row(name: str, total: UsageTotal) -> tuple[str, ...]:
    return (name, *[column.format_cell(total) for column in COLUMNS])


def _format_group_name(report: UsageReport, name: str) -> str:
    if not name:
        return _UNKNOWN_NAMES.get(report.by, "no time recorded")
    if report.by == "session":
        return clean_single_line(shorten_session_keys([key for key in report.groups if key])[name])
    home = str(Path.home())
    if report.by == "project" and name.startswith(f"{home}/"):
        name = f"~{name.removeprefix(home)}"
    return clean_single_line(name)


def _list_remarks(report: UsageReport, shown_indexes: list[int]) -> list[str]:
    """Return what the figures leave out, a line each."""
    total = report.total
    remarks = []
    if total.unpriced_calls:
        calls = format_count(total.unpriced_calls, "call")
        remarks.append(f"dollars leave out {calls} of models without a known price (set one in holdfast.toml)")
    if total.answers_without_usage:
        remarks.append(f"{format_count(total.answers_without_usage, 'answer')} without usage not included")
    remarks += list_left_out_lines(report.left_out)
    hidden = [column.heading for at, column in enumerate(COLUMNS, 1) if at not in shown_indexes]
    if hidden:
        remarks.append(f"hidden columns (use a wider terminal, or --json): {', '.join(hidden)}")
    return remarks


def list_left_out_lines(sessions: Iterable[LeftOutSession]) -> list[str]:
    """Return a line for each session that could not be read."""
    lines = []
    for left_out in sessions:
        session = clean_single_line(left_out.session)
        lines.append(f"left out, since it cannot be read: {session} ({clean_single_line(left_out.reason, 200)})")
    return lines
