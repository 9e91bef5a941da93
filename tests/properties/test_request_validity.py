"""Whatever the history, the request is one that the API accepts (valid-request and the invariants below it).
The validator shares no code with the normalization.
"""

from __future__ import annotations

import json
import re
from collections import Counter

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis_strategies import broken_history_strategy, conversation_strategy, damage_history, wild_history_strategy
from msgspec import Raw
from msgspec.structs import replace
from planning_loop import drive_agent_loop
from sample_conversations import DAMAGE_BY_NAME, ODD_IDS, build_conversation

from holdfast import ConversationState, PlanInputs, Policy, Target, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.normalize.ids import encode_wire_id
from holdfast.normalize.normalize_history import normalize_history
from holdfast.normalize.pairing import ORPHAN_RESULT_LABEL
from holdfast.normalize.projection import build_messages_to_send
from holdfast.normalize.result_matching import SYNTHETIC_RESULT_TEXT
from holdfast.planning.pipeline import plan_request
from holdfast.planning.presets.registry import PRESETS
from holdfast.providers.requests.message_dicts import decode_messages, encode_messages
from holdfast.providers.requests.parsed_request import measure_parsed_request, parse_request
from holdfast.providers.requests.request_body import build_request_body, render_request
from holdfast.providers.rules.validate import validate_request
from holdfast.state.entries import Entry, MessageEntry, RequestSetup
from holdfast.state.fold.fold_entries import apply_entry

KNOWN_MODELS = [
    ("anthropic", "claude-3-5-sonnet-20241022"),
    ("anthropic", "claude-sonnet-4-5"),
    ("anthropic", "claude-opus-5-0"),
    ("anthropic", "claude-opus-5-5"),
    ("openai-chat", "gpt-5"),
]
"""An old model, one with prefill, one that takes system messages midway, one that binds thinking, and Chat."""
MODELS = [*KNOWN_MODELS, ("anthropic", "somebody-else")]
OPTIONS = frozenset({"anthropic.thinking-off", "anthropic.thinking-first"})
"""Rules about options of the request, which the planner does not set."""
SHORT_LIMITS = replace(
    Policy().with_settings(
        window={"min_budget": 0}, results={"spill_chars": 300, "preview_chars": 100, "outline_chars": 50}
    ),
    name="short",
)
POLICIES = [SHORT_LIMITS, *(Policy.preset(name) for name in PRESETS)]
WINDOWS = (7_000, 20_000, 200_000)


def drop_system_prefix(messages, model):
    """Return a history as its client has it: with Anthropic the system prompt is in a field of its own."""
    start = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    return messages[start:] if model[0] == "anthropic" else messages


def list_errors(target, planned):
    """Return the validator's errors in the request of a plan."""
    findings = validate_request(
        build_request_body(target.api, target.model, build_messages_to_send(planned), options=planned.options),
        target.api,
    )
    return [finding for finding in findings if finding.level == "error" and finding.rule not in OPTIONS]


def list_all_errors(messages, model, window, policy):
    """Return the errors of all requests of a loop over ``messages``, and of one request for all of them."""
    target = get_target(*model, window=window, setup=RequestSetup("f", 400))
    history = drop_system_prefix(messages, model)
    plans = [
        step.plan
        for step in drive_agent_loop(
            history, target, policy, plan_inputs=[PlanInputs(), PlanInputs("cold", idle_seconds=4_000)]
        )
    ]
    plans.append(plan(history, target, policy))
    return [finding for planned in plans if build_messages_to_send(planned) for finding in list_errors(target, planned)]


@given(
    conversation_strategy(longest=2_000), st.sampled_from(MODELS), st.sampled_from(WINDOWS), st.sampled_from(POLICIES)
)
def test_sound_conversations_are_valid_under_every_preset(messages, model, window, policy):
    """valid-request: a valid conversation stays valid under every preset, cut, summarized and spilled."""
    if policy.name == "openclaw":
        window = max(window, 16_000)
    assert list_all_errors(messages, model, window, policy) == []


