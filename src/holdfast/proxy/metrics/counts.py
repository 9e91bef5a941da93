"""Count what happens in sessions: compactions, overflows, tokens. The memory for it is bounded."""

from __future__ import annotations

from collections import Counter, OrderedDict

from msgspec import Struct

from holdfast import events
from holdfast.events import Event
from holdfast.providers.errors.report import OVERFLOW_KINDS
from holdfast.state.costs import divide_or_zero

MAX_SESSIONS = 4_096
"""Sessions that are remembered. One that comes back after so many others is counted again. Chosen by judgement."""


class _SessionFlags(Struct):
    """What must be remembered about a session to count its events."""

    is_overflow_refused: bool = False
    """The provider refused the current request as too large."""
    is_overflow_avoided: bool = False
    """A compaction made the next request fit before it was sent."""
    is_manual: bool = False
    """Somebody asked for the current compaction."""
    is_breaker_open: bool = False
    """The circuit breaker holds compactions back."""


class EventCounts:
    """The counts; ``count_event`` is a listener of the engine."""

    def __init__(self) -> None:
        self._flags: OrderedDict[str, _SessionFlags] = OrderedDict()
        """By session key; the session with the newest event is last."""
        self.session_count = 0
        self.outcomes: Counter[str] = Counter()
        """Compactions by outcome."""
        self.refused_overflows = 0
        """Requests that a provider refused as too large."""
        self.avoided_overflows = 0
        """Answers to requests that were refused as too large before, or made fit by a compaction before the send."""
        self.changed_fields = 0
        """Fields that were left out, filled or changed from then on in a session, because a server refuses them."""
        self.cache_misses: Counter[str] = Counter()
        """Requests that read less from the provider's cache than they could have, by cause."""
        self.missed_tokens = 0
        """Tokens that these requests had processed again."""
        self.saved_tokens = 0
        """Tokens removed by reductions, each counted once, when it was decided."""
        self.tokens: Counter[str] = Counter()
        """Tokens of answers as providers counted them: ``input``, ``output``, ``cache_read``, ``cache_write``."""

    @property
    def session_keys(self) -> tuple[str, ...]:
        """Keys of the remembered sessions, the one with the newest event first."""
        return tuple(reversed(self._flags))

    @property
    def open_breakers(self) -> int:
        """Number of sessions with an open breaker: it opened, and no compaction has succeeded since."""
        return sum(session.is_breaker_open for session in self._flags.values())

    @property
    def cache_hit_share(self) -> float:
        """Share of input tokens that were read from the cache."""
        return divide_or_zero(self.tokens["cache_read"], self.tokens["input"])

    def count_event(self, event: Event) -> None:
        """Count ``event``."""
        # An overflow counts as avoided only once its request is answered, so flags are kept until then.
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
            case events.CacheMissed(cause=cause, missed_tokens=tokens):
                self.cache_misses[cause] += 1
                self.missed_tokens += tokens
            case events.NoticeGiven(path=path) if path:
                self.changed_fields += 1
            case events.NoticeGiven(rule="breaker"):
                session.is_breaker_open = True
            case events.AnswerRecorded():
                self._count_answer(session, event)

    def clear_refusal(self, session: str) -> None:
        """Note that the client was told of the refusal: its next answer does not count as an avoided overflow."""
        if session in self._flags:
            self._flags[session].is_overflow_refused = False

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
        """Return the flags of session ``key`` and make it the newest."""
        if key not in self._flags:
            self.session_count += 1
            self._flags[key] = _SessionFlags()
            if len(self._flags) > MAX_SESSIONS:
                self._flags.popitem(last=False)
        self._flags.move_to_end(key)
        return self._flags[key]
