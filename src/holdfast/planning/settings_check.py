"""Settings by their dotted names: which values each may have, changes of some, and contradictions between them.

A dotted name is ``compaction.trigger_share``, or ``preset.tail_tokens`` for a setting that only one policy has. Those
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
"""Name of the group of settings that only one policy has."""
_MIN_SIMILARITY = 0.7
"""Similarity (0 to 1, by ``difflib``) from which a setting of another group is suggested for a misspelt name. Less
similar names, which its default of 0.6 would suggest, are no help there. Chosen by judgement."""


class SettingsProblem(Struct, frozen=True):
    """A contradiction between settings, by their dotted names, and its explanation."""

    settings: tuple[str, ...]
    why: str


# -- names -------------------------------------------------------------------------------------------------------------


@cache
def list_setting_groups(rules_type: type[PolicyRules] = PolicyRules) -> dict[str, tuple[str, ...]]:
    """Return the names of the settings in each group, in order; the group ``preset`` only if it has any."""
    groups: dict[str, tuple[str, ...]] = {}
    for group, kind in _get_group_types(rules_type).items():
        if kind.__struct_fields__:
            groups[group] = kind.__struct_fields__
    return groups


@cache
def list_setting_names(rules_type: type[PolicyRules] = PolicyRules) -> tuple[str, ...]:
    """Return the dotted names of all settings of a policy with rules of this type."""
    names: list[str] = []
    for group, fields in list_setting_groups(rules_type).items():
        names += [f"{group}.{field}" for field in fields]
    return tuple(names)


def get_setting(name: str, settings: Settings, rules: PolicyRules) -> Any:
    """Return the value of the setting with the dotted ``name``."""
    group, _, field = name.partition(".")
    return getattr(_get_group(group, settings, rules), field)


def get_setting_origin(name: str, rules_type: type[PolicyRules] = PolicyRules) -> str:
    """Return the description of a setting: origin of its default, meaning and reason; empty if it has none."""
    for meta in _list_metas(_get_setting_type(name, rules_type)):
        if meta.description:
            return meta.description
    return ""


def describe_unknown_setting(name: str, rules_type: type[PolicyRules] = PolicyRules) -> str:
    """Return a hint for the error about ``name``, which is no setting: similar names, else those of its group."""
    names = list_setting_names(rules_type)
    group, _, field = name.rpartition(".")
    similar_names = get_close_matches(name, names)
    if not similar_names:
        # The right name in a wrong group, or without one.
        names_by_field = {known.partition(".")[2]: known for known in names}
        similar_fields = get_close_matches(field, names_by_field, cutoff=_MIN_SIMILARITY)
        similar_names = [names_by_field[similar] for similar in similar_fields]
    if similar_names:
        return f"did you mean {' or '.join(similar_names)}?"
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
    """Return ``value`` converted to the type of the setting ``name``; raises ``ValueError`` if it is not allowed."""
    try:
        return convert_value(value, _get_setting_type(name, rules_type))
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def describe_allowed_values(name: str, rules_type: type[PolicyRules] = PolicyRules) -> str:
    """Return in words the values that a setting may have, with its description."""
    return f"{_describe_type(_get_setting_type(name, rules_type))} ({get_setting_origin(name, rules_type)})"


def change_settings(
    settings: Settings, rules: PolicyRules, changes: Mapping[str, object]
) -> tuple[Settings, PolicyRules]:
    """Return ``settings`` and ``rules`` with ``changes``, values by dotted names.

    Raises ``ConfigError`` for an unknown name or a value that is not allowed. Contradictions are not looked for:
    ``check_settings`` does that.
    """
    values_by_group: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        group, _, field = name.partition(".")
        values_by_group.setdefault(group, {})[field] = _convert_known_setting(name, value, type(rules))
    preset_values = values_by_group.pop(PRESET_GROUP, None)
    if preset_values:
        rules = replace(rules, **preset_values)
    groups = {group: replace(getattr(settings, group), **values) for group, values in values_by_group.items()}
    return replace(settings, **groups), rules


def convert_all_settings(settings: Settings, rules: PolicyRules) -> tuple[Settings, PolicyRules]:
    """Return ``settings`` and ``rules`` with every value checked and converted to the type of its setting.

    They may have been constructed by hand, and a ``Struct`` does not check its fields. Raises ``ConfigError`` for a
    value or a group of a wrong type.
    """
    rules_type = type(rules)
    custom_values: dict[str, object] = {}
    for group, fields in list_setting_groups(rules_type).items():
        values = _get_group(group, settings, rules)
        defaults = _get_group(group, _DEFAULT_SETTINGS, _get_default_rules(rules_type))
        # Groups and values that are the very defaults need no conversion, so policies are cheap to make.
        if values is defaults:
            continue
        kind = _get_group_types(rules_type)[group]
        if not isinstance(values, kind):
            raise ConfigError(f"settings.{group} is of type {type(values).__name__}; give {kind.__name__}")
        for field in fields:
            value = getattr(values, field)
            if value is not getattr(defaults, field):
                custom_values[f"{group}.{field}"] = value
    if not custom_values:
        return settings, rules
    return change_settings(settings, rules, custom_values)


_DEFAULT_SETTINGS = Settings()


@cache
def _get_default_rules(rules_type: type[PolicyRules]) -> PolicyRules:
    return rules_type()


def _get_group(group: str, settings: Settings, rules: PolicyRules) -> Any:
    return rules if group == PRESET_GROUP else getattr(settings, group)


def flatten_changes(changes: Mapping[str, object]) -> dict[str, object]:
    """Return settings given by group as settings by dotted names.

    Raises ``ConfigError`` for an unknown group and for a group that is not a mapping.
    """
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
    """Return in words the values that the type of a setting allows."""
    metas = _list_metas(kind)
    if metas:
        kind = kind.__origin__
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    if get_origin(kind) is tuple:
        return _describe_list_type(get_args(kind))
    if kind is bool:
        return "true or false"
    if kind in (int, float):
        return _describe_number_type(kind, metas)
    return "a name" if kind is str else "a table"


def _list_metas(kind: Any) -> list[Meta]:
    """Return the annotations of a type that msgspec reads: bounds and descriptions."""
    metas: list[Meta] = []
    for meta in getattr(kind, "__metadata__", ()):
        if isinstance(meta, Meta):
            metas.append(meta)
    return metas


def _describe_number_type(kind: type, metas: list[Meta]) -> str:
    minimums = [meta.ge for meta in metas if meta.ge is not None]
    maximums = [meta.le for meta in metas if meta.le is not None]
    minimum = minimums[0] if minimums else 0
    # Other maximums are so large that nobody needs to be told.
    if maximums and maximums[0] == 1:
        return f"a number from {minimum} to 1"
    noun = "a whole number" if kind is int else "a number"
    return f"{noun}, {minimum} or more"


def _describe_list_type(inner: tuple[Any, ...]) -> str:
    if inner[-1] is not Ellipsis:
        return f"a list of {len(inner)}"
    item = _describe_type(inner[0])
    if item == "a name":
        return "a list of names"
    return f"a list, of which each is {item}"


# -- contradictions ----------------------------------------------------------------------------------------------------


def check_settings(settings: Settings, rules: PolicyRules = PolicyRules()) -> tuple[SettingsProblem, ...]:
    """Return the contradictions between settings that are each allowed alone."""
    return tuple(_find_contradictions(settings, rules))


def _find_contradictions(settings: Settings, rules: PolicyRules) -> Iterator[SettingsProblem]:
    reserve_pair = ("reserve.min", "reserve.max", "the reserve lies between them")
    ordered_pairs = (reserve_pair, *rules.list_ordered_settings())
    for low, high, reason in ordered_pairs:
        low_value = get_setting(low, settings, rules)
        high_value = get_setting(high, settings, rules)
        # A maximum of 0 means no maximum.
        has_maximum = high_value > 0
        if has_maximum and low_value > high_value:
            why = f"{low} {low_value:,} is over {high} {high_value:,}: {reason}; lower the first"
            yield SettingsProblem((low, high), why)
    if settings.compaction.enabled and settings.compaction.goal_share:
        yield from _check_compaction_goal(settings, rules)
    yield from _check_summary_shares(settings)


def _check_compaction_goal(settings: Settings, rules: PolicyRules) -> Iterator[SettingsProblem]:
    """Yield a problem for each setting that makes the goal of a compaction useless or out of reach.

    Settings that the policy does not read contradict nothing.
    """
    compaction = settings.compaction
    trigger, goal = compaction.trigger_share, compaction.goal_share
    trigger_name, goal_name, tail_name = "compaction.trigger_share", "compaction.goal_share", "compaction.tail_share"
    if trigger < goal and trigger_name not in rules.unused_settings:
        why = (
            f"{trigger_name} {trigger} is under {goal_name} {goal}: what a compaction may leave would trigger the next"
        )
        yield SettingsProblem((trigger_name, goal_name), f"{why}; set {goal_name} to {trigger} or less too")
    large_name, large_share = "compaction.large_trigger_share", compaction.large_trigger_share
    needed_share = compaction.tail_share + MIN_SUMMARY_SHARE + compaction.min_gain_share
    if large_share < needed_share and large_name not in rules.unused_settings:
        why = f"{large_name} {large_share} leaves no room for a tail, a summary and a gain, {needed_share:.2f} together"
        yield SettingsProblem((large_name,), f"{why}: no compaction could be committed; raise it")
    if compaction.tail_share + MIN_SUMMARY_SHARE > goal and tail_name not in rules.unused_settings:
        why = f"{tail_name} {compaction.tail_share} and a summary do not go into {goal_name} {goal}"
        yield SettingsProblem((tail_name, goal_name), f"{why}: no compaction could be committed; lower {tail_name}")


def _check_summary_shares(settings: Settings) -> Iterator[SettingsProblem]:
    """Yield a problem if the user's words leave no room for the other parts of an extract."""
    together = settings.summary.user_share + SUMMARY_LEDGER_SHARE + SUMMARY_DECISION_SHARE + SUMMARY_POINTER_SHARE
    if together > 1:
        why = f"the parts of the summary are {together:.2f} of it together"
        yield SettingsProblem(("summary.user_share",), f"{why}; 1 is the whole: lower summary.user_share")
