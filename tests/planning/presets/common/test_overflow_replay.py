"""A compaction after an overflow under opencode and Claude Code: what it keeps, and how its summary ends."""

from __future__ import annotations

import pytest

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, format_part_placeholder, get_result_text
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.planning.presets.common.overflow_replay import CONTINUE_INSTRUCTION, MEDIA_REMOVED_TEXT
from holdfast.state.entries import FAILURE_OVERFLOW, TRIGGER_REPLAY, Entry, FailureEntry, RequestSetup
from holdfast.state.fold.fold_entries import apply_entry

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=60_000, setup=RequestSetup("f", 100, is_exact=True))
PRESETS = ("opencode", "claude-code")
OVERFLOWED = PlanInputs(overflow_step="compact")
PICTURE = Media("image", "image/png", 3_000_000, "tide.png", "iVBORw0KGgoA" + "A" * 4_000_000)
QUESTION = Message("user", (Text("What does this picture show?"), PICTURE))
TALK = [Message.from_text(role, f"{role} {at} " + "kelp " * 400) for at in range(6) for role in ("user", "assistant")]


def build_step(number, text="found it"):
    """Return a tool call with its result."""
    call = ToolCall(f"c{number}", "read", f'{{"path": "part_{number}.py"}}')
    return [Message("assistant", (call,)), Message("tool", (ToolResult(call.id, "read", (Text(text),)),))]


def plan_after_overflow(messages, policy, inputs=OVERFLOWED, *, state=None, target=TARGET):
    """Return the plan after the provider refused the last request for ``messages`` as too large, without a number."""
    first = state or plan(messages, target, policy).state
    return plan(
        messages,
        target,
        policy,
        state=apply_entry(first, Entry("", None, FailureEntry(FAILURE_OVERFLOW, "too long"))),
        inputs=inputs,
    )


def join_texts(messages):
    """Return all texts of a request."""
    parts = [part for message in messages for part in message.parts]
    return "\n".join(get_result_text(p) if isinstance(p, ToolResult) else getattr(p, "text", "") for p in parts)


@pytest.mark.parametrize("name", PRESETS)
def test_overflow_replay_repeats_the_newest_message_without_media(name):
    """[C] Everything before the newest user message is summarized, the message is sent again, and a line stands for its
    picture.
    """
    messages = [*TALK, QUESTION]
    new_plan = plan_after_overflow(messages, Policy.preset(name))
    sent = apply(messages, new_plan)
    assert (new_plan.compaction.first_kept, new_plan.compaction.trigger) == (len(TALK), TRIGGER_REPLAY)
    assert sent[-1].parts == (QUESTION.parts[0], Text("[Attached image/png: tide.png]"))
    assert CONTINUE_INSTRUCTION not in join_texts(sent)
    assert new_plan.after < new_plan.before


@pytest.mark.parametrize("name", PRESETS)
def test_overflow_replay_keeps_calls_and_results_after_the_message(name):
    """Calls and results after the message are sent unchanged, also those that the model has not read."""
    turn = [Message.from_text("user", "Read both."), *build_step(1, "first"), *build_step(2, "unread")]
    messages = [*TALK, *turn]
    assert apply(messages, plan_after_overflow(messages, Policy.preset(name)))[-len(turn) :] == turn


@pytest.mark.parametrize("name", PRESETS)
def test_overflow_replay_skips_client_notes(name):
    """A client's note in the user's name is no user message: the one before it is sent again."""
    note = Message.from_text("user", "<system-reminder>\nThe file changed.\n</system-reminder>")
    messages = [*TALK, QUESTION, *build_step(1), note]
    assert plan_after_overflow(messages, Policy.preset(name)).compaction.first_kept == len(TALK)


@pytest.mark.parametrize("name", PRESETS)
def test_overflow_replay_happens_once_between_two_answers(name):
    """A replayed message that is refused once more is not compacted again, so the other overflow steps get
    their turn.
    """
    messages, policy = [*TALK, QUESTION], Policy.preset(name)
    second_plan = plan_after_overflow(messages, policy, state=plan_after_overflow(messages, policy).state)
    assert second_plan.compaction is None
    assert [notice.rule for notice in second_plan.notices] == ["nothing-to-compact"]


