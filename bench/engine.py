"""The processor time of Holdfast per step, without the model's own time, compared with LangChain on the same history.

Usage: python bench/engine.py [--json] [--check]

A step is the work between two answers: store the messages, decide the next request, store the answer. Figures are
processor time of the whole process (every thread) in ms a step, around the 1,000th and the 10,000th message of about
1,000 characters. Stores are SQLite files with durability ``process``, and answers come at once. Each figure is a mean
over about 460 steps, including compactions, unless it says otherwise.

- *journal*: ``Journal.append``, ``prepare``, ``record``; a window of 200,000, which fills every few hundred messages;
- *engine*: ``ReplaySession.append`` and ``ask`` with the same window: the request's body is written and checked by the
  rules of its API, the reply is read, and everything that uses the log runs in the worker thread;
- *whole*: as *journal*, with a window that never fills, so that every message is shown; the median of 30 steps;
- *langchain*: ``create_agent`` with ``SummarizationMiddleware`` that summarises at 0.85 of the same window, and
  ``SqliteSaver``; 120 steps right after a summary, when there is the least to store;
- *langchain whole*: the same without any summary, like *whole*; the median of 6 steps.

Neither *journal* nor LangChain writes a body for the provider.
"""

from __future__ import annotations

import argparse
import gc
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import anyio
from transcript import transcript

from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.log.journal import Journal
from holdfast.engine.upstream.upstream import Reply, UpstreamRequest
from holdfast.messages.message import Message
from holdfast.providers.requests.message_dicts import decode_messages
from holdfast.state.entries import RequestSetup
from holdfast.state.target import Target
from holdfast.store.open_store import open_store

LENGTH, WINDOW, NEVER = 10_000, 200_000, 100_000_000
PLACES = {1_000: (500, 1_500), 10_000: (9_000, LENGTH)}
"""For each size, the range of messages whose steps are measured."""
WHOLE, THEIRS, THEIRS_WHOLE = 30, 120, 6
"""Steps that are measured for the figures that do not cover their whole range."""
SPARSE = 10
"""While a session is being filled, one in so many answers belongs to a prepared request; the others are only stored."""
TRIGGER = 0.85
"""Share of the window at which LangChain summarises, as in the example of its documentation."""
GOALS = {"journal / at 1,000": 1.5, "engine / at 1,000": 1.5, "whole / langchain whole": 0.1}
"""What the project promises at 10,000 messages."""
PEER = "langchain>=1.0, langgraph>=1.0 and langgraph-checkpoint-sqlite>=3.0 (group bench, requirements/bench.txt)"

Dicts = Sequence[dict[str, Any]]
Step = tuple[list[dict[str, Any]], dict[str, Any]]
"""The messages before an answer, and the answer."""


def steps(dicts: Dicts) -> Iterator[Step]:
    """Yield the steps of a conversation."""
    said: list[dict[str, Any]] = []
    for message in dicts:
        if message["role"] != "assistant":
            said.append(message)
        else:
            yield said, message
            said = []


def until(dicts: Dicts, count: int) -> int:
    """Return the index after the last answer within ``count`` messages, so that a user or tool message follows."""
    return max(at + 1 for at, message in enumerate(dicts[:count]) if message["role"] == "assistant")


