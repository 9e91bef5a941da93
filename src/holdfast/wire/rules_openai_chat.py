"""Rules of Chat Completions: shape, pairing, parts, ids, names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.wire.rule import Broken, Request, Rule

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_SPEAKER = re.compile(r"[^\s<|\\/>]{1,64}\Z")
_ID_MAX, _ID_SAFE = 64, 40
"""Characters of a call id: 64 now, 40 on older deployments."""
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


def _type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


# -- shape -------------------------------------------------------------------------------------------------------------


def _nonempty(request: Request) -> Broken:
    listed = request.body.get("messages")
    if not isinstance(listed, list) or not listed:
        yield "$.messages", f"messages is {_type(listed)} with nothing in it; send at least one message"
    for at, message in enumerate(request.messages):
        if not isinstance(message, dict):
            yield f"$.messages[{at}]", f"the message is {_type(message)}; send an object with a role"


def _roles(request: Request) -> Broken:
    for path, message in _objects(request):
        if message.get("role") not in _ROLES:
            yield f"{path}.role", f"role {message.get('role')!r} is not one of {_ROLES}; use one of them"


def _content(request: Request) -> Broken:
    for path, message in _objects(request):
        content = message.get("content")
        if content is None:
            spoken = any(message.get(key) for key in ("tool_calls", "function_call", "audio", "refusal"))
            if not (_role(message) == "assistant" and spoken) and _role(message) != "function":
                yield f"{path}.content", f"content of a {_role(message)} message is null; send a string"
        elif not isinstance(content, str | list):
            yield f"{path}.content", f"content is {_type(content)}; send a string or a list of parts"
        elif content == []:
            yield f"{path}.content", "content is an empty list; send at least one part, or a string"


def _parts(request: Request) -> Broken:
    for path, message in _objects(request):
        content = message.get("content")
        allowed = _PARTS.get(_role(message), frozenset())
        for index, part in enumerate(content if isinstance(content, list) else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            if not isinstance(kind, str):
                yield f"{path}.content[{index}]", f"the part is {_type(part)} without a type; name its type"
            elif kind not in allowed and (_role(message) != "user" or kind in _FOREIGN or kind == "refusal"):
                where = f"a {_role(message)} message"
                yield f"{path}.content[{index}].type", f"{kind!r} in {where}, which takes {sorted(allowed)}; move it"


def _unknown_part(request: Request) -> Broken:
    for path, message in _objects(request):
        content = message.get("content")
        for index, part in enumerate(content if isinstance(content, list) and _role(message) == "user" else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind not in _PARTS["user"] | _FOREIGN | {"refusal"}:
                yield f"{path}.content[{index}].type", f"part type {kind!r} is not known; check that the server takes it"


def _part_fields(request: Request) -> Broken:
    wanted = {"text": (("text",), str), "refusal": (("refusal",), str), "image_url": (("image_url", "url"), str),
              "input_audio": (("input_audio", "data"), str), "file": (("file",), dict)}  # fmt: skip
    for path, message in _objects(request):
        content = message.get("content")
        for index, part in enumerate(content if isinstance(content, list) else ()):
            keys, kind = wanted.get(part.get("type"), ((), object)) if isinstance(part, dict) else ((), object)
            value: Any = part
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            if not isinstance(value, kind):
                yield f"{path}.content[{index}].{'.'.join(keys)}", f"the part's {keys[-1]} is {_type(value)}; send it"


def _refusal(request: Request) -> Broken:
    for path, message in _objects(request):
        content = message.get("content")
        kinds = [part.get("type") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        if "refusal" in kinds and len(kinds) != 1:
            yield f"{path}.content", "a refusal beside other parts; it must be the only part"


# -- calls and results -------------------------------------------------------------------------------------------------


def _pair(request: Request) -> Broken:
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
    open_ids: set[str] = set()
    for path, message in _objects(request):
        if _role(message) != "tool":
            open_ids = {str(call.get("id")) for call in _calls(message) if isinstance(call, dict)}
        elif str(message.get("tool_call_id")) not in open_ids:
            id_ = message.get("tool_call_id")
            yield f"{path}.tool_call_id", f"tool message {id_!r} answers no call right before it; drop or move it"


def _second_result(request: Request) -> Broken:
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
    for at, message in enumerate(request.messages):
        seen: set[str] = set()
        for index, call in enumerate(_calls(message)):
            id_ = str(call.get("id")) if isinstance(call, dict) else ""
            if id_ in seen:
                yield f"$.messages[{at}].tool_calls[{index}].id", f"id {id_} twice in one message; give each its own"
            seen.add(id_)


def _tool_calls(request: Request) -> Broken:
    for path, message in _objects(request):
        calls = message.get("tool_calls")
        if calls == []:
            yield f"{path}.tool_calls", "tool_calls is an empty list; leave the key out"
        elif calls is not None and not isinstance(calls, list):
            yield f"{path}.tool_calls", f"tool_calls is {_type(calls)}; send a list of calls"
        elif calls and _role(message) != "assistant":
            yield f"{path}.tool_calls", f"tool_calls on a {_role(message)} message; only the assistant calls"


def _each_call(request: Request) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for at, message in enumerate(request.messages):
        for index, call in enumerate(_calls(message)):
            yield f"$.messages[{at}].tool_calls[{index}]", call if isinstance(call, dict) else {}


def _call_shape(request: Request) -> Broken:
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
            yield f"{path}.{kind}.{key}", f"{key} is {_type(said.get(key))}; send JSON as a string"
        name = said.get("name")
        if not isinstance(name, str) or not _NAME.match(name):
            yield f"{path}.{kind}.name", f"name {name!r} does not match ^[a-zA-Z0-9_-]{{1,64}}$; rename the tool"


def _ids(request: Request) -> Broken:
    found = [(f"{path}.id", call.get("id")) for path, call in _each_call(request)]
    found += [(f"{p}.tool_call_id", m.get("tool_call_id")) for p, m in _objects(request) if _role(m) == "tool"]
    for path, id_ in found:
        if not isinstance(id_, str) or not id_:
            yield path, f"the id is {id_!r}; send the id of the call as a string"
        elif len(id_) > _ID_MAX:
            yield path, f"an id of {len(id_)} characters, {_ID_MAX} are allowed; map call and result to a shorter one"


def _long_ids(request: Request) -> Broken:
    for path, call in _each_call(request):
        id_ = call.get("id")
        if isinstance(id_, str) and _ID_SAFE < len(id_) <= _ID_MAX:
            yield f"{path}.id", f"an id of {len(id_)} characters; older deployments take {_ID_SAFE}"


def _legacy(request: Request) -> Broken:
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
    for path, message in _objects(request):
        name = message.get("name")
        if name is not None and _role(message) in ("system", "developer", "user", "assistant"):
            if not isinstance(name, str) or not _SPEAKER.match(name):
                yield f"{path}.name", f"name {name!r} has white space or one of <|\\/>, or over 64 characters; clean it"


# -- tools and options -------------------------------------------------------------------------------------------------


def _tools(request: Request) -> Broken:
    tools = request.body.get("tools")
    if tools is None:
        return
    if not isinstance(tools, list) or not 1 <= len(tools) <= _MAX_TOOLS:
        count = len(tools) if isinstance(tools, list) else _type(tools)
        yield "$.tools", f"tools is a list of 1 to {_MAX_TOOLS}, this is {count}; leave the key out or shorten it"
    for index, tool in enumerate(request.tools()):
        kind = str(tool.get("type"))
        said = tool.get(kind) if kind in ("function", "custom") else None
        name = said.get("name") if isinstance(said, dict) else None
        if kind in ("function", "custom") and (not isinstance(name, str) or not _NAME.match(name)):
            path = f"$.tools[{index}].{kind}.name"
            yield path, f"tool name {name!r} does not match ^[a-zA-Z0-9_-]{{1,64}}$; rename it"


def _choice(request: Request) -> Broken:
    for key in ("tool_choice", "parallel_tool_calls"):
        value = request.body.get(key)
        if value not in (None, "none") and not request.body.get("tools"):
            yield f"$.{key}", f"{key} without tools; send tools or drop it"


def _limits(request: Request) -> Broken:
    for key in ("max_tokens", "max_completion_tokens"):
        value = request.body.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            yield f"$.{key}", f"{key} is {value!r}; send a whole number of at least 1"


_DOCS = "OpenAPI 2.3.0 and SDK 3.52 types"
_MET = "error texts in public issues"
_KNOWN = "long-standing behaviour, not re-read"


RULES: tuple[Rule, ...] = (
    Rule("openai-chat.messages", "There is at least one message, each an object.", "documented", _DOCS, _nonempty),
    Rule("openai-chat.roles", "A role is system, developer, user, assistant, tool or function.", "documented", _DOCS, _roles),
    Rule("openai-chat.content", "Content is text or parts, null only beside calls.", "documented", _DOCS, _content),
    Rule("openai-chat.parts", "Only a user message holds media; results and instructions are text.", "documented", _DOCS, _parts),
    Rule("openai-chat.unknown-part", "A part of a user message has a known type.", "inferred", _DOCS, _unknown_part),
    Rule("openai-chat.part-fields", "A part holds what its type says.", "documented", _DOCS, _part_fields),
    Rule("openai-chat.refusal", "A refusal is the only part of its message.", "documented", _DOCS, _refusal),
    Rule("openai-chat.pair", "Every call is answered by a tool message right behind, with nothing between.", "observed", _MET, _pair),
    Rule("openai-chat.orphan", "A tool message answers a call right before it.", "recalled", _MET, _orphan),
    Rule("openai-chat.second-result", "A call has one tool message.", "inferred", "not settled", _second_result),
    Rule("openai-chat.unique-ids", "Ids are unique within one message.", "recalled", _KNOWN, _unique_ids),
    Rule("openai-chat.tool-calls", "tool_calls is a list with something in it, on an assistant message.", "recalled", _MET, _tool_calls),
    Rule("openai-chat.call-shape", "A call names a function and has its arguments as a string.", "documented", _DOCS, _call_shape),
    Rule("openai-chat.ids", "Ids are strings of 1 to 64 characters.", "observed", _MET, _ids),
    Rule("openai-chat.long-ids", "Ids have at most 40 characters.", "inferred", "older deployments", _long_ids),
    Rule("openai-chat.legacy", "function_call and function messages have their names and arguments.", "documented", _DOCS, _legacy),
    Rule("openai-chat.name", "The name of a speaker has no white space and no <|\\/>.", "recalled", _KNOWN, _speaker),
    Rule("openai-chat.tools", "There are 1 to 128 tools with names of the pattern.", "documented", _DOCS, _tools),
    Rule("openai-chat.tool-choice", "tool_choice and parallel_tool_calls need tools.", "recalled", _KNOWN, _choice),
    Rule("openai-chat.limits", "A limit of output tokens is at least 1.", "documented", _DOCS, _limits),
)  # fmt: skip
"""The rules of Chat Completions, in the order they are checked."""
