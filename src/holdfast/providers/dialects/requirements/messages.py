"""Requirements about the messages of Chat Completions: roles and order, ids, fields, and reasoning that must come back.

What breaks them is mended by normalization, which goes by the values of ``Dialect`` that each of them lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Raw

from holdfast.messages.equality import DEVELOPER_ROLE_KIND, MESSAGE_FIELD_PREFIX
from holdfast.messages.message import format_part_placeholder
from holdfast.messages.old_calls import OLD_CALL_FIELD, OLD_RESULT_ROLE
from holdfast.messages.parts import Media, Opaque
from holdfast.providers.common.json.json_path import JsonTree, PathSteps, Replacements
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.dialects.requirements.requirement import Requirement, join_names
from holdfast.providers.openai_chat.messages import INTERPRETED_FIELDS
from holdfast.providers.openai_chat.rules.request_view import ChatView
from holdfast.providers.rules.rule import Violations, format_json_value

_MEDIA_PART_TYPES = ("image_url", "input_audio", "file")
"""Types of parts that are media for normalization."""


class AllowedRoles(Requirement, frozen=True, kw_only=True):
    """The only roles."""

    rule: ClassVar[str] = "roles"
    roles: tuple[str, ...]
    of_other_rules: tuple[str, ...] = ()
    """Roles that are refused too, but that another requirement is about."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The role of a message is {join_names(self.roles, 'or')}."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """A developer's message becomes the system's, and an old result one of today."""
        changes: dict[str, Any] = {}
        if "developer" not in self.roles:
            changes["refused_kinds"] = (DEVELOPER_ROLE_KIND,)
        if OLD_RESULT_ROLE not in self.roles:
            changes["refuses_old_calls"] = True
        return changes

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the messages of other roles."""
        for index, _, role in request.message_objects:
            if role not in self.roles and role not in self.of_other_rules:
                problem = f"the role {role or 'of this message'} is refused here"
                yield f"$.messages[{index}].role", f"{problem}; use {join_names(self.roles, 'or')}"


class CallIdForm(Requirement, frozen=True, kw_only=True):
    """The form of the ids of calls."""

    rule: ClassVar[str] = "call-ids"
    character_pattern: str
    """Regular expression that each character of an id matches."""
    min_length: int
    max_length: int
    form: str
    """The form in words."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The id of a call is {self.form}."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """Ids get this form, in calls and results."""
        return {
            "id_character_pattern": self.character_pattern,
            "id_min": self.min_length,
            "id_max": self.max_length,
        }

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the calls with ids of another form."""
        pattern = f"(?:{self.character_pattern}){{{self.min_length},{self.max_length}}}"
        for at, index, call in request.calls:
            call_id = call.get("id")
            if not isinstance(call_id, str) or not re.fullmatch(pattern, call_id):
                path = f"$.messages[{at}].tool_calls[{index}].id"
                yield path, f"the id {format_json_value(call_id)} is not {self.form}; rename it here and in its result"


class NoUserAfterResults(Requirement, frozen=True, kw_only=True):
    """A user's message may not follow a tool message."""

    rule: ClassVar[str] = "user-after-tool"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "No user message follows a tool message directly; an assistant message stands between."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """An assistant message is put between."""
        return {"needs_answer_after_results": True}

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the user messages right after results."""
        previous_role = ""
        for index, _, role in request.message_objects:
            if role == "user" and previous_role == "tool":
                problem = "a user message follows the results of tools, which is refused here"
                yield f"$.messages[{index}].role", f"{problem}; put an assistant message between"
            previous_role = role


class LastMessage(Requirement, frozen=True, kw_only=True):
    """The last message may not be the assistant's, unless it is marked as the beginning of the answer."""

    rule: ClassVar[str] = "last-message"
    mark: str = ""
    """The field that marks a beginning of the answer when it is true (``prefix``); empty if there is none."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        exception = f", unless its field {self.mark} is true" if self.mark else ""
        return f"The last message is not the assistant's{exception}."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """A user message is put after an answer at the end that is not marked."""
        marks = (f"{MESSAGE_FIELD_PREFIX}{self.mark}",) if self.mark else ()
        return {"must_end_with_user": True, "prefill_marks": marks}

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the last message if it is the assistant's."""
        if not request.message_objects:
            return
        index, message, role = request.message_objects[-1]
        if role == "assistant" and not (self.mark and message.get(self.mark) is True):
            advice = f"set {self.mark}: true in it, or end" if self.mark else "end"
            yield f"$.messages[{index}].role", f"the last message is the assistant's; {advice} with a user message"


