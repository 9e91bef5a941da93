"""Damaged histories become requests that their API accepts (valid-request and the invariants below it), for
all four APIs.
"""

from __future__ import annotations

import json
from random import Random

import example_counts
import pytest
from history_fuzzer import MANGLE_MODELS, MUTATIONS, check_seed_history, make_valid_conversation, mangle_conversation
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.config import get_target
from holdfast.errors import HoldfastError
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.normalize.normalize_history import normalize_history
from holdfast.normalize.parts import has_nonblank_content
from holdfast.normalize.projection import build_messages_to_send, normalize_projection
from holdfast.normalize.result_matching import SYNTHETIC_RESULT_TEXT
from holdfast.planning.pipeline import plan_request
from holdfast.planning.plan import plan
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.registry import API_NAMES
from holdfast.providers.requests.request_body import build_request_body
from holdfast.providers.rules.validate import validate_request
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import AnswerEntry, DecisionEntry, Entry, MessageEntry, RequestSetup
from holdfast.state.fold.fold_entries import apply_entries, apply_entry

FAMILIES = [(api, model) for api in API_NAMES for model in MANGLE_MODELS[api]]
COUNT = example_counts.choose(quick=30, ci=100, thorough=2_000)
"""Histories for each model family; the million is ``python tests/support/history_fuzzer.py --count 1000000``."""


@pytest.mark.counts
@pytest.mark.parametrize(("api", "model"), FAMILIES)
def test_mangled_histories_keep_every_invariant(api, model):
    """Whatever happened to a history, the request is valid, normalizing is stable, nothing is lost, and no real result
    is replaced.
    """
    assert [(seed, violation) for seed in range(COUNT) for violation in check_seed_history(seed, api, model)] == []


ONCE_BROKEN = [
    (20_359_685, "openai-chat", "gpt-5"),
    (20_548_490, "anthropic", "claude-opus-5-0"),
    (20_397_262, "gemini", "gemini-3.1-pro-preview"),
    (20_506_496, "openai-responses", "gpt-5.5"),
    (20_616_501, "gemini", "gemini-2.5-pro"),
    (20_898_859, "openai-chat", "somebody-else"),
]
"""Histories that violated an invariant in an earlier run."""


@pytest.mark.parametrize(("seed", "api", "model"), ONCE_BROKEN)
def test_histories_that_once_broke_an_invariant_keep_all(seed, api, model):
    """A history that violated an invariant in a long run keeps all of them."""
    assert list(check_seed_history(seed, api, model)) == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_each_mutation_breaks_some_request(mutation):
    """Every kind of damage makes a request that some API refuses; otherwise the tests above would prove little."""
    refused_count = 0
    for seed in range(60):
        rng = Random(seed)
        messages = list(mutation(make_valid_conversation(rng, "anthropic"), rng))
        refused_count += any(
            normalize_history(messages, get_target(api, MANGLE_MODELS[api][0]).dialect) for api in API_NAMES
        )
    assert refused_count


@given(st.integers(0, 10_000), st.sampled_from(FAMILIES))
def test_normalize_projection_is_the_same_step_by_step_and_at_once(seed, family):
    """Remembering the normalized prefix changes nothing: a growing history gets the edits that normalizing all of it
    gives.
    """
    target = get_target(*family, window=200_000)
    state = ConversationState()
    for message in mangle_conversation(Random(seed), family[0]):
        state = apply_entry(state, Entry("", None, MessageEntry(build_sized_message(message))))
        edits, normalized_prefix = normalize_projection(state, target.dialect)
        assert (
            edits
            == normalize_projection(replace(state, view=replace(state.view, normalized_prefix=None)), target.dialect)[0]
        )
        state = replace(state, view=replace(state.view, normalized_prefix=normalized_prefix))


