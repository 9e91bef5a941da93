"""Rules of Chat Completions about messages and what they say."""

from __future__ import annotations

import json
import re
from typing import Any

from holdfast.providers.openai_chat.rules.view import Chat
from holdfast.providers.rules.rule import KNOWN, OPENAI, Broken, Rule, quoted, type_name

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_SPEAKER = re.compile(r"[^\s<|\\/>]{1,64}\Z")
_MAX_IMAGES = 500
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
_SPOKEN = ("function_call", "audio", "refusal")
"""What an assistant may say in place of content, calls aside."""
_NOTHING: tuple[tuple[str, ...], type] = ((), object)


# -- messages ----------------------------------------------------------------------------------------------------------


def _nonempty(request: Chat) -> Broken:
    """There is at least one message, each an object."""
    listed = request.body.get("messages")
    if not isinstance(listed, list) or not listed:
        yield "$.messages", f"messages is {type_name(listed)} with nothing in it; send at least one message"
    for at, message in enumerate(request.messages):
        if not isinstance(message, dict):
            yield f"$.messages[{at}]", f"the message is {type_name(message)}; send an object with a role"


def _roles(request: Chat) -> Broken:
    """A role is system, developer, user, assistant, tool or function."""
    for at, message, role in request.objects:
        if role not in _ROLES:
            said = json.dumps(message.get("role"), default=str)
            yield f"$.messages[{at}].role", f"role {said} is none of {', '.join(_ROLES)}; use one of them"


def _content(request: Chat) -> Broken:
    """Content is text or parts, null only beside calls."""
    for at, message, role in request.objects:
        content = message.get("content")
        path = f"$.messages[{at}].content"
        if content is None:
            spoken = message.get("tool_calls") is not None or any(message.get(key) for key in _SPOKEN)
            if not (role == "assistant" and spoken) and role != "function":
                yield path, f"the content of a message of the role {role} is null; send a string"
        elif not isinstance(content, str | list):
            yield path, f"content is {type_name(content)}; send a string or a list of parts"
        elif content == []:
            yield path, "content is an empty list; send at least one part, or a string"


def _speaker(request: Chat) -> Broken:
    r"""The name of a speaker has no white space and no <|\/>."""
    for at, message, role in request.objects:
        name = message.get("name")
        named = name is not None and role in ("system", "developer", "user", "assistant")
        if named and not (isinstance(name, str) and _SPEAKER.match(name)):
            said = f"name {quoted(name)} has white space or one of <|\\/>, or over 64 characters"
            yield f"$.messages[{at}].name", f"{said}; clean it"


# -- parts -------------------------------------------------------------------------------------------------------------


def _part_kind(part: object) -> object:
    return part.get("type") if isinstance(part, dict) else None


def _part_shape(request: Chat) -> Broken:
    """A part is an object that names its type."""
    for at, index, part, _ in request.parts:
        if not isinstance(_part_kind(part), str):
            yield f"$.messages[{at}].content[{index}]", f"the part is {type_name(part)} without a type; name its type"


def _parts(request: Chat) -> Broken:
    """Only a user message holds media; results and instructions are text."""
    for at, index, part, role in request.parts:
        kind, allowed = _part_kind(part), _PARTS.get(role, frozenset())
        if isinstance(kind, str) and kind not in allowed and (role != "user" or kind in _FOREIGN or kind == "refusal"):
            said = f"{quoted(kind)} in a message of the role {role}, which takes {sorted(allowed)}"
            yield f"$.messages[{at}].content[{index}].type", f"{said}; move it"


def _unknown_part(request: Chat) -> Broken:
    """A part of a user message has a known type."""
    for at, index, part, role in request.parts:
        kind = _part_kind(part)
        if role == "user" and isinstance(kind, str) and kind not in _PARTS["user"] | _FOREIGN | {"refusal"}:
            path = f"$.messages[{at}].content[{index}].type"
            yield path, f"part type {quoted(kind)} is not known; check that the server takes it"


def _part_fields(request: Chat) -> Broken:
    """A part holds what its type says."""
    for at, index, part, _ in request.parts:
        keys, kind = _WANTED.get(str(_part_kind(part)), _NOTHING)
        value: Any = part
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, kind):
            path = f"$.messages[{at}].content[{index}].{'.'.join(keys)}"
            yield path, f"the part's {keys[-1]} is {type_name(value)}; send it"


def _refusal(request: Chat) -> Broken:
    """A refusal is the only part of its message."""
    for at, index, part, _ in request.parts:
        if _part_kind(part) == "refusal" and len(request.messages[at]["content"]) != 1:
            yield f"$.messages[{at}].content[{index}]", "a refusal beside other parts; it must be the only part"


def _images(request: Chat) -> Broken:
    """There are at most 500 images."""
    found = [(at, index) for at, index, part, _ in request.parts if _part_kind(part) == "image_url"]
    if len(found) > _MAX_IMAGES:
        at, index = found[_MAX_IMAGES]
        path = f"$.messages[{at}].content[{index}]"
        yield path, f"{len(found)} images, {_MAX_IMAGES} are allowed; replace the oldest by text"


RULES: tuple[Rule, ...] = (
    Rule("openai-chat.messages", _nonempty, "documented", OPENAI),
    Rule("openai-chat.roles", _roles, "documented", OPENAI),
    Rule("openai-chat.content", _content, "documented", OPENAI),
    Rule("openai-chat.name", _speaker, "recalled", KNOWN),
    Rule("openai-chat.part-shape", _part_shape, "documented", OPENAI),
    Rule("openai-chat.parts", _parts, "documented", OPENAI),
    Rule("openai-chat.unknown-part", _unknown_part, "inferred", OPENAI),
    Rule("openai-chat.part-fields", _part_fields, "documented", OPENAI),
    Rule("openai-chat.refusal", _refusal, "documented", OPENAI),
    Rule("openai-chat.images", _images, "documented", "guide to images"),
)
"""The rules about messages and parts."""
