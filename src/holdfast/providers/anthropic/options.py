"""Anthropic Messages: what a request asks for beside its messages, read and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.providers.common.portable_options import (
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
"""The longest answer asked of the Messages API, which must be told one, where a request of another API names none."""


def _read_answer_format(value: Any, _body: Mapping[str, Any]) -> Any:
    return NAMED_SCHEMA_FORMAT | value if isinstance(value, dict) else None


def _write_answer_format(answer_format: dict[str, Any]) -> Any:
    if "schema" not in answer_format:
        return None
    return {"type": answer_format.get("type"), "schema": _forbid_extra_properties(answer_format["schema"])}


def _forbid_extra_properties(schema: Any) -> Any:
    """Return a schema as the Messages API takes it: an object has no properties but those it names."""
    if isinstance(schema, list):
        return [_forbid_extra_properties(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _forbid_extra_properties(value) for key, value in schema.items()}
    return {"additionalProperties": False} | inner if inner.get("type") == "object" else inner


SHARED_FORM = SharedOptionForm({"format": "output_config.format"}, _read_answer_format, _write_answer_format)
"""Of the options that other APIs have too, the Messages API has the form of an answer alone: its effort is not the same
and stays behind."""


def read_options(body: dict[str, Any]) -> PortableOptions:
    """Return what the fields of a body ask for."""
    tools, choice = as_dict_list(body.get("tools")), as_dict(body.get("tool_choice"))
    own = [tool for tool in tools if tool.get("type") in (None, "custom")]
    alone = as_bool(choice.get("disable_parallel_tool_use"))
    field_names = "system tools tool_choice max_tokens stop_sequences temperature top_p top_k stream"
    options = read_shared_options(SHARED_FORM, body)
    return PortableOptions(
        system=as_texts(body.get("system", [])),
        tools=tuple([read_tool(tool, "input_schema") for tool in own]),
        other_tools=tuple([as_text(tool["type"]) for tool in tools if tool not in own]),
        tool_choice=as_text(choice.get("type")),
        chosen_tool=as_text(choice.get("name")),
        parallel_calls=None if alone is None else not alone,
        max_tokens=as_int(body.get("max_tokens")),
        stop_sequences=as_texts(body.get("stop_sequences")),
        stream=as_bool(body.get("stream")),
        shared_options=options,
        unread_fields=list_unread_fields(body, field_names, options, ("output_config",)),
        **read_sampling(body),
    )


def write_options(options: PortableOptions) -> OptionFields:
    """Return the fields of a body that asks for the same, and what of it has no form here."""
    choice: dict[str, Any] = (
        {"type": options.tool_choice or "auto"} if options.tool_choice or options.parallel_calls is False else {}
    )
    choice |= {"name": options.chosen_tool} if options.tool_choice == "tool" else {}
    choice |= (
        {"disable_parallel_tool_use": True} if options.parallel_calls is False and options.tool_choice != "none" else {}
    )
    warm = options.temperature is not None and options.temperature > 1
    notes = (
        ()
        if options.max_tokens is not None
        else (f"max_tokens is set to {DEFAULT_MAX_TOKENS}, since one must be named there",)
    )
    tools = [
        write_tool_name(tool)
        | {"input_schema": tool.schema or {"type": "object"}}
        | ({"strict": True} if tool.strict else {})
        for tool in options.tools
    ]
    body = {
        "max_tokens": DEFAULT_MAX_TOKENS if options.max_tokens is None else options.max_tokens,
        "tools": tools,
        "tool_choice": choice if options.tools and choice else None,
        "stop_sequences": list(options.stop_sequences),
        "temperature": 1 if warm else options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "stream": options.stream,
    }
    return body, (*notes, *(["temperature is lowered to 1, the highest there"] if warm else ()))


def is_own_tool_choice(choice: Any) -> bool:
    """Return whether the body's ``tool_choice`` is said as the Messages API says it."""
    return isinstance(choice, Mapping) and choice.get("type") in ("auto", "any", "tool", "none")
