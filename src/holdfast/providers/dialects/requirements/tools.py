"""Requirements about the tools that a request offers, their schemas, and the choice among them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from holdfast.messages.old_calls import OLD_CALL_FIELD, OLD_RESULT_ROLE
from holdfast.providers.common.json.json_path import JsonTree, PathSteps, Replacements
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.dialects.requirements.requirement import Requirement, join_names
from holdfast.providers.openai_chat.rules.request_view import ChatView
from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.rule import Violations, format_json_value


class ToolChoices(Requirement, frozen=True, kw_only=True):
    """The only choices among the tools; ``named`` stands for an object that names one."""

    rule: ClassVar[str] = "tool-choice"
    choices: tuple[str, ...]
    reason: str = "this provider refuses it"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"tool_choice is {join_names(self.choices, 'or')}, or missing: {self.reason}."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the choice if it is another one."""
        value = request.body.get("tool_choice")
        if value is None:
            return
        choice = value if isinstance(value, str) else "named"
        if choice not in self.choices:
            yield "$.tool_choice", f"tool_choice {format_json_value(value)}: {self.reason}; leave it out (auto)"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:  # noqa: ARG002
        """Leave the choice to the model."""
        return {("tool_choice",): None}


class NoOldTools(Requirement, frozen=True, kw_only=True):
    """The old form of tools is refused: ``functions``, ``function_call``, messages of the role ``function``."""

    rule: ClassVar[str] = "old-tools"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "Tools, calls and results are not in the old form (functions, function_call, the role function)."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """Old calls and results become those of today."""
        return {"refuses_old_calls": True}

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the fields of the request, then calls and results."""
        for old_name, new_name in _NEW_FIELD_BY_OLD.items():
            if request.body.get(old_name) is not None:
                yield f"$.{old_name}", f"the field {old_name} is the old form, refused here; send {new_name}"
        for index, message, role in request.message_objects:
            path = f"$.messages[{index}]"
            if role == "assistant" and message.get(OLD_CALL_FIELD) is not None:
                yield f"{path}.{OLD_CALL_FIELD}", "the call is in the old form, refused here; send it in tool_calls"
            elif role == OLD_RESULT_ROLE:
                yield f"{path}.role", "the role function is the old form of a result, refused here; send a tool message"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:
        """Rewrite a field of the request; calls and results are left to normalization."""
        if len(steps) != 1:
            return {}
        old_name = str(steps[0])
        new_name = _NEW_FIELD_BY_OLD[old_name]
        tools = [*_decode_list(tree, "tools"), *_decode_list(tree, "functions")]
        if old_name == "functions":
            new_value: Any = _add_functions(_decode_list(tree, "tools"), _decode_list(tree, "functions"))
        else:
            choice = tree.get_raw((OLD_CALL_FIELD,))
            new_value = _rewrite_choice(None if choice is None else msgspec.json.decode(choice))
            # Without tools a choice is refused, and one in the new form is what the client means.
            if not tools or tree.get_raw((new_name,)) is not None:
                new_value = None
        if not new_value:
            return {steps: None}
        return {steps: None, (new_name,): encode_json(new_value)}


_NEW_FIELD_BY_OLD = {"functions": "tools", OLD_CALL_FIELD: "tool_choice"}


def _decode_list(tree: JsonTree, field: str) -> list[Any]:
    raw = tree.get_raw((field,))
    value = None if raw is None else msgspec.json.decode(raw)
    return value if isinstance(value, list) else []


def _add_functions(tools: list[Any], functions: list[Any]) -> list[Any]:
    """Return the tools and after them the functions, as far as no tool has the same function."""
    offered = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    return [*tools, *({"type": "function", "function": function} for function in functions if function not in offered)]


def _rewrite_choice(choice: Any) -> Any:
    """Return a choice in the form of ``tool_choice``: a word, or an object that names a function."""
    if isinstance(choice, Mapping):
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


class MaxTools(Requirement, frozen=True, kw_only=True):
    """The largest number of tools. Which tools to give up is the user's decision, so nothing is suggested."""

    rule: ClassVar[str] = "tool-count"
    count: int

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"There are at most {self.count} tools."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the list of tools if it is longer."""
        count = len(request.get_list("tools"))
        if count > self.count:
            yield "$.tools", f"{count} tools, but {self.count} are allowed; offer fewer"


class ToolTypes(Requirement, frozen=True, kw_only=True):
    """The only types of tools."""

    rule: ClassVar[str] = "tool-type"
    types: tuple[str, ...]
    accepts_no_type: bool = False

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The type of a tool is {join_names(self.types, 'or')}."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the types of tools that the provider does not have."""
        for index, tool in enumerate(request.get_list("tools")):
            if not isinstance(tool, Mapping):
                continue
            tool_type = tool.get("type")
            if tool_type is None and self.accepts_no_type:
                continue
            if tool_type not in self.types:
                problem = f"the tool's type {format_json_value(tool_type)} is refused here"
                yield f"$.tools[{index}].type", f"{problem}; offer it as {join_names(self.types, 'or')}"


