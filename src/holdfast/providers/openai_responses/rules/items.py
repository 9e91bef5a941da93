"""Rules of the Responses API about items: their types, fields, ids and contents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from holdfast.providers.common.media_faults import COMMON_IMAGE_TYPES, explain_data_url_fault
from holdfast.providers.openai_responses.rules.request_view import CONTENT_FIELD_BY_KIND, ItemView, ResponsesView
from holdfast.providers.rules.rule import (
    OPENAI_DOCS,
    PUBLIC_ERRORS,
    UNVERIFIED_MEMORY,
    Rule,
    Violations,
    format_json_value,
    get_json_type_name,
)

_ROLES = ("user", "assistant", "system", "developer")
_ID_PATTERN = re.compile(r"[a-zA-Z0-9_-]+\Z")
_MAX_ID_CHARS = 64
# Observed in error messages: the prefix of an id tells the type of its item.
_ID_PREFIXES = {"function_call": "fc", "message": "msg", "reasoning": "rs"}
_KNOWN_ITEM_TYPES = frozenset(
    {"message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
     "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output", "apply_patch_call",
     "apply_patch_call_output", "computer_call", "computer_call_output", "web_search_call", "file_search_call",
     "image_generation_call", "code_interpreter_call", "mcp_list_tools", "mcp_approval_request",
     "mcp_approval_response", "mcp_call", "tool_search_call", "tool_search_output", "additional_tools",
     "configuration_update", "compaction", "compaction_trigger", "item_reference", "program", "program_output"}
)  # fmt: skip
"""Item types in the types of the official SDK 3.54."""
_FOREIGN_ITEM_TYPES = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "text", "image", "image_url", "document", "input_text",
     "output_text", "input_image", "input_file", "refusal", "function", "tool", "toolCall", "toolResult"}
)  # fmt: skip
"""Types of other APIs, and of content parts, that a converter may have left in place of an item."""
_ASSISTANT_PART_TYPES = frozenset({"output_text", "refusal"})
_INPUT_PART_TYPES = frozenset({"input_text", "input_image", "input_file", "input_audio", "computer_screenshot"})
_REQUIRED_FIELDS: dict[str, dict[str, type]] = {
    "function_call": {"arguments": str},
    "custom_tool_call": {"input": str},
    "reasoning": {"summary": list},
    "compaction": {"encrypted_content": str},
    "item_reference": {"id": str},
    "mcp_approval_response": {"approval_request_id": str, "approve": bool},
}
"""Fields that an item must have, by its type."""
_ALTERNATIVE_PART_FIELDS: dict[str, tuple[str, ...]] = {
    "input_text": ("text",),
    "output_text": ("text",),
    "refusal": ("refusal",),
    "input_image": ("image_url", "file_id"),
    "input_file": ("file_data", "file_id", "file_url"),
}
"""Fields of which a content part must have one as a string, by its type."""
_MAX_TEXT_CHARS = 10_485_760
"""Characters of a text or an output (OpenAPI)."""
_MAX_ENCODED_CHARS = 20_971_520
"""Characters of an image's address or an encrypted compaction (OpenAPI)."""
_MAX_IMAGES = 500
"""The limit in OpenAI's guide to images."""
_PHASES = (None, "commentary", "final_answer")
_IMAGE_OUTPUT_FIELDS = ("action", "background", "output_format", "quality", "revised_prompt", "size")
"""Fields of an ``image_generation_call`` that the server adds to its answer. Sent back they were refused
(gajae-code#1688, 2026-07-06; oh-my-pi#3202, 2026-06-21), though the types of SDK 3.57 list them as input."""
_SEARCH_ACTIONS = ("search", "open_page", "find_in_page", "find")
"""Actions of a ``web_search_call`` (SDK 3.57 types); ``find`` is the spelling of ``find_in_page`` until July 2026
(openai-openapi#512)."""


# -- items -------------------------------------------------------------------------------------------------------------


def _check_input(request: ResponsesView) -> Violations:
    """The input is a string or a list of items; it may be empty only if the server has a stored history or prompt."""
    value = request.body.get("input")
    has_stored_input = request.is_continued or request.body.get("prompt") is not None
    if value is None and has_stored_input:
        return
    if not isinstance(value, str | list):
        yield "$.input", f"input is {get_json_type_name(value)}; send a string or a list of items"
    elif value == [] and not has_stored_input:
        yield "$.input", "input is an empty list; send at least one message"


