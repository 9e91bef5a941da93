"""Worked cases played through an engine: what goes out, what is told meanwhile, and how it ends. No clock passes."""

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
    """One session: ``said`` is appended, then compacted by hand if ``compacts``, and the last message is asked."""

    def __init__(self, said, replies, policy=Policy(), *, written=(), compacts=False, hooks=Hooks(), window=200_000):
        self.upstream, self.writing = ScriptedUpstream(replies), ScriptedUpstream(written)
        self.told = []
        self.error = None
        self.store = MemoryStore()
        self._said, self._compacts = said, compacts
        where = get_target("anthropic", "claude-sonnet-4-5", window=window)
        self._opens = {
            "upstream": self.upstream,
            "target": where,
            "policy": policy,
            "hooks": hooks,
            "listen": self.told.append,
            "writers": [SummaryWriter(self.writing, where)] if written else [],
        }
        run_on_fake_clock(self._play)

    async def _play(self):
        async with Engine.open(self.store, **self._opens) as engine:
            session = await engine.session("case")
            await session.append(*self._said[:-1])
            if self._compacts:
                await session.append(self._said[-1])
                await session.compact()
            try:
                await (session.ask() if self._compacts else session.ask(self._said[-1]))
            except HoldfastError as error:
                self.error = error

    def events(self, kind):
        """Return what was told of one kind."""
        return [event for event in self.told if isinstance(event, kind)]

    def logged(self, kind):
        """Return the bodies of one kind that the session's log holds."""
        return [entry.body for entry in self.store.read_path("case") if isinstance(entry.body, kind)]

    @property
    def request(self):
        """All texts of the last request, joined."""
        said = msgspec.json.decode(self.upstream.sent[-1].body)["messages"]
        contents = [[{"text": one["content"]}] if isinstance(one["content"], str) else one["content"] for one in said]
        return "\n".join(block.get("text", "") for blocks in contents for block in blocks)

    @property
    def summary_prompts(self):
        """What the writer of summaries was asked, one text for each request."""
        bodies = [msgspec.json.decode(sent.body) for sent in self.writing.sent]
        return ["\n".join(map(str, body["messages"])) for body in bodies]


def talk(turns=4, words=400):
    """Return turns of a user and an agent, long enough to be worth a summary."""
    return [
        Message.from_text(role, f"{role} {turn} says " + "barnacle kelp " * words)
        for turn in range(turns)
        for role in ("user", "assistant")
    ]
