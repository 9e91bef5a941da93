"""A person at a terminal is told that a command works; nobody else is."""

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

from holdfast.cli import command
from holdfast.cli.output import terminal
from holdfast.cli.output.terminal import ProgressBar

SOON = 30
"""Seconds within which something must show."""
GONE = "\x1b[2K"
"""What empties a line of a terminal."""


@contextmanager
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Make standard error a terminal, on which bars show at once; yield the end at which a person sits."""
    ours, theirs = os.openpty()
    with monkeypatch.context() as patch, os.fdopen(theirs, "w", encoding="utf-8") as stream:
        patch.setenv("TERM", "xterm")
        patch.setattr(terminal, "PROGRESS_DELAY", 0)
        patch.setattr(sys, "stderr", stream)
        yield ours
    os.close(ours)


def read(ours: int, wanted: str) -> str:
    """Return what shows on a terminal until ``wanted`` does."""
    shown = b""
    while wanted.encode() not in shown and select.select([ours], [], [], SOON)[0]:
        shown += os.read(ours, 4096)
    return shown.decode()


def test_a_bar_shows_what_is_done_and_goes_away(monkeypatch):
    """It comes by itself, also where nothing is told; ticks move it, and at the end its line is empty again."""
    with at_a_terminal(monkeypatch) as screen:
        with ProgressBar("reading", is_wanted=True) as waiting:
            assert "reading" in read(screen, "reading")
            half = waiting.track_items("sessions", ["one", "two"])
            assert [next(half), next(half)] == ["one", "two"]
            assert "50%" in read(screen, "50%")
        assert read(screen, GONE).endswith(GONE)


def test_who_wants_no_bar_sees_none(monkeypatch):
    """So it is with ``--json``; the steps are done all the same."""
    with at_a_terminal(monkeypatch) as screen:
        with ProgressBar("reading", is_wanted=False) as waiting:
            assert list(waiting.track_items("sessions", range(9))) == list(range(9))
        assert not select.select([screen], [], [], 0)[0]


def test_what_a_command_prints_goes_where_it_went(monkeypatch, capsys):
    """A bar on standard error leaves standard output alone, which may be a file."""
    with at_a_terminal(monkeypatch) as screen, ProgressBar("reading", is_wanted=True):
        read(screen, "reading")
        click.echo("a line")
    assert capsys.readouterr().out == "a line\n"


@pytest.mark.parametrize("options", example_counts.spare([[], ["--json"]], keep=1))
def test_a_command_that_waits_says_so(monkeypatch, home, session, options):
    """An import whose file takes its time shows that something is going on, but not to a program."""
    pipe = home / "slow.jsonl"
    os.mkfifo(pipe)
    writing = os.open(pipe, os.O_RDWR)
    with at_a_terminal(monkeypatch) as screen:
        arguments = ["import", str(pipe), *options]
        running = Thread(target=command.main, args=(arguments,), kwargs={"standalone_mode": False})
        running.start()
        shown = read(screen, "reading") if not options else ""
        os.write(writing, session.read_bytes())
        os.close(writing)
        running.join(SOON)
        assert not running.is_alive()
        assert ("reading" in shown) == (not options)
        assert not options or not select.select([screen], [], [], 0)[0]
