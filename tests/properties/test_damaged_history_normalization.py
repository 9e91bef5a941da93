"""What was said, however it was mangled, becomes a request that its API takes (valid-request and the invariants below
it), for all four APIs.
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
from holdfast.normalize.pairing import SYNTHETIC_RESULT_TEXT
from holdfast.normalize.parts import has_nonblank_content
from holdfast.normalize.projection import build_messages_to_send, normalize_projection
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
COUNT = example_counts.choose(quick=60, ci=182, thorough=2_000)
"""Histories for each model family; the million is ``python tests/support/history_fuzzer.py --count 1000000``."""


@pytest.mark.counts
@pytest.mark.parametrize(("api", "model"), FAMILIES)
def test_mangled_histories_keep_every_law(api, model):
    """Whatever happened to a history: valid, repaired once for all, nothing lost, no real result replaced."""
    assert [(seed, law) for seed in range(COUNT) for law in check_seed_history(seed, api, model)] == []


BROKE = [
    (20_359_685, "openai-chat", "gpt-5"),
    (20_548_490, "anthropic", "claude-opus-5-0"),
    (20_397_262, "gemini", "gemini-3.1-pro-preview"),
    (20_506_496, "openai-responses", "gpt-5.5"),
    (20_616_501, "gemini", "gemini-2.5-pro"),
    (20_898_859, "openai-chat", "somebody-else"),
]
"""Histories that once broke a law."""


@pytest.mark.parametrize(("seed", "api", "model"), BROKE)
def test_what_broke_once_holds(seed, api, model):
    """A history that broke a law in some long run keeps them all."""
    assert list(check_seed_history(seed, api, model)) == []


@pytest.mark.parametrize("blow", MUTATIONS, ids=lambda blow: blow.__name__)
def test_each_blow_breaks_something(blow):
    """Every way of mangling makes a request that some API refuses, or the laws above would prove little."""
    refused = 0
    for seed in range(60):
        rng = Random(seed)
        messages = list(blow(make_valid_conversation(rng, "anthropic"), rng))
        refused += any(normalize_history(messages, get_target(api, MANGLE_MODELS[api][0]).dialect) for api in API_NAMES)
    assert refused


@given(st.integers(0, 10_000), st.sampled_from(FAMILIES))
def test_planning_step_by_step_repairs_as_planning_at_once(seed, family):
    """The memory of what is settled changes no repair: growing a history finds what looking at all of it finds."""
    where = get_target(*family, window=200_000)
    branch = ConversationState()
    for message in mangle_conversation(Random(seed), family[0]):
        branch = apply_entry(branch, Entry("", None, MessageEntry(build_sized_message(message))))
        repair, settled = normalize_projection(branch, where.dialect)
        assert (
            repair
            == normalize_projection(replace(branch, view=replace(branch.view, normalized_prefix=None)), where.dialect)[
                0
            ]
        )
        branch = replace(branch, view=replace(branch.view, normalized_prefix=settled))


@given(st.integers(0, 10_000), st.sampled_from([*FAMILIES, ("anthropic", "claude-opus-5-5")]))
@example(42, ("openai-chat", "gpt-5"))
@example(78, ("anthropic", "claude-opus-5-5"))
@example(1953, ("anthropic", "claude-opus-5-5"))
@example(2797, ("anthropic", "claude-3-5-sonnet-20241022"))
@example(40, ("anthropic", "claude-3-5-sonnet-20241022"))
@example(487, ("anthropic", "claude-3-5-sonnet-20241022"))
def test_frames_and_decisions_in_between_change_no_repair(seed, family):
    """The same where two histories follow each other, frames change, texts give way and answers break off."""
    rng, where, branch = Random(seed), get_target(*family, window=200_000), ConversationState()
    for number, message in enumerate([*mangle_conversation(rng, family[0]), *mangle_conversation(rng, family[0])]):
        told = [MessageEntry(build_sized_message(message))]
        if rng.random() < 0.1:
            told.append(RequestSetup(f"f{number}", 10))
        if rng.random() < 0.1 and message.role == "assistant":
            told.append(AnswerEntry("b", stop_reason="aborted"))
        if rng.random() < 0.1 and message.parts and isinstance(message.parts[0], Text):
            told.append(DecisionEntry((Edit(Span(number, number + 1, 0), (Text("cut"),), "spill"),)))
        branch = apply_entries(branch, [Entry("d", None, one) for one in told])
        repair, settled = normalize_projection(branch, where.dialect)
        assert (
            repair
            == normalize_projection(replace(branch, view=replace(branch.view, normalized_prefix=None)), where.dialect)[
                0
            ]
        )
        branch = replace(branch, view=replace(branch.view, normalized_prefix=settled))


@given(st.integers(0, 10_000), st.sampled_from(FAMILIES))
def test_a_plan_is_valid_too(seed, family):
    """valid-request: the same through the planner: decisions, repairs, and the rendering of both."""
    where = get_target(*family, window=200_000)
    messages = mangle_conversation(Random(seed), family[0])
    assume(any(map(has_nonblank_content, messages)))
    made = plan(messages, where)
    sent = build_request_body(where.api, where.model, build_messages_to_send(made), options=made.options)
    found = validate_request(sent, where.api, model=where.model)
    assert [one for one in found if one.level == "error" and "thinking" not in one.rule] == []


@given(st.integers(0, 10_000), st.sampled_from(FAMILIES))
def test_fixing_twice_is_fixing_once(seed, family):
    """fix-is-idempotent: ``fix(fix(x)) == fix(x)``, and what was valid is the very same object."""
    api, model = family
    raw = build_request_body(
        api, model, [SizedMessage(message) for message in make_valid_conversation(Random(seed), api)]
    )
    for one in (
        raw,
        build_request_body(api, model, [SizedMessage(message) for message in mangle_conversation(Random(seed), api)]),
    ):
        once = fix_request(one, api, model=model)
        again = fix_request(once.body, api, model=model)
        assert again.body is once.body
        if not [finding for finding in validate_request(one, api, model=model) if finding.level == "error"]:
            assert once.body is one


# -- bodies that are no histories --------------------------------------------------------------------------------------


def places(value, path=()):
    """Yield the path of everything inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


