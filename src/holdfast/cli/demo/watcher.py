"""A run while it goes on: a picture that grows at a terminal, else a line now and then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.text import Text

from holdfast.cli.demo.trial import OUTPUT, WINDOW, Progress
from holdfast.cli.output.terminal import clean, has_colours
from holdfast.replay.measure import Point
from holdfast.replay.picture import COMPACTED, picture
from holdfast.replay.report import thousands

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

EVERY = 25
"""Steps between two lines where there is no terminal."""
PACE = 0.08
"""Seconds between two pictures: more often than the eye sees would only take time."""
ROWS = 14
"""Lines of a picture: two of them, and what is said around them, fit on a screen."""
AROUND = 8
"""Lines for the head, the legend and the step around a picture that goes on; on a lower screen it has fewer rows."""
USABLE = WINDOW - OUTPUT
"""Tokens of the window that are not kept for an answer."""


class Watcher:
    """Shows how far the run called ``name`` is; use it as ``with``, and give ``see`` to the run."""

    def __init__(self, out: Console, name: str, *, wanted: bool = True) -> None:
        self._out, self._name, self._wanted = out, name, wanted
        self._live: Live | None = None
        self._last, self._told = 0.0, 0

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._wanted and self._out.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._out, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def see(self, progress: Progress) -> None:
        """Show ``progress``, if it is time to."""
        if self._live is not None:
            self._draw(self._live, progress)
        elif self._wanted:
            self._say(progress)

    def _draw(self, live: Live, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last < PACE:
            return
        self._last = now
        line = Text(f"step {len(progress.points)}  {clean(progress.doing, self._out.width - 12)}", style="dim")
        rows = max(1, min(ROWS, self._out.height - AROUND))
        shown = drawn(self._out, self._name, progress.points, rows, legend=self._out.height > AROUND)
        live.update(Text("\n").join([shown, line]), refresh=True)

    def _say(self, progress: Progress) -> None:
        """Print a line for each compaction, and every so many steps."""
        new = progress.points[self._told :]
        self._told = len(progress.points)
        for point in new:
            if point.event in COMPACTED or point.step % EVERY == EVERY - 1:
                gone = f"  ⟱ {thousands(progress.points[point.step - 1].tokens)} before" if point.event else ""
                self._out.print(
                    f"{self._name}  step {point.step + 1:>3}  {point.tokens:>6,} of {WINDOW:,} tokens{gone}"
                )


def drawn(out: Console, name: str, points: tuple[Point, ...], rows: int = ROWS, *, legend: bool = True) -> Text:
    """Return the picture of a run."""
    letters = not has_colours(out)
    return picture(name, points, WINDOW, USABLE, out.width, letters=letters, rows=rows, legend=legend)
