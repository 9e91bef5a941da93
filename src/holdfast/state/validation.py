"""What is wrong with a value that somebody made: structs are made without being checked."""

from __future__ import annotations

from functools import cache
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from holdfast.messages.parts import Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.state.dialect import NO_LIMIT

_PART_TYPES = frozenset(get_args(Part))

_NEGATIVE_ALLOWED = ("requested_output", "idle_seconds", "window")
"""Fields in which less than 0 is no mistake, or not ours to tell: clients say -1 of an answer that is as long as it
gets, clocks are set, and the guard refuses a window of nothing."""


class ValidationProblem(Struct, frozen=True):
    """What cannot be, with its place and what to give, and the error that it is."""

    error: type[Exception]
    why: str


class _FieldSpec(Struct, frozen=True):
    name: str
    hint: Any
    """What it takes."""
    classes: tuple[type, ...]
    """The classes that its values have."""
    is_restricted: bool
    """Whether it takes certain words, or lists of certain values, and no other values of these classes."""
    min_value: int | None
    """The least number that it takes; nothing where it takes none."""


def find_validation_problem(value: Struct, place: str) -> ValidationProblem | None:
    """Return what is wrong with the first field of ``value``, which is called ``place``, or of a struct in it."""
    for field in _list_field_specs(type(value)):
        field_value = getattr(value, field.name)
        fits = isinstance(field_value, field.classes) and (
            not field.is_restricted or _is_accepted_value(field_value, field)
        )
        if not fits:
            return _build_problem(TypeError, place, field_value, field)
        if field.min_value is not None and field_value is not None and not field.min_value <= field_value <= NO_LIMIT:
            return _build_problem(ValueError, place, field_value, field)
        if isinstance(field_value, Struct) and (inner := find_validation_problem(field_value, f"{place}.{field.name}")):
            return inner
    return None


def _build_problem(error: type[Exception], place: str, field_value: object, field: _FieldSpec) -> ValidationProblem:
    return ValidationProblem(
        error, f"{place}.{field.name} is {short(field_value)}; give {_describe_type_hint(field.hint)}"
    )


@cache
def _list_field_specs(kind: type[Struct]) -> tuple[_FieldSpec, ...]:
    hints = get_type_hints(kind)
    return tuple(_build_field_spec(name, hints[name]) for name in kind.__struct_fields__)


def _build_field_spec(name: str, hint: Any) -> _FieldSpec:
    classes, is_more = _list_accepted_classes(hint), get_origin(hint) in (Literal, tuple)
    minimum = -NO_LIMIT if name in _NEGATIVE_ALLOWED else 0
    return _FieldSpec(name, hint, classes, is_more, minimum if int in classes else None)


def _list_accepted_classes(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) in (Union, UnionType):
        return tuple(member for inner in get_args(hint) for member in _list_accepted_classes(inner))
    wider: dict[Any, tuple[type, ...]] = {float: (int, float), tuple: (tuple, list), Literal: (object,)}
    kind = get_origin(hint) or hint
    return wider.get(kind, (kind,))


def _is_accepted_value(field_value: Any, field: _FieldSpec) -> bool:
    """Return whether ``field_value`` is one of the words, or holds what it should."""
    inner = get_args(field.hint)
    return (
        field_value in inner
        if get_origin(field.hint) is Literal
        else all(isinstance(item, inner[0]) for item in field_value)
    )


def _describe_type_hint(hint: Any) -> str:
    """Return in words what a field of this type takes."""
    if hint in (int, float):
        return f"a {'whole ' if hint is int else ''}number from 0 to 2**53"
    if hint in (bool, NoneType):
        return "True or False" if hint is bool else "None"
    inner = get_args(hint)
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, inner))}"
    if get_origin(hint) is tuple:
        return f"a list, of which each is {_describe_type_hint(inner[0])}"
    return ", or ".join(map(_describe_type_hint, inner)) if inner else f"a {hint.__name__}"


def is_valid_part(part: object) -> bool:
    """Return whether ``part`` is a part of a message whose fields have their types.

    Structs check no types when they are created; text is often passed where a list of parts belongs, and arguments as
    a dict. ``describe_type_mismatch`` says where the first mistake is.
    """
    if type(part) not in _PART_TYPES:
        return False
    if isinstance(part, ToolCall):
        texts_are_valid = type(part.id) is str and type(part.name) is str and type(part.arguments) is str
        return texts_are_valid and isinstance(part.signature, ProviderSignature | None)
    if isinstance(part, ToolResult):
        texts_are_valid = type(part.call_id) is str and type(part.name) is str
        return texts_are_valid and isinstance(part.content, tuple | list) and all(map(is_valid_part, part.content))
    if isinstance(part, Text | Thinking):
        return type(part.text) is str and isinstance(part.signature, ProviderSignature | None)
    return True
