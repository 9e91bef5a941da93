"""Requirements about the messages of Chat Completions: roles and order, ids, fields, and reasoning that must come back.

What breaks them is mended by normalization, by the ``dialect_changes`` that stand beside them in a provider's file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from holdfast.messages.equality import MESSAGE_FIELD_PREFIX
from holdfast.messages.message import format_part_placeholder
from holdfast.messages.old_calls import OLD_CALL_FIELD
from holdfast.messages.parts import Media
from holdfast.providers.common.json.json_path import JsonTree, PathSteps
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.dialects.requirements.requirement import Replacements, Requirement, join_names
from holdfast.providers.openai_chat.rules.request_view import ChatView
from holdfast.providers.rules.rule import Violations, format_json_value


class AllowedRoles(Requirement, frozen=True, kw_only=True):
    """The only roles."""

    rule: ClassVar[str] = "roles"
    dialect_fields: ClassVar[tuple[str, ...]] = ("refused_kinds", "refuses_old_calls")
    roles: tuple[str, ...]
    of_other_rules: tuple[str, ...] = ()
    """Roles that are refused too, but that another requirement is about."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The role of a message is {join_names(self.roles, 'or')}."

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the messages of other roles."""
        for index, _, role in request.message_objects:
            if role not in self.roles and role not in self.of_other_rules:
                problem = f"the role {role or 'of this message'} is refused here"
                yield f"$.messages[{index}].role", f"{problem}; use {join_names(self.roles, 'or')}"


class CallIdForm(Requirement, frozen=True, kw_only=True):
    """The form of the ids of calls."""

    rule: ClassVar[str] = "call-ids"
    dialect_fields: ClassVar[tuple[str, ...]] = ("id_pattern", "id_min", "id_max")
    pattern: str
    """Regular expression for a whole id."""
    form: str
    """The form in words."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The id of a call is {self.form}."

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the calls with ids of another form."""
        for at, index, call in request.calls:
            call_id = call.get("id")
            if not isinstance(call_id, str) or not re.fullmatch(self.pattern, call_id):
                path = f"$.messages[{at}].tool_calls[{index}].id"
                yield path, f"the id {format_json_value(call_id)} is not {self.form}; rename it here and in its result"


class NoUserAfterResults(Requirement, frozen=True, kw_only=True):
    """A user's message may not follow a tool message."""

    rule: ClassVar[str] = "user-after-tool"
    dialect_fields: ClassVar[tuple[str, ...]] = ("needs_answer_after_results",)

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "No user message follows a tool message directly; an assistant message stands between."

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
    dialect_fields: ClassVar[tuple[str, ...]] = ("must_end_with_user", "prefill_marks")
    mark: str = ""
    """The field that marks a beginning of the answer when it is true (``prefix``); empty if there is none."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        exception = f", unless its field {self.mark} is true" if self.mark else ""
        return f"The last message is not the assistant's{exception}."

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
    dialect_fields: ClassVar[tuple[str, ...]] = ("merges_system", "system_position")
    count: int = 1

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"There is at most {self.count} system message."

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
    dialect_fields: ClassVar[tuple[str, ...]] = ("must_start_with_user",)

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "At least one message is the user's or a tool's."

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the list of messages if nobody but the system and the assistant speaks."""
        if request.message_objects and all(role in ("system", "assistant") for _, _, role in request.message_objects):
            yield "$.messages", "no message is the user's, which is refused here; add one"


class NonEmptyAnswers(Requirement, frozen=True, kw_only=True):
    """An assistant message without text and calls is refused."""

    rule: ClassVar[str] = "empty-answer"
    dialect_fields: ClassVar[tuple[str, ...]] = ("allows_empty_answers",)

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "An assistant message has text or calls."

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the assistant messages that say nothing."""
        for index, message, role in request.message_objects:
            if role == "assistant" and not message.get("tool_calls") and message.get("content") in ("", None, []):
                yield f"$.messages[{index}].content", "the assistant message is empty; leave the message out"


class NoNullContent(Requirement, frozen=True, kw_only=True):
    """A message without calls has content."""

    rule: ClassVar[str] = "null-content"
    dialect_fields: ClassVar[tuple[str, ...]] = ("allows_empty_messages", "refused_kinds")

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "The content of a message without calls is not null."

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the messages with neither content nor calls; the old form of calls is the matter of another rule."""
        for index, message, _ in request.message_objects:
            has_calls = message.get("tool_calls") or message.get(OLD_CALL_FIELD) is not None
            if message.get("content") is None and not has_calls:
                yield f"$.messages[{index}].content", "the content is null without calls; send a text"


