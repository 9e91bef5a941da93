"""The frameworks' own tests, with Holdfast's adapter in every agent.

Usage: python bench/upstream_suites.py run FRAMEWORK SOURCES [--python PYTHON] [--results DIR]
       python bench/upstream_suites.py show [--results DIR] [--write]

``run`` starts the tests of ``FRAMEWORK`` in ``SOURCES``, an unpacked source distribution:

    pip download --no-binary langchain --no-deps langchain==1.5.2 && tar xf langchain-1.5.2.tar.gz
    python bench/upstream_suites.py run langchain langchain-1.5.2

It needs ``uv``, with which it makes an environment of that version, Holdfast and what the tests need. ``PYTHON`` is the
interpreter of one that has them already, such as for sources that have no ``PKG-INFO`` with their version. The tests
run with the adapter (``upstream_adapters.py``); those that fail run again as they are, and with one more tool in every
agent. ``show`` prints the table of all results, and every test that fails with the adapter alone; ``--write`` puts the
table into ``docs/integrations/upstream-suites.md``. It ends with 1 if such a failure has no reason in ``REASONS``.

The sources are never part of this repository. Pydantic AI publishes no tests with its packages, and smolagents not all
files of theirs: take ``tests`` and ``pyproject.toml`` of their repositories. Pydantic AI's tests also import
``pydantic-evals`` and ``clai``, which may be older than the rest if they are installed with ``--no-deps``.
"""

from __future__ import annotations