@pytest.mark.parametrize("kind", DAMAGE_BY_NAME)
def test_each_kind_of_damage_is_normalized(kind):
    """valid-request: each kind of damage alone is normalized for every model under every policy."""

    @given(
        broken_history_strategy([kind], max_damages=2, system=False),
        st.sampled_from(MODELS),
        st.sampled_from([SHORT_LIMITS, Policy(), POLICIES[2]]),
    )
    def check(messages, model, policy):
        assert list_all_errors(messages, model, 20_000, policy) == []

    check()


@given(broken_history_strategy(max_damages=8, system=False), st.sampled_from(MODELS), st.sampled_from(POLICIES))
def test_any_mixture_of_damage_is_normalized(messages, model, policy):
    """valid-request: any mixture of damage is normalized for every model under every policy."""
    assert list_all_errors(messages, model, 20_000, policy) == []


@pytest.mark.parametrize("model", MODELS)
def test_system_prompt_among_the_messages_is_valid(model):
    """valid-request: a conversation from another API, which begins with its system prompt, is valid on each API."""
    target = get_target(*model, window=50_000)
    messages = [
        Message.from_text("system", "Be brief."),
        Message.from_text("user", "a"),
        Message.from_text("assistant", "b"),
        *user("c"),
    ]
    assert list_errors(target, plan(messages, target)) == []


@given(wild_history_strategy(), st.sampled_from(MODELS))
def test_plan_accepts_any_messages(messages, model):
    """Any list of any messages can be planned and rendered, from values or from its own wire bytes."""
    target = get_target(*model, window=20_000)
    new_plan = plan(messages, target)
    sent = build_request_body(target.api, target.model, build_messages_to_send(new_plan), options=new_plan.options)
    parsed = parse_request(sent, target.api)
    state = ConversationState.from_entries(Entry("", None, MessageEntry(sized)) for sized in parsed.messages)
    render_request(parsed, build_messages_to_send(plan_request(state, target)), new_plan.options)


# -- pairing -----------------------------------------------------------------------------------------------------------


def user(text):
    return [Message.from_text("user", text)]


def iter_answers_with_results(messages):
    """Yield each answer with the results before the next answer; adjacent assistant messages are one answer."""
    merged = []
    for message in messages:
        if merged and merged[-1].role == message.role == "assistant":
            merged[-1] = Message("assistant", merged[-1].parts + message.parts)
        else:
            merged.append(message)
    messages = merged
    for index, message in enumerate(messages):
        if message.role == "assistant":
            results = []
            for after in messages[index + 1 :]:
                if after.role == "assistant":
                    break
                results += after.results
            yield message, results


@given(broken_history_strategy(max_damages=6), st.sampled_from(MODELS))
def test_every_call_has_its_result(messages, model):
    """pairing-by-occurrence: in each request calls and results match one to one, each result directly after its call,
    and nothing is left over.
    """
    sent = apply(messages, plan(messages, get_target(*model, window=100_000)))
    before = next((index for index, sent_message in enumerate(sent) if sent_message.role == "assistant"), len(sent))
    assert [result for message in sent[:before] for result in message.results] == []
    for message, results in iter_answers_with_results(sent):
        assert Counter(call.id for call in message.calls) == Counter(result.call_id for result in results)


SHAPES = ("missing result", "orphan", "misplaced result", "swapped neighbours", "interleaved batches", "blank message")


STRAY_BESIDE = damage_history(
    build_conversation([(0, 1, [(1, 0, 1, 0)] * 3, False)]), [("orphan", 5, 0), ("interleaved batches", 0, 0)]
)
"""Two calls in two answers, their results in reverse order, and a result without a call."""


