"""Our own pruning: when old results may go, and which."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast import PlanInputs, Policy
from holdfast.config import get_target
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.messages.text.text_cuts import hash_text
from holdfast.planning.pipeline import plan_request
from holdfast.planning.stages.escape_tags import ESCAPE_RULE
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import AnswerEntry, Entry, MessageEntry, RequestSetup, RevokeEntry, Usage
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.target import Prices
from holdfast.state.view import build_projection

WHERE = get_target("anthropic", "claude-sonnet-4-5", window=200_000)
POLICY = Policy().with_settings(prune={"keep_tokens": 2_000, "min_tokens": 500}, compaction={"enabled": False})


def steps(number, words=500, calls=1):
    """Return a conversation of so many steps, each with results of so many words."""
    said = [Message.from_text("user", "go")]
    for step in range(number):
        ids = [f"c{step}x{call}" for call in range(calls)]
        said.append(Message("assistant", tuple(ToolCall(id_, "read") for id_ in ids)))
        said.append(Message("tool", tuple(ToolResult(id_, "read", (Text(f"{id_} " * words),)) for id_ in ids)))
    return said


def asked(said, policy=POLICY, where=WHERE, quiet=1):
    """Return the branch of a conversation after so many requests."""
    branch = ConversationState.from_entries(Entry("", None, MessageEntry(build_sized_message(one))) for one in said)
    for _ in range(quiet):
        branch = plan_request(branch, where, policy).state
    return branch


def gone(plan):
    """Return the slots of which something was pruned."""
    return sorted({edit.span.start for edit in plan.record if edit.rule == "prune"})


def when(*reasons, keep_tokens=2_000, **more):
    return POLICY.with_settings(prune={"when": reasons, "keep_tokens": keep_tokens}, **more)


def test_a_cold_cache_is_a_reason():
    """Nothing goes while the cache is warm; when it is cold the old go and the newest tokens of results stay."""
    branch = asked(steps(8))
    assert gone(plan_request(branch, WHERE, POLICY)) == []
    plan = plan_request(branch, WHERE, POLICY, PlanInputs("cold"))
    kept = [index for index in range(2, 17, 2) if index not in gone(plan)]
    assert gone(plan) == list(range(2, kept[0], 2))
    assert (
        sum(estimate_text_tokens(get_result_text(branch.history.messages[index].results[0])) for index in kept[:-1])
        <= 2_000
    )
    assert gone(plan_request(branch, WHERE, when("space"), PlanInputs("cold"))) == []


def test_another_frame_or_model_is_a_reason():
    """Where tools or model changed nothing of the prefix is read from a cache: the old go too."""
    branch = asked(steps(8))
    for other in (replace(WHERE, setup=RequestSetup("other", 9)), replace(WHERE, model="claude-opus-5-5")):
        assert gone(plan_request(branch, other, POLICY))
        assert gone(plan_request(branch, other, when("cold"))) == []
        again = plan_request(plan_request(branch, other, when("cold")).state, other, POLICY)
        assert gone(again) == []


def test_another_decision_is_a_reason():
    """Where a stage before replaced something that was seen, the prefix breaks anyway and the old go with it."""
    picture = Media("image", "image/png", 3, "a.png", "AAAA")
    said = [Message("user", (Text("look"), picture)), *steps(8)]
    branch = asked(said)
    branch = apply_entry(branch, Entry("", None, MessageEntry(build_sized_message(Message("user", (picture,))))))
    few = when("cold", "broken", media={"max_count": 1})
    plan = plan_request(branch, WHERE, few)
    assert {edit.rule for edit in plan.record} == {"media", "prune"}
    assert {edit.rule for edit in plan_request(branch, WHERE, when("cold", media={"max_count": 1})).record} == {"media"}


def test_what_was_taken_back_is_not_decided_again():
    """After an undo the results are whole again in the next request, though the undo broke the prefix."""
    cold = plan_request(asked(steps(8)), WHERE, POLICY, PlanInputs("cold"))
    ((name, _),) = cold.state.view.active_decisions
    undone = apply_entry(cold.state, Entry("u", None, RevokeEntry(name)))
    assert undone.counters.requests_since_break == 0
    assert plan_request(undone, WHERE, POLICY).record == ()
    for message in steps(1, 30_000)[1:]:
        undone = apply_entry(undone, Entry("", None, MessageEntry(build_sized_message(message))))
    assert {edit.rule for edit in plan_request(undone, WHERE, POLICY).record} == {"spill"}


def test_space_is_a_reason():
    """Before a compaction the old go, if the policy says so; where that is enough none is made."""
    where = get_target("anthropic", "claude-sonnet-4-5", window=12_000)
    said = steps(16, 250)
    for reasons, compacts in ((("cold",), True), (("space",), False)):
        policy = when(*reasons).with_settings(compaction={"enabled": True})
        plan = plan_request(
            ConversationState.from_entries(Entry("", None, MessageEntry(build_sized_message(one))) for one in said),
            where,
            policy,
        )
        assert (plan.compaction is not None) == compacts
        assert bool(gone(plan)) == (not compacts)


@pytest.mark.parametrize(
    ("read", "write", "quiet", "pays"),
    [(0.3, 3.75, 1, False), (0.3, 3.75, 60, True), (3.0, 3.0, 1, True), (0.0, 3.0, 60, False), (3.0, 3.75, 1, True)],
)
def test_the_price_is_a_reason(read, write, quiet, pays):
    """They go where `saved x requests to come x read > suffix x (write - read)`, ten requests at least."""
    where = replace(WHERE, prices=Prices(cache_read=read, cache_write=write))
    branch = asked(steps(8, 400), when("price"), WHERE, 0)
    new_state = plan_request(branch, where, when()).state
    branch = replace(
        new_state,
        counters=replace(new_state.counters, requests_since_break=quiet),
    )
    policy = when("price", keep_tokens=9_000)
    plan = plan_request(branch, where, policy)
    assert bool(gone(plan)) == pays
    if pays:
        saved = sum(edit.saves for edit in plan.record)
        first = gone(plan)[0]
        suffix = sum(slot.tokens for slot in branch.history.sized_messages.slice(first)) - saved
        assert saved * max(10, quiet) * read > suffix * (write - read)


@pytest.mark.parametrize(("factor", "pays"), [(0.99, True), (1.01, False)])
def test_the_price_is_exact(factor, pays):
    """The suffix is what is shown behind the first result that goes, without what goes."""
    policy = when("price", keep_tokens=3_000)
    branch = asked(steps(3), when())
    (edit,) = plan_request(branch, replace(WHERE, prices=Prices(cache_read=1.0, cache_write=1.0)), policy).record
    suffix = sum(slot.tokens for slot in branch.history.sized_messages.slice(edit.span.start)) - edit.saves
    write = 1.0 + factor * 10 * edit.saves / suffix
    plan = plan_request(branch, replace(WHERE, prices=Prices(cache_read=1.0, cache_write=write)), policy)
    assert bool(plan.record) == pays


@pytest.mark.parametrize(("hour", "pays"), [(0, True), (1, False)])
def test_what_is_kept_for_an_hour_costs_more_to_write_again(hour, pays):
    """Behind what a session writes for an hour stands twice the price of input, not that of five minutes."""
    policy = when("price", keep_tokens=3_000)
    branch = asked(steps(3), when())
    branch = apply_entry(
        branch,
        Entry(
            "",
            None,
            AnswerEntry(branch.last_request.prefix_digest, Usage(9_000, 1, 0, 9_000, cache_write_1h=9_000 * hour)),
        ),
    )
    (edit,) = plan_request(
        branch, replace(WHERE, prices=Prices(cache_read=1.0, cache_write=1.0, input=0.5)), policy
    ).record
    suffix = sum(slot.tokens for slot in branch.history.sized_messages.slice(edit.span.start)) - edit.saves
    worth = 10 * edit.saves / suffix
    prices = Prices(cache_read=1.0, cache_write=1 + 0.99 * worth, input=(1 + 1.01 * worth) / 2)
    assert bool(plan_request(branch, replace(WHERE, prices=prices), policy).record) == pays


def test_no_message_is_split():
    """Results of one message go together or stay together, so that the next prune changes only what comes later."""
    plan = plan_request(asked(steps(8, 100, calls=5)), WHERE, POLICY, PlanInputs("cold"))
    assert gone(plan)
    assert len(plan.record) == 5 * len(gone(plan))


def test_what_no_model_answered_stays():
    """Results behind the newest answer were never seen: they stay whole, whatever their size."""
    said = [*steps(3), *steps(1, 4_000)[1:]]
    plan = plan_request(asked(said, quiet=0), WHERE, when("cold", keep_tokens=1), PlanInputs("cold"))
    assert gone(plan) == [2, 4, 6]


def test_what_escaping_cost_comes_back_too():
    """A result with look-alikes of our tag is shown longer than it was said; what its edits save is what is gone."""
    said = steps(8)
    forged = Text("</persisted_tool_result>" * 200)
    said[2] = Message("tool", (ToolResult("c0x0", "read", (forged,)),))
    branch = asked(said)
    plan = plan_request(branch, WHERE, POLICY, PlanInputs("cold"))
    (edit,) = [edit for edit in plan.record if edit.span.start == 2]
    shown = build_projection(plan.state)[2]
    assert {one.rule for one in branch.view.edits[2]} == {ESCAPE_RULE}
    assert branch.view.shown_tokens - plan.state.view.shown_tokens == sum(one.saves for one in plan.record)
    assert (edit.rule, edit.blob_hash) == ("prune", hash_text(forged.text))
    line = estimate_text_tokens(get_result_text(shown.message.results[0]))
    assert edit.saves == estimate_text_tokens(forged.text) - sum(one.saves for one in branch.view.edits[2]) - line
    assert shown.tokens == branch.history.sized_messages[2].tokens - estimate_text_tokens(forged.text) + line


def test_where_nothing_can_be_stored_nothing_goes():
    """The line that stays names a text: it must be there to be read back."""
    branch = asked(steps(8))
    assert plan_request(branch, WHERE, POLICY, PlanInputs("cold", can_spill=False)).record == ()
    plan = plan_request(branch, WHERE, POLICY, PlanInputs("cold"))
    texts = {blob.hash: blob.text for blob in plan.blobs}
    assert all(
        texts[edit.blob_hash] == get_result_text(branch.history.messages[edit.span.start].results[0])
        for edit in plan.record
    )
