"""The overflow steps of recovery, one by one: what each shortens, and what can be read back."""

from __future__ import annotations

import pytest
from sample_conversations import make_text

from holdfast import ConversationState, PlanInputs, Policy, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, collect_media_in_messages, get_result_text
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.normalize.projection import build_messages_to_send
from holdfast.planning.budget import compute_budget
from holdfast.planning.pipeline import plan_request
from holdfast.planning.plan import reconcile_messages
from holdfast.planning.presets.openclaw.rules import OPENCLAW_2026_9
from holdfast.planning.stages.smallest_request import estimate_irreducible_tokens, find_open_call_group
from holdfast.state.calibration.token_estimate import estimate_request_tokens
from holdfast.state.entries import Entry, MessageEntry
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.turns import find_newest_user_index

POLICY = Policy()
TARGET = get_target("anthropic", "claude-sonnet-4-5", window=12_000)
WITHOUT_SPILLING = POLICY.with_settings(
    results={"spill_chars": 0, "message_chars": 0, "spill_share": 0.0, "message_share": 0.0}, compaction={"auto": False}
)
PHOTO = Media("image", "image/png", 90_000, "wall.png", "iVBORw0KGgo=")


def build_step(number, *texts):
    """Return an answer with one call for each text, and their results."""
    ids = [f"c{number}_{index}" for index in range(len(texts))]
    return [
        Message("assistant", tuple(ToolCall(id_, "read", "{}") for id_ in ids)),
        Message("tool", tuple(ToolResult(id_, "read", (Text(text),)) for id_, text in zip(ids, texts, strict=True))),
    ]


def list_result_texts(new_plan):
    return [text for sized in build_messages_to_send(new_plan) for text in map(get_result_text, sized.message.results)]


# -- truncate ----------------------------------------------------------------------------------------------------------


def test_truncate_step_cuts_only_results_over_their_limit():
    """A result over its share is cut, seen or not; results within it stay unchanged."""
    messages = [
        Message.from_text("user", "go"),
        *build_step(0, make_text(1, 60_000)),
        *build_step(1, make_text(2, 1_000)),
        *build_step(2, make_text(3, 60_000)),
    ]
    policy = WITHOUT_SPILLING.with_settings(compaction={"goal_share": 0.0})
    state = plan(messages[:3], TARGET, policy).state
    new_plan = plan_request(reconcile_messages(state, messages), TARGET, policy, PlanInputs(overflow_step="truncate"))
    assert [edit.span.start for edit in new_plan.record] == [2, 6]
    old, small, new = list_result_texts(new_plan)
    assert small == make_text(2, 1_000)
    assert max(estimate_text_tokens(old), estimate_text_tokens(new)) <= compute_budget(
        TARGET, POLICY.settings
    ).compute_share(0.30)
    assert [blob.text for blob in new_plan.blobs] == [make_text(1, 60_000), make_text(3, 60_000)]


def test_truncate_step_keeps_five_hundred_characters():
    """However small the budget, a result keeps five hundred characters."""
    policy = WITHOUT_SPILLING.with_settings(compaction={"goal_share": 0.0}, recovery={"result_share": 0.0})
    messages = [Message.from_text("user", "go"), *build_step(0, make_text(4, 9_000))]
    (text,) = list_result_texts(plan(messages, TARGET, policy, inputs=PlanInputs(overflow_step="truncate")))
    assert 400 <= len(text) <= 500


def test_truncate_step_uses_the_limits_of_the_preset():
    """[O] 0.3 of the window, in characters, and once between two answers."""
    policy = Policy.preset("openclaw").with_settings(
        preset={"window_min": 0, "loop_share": 0.0}, compaction={"enabled": False}
    )
    messages = [Message.from_text("user", "go"), *build_step(0, make_text(4, 60_000))]
    new_plan = plan(messages, TARGET, policy, inputs=PlanInputs(overflow_step="truncate"))
    assert len(list_result_texts(new_plan)[0]) <= 0.3 * 12_000 * 4
    second_plan = plan_request(new_plan.state, TARGET, policy, PlanInputs(overflow_step="truncate"))
    assert second_plan.record == ()
    assert "not-smaller" in [notice.rule for notice in second_plan.notices]