class MaxSystemMessages(Requirement, frozen=True, kw_only=True):
    """The largest number of system messages."""

    rule: ClassVar[str] = "system-count"
    count: int = 1

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"There is at most {self.count} system message."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """All system messages become one at the beginning, which is within any number."""
        return {"merges_system": True, "system_position": "first"}

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the system messages beyond the allowed number."""
        paths = []
        for index, _, role in request.message_objects:
            if role in ("system", "developer"):
                paths.append(f"$.messages[{index}]")
        for path in paths[self.count :]:
            yield path, f"{len(paths)} system messages, but {self.count} is allowed; merge them"


class UserMessageRequired(Requirement, frozen=True, kw_only=True):
    """A request of nothing but system and assistant messages is refused."""

    rule: ClassVar[str] = "user-required"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "At least one message is the user's or a tool's."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """A user message is put at the beginning if none stands there."""
        return {"must_start_with_user": True}

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the list of messages if nobody but the system and the assistant speaks."""
        if request.message_objects and all(role in ("system", "assistant") for _, _, role in request.message_objects):
            yield "$.messages", "no message is the user's, which is refused here; add one"


class NonEmptyAnswers(Requirement, frozen=True, kw_only=True):
    """An assistant message without text and calls is refused."""

    rule: ClassVar[str] = "empty-answer"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "An assistant message has text or calls."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """An empty answer is left out."""
        return {"allows_empty_answers": False}

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the assistant messages that say nothing."""
        for index, message, role in request.message_objects:
            if role == "assistant" and not message.get("tool_calls") and message.get("content") in ("", None, []):
                yield f"$.messages[{index}].content", "the assistant message is empty; leave the message out"


class NoNullContent(Requirement, frozen=True, kw_only=True):
    """A message without calls has content."""

    rule: ClassVar[str] = "null-content"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "The content of a message without calls is not null."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """A message without content is left out."""
        return {"allows_empty_messages": False}

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the messages with neither content nor calls; the old form of calls is the matter of another rule."""
        for index, message, _ in request.message_objects:
            has_calls = message.get("tool_calls") or message.get(OLD_CALL_FIELD) is not None
            if message.get("content") is None and not has_calls:
                yield f"$.messages[{index}].content", "the content is null without calls; send a text"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:
        """Send an empty text where normalization keeps the message for something else in it (``audio``)."""
        if tree.get_raw(steps) is not None:
            return {steps: b'""'}
        message = tree.get_children(steps[:2])
        return {steps[:2]: encode_json({**message, "content": ""})} if message else {}


class RefusedMessageFields(Requirement, frozen=True, kw_only=True):
    """Fields of messages that the provider refuses, by role. A null is refused too."""

    rule: ClassVar[str] = "message-field"
    leaves_out: ClassVar[bool] = True  # normalization sees no field that is null
    fields_by_role: Mapping[str, tuple[str, ...]]
    refuses_only_null: bool = False
    """Whether any other value under that name is accepted."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        parts = [f"{join_names(names)} ({role})" for role, names in self.fields_by_role.items()]
        return f"A message has no {'null in the ' if self.refuses_only_null else ''}fields {join_names(parts)}."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """The parts that such fields become are left out."""
        if self.refuses_only_null:
            return {}
        names = dict.fromkeys(name for names in self.fields_by_role.values() for name in names)
        return {"refused_kinds": tuple(f"{MESSAGE_FIELD_PREFIX}{name}" for name in names)}

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the refused fields."""
        for index, message, role in request.message_objects:
            for name in self.fields_by_role.get(role, ()):
                if name not in message or (self.refuses_only_null and message[name] is not None):
                    continue
                problem = f"a message of the role {role} has the field {name}, which is refused here"
                yield f"$.messages[{index}].{name}", f"{problem}; leave it out"


