"""``holdfast demo``: both runs, their figures, what is printed, and what is left on disk."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import anyio
import example_counts
import pytest
from click.testing import CliRunner
from rich.console import Console

from holdfast.cli import holdfast_command
from holdfast.cli.commands import demo
from holdfast.cli.demo import trial
from holdfast.cli.demo.comparison import (
    DEMO_STORE_FILE,
    RECALL_PHRASE,
    DemoComparison,
    EarlyMessageRecall,
    print_demo_comparison,
    print_introduction,
    print_run_without_holdfast,
)
from holdfast.cli.demo.trial import RunProgress
from holdfast.cli.demo.watcher import RunWatcher
from holdfast.cli.output.errors import CommandError
from holdfast.state.entries import AnswerEntry, CompactionEntry
from holdfast.store.open_store import open_store
from holdfast.testing.task.routes import ROUTES, SIGNATURE_LINE

pytestmark = pytest.mark.long

SHORT_TASK = ROUTES[:16]
"""Routes that are just too many for the window."""


@pytest.fixture(scope="module")
def kept_folder(tmp_path_factory):
    """Return the folder given to --keep."""
    return tmp_path_factory.mktemp("kept") / "ferries"


@pytest.fixture(scope="module")
def demo_report(kept_folder):
    """Return the JSON report of a demo whose files are kept."""
    result = CliRunner().invoke(holdfast_command, ["demo", "--json", "--keep", str(kept_folder)])
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return json.loads(result.stdout)


def run_short_task(folder, watch):
    """Return the result of the shorter task with Holdfast."""
    with open_store(":memory:") as store:
        return anyio.run(trial.run_with_holdfast, folder, store, watch, SHORT_TASK)


@pytest.fixture(scope="module")
def both_runs(tmp_path_factory):
    """Return the comparison of both runs of a shorter task, and all progress reports."""
    folder, progress_reports = tmp_path_factory.mktemp("both"), []
    without_holdfast = anyio.run(trial.run_without_holdfast, folder / "a", progress_reports.append, SHORT_TASK)
    recall = EarlyMessageRecall(9, 4, "harwich: agreed", "0123456789abcdef")
    return DemoComparison(
        without_holdfast, run_short_task(folder / "b", progress_reports.append), recall, 1.0
    ), progress_reports


def test_demo_overflows_without_holdfast_and_finishes_with_it(demo_report):
    """Without Holdfast the provider refuses a request over its window; with it the task is finished."""
    assert list(demo_report) == ["without", "with", "seconds"]
    assert list(demo_report["without"]) == ["outcome", "steps", "error"]
    assert list(demo_report["with"]) == ["outcome", "steps", "tokens", "usd", "cache_hit", "compactions"]
    assert demo_report["without"]["outcome"] == "overflow"
    assert "prompt is too long: " in demo_report["without"]["error"]
    assert demo_report["with"]["outcome"] == "finished"
    assert 120 <= demo_report["with"]["steps"] <= 200
    assert demo_report["with"]["steps"] > 2 * demo_report["without"]["steps"]
    assert demo_report["with"]["compactions"] >= 3
    assert demo_report["with"]["cache_hit"] > 0.9
    assert demo_report["with"]["usd"] > 0.1
    assert 0 < demo_report["seconds"] < 60


@pytest.mark.long
def test_run_with_holdfast_is_deterministic(both_runs, tmp_path):
    """Two runs have the same figures, but for the digits of the clock: what is read back shows when it was said."""
    first_run, other_run = both_runs[0].with_holdfast, run_short_task(tmp_path, lambda _: None)
    for field in ("outcome", "steps", "compactions", "recalls"):
        assert getattr(first_run, field) == getattr(other_run, field), field
    assert first_run.totals.tokens == pytest.approx(other_run.totals.tokens, rel=1e-3)
    assert first_run.totals.usd == pytest.approx(other_run.totals.usd, rel=1e-3)


def test_demo_keep_leaves_the_store_and_the_files(demo_report, kept_folder, run):
    """The kept store has every answer and compaction, and the report is complete."""
    with open_store(str(kept_folder / DEMO_STORE_FILE)) as store:
        answers = store.read_entries("demo", "answer")
        assert sum(isinstance(entry.body, AnswerEntry) for entry in answers) == demo_report["with"]["steps"]
        compactions = store.read_entries("demo", "compaction")
        assert (
            sum(isinstance(entry.body, CompactionEntry) for entry in compactions) == demo_report["with"]["compactions"]
        )
    report = (kept_folder / "with" / "REPORT.md").read_text()
    assert report.endswith(SIGNATURE_LINE)
    assert all(f"- {route.name}: first wrong invoice {route.invoice}," in report for route in ROUTES)
    assert not (kept_folder / "without" / "REPORT.md").exists()
    assert trial.DEMO_TITLE in run("ls", "--store", str(kept_folder / DEMO_STORE_FILE)).output
    assert trial.MODEL in run("context", "demo", "--store", str(kept_folder / DEMO_STORE_FILE)).output


def test_demo_keep_refuses_a_folder_that_is_not_empty(demo_report, kept_folder, run):
    """A folder with content is not written to."""
    result = run("demo", "--keep", str(kept_folder))
    assert result.exit_code == 2
    assert "already exists; give --keep a new folder" in result.stderr


@pytest.mark.parametrize(
    ("keep", "why"),
    [
        ("", "--keep needs the name of a new folder"),
        ("~nobody-here/x", "~nobody-here/x: the home folder is unknown here"),
    ],
)
def test_demo_keep_refuses_an_unusable_folder_name(run, keep, why):
    """A name that cannot be a new folder exits with 2 and one sentence."""
    result = run("demo", "--keep", keep)
    assert result.exit_code == 2
    assert why in result.stderr


def test_make_demo_folder_lets_one_of_two_demos_have_a_folder(tmp_path):
    """Of two demos given the same new folder the second one stops."""
    with demo._make_demo_folder(str(tmp_path / "x")) as first:
        assert [path.name for path in first.iterdir()] == ["without"]
    (tmp_path / "y").mkdir()
    with (
        demo._make_demo_folder(str(tmp_path / "y")),
        pytest.raises(CommandError),
        demo._make_demo_folder(str(tmp_path / "y")),
    ):
        pass


@pytest.mark.parametrize("width", example_counts.mark_rest_long([60, 40], keep=1))
def test_print_demo_comparison_keeps_names_and_figures_when_narrow(both_runs, width):
    """The table keeps whole words and figures, whatever the width."""
    console = Console(file=io.StringIO(), width=width)
    print_demo_comparison(console, both_runs[0], None)
    printed = console.file.getvalue()
    rows = printed.splitlines()
    assert any(
        row.split()[-2:] == [f"{run.steps}" for run in (both_runs[0].without, both_runs[0].with_holdfast)]
        for row in rows
    )
    assert f"{both_runs[0].without.totals.tokens:,}" in printed
    assert f"{both_runs[0].with_holdfast.totals.tokens:,}" in printed
    assert "…" not in printed


def test_print_demo_comparison_shows_both_runs(both_runs):
    """The charts, the provider's error, the table, the recalled text and the next commands are printed within the
    width.
    """
    comparison, _ = both_runs
    console = Console(file=io.StringIO(), width=100)
    print_introduction(console)
    print_run_without_holdfast(console, comparison.without)
    print_demo_comparison(console, comparison, None)
    printed = console.file.getvalue()
    assert all(len(line) <= 100 for line in printed.splitlines())
    assert f"the provider: {comparison.without.error}" in printed
    for words in (
        "failed: context overflow",
        "finished",
        "compactions",
        "4 of 32 lines",
        "such as: harwich",
        "--keep DIR",
    ):
        assert words in printed
    assert "⟱" in printed


def test_demo_requests_fit_and_bars_add_up_to_their_tokens(both_runs):
    """With Holdfast no request is over the window, and the parts of a bar add up to the request's tokens."""
    comparison, _ = both_runs
    for run in (comparison.without, comparison.with_holdfast):
        for point in run.points:
            assert abs(sum(point.kinds.values()) - point.tokens) <= 3
    assert comparison.without.points[-1].tokens > trial.WINDOW
    assert comparison.with_holdfast.totals.largest <= trial.WINDOW
    drops = [point for point in comparison.with_holdfast.points if point.event == "compaction"]
    assert len(drops) == comparison.with_holdfast.compactions > 0
    assert all(point.kinds["summary"] > 0 for point in drops)


