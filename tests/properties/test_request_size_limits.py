"""Sizes: what is replaced gets shorter, stays as it is for ever, and the request fits."""

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

OURS = Policy()
SMALL = OURS.with_settings(
    window={"min_budget": 0},
    results={"spill_chars": 2_000, "preview_chars": 300, "outline_chars": 200, "message_chars": 5_000},
)
"""Our own policy with limits that a few thousand characters reach."""
WORLDS = [PlanInputs(), PlanInputs(), PlanInputs("cold", idle_seconds=4_000)]
MODELS = [("anthropic", "claude-sonnet-4-5"), ("openai-chat", "gpt-5"), ("anthropic", "somebody-else")]
places = st.sampled_from(MODELS)
windows = st.sampled_from([7_000, 9_000, 16_000, 40_000])
long_talks = conversation_strategy(turns=3, steps=6, longest=12_000)


SHORTENED_TWICE = build_conversation([(0, 1, [(3, 3, 12_000, 0)], False)], pictures=True)
"""Results whose previews, beside a picture, are more than the smallest window takes."""

JUST_TOO_MUCH = damage_history(
    build_conversation([(0, 1, [], False), (1, 12_000, [], False)], pictures=True), [("media", 1, 1)] * 2
)
"""Pictures and a preview that leave a quarter of 5,682 tokens, but for the tenth more while no usage is known."""


def place(model, window, frame=0):
    return get_target(*model, window=window, setup=RequestSetup("f" * bool(frame), frame))


def words_of(part):
    """Return what a part says, whatever it is."""
    return get_result_text(part) if isinstance(part, ToolResult) else part.text


@given(long_talks, places, windows, st.sampled_from([OURS, SMALL]))
def test_a_replacement_is_shorter(messages, model, window, policy):
    """Every recorded edit puts something smaller, in characters and in tokens, in place of what stood there."""
    for step in drive_agent_loop(messages, place(model, window), policy, worlds=WORLDS):
        for edit in step.plan.record:
            old = step.plan.state.history.messages[edit.span.start].parts[edit.span.part]
            assert len(edit.replacement) == 1
            assert len(words_of(edit.replacement[0])) < len(words_of(old))
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
def test_a_replacement_is_shorter_for_every_script(unit, chars, role):
    """Texts of many tokens and few characters are spilled only where that makes them smaller, and the request fits."""
    text = (unit * chars)[:chars] + "w"
    said = [Message.from_text("user", "go")]
    if role == "user":
        said = [Message.from_text("user", text)]
    else:
        said += [Message("assistant", (ToolCall("t", "read"),)), Message("tool", (ToolResult("t", "", (Text(text),)),))]
    for window in (7_000, 20_000):
        where = place(MODELS[0], window)
        made = plan(said, where)
        for edit in made.record:
            assert len(words_of(edit.replacement[0])) < len(text)
            assert estimate_text_tokens(words_of(edit.replacement[0])) < estimate_text_tokens(text)
            assert edit.saves > 0
        assert real_size(made, where) <= compute_budget(where, OURS.settings).usable


@given(long_talks, places, windows, st.sampled_from([OURS, SMALL, Policy.preset("claude-code"), Policy.preset("pi")]))
@example(SHORTENED_TWICE, MODELS[0], 7_000, OURS)
def test_a_decision_stands_for_ever(messages, model, window, policy):
    """mustReapply: what was put in place of a part is sent, byte for byte, as long as its slot is shown.

    One plan may shorten a part in several steps; what they come to is decided once, before a request shows it.
    """
    decided = {}
    for step in drive_agent_loop(messages, place(model, window), policy, worlds=WORLDS):
        new = {(edit.span.start, edit.span.part): edit.replacement[0] for edit in step.plan.record}
        assert new.keys().isdisjoint(decided)
        decided |= new
        shown = {slot.digest: slot.message for slot in build_projection(step.plan.state)}
        for (start, part), put in decided.items():
            if start >= step.plan.state.view.first_kept:
                assert any(len(one.parts) > part and one.parts[part] == put for one in shown.values())


