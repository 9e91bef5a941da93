"""Rules of Chat Completions about calls and the tool messages that answer them."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.providers.openai_chat.rules.view import Chat, ids_of
from holdfast.providers.rules.options import is_name
from holdfast.providers.rules.rule import KNOWN, MET, OPENAI, Broken, Rule, quoted, type_name

_NAME_MAX = 64
_ID_MAX = 64
"""Characters of a call id (40 on older deployments)."""


def _pair(request: Chat) -> Broken:
    """Every call is answered by a tool message right behind, with nothing between."""
    at, waiting = -1, set[str]()
    for place, message, role in request.objects:
        if role == "tool":
            waiting.discard(str(message.get("tool_call_id")))
        else:
            yield from _unanswered(at, waiting)
            at, waiting = place, set(ids_of(message, role))
    yield from _unanswered(at, waiting)


def _unanswered(at: int, waiting: set[str]) -> Broken:
    if waiting:
        names = ", ".join(sorted(waiting))
        yield f"$.messages[{at}].tool_calls", f"no tool message right behind answers {names}; add one for each call"


def _orphan(request: Chat) -> Broken:
    """A tool message answers a call right before it."""
    open_ids: set[str] = set()
    for at, message, role in request.objects:
        if role != "tool":
            open_ids = set(ids_of(message, role))
        elif str(message.get("tool_call_id")) not in open_ids:
            said = f"tool message {quoted(message.get('tool_call_id'))} answers no call right before it"
            yield f"$.messages[{at}].tool_call_id", f"{said}; drop or move it"


def _second_result(request: Chat) -> Broken:
    """A call has one tool message."""
    seen: set[str] = set()
    for at, message, role in request.objects:
        if role != "tool":
            seen = set()
            continue
        id_ = str(message.get("tool_call_id"))
        if id_ in seen:
            yield f"$.messages[{at}].tool_call_id", f"a second tool message for {id_}; keep the first"
        seen.add(id_)


def _unique_ids(request: Chat) -> Broken:
    """Ids are unique within one message."""
    seen: set[tuple[int, str]] = set()
    for at, index, call in request.calls:
        id_ = str(call.get("id"))
        if (at, id_) in seen:
            yield f"$.messages[{at}].tool_calls[{index}].id", f"id {id_} twice in one message; give each its own"
        seen.add((at, id_))


def _tool_calls(request: Chat) -> Broken:
    """tool_calls is a list with something in it, on an assistant message."""
    for at, message, role in request.objects:
        if "tool_calls" not in message:
            continue
        calls, path = message["tool_calls"], f"$.messages[{at}].tool_calls"
        if calls == []:
            yield path, "tool_calls is an empty list; leave the key out"
        elif calls is not None and not isinstance(calls, list):
            yield path, f"tool_calls is {type_name(calls)}; send a list of calls"
        elif calls and role != "assistant":
            yield path, f"tool_calls on a message of the role {role}; only the assistant calls"


def _call_shape(request: Chat) -> Broken:
    """A call names a function and has its arguments as a string."""
    for at, index, call in request.calls:
        path, kind = f"$.messages[{at}].tool_calls[{index}]", call.get("type")
        said = call.get(kind) if isinstance(kind, str) else None
        key = "arguments" if kind == "function" else "input"
        if kind not in ("function", "custom"):
            yield f"{path}.type", f"call type {quoted(kind)}; send function or custom"
        elif not isinstance(said, dict):
            yield f"{path}.{kind}", f"the call has no {kind}; send its name and arguments"
        elif not isinstance(said.get(key), str):
            yield f"{path}.{kind}.{key}", f"{key} is {type_name(said.get(key))}; send JSON as a string"


def _call_name(request: Chat) -> Broken:
    """The name of a called function matches ^[a-zA-Z0-9_-]{1,64}$."""
    for at, index, call in request.calls:
        kind = "custom" if call.get("type") == "custom" else "function"
        said = call.get(kind)
        name = said.get("name") if isinstance(said, dict) else None
        if isinstance(said, dict) and not is_name(name, _NAME_MAX):
            path = f"$.messages[{at}].tool_calls[{index}].{kind}.name"
            yield path, f"name {quoted(name)} does not match ^[a-zA-Z0-9_-]{{1,64}}$; rename the tool"


def _each_id(request: Chat) -> Iterator[tuple[str, object]]:
    for at, index, call in request.calls:
        yield f"$.messages[{at}].tool_calls[{index}].id", call.get("id")
    for at, message in request.results():
        yield f"$.messages[{at}].tool_call_id", message.get("tool_call_id")


def _ids(request: Chat) -> Broken:
    """Ids are strings of 1 to 64 characters."""
    for path, id_ in _each_id(request):
        if not isinstance(id_, str) or not id_:
            yield path, f"the id is {quoted(id_)}; send the id of the call as a string"
        elif len(id_) > _ID_MAX:
            yield path, f"an id of {len(id_)} characters, {_ID_MAX} are allowed; map call and result to a shorter one"


def _legacy_call(request: Chat) -> Broken:
    """function_call has its name and its arguments as a string."""
    for at, message, _ in request.objects:
        call = message.get("function_call")
        path = f"$.messages[{at}].function_call"
        if call is not None and (not isinstance(call, dict) or not isinstance(call.get("arguments"), str)):
            yield f"{path}.arguments", "function_call without arguments as a string; send both"
        elif call is not None and not is_name(call.get("name"), _NAME_MAX):
            yield f"{path}.name", f"name {quoted(call.get('name'))} does not match; rename the function"


def _legacy_result(request: Chat) -> Broken:
    """A function message has the function's name."""
    for at, message, role in request.objects:
        if role == "function" and not message.get("name"):
            yield f"$.messages[{at}].name", "a function message without the function's name; send it"


RULES: tuple[Rule, ...] = (
    Rule("openai-chat.pair", _pair, "observed", MET),
    Rule("openai-chat.orphan", _orphan, "recalled", MET),
    Rule("openai-chat.second-result", _second_result, "inferred", "not settled"),
    Rule("openai-chat.unique-ids", _unique_ids, "recalled", KNOWN),
    Rule("openai-chat.tool-calls", _tool_calls, "recalled", MET),
    Rule("openai-chat.call-shape", _call_shape, "documented", OPENAI),
    Rule("openai-chat.call-name", _call_name, "documented", OPENAI),
    Rule("openai-chat.ids", _ids, "observed", MET),
    Rule("openai-chat.legacy-call", _legacy_call, "documented", OPENAI),
    Rule("openai-chat.legacy-result", _legacy_result, "documented", OPENAI),
)
"""The rules about calls and results."""
