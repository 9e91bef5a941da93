"""Overflow recovery with the presets of opencode and Claude Code, through an engine."""

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
PICTURE = Media("image", "image/png", 300_000, "tide.png", "iVBORw0KGgoA" + "A" * 400_000)
QUESTION = Message("user", (Text("What does this picture show?"), PICTURE))
TURNS = [Message.from_text(role, f"{role} {at} " + "kelp " * 900) for at in range(6) for role in ("user", "assistant")]
SUMMARY = "\n".join(
    f"## {name}\n- kelp {at} grows on the rock, and barnacles beside it" for at, name in enumerate(SUMMARY_HEADINGS)
)


def build_step(number, text="unread"):
    """Return a tool call and its result."""
    call = ToolCall(f"c{number}", "read", "{}")
    return [Message("assistant", (call,)), Message("tool", (ToolResult(call.id, "read", (Text(text),)),))]


ONE_TURN = [
    Message.from_text("user", "Go."),
    *[message for at in range(4) for message in build_step(at, "value = 1\n" * 900)],
]


def ask_with_preset(
    messages,
    replies,
    name,
    *,
    hooks=Hooks(),
    summary_replies=None,
    window=200_000,
    expectation=nullcontext(),
    **summarizer,
):
    """Ask the last of ``messages`` behind the others; return the messages of each request, and the events.

    ``summary_replies`` are the replies to summary requests; without them no model writes summaries.
    """
    upstream, seen_events = ScriptedUpstream(replies), []
    target = get_target("anthropic", MODEL, window=window)
    writers = [] if summary_replies is None else [SummaryWriter(ScriptedUpstream(summary_replies), target)]
    policy = Policy.preset(name).with_settings(summarizer={"min_tokens": 0, "max_identifiers": 0} | summarizer)

    async def run_scenario():
        opening = Engine.open(
            MemoryStore(), upstream=upstream, target=target, policy=policy, hooks=hooks, writers=writers,
            listen=seen_events.append,
        )  # fmt: skip
        async with opening as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*messages[:-1])
            with expectation:
                await session.ask(messages[-1])

    run_on_fake_clock(run_scenario)
    return [msgspec.json.decode(sent.body)["messages"] for sent in upstream.sent], seen_events


def join_texts(request):
    """Return the texts of a request, one per line."""
    contents = [message["content"] for message in request]
    blocks = [[{"text": content}] if isinstance(content, str) else content for content in contents]
    return "\n".join(block.get("text", "") for content_blocks in blocks for block in content_blocks)


def list_overflow_steps(seen_events):
    """Return the overflow steps among the events."""
    return [event.overflow_step for event in seen_events if isinstance(event, events.ShrinkStarted)]


@pytest.mark.parametrize("summary_replies", [None, [SUMMARY] * 9], ids=["extract", "model"])
@pytest.mark.parametrize("name", PRESETS)
def test_preset_recovery_drops_a_refused_image_and_repeats_its_message(name, summary_replies):
    """[C] One compaction covers the older messages; the newest one follows with a line for its image."""
    (_, sent), seen_events = ask_with_preset(
        [*TURNS, QUESTION], [TOO_LARGE, "yes"], name, summary_replies=summary_replies
    )
    assert [block["text"] for block in sent[-1]["content"]][-2:] == [QUESTION.text, "[Attached image/png: tide.png]"]
    assert list_overflow_steps(seen_events) == ["compact"]
    assert [event.rule for event in seen_events if isinstance(event, events.EditsDecided)] == ["media"]
    assert CONTINUE_INSTRUCTION not in join_texts(sent)
    assert ("barnacles" in join_texts(sent)) is bool(summary_replies)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_recovery_keeps_unread_results(name):
    """Inside a turn the request keeps the turn's user message and ends with the results that the model waits for."""
    turn = [Message.from_text("user", "Read it."), *build_step(1, "read"), *build_step(2)]
    (_, sent), _ = ask_with_preset([*TURNS, *turn], [TOO_LARGE, "yes"], name)
    assert [message["role"] for message in sent[-4:]] == ["assistant", "user", "assistant", "user"]
    assert sent[-1]["content"][0]["tool_use_id"] == "c2"
    assert "Read it." in join_texts(sent)


