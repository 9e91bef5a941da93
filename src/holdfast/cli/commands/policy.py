"""``holdfast policy``: the policies there are, and each of their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import click
import msgspec
from msgspec.structs import asdict

from holdfast.cli.output.terminal import clean, console, json_option, say_json, say_table, say_whole
from holdfast.cli.reports.settings_table import constants, groups
from holdfast.config import Configuration, configuration
from holdfast.planning.pipeline import Policy
from holdfast.planning.presets.presets import PRESETS
from holdfast.planning.presets.triggers import find_raised_reserves
from holdfast.planning.settings import Settings, origin

ABOUT = {
    "append-only": "nothing is ever taken away; the baseline for cost",
    "sliding": "the oldest messages go when the window is full; nothing stands for them",
    "opencode": "as opencode does it: the last turns stay, a model summarises the rest",
    "pi": "as pi does it: 20,000 tokens stay, a model summarises the rest",
    "claude-code": "as Claude Code does it: a model summarises everything, recent files are read again",
    "openclaw": "as OpenClaw does it: pruned by the cache's lifetime, then a model summarises",
    "holdfast": "ours: decisions at epoch breaks, an extract made from the log without a model",
}
"""What each policy does, in a line."""
SHOW_EXAMPLES = """\
\b
Examples:
  holdfast policy show holdfast
  holdfast policy show pi --json
"""
_WIDEST = 30
"""Columns of a value."""
LIST_EXAMPLES = """\
\b
Examples:
  holdfast policy list
  holdfast policy list --json
"""


class _Policies(click.Group):
    """The commands about policies; who names a policy alone is told how it is shown."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that ``args`` begin with; one that is not there is an error that says what to write."""
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            known = (
                f"write: holdfast policy show {name}" if name in PRESETS else f"there are: {', '.join(self.commands)}"
            )
            ctx.fail(f"no command of holdfast policy is called {name!r}; {known}")
        return super().resolve_command(ctx, args)


@click.group("policy", cls=_Policies, invoke_without_command=True, epilog=SHOW_EXAMPLES)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show the policies there are, and each of their numbers with its origin."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("list", epilog=LIST_EXAMPLES)
@json_option("names and what they do")
def list_(*, as_json: bool) -> None:
    """List the policies."""
    if as_json:
        say_json([{"policy": name, "about": ABOUT.get(name, "")} for name in PRESETS])
        return
    from rich.text import Text

    out = console()
    for name in PRESETS:
        say_whole(out, Text(f"{name:12}  {ABOUT.get(name, '')}"))


@command.command("show", epilog=SHOW_EXAMPLES)
@click.argument("name")
@json_option("every setting and constant with its value and origin")
def show(name: str, *, as_json: bool) -> None:
    """Show every setting of a policy and every constant: its value, ours where that differs, where it came from.

    Origins: [O] OpenClaw, [P] pi, [C] opencode, [K] Claude Code, [A] the auto-compaction pattern, [H] ours. A setting
    that holdfast.toml changes is shown as it is in force, with the file that says so.
    """
    found = configuration()
    rows = settings_of(name, found)
    if as_json:
        told = [msgspec.to_builtins(one) for one in constants()]
        say_json({"policy": name, "about": ABOUT.get(name, ""), "settings": rows, "constants": told})
    else:
        _say(name, rows, find_raised_reserves(found.policy(name).settings, Policy.preset(name).settings))


def settings_of(name: str, found: Configuration) -> list[dict[str, Any]]:
    """Return every setting of policy ``name``: the value in force, the preset's, ours, its origin, who changed it."""
    own, preset = (asdict(policy.settings) for policy in (found.policy(name), Policy.preset(name)))
    ours, changes = asdict(Settings()), found.changes(name)
    return [
        {
            "setting": key,
            "group": group,
            "value": msgspec.to_builtins(own[key]),
            "preset": msgspec.to_builtins(preset[key]),
            "holdfast": msgspec.to_builtins(ours[key]),
            "origin": origin(key),
            "changed_by": f"{changes[key].file} {changes[key].table}" if key in changes else "",
        }
        for group, keys in groups().items()
        for key in keys
    ]


# -- in words ----------------------------------------------------------------------------------------------------------


def _say(name: str, rows: list[dict[str, Any]], notes: Sequence[str]) -> None:
    from rich.text import Text

    out = console()
    out.print(Text.assemble((name, "bold"), f"  {ABOUT.get(name, '')}"))
    for group, own in groupby(rows, key=lambda row: row["group"]):
        out.print(Text(f"\n{group}", style="bold"))
        say_table(out, _table(("setting", "value", "ours", "origin"), [_row(row) for row in own]))
    held = {row["setting"]: row["value"] for row in rows}
    if (limit := held["history_turns"]) and held["history_hysteresis"]:
        out.print(Text(f"\nbetween {max(1, limit // 2)} and {limit} user turns are shown (history_hysteresis)"))
    for note in notes:
        say_whole(out, Text(f"\n{note}"))
    out.print(Text("\nConstants, the same for every policy", style="bold"))
    told = [(one.name, _written(one.value), one.module, one.about) for one in constants()]
    say_table(out, _table(("name", "value", "in", "what it is"), told))


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    other = row["value"] != row["holdfast"]
    about = row["origin"]
    if row["changed_by"]:
        about = f"changed from {_written(row['preset'])} by {clean(row['changed_by'])}; {about}"
    return row["setting"], _written(row["value"]), _written(row["holdfast"]) if other else "", about


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(head[0], no_wrap=True)
    table.add_column(head[1], justify="right", overflow="fold", max_width=_WIDEST)
    table.add_column(head[2], justify="right", style="dim", overflow="fold", max_width=_WIDEST)
    table.add_column(head[3], style="dim")
    for first, value, third, about in rows:
        differs = "bold" if third and head[2] == "ours" else ""
        table.add_row(Text(first), Text(value, style=differs), Text(third), Text(about))
    return table


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_written, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_written(one)}" for key, one in value.items()) or "-"
    return f"{value:,}" if isinstance(value, int) else clean(str(value)) or "-"
