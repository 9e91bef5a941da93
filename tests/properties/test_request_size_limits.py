"""Sizes: a replacement is shorter and permanent, and the request fits."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis_strategies import broken_history_strategy, conversation_strategy
from msgspec.structs import replace
from planning_loop import drive_agent_loop
from sample_conversations import build_conversation, damage_history, make_text

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.errors import WindowTooSmall
from holdfast.messages.cut_points import find_cut_points
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.messages.text.text_cuts import take_both_text_ends
from holdfast.planning.budget import compute_budget
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.planning.settings import Settings
from holdfast.state.calibration.token_estimate import get_calibrated_ratio, get_planning_ratio
from holdfast.state.entries import RequestSetup
from holdfast.state.view import build_projection

POLICY = Policy()
SMALL_LIMITS = POLICY.with_settings(
    window={"min_budget": 0},
    results={"spill_chars": 2_000, "preview_chars": 300, "outline_chars": 200, "message_chars": 5_000},
)
"""Holdfast's policy with limits that a few thousand characters reach."""
INPUTS = [PlanInputs(), PlanInputs(), PlanInputs("cold", idle_seconds=4_000)]
MODELS = [("anthropic", "claude-sonnet-4-5"), ("openai-chat", "gpt-5"), ("anthropic", "somebody-else")]
models = st.sampled_from(MODELS)
windows = st.sampled_from([7_000, 9_000, 16_000, 40_000])
long_conversations = conversation_strategy(turns=3, steps=6, longest=12_000)


SHORTENED_TWICE = build_conversation([(0, 1, [(3, 3, 12_000, 0)], False)], pictures=True)
"""Results whose previews, beside a picture, exceed the smallest window."""

JUST_TOO_MUCH = damage_history(
    build_conversation([(0, 1, [], False), (1, 12_000, [], False)], pictures=True), [("media", 1, 1)] * 2
)
"""Pictures and a preview that leave a quarter of 5,682 tokens only without the tenth added before any usage."""


def build_target(model, window, setup_tokens=0):
    return get_target(*model, window=window, setup=RequestSetup("f" * bool(setup_tokens), setup_tokens))


def get_text(part):
    """Return the text of a part of any kind."""
    return get_result_text(part) if isinstance(part, ToolResult) else part.text


@given(long_conversations, models, windows, st.sampled_from([POLICY, SMALL_LIMITS]))
def test_replacements_are_shorter(messages, model, window, policy):
    """Every recorded edit replaces a part by something smaller, in characters and in tokens."""
    for step in drive_agent_loop(messages, build_target(model, window), policy, plan_inputs=INPUTS):
        for edit in step.plan.record:
            old = step.plan.state.history.messages[edit.span.start].parts[edit.span.part]
            assert len(edit.replacement) == 1
            assert len(get_text(edit.replacement[0])) < len(get_text(old))
            assert edit.saves > 0
            freed = (
                build_sized_message(Message("tool", (old,))).tokens
                - build_sized_message(Message("tool", (edit.replacement[0],))).tokens
            )
            assert freed > 0
            assert edit.saves <= freed + 16


DENSE = ["\U0001f980", "配置文件在", "ཧྲཱི", "QmFzZTY0", "word ", "\n", "\u0300"]


@pytest.mark.parametrize("unit", DENSE)
@pytest.mark.parametrize("chars", [1_500, 2_500, 4_000, 30_000])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_replacements_are_shorter_for_every_script(unit, chars, role):
    """Texts with many tokens in few characters are spilled only where that makes them smaller, and the request fits."""
    text = (unit * chars)[:chars] + "w"
    messages = [Message.from_text("user", "go")]
    if role == "user":
        messages = [Message.from_text("user", text)]
    else:
        messages += [
            Message("assistant", (ToolCall("t", "read"),)),
            Message("tool", (ToolResult("t", "", (Text(text),)),)),
        ]
    for window in (7_000, 20_000):
        target = build_target(MODELS[0], window)
        new_plan = plan(messages, target)
        for edit in new_plan.record:
            assert len(get_text(edit.replacement[0])) < len(text)
            assert estimate_text_tokens(get_text(edit.replacement[0])) < estimate_text_tokens(text)
            assert edit.saves > 0
        assert measure_request(new_plan, target) <= compute_budget(target, POLICY.settings).usable


