"""What a provider compacted has its size where it goes out, and its readable twin's size everywhere else
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

FRAME = RequestSetup("f", 500, is_exact=True)
PLACES = [
    get_target(api, model, window=1_000_000, setup=FRAME)
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
TRUE = 1.25
"""Real tokens for one of ours, wherever it is asked."""
STILL = replace(Policy(), stages=())
"""A policy that decides nothing."""


def native(api, size, words):
    """Return a compaction of the first two slots by ``api``: ``size`` tokens there, ``words`` words elsewhere."""
    model, item = MAKERS[api]
    made = b'{"api":"%b","model":"%b","items":[%b],"tokens":%d}' % (api.encode(), model.encode(), item, size)
    twin = Message.from_text("user", "kelp on the rock " * words)
    return CompactionEntry(2, twin, size, native=Raw(made), readable_tokens=build_sized_message(twin).tokens)


def begun(compaction):
    """Return a log of a few words of which the first ones gave way to ``compaction``."""
    said = [
        Message.from_text(role, f"Read note {number}. " * 60) for number in range(3) for role in ("user", "assistant")
    ]
    every = [
        FRAME,
        *(MessageEntry(build_sized_message(one)) for one in [*said, Message.from_text("user", "And now?")]),
        compaction,
    ]
    return [Entry(f"e{number}", None, one, number) for number, one in enumerate(every)]


def size_out(place, plan, size):
    """Return the size of what goes out, and whether the provider's own items, of ``size``, are among it."""
    is_native = b'"compaction"' in build_request_body(place.api, place.model, build_messages_to_send(plan))
    told = [build_sized_message(slot.message).tokens for slot in build_projection(plan.state)]
    return sum(told[1:], size if is_native else told[0]), is_native


makers = st.sampled_from([*MAKERS])
sizes = st.sampled_from([40, 500, 30_000])
twins = st.sampled_from([1, 300, 6_000])


@given(makers, sizes, twins, st.lists(st.sampled_from(PLACES), min_size=1, max_size=6), st.booleans())
def test_each_target_is_reckoned_with_what_it_is_sent(api, size, words, places, tells):
    """Whoever is asked, in whatever order: planned is what goes out, and counts at one ratio teach that ratio."""
    log = begun(native(api, size, words))
    for place in places:
        branch = ConversationState.from_entries(log)
        plan = plan_request(branch, place, STILL)
        out, is_native = size_out(place, plan, size)
        assert is_native == (place.api == api and place.model == MAKERS[api][0])
        assert plan.state.last_request.tokens == plan.state.view.shown_tokens == out
        if get_valid_measured_request(branch) is None or branch.last_request.model != place.model:
            assert plan.after == estimate_request_tokens(branch, place, out)
        else:
            assert plan.after == pytest.approx(FRAME.tokens + TRUE * out, rel=0.25)
        log += make_plan_entries(log, plan, len(plan.state.history.sized_messages), place.model)
        assert ConversationState.from_entries(log).last_request.tokens == out
        answer = AnswerEntry(
            plan.state.last_request.prefix_digest, Usage(FRAME.tokens + round(TRUE * out), 10) if tells else Usage()
        )
        told = [
            answer,
            MessageEntry(build_sized_message(Message.from_text("assistant", "Yes. " * 50))),
            MessageEntry(build_sized_message(Message.from_text("user", "And?"))),
        ]
        log += [Entry(f"e{len(log) + more}", None, one, len(log) + more) for more, one in enumerate(told)]
        gauge = ConversationState.from_entries(log).usage.calibration
        assert not gauge.estimated_tokens or gauge.real_tokens / gauge.estimated_tokens == pytest.approx(TRUE, rel=0.1)


@given(makers, sizes, twins, st.lists(st.sampled_from(PLACES), max_size=3))
def test_a_branch_holds_what_its_model_is_shown(api, size, words, places):
    """``held`` is the sum of the slots that the projection has, after any switch, built at once or one by one."""
    log = begun(native(api, size, words))
    branch = ConversationState.from_entries(log)
    for place in places:
        plan = plan_request(branch, place, STILL)
        new = make_plan_entries(log, plan, len(plan.state.history.sized_messages), place.model)
        log += new
        for entry in new:
            branch = apply_entry(branch, entry)
        assert (
            branch.view.shown_tokens
            == sum(slot.tokens for slot in build_projection(branch))
            == ConversationState.from_entries(log).view.shown_tokens
        )


@given(makers, twins)
def test_a_twin_of_an_older_log_is_no_smaller_than_its_letters(api, words):
    """Logs of before did not say how large the readable twin is: it counts by its letters, never as the provider's."""
    old = replace(native(api, 40, words), readable_tokens=0)
    slot = build_summary_message(old, "another")
    assert slot.raw is None
    assert slot.tokens == max(40, len(old.summary.text) // 4)
    assert build_summary_message(old, MAKERS[api][0], api).tokens == 40
