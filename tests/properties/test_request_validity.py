"""Whatever was said, the request is one that the API takes (valid-request and the invariants below it); the validator
shares no code with the repair.
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
from holdfast.normalize.pairing import ORPHAN_RESULT_LABEL, SYNTHETIC_RESULT_TEXT
from holdfast.normalize.projection import build_messages_to_send
from holdfast.planning.pipeline import plan_request
from holdfast.planning.presets.registry import PRESETS
from holdfast.providers.requests.message_dicts import decode_messages, encode_messages
from holdfast.providers.requests.parsed_request import measure_parsed_request, parse_request
from holdfast.providers.requests.request_body import build_request_body, render_request
from holdfast.providers.rules.validate import validate_request
from holdfast.state.entries import Entry, MessageEntry, RequestSetup
from holdfast.state.fold.fold_entries import apply_entry

KNOWN = [
    ("anthropic", "claude-3-5-sonnet-20241022"),
    ("anthropic", "claude-sonnet-4-5"),
    ("anthropic", "claude-opus-5-0"),
    ("anthropic", "claude-opus-5-5"),
    ("openai-chat", "gpt-5"),
]
"""An old model, one with prefill, one with system messages inside, one that binds thinking; and Chat."""
MODELS = [*KNOWN, ("anthropic", "somebody-else")]
OPTIONS = frozenset({"anthropic.thinking-off", "anthropic.thinking-first"})
"""Rules about the request's options beside its messages, which the planner never sees."""
SHORT = replace(
    Policy().with_settings(
        window={"min_budget": 0}, results={"spill_chars": 300, "preview_chars": 100, "outline_chars": 50}
    ),
    name="short",
)
POLICIES = [SHORT, *(Policy.preset(name) for name in PRESETS)]
WINDOWS = (7_000, 20_000, 200_000)


def as_sent(messages, model):
    """Return a history as its client would hold it: with Anthropic the system prompt stands in a field of its own."""
    start = next((place for place, one in enumerate(messages) if one.role != "system"), len(messages))
    return messages[start:] if model[0] == "anthropic" else messages


def errors(where, made):
    """Return what the validator says against the request of a plan."""
    found = validate_request(
        build_request_body(where.api, where.model, build_messages_to_send(made), options=made.options), where.api
    )
    return [one for one in found if one.level == "error" and one.rule not in OPTIONS]


def refused(messages, model, window, policy):
    """Return the errors of all requests of a loop over ``messages``, and of one that sees them all at once."""
    where = get_target(*model, window=window, setup=RequestSetup("f", 400))
    said = as_sent(messages, model)
    made = [
        step.plan
        for step in drive_agent_loop(said, where, policy, worlds=[PlanInputs(), PlanInputs("cold", idle_seconds=4_000)])
    ]
    made.append(plan(said, where, policy))
    return [one for each in made if build_messages_to_send(each) for one in errors(where, each)]


@given(
    conversation_strategy(longest=2_000), st.sampled_from(MODELS), st.sampled_from(WINDOWS), st.sampled_from(POLICIES)
)
def test_sound_conversations_are_taken(messages, model, window, policy):
    """valid-request: what is valid stays valid under every preset, cut, summarised and spilled."""
    if policy.name == "openclaw":
        window = max(window, 16_000)
    assert refused(messages, model, window, policy) == []


@pytest.mark.parametrize("kind", DAMAGE_BY_NAME)
def test_no_damage_makes_an_invalid_request(kind):
    """valid-request: each kind of damage, alone, is repaired for every model under every policy."""

    @given(
        broken_history_strategy([kind], max_wounds=2, system=False),
        st.sampled_from(MODELS),
        st.sampled_from([SHORT, Policy(), POLICIES[2]]),
    )
    def check(messages, model, policy):
        assert refused(messages, model, 20_000, policy) == []

    check()


@given(broken_history_strategy(max_wounds=8, system=False), st.sampled_from(MODELS), st.sampled_from(POLICIES))
def test_no_pile_of_damage_makes_an_invalid_request(messages, model, policy):
    """valid-request: any mixture of damage is repaired for every model under every policy."""
    assert refused(messages, model, 20_000, policy) == []


