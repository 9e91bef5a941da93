"""The command itself: help, names, exit codes, and how fast it starts."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import click
import pytest

from holdfast.cli import COMMAND_HELP, LazyCommandGroup, command, get_command_module


def loaded(name: str) -> click.Command:
    found: click.Command = import_module(get_command_module(name)).command
    return found


def subcommands() -> list[tuple[str, ...]]:
    out: list[tuple[str, ...]] = []
    for name in COMMAND_HELP:
        found = loaded(name)
        out += [(name, inner) for inner in found.commands] if isinstance(found, click.Group) else [(name,)]
    return out


def test_alone_it_says_what_to_do_first(run):
    """``holdfast`` alone prints its help with four first things to do, and that is no error."""
    result = run()
    assert result.exit_code == 0
    assert result.stdout.count("\n    holdfast ") == 4


def test_version(run):
    """``--version`` prints one line."""
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("holdfast ")


def test_help_loads_click_alone():
    """The help page loads no command: neither rich, nor the store, nor replay."""
    check = (
        "import sys; from holdfast.cli import command; command(['--help'], standalone_mode=False);"
        "print([name for name in ('rich', 'sqlite3', 'holdfast.replay', 'bpe_openai') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("name", COMMAND_HELP)
def test_the_list_says_what_the_command_says(name):
    """The line in the list of commands is the first sentence of the command's own help."""
    assert (loaded(name).help or "").startswith(COMMAND_HELP[name].split(":")[0].rstrip("."))


@pytest.mark.parametrize("names", subcommands(), ids=" ".join)
def test_every_command_has_an_example_and_speaks_json(run, names):
    """Every verb shows an example of itself in its help, and takes ``--json``."""
    shown = run(*names, "--help").stdout
    assert f"  holdfast {' '.join(names)}" in shown or "| holdfast lint" in shown
    assert "--json" in shown


def test_unknown_command_names_the_nearest(run):
    """A mistyped command ends with exit code 2 and the command that was meant."""
    result = run("replya")
    assert result.exit_code == 2
    assert "replay" in result.stderr


def test_a_fault_of_ours_keeps_its_traceback():
    """Only what input and disks can cause becomes a message; a bug stays visible."""

    @click.command()
    def broken() -> None:
        raise ZeroDivisionError

    group = LazyCommandGroup("holdfast")
    group.get_command = lambda _ctx, _name: broken  # type: ignore[method-assign]
    group.resolve_command = lambda _ctx, args: ("ls", broken, args[1:])  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        group(["ls"], standalone_mode=False)


@pytest.mark.parametrize("loading", ["click", "holdfast.cli", "holdfast.cli.commands.ls", "msgspec", "sqlite3"])
def test_an_interrupt_while_it_loads_is_no_traceback(loading, tmp_path):
    """^C ends the command with one line and 130, whichever of its modules is being loaded at that moment."""
    interrupted = f"""
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == {loading!r}:
            os.kill(os.getpid(), signal.SIGINT)

assert {loading!r} not in sys.modules
sys.meta_path.insert(0, Interrupting())
sys.argv[1:] = ["ls", "--store", {str(tmp_path / "a.db")!r}]
from holdfast.__main__ import main

main()
"""
    done = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "Error: interrupted; nothing was left half-written\n"


def test_main_is_the_group():
    """The entry point of the package is this group."""
    assert list(command.list_commands(click.Context(command))) == list(COMMAND_HELP)