@given(broken_history_strategy(SHAPES, max_damages=6), st.sampled_from(MODELS))
@example(STRAY_BESIDE, MODELS[0])
def test_real_results_are_sent_once_and_in_order(messages, model):
    """pairing-by-occurrence: the result of a call is sent once, wherever it came; moved results are in call order. The
    others keep their order, and results without a call are turned into text.
    """
    new_plan = plan(messages, get_target(*model, window=100_000))
    sent = apply(messages, new_plan)
    called_ids = {call.id for message in messages if message.role == "assistant" for call in message.calls}
    expected = {}
    for message in messages:
        for result in message.results:
            if result.call_id in called_ids:
                expected.setdefault(result.call_id, get_result_text(result))
    found = [
        result for message in sent for result in message.results if result.content != (Text(SYNTHETIC_RESULT_TEXT),)
    ]
    assert sorted(result.call_id for result in found) == sorted(expected)
    assert all(get_result_text(result).startswith(expected[result.call_id]) for result in found)
    original_orders = [[result.call_id for result in message.results] for message in messages]
    original_orders += [[result.call_id for result in results] for _, results in iter_answers_with_results(messages)]
    original_orders = [[id_ for id_ in ids if id_ in called_ids] for ids in original_orders]
    for message, results in iter_answers_with_results(sent):
        order = [result.call_id for result in results]
        assert order == [call.id for call in message.calls] or order in original_orders


@given(st.permutations(range(3)), st.booleans(), st.sampled_from(["gemini-2.5-pro", "gemini-3.1-pro-preview"]))
def test_results_without_ids_follow_the_order_of_their_calls(order, is_split, model):
    """pairing-by-occurrence: where no id is sent a result is identified by its position, whatever arrived first, in one
    message or in several.
    """
    ids = [f"read#{number}" for number in range(1, 4)]
    results = [ToolResult(ids[at], "read", (Text(f"of {ids[at]}"),)) for at in order]
    result_messages = (
        [Message("tool", (result,)) for result in results] if is_split else [Message("tool", tuple(results))]
    )
    history = [
        Message.from_text("user", "go"),
        Message("assistant", tuple(ToolCall(id_, "read") for id_ in ids)),
        *result_messages,
    ]
    sent = apply(history, plan(history, get_target("gemini", model, window=100_000)))
    assert [get_result_text(result) for message in sent for result in message.results] == [f"of {id_}" for id_ in ids]


def calls(*ids):
    return Message("assistant", tuple(ToolCall(id_, "read") for id_ in ids))


def results(*pairs):
    return Message("tool", tuple(ToolResult(id_, "read", (Text(text),)) for id_, text in pairs))


def list_paired_results(messages, model=MODELS[1]):
    """Return the texts of the results after each assistant message with calls, as sent."""
    sent = apply(messages, plan(messages, get_target(*model, window=100_000)))
    return [
        [result.content[0].text for result in results]
        for message, results in iter_answers_with_results(sent)
        if message.calls
    ]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("history", "texts"),
    [
        ([calls("a"), *user("wait"), results(("a", "1"))], [["1"]]),
        ([calls("a", "b"), results(("b", "2"), ("a", "1")), *user("x")], [["2", "1"]]),
        ([calls("a"), *user("wait"), calls("b"), results(("b", "2")), results(("a", "1"))], [["1"], ["2"]]),
        ([results(("a", "early")), calls("a"), *user("x")], [["early"]]),
        ([calls("a"), results(("a", "1")), results(("a", "again"))], [["1"]]),
        ([results(("a", "early")), calls("a"), results(("a", "1"))], [["1"]]),
        ([calls("a"), results(("a", "1")), calls("a"), results(("a", "2"))], [["1"], ["2"]]),
        ([calls("a"), *user("stop"), calls("a"), results(("a", "2"))], [[SYNTHETIC_RESULT_TEXT], ["2"]]),
        ([calls("a"), *user("stop"), calls("a"), results(("a", "2")), calls("a"), results(("a", "3"))],
         [[SYNTHETIC_RESULT_TEXT], ["2"], ["3"]]),
        ([calls("a", "a"), results(("a", "1"), ("a", "2"))], [["1", "2"]]),
    ],
)  # fmt: skip
def test_results_are_paired_by_occurrence(model, history, texts):
    """pairing-by-occurrence: a gap stays a gap and moves no later result to an earlier call."""
    assert list_paired_results([*user("go"), *history], model) == texts