class RefusedToolTypes(Requirement, frozen=True, kw_only=True):
    """Types of tools that the platform does not have, by how their names begin. Nothing can stand for them."""

    rule: ClassVar[str] = "server-tool"
    beginnings: tuple[str, ...]
    allowed: tuple[str, ...] = ()
    """Types that are taken although they begin so."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"There are no tools of the types {join_names(f'{name}…' for name in self.beginnings)}."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the tools of these types."""
        for index, tool in enumerate(request.get_list("tools")):
            tool_type = tool.get("type") if isinstance(tool, Mapping) else None
            if isinstance(tool_type, str) and tool_type.startswith(self.beginnings) and tool_type not in self.allowed:
                path = f"$.tools[{index}].type"
                yield path, f"this platform has no tool {tool_type!r}; offer a tool of your own, or leave it out"


class NoEmptyTools(Requirement, frozen=True, kw_only=True):
    """An empty list of tools is refused."""

    rule: ClassVar[str] = "empty-tools"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "The list of tools is not empty; without tools the field is left out."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the list of tools if it is empty."""
        if request.body.get("tools") == []:
            yield "$.tools", "the list of tools is empty; leave the field out"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:  # noqa: ARG002
        """Leave the list out."""
        return {("tools",): None}


class RequiredToolParameters(Requirement, frozen=True, kw_only=True):
    """Each function must state its parameters, also one that has none."""

    rule: ClassVar[str] = "tool-parameters"
    empty_is_enough: bool = False
    """Whether ``{}`` is accepted."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "Each function has parameters, an object schema; one without any says so."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the functions without parameters."""
        for path, function in iter_functions(request):
            parameters = function.get("parameters")
            is_empty = not parameters and not (parameters == {} and self.empty_is_enough)
            if is_empty:
                name = format_json_value(function.get("name"))
                advice = 'send {"type": "object", "properties": {}}'
                yield path, f"the function {name} has no parameters, which is refused here; {advice}"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:
        """State that the function has no parameters."""
        fields = dict(tree.get_children(steps))
        if not fields:
            return {}
        return {steps: encode_json({**fields, "parameters": {"type": "object", "properties": {}}})}


def iter_functions(request: RequestView) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path and value of each function that is offered, in the form of Chat Completions."""
    for index, tool in enumerate(request.get_list("tools")):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping):
            yield f"$.tools[{index}].function", function


class ToolNames(Requirement, frozen=True, kw_only=True):
    """The form of the names of functions; renamed as calls are by normalization."""

    rule: ClassVar[str] = "tool-names"
    # The new name depends on those of all tools, and is the one that normalization gives to calls.
    mended_like: ClassVar[str] = "tool-names"
    pattern: str
    """Regular expression for a whole name, without its length."""
    form: str
    """The form in words."""
    max_length: int = 64

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The name of a function is {self.form}."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """Calls get names of this form."""
        return {"name_pattern": self.pattern, "name_max": self.max_length}

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the names of another form."""
        for path, function in iter_functions(request):
            name = function.get("name")
            is_valid = isinstance(name, str) and len(name) <= self.max_length and re.fullmatch(self.pattern, name)
            if not is_valid:
                yield f"{path}.name", f"tool name {format_json_value(name)} is not {self.form}; rename it"


class RefusedToolFields(Requirement, frozen=True, kw_only=True):
    """Fields of a tool itself, not of its function, that the platform refuses."""

    rule: ClassVar[str] = "tool-field"
    leaves_out: ClassVar[bool] = True
    fields: tuple[str, ...]

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"A tool has no {join_names(self.fields)}."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the refused fields of all tools."""
        for index, tool in enumerate(request.get_list("tools")):
            for name in self.fields:
                if isinstance(tool, Mapping) and tool.get(name) is not None:
                    yield f"$.tools[{index}].{name}", f"the tool has the field {name}, refused here; leave it out"
