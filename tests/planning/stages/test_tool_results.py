"""Limits of results when they arrive: per tool, per message, and tools that are never spilled."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sample_conversations import make_text

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.planning.budget import compute_budget
from holdfast.planning.pipeline import plan_request
from holdfast.planning.stages import tool_results as stage
from holdfast.planning.stages.tool_results import build_tool_name_lookup
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import Entry, MessageEntry, RequestEntry
from holdfast.state.fold.fold_entries import apply_entry

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=2_000_000)
POLICY = Policy()


def build_messages(*results, named=True):
    """Return a conversation with ``results``, each given as tool name and number of characters."""
    ids = [f"t{number}" for number in range(len(results))]
    calls = tuple(ToolCall(id_, name) for id_, (name, _) in zip(ids, results, strict=True))
    result_parts = tuple(
        ToolResult(id_, name if named else "", (Text(make_text(number, chars)),))
        for number, (id_, (name, chars)) in enumerate(zip(ids, results, strict=True))
    )
    return [Message.from_text("user", "go"), Message("assistant", calls), Message("tool", result_parts)]


def list_edited_parts(new_plan):
    return [edit.span.part for edit in new_plan.record]


@pytest.mark.parametrize(
    ("tool", "chars", "spilled"),
    [
        ("read", 50_000, False),
        ("read", 50_001, True),
        ("bash", 3_000, False),
        ("bash", 3_001, True),
        ("grep", 90_000, False),
        ("grep", 90_001, True),
        ("snapshot", 150_000, False),
        ("recall", 150_000, False),
        ("mcp__holdfast__recall", 150_000, False),
        ("holdfast_recall", 150_000, False),
        ("mcp__other__recall", 150_000, True),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_plan_spills_by_the_threshold_of_each_tool(tool, chars, spilled, named):
    """A tool's own limit wins over the common one, 0 means never, and only Holdfast's own reader is exempt
    (readers-not-spilled, paging-is-complete).
    """
    policy = POLICY.with_settings(results={"spill_chars_by_tool": {"bash": 3_000, "grep": 90_000, "snapshot": 0}})
    new_plan = plan(build_messages((tool, chars), named=named), TARGET, policy)
    assert list_edited_parts(new_plan) == ([0] if spilled else [])


def test_plan_spills_a_named_tool_without_a_common_threshold():
    """Without a common limit only the named tools are spilled, and no budget per message applies."""
    policy = POLICY.with_settings(results={"spill_chars": 0, "spill_chars_by_tool": {"bash": 1_000}})
    assert list_edited_parts(plan(build_messages(("bash", 2_000), *[("read", 60_000)] * 5), TARGET, policy)) == [0]


def test_plan_spills_the_largest_results_of_a_message_first():
    """Over the budget of a message the largest unseen results are spilled until the rest fits, in any order."""
    policy = POLICY.with_settings(results={"message_chars": 105_000, "message_share": 0.0})
    new_plan = plan(
        build_messages(("a", 30_000), ("b", 45_000), ("c", 10_000), ("d", 40_000), ("e", 20_000)), TARGET, policy
    )
    assert list_edited_parts(new_plan) == [1]
    tight = policy.with_settings(results={"message_chars": 60_000})
    assert list_edited_parts(
        plan(build_messages(("a", 30_000), ("b", 45_000), ("c", 10_000), ("d", 40_000)), TARGET, tight)
    ) == [1, 3]


@pytest.mark.parametrize(("number", "chars"), [(40, 30_000), (12, 45_000)])
def test_plan_counts_previews_in_the_message_budget(number, chars):
    """After the largest are spilled, a message's results fit their budget with previews and outlines included."""
    history = build_messages(*[("read", chars)] * number)
    shown = apply(history, plan(history, TARGET, POLICY))
    assert sum(len(get_result_text(result)) for message in shown for result in message.results) <= 200_000


def test_plan_applies_the_message_budget_to_each_message():
    """Two messages that each fit the budget are both kept, however large they are together."""
    policy = POLICY.with_settings(results={"message_chars": 100_000, "message_share": 0.0})
    first = build_messages(("a", 45_000), ("b", 45_000))
    assert plan([*first, *first[1:]], TARGET, policy).record == ()


