"""The progress of a run: a growing picture on a terminal, otherwise a line now and then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.text import Text

from holdfast.cli.demo.trial import MAX_OUTPUT, WINDOW, RunProgress
from holdfast.cli.output.terminal import has_colors
from holdfast.messages.text.single_line import clean_single_line
from holdfast.replay.measure import RequestPoint
from holdfast.replay.picture import COMPACTION_EVENTS, draw_policy_picture
from holdfast.replay.report import format_tokens_short

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

STEPS_PER_LINE = 25
"""Steps between two lines without a terminal. Chosen by judgement: less than ten lines per run."""
REDRAW_SECONDS = 0.08
"""Seconds between two pictures. Chosen by judgement: faster changes are not visible and cost time."""
PICTURE_ROWS = 14
"""Lines of a picture, so that two of them and the text around fit on a screen."""
ROWS_AROUND = 8
"""Lines of heading, legend and step around a live picture; a lower screen leaves it fewer rows."""
USABLE_WINDOW = WINDOW - MAX_OUTPUT
"""Tokens of the window that are not reserved for an answer."""


class RunWatcher:
    """Shows the progress of the run ``name``. Use it in a ``with`` block, and pass ``show_progress`` to the run."""

    def __init__(self, console: Console, name: str, *, is_wanted: bool = True) -> None:
        self._out = console
        self._name = name
        self._wanted = is_wanted
        self._live: Live | None = None
        self._last = 0.0
        self._told = 0

    def __enter__(self) -> Self:
        """Start showing."""
        if self._wanted and self._out.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._out, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show_progress(self, progress: RunProgress) -> None:
        """Show ``progress``, unless the last picture is too recent."""
        if self._live is not None:
            self._draw_picture(self._live, progress)
        elif self._wanted:
            self._print_progress_lines(progress)

    def _draw_picture(self, live: Live, progress: RunProgress) -> None:
        now = time.monotonic()
        if now - self._last < REDRAW_SECONDS:
            return
        self._last = now
        line = Text(
            f"step {len(progress.points)}  {clean_single_line(progress.activity, self._out.width - 12)}", style="dim"
        )
        rows = max(1, min(PICTURE_ROWS, self._out.height - ROWS_AROUND))
        chart = draw_run(
            self._out,
            self._name,
            progress.points,
            rows,
            legend=self._out.height > ROWS_AROUND,
        )
        live.update(Text("\n").join([chart, line]), refresh=True)

    def _print_progress_lines(self, progress: RunProgress) -> None:
        """Print a line for each compaction, and one every ``STEPS_PER_LINE`` steps."""
        new = progress.points[self._told :]
        self._told = len(progress.points)
        for point in new:
            if point.event in COMPACTION_EVENTS or point.step % STEPS_PER_LINE == STEPS_PER_LINE - 1:
                suffix = ""
                if point.event:
                    suffix = f"  ⟱ {format_tokens_short(progress.points[point.step - 1].tokens)} before"
                self._out.print(
                    f"{self._name}  step {point.step + 1:>3}  {point.tokens:>6,} of {WINDOW:,} tokens{suffix}"
                )


def draw_run(
    console: Console,
    name: str,
    points: tuple[RequestPoint, ...],
    rows: int = PICTURE_ROWS,
    *,
    legend: bool = True,
) -> Text:
    """Return the picture of a run."""
    letters = not has_colors(console)
    return draw_policy_picture(
        name,
        points,
        WINDOW,
        USABLE_WINDOW,
        console.width,
        letters=letters,
        rows=rows,
        legend=legend,
    )
