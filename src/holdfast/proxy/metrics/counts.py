"""What happened to sessions, counted: compactions, overflows, tokens. It takes the same room for ever."""

from __future__ import annotations

from collections import Counter, OrderedDict

from msgspec import Struct

from holdfast import events
from holdfast.events import Event
from holdfast.providers.overflow import OVERFLOWS
from holdfast.state.costs import share

REMEMBERED = 4_096
"""Sessions that are remembered; one that comes back after so many others is counted again. [H]"""


class _Known(Struct):
    """What is remembered of a session."""

    is_refused: bool = False
    """Its provider refused the request under way, as too large."""
    is_foreseen: bool = False
    """A compaction made the next request fit before it was sent."""
    is_asked: bool = False
    """The compaction under way was asked for by somebody."""
    is_held: bool = False
    """Its breaker holds compactions back."""


class Counts:
    """The counts; ``told`` is a listener of the engine."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self.count = 0
        self.outcomes: Counter[str] = Counter()
        """Compactions, by what became of them."""
        self.refused = 0
        """Requests that a provider refused as too large."""
        self.avoided = 0
        """Answers to a request that had been refused so, or that a compaction made fit before it was sent."""
        self.saved = 0
        """Tokens that reductions took away, each counted once: when it was made."""
        self.tokens: Counter[str] = Counter()
        """Tokens of the answers, as providers counted them: ``input``, ``output``, ``cache_read``, ``cache_write``."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The sessions that are remembered, the one that something happened in last first."""
        return tuple(reversed(self._known))

    @property
    def held(self) -> int:
        """How many of them have a breaker that holds compactions back: it said so, and none succeeded since."""
        return sum(known.is_held for known in self._known.values())

    @property
    def cache_hit(self) -> float:
        """The share of the input that came out of the cache."""
        return share(self.tokens["cache_read"], self.tokens["input"])

    def told(self, event: Event) -> None:
        """Count ``event``."""
        known = self._session(event.session)
        match event:
            case events.Refused(kind=kind) if kind in OVERFLOWS:
                self.refused += 1
                known.is_refused = True
            case events.Compacting(trigger=trigger):
                known.is_asked = trigger == "manual"
            case events.Compacted():
                self._compacted(known, event)
            case events.Decided(saves=saves):
                self.saved += max(0, saves)
            case events.Noticed(rule="breaker"):
                known.is_held = True
            case events.Answered():
                self._answered(known, event)

    def unanswered(self, session: str) -> None:
        """Take note that the client was told of a refusal: what is answered next was not refused."""
        if session in self._known:
            self._known[session].is_refused = False

    def _compacted(self, known: _Known, event: events.Compacted) -> None:
        self.outcomes[event.outcome] += 1
        if event.outcome == "compacted":
            self.saved += max(0, event.before - event.after)
            known.is_foreseen = known.is_foreseen or not known.is_asked
            known.is_held = False
        known.is_asked = False

    def _answered(self, known: _Known, event: events.Answered) -> None:
        self.avoided += known.is_refused or known.is_foreseen
        known.is_refused = known.is_foreseen = False
        for name in ("input", "output", "cache_read", "cache_write"):
            self.tokens[name] += getattr(event, name)

    def _session(self, key: str) -> _Known:
        """Return what is known of the session called ``key``, which is the newest now."""
        if key not in self._known:
            self.count += 1
            self._known[key] = _Known()
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]
