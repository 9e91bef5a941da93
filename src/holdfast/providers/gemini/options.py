"""Gemini generateContent: read and write the options of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.providers.common.portable_options import (
    FunctionTool,
    OptionFields,
    PortableOptions,
    as_dict,
    as_dict_list,
    as_int,
    as_number,
    as_text,
    as_texts,
    list_unread_fields,
    write_tool_name,
)
from holdfast.providers.common.shared_options import (
    NAMED_SCHEMA_FORMAT,
    TEXT_FORMAT,
    SharedOption,
    SharedOptionForm,
    SiblingFields,
    list_unread_nested_fields,
    read_shared_options,
)

_JSON_MIME = "application/json"


def _read_answer_format(mime: Any, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read the format of an answer in the form of OpenAI's Responses API, or return None if it is unknown."""
    if mime == "text/plain":
        return TEXT_FORMAT
    if mime != _JSON_MIME:
        return None
    config = body["generationConfig"]
    schema = config.get("responseJsonSchema")
    if schema is None:
        schema = _lowercase_schema_types(config.get("responseSchema"))
    if schema is None:
        return {"type": "json_object"}
    return NAMED_SCHEMA_FORMAT | {"schema": schema}


def _lowercase_schema_types(schema: Any) -> Any:
    """Return one of Gemini's schemas as JSON Schema, which writes the names of types in lower case."""
    if isinstance(schema, list):
        return [_lowercase_schema_types(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {}
    for key, value in schema.items():
        is_type_name = key == "type" and isinstance(value, str)
        converted[key] = value.lower() if is_type_name else _lowercase_schema_types(value)
    return converted


def _write_answer_format(answer_format: dict[str, Any]) -> SiblingFields:
    fields = {"responseMimeType": "text/plain" if answer_format.get("type") == "text" else _JSON_MIME}
    if "schema" in answer_format:
        fields["responseJsonSchema"] = answer_format["schema"]
    return SiblingFields(fields)


SHARED_FORM = SharedOptionForm(
    {
        "top_logprobs": "generationConfig.logprobs",
        "logprobs": "generationConfig.responseLogprobs",
        "format": "generationConfig.responseMimeType",
        "seed": "generationConfig.seed",
        "frequency_penalty": "generationConfig.frequencyPenalty",
        "presence_penalty": "generationConfig.presencePenalty",
    },
    _read_answer_format,
    _write_answer_format,
    needs_logprobs_flag=True,
)
"""Options that other APIs have too, and their fields in generateContent."""
# VALIDATED is AUTO with arguments that follow the schema.
_CALLING_MODES = {"AUTO": "auto", "VALIDATED": "auto", "NONE": "none", "ANY": "any"}
# Fields of ``generationConfig`` with an attribute of their own in ``PortableOptions``.
_SAMPLING_FIELDS = frozenset({"maxOutputTokens", "stopSequences", "temperature", "topP", "topK"})


def read_options(body: dict[str, Any]) -> PortableOptions:
    """Read the options of a decoded body, in either spelling of its fields."""
    body = _to_camel_case_fields(body)
    config = _to_camel_case_fields(body.get("generationConfig"))
    body["generationConfig"] = config
    calling = _to_camel_case_fields(_to_camel_case_fields(body.get("toolConfig")).get("functionCallingConfig"))
    declarations: list[dict[str, Any]] = []
    other_tools: list[str] = []
    for tool in as_dict_list(body.get("tools")):
        group = _to_camel_case_fields(tool)
        declarations += as_dict_list(group.get("functionDeclarations"))
        other_tools += [key for key in group if key != "functionDeclarations"]
    choice = _CALLING_MODES.get(as_text(calling.get("mode")).upper(), "")
    allowed = as_texts(calling.get("allowedFunctionNames"))
    # A choice among one function only is how this API names a single tool.
    is_single_tool = choice == "any" and len(allowed) == 1
    shared_options = read_shared_options(SHARED_FORM, body)
    other_config = {}
    for key, value in config.items():
        if key not in _SAMPLING_FIELDS:
            other_config[key] = value
    unread_config = list_unread_nested_fields(
        shared_options,
        {"generationConfig": other_config},
        ("generationConfig",),
        _list_schema_fields(shared_options),
    )
    return PortableOptions(
        system=as_texts(as_dict(body.get("systemInstruction")).get("parts", [])),
        tools=tuple([_read_function_declaration(declaration) for declaration in declarations]),
        other_tools=tuple(other_tools),
        tool_choice="tool" if is_single_tool else choice,
        chosen_tool=allowed[0] if is_single_tool else "",
        allowed_tools=() if is_single_tool else allowed,
        shared_options=shared_options,
        max_tokens=as_int(config.get("maxOutputTokens")),
        stop_sequences=as_texts(config.get("stopSequences")),
        temperature=as_number(config.get("temperature")),
        top_p=as_number(config.get("topP")),
        top_k=as_number(config.get("topK")),
        unread_fields=(
            *list_unread_fields(body, "systemInstruction tools toolConfig generationConfig"),
            *unread_config,
        ),
    )


def _list_schema_fields(options: Sequence[SharedOption]) -> tuple[str, ...]:
    """List the schema fields, which are read together with the answer format if one is asked for."""
    if any(option.name == "format" for option in options):
        return ("generationConfig.responseSchema", "generationConfig.responseJsonSchema")
    return ()


def _to_camel_case_fields(value: Any) -> dict[str, Any]:
    """Return an object with its fields in camelCase, whichever spelling they have."""
    return {_to_camel_case(key): inner for key, inner in as_dict(value).items()}


def _to_camel_case(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join([word[:1].upper() + word[1:] for word in rest])


def _read_function_declaration(tool: dict[str, Any]) -> FunctionTool:
    tool = _to_camel_case_fields(tool)
    schema = tool.get("parametersJsonSchema", _lowercase_schema_types(tool.get("parameters")))
    return FunctionTool(
        as_text(tool.get("name")),
        as_text(tool.get("description")),
        schema,
    )


def write_options(options: PortableOptions) -> OptionFields:
    """Return the fields that ask for ``options``, and a note for each option without a form in generateContent."""
    config = {
        "maxOutputTokens": options.max_tokens,
        "stopSequences": list(options.stop_sequences[:_MAX_STOP_SEQUENCES]) or None,
        "temperature": options.temperature,
        "topP": options.top_p,
        "topK": options.top_k,
    }
    set_config = {key: value for key, value in config.items() if value is not None}
    declarations = []
    for tool in options.tools:
        declaration = write_tool_name(tool)
        if tool.schema:
            declaration["parametersJsonSchema"] = tool.schema
        declarations.append(declaration)
    calling: dict[str, Any] = {"mode": options.tool_choice.upper()}
    if options.tool_choice == "tool":
        calling = {"mode": "ANY", "allowedFunctionNames": [options.chosen_tool]}
    body = {
        "tools": [{"functionDeclarations": declarations}] if declarations else None,
        "toolConfig": {"functionCallingConfig": calling} if declarations and options.tool_choice else None,
        "generationConfig": set_config or None,
    }
    notes = []
    if len(options.stop_sequences) > _MAX_STOP_SEQUENCES:
        notes.append("the stop sequences after the fifth: left out, the API takes five")
    if options.stream:
        notes.append("stream: left out, the address of the request says it")
    if options.parallel_calls is False:
        notes.append("parallel_calls: left out, the API has no such option")
    return body, tuple(notes)


_MAX_STOP_SEQUENCES = 5
"""The limit in the API reference."""


def is_own_tool_choice(choice: Any) -> bool:
    """Return whether a body has no ``tool_choice``, a field that Gemini does not know."""
    return choice is None