@given(
    long_conversations,
    models,
    windows,
    st.sampled_from([POLICY, SMALL_LIMITS, Policy.preset("claude-code"), Policy.preset("pi")]),
)
@example(SHORTENED_TWICE, MODELS[0], 7_000, POLICY)
def test_decisions_stay_in_force(messages, model, window, policy):
    """mustReapply: the replacement of a part is sent unchanged as long as its message is shown. One plan may shorten a
    part in several steps; the final form is decided before a request shows it.
    """
    replacements = {}
    for step in drive_agent_loop(messages, build_target(model, window), policy, plan_inputs=INPUTS):
        new = {(edit.span.start, edit.span.part): edit.replacement[0] for edit in step.plan.record}
        assert new.keys().isdisjoint(replacements)
        replacements |= new
        shown = {sized.digest: sized.message for sized in build_projection(step.plan.state)}
        for (start, part), replacement in replacements.items():
            if start >= step.plan.state.view.first_kept:
                assert any(
                    len(message.parts) > part and message.parts[part] == replacement for message in shown.values()
                )


@given(long_conversations, models, windows)
def test_spill_never_touches_seen_parts(messages, model, window):
    """frozen: results and texts that a request has shown are never spilled later, even over budget."""
    seen_count = 0
    for step in drive_agent_loop(messages, build_target(model, window), SMALL_LIMITS, plan_inputs=INPUTS):
        assert all(edit.span.start >= seen_count for edit in step.plan.record if edit.rule == "spill")
        seen_count = step.count


@given(long_conversations, models, windows, st.sampled_from([POLICY, SMALL_LIMITS]))
def test_spilled_texts_are_stored_whole(messages, model, window, policy):
    """Every edit that names a blob comes with it: the whole text of the part, under its own hash."""
    for step in drive_agent_loop(messages, build_target(model, window), policy):
        blobs = {blob.hash: blob.text for blob in step.plan.blobs}
        assert all(sha256(text.encode("utf-8", "surrogatepass")).hexdigest() == name for name, text in blobs.items())
        for edit in step.plan.record:
            if edit.rule == "spill":
                old = step.plan.state.history.messages[edit.span.start].parts[edit.span.part]
                assert blobs[edit.blob_hash] == get_text(old)
                assert edit.blob_hash[:12] in get_text(edit.replacement[0])


@given(long_conversations, models, windows, st.sampled_from([POLICY, SMALL_LIMITS]))
def test_results_stay_within_the_message_budget(messages, model, window, policy):
    """After planning each result is within the limit of a result, and each message within the limit of a message."""
    settings = policy.settings
    for step in drive_agent_loop(messages, build_target(model, window), policy):
        for sized in build_projection(step.plan.state)[-1:]:
            texts = [get_result_text(result) for result in sized.message.results]
            assert all(
                len(text) <= max(settings.results.spill_chars, settings.results.preview_chars + 3_000) for text in texts
            )
            small = [text for text in texts if "<persisted_tool_result" not in text]
            assert sum(map(len, small)) <= settings.results.message_chars


def measure_request(planned, target):
    """Return the tokens of a request, with each sent message measured again and calibrated."""
    sent = apply(list(planned.state.history.messages), planned)
    return target.setup.tokens + round(
        get_calibrated_ratio(planned.state, target) * sum(build_sized_message(message).tokens for message in sent)
    )


def measure_newest_group(planned):
    """Return the size of the newest group as shown, which no cut can remove from the tail."""
    shown = [sized.message for sized in build_projection(planned.state)]
    cuts = [cut for cut in find_cut_points(shown) if cut < len(shown)]
    return sum(build_sized_message(message).tokens for message in shown[cuts[-1] if cuts else 0 :])


@given(
    conversation_strategy(turns=4, steps=6, longest=12_000) | broken_history_strategy(turns=4, longest=12_000),
    models,
    st.integers(7_000, 60_000),
    st.floats(0, 0.5),
    st.sampled_from([1.0, 0.7, 1.4]),
    st.booleans(),
)
@example(messages=JUST_TOO_MUCH, model=MODELS[1], window=7_575, setup_tokens=0.0, factor=1.0, reports_usage=False)
def test_every_request_fits(messages, model, window, setup_tokens, factor, reports_usage):
    """budget-sees-exact-request, one-estimator: any request is within window less reserve if its newest group leaves a
    quarter of the budget. The reported usage differs from the estimate by a factor; without usage the prior decides.
    """
    target = build_target(model, window, int(setup_tokens * (window - 7_000)))
    budget = compute_budget(target, POLICY.settings)

    def measure_real_tokens(planned):
        sent = apply(list(planned.state.history.messages), planned)
        return target.setup.tokens + round(factor * sum(build_sized_message(message).tokens for message in sent))

    for step in drive_agent_loop(
        messages, target, POLICY, usage=measure_real_tokens if reports_usage else None, plan_inputs=INPUTS
    ):
        assert step.plan.after >= 0
        assert reports_usage or step.plan.after <= step.plan.before
        scale = max(factor, get_planning_ratio(step.plan.state, target))
        if measure_newest_group(step.plan) * scale <= 0.75 * budget.message_tokens:
            assert step.plan.after <= budget.usable
            assert measure_real_tokens(step.plan) <= budget.usable or factor > target.prior_ratio


