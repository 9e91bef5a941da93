"""What is wrong with a value that somebody made: structs are made without being checked."""

from __future__ import annotations

from functools import cache
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from holdfast.state.dialect import NO_LIMIT

_BELOW_0 = ("asked_output", "idle", "window")
"""Fields in which less than 0 is no mistake, or not ours to tell: clients say -1 of an answer that is as long as it
gets, clocks are set, and the guard refuses a window of nothing."""


class Fault(Struct, frozen=True):
    """What cannot be, with its place and what to give, and the error that it is."""

    error: type[Exception]
    why: str


class _Field(Struct, frozen=True):
    name: str
    hint: Any
    """What it takes."""
    classes: tuple[type, ...]
    """The classes that its values have."""
    is_more: bool
    """Whether it takes certain words, or lists of certain values, and no other values of these classes."""
    least: int | None
    """The least number that it takes; nothing where it takes none."""


def fault_in(value: Struct, place: str) -> Fault | None:
    """Return what is wrong with the first field of ``value``, which is called ``place``, or of a struct in it."""
    for field in _fields(type(value)):
        given = getattr(value, field.name)
        fits = isinstance(given, field.classes) and (not field.is_more or _holds(given, field))
        if not fits:
            return _fault(TypeError, place, given, field)
        if field.least is not None and given is not None and not field.least <= given <= NO_LIMIT:
            return _fault(ValueError, place, given, field)
        if isinstance(given, Struct) and (inner := fault_in(given, f"{place}.{field.name}")):
            return inner
    return None


def _fault(error: type[Exception], place: str, given: object, field: _Field) -> Fault:
    return Fault(error, f"{place}.{field.name} is {short(given)}; give {_wanted(field.hint)}")


@cache
def _fields(kind: type[Struct]) -> tuple[_Field, ...]:
    hints = get_type_hints(kind)
    return tuple(_field(name, hints[name]) for name in kind.__struct_fields__)


def _field(name: str, hint: Any) -> _Field:
    classes, is_more = _classes(hint), get_origin(hint) in (Literal, tuple)
    least = -NO_LIMIT if name in _BELOW_0 else 0
    return _Field(name, hint, classes, is_more, least if int in classes else None)


def _classes(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) in (Union, UnionType):
        return tuple(one for inner in get_args(hint) for one in _classes(inner))
    wider: dict[Any, tuple[type, ...]] = {float: (int, float), tuple: (tuple, list), Literal: (object,)}
    kind = get_origin(hint) or hint
    return wider.get(kind, (kind,))


def _holds(given: Any, field: _Field) -> bool:
    """Return whether ``given`` is one of the words, or holds what it should."""
    inner = get_args(field.hint)
    return given in inner if get_origin(field.hint) is Literal else all(isinstance(one, inner[0]) for one in given)


def _wanted(hint: Any) -> str:
    """Return in words what a field of this type takes."""
    if hint in (int, float):
        return f"a {'whole ' if hint is int else ''}number from 0 to 2**53"
    if hint in (bool, NoneType):
        return "True or False" if hint is bool else "None"
    inner = get_args(hint)
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, inner))}"
    if get_origin(hint) is tuple:
        return f"a list, of which each is {_wanted(inner[0])}"
    return ", or ".join(map(_wanted, inner)) if inner else f"a {hint.__name__}"