def test_plan_counts_seen_results_but_never_spills_them():
    """frozen: results seen in the same message fill its budget and stay; unseen ones are spilled instead."""
    policy = POLICY.with_settings(results={"message_chars": 100_000, "message_share": 0.0})
    messages = build_messages(("a", 40_000), ("b", 40_000))
    later = Message("tool", (ToolResult("t9", "c", (Text(make_text(9, 30_000)),)),))
    first = plan(messages, TARGET, policy)
    assert first.record == ()
    new_plan = plan([*messages, later], TARGET, policy, state=first.state)
    assert [edit.span.start for edit in new_plan.record] == [3]
    assert plan([later], TARGET, policy).record == ()


def test_plan_counts_exempt_and_small_results_in_the_message_budget():
    """Results that cannot be spilled count in the sum for which the others must make room."""
    policy = POLICY.with_settings(results={"message_chars": 100_000, "message_share": 0.0})
    assert list_edited_parts(
        plan(build_messages(("recall", 80_000), ("a", 15_000), ("b", 15_000)), TARGET, policy)
    ) == [1]
    assert list_edited_parts(
        plan(build_messages(*[("s", 400)] * 200, ("a", 19_000), ("b", 15_000)), TARGET, policy)
    ) == [200]


@pytest.mark.parametrize("window", [9_000, 200_000])
def test_plan_spills_nothing_without_a_store(window):
    """With ``PlanInputs.can_spill`` off no stage names a blob: results stay whole, whatever their size."""
    new_plan = plan(
        build_messages(("read", 400_000), ("bash", 9_000)),
        get_target("anthropic", "claude-sonnet-4-5", window=window),
        inputs=PlanInputs(can_spill=False),
    )
    assert new_plan.blobs == ()
    assert not any(edit.blob_hash for edit in new_plan.record)
    assert {"spill", "largest"}.isdisjoint(edit.rule for edit in new_plan.record)


@pytest.mark.parametrize("can_spill", [True, False])
def test_spill_largest_needs_a_store(can_spill):
    """The last resort also spills whole seen texts, and nothing when texts cannot be stored."""
    messages = [Message.from_text("user", make_text(1, 60_000)), Message.from_text("assistant", "ok")]
    seen_plan = plan(
        messages,
        get_target("anthropic", "claude-sonnet-4-5", window=200_000),
        POLICY.with_settings(compaction={"enabled": False}),
    )
    small_target = get_target("anthropic", "claude-sonnet-4-5", window=9_000)
    policy = POLICY.with_settings(compaction={"enabled": False})
    new_plan = plan(
        [*messages, Message.from_text("user", "b")],
        small_target,
        policy,
        state=seen_plan.state,
        inputs=PlanInputs(can_spill=can_spill),
    )
    assert [edit.rule for edit in new_plan.record] == ["largest"] * can_spill


@pytest.mark.parametrize("is_recovery_enabled", [True, False])
def test_plan_spills_nothing_automatically_with_auto_off(is_recovery_enabled):
    """``auto`` off stops all automatic paths; overflow recovery and a manual request are not automatic."""
    messages = [Message.from_text(("user", "assistant")[at % 2], make_text(at, 4_500)) for at in range(11)]
    target, policy = (
        get_target("anthropic", "claude-sonnet-4-5", window=16_000),
        POLICY.with_settings(compaction={"enabled": False}),
    )
    policy_off = policy.with_settings(compaction={"auto": False}, recovery={"enabled": is_recovery_enabled})
    new_plan = plan(messages, target, policy_off)
    assert new_plan.record == ()
    assert new_plan.after > new_plan.window
    for forced_plan in (
        plan(messages, target, policy),
        plan(messages, target, policy_off, inputs=PlanInputs(force_compaction=True)),
    ):
        assert {edit.rule for edit in forced_plan.record} == {"largest"}
        assert forced_plan.after < new_plan.after