class KnownMessageFields(Requirement, frozen=True, kw_only=True):
    """The only fields that messages may have, by role, for a provider that refuses unknown ones."""

    rule: ClassVar[str] = "message-field"
    leaves_out: ClassVar[bool] = True  # normalization sees no field that is null
    fields_by_role: Mapping[str, tuple[str, ...]]
    of_other_rules: tuple[str, ...] = ()
    """Fields that are refused too, but that another requirement is about."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        parts = [f"{join_names(names)} ({role})" for role, names in self.fields_by_role.items()]
        return f"A message has no fields but {join_names(parts)}."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """Of the fields that are kept as they were written, no others stay."""
        kinds: list[str] = []
        for role, names in self.fields_by_role.items():
            # The message of a result is one part with all its fields.
            if role != "tool":
                kinds += [f"{MESSAGE_FIELD_PREFIX}{name}" for name in names if name not in INTERPRETED_FIELDS]
        return {"message_field_kinds": tuple(dict.fromkeys(kinds))}

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the fields that are not known; a message of an unknown role is the matter of another rule."""
        for index, message, role in request.message_objects:
            known_fields = self.fields_by_role.get(role)
            if known_fields is None:
                continue
            for name, value in message.items():
                # The other rule is about what such a field says, and null says nothing.
                is_of_other_rule = name in self.of_other_rules and value is not None
                if name not in known_fields and not is_of_other_rule:
                    problem = f"a message of the role {role} has the field {name}, which is refused here"
                    yield f"$.messages[{index}].{name}", f"{problem}; leave it out"


class ReturnedReasoning(Requirement, frozen=True, kw_only=True):
    """Assistant messages must carry the reasoning that the model gave with them."""

    rule: ClassVar[str] = "reasoning"
    fields: tuple[str, ...]
    """The fields that count; the first is the one to send."""
    scope: Literal["calls", "all"]
    """Which assistant messages: those with calls, or all."""
    accepts_empty: bool = False
    """Whether an empty text is enough."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        which = "with calls " if self.scope == "calls" else ""
        return f"Each assistant message {which}carries its reasoning in {join_names(self.fields, 'or')}."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """Reasoning is moved to that field, and a space stands for what is lost."""
        return {
            "reasoning_fields": self.fields,
            "reasoning_scope": self.scope,
            "allows_empty_reasoning": self.accepts_empty,
        }

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the assistant messages without their reasoning."""
        for index, message, role in request.message_objects:
            if role != "assistant" or (self.scope == "calls" and not message.get("tool_calls")):
                continue
            if any(self._is_reasoning(message.get(name)) for name in self.fields):
                continue
            name = self.fields[0]
            problem = f"the assistant message has no {name}, which this provider wants back while it thinks"
            yield f"$.messages[{index}].{name}", f"{problem}; send what the model gave, or a single space"

    def _is_reasoning(self, value: object) -> bool:
        return isinstance(value, str) and (self.accepts_empty or bool(value))


class PartTypes(Requirement, frozen=True, kw_only=True):
    """The only types of parts in the contents of messages."""

    rule: ClassVar[str] = "parts"
    types: tuple[str, ...]
    roles: tuple[str, ...] = ("system", "developer", "user", "assistant", "tool")
    """The roles that this is about."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The parts of a message ({', '.join(self.roles)}) are {join_names(self.types, 'or')}."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """Parts of other types are left out, and where only text is taken, a line stands for each image."""
        uninterpreted_types = tuple(name for name in self.types if name not in ("text", *_MEDIA_PART_TYPES))
        # Normalization knows the role developer as system.
        roles = [role for role in self.roles if role != "developer"]
        changes: dict[str, Any] = {"allowed_kinds_by_role": dict.fromkeys(roles, uninterpreted_types)}
        if "user" in roles and not any(name in self.types for name in _MEDIA_PART_TYPES):
            changes["allows_media"] = False
        return changes

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the parts of other types."""
        for at, index, part, role in request.parts:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if role in self.roles and isinstance(kind, str) and kind not in self.types:
                problem = f"a part of the type {format_json_value(kind)} is refused here"
                yield f"$.messages[{at}].content[{index}].type", f"{problem}; send {join_names(self.types, 'or')}"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:
        """Put a line in the place of a part that normalization has left (a file that is named by its id)."""
        raw = tree.get_raw(steps)
        kind = None if raw is None else msgspec.json.decode(raw)
        if not isinstance(kind, str):
            return {}
        return {steps[:4]: encode_json({"type": "text", "text": format_part_placeholder(Opaque(kind, Raw(b"")))})}