@pytest.mark.parametrize("model", MODELS)
def test_a_system_prompt_among_the_messages_is_taken(model):
    """valid-request: a conversation of another API, which begins with its system prompt, is valid on each."""
    where = get_target(*model, window=50_000)
    said = [
        Message.from_text("system", "Be brief."),
        Message.from_text("user", "a"),
        Message.from_text("assistant", "b"),
        *user("c"),
    ]
    assert errors(where, plan(said, where)) == []


@given(wild_history_strategy(), st.sampled_from(MODELS))
def test_nobody_falls_over_anything(messages, model):
    """Any list of any messages is planned and written down, with values or from its own wire bytes."""
    where = get_target(*model, window=20_000)
    made = plan(messages, where)
    sent = build_request_body(where.api, where.model, build_messages_to_send(made), options=made.options)
    again = parse_request(sent, where.api)
    branch = ConversationState.from_entries(Entry("", None, MessageEntry(slot)) for slot in again.messages)
    render_request(again, build_messages_to_send(plan_request(branch, where)), made.options)


# -- pairing -----------------------------------------------------------------------------------------------------------


def user(text):
    return [Message.from_text("user", text)]


def runs(messages):
    """Yield each answer, neighbouring assistant messages as one, with the results between it and the next one."""
    merged = []
    for message in messages:
        if merged and merged[-1].role == message.role == "assistant":
            merged[-1] = Message("assistant", merged[-1].parts + message.parts)
        else:
            merged.append(message)
    messages = merged
    for place, message in enumerate(messages):
        if message.role == "assistant":
            results = []
            for after in messages[place + 1 :]:
                if after.role == "assistant":
                    break
                results += after.results
            yield message, results


@given(broken_history_strategy(max_wounds=6), st.sampled_from(MODELS))
def test_every_call_has_its_result(messages, model):
    """pairing-by-occurrence: in each request calls and results match one to one, right behind each other, and nothing
    is left over.
    """
    sent = apply(messages, plan(messages, get_target(*model, window=100_000)))
    before = next((place for place, one in enumerate(sent) if one.role == "assistant"), len(sent))
    assert [result for one in sent[:before] for result in one.results] == []
    for message, results in runs(sent):
        assert Counter(call.id for call in message.calls) == Counter(result.call_id for result in results)


SHAPES = ("missing result", "orphan", "misplaced result", "swapped neighbours", "interleaved batches", "blank message")


STRAY_BESIDE = damage_history(
    build_conversation([(0, 1, [(1, 0, 1, 0)] * 3, False)]), [("orphan", 5, 0), ("interleaved batches", 0, 0)]
)
"""Two calls in two answers, their results the other way round, and one that nobody asked for."""


@given(broken_history_strategy(SHAPES, max_wounds=6), st.sampled_from(MODELS))
@example(STRAY_BESIDE, MODELS[0])
def test_real_results_are_sent_once_and_in_order(messages, model):
    """pairing-by-occurrence: the result of a call is sent, once, wherever it came; what had to be moved is in call
    order.

    What did not stands as it came, but for results of calls that nobody made, which are told in words.
    """
    made = plan(messages, get_target(*model, window=100_000))
    sent = apply(messages, made)
    called = {call.id for message in messages if message.role == "assistant" for call in message.calls}
    expected = {}
    for message in messages:
        for result in message.results:
            if result.call_id in called:
                expected.setdefault(result.call_id, get_result_text(result))
    found = [result for one in sent for result in one.results if result.content != (Text(SYNTHETIC_RESULT_TEXT),)]
    assert sorted(result.call_id for result in found) == sorted(expected)
    assert all(get_result_text(result).startswith(expected[result.call_id]) for result in found)
    stood = [[result.call_id for result in one.results] for one in messages]
    stood += [[result.call_id for result in results] for _, results in runs(messages)]
    stood = [[id_ for id_ in ids if id_ in called] for ids in stood]
    for message, results in runs(sent):
        order = [result.call_id for result in results]
        assert order == [call.id for call in message.calls] or order in stood


