"""The command line. Importing this loads click alone; a command's module is loaded when the command is called."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import TextIO

import click

from holdfast.cli.output.ascii_fallback import ASCII_FALLBACK

COMMAND_HELP = {
    "demo": "Work through one long task in a small window: without Holdfast, then with it.",
    "run": "Start CLIENT with a proxy of its own, so that it never outgrows its window.",
    "serve": "Serve the proxy: clients that are pointed at it never outgrow their window.",
    "enable": "Keep a proxy running as a service, and point your clients at it: shown before it is written.",
    "disable": "Undo what holdfast enable did: each file is as it was before.",
    "status": "Show the proxies of holdfast enable: running or not, since when, for which clients.",
    "watch": "Watch the sessions that pass: how full each is, what it cost, what was decided last.",
    "inspect": "Show sessions in a browser: what the model saw, what was reduced, what it cost.",
    "replay": "Run a recorded session through policies: cost, cache, recall.",
    "import": "Import recorded sessions of other tools into the store.",
    "ls": "List the sessions of the store.",
    "show": "Show a session, one line per message, with the decisions about it.",
    "context": "Show what the next request of a session would hold.",
    "why": "Explain what happened to a message: what was decided, and how to get it back.",
    "diff": "Show what the model saw at two moments: replaced, hidden, new and restored messages.",
    "undo": "Undo a decision: the messages it had reduced are shown in full again.",
    "compact": "Compact a session now: a summary replaces its older turns.",
    "branch": "List the branches of a session, or go on from another entry.",
    "stats": "Report how large sessions got, what was saved, and what that cost in cache.",
    "recall": "Read back texts stored away in a session, or any of its messages.",
    "mcp": "Serve recall and search to a client of the Model Context Protocol.",
    "export": "Write a session in the format of a tool, or as a request.",
    "repair": "Repair damaged session files of other tools, or the store.",
    "rm": "Remove sessions from the store.",
    "gc": "Remove stored texts that no session uses any more.",
    "store": "Copy, check, measure or migrate a whole store.",
    "agent": "Let a model work on TASK in a folder, with tools for files, search and the shell.",
    "lint": "Check whether the provider would accept a request.",
    "fix": "Fix a request so that the provider accepts it, and say what was changed.",
    "classify": "Classify a provider's error: an overflow, a rate limit, or something else.",
    "provider": "Serve a strict test provider that refuses what real ones refuse.",
    "policy": "List the policies, and show each setting with its origin.",
    "doctor": "Check this installation: store, configuration, tools found.",
}
"""The commands with their one-line help, in the order of the help page."""

HELP_EPILOG = """\
First things to do:

\b
  holdfast demo                       a long task in a small window, on this machine alone
  holdfast run --observe -- claude    your own client, looked at; without --observe it never outgrows its window
  holdfast replay --latest            your newest session of Claude Code, Codex, opencode…
  holdfast import FILE                keep a session; then: holdfast ls, holdfast context ID
"""


def get_command_module(name: str) -> str:
    """Return the module of the command called ``name``."""
    module_name = name
    if name == "import":
        # ``import`` is a keyword of Python.
        module_name = "import_"
    return f"holdfast.cli.commands.{module_name}"


class LazyCommandGroup(click.Group):
    """A group that loads a command's module when the command is called, and reports all errors in one place."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return list(COMMAND_HELP)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command called ``cmd_name``, its module loaded."""
        if cmd_name not in COMMAND_HELP:
            return None
        module = import_module(get_command_module(cmd_name))
        subcommand: click.Command = getattr(module, f"{cmd_name}_command")
        return subcommand

    def resolve_command(
        self,
        ctx: click.Context,
        args: list[str],
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that ``args`` begin with; for an unknown one, fail with the nearest names."""
        name = args[0]
        if name not in COMMAND_HELP and not name.startswith("-"):
            near = get_close_matches(name, COMMAND_HELP)
            if near:
                hint = f"did you mean {' or '.join(near)}?"
            else:
                hint = f"choose from {', '.join(COMMAND_HELP)}"
            ctx.fail(f"there is no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMAND_HELP.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line, which may print a page of help."""
        # Here and not in main(): printing the help already needs the fallback, and tests call the group directly.
        _allow_ascii_fallback(sys.stdout)
        _allow_ascii_fallback(sys.stderr)
        with _report_errors():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; expected errors end in a message and an exit code."""
        with _report_errors():
            return super().invoke(ctx)


@contextmanager
def _report_errors() -> Iterator[None]:
    """Turn expected errors of the block into a message and an exit code; a fault of ours keeps its traceback."""
    try:
        yield
    except click.ClickException as error:
        from holdfast.cli.output.errors import cut_long_words

        # Messages may quote input of any length. The attribute is final in click's types, hence ``vars``.
        vars(error)["message"] = cut_long_words(error.message)
        raise
    except (click.exceptions.Exit, click.Abort):
        raise
    except (Exception, KeyboardInterrupt) as error:
        from holdfast.cli.output.errors import translate_error

        raise translate_error(error) from error


def _allow_ascii_fallback(stream: TextIO) -> None:
    """Make ``stream`` write a plainer sign for any that its encoding lacks, instead of failing."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=ASCII_FALLBACK)


@click.group(
    "holdfast",
    cls=LazyCommandGroup,
    invoke_without_command=True,
    epilog=HELP_EPILOG,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="holdfast", prog_name="holdfast", message="%(prog)s %(version)s")
@click.pass_context
def holdfast_command(ctx: click.Context) -> None:
    """Keep long agent conversations inside the context window: valid, cheap for the cache, nothing lost."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """Run the command line and exit: 0 fine, 1 something was found, 2 wrong use, 130 interrupted."""
    holdfast_command(prog_name="holdfast")
