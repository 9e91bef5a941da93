"""One task done twice by the same model in the same window: without Holdfast, and with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast import events
from holdfast.agent.agent import place_for, surroundings
from holdfast.agent.loop import Called, Step, work
from holdfast.agent.tools import answered
from holdfast.agent.workspace import Workplace, everything_allowed, workplace
from holdfast.cli.demo.tally import Tally, Totals
from holdfast.config import shipped, target
from holdfast.engine.engine import Engine
from holdfast.engine.environment.environment import Environment
from holdfast.engine.session import Session
from holdfast.engine.upstream.replies import ask
from holdfast.engine.upstream.upstream import Sent
from holdfast.messages.message import result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.references import arguments
from holdfast.planning.pipeline import Policy
from holdfast.providers.overflow import classify
from holdfast.providers.responses import Answer
from holdfast.replay.measure import Point
from holdfast.state.target import Target
from holdfast.store.base import SessionStore
from holdfast.testing.provider import Provider, Settings
from holdfast.testing.task.files import TASK, write_project
from holdfast.testing.task.routes import ROUTES, Route
from holdfast.testing.task.worker import Worker
from holdfast.testing.upstream import ProviderUpstream

API, MODEL, WINDOW = "anthropic", "claude-sonnet-5-5", 32_000
"""Whom the strict provider speaks for, and the window that it enforces, in tokens."""
OUTPUT = 2_000
"""Tokens that an answer may have: the longest one is the report."""
KEY = "demo"
"""The session's name in its store."""
TITLE = "The fares of the ferry routes"
"""What lists of sessions call it."""
MOST_STEPS = 400
"""Steps after which the work counts as endless; it takes half of them."""
_MARK = {"cache_control": {"type": "ephemeral"}}

Outcome: TypeAlias = Literal["finished", "overflow", "stopped"]
"""How a run ended: the report is written and checked · the provider refused a request as too large · anything else."""


class Progress(Struct, frozen=True):
    """How far a run is: its requests so far, and what the model does."""

    points: tuple[Point, ...]
    doing: str = ""


class Run(Struct, frozen=True):
    """How a run ended, and all of its requests."""

    outcome: Outcome
    steps: int
    points: tuple[Point, ...]
    totals: Totals
    error: str = ""
    """In the words of whoever ended it."""
    compactions: int = 0
    recalled: int = 0
    """How often the model read back what it no longer saw."""


Watch: TypeAlias = Callable[[Progress], object]


def place() -> Target:
    """Return whom both runs talk to; nothing that the user configured counts here."""
    return target(API, MODEL, window=WINDOW, catalog=shipped())


def made(folder: Path, routes: Sequence[Route]) -> Environment:
    """Return the environment of both runs, its project written into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_project(folder, routes)
    return replace(surroundings(folder), output=OUTPUT)


class _Trial:
    """What both runs share: a model and its provider, a folder, and what is told of them."""

    def __init__(self, folder: Path, watch: Watch, routes: Sequence[Route]) -> None:
        self.folder, self.watch = folder, watch
        self.environment = made(folder, routes)
        self.worker = Worker()
        self.provider = Provider(Settings(window=WINDOW, tokenizer="words"), self.worker)
        self.upstream = ProviderUpstream(self.provider)
        self.tally = Tally(self.provider, place().prices)

    def told(self, call: ToolCall) -> None:
        """Tell that a tool begins."""
        self.watch(Progress(tuple(self.tally.points), in_short(call)))

    def ended(self, outcome: Outcome, steps: int, error: str = "", compactions: int = 0) -> Run:
        """Return how the run ended."""
        points, totals = tuple(self.tally.points), self.tally.totals()
        return Run(outcome, steps, points, totals, error, compactions, self.worker.recalled)

    @property
    def is_finished(self) -> bool:
        """Whether the report is there, checked by the task's own program."""
        return self.worker.is_done and (self.folder / "REPORT.md").exists()


def in_short(call: ToolCall) -> str:
    """Return a call in a few words."""
    given = arguments(call)
    first = next((value for value in given.values() if isinstance(value, str)), "") if isinstance(given, dict) else ""
    return f"{call.name} {first}".strip()


# -- without -----------------------------------------------------------------------------------------------------------