@given(st.lists(st.integers(0, 9_000), min_size=1, max_size=12), st.integers(1_000, 30_000), st.booleans())
def test_plan_keeps_the_message_budget_or_spills_all_it_can(sizes, budget, is_split):
    """The results left whole are within the budget or too short to be spilled, and the largest were spilled first."""
    messages = build_messages(*[("read", size + 1) for size in sizes])
    if is_split:
        messages = [*messages[:2], *(Message("tool", (part,)) for part in messages[2].parts)]
    policy = POLICY.with_settings(
        results={"message_chars": budget, "message_share": 0.0, "preview_chars": 200, "outline_chars": 0}
    )
    new_plan = plan(messages, TARGET, policy)
    spilled = {edit.span.part + edit.span.start - 2 for edit in new_plan.record}
    whole_sizes = [size + 1 for number, size in enumerate(sizes) if number not in spilled]
    assert sum(size for size in whole_sizes if size > 400) <= max(
        0, budget - sum(size for size in whole_sizes if size <= 400)
    ) or not [size for size in whole_sizes if size > 400]
    assert all(sizes[number] + 1 >= 400 for number in spilled)


def test_plan_sends_the_same_after_restart_fork_and_retry():
    """Decisions are folded from the log: after dump and load, a fork or another plan the same request is sent."""
    policy = POLICY.with_settings(results={"message_chars": 60_000, "message_share": 0.0})
    messages = build_messages(("a", 30_000), ("b", 45_000))
    new_plan = plan(messages, TARGET, policy)
    assert list_edited_parts(new_plan) == [1]
    longer = [*messages, Message.from_text("assistant", "ok"), Message.from_text("user", "more")]
    sent = apply(longer, plan(longer, TARGET, policy, state=new_plan.state))
    assert apply(longer, plan(longer, TARGET, policy, state=ConversationState.load(new_plan.state.dump()))) == sent
    other = [*messages, Message.from_text("assistant", "other"), Message.from_text("user", "fork")]
    forked = plan(other, TARGET, policy, state=new_plan.state)
    assert forked.record == ()
    assert apply(other, forked)[:3] == sent[:3]
    assert plan_request(new_plan.state, TARGET, policy).record == ()


def test_tool_name_lookup_uses_the_first_call_of_an_id():
    """A result without a name takes that of its call; of two calls with one id in a message the first counts."""
    calls = Message("assistant", (ToolCall("t", "first"), ToolCall("t", "second")))
    state = ConversationState()
    for message in (Message.from_text("user", "go"), calls):
        state = apply_entry(state, Entry("", None, MessageEntry(build_sized_message(message))))
    state = apply_entry(state, Entry("", None, RequestEntry("", 2)))
    names = build_tool_name_lookup(state)
    assert names(2, ToolResult("t")) == "first"
    assert names(2, ToolResult("t", "own")) == "own"
    assert names(2, ToolResult("u")) == ""


@pytest.mark.parametrize("text", ["", "\x00" * 60_000, "\ud83d" * 60_000, "\udc00\n" * 30_000, "\ufeff\r" * 30_000])
def test_plan_accepts_odd_results(text):
    """Empty, binary and undecodable results are planned like any: whole, or spilled with their whole text."""
    messages = build_messages(("bash", 1))
    messages[2] = Message("tool", (ToolResult("t0", "bash", (Text(text),)),))
    new_plan = plan(messages, TARGET)
    assert [blob.text for blob in new_plan.blobs] == ([text] if text else [])
    assert len(get_result_text(apply(messages, new_plan)[2].results[0])) <= max(5_000, len(text) - 1)


def test_plan_spills_oversized_results_of_every_group():
    """An oversized result is spilled in place, after any number of groups with any number of results."""
    messages = [
        part
        for chars in (10, 90_000, 10, 90_000)
        for message in build_messages(*[("bash", chars)] * 3)
        for part in split_results(message)
    ]
    new_plan = plan(messages, TARGET)
    assert [edit.span.start for edit in new_plan.record] == [7, 8, 9, 17, 18, 19]


