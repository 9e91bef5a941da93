"""A model that does the same thing again and again: same tool, same arguments, same result."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

WINDOW = 3
"""[O] 2026.9: as many calls behind a compaction are looked at, and all of them being one call is a loop."""


class Done(Struct, frozen=True):
    """A finished tool call. Arguments and result are compared as they are: a result that changes is progress."""

    tool: str
    arguments: str
    result: str


def is_looping(calls: Sequence[Done], window: int = WINDOW) -> bool:
    """Return whether the first ``window`` calls behind a compaction are one and the same, as OpenClaw asks.

    The agent here looks at more calls, and for circles of several (``agent/repeating.py``).
    """
    first = calls[:window]
    return 0 < window == len(first) and len({*first}) == 1