async def without(folder: Path, watch: Watch, routes: Sequence[Route] = ROUTES) -> Run:
    """Return how the task ends in a loop that appends all that is said, as most agent loops do."""
    trial = _Trial(folder, watch, routes)
    plain = _Plain(trial)
    for step in range(MOST_STEPS):
        answer = await ask(trial.upstream, plain.sent())
        trial.tally.add()
        if answer.error is not None:
            outcome: Outcome = "overflow" if classify(answer.error).is_overflow else "stopped"
            return trial.ended(outcome, step, answer.error.message)
        await plain.take(answer)
        if not answer.message.calls:
            return trial.ended("finished" if trial.is_finished else "stopped", step + 1, answer.message.text)
    return trial.ended("stopped", MOST_STEPS, f"{MOST_STEPS} steps were not enough")


class _Plain:
    """A conversation as a list that only grows."""

    def __init__(self, trial: _Trial) -> None:
        self._trial = trial
        self._place: Workplace = workplace(trial.folder, allow=everything_allowed)
        own = replace(trial.environment, tools=tuple(t for t in trial.environment.tools if t.name != "fetch_result"))
        self._fields = own.fields(API)
        self._messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": TASK}]}]

    def sent(self) -> Sent:
        """Return the next request: everything, with a cache breakpoint at its end."""
        *before, last = self._messages
        *blocks, end = last["content"]
        marked = {**last, "content": [*blocks, end | _MARK]}
        body = {"model": MODEL, **self._fields, "messages": [*before, marked]}
        return Sent(API, msgspec.json.encode(body), MODEL)

    async def take(self, answer: Answer) -> None:
        """Append an answer, and what its calls come to."""
        self._messages += [msgspec.json.decode(raw) for raw in answer.history]
        results = []
        for call in answer.message.calls:
            self._trial.told(call)
            results.append(_block(await answered(self._place, call)))
        self._messages.append({"role": "user", "content": results})


def _block(result: ToolResult) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": result.call_id, "content": result_text(result)}
    return {**block, "is_error": True} if result.is_error else block


# -- with --------------------------------------------------------------------------------------------------------------


async def with_holdfast(folder: Path, store: SessionStore, watch: Watch, routes: Sequence[Route] = ROUTES) -> Run:
    """Return how the same task ends with an engine below the same loop; its session is in ``store``."""
    trial = _Trial(folder, watch, routes)
    seen = _Seen()
    async with Engine.open(
        store,
        upstream=trial.upstream,
        target=place(),
        policy=Policy.preset("holdfast"),
        environment=trial.environment,
        listen=lambda event: seen.hear(event, trial),
    ) as engine:
        engine.means.ids = _numbered()
        seen.session = session = await engine.session(KEY)
        await session.means.in_worker(lambda: store.describe(KEY, title=TITLE, model=MODEL))
        rooms = place_for(session, folder, allow=everything_allowed)
        outcome = await work(session, TASK, rooms, most_steps=MOST_STEPS, tell=lambda step: _tell(trial, step))
    finished = outcome.stop == "done" and trial.is_finished
    why = outcome.why or outcome.text
    return trial.ended("finished" if finished else "stopped", outcome.steps, "" if finished else why, seen.compactions)


def _numbered() -> Callable[[int], list[str]]:
    """Return what gives ids that are the same in every run, since the model sees some of them."""
    numbers = count(1)
    return lambda many: [blake2b(b"%d" % one, digest_size=16).hexdigest() for one in islice(numbers, many)]


def _tell(trial: _Trial, step: Step) -> None:
    if isinstance(step, Called):
        trial.told(step.call)


class _Seen:
    """What the engine told since the last request."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.compactions = 0
        self._event = ""

    def hear(self, event: events.Event, trial: _Trial) -> None:
        """Take note of what was decided; add the request once it is answered."""
        match event:
            case events.Compacted(outcome="compacted"):
                self.compactions += 1
                self._event = "compaction"
            case events.Decided():
                self._event = self._event or ("spill" if event.rule == "spill" else "prune")
            case events.Answered():
                trial.tally.add(self._event, self._summary())
                self._event = ""

    def _summary(self) -> frozenset[str]:
        """Return the texts of the summary that the request shows."""
        compaction = self.session.journal.branch.compaction if self.session is not None else None
        summary = compaction.summary if compaction is not None else None
        return frozenset(part.text for part in summary.parts if isinstance(part, Text)) if summary else frozenset()
