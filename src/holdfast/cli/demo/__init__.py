"""``holdfast demo``: one long task in a small window, without Holdfast and with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output.errors import Stopped
from holdfast.cli.output.terminal import console, json_option, say_json
from holdfast.store import at_home

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.cli.demo.comparison import Both, Recalled
    from holdfast.store.base import SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast demo
  holdfast demo --keep ./ferries
  holdfast demo --json
"""
_MANY = 1_000
"""Places in the session that are looked at."""


@click.command("demo", epilog=EXAMPLES)
@click.option("--keep", metavar="DIR", help="Keep files and session there, a new folder; else all is removed.")
@json_option("the outcome of both runs")
@click.pass_context
def command(ctx: click.Context, keep: str | None, *, as_json: bool) -> None:
    """Work through one long task in a small window: without Holdfast, then with it.

    A scripted model mends the fares of some dozen ferry routes: it reads, searches, edits and checks real files with
    the tools of holdfast agent. A strict provider on this machine answers for it, and refuses whatever does not fit in
    a window of 32,000 tokens. Nothing is configured, nothing is sent anywhere, and all tokens are counted by the
    provider. The exit code is 0 if the task was finished with Holdfast.
    """
    out = console()
    with _folder(keep) as folder:
        both = _both(folder, out, quiet=as_json)
        if as_json:
            say_json(_told(both))
        else:
            _say(out, both, folder if keep else None)
    if both.aided.outcome != "finished":
        ctx.exit(1)


def _told(both: Both) -> dict[str, Any]:
    """Return both runs as JSON has them."""
    without, aided = both.without, both.aided
    return {
        "without": {"outcome": without.outcome, "steps": without.steps, "error": without.error},
        "with": {
            "outcome": aided.outcome,
            "steps": aided.steps,
            "tokens": aided.totals.tokens,
            "usd": round(aided.totals.usd, 4),
            "cache_hit": round(aided.totals.cache_hit, 4),
            "compactions": aided.compactions,
            **({"error": aided.error} if aided.error else {}),
        },
        "seconds": round(both.seconds, 2),
    }


def _say(out: Console, both: Both, kept: Path | None) -> None:
    from holdfast.cli.demo.comparison import say_both

    say_both(out, both, kept)


@contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    """Return a new folder; it is removed at the end unless it is to be kept."""
    if keep is None:
        with TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    if not keep:
        raise Stopped("--keep wants the name of a new folder; give one")
    path = at_home(keep)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Stopped(f"{keep!r} is there already; give --keep a new folder")
    path.mkdir(parents=True, exist_ok=True)
    try:
        (path / "without").mkdir()  # of two that were told the same folder one is the first
    except FileExistsError:
        raise Stopped(f"{keep!r} is used by another demonstration; give --keep a new folder") from None
    yield path


def _both(folder: Path, out: Console, *, quiet: bool) -> Both:
    """Return both runs, one after the other, shown while they go on unless it is to be ``quiet``."""
    from anyio import run

    from holdfast.cli.demo.comparison import STORE, Both, say_beginning, say_without
    from holdfast.cli.demo.trial import with_holdfast, without
    from holdfast.cli.demo.watcher import Watcher
    from holdfast.store import open_store

    began, aside = time.monotonic(), console(stderr=True)
    if not quiet:
        say_beginning(out)
    with Watcher(aside, "without", wanted=not quiet) as watcher:
        first = run(without, folder / "without", watcher.see)
    if not quiet:
        say_without(out, first)
    with open_store(str(folder / STORE)) as store:
        with Watcher(aside, "with", wanted=not quiet) as watcher:
            second = run(with_holdfast, folder / "with", store, watcher.see)
        return Both(first, second, _recalled(store), time.monotonic() - began)


def _recalled(store: SessionStore) -> Recalled:
    """Return what can be read back of the audit: the oldest result that tells what was agreed."""
    from holdfast.cli.demo.comparison import AGREED, Recalled
    from holdfast.cli.demo.trial import KEY
    from holdfast.engine.recall import recall

    messages = len(store.entries(KEY, "message"))
    for found in reversed(store.search(KEY, f'"{AGREED}"', limit=_MANY)):
        handle = found.blob or found.entry
        page = recall(store, KEY, handle, search=AGREED)
        lines = [line.partition(": ")[2] for line in page.text.splitlines() if AGREED in line]
        if lines and found.role in ("tool", ""):
            return Recalled(messages, page.matches or 0, lines[0], handle)
    return Recalled(messages)
