"""The steps of the fold, one by one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast import Branch, Policy, World, plan
from holdfast.config import target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import measure
from holdfast.state.branch.branch import extend, extended
from holdfast.state.branch.view import edited, origins, patched, patched_position, prefix_basis, project
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    UNANSWERED,
    Answer,
    Compaction,
    Decision,
    Entry,
    Failure,
    Frame,
    Request,
    Revoke,
    Said,
    Usage,
)


def say(role, text):
    return Said(measure(Message.of(role, text)))


def grown(*bodies, branch=None):
    branch = branch or Branch()
    for number, body in enumerate(bodies):
        branch = extend(branch, Entry(f"e{number}", None, body))
    return branch


def texts(branch):
    return [slot.message.text for slot in project(branch)]


TALK = (say("system", "s"), say("user", "a"), say("assistant", "b"), say("user", "c"))


def test_a_log_that_lost_messages_folds():
    """A request that covered more messages than a damaged log still has covers those that are there."""
    branch = grown(*TALK, Request("b", 9, "m"), Answer("b", Usage(100, 1)))
    assert (branch.seen, branch.standing) == (4, 4)


@pytest.mark.parametrize(
    "before", [(), TALK[:1], TALK, (*TALK, Compaction(9)), (TALK[0], Compaction(1), Compaction(1))]
)
def test_messages_at_once_are_messages_in_turn(before):
    """System messages that open, calls that wait for results, a compaction that keeps what is not there yet."""
    call = Said(measure(Message("assistant", (ToolCall("c", "f", "{}"), ToolCall("d", "f", "{}")))))
    result = Said(measure(Message("tool", (ToolResult("d", "f", (Text("r"),)),))))
    bodies = (say("system", "t"), *TALK, call, say("assistant", "x"), call, result, *([say("user", "u")] * 9))
    for count in range(len(bodies)):
        new = [Entry(f"n{number}", None, body) for number, body in enumerate(bodies[:count])]
        assert extended(grown(*before), new) == grown(*bodies[:count], branch=grown(*before))


def test_pinned_messages_are_always_shown():
    """System messages at the very start stand before every summary."""
    branch = grown(*TALK, Compaction(3, Message.of("user", "sum"), 5))
    assert texts(branch) == ["s", "sum", "c"]
    assert origins(branch) == [0, -1, 3]
    assert branch.held == branch.slots[0].size + 5 + branch.slots[3].size


def test_a_newer_compaction_hides_an_older_one():
    """Only the newest valid compaction counts; revoking it brings the one before back."""
    branch = grown(*TALK, Compaction(2, Message.of("user", "one"), 5), Compaction(3, Message.of("user", "two"), 7))
    assert texts(branch) == ["s", "two", "c"]
    assert texts(extend(branch, Entry("x", None, Revoke("e5")))) == ["s", "one", "b", "c"]
    both = extend(extend(branch, Entry("x", None, Revoke("e5"))), Entry("y", None, Revoke("e4")))
    assert texts(both) == ["s", "a", "b", "c"]
    assert extend(branch, Entry("x", None, Revoke("nobody"))) == branch


def test_edits_of_one_slot_are_applied_in_order():
    """Parts are counted as they were said; each edit replaces its own, a later one of the same part wins."""
    message = Message("user", (Text("one"), Text("two"), Text("three")))
    slot = measure(message)

    def put(part, *new, saves=1):
        return Edit(Span(0, 1, part), tuple(Text(one) for one in new), "t", "", saves)

    assert edited(slot, [put(0, "1"), put(2, "3")]).message.text == "1\ntwo\n3"
    assert edited(slot, [put(1, "2"), put(1, "zwei")]).message.text == "one\nzwei\nthree"
    assert edited(slot, [put(0, "1"), put(2, "3")]).size == slot.size - 2
    assert edited(slot, [put(0, "1")]).raw is None


def test_a_decision_about_whole_slots():
    """An edit without a part replaces its slots, several by one or by none, and positions are told by their origin."""
    whole = Edit(Span(1, 3), (Message.of("user", "both"),), "t", "", 0)
    branch = grown(*TALK, Decision((whole,)))
    assert texts(branch) == ["s", "both", "c"]
    assert origins(branch) == [0, 1, 3]
    gone = grown(*TALK, Decision((Edit(Span(1, 3), (), "t", "", 0),)))
    assert texts(gone) == ["s", "c"]
    assert texts(grown(*TALK, Decision((whole,)), Revoke("e4"))) == ["s", "a", "b", "c"]


def test_open_calls():
    """Calls of the newest answer wait until their results came, whatever stands between."""
    call = Said(measure(Message("assistant", (ToolCall("x", "t"), ToolCall("y", "t")))))

    def result(id_):
        return Said(measure(Message("tool", (ToolResult(id_, "t"),))))

    branch = grown(say("user", "a"), call)
    assert branch.open == ("x", "y")
    assert grown(result("y"), say("user", "hm"), branch=branch).open == ("x",)
    assert grown(result("y"), result("x"), result("z"), branch=branch).open == ()
    assert grown(say("assistant", "b"), branch=branch).open == ()


def test_usage_counts_for_an_equal_basis_only():
    """A reported size is an anchor when it answers the newest request, and no longer once its prefix changed."""
    framed = grown(Frame("f", 100), *TALK)
    basis = prefix_basis(framed)
    asked = grown(Request(basis, 4, "m"), branch=framed)
    told = extend(asked, Entry("a", None, Answer(basis, Usage(500, 5))))
    assert told.anchor is not None
    assert (told.anchor.slots, told.anchor.tokens) == (4, 500)
    assert extend(asked, Entry("a", None, Answer("other", Usage(500, 5)))).anchor is None
    assert extend(asked, Entry("a", None, Answer(basis, Usage(0, 5)))).anchor is None
    assert extend(told, Entry("f", None, Frame("g", 200))).anchor is None
    assert extend(told, Entry("f", None, Frame("g", 100, exact=True))).anchor is None
    assert extend(told, Entry("f", None, Frame("g", 102))).anchor == replace(told.anchor, tokens=502)
    assert extend(told, Entry("c", None, Compaction(3))).anchor is None
    early = Edit(Span(1, 2, 0), (Text(""),), "t", "", 1)
    assert extend(told, Entry("d", None, Decision((early,)))).anchor is None
    later = grown(say("assistant", "d"), branch=told)
    late = Edit(Span(4, 5, 0), (Text(""),), "t", "", 1)
    assert extend(later, Entry("d", None, Decision((late,)))).anchor == told.anchor
    assert grown(Request(basis, 4, "other"), branch=told).anchor is None


def test_quiet_counts_requests_since_the_prefix_broke():
    """A decision behind what was seen breaks nothing; one about what was seen, a cut or a frame does."""
    branch = grown(*TALK, Request("b", 4, "m"), Request("c", 4, "m"))
    assert branch.quiet == 2
    fresh = grown(say("assistant", "d"), Decision((Edit(Span(4, 5, 0), (Text(""),), "t", "", 1),)), branch=branch)
    assert fresh.quiet == 2
    assert grown(Decision((Edit(Span(1, 2, 0), (Text(""),), "t", "", 1),)), branch=branch).quiet == 0
    assert grown(Compaction(3), branch=branch).quiet == 0
    assert grown(Frame("g", 1), branch=branch).quiet == 0


def test_failures_are_counted_until_a_compaction():
    """Failures in a row are folded from the log; a compaction with a summary ends the row, a mere cut does not."""
    branch = grown(*TALK, Failure("no-gain"), Failure("timed-out"))
    assert branch.failures == 2
    assert grown(Compaction(3, Message.of("user", "s"), 1), branch=branch).failures == 0
    assert grown(Compaction(3), branch=branch).failures == 2


def test_summaries_that_came_to_nothing_are_counted_until_somebody_writes_one():
    """An extract in its place ends no row, and a dumped branch knows it all, with the time of the newest."""
    summary = Message.of("user", "s")
    branch = grown(*TALK)
    for at in (1_000, 2_000):
        branch = extend(branch, Entry("f", None, Failure("timed_out"), at=at))
    assert (branch.unwritten, branch.failed_at) == (2, 2_000)
    extract = grown(Compaction(3, summary, 1), Failure(UNANSWERED), branch=branch)
    assert (extract.failures, extract.unwritten, extract.failed_at) == (0, 2, 2_000)
    assert Branch.load(extract.dump()) == extract
    for by in ("model", "hook", "native"):
        assert grown(Compaction(3, summary, 1, by=by), branch=extract).unwritten == 0


EDITS = (
    Edit(Span(1, 1), (Message.of("user", "in"),)),
    Edit(Span(2, 4), (Message.of("user", "one"),)),
    Edit(Span(5, 6), ()),
    Edit(Span(7, 7), (Message.of("user", "end"),)),
)


def test_patches_are_applied_at_their_positions():
    """Insertions, merges and drops change only their span, and every position is found again or its neighbour is."""
    slots = [measure(Message.of("user", str(number))) for number in range(7)]
    out = [slot.message.text for slot in patched(slots, EDITS)]
    assert out == ["0", "in", "1", "one", "4", "6", "end"]
    found = [out[patched_position(position, EDITS)] for position in range(7)]
    assert found == ["0", "1", "one", "one", "4", "4", "6"]


@pytest.mark.parametrize("edits", [(), EDITS[:1], EDITS[1:2], EDITS[2:3], EDITS])
def test_patching_keeps_the_size(edits):
    """What replaces slots has their size together; what is put in between has none."""
    slots = [measure(Message.of("user", str(number) * 9)) for number in range(7)]
    kept = [slot.size for number, slot in enumerate(slots) if not (number == 5 and EDITS[2] in edits)]
    assert sum(slot.size for slot in patched(slots, edits)) == sum(kept)


def test_many_messages_are_folded_in_linear_time():
    """A thousand messages and a request after each share their storage: the last branch holds one list of slots."""
    branch = Branch()
    first = branch.slots
    for number in range(1_000):
        branch = grown(say("user", str(number)), Request("b", number + 1, "m"), branch=branch)
    assert branch.slots.grew_into(branch.slots)
    assert len(first) == 0
    assert branch.seen == len(branch.slots) == 1_000


def test_ids_of_two_plans_differ():
    """A decision made after one was undone has an id of its own, so undoing it undoes nothing else."""
    policy = Policy().with_settings(prune_keep=1, prune_minimum=1, compact="off")
    where = target("anthropic", "claude-sonnet-4-5", window=100_000)
    said, branch, ids = [], Branch(), []
    for number in range(4):
        said += [
            Message.of("user", "go"),
            Message("assistant", (ToolCall(f"c{number}", "read"),)),
            Message("tool", (ToolResult(f"c{number}", "read", (Text(f"line {number}\n" * 400),)),)),
            Message.of("assistant", "ok"),
        ]
        branch = plan([*said, Message.of("user", "on")], where, policy, branch=branch, world=World("cold")).branch
        said.append(Message.of("user", "on"))
        said.append(Message.of("assistant", "yes"))
        ids = [id_ for id_, _ in branch.law]
        if number == 2:
            branch = extend(branch, Entry("undo", None, Revoke(ids[0])))
    assert len(ids) == 3
    assert len(set(ids)) == len(ids)
