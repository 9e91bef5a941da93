"""Output of commands: JSON for programs, tables and lines for people, and a progress bar."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock, Timer
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from holdfast.messages.text.counts import format_count

if TYPE_CHECKING:
    from typing import Self

    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.text import Text

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

DEFAULT_WIDTH = 100
"""Columns of output to files and pipes, which have no terminal to ask."""
WRAP_INDENT, MIN_WRAP_WIDTH = 4, 16
"""Indent of continuation lines, and their least width in a narrow terminal."""
COLUMN_GAP = 2
"""Blanks between columns."""
PROGRESS_DELAY = 1.0
"""Seconds before a progress bar appears. Chosen by judgement: quick commands should not flicker."""


def make_json_option(noun: str) -> Callable[[F], F]:
    """Return the ``--json`` option, which every command has."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {noun} as JSON.")


def print_json(value: Any) -> None:
    """Print ``value`` as one JSON document."""
    click.echo(encode_printable_json(value, indent=1))


def encode_printable_json(value: Any, indent: int | None = None) -> bytes:
    """Encode ``value`` as JSON in UTF-8; lone surrogates become escapes, so that any text can be printed."""
    return json.dumps(value, ensure_ascii=False, indent=indent).encode("utf-8", "backslashreplace")


def print_line(console: Console, line: Text) -> None:
    """Print ``line`` on one line, cut to the terminal's width."""
    line.truncate(console.width, overflow="ellipsis")
    console.print(line, no_wrap=True)


def print_wrapped(console: Console, line: Text) -> None:
    """Print ``line``, wrapped with an indent if it is too long."""
    if line.cell_len <= console.width:
        console.print(line, no_wrap=True)
        return
    for number, piece in enumerate(line.wrap(console, max(MIN_WRAP_WIDTH, console.width - WRAP_INDENT))):
        piece.rstrip()
        if number:
            piece.pad_left(WRAP_INDENT)
        console.print(piece)


def print_table(console: Console, table: RenderableType) -> None:
    """Print ``table`` without blanks at the ends of lines."""
    from rich.text import Text

    for pieces in console.render_lines(table, pad=False):
        line = Text.assemble(*((piece.text, piece.style or "") for piece in pieces))
        line.rstrip()
        console.print(line, no_wrap=True)


def choose_columns(rows: Sequence[Sequence[str]], spare: Iterable[int], width: int) -> list[int]:
    """Choose the columns of ``rows``, headings first, that fit in ``width`` with no cell cut.

    Columns are dropped in the order of ``spare``. Headings may wrap to one line per word.
    """
    head, *body_rows = rows
    min_widths = []
    for at, name in enumerate(head):
        longest_word = max(map(len, name.split()), default=0)
        longest_cell = max((len(row[at]) for row in body_rows), default=0)
        min_widths.append(max(longest_word, longest_cell))
    columns = list(range(len(head)))
    for at in spare:
        needed_width = sum(min_widths[column] + COLUMN_GAP for column in columns) - COLUMN_GAP
        if needed_width <= width:
            break
        columns.remove(at)
    return columns


def print_command(console: Console, line: Text) -> None:
    """Print ``line`` without inserting line ends, so that it can be pasted."""
    console.print(line, soft_wrap=True)


def make_console(*, stderr: bool = False) -> Console:
    """Return a console without markup; colors follow the terminal and NO_COLOR."""
    from rich.console import Console as Plain

    class Console(Plain):
        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704  rich would exit here; errors are reported in one place

    stream = (sys.stderr if stderr else sys.stdout) or io.StringIO()  # a closed stream is None
    return Console(file=stream, width=_find_width(stream), markup=False, highlight=False, emoji=False, soft_wrap=False)


def _find_width(stream: IO[str]) -> int | None:
    """Return the width of a console for ``stream`` in columns, or None to leave it to rich."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return None
    if stream.isatty():
        # rich takes a 0 in COLUMNS, which some terminals set before they know better, and prints nothing.
        return shutil.get_terminal_size().columns if columns else None
    # rich assumes 80 columns for files and pipes, which cuts tables that a wide terminal would show.
    return DEFAULT_WIDTH


def has_colors(console: Console) -> bool:
    """Return whether colors can distinguish things here; otherwise letters must."""
    return console.color_system is not None and not console.no_color


def print_more_hint(count: int, noun: str, option: str) -> None:
    """Print on standard error that ``count`` more items exist, and the option that shows them."""
    if count > 0:
        click.echo(f"… and {format_count(count, noun)}; {option} shows more, --json all", err=True)


class ProgressBar:
    """A progress bar on standard error that appears after a second, and only at a terminal.

    A part with an unknown end only moves. Print nothing else while it is active.
    """

    def __init__(self, label: str = "", *, is_wanted: bool) -> None:
        self._wanted = is_wanted and sys.stderr is not None and sys.stderr.isatty()
        # The timer starts the bar in a thread of its own, hence the lock between it and the end of the block.
        self._timer = Timer(PROGRESS_DELAY, self._start_bar)
        self._lock = Lock()
        self._timer.daemon = True
        self._bar: Progress | None = None
        self._label = label
        self._total = 0
        self._done = 0

    def __enter__(self) -> Self:
        """Return the bar, which is not visible yet."""
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
        """Begin a part of ``total`` steps called ``label``; 0 means that the number is unknown."""
        self.set_progress(label, 0, total)

    def advance(self) -> None:
        """Count one more step as done."""
        self.set_progress(self._label, self._done + 1, self._total)

    def set_progress(self, label: str, steps_done: int, total: int) -> None:
        """Set the progress to ``steps_done`` of ``total`` steps of the part ``label``."""
        self._label = label
        self._total = total
        self._done = steps_done
        if self._bar is not None:
            self._update_bar(self._bar)

    def track_items(self, label: str, items: Sequence[T]) -> Iterator[T]:
        """Yield ``items`` as a part called ``label``, one step each."""
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
                self._bar = bar  # from here on set_progress moves it
                self._update_bar(bar)
                bar.start()

    def _update_bar(self, bar: Progress) -> None:
        bar.update(
            bar.task_ids[0],
            description=self._label,
            total=self._total or None,
            completed=self._done,
        )
