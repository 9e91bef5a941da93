"""The steps of the fold, one by one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast import ConversationState, PlanInputs, Policy, plan
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    FAILURE_UNANSWERED,
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    FailureEntry,
    MessageEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)
from holdfast.state.fold.fold_entries import apply_entries, apply_entry
from holdfast.state.view import (
    apply_normalization,
    apply_part_edits,
    build_projection,
    compute_prefix_digest,
    get_valid_measured_request,
    list_projection_origins,
    map_normalized_position,
)


def say(role, text):
    return MessageEntry(build_sized_message(Message.from_text(role, text)))


def grown(*bodies, branch=None):
    branch = branch or ConversationState()
    for number, body in enumerate(bodies):
        branch = apply_entry(branch, Entry(f"e{number}", None, body))
    return branch


def texts(branch):
    return [slot.message.text for slot in build_projection(branch)]


TALK = (say("system", "s"), say("user", "a"), say("assistant", "b"), say("user", "c"))


def test_a_log_that_lost_messages_folds():
    """A request that covered more messages than a damaged log still has covers those that are there."""
    branch = grown(*TALK, RequestEntry("b", 9, "m"), AnswerEntry("b", Usage(100, 1)))
    assert (branch.last_request.seen_count, branch.last_request.unchanged_until) == (4, 4)


@pytest.mark.parametrize(
    "before", [(), TALK[:1], TALK, (*TALK, CompactionEntry(9)), (TALK[0], CompactionEntry(1), CompactionEntry(1))]
)
def test_messages_at_once_are_messages_in_turn(before):
    """System messages that open, calls that wait for results, a compaction that keeps what is not there yet."""
    call = MessageEntry(build_sized_message(Message("assistant", (ToolCall("c", "f", "{}"), ToolCall("d", "f", "{}")))))
    result = MessageEntry(build_sized_message(Message("tool", (ToolResult("d", "f", (Text("r"),)),))))
    bodies = (say("system", "t"), *TALK, call, say("assistant", "x"), call, result, *([say("user", "u")] * 9))
    for count in range(len(bodies)):
        new = [Entry(f"n{number}", None, body) for number, body in enumerate(bodies[:count])]
        assert apply_entries(grown(*before), new) == grown(*bodies[:count], branch=grown(*before))


def test_pinned_messages_are_always_shown():
    """System messages at the very start stand before every summary."""
    branch = grown(*TALK, CompactionEntry(3, Message.from_text("user", "sum"), 5))
    assert texts(branch) == ["s", "sum", "c"]
    assert list_projection_origins(branch) == [0, -1, 3]
    assert (
        branch.view.shown_tokens
        == branch.history.sized_messages[0].tokens + 5 + branch.history.sized_messages[3].tokens
    )


def test_a_newer_compaction_hides_an_older_one():
    """Only the newest valid compaction counts; revoking it brings the one before back."""
    branch = grown(
        *TALK,
        CompactionEntry(2, Message.from_text("user", "one"), 5),
        CompactionEntry(3, Message.from_text("user", "two"), 7),
    )
    assert texts(branch) == ["s", "two", "c"]
    assert texts(apply_entry(branch, Entry("x", None, RevokeEntry("e5")))) == ["s", "one", "b", "c"]
    both = apply_entry(apply_entry(branch, Entry("x", None, RevokeEntry("e5"))), Entry("y", None, RevokeEntry("e4")))
    assert texts(both) == ["s", "a", "b", "c"]
    assert apply_entry(branch, Entry("x", None, RevokeEntry("nobody"))) == branch


def test_edits_of_one_slot_are_applied_in_order():
    """Parts are counted as they were said; each edit replaces its own, a later one of the same part wins."""
    message = Message("user", (Text("one"), Text("two"), Text("three")))
    slot = build_sized_message(message)

    def put(part, *new, saves=1):
        return Edit(Span(0, 1, part), tuple(Text(one) for one in new), "t", "", saves)

    assert apply_part_edits(slot, [put(0, "1"), put(2, "3")]).message.text == "1\ntwo\n3"
    assert apply_part_edits(slot, [put(1, "2"), put(1, "zwei")]).message.text == "one\nzwei\nthree"
    assert apply_part_edits(slot, [put(0, "1"), put(2, "3")]).tokens == slot.tokens - 2
    assert apply_part_edits(slot, [put(0, "1")]).raw is None


def test_a_decision_about_whole_slots():
    """An edit without a part replaces its slots, several by one or by none, and positions are told by their origin."""
    whole = Edit(Span(1, 3), (Message.from_text("user", "both"),), "t", "", 0)
    branch = grown(*TALK, DecisionEntry((whole,)))
    assert texts(branch) == ["s", "both", "c"]
    assert list_projection_origins(branch) == [0, 1, 3]
    gone = grown(*TALK, DecisionEntry((Edit(Span(1, 3), (), "t", "", 0),)))
    assert texts(gone) == ["s", "c"]
    assert texts(grown(*TALK, DecisionEntry((whole,)), RevokeEntry("e4"))) == ["s", "a", "b", "c"]


def test_open_calls():
    """Calls of the newest answer wait until their results came, whatever stands between."""
    call = MessageEntry(build_sized_message(Message("assistant", (ToolCall("x", "t"), ToolCall("y", "t")))))

    def result(id_):
        return MessageEntry(build_sized_message(Message("tool", (ToolResult(id_, "t"),))))

    branch = grown(say("user", "a"), call)
    assert branch.history.open_call_ids == ("x", "y")
    assert grown(result("y"), say("user", "hm"), branch=branch).history.open_call_ids == ("x",)
    assert grown(result("y"), result("x"), result("z"), branch=branch).history.open_call_ids == ()
    assert grown(say("assistant", "b"), branch=branch).history.open_call_ids == ()


def test_usage_counts_for_an_equal_basis_only():
    """A reported size is an anchor when it answers the newest request, and no longer once its prefix changed."""
    framed = grown(RequestSetup("f", 100), *TALK)
    basis = compute_prefix_digest(framed)
    asked = grown(RequestEntry(basis, 4, "m"), branch=framed)
    told = apply_entry(asked, Entry("a", None, AnswerEntry(basis, Usage(500, 5))))
    assert get_valid_measured_request(told) is not None
    assert (get_valid_measured_request(told).message_count, get_valid_measured_request(told).reported_tokens) == (
        4,
        500,
    )
    assert get_valid_measured_request(apply_entry(asked, Entry("a", None, AnswerEntry("other", Usage(500, 5))))) is None
    assert get_valid_measured_request(apply_entry(asked, Entry("a", None, AnswerEntry(basis, Usage(0, 5))))) is None
    assert get_valid_measured_request(apply_entry(told, Entry("f", None, RequestSetup("g", 200)))) is None
    assert (
        get_valid_measured_request(apply_entry(told, Entry("f", None, RequestSetup("g", 100, is_exact=True)))) is None
    )
    assert get_valid_measured_request(apply_entry(told, Entry("f", None, RequestSetup("g", 102)))) == replace(
        get_valid_measured_request(told), reported_tokens=502
    )
    assert get_valid_measured_request(apply_entry(told, Entry("c", None, CompactionEntry(3)))) is None
    early = Edit(Span(1, 2, 0), (Text(""),), "t", "", 1)
    assert get_valid_measured_request(apply_entry(told, Entry("d", None, DecisionEntry((early,))))) is None
    later = grown(say("assistant", "d"), branch=told)
    late = Edit(Span(4, 5, 0), (Text(""),), "t", "", 1)
    assert get_valid_measured_request(
        apply_entry(later, Entry("d", None, DecisionEntry((late,))))
    ) == get_valid_measured_request(told)
    assert get_valid_measured_request(grown(RequestEntry(basis, 4, "other"), branch=told)) is None


def test_quiet_counts_requests_since_the_prefix_broke():
    """A decision behind what was seen breaks nothing; one about what was seen, a cut or a frame does."""
    branch = grown(*TALK, RequestEntry("b", 4, "m"), RequestEntry("c", 4, "m"))
    assert branch.counters.requests_since_break == 2
    fresh = grown(say("assistant", "d"), DecisionEntry((Edit(Span(4, 5, 0), (Text(""),), "t", "", 1),)), branch=branch)
    assert fresh.counters.requests_since_break == 2
    assert (
        grown(
            DecisionEntry((Edit(Span(1, 2, 0), (Text(""),), "t", "", 1),)), branch=branch
        ).counters.requests_since_break
        == 0
    )
    assert grown(CompactionEntry(3), branch=branch).counters.requests_since_break == 0
    assert grown(RequestSetup("g", 1), branch=branch).counters.requests_since_break == 0


def test_failures_are_counted_until_a_compaction():
    """Failures in a row are folded from the log; a compaction with a summary ends the row, a mere cut does not."""
    branch = grown(*TALK, FailureEntry("no-gain"), FailureEntry("timed-out"))
    assert branch.counters.failed_compactions == 2
    assert grown(CompactionEntry(3, Message.from_text("user", "s"), 1), branch=branch).counters.failed_compactions == 0
    assert grown(CompactionEntry(3), branch=branch).counters.failed_compactions == 2


def test_summaries_that_came_to_nothing_are_counted_until_somebody_writes_one():
    """An extract in its place ends no row, and a dumped branch knows it all, with the time of the newest."""
    summary = Message.from_text("user", "s")
    branch = grown(*TALK)
    for at in (1_000, 2_000):
        branch = apply_entry(branch, Entry("f", None, FailureEntry("timed_out"), time_ms=at))
    assert (branch.counters.failures_since_summary, branch.counters.compaction_failed_at) == (2, 2_000)
    extract = grown(CompactionEntry(3, summary, 1), FailureEntry(FAILURE_UNANSWERED), branch=branch)
    assert (
        extract.counters.failed_compactions,
        extract.counters.failures_since_summary,
        extract.counters.compaction_failed_at,
    ) == (0, 2, 2_000)
    assert ConversationState.load(extract.dump()) == extract
    for by in ("model", "hook", "native"):
        assert grown(CompactionEntry(3, summary, 1, author=by), branch=extract).counters.failures_since_summary == 0


EDITS = (
    Edit(Span(1, 1), (Message.from_text("user", "in"),)),
    Edit(Span(2, 4), (Message.from_text("user", "one"),)),
    Edit(Span(5, 6), ()),
    Edit(Span(7, 7), (Message.from_text("user", "end"),)),
)


def test_patches_are_applied_at_their_positions():
    """Insertions, merges and drops change only their span, and every position is found again or its neighbour is."""
    slots = [build_sized_message(Message.from_text("user", str(number))) for number in range(7)]
    out = [slot.message.text for slot in apply_normalization(slots, EDITS)]
    assert out == ["0", "in", "1", "one", "4", "6", "end"]
    found = [out[map_normalized_position(position, EDITS)] for position in range(7)]
    assert found == ["0", "1", "one", "one", "4", "4", "6"]


@pytest.mark.parametrize("edits", [(), EDITS[:1], EDITS[1:2], EDITS[2:3], EDITS])
def test_patching_keeps_the_size(edits):
    """What replaces slots has their size together; what is put in between has none."""
    slots = [build_sized_message(Message.from_text("user", str(number) * 9)) for number in range(7)]
    kept = [slot.tokens for number, slot in enumerate(slots) if not (number == 5 and EDITS[2] in edits)]
    assert sum(slot.tokens for slot in apply_normalization(slots, edits)) == sum(kept)


def test_many_messages_are_folded_in_linear_time():
    """A thousand messages and a request after each share their storage: the last branch holds one list of slots."""
    branch = ConversationState()
    first = branch.history.sized_messages
    for number in range(1_000):
        branch = grown(say("user", str(number)), RequestEntry("b", number + 1, "m"), branch=branch)
    assert branch.history.sized_messages.is_storage_of(branch.history.sized_messages)
    assert len(first) == 0
    assert branch.last_request.seen_count == len(branch.history.sized_messages) == 1_000


def test_ids_of_two_plans_differ():
    """A decision made after one was undone has an id of its own, so undoing it undoes nothing else."""
    policy = Policy().with_settings(prune={"keep_tokens": 1, "min_tokens": 1}, compaction={"enabled": False})
    where = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
    said, branch, ids = [], ConversationState(), []
    for number in range(4):
        said += [
            Message.from_text("user", "go"),
            Message("assistant", (ToolCall(f"c{number}", "read"),)),
            Message("tool", (ToolResult(f"c{number}", "read", (Text(f"line {number}\n" * 400),)),)),
            Message.from_text("assistant", "ok"),
        ]
        branch = plan(
            [*said, Message.from_text("user", "on")], where, policy, state=branch, inputs=PlanInputs("cold")
        ).state
        said.append(Message.from_text("user", "on"))
        said.append(Message.from_text("assistant", "yes"))
        ids = [id_ for id_, _ in branch.view.active_decisions]
        if number == 2:
            branch = apply_entry(branch, Entry("undo", None, RevokeEntry(ids[0])))
    assert len(ids) == 3
    assert len(set(ids)) == len(ids)
