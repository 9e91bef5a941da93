"""Arguments of tools: their JSON Schema from a struct, and a call's arguments read back into one."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from holdfast.errors import FormatError
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.state.codec.reading import convert_value

A = TypeVar("A", bound=Struct)
_MAX_SHOWN_CHARS = 200
"""Characters of what the model sent that an error repeats."""


def make_json_schema(struct: type[Struct]) -> dict[str, Any]:
    """Return the JSON Schema of ``struct`` as one object, with nothing in it that refers elsewhere."""
    (top,), components = msgspec.json.schema_components([struct])
    inlined_schema: dict[str, Any] = _inline_references(top, components)
    return inlined_schema


def _inline_references(value: Any, components: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_inline_references(item, components) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        own = {key: item for key, item in value.items() if key != "$ref"}
        return {**_inline_references(components[value["$ref"].rpartition("/")[2]], components), **own}
    return {key: _inline_references(item, components) for key, item in value.items() if key not in ("title", "default")}


def parse_tool_arguments(name: str, text: str, struct: type[A]) -> A:
    """Return the arguments of a call of tool ``name``, read as kindly as they can be.

    ``FormatError`` where they are none, with what the tool takes.
    """
    try:
        values = json.loads(text.strip() or "{}")
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"the arguments of {name} are no JSON ({error}): {_shorten_arguments(text)}; "
            f"{_describe_parameters(name, struct)}"
        ) from None
    if not isinstance(values, dict):
        raise FormatError(
            f"the arguments of {name} are no object: {_shorten_arguments(text)}; {_describe_parameters(name, struct)}"
        )
    try:
        present_values = {key: value for key, value in values.items() if value is not None}
        return convert_value(present_values, struct, strict=False)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"these are no arguments of {name}: {error}; {_describe_parameters(name, struct)}") from None


def _describe_parameters(name: str, kind: type[Struct]) -> str:
    """Return in words what a tool takes."""
    arguments_schema = make_json_schema(kind)
    required_names = arguments_schema.get("required", ())
    descriptions = [
        f"{key} ({_describe_parameter_type(value)}{', needed' if key in required_names else ''})"
        for key, value in arguments_schema["properties"].items()
    ]
    return f"call {name} again with {', '.join(descriptions)}"


def _describe_parameter_type(value: dict[str, Any]) -> str:
    return " or ".join(map(repr, value["enum"])) if "enum" in value else str(value.get("type", "object"))


def _shorten_arguments(text: str) -> str:
    return flatten_to_line(text, _MAX_SHOWN_CHARS) or "nothing"
