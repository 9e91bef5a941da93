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
from holdfast.providers.common.shared_options import Option

NEEDED = 4_096
"""The longest answer asked of the Messages API, which must be told one, where a request of another API names none."""


class Tool(Struct, frozen=True):
    """A function that the client runs."""

    name: str
    description: str = ""
    schema: Any = None
    """Its arguments as JSON Schema."""
    strict: bool = False


class Asked(Struct, frozen=True):
    """What a request asks for; nothing = it does not say."""

    system: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()
    others: tuple[str, ...] = ()
    """Tools that are no functions of the client's, by their types."""
    choice: str = ""
    """``auto``, ``none``, ``any``, or ``tool`` for the one named ``chosen``."""
    chosen: str = ""
    allowed: tuple[str, ...] = ()
    """The only ones that may be called, where that is said of several."""
    parallel: bool | None = None
    limit: int | None = None
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    stream: bool | None = None
    options: tuple[Option, ...] = ()
    """What is asked for that other APIs have under other names."""
    left: tuple[str, ...] = ()
    """Fields that are not read here."""


def read(api: str, found: Mapping[str, Raw], lists: str) -> Asked:
    """Return what the fields of a body ask for; ``lists`` is the field of its messages."""
    plain = {key: _plain(raw, key) for key, raw in found.items() if key not in (lists, "model")}
    return _READ[api]({key: value for key, value in plain.items() if value is not None})


def write(api: str, asked: Asked) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields of a body that asks for the same, and what of it has no form there; the system goes apart."""
    body, lost = _WRITE[api](asked)
    more, gone = common.placed(api, asked.options)
    for key, value in more.items():
        held = body.get(key)
        body[key] = held | value if isinstance(held, dict) else value
    kept = {key: value for key, value in body.items() if value not in (None, [], ())}
    some = ", ".join(map(repr, asked.allowed))
    limited = (f"that only {some} of the tools may be called has no form there",) if some else ()
    return kept, (*lost, *limited, *(f"the field {name}: left out" for name in gone))


def _plain(raw: Raw, key: str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"$.{key} cannot be read: {error}; send valid JSON") from None


# -- small readers -----------------------------------------------------------------------------------------------------


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _texts(value: Any) -> tuple[str, ...]:
    """Return the words of a prompt or the marks of a stop: a string, or a list of strings or of texts."""
    if isinstance(value, str):
        return (value,)
    listed = value if isinstance(value, list) else ()
    return tuple([_text(one) or _text(_object(one).get("text")) for one in listed])


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _left(
    body: Mapping[str, Any], known: str, options: tuple[Option, ...] = (), nests: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the fields that are read neither here nor as one of ``options``; of ``nests``, those inside."""
    read = {*known.split(), *nests, *(option.at for option in options)}
    return (*sorted(body.keys() - read), *common.left(options, body, nests))


def _sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _number(body.get(key)) for key in ("temperature", "top_p", "top_k")}


# -- reading -----------------------------------------------------------------------------------------------------------


def _of_anthropic(body: dict[str, Any]) -> Asked:
    tools, choice = _objects(body.get("tools")), _object(body.get("tool_choice"))
    own = [tool for tool in tools if tool.get("type") in (None, "custom")]
    alone = _flag(choice.get("disable_parallel_tool_use"))
    known = "system tools tool_choice max_tokens stop_sequences temperature top_p top_k stream"
    options = common.found("anthropic", body)
    return Asked(
        system=_texts(body.get("system", [])),
        tools=tuple([_tool(tool, "input_schema") for tool in own]),
        others=tuple([_text(tool["type"]) for tool in tools if tool not in own]),
        choice=_text(choice.get("type")),
        chosen=_text(choice.get("name")),
        parallel=None if alone is None else not alone,
        limit=_whole(body.get("max_tokens")),
        stop=_texts(body.get("stop_sequences")),
        stream=_flag(body.get("stream")),
        options=options,
        left=_left(body, known, options, ("output_config",)),
        **_sampling(body),
    )


def _tool(tool: Mapping[str, Any], schema: str) -> Tool:
    strict = bool(tool.get("strict"))
    return Tool(_text(tool.get("name")), _text(tool.get("description")), tool.get(schema), strict)


def _of_chat(body: dict[str, Any]) -> Asked:
    tools = _objects(body.get("tools")) + [
        {"type": "function", "function": one} for one in _objects(body.get("functions"))
    ]
    limit = _whole(body.get("max_completion_tokens"))
    known = "tools functions tool_choice max_completion_tokens max_tokens stop temperature top_p stream stream_options"
    choice, chosen, allowed = _openai_choice(body.get("tool_choice"))
    options = common.found("openai-chat", body)
    return Asked(
        tools=tuple([_tool(_object(tool.get("function")), "parameters") for tool in tools if "function" in tool]),
        others=tuple([_text(tool.get("type")) for tool in tools if "function" not in tool]),
        choice=choice,
        chosen=chosen,
        allowed=allowed,
        options=options,
        parallel=_flag(body.get("parallel_tool_calls")),
        limit=_whole(body.get("max_tokens")) if limit is None else limit,
        stop=_texts(body.get("stop")),
        stream=_flag(body.get("stream")),
        left=_left(body, known + " parallel_tool_calls logprobs", options),
        **_sampling(body),
    )


