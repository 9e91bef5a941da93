"""Agent frameworks over a long run: each with its own remedy for a full window, and with ours.

Usage: python bench/frameworks.py --envs FOLDER [--only NAME] [--remedy NAME] [--steps N] [--seed N] [--largest CHARS]
                                  [--json] [--write] [--check]
       python bench/frameworks.py --make-envs FOLDER

Every agent is the real one: the framework's own loop, message classes and model class, in its own environment and
process, speaking HTTP to the strict provider with a window of 32,000 tokens. The script of the model and the results
of the tools are the same for all (``framework_agents/workload.py``); what each request shows is judged as
docs/metrics.md says (``framework_agents/judge.py``). ``--make-envs`` makes the environments with uv, because some
frameworks cannot be installed side by side. With BENCH_VERBOSE=1 the logs of the agents are printed.
"""

from __future__ import annotations

import argparse
import json
import os
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

from framework_agents.figures import (
    HEADINGS,
    ChildEnd,
    RowFigures,
    RowLabels,
    collect_figures,
    explain_behind,
    find_failures,
    format_row,
    list_peers,
)
from framework_agents.judge import CHECK_PROMPT, JudgingProvider, LookUp
from framework_agents.workload import LARGEST_RESULT, SMALLEST_RESULT, ChildJob, Workload, make_workload
from ruler_results import fill_page_part, format_table

from holdfast.config.files import get_target
from holdfast.testing.provider import ProviderSettings
from holdfast.testing.provider.server.local_server import serve_provider

WINDOW = 32_000
MODEL = "gpt-5.6"
"""Its cache is automatic and its writes are charged: a read is .1 and a write 1.25 of the price of input."""
CLAUDE_MODEL = "claude-sonnet-4-6"
"""Claude Code speaks the Messages API alone. The same prices for the cache, relative to its price of input."""
STEPS = 300
LARGEST_RESULTS = (LARGEST_RESULT, 20_000)
"""Largest results of the two tables: what tools may return, and what is left where the tools cut it themselves."""
SEED = 32
TIME_LIMIT = 900
"""Seconds after which a run is ended."""
CHILD = Path(__file__).parent / "framework_agents" / "child.py"
REPOSITORY = Path(__file__).parent.parent
PAGE = REPOSITORY / "docs" / "integrations" / "comparison.md"

ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    "langchain": ("langchain>=1.5", "langchain-openai"),
    "openai-agents": ("openai-agents>=0.24",),
    "pydantic-ai": ("pydantic-ai-slim[openai]>=2.68",),
    # Pins an older Pydantic AI than the one our adapter supports.
    "pydantic-ai-harness": ("pydantic-ai-harness>=0.62", "pydantic-ai-slim[openai]"),
    "strands": ("strands-agents[openai]>=1.62",),
    "google-adk": ("google-adk>=2.13", "litellm"),
    "deepagents": ("deepagents>=0.7", "langchain-openai"),
    "smolagents": ("smolagents[openai]>=1.26",),
    "litellm": ("litellm>=1.110",),
    "claude-agent-sdk": ("claude-agent-sdk>=0.2.189", "mcp>=2.0"),
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
    api: str = "openai-chat"
    model: str = MODEL
    tool_prefix: str = ""
    """What the framework puts before the names of the tools."""

    @property
    def is_ours(self) -> bool:
        """Whether Holdfast manages the conversation."""
        return self.remedy == "holdfast"


def _recall_by_server(name: str) -> tuple[str, dict[str, Any]]:
    return "mcp__holdfast__recall", {"search": name}


def _grep_files(name: str) -> tuple[str, dict[str, Any]]:
    return "Grep", {"pattern": name, "path": "../claude/projects", "glob": "*.txt", "output_mode": "content"}


def _make_claude_row(remedy: str, title: str, look_up: LookUp | None = None) -> Row:
    return Row(
        "claude-agent-sdk",
        remedy,
        title,
        look_up=look_up,
        api="anthropic",
        model=CLAUDE_MODEL,
        tool_prefix="mcp__bench__",
    )


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
    Row("smolagents", "none", "no remedy"),
    Row("smolagents", "shorten", "callback: shorter observations"),
    Row("smolagents", "delete", "the same, oldest steps deleted"),
    Row("smolagents", "holdfast", "Holdfast", look_up=_recall),
    Row("litellm", "none", "no remedy"),
    Row("litellm", "trim", "trim_messages"),
    Row("litellm", "compress", "compress"),
    Row("litellm", "holdfast", "Holdfast", look_up=_recall),
    _make_claude_row("own", "its own defaults"),
    _make_claude_row("compact", "compaction at half of the window"),
    _make_claude_row("store", "the same, smaller results", _grep_files),
    _make_claude_row("holdfast", "Holdfast", _recall_by_server),
)


# -- a run -------------------------------------------------------------------------------------------------------------


def run_row(row: Row, workload: Workload, largest: int, results: Path, python: Path) -> RowFigures:
    """Run one agent in a process of its own."""
    provider = JudgingProvider(workload, ProviderSettings(window=WINDOW), row.look_up, row.tool_prefix)
    prompts = [turn.prompt for turn in workload.turns]
    if provider.has_look_ups:
        prompts.append(CHECK_PROMPT)
    with serve_provider(provider) as url, tempfile.TemporaryDirectory() as folder:
        job = ChildJob(row.framework, row.remedy, url, str(results), folder, WINDOW, row.model, prompts)
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
        if os.environ.get("BENCH_VERBOSE"):
            print(errors.read_text(), file=sys.stderr)
        if "memory" in last_message:
            end = ChildEnd(last_message["versions"], last_message["memory"])
        else:
            logged_lines = errors.read_text().strip().splitlines() or ["it logged nothing"]
            end = ChildEnd(note=f"ended: {logged_lines[-1][:200]}")
    prices = get_target(row.api, row.model).prices
    assert prices is not None
    labels = RowLabels(row.framework, row.title, row.is_ours, largest)
    return collect_figures(labels, provider, end, prices)


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


