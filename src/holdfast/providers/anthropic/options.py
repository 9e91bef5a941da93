"""Anthropic Messages: read and write the options of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.providers.anthropic.models import FORCED_TOOL_CHOICES, find_refused_sampling, get_claude_traits
from holdfast.providers.common.option_changes import OptionChange
from holdfast.providers.common.portable_options import (
    FunctionTool,
    OptionFields,
    PortableOptions,
    as_bool,
    as_dict,
    as_dict_list,
    as_int,
    as_text,
    as_texts,
    list_unread_fields,
    read_sampling,
    read_tool,
    write_tool_name,
)
from holdfast.providers.common.shared_options import NAMED_SCHEMA_FORMAT, SharedOptionForm, read_shared_options

DEFAULT_MAX_TOKENS = 4_096
"""The output limit for a request converted from an API that does not require one. Chosen by judgement: models of every
generation accept it, and an answer is rarely longer."""


def _read_answer_format(value: Any, _body: Mapping[str, Any]) -> Any:
    return NAMED_SCHEMA_FORMAT | value if isinstance(value, dict) else None


def _write_answer_format(answer_format: dict[str, Any]) -> Any:
    if "schema" not in answer_format:
        return None
    return {"type": answer_format.get("type"), "schema": _forbid_extra_properties(answer_format["schema"])}


def _forbid_extra_properties(schema: Any) -> Any:
    """Return a schema in the form that the Messages API requires: objects without properties that are not listed."""
    if isinstance(schema, list):
        return [_forbid_extra_properties(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _forbid_extra_properties(value) for key, value in schema.items()}
    if inner.get("type") == "object":
        return {"additionalProperties": False} | inner
    return inner


SHARED_FORM = SharedOptionForm({"format": "output_config.format"}, _read_answer_format, _write_answer_format)
"""The answer format is all that the Messages API shares with others. Its effort levels mean something else."""


def read_options(body: dict[str, Any]) -> PortableOptions:
    """Read the options of a decoded body."""
    tools = as_dict_list(body.get("tools"))
    choice = as_dict(body.get("tool_choice"))
    own_tools = [tool for tool in tools if tool.get("type") in (None, "custom")]
    other_tools = []
    for tool in tools:
        if tool.get("type") not in (None, "custom"):
            other_tools.append(tool)
    disables_parallel_calls = as_bool(choice.get("disable_parallel_tool_use"))
    field_names = "system tools tool_choice max_tokens stop_sequences temperature top_p top_k stream"
    shared_options = read_shared_options(SHARED_FORM, body)
    return PortableOptions(
        system=as_texts(body.get("system", [])),
        tools=tuple([read_tool(tool, "input_schema") for tool in own_tools]),
        other_tools=tuple([as_text(tool["type"]) for tool in other_tools]),
        tool_choice=as_text(choice.get("type")),
        chosen_tool=as_text(choice.get("name")),
        parallel_calls=None if disables_parallel_calls is None else not disables_parallel_calls,
        max_tokens=as_int(body.get("max_tokens")),
        stop_sequences=as_texts(body.get("stop_sequences")),
        stream=as_bool(body.get("stream")),
        shared_options=shared_options,
        unread_fields=list_unread_fields(body, field_names, shared_options, ("output_config",)),
        **read_sampling(body),
    )


def write_options(options: PortableOptions) -> OptionFields:
    """Return the fields that ask for ``options``, and a note for each option that has to change."""
    notes = []
    max_tokens = options.max_tokens
    if max_tokens is None:
        max_tokens = DEFAULT_MAX_TOKENS
        notes.append(f"max_tokens is set to {DEFAULT_MAX_TOKENS}, because the API requires it")
    temperature = options.temperature
    if temperature is not None and temperature > 1:  # other APIs go up to 2
        temperature = 1
        notes.append("temperature is lowered to 1, the highest there")
    body = {
        "max_tokens": max_tokens,
        "tools": [_write_tool(tool) for tool in options.tools],
        "tool_choice": _write_tool_choice(options),
        "stop_sequences": list(options.stop_sequences),
        "temperature": temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "stream": options.stream,
    }
    return body, tuple(notes)


def _write_tool(tool: FunctionTool) -> dict[str, Any]:
    # A schema is required here, also for a function without parameters.
    fields = write_tool_name(tool) | {"input_schema": tool.schema or {"type": "object"}}
    if tool.strict:
        fields["strict"] = True
    return fields


def _write_tool_choice(options: PortableOptions) -> dict[str, Any] | None:
    """Return the ``tool_choice``, which also says whether calls may be parallel; None if neither is asked for."""
    forbids_parallel_calls = options.parallel_calls is False
    if not options.tools or not (options.tool_choice or forbids_parallel_calls):
        return None
    choice: dict[str, Any] = {"type": options.tool_choice or "auto"}
    if options.tool_choice == "tool":
        choice["name"] = options.chosen_tool
    if forbids_parallel_calls and options.tool_choice != "none":
        choice["disable_parallel_tool_use"] = True
    return choice


def is_own_tool_choice(choice: Any) -> bool:
    """Return whether a ``tool_choice`` has the form of the Messages API."""
    return isinstance(choice, Mapping) and choice.get("type") in ("auto", "any", "tool", "none")


def find_model_changes(fields: Mapping[str, Any], model: str, version: str = "") -> tuple[OptionChange, ...]:
    """Find the changes that ``model`` and ``version`` need in the decoded options of a Messages request."""
    changes = []
    for name, reason in find_refused_sampling(fields, model, version).items():
        changes.append(OptionChange("model-sampling", name, None, f"{name} {reason}: left out"))
    traits = get_claude_traits(model)
    choice = as_dict(fields.get("tool_choice"))
    kind = choice.get("type")
    if traits is not None and not traits.takes_forced_tools and kind in FORCED_TOOL_CHOICES:
        free_choice = {key: value for key, value in choice.items() if key != "name"} | {"type": "auto"}
        note = f"tool_choice {kind!r} is refused by {model}: set to 'auto', so the model may also answer without a call"
        changes.append(OptionChange("forced-tool", "tool_choice", free_choice, note))
    if traits is not None and not traits.takes_fast_speed and fields.get("speed") == "fast":
        changes.append(OptionChange("speed", "speed", None, f"speed 'fast' is refused by {model}: left out"))
    return (*changes, *_move_output_format(fields))


def _move_output_format(fields: Mapping[str, Any]) -> tuple[OptionChange, ...]:
    """Return the changes that move ``output_format``, the name of an ended beta, to ``output_config.format``."""
    answer_format = fields.get("output_format")
    if answer_format is None:
        return ()
    removal = OptionChange("output-format", "output_format", None, "output_format is moved to output_config.format")
    if as_dict(fields.get("output_config")).get("format") is not None:
        return (removal,)
    new_field = OptionChange("output-format", "output_config.format", answer_format, "output_config.format is set")
    return new_field, removal
