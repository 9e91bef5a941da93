"""``holdfast demo``: both runs, the same numbers each time, what is shown of them, and what is left of them."""

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

from holdfast.cli import command
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

SOME = ROUTES[:16]
"""Routes that are too many for the window, and not much more."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Return a folder with all that the demonstration leaves if it is told to."""
    return tmp_path_factory.mktemp("kept") / "ferries"


@pytest.fixture(scope="module")
def told(kept):
    """Return what the demonstration tells programs; all that it made is kept."""
    done = CliRunner().invoke(command, ["demo", "--json", "--keep", str(kept)])
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return json.loads(done.stdout)


def second_run(folder, watch):
    """Return how the shorter task ends with Holdfast."""
    with open_store(":memory:") as store:
        return anyio.run(trial.run_with_holdfast, folder, store, watch, SOME)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Return both runs of a shorter task, with all progress that was told of them."""
    folder, told = tmp_path_factory.mktemp("both"), []
    first = anyio.run(trial.run_without_holdfast, folder / "a", told.append, SOME)
    found = EarlyMessageRecall(9, 4, "harwich: agreed", "0123456789abcdef")
    return DemoComparison(first, second_run(folder / "b", told.append), found, 1.0), told


def test_it_dies_without_and_finishes_with(told):
    """Without, the provider refuses a request over its window, in its own words; with, the task is done."""
    assert list(told) == ["without", "with", "seconds"]
    assert list(told["without"]) == ["outcome", "steps", "error"]
    assert list(told["with"]) == ["outcome", "steps", "tokens", "usd", "cache_hit", "compactions"]
    assert told["without"]["outcome"] == "overflow"
    assert "prompt is too long: " in told["without"]["error"]
    assert told["with"]["outcome"] == "finished"
    assert 120 <= told["with"]["steps"] <= 200
    assert told["with"]["steps"] > 2 * told["without"]["steps"]
    assert told["with"]["compactions"] >= 3
    assert told["with"]["cache_hit"] > 0.9
    assert told["with"]["usd"] > 0.1
    assert 0 < told["seconds"] < 60


@pytest.mark.long
def test_it_is_the_same_each_time(both, tmp_path):
    """A run has the numbers of the run before, to the token."""
    one, two = both[0].with_holdfast, second_run(tmp_path, lambda _: None)
    for field in ("outcome", "steps", "compactions", "recalls", "totals"):
        assert getattr(one, field) == getattr(two, field), field


def test_what_is_kept_can_be_gone_on_with(told, kept, run):
    """The session is in its store with every answer and compaction, and the files are as the task wants them."""
    with open_store(str(kept / DEMO_STORE_FILE)) as store:
        answers = store.read_entries("demo", "answer")
        assert sum(isinstance(entry.body, AnswerEntry) for entry in answers) == told["with"]["steps"]
        compactions = store.read_entries("demo", "compaction")
        assert sum(isinstance(entry.body, CompactionEntry) for entry in compactions) == told["with"]["compactions"]
    report = (kept / "with" / "REPORT.md").read_text()
    assert report.endswith(SIGNATURE_LINE)
    assert all(f"- {route.name}: first wrong invoice {route.invoice}," in report for route in ROUTES)
    assert not (kept / "without" / "REPORT.md").exists()
    assert trial.DEMO_TITLE in run("ls", "--store", str(kept / DEMO_STORE_FILE)).output
    assert trial.MODEL in run("context", "demo", "--store", str(kept / DEMO_STORE_FILE)).output


def test_a_folder_that_is_there_is_left_alone(told, kept, run):
    """A folder with something in it is not written into."""
    done = run("demo", "--keep", str(kept))
    assert done.exit_code == 2
    assert "already exists; give --keep a new folder" in done.stderr


@pytest.mark.parametrize(
    ("keep", "why"),
    [
        ("", "--keep needs the name of a new folder"),
        ("~nobody-here/x", "~nobody-here/x: the home folder is unknown here"),
    ],
)
def test_a_folder_that_is_none(run, keep, why):
    """A name that can be no new folder is told in one sentence, with exit code 2."""
    done = run("demo", "--keep", keep)
    assert done.exit_code == 2
    assert why in done.stderr


def test_one_of_two_gets_the_folder(tmp_path):
    """Of two demonstrations that were given one new folder, and saw it empty, the second one stops."""
    with demo._make_demo_folder(str(tmp_path / "x")) as first:
        assert [path.name for path in first.iterdir()] == ["without"]
    (tmp_path / "y").mkdir()
    with (
        demo._make_demo_folder(str(tmp_path / "y")),
        pytest.raises(CommandError),
        demo._make_demo_folder(str(tmp_path / "y")),
    ):
        pass


@pytest.mark.parametrize("width", example_counts.spare([60, 40], keep=1))
def test_a_narrow_terminal_has_the_names_of_the_figures(both, width):
    """The table keeps words that can be read, whatever the width."""
    out = Console(file=io.StringIO(), width=width)
    print_demo_comparison(out, both[0], None)
    said = out.file.getvalue()
    rows = said.splitlines()
    assert any(row.split()[-2:] == [f"{run.steps}" for run in (both[0].without, both[0].with_holdfast)] for row in rows)
    assert f"{both[0].without.totals.tokens:,}" in said
    assert f"{both[0].with_holdfast.totals.tokens:,}" in said
    assert "…" not in said


def test_both_are_seen_beside_each_other(both):
    """The pictures, the provider's words, the table, what can be read back, and how to go on."""
    found, _ = both
    out = Console(file=io.StringIO(), width=100)
    print_introduction(out)
    print_run_without_holdfast(out, found.without)
    print_demo_comparison(out, found, None)
    said = out.file.getvalue()
    assert all(len(line) <= 100 for line in said.splitlines())
    assert f"the provider: {found.without.error}" in said
    for words in (
        "failed: context overflow",
        "finished",
        "compactions",
        "4 of 32 lines",
        "such as: harwich",
        "--keep DIR",
    ):
        assert words in said
    assert "⟱" in said


