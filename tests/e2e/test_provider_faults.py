"""Chaos: everything that can go wrong between an engine and a provider, at every stage, in every API.

The engine is whole (store, lanes, recovery), the provider is the strict one, and time is virtual. Whatever happens, a
run ends in an answer or in a typed error, within its bound of requests; nothing is left behind, and the session goes
on as if nothing had been.
"""

from __future__ import annotations

from functools import partial

import example_counts
import fault_scenarios
import pytest
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.hooks import BeforeCompactionResult, Hooks
from holdfast.messages.message import Message
from holdfast.planning.summary.must_keep import collect_newest_identifiers
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.state.entries import CompactionEntry
from holdfast.testing.clock import run_on_fake_clock as on_fake_clock
from holdfast.testing.provider import Fault, Provider, ProviderSettings
from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.calls import ScriptedAnswer as Says
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.upstream import ProviderUpstream

WAYS = [(False, True), (True, False), (False, False), (True, True)]
"""Whether a fault strikes always or once, and whether the answer is read as a stream."""


def choose_ways(api):
    """Return the ways to try with an API: all of them, two in CI, one in a quick run; neighbours try different ones."""
    first = list(STRICTEST_MODELS).index(api) // 2 % 2
    return example_counts.choose(quick=WAYS[first : first + 1], ci=WAYS[:2], thorough=WAYS)


def test_every_pair_is_run_or_said_to_be_impossible():
    """27 faults at 9 stages; what cannot occur has a reason, and every stage is struck by most that can."""
    assert (len(fault_scenarios.FAULTS), len(fault_scenarios.STAGES)) == (27, 9)
    reasons = {
        pair: fault_scenarios.why_not(*pair) for pair in fault_scenarios.PAIRS if pair not in fault_scenarios.POSSIBLE
    }
    assert len(fault_scenarios.POSSIBLE) + len(reasons) == 243
    assert len(fault_scenarios.POSSIBLE) > 110
    assert all(reasons.values())


# -- a run in trouble --------------------------------------------------------------------------------------------------


async def in_trouble(api, bad, *, stream):
    """Ask while ``bad`` lasts, and again when it is over; return what came of it."""
    scene = fault_scenarios.Scene(api, bad.upstream)
    async with scene.opened as engine:
        session = await engine.session(SAMPLE_KEY)
        await session.append(*fault_scenarios.TALK)
        before = fault_scenarios.shown(session)
        outcome = await fault_scenarios.asked(session, "Go on.", stream=stream)
        assert len(bad.upstream.sent) <= fault_scenarios.BOUND
        if isinstance(outcome, Exception):
            fault_scenarios.judge_error(outcome)
            if not scene.decided():
                fault_scenarios.judge_untouched(session, [*before, Message.from_text("user", "Go on.")], stream=stream)
        else:
            assert outcome.message.role == "assistant"
        fault_scenarios.judge_peace(engine, session, scene.store)
        fault_scenarios.judge_counts(scene.store)
        bad.ends()
        await fault_scenarios.judge_goes_on(engine, session, scene.store)
    fault_scenarios.judge_requests(bad.provider)
    if bad.was_small:
        assert any(isinstance(one.reply, RefusalReply) for one in bad.provider.requests)
    return outcome


@pytest.mark.counts
@pytest.mark.parametrize("api", example_counts.every_other(STRICTEST_MODELS))
@pytest.mark.parametrize(
    ("fault", "stage"),
    [pair for pair in fault_scenarios.POSSIBLE if not pair[1].startswith("summary")],
    ids=lambda one: one,
)
def test_a_run_in_trouble_ends_and_the_session_goes_on(fault, stage, api):
    """waits-have-deadlines, failed-attempt-changes-nothing, retries-shrink: once or for ever, streamed or not: an
    answer or a typed error, and no trace of it.
    """
    place = fault_scenarios.struck_at(fault, stage)
    struck, late = Fault(fault_scenarios.FAULTS[fault][place], place), stage == fault_scenarios.STAGES[8]
    for always, stream in choose_ways(api):
        bad = fault_scenarios.Trouble(struck, first=1 + late, always=always, before=late)
        outcome = on_fake_clock(partial(in_trouble, api, bad, stream=stream))
        passes = fault not in fault_scenarios.LASTING and (fault, api) != ("429 of tokens", "gemini")
        if not always and not (stream and place in ("middle", "end")):
            assert isinstance(outcome, ParsedAnswer) is passes, outcome


# -- a summary in trouble ----------------------------------------------------------------------------------------------

