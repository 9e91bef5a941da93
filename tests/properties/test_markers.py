"""Cache breakpoints: few, where something stands, and always on the newest part of what was said."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import Policy, World, plan
from holdfast.config import target
from holdfast.model.messages import Message
from holdfast.model.parts import Text
from holdfast.policy.hygiene import MISSING
from holdfast.policy.presets import PRESETS
from holdfast.testing.driving import drive
from holdfast.testing.strategies import broken_histories, conversations
from holdfast.wire.lens import body

MODELS = [("anthropic", "claude-sonnet-4-5"), ("anthropic", "claude-opus-5-5"), ("anthropic", "somebody-else")]
POLICIES = [Policy.preset(name) for name in PRESETS]


def made_up(message):
    """Return whether a message is there only because the API wants one."""
    results = all(result.content == (Text(MISSING),) for result in message.results)
    return results if message.results else message == Message.of("user", "Continue.")


@given(
    conversations(longest=3_000) | broken_histories(most=4, longest=3_000, system=False),
    st.sampled_from(MODELS),
    st.sampled_from([7_000, 100_000]),
    st.sampled_from(POLICIES),
    st.integers(1, 4),
)
def test_markers_stand_on_messages_that_are_sent(messages, model, window, policy, most):
    """There are no more than the API takes, in order, apart, on positions that exist, the tail's among them."""
    window = max(window, 16_000) if policy.name == "openclaw" else window
    where = target(*model, window=window)
    where = replace(where, dialect=replace(where.dialect, markers=most))
    for step in drive(messages, where, policy):
        options, sent = step.plan.options, [slot.message for slot in step.slots]
        assert len(options.markers) + options.frame_marker <= most
        assert list(options.markers) == sorted(set(options.markers))
        if sent:
            assert all(0 <= place < len(sent) for place in options.markers)
            assert all(made_up(one) for one in sent[max(options.markers) + 1 :])


@given(conversations(), st.sampled_from([Policy(), Policy.preset("append-only")]))
def test_no_markers_where_the_api_has_none(messages, policy):
    """An API without explicit breakpoints gets none."""
    where = target("openai-chat", "gpt-5", window=100_000)
    options = plan(messages, where, policy).options
    assert (options.markers, options.frame_marker) == ((), False)


@given(conversations(longest=2_000), st.sampled_from(MODELS))
def test_the_tail_of_the_request_before_is_marked(messages, model):
    """Ours: in a growing conversation the old tail is marked beside the new one, so that the cache is hit."""
    said = [one for one in messages if one.role != "system"]
    last = None
    for step in drive(said, target(*model, window=200_000)):
        if last is not None:
            assert last in step.plan.options.markers
        last = max(step.plan.options.markers)


@given(conversations(longest=4_000), st.booleans())
def test_the_body_carries_the_markers(messages, forced):
    """Each position of the options is a breakpoint of the body, behind the last part of its message."""
    where = target("anthropic", "claude-sonnet-4-5", window=60_000)
    said = [one for one in messages if one.role != "system"]
    step = drive(said, where, worlds=[World(force=forced)])[-1]
    sent = json.loads(body(where.api, where.model, step.slots, options=step.plan.options))["messages"]
    marked = [
        place
        for place, one in enumerate(sent)
        if isinstance(one["content"], list) and "cache_control" in one["content"][-1]
    ]
    assert marked == list(step.plan.options.markers)


@pytest.mark.parametrize("said", [[], [Message("user")], [Message.of("user", " ")]])
def test_nothing_is_marked_where_nothing_is(said):
    """A request without messages has no marker on one."""
    options = plan(said, target("anthropic", "claude-sonnet-4-5", window=60_000)).options
    assert options.markers == ()
