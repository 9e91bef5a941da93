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
    """Every call has a tool message directly after its message, with only other tool messages between."""
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
        yield path, f"no tool message directly after the calls answers {names}; add one for each call"


def _check_orphan_results(request: ChatView) -> Violations:
    """A tool message has its call in the assistant message directly before the results."""
    open_ids: set[str] = set()
    for at, message, role in request.message_objects:
        # Results stand right after their call: any other message ends the wait for those of an earlier one.
        if role != "tool":
            open_ids = set(get_call_ids(message, role))
        elif str(message.get("tool_call_id")) not in open_ids:
            problem = f"tool message {format_json_value(message.get('tool_call_id'))} has no call directly before it"
            yield f"$.messages[{at}].tool_call_id", f"{problem}; drop or move it"


def _check_single_result(request: ChatView) -> Violations:
    """A call has only one tool message."""
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
    """The ids of the calls in one message are unique."""
    seen_ids: set[tuple[int, str]] = set()
    for at, index, call in request.calls:
        id_ = str(call.get("id"))
        if (at, id_) in seen_ids:
            yield (
                f"$.messages[{at}].tool_calls[{index}].id",
                f"id {id_} occurs twice in one message; give each call an id of its own",
            )
        seen_ids.add((at, id_))


def _check_tool_calls(request: ChatView) -> Violations:
    """tool_calls is a list that is not empty, in an assistant message."""
    for at, message, role in request.message_objects:
        if "tool_calls" not in message:
            continue
        calls, path = message["tool_calls"], f"$.messages[{at}].tool_calls"
        if calls == []:
            yield path, "tool_calls is an empty list; leave the field out"
        elif calls is not None and not isinstance(calls, list):
            yield path, f"tool_calls is {get_json_type_name(calls)}; send a list of calls"
        elif calls and role != "assistant":
            yield path, f"a message of the role {role} has tool_calls; remove them, or make it an assistant message"


def _check_call_shape(request: ChatView) -> Violations:
    """A call has a function with arguments as a string, or a custom tool with such an input."""
    for at, index, call in request.calls:
        path = f"$.messages[{at}].tool_calls[{index}]"
        kind = call.get("type")
        if kind not in ("function", "custom"):
            yield f"{path}.type", f"the call has the type {format_json_value(kind)}; send function or custom"
            continue
        payload = call.get(kind)
        if not isinstance(payload, dict):
            yield f"{path}.{kind}", f"the call has no field {kind}; send it, with name and arguments"
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
    """The ids of calls and results are strings of 1 to 64 characters."""
    for path, id_ in _iter_call_ids(request):
        if not isinstance(id_, str) or not id_:
            yield path, f"the id is {format_json_value(id_)}; send the id of the call as a string"
        elif len(id_) > _MAX_ID_CHARS:
            problem = f"the id has {len(id_)} characters, but {_MAX_ID_CHARS} are allowed"
            yield path, f"{problem}; give call and result a shorter one"


def _check_legacy_call(request: ChatView) -> Violations:
    """function_call has a name, and arguments as a string."""
    for at, message, _ in request.message_objects:
        call = message.get("function_call")
        if call is None:
            continue
        path = f"$.messages[{at}].function_call"
        if not isinstance(call, dict) or not isinstance(call.get("arguments"), str):
            yield f"{path}.arguments", "function_call has no arguments as a string; send name and arguments"
        elif not is_tool_name(call.get("name"), _MAX_NAME_CHARS):
            yield (
                f"{path}.name",
                f"name {format_json_value(call.get('name'))} is not 1 to 64 of a-z, A-Z, 0-9, _ and -; rename it",
            )


def _check_legacy_result(request: ChatView) -> Violations:
    """A message of the role function has the name of the function."""
    for at, message, role in request.message_objects:
        if role == "function" and not message.get("name"):
            yield (
                f"$.messages[{at}].name",
                "the message of the role function has no name; send the name of the function",
            )


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