@given(st.integers(0, 10_000), st.sampled_from([*FAMILIES, ("anthropic", "claude-opus-5-5")]))
@example(42, ("openai-chat", "gpt-5"))
@example(78, ("anthropic", "claude-opus-5-5"))
@example(1953, ("anthropic", "claude-opus-5-5"))
@example(2797, ("anthropic", "claude-3-5-sonnet-20241022"))
@example(40, ("anthropic", "claude-3-5-sonnet-20241022"))
@example(487, ("anthropic", "claude-3-5-sonnet-20241022"))
def test_normalize_projection_survives_setup_changes_and_decisions(seed, family):
    """The same holds when two histories follow each other, setups change, texts are replaced and answers are
    aborted.
    """
    rng, target, state = Random(seed), get_target(*family, window=200_000), ConversationState()
    for number, message in enumerate([*mangle_conversation(rng, family[0]), *mangle_conversation(rng, family[0])]):
        bodies = [MessageEntry(build_sized_message(message))]
        if rng.random() < 0.1:
            bodies.append(RequestSetup(f"f{number}", 10))
        if rng.random() < 0.1 and message.role == "assistant":
            bodies.append(AnswerEntry("b", stop_reason="aborted"))
        if rng.random() < 0.1 and message.parts and isinstance(message.parts[0], Text):
            bodies.append(DecisionEntry((Edit(Span(number, number + 1, 0), (Text("cut"),), "spill"),)))
        state = apply_entries(state, [Entry("d", None, body) for body in bodies])
        edits, normalized_prefix = normalize_projection(state, target.dialect)
        assert (
            edits
            == normalize_projection(replace(state, view=replace(state.view, normalized_prefix=None)), target.dialect)[0]
        )
        state = replace(state, view=replace(state.view, normalized_prefix=normalized_prefix))


@given(st.integers(0, 10_000), st.sampled_from(FAMILIES))
def test_plan_of_a_damaged_history_is_valid(seed, family):
    """valid-request: the same through the planner: decisions, normalization, and rendering of both."""
    target = get_target(*family, window=200_000)
    messages = mangle_conversation(Random(seed), family[0])
    assume(any(map(has_nonblank_content, messages)))
    new_plan = plan(messages, target)
    sent = build_request_body(target.api, target.model, build_messages_to_send(new_plan), options=new_plan.options)
    found = validate_request(sent, target.api, model=target.model)
    assert [finding for finding in found if finding.level == "error" and "thinking" not in finding.rule] == []


@given(st.integers(0, 10_000), st.sampled_from(FAMILIES))
def test_fix_request_is_idempotent(seed, family):
    """fix-is-idempotent: ``fix(fix(x)) == fix(x)``, and a valid body is returned as the same object."""
    api, model = family
    raw = build_request_body(
        api, model, [SizedMessage(message) for message in make_valid_conversation(Random(seed), api)]
    )
    for body in (
        raw,
        build_request_body(api, model, [SizedMessage(message) for message in mangle_conversation(Random(seed), api)]),
    ):
        fixed = fix_request(body, api, model=model)
        fixed_twice = fix_request(fixed.body, api, model=model)
        assert fixed_twice.body is fixed.body
        if not [finding for finding in validate_request(body, api, model=model) if finding.level == "error"]:
            assert fixed.body is body


# -- damaged bodies ----------------------------------------------------------------------------------------------------