def run_rows(rows: Sequence[Row], workload: Workload, largest: int, envs: Path) -> Iterator[RowFigures]:
    """Run each row after the other, so that none disturbs the time of another."""
    with tempfile.TemporaryDirectory() as folder:
        workload.write_results(Path(folder))
        for row in rows:
            python = envs / (row.environment or row.framework) / "bin" / "python"
            if not python.exists():
                print(f"{row.framework}: there is no {python}; make it with --make-envs", file=sys.stderr)
                continue
            yield run_row(row, workload, largest, Path(folder), python)


# -- the tables --------------------------------------------------------------------------------------------------------


def print_headings(largest: int) -> None:
    """Print the headings of one table."""
    print(f"\nResults of {SMALLEST_RESULT:,} to {largest:,} characters")
    _print_cells(HEADINGS)


def print_row(figures: RowFigures) -> None:
    """Print a row as soon as it is there, with what went wrong."""
    _print_cells(format_row(figures))
    if figures.failures:
        answers, error = figures.failures[0]
        print(f"    first failed after {answers} answers: {error}", flush=True)
    if figures.first_refusal:
        print(f"    first refusal: {figures.first_refusal}", flush=True)
    if figures.note:
        print(f"    {figures.note}", flush=True)


def _print_cells(cells: tuple[str, ...]) -> None:
    print(f"{cells[0]:<18}{cells[1]:<34}{cells[2]:>22}" + "".join(f"{cell:>13}" for cell in cells[3:]), flush=True)


def run_tables(args: argparse.Namespace) -> dict[int, list[RowFigures]]:
    """Run the chosen rows, and return their figures by the length of the largest result."""
    rows = [row for row in ROWS if args.only in ("", row.framework) and args.remedy in ("", row.remedy)]
    tables: dict[int, list[RowFigures]] = {}
    for largest in args.largest or LARGEST_RESULTS:
        if not args.json:
            print_headings(largest)
        tables[largest] = []
        for figures in run_rows(rows, make_workload(args.steps, args.seed, largest), largest, args.envs):
            tables[largest].append(figures)
            if not args.json:
                print_row(figures)
    return tables


def read_tables(files: Sequence[Path]) -> dict[int, list[RowFigures]]:
    """Read the figures that ``--json`` printed, by the length of the largest result."""
    tables: dict[int, list[RowFigures]] = {}
    for file in files:
        for row in json.loads(file.read_text())["rows"]:
            figures = msgspec.convert(row, RowFigures)
            tables.setdefault(figures.largest_result, []).append(figures)
    return tables


def write_page(tables: Mapping[int, Sequence[RowFigures]]) -> None:
    """Put the tables, and what is said about the figures in which another is ahead, into the page."""
    pieces = []
    for largest, table in tables.items():
        pieces.append(f"### Results of {SMALLEST_RESULT:,} to {largest:,} characters\n")
        pieces.append(format_table(HEADINGS, [format_row(figures) for figures in table]))
        reasons = []
        for ours in table:
            if ours.is_ours:
                reasons += [f"- {ours.framework}: {line}" for line in explain_behind(ours, list_peers(table, ours))]
        if reasons:
            pieces.append("Where another is ahead:\n\n" + "\n".join(reasons) + "\n")
    versions = sorted({figures.versions for table in tables.values() for figures in table if figures.versions})
    steps = max(figures.script_answers for table in tables.values() for figures in table)
    seeds = ", ".join(sorted({str(figures.seed) for table in tables.values() for figures in table}))
    pieces.append(
        f"{steps} answers, seed {seeds}, window {WINDOW:,}, {MODEL} ({CLAUDE_MODEL} for claude-agent-sdk). "
        + "; ".join(versions)
        + "."
    )
    fill_page_part("frameworks", "\n".join(pieces), PAGE)


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
    """Run the rows and print their tables; with ``--check``, exit 1 if ours is not what it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=Path, help="folder with the environments of the frameworks")
    parser.add_argument("--make-envs", type=Path, help="make them, and end")
    parser.add_argument("--only", default="", help="a framework")
    parser.add_argument("--remedy", default="", help="a remedy of it")
    parser.add_argument("--steps", type=int, default=STEPS, help="answers of the model")
    parser.add_argument("--seed", type=int, default=SEED, help="another one makes other facts, calls and results")
    parser.add_argument(
        "--largest", type=int, action="append", help="characters of the largest result; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--from", dest="files", type=Path, action="append", help="read what --json printed, run none")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    parser.add_argument("--check", action="store_true", help="exit 1 if ours lost something, or another is better")
    args = parser.parse_args()
    if args.make_envs:
        make_environments(args.make_envs, args.only)
        return 0
    if args.files:
        tables = read_tables(args.files)
    elif args.envs:
        tables = run_tables(args)
    else:
        parser.error("give --envs, --make-envs or --from")
    all_figures = [figures for table in tables.values() for figures in table]
    findings = find_failures(all_figures)
    if args.json:
        print(json.dumps({"rows": [asdict(figures) for figures in all_figures], "findings": findings}, indent=1))
    if args.write:
        write_page(tables)
    for finding in findings:
        print(finding, file=sys.stderr)
    return int(args.check and bool(findings))


if __name__ == "__main__":
    sys.exit(main())
