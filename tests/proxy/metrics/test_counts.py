"""What is counted of sessions: from single events, and from real sessions against a strict provider."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast import events
from holdfast.engine.engine import Engine
from holdfast.proxy.metrics.counts import MAX_SESSIONS, EventCounts
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.upstream import ProviderUpstream

A, B = "kelp", "wrack"
REFUSED = events.RequestRefused(A, "context_window")
COMPACTED = events.CompactionEnded(A, "compacted", "extract", 900, 400)
ANSWERED = events.AnswerRecorded(A, "end", 100, 10, 75, 20)


def count_events(*happened):
    counts = EventCounts()
    for event in happened:
        counts.count_event(event)
    return counts


# -- overflows ---------------------------------------------------------------------------------------------------------


def test_event_counts_refused_then_answered_overflow_is_avoided():
    """A refusal followed by a smaller request and an answer is one refusal and one overflow that no client saw."""
    found = count_events(REFUSED, events.ShrinkStarted(A, "compact"), COMPACTED, ANSWERED)
    assert (found.refused_overflows, found.avoided_overflows) == (1, 1)


def test_event_counts_one_avoided_overflow_per_answer():
    """Three refusals before one answer are three refusals and one avoided overflow."""
    found = count_events(REFUSED, REFUSED, REFUSED, ANSWERED)
    assert (found.refused_overflows, found.avoided_overflows) == (3, 1)


def test_event_counts_overflow_avoided_by_a_compaction_before_the_send():
    """A compaction before the request makes its answer an avoided overflow; the next answer is none."""
    assert count_events(events.CompactionStarted(A), COMPACTED, ANSWERED, ANSWERED).avoided_overflows == 1


def test_event_counts_no_avoided_overflow_for_a_manual_compaction():
    """A manual compaction may come long before the window is full; the session's next own compaction counts again."""
    by_hand = (events.CompactionStarted(A, "manual"), COMPACTED, ANSWERED)
    assert count_events(*by_hand).avoided_overflows == 0
    assert count_events(*by_hand, COMPACTED, ANSWERED).avoided_overflows == 1


def test_event_counts_no_overflow_for_a_rate_limit():
    """A rate limit that passed is neither a refused nor an avoided overflow."""
    found = count_events(events.RequestRefused(A, "rate_limit"), events.RetryScheduled(A, "rate_limit"), ANSWERED)
    assert (found.refused_overflows, found.avoided_overflows) == (0, 0)


def test_event_counts_overflows_per_session():
    """A refusal in one session is not avoided by an answer in another."""
    assert count_events(REFUSED, events.AnswerRecorded(B)).avoided_overflows == 0


def test_clear_refusal_forgets_a_refusal_the_client_saw():
    """Once the client has seen the refusal, the next answer belongs to another request."""
    found = count_events(REFUSED)
    found.clear_refusal(A)
    found.clear_refusal("never seen")
    found.count_event(ANSWERED)
    assert (found.refused_overflows, found.avoided_overflows) == (1, 0)


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_event_counts_sums_saved_and_cached_tokens():
    """Each reduction's saving counts once, and the cache's share is of all input tokens."""
    found = count_events(
        events.EditsDecided(A, "prune", 2, 300), COMPACTED, ANSWERED, events.AnswerRecorded(B, "end", 100, 10)
    )
    assert found.saved_tokens == 300 + 500
    assert found.tokens == {"input": 200, "output": 20, "cache_read": 75, "cache_write": 20}
    assert found.cache_hit_share == 0.375
    assert count_events().cache_hit_share == 0


def test_saved_tokens_never_decreases():
    """A reduction that made the request larger counts as 0, because a Prometheus counter never decreases."""
    found = count_events(
        events.EditsDecided(A, "prune", 1, -5), events.CompactionEnded(A, "compacted", "model", 100, 400)
    )
    assert found.saved_tokens == 0


