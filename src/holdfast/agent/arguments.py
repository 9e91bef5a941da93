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
        # A description beside the reference is about this use, so it wins over that of the component.
        own_items = {key: item for key, item in value.items() if key != "$ref"}
        component = components[value["$ref"].rpartition("/")[2]]
        return {**_inline_references(component, components), **own_items}
    inlined: dict[str, Any] = {}
    for key, item in value.items():
        # Titles and defaults only repeat what names and descriptions say, and cost tokens in every request.
        if key not in ("title", "default"):
            inlined[key] = _inline_references(item, components)
    return inlined


def parse_tool_arguments(name: str, text: str, struct: type[A]) -> A:
    """Parse the arguments of a call of tool ``name``, as leniently as possible.

    Models send null for an argument they leave out, and numbers as strings. Raises ``FormatError``, with the parameters
    of the tool, if the arguments cannot be used.
    """
    try:
        values = json.loads(text.strip() or "{}")
    except (ValueError, RecursionError) as error:
        message = f"the arguments of {name} are not JSON ({error}): {_shorten_arguments(text)}"
        raise FormatError(f"{message}; {_describe_parameters(name, struct)}") from None
    if not isinstance(values, dict):
        message = f"the arguments of {name} are not an object: {_shorten_arguments(text)}"
        raise FormatError(f"{message}; {_describe_parameters(name, struct)}")
    try:
        # Some models send null for every optional argument.
        present_values = {key: value for key, value in values.items() if value is not None}
        return convert_value(present_values, struct, strict=False)
    except (ValueError, RecursionError) as error:
        message = f"the arguments do not fit {name}: {error}"
        raise FormatError(f"{message}; {_describe_parameters(name, struct)}") from None


def _describe_parameters(name: str, kind: type[Struct]) -> str:
    """Return the end of an error: how to call the tool, with all its parameters."""
    schema = make_json_schema(kind)
    required_names = schema.get("required", ())
    descriptions: list[str] = []
    for parameter_name, value in schema["properties"].items():
        description = _describe_parameter_type(value)
        if parameter_name in required_names:
            description = f"{description}, required"
        descriptions.append(f"{parameter_name} ({description})")
    return f"call {name} again with {', '.join(descriptions)}"


def _describe_parameter_type(value: dict[str, Any]) -> str:
    if "enum" in value:
        return " or ".join(map(repr, value["enum"]))
    return str(value.get("type", "object"))


def _shorten_arguments(text: str) -> str:
    return flatten_to_line(text, _MAX_SHOWN_CHARS) or "nothing"
