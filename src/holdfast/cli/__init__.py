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
    "replay": "Run a recorded session through policies: cost, cache, recall.",
    "import": "Take recorded sessions of other tools into the store.",
    "ls": "List the sessions of the store.",
    "show": "Show a session, a message a line, with what was decided about it.",
    "context": "Show what the next request of a session would hold.",
    "why": "Tell what happened to a message: what was decided, and how to get it back.",
    "diff": "Show what the model saw before and after: replaced, hidden, said, back.",
    "undo": "Take back a decision: what it had reduced is shown again.",
    "compact": "Compact a session now: its older turns give way to a summary.",
    "branch": "List the branches of a session, or go on from another entry.",
    "stats": "Tell how large conversations got, what was saved, and what that cost in cache.",
    "recall": "Read back what was stored away in a session, or anything that was said in it.",
    "mcp": "Serve recall and search to a client of the Model Context Protocol.",
    "export": "Write a session in the form of a tool, or as a request.",
    "repair": "Mend damaged session files of other tools, or the store.",
    "rm": "Remove sessions from the store.",
    "gc": "Remove texts that no session names any more.",
    "agent": "Let a model work on TASK in a folder, with tools for files, search and the shell.",
    "lint": "Check whether a request is one that the provider takes.",
    "fix": "Repair a request: what was changed, and why.",
    "classify": "Tell what a provider's error is: an overflow, a rate limit, or else.",
    "provider": "Serve a strict provider: it refuses what real ones refuse.",
    "policy": "Show the policies there are, and each of their numbers.",
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
    module_name = "import_" if name == "import" else name  # ``import`` is a keyword of Python
    return f"holdfast.cli.commands.{module_name}"


class LazyCommandGroup(click.Group):
    """A group whose commands are loaded when they are called, and whose errors are told in one place."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return list(COMMAND_HELP)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command called ``cmd_name``, its module loaded."""
        if cmd_name not in COMMAND_HELP:
            return None
        module = import_module(get_command_module(cmd_name))
        subcommand: click.Command = module.command
        return subcommand

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that ``args`` begin with; one that is not there is an error with the nearest names."""
        name = args[0]
        if name not in COMMAND_HELP and not name.startswith("-"):
            near = get_close_matches(name, COMMAND_HELP)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(COMMAND_HELP)}"
            ctx.fail(f"no command is called {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMAND_HELP.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line, which may print a page of help."""
        _allow_ascii_fallback(sys.stdout)
        _allow_ascii_fallback(sys.stderr)
        with _report_errors():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; whatever goes wrong outside of this program ends in a message and an exit code."""
        with _report_errors():
            return super().invoke(ctx)


@contextmanager
def _report_errors() -> Iterator[None]:
    """Let what goes wrong inside end in a message and an exit code."""
    try:
        yield
    except click.ClickException as error:
        from holdfast.cli.output.errors import cut_long_words

        vars(error)["message"] = cut_long_words(error.message)  # click lets nobody assign it
        raise
    except (click.exceptions.Exit, click.Abort):
        raise
    except (Exception, KeyboardInterrupt) as error:
        from holdfast.cli.output.errors import translate_error

        raise translate_error(error) from error


def _allow_ascii_fallback(stream: TextIO) -> None:
    """Let ``stream`` show a plainer sign for what its encoding cannot."""
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
def command(ctx: click.Context) -> None:
    """Keep long agent conversations inside the context window: valid, cheap for the cache, nothing lost."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """Run the command line and exit: 0 fine, 1 something was found, 2 wrong use, 130 interrupted."""
    command(prog_name="holdfast")