@given(st.permutations(range(3)), st.booleans(), st.sampled_from(["gemini-2.5-pro", "gemini-3.1-pro-preview"]))
def test_results_without_ids_stand_in_the_order_of_their_calls(order, apart, model):
    """pairing-by-occurrence: where no id is sent a result is known by its place, whatever came first: together, or one
    by one.
    """
    ids = [f"read#{number}" for number in range(1, 4)]
    told = [ToolResult(ids[at], "read", (Text(f"of {ids[at]}"),)) for at in order]
    said = [Message("tool", (one,)) for one in told] if apart else [Message("tool", tuple(told))]
    history = [
        Message.from_text("user", "go"),
        Message("assistant", tuple(ToolCall(id_, "read") for id_ in ids)),
        *said,
    ]
    sent = apply(history, plan(history, get_target("gemini", model, window=100_000)))
    assert [get_result_text(one) for message in sent for one in message.results] == [f"of {id_}" for id_ in ids]


def calls(*ids):
    return Message("assistant", tuple(ToolCall(id_, "read") for id_ in ids))


def results(*pairs):
    return Message("tool", tuple(ToolResult(id_, "read", (Text(text),)) for id_, text in pairs))


def paired(messages, model=MODELS[1]):
    """Return the texts of the results behind each assistant message with calls, as sent."""
    sent = apply(messages, plan(messages, get_target(*model, window=100_000)))
    return [[r.content[0].text for r in found] for message, found in runs(sent) if message.calls]


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
def test_which_result_goes_to_which_call(model, history, texts):
    """pairing-by-occurrence: matching is by occurrence; a gap stays a gap and shifts no later result to an earlier
    call.
    """
    assert paired([*user("go"), *history], model) == texts


@pytest.mark.parametrize("model", MODELS)
def test_a_late_result_wins(model):
    """synthetic-in-views-only: a made-up result stands only until the real one comes, and the log never hears of it."""
    where = get_target(*model, window=100_000)
    said = [*user("go"), calls("a"), *user("are you there?")]
    first = plan(said, where)
    assert paired(said, model) == [[SYNTHETIC_RESULT_TEXT]]
    assert SYNTHETIC_RESULT_TEXT.encode() not in first.state.dump().split(b"settled")[0]
    assert SYNTHETIC_RESULT_TEXT not in str(first.record)
    later = [*said, results(("a", "real")), *user("well?")]
    second = plan(later, where, state=first.state)
    assert [r.content[0].text for one in apply(later, second) for r in one.results] == ["real"]


@given(broken_history_strategy(max_wounds=5), st.sampled_from(MODELS))
def test_what_is_made_up_is_never_recorded(messages, model):
    """synthetic-in-views-only: no repair gets into the log: without its memory of repairs a branch knows only what was
    said.
    """
    for step in drive_agent_loop(messages, get_target(*model, window=9_000), SHORT):
        assert SYNTHETIC_RESULT_TEXT not in str(step.plan.record)
        for slot in step.plan.state.history.sized_messages:
            assert slot.message in messages


# -- what needs no repair ----------------------------------------------------------------------------------------------


def wire_of(messages, model):
    """Return a history as the body that a client would send, its JSON spaced as no encoder of ours does it."""
    made = json.loads(build_request_body(*model, [build_sized_message(one) for one in messages]))
    if model[1] == "claude-sonnet-4-5":
        made |= {"thinking": {"type": "enabled", "budget_tokens": 2_000}, "max_tokens": 9_000}
    return json.dumps(made, indent=1).encode()


@given(broken_history_strategy(max_wounds=2), st.sampled_from(KNOWN))
def test_what_the_validator_takes_is_left_alone(messages, model):
    """fix-is-idempotent: hygiene edits no request that is valid already, and it leaves as the very bytes it came in."""
    raw = wire_of(as_sent(messages, model), model)
    assume(not validate_request(raw, model[0]))
    lens = parse_request(raw, model[0])
    made = plan_request(
        ConversationState.from_entries(
            Entry("", None, MessageEntry(slot)) for slot in measure_parsed_request(lens).messages
        ),
        get_target(*model, window=200_000),
    )
    assert made.normalization == ()
    assert render_request(lens, build_messages_to_send(made)) is raw


