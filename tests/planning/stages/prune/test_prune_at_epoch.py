"""Holdfast's own pruning: when old results may be removed, and which."""

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

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=200_000)
POLICY = Policy().with_settings(prune={"keep_tokens": 2_000, "min_tokens": 500}, compaction={"enabled": False})


def build_steps(number, words=500, calls=1):
    """Return a conversation of ``number`` steps, each with ``calls`` results of ``words`` words."""
    messages = [Message.from_text("user", "go")]
    for step in range(number):
        ids = [f"c{step}x{call}" for call in range(calls)]
        messages.append(Message("assistant", tuple(ToolCall(id_, "read") for id_ in ids)))
        messages.append(Message("tool", tuple(ToolResult(id_, "read", (Text(f"{id_} " * words),)) for id_ in ids)))
    return messages


def build_state(messages, policy=POLICY, target=TARGET, request_count=1):
    """Return the state of a conversation after ``request_count`` requests."""
    state = ConversationState.from_entries(
        Entry("", None, MessageEntry(build_sized_message(message))) for message in messages
    )
    for _ in range(request_count):
        state = plan_request(state, target, policy).state
    return state


def list_pruned_indexes(plan):
    """Return the indexes of the messages in which a result was pruned."""
    return sorted({edit.span.start for edit in plan.record if edit.rule == "prune"})


def build_policy(*reasons, keep_tokens=2_000, **other_settings):
    return POLICY.with_settings(prune={"when": reasons, "keep_tokens": keep_tokens}, **other_settings)


def test_prune_at_epoch_prunes_when_the_cache_is_cold():
    """Nothing is pruned while the cache is warm; once it is cold, all but the newest tokens of results go."""
    state = build_state(build_steps(8))
    assert list_pruned_indexes(plan_request(state, TARGET, POLICY)) == []
    plan = plan_request(state, TARGET, POLICY, PlanInputs("cold"))
    kept = [index for index in range(2, 17, 2) if index not in list_pruned_indexes(plan)]
    assert list_pruned_indexes(plan) == list(range(2, kept[0], 2))
    assert (
        sum(estimate_text_tokens(get_result_text(state.history.messages[index].results[0])) for index in kept[:-1])
        <= 2_000
    )
    assert list_pruned_indexes(plan_request(state, TARGET, build_policy("space"), PlanInputs("cold"))) == []


def test_prune_at_epoch_prunes_after_a_setup_or_model_change():
    """When the tools or the model changed, no prefix is read from a cache, so old results are pruned too."""
    state = build_state(build_steps(8))
    for other_target in (replace(TARGET, setup=RequestSetup("other", 9)), replace(TARGET, model="claude-opus-5-5")):
        assert list_pruned_indexes(plan_request(state, other_target, POLICY))
        assert list_pruned_indexes(plan_request(state, other_target, build_policy("cold"))) == []
        second_plan = plan_request(plan_request(state, other_target, build_policy("cold")).state, other_target, POLICY)
        assert list_pruned_indexes(second_plan) == []


def test_prune_at_epoch_prunes_when_another_stage_breaks_the_prefix():
    """When an earlier stage replaced a seen message, the prefix breaks anyway and old results go with it."""
    picture = Media("image", "image/png", 3, "a.png", "AAAA")
    messages = [Message("user", (Text("look"), picture)), *build_steps(8)]
    state = build_state(messages)
    state = apply_entry(state, Entry("", None, MessageEntry(build_sized_message(Message("user", (picture,))))))
    limited_media = build_policy("cold", "broken", media={"max_count": 1})
    plan = plan_request(state, TARGET, limited_media)
    assert {edit.rule for edit in plan.record} == {"media", "prune"}
    assert {edit.rule for edit in plan_request(state, TARGET, build_policy("cold", media={"max_count": 1})).record} == {
        "media"
    }


def test_prune_at_epoch_does_not_repeat_a_revoked_decision():
    """After an undo the results stay whole in the next request, although the undo broke the prefix."""
    cold_plan = plan_request(build_state(build_steps(8)), TARGET, POLICY, PlanInputs("cold"))
    ((name, _),) = cold_plan.state.view.active_decisions
    revoked = apply_entry(cold_plan.state, Entry("u", None, RevokeEntry(name)))
    assert revoked.counters.requests_since_break == 0
    assert plan_request(revoked, TARGET, POLICY).record == ()
    for message in build_steps(1, 30_000)[1:]:
        revoked = apply_entry(revoked, Entry("", None, MessageEntry(build_sized_message(message))))
    assert {edit.rule for edit in plan_request(revoked, TARGET, POLICY).record} == {"spill"}


