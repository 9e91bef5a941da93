"""Progress is shown at a terminal and nowhere else."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import click
import example_counts
import pytest

from holdfast.cli import holdfast_command
from holdfast.cli.output import terminal
from holdfast.cli.output.terminal import ProgressBar

TIMEOUT_SECONDS = 30
"""Seconds within which output must appear."""
ERASE_LINE = "\x1b[2K"
"""The sequence that erases a terminal line."""


@contextmanager
def attach_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Make standard error a terminal on which bars show at once, and yield its other end."""
    ours, theirs = os.openpty()
    with monkeypatch.context() as patch, os.fdopen(theirs, "w", encoding="utf-8") as stream:
        patch.setenv("TERM", "xterm")
        patch.setattr(terminal, "PROGRESS_DELAY", 0)
        patch.setattr(sys, "stderr", stream)
        yield ours
    os.close(ours)


def read_until(terminal_end: int, expected: str) -> str:
    """Return what is printed on a terminal until ``expected`` appears."""
    printed = b""
    while expected.encode() not in printed and select.select([terminal_end], [], [], TIMEOUT_SECONDS)[0]:
        printed += os.read(terminal_end, 4096)
    return printed.decode()


def test_progress_bar_shows_progress_and_disappears(monkeypatch):
    """It appears after a delay even without items, items move it, and its line is empty at the end."""
    with attach_terminal(monkeypatch) as screen:
        with ProgressBar("reading", is_wanted=True) as bar:
            assert "reading" in read_until(screen, "reading")
            half = bar.track_items("sessions", ["one", "two"])
            assert [next(half), next(half)] == ["one", "two"]
            assert "50%" in read_until(screen, "50%")
        assert read_until(screen, ERASE_LINE).endswith(ERASE_LINE)


def test_progress_bar_prints_nothing_if_not_wanted(monkeypatch):
    """With ``--json`` no bar is shown, and the items are iterated all the same."""
    with attach_terminal(monkeypatch) as screen:
        with ProgressBar("reading", is_wanted=False) as bar:
            assert list(bar.track_items("sessions", range(9))) == list(range(9))
        assert not select.select([screen], [], [], 0)[0]


def test_progress_bar_leaves_standard_output_alone(monkeypatch, capsys):
    """The bar is on standard error; standard output may be a file."""
    with attach_terminal(monkeypatch) as screen, ProgressBar("reading", is_wanted=True):
        read_until(screen, "reading")
        click.echo("a line")
    assert capsys.readouterr().out == "a line\n"


@pytest.mark.parametrize("options", example_counts.mark_rest_long([[], ["--json"]], keep=1))
def test_import_shows_progress_while_it_waits(monkeypatch, home, session, options):
    """An import from a slow file shows that it is reading, but not with --json."""
    pipe = home / "slow.jsonl"
    os.mkfifo(pipe)
    writing = os.open(pipe, os.O_RDWR)
    with attach_terminal(monkeypatch) as screen:
        arguments = ["import", str(pipe), *options]
        running = Thread(target=holdfast_command.main, args=(arguments,), kwargs={"standalone_mode": False})
        running.start()
        printed = read_until(screen, "reading") if not options else ""
        os.write(writing, session.read_bytes())
        os.close(writing)
        running.join(TIMEOUT_SECONDS)
        assert not running.is_alive()
        assert ("reading" in printed) == (not options)
        assert not options or not select.select([screen], [], [], 0)[0]
