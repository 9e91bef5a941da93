"""Rules of Chat Completions about messages and their content."""

from __future__ import annotations

import json
import re
from typing import Any

from holdfast.providers.common.media_faults import COMMON_IMAGE_TYPES, explain_data_url_fault, explain_media_fault
from holdfast.providers.common.openai.models import is_openai_model
from holdfast.providers.openai_chat.rules.request_view import ChatView
from holdfast.providers.rules.rule import (
    OPENAI_DOCS,
    PUBLIC_ERRORS,
    UNVERIFIED_MEMORY,
    Rule,
    Violations,
    format_json_value,
    get_json_type_name,
)

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_SPEAKER_NAME = re.compile(r"[^\s<|\\/>]{1,64}\Z")
_MAX_IMAGES = 500
"""The limit in OpenAI's guide to images."""
_PART_TYPES_BY_ROLE = {
    "user": frozenset({"text", "image_url", "input_audio", "file"}),
    "assistant": frozenset({"text", "refusal"}),
    "system": frozenset({"text"}),
    "developer": frozenset({"text"}),
    "tool": frozenset({"text"}),
}
_FOREIGN_PART_TYPES = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document", "input_text", "output_text",
     "input_image", "input_file", "function_call", "function_call_output", "reasoning", "toolCall"}
)  # fmt: skip
"""Part types of other APIs, which a converter may have left behind."""
_REQUIRED_PART_FIELDS: dict[str, tuple[tuple[str, ...], type]] = {
    "text": (("text",), str),
    "refusal": (("refusal",), str),
    "image_url": (("image_url", "url"), str),
    "input_audio": (("input_audio", "data"), str),
    "file": (("file",), dict),
}
"""The path inside a part at which a value of the given type must be, by the type of the part."""
_CONTENT_SUBSTITUTES = ("function_call", "audio", "refusal")
"""Fields that an assistant message may have in place of content, calls aside."""
_NO_REQUIREMENT: tuple[tuple[str, ...], type] = ((), object)


# -- messages ----------------------------------------------------------------------------------------------------------


def _check_message_count(request: ChatView) -> Violations:
    """The field messages is a list of at least one message, and each is an object."""
    messages = request.body.get("messages")
    if not isinstance(messages, list) or not messages:
        yield "$.messages", f"messages is {get_json_type_name(messages)} without messages; send a list of at least one"
    for at, message in enumerate(request.messages):
        if not isinstance(message, dict):
            yield f"$.messages[{at}]", f"the message is {get_json_type_name(message)}; send an object with a role"


def _check_roles(request: ChatView) -> Violations:
    """The role of a message is system, developer, user, assistant, tool or function."""
    for at, message, role in request.message_objects:
        if role not in _ROLES:
            role_text = json.dumps(message.get("role"), default=str)
            yield f"$.messages[{at}].role", f"role {role_text} is not one of {', '.join(_ROLES)}; use one of them"


def _check_content_shape(request: ChatView) -> Violations:
    """The content of a message is a string or a list of parts; null only if an assistant message has calls."""
    for at, message, role in request.message_objects:
        content = message.get("content")
        path = f"$.messages[{at}].content"
        if content is None:
            has_calls = message.get("tool_calls") is not None
            has_other_content = has_calls or any(message.get(key) for key in _CONTENT_SUBSTITUTES)
            may_be_null = role == "function" or (role == "assistant" and has_other_content)
            if not may_be_null:
                yield path, f"the content of a message of the role {role} is null; send a string"
        elif not isinstance(content, str | list):
            yield path, f"content is {get_json_type_name(content)}; send a string or a list of parts"
        elif content == []:
            yield path, "content is an empty list; send at least one part, or a string"


def _check_speaker_name(request: ChatView) -> Violations:
    r"""The name in a message has 1 to 64 characters, without white space and <|\/>."""
    for at, message, role in request.message_objects:
        name = message.get("name")
        has_speaker_name = name is not None and role in ("system", "developer", "user", "assistant")
        if has_speaker_name and not (isinstance(name, str) and _SPEAKER_NAME.match(name)):
            problem = f"name {format_json_value(name)} has white space or one of <|\\/>, or over 64 characters"
            yield f"$.messages[{at}].name", f"{problem}; use 1 to 64 other characters"


# -- parts -------------------------------------------------------------------------------------------------------------


def _get_part_type(part: object) -> object:
    return part.get("type") if isinstance(part, dict) else None


def _check_part_shape(request: ChatView) -> Violations:
    """A part is an object with a type."""
    for at, index, part, _ in request.parts:
        if not isinstance(_get_part_type(part), str):
            yield (
                f"$.messages[{at}].content[{index}]",
                f"the part is {get_json_type_name(part)} without a type; add its type",
            )


