"""Options that more than one API has, each under a name and at a place of its own.

Read from one body and written into another as they stand; only the form of an answer and the wish for probabilities
are said differently. Of these the Messages API has the form alone: its effort is not the same and stays behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

ANTHROPIC_API, CHAT_API, RESPONSES_API, GEMINI_API = "anthropic", "openai-chat", "openai-responses", "gemini"
_OPENAI_SHARED_FIELDS = (
    "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention", "user", "safety_identifier",
    "top_logprobs",
)  # fmt: skip
"""Fields with the same name and values on both APIs of OpenAI (SDK 3.54)."""
_OPTION_PATHS: Mapping[str, Mapping[str, str]] = {
    ANTHROPIC_API: {"format": "output_config.format"},
    CHAT_API: {
        **{name: name for name in _OPENAI_SHARED_FIELDS},
        "effort": "reasoning_effort",
        "verbosity": "verbosity",
        "format": "response_format",
        "logprobs": "logprobs",
        "seed": "seed",
        "frequency_penalty": "frequency_penalty",
        "presence_penalty": "presence_penalty",
    },
    RESPONSES_API: {
        **{name: name for name in _OPENAI_SHARED_FIELDS},
        "effort": "reasoning.effort",
        "verbosity": "text.verbosity",
        "format": "text.format",
        "logprobs": "include",
    },
    GEMINI_API: {
        "top_logprobs": "generationConfig.logprobs",
        "logprobs": "generationConfig.responseLogprobs",
        "format": "generationConfig.responseMimeType",
        "seed": "generationConfig.seed",
        "frequency_penalty": "generationConfig.frequencyPenalty",
        "presence_penalty": "generationConfig.presencePenalty",
    },
}
"""Where each API has an option: a field, or one inside another."""
_LOGPROBS_INCLUDE = "message.output_text.logprobs"
"""What ``include`` of the Responses API names to get probabilities."""
_JSON_MIME = "application/json"
_NAMED_SCHEMA_FORMAT = {"type": "json_schema", "name": "answer"}
"""What OpenAI's APIs want said beside a schema."""
TEXT_FORMAT = {"type": "text"}
"""The form that an answer has where none is asked for."""


class SharedOption(Struct, frozen=True):
    """An option by our name, what is asked for, and the field it stood in."""

    name: str
    value: Any
    source_field: str


def read_shared_options(api: str, body: Mapping[str, Any]) -> tuple[SharedOption, ...]:
    """Return the options in a body that another API may have too."""
    raw = ((name, place, _get_nested_field(body, place)) for name, place in _OPTION_PATHS.get(api, {}).items())
    option_values = (
        (name, place, _to_common_value(api, name, value, body)) for name, place, value in raw if value is not None
    )
    return tuple([SharedOption(name, value, place) for name, place, value in option_values if value is not None])


def list_unread_nested_fields(
    options: tuple[SharedOption, ...], body: Mapping[str, Any], nests: tuple[str, ...]
) -> Iterator[str]:
    """Yield the fields inside ``nests`` that none of ``options`` stood in."""
    read_paths = {option.source_field for option in options}
    if any(option.name == "format" and option.source_field.startswith("generationConfig.") for option in options):
        read_paths |= {"generationConfig.responseSchema", "generationConfig.responseJsonSchema"}
    for nest in nests:
        inner = body.get(nest)
        paths = [f"{nest}.{key}" for key in inner] if isinstance(inner, dict) else [nest] if inner is not None else []
        yield from [path for path in sorted(paths) if path not in read_paths]


def write_shared_options(api: str, options: tuple[SharedOption, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields that say ``options`` in ``api``, and the fields of those that have no place there."""
    out: dict[str, Any] = {}
    dropped_paths = []
    for option in options:
        place = _OPTION_PATHS.get(api, {}).get(option.name)
        value = None if place is None else _to_api_value(api, option)
        if place is not None and value is not None:
            _set_nested_field(out, place, value)
        elif option.value != TEXT_FORMAT:
            dropped_paths.append(option.source_field)
    if api == CHAT_API and "top_logprobs" in out:
        out["logprobs"] = True
    if api == GEMINI_API and "logprobs" in out.get("generationConfig", {}):
        out["generationConfig"]["responseLogprobs"] = True
    return out, tuple(dropped_paths)


def _get_nested_field(body: Mapping[str, Any], path: str) -> Any:
    outer, _, inner = path.partition(".")
    value = body.get(outer)
    return value if not inner else value.get(inner) if isinstance(value, dict) else None


def _set_nested_field(out: dict[str, Any], path: str, value: Any) -> None:
    """Put ``value`` at its place; the fields of an object of no name go beside what stands there."""
    outer, _, inner = path.partition(".")
    if not inner:
        out[outer] = value
    elif isinstance(value, _SiblingFields):
        out.setdefault(outer, {}).update(value.fields)
    else:
        out.setdefault(outer, {})[inner] = value


class _SiblingFields(Struct):
    """Fields that take the place of one."""

    fields: dict[str, Any]


# -- options that are said differently ---------------------------------------------------------------------------------


def _to_common_value(api: str, name: str, value: Any, body: Mapping[str, Any]) -> Any:
    """Return what is asked for, in the form that OpenAI's Responses API has for it; nothing when it is not known."""
    if name == "logprobs":
        return (value == [_LOGPROBS_INCLUDE] if api == RESPONSES_API else value is True) or None
    if name != "format":
        return value
    if api == GEMINI_API:
        return _read_gemini_format(value, body["generationConfig"])
    if not isinstance(value, dict):
        return None
    if api == ANTHROPIC_API:
        return _NAMED_SCHEMA_FORMAT | value
    schema = value.get("json_schema")
    return {"type": "json_schema", **schema} if isinstance(schema, dict) else value


def _read_gemini_format(mime: Any, config: Mapping[str, Any]) -> dict[str, Any] | None:
    if mime != _JSON_MIME:
        return TEXT_FORMAT if mime == "text/plain" else None
    schema = config.get("responseJsonSchema")
    schema = lowercase_schema_types(config.get("responseSchema")) if schema is None else schema
    return {"type": "json_object"} if schema is None else _NAMED_SCHEMA_FORMAT | {"schema": schema}


def lowercase_schema_types(schema: Any) -> Any:
    """Return a schema of Gemini's as JSON Schema: the names of its types are written small."""
    if isinstance(schema, list):
        return [lowercase_schema_types(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else lowercase_schema_types(value)
        for key, value in schema.items()
    }


def forbid_extra_properties(schema: Any) -> Any:
    """Return a schema as the Messages API takes it: an object has no properties but those it names."""
    if isinstance(schema, list):
        return [forbid_extra_properties(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: forbid_extra_properties(value) for key, value in schema.items()}
    return {"additionalProperties": False} | inner if inner.get("type") == "object" else inner


def _to_api_value(api: str, option: SharedOption) -> Any:
    value = option.value
    if option.name == "logprobs":
        return [_LOGPROBS_INCLUDE] if api == RESPONSES_API else value
    if option.name != "format" or api == RESPONSES_API:
        return value
    kind, schema = value.get("type"), {key: inner for key, inner in value.items() if key != "type"}
    if api == CHAT_API:
        return {"type": kind, "json_schema": schema} if kind == "json_schema" else value
    if api == ANTHROPIC_API:
        return {"type": kind, "schema": forbid_extra_properties(schema["schema"])} if "schema" in schema else None
    format_fields = {"responseMimeType": "text/plain" if kind == "text" else _JSON_MIME}
    return _SiblingFields(format_fields | ({"responseJsonSchema": schema["schema"]} if "schema" in schema else {}))
