"""The state of the proxy: requests and their outcomes, and errors, as JSON and for Prometheus.

Everything is counted since the start, in bounded memory. No session and no text of a client is named. prometheus-client
writes the text format; it is imported by the first scrape, because that takes 45 ms, as measured. The counts themselves
are ours: ``/stats`` has quantiles, which Prometheus' own counters do not keep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from math import isinf
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from msgspec import Struct

from holdfast.engine.run.record import UNWRITTEN_RULE
from holdfast.engine.session_runtime import SESSION_REPAIRED
from holdfast.events import COMPACTION_OUTCOMES, Event, EventListener, NoticeGiven
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.proxy.http.headers import RequestState
from holdfast.proxy.metrics.counts import EventCounts
from holdfast.proxy.metrics.histogram import Histogram
from holdfast.proxy.modes import Mode
from holdfast.state.cache_misses import CACHE_MISS_CAUSES, UNREPORTED
from holdfast.store.tree.tree import get_time_ms

if TYPE_CHECKING:
    from prometheus_client import Metric

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of Prometheus' text format, as ``build_metrics`` writes it."""
RequestOutcome: TypeAlias = RequestState | Literal["failed"]
"""The outcome of a request: what was done with it, or ``failed`` if it was not answered."""
REQUEST_OUTCOMES: tuple[str, ...] = (*get_args(RequestState), "failed")
_COUNTED_CAUSES = tuple(cause for cause in CACHE_MISS_CAUSES if cause != UNREPORTED)
"""Causes of cache misses that have an event."""
HEALTHY_STATES = frozenset({"managed", "observed"})
"""States of requests for which Holdfast did everything it is there for."""
MAX_TROUBLES = 32
"""Errors that are told apart; all further ones are ``OTHER_TROUBLE``. It bounds the memory; chosen by judgement."""
OTHER_TROUBLE = "something else"
OTHER_API = "other"
"""Name for requests of an unknown API."""
_MAX_TROUBLE_CHARS = 300
"""Characters that are kept of an error's name and of its reason."""


class Trouble(Struct):
    """A kind of error: how often it happened, and when and why the last time."""

    name: str
    first_at: int
    last_at: int = 0
    count: int = 0
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        first = _format_time(self.first_at)
        last = _format_time(self.last_at)
        return {"what": self.name, "times": self.count, "first": first, "last": last, "why": self.reason}


class RequestInProgress:
    """A request that was begun; it is counted as finished once."""

    def __init__(self, health: Health, api: str, number: int) -> None:
        self.api = api
        self.number = number
        self._health: Health | None = health
        self._is_under_way = True

    def mark_answered(self) -> None:
        """Stop counting the request as in progress: the client has its answer, though work may be left."""
        if self._is_under_way and self._health is not None:
            self._is_under_way = False
            self._health.leave_request()

    def finish(
        self,
        state: RequestOutcome,
        status: int,
        seconds_to_first_byte: float | None = None,
        *,
        session: str = "",
    ) -> None:
        """Count the outcome of the request.

        ``status`` is the one that the client was sent, 0 for none. If it is an error, the refusal that is remembered
        for ``session`` reached the client, so it does not count as an avoided overflow.
        """
        self.mark_answered()
        # Only once, even if the end of a request is reached in two ways.
        health = self._health
        self._health = None
        if health is None:
            return
        health.count_finished(self, state, status, seconds_to_first_byte)
        if not 200 <= status < 300:
            health.sessions.clear_refusal(session)