@given(conversation_strategy(longest=300), st.sampled_from(KNOWN))
def test_sound_conversations_are_left_alone(messages, model):
    """fix-is-idempotent: the same for conversations that are sound, of which there are enough."""
    raw = wire_of(as_sent(messages, model), model)
    lens = parse_request(raw, model[0])
    made = plan_request(
        ConversationState.from_entries(
            Entry("", None, MessageEntry(slot)) for slot in measure_parsed_request(lens).messages
        ),
        get_target(*model, window=200_000),
    )
    assume(messages[-1].role != "assistant" or model[0] == "openai-chat")
    assert made.normalization == ()
    assert made.is_empty
    assert render_request(lens, build_messages_to_send(made)) is raw


@given(broken_history_strategy(max_wounds=6) | wild_history_strategy(), st.sampled_from(MODELS))
def test_repairing_twice_is_repairing_once(messages, model):
    """fix-is-idempotent: what was repaired needs no repair."""
    where = get_target(*model, window=200_000)
    once = apply(messages, plan(messages, where))
    assert apply(once, plan(once, where)) == once
    assert normalize_history(once, where.dialect) == ()


@given(broken_history_strategy(max_wounds=3), st.sampled_from(KNOWN))
def test_a_repair_touches_only_what_is_wrong(messages, model):
    """Parts that are sent are the parts that were said, or they carry another id, or no result was there."""
    sent = apply(messages, plan(messages, get_target(*model, window=200_000)))
    words = Counter(part.text for one in messages for part in one.parts if isinstance(part, Text) and part.text.strip())
    kept = Counter(part.text for one in sent for part in one.parts if isinstance(part, Text) and part.text.strip())
    lost = words - kept
    assert all(f"[System message] {text}" in kept or text.rstrip() in kept for text in lost)  # no blank may end it


# -- seals and ids -----------------------------------------------------------------------------------------------------


@given(broken_history_strategy(["thinking", "thinking alone", "missing result"], max_wounds=5), st.sampled_from(MODELS))
def test_sealed_parts_go_whole_or_not_at_all(messages, model):
    """signed-bytes-intact: thinking that is sent is sealed by this API for this model, and is what was said to the last
    byte.
    """
    said = [part for one in messages for part in one.parts if isinstance(part, Thinking)]
    for one in apply(messages, plan(messages, get_target(*model, window=200_000))):
        for part in one.parts:
            if isinstance(part, Thinking):
                assert part in said
                assert part.signature is not None
                assert part.signature.api == model[0]
                assert part.signature.model in ("", model[1])


ids = st.sampled_from(ODD_IDS) | st.text(max_size=70) | st.from_regex(r"[a-z]{1,3}_[0-9a-f]{12}", fullmatch=True)
dialects = st.sampled_from([get_target(*model).dialect for model in MODELS] + [Target().dialect])


@given(st.lists(ids, unique=True, max_size=8), dialects)
def test_ids_are_mapped_one_to_one(names, dialect):
    """stable-id-mapping: different ids stay different, in the alphabet and length of the API, and a mapped id is left
    alone.
    """
    mapped = [encode_wire_id(name, dialect) for name in names]
    assert len(set(mapped)) == len(names)
    for name in mapped:
        assert re.fullmatch(f"(?:{dialect.id_pattern})+", name)
        assert len(name) <= dialect.id_max
        assert encode_wire_id(name, dialect) == name


@given(
    broken_history_strategy(["repeated id", "odd id", "same id in a message"], max_wounds=4), st.sampled_from(MODELS)
)
def test_ids_in_a_request_are_unique(messages, model):
    """stable-id-mapping: on an API that wants it, no two calls of a request have one id, and each result names its own
    call.
    """
    where = get_target(*model, window=200_000)
    assume(where.dialect.unique_ids)
    sent = apply(messages, plan(messages, where))
    used = [call.id for one in sent for call in one.calls]
    assert len(set(used)) == len(used)
    assert [r.call_id for one in sent for r in one.results] == [
        r.call_id for message, found in runs(sent) for r in found
    ]


@given(
    broken_history_strategy(["repeated id", "odd id"], max_wounds=3), conversation_strategy(), st.sampled_from(MODELS)
)
def test_names_stay_as_the_history_grows(broken, messages, model):
    """stable-id-mapping: an id that was mapped or renamed once is the same in every later request."""
    where = get_target(*model, window=200_000)
    start = [*broken, *user("go on"), Message.from_text("assistant", "yes")]
    whole = [*start, *(one for one in messages if one.role != "system")]
    first, second = (apply(part, plan(part, where)) for part in ([*start, *user("x")], [*whole, *user("x")]))
    used = [call.id for one in first for call in one.calls]
    assert [call.id for one in second for call in one.calls][: len(used)] == used