def split_results(message):
    """Return the message split so that each result is in a message of its own."""
    return [Message(message.role, (part,)) for part in message.parts] if message.role == "tool" else [message]


limit_values = st.sampled_from([0, 1_000, 2_000, 5_000])
share_values = st.sampled_from([0.0, 0.0, 0.003, 0.01])
group_sizes = st.lists(st.sampled_from([1, 700, 990, 1_010, 1_990, 2_010, 6_000]), min_size=1, max_size=6)


@given(
    st.lists(group_sizes, min_size=1, max_size=3),
    limit_values,
    limit_values,
    share_values,
    share_values,
    st.integers(0, 1),
    *[st.booleans()] * 2,
)
@example(
    groups=[[700] * 5, [6_000]],
    spill_chars=5_000,
    message_chars=0,
    spill_share=0.0,
    message_share=0.01,
    has_tool_limit=0,
    is_planned_before=False,
    is_split=True,
)
def test_small_group_check_changes_no_decision(
    groups, spill_chars, message_chars, spill_share, message_share, has_tool_limit, is_planned_before, is_split
):
    """Skipping a group because it is small decides the same as checking each of its texts."""
    tool_limits = {"a": 900} if has_tool_limit else {}
    small = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
    policy = POLICY.with_settings(
        results={
            "preview_chars": 200,
            "spill_chars": spill_chars,
            "message_chars": message_chars,
            "spill_share": spill_share,
            "message_share": message_share,
            "spill_chars_by_tool": tool_limits,
        },
    )
    messages = [message for group in groups for message in build_messages(*(("ab"[size % 2], size) for size in group))]
    messages = [part for message in messages for part in (split_results(message) if is_split else [message])]
    state = plan(messages[:-1], small, policy).state if is_planned_before else None
    quick = plan(messages, small, policy, state=state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "_compute_small_sizes", lambda *_: stage._SmallSizes(-1, -1))
        assert plan(messages, small, policy, state=state).record == quick.record


def plan_pasted_texts(*chars):
    """Return the user messages of ``chars`` characters, those shown in a window of 32,000, the plan and the budget."""
    messages = [Message.from_text("user", make_text(number, many)) for number, many in enumerate(chars)]
    small_target = get_target("anthropic", "claude-sonnet-4-5", window=32_000)
    new_plan = plan(messages, small_target)
    return messages, apply(messages, new_plan), new_plan, compute_budget(small_target, POLICY.settings)


def test_plan_shows_as_much_of_a_pasted_text_as_of_a_result():
    """A pasted text larger than the window is shown by its start and end, in about the tokens of one result."""
    [message], [shown], new_plan, budget = plan_pasted_texts(400_000)
    assert 0.8 * budget.compute_share(0.25) < new_plan.after - budget.setup_tokens <= budget.compute_share(0.27)
    start, end = shown.text[100:8_000], shown.text[-3_000:-100]
    assert start in message.text[:8_000]
    assert end in message.text[-3_100:]


def test_plan_divides_the_budget_among_pasted_texts():
    """Each pasted text that has to be shortened gets the same share of what the whole ones leave."""
    messages, shown, new_plan, budget = plan_pasted_texts(200_000, 200_000, 400_000, 8_000)
    *sizes, _ = [estimate_text_tokens(message.text) for message in shown]
    assert shown[3] == messages[3]
    assert max(sizes) < 1.2 * min(sizes)
    assert 0.35 * budget.message_tokens < new_plan.after - budget.setup_tokens <= budget.compute_share(0.55)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_plan_shortens_dense_text_by_tokens(is_reversed):
    """A part with far more tokens than the rest of a text gets no more tokens than any other."""
    halves = ["\u7801" * 60_000, "lorem ipsum dolor sit amet\n" * 20_000]
    messages = [Message.from_text("user", "\n".join(reversed(halves) if is_reversed else halves))]
    target = get_target("anthropic", "claude-sonnet-4-5", window=32_000)
    new_plan, budget = plan(messages, target), compute_budget(target, POLICY.settings)
    assert 0.1 * budget.message_tokens < new_plan.after - budget.setup_tokens <= budget.compute_share(0.27)