ODD = [None, 3, "", [], {}, "x", " ", True, [1], {"a": 1}, 1e300]


def damaged_json(value, rng):
    """Return a JSON value with one thing in it gone, another, twice, unknown, or out of order."""
    path = rng.choice(list(places(value)))
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    kind, key = rng.randrange(4), path[-1]
    if kind == 0:
        del holder[key]
    elif kind == 1:
        holder[key] = rng.choice(ODD)
    elif isinstance(holder, dict):
        holder[f"x_{kind}"] = rng.choice(ODD)
    elif kind == 2:
        holder.insert(rng.randrange(len(holder) + 1), json.loads(json.dumps(holder[key])))
    else:
        rng.shuffle(holder)
    return value


@given(st.integers(0, 100_000), st.sampled_from(FAMILIES))
def test_any_damage_to_a_body_is_answered(seed, family):
    """Whatever is wrong with the JSON: mended once for all, no word of a user lost, or a typed error."""
    rng = Random(seed)
    value = json.loads(
        build_request_body(*family, [SizedMessage(message) for message in make_valid_conversation(rng, family[0])])
    )
    for _ in range(rng.randint(1, 4)):
        value = damaged_json(value, rng) if list(places(value)) else value
    try:
        once = fix_request(json.dumps(value).encode(), family[0], model=family[1])
    except HoldfastError:
        return
    assert fix_request(once.body, family[0], model=family[1]).body == once.body
    assert once.is_valid or once.findings


# -- answers that were interrupted -------------------------------------------------------------------------------------


CALL = ToolCall("c1", "read", '{"path": "a"}')
GO = Message.from_text("user", "go")


