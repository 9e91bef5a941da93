"""Rules of Chat Completions about calls and the tool messages that answer them."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.providers.openai_chat.rules.request_view import ChatView, get_call_ids
from holdfast.providers.rules.options import is_tool_name
from holdfast.providers.rules.rule import (
    OPENAI_DOCS,
    PUBLIC_ERRORS,
    UNVERIFIED_MEMORY,
    Rule,
    Violations,
    format_json_value,
    get_json_type_name,
)

_MAX_NAME_CHARS = 64
"""The limit in OpenAI's API reference."""
_MAX_ID_CHARS = 64
"""Observed in error messages today; older deployments refuse ids over 40 characters."""


def _check_calls_answered(request: ChatView) -> Violations:
    """Every call is answered by a tool message right behind, with nothing between."""
    call_index = -1
    waiting = set[str]()
    for index, message, role in request.message_objects:
        if role == "tool":
            waiting.discard(str(message.get("tool_call_id")))
            continue
        # Any other message ends the batch of results.
        yield from _report_unanswered(call_index, waiting)
        call_index = index
        waiting = set(get_call_ids(message, role))
    yield from _report_unanswered(call_index, waiting)


def _report_unanswered(call_index: int, waiting: set[str]) -> Violations:
    if waiting:
        names = ", ".join(sorted(waiting))
        path = f"$.messages[{call_index}].tool_calls"
        yield path, f"no tool message right behind answers {names}; add one for each call"


def _check_orphan_results(request: ChatView) -> Violations:
    """A tool message answers a call right before it."""
    open_ids: set[str] = set()
    for at, message, role in request.message_objects:
        # Results stand right behind their call: any other message ends the wait for those of an earlier one.
        if role != "tool":
            open_ids = set(get_call_ids(message, role))
        elif str(message.get("tool_call_id")) not in open_ids:
            problem = f"tool message {format_json_value(message.get('tool_call_id'))} answers no call right before it"
            yield f"$.messages[{at}].tool_call_id", f"{problem}; drop or move it"


def _check_single_result(request: ChatView) -> Violations:
    """A call has one tool message."""
    seen_ids: set[str] = set()
    for at, message, role in request.message_objects:
        # Ids may repeat in later turns, so only the results of one batch are compared.
        if role != "tool":
            seen_ids = set()
            continue
        id_ = str(message.get("tool_call_id"))
        if id_ in seen_ids:
            yield f"$.messages[{at}].tool_call_id", f"a second tool message for {id_}; keep the first"
        seen_ids.add(id_)


def _check_unique_ids(request: ChatView) -> Violations:
    """Ids are unique within one message."""
    seen_ids: set[tuple[int, str]] = set()
    for at, index, call in request.calls:
        id_ = str(call.get("id"))
        if (at, id_) in seen_ids:
            yield f"$.messages[{at}].tool_calls[{index}].id", f"id {id_} twice in one message; give each its own"
        seen_ids.add((at, id_))


def _check_tool_calls(request: ChatView) -> Violations:
    """tool_calls is a list with something in it, on an assistant message."""
    for at, message, role in request.message_objects:
        if "tool_calls" not in message:
            continue
        calls, path = message["tool_calls"], f"$.messages[{at}].tool_calls"
        if calls == []:
            yield path, "tool_calls is an empty list; leave the key out"
        elif calls is not None and not isinstance(calls, list):
            yield path, f"tool_calls is {get_json_type_name(calls)}; send a list of calls"
        elif calls and role != "assistant":
            yield path, f"tool_calls on a message of the role {role}; only the assistant calls"


