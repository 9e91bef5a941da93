"""What happened to sessions, counted: compactions, overflows, tokens. It takes the same room for ever."""

from __future__ import annotations

from collections import Counter, OrderedDict

from msgspec import Struct

from holdfast import events
from holdfast.events import Event
from holdfast.providers.errors.report import OVERFLOW_KINDS
from holdfast.state.costs import divide_or_zero

MAX_SESSIONS = 4_096
"""Sessions that are remembered; one that comes back after so many others is counted again. [H]"""


class _SessionFlags(Struct):
    """What is remembered of a session."""

    is_overflow_refused: bool = False
    """Its provider refused the request under way, as too large."""
    is_overflow_avoided: bool = False
    """A compaction made the next request fit before it was sent."""
    is_manual: bool = False
    """The compaction under way was asked for by somebody."""
    is_breaker_open: bool = False
    """Its breaker holds compactions back."""


class EventCounts:
    """The counts; ``count_event`` is a listener of the engine."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _SessionFlags] = OrderedDict()
        self.session_count = 0
        self.outcomes: Counter[str] = Counter()
        """Compactions, by what became of them."""
        self.refused_overflows = 0
        """Requests that a provider refused as too large."""
        self.avoided_overflows = 0
        """Answers to a request that had been refused so, or that a compaction made fit before it was sent."""
        self.saved_tokens = 0
        """Tokens that reductions took away, each counted once: when it was made."""
        self.tokens: Counter[str] = Counter()
        """Tokens of the answers, as providers counted them: ``input``, ``output``, ``cache_read``, ``cache_write``."""

    @property
    def session_keys(self) -> tuple[str, ...]:
        """The sessions that are remembered, the one that something happened in last first."""
        return tuple(reversed(self._known))

    @property
    def open_breakers(self) -> int:
        """How many of them have a breaker that holds compactions back: it said so, and none succeeded since."""
        return sum(session.is_breaker_open for session in self._known.values())

    @property
    def cache_hit_share(self) -> float:
        """The share of the input that came out of the cache."""
        return divide_or_zero(self.tokens["cache_read"], self.tokens["input"])

    def count_event(self, event: Event) -> None:
        """Count ``event``."""
        session = self._get_flags(event.session)
        match event:
            case events.RequestRefused(kind=kind) if kind in OVERFLOW_KINDS:
                self.refused_overflows += 1
                session.is_overflow_refused = True
            case events.CompactionStarted(trigger=trigger):
                session.is_manual = trigger == "manual"
            case events.CompactionEnded():
                self._count_compaction(session, event)
            case events.EditsDecided(saves=saves):
                self.saved_tokens += max(0, saves)
            case events.NoticeGiven(rule="breaker"):
                session.is_breaker_open = True
            case events.AnswerRecorded():
                self._count_answer(session, event)

    def clear_refusal(self, session: str) -> None:
        """Take note that the client was told of a refusal: what is answered next was not refused."""
        if session in self._known:
            self._known[session].is_overflow_refused = False

    def _count_compaction(self, session: _SessionFlags, event: events.CompactionEnded) -> None:
        self.outcomes[event.outcome] += 1
        if event.outcome == "compacted":
            self.saved_tokens += max(0, event.tokens_before - event.tokens_after)
            session.is_overflow_avoided = session.is_overflow_avoided or not session.is_manual
            session.is_breaker_open = False
        session.is_manual = False

    def _count_answer(self, session: _SessionFlags, event: events.AnswerRecorded) -> None:
        self.avoided_overflows += session.is_overflow_refused or session.is_overflow_avoided
        session.is_overflow_refused = session.is_overflow_avoided = False
        self.tokens["input"] += event.input_tokens
        self.tokens["output"] += event.output_tokens
        self.tokens["cache_read"] += event.cache_read
        self.tokens["cache_write"] += event.cache_write

    def _get_flags(self, key: str) -> _SessionFlags:
        """Return what is known of the session called ``key``, which is the newest now."""
        if key not in self._known:
            self.session_count += 1
            self._known[key] = _SessionFlags()
            if len(self._known) > MAX_SESSIONS:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]