def _openai_choice(value: Any) -> tuple[str, str, tuple[str, ...]]:
    """Return which kind of choice it is, the one tool that is named, and those that are allowed."""
    if isinstance(value, str):
        return {"required": "any"}.get(value, value), "", ()
    found = _object(value)
    if found.get("type") == "allowed_tools":
        found = _object(found.get("allowed_tools")) or found
        mode = _text(found.get("mode"))
        names = [_named_tool(one) for one in _objects(found.get("tools"))]
        return {"required": "any"}.get(mode, mode), "", tuple([name for name in names if name])
    named = _named_tool(found)
    return ("tool", named, ()) if named else ("", "", ())


def _named_tool(tool: Mapping[str, Any]) -> str:
    return _text(_object(tool.get("function")).get("name")) or _text(tool.get("name"))


def _of_responses(body: dict[str, Any]) -> Asked:
    tools = _objects(body.get("tools"))
    own = [tool for tool in tools if tool.get("type") == "function"]
    known = "instructions tools tool_choice max_output_tokens temperature top_p stream parallel_tool_calls"
    choice, chosen, allowed = _openai_choice(body.get("tool_choice"))
    options = common.found("openai-responses", body)
    return Asked(
        system=_texts(body.get("instructions", [])),
        tools=tuple([_tool(tool, "parameters") for tool in own]),
        others=tuple([_text(tool.get("type")) for tool in tools if tool not in own]),
        choice=choice,
        chosen=chosen,
        allowed=allowed,
        options=options,
        parallel=_flag(body.get("parallel_tool_calls")),
        limit=_whole(body.get("max_output_tokens")),
        stream=_flag(body.get("stream")),
        left=_left(body, known, options, ("reasoning", "text")),
        **_sampling(body),
    )


def _of_gemini(body: dict[str, Any]) -> Asked:
    options = _spelt(_spelt(body).get("generationConfig"))
    body = _spelt(body) | {"generationConfig": options}
    calling = _spelt(_spelt(body.get("toolConfig")).get("functionCallingConfig"))
    groups = [_spelt(group) for group in _objects(body.get("tools"))]
    allowed = _texts(calling.get("allowedFunctionNames"))
    choice = _GEMINI_MODES.get(_text(calling.get("mode")).upper(), "")
    shared = common.found("gemini", body)
    plain = {key: value for key, value in options.items() if key not in _GEMINI_SAMPLING}
    only = choice == "any" and len(allowed) == 1
    return Asked(
        system=_texts(_object(body.get("systemInstruction")).get("parts", [])),
        tools=tuple([_declared(one) for group in groups for one in _objects(group.get("functionDeclarations"))]),
        others=tuple([key for group in groups for key in group if key != "functionDeclarations"]),
        choice="tool" if only else choice,
        chosen=allowed[0] if only else "",
        allowed=() if only else allowed,
        options=shared,
        limit=_whole(options.get("maxOutputTokens")),
        stop=_texts(options.get("stopSequences")),
        temperature=_number(options.get("temperature")),
        top_p=_number(options.get("topP")),
        top_k=_number(options.get("topK")),
        left=(
            *_left(body, "systemInstruction tools toolConfig generationConfig"),
            *common.left(shared, {"generationConfig": plain}, ("generationConfig",)),
        ),
    )


_GEMINI_MODES = {"AUTO": "auto", "VALIDATED": "auto", "NONE": "none", "ANY": "any"}
_GEMINI_SAMPLING = frozenset({"maxOutputTokens", "stopSequences", "temperature", "topP", "topK"})


def _spelt(value: Any) -> dict[str, Any]:
    """Return an object with its fields in camel case, whichever of Gemini's two spellings they have."""
    return {_camel(key): inner for key, inner in _object(value).items()}


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join([word[:1].upper() + word[1:] for word in rest])


def _declared(tool: dict[str, Any]) -> Tool:
    tool = _spelt(tool)
    schema = tool.get("parametersJsonSchema", common.lowered(tool.get("parameters")))
    return Tool(_text(tool.get("name")), _text(tool.get("description")), schema)


_READ: Mapping[str, Callable[[dict[str, Any]], Asked]] = {
    "anthropic": _of_anthropic,
    "openai-chat": _of_chat,
    "openai-responses": _of_responses,
    "gemini": _of_gemini,
}


