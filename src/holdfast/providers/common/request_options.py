"""What a request asks for beside its messages, read from a body of one API and written for another.

Tools that the client runs, which of them may be called, the longest answer, where to stop, and how to sample. What the
provider runs itself, and every other field, has no form elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.errors import FormatError
from holdfast.providers.common import shared_options as common
from holdfast.providers.common.shared_options import SharedOption

DEFAULT_ANTHROPIC_MAX_TOKENS = 4_096
"""The longest answer asked of the Messages API, which must be told one, where a request of another API names none."""


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


def read_request_options(api: str, fields: Mapping[str, Raw], messages_field: str) -> PortableOptions:
    """Return what the fields of a body ask for; ``messages_field`` is the field of its messages."""
    plain = {key: _decode_option(raw, key) for key, raw in fields.items() if key not in (messages_field, "model")}
    return _OPTION_READERS[api]({key: value for key, value in plain.items() if value is not None})


def write_request_options(api: str, options: PortableOptions) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields of a body that asks for the same, and what of it has no form there; the system goes apart."""
    body, notes = _OPTION_WRITERS[api](options)
    option_fields, dropped_fields = common.write_shared_options(api, options.shared_options)
    for key, value in option_fields.items():
        old_value = body.get(key)
        body[key] = old_value | value if isinstance(old_value, dict) else value
    fields = {key: value for key, value in body.items() if value not in (None, [], ())}
    tool_names = ", ".join(map(repr, options.allowed_tools))
    choice_notes = (f"that only {tool_names} of the tools may be called has no form there",) if tool_names else ()
    return fields, (*notes, *choice_notes, *(f"the field {name}: left out" for name in dropped_fields))


def _decode_option(raw: Raw, key: str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"$.{key} cannot be read: {error}; send valid JSON") from None


