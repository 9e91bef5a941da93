"""A server may number the calls of each answer anew: ids repeat, and planning stays what it is without memory."""

from __future__ import annotations

import itertools
import sys
from collections import Counter

import example_counts
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis_strategies import broken_history_strategy, conversation_strategy
from msgspec import Raw
from msgspec.structs import replace
from planning_loop import drive_agent_loop
from sample_conversations import build_conversation, damage_history

from holdfast import ConversationState, Policy
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, ProviderSignature, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.normalize.projection import build_messages_to_send
from holdfast.planning.pipeline import plan_request
from holdfast.providers.requests.request_body import build_request_body
from holdfast.state.entries import Entry, MessageEntry
from holdfast.state.fold.fold_entries import apply_entry

MODELS = [
    ("anthropic", "claude-sonnet-4-5"),
    ("openai-chat", "kimi-k2"),
    ("openai-chat", "gpt-5"),
    ("openai-responses", "gpt-5"),
    ("gemini", "gemini-2.5-pro"),
]
NAMELESS = damage_history(
    build_conversation(
        [(0, 1, [(1, 0, 1, 0)], False), (0, 1, [(1, 0, 1, 0)] * 2, False)], system=False, pictures=False
    ),
    [("odd name", 0, 0)],
)
"""The first of three calls names no tool; the last has its id, where there are two."""
OPEN = build_conversation(
    [(0, 1, [(1, 0, 1, 0)], False), (0, 1, [], False), (0, 1, [(1, 0, 1, 0)], False)], system=False, pictures=False
)
"""Two calls with a turn between them; the second is open for a moment."""
places = st.sampled_from(MODELS).map(lambda model: get_target(*model, window=100_000))


def renumbered(messages, most, nameless):
    """Return ``messages`` with no more than ``most`` ids, which are told apart by where they are used.

    The calls whose numbers are ``nameless`` name no tool.
    """
    known, numbers = {}, itertools.count()

    def named(id_):
        return f"functions.bash:{known.setdefault(id_, len(known)) % most}"

    def again(part):
        if isinstance(part, ToolCall):
            return replace(part, id=named(part.id), name="" if next(numbers) in nameless else part.name)
        return replace(part, call_id=named(part.call_id)) if isinstance(part, ToolResult) else part

    return [Message(one.role, tuple(map(again, one.parts))) for one in messages]


@given(
    conversation_strategy(turns=5, steps=6) | broken_history_strategy(max_wounds=4),
    st.integers(1, 5),
    places,
    st.booleans(),
    st.frozensets(st.integers(0, 8), max_size=3),
)
@example(messages=NAMELESS, most=2, place=get_target(*MODELS[0], window=100_000), each=False, nameless=frozenset())
@example(messages=OPEN, most=1, place=get_target(*MODELS[2], window=100_000), each=True, nameless=frozenset({0}))
def test_memory_changes_no_plan_of_repeated_ids(messages, most, place, each, nameless):
    """Whatever ids repeat, a plan made with memory has the repairs, and the bytes, of one made from the log alone."""
    said = renumbered(messages, most, nameless)
    for step in drive_agent_loop(said, place, request_points=range(1, len(said) + 1) if each else None):
        forgetful = plan_request(ConversationState.from_entries(step.entries), place)
        assert forgetful.normalization == step.plan.normalization
        assert wires_of(place, forgetful) == wires_of(place, step.plan)


def wires_of(place, plan):
    """Return the bytes of the request of ``plan``."""
    return build_request_body(place.api, place.model, build_messages_to_send(plan))


RESULT = ToolResult("c", "read", (Text("file"), Media("image", "image/png", 9, "a.png", "AAAA")))


@pytest.mark.parametrize("orphan", [Message("tool", (RESULT,)), Message("assistant", (Text("so"), RESULT))])
@pytest.mark.parametrize("model", MODELS)
def test_a_call_with_its_own_result_changes_no_orphan_before_it(model, orphan):
    """prefix-only-grows: what was told of a result without its call stays, whoever uses its id
    later and has an answer.
    """
    place = get_target(*model, window=100_000)
    call, result = Message("assistant", (ToolCall("c", "read", "{}"),)), Message("tool", (RESULT,))
    said = [Message.from_text("user", "go"), orphan, Message.from_text("user", "on"), call, result]
    before, after = drive_agent_loop(said, place, request_points=[3, 5])
    told = [slot.message for slot in before.slots]
    assert any("file" in message.text for message in told)
    assert [slot.message for slot in after.slots][: len(told)] == told


def served(id_, *kinds):
    """Return an answer with so many parts of a call that the server answered."""
    return Message(
        "assistant",
        (*[Opaque(kind, Raw(b"{}"), ProviderSignature("anthropic", "", id_)) for kind in kinds], Text("so")),
    )


WHOLE = served("srv", "server_tool_use", "web_search_tool_result")


@pytest.mark.parametrize("first", [WHOLE, served("srv", "server_tool_use")], ids=["whole", "half"])
def test_an_id_of_a_server_is_sent_once(first):
    """A server's call goes with its result where its id was sent before, however long ago; a half was never sent."""
    place = get_target(*MODELS[0], window=100_000)
    user, answer = Message.from_text("user", "go"), Message.from_text("assistant", "yes")
    said = [user, first, user, answer, user, WHOLE, user, answer, user]
    for step in drive_agent_loop(said, place, request_points=range(1, len(said) + 1)):
        assert (
            step.plan.normalization == plan_request(ConversationState.from_entries(step.entries), place).normalization
        )
    parts = [part for slot in step.slots for part in slot.message.parts]
    assert sum(isinstance(part, Opaque) for part in parts) == 2


@pytest.mark.parametrize("model", example_counts.spare(MODELS, keep=1))
def test_a_step_with_an_old_id_costs_what_is_new(model):
    """Behind a long conversation a call whose id others had costs no more functions than behind a short one."""
    place, calls = get_target(*model, window=10_000_000), []
    branch = ConversationState.from_entries(
        [Entry("", None, MessageEntry(build_sized_message(Message.from_text("user", "go"))))]
    )
    for number in range(160):
        call = Message("assistant", (ToolCall("functions.bash:0", "bash", f'{{"command":"make {number}"}}'),))
        result = Message("tool", (ToolResult("functions.bash:0", "bash", (Text(f"line {number}\n" * 9),)),))
        for message in (call, result):
            branch = apply_entry(branch, Entry("", None, MessageEntry(build_sized_message(message))))
        looked = Counter()
        sys.setprofile(lambda _frame, event, _what, looked=looked: looked.update([event]))
        branch = plan_request(branch, place, Policy()).state
        sys.setprofile(None)
        calls.append(looked["call"])
    assert max(calls[-20:]) <= 1.5 * max(calls[20:40])
