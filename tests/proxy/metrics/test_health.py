"""Health: what ``/livez``, ``/stats`` and ``/metrics`` tell of what was counted."""

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

BEGAN = 1_795_000_000_000
MOMENT, LATER = "2026-11-18T11:06:40Z", "2026-11-18T11:07:40Z"
"""That in words, and a minute later."""


class Timed:
    """A proxy's health on a clock that stands still until it is told to go on."""

    def __init__(self):
        self.clock = FakeClock()
        self.health = Health(lambda: BEGAN + int(self.clock() * 1_000))

    def asked(self, state="managed", status=200, *, api="anthropic", seconds=0.5, session=""):
        """Let a request be answered after so many seconds; with none its client got nothing."""
        request = self.health.begin_request(api)
        self.clock.advance(seconds or 0)
        request.finish(state, status, seconds, session=session)
        return request

    def figures(self):
        """Return the lines of ``metrics`` that are samples, by name and labels."""
        lines = [line for line in self.health.build_metrics().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


@pytest.fixture
def proxy():
    return Timed()


# -- livez -------------------------------------------------------------------------------------------------------------


def test_a_proxy_that_just_began_is_well(proxy):
    """Nothing went wrong, and it says since when and what it does."""
    assert proxy.health.build_livez() == {
        "status": "ok",
        "mode": "manage",
        "since": MOMENT,
        "refused": 0,
        "troubles": [],
        "notes": [],
    }


def test_what_nobody_may_expect_is_said_once(proxy):
    """It stands there from then on, and is no trouble: all is well."""
    assert [proxy.health.add_note(what) for what in ("no model is asked", "no model is asked", "so is this")] == [
        True,
        False,
        True,
    ]
    found = proxy.health.build_livez()
    assert (found["status"], found["troubles"]) == ("ok", [])
    assert found["notes"] == ["no model is asked", "so is this"]


def test_trouble_is_said_once(proxy):
    """The first time a thing goes wrong it is to be printed, and never again; it is counted each time."""
    assert proxy.health.add_trouble("cannot record", "no space left") is True
    proxy.clock.advance(60)
    assert proxy.health.add_trouble("cannot record", "the disk\nis gone") is False
    assert proxy.health.add_trouble("cannot read", "why not") is True
    found = proxy.health.build_livez()
    assert found["status"] == "degraded"
    once = {"what": "cannot read", "times": 1, "first": LATER, "last": LATER, "why": "why not"}
    often = {"what": "cannot record", "times": 2, "first": MOMENT, "last": LATER, "why": "the disk is gone"}
    assert found["troubles"] == [once, often]


def test_what_went_wrong_last_stands_first(proxy):
    """Whoever looks sees the newest trouble, however old the others are."""
    for what in ("a", "b", "a"):
        proxy.clock.advance(1)
        proxy.health.add_trouble(what)
    assert [one["what"] for one in proxy.health.build_livez()["troubles"]] == ["a", "b"]


@pytest.mark.parametrize("state", REQUEST_OUTCOMES)
def test_it_is_well_again_once_a_request_is_served_in_full(proxy, state):
    """A request that began behind the trouble and was managed, or observed, ends it; one that was only passed on does
    not. What went wrong is still told."""
    proxy.health.add_trouble("cannot record")
    proxy.asked(state)
    assert proxy.health.build_livez()["status"] == ("ok" if state in {"managed", "observed"} else "degraded")
    assert proxy.health.build_livez()["troubles"][0]["times"] == 1


def test_a_request_from_before_the_trouble_does_not_end_it(proxy):
    """What was under way when something went wrong says nothing of how it is since."""
    early = proxy.health.begin_request("anthropic")
    proxy.health.add_trouble("cannot record")
    early.finish("managed", 200)
    assert proxy.health.is_degraded
    proxy.asked()
    assert not proxy.health.is_degraded


@given(st.lists(st.text(max_size=400), max_size=80))
def test_troubles_have_a_bound(words):
    """Whatever is said of them, and however many there are: so many are told apart, on a line each, and all count."""
    health = Timed().health
    firsts = [health.add_trouble(one, one) for one in words]
    told = health.build_livez()["troubles"]
    assert sum(firsts) == len(told) <= MAX_TROUBLES + 1
    assert sum(one["times"] for one in told) == len(words)
    assert all("\n" not in one["what"] + one["why"] and len(one["what"]) <= 300 >= len(one["why"]) for one in told)


def test_what_is_beyond_the_bound_is_something_else(proxy):
    """A trouble too many is counted with its like, said once, and leaves the others as they are."""
    for number in range(MAX_TROUBLES):
        proxy.health.add_trouble(f"trouble {number}")
    assert [proxy.health.add_trouble(what) for what in ("x", "y", "trouble 3")] == [True, False, False]
    times = {one["what"]: one["times"] for one in proxy.health.build_livez()["troubles"]}
    assert (times[OTHER_TROUBLE], times["trouble 3"], times["trouble 4"]) == (2, 2, 1)


# -- stats -------------------------------------------------------------------------------------------------------------


def test_requests_by_state_and_api(proxy):
    """Each request counts once, in its state, under its API and under all; an API nobody knows is ``other``."""
    proxy.asked()
    proxy.asked("relayed", api="openai-chat")
    proxy.asked("failed", 0, api="", seconds=None)
    found = proxy.health.build_stats()["requests"]
    assert {api: {state: count for state, count in states.items() if count} for api, states in found.items()} == {
        "all": {"managed": 1, "relayed": 1, "failed": 1},
        "anthropic": {"managed": 1},
        "openai-chat": {"relayed": 1},
        "other": {"failed": 1},
    }
    assert all(tuple(states) == REQUEST_OUTCOMES for states in found.values())


def test_a_request_ends_once(proxy):
    """Who says twice that it ended changes nothing the second time."""
    request = proxy.asked()
    request.finish("failed", 500, 3.0)
    found = proxy.health.build_stats()
    assert (found["requests"]["all"]["managed"], found["requests"]["all"]["failed"]) == (1, 0)
    assert (found["concurrent"], found["first_byte"]["count"]) == ({"now": 0, "most": 1}, 1)


@given(st.lists(st.sampled_from(["begins", "is answered", "ends"]), max_size=60))
def test_requests_under_way(steps):
    """Now is how many began and are not answered, and most is the largest that now ever was."""
    health, waiting, answered, most = Timed().health, [], [], 0
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


def test_what_is_refused_at_once_was_never_under_way(proxy):
    """It counts as refused, under its API and under all, and leaves alone how many there are and were at once."""
    under_way = proxy.health.begin_request("gemini")
    proxy.health.count_refused("gemini", 529)
    proxy.health.count_refused("", 404)
    found = proxy.health.build_stats()
    assert {api: states["refused"] for api, states in found["requests"].items()} == {"all": 2, "gemini": 1, "other": 1}
    assert found["concurrent"] == {"now": 1, "most": 1}
    assert proxy.figures()['holdfast_requests_total{api="gemini",state="refused",status="5xx"}'] == 1
    under_way.finish("managed", 200)
    assert proxy.health.in_progress == 0


def test_the_time_to_the_first_byte(proxy):
    """It is counted once for each request that ended; one whose client got nothing has none."""
    for seconds in (0.2, 0.2, 0.2, 0.2, 30.0):
        proxy.asked(seconds=seconds)
    proxy.asked("failed", 0, seconds=None)
    twice = proxy.asked(seconds=0.2)
    twice.finish("managed", 200, 50.0)
    found = proxy.health.build_stats()["first_byte"]
    assert found["count"] == 6
    assert 0.1 < found["p50"] <= 0.2
    assert 15 < found["p95"] <= 30


def test_stats_of_nothing(proxy):
    """Before the first request everything is there, and 0 or nothing."""
    found = proxy.health.build_stats()
    assert found["requests"] == {"all": dict.fromkeys(REQUEST_OUTCOMES, 0)}
    assert found["compactions"] == dict.fromkeys(COMPACTION_OUTCOMES, 0)
    assert found["first_byte"] == {"count": 0, "p50": None, "p95": None}
    assert found["tokens"] == {"input": 0, "output": 0, "cache_read": 0, "cache_write": 0}
    assert (found["sessions"], found["tokens_saved"], found["cache_hit"], found["breaker_open"]) == (0, 0, 0, 0)


def happened(proxy):
    """Let an overflow be refused, compacted away and answered, and a breaker open."""
    for event in (
        events.RequestRefused("kelp", "context_window"),
        events.CompactionEnded("kelp", "compacted", "extract", 900, 400),
        events.AnswerRecorded("kelp", "end", 1_000, 10, 250),
        events.NoticeGiven("wrack", "breaker"),
    ):
        proxy.health.count_event(event)


def test_stats_of_sessions(proxy):
    """What the engine tells comes out under its names."""
    happened(proxy)
    found = proxy.health.build_stats()
    assert found["sessions"] == 2
    assert found["overflows"] == {"refused": 1, "avoided": 1}
    assert found["compactions"]["compacted"] == 1
    assert (found["tokens_saved"], found["cache_hit"], found["breaker_open"]) == (500, 0.25, 1)


@pytest.mark.parametrize(("status", "avoided"), [(400, 0), (200, 1)])
def test_a_refusal_that_reached_the_client_was_not_avoided(proxy, status, avoided):
    """Where the request that was refused ended in an error, the answer to the next one avoids nothing."""
    proxy.health.count_event(events.RequestRefused("kelp", "context_window"))
    proxy.asked(status=status, session="kelp")
    proxy.health.count_event(events.AnswerRecorded("kelp"))
    assert proxy.health.build_stats()["overflows"]["avoided"] == avoided


def test_the_mode_may_change(proxy):
    """A proxy that is switched off while it runs says so."""
    modes = iter(["bypass", "manage"])
    proxy.health.mode = lambda: next(modes)
    assert (proxy.health.build_livez()["mode"], proxy.health.build_stats()["mode"]) == ("bypass", "manage")


def test_both_are_json(proxy):
    """They go out as JSON just as they are, also where a trouble tells a file's name that is no text."""
    proxy.health.add_trouble("a\udc80b")
    proxy.asked()
    for told in (proxy.health.build_livez(), proxy.health.build_stats()):
        assert msgspec.json.decode(msgspec.json.encode(told)) == told


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_every_figure_of_metrics(proxy):
    """Requests, managed, bypassed, overflows avoided, compactions, breaker, cache and time to first byte."""
    happened(proxy)
    proxy.asked()
    proxy.asked("bypassed", 502, api="gemini", seconds=2.0)
    proxy.health.begin_request("gemini")
    proxy.health.add_trouble("cannot record")
    found = proxy.figures()
    assert {name: value for name, value in found.items() if "bucket" not in name and "outcome" not in name} == {
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
        "holdfast_breaker_open": 1,
        "holdfast_tokens_saved_total": 500,
        "holdfast_input_tokens_total": 1_000,
        "holdfast_cache_read_tokens_total": 250,
        "holdfast_time_to_first_byte_seconds_sum": 2.5,
        "holdfast_time_to_first_byte_seconds_count": 2,
    }
    assert found['holdfast_compactions_total{outcome="compacted"}'] == 1
    assert sum("outcome" in name for name in found) == len(COMPACTION_OUTCOMES)
    assert found['holdfast_time_to_first_byte_seconds_bucket{le="0.5"}'] == 1
    assert found['holdfast_time_to_first_byte_seconds_bucket{le="+Inf"}'] == 2


def test_metrics_are_well_formed(proxy):
    """Every name is ours and has one line that explains it and one of its kind, before its samples; counters alone end
    with ``_total``, also where nothing was counted yet."""
    proxy.asked()
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
def test_labels_have_a_bound(requests):
    """However many sessions there are and whatever statuses come, no label has more than its few words, and no session
    is named."""
    proxy = Timed()
    for api, state, status, key in requests:
        proxy.asked(state, status, api=api, session=f"session-{key}")
        proxy.health.count_event(events.RequestStarted(f"session-{key}"))
        proxy.health.count_event(events.NoticeGiven(f"session-{key}", "breaker", "secret"))
    text = proxy.health.build_metrics() + repr(proxy.health.build_stats()) + repr(proxy.health.build_livez())
    assert "session-" not in text
    assert "secret" not in text
    names = {name for name in proxy.figures() if name.startswith("holdfast_requests_total")}
    assert all(name.split("status=")[1] in {f'"{one}xx"}}' for one in range(1, 6)} | {'"none"}'} for name in names)


@given(st.lists(st.floats(0, 500), max_size=50))
def test_the_histogram_is_one(seconds):
    """Its buckets only grow, the last holds all, and sum and count are those of what was taken."""
    proxy = Timed()
    for one in seconds:
        proxy.asked(seconds=one)
    found = proxy.figures()
    buckets = [value for name, value in found.items() if "_bucket" in name]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found["holdfast_time_to_first_byte_seconds_count"] == len(seconds)
    assert found["holdfast_time_to_first_byte_seconds_sum"] == pytest.approx(sum(seconds))
