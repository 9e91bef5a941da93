"""Work in a forked child, for tests of what belongs to one process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

MAX_CHILD_SECONDS = 20
"""Seconds after which a child that hangs is ended: what it does takes less than one."""


def wait_for_child(work: Callable[[], object]) -> int:
    """Do ``work`` in a forked child and return its wait status, 0 unless it raised or hung."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(MAX_CHILD_SECONDS)
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]