@given(long_talks, places, windows)
def test_what_was_seen_whole_is_not_spilled(messages, model, window):
    """frozen: results and words that a request has shown are never spilled later, even over budget."""
    seen = 0
    for step in drive_agent_loop(messages, place(model, window), SMALL, worlds=WORLDS):
        assert all(edit.span.start >= seen for edit in step.plan.record if edit.rule == "spill")
        seen = step.count


@given(long_talks, places, windows, st.sampled_from([OURS, SMALL]))
def test_nothing_spilled_is_lost(messages, model, window, policy):
    """Every edit that names a blob comes with it: the whole text of the part, under its own hash."""
    for step in drive_agent_loop(messages, place(model, window), policy):
        blobs = {blob.hash: blob.text for blob in step.plan.blobs}
        assert all(sha256(text.encode("utf-8", "surrogatepass")).hexdigest() == name for name, text in blobs.items())
        for edit in step.plan.record:
            if edit.rule == "spill":
                old = step.plan.state.history.messages[edit.span.start].parts[edit.span.part]
                assert blobs[edit.blob_hash] == words_of(old)
                assert edit.blob_hash[:12] in words_of(edit.replacement[0])


@given(long_talks, places, windows, st.sampled_from([OURS, SMALL]))
def test_results_of_a_message_are_within_their_budget(messages, model, window, policy):
    """After planning, each result is within the limit of a result and each message within that of a message."""
    settings = policy.settings
    for step in drive_agent_loop(messages, place(model, window), policy):
        for slot in build_projection(step.plan.state)[-1:]:
            texts = [get_result_text(one) for one in slot.message.results]
            assert all(
                len(text) <= max(settings.results.spill_chars, settings.results.preview_chars + 3_000) for text in texts
            )
            small = [text for text in texts if "<persisted_tool_result" not in text]
            assert sum(map(len, small)) <= settings.results.message_chars


def real_size(made, where):
    """Return the tokens of a request, each sent message measured anew, by the estimator and its calibration."""
    sent = apply(list(made.state.history.messages), made)
    return where.setup.tokens + round(
        get_calibrated_ratio(made.state, where) * sum(build_sized_message(message).tokens for message in sent)
    )


def newest_group(made):
    """Return the size of the newest group as it is shown: what no legal cut can take out of the kept tail."""
    shown = [slot.message for slot in build_projection(made.state)]
    cuts = [cut for cut in find_cut_points(shown) if cut < len(shown)]
    return sum(build_sized_message(message).tokens for message in shown[cuts[-1] if cuts else 0 :])


@given(
    conversation_strategy(turns=4, steps=6, longest=12_000) | broken_history_strategy(turns=4, longest=12_000),
    places,
    st.integers(7_000, 60_000),
    st.floats(0, 0.5),
    st.sampled_from([1.0, 0.7, 1.4]),
    st.booleans(),
)
@example(messages=JUST_TOO_MUCH, model=MODELS[1], window=7_575, frame=0.0, factor=1.0, told=False)
def test_every_request_fits(messages, model, window, frame, factor, told):
    """budget-sees-exact-request, one-estimator: whatever was said, a request is within window less reserve, if its
    newest group leaves a quarter of it.

    The usage that is reported is another than ours counts, by a factor; where it is never reported, the prior decides.
    """
    where = place(model, window, int(frame * (window - 7_000)))
    room = compute_budget(where, OURS.settings)

    def truth(made):
        sent = apply(list(made.state.history.messages), made)
        return where.setup.tokens + round(factor * sum(build_sized_message(message).tokens for message in sent))

    for step in drive_agent_loop(messages, where, OURS, usage=truth if told else None, worlds=WORLDS):
        assert step.plan.after >= 0
        assert told or step.plan.after <= step.plan.before
        scale = max(factor, get_planning_ratio(step.plan.state, where))
        if newest_group(step.plan) * scale <= 0.75 * room.message_tokens:
            assert step.plan.after <= room.usable
            assert truth(step.plan) <= room.usable or factor > where.prior_ratio


