"""How the proxy is: what it was asked, what became of that, and what went wrong; as JSON, and as Prometheus reads it.

Everything is counted since the start and takes the same room for ever. No session and no text of a client is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct

from holdfast.engine.run.record import UNWRITTEN
from holdfast.engine.session_runtime import REPAIRED
from holdfast.events import OUTCOMES, Event, Noticed
from holdfast.messages.text.cutting import one_line
from holdfast.proxy.http.headers import State
from holdfast.proxy.metrics.counts import Counts
from holdfast.proxy.metrics.histogram import Histogram
from holdfast.proxy.metrics.prometheus import Metric, Sample, exposition, number
from holdfast.proxy.modes import Mode
from holdfast.store.tree.tree import now_ms

Ended: TypeAlias = State | Literal["failed"]
"""What became of a request: what was done with it, or that it was not answered."""
STATES: tuple[str, ...] = (*get_args(State), "failed")
SOUND = frozenset({"managed", "observed"})
"""States of requests for which Holdfast did all that it is there for."""
TROUBLES = 32
"""Things going wrong that are told apart; what comes beyond them is ``ELSE``. [H]"""
ELSE = "something else"
OTHER = "other"
"""The API of requests by none that is known."""
_WHY = 300
"""Characters that are kept of what went wrong, and of why."""


class Trouble(Struct):
    """A thing that went wrong: how often, and when and why the last time."""

    what: str
    first: int
    last: int = 0
    times: int = 0
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        first, last = _moment(self.first), _moment(self.last)
        return {"what": self.what, "times": self.times, "first": first, "last": last, "why": self.why}


class Underway:
    """A request that was begun; it ends once."""

    def __init__(self, health: Health, api: str, number: int) -> None:
        self.api, self.number = api, number
        self._health: Health | None = health
        self._is_under_way = True

    def answered(self) -> None:
        """Count it among those under way no more: the client has its answer, whatever is left to be done for it."""
        if self._is_under_way and self._health is not None:
            self._is_under_way = False
            self._health.left()

    def ended(
        self, state: Ended, status: int, seconds_to_first_byte: float | None = None, *, session: str = ""
    ) -> None:
        """Count what became of it: the ``status`` that the client was told, 0 for none, and when it heard of it.

        With the key of its ``session`` a refusal that reached the client is not taken for one that was mended.
        """
        self.answered()
        health, self._health = self._health, None
        if health is None:
            return
        health.over(self, state, status, seconds_to_first_byte)
        if not 200 <= status < 300:
            health.sessions.unanswered(session)


class Health:
    """What the proxy counts. ``told`` is a listener of the engine.

    ``clock`` tells ms since 1970.
    """

    def __init__(self, clock: Callable[[], int] = now_ms) -> None:
        self.mode: Callable[[], Mode] = lambda: "manage"
        """What the proxy does with requests: asked each time, for it may be switched off while it runs."""
        self.sessions = Counts()
        self.first_byte = Histogram()
        self._clock = clock
        self._since = clock()
        self._requests: Counter[tuple[str, str, str]] = Counter()
        """By API, state and class of status."""
        self._begun = self._now = self._most = 0
        self._troubles: dict[str, Trouble] = {}
        """The one that went wrong last is the last."""
        self._notes: dict[str, None] = {}
        self._unsound: int | None = None
        """How many requests had begun when something last went wrong; nothing where all is well again."""

    # -- what it is told -----------------------------------------------------------------------------------------------

    def began(self, api: str) -> Underway:
        """Return a request by ``api`` (nothing: by none that is known), counted among those under way until it ends."""
        self._begun += 1
        self._now += 1
        self._most = max(self._most, self._now)
        return Underway(self, api or OTHER, self._begun)

    def left(self) -> None:
        """Count one request fewer among those under way."""
        self._now -= 1

    def refused(self, api: str, status: int) -> None:
        """Count a request by ``api`` that was refused at once, with this ``status``: it never was under way."""
        self._requests[api or OTHER, "refused", _class(status)] += 1

    def over(self, one: Underway, state: Ended, status: int, waited: float | None) -> None:
        """Count what became of ``one``; all is well again where it began behind the last trouble and met none."""
        self._requests[one.api, state, _class(status)] += 1
        if waited is not None:
            self.first_byte.add(waited)
        if self._unsound is not None and state in SOUND and one.number > self._unsound:
            self._unsound = None

    def told(self, event: Event) -> None:
        """Count what happened to a session; what could not be written down is a trouble."""
        self.sessions.told(event)
        if isinstance(event, Noticed) and event.rule == UNWRITTEN:
            self.went_wrong(event.rule, event.why)
        if isinstance(event, Noticed) and event.rule == REPAIRED:
            self.went_wrong(event.rule, f"session {event.session}: {event.why}", is_ours=False)

    def went_wrong(self, what: str, why: str = "", *, is_ours: bool = True) -> bool:
        """Count that ``what`` went wrong, said without secrets; return whether it is the first time, to be printed.

        What is the fault of a request (not ``is_ours``) is told, and says nothing of how the proxy is.
        """
        what, now = _told(what), self._clock()
        name = what if what in self._troubles or len(self._troubles) < TROUBLES else ELSE
        trouble = self._troubles.pop(name, None) or Trouble(name, now)
        trouble.times += 1
        trouble.last, trouble.why = now, _told(why)
        self._troubles[name] = trouble
        self._unsound = self._begun if is_ours else self._unsound
        return trouble.times == 1

    def noted(self, what: str) -> bool:
        """Keep ``what`` is not as somebody may think, though nothing went wrong; return whether it is to be printed."""
        is_new = what not in self._notes
        self._notes[what] = None
        return is_new

    # -- what it tells -------------------------------------------------------------------------------------------------

    @property
    def under_way(self) -> int:
        """How many requests began and are not answered."""
        return self._now

    @property
    def is_degraded(self) -> bool:
        """Whether something went wrong, and no request that began later was served in full."""
        return self._unsound is not None

    def livez(self) -> dict[str, Any]:
        """Return whether all is well, and what was refused and went wrong since the start: each once, newest first.

        And what is not as somebody may think.
        """
        status = "degraded" if self.is_degraded else "ok"
        troubles = [trouble.as_json() for trouble in reversed(self._troubles.values())]
        refused = self._by_api()["all"]["refused"]
        return {
            "status": status,
            "mode": self.mode(),
            "since": _moment(self._since),
            "refused": refused,
            "troubles": troubles,
            "notes": [*self._notes],
        }

    def stats(self) -> dict[str, Any]:
        """Return all that was counted."""
        sessions = self.sessions
        return {
            "since": _moment(self._since),
            "mode": self.mode(),
            "requests": self._by_api(),
            "concurrent": {"now": self._now, "most": self._most},
            "sessions": sessions.count,
            "compactions": {outcome: sessions.outcomes[outcome] for outcome in OUTCOMES},
            "overflows": {"refused": sessions.refused, "avoided": sessions.avoided},
            "breaker_open": sessions.held,
            "tokens": {name: sessions.tokens[name] for name in ("input", "output", "cache_read", "cache_write")},
            "tokens_saved": sessions.saved,
            "cache_hit": round(sessions.cache_hit, 3),
            "first_byte": _spread(self.first_byte),
        }

    def metrics(self) -> str:
        """Return the same as Prometheus reads it."""
        return exposition([*self._of_requests(), *_of_sessions(self.sessions), _of_first_byte(self.first_byte)])

    def _by_api(self) -> dict[str, dict[str, int]]:
        """Return how many requests ended in each state, all together and by API."""
        found = {"all": Counter[str]()}
        for (api, state, _), count in sorted(self._requests.items()):
            for name in ("all", api):
                found.setdefault(name, Counter())[state] += count
        return {api: {state: states[state] for state in STATES} for api, states in found.items()}

    def _of_requests(self) -> Iterator[Metric]:
        every = self._by_api()["all"]
        samples = (
            Sample(count, {"api": api, "state": state, "status": status})
            for (api, state, status), count in sorted(self._requests.items())
        )
        yield Metric("holdfast_requests_total", "counter", "Requests that ended.", tuple(samples))
        yield _counter("managed", "Requests that were kept inside the window.", every["managed"])
        yield _counter("bypassed", "Requests relayed while Holdfast was switched off.", every["bypassed"])
        yield _counter("refused", "Requests that Holdfast itself refused, sent to nobody.", every["refused"])
        yield _gauge("requests_under_way", "Requests that began and are not answered.", self._now)
        yield _gauge(
            "degraded", "1 from when something goes wrong until a request is served in full.", self.is_degraded
        )
        yield _counter("troubles", "How often something went wrong.", sum(one.times for one in self._troubles.values()))


def _of_sessions(sessions: Counts) -> Iterator[Metric]:
    by_outcome = tuple(Sample(sessions.outcomes[outcome], {"outcome": outcome}) for outcome in OUTCOMES)
    yield _counter("sessions", "Sessions that had requests.", sessions.count)
    yield Metric("holdfast_compactions_total", "counter", "Compactions, by what became of them.", by_outcome)
    yield _counter("overflows_refused", "Requests that a provider refused as too large.", sessions.refused)
    yield _counter("overflows_avoided", "Answers where an overflow was refused or foreseen.", sessions.avoided)
    yield _gauge("breaker_open", "Sessions whose breaker holds compactions back.", sessions.held)
    yield _counter("tokens_saved", "Tokens that reductions took away, when they were made.", sessions.saved)
    yield _counter("input_tokens", "Tokens of prompts, cached or not, as providers count.", sessions.tokens["input"])
    yield _counter("cache_read_tokens", "Those of them that came from a cache.", sessions.tokens["cache_read"])


def _of_first_byte(waited: Histogram) -> Metric:
    buckets = (Sample(count, {"le": number(bound)}, "_bucket") for bound, count in waited.under())
    samples = (*buckets, Sample(waited.sum, suffix="_sum"), Sample(waited.count, suffix="_count"))
    says = "Seconds from a request to the first byte of its answer."
    return Metric("holdfast_time_to_first_byte_seconds", "histogram", says, samples)


def _counter(name: str, says: str, value: int) -> Metric:
    return Metric(f"holdfast_{name}_total", "counter", says, (Sample(value),))


def _gauge(name: str, says: str, value: float) -> Metric:
    return Metric(f"holdfast_{name}", "gauge", says, (Sample(value),))


def _spread(waited: Histogram) -> dict[str, float | None]:
    half, most = waited.quantile(0.5), waited.quantile(0.95)
    return {"count": waited.count, "p50": _rounded(half), "p95": _rounded(most)}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _class(status: int) -> str:
    """Return the class of a status, as ``2xx``; ``none`` where the client got none."""
    return f"{status // 100}xx" if 100 <= status < 600 else "none"


def _told(text: str) -> str:
    """Return ``text`` on one line, as JSON can hold it: the name of a file may have letters that are none."""
    return one_line(text, _WHY).encode("utf-8", "replace").decode()


def _moment(at: int) -> str:
    moment = datetime.fromtimestamp(at / 1_000, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