@pytest.mark.parametrize("model", MODELS)
def test_late_result_replaces_the_synthetic_one(model):
    """synthetic-in-views-only: a synthetic result is sent only until the real one arrives, and is never in the log."""
    target = get_target(*model, window=100_000)
    messages = [*user("go"), calls("a"), *user("are you there?")]
    first = plan(messages, target)
    assert list_paired_results(messages, model) == [[SYNTHETIC_RESULT_TEXT]]
    assert SYNTHETIC_RESULT_TEXT.encode() not in first.state.dump().split(b"settled")[0]
    assert SYNTHETIC_RESULT_TEXT not in str(first.record)
    later = [*messages, results(("a", "real")), *user("well?")]
    second = plan(later, target, state=first.state)
    assert [r.content[0].text for message in apply(later, second) for r in message.results] == ["real"]


@given(broken_history_strategy(max_damages=5), st.sampled_from(MODELS))
def test_synthetic_results_are_never_recorded(messages, model):
    """synthetic-in-views-only: no normalization gets into the log: without the remembered prefix a state has only the
    real messages.
    """
    for step in drive_agent_loop(messages, get_target(*model, window=9_000), SHORT_LIMITS):
        assert SYNTHETIC_RESULT_TEXT not in str(step.plan.record)
        for sized in step.plan.state.history.sized_messages:
            assert sized.message in messages


# -- valid requests ----------------------------------------------------------------------------------------------------


def render_client_body(messages, model):
    """Return a history as a client's request body, with JSON spacing that Holdfast's encoder never uses."""
    body = json.loads(build_request_body(*model, [build_sized_message(message) for message in messages]))
    if model[1] == "claude-sonnet-4-5":
        body |= {"thinking": {"type": "enabled", "budget_tokens": 2_000}, "max_tokens": 9_000}
    return json.dumps(body, indent=1).encode()


@given(broken_history_strategy(max_damages=2), st.sampled_from(KNOWN_MODELS))
def test_valid_requests_are_left_unchanged(messages, model):
    """fix-is-idempotent: a request that is valid is not edited, and is sent with the bytes in which it arrived."""
    raw = render_client_body(drop_system_prefix(messages, model), model)
    assume(not validate_request(raw, model[0]))
    parsed = parse_request(raw, model[0])
    new_plan = plan_request(
        ConversationState.from_entries(
            Entry("", None, MessageEntry(sized)) for sized in measure_parsed_request(parsed).messages
        ),
        get_target(*model, window=200_000),
    )
    assert new_plan.normalization == ()
    assert render_request(parsed, build_messages_to_send(new_plan)) is raw


@given(conversation_strategy(longest=300), st.sampled_from(KNOWN_MODELS))
def test_sound_conversations_are_left_unchanged(messages, model):
    """fix-is-idempotent: the same for sound conversations, of which the strategy draws enough."""
    raw = render_client_body(drop_system_prefix(messages, model), model)
    parsed = parse_request(raw, model[0])
    new_plan = plan_request(
        ConversationState.from_entries(
            Entry("", None, MessageEntry(sized)) for sized in measure_parsed_request(parsed).messages
        ),
        get_target(*model, window=200_000),
    )
    assume(messages[-1].role != "assistant" or model[0] == "openai-chat")
    assert new_plan.normalization == ()
    assert new_plan.is_empty
    assert render_request(parsed, build_messages_to_send(new_plan)) is raw


@given(broken_history_strategy(max_damages=6) | wild_history_strategy(), st.sampled_from(MODELS))
def test_normalization_is_idempotent(messages, model):
    """fix-is-idempotent: a normalized history needs no normalization."""
    target = get_target(*model, window=200_000)
    normalized = apply(messages, plan(messages, target))
    assert apply(normalized, plan(normalized, target)) == normalized
    assert normalize_history(normalized, target.dialect) == ()


