"""Arguments of tools: their JSON Schema from a struct, and a call's arguments read back into one."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from holdfast.errors import FormatError
from holdfast.messages.text.cutting import one_line
from holdfast.state.codec.reading import convert

A = TypeVar("A", bound=Struct)
_SHOWN = 200
"""Characters of what the model sent that an error repeats."""


def schema(kind: type[Struct]) -> dict[str, Any]:
    """Return the JSON Schema of ``kind`` as one object, with nothing in it that refers elsewhere."""
    (top,), named = msgspec.json.schema_components([kind])
    made: dict[str, Any] = _inlined(top, named)
    return made


def _inlined(value: Any, named: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_inlined(one, named) for one in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        own = {key: one for key, one in value.items() if key != "$ref"}
        return {**_inlined(named[value["$ref"].rpartition("/")[2]], named), **own}
    return {key: _inlined(one, named) for key, one in value.items() if key not in ("title", "default")}


def given(name: str, text: str, kind: type[A]) -> A:
    """Return the arguments of a call of tool ``name``, read as kindly as they can be.

    ``FormatError`` where they are none, with what the tool takes.
    """
    try:
        values = json.loads(text.strip() or "{}")
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"the arguments of {name} are no JSON ({error}): {_cut(text)}; {_takes(name, kind)}"
        ) from None
    if not isinstance(values, dict):
        raise FormatError(f"the arguments of {name} are no object: {_cut(text)}; {_takes(name, kind)}")
    try:
        told = {key: value for key, value in values.items() if value is not None}
        return convert(told, kind, strict=False)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"these are no arguments of {name}: {error}; {_takes(name, kind)}") from None


def _takes(name: str, kind: type[Struct]) -> str:
    """Return in words what a tool takes."""
    told = schema(kind)
    needed = told.get("required", ())
    each = [f"{key} ({_type(value)}{', needed' if key in needed else ''})" for key, value in told["properties"].items()]
    return f"call {name} again with {', '.join(each)}"


def _type(value: dict[str, Any]) -> str:
    return " or ".join(map(repr, value["enum"])) if "enum" in value else str(value.get("type", "object"))


def _cut(text: str) -> str:
    return one_line(text, _SHOWN) or "nothing"
