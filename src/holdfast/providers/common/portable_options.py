"""What a request asks for beside its messages, as every API has it, and small readers of bodies that say it.

Tools that the client runs, which of them may be called, the longest answer, where to stop, and how to sample. What the
provider runs itself, and every other field, has no form elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from holdfast.providers.common.shared_options import SharedOption, list_unread_nested_fields

OptionFields: TypeAlias = tuple[dict[str, Any], tuple[str, ...]]
"""Fields of a body, and what of the options has no form there."""
EMPTY_SCHEMA = {"type": "object", "properties": {}}
"""The arguments of a function that takes none."""


class FunctionTool(Struct, frozen=True):
    """A function that the client runs."""

    name: str
    description: str = ""
    schema: Any = None
    """Its arguments as JSON Schema."""
    strict: bool = False


class PortableOptions(Struct, frozen=True):
    """What a request asks for; nothing = it does not say."""

    system: tuple[str, ...] = ()
    tools: tuple[FunctionTool, ...] = ()
    other_tools: tuple[str, ...] = ()
    """Tools that are no functions of the client's, by their types."""
    tool_choice: str = ""
    """``auto``, ``none``, ``any``, or ``tool`` for the one named ``chosen_tool``."""
    chosen_tool: str = ""
    allowed_tools: tuple[str, ...] = ()
    """The only ones that may be called, where that is said of several."""
    parallel_calls: bool | None = None
    max_tokens: int | None = None
    stop_sequences: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    stream: bool | None = None
    shared_options: tuple[SharedOption, ...] = ()
    """What is asked for that other APIs have under other names."""
    unread_fields: tuple[str, ...] = ()
    """Fields that are not read here."""


# -- reading -----------------------------------------------------------------------------------------------------------


def as_dict(value: Any) -> dict[str, Any]:
    """Return ``value`` where it is an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_dict_list(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; none for anything else."""
    return [element for element in value if isinstance(element, dict)] if isinstance(value, list) else []


def as_text(value: Any) -> str:
    """Return ``value`` where it is a text; an empty one for anything else."""
    return value if isinstance(value, str) else ""


def as_number(value: Any) -> Any:
    """Return ``value`` where it is a number; None for anything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def as_int(value: Any) -> int | None:
    """Return ``value`` where it is a whole number; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_texts(value: Any) -> tuple[str, ...]:
    """Return the words of a prompt or the marks of a stop: a string, or a list of strings or of texts."""
    if isinstance(value, str):
        return (value,)
    elements = value if isinstance(value, list) else ()
    return tuple([as_text(element) or as_text(as_dict(element).get("text")) for element in elements])


def as_bool(value: Any) -> bool | None:
    """Return ``value`` where it is true or false; None for anything else."""
    return value if isinstance(value, bool) else None


def list_unread_fields(
    body: Mapping[str, Any], field_names: str, options: tuple[SharedOption, ...] = (), nests: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the fields that are read neither here nor as one of ``options``; of ``nests``, those inside."""
    read_paths = {*field_names.split(), *nests, *(option.source_field for option in options)}
    return (*sorted(body.keys() - read_paths), *list_unread_nested_fields(options, body, nests))


def read_sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a body asks to sample, by the names that most APIs have."""
    return {key: as_number(body.get(key)) for key in ("temperature", "top_p", "top_k")}


def read_tool(tool: Mapping[str, Any], schema: str) -> FunctionTool:
    """Return a function with its arguments in the field ``schema``."""
    strict = bool(tool.get("strict"))
    return FunctionTool(as_text(tool.get("name")), as_text(tool.get("description")), tool.get(schema), strict)


# -- writing -----------------------------------------------------------------------------------------------------------


def describe_lost_options(options: PortableOptions, *names: str) -> Iterator[str]:
    """Yield the options of ``names`` that are asked for, by the words for them."""
    for name in names:
        if getattr(options, name) not in (None, (), ""):
            yield f"{name} has no form there"


def write_tool_name(tool: FunctionTool) -> dict[str, Any]:
    """Return the fields that name a function and say what it does."""
    return {"name": tool.name} | ({"description": tool.description} if tool.description else {})
