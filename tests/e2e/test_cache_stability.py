"""A long session with oversized results and too many at once, judged by the strict provider and its own cache.

120 of the day's 300 steps; all of them with HOLDFAST_COUNTS=thorough and in ``bench/cache.py``.
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
"""Days of a hundred steps; the same rules are properties of short sessions."""

STEPS = 300 if example_counts.IS_THOROUGH else 120
DAY = make_workday(STEPS)
FULL_DAY_APIS = ("anthropic", "openai-responses")
"""APIs that run the whole day; the others run half of it."""
WINDOW, SMALL = 200_000, 40_000
HALF_DAY = STEPS // 2
"""Steps in the small window, where reductions are four times as frequent."""
BINDING_MODEL = "claude-opus-5-5"
"""A model that signs its thinking over everything before it."""
HTTP_EVERY = 20
"""One request in so many is sent over HTTP."""


def make_provider(window=WINDOW):
    """Return a provider that answers with the day's script."""
    ticks = iter(range(0, 10**9, STEP_SECONDS))
    return Provider(ProviderSettings(window=window), [step.answer for step in DAY], clock=lambda: float(next(ticks)))


def spend_half_day(model, policy="holdfast", reload=lambda journal: journal, store=None, day=DAY[:HALF_DAY]):
    """Return the turns of half a day in a small window."""
    api = "anthropic" if model == BINDING_MODEL else "openai-responses"
    journal = Journal.open(store or MemoryStore(), SAMPLE_KEY, Policy.preset(policy))
    target = get_target(api, model, window=SMALL)
    return list(drive_workday(journal, target, day, make_direct_sender(make_provider(SMALL), api), reload))


@pytest.fixture(scope="module", params=example_counts.mark_rest_long(STRICTEST_MODELS, keep=2))
def day(request):
    """Return a provider and the turns of the day, one request in twenty over HTTP."""
    api, model = request.param, STRICTEST_MODELS[request.param]
    provider = make_provider()
    target, send = get_target(api, model, window=WINDOW), make_direct_sender(provider, api)
    with serve_provider(provider) as url, httpx2.Client(timeout=30) as client:
        url_of_api = HttpUpstream(url, api).build_url(UpstreamRequest(api, b"", model))
        headers = {"content-type": "application/json", "x-api-key": "k", "authorization": "Bearer k"}

        def send_some_over_http(body, model):
            if len(provider.requests) % HTTP_EVERY:
                return send(body, model)
            reply = client.post(url_of_api, content=body, headers=headers)
            return WholeReply(reply.status_code, dict(reply.headers), reply.content)

        journal = Journal.open(MemoryStore(), SAMPLE_KEY)
        return provider, list(
            drive_workday(journal, target, DAY if api in FULL_DAY_APIS else DAY[:HALF_DAY], send_some_over_http)
        )


def test_workday_requests_are_all_accepted(day):
    """valid-request: whatever was reduced, the provider accepts every request of the day, and bound thinking is never
    dropped.
    """
    provider, turns = day
    assert [turn.step for turn in turns] == list(range(len(turns)))
    assert [turn.answer.error for turn in turns if turn.answer.error is not None] == []
    if turns[0].prepared_request.target.dialect.binds_thinking:
        assert not any(request.reply.dropped_blocks for request in provider.requests)


def test_workday_spills_every_oversized_result(day):
    """Every oversized result is spilled, and so is the largest one of each message that is too long."""
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


def test_workday_requests_extend_the_previous_one(day):
    """prefix-only-grows: between epoch breaks a request extends the one before it byte for byte; only a compaction
    breaks it.
    """
    _, turns = day
    breaks = find_prefix_breaks(turns)
    assert {prefix_break.why for prefix_break in breaks} <= {"compaction"}
    assert len(breaks) <= len(turns) // 40
    assert breaks or len(turns) < STEPS


def test_workday_cache_reads_cover_the_previous_request(day):
    """prefix-only-grows: the provider reads the whole previous request from its cache, except for what its cache cannot
    hold.
    """
    _, turns = day
    broken = {prefix_break.step for prefix_break in find_prefix_breaks(turns)}
    slack = {"anthropic": 0}.get(turns[0].prepared_request.target.api, 300)
    for old, new in pairwise(turns):
        if new.step not in broken and old.usage.input > 5_000:
            assert new.usage.cache_read >= old.usage.input - slack, (new.step, old.usage, new.usage)
    read, whole = (sum(getattr(turn.usage, name) for turn in turns) for name in ("cache_read", "input"))
    assert read / whole > 0.94