class RefusedMessageFields(Requirement, frozen=True, kw_only=True):
    """Fields of messages that the provider refuses, by role. A null is refused too."""

    rule: ClassVar[str] = "message-field"
    dialect_fields: ClassVar[tuple[str, ...]] = ("refused_kinds", "reasoning_fields")
    fields_by_role: Mapping[str, tuple[str, ...]]
    refuses_only_null: bool = False
    """Whether any other value under that name is accepted."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        parts = [f"{join_names(names)} ({role})" for role, names in self.fields_by_role.items()]
        return f"A message has no {'null in the ' if self.refuses_only_null else ''}fields {join_names(parts)}."

    @property
    def refused_kinds(self) -> tuple[str, ...]:
        """The parts that such fields become."""
        if self.refuses_only_null:
            return ()
        names = dict.fromkeys(name for names in self.fields_by_role.values() for name in names)
        return tuple(f"{MESSAGE_FIELD_PREFIX}{name}" for name in names)

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
    dialect_fields: ClassVar[tuple[str, ...]] = ("message_field_kinds", "reasoning_fields")
    fields_by_role: Mapping[str, tuple[str, ...]]
    of_other_rules: tuple[str, ...] = ()
    """Fields that are refused too, but that another requirement is about."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        parts = [f"{join_names(names)} ({role})" for role, names in self.fields_by_role.items()]
        return f"A message has no fields but {join_names(parts)}."

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
    dialect_fields: ClassVar[tuple[str, ...]] = ("reasoning_fields", "reasoning_scope", "allows_empty_reasoning")
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
    dialect_fields: ClassVar[tuple[str, ...]] = ("allowed_kinds_by_role", "allows_media", "media_types")
    types: tuple[str, ...]
    roles: tuple[str, ...] = ("system", "developer", "user", "assistant", "tool")
    """The roles that this is about."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The parts of a message ({', '.join(self.roles)}) are {join_names(self.types, 'or')}."

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the parts of other types."""
        for at, index, part, role in request.parts:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if role in self.roles and isinstance(kind, str) and kind not in self.types:
                problem = f"a part of the type {format_json_value(kind)} is refused here"
                yield f"$.messages[{at}].content[{index}].type", f"{problem}; send {join_names(self.types, 'or')}"


class RefusedPartTypes(Requirement, frozen=True, kw_only=True):
    """Types of parts that messages of some roles may not have."""

    rule: ClassVar[str] = "refused-parts"
    dialect_fields: ClassVar[tuple[str, ...]] = ("allowed_kinds_by_role",)
    types: tuple[str, ...]
    roles: tuple[str, ...]

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"A message ({', '.join(self.roles)}) has no parts of the type {join_names(self.types, 'or')}."

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
    dialect_fields: ClassVar[tuple[str, ...]] = ("media_types",)
    types: tuple[str, ...]

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The type of an image is {join_names(self.types, 'or')}."

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the images of other types."""
        for at, index, part, _ in request.parts:
            if not isinstance(part, Mapping) or part.get("type") != "image_url":
                continue
            image: Any = part.get("image_url")
            url = image.get("url") if isinstance(image, Mapping) else image
            if not isinstance(url, str) or not url.startswith("data:"):
                continue
            mime = url.removeprefix("data:").partition(",")[0].partition(";")[0].lower()
            if mime not in self.types:
                path = f"$.messages[{at}].content[{index}].image_url"
                yield path, f"an image of the type {mime} is refused here; send {join_names(self.types, 'or')}"


class ImageUrls(Requirement, frozen=True, kw_only=True):
    """The only forms of addresses of images: data URLs, or others that begin so."""

    rule: ClassVar[str] = "image-url"
    dialect_fields: ClassVar[tuple[str, ...]] = ("allows_media_urls", "media_url_beginnings")
    prefixes: tuple[str, ...] = ("data:",)

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The URL of an image begins with {join_names(self.prefixes, 'or')}."

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the images with other addresses."""
        for at, index, part, _ in request.parts:
            if not isinstance(part, Mapping) or part.get("type") != "image_url":
                continue
            image: Any = part.get("image_url")
            url = image.get("url") if isinstance(image, Mapping) else image
            if isinstance(url, str) and not url.startswith(self.prefixes):
                path = f"$.messages[{at}].content[{index}].image_url"
                yield path, f"the image is an address, which is refused here; send {join_names(self.prefixes, 'or')}"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:
        """Put a line with the address in the place of the image."""
        part_steps = steps[:4]
        image = tree.get_raw(steps)
        decoded = None if image is None else msgspec.json.decode(image)
        url = decoded.get("url") if isinstance(decoded, Mapping) else decoded
        placeholder = format_part_placeholder(Media("image", "", source=str(url), form="url"))
        return {part_steps: encode_json({"type": "text", "text": f"{placeholder} {url}"})}


class ObjectArguments(Requirement, frozen=True, kw_only=True):
    """The arguments of a call are the JSON text of an object."""

    rule: ClassVar[str] = "arguments"
    dialect_fields: ClassVar[tuple[str, ...]] = ("arguments_are_objects",)

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "The arguments of a call are the JSON text of an object."

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
