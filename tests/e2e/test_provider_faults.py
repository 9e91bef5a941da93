"""Every fault between an engine and a provider, at every stage, with every API.

The engine is complete (store, lanes, recovery), the provider is strict, and time is virtual. A run ends in an answer or
a typed error within its bound of requests, leaves nothing behind, and the session goes on.
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

FAULT_MODES = [(False, True), (True, False), (False, False), (True, True)]
"""Whether a fault strikes always or once, and whether the answer is read as a stream."""


def choose_fault_modes(api):
    """Return the modes to try with an API: all, two in CI, one in a quick run; neighbours try different ones."""
    first_way = list(STRICTEST_MODELS).index(api) // 2 % 2
    return example_counts.choose(quick=FAULT_MODES[first_way : first_way + 1], ci=FAULT_MODES[:2], thorough=FAULT_MODES)


def test_fault_scenarios_cover_every_pair_of_fault_and_stage():
    """27 faults at 9 stages: what cannot occur has a reason, and every stage is struck by most faults that can."""
    assert (len(fault_scenarios.FAULTS), len(fault_scenarios.STAGES)) == (27, 9)
    reasons = {
        pair: fault_scenarios.explain_impossible(*pair)
        for pair in fault_scenarios.PAIRS
        if pair not in fault_scenarios.POSSIBLE
    }
    assert len(fault_scenarios.POSSIBLE) + len(reasons) == 243
    assert len(fault_scenarios.POSSIBLE) > 110
    assert all(reasons.values())


# -- a run in trouble --------------------------------------------------------------------------------------------------


async def run_under_fault(api, faulty, *, stream):
    """Ask while the fault lasts and again without it; return the first outcome."""
    scene = fault_scenarios.EngineCase(api, faulty.upstream)
    async with scene.engine_context as engine:
        session = await engine.session(SAMPLE_KEY)
        await session.append(*fault_scenarios.CONVERSATION)
        messages_before = fault_scenarios.list_shown_messages(session)
        outcome = await fault_scenarios.ask_session(session, "Go on.", stream=stream)
        assert len(faulty.upstream.sent) <= fault_scenarios.MAX_REQUESTS
        if isinstance(outcome, Exception):
            fault_scenarios.judge_error(outcome)
            if not scene.count_decisions():
                fault_scenarios.judge_unchanged(
                    session, [*messages_before, Message.from_text("user", "Go on.")], stream=stream
                )
        else:
            assert outcome.message.role == "assistant"
        fault_scenarios.judge_idle(engine, session, scene.store)
        fault_scenarios.judge_counts(scene.store)
        faulty.stop_faults()
        await fault_scenarios.judge_session_continues(engine, session, scene.store)
    fault_scenarios.judge_requests(faulty.provider)
    if faulty.met_small_window:
        assert any(isinstance(request.reply, RefusalReply) for request in faulty.provider.requests)
    return outcome


@pytest.mark.counts
@pytest.mark.parametrize("api", example_counts.mark_every_other_long(STRICTEST_MODELS))
@pytest.mark.parametrize(
    ("fault", "stage"),
    [pair for pair in fault_scenarios.POSSIBLE if not pair[1].startswith("summary")],
    ids=lambda parameter: parameter,
)
def test_engine_run_ends_and_the_session_goes_on_after_any_fault(fault, stage, api):
    """waits-have-deadlines, failed-attempt-changes-nothing, retries-shrink: once or always, streamed or not, a run ends
    in an answer or a typed error and leaves no trace.
    """
    strike_stage = fault_scenarios.find_strike_stage(fault, stage)
    fault_at_stage, is_late = (
        Fault(fault_scenarios.FAULTS[fault][strike_stage], strike_stage),
        stage == fault_scenarios.STAGES[8],
    )
    for always, stream in choose_fault_modes(api):
        faulty = fault_scenarios.FaultyProvider(fault_at_stage, first=1 + is_late, always=always, before=is_late)
        outcome = on_fake_clock(partial(run_under_fault, api, faulty, stream=stream))
        is_transient = fault not in fault_scenarios.PERSISTENT_FAULTS and (fault, api) != ("429 of tokens", "gemini")
        if not always and not (stream and strike_stage in ("middle", "end")):
            assert isinstance(outcome, ParsedAnswer) is is_transient, outcome


# -- a summary in trouble ----------------------------------------------------------------------------------------------

FULL_WINDOW = 14_000
"""A window smaller than the conversation, so that a summary is due before the first request."""
SUMMARY = "\n".join(
    [
        f"## {heading}\n- {fault_scenarios.CONVERSATION[0].text} Go on. {heading}: what is wrong with the parts."
        for heading in SUMMARY_HEADINGS
    ]
    + [
        f"- {word}: seen, read and understood, and it is what it was."
        for word in collect_newest_identifiers(fault_scenarios.CONVERSATION, 10, 12)
    ]
)


async def run_with_faulty_summary(api, fault, *, always):
    """Ask when a summary is due and its writer fails; return the authors of the compactions."""
    provider = Provider(ProviderSettings(window=fault_scenarios.WINDOW), [Says(SUMMARY)] * 40)
    faulty = fault_scenarios.FaultyProvider(fault, always=always, provider=provider)
    streams = {} if api == "gemini" else {"stream": True}
    writer = SummaryWriter(
        faulty.upstream, get_target(api, STRICTEST_MODELS[api], window=fault_scenarios.WINDOW), streams
    )
    answering = fault_scenarios.FaultyProvider(None)
    scene = fault_scenarios.EngineCase(api, answering.upstream, window=FULL_WINDOW, writers=[writer])
    async with scene.engine_context as engine:
        session = await engine.session(SAMPLE_KEY)
        await session.append(*fault_scenarios.CONVERSATION)
        outcome = await session.ask("Go on.")
        assert outcome.message.role == "assistant"
        assert len(answering.upstream.sent) <= fault_scenarios.MAX_REQUESTS
        assert 1 <= len(faulty.upstream.sent) <= fault_scenarios.MAX_SUMMARY_REQUESTS
        assert sum(isinstance(entry.body, CompactionEntry) for entry in scene.store.read_entries(SAMPLE_KEY)) == 1
        fault_scenarios.judge_idle(engine, session, scene.store)
        faulty.stop_faults()
        await fault_scenarios.judge_session_continues(engine, session, scene.store)
    fault_scenarios.judge_requests(provider)
    fault_scenarios.judge_requests(answering.provider)
    return [
        event.author
        for event in scene.events_received
        if isinstance(event, events.CompactionEnded) and event.outcome == "compacted"
    ]


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_engine_uses_the_models_summary_without_a_fault(api):
    """Without a fault the model's summary is the one in the log, so the faults strike the intended stage."""
    assert on_fake_clock(partial(run_with_faulty_summary, api, None, always=False)) == ["model"]


