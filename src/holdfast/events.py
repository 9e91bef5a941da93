"""Events: everything that happens to a session, as values that a listener receives in order, as it happens.

A listener is any callable that takes an event. One that raises is dropped; the session goes on.

``tag`` is the name of an event in JSON. Some tags are older than the name of their class (``pressed``, ``sending``):
programs that read events as JSON rely on them, so they stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

__all__ = [
    "COMPACTION_OUTCOMES",
    "AnswerRecorded",
    "CacheMissed",
    "CompactionEnded",
    "CompactionOutcome",
    "CompactionStarted",
    "EditsDecided",
    "Event",
    "EventListener",
    "HookFailed",
    "NoticeGiven",
    "RequestRefused",
    "RequestStarted",
    "RetryScheduled",
    "SessionEvent",
    "ShrinkStarted",
]

CompactionOutcome: TypeAlias = Literal[
    "compacted", "nothing_to_compact", "not_smaller", "summary_rejected", "timed_out", "cancelled", "provider_error"
]
"""How a compaction ended. ``nothing_to_compact`` is not a failure."""
COMPACTION_OUTCOMES: tuple[str, ...] = get_args(CompactionOutcome)


class SessionEvent(Struct, frozen=True, omit_defaults=True, tag_field="event"):
    """Base of all events; ``session`` is the key of the session that it happened to."""

    session: str


class RequestStarted(SessionEvent, frozen=True, tag="sending"):
    """A request is being sent: its number of messages, its estimated tokens, and the window that it must fit."""

    message_count: int = 0
    tokens: int = 0
    window: int = 0


class AnswerRecorded(SessionEvent, frozen=True, tag="answered"):
    """An answer is in the log, with its tokens as the provider counted them."""

    stop_reason: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read: int = 0
    cache_write: int = 0
    dropped_thinking: int = 0
    """Pieces of thinking that the provider kept from the model, because the history before them has changed."""


class CacheMissed(SessionEvent, frozen=True, tag="cachemissed"):
    """The provider read clearly less of a request from its prompt cache than it could have.

    ``cause`` is ``decision`` (of Holdfast), ``client-edit``, ``expired``, ``model``, ``tools`` or ``unknown``. It comes
    right after the ``AnswerRecorded`` of the request.
    """

    cause: str = ""
    missed_tokens: int = 0
    """Tokens that were processed again though they were in the cache."""
    expected_tokens: int = 0
    """Tokens that could have been read from it."""
    why: str = ""
    """The cause in a sentence, with its numbers."""
    decision: str = ""
    """The entry of the decision, if one is the cause."""
    rule: str = ""
    message: int = -1
    """The first message that differs from the request before, as ``holdfast show`` numbers it; -1 if none does."""
    part: int = 0
    byte: int = 0
    """The part of that message, and the byte in it, where the difference begins."""
    idle_seconds: float = 0.0
    """Seconds since the request before; 0 if that is not known."""


class RequestRefused(SessionEvent, frozen=True, tag="refused"):
    """The provider refused a request, or did not answer it.

    ``kind`` is one of ``holdfast.types.VERDICT_KINDS``; the tokens are 0 if the provider named none.
    """

    kind: str = ""
    why: str = ""
    limit_tokens: int = 0
    requested_tokens: int = 0


class RetryScheduled(SessionEvent, frozen=True, tag="retrying"):
    """The same bytes are sent again after ``seconds``."""

    kind: str = ""
    seconds: float = 0.0
    attempt: int = 1
    """1 for the first retry."""


class ShrinkStarted(SessionEvent, frozen=True, tag="pressed"):
    """After an overflow the request is made smaller; ``overflow_step`` is the step of recovery that is tried."""

    overflow_step: str = ""
    compactions: int = 0


class CompactionStarted(SessionEvent, frozen=True, tag="compacting"):
    """A compaction began.

    ``trigger`` is ``auto``, ``manual`` or ``overflow``; ``author`` names the source of the summary: ``extract``,
    ``model``, ``native`` or ``hook``.
    """

    trigger: str = "auto"
    author: str = "extract"


class CompactionEnded(SessionEvent, frozen=True, tag="compacted"):
    """A compaction ended; ``tokens_before`` and ``tokens_after`` are estimated tokens of the request."""

    outcome: CompactionOutcome = "compacted"
    author: str = "extract"
    tokens_before: int = 0
    tokens_after: int = 0
    why: str = ""


class EditsDecided(SessionEvent, frozen=True, tag="decided"):
    """Parts of older messages are replaced from here on: by which rule, how many, and the tokens that this saves."""

    rule: str = ""
    edit_count: int = 0
    saves: int = 0


class NoticeGiven(SessionEvent, frozen=True, tag="noticed"):
    """Something that the caller should know; each notice is given once."""

    rule: str = ""
    why: str = ""
    path: str = ""
    """The field of requests that is sent changed from here on; empty for a notice about anything else."""


class HookFailed(SessionEvent, frozen=True, tag="hookfailed"):
    """A hook raised or took too long; the session went on without it."""

    hook: str = ""
    why: str = ""


Event: TypeAlias = (
    RequestStarted
    | AnswerRecorded
    | CacheMissed
    | RequestRefused
    | RetryScheduled
    | ShrinkStarted
    | CompactionStarted
    | CompactionEnded
    | EditsDecided
    | NoticeGiven
    | HookFailed
)
EventListener: TypeAlias = Callable[[Event], object]
