"""``holdfast policy``: list the policies, and show each setting with its origin."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import click
import msgspec

from holdfast.cli.output.terminal import make_console, make_json_option, print_json, print_table, print_wrapped
from holdfast.cli.reports.constants_table import list_constants
from holdfast.config import Configuration, load_configuration
from holdfast.messages.text.single_line import clean_single_line
from holdfast.planning.pipeline import Policy
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings_check import PRESET_GROUP, get_setting, get_setting_origin, list_setting_names

SHOW_EXAMPLES = """\
\b
Examples:
  holdfast policy show holdfast
  holdfast policy show pi --json
"""
_MAX_VALUE_WIDTH = 30
"""Columns of a value; longer ones are folded."""
LIST_EXAMPLES = """\
\b
Examples:
  holdfast policy list
  holdfast policy list --json
"""


class _PolicyGroup(click.Group):
    """The commands about policies; naming a policy alone fails with the command to use."""

    def resolve_command(
        self,
        ctx: click.Context,
        args: list[str],
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that ``args`` begin with; for an unknown one, fail with the command to use."""
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            if name in PRESETS:
                hint = f"use: holdfast policy show {name}"
            else:
                hint = f"choose from {', '.join(self.commands)}"
            ctx.fail(f"holdfast policy has no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)


@click.group("policy", cls=_PolicyGroup, invoke_without_command=True, epilog=SHOW_EXAMPLES)
@click.pass_context
def policy_command(ctx: click.Context) -> None:
    """List the policies, and show each setting with its origin."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@policy_command.command("list", epilog=LIST_EXAMPLES)
@make_json_option("names and what they do")
def list_policies(*, as_json: bool) -> None:
    """List the policies."""
    if as_json:
        print_json([{"policy": name, "about": preset.about} for name, preset in PRESETS.items()])
        return
    from rich.text import Text

    out = make_console()
    for name, preset in PRESETS.items():
        print_wrapped(out, Text(f"{name:12}  {preset.about}"))


@policy_command.command("show", epilog=SHOW_EXAMPLES)
@click.argument("name")
@make_json_option("every setting and constant with its value and origin")
def show_policy(name: str, *, as_json: bool) -> None:
    """Show every setting that a policy reads, and every constant: its value, the default where it differs, its origin.

    Origins: [O] OpenClaw, [P] pi, [C] opencode, [K] Claude Code, [A] the auto-compaction pattern, [H] our own. A
    setting changed in holdfast.toml is shown with its current value and the file that sets it.
    """
    user_configuration = load_configuration()
    rows = list_settings(name, user_configuration)
    if as_json:
        constant_records = [msgspec.to_builtins(constant) for constant in list_constants()]
        print_json(
            {
                "policy": name,
                "about": PRESETS[name].about,
                "settings": rows,
                "constants": constant_records,
            }
        )
    else:
        _print_policy(name, rows, user_configuration.build_policy(name).describe_raised_reserves())


def list_settings(name: str, configuration: Configuration) -> list[dict[str, Any]]:
    """List every setting that policy ``name`` reads, with its origin and the file that changed it.

    Each has its value in force, in the preset, and in our own policy (None if that lacks the setting).
    """
    policy = configuration.build_policy(name)
    preset = Policy.preset(name)
    ours = Policy()
    rules_type = type(preset.rules)
    changes = configuration.find_overrides(name)
    rows = []
    for setting in list_setting_names(rules_type):
        group = setting.partition(".")[0]
        if {setting, group} & preset.rules.unused_settings:
            continue
        if group == PRESET_GROUP:
            our_value = None
        else:
            our_value = get_setting(setting, ours.settings, ours.rules)
        override = changes.get(setting)
        changed_by = ""
        if override is not None:
            changed_by = f"{override.file} {override.table_header}"
        rows.append(
            {
                "setting": setting,
                "group": group,
                "value": msgspec.to_builtins(get_setting(setting, policy.settings, policy.rules)),
                "preset": msgspec.to_builtins(get_setting(setting, preset.settings, preset.rules)),
                "holdfast": msgspec.to_builtins(our_value),
                "origin": get_setting_origin(setting, rules_type),
                "changed_by": changed_by,
            }
        )
    return rows


# -- in words ----------------------------------------------------------------------------------------------------------


def _print_policy(name: str, rows: list[dict[str, Any]], notes: Sequence[str]) -> None:
    from rich.text import Text

    out = make_console()
    out.print(Text.assemble((name, "bold"), f"  {PRESETS[name].about}"))
    for group, group_rows in groupby(rows, key=lambda row: row["group"]):
        out.print(Text(f"\n{group}", style="bold"))
        cells = [_make_setting_row(row) for row in group_rows]
        print_table(out, _make_settings_table(("setting", "value", "default", "origin"), cells))
    values = {row["setting"]: row["value"] for row in rows}
    if (limit := values["history.max_turns"]) and values["history.hysteresis"]:
        out.print(Text(f"\nshows between {max(1, limit // 2)} and {limit} user turns (history.hysteresis)"))
    for note in notes:
        print_wrapped(out, Text(f"\n{note}"))
    out.print(Text("\nConstants, the same for every policy", style="bold"))
    constant_rows = []
    for constant in list_constants():
        constant_rows.append((constant.name, _format_value(constant.value), constant.module, constant.about))
    print_table(out, _make_settings_table(("name", "value", "module", "meaning"), constant_rows))


def _make_setting_row(row: dict[str, Any]) -> tuple[str, ...]:
    # The rules of a preset have no counterpart in our policy to compare with.
    default = ""
    if row["group"] != PRESET_GROUP and row["value"] != row["holdfast"]:
        default = _format_value(row["holdfast"])
    about = row["origin"]
    if row["changed_by"]:
        about = f"changed from {_format_value(row['preset'])} by {clean_single_line(row['changed_by'])}; {about}"
    return row["setting"], _format_value(row["value"]), default, about


def _make_settings_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(head[0], no_wrap=True)
    table.add_column(head[1], justify="right", overflow="fold", max_width=_MAX_VALUE_WIDTH)
    table.add_column(head[2], justify="right", style="dim", overflow="fold", max_width=_MAX_VALUE_WIDTH)
    table.add_column(head[3], style="dim")
    for first, value, third, about in rows:
        differs = "bold" if third and head[2] == "default" else ""
        table.add_row(Text(first), Text(value, style=differs), Text(third), Text(about))
    return table


def _format_value(value: object) -> str:
    """Format a setting's value; empty texts and collections become ``-``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(_format_value(item) for item in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_format_value(item)}" for key, item in value.items()) or "-"
    return clean_single_line(str(value)) or "-"
