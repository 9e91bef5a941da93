"""OpenAI Chat Completions: what a request asks for beside its messages, read and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.providers.common.openai.options import (
    OPENAI_SHARED_FIELDS,
    read_answer_format,
    read_tool_choice,
    write_tool_choice,
)
from holdfast.providers.common.portable_options import (
    EMPTY_SCHEMA,
    FunctionTool,
    OptionFields,
    PortableOptions,
    as_bool,
    as_dict,
    as_dict_list,
    as_int,
    as_text,
    as_texts,
    describe_lost_options,
    list_unread_fields,
    read_sampling,
    read_tool,
    write_tool_name,
)
from holdfast.providers.common.shared_options import SharedOptionForm, read_shared_options


def _write_answer_format(answer_format: dict[str, Any]) -> Any:
    if answer_format.get("type") != "json_schema":
        return answer_format
    schema = {key: value for key, value in answer_format.items() if key != "type"}
    return {"type": "json_schema", "json_schema": schema}


SHARED_FORM = SharedOptionForm(
    {
        **{name: name for name in OPENAI_SHARED_FIELDS},
        "effort": "reasoning_effort",
        "verbosity": "verbosity",
        "format": "response_format",
        "logprobs": "logprobs",
        "seed": "seed",
        "frequency_penalty": "frequency_penalty",
        "presence_penalty": "presence_penalty",
    },
    read_answer_format,
    _write_answer_format,
    needs_logprobs_flag=True,
)
"""Options that other APIs have too, and where they stand here."""


def read_options(body: dict[str, Any]) -> PortableOptions:
    """Return what the fields of a body ask for."""
    tools = as_dict_list(body.get("tools")) + [
        {"type": "function", "function": function} for function in as_dict_list(body.get("functions"))
    ]
    limit = as_int(body.get("max_completion_tokens"))
    field_names = (
        "tools functions tool_choice max_completion_tokens max_tokens stop temperature top_p stream stream_options"
    )
    choice, chosen, allowed = read_tool_choice(body.get("tool_choice"))
    options = read_shared_options(SHARED_FORM, body)
    return PortableOptions(
        tools=tuple([read_tool(as_dict(tool.get("function")), "parameters") for tool in tools if "function" in tool]),
        other_tools=tuple([as_text(tool.get("type")) for tool in tools if "function" not in tool]),
        tool_choice=choice,
        chosen_tool=chosen,
        allowed_tools=allowed,
        shared_options=options,
        parallel_calls=as_bool(body.get("parallel_tool_calls")),
        max_tokens=as_int(body.get("max_tokens")) if limit is None else limit,
        stop_sequences=as_texts(body.get("stop")),
        stream=as_bool(body.get("stream")),
        unread_fields=list_unread_fields(body, field_names + " parallel_tool_calls logprobs", options),
        **read_sampling(body),
    )


def write_options(options: PortableOptions) -> OptionFields:
    """Return the fields of a body that asks for the same, and what of it has no form here."""
    function_choice = {"type": "function", "function": {"name": options.chosen_tool}}
    tools = [
        {
            "type": "function",
            "function": write_tool_name(tool) | {"parameters": tool.schema or EMPTY_SCHEMA} | _write_strict_flag(tool),
        }
        for tool in options.tools
    ]
    body = {
        "max_completion_tokens": options.max_tokens,
        "tools": tools,
        "tool_choice": write_tool_choice(options, function_choice),
        "parallel_tool_calls": options.parallel_calls if options.tools else None,
        "stop": list(options.stop_sequences[:4]),
        "temperature": options.temperature,
        "top_p": options.top_p,
        "stream": options.stream,
    }
    many = ("of the stop sequences only four may stand there",) if len(options.stop_sequences) > 4 else ()
    return body, (*many, *describe_lost_options(options, "top_k"))


def _write_strict_flag(tool: FunctionTool) -> dict[str, Any]:
    return {"strict": True} if tool.strict else {}


def is_own_tool_choice(choice: Any) -> bool:
    """Return whether the body's ``tool_choice`` is said as Chat says it."""
    if isinstance(choice, str):
        return True
    type_ = choice.get("type") if isinstance(choice, Mapping) else None
    return isinstance(type_, str) and isinstance(choice.get(type_), Mapping)
