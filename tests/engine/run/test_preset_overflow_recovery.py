"""Overflow recovery of opencode and Claude Code, through an engine: what goes out next, and how a run ends."""

from __future__ import annotations

from contextlib import nullcontext

import msgspec
import pytest
from sample_entries import SAMPLE_KEY

from holdfast import Policy, events
from holdfast.config import get_target
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.engine import Engine
from holdfast.engine.hooks import Hooks
from holdfast.errors import ContextOverflow
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.planning.presets.common.overflow_replay import CONTINUE_INSTRUCTION, MEDIA_REMOVED_TEXT
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.upstream import ScriptedUpstream

MODEL = "claude-sonnet-4-5"
PRESETS = ("opencode", "claude-code")
TOO_LARGE = RefusalReply(400, "invalid_request_error", "prompt is too long")
PICTURE = Media("image", "image/png", 300_000, "tide.png", "iVBORw0KGgo=" + "A" * 400_000)
QUESTION = Message("user", (Text("What does this picture show?"), PICTURE))
TALK = [Message.from_text(role, f"{role} {at} " + "kelp " * 900) for at in range(6) for role in ("user", "assistant")]
SUMMARY = "\n".join(
    f"## {name}\n- kelp {at} grows on the rock, and barnacles beside it" for at, name in enumerate(SUMMARY_HEADINGS)
)


def step(number, text="unread"):
    """Return a call with its result."""
    call = ToolCall(f"c{number}", "read", "{}")
    return [Message("assistant", (call,)), Message("tool", (ToolResult(call.id, "read", (Text(text),)),))]


ONE_TURN = [Message.from_text("user", "Go."), *[one for at in range(4) for one in step(at, "value = 1\n" * 900)]]


def asked(said, replies, name, *, hooks=Hooks(), written=None, window=200_000, ends=nullcontext(), **summarizer):
    """Return the requests that went out for ``said``, and what was told meanwhile.

    ``written`` are the replies to requests for summaries, where somebody writes them.
    """
    upstream, heard = ScriptedUpstream(replies), []
    where = get_target("anthropic", MODEL, window=window)
    writers = [] if written is None else [SummaryWriter(ScriptedUpstream(written), where)]
    policy = Policy.preset(name).with_settings(summarizer={"min_tokens": 0, "max_identifiers": 0} | summarizer)

    async def go():
        opened = Engine.open(
            MemoryStore(), upstream=upstream, target=where, policy=policy, hooks=hooks, writers=writers,
            listen=heard.append,
        )  # fmt: skip
        async with opened as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*said[:-1])
            with ends:
                await session.ask(said[-1])

    run_on_fake_clock(go)
    return [msgspec.json.decode(sent.body)["messages"] for sent in upstream.sent], heard


def words(request):
    """Return the texts of a request."""
    contents = [message["content"] for message in request]
    blocks = [[{"text": one}] if isinstance(one, str) else one for one in contents]
    return "\n".join(block.get("text", "") for some in blocks for block in some)


def steps(heard):
    """Return the steps that recovery took."""
    return [event.overflow_step for event in heard if isinstance(event, events.ShrinkStarted)]


@pytest.mark.parametrize("written", [None, [SUMMARY] * 9], ids=["extract", "model"])
@pytest.mark.parametrize("name", PRESETS)
def test_a_refused_picture_goes_and_the_words_beside_it_are_said_again(name, written):
    """[C] one compaction of what lies before, made by whoever makes summaries; the newest message stands behind it."""
    (_, sent), heard = asked([*TALK, QUESTION], [TOO_LARGE, "yes"], name, written=written)
    assert [block["text"] for block in sent[-1]["content"]][-2:] == [QUESTION.text, "[Attached image/png: tide.png]"]
    assert steps(heard) == ["compact"]
    assert [event.rule for event in heard if isinstance(event, events.EditsDecided)] == ["media"]
    assert CONTINUE_INSTRUCTION not in words(sent)
    assert ("barnacles" in words(sent)) is bool(written)


