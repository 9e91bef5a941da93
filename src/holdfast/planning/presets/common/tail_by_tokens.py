"""Where the kept tail of pi and OpenClaw begins: enough of the newest messages, and no more than one too many."""

from __future__ import annotations

from collections.abc import Container, Sequence

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.planning.presets.common.request_measures import estimate_pi_tokens


def select_tail_by_tokens(messages: Sequence[Message], tail_tokens: int, cut_points: Container[int]) -> list[int]:
    """Return where the tail begins that holds ``tail_tokens``, as an offset into ``messages``; empty for nowhere."""
    tail_cut = find_pi_cut_point(messages, tail_tokens, cut_points)
    return [] if tail_cut is None else [tail_cut.start]


class PiCutPoint(Struct, frozen=True):
    """Where a kept tail begins; ``split_turn_start`` is where the turn begins that it splits, if it splits one."""

    start: int
    split_turn_start: int | None = None


def find_pi_cut_point(
    entries: Sequence[Message | None],
    keep_tokens: int,
    cut_points: Container[int] | None = None,
) -> PiCutPoint | None:
    """Return where pi's kept tail begins: the first place at or behind which ``keep_tokens`` tokens stand, at no
    result.

    Where no place is left behind that one, it is the last place of all; where ``keep_tokens`` is never reached, the
    first. Entries that say nothing (``None``) right before it come along. ``cut_points`` narrows the places; nothing if
    none is.
    """
    places = [at for at, entry in enumerate(entries) if entry is not None and entry.role != "tool"]
    places = [at for at in places if cut_points is None or at in cut_points]
    if not places:
        return None
    tail_tokens, edge = 0, 0
    for edge in range(len(entries) - 1, -1, -1):
        entry = entries[edge]
        tail_tokens += 0 if entry is None else estimate_pi_tokens(entry)
        if tail_tokens >= keep_tokens:
            break
    else:
        edge = 0
    cut_index = next((at for at in places if at >= edge), places[-1])
    turns = [at for at, entry in enumerate(entries[: cut_index + 1]) if entry is not None and entry.is_turn_start]
    start = cut_index
    while start and entries[start - 1] is None:
        start -= 1
    return PiCutPoint(start, turns[-1] if turns and turns[-1] != cut_index else None)