@pytest.mark.parametrize("newer", [{}, OPENCLAW_2026_9])
@pytest.mark.parametrize("name", ["openclaw"])
def test_plan_openclaw_shortens_nothing_with_auto_off(name, newer):
    """With ``auto`` off an oversized request is sent whole; a forced or refused one is shortened."""
    policy = Policy.preset(name).with_settings(**newer)
    policy = policy.with_settings(preset={"prune": False, "window_min": 0, "window_min_share": 0.0})
    off = policy.with_settings(compaction={"auto": False})
    messages = [
        Message.from_text("user", "go"),
        *build_step(0, make_text(4, 90_000)),
        *build_step(1, *(make_text(n, 9_000) for n in range(9))),
    ]
    assert plan(messages, TARGET, policy).record
    new_plan = plan(messages, TARGET, off)
    assert (new_plan.record, new_plan.compaction, new_plan.after) == ((), None, new_plan.before)
    assert plan(messages, TARGET, off, inputs=PlanInputs(overflow_step="truncate")).record
    assert plan(messages, TARGET, off, inputs=PlanInputs(force_compaction=True)).after < new_plan.before


# -- media -------------------------------------------------------------------------------------------------------------


def test_media_step_drops_media_in_results():
    """Media from a tool go like media from a user, and a line says what they were."""
    seen = ToolResult("c1", "look", (Text("here"), PHOTO))
    messages = [
        Message.from_text("user", "look"),
        Message("assistant", (ToolCall("c1", "look"),)),
        Message("tool", (seen,)),
        Message.from_text("assistant", "a wall"),
        Message("user", (Text("and this?"), PHOTO)),
    ]
    new_plan = plan(messages, TARGET, inputs=PlanInputs(overflow_step="media"))
    assert [len(collect_media_in_messages(sized.message)) for sized in build_messages_to_send(new_plan)] == [
        0,
        0,
        0,
        0,
        1,
    ]
    assert list_result_texts(new_plan) == ["here\n[Attached image/png: wall.png]"]
    assert new_plan.after < new_plan.before


# -- the smallest request ----------------------------------------------------------------------------------------------


def test_smallest_request_divides_the_budget_among_parallel_results():
    """Unread results of one batch all stay, each shortened with a handle to the rest."""
    messages = [Message.from_text("user", "read all"), *build_step(0, *(make_text(n, 8_000) for n in range(24)))]
    new_plan = plan(messages, TARGET, WITHOUT_SPILLING, inputs=PlanInputs(overflow_step="fallback"))
    texts = list_result_texts(new_plan)
    assert len(texts) == 24
    assert new_plan.after <= compute_budget(TARGET, POLICY.settings).usable
    assert all('recall(id="' in text for text in texts)
    assert {blob.text for blob in new_plan.blobs} == {make_text(n, 8_000) for n in range(24)}


def test_smallest_request_quotes_a_summarized_newest_message():
    """When the newest user message is already summarized, the extract quotes it, cut if it is long."""
    messages = [
        Message.from_text("user", "Rename the harbour. " + make_text(3, 40_000)),
        *build_step(0, make_text(1, 2_000)),
    ]
    messages += [*build_step(1, make_text(2, 2_000)), *build_step(2, make_text(5, 2_000))]
    policy = Policy.preset("claude-code")
    state = plan(
        messages, get_target("anthropic", "claude-sonnet-4-5"), policy, inputs=PlanInputs(force_compaction=True)
    ).state
    assert state.view.first_kept > 0
    new_plan = plan_request(
        reconcile_messages(state, [*messages, *build_step(3, "done")]),
        TARGET,
        WITHOUT_SPILLING,
        PlanInputs(overflow_step="fallback"),
    )
    assert new_plan.after <= compute_budget(TARGET, POLICY.settings).usable
    assert "Rename the harbour." in new_plan.compaction.summary.text
    assert new_plan.after == estimate_request_tokens(new_plan.state, TARGET)


@pytest.mark.parametrize("can_spill", [True, False])
def test_smallest_request_names_stored_texts(can_spill):
    """A text that can be stored has a handle; otherwise the line states what is left out, and the log has the text."""
    messages = [
        Message.from_text("user", make_text(1, 60_000)),
        Message.from_text("assistant", "hm"),
        Message.from_text("user", make_text(2, 60_000)),
    ]
    new_plan = plan(
        messages, TARGET, WITHOUT_SPILLING, inputs=PlanInputs(overflow_step="fallback", can_spill=can_spill)
    )
    newest = build_messages_to_send(new_plan)[-1].message.text
    assert newest.startswith(make_text(2, 60_000)[:400])
    assert ('recall(id="' in newest) is can_spill
    assert "characters left out" in newest
    assert bool(new_plan.blobs) is can_spill
    assert list(new_plan.state.history.messages) == messages


