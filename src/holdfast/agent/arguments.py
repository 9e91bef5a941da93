"""Arguments of tools: a JSON Schema made from a struct, and a call's arguments parsed into one."""

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
"""Characters of the model's own arguments that an error repeats."""


def make_json_schema(struct: type[Struct]) -> dict[str, Any]:
    """Return the JSON Schema of ``struct`` as one object without references, which some providers do not accept."""
    (top,), components = msgspec.json.schema_components([struct])
    inlined_schema: dict[str, Any] = _inline_references(top, components)
    return inlined_schema


def _inline_references(value: Any, components: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_inline_references(item, components) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        own_items = {key: item for key, item in value.items() if key != "$ref"}
        component = components[value["$ref"].rpartition("/")[2]]
        return {**_inline_references(component, components), **own_items}
    # Titles and defaults only repeat what names and descriptions say, and cost tokens in every request.
    kept_items = {key: item for key, item in value.items() if key not in ("title", "default")}
    return {key: _inline_references(item, components) for key, item in kept_items.items()}


def parse_tool_arguments(name: str, text: str, struct: type[A]) -> A:
    """Parse the arguments of a call of tool ``name``, as leniently as possible.

    Models send null for an argument they leave out, and numbers as strings. Raises ``FormatError``, with the parameters
    of the tool, if the arguments cannot be used.
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
        # Some models send null for every optional argument.
        present_values = {key: value for key, value in values.items() if value is not None}
        return convert_value(present_values, struct, strict=False)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"these are no arguments of {name}: {error}; {_describe_parameters(name, struct)}") from None


def _describe_parameters(name: str, kind: type[Struct]) -> str:
    """Return the end of an error: how to call the tool, with all its parameters."""
    schema = make_json_schema(kind)
    required_names = schema.get("required", ())
    descriptions: list[str] = []
    for name_of_parameter, value in schema["properties"].items():
        needed = ", needed" if name_of_parameter in required_names else ""
        descriptions.append(f"{name_of_parameter} ({_describe_parameter_type(value)}{needed})")
    return f"call {name} again with {', '.join(descriptions)}"


def _describe_parameter_type(value: dict[str, Any]) -> str:
    if "enum" in value:
        return " or ".join(map(repr, value["enum"]))
    return str(value.get("type", "object"))


def _shorten_arguments(text: str) -> str:
    return flatten_to_line(text, _MAX_SHOWN_CHARS) or "nothing"
