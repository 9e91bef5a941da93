"""Both runs of the demonstration beside each other, and what can be read back of the second."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from holdfast.cli.demo.trial import KEY, MODEL, WINDOW, Run
from holdfast.cli.demo.watcher import drawn
from holdfast.cli.output.terminal import clean, many, say_command, say_whole
from holdfast.testing.task.routes import ROUTES

if TYPE_CHECKING:
    from rich.console import Console

STORE = "session.db"
"""The file of the second run's session."""
AGREED = "agreed surcharge"
"""What each line of the audit says that can be read back."""
_FEW = 8
"""Lines of the first picture, which only grows."""
ROOMY, LEAST = 60, 12
"""Columns from which on the table is not crowded, and those that the names of its figures have at least."""
_OUTCOMES = {
    "finished": ("finished", "green"),
    "overflow": ("died of an overflow", "red"),
    "stopped": ("stopped", "red"),
}


class Recalled(Struct, frozen=True):
    """What was said early in a session and can still be read back."""

    messages: int = 0
    """All that the log holds."""
    lines: int = 0
    """Lines of the audit; it was taken at the second step, and no file has it."""
    first: str = ""
    handle: str = ""
    """The id that it is read back by."""


class Both(Struct, frozen=True):
    """Both runs, what can be read back of the second, and how long it all took."""

    without: Run
    aided: Run
    recalled: Recalled
    seconds: float


def say_beginning(out: Console) -> None:
    """Print what is going to happen."""
    said = (
        f"One task, twice: a scripted model puts {len(ROUTES)} files of a small project right, step by step, with real"
        f" tools. A strict provider on this machine refuses whatever does not fit in {WINDOW:,} tokens."
    )
    say_whole(out, Text(said))
    out.print()


def say_without(out: Console, run: Run) -> None:
    """Print how the first run went."""
    out.print(drawn(out, "without Holdfast", run.points, _FEW, legend=False))
    say_whole(out, Text.assemble(("the provider: ", "dim"), (clean(run.error), "red")))
    out.print()


def say_both(out: Console, both: Both, kept: Path | None) -> None:
    """Print the second run, both beside each other, what is still there, and how to go on."""
    out.print(drawn(out, "with Holdfast", both.aided.points))
    if both.aided.error:
        say_whole(out, Text(clean(both.aided.error), style="red"))
    out.print()
    out.print(_table(both, gap=3 if out.width >= ROOMY else 1))
    out.print()
    _say_recalled(out, both)
    _say_next(out, both, kept)


def _table(both: Both, gap: int) -> Table:
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
    table.add_column("", min_width=LEAST, overflow="fold")
    for title in ("without", "with Holdfast"):
        table.add_column(title, justify="right")
    for name, *cells in _rows(both.without, both.aided):
        table.add_row(Text(name, style="dim"), *cells)
    return table


def _rows(one: Run, two: Run) -> list[tuple[str, Text, Text]]:
    told: list[tuple[str, str, str]] = [
        ("steps survived", f"{one.steps:,}", f"{two.steps:,}"),
        (f"largest request, of {WINDOW:,}", f"{one.points[-1].tokens:,}", f"{two.totals.largest:,}"),
        ("tokens, all requests", f"{one.totals.tokens:,}", f"{two.totals.tokens:,}"),
        ("read from the cache", f"{one.totals.cache_hit:.1%}", f"{two.totals.cache_hit:.1%}"),
        (f"dollars, {MODEL}", f"{one.totals.usd:.2f}", f"{two.totals.usd:.2f}"),
        ("compactions", "-", f"{two.compactions:,}"),
        ("read back by the model", "-", many(two.recalled, "time")),
    ]
    ended = ("the task", Text(*_OUTCOMES[one.outcome]), Text(*_OUTCOMES[two.outcome]))
    return [ended, *((name, Text(left), Text(right)) for name, left, right in told)]


def _say_recalled(out: Console, both: Both) -> None:
    found = both.recalled
    say_whole(out, Text(f"Nothing was lost: all {found.messages:,} messages are in the session's log."))
    if found.lines:
        read = (f"{found.lines} of {len(ROUTES)} lines", "green")
        said = Text.assemble("The audit of step 2, which no file has: ", read, f" are read back, such as {found.first}")
        say_whole(out, said)


def _say_next(out: Console, both: Both, kept: Path | None) -> None:
    out.print()
    if kept is None:
        say_whole(out, Text("To look into that session yourself: holdfast demo --keep DIR", style="dim"))
        return
    where = f"--store {shlex.quote(str(kept / STORE))}"
    for verb, rest in (
        ("show", ""),
        ("context", f"--window {WINDOW} "),
        ("why", "4 "),
        ("recall", f'{both.recalled.handle[:12]} --search "{AGREED}" '),
    ):
        say_command(out, Text(f"holdfast {verb} {KEY} {rest}{where}", style="dim"))
