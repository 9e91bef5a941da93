"""``holdfast demo``: one long task in a small window, without Holdfast and with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.terminal import make_console, make_json_option, print_json
from holdfast.store.open_store import expand_home

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.cli.demo.comparison import DemoComparison, EarlyMessageRecall
    from holdfast.store.base import SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast demo
  holdfast demo --keep ./ferries
  holdfast demo --json
"""
_SEARCH_LIMIT = 1_000
"""Search hits to look through; the demo's session has far fewer."""


@click.command("demo", epilog=EXAMPLES)
@click.option(
    "--keep",
    metavar="DIR",
    help="Keep the files and the session in this new folder; otherwise they are removed.",
)
@make_json_option("the outcome of both runs")
@click.pass_context
def demo_command(ctx: click.Context, keep: str | None, *, as_json: bool) -> None:
    """Work through one long task in a small window: without Holdfast, then with it.

    A scripted model corrects the fares of some dozen ferry routes: it reads, searches, edits and checks real files with
    the tools of holdfast agent. A strict provider on this machine answers it, and refuses any request over a window of
    32,000 tokens. You configure nothing, nothing leaves this machine, and the provider counts all tokens. The exit code
    is 0 if the task was finished with Holdfast.
    """
    out = make_console()
    with _make_demo_folder(keep) as folder:
        comparison = _run_both(folder, out, quiet=as_json)
        if as_json:
            print_json(_make_demo_record(comparison))
        else:
            _print_comparison(out, comparison, folder if keep else None)
    if comparison.with_holdfast.outcome != "finished":
        ctx.exit(1)


def _make_demo_record(comparison: DemoComparison) -> dict[str, Any]:
    """Return both runs as the record that ``--json`` prints."""
    without, holdfast_run = comparison.without, comparison.with_holdfast
    return {
        "without": {"outcome": without.outcome, "steps": without.steps, "error": without.error},
        "with": {
            "outcome": holdfast_run.outcome,
            "steps": holdfast_run.steps,
            "tokens": holdfast_run.totals.tokens,
            "usd": round(holdfast_run.totals.usd, 4),
            "cache_hit": round(holdfast_run.totals.cache_hit, 4),
            "compactions": holdfast_run.compactions,
            **({"error": holdfast_run.error} if holdfast_run.error else {}),
        },
        "seconds": round(comparison.seconds, 2),
    }


def _print_comparison(console: Console, comparison: DemoComparison, folder: Path | None) -> None:
    from holdfast.cli.demo.comparison import print_demo_comparison

    print_demo_comparison(console, comparison, folder)


@contextmanager
def _make_demo_folder(keep: str | None) -> Iterator[Path]:
    """Make a new folder, which is removed at the end unless it is to be kept."""
    if keep is None:
        with TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    if not keep:
        raise CommandError("--keep needs the name of a new folder; give one")
    path = expand_home(keep)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CommandError(f"{keep!r} already exists; give --keep a new folder")
    path.mkdir(parents=True, exist_ok=True)
    try:
        (path / "without").mkdir()  # fails for the second of two demos in one folder
    except FileExistsError:
        raise CommandError(f"{keep!r} is used by another demonstration; give --keep a new folder") from None
    yield path


def _run_both(folder: Path, output_console: Console, *, quiet: bool) -> DemoComparison:
    """Run the task without and then with Holdfast, showing progress unless ``quiet``."""
    from anyio import run

    from holdfast.cli.demo.comparison import (
        DEMO_STORE_FILE,
        DemoComparison,
        print_introduction,
        print_run_without_holdfast,
    )
    from holdfast.cli.demo.trial import run_with_holdfast, run_without_holdfast
    from holdfast.cli.demo.watcher import RunWatcher
    from holdfast.store.open_store import open_store

    began = time.monotonic()
    aside = make_console(stderr=True)
    if not quiet:
        print_introduction(output_console)
    with RunWatcher(aside, "without", is_wanted=not quiet) as watcher:
        first = run(run_without_holdfast, folder / "without", watcher.show_progress)
    if not quiet:
        print_run_without_holdfast(output_console, first)
    with open_store(str(folder / DEMO_STORE_FILE)) as store:
        with RunWatcher(aside, "with", is_wanted=not quiet) as watcher:
            second = run(run_with_holdfast, folder / "with", store, watcher.show_progress)
        return DemoComparison(first, second, _recall_audit(store), time.monotonic() - began)


def _recall_audit(store: SessionStore) -> EarlyMessageRecall:
    """Read back the audit from the second run: the oldest tool result with the agreed surcharges."""
    from holdfast.cli.demo.comparison import RECALL_PHRASE, EarlyMessageRecall
    from holdfast.cli.demo.trial import DEMO_SESSION
    from holdfast.engine.recall import recall_page

    messages = len(store.read_entries(DEMO_SESSION, "message"))
    for hit in reversed(store.search_session(DEMO_SESSION, f'"{RECALL_PHRASE}"', limit=_SEARCH_LIMIT)):
        handle = hit.blob_hash or hit.entry_id
        page = recall_page(store, DEMO_SESSION, handle, search=RECALL_PHRASE)
        lines = [line.partition(": ")[2] for line in page.text.splitlines() if RECALL_PHRASE in line]
        if lines and hit.role in ("tool", ""):
            return EarlyMessageRecall(messages, page.match_count or 0, lines[0], handle)
    return EarlyMessageRecall(messages)