def _check_part_role(request: ChatView) -> Violations:
    """Only user messages have images, audio and files; all others have text, and those of the assistant refusals."""
    for at, index, part, role in request.parts:
        kind = _get_part_type(part)
        allowed = _PART_TYPES_BY_ROLE.get(role, frozenset())
        if not isinstance(kind, str) or kind in allowed:
            continue
        # A type of a user's part that is simply unknown is left to the rule below, which only warns: it may be newer
        # than this table.
        if role == "user" and kind not in _FOREIGN_PART_TYPES and kind != "refusal":
            continue
        problem = f"{format_json_value(kind)} is not allowed in a message of the role {role}, only {sorted(allowed)}"
        yield f"$.messages[{at}].content[{index}].type", f"{problem}; move it to another message"


def _check_known_part_type(request: ChatView) -> Violations:
    """The type of a part in a user message is known."""
    known_types = _PART_TYPES_BY_ROLE["user"] | _FOREIGN_PART_TYPES | {"refusal"}
    for at, index, part, role in request.parts:
        kind = _get_part_type(part)
        if role == "user" and isinstance(kind, str) and kind not in known_types:
            path = f"$.messages[{at}].content[{index}].type"
            yield path, f"part type {format_json_value(kind)} is not known; check that the server accepts it"


def _check_part_fields(request: ChatView) -> Violations:
    """A part has the content that its type requires."""
    for at, index, part, _ in request.parts:
        keys, kind = _REQUIRED_PART_FIELDS.get(str(_get_part_type(part)), _NO_REQUIREMENT)
        value: Any = part
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, kind):
            path = f"$.messages[{at}].content[{index}].{'.'.join(keys)}"
            yield (
                path,
                f"{keys[-1]} of the part is {get_json_type_name(value)}; send the content that its type requires",
            )


def _check_media_bytes(request: ChatView) -> Violations:
    """The bytes in a data URL are of the type that it declares, and their base64 is complete."""
    # Other servers may read more kinds of images than OpenAI.
    accepted_images = COMMON_IMAGE_TYPES if is_openai_model(request.model.lower()) else ()
    for at, index, part, _ in request.parts:
        path = f"$.messages[{at}].content[{index}]"
        for key, field in (("image_url", "url"), ("file", "file_data")):
            value = part.get(key) if _get_part_type(part) == key else None
            url = value.get(field) if isinstance(value, dict) else None
            fault = explain_data_url_fault(url, accepted_images)
            if fault is not None:
                yield f"{path}.{key}.{field}", fault
        audio = part.get("input_audio") if _get_part_type(part) == "input_audio" else None
        if isinstance(audio, dict) and isinstance(audio.get("data"), str) and isinstance(audio.get("format"), str):
            fault = explain_media_fault(audio["data"], f"audio/{audio['format']}")
            if fault is not None:
                yield f"{path}.input_audio.data", fault


def _check_refusal_alone(request: ChatView) -> Violations:
    """A refusal is the only part of its message."""
    for at, index, part, _ in request.parts:
        if _get_part_type(part) == "refusal" and len(request.messages[at]["content"]) != 1:
            yield (
                f"$.messages[{at}].content[{index}]",
                "the message has a refusal and other parts; send the refusal alone",
            )


def _check_image_count(request: ChatView) -> Violations:
    """There are at most 500 images."""
    image_paths = []
    for at, index, part, _ in request.parts:
        if _get_part_type(part) == "image_url":
            image_paths.append(f"$.messages[{at}].content[{index}]")
    if len(image_paths) > _MAX_IMAGES:
        problem = f"{len(image_paths)} images, but {_MAX_IMAGES} are allowed; replace the oldest by text"
        yield image_paths[_MAX_IMAGES], problem


CONTENT_RULES: tuple[Rule, ...] = (
    Rule("openai-chat.messages", _check_message_count, "documented", OPENAI_DOCS),
    Rule("openai-chat.roles", _check_roles, "documented", OPENAI_DOCS),
    Rule("openai-chat.content", _check_content_shape, "documented", OPENAI_DOCS),
    Rule("openai-chat.name", _check_speaker_name, "recalled", UNVERIFIED_MEMORY),
    Rule("openai-chat.part-shape", _check_part_shape, "documented", OPENAI_DOCS),
    Rule("openai-chat.parts", _check_part_role, "documented", OPENAI_DOCS),
    Rule("openai-chat.unknown-part", _check_known_part_type, "inferred", OPENAI_DOCS),
    Rule("openai-chat.part-fields", _check_part_fields, "documented", OPENAI_DOCS),
    Rule("openai-chat.media-bytes", _check_media_bytes, "observed", PUBLIC_ERRORS),
    Rule("openai-chat.refusal", _check_refusal_alone, "documented", OPENAI_DOCS),
    Rule("openai-chat.images", _check_image_count, "documented", "guide to images"),
)
"""The rules about messages and parts."""