class Health:
    """The metrics of the proxy. ``count_event`` is a listener of the engine.

    ``clock`` returns ms since 1970. ``on_event`` is called with each event too.
    """

    def __init__(self, clock: Callable[[], int] = get_time_ms, on_event: EventListener | None = None) -> None:
        self.mode: Callable[[], Mode] = lambda: "manage"
        """Returns the proxy's mode. It is asked each time, because the proxy may be switched off while it runs."""
        self.sessions = EventCounts()
        self.first_byte_times = Histogram()
        self._clock = clock
        self._on_event = on_event
        self._since = clock()
        self._requests: Counter[tuple[str, str, str]] = Counter()
        """By API, outcome and class of status."""
        self._begun_count = self._in_progress = self._max_in_progress = 0
        self._troubles: dict[str, Trouble] = {}
        """By name; the one that happened last is last."""
        self._notes: dict[str, None] = {}
        self._begun_at_trouble: int | None = None
        """Number of requests that had begun when an error last happened; None if all is well again."""

    # -- counting ------------------------------------------------------------------------------------------------------

    def begin_request(self, api: str) -> RequestInProgress:
        """Begin a request of ``api`` (empty if unknown), which counts as in progress until it is answered."""
        self._begun_count += 1
        self._in_progress += 1
        self._max_in_progress = max(self._max_in_progress, self._in_progress)
        return RequestInProgress(self, api or OTHER_API, self._begun_count)

    def leave_request(self) -> None:
        """Count one request less in progress."""
        self._in_progress -= 1

    def count_refused(self, api: str, status: int) -> None:
        """Count a request that was refused at once with ``status``; it never was in progress."""
        self._requests[api or OTHER_API, "refused", _get_status_class(status)] += 1

    def count_finished(
        self,
        request: RequestInProgress,
        state: RequestOutcome,
        status: int,
        first_byte_seconds: float | None,
    ) -> None:
        """Count the outcome of ``request``. A healthy one that began after the last error ends the degraded state."""
        self._requests[request.api, state, _get_status_class(status)] += 1
        if first_byte_seconds is not None:
            self.first_byte_times.add(first_byte_seconds)
        began_after_trouble = self._begun_at_trouble is not None and request.number > self._begun_at_trouble
        if began_after_trouble and state in HEALTHY_STATES:
            self._begun_at_trouble = None

    def count_event(self, event: Event) -> None:
        """Count an event of a session; something that could not be stored counts as an error too."""
        self.sessions.count_event(event)
        if self._on_event is not None:
            self._on_event(event)
        if isinstance(event, NoticeGiven) and event.rule == UNWRITTEN_RULE:
            self.add_trouble(event.rule, event.why)
        if isinstance(event, NoticeGiven) and event.rule == SESSION_REPAIRED:
            self.add_trouble(event.rule, f"session {event.session}: {event.why}", is_ours=False)

    def add_trouble(self, description: str, why: str = "", *, is_ours: bool = True) -> bool:
        """Count an error, described without secrets; return whether it is the first of its kind, to be printed.

        If the request was at fault (not ``is_ours``) the proxy does not count as degraded.
        """
        name = _clean_line(description)
        now = self._clock()
        if name not in self._troubles and len(self._troubles) >= MAX_TROUBLES:
            name = OTHER_TROUBLE
        # Removed and added again, so that the error that happened last is the last one.
        trouble = self._troubles.pop(name, None) or Trouble(name, now)
        trouble.count += 1
        trouble.last_at = now
        trouble.reason = _clean_line(why)
        self._troubles[name] = trouble
        if is_ours:
            self._begun_at_trouble = self._begun_count
        return trouble.count == 1

    def add_note(self, note: str) -> bool:
        """Keep a note about something that may surprise the user but is no error; return whether it is new."""
        is_new = note not in self._notes
        self._notes[note] = None
        return is_new

    # -- reporting -----------------------------------------------------------------------------------------------------

    @property
    def in_progress(self) -> int:
        """Number of requests that began and are not answered yet."""
        return self._in_progress

    @property
    def is_degraded(self) -> bool:
        """Whether an error happened and no request that began later was served in full."""
        return self._begun_at_trouble is not None

    def build_livez(self) -> dict[str, Any]:
        """Return whether all is well, the errors since the start (newest first), and the notes."""
        status = "ok"
        if self.is_degraded:
            status = "degraded"
        troubles = [trouble.as_json() for trouble in reversed(self._troubles.values())]
        refused_count = self._count_by_api()["all"]["refused"]
        return {
            "status": status,
            "mode": self.mode(),
            "since": _format_time(self._since),
            "refused": refused_count,
            "troubles": troubles,
            "notes": [*self._notes],
        }

    def build_stats(self) -> dict[str, Any]:
        """Return all metrics as JSON values."""
        sessions = self.sessions
        return {
            "since": _format_time(self._since),
            "mode": self.mode(),
            "requests": self._count_by_api(),
            "concurrent": {"now": self._in_progress, "most": self._max_in_progress},
            "sessions": sessions.session_count,
            "compactions": {outcome: sessions.outcomes[outcome] for outcome in COMPACTION_OUTCOMES},
            "overflows": {"refused": sessions.refused_overflows, "avoided": sessions.avoided_overflows},
            "changed_fields": sessions.changed_fields,
            "breaker_open": sessions.open_breakers,
            "tokens": {name: sessions.tokens[name] for name in ("input", "output", "cache_read", "cache_write")},
            "tokens_saved": sessions.saved_tokens,
            "cache_hit": round(sessions.cache_hit_share, 3),
            "cache_misses": {cause: sessions.cache_misses[cause] for cause in _COUNTED_CAUSES},
            "cache_missed_tokens": sessions.missed_tokens,
            "first_byte": _summarize_histogram(self.first_byte_times),
        }

    def build_metrics(self) -> str:
        """Return all metrics in Prometheus' text format, version 0.0.4."""
        from prometheus_client import generate_latest

        return generate_latest(_MetricsCollector(self)).decode()

    def _count_by_api(self) -> dict[str, dict[str, int]]:
        """Return how many requests ended with each outcome, by API and for ``all``."""
        counters = {"all": Counter[str]()}
        for (api, state, _), count in sorted(self._requests.items()):
            for name in ("all", api):
                counters.setdefault(name, Counter())[state] += count
        counts: dict[str, dict[str, int]] = {}
        for api, states in counters.items():
            counts[api] = {state: states[state] for state in REQUEST_OUTCOMES}
        return counts

    def list_metrics(self) -> Iterator[Metric]:
        """Yield the metric families for Prometheus."""
        all_counts = self._count_by_api()["all"]
        yield _make_labelled_counter(
            "requests",
            "Requests that ended.",
            ["api", "state", "status"],
            sorted(self._requests.items()),
        )
        yield _make_counter("managed", "Requests that were kept inside the window.", all_counts["managed"])
        yield _make_counter("bypassed", "Requests relayed while Holdfast was switched off.", all_counts["bypassed"])
        yield _make_counter("refused", "Requests that Holdfast refused without sending them.", all_counts["refused"])
        yield _make_gauge("requests_under_way", "Requests that began and are not answered yet.", self._in_progress)
        yield _make_gauge(
            "degraded",
            "1 from an error until a request that began after it is served in full.",
            self.is_degraded,
        )
        trouble_count = sum(trouble.count for trouble in self._troubles.values())
        yield _make_counter("troubles", "Errors of all kinds.", trouble_count)
        yield from _make_session_metrics(self.sessions)
        yield _make_first_byte_metric(self.first_byte_times)