@given(broken_history_strategy(max_damages=3), st.sampled_from(KNOWN_MODELS))
def test_normalization_keeps_every_text(messages, model):
    """Every text is sent as it was, or labelled as a system message, or without trailing blanks."""
    sent = apply(messages, plan(messages, get_target(*model, window=200_000)))
    texts = Counter(
        part.text for message in messages for part in message.parts if isinstance(part, Text) and part.text.strip()
    )
    sent_texts = Counter(
        part.text for message in sent for part in message.parts if isinstance(part, Text) and part.text.strip()
    )
    changed_texts = texts - sent_texts
    assert all(
        f"[System message] {text}" in sent_texts or text.rstrip() in sent_texts for text in changed_texts
    )  # no blank may end it


# -- signatures and ids ------------------------------------------------------------------------------------------------


@given(
    broken_history_strategy(["thinking", "thinking alone", "missing result"], max_damages=5), st.sampled_from(MODELS)
)
def test_thinking_is_sent_whole_or_not_at_all(messages, model):
    """signed-bytes-intact: thinking that is sent is signed by this API for this model and unchanged to the
    last byte.
    """
    thinking = [part for message in messages for part in message.parts if isinstance(part, Thinking)]
    for message in apply(messages, plan(messages, get_target(*model, window=200_000))):
        for part in message.parts:
            if isinstance(part, Thinking):
                assert part in thinking
                assert part.signature is not None
                assert part.signature.api == model[0]
                assert part.signature.model in ("", model[1])


ids = st.sampled_from(ODD_IDS) | st.text(max_size=70) | st.from_regex(r"[a-z]{1,3}_[0-9a-f]{12}", fullmatch=True)
dialects = st.sampled_from([get_target(*model).dialect for model in MODELS] + [Target().dialect])


@given(st.lists(ids, unique=True, max_size=8), dialects)
def test_encode_wire_id_is_injective(names, dialect):
    """stable-id-mapping: different ids stay different, in the alphabet and length of the API, and mapping twice changes
    nothing.
    """
    mapped = [encode_wire_id(name, dialect) for name in names]
    assert len(set(mapped)) == len(names)
    for name in mapped:
        assert re.fullmatch(f"(?:{dialect.id_character_pattern})+", name)
        assert len(name) <= dialect.id_max
        assert encode_wire_id(name, dialect) == name


@given(
    broken_history_strategy(["repeated id", "odd id", "same id in a message"], max_damages=4), st.sampled_from(MODELS)
)
def test_ids_in_a_request_are_unique(messages, model):
    """stable-id-mapping: on an API that requires it no two calls of a request share an id, and each result names its
    own call.
    """
    target = get_target(*model, window=200_000)
    assume(target.dialect.unique_ids)
    sent = apply(messages, plan(messages, target))
    used = [call.id for message in sent for call in message.calls]
    assert len(set(used)) == len(used)
    assert [r.call_id for message in sent for r in message.results] == [
        r.call_id for message, found in iter_answers_with_results(sent) for r in found
    ]


@given(
    broken_history_strategy(["repeated id", "odd id"], max_damages=3), conversation_strategy(), st.sampled_from(MODELS)
)
def test_ids_stay_the_same_as_the_history_grows(broken, messages, model):
    """stable-id-mapping: an id that was mapped or renamed is the same in every later request."""
    target = get_target(*model, window=200_000)
    start = [*broken, *user("go on"), Message.from_text("assistant", "yes")]
    longer = [*start, *(message for message in messages if message.role != "system")]
    first, second = (apply(part, plan(part, target)) for part in ([*start, *user("x")], [*longer, *user("x")]))
    used = [call.id for one in first for call in one.calls]
    assert [call.id for one in second for call in one.calls][: len(used)] == used


# -- bytes -------------------------------------------------------------------------------------------------------------