def _check_item_shape(request: ResponsesView) -> Violations:
    """An item is an object with a type, or with the role of a message."""
    if len(request.items) == len(request.listed_items):
        return
    valid_indexes = {item.item_index for item in request.items}
    for at, value in enumerate(request.listed_items):
        if at not in valid_indexes:
            yield f"$.input[{at}]", f"the item is {get_json_type_name(value)} without a type; add its type"


def _check_foreign_items(request: ResponsesView) -> Violations:
    """There are no items of other APIs."""
    for item in request.iter_items(*sorted(_FOREIGN_ITEM_TYPES)):
        yield f"{item.path}.type", f"{item.kind!r} is not an item type of this API; convert the item"


def _check_known_item_type(request: ResponsesView) -> Violations:
    """The type of an item is known."""
    for kind, items in request.items_by_kind.items():
        if kind in _KNOWN_ITEM_TYPES or kind in _FOREIGN_ITEM_TYPES:
            continue
        problem = f"item type {format_json_value(kind)} is not known; check that the server accepts it"
        for item in items:
            yield f"{item.path}.type", problem


def _check_item_fields(request: ResponsesView) -> Violations:
    """An item has the fields that its type requires."""
    for kind, field_types in _REQUIRED_FIELDS.items():
        for item in request.iter_items(kind):
            for key, field_type in field_types.items():
                value = item.value.get(key)
                if not isinstance(value, field_type):
                    problem = f"{key} of a {kind} is {get_json_type_name(value)}"
                    yield f"{item.path}.{key}", f"{problem}; send {_TYPE_PHRASES[field_type]}"


_TYPE_PHRASES: dict[type, str] = {str: "a string", list: "a list", bool: "true or false"}


def _check_roles(request: ResponsesView) -> Violations:
    """The role of a message is user, assistant, system or developer."""
    for item in request.iter_items("message"):
        if item.value.get("role") not in _ROLES:
            role_text = json.dumps(item.value.get("role"), default=str)
            yield f"{item.path}.role", f"role {role_text} is not one of {', '.join(_ROLES)}; use one of them"


def _check_phase(request: ResponsesView) -> Violations:
    """The phase of a message is commentary or final_answer."""
    for item in request.iter_items("message"):
        if item.value.get("phase") not in _PHASES:
            yield (
                f"{item.path}.phase",
                f"phase is {format_json_value(item.value['phase'])}; send commentary or final_answer, or leave it out",
            )


# -- fields and items of answers that may not come back ----------------------------------------------------------------


def _check_output_fields(request: ResponsesView) -> Violations:
    """An image_generation_call comes back with its id, status and result alone."""
    for item in request.iter_items("image_generation_call"):
        for key in _IMAGE_OUTPUT_FIELDS:
            if key in item.value:
                problem = f"{key} of an image_generation_call is only for answers"
                yield f"{item.path}.{key}", f"{problem}; leave it out, and send id, status and result"


def _check_reasoning_status(request: ResponsesView) -> Violations:
    """A reasoning item comes back without its status."""
    for item in request.iter_items("reasoning"):
        if item.value.get("status") is not None:
            yield f"{item.path}.status", "status of a reasoning item is only for answers; leave it out"


def _check_search_action(request: ResponsesView) -> Violations:
    """The action of a web_search_call is search, open_page or find_in_page."""
    for item in request.iter_items("web_search_call"):
        action = item.value.get("action")
        kind = action.get("type") if isinstance(action, dict) else None
        if isinstance(kind, str) and kind not in _SEARCH_ACTIONS:
            problem = f"the action {format_json_value(kind)} of a web_search_call is only for answers"
            yield f"{item.path}.action.type", f"{problem}; leave the item out"


def _check_unstored_images(request: ResponsesView) -> Violations:
    """With store: false, an image_generation_call has its result."""
    if request.body.get("store") is not False:
        return
    for item in request.iter_items("image_generation_call"):
        if not isinstance(item.value.get("result"), str):
            problem = f"image_generation_call {item.value.get('id')} is not stored (store: false) and has no result"
            yield f"{item.path}.result", f"{problem}; leave the item out"


# -- ids ---------------------------------------------------------------------------------------------------------------


