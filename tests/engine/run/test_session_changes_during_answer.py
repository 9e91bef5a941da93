"""What happens to a session while an answer is on its way: the answer stays what it was said to."""

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
"""A model that signs its thinking over all that stands before."""
SAYS = [ScriptedAnswer(f"said {n}", (("read", {"path": f"{n}"}),) if n % 2 else (), f"thought {n}") for n in range(20)]
LONG = "kelp and rock " * 400

MEANWHILE = ("result", "words", "both", "compacted", "undone", "asked beside")


def result(calls):
    """Return the results of ``calls``."""
    return Message("tool", tuple(ToolResult(call.id, call.name, (Text(LONG),)) for call in calls))


class Talk:
    """A session whose model calls a tool in every second answer, and a second engine on the same store."""

    def __init__(self, own, other):
        self.own, self.other, self.open, self.said = own, other, [], []

    async def ask(self, words):
        """Ask, and keep the calls that wait for a result."""
        answer = await self.own.ask(words)
        self.open += answer.message.calls
        self.said.append(words)

    async def happen(self, what):
        """Let ``what`` happen while the answer is on its way."""
        open_, self.open = (self.open, []) if what in {"result", "both"} else ([], self.open)
        words = [f"{what} {len(self.said)}"] if what in {"words", "both"} else []
        self.said += words
        if open_ or words:
            await self.own.append(*[result([call]) for call in open_], *words)
        elif what == "compacted":
            await self.other.compact()
        elif what == "undone":
            with suppress(UnknownId):  # where nothing is in force
                await self.other.undo()
        elif what == "asked beside":
            beside = await self.other.branch(self.own.journal.leaf)
            await beside.append("beside")


def talked(rounds):
    """Return all that was told, sent and stored where in each of ``rounds`` something happens during the answer."""
    told, store = [], MemoryStore()
    upstream = ProviderUpstream(Provider(None, SAYS), latency=5.0)

    async def talk():
        common = {"upstream": upstream, "target": OPUS, "fields": THINKING}
        async with Engine.open(store, listen=told.append, **common) as one, Engine.open(store, **common) as two:
            own = Talk(await one.session(SAMPLE_KEY), await two.session(SAMPLE_KEY))
            await own.ask(f"first {LONG}")
            for number, happening in enumerate(rounds):
                async with create_task_group() as group:
                    group.start_soon(own.ask, f"round {number} {LONG}")
                    await sleep(1)
                    for what in happening:
                        await own.happen(what)
            await own.own.ask("last")
            return own.said

    return run_on_fake_clock(talk), told, upstream.sent, store


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.lists(st.sampled_from(MEANWHILE), max_size=3), min_size=1, max_size=4))
def test_no_thinking_goes_out_behind_what_it_was_not_signed_over(rounds):
    """signed-bytes-intact: whatever is said, decided or undone meanwhile, a strict provider takes the next request at
    once.
    """
    _, told, sent, _ = talked(rounds)
    assert not [event for event in told if isinstance(event, events.RequestRefused)]
    broken = [found for one in sent for found in validate_request(one.body, one.api, model=one.model)]
    assert not [found for found in broken if found.level == "error"]


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.lists(st.lists(st.sampled_from(["result", "words", "both"]), max_size=3), min_size=1, max_size=4))
def test_a_users_words_stand_behind_the_answer_that_did_not_see_them(rounds):
    """queued-input-once: said together with results too, they are said once, and between request and answer stands none
    of them.
    """
    said, _, _, store = talked(rounds)
    path = [entry.body for entry in store.read_path(SAMPLE_KEY)]
    words = [
        body.sized_message.message.text
        for body in path
        if hasattr(body, "sized_message") and body.sized_message.message.role == "user"
    ]
    assert sorted(words) == sorted([*said, "last"])
    waits = False
    for body in path:
        waits = isinstance(body, RequestEntry) or (waits and not isinstance(body, AnswerEntry))
        assert not (waits and hasattr(body, "sized_message") and body.sized_message.message.role == "user")


ELSEWHERE = {"result": {2}, "both": {2}, "compacted": {0, 1, 2}}
"""Whose thinking was signed over something else than what is shown there now, by what happened during answer 2."""


@pytest.mark.parametrize("what", MEANWHILE)
def test_thinking_goes_only_where_it_must(what):
    """The answers before and behind keep theirs, in requests of all of them."""
    _, _, sent, _ = talked([[], [what], [], []])
    kept = {number for number in range(5) if f"thought {number}".encode() in sent[-1].body}
    assert kept == set(range(5)) - ELSEWHERE.get(what, set())
