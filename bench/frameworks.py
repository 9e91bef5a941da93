"""Agent frameworks over a long run: each with its own remedy for a full window, and with ours.

Usage: python bench/frameworks.py --envs FOLDER [--only NAME] [--steps N] [--largest CHARS] [--json] [--write] [--check]
       python bench/frameworks.py --make-envs FOLDER

Every agent is the real one: the framework's own loop, message classes and model class, in its own environment and
process, speaking HTTP to the strict provider with a window of 32,000 tokens. The script of the model and the results
of the tools are the same for all (``framework_agents/workload.py``); what each request shows is judged as
docs/metrics.md says (``framework_agents/judge.py``). ``--make-envs`` makes the environments with uv, because some
frameworks cannot be installed side by side.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

sys.path.insert(0, str(Path(__file__).parent))

from framework_agents.judge import CHECK_PROMPT, JudgingProvider, LookUp, compute_cost, compute_step_times
from framework_agents.workload import LARGEST_RESULT, ChildJob, Workload, make_workload

from holdfast.config.files import get_target
from holdfast.testing.provider import ProviderSettings
from holdfast.testing.provider.server.local_server import serve_provider

WINDOW = 32_000
MODEL = "gpt-5.6"
"""Its cache is automatic and its writes are charged: a read is .1 and a write 1.25 of the price of input."""
STEPS = 300
SEED = 32
TIME_LIMIT = 900
"""Seconds after which a run is ended."""
CHILD = Path(__file__).parent / "framework_agents" / "child.py"
REPOSITORY = Path(__file__).parent.parent

ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    "langchain": ("langchain>=1.5", "langchain-openai"),
    "openai-agents": ("openai-agents>=0.24",),
    "pydantic-ai": ("pydantic-ai-slim[openai]>=2.68",),
    # Pins an older Pydantic AI than the one our adapter supports.
    "pydantic-ai-harness": ("pydantic-ai-harness>=0.62", "pydantic-ai-slim[openai]"),
    "strands": ("strands-agents[openai]>=1.62",),
    "google-adk": ("google-adk>=2.13", "litellm"),
    "deepagents": ("deepagents>=0.7", "langchain-openai"),
}
"""The packages of each environment, beside Holdfast with the extra ``exact``."""


def _recall(name: str) -> tuple[str, dict[str, Any]]:
    return "recall", {"search": name}


class Row(Struct, frozen=True):
    """One agent: a framework with a remedy."""

    framework: str
    remedy: str
    title: str
    environment: str = ""
    """The environment, if it is not that of the framework."""
    look_up: LookUp | None = None

    @property
    def is_ours(self) -> bool:
        """Whether Holdfast manages the conversation."""
        return self.remedy == "holdfast"


def _grep(name: str) -> tuple[str, dict[str, Any]]:
    return "grep", {"pattern": name, "path": "/", "output_mode": "content"}


ROWS = (
    Row("langchain", "none", "no remedy"),
    Row("langchain", "edit", "ContextEditingMiddleware"),
    Row("langchain", "summary", "SummarizationMiddleware"),
    Row("langchain", "both", "both of them"),
    Row("langchain", "holdfast", "Holdfast", look_up=_recall),
    Row("openai-agents", "none", "no remedy"),
    Row("openai-agents", "trim", "ToolOutputTrimmer"),
    Row("openai-agents", "both", "trimmer and session limit"),
    Row("openai-agents", "holdfast", "Holdfast", look_up=_recall),
    Row("pydantic-ai", "none", "no remedy"),
    Row("pydantic-ai", "window", "SlidingWindowCompaction", "pydantic-ai-harness"),
    Row("pydantic-ai", "spill", "ToolOutputLimits, sliding window", "pydantic-ai-harness"),
    Row("pydantic-ai", "tiers", "ToolOutputLimits, tiered summary", "pydantic-ai-harness"),
    Row("pydantic-ai", "holdfast", "Holdfast", look_up=_recall),
    Row("strands", "none", "no remedy"),
    Row("strands", "window", "SlidingWindow, per turn, proactive"),
    Row("strands", "summary", "Summarizing, proactive"),
    Row("strands", "auto", "ContextManager"),
    Row("strands", "holdfast", "Holdfast", look_up=_recall),
    Row("google-adk", "none", "no remedy"),
    Row("google-adk", "filter", "ContextFilterPlugin"),
    Row("google-adk", "compaction", "EventsCompactionConfig"),
    Row("google-adk", "both", "both of them"),
    Row("google-adk", "holdfast", "Holdfast", look_up=_recall),
    Row("deepagents", "own", "its own defaults", look_up=_grep),
    Row("deepagents", "offload", "its own, smaller results", look_up=_grep),
    Row("deepagents", "holdfast", "Holdfast", look_up=_recall),
)


class RowFigures(Struct, frozen=True):
    """The figures of one row; ``None`` where a run did not come so far."""

    framework: str
    remedy: str
    is_ours: bool
    versions: str
    answers: int
    requests: int
    refused: int
    first_refusal: str
    failures: list[tuple[int, str]]
    summaries: int
    rules_lost: int
    usd: float
    usd_per_answer: float | None
    cache_read_share: float | None
    largest_request: int
    facts_needed: int
    facts_shown: int
    probed: int
    found: int
    ms_median: float
    ms_worst: float
    memory_mb: float | None
    note: str = ""

    @property
    def shown_share(self) -> float:
        """Share of the needed facts that the requests showed."""
        return self.facts_shown / self.facts_needed

    @property
    def recallable_share(self) -> float | None:
        """Share of the needed facts that were shown, or that the agent's own tool found afterwards."""
        if self.probed == 0:
            return None
        lost_share = 1 - self.shown_share
        return self.shown_share + lost_share * self.found / self.probed


