"""The table of ``holdfast watch``: a pure function of the sessions, the time and the width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from holdfast.cli.output.terminal import COLUMN_GAP
from holdfast.reports.requests.request_size import format_tokens
from holdfast.reports.sessions.watched_sessions import WatchedSession
from holdfast.state.costs import divide_or_zero

IDLE_SECONDS = 300
"""Seconds after its newest request from which a session is dimmed. Chosen by judgement: five minutes is also the usual
lifetime of a provider's cache, so a bright session is one whose cache is probably warm."""
FULL_SHARE, HIGH_SHARE = 0.9, 0.7
"""Shares of the window from which the bar is red, and yellow. Chosen by judgement."""
BAR_WIDTH = 10
"""Columns of the bar for a whole window."""
MIN_NAME_WIDTH, MAX_NAME_WIDTH = 10, 32
MIN_DECISION_WIDTH = 27
"""Columns below which a decision could not be understood: those of a compaction with its sizes."""
_AGE_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


class WatchColumn(Struct, frozen=True):
    """A column: its heading, the least columns of the terminal that it needs, and what it shows of a session."""

    heading: str
    width: int
    format_cell: Callable[[WatchedSession, float], Text | str]
    drop_rank: int
    """Columns with a lower rank are left out first in a narrow terminal; 0 is never left out."""
    is_number: bool = False


def render_watch(sessions: Sequence[WatchedSession], now: float, width: int) -> Group:
    """Return the table of ``sessions``, in their order, with no line wider than ``width`` columns.

    ``now`` is in seconds since 1970. The newest cache miss among ``sessions`` follows in a sentence.
    """
    columns = choose_watch_columns(width)
    table = Table(box=None, padding=(0, COLUMN_GAP, 0, 0), pad_edge=False, header_style="bold")
    for column, column_width in zip(columns, share_width(columns, width), strict=True):
        table.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            width=column_width,
            no_wrap=True,
            overflow="ellipsis",
        )
    for shown in sessions:
        cells = [column.format_cell(shown, now) for column in columns]
        table.add_row(*cells, style="dim" if is_idle(shown, now) else "")
    lines: list[Table | Text] = [table]
    for shown in sessions:
        if shown.miss:
            lines.append(Text())
            lines.append(Text(f"last cache miss of {shown.name}: {shown.miss}", "dim", overflow="fold"))
            break
    return Group(*lines)


def is_idle(shown: WatchedSession, now: float) -> bool:
    """Return whether the newest request of a session is long ago, or was never made."""
    return shown.last_request_at is None or now - shown.last_request_at / 1_000 >= IDLE_SECONDS


def choose_watch_columns(width: int) -> list[WatchColumn]:
    """Return the columns that fit in ``width``, the more important ones first served."""
    columns = list(WATCH_COLUMNS)
    droppable = sorted((column for column in columns if column.drop_rank), key=lambda column: column.drop_rank)
    for column in droppable:
        if _sum_widths(columns) <= width:
            break
        columns.remove(column)
    return columns


