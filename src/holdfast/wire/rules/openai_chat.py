"""Rules of Chat Completions: shape, pairing, parts, ids, names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.wire.rules.rule import KNOWN, MET, Broken, Request, Rule, type_name

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_SPEAKER = re.compile(r"[^\s<|\\/>]{1,64}\Z")
_ID_MAX = 64
"""Characters of a call id (40 on older deployments)."""
_MAX_TOOLS = 128
_PARTS = {
    "user": frozenset({"text", "image_url", "input_audio", "file"}),
    "assistant": frozenset({"text", "refusal"}),
    "system": frozenset({"text"}),
    "developer": frozenset({"text"}),
    "tool": frozenset({"text"}),
}
_FOREIGN = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document", "input_text", "output_text",
     "input_image", "input_file", "function_call", "function_call_output", "reasoning", "toolCall"}
)  # fmt: skip
"""Part types of other APIs, which a converter may have left behind."""


_WANTED: dict[str, tuple[tuple[str, ...], type]] = {
    "text": (("text",), str),
    "refusal": (("refusal",), str),
    "image_url": (("image_url", "url"), str),
    "input_audio": (("input_audio", "data"), str),
    "file": (("file",), dict),
}
"""What a part must hold, by its type."""


def _objects(request: Request) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the messages that are objects, with their paths."""
    for at, message in enumerate(request.messages):
        if isinstance(message, dict):
            yield f"$.messages[{at}]", message


def _role(message: object) -> str:
    return str(message.get("role")) if isinstance(message, dict) else ""


def _calls(message: object) -> list[Any]:
    calls = message.get("tool_calls") if isinstance(message, dict) and message.get("role") == "assistant" else None
    return calls if isinstance(calls, list) else []


# -- shape -------------------------------------------------------------------------------------------------------------


def _nonempty(request: Request) -> Broken:
    """There is at least one message, each an object."""
    listed = request.body.get("messages")
    if not isinstance(listed, list) or not listed:
        yield "$.messages", f"messages is {type_name(listed)} with nothing in it; send at least one message"
    for at, message in enumerate(request.messages):
        if not isinstance(message, dict):
            yield f"$.messages[{at}]", f"the message is {type_name(message)}; send an object with a role"


def _roles(request: Request) -> Broken:
    """A role is system, developer, user, assistant, tool or function."""
    for path, message in _objects(request):
        if message.get("role") not in _ROLES:
            yield (
                f"{path}.role",
                f"role {json.dumps(message.get('role'), default=str)} is none of {', '.join(_ROLES)}; use one of them",
            )


def _content(request: Request) -> Broken:
    """Content is text or parts, null only beside calls."""
    for path, message in _objects(request):
        content = message.get("content")
        if content is None:
            spoken = any(message.get(key) for key in ("tool_calls", "function_call", "audio", "refusal"))
            if not (_role(message) == "assistant" and spoken) and _role(message) != "function":
                yield f"{path}.content", f"content of a {_role(message)} message is null; send a string"
        elif not isinstance(content, str | list):
            yield f"{path}.content", f"content is {type_name(content)}; send a string or a list of parts"
        elif content == []:
            yield f"{path}.content", "content is an empty list; send at least one part, or a string"


