"""How the proxy is: what it was asked, what became of that, and what went wrong; as JSON, and as Prometheus reads it.

Everything is counted since the start and takes the same room for ever. No session and no text of a client is named.
prometheus-client writes the text format. It is imported by the first scrape, because the import takes 45 ms [M]. The
counts themselves stay here: ``/stats`` has quantiles, which Prometheus' own counters do not keep.
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
from holdfast.events import COMPACTION_OUTCOMES, Event, NoticeGiven
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.proxy.http.headers import RequestState
from holdfast.proxy.metrics.counts import EventCounts
from holdfast.proxy.metrics.histogram import Histogram
from holdfast.proxy.modes import Mode
from holdfast.store.tree.tree import get_time_ms

if TYPE_CHECKING:
    from prometheus_client import Metric

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of Prometheus' text format, as ``build_metrics`` writes it."""
RequestOutcome: TypeAlias = RequestState | Literal["failed"]
"""What became of a request: what was done with it, or that it was not answered."""
REQUEST_OUTCOMES: tuple[str, ...] = (*get_args(RequestState), "failed")
HEALTHY_STATES = frozenset({"managed", "observed"})
"""States of requests for which Holdfast did all that it is there for."""
MAX_TROUBLES = 32
"""Things going wrong that are told apart; what comes beyond them is ``OTHER_TROUBLE``. [H]"""
OTHER_TROUBLE = "something else"
OTHER_API = "other"
"""The API of requests by none that is known."""
_MAX_TROUBLE_CHARS = 300
"""Characters that are kept of what went wrong, and of why."""


class Trouble(Struct):
    """A thing that went wrong: how often, and when and why the last time."""

    name: str
    first_at: int
    last_at: int = 0
    count: int = 0
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        first, last = _format_time(self.first_at), _format_time(self.last_at)
        return {"what": self.name, "times": self.count, "first": first, "last": last, "why": self.reason}


class RequestInProgress:
    """A request that was begun; it ends once."""

    def __init__(self, health: Health, api: str, number: int) -> None:
        self.api, self.number = api, number
        self._health: Health | None = health
        self._is_under_way = True

    def mark_answered(self) -> None:
        """Count it among those under way no more: the client has its answer, whatever is left to be done for it."""
        if self._is_under_way and self._health is not None:
            self._is_under_way = False
            self._health.leave_request()

    def finish(
        self, state: RequestOutcome, status: int, seconds_to_first_byte: float | None = None, *, session: str = ""
    ) -> None:
        """Count what became of it: the ``status`` that the client was told, 0 for none, and when it heard of it.

        With the key of its ``session`` a refusal that reached the client is not taken for one that was mended.
        """
        self.mark_answered()
        health, self._health = self._health, None
        if health is None:
            return
        health.count_finished(self, state, status, seconds_to_first_byte)
        if not 200 <= status < 300:
            health.sessions.clear_refusal(session)