@given(
    long_conversations | broken_history_strategy(longest=12_000),
    models,
    windows,
    st.sampled_from([POLICY, SMALL_LIMITS]),
)
def test_shown_tokens_equals_the_measured_request(messages, model, window, policy):
    """one-estimator: ``shown_tokens`` is within a few tokens per edit of the projection measured again."""
    for step in drive_agent_loop(messages, build_target(model, window), policy, plan_inputs=INPUTS):
        state = step.plan.state
        measured_tokens = sum(build_sized_message(sized.message).tokens for sized in build_projection(state))
        assert abs(state.view.shown_tokens - measured_tokens) <= 16 * sum(
            len(edits) for edits in state.view.edits.values()
        )


@given(long_conversations, models, windows, st.sampled_from([POLICY, SMALL_LIMITS]))
def test_newest_user_message_is_in_every_request(messages, model, window, policy):
    """newest-user-message: the newest user message is sent verbatim, or as a preview with its start."""
    target = build_target(model, window)
    for step in drive_agent_loop(messages, target, policy, plan_inputs=INPUTS):
        newest = next((message for message in reversed(messages[: step.count]) if message.is_turn_start), None)
        if newest is None:
            continue
        sent = "\n".join(sized.message.text for sized in step.sent_messages)
        head, _ = take_both_text_ends(
            newest.text, policy.settings.results.preview_chars, policy.settings.results.preview_end_share
        )
        is_shown = newest.text.strip() in sent
        assert is_shown or ("<persisted" in sent and head[:200] in sent)


@given(long_conversations, models)
def test_sound_history_with_room_is_sent_whole(messages, model):
    """With enough room and no result over the limits nothing is decided, stored or requested."""
    target = build_target(model, 400_000)
    new_plan = plan(messages, target, POLICY)
    oversized = [
        result
        for message in messages
        for result in message.results
        if len(get_result_text(result)) > POLICY.settings.results.spill_chars
    ]
    assert not new_plan.record or oversized
    assert new_plan.compaction is None
    assert new_plan.summary_request is None
    assert new_plan.notices == ()


