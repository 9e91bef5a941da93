"""Which values settings may have: their types, their ranges, and what contradicts what."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import isfinite
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from holdfast.planning.settings import MIN_SUMMARY_SHARE, Settings, get_setting_origin
from holdfast.state.codec.reading import convert_value

MAX_SETTING_VALUE = 10**12
"""No setting counts further: a million times the largest window. [H]"""
_UNNAMED_SHARES = ("preview_tail", "margin")
"""Shares of something that are not called so."""
_NOT_SHARES = ("preview_outline_share",)
"""What is called a share and counts one thing for each of another."""
_MIN_VALUES = {"image_turns": -1, "chars_per_token": 1, "summary_safety": 1}
"""Settings whose smallest value is not 0."""


class SettingsProblem(Struct, frozen=True):
    """What is impossible, and the settings that say it."""

    settings: tuple[str, ...]
    why: str


def check_settings(settings: Settings) -> tuple[SettingsProblem, ...]:
    """Return what is impossible in ``settings``: values outside their range, then values that contradict others."""
    alone = [
        SettingsProblem(
            (name,), f"{name} = {getattr(settings, name)!r}: {why}; allowed is {describe_allowed_values(name)}"
        )
        for name in Settings.__struct_fields__
        if (why := _find_range_problem(name, getattr(settings, name)))
    ]
    return tuple(alone or _find_contradictions(settings))


def convert_setting_value(name: str, value: object) -> Any:
    """Return ``value`` as setting ``name`` holds it; ``ValueError`` says what is wrong with it."""
    try:
        new = convert_value(value, _get_policy_setting_types(extras=True)[name])
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    if why := _find_range_problem(name, new):
        raise ValueError(why)
    return new


def describe_allowed_values(name: str) -> str:
    """Return which values setting ``name`` may have, and what it is."""
    kind = _get_policy_setting_types()[name]
    return f"{_describe_type(name, kind)} ({get_setting_origin(name)})"


def is_share_setting(name: str) -> bool:
    """Return whether setting ``name`` is a part of something, from 0 to 1."""
    has_share_name = "share" in name.split("_") and name not in _NOT_SHARES
    return _get_policy_setting_types()[name] is float and (has_share_name or name in _UNNAMED_SHARES)


def _describe_type(name: str, kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    if get_origin(kind) is tuple:
        return _describe_list_type(name, get_args(kind))
    if kind is bool:
        return "true or false"
    if kind is int:
        return f"a whole number, {_MIN_VALUES.get(name, 0)} or more"
    if kind is float:
        return "a number from 0 to 1" if is_share_setting(name) else f"a number, {_MIN_VALUES.get(name, 0)} or more"
    return "a name" if kind is str else "a table"


def _describe_list_type(name: str, inner: tuple[Any, ...]) -> str:
    if inner[-1] is not Ellipsis:
        return f"a list of {len(inner)}"
    return "a list of names" if inner[0] is str else f"a list, of which each is {_describe_type(name, inner[0])}"


def _find_range_problem(name: str, value: object) -> str:
    """Return why ``value`` cannot be that of setting ``name``, or nothing."""
    if isinstance(value, tuple | list):
        return next((why for item in value if (why := _find_range_problem(name, item))), "")
    if isinstance(value, dict | Struct):
        return _find_range_problem(name, list(msgspec.to_builtins(value).values()))
    if value == "":
        return "an empty name is none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if isinstance(value, float) and not isfinite(value):
        return "that is no number to count with"
    if value < (lowest := _MIN_VALUES.get(name, 0)):
        return "it is negative" if lowest == 0 else f"it is under {lowest}"
    if is_share_setting(name) and value > 1:
        return "more than the whole"
    return f"more than {MAX_SETTING_VALUE:,}" if value > MAX_SETTING_VALUE else ""


@cache
def _get_policy_setting_types(*, extras: bool = False) -> dict[str, Any]:
    return get_type_hints(Settings, include_extras=extras)


# -- what contradicts what ---------------------------------------------------------------------------------------------

_ORDERED_PAIRS = (
    ("window_min", "window_warn", "windows are refused under one and warned of under the other"),
    ("window_min_share", "window_warn_share", "windows are refused under one and warned of under the other"),
    ("reserve_min", "reserve_max", "the reserve lies between them"),
    ("tail_tokens_min", "tail_tokens", "the kept tail lies between them"),
    ("prune_soft_share", "prune_hard_share", "results are trimmed first and cleared later"),
    ("summary_small_room", "summary_large_room", "the share falls between these rooms"),
)
"""The first must not be more than the second, where the second is not 0."""


def _find_contradictions(settings: Settings) -> Iterator[SettingsProblem]:
    for low, high, why in _ORDERED_PAIRS:
        low_value, high_value = getattr(settings, low), getattr(settings, high)
        if low_value > high_value > 0 and _is_setting_used(low, settings):
            yield SettingsProblem(
                (low, high), f"{low} {low_value:,} is over {high} {high_value:,}: {why}; lower the first"
            )
    yield from _check_trigger(settings)
    yield from _check_summary_shares(settings)


def _is_setting_used(name: str, settings: Settings) -> bool:
    """Return whether the rules in force look at setting ``name``, which is the lower one of two."""
    has_clamped_tail = settings.tail == "turns" and settings.tail_usable_share > 0
    return {"tail_tokens_min": has_clamped_tail, "prune_soft_share": settings.prune == "ttl"}.get(name, True)


def _check_trigger(settings: Settings) -> Iterator[SettingsProblem]:
    """Yield what no compaction could meet."""
    trigger, goal = settings.trigger_share, settings.goal_share
    if settings.compact != "summary" or not goal:
        return
    if 0 < trigger < goal:
        why = f"trigger_share {trigger} is under goal_share {goal}: what a compaction may leave would trigger the next"
        yield SettingsProblem(("trigger_share", "goal_share"), f"{why}; say goal_share = {trigger} or less too")
    if settings.tail == "share" and settings.tail_share + MIN_SUMMARY_SHARE > goal:
        why = f"tail_share {settings.tail_share} and a summary do not go into goal_share {goal}"
        yield SettingsProblem(
            ("tail_share", "goal_share"), f"{why}: no compaction could be committed; lower tail_share"
        )


def _check_summary_shares(settings: Settings) -> Iterator[SettingsProblem]:
    """Yield what is wrong with the parts of the summary."""
    names = tuple(f"summary_{part}_share" for part in ("user", "ledger", "decision", "index"))
    together = sum(getattr(settings, name) for name in names)
    if together > 1:
        why = f"the parts of the summary are {together:.2f} of it together ({', '.join(names)})"
        yield SettingsProblem(names, f"{why}; 1 is the whole: lower one")
