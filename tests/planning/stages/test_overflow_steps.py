"""The overflow steps of recovery, one by one: what each takes, and what it leaves to be read back."""

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

OURS = Policy()
WHERE = get_target("anthropic", "claude-sonnet-4-5", window=12_000)
PLAIN = OURS.with_settings(
    results={"spill_chars": 0, "message_chars": 0, "spill_share": 0.0, "message_share": 0.0}, compaction={"auto": False}
)
PHOTO = Media("image", "image/png", 90_000, "wall.png", "iVBORw0KGgo=")


def step(number, *texts):
    """Return an answer with a call for each text, and their results."""
    ids = [f"c{number}_{place}" for place in range(len(texts))]
    return [
        Message("assistant", tuple(ToolCall(id_, "read", "{}") for id_ in ids)),
        Message("tool", tuple(ToolResult(id_, "read", (Text(text),)) for id_, text in zip(ids, texts, strict=True))),
    ]


def shown(made):
    return [text for slot in build_messages_to_send(made) for text in map(get_result_text, slot.message.results)]


# -- results cut -------------------------------------------------------------------------------------------------------


def test_only_results_over_their_limit_are_cut():
    """Under pressure a result over its share is cut, seen or not; those within it stay as they are."""
    said = [
        Message.from_text("user", "go"),
        *step(0, make_text(1, 60_000)),
        *step(1, make_text(2, 1_000)),
        *step(2, make_text(3, 60_000)),
    ]
    policy = PLAIN.with_settings(compaction={"goal_share": 0.0})
    branch = plan(said[:3], WHERE, policy).state
    made = plan_request(reconcile_messages(branch, said), WHERE, policy, PlanInputs(overflow_step="truncate"))
    assert [edit.span.start for edit in made.record] == [2, 6]
    old, small, new = shown(made)
    assert small == make_text(2, 1_000)
    assert max(estimate_text_tokens(old), estimate_text_tokens(new)) <= compute_budget(
        WHERE, OURS.settings
    ).compute_share(0.30)
    assert [blob.text for blob in made.blobs] == [make_text(1, 60_000), make_text(3, 60_000)]


def test_a_limit_under_pressure_is_never_too_small_for_words():
    """However small the room, a result keeps five hundred characters."""
    policy = PLAIN.with_settings(compaction={"goal_share": 0.0}, recovery={"result_share": 0.0})
    said = [Message.from_text("user", "go"), *step(0, make_text(4, 9_000))]
    (text,) = shown(plan(said, WHERE, policy, inputs=PlanInputs(overflow_step="truncate")))
    assert 400 <= len(text) <= 500


def test_a_preset_cuts_to_its_own_limits():
    """[O] 0.3 of the window, in characters; and once between two answers."""
    policy = Policy.preset("openclaw").with_settings(
        preset={"window_min": 0, "loop_share": 0.0}, compaction={"enabled": False}
    )
    said = [Message.from_text("user", "go"), *step(0, make_text(4, 60_000))]
    made = plan(said, WHERE, policy, inputs=PlanInputs(overflow_step="truncate"))
    assert len(shown(made)[0]) <= 0.3 * 12_000 * 4
    again = plan_request(made.state, WHERE, policy, PlanInputs(overflow_step="truncate"))
    assert again.record == ()
    assert "not-smaller" in [notice.rule for notice in again.notices]