def _parts(request: Request) -> Broken:
    """Only a user message holds media; results and instructions are text."""
    for path, message in _objects(request):
        content = message.get("content")
        allowed = _PARTS.get(_role(message), frozenset())
        for index, part in enumerate(content if isinstance(content, list) else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            if not isinstance(kind, str):
                yield f"{path}.content[{index}]", f"the part is {type_name(part)} without a type; name its type"
            elif kind not in allowed and (_role(message) != "user" or kind in _FOREIGN or kind == "refusal"):
                where = f"a {_role(message)} message"
                yield f"{path}.content[{index}].type", f"{kind!r} in {where}, which takes {sorted(allowed)}; move it"


def _unknown_part(request: Request) -> Broken:
    """A part of a user message has a known type."""
    for path, message in _objects(request):
        content = message.get("content")
        for index, part in enumerate(content if isinstance(content, list) and _role(message) == "user" else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind not in _PARTS["user"] | _FOREIGN | {"refusal"}:
                yield (
                    f"{path}.content[{index}].type",
                    f"part type {kind!r} is not known; check that the server takes it",
                )


def _part_fields(request: Request) -> Broken:
    """A part holds what its type says."""
    for path, message in _objects(request):
        content = message.get("content")
        for index, part in enumerate(content if isinstance(content, list) else ()):
            keys, kind = _WANTED.get(str(part.get("type")), ((), object)) if isinstance(part, dict) else ((), object)
            value: Any = part
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            if not isinstance(value, kind):
                yield (
                    f"{path}.content[{index}].{'.'.join(keys)}",
                    f"the part's {keys[-1]} is {type_name(value)}; send it",
                )


def _refusal(request: Request) -> Broken:
    """A refusal is the only part of its message."""
    for path, message in _objects(request):
        content = message.get("content")
        kinds = [part.get("type") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        if "refusal" in kinds and len(kinds) != 1:
            yield f"{path}.content", "a refusal beside other parts; it must be the only part"


# -- calls and results -------------------------------------------------------------------------------------------------


def _pair(request: Request) -> Broken:
    """Every call is answered by a tool message right behind, with nothing between."""
    for at, message in enumerate(request.messages):
        ids = {str(call.get("id")) for call in _calls(message) if isinstance(call, dict)}
        after = at + 1
        while ids and after < len(request.messages) and _role(request.messages[after]) == "tool":
            ids.discard(str(request.messages[after].get("tool_call_id")))
            after += 1
        if ids:
            names = ", ".join(sorted(ids))
            yield f"$.messages[{at}].tool_calls", f"no tool message right behind answers {names}; add one for each call"


def _orphan(request: Request) -> Broken:
    """A tool message answers a call right before it."""
    open_ids: set[str] = set()
    for path, message in _objects(request):
        if _role(message) != "tool":
            open_ids = {str(call.get("id")) for call in _calls(message) if isinstance(call, dict)}
        elif str(message.get("tool_call_id")) not in open_ids:
            id_ = message.get("tool_call_id")
            yield f"{path}.tool_call_id", f"tool message {id_!r} answers no call right before it; drop or move it"


def _second_result(request: Request) -> Broken:
    """A call has one tool message."""
    seen: set[str] = set()
    for path, message in _objects(request):
        if _role(message) != "tool":
            seen = set()
            continue
        id_ = str(message.get("tool_call_id"))
        if id_ in seen:
            yield f"{path}.tool_call_id", f"a second tool message for {id_}; keep the first"
        seen.add(id_)


def _unique_ids(request: Request) -> Broken:
    """Ids are unique within one message."""
    for at, message in enumerate(request.messages):
        seen: set[str] = set()
        for index, call in enumerate(_calls(message)):
            id_ = str(call.get("id")) if isinstance(call, dict) else ""
            if id_ in seen:
                yield f"$.messages[{at}].tool_calls[{index}].id", f"id {id_} twice in one message; give each its own"
            seen.add(id_)


def _tool_calls(request: Request) -> Broken:
    """tool_calls is a list with something in it, on an assistant message."""
    for path, message in _objects(request):
        calls = message.get("tool_calls")
        if calls == []:
            yield f"{path}.tool_calls", "tool_calls is an empty list; leave the key out"
        elif calls is not None and not isinstance(calls, list):
            yield f"{path}.tool_calls", f"tool_calls is {type_name(calls)}; send a list of calls"
        elif calls and _role(message) != "assistant":
            yield f"{path}.tool_calls", f"tool_calls on a {_role(message)} message; only the assistant calls"


def _each_call(request: Request) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for at, message in enumerate(request.messages):
        for index, call in enumerate(_calls(message)):
            yield f"$.messages[{at}].tool_calls[{index}]", call if isinstance(call, dict) else {}


def _call_shape(request: Request) -> Broken:
    """A call names a function and has its arguments as a string."""
    for path, call in _each_call(request):
        kind = call.get("type")
        if kind not in ("function", "custom"):
            yield f"{path}.type", f"call type {kind!r}; send function or custom"
            continue
        said = call.get(kind)
        if not isinstance(said, dict):
            yield f"{path}.{kind}", f"the call has no {kind}; send its name and arguments"
            continue
        key = "arguments" if kind == "function" else "input"
        if not isinstance(said.get(key), str):
            yield f"{path}.{kind}.{key}", f"{key} is {type_name(said.get(key))}; send JSON as a string"
        name = said.get("name")
        if not isinstance(name, str) or not _NAME.match(name):
            yield f"{path}.{kind}.name", f"name {name!r} does not match ^[a-zA-Z0-9_-]{{1,64}}$; rename the tool"


def _ids(request: Request) -> Broken:
    """Ids are strings of 1 to 64 characters."""
    found = [(f"{path}.id", call.get("id")) for path, call in _each_call(request)]
    found += [(f"{p}.tool_call_id", m.get("tool_call_id")) for p, m in _objects(request) if _role(m) == "tool"]
    for path, id_ in found:
        if not isinstance(id_, str) or not id_:
            yield path, f"the id is {id_!r}; send the id of the call as a string"
        elif len(id_) > _ID_MAX:
            yield path, f"an id of {len(id_)} characters, {_ID_MAX} are allowed; map call and result to a shorter one"


def _legacy(request: Request) -> Broken:
    """function_call and function messages have their names and arguments."""
    for path, message in _objects(request):
        call = message.get("function_call")
        if call is not None:
            if not isinstance(call, dict) or not isinstance(call.get("arguments"), str):
                yield f"{path}.function_call.arguments", "function_call without arguments as a string; send both"
            elif not isinstance(call.get("name"), str) or not _NAME.match(call["name"]):
                yield f"{path}.function_call.name", f"name {call.get('name')!r} does not match; rename the function"
        if _role(message) == "function" and not message.get("name"):
            yield f"{path}.name", "a function message without the function's name; send it"


def _speaker(request: Request) -> Broken:
    r"""The name of a speaker has no white space and no <|\/>."""
    for path, message in _objects(request):
        name = message.get("name")
        named = name is not None and _role(message) in ("system", "developer", "user", "assistant")
        if named and not (isinstance(name, str) and _SPEAKER.match(name)):
            yield f"{path}.name", f"name {name!r} has white space or one of <|\\/>, or over 64 characters; clean it"


# -- tools and options -------------------------------------------------------------------------------------------------


def _tools(request: Request) -> Broken:
    """There are 1 to 128 tools with names of the pattern."""
    tools = request.body.get("tools")
    if tools is None:
        return
    if not isinstance(tools, list) or not 1 <= len(tools) <= _MAX_TOOLS:
        count = len(tools) if isinstance(tools, list) else type_name(tools)
        yield "$.tools", f"tools is a list of 1 to {_MAX_TOOLS}, this is {count}; leave the key out or shorten it"
    for index, tool in enumerate(request.tools()):
        kind = str(tool.get("type"))
        said = tool.get(kind) if kind in ("function", "custom") else None
        name = said.get("name") if isinstance(said, dict) else None
        if kind in ("function", "custom") and (not isinstance(name, str) or not _NAME.match(name)):
            path = f"$.tools[{index}].{kind}.name"
            yield path, f"tool name {name!r} does not match ^[a-zA-Z0-9_-]{{1,64}}$; rename it"


def _choice(request: Request) -> Broken:
    """tool_choice and parallel_tool_calls need tools."""
    for key in ("tool_choice", "parallel_tool_calls"):
        value = request.body.get(key)
        if value not in (None, "none") and not request.body.get("tools"):
            yield f"$.{key}", f"{key} without tools; send tools or drop it"


def _limits(request: Request) -> Broken:
    """A limit of output tokens is at least 1."""
    for key in ("max_tokens", "max_completion_tokens"):
        value = request.body.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            yield f"$.{key}", f"{key} is {value!r}; send a whole number of at least 1"


_DOCS = "OpenAPI 2.3.0 and SDK 3.52 types"


RULES: tuple[Rule, ...] = (
    Rule("openai-chat.messages", _nonempty, "documented", _DOCS),
    Rule("openai-chat.roles", _roles, "documented", _DOCS),
    Rule("openai-chat.content", _content, "documented", _DOCS),
    Rule("openai-chat.parts", _parts, "documented", _DOCS),
    Rule("openai-chat.unknown-part", _unknown_part, "inferred", _DOCS),
    Rule("openai-chat.part-fields", _part_fields, "documented", _DOCS),
    Rule("openai-chat.refusal", _refusal, "documented", _DOCS),
    Rule("openai-chat.pair", _pair, "observed", MET),
    Rule("openai-chat.orphan", _orphan, "recalled", MET),
    Rule("openai-chat.second-result", _second_result, "inferred", "not settled"),
    Rule("openai-chat.unique-ids", _unique_ids, "recalled", KNOWN),
    Rule("openai-chat.tool-calls", _tool_calls, "recalled", MET),
    Rule("openai-chat.call-shape", _call_shape, "documented", _DOCS),
    Rule("openai-chat.ids", _ids, "observed", MET),
    Rule("openai-chat.legacy", _legacy, "documented", _DOCS),
    Rule("openai-chat.name", _speaker, "recalled", KNOWN),
    Rule("openai-chat.tools", _tools, "documented", _DOCS),
    Rule("openai-chat.tool-choice", _choice, "recalled", KNOWN),
    Rule("openai-chat.limits", _limits, "documented", _DOCS),
)
"""The rules of Chat Completions, in the order they are checked."""
