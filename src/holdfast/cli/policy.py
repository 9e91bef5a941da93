"""``holdfast policy``: the policies there are, and each of their numbers."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast.cli.terminal import console, json_option, say_json
from holdfast.policy.pipeline import Policy
from holdfast.policy.presets import PRESETS
from holdfast.policy.settings import Settings, origin

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
LIST_EXAMPLES = """\
\b
Examples:
  holdfast policy list
  holdfast policy list --json
"""


@click.group("policy", invoke_without_command=True, epilog=SHOW_EXAMPLES)
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
    for name in PRESETS:
        click.echo(f"{name:12}  {ABOUT.get(name, '')}")


@command.command("show", epilog=SHOW_EXAMPLES)
@click.argument("name")
@json_option("every setting with its value and origin")
def show(name: str, *, as_json: bool) -> None:
    """Show every setting of a policy: its value, whether it differs from ours, and where the number came from.

    Origins: [O] OpenClaw, [P] pi, [C] opencode, [K] Claude Code, [A] the auto-compaction pattern, [H] ours.
    """
    rows = settings_of(name)
    if as_json:
        say_json({"policy": name, "about": ABOUT.get(name, ""), "settings": rows})
    else:
        _say(name, rows)


def settings_of(name: str) -> list[dict[str, Any]]:
    """Return every setting of policy ``name`` with its value, ours, and the origin of the number."""
    own = msgspec.structs.asdict(Policy.preset(name).settings)
    ours = msgspec.structs.asdict(Settings())
    return [
        {"setting": key, "value": value, "holdfast": ours[key], "origin": origin(key)} for key, value in own.items()
    ]


def _say(name: str, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("setting", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("ours", justify="right", no_wrap=True, style="dim")
    table.add_column("origin", style="dim")
    for row in rows:
        other = row["value"] != row["holdfast"]
        value = Text(_written(row["value"]), style="bold" if other else "")
        ours = Text(_written(row["holdfast"]) if other else "")
        table.add_row(Text(row["setting"]), value, ours, Text(row["origin"]))
    out = console()
    out.print(Text.assemble((name, "bold"), f"  {ABOUT.get(name, '')}\n"))
    out.print(table)
    limit = next(row["value"] for row in rows if row["setting"] == "history_turns")
    if limit:
        out.print(Text(f"\nbetween {max(1, limit // 2)} and {limit} user turns are shown (history_hysteresis)"))


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return f"{value:,}" if isinstance(value, int) else str(value)
