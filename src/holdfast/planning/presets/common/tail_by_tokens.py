"""The kept tail of pi and OpenClaw: the newest messages until enough tokens stand."""

from __future__ import annotations

from collections.abc import Container, Sequence

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.planning.presets.common.request_measures import estimate_pi_tokens


def select_tail_by_tokens(messages: Sequence[Message], tail_tokens: int, cut_points: Container[int]) -> list[int]:
    """Return the offset in ``messages`` of a tail with ``tail_tokens``; an empty list without a cut point."""
    cut_point = find_pi_cut_point(messages, tail_tokens, cut_points)
    return [] if cut_point is None else [cut_point.start]


class PiCutPoint(Struct, frozen=True):
    """The start of a kept tail."""

    start: int
    split_turn_start: int | None = None
    """Start of the turn that the cut splits, or None if it splits no turn."""


def find_pi_cut_point(
    entries: Sequence[Message | None],
    keep_tokens: int,
    cut_points: Container[int] | None = None,
) -> PiCutPoint | None:
    """Find the start of pi's kept tail: the first cut point in the last ``keep_tokens`` tokens and one message more.

    A result is never a cut point, and ``cut_points`` narrows the rest. Without a cut point after the wanted place it
    is the last one of all; if the messages have fewer tokens, the first. Entries that are not messages (None) right
    before the start belong to the tail. Return None if there is no cut point.
    """
    # A tail that began at a result would show it without its call.
    possible_cuts: list[int] = []
    for index, entry in enumerate(entries):
        is_allowed = cut_points is None or index in cut_points
        if entry is not None and entry.role != "tool" and is_allowed:
            possible_cuts.append(index)
    if not possible_cuts:
        return None
    wanted_start = _find_start_by_tokens(entries, keep_tokens)
    cut_index = next((index for index in possible_cuts if index >= wanted_start), possible_cuts[-1])
    turn_start = _find_last_turn_start(entries, cut_index)
    # Entries that are not messages (labels, settings) belong to the message after them.
    start = cut_index
    while start and entries[start - 1] is None:
        start -= 1
    return PiCutPoint(start, turn_start if turn_start != cut_index else None)


def _find_start_by_tokens(entries: Sequence[Message | None], keep_tokens: int) -> int:
    """Return the index from which ``keep_tokens`` tokens stand, or 0 if there are fewer."""
    tail_tokens = 0
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        if entry is not None:
            tail_tokens += estimate_pi_tokens(entry)
        if tail_tokens >= keep_tokens:
            return index
    return 0


def _find_last_turn_start(entries: Sequence[Message | None], stop: int) -> int | None:
    """Return the index of the last message up to ``stop`` that starts a turn, or None."""
    for index in range(stop, -1, -1):
        entry = entries[index]
        if entry is not None and entry.is_turn_start:
            return index
    return None
