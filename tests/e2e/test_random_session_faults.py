"""Whole sessions under random faults and actions, each determined by its seed."""

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

SEEDS, STEPS = example_counts.choose(quick=1, ci=25, thorough=2_000), 100
"""Random sessions, and the actions in each. 50 take two minutes, all take more than an hour."""
FAULT_PLACES = [
    (kind, stage)
    for known in fault_scenarios.FAULTS.values()
    for stage, kind in known.items()
    if kind not in fault_scenarios.TRUE_NUMBERS
]
WORDINGS = ("native", "llama.cpp", "openai-tpm", "nginx", "stream", "responses-short", "anthropic-sum")
PATIENCE = 30.0
"""Seconds that the upstream of these sessions waits for a byte."""


class RandomSession:
    """A session under random faults and actions, determined by one seed."""

    def __init__(self, seed):
        self.dice = Random(seed)
        self.api = self.dice.choice(list(STRICTEST_MODELS))
        self.provider = Provider(ProviderSettings(window=fault_scenarios.WINDOW))
        self.upstream = ProviderUpstream(self.provider, self.strike, patience=PATIENCE, latency=0.5)
        self.options = {"hooks": Hooks(before_compaction=self.hook, on_overflow=self.hook, on_append=self.hook)}
        if self.dice.random() < 0.5:
            self.options["writers"] = [
                SummaryWriter(
                    self.upstream, get_target(self.api, STRICTEST_MODELS[self.api], window=fault_scenarios.WINDOW)
                )
            ]
        self.options["native"] = self.dice.random() < 0.5
        self.scene = fault_scenarios.EngineCase(self.api, self.upstream)
        self.is_calm, self.number, self.words = False, 0, []

    def strike(self, _sent, _number):
        """Return a fault for one request in eight; one in twelve meets a window that may be smaller than it is."""
        small = not self.is_calm and self.dice.random() < 0.08
        last = next((request.tokens for request in reversed(self.provider.requests) if request.tokens), 0)
        window = (
            max(fault_scenarios.SMALL_WINDOW, int(last * self.dice.uniform(0.5, 1.0)))
            if small
            else fault_scenarios.WINDOW
        )
        self.provider.settings = ProviderSettings(window=window, overflow=self.dice.choice(WORDINGS))
        if self.is_calm or small or self.dice.random() > 0.125:
            return None
        kind, stage = self.dice.choice(FAULT_PLACES)
        return Fault(kind, stage, 0, self.dice.choice([None, 0.5, 10.0]) if kind == "stall" else None)

    def hook(self, *_):
        """Do nothing, or raise."""
        if not self.is_calm and self.dice.random() < 0.2:
            raise RuntimeError("the hook has a bug")

    async def run(self):
        """Do random actions, and check after each that nothing was left behind."""
        async with AsyncExitStack() as stack:
            self.engine, self.session = await self.open_session(stack)
            await self.session.append(*fault_scenarios.CONVERSATION)
            for step in range(STEPS):
                requests_before = len(self.upstream.sent)
                act = self.dice.choices(list(ACTIONS), [weight for weight, _ in ACTIONS.values()])[0]
                if act == "reopen":
                    await stack.aclose()
                    self.engine, self.session = await self.open_session(stack)
                else:
                    await ACTIONS[act][1](self)
                assert len(self.upstream.sent) - requests_before <= 2 * (
                    fault_scenarios.MAX_REQUESTS + 4 * fault_scenarios.MAX_SUMMARY_REQUESTS
                ), (act, step)
                fault_scenarios.judge_idle(self.engine, self.session, self.scene.store)
            self.is_calm = True
            await self.settle()
        self.judge()

    async def open_session(self, stack):
        self.scene.engine_context = fault_scenarios.EngineCase(
            self.api, self.upstream, store=self.scene.store, **self.options
        ).engine_context
        engine = await stack.enter_async_context(self.scene.engine_context)
        return engine, await engine.session(SAMPLE_KEY)

    def make_words(self):
        """Return a unique user text; most ask for a tool."""
        self.number += 1
        tool = f'call read {{"path": "src/part_{self.number}.py"}}\\n' if self.dice.random() < 0.7 else ""
        return f"Task {self.number}: {fault_scenarios.text(self.number, self.dice.choice([1, 10, 100]))}\\n{tool}"

    async def ask(self):
        """Answer the open calls if there are any, otherwise send a new text, and ask."""
        await fault_scenarios.ask_session(
            self.session, *(await self.answer_calls_or_speak()), stream=self.dice.random() < 0.3
        )

    async def answer_calls_or_speak(self):
        calls = self.session.journal.state.history.open_call_ids
        if calls:
            lines = self.dice.choice([0, 20, 80, 200, 3_000])
            parts = [ToolResult(id_, "read", (Text(fault_scenarios.text(self.number, lines) or "x"),)) for id_ in calls]
            await self.session.append(Message("tool", tuple(parts)))
            return ()
        words = self.make_words()
        self.words.append(words)
        return (words,)

    async def ask_and_cancel(self):
        """Ask and cancel in the middle; the text may be in the log or not."""
        with anyio.move_on_after(self.dice.choice([0.1, 0.6, 5.0])):
            await fault_scenarios.ask_session(self.session, self.make_words(), stream=self.dice.random() < 0.5)

    async def leave_early(self):
        """Read a few events of a run and leave it."""
        events_left = self.dice.randrange(4)
        try:
            async with self.session.run(await self.answer_calls_or_speak()) as run:
                async for _ in run:
                    events_left -= 1
                    if events_left < 0:
                        break
        except HoldfastError as error:
            fault_scenarios.judge_error(error)

    async def ask_twice(self):
        """Ask twice at once, and append a message meanwhile."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.ask)
            tasks.start_soon(self.ask)
            await anyio.sleep(self.dice.random())
            words = self.make_words()
            self.words.append(words)
            await self.session.append(Message.from_text("user", words))

    async def ask_with_deadline(self):
        """Ask with a short deadline."""
        words = self.make_words()
        self.words.append(words)
        try:
            await self.session.ask(words, deadline=self.dice.choice([0.2, 2.0, 200.0]))
        except DeadlineExceeded:
            self.words.pop()  # it may have waited for its lane
        except HoldfastError as error:
            fault_scenarios.judge_error(error)

    async def ask_on_branch(self):
        """Ask on a branch from an earlier entry, which leaves this branch as it is."""
        messages_before, ids = (
            fault_scenarios.list_shown_messages(self.session),
            [entry.id for entry in self.scene.store.read_path(SAMPLE_KEY)],
        )
        branch = await self.session.branch(self.dice.choice(ids[len(ids) // 2 : -1]))
        await fault_scenarios.ask_session(branch, "What if it were otherwise?")
        assert fault_scenarios.list_shown_messages(self.session) == messages_before

    async def compact(self):
        result = await self.session.compact()
        assert result.outcome in COMPACTION_OUTCOMES

    async def undo(self):
        with suppress(HoldfastError):
            await self.session.undo()

    async def settle(self):
        """Answer all open calls without faults."""
        for _ in range(3):
            words = await self.answer_calls_or_speak()
            answer = await self.session.ask(*words)
            assert answer.message.parts

    def judge(self):
        """nothing-lost, queued-input-once: each message is in the log once; valid-request: requests were refused
        only for their size.
        """
        log = [
            message.text for message in fault_scenarios.list_logged_messages(self.scene.store) if message.role == "user"
        ]
        assert {*self.words} <= {*log}
        assert len({*log}) == len(log)
        fault_scenarios.judge_requests(self.provider)


ACTIONS = {
    "ask": (60, RandomSession.ask),
    "ask_and_cancel": (8, RandomSession.ask_and_cancel),
    "leave_early": (8, RandomSession.leave_early),
    "ask_twice": (6, RandomSession.ask_twice),
    "ask_with_deadline": (5, RandomSession.ask_with_deadline),
    "ask_on_branch": (4, RandomSession.ask_on_branch),
    "compact": (5, RandomSession.compact),
    "undo": (4, RandomSession.undo),
    "reopen": (5, None),
}
"""The actions that may happen next, and their weights."""


@pytest.mark.counts
@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS))
def test_session_loses_nothing_under_random_faults(seed):
    """Answers, refusals, silence, cancellation, concurrent runs and restarts in any order: no message is lost."""
    on_fake_clock(RandomSession(seed).run)
