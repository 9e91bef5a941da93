"""Changes to a session during an answer: the answer keeps its place, and signed thinking stays valid."""

from __future__ import annotations

from contextlib import suppress

import pytest
from anyio import create_task_group, sleep
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.errors import UnknownId
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolResult
from holdfast.providers.rules.validate import validate_request
from holdfast.state.entries import AnswerEntry, RequestEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider, ScriptedAnswer
from holdfast.testing.upstream import ProviderUpstream

TOOL = {"name": "read", "description": "Reads a file.", "input_schema": {"type": "object", "properties": {}}}
THINKING = {"max_tokens": 5_000, "thinking": {"type": "adaptive"}, "tools": [TOOL]}
OPUS = get_target("anthropic", "claude-opus-5-5", window=60_000)
"""A model that signs its thinking over the whole prefix."""
SCRIPT = [
    ScriptedAnswer(f"said {n}", (("read", {"path": f"{n}"}),) if n % 2 else (), f"thought {n}") for n in range(20)
]
LONG = "kelp and rock " * 400

CHANGES = ("result", "words", "both", "compacted", "undone", "asked beside")


def build_tool_result(calls):
    """Return a message with the results of ``calls``."""
    return Message("tool", tuple(ToolResult(call.id, call.name, (Text(LONG),)) for call in calls))


class TwoEngineSession:
    """A session whose model calls a tool in every second answer, and a second engine on the same store."""

    def __init__(self, session, other_session):
        self.session, self.other_session, self.open_calls, self.texts = session, other_session, [], []

    async def ask(self, text):
        """Ask, and remember the calls that wait for a result."""
        answer = await self.session.ask(text)
        self.open_calls += answer.message.calls
        self.texts.append(text)

    async def apply_change(self, change):
        """Apply one of ``CHANGES`` during the answer."""
        answered_calls, self.open_calls = (
            (self.open_calls, []) if change in {"result", "both"} else ([], self.open_calls)
        )
        new_texts = [f"{change} {len(self.texts)}"] if change in {"words", "both"} else []
        self.texts += new_texts
        if answered_calls or new_texts:
            await self.session.append(*[build_tool_result([call]) for call in answered_calls], *new_texts)
        elif change == "compacted":
            await self.other_session.compact()
        elif change == "undone":
            with suppress(UnknownId):  # where nothing is in force
                await self.other_session.undo()
        elif change == "asked beside":
            side_branch = await self.other_session.branch(self.session.journal.leaf)
            await side_branch.append("beside")


def run_rounds(rounds):
    """Run a session with changes during each round's answer; return its texts, events, requests and store."""
    seen_events, store = [], MemoryStore()
    upstream = ProviderUpstream(Provider(None, SCRIPT), latency=5.0)

    async def run_scenario():
        common = {"upstream": upstream, "target": OPUS, "fields": THINKING}
        async with (
            Engine.open(store, listen=seen_events.append, **common) as engine,
            Engine.open(store, **common) as other_engine,
        ):
            two_engines = TwoEngineSession(await engine.session(SAMPLE_KEY), await other_engine.session(SAMPLE_KEY))
            await two_engines.ask(f"first {LONG}")
            for number, changes in enumerate(rounds):
                async with create_task_group() as group:
                    group.start_soon(two_engines.ask, f"round {number} {LONG}")
                    await sleep(1)
                    for change in changes:
                        await two_engines.apply_change(change)
            await two_engines.session.ask("last")
            return two_engines.texts

    return run_on_fake_clock(run_scenario), seen_events, upstream.sent, store


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.lists(st.sampled_from(CHANGES), max_size=3), min_size=1, max_size=4))
def test_session_sends_no_thinking_behind_a_changed_prefix(rounds):
    """signed-bytes-intact: whatever changes during an answer, the provider accepts the next request."""
    _, seen_events, sent, _ = run_rounds(rounds)
    assert not [event for event in seen_events if isinstance(event, events.RequestRefused)]
    problems = [
        problem for request in sent for problem in validate_request(request.body, request.api, model=request.model)
    ]
    assert not [problem for problem in problems if problem.level == "error"]


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.lists(st.lists(st.sampled_from(["result", "words", "both"]), max_size=3), min_size=1, max_size=4))
def test_session_keeps_messages_appended_during_an_answer_behind_it(rounds):
    """queued-input-once: such a message is logged once, and never between a request and its answer."""
    texts, _, _, store = run_rounds(rounds)
    path = [entry.body for entry in store.read_path(SAMPLE_KEY)]
    user_texts = [
        body.sized_message.message.text
        for body in path
        if hasattr(body, "sized_message") and body.sized_message.message.role == "user"
    ]
    assert sorted(user_texts) == sorted([*texts, "last"])
    is_answer_pending = False
    for body in path:
        is_answer_pending = isinstance(body, RequestEntry) or (is_answer_pending and not isinstance(body, AnswerEntry))
        assert not (is_answer_pending and hasattr(body, "sized_message") and body.sized_message.message.role == "user")


DROPPED_THINKING = {"result": {2}, "both": {2}, "compacted": {0, 1, 2}}
"""Numbers of the answers whose thinking was signed over another prefix, by the change during answer 2."""


@pytest.mark.parametrize("change", CHANGES)
def test_session_drops_only_the_thinking_with_a_changed_prefix(change):
    """The answers before and after keep their thinking in later requests."""
    _, _, sent, _ = run_rounds([[], [change], [], []])
    kept = {number for number in range(5) if f"thought {number}".encode() in sent[-1].body}
    assert kept == set(range(5)) - DROPPED_THINKING.get(change, set())