class RefusedPartTypes(Requirement, frozen=True, kw_only=True):
    """Types of parts that messages of some roles may not have."""

    rule: ClassVar[str] = "refused-parts"
    types: tuple[str, ...]
    roles: tuple[str, ...]

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"A message ({', '.join(self.roles)}) has no parts of the type {join_names(self.types, 'or')}."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """Such parts are left out, whatever the role: the only ones so far are refused in answers by the API too."""
        return {"refused_kinds": self.types}

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the parts of these types."""
        for at, index, part, role in request.parts:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if role in self.roles and kind in self.types:
                problem = f"a part of the type {format_json_value(kind)} is refused in a message of the role {role}"
                yield f"$.messages[{at}].content[{index}].type", f"{problem}; leave it out"


class ImageTypes(Requirement, frozen=True, kw_only=True):
    """The only types of images in data URLs."""

    rule: ClassVar[str] = "image-type"
    types: tuple[str, ...]

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The type of an image is {join_names(self.types, 'or')}."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """A line stands for a medium of another type; a document is refused as a type too."""
        return {"media_types": self.types}

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the images of other types."""
        for path, url in _iter_image_urls(request):
            if not url.startswith("data:"):
                continue
            mime = url.removeprefix("data:").partition(",")[0].partition(";")[0].lower()
            if mime not in self.types:
                yield path, f"an image of the type {mime} is refused here; send {join_names(self.types, 'or')}"


class ImageUrls(Requirement, frozen=True, kw_only=True):
    """The only forms of addresses of images: data URLs, or others that begin so."""

    rule: ClassVar[str] = "image-url"
    prefixes: tuple[str, ...] = ("data:",)

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The URL of an image begins with {join_names(self.prefixes, 'or')}."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """A line stands for an image with another address."""
        beginnings = tuple(prefix for prefix in self.prefixes if prefix != "data:")
        return {"allows_media_urls": False, "media_url_beginnings": beginnings}

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the images with other addresses."""
        for path, url in _iter_image_urls(request):
            if not url.startswith(self.prefixes):
                yield path, f"the image is an address, which is refused here; send {join_names(self.prefixes, 'or')}"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:
        """Put a line with the address in the place of the image."""
        part_steps = steps[:4]
        image = tree.get_raw(steps)
        url = None if image is None else _read_image_url(msgspec.json.decode(image))
        placeholder = format_part_placeholder(Media("image", "", source=str(url), form="url"))
        return {part_steps: encode_json({"type": "text", "text": f"{placeholder} {url}"})}


def _iter_image_urls(request: ChatView) -> Iterator[tuple[str, str]]:
    """Yield path and address of each image; the address is a text, bare or in an object."""
    for at, index, part, _ in request.parts:
        if isinstance(part, Mapping) and part.get("type") == "image_url":
            url = _read_image_url(part.get("image_url"))
            if isinstance(url, str):
                yield f"$.messages[{at}].content[{index}].image_url", url


def _read_image_url(image: Any) -> Any:
    return image.get("url") if isinstance(image, Mapping) else image


class ObjectArguments(Requirement, frozen=True, kw_only=True):
    """The arguments of a call are the JSON text of an object."""

    rule: ClassVar[str] = "arguments"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "The arguments of a call are the JSON text of an object."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """Other arguments are put into an object."""
        return {"arguments_are_objects": True}

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the calls with other arguments."""
        for at, index, call in request.calls:
            function = call.get("function")
            arguments = function.get("arguments") if isinstance(function, Mapping) else None
            if isinstance(arguments, str) and not _is_object_text(arguments):
                path = f"$.messages[{at}].tool_calls[{index}].function.arguments"
                yield path, "the arguments are not the JSON text of an object, which is refused here; send an object"


def _is_object_text(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
