"""Health: what ``/livez``, ``/stats`` and ``/metrics`` report."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import events
from holdfast.events import COMPACTION_OUTCOMES
from holdfast.providers.registry import API_NAMES
from holdfast.proxy.metrics.health import MAX_TROUBLES, OTHER_TROUBLE, REQUEST_OUTCOMES, Health
from holdfast.testing.clock import FakeClock

STARTED_MS = 1_795_000_000_000
STARTED, ONE_MINUTE_LATER = "2026-11-18T11:06:40Z", "2026-11-18T11:07:40Z"
"""The start as text, and a minute later."""


class TimedHealth:
    """A proxy's health on a clock that only advances when asked to."""

    def __init__(self):
        self.clock = FakeClock()
        self.health = Health(lambda: STARTED_MS + int(self.clock() * 1_000))

    def finish_request(self, state="managed", status=200, *, api="anthropic", seconds=0.5, session=""):
        """Begin a request and finish it after some seconds; None means that its client got nothing."""
        request = self.health.begin_request(api)
        self.clock.advance(seconds or 0)
        request.finish(state, status, seconds, session=session)
        return request

    def parse_metrics(self):
        """Return the samples of ``/metrics`` by name and labels."""
        lines = [line for line in self.health.build_metrics().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


@pytest.fixture
def proxy():
    return TimedHealth()


# -- livez -------------------------------------------------------------------------------------------------------------


def test_build_livez_is_ok_at_the_start(proxy):
    """A new proxy is ok and reports since when it runs and in which mode."""
    assert proxy.health.build_livez() == {
        "status": "ok",
        "mode": "manage",
        "since": STARTED,
        "refused": 0,
        "troubles": [],
        "notes": [],
    }


def test_add_note_reports_each_note_once(proxy):
    """A note stays in ``/livez`` from then on and is not a trouble, so the status stays ok."""
    assert [proxy.health.add_note(what) for what in ("no model is asked", "no model is asked", "so is this")] == [
        True,
        False,
        True,
    ]
    found = proxy.health.build_livez()
    assert (found["status"], found["troubles"]) == ("ok", [])
    assert found["notes"] == ["no model is asked", "so is this"]


def test_add_trouble_is_true_only_the_first_time(proxy):
    """A trouble is to be printed the first time it occurs and only counted afterwards."""
    assert proxy.health.add_trouble("cannot record", "no space left") is True
    proxy.clock.advance(60)
    assert proxy.health.add_trouble("cannot record", "the disk\nis gone") is False
    assert proxy.health.add_trouble("cannot read", "why not") is True
    found = proxy.health.build_livez()
    assert found["status"] == "degraded"
    once = {"what": "cannot read", "times": 1, "first": ONE_MINUTE_LATER, "last": ONE_MINUTE_LATER, "why": "why not"}
    often = {"what": "cannot record", "times": 2, "first": STARTED, "last": ONE_MINUTE_LATER, "why": "the disk is gone"}
    assert found["troubles"] == [once, often]


def test_build_livez_lists_the_newest_trouble_first(proxy):
    """Troubles are sorted by when they last occurred."""
    for what in ("a", "b", "a"):
        proxy.clock.advance(1)
        proxy.health.add_trouble(what)
    assert [trouble["what"] for trouble in proxy.health.build_livez()["troubles"]] == ["a", "b"]


@pytest.mark.parametrize("state", REQUEST_OUTCOMES)
def test_health_recovers_after_a_managed_or_observed_request(proxy, state):
    """A request that began after the trouble and was managed or observed ends it, one that was only relayed does not,
    and the trouble stays listed.
    """
    proxy.health.add_trouble("cannot record")
    proxy.finish_request(state)
    assert proxy.health.build_livez()["status"] == ("ok" if state in {"managed", "observed"} else "degraded")
    assert proxy.health.build_livez()["troubles"][0]["times"] == 1


def test_health_ignores_requests_begun_before_the_trouble(proxy):
    """A request that was in progress when something failed does not prove that it works again."""
    early = proxy.health.begin_request("anthropic")
    proxy.health.add_trouble("cannot record")
    early.finish("managed", 200)
    assert proxy.health.is_degraded
    proxy.finish_request()
    assert not proxy.health.is_degraded


@given(st.lists(st.text(max_size=400), max_size=80))
def test_add_trouble_keeps_a_bounded_list(words):
    """However many troubles there are, the list and each line are bounded, and every occurrence is counted."""
    health = TimedHealth().health
    firsts = [health.add_trouble(word, word) for word in words]
    troubles = health.build_livez()["troubles"]
    assert sum(firsts) == len(troubles) <= MAX_TROUBLES + 1
    assert sum(trouble["times"] for trouble in troubles) == len(words)
    for trouble in troubles:
        assert "\n" not in trouble["what"] + trouble["why"]
        assert len(trouble["what"]) <= 300 >= len(trouble["why"])


def test_add_trouble_counts_excess_kinds_together(proxy):
    """A kind of trouble beyond the bound is counted under one shared name, reported once, and changes no other."""
    for number in range(MAX_TROUBLES):
        proxy.health.add_trouble(f"trouble {number}")
    assert [proxy.health.add_trouble(what) for what in ("x", "y", "trouble 3")] == [True, False, False]
    times = {trouble["what"]: trouble["times"] for trouble in proxy.health.build_livez()["troubles"]}
    assert (times[OTHER_TROUBLE], times["trouble 3"], times["trouble 4"]) == (2, 2, 1)


# -- stats -------------------------------------------------------------------------------------------------------------


def test_build_stats_counts_requests_by_state_and_api(proxy):
    """Each request counts once in its state, under its API and under ``all``; an unknown API is ``other``."""
    proxy.finish_request()
    proxy.finish_request("relayed", api="openai-chat")
    proxy.finish_request("failed", 0, api="", seconds=None)
    found = proxy.health.build_stats()["requests"]
    assert {api: {state: count for state, count in states.items() if count} for api, states in found.items()} == {
        "all": {"managed": 1, "relayed": 1, "failed": 1},
        "anthropic": {"managed": 1},
        "openai-chat": {"relayed": 1},
        "other": {"failed": 1},
    }
    assert all(tuple(states) == REQUEST_OUTCOMES for states in found.values())


def test_finish_counts_a_request_once(proxy):
    """A second call of ``finish`` changes nothing."""
    request = proxy.finish_request()
    request.finish("failed", 500, 3.0)
    found = proxy.health.build_stats()
    assert (found["requests"]["all"]["managed"], found["requests"]["all"]["failed"]) == (1, 0)
    assert (found["concurrent"], found["first_byte"]["count"]) == ({"now": 0, "most": 1}, 1)


@given(st.lists(st.sampled_from(["begins", "is answered", "ends"]), max_size=60))
def test_build_stats_tracks_concurrent_requests(steps):
    """``now`` is how many requests began and are not answered, and ``most`` is the largest value it had."""
    health, waiting, answered, most = TimedHealth().health, [], [], 0
    for step in steps:
        if step == "begins":
            waiting.append(health.begin_request("gemini"))
        elif step == "is answered" and waiting:
            answered.append(waiting.pop(0))
            answered[-1].mark_answered()
        elif waiting or answered:
            (answered or waiting).pop(0).finish("managed", 200)
        most = max(most, len(waiting))
        assert health.build_stats()["concurrent"] == {"now": len(waiting), "most": most}
        assert health.in_progress == len(waiting)


def test_count_refused_leaves_the_concurrent_count(proxy):
    """A request that is refused at once counts as refused and never as one in progress."""
    under_way = proxy.health.begin_request("gemini")
    proxy.health.count_refused("gemini", 529)
    proxy.health.count_refused("", 404)
    found = proxy.health.build_stats()
    assert {api: states["refused"] for api, states in found["requests"].items()} == {"all": 2, "gemini": 1, "other": 1}
    assert found["concurrent"] == {"now": 1, "most": 1}
    assert proxy.parse_metrics()['holdfast_requests_total{api="gemini",state="refused",status="5xx"}'] == 1
    under_way.finish("managed", 200)
    assert proxy.health.in_progress == 0


def test_build_stats_reports_time_to_first_byte(proxy):
    """The time is counted once for each finished request, and a request whose client got nothing has none."""
    for seconds in (0.2, 0.2, 0.2, 0.2, 30.0):
        proxy.finish_request(seconds=seconds)
    proxy.finish_request("failed", 0, seconds=None)
    twice = proxy.finish_request(seconds=0.2)
    twice.finish("managed", 200, 50.0)
    found = proxy.health.build_stats()["first_byte"]
    assert found["count"] == 6
    assert 0.1 < found["p50"] <= 0.2
    assert 15 < found["p95"] <= 30


def test_build_stats_is_complete_before_the_first_request(proxy):
    """Before the first request every figure is present, and is 0 or null."""
    found = proxy.health.build_stats()
    assert found["requests"] == {"all": dict.fromkeys(REQUEST_OUTCOMES, 0)}
    assert found["compactions"] == dict.fromkeys(COMPACTION_OUTCOMES, 0)
    assert found["first_byte"] == {"count": 0, "p50": None, "p95": None}
    assert found["tokens"] == {"input": 0, "output": 0, "cache_read": 0, "cache_write": 0}
    assert (found["sessions"], found["tokens_saved"], found["cache_hit"], found["breaker_open"]) == (0, 0, 0, 0)


def count_avoided_overflow(proxy):
    """Count a refused overflow that was compacted and answered, and an open breaker."""
    for event in (
        events.RequestRefused("kelp", "context_window"),
        events.CompactionEnded("kelp", "compacted", "extract", 900, 400),
        events.AnswerRecorded("kelp", "end", 1_000, 10, 250),
        events.CacheMissed("kelp", "expired", 9_000, 9_500),
        events.NoticeGiven("wrack", "breaker"),
    ):
        proxy.health.count_event(event)


def test_build_stats_reports_the_engine_events(proxy):
    """The engine's events are reported under their names."""
    count_avoided_overflow(proxy)
    found = proxy.health.build_stats()
    assert found["sessions"] == 2
    assert found["overflows"] == {"refused": 1, "avoided": 1}
    assert found["compactions"]["compacted"] == 1
    assert (found["cache_misses"]["expired"], found["cache_misses"]["unknown"]) == (1, 0)
    assert found["cache_missed_tokens"] == 9_000
    assert (found["tokens_saved"], found["cache_hit"], found["breaker_open"]) == (500, 0.25, 1)


@pytest.mark.parametrize(("status", "avoided"), [(400, 0), (200, 1)])
def test_overflow_that_reached_the_client_is_not_avoided(proxy, status, avoided):
    """When the refused request ended in an error, the next answer does not count as an avoided overflow."""
    proxy.health.count_event(events.RequestRefused("kelp", "context_window"))
    proxy.finish_request(status=status, session="kelp")
    proxy.health.count_event(events.AnswerRecorded("kelp"))
    assert proxy.health.build_stats()["overflows"]["avoided"] == avoided


def test_build_livez_reports_the_current_mode(proxy):
    """The mode is read for each page, because a running proxy may be switched to bypass."""
    modes = iter(["bypass", "manage"])
    proxy.health.mode = lambda: next(modes)
    assert (proxy.health.build_livez()["mode"], proxy.health.build_stats()["mode"]) == ("bypass", "manage")


def test_livez_and_stats_are_valid_json(proxy):
    """Both pages encode as JSON, also when a trouble contains a lone surrogate from a file name."""
    proxy.health.add_trouble("a\udc80b")
    proxy.finish_request()
    for page in (proxy.health.build_livez(), proxy.health.build_stats()):
        assert msgspec.json.decode(msgspec.json.encode(page)) == page


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_build_metrics_has_every_figure(proxy):
    """Requests, managed, bypassed, overflows avoided, compactions, breaker, cache and time to first byte are in
    ``/metrics``.
    """
    count_avoided_overflow(proxy)
    proxy.finish_request()
    proxy.finish_request("bypassed", 502, api="gemini", seconds=2.0)
    proxy.health.begin_request("gemini")
    proxy.health.add_trouble("cannot record")
    found = proxy.parse_metrics()
    labels = ("bucket", "outcome", "cause")
    assert {name: value for name, value in found.items() if not any(label in name for label in labels)} == {
        'holdfast_requests_total{api="anthropic",state="managed",status="2xx"}': 1,
        'holdfast_requests_total{api="gemini",state="bypassed",status="5xx"}': 1,
        "holdfast_managed_total": 1,
        "holdfast_bypassed_total": 1,
        "holdfast_refused_total": 0,
        "holdfast_requests_under_way": 1,
        "holdfast_degraded": 1,
        "holdfast_troubles_total": 1,
        "holdfast_sessions_total": 2,
        "holdfast_overflows_refused_total": 1,
        "holdfast_overflows_avoided_total": 1,
        "holdfast_changed_fields_total": 0,
        "holdfast_cache_missed_tokens_total": 9_000,
        "holdfast_breaker_open": 1,
        "holdfast_tokens_saved_total": 500,
        "holdfast_input_tokens_total": 1_000,
        "holdfast_cache_read_tokens_total": 250,
        "holdfast_time_to_first_byte_seconds_sum": 2.5,
        "holdfast_time_to_first_byte_seconds_count": 2,
    }
    assert found['holdfast_compactions_total{outcome="compacted"}'] == 1
    assert sum("outcome" in name for name in found) == len(COMPACTION_OUTCOMES)
    assert found['holdfast_cache_misses_total{cause="expired"}'] == 1
    assert found['holdfast_time_to_first_byte_seconds_bucket{le="0.5"}'] == 1
    assert found['holdfast_time_to_first_byte_seconds_bucket{le="+Inf"}'] == 2


def test_build_metrics_is_well_formed(proxy):
    """Every metric has our prefix, one HELP and one TYPE line before its samples, and only counters end with
    ``_total``.
    """
    proxy.finish_request()
    lines = proxy.health.build_metrics().splitlines()
    kinds = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE ")}
    assert [line.split()[2] for line in lines if line.startswith("# HELP ")] == list(kinds)
    assert all(name.startswith("holdfast_") and name.endswith("_total") == (kinds[name] == "counter") for name in kinds)
    current = ""
    for line in lines:
        current = line.split()[2] if line.startswith("#") else current
        assert line.startswith(("#", current))
    assert "holdfast_managed_total 0.0" in Health().build_metrics().splitlines()


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*API_NAMES, ""]),
            st.sampled_from(REQUEST_OUTCOMES),
            st.integers(-1, 999),
            st.text(min_size=1),
        ),
        max_size=100,
    )
)
def test_build_metrics_bounds_its_labels(requests):
    """However many sessions and statuses there are, labels have few values, and no session is named."""
    proxy = TimedHealth()
    for api, state, status, key in requests:
        proxy.finish_request(state, status, api=api, session=f"session-{key}")
        proxy.health.count_event(events.RequestStarted(f"session-{key}"))
        proxy.health.count_event(events.NoticeGiven(f"session-{key}", "breaker", "secret"))
    text = proxy.health.build_metrics() + repr(proxy.health.build_stats()) + repr(proxy.health.build_livez())
    assert "session-" not in text
    assert "secret" not in text
    names = {name for name in proxy.parse_metrics() if name.startswith("holdfast_requests_total")}
    assert all(name.split("status=")[1] in {f'"{digit}xx"}}' for digit in range(1, 6)} | {'"none"}'} for name in names)


@given(st.lists(st.floats(0, 500), max_size=50))
def test_build_metrics_has_a_consistent_histogram(seconds):
    """Buckets never shrink, the last one holds all values, and sum and count match the values."""
    proxy = TimedHealth()
    for value in seconds:
        proxy.finish_request(seconds=value)
    found = proxy.parse_metrics()
    buckets = [value for name, value in found.items() if "_bucket" in name]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found["holdfast_time_to_first_byte_seconds_count"] == len(seconds)
    assert found["holdfast_time_to_first_byte_seconds_sum"] == pytest.approx(sum(seconds))