def test_smallest_request_is_idempotent():
    """A second attempt changes nothing and says so."""
    messages = [Message.from_text("user", "go"), *build_step(0, make_text(1, 30_000))]
    new_plan = plan(messages, TARGET, WITHOUT_SPILLING, inputs=PlanInputs(overflow_step="fallback"))
    second_plan = plan_request(new_plan.state, TARGET, WITHOUT_SPILLING, PlanInputs(overflow_step="fallback"))
    assert second_plan.after == new_plan.after
    assert (second_plan.record, second_plan.compaction) == ((), None)
    assert [notice.rule for notice in second_plan.notices] == ["not-smaller"]


def test_smallest_request_leaves_room_for_the_answer():
    """When all unread messages would nearly fill the window, they are shortened to half of the budget at most."""
    messages = [
        Message.from_text("user", "go"),
        *(message for at in range(40) for message in build_step(at, make_text(at, 400))),
    ]
    new_plan = plan(messages, TARGET, WITHOUT_SPILLING, inputs=PlanInputs(overflow_step="fallback"))
    budget = compute_budget(TARGET, POLICY.settings)
    assert new_plan.before <= 1.1 * budget.usable
    assert new_plan.after <= budget.setup_tokens + budget.compute_share(0.5)


def test_smallest_request_replaces_pictures_beside_calls():
    """When an answer has pictures and calls, the calls stay, open or unread, and the pictures are replaced."""
    answer = Message("assistant", (*[PHOTO] * 6, ToolCall("c", "read", "{}")))
    messages = [Message.from_text("user", "draw"), answer, Message("tool", (ToolResult("c", "read", (Text("ok"),)),))]
    for message_count in (2, 3):
        new_plan = plan(messages[:message_count], TARGET, WITHOUT_SPILLING, inputs=PlanInputs(overflow_step="fallback"))
        assert new_plan.compaction is None
        assert [len(sized.message.calls) for sized in build_messages_to_send(new_plan)][:2] == [0, 1]
        assert new_plan.after <= compute_budget(TARGET, POLICY.settings).usable
        assert [notice.rule for notice in new_plan.notices] == []
        assert estimate_irreducible_tokens(new_plan.state, TARGET, POLICY.settings) <= new_plan.after


def test_smallest_request_replaces_pictures_that_no_extract_can_quote():
    """Pictures without text are replaced by lines on the last step, seen or not, since no extract can cover them."""
    messages = [Message("assistant", (PHOTO,))] * 6
    state = plan(messages, TARGET, WITHOUT_SPILLING).state
    new_plan = plan_request(state, TARGET, WITHOUT_SPILLING, PlanInputs(overflow_step="fallback"))
    assert state.last_request.seen_count == len(messages)
    assert [edit.span.start for edit in new_plan.record] == [*range(6)]
    assert new_plan.after <= compute_budget(TARGET, POLICY.settings).usable


# -- what cannot be reduced --------------------------------------------------------------------------------------------


def test_estimate_irreducible_tokens_counts_setup_newest_message_and_open_calls():
    """Closed steps, older messages and all but the start of long texts do not count, as they can be shortened."""
    state = ConversationState()
    messages = [
        Message.from_text("user", make_text(1, 50_000)),
        *build_step(0, make_text(2, 50_000)),
        Message.from_text("user", make_text(3, 50_000)),
    ]
    messages.append(Message("assistant", (ToolCall("o", "write", make_text(3, 4_000)), ToolCall("p", "read"))))
    messages.append(Message("tool", (ToolResult("p", "read", (Text(make_text(4, 50_000)),)),)))
    for number, message in enumerate(messages):
        state = apply_entry(state, Entry(str(number), None, MessageEntry(build_sized_message(message))))
    assert (find_open_call_group(state), find_newest_user_index(state, 0)) == (4, 3)
    arguments = estimate_text_tokens(make_text(3, 4_000))
    tokens = estimate_irreducible_tokens(state, TARGET, POLICY.settings)
    assert 1.2 * arguments < tokens < 1.5 * arguments + 700
    assert estimate_irreducible_tokens(ConversationState(), TARGET, POLICY.settings) == 0
    assert find_open_call_group(reconcile_messages(ConversationState(), messages[:3])) == 3
