"""Rules of the Responses API about items: their kinds, fields, ids and contents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from holdfast.providers.openai_responses.rules.view import HOLDS, Item, Responses
from holdfast.providers.rules.rule import KNOWN, MET, OPENAI, Broken, Rule, quoted, type_name

_ROLES = ("user", "assistant", "system", "developer")
_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
_MAX_ID = 64
_PREFIXES = {"function_call": "fc", "message": "msg", "reasoning": "rs"}
_KNOWN = frozenset(
    {"message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
     "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output", "apply_patch_call",
     "apply_patch_call_output", "computer_call", "computer_call_output", "web_search_call", "file_search_call",
     "image_generation_call", "code_interpreter_call", "mcp_list_tools", "mcp_approval_request",
     "mcp_approval_response", "mcp_call", "tool_search_call", "tool_search_output", "additional_tools",
     "configuration_update", "compaction", "compaction_trigger", "item_reference", "program", "program_output"}
)  # fmt: skip
"""Kinds of items in the types of the official SDK 3.54."""
_FOREIGN = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "text", "image", "image_url", "document", "input_text",
     "output_text", "input_image", "input_file", "refusal", "function", "tool", "toolCall", "toolResult"}
)  # fmt: skip
"""Types of other APIs, and of parts, that a converter may have left where an item stands."""
_SAID = frozenset({"output_text", "refusal"})
_GIVEN = frozenset({"input_text", "input_image", "input_file", "input_audio", "computer_screenshot"})
_WANTED: dict[str, dict[str, type]] = {
    "function_call": {"arguments": str},
    "custom_tool_call": {"input": str},
    "reasoning": {"summary": list},
    "compaction": {"encrypted_content": str},
    "item_reference": {"id": str},
    "mcp_approval_response": {"approval_request_id": str, "approve": bool},
}
"""Fields that an item of a kind must have."""
_PART_FIELDS: dict[str, tuple[str, ...]] = {
    "input_text": ("text",),
    "output_text": ("text",),
    "refusal": ("refusal",),
    "input_image": ("image_url", "file_id"),
    "input_file": ("file_data", "file_id", "file_url"),
}
"""Of these fields a part has one, as a string."""
_MAX_TEXT = 10_485_760
_MAX_SEALED = 20_971_520
"""Characters of a text or an output, and of an image's address or an encrypted compaction."""
_MAX_IMAGES = 500
_PHASES = (None, "commentary", "final_answer")


# -- items -------------------------------------------------------------------------------------------------------------


def _input(request: Responses) -> Broken:
    """The input is text or a list of items, with something in it unless the history lies with the server."""
    value = request.body.get("input")
    free = request.continued or request.body.get("prompt") is not None
    if value is None and free:
        return
    if not isinstance(value, str | list):
        yield "$.input", f"input is {type_name(value)}; send a string or a list of items"
    elif value == [] and not free:
        yield "$.input", "there is no item; send at least one message"


def _item_shape(request: Responses) -> Broken:
    """An item is an object that names its type, or a message's role."""
    if len(request.items) == len(request.listed_items):
        return
    fine = {item.at for item in request.items}
    for at, value in enumerate(request.listed_items):
        if at not in fine:
            yield f"$.input[{at}]", f"the item is {type_name(value)} without a type; name its type"


def _foreign(request: Responses) -> Broken:
    """Items are those of this API."""
    for item in request.kinds(*sorted(_FOREIGN)):
        yield f"{item.path}.type", f"{item.kind!r} is no item of this API; convert it to one"


def _unknown(request: Responses) -> Broken:
    """An item is of a kind that is known."""
    for kind in request.by_kind:
        for item in request.kinds(kind) if kind not in _KNOWN | _FOREIGN else ():
            yield f"{item.path}.type", f"item type {quoted(kind)} is not known; check that the server takes it"


def _fields(request: Responses) -> Broken:
    """An item has the fields of its kind."""
    for kind, wanted in _WANTED.items():
        for item in request.kinds(kind):
            for key, form in wanted.items():
                if not isinstance(item.value.get(key), form):
                    found = type_name(item.value.get(key))
                    yield f"{item.path}.{key}", f"{key} of a {kind} is {found}; send {_FORMS[form]}"


_FORMS: dict[type, str] = {str: "a string", list: "a list", bool: "true or false"}


def _roles(request: Responses) -> Broken:
    """A role is user, assistant, system or developer."""
    for item in request.kinds("message"):
        if item.value.get("role") not in _ROLES:
            said = json.dumps(item.value.get("role"), default=str)
            yield f"{item.path}.role", f"role {said} is none of {', '.join(_ROLES)}; use one of them"


def _phase(request: Responses) -> Broken:
    """The phase of a message is commentary or final_answer."""
    for item in request.kinds("message"):
        if item.value.get("phase") not in _PHASES:
            yield f"{item.path}.phase", f"phase {quoted(item.value['phase'])}; send commentary, final_answer or nothing"


# -- ids ---------------------------------------------------------------------------------------------------------------


def _ids(request: Responses) -> Iterator[tuple[Item, str]]:
    """Yield the ids of items that are strings."""
    for item in request.items:
        id_ = item.value.get("id")
        if isinstance(id_, str):
            yield item, id_


def _id_shape(request: Responses) -> Broken:
    """An item's id has 1 to 64 letters, digits, dashes and underscores."""
    for item, id_ in _ids(request):
        if len(id_) > _MAX_ID:
            yield f"{item.path}.id", f"an id of {len(id_)} characters, {_MAX_ID} are allowed; leave the id out"
        elif not _ID.match(id_):
            yield f"{item.path}.id", f"id {quoted(id_)} does not match ^[a-zA-Z0-9_-]+$; leave the id out"