FULL = 14_000
"""A window that the conversation is too long for: a summary is due before the first request."""
NOTES = "\n".join(
    [
        f"## {heading}\n- {fault_scenarios.TALK[0].text} Go on. {heading}: what is wrong with the parts."
        for heading in SUMMARY_HEADINGS
    ]
    + [
        f"- {word}: seen, read and understood, and it is what it was."
        for word in collect_newest_identifiers(fault_scenarios.TALK, 10, 12)
    ]
)


async def summary_in_trouble(api, fault, *, always):
    """Ask while a summary is due, and its writer in trouble."""
    provider = Provider(ProviderSettings(window=fault_scenarios.WINDOW), [Says(NOTES)] * 40)
    bad = fault_scenarios.Trouble(fault, always=always, provider=provider)
    streams = {} if api == "gemini" else {"stream": True}
    writer = SummaryWriter(bad.upstream, get_target(api, STRICTEST_MODELS[api], window=fault_scenarios.WINDOW), streams)
    answering = fault_scenarios.Trouble(None)
    scene = fault_scenarios.Scene(api, answering.upstream, window=FULL, writers=[writer])
    async with scene.opened as engine:
        session = await engine.session(SAMPLE_KEY)
        await session.append(*fault_scenarios.TALK)
        outcome = await session.ask("Go on.")
        assert outcome.message.role == "assistant"
        assert len(answering.upstream.sent) <= fault_scenarios.BOUND
        assert 1 <= len(bad.upstream.sent) <= fault_scenarios.MOST_SUMMARIES
        assert sum(isinstance(entry.body, CompactionEntry) for entry in scene.store.read_entries(SAMPLE_KEY)) == 1
        fault_scenarios.judge_peace(engine, session, scene.store)
        bad.ends()
        await fault_scenarios.judge_goes_on(engine, session, scene.store)
    fault_scenarios.judge_requests(provider)
    fault_scenarios.judge_requests(answering.provider)
    return [
        event.author
        for event in scene.heard
        if isinstance(event, events.CompactionEnded) and event.outcome == "compacted"
    ]


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_a_summary_that_nothing_troubles_is_taken(api):
    """The stage is as it should be: without a fault the model's summary is the one in the log."""
    assert on_fake_clock(partial(summary_in_trouble, api, None, always=False)) == ["model"]


@pytest.mark.counts
@pytest.mark.parametrize("api", example_counts.every_other(STRICTEST_MODELS))
@pytest.mark.parametrize(
    ("fault", "stage"),
    [pair for pair in fault_scenarios.POSSIBLE if pair[1].startswith("summary")],
    ids=lambda one: one,
)
def test_a_summary_in_trouble_never_costs_the_turn(fault, stage, api):
    """reduction-without-model: whatever becomes of the summary there is one compaction, the model's or an extract, and
    the answer comes.
    """
    place = fault_scenarios.struck_at(fault, stage)
    for always in sorted({always for always, _ in choose_ways(api)}):
        struck = Fault(fault_scenarios.FAULTS[fault][place], place)
        assert len(on_fake_clock(partial(summary_in_trouble, api, struck, always=always))) == 1


async def compacted_twice(api):
    """Ask where the first two requests are too large, the second although a compaction made it smaller."""
    asked_for = []

    def strike(_sent, number):
        provider.settings = ProviderSettings(
            window=(9_000, 2_000, fault_scenarios.WINDOW)[min(number, 3) - 1], overflow="llama.cpp-old"
        )

    def supply(*_):
        asked_for.append(len(asked_for))
        return BeforeCompactionResult(summary=fault_scenarios.text(99, 20 if asked_for[1:] else 70))

    provider = Provider(ProviderSettings(window=fault_scenarios.WINDOW))
    scene = fault_scenarios.Scene(api, ProviderUpstream(provider, strike), hooks=Hooks(before_compaction=supply))
    async with scene.opened as engine:
        session = await engine.session(SAMPLE_KEY)
        await session.append(*fault_scenarios.TALK)
        assert (await session.ask("Go on.")).message.text
        fault_scenarios.judge_peace(engine, session, scene.store)
        fault_scenarios.judge_counts(scene.store)
    return [event.author for event in scene.heard if isinstance(event, events.CompactionEnded)]


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_two_overflows_for_one_answer_leave_nothing_in_flight(api):
    """BEHAVIOUR 16: whatever was pressed for, a run that has ended is waited for by nobody."""
    assert on_fake_clock(partial(compacted_twice, api)) == ["hook", "hook"]