def test_print_demo_comparison_prints_commands_that_work(both_runs, demo_report, kept_folder, run):
    """Each command printed at the end works as printed."""
    comparison, _ = both_runs
    with open_store(str(kept_folder / DEMO_STORE_FILE)) as store:
        handle = store.search_session("demo", f'"{RECALL_PHRASE}"', limit=1_000)[-1].entry_id
    console = Console(file=io.StringIO(), width=100)
    print_demo_comparison(
        console,
        DemoComparison(comparison.without, comparison.with_holdfast, EarlyMessageRecall(9, 4, "x", handle), 1.0),
        kept_folder,
    )
    commands = [line for line in console.file.getvalue().splitlines() if line.startswith("holdfast ")]
    assert len(commands) == 4
    for line in commands:
        result = run(*shlex.split(line)[1:])
        assert result.exit_code == 0, result.output
    assert "harwich: agreed surcharge" in result.output


def test_run_watcher_prints_lines_without_a_terminal(both_runs):
    """Each compaction and some steps are printed as lines, or nothing if progress is not wanted."""
    comparison, progress_reports = both_runs
    for is_wanted in (True, False):
        console = Console(file=io.StringIO(), width=100)
        with RunWatcher(console, "with", is_wanted=is_wanted) as watcher:
            for progress in progress_reports:
                if progress.points and progress.points == comparison.with_holdfast.points[: len(progress.points)]:
                    watcher.show_progress(progress)
        lines = console.file.getvalue().splitlines()
        assert (len(lines) > 2) == is_wanted
        assert sum("⟱" in line for line in lines) == (comparison.with_holdfast.compactions if is_wanted else 0)