class Clock:
    """Collects the processor time of each step in ms."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def __enter__(self) -> None:
        self._began = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.steps.append((time.process_time() - self._began) * 1e3)


def of_words(dicts: Dicts) -> list[Message]:
    """Decode messages of the Chat API."""
    return decode_messages("openai-chat", list(dicts))


# -- ours --------------------------------------------------------------------------------------------------------------


def model(window: int) -> Target:
    """Return the target for a Chat model with ``window``."""
    return get_target("openai-chat", "gpt-5.1", window=window, setup=RequestSetup("bench", 5_000))


def fill(journal: Journal, dicts: Dicts, window: int) -> None:
    """Store a conversation. Every tenth answer belongs to a prepared request, so that the conversation is compacted."""
    for number, (said, answer) in enumerate(steps(dicts)):
        journal.append(*of_words(said))
        if number % SPARSE == 0:
            journal.prepare_request(model(window))
            (made,) = of_words([answer])
            journal.record_answer(made)
        else:
            journal.append(*of_words([answer]))


def by_journal(place: Path, before: Dicts, dicts: Dicts, window: int) -> list[float]:
    """Return the ms of each step with a journal that already has the messages ``before``."""
    clock, where = Clock(), model(window)
    with open_store(place) as store:
        journal = Journal.open(store, "bench")
        fill(journal, before, window)
        for said, answer in steps(dicts):
            words, [told] = of_words(said), of_words([answer])
            with clock:
                journal.append(*words)
                journal.prepare_request(where)
                journal.record_answer(told)
    return clock.steps


class Instant:
    """An upstream that returns the next answer of a conversation at once."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {}

    @asynccontextmanager
    async def send(self, sent: UpstreamRequest) -> AsyncIterator[Reply]:
        """Return the answer in the form of the Chat API."""
        reason = "tool_calls" if "tool_calls" in self.answer else "stop"
        counted = {"prompt_tokens": len(sent.body) // 4, "completion_tokens": 100}
        body = {"choices": [{"message": self.answer, "finish_reason": reason}], "usage": counted}
        yield Reply(200, {"content-type": "application/json"}, _once(json.dumps(body).encode()))


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def by_engine(place: Path, before: Dicts, dicts: Dicts, window: int) -> list[float]:
    """Return the ms of each step with a session of an engine that already has the messages ``before``."""
    clock, upstream = Clock(), Instant()

    async def play() -> None:
        async with Engine.open(place, upstream=upstream, target=model(window)) as engine:
            session = await engine.session("bench")
            fill(session.journal, before, window)
            for said, upstream.answer in steps(dicts):
                words = of_words(said)
                with clock:
                    await session.append(*words)
                    await session.ask()

    anyio.run(play)
    return clock.steps


# -- theirs ------------------------------------------------------------------------------------------------------------


def by_langchain(place: Path, before: Dicts, dicts: Dicts, most: int) -> list[float]:
    """Return the ms of each step but the first, which also gets ``before``; raise ``ImportError`` without LangChain."""
    from langchain.agents import create_agent
    from langchain.agents.middleware import SummarizationMiddleware
    from langchain_core.language_models.fake_chat_models import FakeListChatModel, GenericFakeChatModel
    from langchain_core.messages import convert_to_messages
    from langgraph.checkpoint.sqlite import SqliteSaver

    played = list(steps(dicts))[:most]
    answers = iter(convert_to_messages([answer for _, answer in played]))
    summary = FakeListChatModel(responses=["What was done so far, in short. " * 60])
    clock, config = Clock(), {"configurable": {"thread_id": "bench"}}
    connection = sqlite3.connect(place, check_same_thread=False)
    window = WINDOW if most == THEIRS else NEVER
    agent = create_agent(
        GenericFakeChatModel(messages=answers),
        tools=[],
        middleware=[SummarizationMiddleware(summary, trigger=("tokens", int(TRIGGER * window)), keep=("messages", 20))],
        checkpointer=SqliteSaver(connection),
    )
    try:
        for number, (said, _) in enumerate(played):
            words = {"messages": convert_to_messages(said if number else [*before, *said])}
            with clock:
                agent.invoke(words, config)
    finally:
        connection.close()
    return clock.steps[1:]


# -- the table ---------------------------------------------------------------------------------------------------------


def measure(dicts: Dicts, size: int, folder: Path) -> dict[str, float | None]:
    """Return every figure at ``size`` in ms a step; None for LangChain if it is not installed."""
    first, last = (until(dicts, count) for count in PLACES[size])
    before, behind = dicts[:first], dicts[first:last]
    found: dict[str, float | None] = {}
    for name, play in (("journal", by_journal), ("engine", by_engine)):
        gc.collect()
        found[name] = statistics.fmean(play(folder / f"{name}-{size}.db", before, behind, WINDOW))
    whole = by_journal(folder / f"whole-{size}.db", before, behind[: WHOLE * 4], NEVER)
    found["whole"] = statistics.median(whole[:WHOLE])
    theirs = partial(by_langchain, before=before, dicts=behind)
    for name, most, mean in (
        ("langchain", THEIRS, statistics.fmean),
        ("langchain whole", THEIRS_WHOLE, statistics.median),
    ):
        place = folder / f"{name}-{size}.db"
        try:
            found[name] = mean(theirs(place, most=most))
        except ImportError:
            found[name] = None
        place.unlink(missing_ok=True)
    return found


def ratios(table: dict[int, dict[str, float | None]]) -> dict[str, float]:
    """Return the ratios at 10,000 messages that were measured."""
    large, small = table[10_000], table[1_000]
    pairs = {f"{name} / at 1,000": (large[name], small[name]) for name in ("journal", "engine", "whole")}
    pairs |= {
        f"{ours} / {theirs}": (large[ours], large[theirs])
        for ours, theirs in (("journal", "langchain"), ("engine", "langchain"), ("whole", "langchain whole"))
    }
    return {name: ours / theirs for name, (ours, theirs) in pairs.items() if ours is not None and theirs is not None}


def show(table: dict[int, dict[str, float | None]], found: dict[str, float]) -> None:
    """Print the figures and their ratios."""
    names = list(table[1_000])
    print(f"{'ms a step':>10}" + "".join(f"{name:>17}" for name in names))
    for size, row in table.items():
        print(f"{size:>10,}" + "".join(f"{'-' if row[name] is None else f'{row[name]:.2f}':>17}" for name in names))
    for name, value in found.items():
        goal = f"goal {GOALS[name]:.2f}   {'ok' if value <= GOALS[name] else 'OVER'}" if name in GOALS else ""
        print(f"{name:<25} {value:8.3f}   {goal}")
    if table[10_000]["langchain"] is None:
        print(f"LangChain was not measured: it needs {PEER}", file=sys.stderr)


def main() -> int:
    """Print the table; with ``--check``, exit 1 if a ratio is over its goal or was not measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    dicts = transcript(LENGTH)
    with tempfile.TemporaryDirectory() as folder:
        table = {size: measure(dicts, size, Path(folder)) for size in PLACES}
    found = ratios(table)
    if args.json:
        print(
            json.dumps({"ms": table, "ratios": found, "goals": GOALS, "missing": sorted(GOALS.keys() - found.keys())})
        )
    else:
        show(table, found)
    return int(args.check and any(found.get(name, goal + 1) > goal for name, goal in GOALS.items()))


if __name__ == "__main__":
    sys.exit(main())
