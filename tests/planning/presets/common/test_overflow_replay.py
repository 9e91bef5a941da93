"""A compaction after an overflow under opencode and Claude Code: what it keeps, and what it says at its end."""

from __future__ import annotations

import pytest

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, format_part_placeholder, get_result_text
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.planning.presets.common.overflow_replay import CONTINUE_INSTRUCTION, MEDIA_REMOVED_TEXT
from holdfast.state.entries import FAILURE_OVERFLOW, TRIGGER_REPLAY, Entry, FailureEntry, RequestSetup
from holdfast.state.fold.fold_entries import apply_entry

WHERE = get_target("anthropic", "claude-sonnet-4-5", window=60_000, setup=RequestSetup("f", 100, is_exact=True))
PRESETS = ("opencode", "claude-code")
OVERFLOWED = PlanInputs(overflow_step="compact")
PICTURE = Media("image", "image/png", 3_000_000, "tide.png", "iVBORw0KGgo=" + "A" * 4_000_000)
QUESTION = Message("user", (Text("What does this picture show?"), PICTURE))
TALK = [Message.from_text(role, f"{role} {at} " + "kelp " * 400) for at in range(6) for role in ("user", "assistant")]


def step(number, text="found it"):
    """Return a call with its result."""
    call = ToolCall(f"c{number}", "read", f'{{"path": "part_{number}.py"}}')
    return [Message("assistant", (call,)), Message("tool", (ToolResult(call.id, "read", (Text(text),)),))]


def after_refusal(said, policy, world=OVERFLOWED, *, branch=None, where=WHERE):
    """Return the plan after the newest request for ``said`` was refused as too large, without a number."""
    first = branch or plan(said, where, policy).state
    return plan(
        said,
        where,
        policy,
        state=apply_entry(first, Entry("", None, FailureEntry(FAILURE_OVERFLOW, "too long"))),
        inputs=world,
    )


def words(messages):
    """Return all words of a request."""
    parts = [part for message in messages for part in message.parts]
    return "\n".join(get_result_text(p) if isinstance(p, ToolResult) else getattr(p, "text", "") for p in parts)


@pytest.mark.parametrize("name", PRESETS)
def test_overflow_replay_says_the_newest_message_again_without_its_media(name):
    """[C] what lies before is summarized, the message is said again, and its picture is a line."""
    said = [*TALK, QUESTION]
    made = after_refusal(said, Policy.preset(name))
    sent = apply(said, made)
    assert (made.compaction.first_kept, made.compaction.trigger) == (len(TALK), TRIGGER_REPLAY)
    assert sent[-1].parts == (QUESTION.parts[0], Text("[Attached image/png: tide.png]"))
    assert CONTINUE_INSTRUCTION not in words(sent)
    assert made.after < made.before


@pytest.mark.parametrize("name", PRESETS)
def test_overflow_replay_keeps_what_followed_the_message(name):
    """Calls and results behind it are shown as they were, also those that the model has not read."""
    turn = [Message.from_text("user", "Read both."), *step(1, "first"), *step(2, "unread")]
    said = [*TALK, *turn]
    assert apply(said, after_refusal(said, Policy.preset(name)))[-len(turn) :] == turn


@pytest.mark.parametrize("name", PRESETS)
def test_overflow_replay_passes_over_notes_of_a_client(name):
    """What a client notes in the user's name is no message of the user: the one before it is said again."""
    note = Message.from_text("user", "<system-reminder>\nThe file changed.\n</system-reminder>")
    said = [*TALK, QUESTION, *step(1), note]
    assert after_refusal(said, Policy.preset(name)).compaction.first_kept == len(TALK)


@pytest.mark.parametrize("name", PRESETS)
def test_overflow_replay_happens_once_between_two_answers(name):
    """A message that was said again and is refused once more is not folded: the other steps of recovery have a turn."""
    said, policy = [*TALK, QUESTION], Policy.preset(name)
    again = after_refusal(said, policy, branch=after_refusal(said, policy).state)
    assert again.compaction is None
    assert [notice.rule for notice in again.notices] == ["nothing-to-compact"]