def _iter_item_ids(request: ResponsesView) -> Iterator[tuple[ItemView, str]]:
    """Yield the ids of items that are strings."""
    for item in request.items:
        id_ = item.value.get("id")
        if isinstance(id_, str):
            yield item, id_


def _check_id_pattern(request: ResponsesView) -> Violations:
    """The id of an item has 1 to 64 letters, digits, dashes and underscores."""
    for item, id_ in _iter_item_ids(request):
        if len(id_) > _MAX_ID_CHARS:
            yield (
                f"{item.path}.id",
                f"the id has {len(id_)} characters, but {_MAX_ID_CHARS} are allowed; leave the id out",
            )
        elif not _ID_PATTERN.match(id_):
            yield f"{item.path}.id", f"id {format_json_value(id_)} does not match ^[a-zA-Z0-9_-]+$; leave the id out"


def _check_id_prefix(request: ResponsesView) -> Violations:
    """The id of a function call begins with fc, of a message with msg, of reasoning with rs."""
    for kind, prefix in _ID_PREFIXES.items():
        for item in request.iter_items(kind):
            id_ = item.value.get("id")
            if isinstance(id_, str) and not id_.startswith(prefix):
                yield (
                    f"{item.path}.id",
                    f"id {format_json_value(id_)} of a {kind} does not begin with {prefix!r}; leave the id out",
                )


def _check_unique_ids(request: ResponsesView) -> Violations:
    """The ids of items are unique, but a local_shell_call_output may have the id of its call."""
    items_by_id: dict[str, ItemView] = {}
    for item, id_ in _iter_item_ids(request):
        if item.kind == "local_shell_call_output":  # may name its call by ``id``
            continue
        first = items_by_id.setdefault(id_, item)
        if first is not item:
            yield f"{item.path}.id", f"id {id_} was already used at {first.path}; drop this item, or its id"


# -- contents ----------------------------------------------------------------------------------------------------------


def _check_content_shape(request: ResponsesView) -> Violations:
    """The content of a message, and the output of a function, is a string or a list of parts."""
    for kind, key in CONTENT_FIELD_BY_KIND.items():
        for item in request.iter_items(kind):
            content = item.value.get(key)
            if not isinstance(content, str | list):
                yield f"{item.path}.{key}", f"{key} is {get_json_type_name(content)}; send a string or a list of parts"


def _get_part_type(part: object) -> object:
    return part.get("type") if isinstance(part, dict) else None


def _get_part_path(item: ItemView, index: int) -> str:
    return f"{item.path}.{CONTENT_FIELD_BY_KIND[item.kind]}[{index}]"


def _check_part_shape(request: ResponsesView) -> Violations:
    """A part is an object with a type."""
    for item, index, part in request.parts:
        if not isinstance(_get_part_type(part), str):
            yield _get_part_path(item, index), f"the part is {get_json_type_name(part)} without a type; add its type"


def _check_part_role(request: ResponsesView) -> Violations:
    """Assistant messages have output_text and refusal parts; other messages and outputs have input parts."""
    for item, index, part in request.parts:
        kind = _get_part_type(part)
        role = item.value.get("role")
        if role == "assistant":
            allowed = _ASSISTANT_PART_TYPES
        else:
            allowed = _INPUT_PART_TYPES
        if isinstance(kind, str) and kind not in allowed:
            problem = (
                f"{format_json_value(kind)} is not allowed in an item of {role or item.kind}, only {sorted(allowed)}"
            )
            yield f"{_get_part_path(item, index)}.type", f"{problem}; convert it"


def _check_part_fields(request: ResponsesView) -> Violations:
    """A part has the text, URL or file that its type requires."""
    for item, index, part in request.parts:
        keys = _ALTERNATIVE_PART_FIELDS.get(str(_get_part_type(part)))
        if keys is not None and not any(isinstance(part.get(key), str) for key in keys):
            yield (
                f"{_get_part_path(item, index)}.{keys[0]}",
                f"the part has no {' or '.join(keys)}; send it as a string",
            )


def _check_media_bytes(request: ResponsesView) -> Violations:
    """The bytes in a data URL are of the type that it declares, and their base64 is complete."""
    for item, index, part in request.parts:
        key = {"input_image": "image_url", "input_file": "file_data"}.get(str(_get_part_type(part)))
        fault = explain_data_url_fault(part.get(key), COMMON_IMAGE_TYPES) if key is not None else None
        if fault is not None:
            yield f"{_get_part_path(item, index)}.{key}", fault


