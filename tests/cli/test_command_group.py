"""The command group: help, names, exit codes, and what it imports."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import click
import pytest

from holdfast.cli import COMMAND_HELP, LazyCommandGroup, get_command_module, holdfast_command


def load_command(name: str) -> click.Command:
    loaded_command: click.Command = getattr(import_module(get_command_module(name)), f"{name}_command")
    return loaded_command


def list_subcommands() -> list[tuple[str, ...]]:
    out: list[tuple[str, ...]] = []
    for name in COMMAND_HELP:
        loaded_command = load_command(name)
        out += (
            [(name, inner) for inner in loaded_command.commands]
            if isinstance(loaded_command, click.Group)
            else [(name,)]
        )
    return out


def test_holdfast_alone_prints_help_with_first_steps(run):
    """``holdfast`` alone prints its help with four first commands, and that is no error."""
    result = run()
    assert result.exit_code == 0
    assert result.stdout.count("\n    holdfast ") == 4


def test_version_prints_one_line(run):
    """``--version`` prints one line with the name."""
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("holdfast ")


def test_help_imports_only_click():
    """The help page imports no command: neither rich, nor the store, nor replay."""
    check = (
        "import sys; from holdfast.cli import holdfast_command; holdfast_command(['--help'], standalone_mode=False);"
        "print([name for name in ('rich', 'sqlite3', 'holdfast.replay', 'bpe_openai') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("[]\n")


@pytest.mark.parametrize("name", COMMAND_HELP)
def test_command_list_uses_each_commands_first_sentence(name):
    """The line in the list of commands is the first sentence of the command's own help."""
    assert (load_command(name).help or "").startswith(COMMAND_HELP[name].split(":")[0].rstrip("."))


@pytest.mark.parametrize("names", list_subcommands(), ids=" ".join)
def test_every_command_has_an_example_and_json(run, names):
    """Every command shows an example in its help, and accepts ``--json``."""
    help_text = run(*names, "--help").stdout
    assert f"  holdfast {' '.join(names)}" in help_text or "| holdfast lint" in help_text
    assert "--json" in help_text


def test_unknown_command_suggests_the_nearest(run):
    """A mistyped command exits with 2 and suggests the nearest one."""
    result = run("replya")
    assert result.exit_code == 2
    assert "replay" in result.stderr


def test_command_group_lets_a_bug_raise():
    """Only input and system errors become messages; a bug keeps its traceback."""

    @click.command()
    def broken() -> None:
        raise ZeroDivisionError

    group = LazyCommandGroup("holdfast")
    group.get_command = lambda _ctx, _name: broken  # type: ignore[method-assign]
    group.resolve_command = lambda _ctx, args: ("ls", broken, args[1:])  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        group(["ls"], standalone_mode=False)


@pytest.mark.parametrize("loading", ["click", "holdfast.cli", "holdfast.cli.commands.ls", "msgspec", "sqlite3"])
def test_interrupt_while_modules_load_exits_130(loading, tmp_path):
    """^C prints one line and exits with 130, whichever module is being imported."""
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
    result = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr == "Error: interrupted; nothing was left half-written\n"


def test_main_is_the_command_group():
    """The package's entry point is this group."""
    assert list(holdfast_command.list_commands(click.Context(holdfast_command))) == list(COMMAND_HELP)