@pytest.mark.parametrize("name", PRESETS)
def test_auto_continue_ends_the_summary_of_a_single_turn(name):
    """With no earlier message the turn is cut: unread results stay, and the summary ends with an instruction to
    continue.
    """
    steps = [message for number in range(8) for message in build_step(number, f"line of {number}\n" * 600)]
    messages = [Message.from_text("user", "Read all of it."), *steps, *build_step(9, "unread")]
    sent = apply(messages, plan_after_overflow(messages, Policy.preset(name)))
    assert sent[-2:] == messages[-2:]
    assert sent[0].parts[-1] == Text(CONTINUE_INSTRUCTION)
    assert "Read all of it." in join_texts(sent)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("shown", [(), (PICTURE,)], ids=["words", "picture"])
def test_auto_continue_mentions_media_only_when_media_were_removed(name, shown):
    """The summary quotes the user's only message and mentions a picture only if one was removed with it."""
    turn = [*build_step(1, "long line of it\n" * 3_000), *build_step(2, "long line of it\n" * 3_000)]
    messages = [Message("user", (Text("Look."), *shown)), *turn]
    sent = join_texts(apply(messages, plan_after_overflow(messages, Policy.preset(name))))
    assert sent.count(CONTINUE_INSTRUCTION) == 1
    assert (MEDIA_REMOVED_TEXT in sent) is bool(shown)
    assert all(format_part_placeholder(part) in sent for part in shown)


def build_turn_over_trigger():
    """Return one turn that is larger than the trigger of ``TARGET``."""
    return [
        Message.from_text("user", "Go."),
        *[message for at in range(9) for message in build_step(at, "value = 1\n" * 3_000)],
    ]


@pytest.mark.parametrize("name", PRESETS)
def test_auto_continue_is_not_added_to_manual_compactions(name):
    """[C] After ``/compact`` no instruction is added and no message is replayed; a hook or a setting can
    switch it off.
    """
    messages, policy = build_turn_over_trigger(), Policy.preset(name)
    keeps_no_tail = policy.with_settings(preset={"tail_turns": 0} if name == "opencode" else {})
    assert CONTINUE_INSTRUCTION in join_texts(
        apply(messages, plan(messages, TARGET, keeps_no_tail, inputs=PlanInputs(overflow_step="compact")))
    )
    plans = [
        plan(messages, TARGET, keeps_no_tail, inputs=PlanInputs(force_compaction=True)),
        plan(messages, TARGET, keeps_no_tail, inputs=PlanInputs(overflow_step="compact", can_auto_continue=False)),
        plan(
            messages,
            TARGET,
            keeps_no_tail.with_settings(preset={"auto_continue": False}),
            inputs=PlanInputs(overflow_step="compact"),
        ),
    ]
    for new_plan in plans:
        assert new_plan.compaction.first_kept > 0
        assert CONTINUE_INSTRUCTION not in join_texts(apply(messages, new_plan))
    manual_plan = plan([*TALK, QUESTION, *build_step(1)], TARGET, policy, inputs=PlanInputs(force_compaction=True))
    assert manual_plan.compaction.trigger != TRIGGER_REPLAY


@pytest.mark.parametrize("name", ["holdfast", "pi", "openclaw"])
def test_overflow_replay_is_only_for_presets_that_ask_for_it(name):
    """The other policies compact after an overflow as they do without one."""
    messages = [*TALK * 4, QUESTION, *build_step(1), *build_step(2)]
    new_plan = plan_after_overflow(messages, Policy.preset(name))
    assert new_plan.compaction is None or (new_plan.compaction.trigger, new_plan.compaction.edits) == ("overflow", ())
    assert CONTINUE_INSTRUCTION not in join_texts(apply(messages, new_plan))


def test_extract_does_not_point_to_messages_below_when_none_are_kept():
    """When no message is kept, the section of next steps points to the newest request in the extract itself."""
    messages, policy, below = (
        build_turn_over_trigger(),
        Policy.preset("claude-code"),
        "continue from the messages below",
    )
    assert below not in join_texts(
        apply(messages, plan(messages, TARGET, policy, inputs=PlanInputs(force_compaction=True)))
    )
    messages = [*messages, Message.from_text("assistant", "Done."), Message.from_text("user", "Now?")]
    assert below in join_texts(
        apply(messages, plan(messages, TARGET, policy, inputs=PlanInputs(force_compaction=True)))
    )