@pytest.fixture
def open_store_on_disk(tmp_path):
    """Return a function that opens the test's store; all are closed after the test."""
    with ExitStack() as stores:
        yield lambda: stores.enter_context(SqliteStore(tmp_path / "store.db"))


@pytest.mark.parametrize(
    "model", example_counts.mark_rest_long([BINDING_MODEL, STRICTEST_MODELS["openai-responses"]], keep=1)
)
def test_workday_is_byte_identical_when_reloaded_before_each_request(open_store_on_disk, model):
    """same-after-restart: a session closed and opened again from disk before each request sends the same bytes."""

    def reload(journal):
        journal.store.close()
        return Journal.open(open_store_on_disk(), SAMPLE_KEY, journal.policy)

    expected, turns = spend_half_day(model), spend_half_day(model, reload=reload, store=open_store_on_disk())
    assert len(find_prefix_breaks(turns)) > 1
    for expected_turn, turn in zip(expected, turns, strict=True):
        assert expected_turn.body == turn.body, expected_turn.step


def test_workday_is_byte_identical_when_a_request_is_prepared_again(open_store_on_disk):
    """same-after-restart: a request that was prepared and never answered is built again, breakpoints too, after a
    reload.
    """
    store = open_store_on_disk()

    def reload(journal):
        journal.prepare_request(target)
        return Journal.open(store, SAMPLE_KEY, journal.policy)

    target = add_setup_to_target(get_target("anthropic", BINDING_MODEL, window=SMALL), make_request_fields("anthropic"))
    busy = [
        replace(step, seconds_away=0) for step in DAY[:HALF_DAY]
    ]  # after a pause the cache is cold, and more gives way
    expected, turns = (
        spend_half_day(BINDING_MODEL, day=busy),
        spend_half_day(BINDING_MODEL, reload=reload, store=store, day=busy),
    )
    for expected_turn, reloaded_turn in zip(expected, turns, strict=True):
        assert expected_turn.body == reloaded_turn.body, expected_turn.step
    assert max(len(turn.prepared_request.plan.options.cache_breakpoints) for turn in turns) > 1


def test_workday_keeps_bound_thinking_while_its_prefix_holds():
    """On a model that binds thinking, an answer keeps it for as long as everything before it is unchanged."""
    turns = spend_half_day(BINDING_MODEL)
    assert turns[0].prepared_request.target.dialect.binds_thinking
    histories = [turn.wire_messages for turn in turns]
    kept_thinking = lost_thinking = 0
    for at, history in enumerate(histories):
        for old, earlier_history in zip(turns[:at], histories[:at], strict=True):
            (answer_element,) = old.answer.history_elements
            assert b'"thinking"' in answer_element
            if history[: len(earlier_history)] == earlier_history:
                assert history[len(earlier_history)] == answer_element
                kept_thinking += 1
            else:
                lost_thinking += answer_element in history
    assert kept_thinking > HALF_DAY
    assert lost_thinking == 0
    thinking_counts = Counter(
        any(isinstance(part, Thinking) for part in sized_message.message.parts)
        for turn in turns
        for sized_message in turn.prepared_request.messages
        if sized_message.message.role == "assistant"
    )
    assert 0 < thinking_counts[False] < thinking_counts[True]


@pytest.mark.parametrize(
    "policy", example_counts.mark_rest_long(["openclaw", "opencode", "claude-code", "pi", "sliding"], keep=1)
)
def test_workday_presets_break_the_prefix_only_by_a_decision(policy):
    """prefix-only-grows: no preset changes what was seen without a decision about it, and none breaks thinking."""
    turns = spend_half_day(BINDING_MODEL, policy)
    assert [prefix_break for prefix_break in find_prefix_breaks(turns) if not prefix_break.why] == []
    refused = [turn.answer.error for turn in turns if turn.answer.error is not None]
    assert all(b"prompt is too long" in error.body for error in refused)