@given(long_talks | broken_history_strategy(longest=12_000), places, windows, st.sampled_from([OURS, SMALL]))
def test_the_size_carried_along_is_the_size_of_what_is_sent(messages, model, window, policy):
    """one-estimator: ``held`` is within a few tokens an edit of the projection measured anew."""
    for step in drive_agent_loop(messages, place(model, window), policy, worlds=WORLDS):
        branch = step.plan.state
        anew = sum(build_sized_message(slot.message).tokens for slot in build_projection(branch))
        assert abs(branch.view.shown_tokens - anew) <= 16 * sum(len(edits) for edits in branch.view.edits.values())


@given(long_talks, places, windows, st.sampled_from([OURS, SMALL]))
def test_the_newest_words_of_the_user_are_there(messages, model, window, policy):
    """newest-user-message: the newest message of the user is sent verbatim, or its preview with the beginning is."""
    where = place(model, window)
    for step in drive_agent_loop(messages, where, policy, worlds=WORLDS):
        newest = next((one for one in reversed(messages[: step.count]) if one.is_turn_start), None)
        if newest is None:
            continue
        sent = "\n".join(slot.message.text for slot in step.slots)
        head, _ = take_both_text_ends(
            newest.text, policy.settings.results.preview_chars, policy.settings.results.preview_end_share
        )
        shown = newest.text.strip() in sent
        assert shown or ("<persisted" in sent and head[:200] in sent)


@given(long_talks, places)
def test_a_sound_history_with_room_is_left_whole(messages, model):
    """With room enough and no result over the limits nothing is decided, stored or asked."""
    where = place(model, 400_000)
    made = plan(messages, where, OURS)
    big = [r for one in messages for r in one.results if len(get_result_text(r)) > OURS.settings.results.spill_chars]
    assert not made.record or big
    assert made.compaction is None
    assert made.summary_request is None
    assert made.notices == ()


