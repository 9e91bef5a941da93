"""Limits of results at creation: of one tool, of one message, and what is never spilled."""

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
from holdfast.planning.stages.tool_results import build_tool_name_lookup, strip_mcp_prefix
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import Entry, MessageEntry, RequestEntry
from holdfast.state.fold.fold_entries import apply_entry

WHERE = get_target("anthropic", "claude-sonnet-4-5", window=2_000_000)
OURS = Policy()


def called(*results, named=True):
    """Return a conversation in which tools gave results: pairs of name and characters."""
    ids = [f"t{number}" for number in range(len(results))]
    calls = tuple(ToolCall(id_, name) for id_, (name, _) in zip(ids, results, strict=True))
    given_ = tuple(
        ToolResult(id_, name if named else "", (Text(make_text(number, chars)),))
        for number, (id_, (name, chars)) in enumerate(zip(ids, results, strict=True))
    )
    return [Message.from_text("user", "go"), Message("assistant", calls), Message("tool", given_)]


def places(made):
    return [edit.span.part for edit in made.record]


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
def test_each_tool_has_its_threshold(tool, chars, spilled, named):
    """A tool's own limit stands before the common one, 0 is never, and no reader but ours is exempt
    (readers-not-spilled, paging-is-complete).
    """
    policy = OURS.with_settings(results={"spill_chars_by_tool": {"bash": 3_000, "grep": 90_000, "snapshot": 0}})
    made = plan(called((tool, chars), named=named), WHERE, policy)
    assert places(made) == ([0] if spilled else [])


def test_a_tool_can_have_a_threshold_where_others_have_none():
    """With no common limit only the tools named are spilled, and no budget of a message counts."""
    policy = OURS.with_settings(results={"spill_chars": 0, "spill_chars_by_tool": {"bash": 1_000}})
    assert places(plan(called(("bash", 2_000), *[("read", 60_000)] * 5), WHERE, policy)) == [0]


def test_a_name_without_our_server():
    """What a client puts before the tools of our server is no part of their name; others' names stay whole."""
    assert [
        strip_mcp_prefix(name) for name in ("recall", "mcp__holdfast__recall", "holdfast_recall", "mcp__x__recall", "")
    ] == [
        *["recall"] * 3,
        "mcp__x__recall",
        "",
    ]


def test_the_largest_of_a_message_go_first():
    """Over the budget of a message the largest fresh results go until the rest is within it, whatever the order."""
    policy = OURS.with_settings(results={"message_chars": 105_000, "message_share": 0.0})
    made = plan(called(("a", 30_000), ("b", 45_000), ("c", 10_000), ("d", 40_000), ("e", 20_000)), WHERE, policy)
    assert places(made) == [1]
    tight = policy.with_settings(results={"message_chars": 60_000})
    assert places(plan(called(("a", 30_000), ("b", 45_000), ("c", 10_000), ("d", 40_000)), WHERE, tight)) == [1, 3]


@pytest.mark.parametrize(("number", "chars"), [(40, 30_000), (12, 45_000)])
def test_previews_count_as_what_they_are(number, chars):
    """A message's results are within their budget once the largest gave way, outlines of previews and all."""
    history = called(*[("read", chars)] * number)
    shown = apply(history, plan(history, WHERE, OURS))
    assert sum(len(get_result_text(one)) for message in shown for one in message.results) <= 200_000


def test_each_message_is_judged_alone():
    """Two messages that are each within the budget are both left, however much they are together."""
    policy = OURS.with_settings(results={"message_chars": 100_000, "message_share": 0.0})
    first = called(("a", 45_000), ("b", 45_000))
    assert plan([*first, *first[1:]], WHERE, policy).record == ()


def test_what_was_seen_counts_and_stays():
    """frozen: results seen in the same message fill its budget and are not touched; fresh ones go for them."""
    policy = OURS.with_settings(results={"message_chars": 100_000, "message_share": 0.0})
    talk = called(("a", 40_000), ("b", 40_000))
    later = Message("tool", (ToolResult("t9", "c", (Text(make_text(9, 30_000)),)),))
    first = plan(talk, WHERE, policy)
    assert first.record == ()
    made = plan([*talk, later], WHERE, policy, state=first.state)
    assert [edit.span.start for edit in made.record] == [3]
    assert plan([later], WHERE, policy).record == ()


def test_the_exempt_and_the_small_fill_the_budget_too():
    """Results that cannot go are part of the sum that the others must leave room for."""
    policy = OURS.with_settings(results={"message_chars": 100_000, "message_share": 0.0})
    assert places(plan(called(("recall", 80_000), ("a", 15_000), ("b", 15_000)), WHERE, policy)) == [1]
    assert places(plan(called(*[("s", 400)] * 200, ("a", 19_000), ("b", 15_000)), WHERE, policy)) == [200]


