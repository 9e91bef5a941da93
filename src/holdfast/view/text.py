"""Cutting text: on line boundaries where it can be, on code points always, and never without saying what went."""

from __future__ import annotations


def clip(text: str, limit: int) -> str:
    """Return ``text`` in at most ``limit`` characters, cut at a newline if one lies in the last fifth."""
    if len(text) <= limit:
        return text
    edge = text.rfind("\n", int(limit * 0.8), limit)
    return text[: edge if edge > 0 else limit]


def clip_start(text: str, limit: int) -> str:
    """Return the end of ``text`` in at most ``limit`` characters, begun at a line if one starts in the first fifth."""
    if len(text) <= limit:
        return text
    start = len(text) - limit
    edge = text.find("\n", start, start + max(1, limit // 5))
    return text[edge + 1 if edge >= 0 else start :]


def head_and_tail(text: str, limit: int, tail_share: float) -> tuple[str, str]:
    """Return a head and a tail of ``text``, together at most ``limit`` characters and never overlapping."""
    tail = clip_start(text, int(limit * tail_share)) if tail_share > 0 else ""
    head = clip(text[: len(text) - len(tail)], limit - len(tail))
    return head, tail


def one_line(text: str, limit: int) -> str:
    """Return ``text`` on one line of at most ``limit`` characters, with an ellipsis where it was cut."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: max(0, limit - 1)] + "…"
