"""OpenAI Responses: what a request asks for beside its messages, read and written."""

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
    OptionFields,
    PortableOptions,
    as_bool,
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

_LOGPROBS_INCLUDE = "message.output_text.logprobs"
"""What ``include`` names to get probabilities."""


def _write_answer_format(answer_format: dict[str, Any]) -> Any:
    return answer_format


SHARED_FORM = SharedOptionForm(
    {
        **{name: name for name in OPENAI_SHARED_FIELDS},
        "effort": "reasoning.effort",
        "verbosity": "text.verbosity",
        "format": "text.format",
        "logprobs": "include",
    },
    read_answer_format,
    _write_answer_format,
    logprobs_value=[_LOGPROBS_INCLUDE],
)
"""Options that other APIs have too, and where they stand here."""


def read_options(body: dict[str, Any]) -> PortableOptions:
    """Return what the fields of a body ask for."""
    tools = as_dict_list(body.get("tools"))
    own = [tool for tool in tools if tool.get("type") == "function"]
    field_names = "instructions tools tool_choice max_output_tokens temperature top_p stream parallel_tool_calls"
    choice, chosen, allowed = read_tool_choice(body.get("tool_choice"))
    options = read_shared_options(SHARED_FORM, body)
    return PortableOptions(
        system=as_texts(body.get("instructions", [])),
        tools=tuple([read_tool(tool, "parameters") for tool in own]),
        other_tools=tuple([as_text(tool.get("type")) for tool in tools if tool not in own]),
        tool_choice=choice,
        chosen_tool=chosen,
        allowed_tools=allowed,
        shared_options=options,
        parallel_calls=as_bool(body.get("parallel_tool_calls")),
        max_tokens=as_int(body.get("max_output_tokens")),
        stream=as_bool(body.get("stream")),
        unread_fields=list_unread_fields(body, field_names, options, ("reasoning", "text")),
        **read_sampling(body),
    )


def write_options(options: PortableOptions) -> OptionFields:
    """Return the fields of a body that asks for the same, and what of it has no form here."""
    tools = [
        {
            "type": "function",
            **write_tool_name(tool),
            "parameters": tool.schema or EMPTY_SCHEMA,
            "strict": tool.strict,
        }
        for tool in options.tools
    ]
    body = {
        "max_output_tokens": options.max_tokens,
        "tools": tools,
        "tool_choice": write_tool_choice(options, {"type": "function", "name": options.chosen_tool}),
        "parallel_tool_calls": options.parallel_calls if options.tools else None,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "stream": options.stream,
    }
    return body, tuple(describe_lost_options(options, "top_k", "stop_sequences"))


def is_own_tool_choice(choice: Any) -> bool:
    """Return whether the body's ``tool_choice`` is said as Responses says it: the kind and the name side by side."""
    if choice is None or isinstance(choice, str):
        return choice is not None
    type_ = choice.get("type") if isinstance(choice, Mapping) else None
    has_inner_object = isinstance(type_, str) and isinstance(choice.get(type_), Mapping)
    return type_ not in ("auto", "any", "tool", "none") and not has_inner_object