def test_event_counts_compactions_by_outcome():
    """Each outcome is counted, and a failed compaction saves nothing."""
    found = count_events(
        COMPACTED, events.CompactionEnded(A, "timed_out", tokens_before=900), events.CompactionEnded(B, "timed_out")
    )
    assert found.outcomes == {"compacted": 1, "timed_out": 2}
    assert found.saved_tokens == 500


def test_event_counts_cache_misses_by_cause():
    """Each miss counts for its cause, with the tokens that were processed again."""
    found = count_events(
        events.CacheMissed(A, "expired", 9_000, 9_500),
        events.CacheMissed(B, "expired", 2_000, 3_000),
        events.CacheMissed(A, "decision", 1_500, 4_000),
    )
    assert found.cache_misses == {"expired": 2, "decision": 1}
    assert found.missed_tokens == 12_500


def test_open_breakers_counts_sessions_until_a_compaction_succeeds():
    """A session with an open breaker counts once; another failure leaves it open and a success closes it."""
    notice = events.NoticeGiven(A, "breaker", "failed too often")
    failed = events.CompactionEnded(A, "provider_error")
    assert count_events(notice, notice, events.NoticeGiven(B, "breaker"), failed).open_breakers == 2
    assert count_events(notice, events.NoticeGiven(B, "summary"), COMPACTED).open_breakers == 0


@given(st.integers(1, 3))
def test_event_counts_remembers_at_most_max_sessions(rounds):
    """Memory for sessions is bounded, while the count covers every session that was seen."""
    found = EventCounts()
    for number in range(rounds * 100 + MAX_SESSIONS):
        found.count_event(events.RequestStarted(str(number)))
    assert len(found._flags) == MAX_SESSIONS
    assert found.session_count == rounds * 100 + MAX_SESSIONS


def test_event_counts_forgets_the_session_idle_longest():
    """The session idle longest is forgotten, and counts again when it comes back."""
    found = count_events(events.RequestStarted(A), events.RequestStarted(B))
    for number in range(MAX_SESSIONS - 1):
        found.count_event(events.RequestStarted(A))
        found.count_event(events.RequestStarted(str(number)))
    found.count_event(events.RequestStarted(A))
    assert found.session_count == MAX_SESSIONS + 1
    found.count_event(events.RequestStarted(B))
    assert found.session_count == MAX_SESSIONS + 2


# -- real sessions -----------------------------------------------------------------------------------------------------


def run_session(words, turns):
    """Run a session of ``turns`` turns of ``words`` words in an unknown window of 10,000, and return its counts."""
    found = EventCounts()

    async def run_turns():
        upstream = ProviderUpstream(Provider(ProviderSettings(tokenizer="words", window=10_000)))
        terms = {
            "upstream": upstream,
            "api": "anthropic",
            "model": STRICTEST_MODELS["anthropic"],
            "listen": found.count_event,
        }
        async with Engine.open(MemoryStore(), fields={"max_tokens": 50}, **terms) as engine:
            session = await engine.session(A)
            for turn in range(turns):
                await session.ask(f"turn {turn}: " + "kelp holds on to the rock " * (words // 6))
        return found

    return run_on_fake_clock(run_turns)


def test_event_counts_of_a_session_that_outgrows_its_window():
    """Beyond an unknown window the provider refuses once, the session continues, and both are counted."""
    found = run_session(1_200, 12)
    assert found.session_count == 1
    assert found.refused_overflows >= 1
    assert found.avoided_overflows >= 1
    assert found.outcomes["compacted"] >= 1
    assert found.saved_tokens > 0
    assert found.tokens["input"] > 0


def test_event_counts_of_a_session_that_always_fits():
    """Where everything fits there is no overflow, no compaction and nothing saved."""
    found = run_session(6, 3)
    assert (
        found.session_count,
        found.refused_overflows,
        found.avoided_overflows,
        found.saved_tokens,
        found.outcomes,
    ) == (1, 0, 0, 0, {})