# -- a run -------------------------------------------------------------------------------------------------------------


def run_row(row: Row, workload: Workload, results: Path, python: Path) -> RowFigures:
    """Run one agent in a process of its own."""
    provider = JudgingProvider(workload, ProviderSettings(window=WINDOW), row.look_up)
    prompts = [turn.prompt for turn in workload.turns]
    if provider.has_look_ups:
        prompts.append(CHECK_PROMPT)
    with serve_provider(provider) as url, tempfile.TemporaryDirectory() as folder:
        job = ChildJob(row.framework, row.remedy, url, str(results), folder, WINDOW, MODEL, prompts)
        command = [str(python), str(CHILD)]
        errors = Path(folder) / "stderr.txt"
        with (
            errors.open("w") as error_file,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=error_file, text=True
            ) as process,
        ):
            provider.child_pid = process.pid
            timer = Timer(TIME_LIMIT, process.kill)
            timer.start()
            last_message = _talk(process, job, provider)
            timer.cancel()
        note = ""
        if "memory" not in last_message:
            note = "ended: " + (errors.read_text().strip().splitlines() or ["no reason given"])[-1][:200]
    return _make_figures(row, provider, last_message, note)


def _talk(process: subprocess.Popen[str], job: ChildJob, provider: JudgingProvider) -> dict[str, Any]:
    """Send the job, tell the provider which turn begins, and return the last message."""
    assert process.stdin is not None
    assert process.stdout is not None
    message: dict[str, Any] = {}
    process.stdin.write(msgspec.json.encode(job).decode() + "\n")
    process.stdin.flush()
    for line in process.stdout:
        message = json.loads(line)
        if "turn" in message:
            provider.begin_turn(message["turn"])
        if "failed" in message:
            provider.record.failures.append((provider.record.answers, message["error"]))
        if "memory" not in message:
            process.stdin.write("\n")
            process.stdin.flush()
    return message


def _make_figures(row: Row, provider: JudgingProvider, last_message: dict[str, Any], note: str) -> RowFigures:
    record = provider.record
    prices = get_target("openai-chat", MODEL).prices
    assert prices is not None
    usd = compute_cost(record, prices)
    input_tokens = sum(use.total_input for _, use in record.uses)
    ms_median, ms_worst = compute_step_times(record)
    return RowFigures(
        framework=row.framework,
        remedy=row.title,
        is_ours=row.is_ours,
        versions=last_message.get("versions", ""),
        answers=record.answers,
        requests=len(record.uses) + record.refused,
        refused=record.refused,
        first_refusal=record.first_refusal,
        failures=record.failures,
        summaries=record.summaries,
        rules_lost=len(record.lost_rules),
        usd=usd,
        usd_per_answer=usd / record.answers if record.answers else None,
        cache_read_share=sum(use.cache_read for _, use in record.uses) / input_tokens if input_tokens else None,
        largest_request=record.largest_request,
        facts_needed=provider.count_needed_facts(),
        facts_shown=record.facts_shown,
        probed=record.probed,
        found=record.found,
        ms_median=ms_median,
        ms_worst=ms_worst,
        memory_mb=last_message.get("memory"),
        note=note,
    )


