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

DEFAULT_WIDTH = 100
"""Columns where there is no terminal to ask: files and pipes."""
WRAP_INDENT, MIN_WRAP_WIDTH = 4, 16
"""Blanks before what is left of a line that was too long, and columns that it has at least."""
COLUMN_GAP = 2
"""Blanks between columns."""
PROGRESS_DELAY = 1.0
"""Seconds after which a progress bar is shown."""
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
"""Line ends, escape sequences and marks that turn the direction of text: never printed as they come."""
_HALF_SURROGATE = re.compile(r"[\ud800-\udfff]")


def make_json_option(noun: str) -> Callable[[F], F]:
    """Return the option ``--json``, which every command has."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {noun} as JSON.")


def print_json(value: Any) -> None:
    """Print ``value`` as one JSON document."""
    click.echo(encode_printable_json(value, indent=1))


def encode_printable_json(value: Any, indent: int | None = None) -> bytes:
    """Return ``value`` as JSON in UTF-8; half surrogates become escapes, so every text can be printed."""
    return json.dumps(value, ensure_ascii=False, indent=indent).encode("utf-8", "backslashreplace")


def print_line(console: Console, line: Text) -> None:
    """Print ``line`` on one line, its end cut off where it is too long."""
    line.truncate(console.width, overflow="ellipsis")
    console.print(line, no_wrap=True)


def print_wrapped(console: Console, line: Text) -> None:
    """Print all of ``line``: where it is too long it goes on below, set in."""
    if line.cell_len <= console.width:
        console.print(line, no_wrap=True)
        return
    for number, piece in enumerate(line.wrap(console, max(MIN_WRAP_WIDTH, console.width - WRAP_INDENT))):
        piece.rstrip()
        if number:
            piece.pad_left(WRAP_INDENT)
        console.print(piece)


def print_table(console: Console, table: RenderableType) -> None:
    """Print ``table``, no line of it with blanks at its end."""
    from rich.text import Text

    for pieces in console.render_lines(table, pad=False):
        line = Text.assemble(*((piece.text, piece.style or "") for piece in pieces))
        line.rstrip()
        console.print(line, no_wrap=True)


def choose_columns(rows: Sequence[Sequence[str]], spare: Iterable[int], width: int) -> list[int]:
    """Return which columns of ``rows``, the heads first, have room in ``width`` with every cell whole.

    Where all of them have none those of ``spare`` go, in that order; heads may take a line for each of their words.
    """
    head, *body_rows = rows
    words = [max(map(len, name.split()), default=0) for name in head]
    min_widths = [max([word, *(len(row[at]) for row in body_rows)]) for at, word in enumerate(words)]
    columns = list(range(len(head)))
    for at in spare:
        if sum(min_widths[column] + COLUMN_GAP for column in columns) - COLUMN_GAP <= width:
            break
        columns.remove(at)
    return columns


def print_command(console: Console, line: Text) -> None:
    """Print ``line`` without a line end inside, however long it is, so that it can be pasted."""
    console.print(line, soft_wrap=True)


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that prints what it is given, without markup; colours as the terminal and NO_COLOR say."""
    from rich.console import Console as Plain

    class Console(Plain):
        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704 -- the error is told where all are

    stream = (sys.stderr if stderr else sys.stdout) or io.StringIO()  # a stream that was closed is None
    width = None if stream.isatty() or os.environ.get("COLUMNS") else DEFAULT_WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def has_colors(console: Console) -> bool:
    """Return whether colours tell things apart here, or letters must."""
    return console.color_system is not None and not console.no_color


def clean_single_line(text: str, max_length: int = 0) -> str:
    """Return ``text`` on one line with nothing in it that steers a terminal, cut to ``max_length`` characters (0:
    whole).
    """
    if max_length:
        text = text[: 4 * max_length]
    line = _HALF_SURROGATE.sub("\ufffd", " ".join(_CONTROL_CHARACTERS.sub(" ", text).split()))
    return f"{line[: max_length - 1]}…" if max_length and len(line) > max_length else line


def format_count(count: int, noun: str) -> str:
    """Return ``1 error``, ``2 errors``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def print_more_hint(count: int, noun: str, option: str) -> None:
    """Tell on standard error that ``count`` more were not shown, if there are any, and what shows them."""
    if count > 0:
        click.echo(f"… and {format_count(count, noun)}; {option} shows more, --json all", err=True)


class ProgressBar:
    """A progress bar on standard error; it shows after a second, and only to a person at a terminal.

    What is a part of something of which nobody knows the end only moves. Print nothing while this is entered.
    """

    def __init__(self, label: str = "", *, is_wanted: bool) -> None:
        self._wanted = is_wanted and sys.stderr is not None and sys.stderr.isatty()
        self._timer, self._lock = Timer(PROGRESS_DELAY, self._start_bar), Lock()
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

    def begin_part(self, label: str, total: int = 0) -> None:
        """Begin a part of ``total`` ticks, called ``label``; 0 where nobody knows how many there will be."""
        self.set_progress(label, 0, total)

    def advance(self) -> None:
        """Tell that one more step is done."""
        self.set_progress(self._label, self._done + 1, self._total)

    def set_progress(self, label: str, steps_done: int, total: int) -> None:
        """Tell that ``steps_done`` of ``total`` steps of the part called ``label`` are done."""
        self._label, self._total, self._done = label, total, steps_done
        if self._bar is not None:
            self._update_bar(self._bar)

    def track_items(self, label: str, items: Sequence[T]) -> Iterator[T]:
        """Yield ``items`` as a part called ``label``, a tick for each."""
        self.begin_part(label, len(items))
        for item in items:
            yield item
            self.advance()

    def _start_bar(self) -> None:
        from rich.progress import Progress

        with self._lock:
            if self._wanted:
                bar = Progress(console=make_console(stderr=True), transient=True, redirect_stdout=False)
                bar.add_task("")
                self._bar = bar  # from here on whatever is told moves it
                self._update_bar(bar)
                bar.start()

    def _update_bar(self, bar: Progress) -> None:
        bar.update(bar.task_ids[0], description=self._label, total=self._total or None, completed=self._done)
