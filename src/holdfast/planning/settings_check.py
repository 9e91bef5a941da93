"""The settings of a policy by their dotted names: what each may be, how some are changed, and what contradicts what.

A dotted name is ``compaction.trigger_share``, or ``preset.tail_tokens`` for a setting that only one policy has: those
are the fields of its rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from holdfast.errors import ConfigError
from holdfast.planning.extract.constants import (
    MIN_SUMMARY_SHARE,
    SUMMARY_DECISION_SHARE,
    SUMMARY_LEDGER_SHARE,
    SUMMARY_POINTER_SHARE,
)
from holdfast.planning.policy_rules import PolicyRules
from holdfast.planning.settings import Settings
from holdfast.state.codec.reading import convert_value

PRESET_GROUP = "preset"
"""Group of the settings that only one policy has."""
_MIN_SIMILARITY = 0.7
"""How alike a name must be to be suggested in another group: less alike ones are no help there."""


class SettingsProblem(Struct, frozen=True):
    """A contradiction, and the settings by their dotted names that are part of it."""

    settings: tuple[str, ...]
    why: str


# -- names -------------------------------------------------------------------------------------------------------------


@cache
def list_setting_groups(rules_type: type[PolicyRules] = PolicyRules) -> dict[str, tuple[str, ...]]:
    """Return the names of the settings in each group, in order; the group ``preset`` only where there are any."""
    groups = {group: kind.__struct_fields__ for group, kind in _get_group_types(rules_type).items()}
    return {group: names for group, names in groups.items() if names}


@cache
def list_setting_names(rules_type: type[PolicyRules] = PolicyRules) -> tuple[str, ...]:
    """Return the dotted names of all settings of a policy with such rules."""
    return tuple(f"{group}.{name}" for group, names in list_setting_groups(rules_type).items() for name in names)


def get_setting(name: str, settings: Settings, rules: PolicyRules) -> Any:
    """Return the value of the setting with the dotted ``name``."""
    group, _, field = name.partition(".")
    return getattr(_get_group(group, settings, rules), field)


def get_setting_origin(name: str, rules_type: type[PolicyRules] = PolicyRules) -> str:
    """Return the description of a setting: the origin of its default, what it does, and why."""
    metas = getattr(_get_setting_type(name, rules_type), "__metadata__", ())
    return next((meta.description for meta in metas if isinstance(meta, Meta) and meta.description), "")


def describe_unknown_setting(name: str, rules_type: type[PolicyRules] = PolicyRules) -> str:
    """Return what was probably meant by ``name``, which no setting is called, as the end of an error."""
    names = list_setting_names(rules_type)
    group, _, field = name.rpartition(".")
    near = get_close_matches(name, names)
    if not near:
        fields = {known.partition(".")[2]: known for known in names}
        near = [fields[match] for match in get_close_matches(field, fields, cutoff=_MIN_SIMILARITY)]
    if near:
        return f"did you mean {' or '.join(near)}?"
    groups = list_setting_groups(rules_type)
    if group in groups:
        return f"the group has: {', '.join(groups[group])}"
    return f"the groups are: {', '.join(groups)}; `holdfast policy show NAME` lists every setting"


@cache
def _get_group_types(rules_type: type[PolicyRules]) -> dict[str, type[Struct]]:
    return {**get_type_hints(Settings), PRESET_GROUP: rules_type}


@cache
def _get_field_types(kind: type[Struct]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _get_setting_type(name: str, rules_type: type[PolicyRules]) -> Any:
    group, _, field = name.partition(".")
    return _get_field_types(_get_group_types(rules_type)[group])[field]


# -- values ------------------------------------------------------------------------------------------------------------


def convert_setting_value(name: str, value: object, rules_type: type[PolicyRules] = PolicyRules) -> Any:
    """Return ``value`` as the setting with the dotted ``name`` holds it; ``ValueError`` says what is wrong with it."""
    try:
        return convert_value(value, _get_setting_type(name, rules_type))
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def describe_allowed_values(name: str, rules_type: type[PolicyRules] = PolicyRules) -> str:
    """Return which values a setting may have, and its description."""
    return f"{_describe_type(_get_setting_type(name, rules_type))} ({get_setting_origin(name, rules_type)})"


def change_settings(
    settings: Settings, rules: PolicyRules, changes: Mapping[str, object]
) -> tuple[Settings, PolicyRules]:
    """Return ``settings`` and ``rules`` with ``changes``, values by dotted names; ``ConfigError`` for a wrong one."""
    by_group: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        group, _, field = name.partition(".")
        by_group.setdefault(group, {})[field] = _convert_known_setting(name, value, type(rules))
    if preset_changes := by_group.pop(PRESET_GROUP, None):
        rules = replace(rules, **preset_changes)
    groups = {group: replace(getattr(settings, group), **values) for group, values in by_group.items()}
    return replace(settings, **groups), rules


def convert_all_settings(settings: Settings, rules: PolicyRules) -> tuple[Settings, PolicyRules]:
    """Return both, which somebody may have made by hand, with each value as it is held."""
    chosen: dict[str, object] = {}
    for group, fields in list_setting_groups(type(rules)).items():
        held, kind = _get_group(group, settings, rules), _get_group_types(type(rules))[group]
        default = _get_group(group, _DEFAULT_SETTINGS, _get_default_rules(type(rules)))
        if held is default:
            continue
        if not isinstance(held, kind):
            raise ConfigError(f"settings.{group} is of type {type(held).__name__}; give {kind.__name__}")
        for field in fields:
            value = getattr(held, field)
            if value is not getattr(default, field):
                chosen[f"{group}.{field}"] = value
    return change_settings(settings, rules, chosen) if chosen else (settings, rules)


_DEFAULT_SETTINGS = Settings()


@cache
def _get_default_rules(rules_type: type[PolicyRules]) -> PolicyRules:
    return rules_type()


def _get_group(group: str, settings: Settings, rules: PolicyRules) -> Any:
    return rules if group == PRESET_GROUP else getattr(settings, group)


def flatten_changes(changes: Mapping[str, object]) -> dict[str, object]:
    """Return settings by group as settings by their dotted names; ``ConfigError`` for what is no table of settings."""
    flat: dict[str, object] = {}
    for group, values in changes.items():
        if group not in (*Settings.__struct_fields__, PRESET_GROUP):
            raise ConfigError(f"there is no group of settings {group!r}; {describe_unknown_setting(group)}")
        if not isinstance(values, Mapping):
            raise ConfigError(f"{group} = {values!r}: give a dict of its settings, by name")
        flat |= {f"{group}.{name}": value for name, value in values.items()}
    return flat


def _convert_known_setting(name: str, value: object, rules_type: type[PolicyRules]) -> Any:
    if name not in list_setting_names(rules_type):
        raise ConfigError(f"there is no setting {name!r}; {describe_unknown_setting(name, rules_type)}")
    try:
        return convert_setting_value(name, value, rules_type)
    except ValueError as error:
        allowed = describe_allowed_values(name, rules_type)
        raise ConfigError(f"{name} = {value!r}: {error}; allowed is {allowed}") from error


def _describe_type(kind: Any) -> str:
    """Return in words which values a type takes."""
    metas = [meta for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, Meta)]
    kind = kind.__origin__ if metas else kind
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    if get_origin(kind) is tuple:
        return _describe_list_type(get_args(kind))
    if kind is bool:
        return "true or false"
    if kind in (int, float):
        return _describe_number_type(kind, metas)
    return "a name" if kind is str else "a table"


def _describe_number_type(kind: type, metas: list[Meta]) -> str:
    low = next((meta.ge for meta in metas if meta.ge is not None), 0)
    high = next((meta.le for meta in metas if meta.le is not None), None)
    if high == 1:
        return f"a number from {low} to 1"
    return f"a whole number, {low} or more" if kind is int else f"a number, {low} or more"


def _describe_list_type(inner: tuple[Any, ...]) -> str:
    if inner[-1] is not Ellipsis:
        return f"a list of {len(inner)}"
    item = _describe_type(inner[0])
    return "a list of names" if item == "a name" else f"a list, of which each is {item}"


# -- what contradicts what ---------------------------------------------------------------------------------------------


def check_settings(settings: Settings, rules: PolicyRules = PolicyRules()) -> tuple[SettingsProblem, ...]:
    """Return what contradicts what in the settings of a policy, each of which is possible alone."""
    return tuple(_find_contradictions(settings, rules))


def _find_contradictions(settings: Settings, rules: PolicyRules) -> Iterator[SettingsProblem]:
    own_pair = ("reserve.min", "reserve.max", "the reserve lies between them")
    for low, high, why in (own_pair, *rules.list_ordered_settings()):
        low_value, high_value = get_setting(low, settings, rules), get_setting(high, settings, rules)
        if low_value > high_value > 0:
            yield SettingsProblem(
                (low, high), f"{low} {low_value:,} is over {high} {high_value:,}: {why}; lower the first"
            )
    if settings.compaction.enabled and settings.compaction.goal_share:
        yield from _check_compaction_goal(settings, rules)
    yield from _check_summary_shares(settings)


def _check_compaction_goal(settings: Settings, rules: PolicyRules) -> Iterator[SettingsProblem]:
    """Yield what no compaction could meet, of the settings that the policy reads."""
    compaction = settings.compaction
    trigger, goal = compaction.trigger_share, compaction.goal_share
    trigger_name, goal_name, tail_name = "compaction.trigger_share", "compaction.goal_share", "compaction.tail_share"
    if trigger < goal and trigger_name not in rules.unused_settings:
        why = (
            f"{trigger_name} {trigger} is under {goal_name} {goal}: what a compaction may leave would trigger the next"
        )
        yield SettingsProblem((trigger_name, goal_name), f"{why}; set {goal_name} to {trigger} or less too")
    if compaction.tail_share + MIN_SUMMARY_SHARE > goal and tail_name not in rules.unused_settings:
        why = f"{tail_name} {compaction.tail_share} and a summary do not go into {goal_name} {goal}"
        yield SettingsProblem((tail_name, goal_name), f"{why}: no compaction could be committed; lower {tail_name}")


def _check_summary_shares(settings: Settings) -> Iterator[SettingsProblem]:
    """Yield a problem where the user's words leave no room for the other parts of an extract."""
    together = settings.summary.user_share + SUMMARY_LEDGER_SHARE + SUMMARY_DECISION_SHARE + SUMMARY_POINTER_SHARE
    if together > 1:
        why = f"the parts of the summary are {together:.2f} of it together"
        yield SettingsProblem(("summary.user_share",), f"{why}; 1 is the whole: lower summary.user_share")