class Health:
    """What the proxy counts. ``count_event`` is a listener of the engine.

    ``clock`` tells ms since 1970.
    """

    def __init__(self, clock: Callable[[], int] = get_time_ms) -> None:
        self.mode: Callable[[], Mode] = lambda: "manage"
        """What the proxy does with requests: asked each time, for it may be switched off while it runs."""
        self.sessions = EventCounts()
        self.first_byte_times = Histogram()
        self._clock = clock
        self._since = clock()
        self._requests: Counter[tuple[str, str, str]] = Counter()
        """By API, state and class of status."""
        self._begun_count = self._in_progress = self._max_in_progress = 0
        self._troubles: dict[str, Trouble] = {}
        """The one that went wrong last is the last."""
        self._notes: dict[str, None] = {}
        self._begun_at_trouble: int | None = None
        """How many requests had begun when something last went wrong; nothing where all is well again."""

    # -- what it is told -----------------------------------------------------------------------------------------------

    def begin_request(self, api: str) -> RequestInProgress:
        """Return a request by ``api`` (nothing: by none that is known), counted among those under way until it ends."""
        self._begun_count += 1
        self._in_progress += 1
        self._max_in_progress = max(self._max_in_progress, self._in_progress)
        return RequestInProgress(self, api or OTHER_API, self._begun_count)

    def leave_request(self) -> None:
        """Count one request fewer among those under way."""
        self._in_progress -= 1

    def count_refused(self, api: str, status: int) -> None:
        """Count a request by ``api`` that was refused at once, with this ``status``: it never was under way."""
        self._requests[api or OTHER_API, "refused", _get_status_class(status)] += 1

    def count_finished(
        self, request: RequestInProgress, state: RequestOutcome, status: int, first_byte_seconds: float | None
    ) -> None:
        """Count what became of ``request``; all is well again where it began behind the last trouble and met none."""
        self._requests[request.api, state, _get_status_class(status)] += 1
        if first_byte_seconds is not None:
            self.first_byte_times.add(first_byte_seconds)
        if self._begun_at_trouble is not None and state in HEALTHY_STATES and request.number > self._begun_at_trouble:
            self._begun_at_trouble = None

    def count_event(self, event: Event) -> None:
        """Count what happened to a session; what could not be written down is a trouble."""
        self.sessions.count_event(event)
        if isinstance(event, NoticeGiven) and event.rule == UNWRITTEN_RULE:
            self.add_trouble(event.rule, event.why)
        if isinstance(event, NoticeGiven) and event.rule == SESSION_REPAIRED:
            self.add_trouble(event.rule, f"session {event.session}: {event.why}", is_ours=False)

    def add_trouble(self, description: str, why: str = "", *, is_ours: bool = True) -> bool:
        """Count that ``description`` went wrong, said without secrets; return whether it is the first time, to be
        printed.

        Where the request is at fault (not ``is_ours``), that is counted and says nothing of how the proxy is.
        """
        description, now = _clean_line(description), self._clock()
        name = description if description in self._troubles or len(self._troubles) < MAX_TROUBLES else OTHER_TROUBLE
        trouble = self._troubles.pop(name, None) or Trouble(name, now)
        trouble.count += 1
        trouble.last_at, trouble.reason = now, _clean_line(why)
        self._troubles[name] = trouble
        self._begun_at_trouble = self._begun_count if is_ours else self._begun_at_trouble
        return trouble.count == 1

    def add_note(self, note: str) -> bool:
        """Keep ``note`` is not as somebody may think, though nothing went wrong; return whether it is to be printed."""
        is_new = note not in self._notes
        self._notes[note] = None
        return is_new

    # -- what it tells -------------------------------------------------------------------------------------------------

    @property
    def in_progress(self) -> int:
        """How many requests began and are not answered."""
        return self._in_progress

    @property
    def is_degraded(self) -> bool:
        """Whether something went wrong, and no request that began later was served in full."""
        return self._begun_at_trouble is not None

    def build_livez(self) -> dict[str, Any]:
        """Return whether all is well, and what was refused and went wrong since the start: each once, newest first.

        And what is not as somebody may think.
        """
        status = "degraded" if self.is_degraded else "ok"
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
        """Return all that was counted."""
        sessions = self.sessions
        return {
            "since": _format_time(self._since),
            "mode": self.mode(),
            "requests": self._count_by_api(),
            "concurrent": {"now": self._in_progress, "most": self._max_in_progress},
            "sessions": sessions.session_count,
            "compactions": {outcome: sessions.outcomes[outcome] for outcome in COMPACTION_OUTCOMES},
            "overflows": {"refused": sessions.refused_overflows, "avoided": sessions.avoided_overflows},
            "breaker_open": sessions.open_breakers,
            "tokens": {name: sessions.tokens[name] for name in ("input", "output", "cache_read", "cache_write")},
            "tokens_saved": sessions.saved_tokens,
            "cache_hit": round(sessions.cache_hit_share, 3),
            "first_byte": _summarize_histogram(self.first_byte_times),
        }

    def build_metrics(self) -> str:
        """Return the same in Prometheus' text format, version 0.0.4."""
        from prometheus_client import generate_latest

        return generate_latest(_MetricsCollector(self)).decode()

    def _count_by_api(self) -> dict[str, dict[str, int]]:
        """Return how many requests ended in each state, all together and by API."""
        counters = {"all": Counter[str]()}
        for (api, state, _), count in sorted(self._requests.items()):
            for name in ("all", api):
                counters.setdefault(name, Counter())[state] += count
        return {api: {state: states[state] for state in REQUEST_OUTCOMES} for api, states in counters.items()}

    def list_metrics(self) -> Iterator[Metric]:
        """Yield the families of samples that Prometheus reads."""
        every = self._count_by_api()["all"]
        yield _make_labelled_counter(
            "requests", "Requests that ended.", ["api", "state", "status"], sorted(self._requests.items())
        )
        yield _make_counter("managed", "Requests that were kept inside the window.", every["managed"])
        yield _make_counter("bypassed", "Requests relayed while Holdfast was switched off.", every["bypassed"])
        yield _make_counter("refused", "Requests that Holdfast itself refused, sent to nobody.", every["refused"])
        yield _make_gauge("requests_under_way", "Requests that began and are not answered.", self._in_progress)
        yield _make_gauge(
            "degraded", "1 from when something goes wrong until a request is served in full.", self.is_degraded
        )
        yield _make_counter(
            "troubles", "How often something went wrong.", sum(trouble.count for trouble in self._troubles.values())
        )
        yield from _make_session_metrics(self.sessions)
        yield _make_first_byte_metric(self.first_byte_times)