@pytest.mark.parametrize("newer", [{}, OPENCLAW_2026_9])
@pytest.mark.parametrize("name", ["openclaw"])
def test_no_preset_makes_room_unasked_where_that_is_switched_off(name, newer):
    """With ``auto`` off what is too large goes out whole; what is asked for, or was refused, is made smaller."""
    policy = Policy.preset(name).with_settings(**newer)
    policy = policy.with_settings(preset={"prune": False, "window_min": 0, "window_min_share": 0.0})
    off = policy.with_settings(compaction={"auto": False})
    said = [
        Message.from_text("user", "go"),
        *step(0, make_text(4, 90_000)),
        *step(1, *(make_text(n, 9_000) for n in range(9))),
    ]
    assert plan(said, WHERE, policy).record
    made = plan(said, WHERE, off)
    assert (made.record, made.compaction, made.after) == ((), None, made.before)
    assert plan(said, WHERE, off, inputs=PlanInputs(overflow_step="truncate")).record
    assert plan(said, WHERE, off, inputs=PlanInputs(force_compaction=True)).after < made.before


# -- media -------------------------------------------------------------------------------------------------------------


def test_media_in_results_go_too():
    """What a tool showed goes like what a user showed; the words say what it was."""
    seen = ToolResult("c1", "look", (Text("here"), PHOTO))
    said = [
        Message.from_text("user", "look"),
        Message("assistant", (ToolCall("c1", "look"),)),
        Message("tool", (seen,)),
        Message.from_text("assistant", "a wall"),
        Message("user", (Text("and this?"), PHOTO)),
    ]
    made = plan(said, WHERE, inputs=PlanInputs(overflow_step="media"))
    assert [len(collect_media_in_messages(slot.message)) for slot in build_messages_to_send(made)] == [0, 0, 0, 0, 1]
    assert shown(made) == ["here\n[Attached image/png: wall.png]"]
    assert made.after < made.before


# -- the smallest request ----------------------------------------------------------------------------------------------


def test_many_results_of_one_batch_share_what_there_is():
    """Results that nobody read stay, each a little, with the way to the rest."""
    said = [Message.from_text("user", "read all"), *step(0, *(make_text(n, 8_000) for n in range(24)))]
    made = plan(said, WHERE, PLAIN, inputs=PlanInputs(overflow_step="fallback"))
    texts = shown(made)
    assert len(texts) == 24
    assert made.after <= compute_budget(WHERE, OURS.settings).usable
    assert all('recall(id="' in text for text in texts)
    assert {blob.text for blob in made.blobs} == {make_text(n, 8_000) for n in range(24)}


def test_newest_words_that_were_hidden_before_are_said_again_and_short():
    """Where the newest words gave way to a summary already they stand in the extract, cut if they are long."""
    said = [Message.from_text("user", "Rename the harbour. " + make_text(3, 40_000)), *step(0, make_text(1, 2_000))]
    said += [*step(1, make_text(2, 2_000)), *step(2, make_text(5, 2_000))]
    keeps_nothing = Policy.preset("claude-code")
    branch = plan(
        said, get_target("anthropic", "claude-sonnet-4-5"), keeps_nothing, inputs=PlanInputs(force_compaction=True)
    ).state
    assert branch.view.first_kept > 0
    made = plan_request(
        reconcile_messages(branch, [*said, *step(3, "done")]), WHERE, PLAIN, PlanInputs(overflow_step="fallback")
    )
    assert made.after <= compute_budget(WHERE, OURS.settings).usable
    assert "Rename the harbour." in made.compaction.summary.text
    assert made.after == estimate_request_tokens(made.state, WHERE)


@pytest.mark.parametrize("spill", [True, False])
def test_texts_point_to_where_they_lie(spill):
    """Where a text can be stored it has a handle; where not it says what is left out, and the log holds it."""
    said = [
        Message.from_text("user", make_text(1, 60_000)),
        Message.from_text("assistant", "hm"),
        Message.from_text("user", make_text(2, 60_000)),
    ]
    made = plan(said, WHERE, PLAIN, inputs=PlanInputs(overflow_step="fallback", can_spill=spill))
    newest = build_messages_to_send(made)[-1].message.text
    assert newest.startswith(make_text(2, 60_000)[:400])
    assert ('recall(id="' in newest) is spill
    assert "characters left out" in newest
    assert bool(made.blobs) is spill
    assert list(made.state.history.messages) == said


