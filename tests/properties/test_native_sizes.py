"""What a provider compacted has its size where it goes out, and its readable twin's size everywhere else (P0)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace
from planning_loop import recorded

from holdfast import Branch, Policy
from holdfast.config import target
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import measure
from holdfast.normalize.projection import send_slots
from holdfast.planning.pipeline import advance
from holdfast.providers.request_body import body
from holdfast.state.branch.branch import extend
from holdfast.state.branch.view import project, summary_slot
from holdfast.state.calibration.token_estimate import estimate
from holdfast.state.entries import Answer, Compaction, Entry, Frame, Said, Usage

FRAME = Frame("f", 500, exact=True)
PLACES = [
    target(api, model, window=1_000_000, frame=FRAME)
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
    twin = Message.of("user", "kelp on the rock " * words)
    return Compaction(2, twin, size, native=Raw(made), twin=measure(twin).size)


def begun(compaction):
    """Return a log of a few words of which the first ones gave way to ``compaction``."""
    said = [Message.of(role, f"Read note {number}. " * 60) for number in range(3) for role in ("user", "assistant")]
    every = [FRAME, *(Said(measure(one)) for one in [*said, Message.of("user", "And now?")]), compaction]
    return [Entry(f"e{number}", None, one, number) for number, one in enumerate(every)]


def size_out(place, plan, size):
    """Return the size of what goes out, and whether the provider's own items, of ``size``, are among it."""
    is_native = b'"compaction"' in body(place.api, place.model, send_slots(plan))
    told = [measure(slot.message).size for slot in project(plan.branch)]
    return sum(told[1:], size if is_native else told[0]), is_native


makers = st.sampled_from([*MAKERS])
sizes = st.sampled_from([40, 500, 30_000])
twins = st.sampled_from([1, 300, 6_000])


@given(makers, sizes, twins, st.lists(st.sampled_from(PLACES), min_size=1, max_size=6), st.booleans())
def test_each_target_is_reckoned_with_what_it_is_sent(api, size, words, places, tells):
    """Whoever is asked, in whatever order: planned is what goes out, and counts at one ratio teach that ratio."""
    log = begun(native(api, size, words))
    for place in places:
        branch = Branch.build(log)
        plan = advance(branch, place, STILL)
        out, is_native = size_out(place, plan, size)
        assert is_native == (place.api == api and place.model == MAKERS[api][0])
        assert plan.branch.asked == plan.branch.held == out
        if branch.anchor is None or branch.model != place.model:
            assert plan.after == estimate(branch, place, out)
        else:
            assert plan.after == pytest.approx(FRAME.tokens + TRUE * out, rel=0.25)
        log += recorded(log, plan, len(plan.branch.slots), place.model)
        assert Branch.build(log).asked == out
        answer = Answer(plan.branch.basis, Usage(FRAME.tokens + round(TRUE * out), 10) if tells else Usage())
        told = [answer, Said(measure(Message.of("assistant", "Yes. " * 50))), Said(measure(Message.of("user", "And?")))]
        log += [Entry(f"e{len(log) + more}", None, one, len(log) + more) for more, one in enumerate(told)]
        gauge = Branch.build(log).gauge
        assert not gauge.estimated or gauge.true / gauge.estimated == pytest.approx(TRUE, rel=0.1)


@given(makers, sizes, twins, st.lists(st.sampled_from(PLACES), max_size=3))
def test_a_branch_holds_what_its_model_is_shown(api, size, words, places):
    """``held`` is the sum of the slots that the projection has, after any switch, built at once or one by one."""
    log = begun(native(api, size, words))
    branch = Branch.build(log)
    for place in places:
        plan = advance(branch, place, STILL)
        new = recorded(log, plan, len(plan.branch.slots), place.model)
        log += new
        for entry in new:
            branch = extend(branch, entry)
        assert branch.held == sum(slot.size for slot in project(branch)) == Branch.build(log).held


@given(makers, twins)
def test_a_twin_of_an_older_log_is_no_smaller_than_its_letters(api, words):
    """Logs of before did not say how large the readable twin is: it counts by its letters, never as the provider's."""
    old = replace(native(api, 40, words), twin=0)
    slot = summary_slot(old, "another")
    assert slot.raw is None
    assert slot.size == max(40, len(old.summary.text) // 4)
    assert summary_slot(old, MAKERS[api][0], api).size == 40