@given(
    broken_history_strategy(["missing result", "orphan", "repeated id", "odd id"], max_damages=3),
    st.sampled_from(KNOWN_MODELS[:4]),
)
def test_normalization_keeps_the_bytes_of_neighbours(messages, model):
    """Blocks that normalization does not touch keep their own JSON, including unknown fields."""
    raw = json.loads(render_client_body(drop_system_prefix(messages, model), model))
    for message in raw["messages"]:
        for block in list_blocks(message):
            block["x_mine"] = [1.0, "e\u0301"]
    data = json.dumps(raw).encode()
    parsed = parse_request(data, model[0])
    new_plan = plan_request(
        ConversationState.from_entries(
            Entry("", None, MessageEntry(sized)) for sized in measure_parsed_request(parsed).messages
        ),
        get_target(*model, window=200_000),
    )
    sent = json.loads(render_request(parsed, build_messages_to_send(new_plan)))
    known = {block.get("id") for one in raw["messages"] for block in list_blocks(one)}
    labels = ("[System message]", ORPHAN_RESULT_LABEL[:-1])  # text with such a label is from another role
    unlabelled = [message for message in sent["messages"] if not any(label in str(message) for label in labels)]
    for block in [block for one in unlabelled for block in list_blocks(one)]:
        is_synthetic = SYNTHETIC_RESULT_TEXT in str(block) or block.get("text") in (
            "Continue.",
            "(the conversation so far)",
        )
        is_renamed = block.get("id", block.get("tool_use_id")) not in known
        assert is_synthetic or is_renamed or block.get("x_mine") == [1.0, "e\u0301"]


def list_blocks(message):
    """Return the blocks of a wire message."""
    return message["content"] if isinstance(message["content"], list) else []


def test_client_may_move_its_cache_breakpoint():
    """A client that marks the newest message of each request keeps its one breakpoint where it put it."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
    wire_messages, state = [], None
    for turn in range(6):
        wire_messages.append({"role": "user", "content": [{"type": "text", "text": f"turn {turn}"}]})
        sent = msgspec.json.decode(msgspec.json.encode(wire_messages))
        sent[-1]["content"][0]["cache_control"] = {"type": "ephemeral"}
        values = decode_messages("anthropic", sent)
        new_plan = plan(values, target, state=state)
        assert encode_messages("anthropic", apply(values, new_plan)) == sent
        state = new_plan.state
        wire_messages.append({"role": "assistant", "content": f"answer {turn}"})


def test_message_with_wire_bytes_is_sent_unchanged():
    """A message with wire bytes of its own is sent as those bytes in every request that shows it."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
    raw = b'{ "role":"user", "content":"a" }'
    sized = replace(build_sized_message(Message.from_text("user", "a")), api="anthropic", raw=Raw(raw))
    state = apply_entry(ConversationState(), Entry("", None, MessageEntry(sized)))
    for _ in range(2):
        new_plan = plan_request(state, target)
        assert raw in build_request_body("anthropic", target.model, build_messages_to_send(new_plan))
        state = apply_entry(
            new_plan.state, Entry("", None, MessageEntry(build_sized_message(Message.from_text("assistant", "b"))))
        )
        state = apply_entry(state, Entry("", None, MessageEntry(build_sized_message(Message.from_text("user", "c")))))


def test_signatures_of_another_model_are_not_sent():
    """signed-bytes-intact: thinking that another model of the same API signed is not sent."""
    answer = Message("assistant", (Thinking("hm", ProviderSignature("anthropic", "claude-old", "s")), Text("yes")))
    messages = [*user("a"), answer, *user("b")]
    sent = apply(messages, plan(messages, get_target("anthropic", "claude-sonnet-4-5", window=100_000)))
    assert not any(isinstance(part, Thinking) for message in sent for part in message.parts)


def test_result_without_text_is_valid():
    """An empty result, or one with a blank text, is one that the API accepts."""
    for content in [(), (Text(""),), (Text(" "),)]:
        messages = [*user("a"), calls("t"), Message("tool", (ToolResult("t", "read", content),))]
        for model in MODELS:
            target = get_target(*model, window=100_000)
            assert list_errors(target, plan(messages, target)) == []
