"""Write the parts of the pages that come from the code: settings, presets, commands, rules.

    uv run python docs/generate.py            write them anew
    uv run python docs/generate.py --check    exit 1 where a page is not up to date

A part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; what is around it is written by hand.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import dedent

import click

from holdfast.cli import COMMAND_HELP
from holdfast.cli import command as program
from holdfast.planning.pipeline import Policy
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings_check import (
    PRESET_GROUP,
    get_setting,
    get_setting_origin,
    list_setting_groups,
    list_setting_names,
)
from holdfast.providers.rules.validate import ALL_RULES

HERE = Path(__file__).parent
_PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


# -- tables ------------------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def value(held: object) -> str:
    """Return a setting's value as one would write it in Python, thousands set apart."""
    if isinstance(held, str):
        return f'`"{held}"`'
    if isinstance(held, tuple):
        return ", ".join(map(value, held)) or "none"
    return f"{held:,}" if isinstance(held, int) and not isinstance(held, bool) else str(held)


# -- policies.md -------------------------------------------------------------------------------------------------------


def settings() -> str:
    """Return a table for each group of settings: default, meaning, origin."""
    ours, parts = Policy(), []
    for group, names in list_setting_groups().items():
        rows = [setting_row(f"{group}.{name}", ours) for name in names]
        about = inspect.getdoc(type(getattr(ours.settings, group)))
        parts.append(f"### `{group}`\n\n{about}\n\n{table(('setting', 'default', 'origin, meaning, reason'), rows)}")
    return "\n".join(parts)


def setting_row(name: str, policy: Policy) -> tuple[str, str, str]:
    """Return the row of one setting, by its dotted name, as ``policy`` has it."""
    return (
        f"`{name}`",
        value(get_setting(name, policy.settings, policy.rules)),
        get_setting_origin(name, type(policy.rules)),
    )


def presets() -> str:
    """Return for each preset what it does, the settings that differ from ours, and those that only it has."""
    parts = []
    for name, preset in PRESETS.items():
        parts.append(f"### `{name}`\n\n{preset.about.capitalize()}.\n\n{preset_tables(Policy.preset(name))}")
    return "\n".join(parts)


def preset_tables(policy: Policy) -> str:
    """Return the tables of a preset, or a sentence where it is ours."""
    ours, names = Policy(), list_setting_names(type(policy.rules))
    differing = []
    for name in names:
        if name.startswith(f"{PRESET_GROUP}.") or name in policy.rules.unused_settings:
            continue
        held, default = (get_setting(name, one.settings, one.rules) for one in (policy, ours))
        if held != default:
            differing.append((f"`{name}`", value(held), value(default)))
    own = [setting_row(name, policy) for name in names if name.startswith(f"{PRESET_GROUP}.")]
    parts = [table(("setting", "here", "`holdfast`"), differing)] if differing else []
    if own:
        parts.append(table(("setting of its own", "default", "origin, meaning, reason"), own))
    if policy.rules.unused_settings:
        unused = ", ".join(f"`{name}`" for name in sorted(policy.rules.unused_settings))
        parts.append(f"It does not read {unused}.\n")
    return "\n".join(parts) or "All settings have their defaults.\n"


# -- cli.md ------------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Return a section for each command: what it does, arguments, options, examples."""
    context = click.Context(program, info_name="holdfast", **program.context_settings)
    parts = []
    for name in COMMAND_HELP:
        found = program.get_command(context, name)
        assert found is not None
        parts += list(one_command(f"holdfast {name}", found, context))
    return "\n".join(parts)


def one_command(name: str, found: click.Command, parent: click.Context) -> Iterator[str]:
    """Yield the section of a command, then those of the commands in it.

    ``parent`` carries the settings of the whole program: click keeps the help option that a command is first asked
    for, so a context without them would take ``-h`` away from it for the rest of the process.
    """
    context = click.Context(found, parent=parent, info_name=found.name)
    rows = [(f"`{_names(one)}`", _about(one)) for one in found.params if isinstance(one, click.Option)]
    inside = sorted(found.commands.items()) if isinstance(found, click.Group) else []
    wanted = "COMMAND" if inside else " ".join(found.collect_usage_pieces(context)[1:])
    usage = f"{name}{' [OPTIONS]' if rows else ''} {wanted}".rstrip()
    more, _, examples = (found.epilog or "").replace("\b\n", "").rpartition("Examples:\n")
    text = "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(found.help or "").split("\n\n"))
    options = table(("option", "what it does"), rows) + "\n" if rows else ""
    more = f"```\n{more.strip()}\n```\n\n" if more.strip() else ""
    yield f"## {name}\n\n```\n{usage}\n```\n\n{text}\n\n{options}{more}```sh\n{dedent(examples).strip()}\n```\n"
    for inner, command in inside:
        yield from one_command(f"{name} {inner}", command, context)


def _names(option: click.Option) -> str:
    names = ", ".join(option.opts) + "".join(f" / {name}" for name in option.secondary_opts)
    if option.is_flag:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} {'|'.join(map(str, option.type.choices))}"
    return f"{names} {option.metavar or ('N' if 'integer' in option.type.name else option.type.name.upper())}"


def _about(option: click.Option) -> str:
    default = f" Default: `{option.default}`." if option.show_default else ""
    return re.sub(r"\[default: (.+?)\]", r"Default: \1.", option.help or "") + default


# -- lint-rules.md -----------------------------------------------------------------------------------------------------


def rules() -> str:
    """Return a table of rules for each API."""
    parts = []
    for api in dict.fromkeys(rule.name.partition(".")[0] for rule in ALL_RULES):
        own = [rule for rule in ALL_RULES if rule.name.startswith(f"{api}.")]
        rows = [(f"`{r.name}`", r.text, r.models or "all", r.level, r.evidence, r.source) for r in own]
        parts.append(f"## `{api}`\n\n" + table(("rule", "what must be true", "models", "level", "known", "from"), rows))
    return "\n".join(parts)


# -- pages -------------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "presets": presets,
    "rules": rules,
    "settings": settings,
}


def filled(page: str) -> str:
    """Return ``page`` with every generated part made anew."""
    return _PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}", page)


def stale() -> dict[Path, str]:
    """Return the pages that are not up to date, with what they should be."""
    pages = {path: path.read_text("utf-8") for path in sorted(HERE.glob("*.md"))}
    return {path: new for path, page in pages.items() if (new := filled(page)) != page}


def main() -> int:
    """Write the pages, or with ``--check`` only say which are not up to date."""
    checking = "--check" in sys.argv[1:]
    found = stale()
    for path, page in found.items():
        print(f"{path.name} is not up to date" if checking else f"{path.name} written")
        if not checking:
            path.write_text(page, "utf-8")
    return int(checking and bool(found))


if __name__ == "__main__":
    sys.exit(main())
