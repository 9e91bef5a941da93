"""A model that does the same thing again and again: same tool, same arguments, same result."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.model.messages import Message, result_text

WINDOW = 3
"""[O] 2026.9: as many calls behind a compaction are looked at, and all of them being one call is a loop."""


class Done(Struct, frozen=True):
    """A finished tool call. Arguments and result are compared as they are: a result that changes is progress."""

    tool: str
    arguments: str
    result: str


def is_looping(calls: Sequence[Done], window: int = WINDOW) -> bool:
    """Return whether the first ``window`` calls behind a compaction are one and the same."""
    first = calls[:window]
    return 0 < window == len(first) and len({*first}) == 1


def finished(messages: Iterable[Message]) -> list[Done]:
    """Return the calls of ``messages`` that have a result, in the order of their results; ids may repeat."""
    waiting: dict[str, deque[tuple[str, str]]] = {}
    done: list[Done] = []
    for message in messages:
        for call in message.calls:
            waiting.setdefault(call.id, deque()).append((call.name, call.arguments))
        done += [
            Done(*asked.popleft(), result_text(result))
            for result in message.results
            if (asked := waiting.get(result.call_id))
        ]
    return done