def list_paths(value, path=()):
    """Yield the path of every value inside a JSON value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from list_paths(child, (*path, key))


ODD_VALUES = [None, 3, "", [], {}, "x", " ", True, [1], {"a": 1}, 1e300]


def damage_json(value, rng):
    """Return a JSON value with one inner value deleted, replaced, repeated, added or reordered."""
    path = rng.choice(list(list_paths(value)))
    container = value
    for key in path[:-1]:
        container = container[key]
    kind, key = rng.randrange(4), path[-1]
    if kind == 0:
        del container[key]
    elif kind == 1:
        container[key] = rng.choice(ODD_VALUES)
    elif isinstance(container, dict):
        container[f"x_{kind}"] = rng.choice(ODD_VALUES)
    elif kind == 2:
        container.insert(rng.randrange(len(container) + 1), json.loads(json.dumps(container[key])))
    else:
        rng.shuffle(container)
    return value


@given(st.integers(0, 100_000), st.sampled_from(FAMILIES))
def test_fix_request_handles_any_damage_to_a_body(seed, family):
    """Whatever is wrong with the JSON, it is fixed once for all or gives a typed error."""
    rng = Random(seed)
    value = json.loads(
        build_request_body(*family, [SizedMessage(message) for message in make_valid_conversation(rng, family[0])])
    )
    for _ in range(rng.randint(1, 4)):
        value = damage_json(value, rng) if list(list_paths(value)) else value
    try:
        fixed = fix_request(json.dumps(value).encode(), family[0], model=family[1])
    except HoldfastError:
        return
    assert fix_request(fixed.body, family[0], model=family[1]).body == fixed.body
    assert fixed.is_valid or fixed.findings


# -- interrupted answers -----------------------------------------------------------------------------------------------


CALL = ToolCall("c1", "read", '{"path": "a"}')
GO = Message.from_text("user", "go")


def build_state(*bodies):
    return ConversationState.from_entries(Entry("", None, body) for body in bodies)


def make_entry(message):
    return MessageEntry(build_sized_message(message))


@pytest.mark.parametrize("stop", ["error", "aborted"])
@pytest.mark.parametrize(("api", "model"), FAMILIES)
def test_open_calls_of_a_failed_answer_get_no_result(api, model, stop):
    """Calls of a failed or aborted answer never ran: without a result they are dropped, with one they stay."""
    answer = Message("assistant", (Text("I read it."), CALL))
    history = build_state(
        make_entry(GO),
        make_entry(answer),
        AnswerEntry("", stop_reason=stop),
        make_entry(Message.from_text("user", "again")),
    )
    sent = [sized.message for sized in build_messages_to_send(plan_request(history, get_target(api, model)))]
    assert not [call for message in sent for call in message.calls]
    assert not [result for message in sent for result in message.results]
    assert any("I read it." in message.text for message in sent)
    result_message = Message("tool", (ToolResult("c1", "read", (Text("real"),)),))
    history = build_state(
        make_entry(GO),
        make_entry(answer),
        AnswerEntry("", stop_reason=stop),
        make_entry(result_message),
        make_entry(GO),
    )
    sent = [sized.message for sized in build_messages_to_send(plan_request(history, get_target(api, model)))]
    assert [result.content for message in sent for result in message.results] == [(Text("real"),)]


@pytest.mark.parametrize(("api", "model"), FAMILIES)
def test_truncated_call_gets_no_result(api, model):
    """A call whose arguments end in the middle never ran; a complete call without a result may have."""
    truncated = Message("assistant", (Text("a"), replace(CALL, arguments='{"path": "a')))
    complete = Message("assistant", (Text("a"), CALL))
    for answer, count in ((truncated, 0), (complete, 1)):
        sent = [sized.message for sized in build_messages_to_send(plan([GO, answer, GO], get_target(api, model)))]
        assert [SYNTHETIC_RESULT_TEXT in str(result) for message in sent for result in message.results] == [
            True
        ] * count


# -- reasoning items ---------------------------------------------------------------------------------------------------


def test_fix_request_drops_the_item_id_with_dropped_reasoning():
    """Responses: an item whose reasoning is dropped is sent without the id that ties them; its call id stays."""
    items = [
        {"type": "message", "role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "r"},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "y"},
        {"type": "message", "role": "user", "content": "b"},
    ]
    fixed = fix_request(json.dumps({"model": "gpt-5.5", "input": items}).encode(), "openai-responses")
    sent = json.loads(fixed.body)["input"]
    assert fixed.is_valid
    assert sent == [*items[:4], items[5]]


def test_plan_drops_the_item_id_with_another_models_thinking():
    """The same for messages: the part after dropped thinking loses its signature and its wire bytes."""
    from holdfast.messages.parts import ProviderSignature

    target = get_target("openai-responses", "gpt-5.5")
    thought = Thinking("hm", ProviderSignature("openai-responses", "o3", "enc"))
    answer = Message("assistant", (thought, Text("yes", ProviderSignature("openai-responses", "", "msg_1"))))
    sent = [sized.message for sized in build_messages_to_send(plan([GO, answer, GO], target))]
    assert sent[1].parts == (Text("yes"),)


# -- signatures --------------------------------------------------------------------------------------------------------


def test_stand_in_signature_is_sent_for_the_current_turn_only():
    """Gemini 3: an unsigned call of the current turn gets the documented stand-in, one of an earlier turn none."""
    target = get_target("gemini", "gemini-3.1-pro-preview")
    step = [Message("assistant", (CALL,)), Message("tool", (ToolResult("c1", "read", (Text("r"),)),))]
    first = plan([GO, *step], target)
    assert "skip_thought_signature_validator" in str([sized.message for sized in build_messages_to_send(first)])
    second = plan([GO, *step, Message.from_text("assistant", "done"), GO], target, state=first.state)
    assert second.normalization == ()
    assert plan([GO, *step], get_target("gemini", "gemini-2.5-pro")).normalization == ()
