"""Rules of the Responses API about calls and outputs, reasoning, and compaction."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.providers.openai_responses.rules.view import Item, Responses
from holdfast.providers.rules.options import is_name
from holdfast.providers.rules.rule import KNOWN, MET, OPENAI, Broken, Rule, quoted

_ANSWERS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
}
"""Calls that the client answers, with the kind of the output."""
_CALLS = {output: call for call, output in _ANSWERS.items()}
_MAX_CALL_ID = 64


def _key(item: Item) -> str:
    """Return what pairs a call with its output; a local shell may have it in ``id``."""
    id_ = item.value.get("call_id")
    return str(item.value.get("id") if id_ is None and item.kind.startswith("local_shell_call") else id_)


def _other_keys(request: Responses) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the keys of local shell calls by their ``id`` too, for an output may name either, and as a function's.

    Codex answers them with a ``function_call_output``.
    """
    calls = [(item, (item.kind, _key(item))) for item in request.kinds("local_shell_call")]
    by_id = {(item.kind, str(item.value.get("id"))): key for item, key in calls}
    return by_id | {("function_call", key[1]): key for _, key in calls}


def _elsewhere(request: Responses) -> bool:
    """Return whether a call or an output may be one that only the server knows."""
    return request.continued or "item_reference" in request.by_kind


def _pairs(request: Responses) -> list[tuple[str, Item]]:
    """Return what is odd about calls and outputs, found once for the three rules that ask."""
    if request.odd is None:
        request.odd = [*_odd(request)]
    return request.odd


def _odd(request: Responses) -> Iterator[tuple[str, Item]]:
    """Yield ``open`` for a call without output, ``orphan`` for an output without call, ``again`` for a second one."""
    waiting: dict[tuple[str, str], Item] = {}
    called: set[tuple[str, str]] = set()
    other = _other_keys(request)
    for item in request.items:
        if item.kind in _ANSWERS:
            key = (item.kind, _key(item))
            if key in waiting:
                yield "again", item
            waiting[key] = item
            called.add(key)
        elif item.kind in _CALLS:
            key = (_CALLS[item.kind], _key(item))
            key = key if key in called else other.get(key, key)
            if waiting.pop(key, None) is None:
                yield ("again" if key in called else "orphan"), item
    for item in waiting.values():
        yield "open", item


def _pair(request: Responses) -> Broken:
    """Every call has its output behind it, paired by call_id."""
    for verdict, item in _pairs(request):
        free = item.value.get("async") is True or "item_reference" in request.by_kind
        if verdict == "open" and not free:
            said = f"call {_key(item)} has no {_ANSWERS[item.kind]} behind it"
            yield f"{item.path}.call_id", f"{said}; add one with that call_id or drop the call"


def _orphan(request: Responses) -> Broken:
    """Every output answers a call before it, here or where the conversation goes on from."""
    for verdict, item in _pairs(request):
        if verdict == "orphan" and not _elsewhere(request):
            said = f"{item.kind} {_key(item)} answers no {_CALLS[item.kind]} before it"
            yield f"{item.path}.call_id", f"{said}; send the call too or drop the output"


def _once(request: Responses) -> Broken:
    """A call id is used for one call and one output."""
    for verdict, item in _pairs(request):
        if verdict == "again":
            yield f"{item.path}.call_id", f"a second {item.kind} with call_id {_key(item)}; keep one"


def _call_id(request: Responses) -> Broken:
    """A call_id is a string of 1 to 64 characters."""
    for item in request.kinds(*_ANSWERS, *_CALLS):
        id_ = item.value.get("call_id")
        if id_ is None and item.kind == "local_shell_call_output":
            continue
        if not isinstance(id_, str) or not id_:
            yield f"{item.path}.call_id", f"the call_id is {quoted(id_)}; send the id of the call as a string"
        elif len(id_) > _MAX_CALL_ID:
            said = f"a call_id of {len(id_)} characters, {_MAX_CALL_ID} are allowed"
            yield f"{item.path}.call_id", f"{said}; map call and output to a shorter one"


def _name(request: Responses) -> Broken:
    """The name of a called function matches ^[a-zA-Z0-9_-]{1,128}$."""
    for item in request.kinds("function_call", "custom_tool_call"):
        name = item.value.get("name")
        if not is_name(name):
            yield f"{item.path}.name", f"name {quoted(name)} does not match ^[a-zA-Z0-9_-]{{1,128}}$; rename the tool"


# -- reasoning ---------------------------------------------------------------------------------------------------------


def _reasoning(request: Responses) -> Broken:
    """Reasoning is followed by the message or call that came of it."""
    for item, after in zip(request.items, [*request.items[1:], None], strict=False):
        if item.kind == "reasoning" and (after is None or not after.made):
            said = f"reasoning {item.value.get('id')} without the item that came of it"
            yield item.path, f"{said}; drop the reasoning or send its message or call behind it"


def _stored(request: Responses) -> Broken:
    """With store false no item is sent by its id alone."""
    if request.body.get("store") is not False:
        return
    for item in request.kinds("item_reference"):
        yield f"{item.path}.id", f"item {item.value.get('id')} was never stored; send the item itself or drop it"
    for item in request.kinds("reasoning"):
        sealed = item.value.get("encrypted_content") or item.value.get("content")
        if item.value.get("id") is not None and not sealed:
            said = f"reasoning {item.value['id']} was never stored and has no encrypted_content"
            yield f"{item.path}.encrypted_content", f"{said}; send that or drop the reasoning"


# -- compaction --------------------------------------------------------------------------------------------------------


def _trigger(request: Responses) -> Broken:
    """A compaction_trigger is the last item."""
    for item in request.kinds("compaction_trigger"):
        if item.at != len(request.listed_items) - 1:
            yield item.path, "a compaction_trigger before the end; make it the last item"


RULES: tuple[Rule, ...] = (
    Rule("openai-responses.pair", _pair, "observed", MET),
    Rule("openai-responses.orphan", _orphan, "observed", MET),
    Rule("openai-responses.call-once", _once, "inferred", "not settled"),
    Rule("openai-responses.call-id", _call_id, "documented", OPENAI),
    Rule("openai-responses.name-pattern", _name, "recalled", KNOWN),
    Rule("openai-responses.reasoning-unit", _reasoning, "observed", MET),
    Rule("openai-responses.stored", _stored, "recalled", KNOWN),
    Rule("openai-responses.trigger-last", _trigger, "documented", OPENAI),
)
"""The rules about calls, reasoning and compaction."""
