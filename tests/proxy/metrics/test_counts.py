"""What is counted of sessions: by events alone, and of real ones against a strict provider."""

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


def told(*happened):
    made = EventCounts()
    for event in happened:
        made.count_event(event)
    return made


# -- overflows ---------------------------------------------------------------------------------------------------------


def test_an_overflow_that_was_refused_and_answered_is_avoided():
    """The provider refused, less was sent, an answer came: one refusal, one overflow that no client saw."""
    found = told(REFUSED, events.ShrinkStarted(A, "compact"), COMPACTED, ANSWERED)
    assert (found.refused_overflows, found.avoided_overflows) == (1, 1)


def test_however_often_it_was_refused_one_answer_avoids_one():
    """Three refusals before one answer are three refusals, and one overflow avoided."""
    found = told(REFUSED, REFUSED, REFUSED, ANSWERED)
    assert (found.refused_overflows, found.avoided_overflows) == (3, 1)


def test_an_overflow_that_was_foreseen_counts():
    """A compaction before the request was sent makes its answer an overflow avoided; the next one is none."""
    assert told(events.CompactionStarted(A), COMPACTED, ANSWERED, ANSWERED).avoided_overflows == 1


def test_a_compaction_that_somebody_asked_for_foresees_nothing():
    """Who compacts by hand may do so long before the window is full; the session's next own one counts again."""
    by_hand = (events.CompactionStarted(A, "manual"), COMPACTED, ANSWERED)
    assert told(*by_hand).avoided_overflows == 0
    assert told(*by_hand, COMPACTED, ANSWERED).avoided_overflows == 1


def test_other_refusals_are_no_overflows():
    """A rate limit that passed is no overflow avoided."""
    found = told(events.RequestRefused(A, "rate_limit"), events.RetryScheduled(A, "rate_limit"), ANSWERED)
    assert (found.refused_overflows, found.avoided_overflows) == (0, 0)


def test_sessions_do_not_answer_for_each_other():
    """What one session was refused is not avoided by another's answer."""
    assert told(REFUSED, events.AnswerRecorded(B)).avoided_overflows == 0


def test_a_refusal_that_reached_the_client_was_not_avoided():
    """Once the client was told of it, what is answered next is another request."""
    found = told(REFUSED)
    found.clear_refusal(A)
    found.clear_refusal("never seen")
    found.count_event(ANSWERED)
    assert (found.refused_overflows, found.avoided_overflows) == (1, 0)


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_tokens():
    """Saved is what each reduction took away, once; the cache's share is of all that was read."""
    found = told(events.EditsDecided(A, "prune", 2, 300), COMPACTED, ANSWERED, events.AnswerRecorded(B, "end", 100, 10))
    assert found.saved_tokens == 300 + 500
    assert found.tokens == {"input": 200, "output": 20, "cache_read": 75, "cache_write": 20}
    assert found.cache_hit_share == 0.375
    assert told().cache_hit_share == 0


def test_a_reduction_that_made_more_of_it_saves_nothing():
    """The count never goes back, as Prometheus has it of counters."""
    found = told(events.EditsDecided(A, "prune", 1, -5), events.CompactionEnded(A, "compacted", "model", 100, 400))
    assert found.saved_tokens == 0


def test_compactions_by_outcome():
    """Each outcome is counted, and one that failed saves nothing."""
    found = told(
        COMPACTED, events.CompactionEnded(A, "timed_out", tokens_before=900), events.CompactionEnded(B, "timed_out")
    )
    assert found.outcomes == {"compacted": 1, "timed_out": 2}
    assert found.saved_tokens == 500


def test_the_breaker_is_open_until_a_compaction_succeeds():
    """A session that says so counts once, however often; another failure leaves it open, a success closes it."""
    held = events.NoticeGiven(A, "breaker", "failed too often")
    failed = events.CompactionEnded(A, "provider_error")
    assert told(held, held, events.NoticeGiven(B, "breaker"), failed).open_breakers == 2
    assert told(held, events.NoticeGiven(B, "summary"), COMPACTED).open_breakers == 0


@given(st.integers(1, 3))
def test_what_is_remembered_has_a_bound(rounds):
    """Sessions that come and go take no more room than so many; every one of them was counted."""
    found = EventCounts()
    for number in range(rounds * 100 + MAX_SESSIONS):
        found.count_event(events.RequestStarted(str(number)))
    assert len(found._flags) == MAX_SESSIONS
    assert found.session_count == rounds * 100 + MAX_SESSIONS


def test_a_session_in_use_is_not_forgotten():
    """The one that was silent longest is, and counts again when it comes back."""
    found = told(events.RequestStarted(A), events.RequestStarted(B))
    for number in range(MAX_SESSIONS - 1):
        found.count_event(events.RequestStarted(A))
        found.count_event(events.RequestStarted(str(number)))
    found.count_event(events.RequestStarted(A))
    assert found.session_count == MAX_SESSIONS + 1
    found.count_event(events.RequestStarted(B))
    assert found.session_count == MAX_SESSIONS + 2


# -- real sessions -----------------------------------------------------------------------------------------------------


def grown(words, turns):
    """Return what is counted of a session of so many turns of so many words, in a window of 10,000 unknown to us."""
    found = EventCounts()

    async def all_of_it():
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

    return run_on_fake_clock(all_of_it)


def test_a_session_that_outgrew_its_window():
    """Past a window that nobody told of the provider refuses once, the session goes on, and both are counted."""
    found = grown(1_200, 12)
    assert found.session_count == 1
    assert found.refused_overflows >= 1
    assert found.avoided_overflows >= 1
    assert found.outcomes["compacted"] >= 1
    assert found.saved_tokens > 0
    assert found.tokens["input"] > 0


def test_a_session_with_room_has_nothing_to_avoid():
    """Where everything fits there is no overflow, no compaction and nothing saved."""
    found = grown(6, 3)
    assert (
        found.session_count,
        found.refused_overflows,
        found.avoided_overflows,
        found.saved_tokens,
        found.outcomes,
    ) == (1, 0, 0, 0, {})
