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
from holdfast.cli import holdfast_command as program
from holdfast.planning.pipeline import Policy
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings_check import (
    PRESET_GROUP,
    get_setting,
    get_setting_origin,
    list_setting_groups,
    list_setting_names,
)
from holdfast.providers.dialects.provider_spec import ProviderSpec
from holdfast.providers.dialects.registry import PROVIDER_SPECS
from holdfast.providers.dialects.request_provider import find_request_provider
from holdfast.providers.dialects.requirements.requirement import Requirement
from holdfast.providers.registry import API_SPECS, get_api_dialect
from holdfast.providers.rules.rule import get_evidence_level
from holdfast.providers.rules.validate import ALL_RULES

HERE = Path(__file__).parent
OUR_POLICY = "holdfast"
_ORIGINS = {
    "[O]": "OpenClaw",
    "[P]": "pi",
    "[C]": "opencode",
    "[K]": "Claude Code",
    "[A]": "common pattern",
    "[H]": "Holdfast",
}
"""Names for the marks in the descriptions of settings."""
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


SETTINGS_HEAD = ("setting", "default", "meaning and reason", "number from")


def settings() -> str:
    """Return a table for each group of settings: default, meaning, origin."""
    ours, parts = Policy(), []
    for group, names in list_setting_groups().items():
        rows = [setting_row(f"{group}.{name}", ours) for name in names]
        about = inspect.getdoc(type(getattr(ours.settings, group)))
        parts.append(f"### `{group}`\n\n{about}\n\n{table(SETTINGS_HEAD, rows)}")
    return "\n".join(parts)


def setting_row(name: str, policy: Policy) -> tuple[str, str, str, str]:
    """Return the row of one setting, by its dotted name, as ``policy`` has it."""
    default = value(get_setting(name, policy.settings, policy.rules))
    marks, meaning = split_origin(get_setting_origin(name, type(policy.rules)))
    return (f"`{name}`", default, meaning, ", ".join(_ORIGINS[mark] for mark in marks))


def split_origin(description: str) -> tuple[list[str], str]:
    """Split a description into its leading marks, such as ``[O]``, and its text; marks in the text become names."""
    found = re.match(r"(?:\[\w\])*", description)
    assert found is not None
    text = description[found.end() :].strip()
    for mark, name in _ORIGINS.items():
        text = text.replace(mark, name)
    return re.findall(r"\[\w\]", found[0]), text


def presets() -> str:
    """Return the settings that all presets change, then for each preset its own changes and settings."""
    shared = find_shared_changes()
    ours, any_preset = Policy(), Policy.preset("pi")
    shared_rows = [changed_row(name, any_preset, ours) for name in shared]
    head = ("setting", "every preset", "`holdfast`")
    parts = [f"### Changed by every preset\n\nThe tables below do not repeat these.\n\n{table(head, shared_rows)}"]
    for name, preset in PRESETS.items():
        about = preset.about[0].upper() + preset.about[1:]
        parts.append(f"### `{name}`\n\n{about}.\n\n{preset_tables(Policy.preset(name), shared)}")
    return "\n".join(parts)


def find_shared_changes() -> list[str]:
    """Return the settings for which all presets have the same value, other than our default."""
    ours = Policy()
    others = [Policy.preset(name) for name in PRESETS if name != OUR_POLICY]
    shared = []
    for name in list_setting_names():
        values = [get_setting(name, policy.settings, policy.rules) for policy in others]
        is_read = not any(name in policy.rules.unused_settings for policy in others)
        is_same = all(found == values[0] for found in values)
        if is_read and is_same and values[0] != get_setting(name, ours.settings, ours.rules):
            shared.append(name)
    return shared


def changed_row(name: str, policy: Policy, ours: Policy) -> tuple[str, str, str]:
    """Return the row of a setting with its value in ``policy`` and in ours."""
    held, default = (get_setting(name, one.settings, one.rules) for one in (policy, ours))
    return f"`{name}`", value(held), value(default)


def preset_tables(policy: Policy, shared: Sequence[str]) -> str:
    """Return the tables of a preset without the ``shared`` settings, or a sentence for our own policy."""
    ours, names = Policy(), list_setting_names(type(policy.rules))
    differing = []
    for name in names:
        if name.startswith(f"{PRESET_GROUP}.") or name in policy.rules.unused_settings or name in shared:
            continue
        row = changed_row(name, policy, ours)
        if row[1] != row[2]:
            differing.append(row)
    own = [setting_row(name, policy) for name in names if name.startswith(f"{PRESET_GROUP}.")]
    parts = [table(("setting", "this preset", "`holdfast`"), differing)] if differing else []
    if own:
        parts.append(table(("setting that only it has", *SETTINGS_HEAD[1:]), own))
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
        parts.append(
            f"## `{api}`\n\n" + table(("rule", "what must be true", "models", "level", "how we know", "source"), rows)
        )
    return "\n".join(parts)


# -- providers.md ------------------------------------------------------------------------------------------------------

REQUIREMENTS_HEAD = ("rule", "what a request must keep", "models", "how it is mended", "level", "how we know", "source")


def providers() -> str:
    """Return for each provider how it is recognized, and a table of what it asks over each API."""
    parts = []
    for spec in PROVIDER_SPECS.values():
        parts.append(f"## {spec.title}\n\n`--provider {spec.name}`. {describe_signs(spec)}\n")
        for api in spec.rules_by_api:
            rows = requirement_rows(spec, api)
            rules_table = f":\n\n{table(REQUIREMENTS_HEAD, rows)}" if rows else ": no rules of its own.\n"
            parts.append(API_SPECS[api].display_name + rules_table)
    return "\n".join(parts)


def describe_signs(spec: ProviderSpec) -> str:
    """Describe how the requests of a provider are recognized."""
    signs = []
    if spec.hosts:
        signs.append(f"hosts {', '.join(f'`{host}`' for host in spec.hosts)}")
    if spec.ports:
        signs.append(f"port {', '.join(map(str, spec.ports))} of this machine or its network")
    if spec.model_pattern:
        signs.append(f"models `{spec.model_pattern}`")
    if spec.body_sign[0]:
        signs.append(f"`{spec.body_sign[0]}: {spec.body_sign[1]}…` in the body")
    return f"Recognized by: {'; '.join(signs)}." if signs else "Recognized by its name in an option or setting alone."


def requirement_rows(spec: ProviderSpec, api: str) -> list[tuple[str, ...]]:
    """Return a row for each requirement, with the example models that it holds for."""
    requirements: dict[tuple[str, str], Requirement] = {}
    mending_by_key: dict[tuple[str, str], str] = {}
    models_by_key: dict[tuple[str, str], list[str]] = {}
    for model in spec.example_models:
        dialect = get_api_dialect(api, model, find_request_provider(api, model, named=spec.name))
        model_rules = spec.rules_by_api[api](model.lower())
        for requirement in model_rules.requirements:
            key = (requirement.rule, requirement.full_text)
            requirements[key] = requirement
            mending_by_key[key] = model_rules.describe_mending(requirement, dialect)
            models_by_key.setdefault(key, []).append(model)
    rows: list[tuple[str, ...]] = []
    for key, requirement in requirements.items():
        models = models_by_key[key]
        names = "all"
        if len(models) < len(spec.example_models):
            names = ", ".join(f"`{model}`" for model in models)
        level = get_evidence_level(requirement.evidence)
        name = f"`{spec.name}.{requirement.rule}`"
        rows.append((name, key[1], names, mending_by_key[key], level, requirement.evidence, requirement.source))
    return rows


# -- pages -------------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "presets": presets,
    "providers": providers,
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