# -- small readers -----------------------------------------------------------------------------------------------------


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _as_dict_list(value: Any) -> list[dict[str, Any]]:
    return [element for element in value if isinstance(element, dict)] if isinstance(value, list) else []


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _as_number(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _as_int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _as_texts(value: Any) -> tuple[str, ...]:
    """Return the words of a prompt or the marks of a stop: a string, or a list of strings or of texts."""
    if isinstance(value, str):
        return (value,)
    elements = value if isinstance(value, list) else ()
    return tuple([_as_text(element) or _as_text(_as_dict(element).get("text")) for element in elements])


def _as_bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _list_unread_fields(
    body: Mapping[str, Any], field_names: str, options: tuple[SharedOption, ...] = (), nests: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the fields that are read neither here nor as one of ``options``; of ``nests``, those inside."""
    read_paths = {*field_names.split(), *nests, *(option.source_field for option in options)}
    return (*sorted(body.keys() - read_paths), *common.list_unread_nested_fields(options, body, nests))


def _read_sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _as_number(body.get(key)) for key in ("temperature", "top_p", "top_k")}


# -- reading -----------------------------------------------------------------------------------------------------------


def _read_anthropic_options(body: dict[str, Any]) -> PortableOptions:
    tools, choice = _as_dict_list(body.get("tools")), _as_dict(body.get("tool_choice"))
    own = [tool for tool in tools if tool.get("type") in (None, "custom")]
    alone = _as_bool(choice.get("disable_parallel_tool_use"))
    field_names = "system tools tool_choice max_tokens stop_sequences temperature top_p top_k stream"
    options = common.read_shared_options("anthropic", body)
    return PortableOptions(
        system=_as_texts(body.get("system", [])),
        tools=tuple([_read_tool(tool, "input_schema") for tool in own]),
        other_tools=tuple([_as_text(tool["type"]) for tool in tools if tool not in own]),
        tool_choice=_as_text(choice.get("type")),
        chosen_tool=_as_text(choice.get("name")),
        parallel_calls=None if alone is None else not alone,
        max_tokens=_as_int(body.get("max_tokens")),
        stop_sequences=_as_texts(body.get("stop_sequences")),
        stream=_as_bool(body.get("stream")),
        shared_options=options,
        unread_fields=_list_unread_fields(body, field_names, options, ("output_config",)),
        **_read_sampling(body),
    )


def _read_tool(tool: Mapping[str, Any], schema: str) -> FunctionTool:
    strict = bool(tool.get("strict"))
    return FunctionTool(_as_text(tool.get("name")), _as_text(tool.get("description")), tool.get(schema), strict)


def _read_chat_options(body: dict[str, Any]) -> PortableOptions:
    tools = _as_dict_list(body.get("tools")) + [
        {"type": "function", "function": function} for function in _as_dict_list(body.get("functions"))
    ]
    limit = _as_int(body.get("max_completion_tokens"))
    field_names = (
        "tools functions tool_choice max_completion_tokens max_tokens stop temperature top_p stream stream_options"
    )
    choice, chosen, allowed = _read_openai_tool_choice(body.get("tool_choice"))
    options = common.read_shared_options("openai-chat", body)
    return PortableOptions(
        tools=tuple([_read_tool(_as_dict(tool.get("function")), "parameters") for tool in tools if "function" in tool]),
        other_tools=tuple([_as_text(tool.get("type")) for tool in tools if "function" not in tool]),
        tool_choice=choice,
        chosen_tool=chosen,
        allowed_tools=allowed,
        shared_options=options,
        parallel_calls=_as_bool(body.get("parallel_tool_calls")),
        max_tokens=_as_int(body.get("max_tokens")) if limit is None else limit,
        stop_sequences=_as_texts(body.get("stop")),
        stream=_as_bool(body.get("stream")),
        unread_fields=_list_unread_fields(body, field_names + " parallel_tool_calls logprobs", options),
        **_read_sampling(body),
    )


def _read_openai_tool_choice(value: Any) -> tuple[str, str, tuple[str, ...]]:
    """Return which kind of choice it is, the one tool that is named, and those that are allowed."""
    if isinstance(value, str):
        return {"required": "any"}.get(value, value), "", ()
    choice = _as_dict(value)
    if choice.get("type") == "allowed_tools":
        choice = _as_dict(choice.get("allowed_tools")) or choice
        mode = _as_text(choice.get("mode"))
        names = [_get_tool_name(tool) for tool in _as_dict_list(choice.get("tools"))]
        return {"required": "any"}.get(mode, mode), "", tuple([name for name in names if name])
    tool_name = _get_tool_name(choice)
    return ("tool", tool_name, ()) if tool_name else ("", "", ())


def _get_tool_name(tool: Mapping[str, Any]) -> str:
    return _as_text(_as_dict(tool.get("function")).get("name")) or _as_text(tool.get("name"))


def _read_responses_options(body: dict[str, Any]) -> PortableOptions:
    tools = _as_dict_list(body.get("tools"))
    own = [tool for tool in tools if tool.get("type") == "function"]
    field_names = "instructions tools tool_choice max_output_tokens temperature top_p stream parallel_tool_calls"
    choice, chosen, allowed = _read_openai_tool_choice(body.get("tool_choice"))
    options = common.read_shared_options("openai-responses", body)
    return PortableOptions(
        system=_as_texts(body.get("instructions", [])),
        tools=tuple([_read_tool(tool, "parameters") for tool in own]),
        other_tools=tuple([_as_text(tool.get("type")) for tool in tools if tool not in own]),
        tool_choice=choice,
        chosen_tool=chosen,
        allowed_tools=allowed,
        shared_options=options,
        parallel_calls=_as_bool(body.get("parallel_tool_calls")),
        max_tokens=_as_int(body.get("max_output_tokens")),
        stream=_as_bool(body.get("stream")),
        unread_fields=_list_unread_fields(body, field_names, options, ("reasoning", "text")),
        **_read_sampling(body),
    )


def _read_gemini_options(body: dict[str, Any]) -> PortableOptions:
    options = _to_camel_case_fields(_to_camel_case_fields(body).get("generationConfig"))
    body = _to_camel_case_fields(body) | {"generationConfig": options}
    calling = _to_camel_case_fields(_to_camel_case_fields(body.get("toolConfig")).get("functionCallingConfig"))
    groups = [_to_camel_case_fields(group) for group in _as_dict_list(body.get("tools"))]
    allowed = _as_texts(calling.get("allowedFunctionNames"))
    choice = _GEMINI_MODES.get(_as_text(calling.get("mode")).upper(), "")
    common_options = common.read_shared_options("gemini", body)
    plain = {key: value for key, value in options.items() if key not in _GEMINI_SAMPLING}
    only = choice == "any" and len(allowed) == 1
    return PortableOptions(
        system=_as_texts(_as_dict(body.get("systemInstruction")).get("parts", [])),
        tools=tuple(
            [
                _read_function_declaration(declaration)
                for group in groups
                for declaration in _as_dict_list(group.get("functionDeclarations"))
            ]
        ),
        other_tools=tuple([key for group in groups for key in group if key != "functionDeclarations"]),
        tool_choice="tool" if only else choice,
        chosen_tool=allowed[0] if only else "",
        allowed_tools=() if only else allowed,
        shared_options=common_options,
        max_tokens=_as_int(options.get("maxOutputTokens")),
        stop_sequences=_as_texts(options.get("stopSequences")),
        temperature=_as_number(options.get("temperature")),
        top_p=_as_number(options.get("topP")),
        top_k=_as_number(options.get("topK")),
        unread_fields=(
            *_list_unread_fields(body, "systemInstruction tools toolConfig generationConfig"),
            *common.list_unread_nested_fields(common_options, {"generationConfig": plain}, ("generationConfig",)),
        ),
    )


_GEMINI_MODES = {"AUTO": "auto", "VALIDATED": "auto", "NONE": "none", "ANY": "any"}
_GEMINI_SAMPLING = frozenset({"maxOutputTokens", "stopSequences", "temperature", "topP", "topK"})


def _to_camel_case_fields(value: Any) -> dict[str, Any]:
    """Return an object with its fields in camel case, whichever of Gemini's two spellings they have."""
    return {_to_camel_case(key): inner for key, inner in _as_dict(value).items()}


def _to_camel_case(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join([word[:1].upper() + word[1:] for word in rest])


def _read_function_declaration(tool: dict[str, Any]) -> FunctionTool:
    tool = _to_camel_case_fields(tool)
    schema = tool.get("parametersJsonSchema", common.lowercase_schema_types(tool.get("parameters")))
    return FunctionTool(_as_text(tool.get("name")), _as_text(tool.get("description")), schema)


_OPTION_READERS: Mapping[str, Callable[[dict[str, Any]], PortableOptions]] = {
    "anthropic": _read_anthropic_options,
    "openai-chat": _read_chat_options,
    "openai-responses": _read_responses_options,
    "gemini": _read_gemini_options,
}


# -- writing -----------------------------------------------------------------------------------------------------------

OptionFields = tuple[dict[str, Any], tuple[str, ...]]
_EMPTY_SCHEMA = {"type": "object", "properties": {}}


def _describe_lost_options(options: PortableOptions, *names: str) -> Iterator[str]:
    """Yield the options of ``names`` that are asked for, by the words for them."""
    for name in names:
        if getattr(options, name) not in (None, (), ""):
            yield f"{name} has no form there"


def _write_tool_name(tool: FunctionTool) -> dict[str, Any]:
    return {"name": tool.name} | ({"description": tool.description} if tool.description else {})


def _write_anthropic_options(options: PortableOptions) -> OptionFields:
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
        else (f"max_tokens is set to {DEFAULT_ANTHROPIC_MAX_TOKENS}, since one must be named there",)
    )
    tools = [
        _write_tool_name(tool)
        | {"input_schema": tool.schema or {"type": "object"}}
        | ({"strict": True} if tool.strict else {})
        for tool in options.tools
    ]
    body = {
        "max_tokens": DEFAULT_ANTHROPIC_MAX_TOKENS if options.max_tokens is None else options.max_tokens,
        "tools": tools,
        "tool_choice": choice if options.tools and choice else None,
        "stop_sequences": list(options.stop_sequences),
        "temperature": 1 if warm else options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "stream": options.stream,
    }
    return body, (*notes, *(["temperature is lowered to 1, the highest there"] if warm else ()))


def _write_chat_options(options: PortableOptions) -> OptionFields:
    function_choice = {"type": "function", "function": {"name": options.chosen_tool}}
    tools = [
        {
            "type": "function",
            "function": _write_tool_name(tool)
            | {"parameters": tool.schema or _EMPTY_SCHEMA}
            | _write_strict_flag(tool),
        }
        for tool in options.tools
    ]
    body = {
        "max_completion_tokens": options.max_tokens,
        "tools": tools,
        "tool_choice": _write_openai_tool_choice(options, function_choice),
        "parallel_tool_calls": options.parallel_calls if options.tools else None,
        "stop": list(options.stop_sequences[:4]),
        "temperature": options.temperature,
        "top_p": options.top_p,
        "stream": options.stream,
    }
    many = ("of the stop sequences only four may stand there",) if len(options.stop_sequences) > 4 else ()
    return body, (*many, *_describe_lost_options(options, "top_k"))


def _write_strict_flag(tool: FunctionTool) -> dict[str, Any]:
    return {"strict": True} if tool.strict else {}


def _write_openai_tool_choice(options: PortableOptions, function_choice: dict[str, Any]) -> Any:
    if not options.tools or not options.tool_choice:
        return None
    return (
        function_choice
        if options.tool_choice == "tool"
        else {"any": "required"}.get(options.tool_choice, options.tool_choice)
    )


def _write_responses_options(options: PortableOptions) -> OptionFields:
    tools = [
        {
            "type": "function",
            **_write_tool_name(tool),
            "parameters": tool.schema or _EMPTY_SCHEMA,
            "strict": tool.strict,
        }
        for tool in options.tools
    ]
    body = {
        "max_output_tokens": options.max_tokens,
        "tools": tools,
        "tool_choice": _write_openai_tool_choice(options, {"type": "function", "name": options.chosen_tool}),
        "parallel_tool_calls": options.parallel_calls if options.tools else None,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "stream": options.stream,
    }
    return body, tuple(_describe_lost_options(options, "top_k", "stop_sequences"))


def _write_gemini_options(asked: PortableOptions) -> OptionFields:
    options = {
        "maxOutputTokens": asked.max_tokens,
        "stopSequences": list(asked.stop_sequences[:5]) or None,
        "temperature": asked.temperature,
        "topP": asked.top_p,
        "topK": asked.top_k,
    }
    given_options = {key: value for key, value in options.items() if value is not None}
    declarations = [
        _write_tool_name(tool) | ({"parametersJsonSchema": tool.schema} if tool.schema else {}) for tool in asked.tools
    ]
    mode: dict[str, Any] = {"mode": {"tool": "ANY"}.get(asked.tool_choice, asked.tool_choice.upper())}
    mode |= {"allowedFunctionNames": [asked.chosen_tool]} if asked.tool_choice == "tool" else {}
    body = {
        "tools": [{"functionDeclarations": declarations}] if declarations else None,
        "toolConfig": {"functionCallingConfig": mode} if declarations and asked.tool_choice else None,
        "generationConfig": given_options or None,
    }
    many = ("of the stop sequences only five may stand there",) if len(asked.stop_sequences) > 5 else ()
    stream = ("stream is told by the address there",) if asked.stream else ()
    return body, (*many, *stream, *(["parallel_calls has no form there"] if asked.parallel_calls is False else ()))


_OPTION_WRITERS: Mapping[str, Callable[[PortableOptions], OptionFields]] = {
    "anthropic": _write_anthropic_options,
    "openai-chat": _write_chat_options,
    "openai-responses": _write_responses_options,
    "gemini": _write_gemini_options,
}