def test_every_request_fits_and_the_bars_are_what_the_provider_counted(both):
    """With Holdfast no request is over the window; what a bar is made of adds up to the tokens of the request."""
    found, _ = both
    for run in (found.without, found.with_holdfast):
        for point in run.points:
            assert abs(sum(point.kinds.values()) - point.tokens) <= 3
    assert found.without.points[-1].tokens > trial.WINDOW
    assert found.with_holdfast.totals.largest <= trial.WINDOW
    drops = [point for point in found.with_holdfast.points if point.event == "compaction"]
    assert len(drops) == found.with_holdfast.compactions > 0
    assert all(point.kinds["summary"] > 0 for point in drops)


def test_commands_to_go_on_with_can_be_run(both, told, kept, run):
    """Each command that is printed at the end works as it is printed."""
    found, _ = both
    with open_store(str(kept / DEMO_STORE_FILE)) as store:
        handle = store.search_session("demo", f'"{RECALL_PHRASE}"', limit=1_000)[-1].entry_id
    out = Console(file=io.StringIO(), width=100)
    print_demo_comparison(
        out, DemoComparison(found.without, found.with_holdfast, EarlyMessageRecall(9, 4, "x", handle), 1.0), kept
    )
    commands = [line for line in out.file.getvalue().splitlines() if line.startswith("holdfast ")]
    assert len(commands) == 4
    for line in commands:
        done = run(*shlex.split(line)[1:])
        assert done.exit_code == 0, done.output
    assert "harwich: agreed surcharge" in done.output


def test_progress_without_a_terminal_is_a_line_now_and_then(both):
    """Each compaction is told, and a step here and there; nothing where nothing is wanted."""
    found, told = both
    for wanted in (True, False):
        out = Console(file=io.StringIO(), width=100)
        with RunWatcher(out, "with", is_wanted=wanted) as watcher:
            for progress in told:
                if progress.points and progress.points == found.with_holdfast.points[: len(progress.points)]:
                    watcher.show_progress(progress)
        lines = out.file.getvalue().splitlines()
        assert (len(lines) > 2) == wanted
        assert sum("⟱" in line for line in lines) == (found.with_holdfast.compactions if wanted else 0)


def test_progress_at_a_terminal_is_a_picture_that_goes_away(both):
    """It is drawn over itself, and the cursor is back at the end."""
    _, told = both
    out = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="truecolor", _environ={"TERM": "x"})
    with RunWatcher(out, "with") as watcher:
        for progress in told[:3]:
            watcher.show_progress(progress)
    said = out.file.getvalue()
    assert "tokens" in said
    assert "read HANDOVER.md" in said
    assert said.rindex("\x1b[?25h") > said.index("\x1b[?25l")


@pytest.mark.parametrize(("width", "height"), [(52, 40), (60, 12), (100, 12), (100, 5)])
def test_the_picture_fits_a_small_terminal(both, width, height):
    """No row of it goes on below, and the newest step is on the screen."""
    found, _ = both
    out = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with RunWatcher(out, "with Holdfast") as watcher:
        watcher.show_progress(RunProgress(found.with_holdfast.points, "read HANDOVER.md"))
    said = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", out.file.getvalue()).replace("\r", "")
    lines = said[: said.index("read HANDOVER.md")].splitlines()  # it is drawn once more at the end
    assert [line for line in lines if len(line) > width] == []
    assert len(lines) <= height
    assert any(re.match(rf" *#(\d+-)?{len(found.with_holdfast.points) - 1} ", line) for line in lines), lines


def test_a_task_that_is_not_finished_is_an_exit_code(run, monkeypatch):
    """Where the steps are not enough the outcome says so, and so does the exit code."""
    monkeypatch.setattr(trial, "MAX_STEPS", 5)
    done = run("demo", "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert [told[name]["outcome"] for name in ("without", "with")] == ["stopped", "stopped"]
    assert "limit of 5 steps" in told["with"]["error"]


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="there are no signals to send")
def test_an_interrupt_leaves_nothing(tmp_path):
    """Interrupted in the middle it ends at once with 130, and its temporary files are gone."""
    place = tmp_path / "temporary"
    place.mkdir()
    words = [sys.executable, "-m", "holdfast", "demo"]
    with subprocess.Popen(
        words, env={**os.environ, "TMPDIR": str(place)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as going:
        while not list(place.glob("*/with")) and going.poll() is None:
            time.sleep(0.02)
        going.send_signal(signal.SIGINT)
        _, told = going.communicate(timeout=30)
    assert going.returncode == 130
    assert "interrupted" in told
    assert "Traceback" not in told
    assert list(place.iterdir()) == []