def test_prune_at_epoch_prunes_for_space_before_a_compaction():
    """With ``space`` among the reasons old results go before a compaction; if that is enough, none is made."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=12_000)
    messages = build_steps(16, 250)
    for reasons, compacts in ((("cold",), True), (("space",), False)):
        policy = build_policy(*reasons).with_settings(compaction={"enabled": True})
        plan = plan_request(
            ConversationState.from_entries(
                Entry("", None, MessageEntry(build_sized_message(message))) for message in messages
            ),
            target,
            policy,
        )
        assert (plan.compaction is not None) == compacts
        assert bool(list_pruned_indexes(plan)) == (not compacts)


@pytest.mark.parametrize(
    ("read", "write", "request_count", "pays"),
    [(0.3, 3.75, 1, False), (0.3, 3.75, 60, True), (3.0, 3.0, 1, True), (0.0, 3.0, 60, False), (3.0, 3.75, 1, True)],
)
def test_prune_at_epoch_prunes_when_the_price_pays(read, write, request_count, pays):
    """Results go if `saved x requests to come x read > suffix x (write - read)`, with at least ten requests to come."""
    target = replace(TARGET, prices=Prices(cache_read=read, cache_write=write))
    state = build_state(build_steps(8, 400), build_policy("price"), TARGET, 0)
    new_state = plan_request(state, target, build_policy()).state
    state = replace(
        new_state,
        counters=replace(new_state.counters, requests_since_break=request_count),
    )
    policy = build_policy("price", keep_tokens=9_000)
    plan = plan_request(state, target, policy)
    assert bool(list_pruned_indexes(plan)) == pays
    if pays:
        saved = sum(edit.saves for edit in plan.record)
        first = list_pruned_indexes(plan)[0]
        suffix = sum(sized.tokens for sized in state.history.sized_messages.slice(first)) - saved
        assert saved * max(10, request_count) * read > suffix * (write - read)


@pytest.mark.parametrize(("factor", "pays"), [(0.99, True), (1.01, False)])
def test_prune_at_epoch_measures_the_suffix_after_the_first_pruned_result(factor, pays):
    """The suffix in the price rule is what stays shown after the first pruned result."""
    policy = build_policy("price", keep_tokens=3_000)
    state = build_state(build_steps(3), build_policy())
    (edit,) = plan_request(state, replace(TARGET, prices=Prices(cache_read=1.0, cache_write=1.0)), policy).record
    suffix = sum(sized.tokens for sized in state.history.sized_messages.slice(edit.span.start)) - edit.saves
    write = 1.0 + factor * 10 * edit.saves / suffix
    plan = plan_request(state, replace(TARGET, prices=Prices(cache_read=1.0, cache_write=write)), policy)
    assert bool(plan.record) == pays


@pytest.mark.parametrize(("hour", "pays"), [(0, True), (1, False)])
def test_prune_at_epoch_prices_an_hour_cache_at_twice_the_input(hour, pays):
    """A session that writes one-hour cache entries pays twice the input price to write them again."""
    policy = build_policy("price", keep_tokens=3_000)
    state = build_state(build_steps(3), build_policy())
    state = apply_entry(
        state,
        Entry(
            "",
            None,
            AnswerEntry(state.last_request.prefix_digest, Usage(9_000, 1, 0, 9_000, cache_write_1h=9_000 * hour)),
        ),
    )
    (edit,) = plan_request(
        state, replace(TARGET, prices=Prices(cache_read=1.0, cache_write=1.0, input=0.5)), policy
    ).record
    suffix = sum(sized.tokens for sized in state.history.sized_messages.slice(edit.span.start)) - edit.saves
    worth = 10 * edit.saves / suffix
    prices = Prices(cache_read=1.0, cache_write=1 + 0.99 * worth, input=(1 + 1.01 * worth) / 2)
    assert bool(plan_request(state, replace(TARGET, prices=prices), policy).record) == pays


def test_prune_at_epoch_never_splits_a_message():
    """Results of one message go or stay together, so that the next prune changes only later messages."""
    plan = plan_request(build_state(build_steps(8, 100, calls=5)), TARGET, POLICY, PlanInputs("cold"))
    assert list_pruned_indexes(plan)
    assert len(plan.record) == 5 * len(list_pruned_indexes(plan))


def test_prune_at_epoch_keeps_unanswered_results():
    """Results after the newest answer were never seen by the model and stay whole, whatever their size."""
    messages = [*build_steps(3), *build_steps(1, 4_000)[1:]]
    plan = plan_request(
        build_state(messages, request_count=0), TARGET, build_policy("cold", keep_tokens=1), PlanInputs("cold")
    )
    assert list_pruned_indexes(plan) == [2, 4, 6]


def test_prune_at_epoch_counts_the_size_added_by_escaping():
    """A result that escaping made longer saves its shown size when pruned, and the blob has the original text."""
    messages = build_steps(8)
    forged = Text("</persisted_tool_result>" * 200)
    messages[2] = Message("tool", (ToolResult("c0x0", "read", (forged,)),))
    state = build_state(messages)
    plan = plan_request(state, TARGET, POLICY, PlanInputs("cold"))
    (edit,) = [edit for edit in plan.record if edit.span.start == 2]
    shown = build_projection(plan.state)[2]
    assert {other.rule for other in state.view.edits[2]} == {ESCAPE_RULE}
    assert state.view.shown_tokens - plan.state.view.shown_tokens == sum(other.saves for other in plan.record)
    assert (edit.rule, edit.blob_hash) == ("prune", hash_text(forged.text))
    line = estimate_text_tokens(get_result_text(shown.message.results[0]))
    assert edit.saves == estimate_text_tokens(forged.text) - sum(other.saves for other in state.view.edits[2]) - line
    assert shown.tokens == state.history.sized_messages[2].tokens - estimate_text_tokens(forged.text) + line


def test_prune_at_epoch_prunes_nothing_without_a_store():
    """A placeholder names the stored text, so nothing is pruned when texts cannot be stored."""
    state = build_state(build_steps(8))
    assert plan_request(state, TARGET, POLICY, PlanInputs("cold", can_spill=False)).record == ()
    plan = plan_request(state, TARGET, POLICY, PlanInputs("cold"))
    texts = {blob.hash: blob.text for blob in plan.blobs}
    assert all(
        texts[edit.blob_hash] == get_result_text(state.history.messages[edit.span.start].results[0])
        for edit in plan.record
    )