@pytest.mark.parametrize("name", PRESETS)
def test_unread_results_are_in_the_next_request(name):
    """In the middle of a turn the request ends with what the model waits for, and begins its turn with the user."""
    turn = [Message.from_text("user", "Read it."), *step(1, "read"), *step(2)]
    (_, sent), _ = asked([*TALK, *turn], [TOO_LARGE, "yes"], name)
    assert [message["role"] for message in sent[-4:]] == ["assistant", "user", "assistant", "user"]
    assert sent[-1]["content"][0]["tool_use_id"] == "c2"
    assert "Read it." in words(sent)


@pytest.mark.parametrize("answer", [None, True, False])
@pytest.mark.parametrize("name", PRESETS)
def test_a_hook_turns_the_word_to_go_on_off(name, answer):
    """``auto_continue`` is asked once, where a compaction cut a turn; the request goes out either way."""
    calls = []
    hooks = Hooks(auto_continue=lambda: calls.append(1) or answer)
    (_, sent), heard = asked(ONE_TURN, [TOO_LARGE, "yes"], name, hooks=hooks)
    assert (CONTINUE_INSTRUCTION in words(sent)) is (answer is not False)
    assert (len(calls), steps(heard)) == (1, ["compact"])


@pytest.mark.parametrize("name", PRESETS)
def test_a_hook_is_not_asked_where_no_turn_is_cut(name):
    """The message that is said again tells the model what to do: there is nothing to turn off."""
    hooks = Hooks(auto_continue=lambda: pytest.fail("nothing is added here"))
    asked([*TALK, QUESTION], [TOO_LARGE, "yes"], name, hooks=hooks)


@pytest.mark.parametrize("name", PRESETS)
def test_media_that_went_are_mentioned(name):
    """The only message of the user gives way with its picture: what tells the model to go on says so."""
    said = [QUESTION, *step(1, "value = 1\n" * 900), *step(2, "value = 1\n" * 900)]
    (_, sent), _ = asked(said, [TOO_LARGE, "yes"], name)
    assert f"{MEDIA_REMOVED_TEXT}\n\n{CONTINUE_INSTRUCTION}" in words(sent)
    assert QUESTION.text in words(sent)


@pytest.mark.parametrize(
    ("said", "text"),
    [([*TALK, QUESTION], "Conversation history too large to compact"), (ONE_TURN, "Session too large to compact")],
    ids=["replay", "no replay"],
)
@pytest.mark.parametrize("name", PRESETS)
def test_a_run_stops_where_the_summary_s_request_is_too_large(name, said, text):
    """[C] with one of two texts, and nothing else is tried; under our policy the extract takes its place."""
    ends = pytest.raises(ContextOverflow, match=f"{text}: .*name a model with a larger window for summaries")
    sent, heard = asked(said, [TOO_LARGE], name, written=[TOO_LARGE] * 2, ends=ends)
    assert (len(sent), steps(heard)) == (1, ["compact"])
    sent, _ = asked(said, [TOO_LARGE, "yes"], name, written=[TOO_LARGE] * 2, when_too_large="extract")
    assert len(sent) == 2


def test_a_request_that_was_not_refused_does_not_stop():
    """Over the trigger of the policy it may still be taken: an extract stands where no summary could be asked for."""
    said = [*TALK * 5, Message.from_text("user", "Now?")]
    (sent,), heard = asked(said, ["yes"], "claude-code", written=[TOO_LARGE] * 2, window=60_000)
    assert [event.outcome for event in heard if isinstance(event, events.CompactionEnded)] == [
        "provider_error",
        "compacted",
    ]
    assert sent[-1]["content"][-1]["text"] == "Now?"


def test_our_policy_lets_the_picture_go_before_it_compacts_twice():
    """The newest message is shown with a line for its picture, and only what lies before it is folded."""
    (_, second, third), heard = asked([*TALK, QUESTION], [TOO_LARGE, TOO_LARGE, "yes"], "holdfast")
    assert steps(heard) == ["compact", "media"]
    assert any(block["type"] == "image" for block in second[-1]["content"])
    assert third[-1]["content"][-1]["text"] == "[Attached image/png: tide.png]"
    assert QUESTION.text in words(third)
