"""Everything that happens to a session, as values: what a listener is told, in order, as it happens.

A listener is any callable that takes an event; one that raises is told of nothing more and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

Outcome: TypeAlias = Literal[
    "compacted", "nothing_to_compact", "not_smaller", "summary_rejected", "timed_out", "cancelled", "provider_error"
]
"""What became of a compaction. ``nothing_to_compact`` is no failure."""
OUTCOMES: tuple[str, ...] = get_args(Outcome)


class Happened(Struct, frozen=True, omit_defaults=True, tag_field="event", tag=str.lower):
    """Something that happened to the session called ``session``."""

    session: str


class Sending(Happened, frozen=True):
    """A request goes out: its messages, its estimated tokens, and the window it must fit."""

    messages: int = 0
    tokens: int = 0
    window: int = 0


class Answered(Happened, frozen=True):
    """An answer is in the log: the tokens as the provider counted them."""

    stop: str = ""
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0


class Refused(Happened, frozen=True):
    """The provider refused, or did not answer: ``kind`` is a word of ``holdfast.providers.overflow.KINDS``."""

    kind: str = ""
    why: str = ""
    limit: int = 0
    requested: int = 0


class Retrying(Happened, frozen=True):
    """The same bytes go out again after so many seconds."""

    kind: str = ""
    seconds: float = 0.0
    attempt: int = 1
    """1 for the first time that they go out again."""


class Pressed(Happened, frozen=True):
    """After an overflow the request is made smaller: ``rung`` is the step of recovery that is tried."""

    rung: str = ""
    compactions: int = 0


class Compacting(Happened, frozen=True):
    """A compaction began: what asked for it, and who writes the summary."""

    trigger: str = "auto"
    by: str = "extract"


class Compacted(Happened, frozen=True):
    """A compaction ended; ``before`` and ``after`` are estimated tokens of the request."""

    outcome: Outcome = "compacted"
    by: str = "extract"
    before: int = 0
    after: int = 0
    why: str = ""


class Decided(Happened, frozen=True):
    """Parts of older messages are shown otherwise from here on: how many, by which rule, and the tokens that frees."""

    rule: str = ""
    edits: int = 0
    saves: int = 0


class Noticed(Happened, frozen=True):
    """Something the caller should know: a warning of the planner, told once."""

    rule: str = ""
    why: str = ""


class HookFailed(Happened, frozen=True):
    """A hook raised or took too long; the session went on without it."""

    hook: str = ""
    why: str = ""


Event: TypeAlias = (
    Sending | Answered | Refused | Retrying | Pressed | Compacting | Compacted | Decided | Noticed | HookFailed
)
Listener: TypeAlias = Callable[[Event], object]
