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
from msgspec.structs import asdict

from holdfast.cli import COMMAND_HELP
from holdfast.cli import command as program
from holdfast.cli.commands.policy import POLICY_DESCRIPTIONS
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings import Settings, get_setting_origin
from holdfast.providers.rules import ALL_RULES

HERE = Path(__file__).parent
_PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_SECTION = re.compile(r"\s*# -- (.+?) -{3,}")
_FIELD = re.compile(r"\s{4}(\w+): Annotated\[")


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
        return ", ".join(f'`"{one}"`' for one in held) or "none"
    return f"{held:,}" if isinstance(held, int) and not isinstance(held, bool) else str(held)


# -- policies.md -------------------------------------------------------------------------------------------------------


def sections() -> Iterator[tuple[str, list[str]]]:
    """Yield the sections of ``Settings`` with the names in them, in order."""
    title, names = "", list[str]()
    for line in inspect.getsource(Settings).splitlines():
        section, found = _SECTION.match(line), _FIELD.match(line)
        if section:
            if names:
                yield title, names
            title, names = section[1], []
        elif found:
            names.append(found[1])
    yield title, names


def settings() -> str:
    """Return a table of settings for each section: default, meaning, origin."""
    ours = asdict(Settings())
    parts = []
    for title, names in sections():
        rows = [(f"`{name}`", value(ours[name]), get_setting_origin(name)) for name in names]
        parts.append(
            f"### {title[0].upper()}{title[1:]}\n\n" + table(("setting", "default", "meaning and origin"), rows)
        )
    return "\n".join(parts)


def presets() -> str:
    """Return for each preset what it does and the settings that differ from ours."""
    ours = asdict(Settings())
    parts = []
    for name, preset in PRESETS.items():
        rows = [
            (f"`{key}`", value(held), value(ours[key])) for key, held in asdict(preset).items() if held != ours[key]
        ]
        listed = table(("setting", "here", "`holdfast`"), rows) if rows else "All settings have their defaults.\n"
        parts.append(f"### `{name}`\n\n{POLICY_DESCRIPTIONS[name].capitalize()}.\n\n{listed}")
    return "\n".join(parts)


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
