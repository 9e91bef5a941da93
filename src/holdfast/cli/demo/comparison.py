"""The two runs of the demonstration side by side, and the messages that the second can read back."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from holdfast.cli.demo.trial import DEMO_SESSION, MODEL, WINDOW, DemoRun
from holdfast.cli.demo.watcher import draw_run
from holdfast.cli.output.terminal import print_command, print_wrapped
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.testing.task.routes import ROUTES

if TYPE_CHECKING:
    from rich.console import Console

DEMO_STORE_FILE = "session.db"
"""The file of the second run's session."""
RECALL_PHRASE = "agreed surcharge"
"""The phrase in each line of the audit, to find them again."""
_SMALL_PICTURE_ROWS = 8
"""Lines of the first picture, which only grows and needs little room."""
ROOMY_WIDTH, MIN_NAME_WIDTH = 60, 12
"""Columns from which the table gets wide gaps, and the least width of its first column."""
_OUTCOME_STYLES = {
    "finished": ("finished", "green"),
    "overflow": ("failed: context overflow", "red"),
    "stopped": ("stopped", "red"),
}


class EarlyMessageRecall(Struct, frozen=True):
    """An early part of the session that can still be read back."""

    messages: int = 0
    """Messages in the log."""
    lines: int = 0
    """Lines of the audit; it was made at the second step, and no file contains it."""
    first: str = ""
    handle: str = ""
    """The id that reads it back."""


class DemoComparison(Struct, frozen=True):
    """Both runs, the audit as read back from the second, and the seconds for everything."""

    without: DemoRun
    with_holdfast: DemoRun
    recall: EarlyMessageRecall
    seconds: float


def print_introduction(console: Console) -> None:
    """Print a description of the demonstration."""
    text = (
        f"One task, twice: a scripted model corrects {len(ROUTES)} files of a small project, step by step, with real"
        f" tools. A strict provider on this machine refuses any request over {WINDOW:,} tokens."
    )
    print_wrapped(console, Text(text))
    console.print()


def print_run_without_holdfast(console: Console, run: DemoRun) -> None:
    """Print the result of the first run."""
    console.print(draw_run(console, "without Holdfast", run.points, _SMALL_PICTURE_ROWS, legend=False))
    print_wrapped(console, Text.assemble(("the provider: ", "dim"), (clean_single_line(run.error), "red")))
    console.print()


def print_demo_comparison(console: Console, comparison: DemoComparison, folder: Path | None) -> None:
    """Print the second run, the comparison, the audit that was read back, and commands to go on with."""
    console.print(draw_run(console, "with Holdfast", comparison.with_holdfast.points))
    if comparison.with_holdfast.error:
        print_wrapped(console, Text(clean_single_line(comparison.with_holdfast.error), style="red"))
    console.print()
    gap = 3 if console.width >= ROOMY_WIDTH else 1
    console.print(_make_comparison_table(comparison, gap))
    console.print()
    _print_recalled(console, comparison)
    _print_next_commands(console, comparison, folder)


def _make_comparison_table(comparison: DemoComparison, gap: int) -> Table:
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
    table.add_column("", min_width=MIN_NAME_WIDTH, overflow="fold")
    for title in ("without", "with Holdfast"):
        table.add_column(title, justify="right")
    for name, *cells in _make_comparison_rows(comparison.without, comparison.with_holdfast):
        table.add_row(Text(name, style="dim"), *cells)
    return table


def _make_comparison_rows(first: DemoRun, second: DemoRun) -> list[tuple[str, Text, Text]]:
    """Return the rows of the table: the name of a figure, then its value in both runs."""
    # The first run ends with the refused request, which is its largest; the second never sent one that large.
    largest_first = first.points[-1].tokens
    rows: list[tuple[str, str, str]] = [
        ("steps survived", f"{first.steps:,}", f"{second.steps:,}"),
        (f"largest request, of {WINDOW:,}", f"{largest_first:,}", f"{second.totals.largest:,}"),
        ("tokens, all requests", f"{first.totals.tokens:,}", f"{second.totals.tokens:,}"),
        ("read from the cache", f"{first.totals.cache_hit:.1%}", f"{second.totals.cache_hit:.1%}"),
        (f"dollars, {MODEL}", f"{first.totals.usd:.2f}", f"{second.totals.usd:.2f}"),
        ("compactions", "-", f"{second.compactions:,}"),
        ("read back by the model", "-", format_count(second.recalls, "time")),
    ]
    table = [("the task", Text(*_OUTCOME_STYLES[first.outcome]), Text(*_OUTCOME_STYLES[second.outcome]))]
    table += [(name, Text(left), Text(right)) for name, left, right in rows]
    return table


def _print_recalled(console: Console, comparison: DemoComparison) -> None:
    recall = comparison.recall
    print_wrapped(console, Text(f"Nothing was lost: all {recall.messages:,} messages are in the session's log."))
    if recall.lines:
        lines_part = (f"{recall.lines} of {len(ROUTES)} lines", "green")
        text = Text.assemble(
            "The audit of step 2 is in no file, yet ",
            lines_part,
            f" can be read back, such as: {recall.first}",
        )
        print_wrapped(console, text)


def _print_next_commands(console: Console, comparison: DemoComparison, folder: Path | None) -> None:
    console.print()
    if folder is None:
        print_wrapped(console, Text("To explore that session yourself: holdfast demo --keep DIR", style="dim"))
        return
    where = f"--store {shlex.quote(str(folder / DEMO_STORE_FILE))}"
    commands = (
        f"holdfast show {DEMO_SESSION} {where}",
        f"holdfast context {DEMO_SESSION} --window {WINDOW} {where}",
        f"holdfast why {DEMO_SESSION} 4 {where}",
        f'holdfast recall {DEMO_SESSION} {comparison.recall.handle[:12]} --search "{RECALL_PHRASE}" {where}',
    )
    for command in commands:
        print_command(console, Text(command, style="dim"))