import argparse
import email
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from upstream_adapters import ADAPTERS, UNREAD, VARIANTS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "integrations" / "upstream-suites.md"
MARK = "<!-- the table of bench/upstream_suites.py -->"
PYTEST_OPTIONS = [
    *("-p", "upstream_adapters", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"),
    *("-q", "--tb=short", "--continue-on-collection-errors"),
]
TIME_LIMIT = 3600
"""Seconds for one run of a suite."""
TESTS_FAILED = 1
"""The exit code of pytest if it ran the tests and some failed. Higher ones say that it could not run them."""


@dataclass(frozen=True)
class Suite:
    """The tests of a framework that make agents."""

    package: str
    paths: tuple[str, ...]
    """Files, or folders with files that are named ``test_*.py``."""
    needs: tuple[str, ...] = ()
    """Packages that the tests import, and the version of pytest if the newest cannot read them."""

    def list_files(self, sources: Path) -> list[str]:
        """Return the test files below ``sources``."""
        files: list[Path] = []
        for path in self.paths:
            found = sources / path
            files += sorted(found.rglob("test_*.py")) if found.is_dir() else [found]
        return [str(file.relative_to(sources)) for file in files]


OPENAI_AGENTS_TESTS = """
agent_as_tool agent_config agent_hooks agent_runner agent_runner_streamed agent_runner_sync call_model_input_filter
call_model_input_filter_unit cancel_streaming global_hooks guardrails handoff_history_duplication handoff_tool
hitl_session_scenario invalid_final_output_handler max_turns run_config run_hooks run_state_pending_input
run_step_execution runner_guardrail_resume server_conversation_tracker
"""
PYDANTIC_AI_TESTS = """
agent capabilities capability_process_event_stream capability_stream_teardown concurrency history_processor
nested_sync_agent run_cancellation run_context_usage_limits streaming streaming_errors sync_stream_loop_affinity
tool_availability tool_search tools toolsets usage_limits
"""
SESSION_TESTS = ("tests/memory/test_session.py", "tests/memory/test_session_limit.py")
SUITES = {
    "langchain": Suite(
        "langchain",
        ("tests/unit_tests/agents", "tests/unit_tests/mcp"),
        (
            *("langchain-openai", "langchain-tests", "pytest", "pytest-asyncio", "pytest-benchmark", "pytest-mock"),
            *("pytest-socket", "syrupy", "toml", "blockbuster", "fastmcp"),
        ),
    ),
    "openai-agents": Suite(
        "openai-agents",
        (*(f"tests/test_{name}.py" for name in OPENAI_AGENTS_TESTS.split()), *SESSION_TESTS),
        ("pytest==9.0.3", "pytest-asyncio", "pytest-mock", "inline-snapshot", "httpx"),
    ),
    "strands": Suite(
        "strands-agents",
        ("tests/strands/agent", "tests/strands/event_loop", "tests/strands/multiagent"),
        ("strands-agents[a2a,anthropic,openai,otel]", "pytest", "pytest-asyncio", "pytest-timeout", "moto"),
    ),
    "pydantic-ai": Suite(
        "pydantic-ai-slim",
        tuple(f"tests/test_{name}.py" for name in PYDANTIC_AI_TESTS.split()),
        (
            *("pydantic-ai-slim[anthropic,openai]", "pytest==9.0.3", "pytest-mock", "pytest-recording", "httpx"),
            *("anyio[trio]", "blockbuster", "dirty-equals", "fastmcp", "genai-prices", "inline-snapshot", "logfire"),
        ),
    ),
    "smolagents": Suite(
        "smolagents",
        ("tests/test_agents.py", "tests/test_monitoring.py"),
        ("smolagents[openai,toolkit]", "pytest", "pytest-datadir", "ipython", "pandas", "pillow", "soundfile"),
    ),
}

REASONS: tuple[tuple[str, str, str], ...] = (
    (
        "openai-agents",
        "test_cancel_before_streaming|cancellation_waits_for_registered_cleanup",
        (
            "the test waits until the SDK closes the provider that it makes for a run without a configuration; with "
            "Holdfast every run has one, and its provider is its owner's to close"
        ),
    ),
    (
        "pydantic-ai",
        "handler_interrupted_does_not_drain",
        (
            "with any capability that is told of failed requests, Pydantic AI reads the first event before it calls "
            "the handler; the test wants none to be read"
        ),
    ),
    ("smolagents", "test_from_dict\\b", "the test compares the agent's model with the one that it gave"),
    (
        "smolagents",
        "Tool validation failed for RecallTool",
        "the agent is saved with its tools, and `recall` cannot go with it: it needs the store of this process",
    ),
    ("strands", "preserves_sliding_window", "the test states the class of the manager that agents have by default"),
    (
        "strands",
        "retry_with_reduced_context|retry_with_overwritten_tool",
        "the model is a mock without a number for its window, so the adapter stands aside and the overflow is raised",
    ),
)
"""Why a test fails with the adapter alone: a framework, a pattern of the test's name or error, and the reason."""


@dataclass
class Outcome:
    """What came out of one suite."""

    framework: str
    version: str
    passed: int = 0
    skipped: int = 0
    broken: int = 0
    """Fail also as they are: they need packages, files or a network that is not there."""
    by_tool: int = 0
    """Fail also with one more tool in place of the adapter."""
    unread_files: list[str] = field(default_factory=list)
    """Files that could not be imported: their tests are not counted."""
    explained: dict[str, list[str]] = field(default_factory=dict)
    """By reason: the tests that fail with the adapter alone."""
    unexplained: dict[str, str] = field(default_factory=dict)
    """By test: the error."""
    warnings: list[str] = field(default_factory=list)


def make_environment(framework: str, sources: Path, folder: Path) -> str:
    """Make an environment for the tests and return its interpreter."""
    package_info = sources / "PKG-INFO"
    if not package_info.exists():
        sys.exit(f"{sources} has no PKG-INFO, so the version is not known: give the interpreter with --python")
    version = email.message_from_string(package_info.read_text(encoding="utf-8"))["Version"]
    suite = SUITES[framework]
    python = folder / "bin" / "python"
    subprocess.run(["uv", "venv", "--quiet", "--clear", folder], check=True)
    packages = ["--editable", f"{ROOT}[{framework}]", f"{suite.package}=={version}", *suite.needs]
    subprocess.run(["uv", "pip", "install", "--quiet", "--python", python, *packages], check=True)
    return str(python.absolute())


def run_suite(framework: str, sources: Path, python: str, results: Path) -> None:
    """Run the tests with the adapter, and those that fail as they are and with one more tool; write the results."""
    suite = SUITES[framework]
    results.mkdir(parents=True, exist_ok=True)
    ask = f"from importlib.metadata import version; print(version({suite.package!r}))"
    version = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    tests = suite.list_files(sources)
    for variant in VARIANTS:
        file = (results / f"{framework}.{variant}.json").resolve()
        file.write_text('{"outcomes": {}, "warnings": []}', encoding="utf-8")
        if tests:
            environment = {
                **os.environ,
                "PYTHONPATH": str(Path(__file__).parent.resolve()),
                "UPSTREAM_FRAMEWORK": framework,
                "UPSTREAM_VARIANT": variant,
                "UPSTREAM_RESULTS": str(file),
            }
            command = [python, "-m", "pytest", *PYTEST_OPTIONS, *tests]
            with (results / f"{framework}.{variant}.log").open("w") as log:
                ended = subprocess.run(
                    command, cwd=sources, env=environment, stdout=log, stderr=log, timeout=TIME_LIMIT, check=False
                )
            if ended.returncode > TESTS_FAILED:
                sys.exit(f"pytest could not run the tests of {framework} and ended with {ended.returncode}: {log.name}")
        outcomes = json.loads(file.read_bytes())["outcomes"]
        print(framework, version, variant, Counter(outcome for outcome, _ in outcomes.values()))
        if variant == "holdfast":
            tests = [test for test, (outcome, _) in outcomes.items() if outcome == "failed"]
    if not (sources / "PKG-INFO").exists():
        version += f" with the tests of {sources.name}"
    (results / f"{framework}.version").write_text(version, encoding="utf-8")


def judge(framework: str, results: Path) -> Outcome:
    """Return what came out of ``framework``'s tests."""
    found = {variant: json.loads((results / f"{framework}.{variant}.json").read_bytes()) for variant in VARIANTS}
    tests = {variant: found[variant]["outcomes"] for variant in VARIANTS}
    outcome = Outcome(framework, (results / f"{framework}.version").read_text(encoding="utf-8"))
    outcome.warnings = found["holdfast"]["warnings"]
    for test, (ours, error) in tests["holdfast"].items():
        if ours == "passed":
            outcome.passed += 1
        elif ours == "skipped":
            outcome.skipped += 1
        elif ours == UNREAD:
            outcome.unread_files.append(test)
        elif tests["plain"].get(test, ("failed", ""))[0] != "passed":
            outcome.broken += 1
        elif tests["tool"].get(test, ("failed", ""))[0] != "passed":
            outcome.by_tool += 1
        elif reason := find_reason(framework, f"{test}\n{error}"):
            outcome.explained.setdefault(reason, []).append(test)
        else:
            outcome.unexplained[test] = error
    return outcome


def find_reason(framework: str, text: str) -> str:
    """Return why a test fails, or ``""`` if that is not known."""
    return next((reason for name, pattern, reason in REASONS if name == framework and re.search(pattern, text)), "")


def format_table(outcomes: list[Outcome]) -> str:
    """Return the table and the reasons as Markdown."""
    lines = [
        "| framework | tests run | pass | fail with any one tool more | fail for another reason | not applicable |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for one in outcomes:
        others = sum(map(len, one.explained.values())) + len(one.unexplained)
        run = one.passed + one.by_tool + others
        missing = one.broken + one.skipped
        lines.append(f"| {one.framework} {one.version} | {run} | {one.passed} | {one.by_tool} | {others} | {missing} |")
    lines.append("")
    for one in outcomes:
        if one.unread_files:
            names = ", ".join(f"`{Path(name).name}`" for name in one.unread_files)
            lines.append(f"- **{one.framework}**, not counted: {names}, which this version cannot import")
        for reason, tests in one.explained.items():
            lines.append(f"- **{one.framework}**, {len(tests)}: {reason}")
        if one.unexplained:
            lines.append(f"- **{one.framework}**, {len(one.unexplained)}: not understood yet")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("framework", choices=ADAPTERS)
    run.add_argument("sources", type=Path)
    run.add_argument("--python")
    show = commands.add_parser("show")
    show.add_argument("--write", action="store_true")
    for command in (run, show):
        command.add_argument("--results", type=Path, default=Path("build/upstream-suites"))
    options = parser.parse_args()
    if options.command == "run":
        # The tests run in the folder of the sources.
        sources = options.sources.resolve()
        if options.python:
            python = str(Path(options.python).absolute())
        else:
            python = make_environment(options.framework, sources, options.results / f"{options.framework}-environment")
        run_suite(options.framework, sources, python, options.results)
        return
    outcomes = [judge(name, options.results) for name in ADAPTERS if (options.results / f"{name}.version").exists()]
    table = format_table(outcomes)
    print(table)
    for one in outcomes:
        for test, error in one.unexplained.items():
            print(f"\n{one.framework}: {test}\n{error}")
        for warning in one.warnings:
            print(f"{one.framework} warned: {warning}")
    if options.write:
        before, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
        PAGE.write_text(f"{before}{MARK}\n\n{table}\n", encoding="utf-8")
    sys.exit(any(one.unexplained for one in outcomes))


if __name__ == "__main__":
    main()
