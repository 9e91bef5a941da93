"""OpenAI Chat Completions: read and write the options of a request."""

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
"""Options that other APIs have too, and their fields in Chat."""


def read_options(body: dict[str, Any]) -> PortableOptions:
    """Read the options of a decoded body."""
    tools = as_dict_list(body.get("tools"))
    # ``functions`` is the deprecated form of ``tools``.
    for function in as_dict_list(body.get("functions")):
        tools.append({"type": "function", "function": function})
    own_tools = [tool for tool in tools if "function" in tool]
    other_tools = [tool for tool in tools if "function" not in tool]
    # ``max_tokens`` is the older name of the limit; a body with both is refused.
    max_tokens = as_int(body.get("max_completion_tokens"))
    if max_tokens is None:
        max_tokens = as_int(body.get("max_tokens"))
    field_names = (
        "tools functions tool_choice function_call max_completion_tokens max_tokens stop temperature top_p stream"
        " stream_options parallel_tool_calls logprobs"
    )
    # ``function_call`` is the deprecated form of ``tool_choice``.
    choice, chosen, allowed = read_tool_choice(body.get("tool_choice") or body.get("function_call"))
    shared_options = read_shared_options(SHARED_FORM, body)
    return PortableOptions(
        tools=tuple([read_tool(as_dict(tool.get("function")), "parameters") for tool in own_tools]),
        other_tools=tuple([as_text(tool.get("type")) for tool in other_tools]),
        tool_choice=choice,
        chosen_tool=chosen,
        allowed_tools=allowed,
        shared_options=shared_options,
        parallel_calls=as_bool(body.get("parallel_tool_calls")),
        max_tokens=max_tokens,
        stop_sequences=as_texts(body.get("stop")),
        stream=as_bool(body.get("stream")),
        unread_fields=list_unread_fields(body, field_names, shared_options),
        **read_sampling(body),
    )


def write_options(options: PortableOptions) -> OptionFields:
    """Return the fields that ask for ``options``, and a note for each option without a form in Chat."""
    function_choice = {"type": "function", "function": {"name": options.chosen_tool}}
    # Without tools the API refuses ``parallel_tool_calls``.
    body = {
        "max_completion_tokens": options.max_tokens,
        "tools": [{"type": "function", "function": _write_function(tool)} for tool in options.tools],
        "tool_choice": write_tool_choice(options, function_choice),
        "parallel_tool_calls": options.parallel_calls if options.tools else None,
        "stop": list(options.stop_sequences[:_MAX_STOP_SEQUENCES]),
        "temperature": options.temperature,
        "top_p": options.top_p,
        "stream": options.stream,
    }
    notes = []
    if len(options.stop_sequences) > _MAX_STOP_SEQUENCES:
        notes.append("of the stop sequences only four may stand there")
    return body, (*notes, *describe_lost_options(options, "top_k"))


_MAX_STOP_SEQUENCES = 4
"""The limit in the API reference."""


def _write_function(tool: FunctionTool) -> dict[str, Any]:
    function = write_tool_name(tool) | {"parameters": tool.schema or EMPTY_SCHEMA}
    if tool.strict:
        function["strict"] = True
    return function


def is_own_tool_choice(choice: Any) -> bool:
    """Return whether a ``tool_choice`` has Chat's form: a string, or an object with an object named by its type."""
    if isinstance(choice, str):
        return True
    if not isinstance(choice, Mapping):
        return False
    type_ = choice.get("type")
    return isinstance(type_, str) and isinstance(choice.get(type_), Mapping)