def branch_of(*bodies):
    return ConversationState.from_entries(Entry("", None, one) for one in bodies)


def said(message):
    return MessageEntry(build_sized_message(message))


@pytest.mark.parametrize("stop", ["error", "aborted"])
@pytest.mark.parametrize(("api", "model"), FAMILIES)
def test_open_calls_of_a_failed_answer_get_no_result(api, model, stop):
    """Calls of an errored or aborted answer never ran: without a result they go, with one they stay."""
    answer = Message("assistant", (Text("I read it."), CALL))
    history = branch_of(
        said(GO), said(answer), AnswerEntry("", stop_reason=stop), said(Message.from_text("user", "again"))
    )
    sent = [slot.message for slot in build_messages_to_send(plan_request(history, get_target(api, model)))]
    assert not [call for one in sent for call in one.calls]
    assert not [result for one in sent for result in one.results]
    assert any("I read it." in one.text for one in sent)
    answered = Message("tool", (ToolResult("c1", "read", (Text("real"),)),))
    history = branch_of(said(GO), said(answer), AnswerEntry("", stop_reason=stop), said(answered), said(GO))
    sent = [slot.message for slot in build_messages_to_send(plan_request(history, get_target(api, model)))]
    assert [result.content for one in sent for result in one.results] == [(Text("real"),)]


@pytest.mark.parametrize(("api", "model"), FAMILIES)
def test_a_call_that_was_cut_off_gets_no_result(api, model):
    """A call whose arguments end in the middle never ran; one that only lacks its result did, as far as we know."""
    cut = Message("assistant", (Text("a"), replace(CALL, arguments='{"path": "a')))
    whole = Message("assistant", (Text("a"), CALL))
    for answer, count in ((cut, 0), (whole, 1)):
        sent = [slot.message for slot in build_messages_to_send(plan([GO, answer, GO], get_target(api, model)))]
        assert [SYNTHETIC_RESULT_TEXT in str(result) for one in sent for result in one.results] == [True] * count


# -- reasoning units ---------------------------------------------------------------------------------------------------


def test_reasoning_that_goes_takes_the_name_of_its_item_along():
    """Responses: an item whose reasoning is dropped is sent without the id that names both; its call id stays."""
    items = [
        {"type": "message", "role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "r"},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "y"},
        {"type": "message", "role": "user", "content": "b"},
    ]
    made = fix_request(json.dumps({"model": "gpt-5.5", "input": items}).encode(), "openai-responses")
    sent = json.loads(made.body)["input"]
    assert made.is_valid
    assert sent == [*items[:4], items[5]]


def test_thinking_of_another_model_goes_with_the_name_of_its_item():
    """The same for values: the part behind dropped thinking keeps neither its seal nor its bytes."""
    from holdfast.messages.parts import ProviderSignature

    where = get_target("openai-responses", "gpt-5.5")
    thought = Thinking("hm", ProviderSignature("openai-responses", "o3", "enc"))
    answer = Message("assistant", (thought, Text("yes", ProviderSignature("openai-responses", "", "msg_1"))))
    sent = [slot.message for slot in build_messages_to_send(plan([GO, answer, GO], where))]
    assert sent[1].parts == (Text("yes"),)


# -- signatures --------------------------------------------------------------------------------------------------------


def test_a_stand_in_for_a_signature_lasts_one_turn():
    """Gemini 3: an unsigned call of the current turn gets the documented stand-in, one of an earlier turn nothing."""
    where = get_target("gemini", "gemini-3.1-pro-preview")
    step = [Message("assistant", (CALL,)), Message("tool", (ToolResult("c1", "read", (Text("r"),)),))]
    first = plan([GO, *step], where)
    assert "skip_thought_signature_validator" in str([slot.message for slot in build_messages_to_send(first)])
    second = plan([GO, *step, Message.from_text("assistant", "done"), GO], where, state=first.state)
    assert second.normalization == ()
    assert plan([GO, *step], get_target("gemini", "gemini-2.5-pro")).normalization == ()
