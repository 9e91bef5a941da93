"""The options of a request in a form that all APIs share, and small readers of decoded bodies.

Covered are the functions that the client runs, the choice among them, the longest answer, stop sequences and sampling.
Tools that the provider runs, and every other field, have no form in another API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from holdfast.providers.common.shared_options import SharedOption, list_unread_nested_fields

OptionFields: TypeAlias = tuple[dict[str, Any], tuple[str, ...]]
"""Fields of a body, and notes on the options that have no form there."""
EMPTY_SCHEMA = {"type": "object", "properties": {}}
"""The schema of a function without arguments."""


class FunctionTool(Struct, frozen=True):
    """A function that the client runs for the model."""

    name: str
    description: str = ""
    schema: Any = None
    """JSON Schema of its arguments."""
    strict: bool = False


class PortableOptions(Struct, frozen=True):
    """The options of a request. None or empty means that the request does not set the option."""

    system: tuple[str, ...] = ()
    tools: tuple[FunctionTool, ...] = ()
    other_tools: tuple[str, ...] = ()
    """Types of the tools that are not functions of the client."""
    tool_choice: str = ""
    """``auto``, ``none``, ``any``, or ``tool`` for the function named by ``chosen_tool``."""
    chosen_tool: str = ""
    allowed_tools: tuple[str, ...] = ()
    """The only functions that may be called, if the request names several."""
    parallel_calls: bool | None = None
    max_tokens: int | None = None
    stop_sequences: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    stream: bool | None = None
    shared_options: tuple[SharedOption, ...] = ()
    """Options that some other APIs have too, under names and at places of their own."""
    unread_fields: tuple[str, ...] = ()
    """Fields that no reader here understands, to be reported as left out."""


# -- reading -----------------------------------------------------------------------------------------------------------


def as_dict(value: Any) -> dict[str, Any]:
    """Return ``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_dict_list(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; empty for anything else."""
    if not isinstance(value, list):
        return []
    return [element for element in value if isinstance(element, dict)]


def as_text(value: Any) -> str:
    """Return ``value`` if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def as_number(value: Any) -> Any:
    """Return ``value`` if it is a number, else None."""
    # ``bool`` is a subclass of ``int`` in Python; in JSON, true is not a number.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def as_int(value: Any) -> int | None:
    """Return ``value`` if it is a whole number, else None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value


def as_texts(value: Any) -> tuple[str, ...]:
    """Return a prompt or stop sequences, given as a string, a list of strings or a list of text blocks."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        return ()
    texts = []
    for element in value:
        text = as_text(element) or as_text(as_dict(element).get("text"))
        texts.append(text)
    return tuple(texts)


def as_bool(value: Any) -> bool | None:
    """Return ``value`` if it is true or false, else None."""
    return value if isinstance(value, bool) else None


def list_unread_fields(
    body: Mapping[str, Any],
    field_names: str,
    options: tuple[SharedOption, ...] = (),
    nests: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """List the fields of ``body`` that are neither in ``field_names`` nor the source of one of ``options``.

    ``nests`` are fields that hold options of their own: for these, list the unread fields inside.
    """
    read_fields = {*field_names.split(), *nests}
    for option in options:
        read_fields.add(option.source_field)
    unread_fields = sorted(body.keys() - read_fields)
    return (*unread_fields, *list_unread_nested_fields(options, body, nests))


def read_sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """Read the sampling options that most APIs have under the same names."""
    return {key: as_number(body.get(key)) for key in ("temperature", "top_p", "top_k")}


def read_tool(tool: Mapping[str, Any], schema: str) -> FunctionTool:
    """Read a function with its argument schema in the field ``schema``."""
    name = as_text(tool.get("name"))
    description = as_text(tool.get("description"))
    strict = bool(tool.get("strict"))
    return FunctionTool(name, description, tool.get(schema), strict)


# -- writing -----------------------------------------------------------------------------------------------------------


def describe_lost_options(options: PortableOptions, *names: str) -> Iterator[str]:
    """Yield a note for each option of ``names`` that is set, since it has no form in the other API."""
    for name in names:
        if getattr(options, name) not in (None, (), ""):
            yield f"{name}: left out, the API has no such option"


def write_tool_name(tool: FunctionTool) -> dict[str, Any]:
    """Return the fields with name and description of a function."""
    fields = {"name": tool.name}
    if tool.description:
        fields["description"] = tool.description
    return fields