# -- bytes -------------------------------------------------------------------------------------------------------------


@given(
    broken_history_strategy(["missing result", "orphan", "repeated id", "odd id"], max_wounds=3),
    st.sampled_from(KNOWN[:4]),
)
def test_a_repair_leaves_its_neighbours_their_bytes(messages, model):
    """Bytes: what a repair does not touch keeps its own JSON, fields nobody knows too."""
    raw = json.loads(wire_of(as_sent(messages, model), model))
    for message in raw["messages"]:
        for block in blocks(message):
            block["x_mine"] = [1.0, "e\u0301"]
    data = json.dumps(raw).encode()
    lens = parse_request(data, model[0])
    made = plan_request(
        ConversationState.from_entries(
            Entry("", None, MessageEntry(slot)) for slot in measure_parsed_request(lens).messages
        ),
        get_target(*model, window=200_000),
    )
    out = json.loads(render_request(lens, build_messages_to_send(made)))
    known = {block.get("id") for one in raw["messages"] for block in blocks(one)}
    others = ("[System message]", ORPHAN_RESULT_LABEL[:-1])  # what stands so is said by another
    spoken = [one for one in out["messages"] if not any(one_said in str(one) for one_said in others)]
    for block in [block for one in spoken for block in blocks(one)]:
        made_up = SYNTHETIC_RESULT_TEXT in str(block) or block.get("text") in ("Continue.", "(the conversation so far)")
        renamed = block.get("id", block.get("tool_use_id")) not in known
        assert made_up or renamed or block.get("x_mine") == [1.0, "e\u0301"]


def blocks(message):
    """Return the blocks of a wire message."""
    return message["content"] if isinstance(message["content"], list) else []


def test_a_client_may_move_its_breakpoint():
    """A client that marks the newest message of each request is planned for as it is: one marker, where it put it."""
    where = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
    said, branch = [], None
    for turn in range(6):
        said.append({"role": "user", "content": [{"type": "text", "text": f"turn {turn}"}]})
        sent = msgspec.json.decode(msgspec.json.encode(said))
        sent[-1]["content"][0]["cache_control"] = {"type": "ephemeral"}
        values = decode_messages("anthropic", sent)
        made = plan(values, where, state=branch)
        assert encode_messages("anthropic", apply(values, made)) == sent
        branch = made.state
        said.append({"role": "assistant", "content": f"answer {turn}"})


def test_a_slot_in_two_requests_is_one_slot():
    """A slot with wire bytes of its own goes out as those bytes in every request that shows it."""
    where = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
    raw = b'{ "role":"user", "content":"a" }'
    slot = replace(build_sized_message(Message.from_text("user", "a")), api="anthropic", raw=Raw(raw))
    branch = apply_entry(ConversationState(), Entry("", None, MessageEntry(slot)))
    for _ in range(2):
        made = plan_request(branch, where)
        assert raw in build_request_body("anthropic", where.model, build_messages_to_send(made))
        branch = apply_entry(
            made.state, Entry("", None, MessageEntry(build_sized_message(Message.from_text("assistant", "b"))))
        )
        branch = apply_entry(branch, Entry("", None, MessageEntry(build_sized_message(Message.from_text("user", "c")))))


def test_seals_of_another_model_stay_behind():
    """signed-bytes-intact: thinking that another model of the same API sealed is not sent."""
    thought = Message("assistant", (Thinking("hm", ProviderSignature("anthropic", "claude-old", "s")), Text("yes")))
    said = [*user("a"), thought, *user("b")]
    sent = apply(said, plan(said, get_target("anthropic", "claude-sonnet-4-5", window=100_000)))
    assert not any(isinstance(part, Thinking) for one in sent for part in one.parts)


def test_a_result_without_a_word_is_taken():
    """A result that is empty, or holds a blank text, is one that the API takes."""
    for content in [(), (Text(""),), (Text(" "),)]:
        said = [*user("a"), calls("t"), Message("tool", (ToolResult("t", "read", content),))]
        for model in MODELS:
            where = get_target(*model, window=100_000)
            assert errors(where, plan(said, where)) == []
