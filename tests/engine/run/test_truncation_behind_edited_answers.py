"""A server that cuts prompts silently is noticed too where the client edits the answers that it sends back."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.upstream.upstream import Reply
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock

WINDOW = 16_000


class ThinkingServer:
    """A server that reads at most ``window`` tokens of four bytes each, and thinks in the text of its answers."""

    def __init__(self, window):
        self.window, self.sizes = window, []

    @asynccontextmanager
    async def send(self, request):
        self.sizes.append(len(json.dumps(json.loads(request.body)["messages"])) // 4)
        number = len(self.sizes)
        content = f"<think>{number} {'let me see ' * 30}</think>fine {number}"
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
        usage = {"prompt_tokens": min(self.sizes[-1], self.window), "completion_tokens": 90}

        async def chunks():
            yield json.dumps({"id": "x", "choices": [choice], "usage": usage}).encode()

        yield Reply(200, {"content-type": "application/json"}, chunks())


def strip_thinking(text):
    return text.partition("</think>")[2]


def trim_space(text):
    return text.replace("let me see ", "").strip() + "\n"


def converse(server, turns, edit, *, restart_after=0):
    """Let a client that edits each answer ask ``turns`` times; return the notices about truncation and the report."""
    store, seen, conversation = MemoryStore(), [], []

    async def ask(first, last):
        target = get_target("openai-chat", "qwen3:8b", window=200_000)
        async with Engine.open(store, upstream=server, target=target, listen=seen.append) as engine:
            session = await engine.session(SAMPLE_KEY)
            for number in range(first, last):
                text = f"step {number}: {'lorem ipsum dolor sit amet ' * 500}"
                conversation.append({"role": "user", "content": text})
                async with session.run({"model": "qwen3:8b", "messages": [*conversation]}, stream=False) as run:
                    async for _ in run:
                        pass
                conversation.append({"role": "assistant", "content": edit(run.answer.message.text)})
            return session.report()

    if restart_after:
        run_on_fake_clock(ask, 0, restart_after)
    report = run_on_fake_clock(ask, restart_after, turns)
    rules = [event.rule for event in seen if isinstance(event, events.NoticeGiven)]
    return rules.count("silent-truncation"), report


@pytest.mark.parametrize("edit", [str, strip_thinking, trim_space], ids=["unedited", "stripped", "trimmed"])
@pytest.mark.parametrize("restart_after", [0, 7])
def test_silent_truncation_is_noticed_whatever_the_client_makes_of_answers(edit, restart_after):
    """The reported size stands still while the prompt grows: told once, and later requests fit."""
    server = ThinkingServer(WINDOW)
    notices, report = converse(server, 14, edit, restart_after=restart_after)
    assert (notices, report.window) == (1, WINDOW)
    # A session that is opened again continues at its own leaf, before the first edit, so its counts begin anew there.
    most = 2.5 if restart_after and edit is not str else 1.8
    assert max(server.sizes) < most * WINDOW
    assert max(server.sizes[-3:]) <= WINDOW


@pytest.mark.parametrize("edit", [strip_thinking, trim_space])
def test_honest_counts_behind_edited_answers_teach_nothing(edit):
    """A server that reads everything is believed, though each answer comes back changed."""
    server = ThinkingServer(1_000_000)
    notices, report = converse(server, 14, edit)
    assert (notices, report.window) == (0, 200_000)