@pytest.mark.counts
@pytest.mark.parametrize("api", example_counts.mark_every_other_long(STRICTEST_MODELS))
@pytest.mark.parametrize(
    ("fault", "stage"),
    [pair for pair in fault_scenarios.POSSIBLE if pair[1].startswith("summary")],
    ids=lambda parameter: parameter,
)
def test_engine_answers_whatever_happens_to_the_summary(fault, stage, api):
    """reduction-without-model: there is one compaction, by the model or an extract, and the answer comes."""
    strike_stage = fault_scenarios.find_strike_stage(fault, stage)
    for always in sorted({always for always, _ in choose_fault_modes(api)}):
        fault_at_stage = Fault(fault_scenarios.FAULTS[fault][strike_stage], strike_stage)
        assert len(on_fake_clock(partial(run_with_faulty_summary, api, fault_at_stage, always=always))) == 1


async def run_with_two_overflows(api):
    """Ask when two requests overflow, the second in spite of a compaction; return the authors of the compactions."""
    summaries = []

    def strike(_sent, number):
        provider.settings = ProviderSettings(
            window=(9_000, 2_000, fault_scenarios.WINDOW)[min(number, 3) - 1], overflow="llama.cpp-old"
        )

    def supply(*_):
        summaries.append(len(summaries))
        return BeforeCompactionResult(summary=fault_scenarios.text(99, 20 if summaries[1:] else 70))

    provider = Provider(ProviderSettings(window=fault_scenarios.WINDOW))
    scene = fault_scenarios.EngineCase(api, ProviderUpstream(provider, strike), hooks=Hooks(before_compaction=supply))
    async with scene.engine_context as engine:
        session = await engine.session(SAMPLE_KEY)
        await session.append(*fault_scenarios.CONVERSATION)
        assert (await session.ask("Go on.")).message.text
        fault_scenarios.judge_idle(engine, session, scene.store)
        fault_scenarios.judge_counts(scene.store)
    return [event.author for event in scene.events_received if isinstance(event, events.CompactionEnded)]


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_engine_is_idle_after_two_overflows_in_one_answer(api):
    """Once a run has ended, no compaction is in progress."""
    assert on_fake_clock(partial(run_with_two_overflows, api)) == ["hook", "hook"]