def _iter_limited_strings(request: ResponsesView) -> Iterator[tuple[str, object, int]]:
    """Yield path, value and limit of each string that has a limit."""
    for kind in ("function_call_output", "custom_tool_call_output"):
        for item in request.iter_items(kind):
            yield f"{item.path}.output", item.value.get("output"), _MAX_TEXT_CHARS
    for item in request.iter_items("compaction"):
        yield f"{item.path}.encrypted_content", item.value.get("encrypted_content"), _MAX_ENCODED_CHARS
    for item, index, part in request.parts:
        if _get_part_type(part) == "input_image":
            yield f"{_get_part_path(item, index)}.image_url", part.get("image_url"), _MAX_ENCODED_CHARS
        elif _get_part_type(part) == "input_text":
            yield f"{_get_part_path(item, index)}.text", part.get("text"), _MAX_TEXT_CHARS


def _check_lengths(request: ResponsesView) -> Violations:
    """Texts and outputs have at most 10,485,760 characters; images and encrypted compactions 20,971,520."""
    if request.body_bytes <= _MAX_TEXT_CHARS:  # no string can be longer than its body
        return
    for path, value, max_length in _iter_limited_strings(request):
        if isinstance(value, str) and len(value) > max_length:
            yield path, f"{len(value):,} characters, but {max_length:,} are allowed; shorten it"


def _check_image_count(request: ResponsesView) -> Violations:
    """There are at most 500 images."""
    images = []
    for item, index, part in request.parts:
        if _get_part_type(part) == "input_image":
            images.append((item, index))
    if len(images) > _MAX_IMAGES:
        path = _get_part_path(*images[_MAX_IMAGES])
        yield path, f"{len(images)} images, but {_MAX_IMAGES} are allowed; replace the oldest by text"


ITEM_RULES: tuple[Rule, ...] = (
    Rule("openai-responses.input", _check_input, "documented", OPENAI_DOCS),
    Rule("openai-responses.item-shape", _check_item_shape, "documented", OPENAI_DOCS),
    Rule("openai-responses.foreign-item", _check_foreign_items, "documented", OPENAI_DOCS),
    Rule("openai-responses.unknown-item", _check_known_item_type, "inferred", OPENAI_DOCS),
    Rule("openai-responses.item-fields", _check_item_fields, "documented", OPENAI_DOCS),
    Rule("openai-responses.roles", _check_roles, "documented", OPENAI_DOCS),
    Rule("openai-responses.phase", _check_phase, "documented", OPENAI_DOCS),
    Rule("openai-responses.output-fields", _check_output_fields, "observed", "gajae-code#1688, oh-my-pi#3202 (2026)"),
    Rule(
        "openai-responses.reasoning-status",
        _check_reasoning_status,
        "observed",
        "haskell-agent#689, codex-proxy-rs#201, sub2api#6143 (2026)",
    ),
    Rule("openai-responses.search-action", _check_search_action, "observed", "codex#7073 (2025-11), SDK 3.57 types"),
    Rule("openai-responses.image-result", _check_unstored_images, "observed", "oh-my-pi#3226 (2026-06-22)"),
    Rule("openai-responses.id-pattern", _check_id_pattern, "observed", PUBLIC_ERRORS),
    Rule("openai-responses.id-prefix", _check_id_prefix, "observed", PUBLIC_ERRORS),
    Rule("openai-responses.unique-ids", _check_unique_ids, "recalled", UNVERIFIED_MEMORY),
    Rule("openai-responses.content", _check_content_shape, "documented", OPENAI_DOCS),
    Rule("openai-responses.part-shape", _check_part_shape, "documented", OPENAI_DOCS),
    Rule("openai-responses.parts", _check_part_role, "recalled", UNVERIFIED_MEMORY),
    Rule("openai-responses.part-fields", _check_part_fields, "documented", OPENAI_DOCS),
    Rule("openai-responses.media-bytes", _check_media_bytes, "observed", PUBLIC_ERRORS),
    Rule("openai-responses.lengths", _check_lengths, "documented", OPENAI_DOCS),
    Rule("openai-responses.images", _check_image_count, "documented", "guide to images"),
)
"""The rules about items."""