@pytest.mark.parametrize("window", [9_000, 200_000])
def test_where_nothing_can_be_stored_nothing_is_spilled(window):
    """With ``PlanInputs.can_spill`` off no stage names a blob: results stay whole, whatever their size."""
    made = plan(
        called(("read", 400_000), ("bash", 9_000)),
        get_target("anthropic", "claude-sonnet-4-5", window=window),
        inputs=PlanInputs(can_spill=False),
    )
    assert made.blobs == ()
    assert not any(edit.blob_hash for edit in made.record)
    assert {"spill", "largest"}.isdisjoint(edit.rule for edit in made.record)


@pytest.mark.parametrize("possible", [True, False])
def test_relief_needs_a_place_for_texts(possible):
    """The last resort spills what was seen whole too, and nothing where nothing can be stored."""
    talk = [Message.from_text("user", make_text(1, 60_000)), Message.from_text("assistant", "ok")]
    seen = plan(
        talk,
        get_target("anthropic", "claude-sonnet-4-5", window=200_000),
        OURS.with_settings(compaction={"enabled": False}),
    )
    small = get_target("anthropic", "claude-sonnet-4-5", window=9_000)
    policy = OURS.with_settings(compaction={"enabled": False})
    made = plan(
        [*talk, Message.from_text("user", "b")], small, policy, state=seen.state, inputs=PlanInputs(can_spill=possible)
    )
    assert [edit.rule for edit in made.record] == ["largest"] * possible


@pytest.mark.parametrize("emergency", [True, False])
def test_with_auto_off_no_text_gives_way_unasked(emergency):
    """BEHAVIOUR 8: ``auto`` off stops all automatic paths; what is pressed for, or asked for by hand, is none."""
    talk = [Message.from_text(("user", "assistant")[at % 2], make_text(at, 4_500)) for at in range(11)]
    small, policy = (
        get_target("anthropic", "claude-sonnet-4-5", window=16_000),
        OURS.with_settings(compaction={"enabled": False}),
    )
    off = policy.with_settings(compaction={"auto": False}, recovery={"enabled": emergency})
    made = plan(talk, small, off)
    assert made.record == ()
    assert made.after > made.window
    for asked in (plan(talk, small, policy), plan(talk, small, off, inputs=PlanInputs(force_compaction=True))):
        assert {edit.rule for edit in asked.record} == {"largest"}
        assert asked.after < made.after


@given(st.lists(st.integers(0, 9_000), min_size=1, max_size=12), st.integers(1_000, 30_000), st.booleans())
def test_a_budget_is_kept_or_nothing_more_can_go(sizes, most, apart):
    """After planning the results that are whole are within the budget, or too short to give way; the largest went."""
    talk = called(*[("read", size + 1) for size in sizes])
    if apart:
        talk = [*talk[:2], *(Message("tool", (one,)) for one in talk[2].parts)]
    policy = OURS.with_settings(
        results={"message_chars": most, "message_share": 0.0, "preview_chars": 200, "outline_chars": 0}
    )
    made = plan(talk, WHERE, policy)
    gone = {edit.span.part + edit.span.start - 2 for edit in made.record}
    whole = [size + 1 for number, size in enumerate(sizes) if number not in gone]
    assert sum(size for size in whole if size > 400) <= max(
        0, most - sum(size for size in whole if size <= 400)
    ) or not [size for size in whole if size > 400]
    assert all(sizes[number] + 1 >= 400 for number in gone)


def test_the_state_survives_restart_fork_and_retry():
    """The classes are folded from the log: dumped and loaded, forked or planned again the same is sent."""
    policy = OURS.with_settings(results={"message_chars": 60_000, "message_share": 0.0})
    talk = called(("a", 30_000), ("b", 45_000))
    made = plan(talk, WHERE, policy)
    assert places(made) == [1]
    longer = [*talk, Message.from_text("assistant", "ok"), Message.from_text("user", "more")]
    sent = apply(longer, plan(longer, WHERE, policy, state=made.state))
    assert apply(longer, plan(longer, WHERE, policy, state=ConversationState.load(made.state.dump()))) == sent
    other = [*talk, Message.from_text("assistant", "other"), Message.from_text("user", "fork")]
    forked = plan(other, WHERE, policy, state=made.state)
    assert forked.record == ()
    assert apply(other, forked)[:3] == sent[:3]
    assert plan_request(made.state, WHERE, policy).record == ()


def test_the_name_of_a_tool_is_that_of_its_first_call():
    """A result without a name has that of its call; of two calls with one id in a message the first, else none."""
    calls = Message("assistant", (ToolCall("t", "first"), ToolCall("t", "second")))
    branch = ConversationState()
    for message in (Message.from_text("user", "go"), calls):
        branch = apply_entry(branch, Entry("", None, MessageEntry(build_sized_message(message))))
    branch = apply_entry(branch, Entry("", None, RequestEntry("", 2)))
    names = build_tool_name_lookup(branch)
    assert names(2, ToolResult("t")) == "first"
    assert names(2, ToolResult("t", "own")) == "own"
    assert names(2, ToolResult("u")) == ""


