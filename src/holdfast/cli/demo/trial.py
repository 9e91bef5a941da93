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
from holdfast.agent.agent import load_agent_environment, make_session_workspace
from holdfast.agent.loop import AgentEvent, ToolStarted, run_agent
from holdfast.agent.tools import run_tool_call
from holdfast.agent.workspace import Workspace, allow_command, open_workspace
from holdfast.cli.demo.request_costs import RequestTally, RunTotals
from holdfast.config import get_target, load_shipped_catalog
from holdfast.engine.engine import Engine
from holdfast.engine.environment.environment import Environment
from holdfast.engine.session import Session
from holdfast.engine.upstream.replies import ask_upstream
from holdfast.engine.upstream.upstream import UpstreamRequest
from holdfast.messages.message import get_result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.references import decode_call_arguments
from holdfast.planning.pipeline import Policy
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.errors.classify_error import classify_error
from holdfast.replay.measure import RequestPoint
from holdfast.state.target import Target
from holdfast.store.base import SessionStore
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.task.files import TASK, write_project
from holdfast.testing.task.routes import ROUTES, FerryRoute
from holdfast.testing.task.worker import ScriptedTaskModel
from holdfast.testing.upstream import ProviderUpstream

API, MODEL, WINDOW = "anthropic", "claude-sonnet-5-5", 32_000
"""The API and model that the strict provider imitates, and the window it enforces, in tokens."""
MAX_OUTPUT = 2_000
"""Tokens allowed for an answer. Chosen by judgement: the longest one, the report, fits easily."""
DEMO_SESSION = "demo"
"""The session's name in its store."""
DEMO_TITLE = "The fares of the ferry routes"
"""The session's title."""
MAX_STEPS = 400
"""Steps after which the run is stopped as endless. Chosen by judgement: the task takes about half of them."""
_CACHE_BREAKPOINT = {"cache_control": {"type": "ephemeral"}}

RunOutcome: TypeAlias = Literal["finished", "overflow", "stopped"]
"""How a run ended: the report was written and checked; a request was refused as too large; or anything else."""


class RunProgress(Struct, frozen=True):
    """The progress of a run: its requests so far, and the model's current tool call."""

    points: tuple[RequestPoint, ...]
    activity: str = ""


class DemoRun(Struct, frozen=True):
    """The outcome of a run, and all of its requests."""

    outcome: RunOutcome
    steps: int
    points: tuple[RequestPoint, ...]
    totals: RunTotals
    error: str = ""
    """The error of the provider, or the reason why the loop stopped."""
    compactions: int = 0
    recalls: int = 0
    """How often the model read back a text that was no longer shown to it."""


ProgressCallback: TypeAlias = Callable[[RunProgress], object]


def get_demo_target() -> Target:
    """Return the target of both runs, from the shipped catalog: the user's configuration must not change the demo."""
    return get_target(API, MODEL, window=WINDOW, catalog=load_shipped_catalog())


def make_demo_environment(folder: Path, routes: Sequence[FerryRoute]) -> Environment:
    """Write the project into ``folder``, and return the environment of both runs."""
    folder.mkdir(parents=True, exist_ok=True)
    write_project(folder, routes)
    return replace(load_agent_environment(folder), max_output=MAX_OUTPUT)


class _DemoTrial:
    """The parts both runs share: a model and its provider, a folder, and the recorded requests."""

    def __init__(self, folder: Path, watch: ProgressCallback, routes: Sequence[FerryRoute]) -> None:
        self.folder = folder
        self.watch = watch
        self.environment = make_demo_environment(folder, routes)
        self.worker = ScriptedTaskModel()
        self.provider = Provider(ProviderSettings(window=WINDOW, tokenizer="words"), self.worker)
        self.upstream = ProviderUpstream(self.provider)
        self.tally = RequestTally(self.provider, get_demo_target().prices)

    def report_call(self, call: ToolCall) -> None:
        """Report that a tool call begins."""
        self.watch(RunProgress(tuple(self.tally.points), format_call(call)))

    def make_run(self, outcome: RunOutcome, steps: int, error: str = "", compactions: int = 0) -> DemoRun:
        """Return the record of the finished run."""
        points = tuple(self.tally.points)
        totals = self.tally.compute_totals()
        return DemoRun(outcome, steps, points, totals, error, compactions, self.worker.recalls)

    @property
    def is_finished(self) -> bool:
        """Whether the report exists and the task's own program has checked it."""
        return self.worker.is_done and (self.folder / "REPORT.md").exists()


def format_call(call: ToolCall) -> str:
    """Format a call as its tool and first text argument."""
    call_arguments = decode_call_arguments(call)
    first = ""
    if isinstance(call_arguments, dict):
        for value in call_arguments.values():
            if isinstance(value, str):
                first = value
                break
    return f"{call.name} {first}".strip()


# -- without -----------------------------------------------------------------------------------------------------------


