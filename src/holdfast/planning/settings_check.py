"""Which values settings may have: their types, their ranges, and what contradicts what."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import isfinite
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from holdfast.planning.settings import LEAST_SUMMARY, Settings, origin
from holdfast.state.codec.reading import convert

LARGEST = 10**12
"""No setting counts further: a million times the largest window. [H]"""
_SHARES = ("preview_tail", "margin")
"""Shares of something that are not called so."""
_NO_SHARES = ("preview_outline_share",)
"""What is called a share and counts one thing for each of another."""
_LOWEST = {"image_turns": -1, "chars_per_token": 1, "summary_safety": 1}
"""Settings whose smallest value is not 0."""


class Problem(Struct, frozen=True):
    """What is impossible, and the settings that say it."""

    settings: tuple[str, ...]
    why: str


def check(settings: Settings) -> tuple[Problem, ...]:
    """Return what is impossible in ``settings``: values outside their range, then values that contradict others."""
    alone = [
        Problem((name,), f"{name} = {getattr(settings, name)!r}: {why}; allowed is {allowed(name)}")
        for name in Settings.__struct_fields__
        if (why := _outside(name, getattr(settings, name)))
    ]
    return tuple(alone or _contradictions(settings))


def converted(name: str, value: object) -> Any:
    """Return ``value`` as setting ``name`` holds it; ``ValueError`` says what is wrong with it."""
    try:
        new = convert(value, _hints(extras=True)[name])
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    if why := _outside(name, new):
        raise ValueError(why)
    return new


def allowed(name: str) -> str:
    """Return which values setting ``name`` may have, and what it is."""
    kind = _hints()[name]
    return f"{_values(name, kind)} ({origin(name)})"


def is_share(name: str) -> bool:
    """Return whether setting ``name`` is a part of something, from 0 to 1."""
    called = "share" in name.split("_") and name not in _NO_SHARES
    return _hints()[name] is float and (called or name in _SHARES)


def _values(name: str, kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    if get_origin(kind) is tuple:
        return _list(name, get_args(kind))
    if kind is bool:
        return "true or false"
    if kind is int:
        return f"a whole number, {_LOWEST.get(name, 0)} or more"
    if kind is float:
        return "a number from 0 to 1" if is_share(name) else f"a number, {_LOWEST.get(name, 0)} or more"
    return "a name" if kind is str else "a table"


def _list(name: str, inner: tuple[Any, ...]) -> str:
    if inner[-1] is not Ellipsis:
        return f"a list of {len(inner)}"
    return "a list of names" if inner[0] is str else f"a list, of which each is {_values(name, inner[0])}"


def _outside(name: str, value: object) -> str:
    """Return why ``value`` cannot be that of setting ``name``, or nothing."""
    if isinstance(value, tuple | list):
        return next((why for one in value if (why := _outside(name, one))), "")
    if isinstance(value, dict | Struct):
        return _outside(name, list(msgspec.to_builtins(value).values()))
    if value == "":
        return "an empty name is none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if isinstance(value, float) and not isfinite(value):
        return "that is no number to count with"
    if value < (lowest := _LOWEST.get(name, 0)):
        return "it is negative" if lowest == 0 else f"it is under {lowest}"
    if is_share(name) and value > 1:
        return "more than the whole"
    return f"more than {LARGEST:,}" if value > LARGEST else ""


@cache
def _hints(*, extras: bool = False) -> dict[str, Any]:
    return get_type_hints(Settings, include_extras=extras)


# -- what contradicts what ---------------------------------------------------------------------------------------------

_ORDERED = (
    ("window_min", "window_warn", "windows are refused under one and warned of under the other"),
    ("window_min_share", "window_warn_share", "windows are refused under one and warned of under the other"),
    ("reserve_min", "reserve_max", "the reserve lies between them"),
    ("tail_tokens_min", "tail_tokens", "the kept tail lies between them"),
    ("prune_soft_share", "prune_hard_share", "results are trimmed first and cleared later"),
    ("summary_small_room", "summary_large_room", "the share falls between these rooms"),
)
"""The first must not be more than the second, where the second is not 0."""


def _contradictions(settings: Settings) -> Iterator[Problem]:
    for low, high, why in _ORDERED:
        less, more = getattr(settings, low), getattr(settings, high)
        if less > more > 0 and _is_read(low, settings):
            yield Problem((low, high), f"{low} {less:,} is over {high} {more:,}: {why}; lower the first")
    yield from _trigger(settings)
    yield from _summary(settings)


def _is_read(name: str, settings: Settings) -> bool:
    """Return whether the rules in force look at setting ``name``, which is the lower one of two."""
    clamped = settings.tail == "turns" and settings.tail_usable_share > 0
    return {"tail_tokens_min": clamped, "prune_soft_share": settings.prune == "ttl"}.get(name, True)


def _trigger(settings: Settings) -> Iterator[Problem]:
    """Yield what no compaction could meet."""
    trigger, goal = settings.trigger_share, settings.goal_share
    if settings.compact != "summary" or not goal:
        return
    if 0 < trigger < goal:
        why = f"trigger_share {trigger} is under goal_share {goal}: what a compaction may leave would trigger the next"
        yield Problem(("trigger_share", "goal_share"), f"{why}; say goal_share = {trigger} or less too")
    if settings.tail == "share" and settings.tail_share + LEAST_SUMMARY > goal:
        why = f"tail_share {settings.tail_share} and a summary do not go into goal_share {goal}"
        yield Problem(("tail_share", "goal_share"), f"{why}: no compaction could be committed; lower tail_share")


def _summary(settings: Settings) -> Iterator[Problem]:
    """Yield what is wrong with the parts of the summary."""
    names = tuple(f"summary_{part}_share" for part in ("user", "ledger", "decision", "index"))
    together = sum(getattr(settings, name) for name in names)
    if together > 1:
        why = f"the parts of the summary are {together:.2f} of it together ({', '.join(names)})"
        yield Problem(names, f"{why}; 1 is the whole: lower one")