def run_rows(rows: Sequence[Row], workload: Workload, envs: Path) -> Iterator[RowFigures]:
    """Run each row after the other, so that none disturbs the time of another."""
    with tempfile.TemporaryDirectory() as folder:
        workload.write_results(Path(folder))
        for row in rows:
            python = envs / (row.environment or row.framework) / "bin" / "python"
            if not python.exists():
                print(f"{row.framework}: there is no {python}; make it with --make-envs", file=sys.stderr)
                continue
            yield run_row(row, workload, Path(folder), python)


# -- the table ---------------------------------------------------------------------------------------------------------

HEADINGS = (
    "framework", "remedy", "answers", "refused", "turns lost", "rules lost", "¢ an answer", "cached", "facts shown",
    "or recalled", "ms a step", "worst", "MB",
)  # fmt: skip


def format_row(figures: RowFigures) -> tuple[str, ...]:
    """Return the cells of a row."""
    recallable = figures.recallable_share
    return (
        figures.framework,
        figures.remedy,
        str(figures.answers),
        str(figures.refused),
        str(len(figures.failures)),
        str(figures.rules_lost),
        "-" if figures.usd_per_answer is None else f"{figures.usd_per_answer * 100:.2f}",
        "-" if figures.cache_read_share is None else f"{figures.cache_read_share:.0%}",
        f"{figures.shown_share:.2f}",
        "-" if recallable is None else f"{recallable:.2f}",
        f"{figures.ms_median:.1f}",
        f"{figures.ms_worst:,.0f}",
        "-" if figures.memory_mb is None else f"{figures.memory_mb:,.0f}",
    )


def print_row(figures: RowFigures) -> None:
    """Print a row as soon as it is there, with what went wrong."""
    cells = format_row(figures)
    print(f"{cells[0]:<14}{cells[1]:<34}" + "".join(f"{cell:>12}" for cell in cells[2:]), flush=True)
    if figures.failures:
        answers, error = figures.failures[0]
        print(f"    first failed after {answers} answers: {error}", flush=True)
    if figures.first_refusal:
        print(f"    first refusal: {figures.first_refusal}", flush=True)
    if figures.note:
        print(f"    {figures.note}", flush=True)


# -- environments ------------------------------------------------------------------------------------------------------


def make_environments(folder: Path, only: str) -> None:
    """Make the environments of the frameworks with uv."""
    for name, packages in ENVIRONMENTS.items():
        if only and not name.startswith(only):
            continue
        place = folder / name
        subprocess.run(["uv", "venv", "--quiet", "--clear", str(place)], check=True)
        python = str(place / "bin" / "python")
        install = ["uv", "pip", "install", "--quiet", "--python", python, "--editable", f"{REPOSITORY}[exact]"]
        subprocess.run([*install, *packages], check=True)
        print(f"{name}: {place}")


def main() -> int:
    """Run the rows and print their table; with ``--check``, exit 1 if ours is not what it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=Path)
    parser.add_argument("--make-envs", type=Path)
    parser.add_argument("--only", default="", help="a framework")
    parser.add_argument("--remedy", default="", help="a remedy of it")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--largest", type=int, default=LARGEST_RESULT, help="characters of the largest result")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.make_envs:
        make_environments(args.make_envs, args.only)
        return 0
    if args.envs is None:
        parser.error("give --envs or --make-envs")
    rows = [row for row in ROWS if args.only in ("", row.framework) and args.remedy in ("", row.remedy)]
    workload = make_workload(args.steps, SEED, args.largest)
    table = []
    if not args.json:
        print(f"{HEADINGS[0]:<14}{HEADINGS[1]:<34}" + "".join(f"{heading:>12}" for heading in HEADINGS[2:]))
    for figures in run_rows(rows, workload, args.envs):
        table.append(figures)
        if not args.json:
            print_row(figures)
    if args.json:
        print(json.dumps([asdict(figures) for figures in table], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