async def run_without_holdfast(folder: Path, watch: ProgressCallback, routes: Sequence[FerryRoute] = ROUTES) -> DemoRun:
    """Run the task in a loop that appends everything, as most agent loops do."""
    trial = _DemoTrial(folder, watch, routes)
    plain = _AppendOnlyConversation(trial)
    for step in range(MAX_STEPS):
        answer = await ask_upstream(trial.upstream, plain.make_request())
        trial.tally.add_request()
        outcome: RunOutcome
        if answer.error is not None:
            outcome = "overflow" if classify_error(answer.error).is_overflow else "stopped"
            return trial.make_run(outcome, step, answer.error.message)
        await plain.add_answer(answer)
        if not answer.message.calls:
            outcome = "finished" if trial.is_finished else "stopped"
            return trial.make_run(outcome, step + 1, answer.message.text)
    return trial.make_run("stopped", MAX_STEPS, f"{MAX_STEPS} steps were not enough")


class _AppendOnlyConversation:
    """A conversation kept as a list that only grows."""

    def __init__(self, trial: _DemoTrial) -> None:
        self._trial = trial
        self._place: Workspace = open_workspace(trial.folder, ask_permission=allow_command)
        # Without Holdfast nothing is stored away, so there is nothing that this tool could fetch.
        tools = tuple(tool for tool in trial.environment.tools if tool.name != "fetch_result")
        self._fields = replace(trial.environment, tools=tools).build_fields(API)
        self._messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": TASK}]}]

    def make_request(self) -> UpstreamRequest:
        """Return the next request: all messages, with a cache breakpoint at the end."""
        *before, last = self._messages
        *blocks, end = last["content"]
        marked_message = {**last, "content": [*blocks, end | _CACHE_BREAKPOINT]}
        body = {"model": MODEL, **self._fields, "messages": [*before, marked_message]}
        return UpstreamRequest(API, msgspec.json.encode(body), MODEL)

    async def add_answer(self, answer: ParsedAnswer) -> None:
        """Append an answer, run its tool calls, and append their results."""
        self._messages += [msgspec.json.decode(raw) for raw in answer.history_elements]
        results = []
        for call in answer.message.calls:
            self._trial.report_call(call)
            results.append(_encode_result_block(await run_tool_call(self._place, call)))
        self._messages.append({"role": "user", "content": results})


def _encode_result_block(result: ToolResult) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": result.call_id, "content": get_result_text(result)}
    return {**block, "is_error": True} if result.is_error else block


# -- with --------------------------------------------------------------------------------------------------------------


async def run_with_holdfast(
    folder: Path,
    store: SessionStore,
    watch: ProgressCallback,
    routes: Sequence[FerryRoute] = ROUTES,
) -> DemoRun:
    """Run the same task with an engine below the same loop; its session is in ``store``."""
    trial = _DemoTrial(folder, watch, routes)
    listener = _EngineListener()
    async with Engine.open(
        store,
        upstream=trial.upstream,
        target=get_demo_target(),
        policy=Policy.preset("holdfast"),
        environment=trial.environment,
        listen=lambda event: listener.handle_event(event, trial),
    ) as engine:
        engine.resources.make_ids = _make_numbered_ids()
        listener.session = session = await engine.session(DEMO_SESSION)
        await session.resources.run_in_worker(
            lambda: store.update_session_info(DEMO_SESSION, title=DEMO_TITLE, model=MODEL)
        )
        rooms = make_session_workspace(session, folder, allow=allow_command)
        outcome = await run_agent(
            session,
            TASK,
            rooms,
            max_steps=MAX_STEPS,
            listener=lambda step: _report_step(trial, step),
        )
    if outcome.stop == "done" and trial.is_finished:
        return trial.make_run("finished", outcome.steps, compactions=listener.compactions)
    why = outcome.reason or outcome.text
    return trial.make_run("stopped", outcome.steps, why, listener.compactions)


def _make_numbered_ids() -> Callable[[int], list[str]]:
    """Return a source of ids that are the same in every run, because the model sees some of them."""
    numbers = count(1)
    return lambda many: [blake2b(b"%d" % number, digest_size=16).hexdigest() for number in islice(numbers, many)]


def _report_step(trial: _DemoTrial, step: AgentEvent) -> None:
    if isinstance(step, ToolStarted):
        trial.report_call(step.call)


class _EngineListener:
    """Collects the engine's events since the last request."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.compactions = 0
        self._event = ""

    def handle_event(self, event: events.Event, trial: _DemoTrial) -> None:
        """Remember decisions, and record the request once it is answered."""
        match event:
            case events.CompactionEnded(outcome="compacted"):
                self.compactions += 1
                self._event = "compaction"
            case events.EditsDecided():
                self._event = self._event or ("spill" if event.rule == "spill" else "prune")
            case events.AnswerRecorded():
                trial.tally.add_request(self._event, self._get_summary_texts())
                self._event = ""

    def _get_summary_texts(self) -> frozenset[str]:
        """Return the texts of the summary in the current request."""
        if self.session is None:
            return frozenset()
        compaction = self.session.journal.state.view.compaction
        if compaction is None or not compaction.summary:
            return frozenset()
        return frozenset(part.text for part in compaction.summary.parts if isinstance(part, Text))