class _MetricsCollector:
    """What prometheus-client asks for the samples."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        """Yield the families of samples."""
        return self._health.list_metrics()


def _make_session_metrics(sessions: EventCounts) -> Iterator[Metric]:
    by_outcome = [((outcome,), sessions.outcomes[outcome]) for outcome in COMPACTION_OUTCOMES]
    yield _make_counter("sessions", "Sessions that had requests.", sessions.session_count)
    yield _make_labelled_counter("compactions", "Compactions, by what became of them.", ["outcome"], by_outcome)
    yield _make_counter(
        "overflows_refused", "Requests that a provider refused as too large.", sessions.refused_overflows
    )
    yield _make_counter(
        "overflows_avoided", "Answers where an overflow was refused or foreseen.", sessions.avoided_overflows
    )
    yield _make_gauge("breaker_open", "Sessions whose breaker holds compactions back.", sessions.open_breakers)
    yield _make_counter("tokens_saved", "Tokens that reductions took away, when they were made.", sessions.saved_tokens)
    yield _make_counter(
        "input_tokens", "Tokens of prompts, cached or not, as providers count.", sessions.tokens["input"]
    )
    yield _make_counter("cache_read_tokens", "Those of them that came from a cache.", sessions.tokens["cache_read"])


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
    name: str, description: str, labels: Sequence[str], counts: Iterable[tuple[Sequence[str], int]]
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
    half, p95 = histogram.quantile(0.5), histogram.quantile(0.95)
    return {"count": histogram.count, "p50": _round_seconds(half), "p95": _round_seconds(p95)}


def _round_seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _get_status_class(status: int) -> str:
    """Return the class of a status, as ``2xx``; ``none`` where the client got none."""
    return f"{status // 100}xx" if 100 <= status < 600 else "none"


def _clean_line(text: str) -> str:
    """Return ``text`` on one line, as JSON can hold it: the name of a file may have letters that are none."""
    return flatten_to_line(text, _MAX_TROUBLE_CHARS).encode("utf-8", "replace").decode()


def _format_time(at: int) -> str:
    moment = datetime.fromtimestamp(at / 1_000, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