@pytest.mark.parametrize("text", ["", "\x00" * 60_000, "\ud83d" * 60_000, "\udc00\n" * 30_000, "\ufeff\r" * 30_000])
def test_odd_results_are_planned(text):
    """Empty, binary and undecodable results are planned like any: whole, or spilled with their whole text."""
    talk = called(("bash", 1))
    talk[2] = Message("tool", (ToolResult("t0", "bash", (Text(text),)),))
    made = plan(talk, WHERE)
    assert [blob.text for blob in made.blobs] == ([text] if text else [])
    assert len(get_result_text(apply(talk, made)[2].results[0])) <= max(5_000, len(text) - 1)


def test_every_group_is_looked_at():
    """What is big is spilled where it stands, behind as many groups of as many results as there are."""
    talk = [one for chars in (10, 90_000, 10, 90_000) for said in called(*[("bash", chars)] * 3) for one in apart(said)]
    made = plan(talk, WHERE)
    assert [edit.span.start for edit in made.record] == [7, 8, 9, 17, 18, 19]


def apart(message):
    """Return a message with each of its results in one of its own."""
    return [Message(message.role, (part,)) for part in message.parts] if message.role == "tool" else [message]


limits = st.sampled_from([0, 1_000, 2_000, 5_000])
shares = st.sampled_from([0.0, 0.0, 0.003, 0.01])
sizes = st.lists(st.sampled_from([1, 700, 990, 1_010, 1_990, 2_010, 6_000]), min_size=1, max_size=6)


@given(st.lists(sizes, min_size=1, max_size=3), limits, limits, shares, shares, st.integers(0, 1), *[st.booleans()] * 2)
@example(groups=[[700] * 5, [6_000]], one=5_000, every=0, share=0.0, together=0.01, named=0, told=False, alone=True)
def test_the_quick_look_changes_no_decision(groups, one, every, share, together, named, told, alone):
    """Where a group is passed over because it is small, looking at each of its texts decides the same."""
    own = {"a": 900} if named else {}
    small = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
    policy = OURS.with_settings(
        results={
            "preview_chars": 200,
            "spill_chars": one,
            "message_chars": every,
            "spill_share": share,
            "message_share": together,
            "spill_chars_by_tool": own,
        },
    )
    talk = [said for group in groups for said in called(*(("ab"[size % 2], size) for size in group))]
    talk = [one for said in talk for one in (apart(said) if alone else [said])]
    half = plan(talk[:-1], small, policy).state if told else None
    quick = plan(talk, small, policy, state=half)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "_compute_small_sizes", lambda *_: stage._SmallSizes(-1, -1))
        assert plan(talk, small, policy, state=half).record == quick.record


def pasted(*chars):
    """Return what a plan for a window of 32,000 shows of texts that a user says one behind the other."""
    said = [Message.from_text("user", make_text(number, many)) for number, many in enumerate(chars)]
    small = get_target("anthropic", "claude-sonnet-4-5", window=32_000)
    made = plan(said, small)
    return said, apply(said, made), made, compute_budget(small, OURS.settings)


def test_of_what_a_user_pastes_as_much_is_shown_as_of_a_result():
    """What is larger than the window is shown by its start and its end, in about what one result may have."""
    [said], [shown], made, room = pasted(400_000)
    assert 0.8 * room.compute_share(0.25) < made.after - room.setup_tokens <= room.compute_share(0.27)
    start, end = shown.text[100:8_000], shown.text[-3_000:-100]
    assert start in said.text[:8_000]
    assert end in said.text[-3_100:]


def test_texts_of_a_user_share_the_room():
    """Each that must give way has the same share of what those leave that stay whole."""
    said, shown, made, room = pasted(200_000, 200_000, 400_000, 8_000)
    *sizes, _ = [estimate_text_tokens(message.text) for message in shown]
    assert shown[3] == said[3]
    assert max(sizes) < 1.2 * min(sizes)
    assert 0.35 * room.message_tokens < made.after - room.setup_tokens <= room.compute_share(0.55)


@pytest.mark.parametrize("turned", [False, True])
def test_a_dense_end_takes_no_more_than_its_room(turned):
    """A part that has far more tokens than the rest of a text is shown in as many tokens as any other."""
    halves = ["\u7801" * 60_000, "lorem ipsum dolor sit amet\n" * 20_000]
    said = [Message.from_text("user", "\n".join(reversed(halves) if turned else halves))]
    small = get_target("anthropic", "claude-sonnet-4-5", window=32_000)
    made, room = plan(said, small), compute_budget(small, OURS.settings)
    assert 0.1 * room.message_tokens < made.after - room.setup_tokens <= room.compute_share(0.27)
