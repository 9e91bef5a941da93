"""What commands print: JSON for programs, tables and lines for people, a progress bar for the waiting."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from typing import Self

    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.text import Text

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

PAPER = 100
"""Columns where there is no terminal to ask: files and pipes."""
SET_IN, LEAST = 4, 16
"""Blanks before what is left of a line that was too long, and columns that it has at least."""
GAP = 2
"""Blanks between columns."""
PATIENCE = 1.0
"""Seconds after which a progress bar is shown."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
"""Line ends, escape sequences and marks that turn the direction of text: never printed as they come."""
_HALF = re.compile(r"[\ud800-\udfff]")


def json_option(what: str) -> Callable[[F], F]:
    """Return the option ``--json``, which every command has."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")


def say_json(value: Any) -> None:
    """Print ``value`` as one JSON document."""
    click.echo(as_json_bytes(value, indent=1))


def as_json_bytes(value: Any, indent: int | None = None) -> bytes:
    """Return ``value`` as JSON in UTF-8; half surrogates become escapes, so every text can be printed."""
    return json.dumps(value, ensure_ascii=False, indent=indent).encode("utf-8", "backslashreplace")


def say_line(out: Console, line: Text) -> None:
    """Print ``line`` on one line, its end cut off where it is too long."""
    line.truncate(out.width, overflow="ellipsis")
    out.print(line, no_wrap=True)


def say_whole(out: Console, line: Text) -> None:
    """Print all of ``line``: where it is too long it goes on below, set in."""
    if line.cell_len <= out.width:
        out.print(line, no_wrap=True)
        return
    for number, piece in enumerate(line.wrap(out, max(LEAST, out.width - SET_IN))):
        piece.rstrip()
        if number:
            piece.pad_left(SET_IN)
        out.print(piece)


def say_table(out: Console, table: RenderableType) -> None:
    """Print ``table``, no line of it with blanks at its end."""
    from rich.text import Text

    for pieces in out.render_lines(table, pad=False):
        line = Text.assemble(*((piece.text, piece.style or "") for piece in pieces))
        line.rstrip()
        out.print(line, no_wrap=True)


def fitting(rows: Sequence[Sequence[str]], spare: Iterable[int], width: int) -> list[int]:
    """Return which columns of ``rows``, the heads first, have room in ``width`` with every cell whole.

    Where all of them have none those of ``spare`` go, in that order; heads may take a line for each of their words.
    """
    head, *others = rows
    words = [max(map(len, name.split()), default=0) for name in head]
    least = [max([word, *(len(row[at]) for row in others)]) for at, word in enumerate(words)]
    kept = list(range(len(head)))
    for at in spare:
        if sum(least[one] + GAP for one in kept) - GAP <= width:
            break
        kept.remove(at)
    return kept


def say_command(out: Console, line: Text) -> None:
    """Print ``line`` without a line end inside, however long it is, so that it can be pasted."""
    out.print(line, soft_wrap=True)


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints what it is given, without markup; colours as the terminal and NO_COLOR say."""
    from rich.console import Console as Plain

    class Console(Plain):
        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704 -- the error is told where all are

    stream = (sys.stderr if stderr else sys.stdout) or io.StringIO()  # a stream that was closed is None
    width = None if stream.isatty() or os.environ.get("COLUMNS") else PAPER
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def has_colours(out: Console) -> bool:
    """Return whether colours tell things apart here, or letters must."""
    return out.color_system is not None and not out.no_color


def clean(text: str, most: int = 0) -> str:
    """Return ``text`` on one line with nothing in it that steers a terminal, cut to ``most`` characters (0: whole)."""
    if most:
        text = text[: 4 * most]
    line = _HALF.sub("\ufffd", " ".join(_CONTROL.sub(" ", text).split()))
    return f"{line[: most - 1]}…" if most and len(line) > most else line


def many(count: int, what: str) -> str:
    """Return ``1 error``, ``2 errors``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def say_more(count: int, what: str, option: str) -> None:
    """Tell on standard error that ``count`` more were not shown, if there are any, and what shows them."""
    if count > 0:
        click.echo(f"… and {many(count, what)}; {option} shows more, --json all", err=True)


class Waiting:
    """A progress bar on standard error; it shows after a second, and only to a person at a terminal.

    What is a part of something of which nobody knows the end only moves. Print nothing while this is entered.
    """

    def __init__(self, label: str = "", *, wanted: bool) -> None:
        self._wanted = wanted and sys.stderr is not None and sys.stderr.isatty()
        self._timer, self._lock = Timer(PATIENCE, self._appear), Lock()
        self._timer.daemon = True
        self._bar: Progress | None = None
        self._label, self._total, self._done = label, 0, 0

    def __enter__(self) -> Self:
        """Return the bar, not shown yet."""
        if self._wanted:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._wanted = False
            if self._bar is not None:
                self._bar.stop()

    def begin(self, label: str, total: int = 0) -> None:
        """Begin a part of ``total`` ticks, called ``label``; 0 where nobody knows how many there will be."""
        self.reach(label, 0, total)

    def tick(self) -> None:
        """Tell that one more step is done."""
        self.reach(self._label, self._done + 1, self._total)

    def reach(self, label: str, done: int, total: int) -> None:
        """Tell that ``done`` of ``total`` steps of the part called ``label`` are done."""
        self._label, self._total, self._done = label, total, done
        if self._bar is not None:
            self._show(self._bar)

    def over(self, label: str, items: Sequence[T]) -> Iterator[T]:
        """Yield ``items`` as a part called ``label``, a tick for each."""
        self.begin(label, len(items))
        for item in items:
            yield item
            self.tick()

    def _appear(self) -> None:
        from rich.progress import Progress

        with self._lock:
            if self._wanted:
                bar = Progress(console=console(stderr=True), transient=True, redirect_stdout=False)
                bar.add_task("")
                self._bar = bar  # from here on whatever is told moves it
                self._show(bar)
                bar.start()

    def _show(self, bar: Progress) -> None:
        bar.update(bar.task_ids[0], description=self._label, total=self._total or None, completed=self._done)
