"""What is counted of sessions: by events alone, and of real ones against a strict provider."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast import events
from holdfast.engine.engine import Engine
from holdfast.proxy.metrics.counts import REMEMBERED, Counts
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run
from holdfast.testing.provider.client import MODELS
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import Settings
from holdfast.testing.upstream import ProviderUpstream

A, B = "kelp", "wrack"
REFUSED = events.Refused(A, "context_window")
COMPACTED = events.Compacted(A, "compacted", "extract", 900, 400)
ANSWERED = events.Answered(A, "end", 100, 10, 75, 20)


def told(*happened):
    made = Counts()
    for event in happened:
        made.told(event)
    return made


# -- overflows ---------------------------------------------------------------------------------------------------------


def test_an_overflow_that_was_refused_and_answered_is_avoided():
    """The provider refused, less was sent, an answer came: one refusal, one overflow that no client saw."""
    found = told(REFUSED, events.Pressed(A, "compact"), COMPACTED, ANSWERED)
    assert (found.refused, found.avoided) == (1, 1)


def test_however_often_it_was_refused_one_answer_avoids_one():
    """Three refusals before one answer are three refusals, and one overflow avoided."""
    found = told(REFUSED, REFUSED, REFUSED, ANSWERED)
    assert (found.refused, found.avoided) == (3, 1)


def test_an_overflow_that_was_foreseen_counts():
    """A compaction before the request was sent makes its answer an overflow avoided; the next one is none."""
    assert told(events.Compacting(A), COMPACTED, ANSWERED, ANSWERED).avoided == 1


def test_a_compaction_that_somebody_asked_for_foresees_nothing():
    """Who compacts by hand may do so long before the window is full; the session's next own one counts again."""
    by_hand = (events.Compacting(A, "manual"), COMPACTED, ANSWERED)
    assert told(*by_hand).avoided == 0
    assert told(*by_hand, COMPACTED, ANSWERED).avoided == 1


def test_other_refusals_are_no_overflows():
    """A rate limit that passed is no overflow avoided."""
    found = told(events.Refused(A, "rate_limit"), events.Retrying(A, "rate_limit"), ANSWERED)
    assert (found.refused, found.avoided) == (0, 0)


def test_sessions_do_not_answer_for_each_other():
    """What one session was refused is not avoided by another's answer."""
    assert told(REFUSED, events.Answered(B)).avoided == 0


def test_a_refusal_that_reached_the_client_was_not_avoided():
    """Once the client was told of it, what is answered next is another request."""
    found = told(REFUSED)
    found.unanswered(A)
    found.unanswered("never seen")
    found.told(ANSWERED)
    assert (found.refused, found.avoided) == (1, 0)


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_tokens():
    """Saved is what each reduction took away, once; the cache's share is of all that was read."""
    found = told(events.Decided(A, "prune", 2, 300), COMPACTED, ANSWERED, events.Answered(B, "end", 100, 10))
    assert found.saved == 300 + 500
    assert found.tokens == {"input": 200, "output": 20, "cache_read": 75, "cache_write": 20}
    assert found.cache_hit == 0.375
    assert told().cache_hit == 0


def test_a_reduction_that_made_more_of_it_saves_nothing():
    """The count never goes back, as Prometheus has it of counters."""
    found = told(events.Decided(A, "prune", 1, -5), events.Compacted(A, "compacted", "model", 100, 400))
    assert found.saved == 0


def test_compactions_by_outcome():
    """Each outcome is counted, and one that failed saves nothing."""
    found = told(COMPACTED, events.Compacted(A, "timed_out", before=900), events.Compacted(B, "timed_out"))
    assert found.outcomes == {"compacted": 1, "timed_out": 2}
    assert found.saved == 500


def test_the_breaker_is_open_until_a_compaction_succeeds():
    """A session that says so counts once, however often; another failure leaves it open, a success closes it."""
    held = events.Noticed(A, "breaker", "failed too often")
    failed = events.Compacted(A, "provider_error")
    assert told(held, held, events.Noticed(B, "breaker"), failed).held == 2
    assert told(held, events.Noticed(B, "summary"), COMPACTED).held == 0


@given(st.integers(1, 3))
def test_what_is_remembered_has_a_bound(rounds):
    """Sessions that come and go take no more room than so many; every one of them was counted."""
    found = Counts()
    for number in range(rounds * 100 + REMEMBERED):
        found.told(events.Sending(str(number)))
    assert len(found._known) == REMEMBERED
    assert found.count == rounds * 100 + REMEMBERED


def test_a_session_in_use_is_not_forgotten():
    """The one that was silent longest is, and counts again when it comes back."""
    found = told(events.Sending(A), events.Sending(B))
    for number in range(REMEMBERED - 1):
        found.told(events.Sending(A))
        found.told(events.Sending(str(number)))
    found.told(events.Sending(A))
    assert found.count == REMEMBERED + 1
    found.told(events.Sending(B))
    assert found.count == REMEMBERED + 2


# -- real sessions -----------------------------------------------------------------------------------------------------


def grown(words, turns):
    """Return what is counted of a session of so many turns of so many words, in a window of 10,000 unknown to us."""
    found = Counts()

    async def all_of_it():
        upstream = ProviderUpstream(Provider(Settings(tokenizer="words", window=10_000)))
        terms = {"upstream": upstream, "api": "anthropic", "model": MODELS["anthropic"], "listen": found.told}
        async with Engine.open(MemoryStore(), fields={"max_tokens": 50}, **terms) as engine:
            session = await engine.session(A)
            for turn in range(turns):
                await session.ask(f"turn {turn}: " + "kelp holds on to the rock " * (words // 6))
        return found

    return run(all_of_it)


def test_a_session_that_outgrew_its_window():
    """Past a window that nobody told of the provider refuses once, the session goes on, and both are counted."""
    found = grown(1_200, 12)
    assert found.count == 1
    assert found.refused >= 1
    assert found.avoided >= 1
    assert found.outcomes["compacted"] >= 1
    assert found.saved > 0
    assert found.tokens["input"] > 0


def test_a_session_with_room_has_nothing_to_avoid():
    """Where everything fits there is no overflow, no compaction and nothing saved."""
    found = grown(6, 3)
    assert (found.count, found.refused, found.avoided, found.saved, found.outcomes) == (1, 0, 0, 0, {})
