"""Rules of the Responses API about calls and outputs, reasoning, and compaction."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.providers.openai_responses.rules.request_view import ItemView, PairingFault, ResponsesView
from holdfast.providers.rules.options import is_tool_name
from holdfast.providers.rules.rule import (
    OPENAI_DOCS,
    PUBLIC_ERRORS,
    UNVERIFIED_MEMORY,
    Rule,
    Violations,
    format_json_value,
)

_OUTPUT_BY_CALL = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
}
"""Types of calls that the client answers, with the type of the output."""
_CALL_BY_OUTPUT = {output: call for call, output in _OUTPUT_BY_CALL.items()}
# Documented.
_MAX_CALL_ID_CHARS = 64


def _get_pairing_id(item: ItemView) -> str:
    """Return the id that pairs a call with its output; that of a local shell may be in ``id``."""
    call_id = item.value.get("call_id")
    if call_id is None and item.kind.startswith("local_shell_call"):
        call_id = item.value.get("id")
    return str(call_id)


def _map_alternative_keys(request: ResponsesView) -> dict[tuple[str, str], tuple[str, str]]:
    """Map other keys under which the call of a local shell may be answered to its own key.

    Its output may name the call's ``id`` in place of the ``call_id``, and Codex sends a ``function_call_output``.
    """
    alternatives: dict[tuple[str, str], tuple[str, str]] = {}
    for item in request.iter_items("local_shell_call"):
        key = (item.kind, _get_pairing_id(item))
        alternatives[item.kind, str(item.value.get("id"))] = key
        alternatives["function_call", key[1]] = key
    return alternatives


def _has_stored_items(request: ResponsesView) -> bool:
    """Return whether a call or output may be one that only the server has."""
    return request.is_continued or "item_reference" in request.items_by_kind


def _get_pairing_faults(request: ResponsesView) -> list[tuple[PairingFault, ItemView]]:
    """Return the calls and outputs that do not pair; computed once for the three rules that ask."""
    if request.pairing_faults is None:
        request.pairing_faults = [*_find_pairing_faults(request)]
    return request.pairing_faults


def _find_pairing_faults(request: ResponsesView) -> Iterator[tuple[PairingFault, ItemView]]:
    """Yield each call or output that does not pair, and its fault."""
    waiting: dict[tuple[str, str], ItemView] = {}
    call_keys: set[tuple[str, str]] = set()
    alternative_keys = _map_alternative_keys(request)
    for item in request.items:
        if item.kind in _OUTPUT_BY_CALL:
            key = (item.kind, _get_pairing_id(item))
            # An id may return for another call once the first is answered.
            if key in waiting:
                yield PairingFault.REPEATED, item
            waiting[key] = item
            call_keys.add(key)
        elif item.kind in _CALL_BY_OUTPUT:
            key = (_CALL_BY_OUTPUT[item.kind], _get_pairing_id(item))
            if key not in call_keys:
                key = alternative_keys.get(key, key)
            if waiting.pop(key, None) is None:
                yield (PairingFault.REPEATED if key in call_keys else PairingFault.ORPHAN), item
    for item in waiting.values():
        yield PairingFault.UNANSWERED, item


def _check_calls_answered(request: ResponsesView) -> Violations:
    """Every call is followed by an output with its call_id."""
    if "item_reference" in request.items_by_kind:  # may stand for the output
        return
    for fault, item in _get_pairing_faults(request):
        is_answered_later = item.value.get("async") is True
        if fault is PairingFault.UNANSWERED and not is_answered_later:
            problem = f"call {_get_pairing_id(item)} has no {_OUTPUT_BY_CALL[item.kind]} after it"
            yield f"{item.path}.call_id", f"{problem}; add one with that call_id, or drop the call"


def _check_orphan_results(request: ResponsesView) -> Violations:
    """Every output has its call before it, in the request or in the stored conversation that it continues."""
    if _has_stored_items(request):
        return
    for fault, item in _get_pairing_faults(request):
        if fault is PairingFault.ORPHAN:
            problem = f"{item.kind} {_get_pairing_id(item)} has no {_CALL_BY_OUTPUT[item.kind]} before it"
            yield f"{item.path}.call_id", f"{problem}; send the call too, or drop the output"


def _check_approvals(request: ResponsesView) -> Violations:
    """Every mcp_approval_response has its mcp_approval_request before it, in the request or the stored conversation."""
    if _has_stored_items(request):
        return
    request_ids: set[str] = set()
    for item in request.items:
        if item.kind == "mcp_approval_request":
            request_ids.add(str(item.value.get("id")))
        elif item.kind == "mcp_approval_response":
            id_ = item.value.get("approval_request_id")
            if isinstance(id_, str) and id_ not in request_ids:
                problem = f"mcp_approval_response {id_} has no mcp_approval_request of that id before it"
                yield f"{item.path}.approval_request_id", f"{problem}; send the request too, or drop the response"


def _check_single_use(request: ResponsesView) -> Violations:
    """A call id is used for one call and one output."""
    for fault, item in _get_pairing_faults(request):
        if fault is PairingFault.REPEATED:
            yield f"{item.path}.call_id", f"a second {item.kind} with call_id {_get_pairing_id(item)}; keep one"


def _check_call_id(request: ResponsesView) -> Violations:
    """A call_id is a string of 1 to 64 characters."""
    for item in request.iter_items(*_OUTPUT_BY_CALL, *_CALL_BY_OUTPUT):
        id_ = item.value.get("call_id")
        if id_ is None and item.kind == "local_shell_call_output":  # may have an ``id`` instead
            continue
        if not isinstance(id_, str) or not id_:
            yield (
                f"{item.path}.call_id",
                f"the call_id is {format_json_value(id_)}; send the id of the call as a string",
            )
        elif len(id_) > _MAX_CALL_ID_CHARS:
            problem = f"the call_id has {len(id_)} characters, but {_MAX_CALL_ID_CHARS} are allowed"
            yield f"{item.path}.call_id", f"{problem}; give call and output a shorter one"


def _check_call_name(request: ResponsesView) -> Violations:
    """The name of a called function matches ^[a-zA-Z0-9_-]{1,128}$."""
    for item in request.iter_items("function_call", "custom_tool_call"):
        name = item.value.get("name")
        if not is_tool_name(name):
            yield (
                f"{item.path}.name",
                f"name {format_json_value(name)} does not match ^[a-zA-Z0-9_-]{{1,128}}$; rename the tool",
            )


# -- reasoning ---------------------------------------------------------------------------------------------------------


def _check_reasoning_followed(request: ResponsesView) -> Violations:
    """A reasoning item is followed by the message or call that the model made with it."""
    for index, item in enumerate(request.items):
        if item.kind != "reasoning":
            continue
        is_last = index + 1 == len(request.items)
        if is_last or not request.items[index + 1].is_model_item:
            problem = f"reasoning {item.value.get('id')} is not followed by a message or call of the model"
            yield item.path, f"{problem}; send the item that followed it, or drop the reasoning"


def _check_unstored_items(request: ResponsesView) -> Violations:
    """With store: false, no item is sent by its id alone."""
    if request.body.get("store") is not False:
        return
    for item in request.iter_items("item_reference"):
        yield (
            f"{item.path}.id",
            f"item {item.value.get('id')} is not stored (store: false); send the item itself, or drop it",
        )
    for item in request.iter_items("reasoning"):
        content = item.value.get("encrypted_content") or item.value.get("content")
        if item.value.get("id") is not None and not content:
            problem = f"reasoning {item.value['id']} is not stored (store: false) and has no encrypted_content"
            yield f"{item.path}.encrypted_content", f"{problem}; send encrypted_content, or drop the reasoning"


# -- compaction --------------------------------------------------------------------------------------------------------


def _check_trigger_last(request: ResponsesView) -> Violations:
    """A compaction_trigger is the last item."""
    for item in request.iter_items("compaction_trigger"):
        if item.item_index != len(request.listed_items) - 1:
            yield item.path, "the compaction_trigger is not the last item; move it to the end"


CALL_RULES: tuple[Rule, ...] = (
    Rule("openai-responses.pair", _check_calls_answered, "observed", PUBLIC_ERRORS),
    Rule("openai-responses.orphan", _check_orphan_results, "observed", PUBLIC_ERRORS),
    Rule("openai-responses.approval-pair", _check_approvals, "observed", "agent-framework#7452, SDK 3.57 types (2026)"),
    Rule("openai-responses.call-once", _check_single_use, "inferred", "not settled"),
    Rule("openai-responses.call-id", _check_call_id, "documented", OPENAI_DOCS),
    Rule("openai-responses.name-pattern", _check_call_name, "recalled", UNVERIFIED_MEMORY),
    Rule("openai-responses.reasoning-unit", _check_reasoning_followed, "observed", PUBLIC_ERRORS),
    Rule("openai-responses.stored", _check_unstored_items, "recalled", UNVERIFIED_MEMORY),
    Rule("openai-responses.trigger-last", _check_trigger_last, "documented", OPENAI_DOCS),
)
"""The rules about calls, reasoning and compaction."""
