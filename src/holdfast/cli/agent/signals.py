"""What the system asks of a program at work: to end, as ``kill`` does, and the terminal that is closed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from types import FrameType

from click.exceptions import Exit

from holdfast.cli.agent.screen import Screen

HEARD = (signal.SIGTERM, signal.SIGHUP)


class Ending:
    """Whether the system asked the program to end: each time it does so counts as ^C."""

    number = 0
    """The signal, if there was one."""

    def hear(self, number: int, _: FrameType | None) -> None:
        """Stop what the main thread does."""
        self.number = number
        raise KeyboardInterrupt


@contextmanager
def ending(screen: Screen) -> Iterator[Ending]:
    """Let SIGTERM and SIGHUP stop the block as ^C does; the exit code is then 128 and the signal, as shells have it.

    A signal that nobody here may hear (``nohup``) is left alone, and so are all outside of the main thread.
    """
    end = Ending()
    is_main = current_thread() is main_thread()
    heard = [one for one in HEARD if is_main and signal.getsignal(one) is not signal.SIG_IGN]
    before = [signal.signal(one, end.hear) for one in heard]
    try:
        yield end
    finally:
        for one, handler in zip(heard, before, strict=True):
            signal.signal(one, handler)
        if end.number:
            with suppress(OSError):  # of a terminal that was closed
                screen.note(f"ended by {signal.Signals(end.number).name}; nothing was left half-written", "yellow")
            raise Exit(128 + end.number)
