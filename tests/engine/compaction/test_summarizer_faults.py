"""Summaries under provider faults: an accepted one or a typed error, with a bounded number of requests."""

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
from holdfast.testing.provider import Fault, Provider, ProviderSettings
from holdfast.testing.provider.calls import RefusalReply, ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.faults.faults import FAULT_KINDS
from holdfast.testing.upstream import ProviderUpstream

GOOD_SUMMARY = "\n".join(f"## {name}\n- kelp on the rock" for name in SUMMARY_HEADINGS)
ANSWERS = [GOOD_SUMMARY, GOOD_SUMMARY, "", "I'm sorry, but I can't", GOOD_SUMMARY.replace("##", ""), "## Goal"]
WINDOW = 12_000

faults = st.lists(st.builds(Fault, st.sampled_from(sorted(FAULT_KINDS)), at=st.integers(0, 9)), max_size=3)
scripts = st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=8)
heads = broken_history_strategy(longest=200) | conversation_strategy(longest=8_000, turns=6)


def run_attempt(clock, attempt):
    """Return the summary and its outcome, or an empty text and the outcome of the failure."""
    try:
        return clock.run(attempt).text, "compacted"
    except CompactionFailed as error:
        return "", error.outcome


@pytest.mark.parametrize("api", STRICTEST_MODELS)
@settings(max_examples=settings().max_examples // 3)
@given(heads, scripts, faults, st.sampled_from(["merge", "fold"]), st.sampled_from([1.0, 1.3, 2.0]))
def test_write_summary_always_ends_in_a_summary_or_a_typed_error(api, head, script, faults, merge_mode, factor):
    """summary-form: every attempt ends in time, in an accepted summary or a typed error, and releases its permit.

    No request is refused for its shape, and their number is bounded by the parts and the tries.
    """
    provider = Provider(ProviderSettings(window=WINDOW, factor=factor), [ScriptedAnswer(answer) for answer in script])
    upstream, permits, clock = ProviderUpstream(provider, faults), Permits(1), FakeClock()
    writer = SummaryWriter(upstream, get_target(api, STRICTEST_MODELS[api], window=WINDOW))
    policy_settings = (
        Policy().with_settings(summarizer={"min_tokens": 20, "max_identifiers": 0, "merge_mode": merge_mode}).settings
    )

    async def attempt():
        slots = [
            *map(build_sized_message, head),
            build_sized_message(Message.from_text("user", "put the kelp on the rock")),
        ]
        request = SummaryRequest(0, len(slots), 900)
        return await write_summary(slots, request, [writer, writer], CompactionContext(policy_settings, permits.hold))

    text, outcome = run_attempt(clock, attempt)
    assert outcome in COMPACTION_OUTCOMES
    assert not text or not find_summary_problems(
        SummaryAnswer(text, estimate_text_tokens(text)), SummaryRequirements(900, 20)
    )
    assert permits.is_idle
    assert clock() <= policy_settings.summarizer.timeout_seconds + 1
    shape_refusals = [
        request.reply for request in provider.requests if isinstance(request.reply, RefusalReply) and not request.tokens
    ]
    assert not shape_refusals
    assert len(upstream.sent) <= 2 * 2 * 2 * 3 * (len(head) + 2)
