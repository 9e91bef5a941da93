"""Run a function in a forked child process, for tests of state that must not be shared with a child."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

MAX_CHILD_SECONDS = 20
"""Seconds after which a hanging child is ended; its work takes less than one second."""


def wait_for_child(action: Callable[[], object]) -> int:
    """Run ``action`` in a forked child and return its wait status, 0 unless it raised or hung."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(MAX_CHILD_SECONDS)
        try:
            action()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]
