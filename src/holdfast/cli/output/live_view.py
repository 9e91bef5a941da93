"""A view in the terminal that is drawn again every few seconds, until it is interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def iterate_looks(interval: float, *, once: bool) -> Iterator[None]:
    """Yield at once, and then every ``interval`` seconds unless it is only ``once``."""
    yield
    while not once:
        time.sleep(interval)
        yield


def show_live_view(console: Console, build_view: Callable[[], RenderableType], interval: float) -> None:
    """Show what ``build_view`` returns, anew every ``interval`` seconds, until ``KeyboardInterrupt``.

    The last view stays on the screen.
    """
    from rich.live import Live

    # Refreshed only here: a thread of rich's own would draw the same view again.
    with Live(build_view(), console=console, auto_refresh=False) as live:
        for _ in iterate_looks(interval, once=False):
            live.update(build_view(), refresh=True)
