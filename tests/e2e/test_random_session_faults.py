"""Chaos: whole sessions to which anything may happen at any time, each by its seed."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from random import Random

import anyio
import example_counts
import fault_scenarios
import pytest
from sample_entries import SAMPLE_KEY

from holdfast.config import get_target
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.hooks import Hooks
from holdfast.errors import DeadlineExceeded, HoldfastError
from holdfast.events import COMPACTION_OUTCOMES
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolResult
from holdfast.testing.clock import run_on_fake_clock as on_fake_clock
from holdfast.testing.provider import Fault, Provider, ProviderSettings
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.upstream import ProviderUpstream

WALKS, STEPS = example_counts.choose(quick=1, ci=50, thorough=2_000), 100
"""Random sessions, and what is done in each. 50 are two minutes, all are more than an hour."""
PLACES = [
    (kind, stage)
    for known in fault_scenarios.FAULTS.values()
    for stage, kind in known.items()
    if kind not in fault_scenarios.TRUE_NUMBERS
]
WORDINGS = ("native", "llama.cpp", "openai-tpm", "nginx", "stream", "responses-short", "anthropic-sum")
PATIENT = 30.0
"""Seconds that the upstream of these sessions waits for a byte."""


class Walk:
    """A session to which anything may happen at any time, by one seed."""

    def __init__(self, seed):
        self.dice = Random(seed)
        self.api = self.dice.choice(list(STRICTEST_MODELS))
        self.provider = Provider(ProviderSettings(window=fault_scenarios.WINDOW))
        self.upstream = ProviderUpstream(self.provider, self.strike, patience=PATIENT, latency=0.5)
        self.means = {"hooks": Hooks(before_compaction=self.hook, on_overflow=self.hook, on_append=self.hook)}
        if self.dice.random() < 0.5:
            self.means["writers"] = [
                SummaryWriter(
                    self.upstream, get_target(self.api, STRICTEST_MODELS[self.api], window=fault_scenarios.WINDOW)
                )
            ]
        self.means["native"] = self.dice.random() < 0.5
        self.scene = fault_scenarios.Scene(self.api, self.upstream)
        self.calm, self.number, self.words = False, 0, []

    def strike(self, _sent, _number):
        """Return a fault for one request in eight; one in twelve meets a window that may be smaller than it is."""
        small = not self.calm and self.dice.random() < 0.08
        last = next((one.tokens for one in reversed(self.provider.requests) if one.tokens), 0)
        window = max(fault_scenarios.SIZE, int(last * self.dice.uniform(0.5, 1.0))) if small else fault_scenarios.WINDOW
        self.provider.settings = ProviderSettings(window=window, overflow=self.dice.choice(WORDINGS))
        if self.calm or small or self.dice.random() > 0.125:
            return None
        kind, stage = self.dice.choice(PLACES)
        return Fault(kind, stage, 0, self.dice.choice([None, 0.5, 10.0]) if kind == "stall" else None)

    def hook(self, *_):
        """Do nothing, or fail at it."""
        if not self.calm and self.dice.random() < 0.2:
            raise RuntimeError("the hook has a bug")

    async def run(self):
        """Do what the dice say, and look after each step that nothing was left behind."""
        async with AsyncExitStack() as stack:
            self.engine, self.session = await self.opened(stack)
            await self.session.append(*fault_scenarios.TALK)
            for step in range(STEPS):
                sent = len(self.upstream.sent)
                act = self.dice.choices(list(ACTS), [weight for weight, _ in ACTS.values()])[0]
                if act == "reopen":
                    await stack.aclose()
                    self.engine, self.session = await self.opened(stack)
                else:
                    await ACTS[act][1](self)
                assert len(self.upstream.sent) - sent <= 2 * (
                    fault_scenarios.BOUND + 4 * fault_scenarios.MOST_SUMMARIES
                ), (act, step)
                fault_scenarios.judge_peace(self.engine, self.session, self.scene.store)
            self.calm = True
            await self.settle()
        self.judge()

    async def opened(self, stack):
        self.scene.opened = fault_scenarios.Scene(self.api, self.upstream, store=self.scene.store, **self.means).opened
        engine = await stack.enter_async_context(self.scene.opened)
        return engine, await engine.session(SAMPLE_KEY)

    def next_words(self):
        """Return words of the user that were never said before; most ask for a tool."""
        self.number += 1
        tool = f'call read {{"path": "src/part_{self.number}.py"}}\\n' if self.dice.random() < 0.7 else ""
        return f"Task {self.number}: {fault_scenarios.text(self.number, self.dice.choice([1, 10, 100]))}\\n{tool}"

    async def ask(self):
        """Answer the open calls if there are any, else say something new, and ask."""
        await fault_scenarios.asked(self.session, *(await self.next_said()), stream=self.dice.random() < 0.3)

    async def next_said(self):
        calls = self.session.journal.state.history.open_call_ids
        if calls:
            lines = self.dice.choice([0, 20, 80, 200, 3_000])
            parts = [ToolResult(id_, "read", (Text(fault_scenarios.text(self.number, lines) or "x"),)) for id_ in calls]
            await self.session.append(Message("tool", tuple(parts)))
            return ()
        words = self.next_words()
        self.words.append(words)
        return (words,)

    async def cancelled(self):
        """Ask and give up in the middle of it; the words may be in the log or not."""
        with anyio.move_on_after(self.dice.choice([0.1, 0.6, 5.0])):
            await fault_scenarios.asked(self.session, self.next_words(), stream=self.dice.random() < 0.5)

    async def left(self):
        """Read a few events of a run and leave."""
        most = self.dice.randrange(4)
        try:
            async with self.session.run(await self.next_said()) as run:
                async for _ in run:
                    most -= 1
                    if most < 0:
                        break
        except HoldfastError as error:
            fault_scenarios.judge_error(error)

    async def both(self):
        """Ask twice at once, and say something meanwhile."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.ask)
            tasks.start_soon(self.ask)
            await anyio.sleep(self.dice.random())
            words = self.next_words()
            self.words.append(words)
            await self.session.append(Message.from_text("user", words))

    async def hurried(self):
        """Ask with little time."""
        words = self.next_words()
        self.words.append(words)
        try:
            await self.session.ask(words, deadline=self.dice.choice([0.2, 2.0, 200.0]))
        except DeadlineExceeded:
            self.words.pop()  # it may have waited for its lane
        except HoldfastError as error:
            fault_scenarios.judge_error(error)

    async def aside(self):
        """Ask on a branch from before the end of this one, which leaves this one as it is."""
        before, ids = (
            fault_scenarios.shown(self.session),
            [entry.id for entry in self.scene.store.read_path(SAMPLE_KEY)],
        )
        branch = await self.session.branch(self.dice.choice(ids[len(ids) // 2 : -1]))
        await fault_scenarios.asked(branch, "What if it were otherwise?")
        assert fault_scenarios.shown(self.session) == before

    async def compact(self):
        told = await self.session.compact()
        assert told.outcome in COMPACTION_OUTCOMES

    async def undo(self):
        with suppress(HoldfastError):
            await self.session.undo()

    async def settle(self):
        """All is well again: whatever is open is answered."""
        for _ in range(3):
            words = await self.next_said()
            answer = await self.session.ask(*words)
            assert answer.message.parts

    def judge(self):
        """nothing-lost, queued-input-once: what was said is in the log, once; valid-request: the provider only ever
        said that it was too much.
        """
        log = [one.text for one in fault_scenarios.said(self.scene.store) if one.role == "user"]
        assert {*self.words} <= {*log}
        assert len({*log}) == len(log)
        fault_scenarios.judge_requests(self.provider)


ACTS = {
    "ask": (60, Walk.ask),
    "cancelled": (8, Walk.cancelled),
    "left": (8, Walk.left),
    "both": (6, Walk.both),
    "hurried": (5, Walk.hurried),
    "aside": (4, Walk.aside),
    "compact": (5, Walk.compact),
    "undo": (4, Walk.undo),
    "reopen": (5, None),
}
"""What may happen next, and how often."""


@pytest.mark.counts
@pytest.mark.long
@pytest.mark.parametrize("seed", range(WALKS))
def test_a_session_survives_whatever_happens_to_it(seed):
    """Answers, refusals, silence, giving up, two at once and starting again, in any order: nothing said is lost."""
    on_fake_clock(Walk(seed).run)
