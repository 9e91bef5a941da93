"""Both runs of the demonstration beside each other, and what can be read back of the second."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from holdfast.cli.demo.trial import DEMO_SESSION, MODEL, WINDOW, DemoRun
from holdfast.cli.demo.watcher import draw_run
from holdfast.cli.output.terminal import clean_single_line, format_count, print_command, print_wrapped
from holdfast.testing.task.routes import ROUTES

if TYPE_CHECKING:
    from rich.console import Console

DEMO_STORE_FILE = "session.db"
"""The file of the second run's session."""
RECALL_PHRASE = "agreed surcharge"
"""What each line of the audit says that can be read back."""
_SMALL_PICTURE_ROWS = 8
"""Lines of the first picture, which only grows."""
ROOMY_WIDTH, MIN_NAME_WIDTH = 60, 12
"""Columns from which on the table is not crowded, and those that the names of its figures have at least."""
_OUTCOME_STYLES = {
    "finished": ("finished", "green"),
    "overflow": ("died of an overflow", "red"),
    "stopped": ("stopped", "red"),
}


class EarlyMessageRecall(Struct, frozen=True):
    """What was said early in a session and can still be read back."""

    messages: int = 0
    """All that the log holds."""
    lines: int = 0
    """Lines of the audit; it was taken at the second step, and no file has it."""
    first: str = ""
    handle: str = ""
    """The id that it is read back by."""


class DemoComparison(Struct, frozen=True):
    """Both runs, what can be read back of the second, and how long it all took."""

    without: DemoRun
    with_holdfast: DemoRun
    recall: EarlyMessageRecall
    seconds: float


def print_introduction(console: Console) -> None:
    """Print what is going to happen."""
    text = (
        f"One task, twice: a scripted model puts {len(ROUTES)} files of a small project right, step by step, with real"
        f" tools. A strict provider on this machine refuses whatever does not fit in {WINDOW:,} tokens."
    )
    print_wrapped(console, Text(text))
    console.print()


def print_run_without_holdfast(console: Console, run: DemoRun) -> None:
    """Print how the first run went."""
    console.print(draw_run(console, "without Holdfast", run.points, _SMALL_PICTURE_ROWS, legend=False))
    print_wrapped(console, Text.assemble(("the provider: ", "dim"), (clean_single_line(run.error), "red")))
    console.print()


def print_demo_comparison(console: Console, comparison: DemoComparison, folder: Path | None) -> None:
    """Print the second run, both beside each other, what is still there, and how to go on."""
    console.print(draw_run(console, "with Holdfast", comparison.with_holdfast.points))
    if comparison.with_holdfast.error:
        print_wrapped(console, Text(clean_single_line(comparison.with_holdfast.error), style="red"))
    console.print()
    console.print(_make_comparison_table(comparison, gap=3 if console.width >= ROOMY_WIDTH else 1))
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


def _make_comparison_rows(first_run: DemoRun, two: DemoRun) -> list[tuple[str, Text, Text]]:
    rows: list[tuple[str, str, str]] = [
        ("steps survived", f"{first_run.steps:,}", f"{two.steps:,}"),
        (f"largest request, of {WINDOW:,}", f"{first_run.points[-1].tokens:,}", f"{two.totals.largest:,}"),
        ("tokens, all requests", f"{first_run.totals.tokens:,}", f"{two.totals.tokens:,}"),
        ("read from the cache", f"{first_run.totals.cache_hit:.1%}", f"{two.totals.cache_hit:.1%}"),
        (f"dollars, {MODEL}", f"{first_run.totals.usd:.2f}", f"{two.totals.usd:.2f}"),
        ("compactions", "-", f"{two.compactions:,}"),
        ("read back by the model", "-", format_count(two.recalls, "time")),
    ]
    outcome_row = ("the task", Text(*_OUTCOME_STYLES[first_run.outcome]), Text(*_OUTCOME_STYLES[two.outcome]))
    return [outcome_row, *((name, Text(left), Text(right)) for name, left, right in rows)]


def _print_recalled(console: Console, comparison: DemoComparison) -> None:
    recall = comparison.recall
    print_wrapped(console, Text(f"Nothing was lost: all {recall.messages:,} messages are in the session's log."))
    if recall.lines:
        lines_part = (f"{recall.lines} of {len(ROUTES)} lines", "green")
        text = Text.assemble(
            "The audit of step 2, which no file has: ", lines_part, f" are read back, such as {recall.first}"
        )
        print_wrapped(console, text)


def _print_next_commands(console: Console, comparison: DemoComparison, folder: Path | None) -> None:
    console.print()
    if folder is None:
        print_wrapped(console, Text("To look into that session yourself: holdfast demo --keep DIR", style="dim"))
        return
    where = f"--store {shlex.quote(str(folder / DEMO_STORE_FILE))}"
    for verb, options in (
        ("show", ""),
        ("context", f"--window {WINDOW} "),
        ("why", "4 "),
        ("recall", f'{comparison.recall.handle[:12]} --search "{RECALL_PHRASE}" '),
    ):
        print_command(console, Text(f"holdfast {verb} {DEMO_SESSION} {options}{where}", style="dim"))
