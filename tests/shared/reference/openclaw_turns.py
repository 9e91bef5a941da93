"""What OpenClaw quotes beside a summary: the newest turns word for word, and the tool results that failed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from holdfast.model.messages import Message, result_text
from holdfast.model.parts import ToolResult
from holdfast.policy.summary.cutting import before

RECENT_TURNS, RECENT_MOST = 3, 12
"""[O] User turns quoted word for word, and the most that may be asked for."""
FAILURES, FAILURE_CHARS = 8, 240
"""[O] Failed results that are listed, and the characters of each."""


def turns_kept(value: object) -> int:
    """Return how many recent turns a setting asks for, from none to the most; the usual for what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return RECENT_TURNS
    return max(0, min(RECENT_MOST, math.floor(value)))


def recent(messages: Sequence[Message], turns: int) -> frozenset[int]:
    """Return the positions of the newest ``turns`` user turns: what user and agent said, and results of those calls.

    Where fewer users spoke, it is all of what they said, and the newest messages up to twice as many as the turns.
    """
    said = [at for at, one in enumerate(messages) if one.role == "assistant" or one.starts_turn]
    users = [at for at in said if messages[at].role == "user"]
    if turns <= 0:
        return frozenset()
    if len(users) >= turns:
        kept = {at for at in said if at >= users[-turns]}
    else:
        kept = {*users, *_newest(said, users, 2 * turns)}
    calls = {call.id for at in kept for call in messages[at].calls}
    return frozenset(kept | {at for at, one in enumerate(messages) if calls & {r.call_id for r in one.results}})


def _newest(said: Sequence[int], users: Sequence[int], most: int) -> Iterator[int]:
    """Yield the newest of ``said`` until, with the users' own, there are ``most``."""
    kept = set(users)
    for at in reversed(said):
        if len(kept) >= most:
            return
        kept.add(at)
        yield at


# -- failures ----------------------------------------------------------------------------------------------------------


def failures(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return a line for each failed result, the first of each call: its tool and its words on one line, cut."""
    first: dict[str, ToolResult] = {}
    for message in messages:
        for result in message.results:
            if result.is_error:
                first.setdefault(result.call_id, result)
    return tuple([_failure(result) for result in first.values()])


def _failure(result: ToolResult) -> str:
    flat = " ".join(result_text(result).split()) or "failed without output"
    short = flat if len(flat) <= FAILURE_CHARS else f"{flat[: before(flat, FAILURE_CHARS - 3)]}..."
    return f"- {result.name or 'tool'}: {short}"


def failures_section(messages: Sequence[Message]) -> str:
    """Return the section on failed results: the first few, and how many more there are; nothing where none failed."""
    found = failures(messages)
    more = [f"- ...and {len(found) - FAILURES} more"] if len(found) > FAILURES else []
    return "\n".join(["## Tool Failures", *found[:FAILURES], *more]) if found else ""
