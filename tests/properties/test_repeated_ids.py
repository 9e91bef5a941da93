"""A server may number the calls of each answer anew: ids repeat, and planning stays what it is without memory."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import Branch, Policy
from holdfast.config import target
from holdfast.model.branch import extend
from holdfast.model.entries import Entry, Said
from holdfast.model.messages import Message
from holdfast.model.parts import Text, ToolCall, ToolResult
from holdfast.policy.pipeline import advance
from holdfast.policy.projection import send_slots
from holdfast.testing.driving import drive
from holdfast.testing.strategies import broken_histories, conversations
from holdfast.view.tokens import measure
from holdfast.wire.lens import body

MODELS = [
    ("anthropic", "claude-sonnet-4-5"),
    ("openai-chat", "kimi-k2"),
    ("openai-chat", "gpt-5"),
    ("openai-responses", "gpt-5"),
    ("gemini", "gemini-2.5-pro"),
]
places = st.sampled_from(MODELS).map(lambda model: target(*model, window=100_000))


def renumbered(messages, most):
    """Return ``messages`` with no more than ``most`` ids, which are told apart by where they are used."""
    known = {}

    def named(id_):
        return f"functions.bash:{known.setdefault(id_, len(known)) % most}"

    def again(part):
        if isinstance(part, ToolCall):
            return replace(part, id=named(part.id))
        return replace(part, call_id=named(part.call_id)) if isinstance(part, ToolResult) else part

    return [Message(one.role, tuple(map(again, one.parts))) for one in messages]


@given(conversations(turns=5, steps=6) | broken_histories(most=4), st.integers(1, 5), places, st.booleans())
def test_memory_changes_no_plan_of_repeated_ids(messages, most, place, each):
    """Whatever ids repeat, a plan made with memory has the repairs, and the bytes, of one made from the log alone."""
    said = renumbered(messages, most)
    for step in drive(said, place, at=range(1, len(said) + 1) if each else None):
        forgetful = advance(Branch.build(step.entries), place)
        assert forgetful.repair == step.plan.repair
        assert wires_of(place, forgetful) == wires_of(place, step.plan)


def wires_of(place, plan):
    """Return the bytes of the request of ``plan``."""
    return body(place.api, place.model, send_slots(plan))


@pytest.mark.parametrize("model", MODELS)
def test_a_step_with_an_old_id_costs_what_is_new(model):
    """Behind a long conversation a call whose id others had costs no more functions than behind a short one."""
    place, calls = target(*model, window=10_000_000), []
    branch = Branch.build([Entry("", None, Said(measure(Message.of("user", "go"))))])
    for number in range(160):
        call = Message("assistant", (ToolCall("functions.bash:0", "bash", f'{{"command":"make {number}"}}'),))
        result = Message("tool", (ToolResult("functions.bash:0", "bash", (Text(f"line {number}\n" * 9),)),))
        for message in (call, result):
            branch = extend(branch, Entry("", None, Said(measure(message))))
        looked = Counter()
        sys.setprofile(lambda _frame, event, _what, looked=looked: looked.update([event]))
        branch = advance(branch, place, Policy()).branch
        sys.setprofile(None)
        calls.append(looked["call"])
    assert max(calls[-20:]) <= 1.5 * max(calls[20:40])