class _MetricsCollector:
    """Adapter through which prometheus-client collects the metrics."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        return self._health.list_metrics()


def _make_session_metrics(sessions: EventCounts) -> Iterator[Metric]:
    by_outcome = [((outcome,), sessions.outcomes[outcome]) for outcome in COMPACTION_OUTCOMES]
    by_cause = [((cause,), sessions.cache_misses[cause]) for cause in _COUNTED_CAUSES]
    yield _make_counter("sessions", "Sessions that had requests.", sessions.session_count)
    yield _make_labelled_counter("compactions", "Compactions by outcome.", ["outcome"], by_outcome)
    yield _make_labelled_counter("cache_misses", "Requests that missed the prompt cache by cause.", ["cause"], by_cause)
    yield _make_counter("cache_missed_tokens", "Tokens that such requests had processed again.", sessions.missed_tokens)
    yield _make_counter(
        "overflows_refused",
        "Requests that a provider refused as too large.",
        sessions.refused_overflows,
    )
    yield _make_counter(
        "overflows_avoided",
        "Requests answered after an overflow was refused or avoided.",
        sessions.avoided_overflows,
    )
    yield _make_counter("changed_fields", "Fields changed because a server refuses them.", sessions.changed_fields)
    yield _make_gauge("breaker_open", "Sessions with compactions stopped by the breaker.", sessions.open_breakers)
    yield _make_counter("tokens_saved", "Tokens removed by reductions, each counted once.", sessions.saved_tokens)
    yield _make_counter(
        "input_tokens",
        "Input tokens as counted by providers, cached or not.",
        sessions.tokens["input"],
    )
    yield _make_counter("cache_read_tokens", "Input tokens that were read from a cache.", sessions.tokens["cache_read"])


def _make_first_byte_metric(histogram: Histogram) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    buckets = [(_format_bound(bound), count) for bound, count in histogram.cumulate_counts()]
    return HistogramMetricFamily(
        "holdfast_time_to_first_byte_seconds",
        "Seconds from a request to the first byte of its answer.",
        buckets=buckets,
        sum_value=histogram.sum,
    )


def _format_bound(seconds: float) -> str:
    return "+Inf" if isinf(seconds) else f"{seconds:g}"


def _make_counter(name: str, description: str, value: int) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(f"holdfast_{name}", description, value)


def _make_labelled_counter(
    name: str,
    description: str,
    labels: Sequence[str],
    counts: Iterable[tuple[Sequence[str], int]],
) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    metric = CounterMetricFamily(f"holdfast_{name}", description, labels=labels)
    for values, count in counts:
        metric.add_metric(values, count)
    return metric


def _make_gauge(name: str, description: str, value: float) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"holdfast_{name}", description, value)


def _summarize_histogram(histogram: Histogram) -> dict[str, float | None]:
    half = histogram.quantile(0.5)
    p95 = histogram.quantile(0.95)
    return {"count": histogram.count, "p50": _round_seconds(half), "p95": _round_seconds(p95)}


def _round_seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _get_status_class(status: int) -> str:
    """Return the class of a status, such as ``2xx``; ``none`` if the client got no answer."""
    return f"{status // 100}xx" if 100 <= status < 600 else "none"


def _clean_line(text: str) -> str:
    """Return ``text`` on one line that JSON can hold; file names may contain lone surrogates."""
    return flatten_to_line(text, _MAX_TROUBLE_CHARS).encode("utf-8", "replace").decode()


def _format_time(at: int) -> str:
    moment = datetime.fromtimestamp(at / 1_000, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