def test_the_smallest_request_is_smallest():
    """Asked for again it changes nothing and says so."""
    said = [Message.from_text("user", "go"), *step(0, make_text(1, 30_000))]
    made = plan(said, WHERE, PLAIN, inputs=PlanInputs(overflow_step="fallback"))
    again = plan_request(made.state, WHERE, PLAIN, PlanInputs(overflow_step="fallback"))
    assert again.after == made.after
    assert (again.record, again.compaction) == ((), None)
    assert [notice.rule for notice in again.notices] == ["not-smaller"]


def test_the_smallest_request_leaves_room_for_what_comes():
    """Where all that nobody has read would fit and nearly fill the window, less of it is shown, to half at most."""
    said = [Message.from_text("user", "go"), *(one for at in range(40) for one in step(at, make_text(at, 400)))]
    made = plan(said, WHERE, PLAIN, inputs=PlanInputs(overflow_step="fallback"))
    room = compute_budget(WHERE, OURS.settings)
    assert made.before <= 1.1 * room.usable
    assert made.after <= room.setup_tokens + room.compute_share(0.5)


def test_pictures_of_an_answer_are_words_beside_its_calls():
    """Where what an agent drew stands with its calls these stay, open or waiting to be read, and are no floor."""
    drawn = Message("assistant", (*[PHOTO] * 6, ToolCall("c", "read", "{}")))
    said = [Message.from_text("user", "draw"), drawn, Message("tool", (ToolResult("c", "read", (Text("ok"),)),))]
    for count_ in (2, 3):
        made = plan(said[:count_], WHERE, PLAIN, inputs=PlanInputs(overflow_step="fallback"))
        assert made.compaction is None
        assert [len(slot.message.calls) for slot in build_messages_to_send(made)][:2] == [0, 1]
        assert made.after <= compute_budget(WHERE, OURS.settings).usable
        assert [notice.rule for notice in made.notices] == []
        assert estimate_irreducible_tokens(made.state, WHERE, OURS.settings) <= made.after


def test_what_no_extract_could_tell_is_short_where_it_stands():
    """Pictures without a word are words on the last overflow step, seen or not: no extract takes their place."""
    said = [Message("assistant", (PHOTO,))] * 6
    branch = plan(said, WHERE, PLAIN).state
    made = plan_request(branch, WHERE, PLAIN, PlanInputs(overflow_step="fallback"))
    assert branch.last_request.seen_count == len(said)
    assert [edit.span.start for edit in made.record] == [*range(6)]
    assert made.after <= compute_budget(WHERE, OURS.settings).usable


# -- the floor ---------------------------------------------------------------------------------------------------------


def test_the_floor_is_frame_newest_words_and_open_calls():
    """What may give way does not count: closed steps, older words, and all but a little of long texts."""
    branch = ConversationState()
    said = [
        Message.from_text("user", make_text(1, 50_000)),
        *step(0, make_text(2, 50_000)),
        Message.from_text("user", make_text(3, 50_000)),
    ]
    said.append(Message("assistant", (ToolCall("o", "write", make_text(3, 4_000)), ToolCall("p", "read"))))
    said.append(Message("tool", (ToolResult("p", "read", (Text(make_text(4, 50_000)),)),)))
    for number, message in enumerate(said):
        branch = apply_entry(branch, Entry(str(number), None, MessageEntry(build_sized_message(message))))
    assert (find_open_call_group(branch), find_newest_user_index(branch, 0)) == (4, 3)
    arguments = estimate_text_tokens(make_text(3, 4_000))
    least = estimate_irreducible_tokens(branch, WHERE, OURS.settings)
    assert 1.2 * arguments < least < 1.5 * arguments + 700
    assert estimate_irreducible_tokens(ConversationState(), WHERE, OURS.settings) == 0
    assert find_open_call_group(reconcile_messages(ConversationState(), said[:3])) == 3