@pytest.mark.parametrize("name", PRESETS)
def test_auto_continue_where_one_turn_is_all_there_is(name):
    """Without an earlier message the turn is cut: unread results stay, and the summary ends with a word to go on."""
    long = [one for number in range(8) for one in step(number, f"line of {number}\n" * 600)]
    said = [Message.from_text("user", "Read all of it."), *long, *step(9, "unread")]
    sent = apply(said, after_refusal(said, Policy.preset(name)))
    assert sent[-2:] == said[-2:]
    assert sent[0].parts[-1] == Text(CONTINUE_INSTRUCTION)
    assert "Read all of it." in words(sent)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("shown", [(), (PICTURE,)], ids=["words", "picture"])
def test_auto_continue_mentions_media_only_where_they_went(name, shown):
    """The user's only message is told in the summary; only a picture that went with it is mentioned."""
    turn = [*step(1, "long line of it\n" * 3_000), *step(2, "long line of it\n" * 3_000)]
    said = [Message("user", (Text("Look."), *shown)), *turn]
    sent = words(apply(said, after_refusal(said, Policy.preset(name))))
    assert sent.count(CONTINUE_INSTRUCTION) == 1
    assert (MEDIA_REMOVED_TEXT in sent) is bool(shown)
    assert all(format_part_placeholder(one) in sent for one in shown)


def cut_turn():
    """Return one turn that is over the trigger of ``WHERE``."""
    return [Message.from_text("user", "Go."), *[one for at in range(9) for one in step(at, "value = 1\n" * 3_000)]]


@pytest.mark.parametrize("name", PRESETS)
def test_auto_continue_is_not_for_compactions_by_hand(name):
    """[C] after ``/compact`` nothing is added and nothing is said again; a hook can refuse, and a setting."""
    said, policy = cut_turn(), Policy.preset(name)
    folds = policy.with_settings(preset={"tail_turns": 0} if name == "opencode" else {})
    assert CONTINUE_INSTRUCTION in words(
        apply(said, plan(said, WHERE, folds, inputs=PlanInputs(overflow_step="compact")))
    )
    quiet = [
        plan(said, WHERE, folds, inputs=PlanInputs(force_compaction=True)),
        plan(said, WHERE, folds, inputs=PlanInputs(overflow_step="compact", can_auto_continue=False)),
        plan(
            said,
            WHERE,
            folds.with_settings(preset={"auto_continue": False}),
            inputs=PlanInputs(overflow_step="compact"),
        ),
    ]
    for made in quiet:
        assert made.compaction.first_kept > 0
        assert CONTINUE_INSTRUCTION not in words(apply(said, made))
    by_hand = plan([*TALK, QUESTION, *step(1)], WHERE, policy, inputs=PlanInputs(force_compaction=True))
    assert by_hand.compaction.trigger != TRIGGER_REPLAY


@pytest.mark.parametrize("name", ["holdfast", "pi", "openclaw"])
def test_overflow_replay_belongs_to_the_presets_that_ask_for_it(name):
    """The other policies compact after an overflow as they do by themselves."""
    said = [*TALK * 4, QUESTION, *step(1), *step(2)]
    made = after_refusal(said, Policy.preset(name))
    assert made.compaction is None or (made.compaction.trigger, made.compaction.edits) == ("overflow", ())
    assert CONTINUE_INSTRUCTION not in words(apply(said, made))


def test_an_extract_with_no_messages_below_does_not_point_there():
    """Where nothing is kept, the section of next steps leads to the newest request in the extract itself."""
    said, policy, below = cut_turn(), Policy.preset("claude-code"), "continue from the messages below"
    assert below not in words(apply(said, plan(said, WHERE, policy, inputs=PlanInputs(force_compaction=True))))
    said = [*said, Message.from_text("assistant", "Done."), Message.from_text("user", "Now?")]
    assert below in words(apply(said, plan(said, WHERE, policy, inputs=PlanInputs(force_compaction=True))))
