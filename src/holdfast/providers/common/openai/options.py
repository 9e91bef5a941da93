"""Options that Chat Completions and Responses write alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.providers.common.portable_options import PortableOptions, as_dict, as_dict_list, as_text

OPENAI_SHARED_FIELDS = (
    "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention", "user", "safety_identifier",
    "top_logprobs",
)  # fmt: skip
"""Fields with the same names and values on both APIs (SDK 3.54)."""


def read_tool_choice(value: Any) -> tuple[str, str, tuple[str, ...]]:
    """Read a ``tool_choice``: the kind of choice, the one named tool, and the allowed tools."""
    if isinstance(value, str):
        return _read_choice_mode(value), "", ()
    choice = as_dict(value)
    if choice.get("type") == "allowed_tools":
        # Chat nests the choice in an object named by its type, Responses does not.
        choice = as_dict(choice.get("allowed_tools")) or choice
        names = [_get_tool_name(tool) for tool in as_dict_list(choice.get("tools"))]
        allowed_names = tuple([name for name in names if name])
        return _read_choice_mode(as_text(choice.get("mode"))), "", allowed_names
    tool_name = _get_tool_name(choice)
    return ("tool", tool_name, ()) if tool_name else ("", "", ())


def _read_choice_mode(mode: str) -> str:
    return "any" if mode == "required" else mode


def _get_tool_name(tool: Mapping[str, Any]) -> str:
    return as_text(as_dict(tool.get("function")).get("name")) or as_text(tool.get("name"))


def write_tool_choice(options: PortableOptions, function_choice: dict[str, Any]) -> Any:
    """Return the ``tool_choice``, ``function_choice`` if one tool is chosen; None if the options do not set it."""
    if not options.tools or not options.tool_choice:
        return None
    if options.tool_choice == "tool":
        return function_choice
    if options.tool_choice == "any":
        return "required"
    return options.tool_choice


def read_answer_format(value: Any, _body: Mapping[str, Any]) -> Any:
    """Read the format of an answer, as Responses or as Chat writes it, in the form of Responses."""
    if not isinstance(value, dict):
        return None
    schema = value.get("json_schema")
    if isinstance(schema, dict):
        return {"type": "json_schema", **schema}
    return value
