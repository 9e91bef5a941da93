"""Runs of an engine for worked cases, on a fake clock: what it sends, which events it emits, and how it ends."""

from __future__ import annotations

import msgspec

from holdfast import Policy
from holdfast.config import get_target
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.engine import Engine
from holdfast.engine.hooks import Hooks
from holdfast.errors import HoldfastError
from holdfast.messages.message import Message
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.upstream import ScriptedUpstream

TOO_LARGE = RefusalReply(400, "invalid_request_error", "prompt is too long")


class EngineRun:
    """One session: ``messages`` are appended, compacted first if ``compacts_first``, and the last one is asked."""

    def __init__(
        self, messages, replies, policy=Policy(), *, summaries=(), compacts_first=False, hooks=Hooks(), window=200_000
    ):
        self.upstream, self.summary_upstream = ScriptedUpstream(replies), ScriptedUpstream(summaries)
        self.reported_events = []
        self.error = None
        self.store = MemoryStore()
        self._messages, self._compacts_first = messages, compacts_first
        target = get_target("anthropic", "claude-sonnet-4-5", window=window)
        self._engine_options = {
            "upstream": self.upstream,
            "target": target,
            "policy": policy,
            "hooks": hooks,
            "listen": self.reported_events.append,
            "writers": [SummaryWriter(self.summary_upstream, target)] if summaries else [],
        }
        run_on_fake_clock(self._play)

    async def _play(self):
        async with Engine.open(self.store, **self._engine_options) as engine:
            session = await engine.session("case")
            await session.append(*self._messages[:-1])
            if self._compacts_first:
                await session.append(self._messages[-1])
                await session.compact()
            try:
                await (session.ask() if self._compacts_first else session.ask(self._messages[-1]))
            except HoldfastError as error:
                self.error = error

    def list_events(self, kind):
        """Return the reported events of one kind."""
        return [event for event in self.reported_events if isinstance(event, kind)]

    def list_logged(self, kind):
        """Return the entry bodies of one kind in the session's log."""
        return [entry.body for entry in self.store.read_path("case") if isinstance(entry.body, kind)]

    @property
    def request(self):
        """All texts of the last request, joined."""
        messages = msgspec.json.decode(self.upstream.sent[-1].body)["messages"]
        contents = [
            [{"text": message["content"]}] if isinstance(message["content"], str) else message["content"]
            for message in messages
        ]
        return "\n".join(block.get("text", "") for blocks in contents for block in blocks)

    @property
    def summary_prompts(self):
        """The prompts sent to the summary writer, one text for each request."""
        bodies = [msgspec.json.decode(sent.body) for sent in self.summary_upstream.sent]
        return ["\n".join(map(str, body["messages"])) for body in bodies]


def build_turns(turns=4, filler_count=400):
    """Return turns of user and assistant, long enough to be worth a summary."""
    return [
        Message.from_text(role, f"{role} {turn} says " + "barnacle kelp " * filler_count)
        for turn in range(turns)
        for role in ("user", "assistant")
    ]
