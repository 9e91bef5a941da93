"""Options that more than one API has, each under a name and at a place of its own.

Read from one body and written into another as they stand; only the form of an answer and the wish for probabilities
are said differently. Of these the Messages API has the form alone: its effort is not the same and stays behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

ANTHROPIC, CHAT, RESPONSES, GEMINI = "anthropic", "openai-chat", "openai-responses", "gemini"
_SAME = (
    "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention", "user", "safety_identifier",
    "top_logprobs",
)  # fmt: skip
"""Fields with the same name and values on both APIs of OpenAI (SDK 3.54)."""
_PLACES: Mapping[str, Mapping[str, str]] = {
    ANTHROPIC: {"format": "output_config.format"},
    CHAT: {
        **{name: name for name in _SAME},
        "effort": "reasoning_effort",
        "verbosity": "verbosity",
        "format": "response_format",
        "logprobs": "logprobs",
        "seed": "seed",
        "frequency_penalty": "frequency_penalty",
        "presence_penalty": "presence_penalty",
    },
    RESPONSES: {
        **{name: name for name in _SAME},
        "effort": "reasoning.effort",
        "verbosity": "text.verbosity",
        "format": "text.format",
        "logprobs": "include",
    },
    GEMINI: {
        "top_logprobs": "generationConfig.logprobs",
        "logprobs": "generationConfig.responseLogprobs",
        "format": "generationConfig.responseMimeType",
        "seed": "generationConfig.seed",
        "frequency_penalty": "generationConfig.frequencyPenalty",
        "presence_penalty": "generationConfig.presencePenalty",
    },
}
"""Where each API has an option: a field, or one inside another."""
_PROBABLE = "message.output_text.logprobs"
"""What ``include`` of the Responses API names to get probabilities."""
_JSON = "application/json"
_NAMED = {"type": "json_schema", "name": "answer"}
"""What OpenAI's APIs want said beside a schema."""
WORDS = {"type": "text"}
"""The form that an answer has where none is asked for."""


class Option(Struct, frozen=True):
    """An option by our name, what is asked for, and the field it stood in."""

    name: str
    value: Any
    at: str


def found(api: str, body: Mapping[str, Any]) -> tuple[Option, ...]:
    """Return the options in a body that another API may have too."""
    raw = ((name, place, _at(body, place)) for name, place in _PLACES.get(api, {}).items())
    read = ((name, place, _read(api, name, value, body)) for name, place, value in raw if value is not None)
    return tuple([Option(name, value, place) for name, place, value in read if value is not None])


def left(options: tuple[Option, ...], body: Mapping[str, Any], nests: tuple[str, ...]) -> Iterator[str]:
    """Yield the fields inside ``nests`` that none of ``options`` stood in."""
    read = {option.at for option in options}
    if any(option.name == "format" and option.at.startswith("generationConfig.") for option in options):
        read |= {"generationConfig.responseSchema", "generationConfig.responseJsonSchema"}
    for nest in nests:
        inner = body.get(nest)
        paths = [f"{nest}.{key}" for key in inner] if isinstance(inner, dict) else [nest] if inner is not None else []
        yield from [path for path in sorted(paths) if path not in read]


def placed(api: str, options: tuple[Option, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields that say ``options`` in ``api``, and the fields of those that have no place there."""
    out: dict[str, Any] = {}
    lost = []
    for option in options:
        place = _PLACES.get(api, {}).get(option.name)
        value = None if place is None else _written(api, option)
        if place is not None and value is not None:
            _put(out, place, value)
        elif option.value != WORDS:
            lost.append(option.at)
    if api == CHAT and "top_logprobs" in out:
        out["logprobs"] = True
    if api == GEMINI and "logprobs" in out.get("generationConfig", {}):
        out["generationConfig"]["responseLogprobs"] = True
    return out, tuple(lost)


def _at(body: Mapping[str, Any], place: str) -> Any:
    outer, _, inner = place.partition(".")
    value = body.get(outer)
    return value if not inner else value.get(inner) if isinstance(value, dict) else None


def _put(out: dict[str, Any], place: str, value: Any) -> None:
    """Put ``value`` at its place; the fields of an object of no name go beside what stands there."""
    outer, _, inner = place.partition(".")
    if not inner:
        out[outer] = value
    elif isinstance(value, _Beside):
        out.setdefault(outer, {}).update(value.fields)
    else:
        out.setdefault(outer, {})[inner] = value


class _Beside(Struct):
    """Fields that take the place of one."""

    fields: dict[str, Any]


# -- options that are said differently ---------------------------------------------------------------------------------


def _read(api: str, name: str, value: Any, body: Mapping[str, Any]) -> Any:
    """Return what is asked for, in the form that OpenAI's Responses API has for it; nothing when it is not known."""
    if name == "logprobs":
        return (value == [_PROBABLE] if api == RESPONSES else value is True) or None
    if name != "format":
        return value
    if api == GEMINI:
        return _of_gemini(value, body["generationConfig"])
    if not isinstance(value, dict):
        return None
    if api == ANTHROPIC:
        return _NAMED | value
    schema = value.get("json_schema")
    return {"type": "json_schema", **schema} if isinstance(schema, dict) else value


def _of_gemini(mime: Any, config: Mapping[str, Any]) -> dict[str, Any] | None:
    if mime != _JSON:
        return WORDS if mime == "text/plain" else None
    schema = config.get("responseJsonSchema")
    schema = lowered(config.get("responseSchema")) if schema is None else schema
    return {"type": "json_object"} if schema is None else _NAMED | {"schema": schema}


def lowered(schema: Any) -> Any:
    """Return a schema of Gemini's as JSON Schema: the names of its types are written small."""
    if isinstance(schema, list):
        return [lowered(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else lowered(value)
        for key, value in schema.items()
    }


def closed(schema: Any) -> Any:
    """Return a schema as the Messages API takes it: an object has no properties but those it names."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    return {"additionalProperties": False} | inner if inner.get("type") == "object" else inner


def _written(api: str, option: Option) -> Any:
    value = option.value
    if option.name == "logprobs":
        return [_PROBABLE] if api == RESPONSES else value
    if option.name != "format" or api == RESPONSES:
        return value
    kind, schema = value.get("type"), {key: inner for key, inner in value.items() if key != "type"}
    if api == CHAT:
        return {"type": kind, "json_schema": schema} if kind == "json_schema" else value
    if api == ANTHROPIC:
        return {"type": kind, "schema": closed(schema["schema"])} if "schema" in schema else None
    told = {"responseMimeType": "text/plain" if kind == "text" else _JSON}
    return _Beside(told | ({"responseJsonSchema": schema["schema"]} if "schema" in schema else {}))