# -- writing -----------------------------------------------------------------------------------------------------------

Written = tuple[dict[str, Any], tuple[str, ...]]
_NO_SCHEMA = {"type": "object", "properties": {}}


def _lost(asked: Asked, *names: str) -> Iterator[str]:
    """Yield the options of ``names`` that are asked for, by the words for them."""
    for name in names:
        if getattr(asked, name) not in (None, (), ""):
            yield f"{name} has no form there"


def _named(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name} | ({"description": tool.description} if tool.description else {})


def _to_anthropic(asked: Asked) -> Written:
    choice: dict[str, Any] = {"type": asked.choice or "auto"} if asked.choice or asked.parallel is False else {}
    choice |= {"name": asked.chosen} if asked.choice == "tool" else {}
    choice |= {"disable_parallel_tool_use": True} if asked.parallel is False and asked.choice != "none" else {}
    warm = asked.temperature is not None and asked.temperature > 1
    notes = () if asked.limit is not None else (f"max_tokens is set to {NEEDED}, since one must be named there",)
    tools = [
        _named(tool) | {"input_schema": tool.schema or {"type": "object"}} | ({"strict": True} if tool.strict else {})
        for tool in asked.tools
    ]
    body = {
        "max_tokens": NEEDED if asked.limit is None else asked.limit,
        "tools": tools,
        "tool_choice": choice if asked.tools and choice else None,
        "stop_sequences": list(asked.stop),
        "temperature": 1 if warm else asked.temperature,
        "top_p": asked.top_p,
        "top_k": asked.top_k,
        "stream": asked.stream,
    }
    return body, (*notes, *(["temperature is lowered to 1, the highest there"] if warm else ()))


def _to_chat(asked: Asked) -> Written:
    named = {"type": "function", "function": {"name": asked.chosen}}
    tools = [
        {"type": "function", "function": _named(tool) | {"parameters": tool.schema or _NO_SCHEMA} | _strictly(tool)}
        for tool in asked.tools
    ]
    body = {
        "max_completion_tokens": asked.limit,
        "tools": tools,
        "tool_choice": _to_openai_choice(asked, named),
        "parallel_tool_calls": asked.parallel if asked.tools else None,
        "stop": list(asked.stop[:4]),
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "stream": asked.stream,
    }
    many = ("of the stop sequences only four may stand there",) if len(asked.stop) > 4 else ()
    return body, (*many, *_lost(asked, "top_k"))


def _strictly(tool: Tool) -> dict[str, Any]:
    return {"strict": True} if tool.strict else {}


def _to_openai_choice(asked: Asked, named: dict[str, Any]) -> Any:
    if not asked.tools or not asked.choice:
        return None
    return named if asked.choice == "tool" else {"any": "required"}.get(asked.choice, asked.choice)


def _to_responses(asked: Asked) -> Written:
    tools = [
        {"type": "function", **_named(tool), "parameters": tool.schema or _NO_SCHEMA, "strict": tool.strict}
        for tool in asked.tools
    ]
    body = {
        "max_output_tokens": asked.limit,
        "tools": tools,
        "tool_choice": _to_openai_choice(asked, {"type": "function", "name": asked.chosen}),
        "parallel_tool_calls": asked.parallel if asked.tools else None,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "stream": asked.stream,
    }
    return body, tuple(_lost(asked, "top_k", "stop"))


def _to_gemini(asked: Asked) -> Written:
    options = {
        "maxOutputTokens": asked.limit,
        "stopSequences": list(asked.stop[:5]) or None,
        "temperature": asked.temperature,
        "topP": asked.top_p,
        "topK": asked.top_k,
    }
    set_ = {key: value for key, value in options.items() if value is not None}
    declared = [_named(tool) | ({"parametersJsonSchema": tool.schema} if tool.schema else {}) for tool in asked.tools]
    mode: dict[str, Any] = {"mode": {"tool": "ANY"}.get(asked.choice, asked.choice.upper())}
    mode |= {"allowedFunctionNames": [asked.chosen]} if asked.choice == "tool" else {}
    body = {
        "tools": [{"functionDeclarations": declared}] if declared else None,
        "toolConfig": {"functionCallingConfig": mode} if declared and asked.choice else None,
        "generationConfig": set_ or None,
    }
    many = ("of the stop sequences only five may stand there",) if len(asked.stop) > 5 else ()
    stream = ("stream is told by the address there",) if asked.stream else ()
    return body, (*many, *stream, *(["parallel has no form there"] if asked.parallel is False else ()))


_WRITE: Mapping[str, Callable[[Asked], Written]] = {
    "anthropic": _to_anthropic,
    "openai-chat": _to_chat,
    "openai-responses": _to_responses,
    "gemini": _to_gemini,
}