def _id_prefix(request: Responses) -> Broken:
    """The id of a call begins with fc, of a message with msg, of reasoning with rs."""
    for kind, prefix in _PREFIXES.items():
        for item in request.kinds(kind):
            id_ = item.value.get("id")
            if isinstance(id_, str) and not id_.startswith(prefix):
                yield (
                    f"{item.path}.id",
                    f"id {quoted(id_)} of a {kind} does not begin with {prefix!r}; leave the id out",
                )


def _unique_ids(request: Responses) -> Broken:
    """Ids of items are unique; a local shell's output may have the id of its call."""
    seen: dict[str, Item] = {}
    for item, id_ in _ids(request):
        if item.kind == "local_shell_call_output":
            continue
        first = seen.setdefault(id_, item)
        if first is not item:
            yield f"{item.path}.id", f"id {id_} was used at {first.path} already; drop the second item or its id"


# -- contents ----------------------------------------------------------------------------------------------------------


def _content(request: Responses) -> Broken:
    """What an item says or gives back is a string or a list of parts."""
    for kind, key in HOLDS.items():
        for item in request.kinds(kind):
            held = item.value.get(key)
            if not isinstance(held, str | list):
                yield f"{item.path}.{key}", f"{key} is {type_name(held)}; send a string or a list of parts"


def _part_kind(part: object) -> object:
    return part.get("type") if isinstance(part, dict) else None


def _path(item: Item, index: int) -> str:
    return f"{item.path}.{HOLDS[item.kind]}[{index}]"


def _part_shape(request: Responses) -> Broken:
    """A part is an object that names its type."""
    for item, index, part in request.parts:
        if not isinstance(_part_kind(part), str):
            yield _path(item, index), f"the part is {type_name(part)} without a type; name its type"


def _parts(request: Responses) -> Broken:
    """The assistant says output_text and refusals; all others, and tools, give input parts."""
    for item, index, part in request.parts:
        kind = _part_kind(part)
        allowed = _SAID if item.value.get("role") == "assistant" else _GIVEN
        if isinstance(kind, str) and kind not in allowed:
            said = f"{quoted(kind)} in an item of {item.value.get('role') or item.kind}, which takes {sorted(allowed)}"
            yield f"{_path(item, index)}.type", f"{said}; convert it"


def _part_fields(request: Responses) -> Broken:
    """A part has the text, address or file of its type."""
    for item, index, part in request.parts:
        keys = _PART_FIELDS.get(str(_part_kind(part)))
        if keys is not None and not any(isinstance(part.get(key), str) for key in keys):
            yield f"{_path(item, index)}.{keys[0]}", f"the part has no {' or '.join(keys)}; send it as a string"


def _long(request: Responses) -> Iterator[tuple[str, object, int]]:
    """Yield the strings that have a limit: their paths, themselves, the limit."""
    for kind in ("function_call_output", "custom_tool_call_output"):
        for item in request.kinds(kind):
            yield f"{item.path}.output", item.value.get("output"), _MAX_TEXT
    for item in request.kinds("compaction"):
        yield f"{item.path}.encrypted_content", item.value.get("encrypted_content"), _MAX_SEALED
    for item, index, part in request.parts:
        if _part_kind(part) == "input_image":
            yield f"{_path(item, index)}.image_url", part.get("image_url"), _MAX_SEALED
        elif _part_kind(part) == "input_text":
            yield f"{_path(item, index)}.text", part.get("text"), _MAX_TEXT


def _lengths(request: Responses) -> Broken:
    """Texts and outputs have at most 10,485,760 characters, images and compactions 20,971,520."""
    if request.size <= _MAX_TEXT:
        return
    for path, value, most in _long(request):
        if isinstance(value, str) and len(value) > most:
            yield path, f"{len(value):,} characters, {most:,} are allowed; shorten it"


def _images(request: Responses) -> Broken:
    """There are at most 500 images."""
    found: list[tuple[Item, int, Any]] = [one for one in request.parts if _part_kind(one[2]) == "input_image"]
    if len(found) > _MAX_IMAGES:
        item, index, _ = found[_MAX_IMAGES]
        yield _path(item, index), f"{len(found)} images, {_MAX_IMAGES} are allowed; replace the oldest by text"


RULES: tuple[Rule, ...] = (
    Rule("openai-responses.input", _input, "documented", OPENAI),
    Rule("openai-responses.item-shape", _item_shape, "documented", OPENAI),
    Rule("openai-responses.foreign-item", _foreign, "documented", OPENAI),
    Rule("openai-responses.unknown-item", _unknown, "inferred", OPENAI),
    Rule("openai-responses.item-fields", _fields, "documented", OPENAI),
    Rule("openai-responses.roles", _roles, "documented", OPENAI),
    Rule("openai-responses.phase", _phase, "documented", OPENAI),
    Rule("openai-responses.id-pattern", _id_shape, "observed", MET),
    Rule("openai-responses.id-prefix", _id_prefix, "observed", MET),
    Rule("openai-responses.unique-ids", _unique_ids, "recalled", KNOWN),
    Rule("openai-responses.content", _content, "documented", OPENAI),
    Rule("openai-responses.part-shape", _part_shape, "documented", OPENAI),
    Rule("openai-responses.parts", _parts, "recalled", KNOWN),
    Rule("openai-responses.part-fields", _part_fields, "documented", OPENAI),
    Rule("openai-responses.lengths", _lengths, "documented", OPENAI),
    Rule("openai-responses.images", _images, "documented", "guide to images"),
)
"""The rules about items."""