# -- the window --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 40_000), st.integers(0, 20_000), st.integers(0, 60_000))
def test_a_window_is_refused_exactly_where_nothing_fits(window, frame, asked):
    """no-room-is-an-error: our own policy plans iff window less reserve less frame is at least the smallest useful
    room.
    """
    where = get_target(*MODELS[0], window=window, setup=RequestSetup("f", frame), asked_output=asked or None)
    room = compute_budget(where, OURS.settings)
    assert room.usable == window - room.reserve
    assert 1_024 <= room.reserve <= max(1_024, min(20_000, window // 4))
    if room.message_tokens < OURS.settings.window.min_budget:
        with pytest.raises(WindowTooSmall, match=str(room.message_tokens)):
            plan([Message.from_text("user", "a")], where, OURS)
    else:
        assert plan([Message.from_text("user", "a")], where, OURS).record == ()


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
@pytest.mark.parametrize("force", [False, True])
def test_odd_histories_have_a_defined_result(messages, count, preset, force):
    """degenerate-is-defined: nothing, a system prompt alone, empty messages, one giant message: planned under every
    policy.
    """
    for api, name in MODELS[:2]:
        model = get_target(api, name, window=100_000)
        made = plan(messages, model, Policy.preset(preset), inputs=PlanInputs(force_compaction=force))
        sent = apply(messages, made)
        assert len(sent) == count


@pytest.mark.parametrize("role", ["user", "tool"])
def test_one_giant_message_fits(role):
    """degenerate-is-defined: a message larger than the window is spilled with its preview, and the request fits."""
    giant = make_text(0, 2_000_000)
    said = [Message.from_text("user", "go")]
    if role == "tool":
        said += [
            Message("assistant", (ToolCall("t", "read"),)),
            Message("tool", (ToolResult("t", "", (Text(giant),)),)),
        ]
    else:
        said = [Message.from_text("user", giant)]
    where = place(MODELS[0], 20_000)
    made = plan(said, where)
    assert real_size(made, where) <= compute_budget(where, OURS.settings).usable
    assert [blob.text for blob in made.blobs] == [giant]
    assert plan(said, where, state=made.state).record == ()


@pytest.mark.parametrize("number", [2, 10, 60])
def test_many_parallel_results_fit(number):
    """A message with many results fits too: the budget of a message counts their previews."""
    ids = [f"c{index}" for index in range(number)]
    said = [
        Message.from_text("user", "go"),
        Message("assistant", tuple(ToolCall(id_, "read") for id_ in ids)),
        Message(
            "tool", tuple(ToolResult(id_, "read", (Text(make_text(index, 20_000)),)) for index, id_ in enumerate(ids))
        ),
    ]
    where = place(MODELS[0], 40_000)
    made = plan(said, where)
    assert real_size(made, where) <= compute_budget(where, OURS.settings).usable


def test_an_exempt_tool_is_never_spilled():
    """A tool that pages by itself keeps its result whole, also where only the call knows the tool's name."""
    exempt = Settings().results.spill_exempt_tools[0]
    for named in (exempt, ""):
        said = [
            Message.from_text("user", "go"),
            Message("assistant", (ToolCall("t", exempt),)),
            Message("tool", (ToolResult("t", named, (Text(make_text(0, 60_000)),)),)),
        ]
        assert plan(said, place(MODELS[0], 400_000)).record == ()


def test_pruning_clears_once_and_only_when_cold():
    """Ours clears old results at a cold cache only, with a handle to each; what it cleared stays so, and once."""
    policy = OURS.with_settings(prune={"keep_tokens": 500, "min_tokens": 100}, compaction={"enabled": False})
    said = []
    for number in range(6):
        said += [
            Message.from_text("user", f"turn {number}"),
            Message("assistant", (ToolCall(f"c{number}", "read"),)),
            Message("tool", (ToolResult(f"c{number}", "read", (Text(make_text(number, 3_000)),)),)),
            Message.from_text("assistant", "done"),
        ]
    said.append(Message.from_text("user", "last"))
    where = place(MODELS[0], 100_000)
    warm = plan(said, where, policy)
    assert warm.record == ()
    cold = plan(said, where, policy, state=warm.state, inputs=PlanInputs("cold"))
    assert cold.record
    assert {edit.rule for edit in cold.record} == {"prune"}
    stored = {blob.hash: blob.text for blob in cold.blobs}
    for edit in cold.record:
        assert stored[edit.blob_hash] == get_result_text(said[edit.span.start].parts[0])
        assert f'recall(id="{edit.blob_hash[:HANDLE_CHARS]}")' in get_result_text(edit.replacement[0])
    assert cold.after < cold.before
    again = plan(said, where, policy, state=cold.state, inputs=PlanInputs("cold"))
    assert again.record == ()
    assert apply(said, again) == apply(said, cold)


def test_exempt_and_small_prunings_do_not_happen():
    """A tool of the exempt list is never cleared, and where too little would be freed nothing is."""
    policy = OURS.with_settings(prune={"keep_tokens": 1, "min_tokens": 100}, compaction={"enabled": False})
    exempt = policy.settings.prune.exempt_tools[0]
    body = make_text(1, 3_000)

    def said(tool, text):
        return [
            Message.from_text("user", "a"),
            Message("assistant", (ToolCall("c", tool),)),
            Message("tool", (ToolResult("c", tool, (Text(text),)),)),
            Message.from_text("assistant", "b"),
            Message.from_text("user", "c"),
        ]

    where = place(MODELS[0], 100_000)
    cold = PlanInputs("cold")
    assert plan(said("read", body), where, policy, inputs=cold).record
    assert plan(said(exempt, body), where, policy, inputs=cold).record == ()
    frugal = replace(
        policy,
        settings=Policy(settings=policy.settings)
        .with_settings(prune={"min_tokens": 50_000, "min_share": 0.9})
        .settings,
    )
    assert plan(said("read", body), where, frugal, inputs=cold).record == ()
