"""OpenAI Responses: read and write the options of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.providers.common.openai.model_changes import LOGPROBS_INCLUDE
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
    logprobs_value=[LOGPROBS_INCLUDE],
)
"""Options that other APIs have too, and their fields in Responses."""


def read_options(body: dict[str, Any]) -> PortableOptions:
    """Read the options of a decoded body."""
    tools = as_dict_list(body.get("tools"))
    own_tools = [tool for tool in tools if tool.get("type") == "function"]
    other_tools = [tool for tool in tools if tool.get("type") != "function"]
    field_names = "instructions tools tool_choice max_output_tokens temperature top_p stream parallel_tool_calls"
    choice, chosen, allowed = read_tool_choice(body.get("tool_choice"))
    shared_options = read_shared_options(SHARED_FORM, body)
    return PortableOptions(
        system=as_texts(body.get("instructions", [])),
        tools=tuple([read_tool(tool, "parameters") for tool in own_tools]),
        other_tools=tuple([as_text(tool.get("type")) for tool in other_tools]),
        tool_choice=choice,
        chosen_tool=chosen,
        allowed_tools=allowed,
        shared_options=shared_options,
        parallel_calls=as_bool(body.get("parallel_tool_calls")),
        max_tokens=as_int(body.get("max_output_tokens")),
        stream=as_bool(body.get("stream")),
        unread_fields=list_unread_fields(body, field_names, shared_options, ("reasoning", "text")),
        **read_sampling(body),
    )


def write_options(options: PortableOptions) -> OptionFields:
    """Return the fields that ask for ``options``, and a note for each option without a form in Responses."""
    tools = []
    for tool in options.tools:
        parameters = tool.schema or EMPTY_SCHEMA
        # Responses takes a function without ``strict`` for a strict one, Chat does not, so it is always written.
        tools.append({"type": "function", **write_tool_name(tool), "parameters": parameters, "strict": tool.strict})
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
    """Return whether a ``tool_choice`` has the form of Responses: a string, or an object with type and name in it."""
    # Chat names a tool in an object inside, Anthropic has other types; the rest is of this API.
    if choice is None or isinstance(choice, str):
        return choice is not None
    if not isinstance(choice, Mapping):
        return True
    type_ = choice.get("type")
    has_inner_object = isinstance(type_, str) and isinstance(choice.get(type_), Mapping)
    return type_ not in _ANTHROPIC_CHOICE_TYPES and not has_inner_object


_ANTHROPIC_CHOICE_TYPES = ("auto", "any", "tool", "none")