def _check_call_shape(request: ChatView) -> Violations:
    """A call names a function and has its arguments as a string."""
    for at, index, call in request.calls:
        path = f"$.messages[{at}].tool_calls[{index}]"
        kind = call.get("type")
        if kind not in ("function", "custom"):
            yield f"{path}.type", f"call type {format_json_value(kind)}; send function or custom"
            continue
        payload = call.get(kind)
        if not isinstance(payload, dict):
            yield f"{path}.{kind}", f"the call has no {kind}; send its name and arguments"
            continue
        key = "arguments" if kind == "function" else "input"
        arguments = payload.get(key)
        if not isinstance(arguments, str):
            yield f"{path}.{kind}.{key}", f"{key} is {get_json_type_name(arguments)}; send JSON as a string"


def _check_call_name(request: ChatView) -> Violations:
    """The name of a called function matches ^[a-zA-Z0-9_-]{1,64}$."""
    for at, index, call in request.calls:
        kind = "custom" if call.get("type") == "custom" else "function"
        payload = call.get(kind)
        if not isinstance(payload, dict):  # the rule about the shape of calls reports it
            continue
        name = payload.get("name")
        if not is_tool_name(name, _MAX_NAME_CHARS):
            path = f"$.messages[{at}].tool_calls[{index}].{kind}.name"
            yield path, f"name {format_json_value(name)} does not match ^[a-zA-Z0-9_-]{{1,64}}$; rename the tool"


def _iter_call_ids(request: ChatView) -> Iterator[tuple[str, object]]:
    for at, index, call in request.calls:
        yield f"$.messages[{at}].tool_calls[{index}].id", call.get("id")
    for at, message in request.iter_results():
        yield f"$.messages[{at}].tool_call_id", message.get("tool_call_id")


def _check_call_ids(request: ChatView) -> Violations:
    """Ids are strings of 1 to 64 characters."""
    for path, id_ in _iter_call_ids(request):
        if not isinstance(id_, str) or not id_:
            yield path, f"the id is {format_json_value(id_)}; send the id of the call as a string"
        elif len(id_) > _MAX_ID_CHARS:
            problem = f"an id of {len(id_)} characters, {_MAX_ID_CHARS} are allowed"
            yield path, f"{problem}; map call and result to a shorter one"


def _check_legacy_call(request: ChatView) -> Violations:
    """function_call has its name and its arguments as a string."""
    for at, message, _ in request.message_objects:
        call = message.get("function_call")
        if call is None:
            continue
        path = f"$.messages[{at}].function_call"
        if not isinstance(call, dict) or not isinstance(call.get("arguments"), str):
            yield f"{path}.arguments", "function_call without arguments as a string; send both"
        elif not is_tool_name(call.get("name"), _MAX_NAME_CHARS):
            yield f"{path}.name", f"name {format_json_value(call.get('name'))} does not match; rename the function"


def _check_legacy_result(request: ChatView) -> Violations:
    """A function message has the function's name."""
    for at, message, role in request.message_objects:
        if role == "function" and not message.get("name"):
            yield f"$.messages[{at}].name", "a function message without the function's name; send it"


CALL_RULES: tuple[Rule, ...] = (
    Rule("openai-chat.pair", _check_calls_answered, "observed", PUBLIC_ERRORS),
    Rule("openai-chat.orphan", _check_orphan_results, "recalled", PUBLIC_ERRORS),
    Rule("openai-chat.second-result", _check_single_result, "inferred", "not settled"),
    Rule("openai-chat.unique-ids", _check_unique_ids, "recalled", UNVERIFIED_MEMORY),
    Rule("openai-chat.tool-calls", _check_tool_calls, "recalled", PUBLIC_ERRORS),
    Rule("openai-chat.call-shape", _check_call_shape, "documented", OPENAI_DOCS),
    Rule("openai-chat.call-name", _check_call_name, "documented", OPENAI_DOCS),
    Rule("openai-chat.ids", _check_call_ids, "observed", PUBLIC_ERRORS),
    Rule("openai-chat.legacy-call", _check_legacy_call, "documented", OPENAI_DOCS),
    Rule("openai-chat.legacy-result", _check_legacy_result, "documented", OPENAI_DOCS),
)
"""The rules about calls and results."""
