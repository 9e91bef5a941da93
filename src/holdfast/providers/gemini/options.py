"""Gemini generateContent: what a request asks for beside its contents, read and written."""

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
    """Return the form that an answer shall have, in that of OpenAI's Responses API; nothing when it is not known."""
    if mime != _JSON_MIME:
        return TEXT_FORMAT if mime == "text/plain" else None
    config = body["generationConfig"]
    schema = config.get("responseJsonSchema")
    schema = _lowercase_schema_types(config.get("responseSchema")) if schema is None else schema
    return {"type": "json_object"} if schema is None else NAMED_SCHEMA_FORMAT | {"schema": schema}


def _lowercase_schema_types(schema: Any) -> Any:
    """Return a schema of Gemini's as JSON Schema: the names of its types are written small."""
    if isinstance(schema, list):
        return [_lowercase_schema_types(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else _lowercase_schema_types(value)
        for key, value in schema.items()
    }


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
"""Options that other APIs have too, and where they stand here."""
_CALLING_MODES = {"AUTO": "auto", "VALIDATED": "auto", "NONE": "none", "ANY": "any"}
_SAMPLING_FIELDS = frozenset({"maxOutputTokens", "stopSequences", "temperature", "topP", "topK"})


def read_options(body: dict[str, Any]) -> PortableOptions:
    """Return what the fields of a body ask for."""
    options = _to_camel_case_fields(_to_camel_case_fields(body).get("generationConfig"))
    body = _to_camel_case_fields(body) | {"generationConfig": options}
    calling = _to_camel_case_fields(_to_camel_case_fields(body.get("toolConfig")).get("functionCallingConfig"))
    groups = [_to_camel_case_fields(group) for group in as_dict_list(body.get("tools"))]
    allowed = as_texts(calling.get("allowedFunctionNames"))
    choice = _CALLING_MODES.get(as_text(calling.get("mode")).upper(), "")
    common_options = read_shared_options(SHARED_FORM, body)
    plain = {key: value for key, value in options.items() if key not in _SAMPLING_FIELDS}
    only = choice == "any" and len(allowed) == 1
    return PortableOptions(
        system=as_texts(as_dict(body.get("systemInstruction")).get("parts", [])),
        tools=tuple(
            [
                _read_function_declaration(declaration)
                for group in groups
                for declaration in as_dict_list(group.get("functionDeclarations"))
            ]
        ),
        other_tools=tuple([key for group in groups for key in group if key != "functionDeclarations"]),
        tool_choice="tool" if only else choice,
        chosen_tool=allowed[0] if only else "",
        allowed_tools=() if only else allowed,
        shared_options=common_options,
        max_tokens=as_int(options.get("maxOutputTokens")),
        stop_sequences=as_texts(options.get("stopSequences")),
        temperature=as_number(options.get("temperature")),
        top_p=as_number(options.get("topP")),
        top_k=as_number(options.get("topK")),
        unread_fields=(
            *list_unread_fields(body, "systemInstruction tools toolConfig generationConfig"),
            *list_unread_nested_fields(
                common_options, {"generationConfig": plain}, ("generationConfig",), _list_schema_fields(common_options)
            ),
        ),
    )


def _list_schema_fields(options: Sequence[SharedOption]) -> tuple[str, ...]:
    """Return the fields that are read together with the form of an answer, where one is asked for."""
    if any(option.name == "format" for option in options):
        return ("generationConfig.responseSchema", "generationConfig.responseJsonSchema")
    return ()


def _to_camel_case_fields(value: Any) -> dict[str, Any]:
    """Return an object with its fields in camel case, whichever of Gemini's two spellings they have."""
    return {_to_camel_case(key): inner for key, inner in as_dict(value).items()}


def _to_camel_case(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join([word[:1].upper() + word[1:] for word in rest])


def _read_function_declaration(tool: dict[str, Any]) -> FunctionTool:
    tool = _to_camel_case_fields(tool)
    schema = tool.get("parametersJsonSchema", _lowercase_schema_types(tool.get("parameters")))
    return FunctionTool(as_text(tool.get("name")), as_text(tool.get("description")), schema)


def write_options(asked: PortableOptions) -> OptionFields:
    """Return the fields of a body that asks for the same, and what of it has no form here."""
    options = {
        "maxOutputTokens": asked.max_tokens,
        "stopSequences": list(asked.stop_sequences[:5]) or None,
        "temperature": asked.temperature,
        "topP": asked.top_p,
        "topK": asked.top_k,
    }
    given_options = {key: value for key, value in options.items() if value is not None}
    declarations = [
        write_tool_name(tool) | ({"parametersJsonSchema": tool.schema} if tool.schema else {}) for tool in asked.tools
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


def is_own_tool_choice(choice: Any) -> bool:
    """Return whether the body says nothing in ``tool_choice``, which Gemini does not have."""
    return choice is None
