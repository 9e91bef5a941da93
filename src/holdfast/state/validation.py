"""Find wrong values in structs that callers built: msgspec checks types only when it decodes."""

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
"""Fields in which a negative number is no mistake, or not ours to report.

Clients write -1 for an answer of any length, clocks are set back, and the window guard itself refuses an empty window.
"""


class ValidationProblem(Struct, frozen=True):
    """A wrong value: the exception to raise and its text, which names the field and what to give."""

    error: type[Exception]
    why: str


class _FieldSpec(Struct, frozen=True):
    """What one field of a struct accepts."""

    name: str
    hint: Any
    """Its type hint."""
    classes: tuple[type, ...]
    """The classes that its values may have."""
    is_restricted: bool
    """Whether not every value of these classes is accepted: certain words only, or lists of certain items."""
    min_value: int | None
    """The least number that it accepts; None if it accepts no numbers."""


def find_validation_problem(value: Struct, place: str) -> ValidationProblem | None:
    """Return the first wrong value in ``value`` or a struct inside it, or None; ``place`` names it in the text."""
    for field in _list_field_specs(type(value)):
        field_value = getattr(value, field.name)
        is_accepted = isinstance(field_value, field.classes)
        if is_accepted and field.is_restricted:
            is_accepted = _is_accepted_value(field_value, field)
        if not is_accepted:
            return _build_problem(TypeError, place, field_value, field)
        if field.min_value is not None and field_value is not None and not field.min_value <= field_value <= NO_LIMIT:
            return _build_problem(ValueError, place, field_value, field)
        if isinstance(field_value, Struct):
            problem = find_validation_problem(field_value, f"{place}.{field.name}")
            if problem is not None:
                return problem
    return None


def _build_problem(
    error: type[Exception],
    place: str,
    field_value: object,
    field: _FieldSpec,
) -> ValidationProblem:
    return ValidationProblem(
        error, f"{place}.{field.name} is {short(field_value)}; give {_describe_type_hint(field.hint)}"
    )


@cache
def _list_field_specs(kind: type[Struct]) -> tuple[_FieldSpec, ...]:
    hints = get_type_hints(kind)
    return tuple(_build_field_spec(name, hints[name]) for name in kind.__struct_fields__)


def _build_field_spec(name: str, hint: Any) -> _FieldSpec:
    classes = _list_accepted_classes(hint)
    is_restricted = get_origin(hint) in (Literal, tuple)
    min_value = None
    if int in classes:
        min_value = -NO_LIMIT if name in _NEGATIVE_ALLOWED else 0
    return _FieldSpec(name, hint, classes, is_restricted, min_value)


def _list_accepted_classes(hint: Any) -> tuple[type, ...]:
    """Return the classes that values of a type hint may have. An int is a float, and a list serves as a tuple."""
    if get_origin(hint) in (Union, UnionType):
        classes: list[type] = []
        for member in get_args(hint):
            classes += _list_accepted_classes(member)
        return tuple(classes)
    # The words of a Literal are compared later, so any class passes here.
    wider: dict[Any, tuple[type, ...]] = {float: (int, float), tuple: (tuple, list), Literal: (object,)}
    kind = get_origin(hint) or hint
    return wider.get(kind, (kind,))


def _is_accepted_value(field_value: Any, field: _FieldSpec) -> bool:
    """Return whether a value of the right class is one of the words, or has only items of the right class."""
    inner = get_args(field.hint)
    if get_origin(field.hint) is Literal:
        return field_value in inner
    return all(isinstance(item, inner[0]) for item in field_value)


def _describe_type_hint(hint: Any) -> str:
    """Describe in words the values that a field of this type accepts."""
    if hint is int:
        return "a whole number from 0 to 2**53"
    if hint is float:
        return "a number from 0 to 2**53"
    if hint is bool:
        return "True or False"
    if hint is NoneType:
        return "None"
    inner = get_args(hint)
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, inner))}"
    if get_origin(hint) is tuple:
        return f"a list, of which each is {_describe_type_hint(inner[0])}"
    if inner:
        return ", or ".join(map(_describe_type_hint, inner))
    return f"a {hint.__name__}"


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
        if not texts_are_valid or not isinstance(part.content, tuple | list):
            return False
        return all(map(is_valid_part, part.content))
    if isinstance(part, Text | Thinking):
        return type(part.text) is str and isinstance(part.signature, ProviderSignature | None)
    return True