def share_width(columns: Sequence[WatchColumn], width: int) -> list[int]:
    """Return the width of each of ``columns``: what is free goes to the name first, then to the decision."""
    widths = [column.width for column in columns]
    free = width - _sum_widths(columns)
    if free < 0:
        # Narrower than the columns that always stand: the name gives way.
        widths[0] = max(1, widths[0] + free)
        return widths
    for_name = min(free, MAX_NAME_WIDTH - MIN_NAME_WIDTH)
    headings = [column.heading for column in columns]
    if DECISION_HEADING in headings:
        for_name = min(for_name, free // 2)
        widths[headings.index(DECISION_HEADING)] += free - for_name
    widths[0] += for_name
    return widths


def _sum_widths(columns: Sequence[WatchColumn]) -> int:
    return sum(column.width + COLUMN_GAP for column in columns) - COLUMN_GAP


# -- the cells ---------------------------------------------------------------------------------------------------------


def _format_name(shown: WatchedSession, _now: float) -> str:
    return shown.name


def _format_client(shown: WatchedSession, _now: float) -> str:
    return shown.client or "-"


def _format_model(shown: WatchedSession, _now: float) -> str:
    return shown.model or "-"


def _format_bar(shown: WatchedSession, _now: float) -> Text:
    """Return a bar of the window with the share in use; full if the request is larger than the window."""
    if not shown.window:
        return Text("-")
    share = divide_or_zero(shown.tokens, shown.window)
    length = min(BAR_WIDTH, round(share * BAR_WIDTH))
    style = "green"
    if share >= FULL_SHARE:
        style = "red"
    elif share >= HIGH_SHARE:
        style = "yellow"
    percent = f"{min(share, 9.99):.0%}"
    return Text.assemble(("█" * length, style), ("░" * (BAR_WIDTH - length), "dim"), (f"{percent:>5}", style))


def _format_size(shown: WatchedSession, _now: float) -> str:
    if not shown.window:
        return "-"
    tokens = format_tokens(shown.tokens, is_counted=shown.is_counted)
    return f"{tokens} of {shown.window:,}"


def _format_cost(shown: WatchedSession, _now: float) -> str:
    if shown.dollars is None:
        return "-"
    # What models without a known price cost comes on top.
    more = "+" if shown.unpriced_calls else ""
    return f"${shown.dollars:,.2f}{more}"


def _format_cache(shown: WatchedSession, _now: float) -> str:
    return "-" if shown.cache_share is None else f"{shown.cache_share:.0%}"


def _format_miss(shown: WatchedSession, _now: float) -> str:
    if not shown.miss_cause:
        return "-"
    return f"{shown.miss_cause} {shown.missed_tokens:,}"


def _format_compactions(shown: WatchedSession, _now: float) -> str:
    return f"{shown.compactions:,}"


def _format_decision(shown: WatchedSession, _now: float) -> Text | str:
    if shown.problem:
        return Text(f"cannot be read: {shown.problem}", "red")
    return shown.decision or "-"


def _format_idle_time(shown: WatchedSession, now: float) -> str:
    """Return the time since the newest request in one unit: seconds as long as they are fewer than a minute."""
    if shown.last_request_at is None:
        return "-"
    # A clock may be behind the one that wrote the log.
    seconds = max(0.0, now - shown.last_request_at / 1_000)
    for size, unit in _AGE_UNITS:
        if seconds >= size:
            return f"{int(seconds // size):,} {unit}"
    return "now"


DECISION_HEADING = "last decision"
WATCH_COLUMNS = (
    WatchColumn("session", MIN_NAME_WIDTH, _format_name, 0),
    WatchColumn("client", 11, _format_client, 3),
    WatchColumn("model", 18, _format_model, 2),
    WatchColumn("context", BAR_WIDTH + 5, _format_bar, 0),
    WatchColumn("tokens", 22, _format_size, 1, is_number=True),
    WatchColumn("cost", 7, _format_cost, 8, is_number=True),
    WatchColumn("cache", 5, _format_cache, 7, is_number=True),
    WatchColumn("last miss", 18, _format_miss, 4),
    WatchColumn("comp.", 5, _format_compactions, 5, is_number=True),
    WatchColumn(DECISION_HEADING, MIN_DECISION_WIDTH, _format_decision, 6),
    WatchColumn("idle", 6, _format_idle_time, 0, is_number=True),
)
"""The columns in their order. The widths hold what is usual; a longer text is cut, with a sign for it."""


def limit_sessions(sessions: Sequence[WatchedSession], height: int, width: int) -> tuple[WatchedSession, ...]:
    """Return as many of ``sessions`` as fit on a screen of ``height`` lines, with the sentence below them."""
    sentence_length = max((cell_len(shown.miss) + cell_len(shown.name) for shown in sessions), default=0)
    # The heading, the line about the store, a blank line, the sentence with its beginning, and the cursor's line.
    other_lines = 6 + sentence_length // max(1, width)
    return tuple(sessions[: max(1, height - other_lines)])