@pytest.mark.parametrize("answer", [None, True, False])
@pytest.mark.parametrize("name", PRESETS)
def test_auto_continue_hook_can_omit_the_continue_instruction(name, answer):
    """The hook is called once when a compaction cut a turn, and the request is sent either way."""
    calls = []
    hooks = Hooks(auto_continue=lambda: calls.append(1) or answer)
    (_, sent), seen_events = ask_with_preset(ONE_TURN, [TOO_LARGE, "yes"], name, hooks=hooks)
    assert (CONTINUE_INSTRUCTION in join_texts(sent)) is (answer is not False)
    assert (len(calls), list_overflow_steps(seen_events)) == (1, ["compact"])


@pytest.mark.parametrize("name", PRESETS)
def test_auto_continue_hook_is_not_called_when_no_turn_is_cut(name):
    """The repeated message tells the model what to do, so there is no instruction to omit."""
    hooks = Hooks(auto_continue=lambda: pytest.fail("nothing is added here"))
    ask_with_preset([*TURNS, QUESTION], [TOO_LARGE, "yes"], name, hooks=hooks)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_recovery_mentions_removed_media(name):
    """When the only user message loses its image, the continue instruction says so."""
    messages = [QUESTION, *build_step(1, "value = 1\n" * 900), *build_step(2, "value = 1\n" * 900)]
    (_, sent), _ = ask_with_preset(messages, [TOO_LARGE, "yes"], name)
    assert f"{MEDIA_REMOVED_TEXT}\n\n{CONTINUE_INSTRUCTION}" in join_texts(sent)
    assert QUESTION.text in join_texts(sent)


@pytest.mark.parametrize(
    ("messages", "text"),
    [([*TURNS, QUESTION], "Conversation history too large to compact"), (ONE_TURN, "Session too large to compact")],
    ids=["replay", "no replay"],
)
@pytest.mark.parametrize("name", PRESETS)
def test_preset_recovery_ends_the_run_when_the_summary_request_overflows(name, messages, text):
    """[C] The error has one of two texts and nothing else is tried; ``when_too_large`` allows an extract instead."""
    expectation = pytest.raises(ContextOverflow, match=f"{text}: .*name a model with a larger window for summaries")
    sent, seen_events = ask_with_preset(
        messages, [TOO_LARGE], name, summary_replies=[TOO_LARGE] * 2, expectation=expectation
    )
    assert (len(sent), list_overflow_steps(seen_events)) == (1, ["compact"])
    sent, _ = ask_with_preset(
        messages, [TOO_LARGE, "yes"], name, summary_replies=[TOO_LARGE] * 2, when_too_large="extract"
    )
    assert len(sent) == 2


def test_preset_sends_an_unrefused_request_with_an_extract():
    """A request over the trigger may still be accepted, so an extract replaces the summary that failed."""
    messages = [*TURNS * 5, Message.from_text("user", "Now?")]
    (sent,), seen_events = ask_with_preset(
        messages, ["yes"], "claude-code", summary_replies=[TOO_LARGE] * 2, window=60_000
    )
    assert [event.outcome for event in seen_events if isinstance(event, events.CompactionEnded)] == [
        "provider_error",
        "compacted",
    ]
    assert sent[-1]["content"][-1]["text"] == "Now?"


def test_holdfast_recovery_drops_the_image_before_a_second_compaction():
    """The newest message keeps its text with a line for the image, and only older messages are compacted."""
    (_, second, third), seen_events = ask_with_preset([*TURNS, QUESTION], [TOO_LARGE, TOO_LARGE, "yes"], "holdfast")
    assert list_overflow_steps(seen_events) == ["compact", "media"]
    assert any(block["type"] == "image" for block in second[-1]["content"])
    assert third[-1]["content"][-1]["text"] == "[Attached image/png: tide.png]"
    assert QUESTION.text in join_texts(third)
