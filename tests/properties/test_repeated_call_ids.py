"""A server may number the calls of each answer anew: ids repeat, and planning with state still equals planning
without.
"""

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
NAMELESS_CALL = damage_history(
    build_conversation(
        [(0, 1, [(1, 0, 1, 0)], False), (0, 1, [(1, 0, 1, 0)] * 2, False)], system=False, pictures=False
    ),
    [("odd name", 0, 0)],
)
"""The first of three calls names no tool; with two ids the last call has its id."""
OPEN_CALL = build_conversation(
    [(0, 1, [(1, 0, 1, 0)], False), (0, 1, [], False), (0, 1, [(1, 0, 1, 0)], False)], system=False, pictures=False
)
"""Two calls with a turn between them; the second has no result yet in one request."""
targets = st.sampled_from(MODELS).map(lambda model: get_target(*model, window=100_000))


def renumber_calls(messages, id_count, nameless):
    """Return ``messages`` with no more than ``id_count`` ids, which repeat in order of first use.

    The calls whose numbers are ``nameless`` name no tool.
    """
    numbers_by_id, numbers = {}, itertools.count()

    def rename(id_):
        return f"functions.bash:{numbers_by_id.setdefault(id_, len(numbers_by_id)) % id_count}"

    def renumber_part(part):
        if isinstance(part, ToolCall):
            return replace(part, id=rename(part.id), name="" if next(numbers) in nameless else part.name)
        return replace(part, call_id=rename(part.call_id)) if isinstance(part, ToolResult) else part

    return [Message(message.role, tuple(map(renumber_part, message.parts))) for message in messages]


@given(
    conversation_strategy(turns=5, steps=6) | broken_history_strategy(max_damages=4),
    st.integers(1, 5),
    targets,
    st.booleans(),
    st.frozensets(st.integers(0, 8), max_size=3),
)
@example(
    messages=NAMELESS_CALL,
    id_count=2,
    target=get_target(*MODELS[0], window=100_000),
    plans_each_message=False,
    nameless=frozenset(),
)
@example(
    messages=OPEN_CALL,
    id_count=1,
    target=get_target(*MODELS[2], window=100_000),
    plans_each_message=True,
    nameless=frozenset({0}),
)
def test_plan_request_with_repeated_ids_equals_planning_from_the_log(
    messages, id_count, target, plans_each_message, nameless
):
    """Whatever ids repeat, a plan with state has the normalization and the bytes of one made from the log alone."""
    renumbered = renumber_calls(messages, id_count, nameless)
    for step in drive_agent_loop(
        renumbered, target, request_points=range(1, len(renumbered) + 1) if plans_each_message else None
    ):
        plan_from_log = plan_request(ConversationState.from_entries(step.entries), target)
        assert plan_from_log.normalization == step.plan.normalization
        assert render_body(target, plan_from_log) == render_body(target, step.plan)


def render_body(target, plan):
    """Return the bytes of the request of ``plan``."""
    return build_request_body(target.api, target.model, build_messages_to_send(plan))


RESULT = ToolResult("c", "read", (Text("file"), Media("image", "image/png", 9, "a.png", "AAAA")))


@pytest.mark.parametrize("orphan", [Message("tool", (RESULT,)), Message("assistant", (Text("so"), RESULT))])
@pytest.mark.parametrize("model", MODELS)
def test_call_with_its_own_result_leaves_an_earlier_orphan_unchanged(model, orphan):
    """prefix-only-grows: the label of a result without its call stays, whoever uses its id later and gets a result."""
    target = get_target(*model, window=100_000)
    call, result = Message("assistant", (ToolCall("c", "read", "{}"),)), Message("tool", (RESULT,))
    messages = [Message.from_text("user", "go"), orphan, Message.from_text("user", "on"), call, result]
    before, after = drive_agent_loop(messages, target, request_points=[3, 5])
    sent = [sized.message for sized in before.sent_messages]
    assert any("file" in message.text for message in sent)
    assert [sized.message for sized in after.sent_messages][: len(sent)] == sent


def build_server_call(id_, *kinds):
    """Return an answer with a server-side call, one opaque part for each of ``kinds``."""
    return Message(
        "assistant",
        (*[Opaque(kind, Raw(b"{}"), ProviderSignature("anthropic", "", id_)) for kind in kinds], Text("so")),
    )


WHOLE_SERVER_CALL = build_server_call("srv", "server_tool_use", "web_search_tool_result")


@pytest.mark.parametrize(
    "first", [WHOLE_SERVER_CALL, build_server_call("srv", "server_tool_use")], ids=["whole", "half"]
)
def test_server_call_id_is_sent_once(first):
    """A repeated server call is dropped with its result however long ago its id was sent; a half call was
    never sent.
    """
    target = get_target(*MODELS[0], window=100_000)
    user, answer = Message.from_text("user", "go"), Message.from_text("assistant", "yes")
    messages = [user, first, user, answer, user, WHOLE_SERVER_CALL, user, answer, user]
    for step in drive_agent_loop(messages, target, request_points=range(1, len(messages) + 1)):
        assert (
            step.plan.normalization == plan_request(ConversationState.from_entries(step.entries), target).normalization
        )
    parts = [part for sized in step.sent_messages for part in sized.message.parts]
    assert sum(isinstance(part, Opaque) for part in parts) == 2


@pytest.mark.parametrize("model", example_counts.mark_rest_long(MODELS, keep=1))
def test_plan_request_cost_does_not_grow_with_repeated_ids(model):
    """Late in a conversation a call with a used id costs no more function calls than early in it."""
    target, calls = get_target(*model, window=10_000_000), []
    state = ConversationState.from_entries(
        [Entry("", None, MessageEntry(build_sized_message(Message.from_text("user", "go"))))]
    )
    for number in range(160):
        call = Message("assistant", (ToolCall("functions.bash:0", "bash", f'{{"command":"make {number}"}}'),))
        result = Message("tool", (ToolResult("functions.bash:0", "bash", (Text(f"line {number}\n" * 9),)),))
        for message in (call, result):
            state = apply_entry(state, Entry("", None, MessageEntry(build_sized_message(message))))
        events = Counter()
        sys.setprofile(lambda _frame, event, _what, events=events: events.update([event]))
        state = plan_request(state, target, Policy()).state
        sys.setprofile(None)
        calls.append(events["call"])
    assert max(calls[-20:]) <= 1.5 * max(calls[20:40])