def test_run_watcher_draws_in_place_and_restores_the_cursor(both_runs):
    """At a terminal the chart is redrawn in place, and the cursor is visible again at the end."""
    _, progress_reports = both_runs
    console = Console(
        file=io.StringIO(), width=100, force_terminal=True, color_system="truecolor", _environ={"TERM": "x"}
    )
    with RunWatcher(console, "with") as watcher:
        for progress in progress_reports[:3]:
            watcher.show_progress(progress)
    printed = console.file.getvalue()
    assert "tokens" in printed
    assert "read HANDOVER.md" in printed
    assert printed.rindex("\x1b[?25h") > printed.index("\x1b[?25l")


@pytest.mark.parametrize(("width", "height"), [(52, 40), (60, 12), (100, 12), (100, 5)])
def test_run_watcher_fits_a_small_terminal(both_runs, width, height):
    """No row wraps, and the newest step is on the screen."""
    comparison, _ = both_runs
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with RunWatcher(console, "with Holdfast") as watcher:
        watcher.show_progress(RunProgress(comparison.with_holdfast.points, "read HANDOVER.md"))
    printed = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", console.file.getvalue()).replace("\r", "")
    lines = printed[: printed.index("read HANDOVER.md")].splitlines()  # it is drawn once more at the end
    assert [line for line in lines if len(line) > width] == []
    assert len(lines) <= height
    assert any(re.match(rf" *#(\d+-)?{len(comparison.with_holdfast.points) - 1} ", line) for line in lines), lines


def test_demo_exits_1_when_a_run_is_not_finished(run, monkeypatch):
    """If the steps run out, outcome and exit code say so."""
    monkeypatch.setattr(trial, "MAX_STEPS", 5)
    result = run("demo", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert [report[name]["outcome"] for name in ("without", "with")] == ["stopped", "stopped"]
    assert "limit of 5 steps" in report["with"]["error"]


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="there are no signals to send")
def test_demo_interrupt_exits_130_and_removes_temporary_files(tmp_path):
    """An interrupted demo exits at once with 130, and its temporary files are gone."""
    temporary_folder = tmp_path / "temporary"
    temporary_folder.mkdir()
    words = [sys.executable, "-m", "holdfast", "demo"]
    with subprocess.Popen(
        words,
        env={**os.environ, "TMPDIR": str(temporary_folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not list(temporary_folder.glob("*/with")) and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, error_output = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in error_output
    assert "Traceback" not in error_output
    assert list(temporary_folder.iterdir()) == []
