"""Summaries by a model, whatever its provider does: an accepted one or a typed error, and never too many requests."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_strategies import broken_history_strategy, conversation_strategy

from holdfast import Policy
from holdfast.config import get_target
from holdfast.engine.compaction.summarizer import CompactionContext, SummaryWriter, write_summary
from holdfast.engine.concurrency.lanes_and_permits import Permits
from holdfast.errors import CompactionFailed
from holdfast.events import COMPACTION_OUTCOMES
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.planning.summary.judge import SummaryAnswer, SummaryRequirements, find_summary_problems
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS
from holdfast.state.plan import SummaryRequest
from holdfast.testing.clock import FakeClock
from holdfast.testing.provider import Fault, Provider
from holdfast.testing.provider import ProviderSettings as Strict
from holdfast.testing.provider.calls import RefusalReply, ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.faults.faults import FAULT_KINDS
from holdfast.testing.upstream import ProviderUpstream

GOOD = "\n".join(f"## {name}\n- kelp on the rock" for name in SUMMARY_HEADINGS)
ANSWERS = [GOOD, GOOD, "", "I'm sorry, but I can't", GOOD.replace("##", ""), "## Goal"]
WINDOW = 12_000

faults = st.lists(st.builds(Fault, st.sampled_from(sorted(FAULT_KINDS)), at=st.integers(0, 9)), max_size=3)
scripts = st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=8)
heads = broken_history_strategy(longest=200) | conversation_strategy(longest=8_000, turns=6)


def ended(clock, go):
    """Return the summary that was written, or what became of it."""
    try:
        return clock.run(go).text, "compacted"
    except CompactionFailed as error:
        return "", error.outcome


@pytest.mark.parametrize("api", STRICTEST_MODELS)
@settings(max_examples=settings().max_examples // 3)
@given(heads, scripts, faults, st.sampled_from(["merge", "fold"]), st.sampled_from([1.0, 1.3, 2.0]))
def test_every_attempt_ends(api, head, script, faults, stages, factor):
    """summary-form: every attempt ends in time in a summary that is one or in a typed error, with its permit given
    back.

    No request is refused for its shape, and there are at most so many as the parts and the tries allow.
    """
    provider = Provider(Strict(window=WINDOW, factor=factor), [ScriptedAnswer(one) for one in script])
    upstream, permits, clock = ProviderUpstream(provider, faults), Permits(1), FakeClock()
    writer = SummaryWriter(upstream, get_target(api, STRICTEST_MODELS[api], window=WINDOW))
    chosen = Policy().with_settings(summarizer={"min_tokens": 20, "max_identifiers": 0, "merge_mode": stages}).settings

    async def go():
        slots = [
            *map(build_sized_message, head),
            build_sized_message(Message.from_text("user", "put the kelp on the rock")),
        ]
        ask = SummaryRequest(0, len(slots), 900)
        return await write_summary(slots, ask, [writer, writer], CompactionContext(chosen, permits.hold))

    text, outcome = ended(clock, go)
    assert outcome in COMPACTION_OUTCOMES
    assert not text or not find_summary_problems(
        SummaryAnswer(text, estimate_text_tokens(text)), SummaryRequirements(900, 20)
    )
    assert permits.is_idle
    assert clock() <= chosen.summarizer.timeout_seconds + 1
    shapes = [one.reply for one in provider.requests if isinstance(one.reply, RefusalReply) and not one.tokens]
    assert not shapes
    assert len(upstream.sent) <= 2 * 2 * 2 * 3 * (len(head) + 2)
