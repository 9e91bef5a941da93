"""A long session with oversized results and too many at once, judged by the strict provider and its own cache.

120 of the day's 300 steps, all of them with HOLDFAST_COUNTS=thorough and in ``bench/cache.py``.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from itertools import pairwise

import example_counts
import httpx2
import pytest
from agent_workday import STEP_SECONDS, make_request_fields, make_workday
from msgspec.structs import replace
from sample_entries import SAMPLE_KEY
from workday_driver import WholeReply, drive_workday, find_prefix_breaks, make_direct_sender

from holdfast import Policy
from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.engine.request_template import add_setup_to_target
from holdfast.engine.upstream.upstream import HttpUpstream, UpstreamRequest
from holdfast.messages.parts import Thinking
from holdfast.planning.settings import Settings as Numbers
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.server.local_server import serve_provider

pytestmark = pytest.mark.long
"""Days of a hundred steps; the same laws are properties of short sessions."""

STEPS = 300 if example_counts.IS_THOROUGH else 120
DAY = make_workday(STEPS)
LONG = ("anthropic", "openai-responses")
"""APIs with which the whole of it is spent; half with the others."""
WINDOW, SMALL = 200_000, 40_000
FEW = STEPS // 2
"""Steps in the small window, where turns give way four times as often."""
BINDING = "claude-opus-5-5"
"""A model that signs its thinking over everything before it."""
OVER_HTTP = 20
"""One request in so many goes over HTTP."""


def provider_of(window=WINDOW):
    """Return a provider that says what the day has it say."""
    ticks = iter(range(0, 10**9, STEP_SECONDS))
    return Provider(ProviderSettings(window=window), [step.answer for step in DAY], clock=lambda: float(next(ticks)))


def spent(model, policy="holdfast", again=lambda journal: journal, store=None, day=DAY[:FEW]):
    """Return the requests of half a day in a small window."""
    api = "anthropic" if model == BINDING else "openai-responses"
    journal = Journal.open(store or MemoryStore(), SAMPLE_KEY, Policy.preset(policy))
    goal = get_target(api, model, window=SMALL)
    return list(drive_workday(journal, goal, day, make_direct_sender(provider_of(SMALL), api), again))


@pytest.fixture(scope="module", params=example_counts.spare(STRICTEST_MODELS, keep=2))
def day(request):
    """A provider and the day spent with it, one in twenty requests over HTTP."""
    api, model = request.param, STRICTEST_MODELS[request.param]
    provider = provider_of()
    goal, send = get_target(api, model, window=WINDOW), make_direct_sender(provider, api)
    with serve_provider(provider) as url, httpx2.Client(timeout=30) as client:
        where = HttpUpstream(url, api).build_url(UpstreamRequest(api, b"", model))
        headers = {"content-type": "application/json", "x-api-key": "k", "authorization": "Bearer k"}

        def mixed(body, model):
            if len(provider.requests) % OVER_HTTP:
                return send(body, model)
            reply = client.post(where, content=body, headers=headers)
            return WholeReply(reply.status_code, dict(reply.headers), reply.content)

        journal = Journal.open(MemoryStore(), SAMPLE_KEY)
        return provider, list(drive_workday(journal, goal, DAY if api in LONG else DAY[:FEW], mixed))


def test_no_request_is_refused(day):
    """valid-request: whatever gave way, the provider answers every request of the day, and bound thinking is never
    dropped.
    """
    provider, turns = day
    assert [turn.step for turn in turns] == list(range(len(turns)))
    assert [turn.answer.error for turn in turns if turn.answer.error is not None] == []
    if turns[0].prepared_request.target.dialect.binds_thinking:
        assert not any(one.reply.dropped_blocks for one in provider.requests)


def test_the_day_is_as_hard_as_it_should_be(day):
    """Every oversized result gave way, and so did the largest of each message that was too long together."""
    _, turns = day
    spilled = Counter(
        edit.span.start for turn in turns for edit in turn.prepared_request.plan.record if edit.rule == "spill"
    )
    limits = Numbers().results
    sizes = [(step.results, sum(map(len, step.results))) for step in DAY[: len(turns) - 1]]
    big = sum(any(len(text) > limits.spill_chars for text in texts) for texts, _ in sizes)
    together = sum(len(texts) > 1 and total > limits.message_chars for texts, total in sizes)
    assert len(spilled) == big + together
    assert big >= len(turns) // 10
    if len(turns) == STEPS:
        assert (big, together) == {120: (16, 3), 300: (40, 6)}[STEPS]
        assert sorted(set(spilled.values())) == [1, 2, 3]


def test_each_request_goes_on_where_the_last_one_ended(day):
    """prefix-only-grows: between epoch breaks a request extends the one before it byte for byte; each break is a
    compaction.
    """
    _, turns = day
    found = find_prefix_breaks(turns)
    assert {one.why for one in found} <= {"compaction"}
    assert len(found) <= len(turns) // 40
    assert found or len(turns) < STEPS


def test_the_providers_own_cache_agrees(day):
    """prefix-only-grows: what the provider reads from its cache is the whole request before, but for what its cache
    cannot hold.
    """
    _, turns = day
    broken = {one.step for one in find_prefix_breaks(turns)}
    slack = {"anthropic": 0}.get(turns[0].prepared_request.target.api, 300)
    for old, new in pairwise(turns):
        if new.step not in broken and old.usage.input > 5_000:
            assert new.usage.cache_read >= old.usage.input - slack, (new.step, old.usage, new.usage)
    read, whole = (sum(getattr(turn.usage, name) for turn in turns) for name in ("cache_read", "input"))
    assert read / whole > 0.94


@pytest.fixture
def opened(tmp_path):
    """Opens the store of a test; all that it opened are closed behind the test."""
    with ExitStack() as stores:
        yield lambda: stores.enter_context(SqliteStore(tmp_path / "store.db"))


@pytest.mark.parametrize("model", example_counts.spare([BINDING, STRICTEST_MODELS["openai-responses"]], keep=1))
def test_a_reload_before_each_request_changes_no_byte(opened, model):
    """same-after-restart: closed and opened again from disk before each of its requests, a day sends the same bytes."""

    def again(journal):
        journal.store.close()
        return Journal.open(opened(), SAMPLE_KEY, journal.policy)

    wanted, found = spent(model), spent(model, again=again, store=opened())
    assert len(find_prefix_breaks(found)) > 1
    for one, other in zip(wanted, found, strict=True):
        assert one.body == other.body, one.step


def test_a_retry_after_a_reload_changes_no_byte(opened):
    """same-after-restart: a request that was prepared and never answered is made again, breakpoints too, by whoever
    comes next.
    """
    store = opened()

    def again(journal):
        journal.prepare_request(goal)
        return Journal.open(store, SAMPLE_KEY, journal.policy)

    goal = add_setup_to_target(get_target("anthropic", BINDING, window=SMALL), make_request_fields("anthropic"))
    busy = [replace(step, seconds_away=0) for step in DAY[:FEW]]  # after a pause the cache is cold, and more gives way
    wanted, found = spent(BINDING, day=busy), spent(BINDING, again=again, store=store, day=busy)
    for one, other in zip(wanted, found, strict=True):
        assert one.body == other.body, one.step
    assert max(len(turn.prepared_request.plan.options.cache_breakpoints) for turn in found) > 1


def test_thinking_is_kept_wherever_its_basis_still_holds():
    """On a model that binds thinking, an answer keeps it for as long as all before it is what it was."""
    turns = spent(BINDING)
    assert turns[0].prepared_request.target.dialect.binds_thinking
    histories = [turn.wire_messages for turn in turns]
    kept = lost = 0
    for at, history in enumerate(histories):
        for old, before in zip(turns[:at], histories[:at], strict=True):
            (said,) = old.answer.history_elements
            assert b'"thinking"' in said
            if history[: len(before)] == before:
                assert history[len(before)] == said
                kept += 1
            else:
                lost += said in history
    assert kept > FEW
    assert lost == 0
    shown = Counter(
        any(isinstance(part, Thinking) for part in slot.message.parts)
        for turn in turns
        for slot in turn.prepared_request.messages
        if slot.message.role == "assistant"
    )
    assert 0 < shown[False] < shown[True]


@pytest.mark.parametrize(
    "policy", example_counts.spare(["openclaw", "opencode", "claude-code", "pi", "sliding"], keep=1)
)
def test_every_preset_says_why_it_breaks(policy):
    """prefix-only-grows: no preset changes what was seen without a decision about it, and none
    breaks bound thinking.
    """
    turns = spent(BINDING, policy)
    assert [one for one in find_prefix_breaks(turns) if not one.why] == []
    refused = [turn.answer.error for turn in turns if turn.answer.error is not None]
    assert all(b"prompt is too long" in error.body for error in refused)
