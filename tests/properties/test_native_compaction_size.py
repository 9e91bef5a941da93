"""A native compaction counts its own size where it is sent, and its readable summary's size elsewhere
(budget-sees-exact-request).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace
from planning_loop import make_plan_entries

from holdfast import ConversationState, Policy
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.normalize.projection import build_messages_to_send
from holdfast.planning.pipeline import plan_request
from holdfast.providers.requests.request_body import build_request_body
from holdfast.state.calibration.token_estimate import estimate_request_tokens
from holdfast.state.entries import AnswerEntry, CompactionEntry, Entry, MessageEntry, RequestSetup, Usage
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.view import build_projection, build_summary_message, get_valid_measured_request

SETUP = RequestSetup("f", 500, is_exact=True)
TARGETS = [
    get_target(api, model, window=1_000_000, setup=SETUP)
    for api, model in (
        ("openai-responses", "gpt-5.5"),
        ("openai-responses", "gpt-5"),
        ("openai-chat", "gpt-5.5"),
        ("anthropic", "claude-opus-5-5"),
        ("gemini", "gemini-3-pro"),
    )
]
MAKERS = {
    "openai-responses": ("gpt-5.5", b'{"type":"compaction","encrypted_content":"c2VhbGVk"}'),
    "anthropic": ("claude-opus-5-5", b'{"role":"assistant","content":[{"type":"compaction","content":"so far"}]}'),
}
REAL_RATIO = 1.25
"""Real tokens for each estimated token, on every target."""
NO_STAGES = replace(Policy(), stages=())
"""A policy without stages."""


def build_native_compaction(api, size, words):
    """Return a native compaction of two messages: ``size`` tokens on ``api``; its summary has ``words`` phrases."""
    model, item = MAKERS[api]
    native = b'{"api":"%b","model":"%b","items":[%b],"tokens":%d}' % (api.encode(), model.encode(), item, size)
    summary = Message.from_text("user", "kelp on the rock " * words)
    return CompactionEntry(2, summary, size, native=Raw(native), readable_tokens=build_sized_message(summary).tokens)


def build_log(compaction):
    """Return the log of a short conversation whose first messages are replaced by ``compaction``."""
    messages = [
        Message.from_text(role, f"Read note {number}. " * 60) for number in range(3) for role in ("user", "assistant")
    ]
    bodies = [
        SETUP,
        *(MessageEntry(build_sized_message(body)) for body in [*messages, Message.from_text("user", "And now?")]),
        compaction,
    ]
    return [Entry(f"e{number}", None, body, number) for number, body in enumerate(bodies)]


def measure_sent(target, plan, size):
    """Return the tokens that are sent, and whether the native items, of ``size`` tokens, are among them."""
    is_native = b'"compaction"' in build_request_body(target.api, target.model, build_messages_to_send(plan))
    sizes_shown = [build_sized_message(sized.message).tokens for sized in build_projection(plan.state)]
    return sum(sizes_shown[1:], size if is_native else sizes_shown[0]), is_native


apis = st.sampled_from([*MAKERS])
sizes = st.sampled_from([40, 500, 30_000])
word_counts = st.sampled_from([1, 300, 6_000])


@given(apis, sizes, word_counts, st.lists(st.sampled_from(TARGETS), min_size=1, max_size=6), st.booleans())
def test_plan_sizes_a_native_compaction_for_each_target(api, size, words, targets, has_usage):
    """Whatever the order of targets, planned sizes are those of the bytes sent, and usage at one ratio teaches that
    ratio.
    """
    log = build_log(build_native_compaction(api, size, words))
    for target in targets:
        state = ConversationState.from_entries(log)
        plan = plan_request(state, target, NO_STAGES)
        sent_tokens, is_native = measure_sent(target, plan, size)
        assert is_native == (target.api == api and target.model == MAKERS[api][0])
        assert plan.state.last_request.tokens == plan.state.view.shown_tokens == sent_tokens
        if get_valid_measured_request(state) is None or state.last_request.model != target.model:
            assert plan.after == estimate_request_tokens(state, target, sent_tokens)
        else:
            assert plan.after == pytest.approx(SETUP.tokens + REAL_RATIO * sent_tokens, rel=0.25)
        log += make_plan_entries(log, plan, len(plan.state.history.sized_messages), target.model)
        assert ConversationState.from_entries(log).last_request.tokens == sent_tokens
        answer = AnswerEntry(
            plan.state.last_request.prefix_digest,
            Usage(SETUP.tokens + round(REAL_RATIO * sent_tokens), 10) if has_usage else Usage(),
        )
        bodies = [
            answer,
            MessageEntry(build_sized_message(Message.from_text("assistant", "Yes. " * 50))),
            MessageEntry(build_sized_message(Message.from_text("user", "And?"))),
        ]
        log += [Entry(f"e{len(log) + offset}", None, body, len(log) + offset) for offset, body in enumerate(bodies)]
        calibration = ConversationState.from_entries(log).usage.calibration
        assert (
            not calibration.estimated_tokens
            or calibration.real_tokens / calibration.estimated_tokens == pytest.approx(REAL_RATIO, rel=0.1)
        )


@given(apis, sizes, word_counts, st.lists(st.sampled_from(TARGETS), max_size=3))
def test_shown_tokens_equals_the_projection_after_any_model_switch(api, size, words, targets):
    """``shown_tokens`` is the sum over the projection after any model switch, folded at once or entry by entry."""
    log = build_log(build_native_compaction(api, size, words))
    state = ConversationState.from_entries(log)
    for target in targets:
        plan = plan_request(state, target, NO_STAGES)
        new = make_plan_entries(log, plan, len(plan.state.history.sized_messages), target.model)
        log += new
        for entry in new:
            state = apply_entry(state, entry)
        assert (
            state.view.shown_tokens
            == sum(sized.tokens for sized in build_projection(state))
            == ConversationState.from_entries(log).view.shown_tokens
        )


@given(apis, word_counts)
def test_summary_message_of_an_older_log_counts_its_characters(api, words):
    """Older logs do not have the size of the readable summary: it counts by its characters, never by the provider's
    number.
    """
    old = replace(build_native_compaction(api, 40, words), readable_tokens=0)
    sized = build_summary_message(old, "another")
    assert sized.raw is None
    assert sized.tokens == max(40, len(old.summary.text) // 4)
    assert build_summary_message(old, MAKERS[api][0], api).tokens == 40