# -- the window --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 40_000), st.integers(0, 20_000), st.integers(0, 60_000))
def test_plan_rejects_a_window_exactly_when_nothing_fits(window, setup_tokens, requested_output):
    """no-room-is-an-error: Holdfast's policy plans exactly if window less reserve less setup is at least the minimum
    budget.
    """
    target = get_target(
        *MODELS[0], window=window, setup=RequestSetup("f", setup_tokens), asked_output=requested_output or None
    )
    budget = compute_budget(target, POLICY.settings)
    assert budget.usable == window - budget.reserve
    assert 1_024 <= budget.reserve <= max(1_024, min(20_000, window // 4))
    if budget.message_tokens < POLICY.settings.window.min_budget:
        with pytest.raises(WindowTooSmall, match=str(budget.message_tokens)):
            plan([Message.from_text("user", "a")], target, POLICY)
    else:
        assert plan([Message.from_text("user", "a")], target, POLICY).record == ()


@pytest.mark.parametrize(
    ("messages", "count"),
    [
        ([], 0),
        ([Message.from_text("system", "s")], 1),
        ([Message("user")], 0),
        ([Message("user"), Message("assistant")], 0),
        ([Message.from_text("user", make_text(3, 400_000))], 1),
        ([Message.from_text("system", "s"), Message.from_text("user", "q")], 2),
    ],
)
@pytest.mark.parametrize("preset", ["holdfast", "opencode", "pi", "claude-code", "sliding", "append-only", "openclaw"])
@pytest.mark.parametrize("force_compaction", [False, True])
def test_degenerate_histories_have_a_defined_result(messages, count, preset, force_compaction):
    """degenerate-is-defined: an empty history, a system prompt alone, empty messages and one giant message can be
    planned under every policy.
    """
    for api, name in MODELS[:2]:
        target = get_target(api, name, window=100_000)
        new_plan = plan(messages, target, Policy.preset(preset), inputs=PlanInputs(force_compaction=force_compaction))
        sent = apply(messages, new_plan)
        assert len(sent) == count


@pytest.mark.parametrize("role", ["user", "tool"])
def test_one_giant_message_fits(role):
    """degenerate-is-defined: a message larger than the window is spilled with a preview, and the request fits."""
    giant = make_text(0, 2_000_000)
    messages = [Message.from_text("user", "go")]
    if role == "tool":
        messages += [
            Message("assistant", (ToolCall("t", "read"),)),
            Message("tool", (ToolResult("t", "", (Text(giant),)),)),
        ]
    else:
        messages = [Message.from_text("user", giant)]
    target = build_target(MODELS[0], 20_000)
    new_plan = plan(messages, target)
    assert measure_request(new_plan, target) <= compute_budget(target, POLICY.settings).usable
    assert [blob.text for blob in new_plan.blobs] == [giant]
    assert plan(messages, target, state=new_plan.state).record == ()


@pytest.mark.parametrize("number", [2, 10, 60])
def test_many_parallel_results_fit(number):
    """A message with many results fits too: the budget of a message counts their previews."""
    ids = [f"c{index}" for index in range(number)]
    messages = [
        Message.from_text("user", "go"),
        Message("assistant", tuple(ToolCall(id_, "read") for id_ in ids)),
        Message(
            "tool", tuple(ToolResult(id_, "read", (Text(make_text(index, 20_000)),)) for index, id_ in enumerate(ids))
        ),
    ]
    target = build_target(MODELS[0], 40_000)
    new_plan = plan(messages, target)
    assert measure_request(new_plan, target) <= compute_budget(target, POLICY.settings).usable


def test_exempt_tool_is_never_spilled():
    """A tool that pages its own output keeps its result whole, even if only the call has the tool's name."""
    exempt = Settings().results.spill_exempt_tools[0]
    for result_name in (exempt, ""):
        messages = [
            Message.from_text("user", "go"),
            Message("assistant", (ToolCall("t", exempt),)),
            Message("tool", (ToolResult("t", result_name, (Text(make_text(0, 60_000)),)),)),
        ]
        assert plan(messages, build_target(MODELS[0], 400_000)).record == ()


def test_prune_clears_once_and_only_with_a_cold_cache():
    """Old results are pruned only with a cold cache, with a handle to each, and stay pruned."""
    policy = POLICY.with_settings(prune={"keep_tokens": 500, "min_tokens": 100}, compaction={"enabled": False})
    messages = []
    for number in range(6):
        messages += [
            Message.from_text("user", f"turn {number}"),
            Message("assistant", (ToolCall(f"c{number}", "read"),)),
            Message("tool", (ToolResult(f"c{number}", "read", (Text(make_text(number, 3_000)),)),)),
            Message.from_text("assistant", "done"),
        ]
    messages.append(Message.from_text("user", "last"))
    target = build_target(MODELS[0], 100_000)
    warm_plan = plan(messages, target, policy)
    assert warm_plan.record == ()
    cold_plan = plan(messages, target, policy, state=warm_plan.state, inputs=PlanInputs("cold"))
    assert cold_plan.record
    assert {edit.rule for edit in cold_plan.record} == {"prune"}
    stored = {blob.hash: blob.text for blob in cold_plan.blobs}
    for edit in cold_plan.record:
        assert stored[edit.blob_hash] == get_result_text(messages[edit.span.start].parts[0])
        assert f'recall(id="{edit.blob_hash[:HANDLE_CHARS]}")' in get_result_text(edit.replacement[0])
    assert cold_plan.after < cold_plan.before
    second_plan = plan(messages, target, policy, state=cold_plan.state, inputs=PlanInputs("cold"))
    assert second_plan.record == ()
    assert apply(messages, second_plan) == apply(messages, cold_plan)


def test_prune_skips_exempt_tools_and_small_gains():
    """An exempt tool is never pruned, and nothing is pruned where too little would be freed."""
    policy = POLICY.with_settings(prune={"keep_tokens": 1, "min_tokens": 100}, compaction={"enabled": False})
    exempt = policy.settings.prune.exempt_tools[0]
    body = make_text(1, 3_000)

    def build_conversation(tool, text):
        return [
            Message.from_text("user", "a"),
            Message("assistant", (ToolCall("c", tool),)),
            Message("tool", (ToolResult("c", tool, (Text(text),)),)),
            Message.from_text("assistant", "b"),
            Message.from_text("user", "c"),
        ]

    target = build_target(MODELS[0], 100_000)
    cold_inputs = PlanInputs("cold")
    assert plan(build_conversation("read", body), target, policy, inputs=cold_inputs).record
    assert plan(build_conversation(exempt, body), target, policy, inputs=cold_inputs).record == ()
    frugal = replace(
        policy,
        settings=Policy(settings=policy.settings)
        .with_settings(prune={"min_tokens": 50_000, "min_share": 0.9})
        .settings,
    )
    assert plan(build_conversation("read", body), target, frugal, inputs=cold_inputs).record == ()
