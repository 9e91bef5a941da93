"""Requirements about JSON Schema: of the parameters of functions, and of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from holdfast.providers.common.json.json_path import JsonTree, PathSteps, Replacements, format_json_path
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.common.schemas.check import find_schema_problems
from holdfast.providers.common.schemas.limits import SchemaLimits
from holdfast.providers.common.schemas.repair import repair_schema
from holdfast.providers.dialects.requirements.requirement import Requirement
from holdfast.providers.dialects.requirements.tools import iter_functions
from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.rule import Violations, format_json_value


class ToolSchemas(Requirement, frozen=True, kw_only=True):
    """What the provider refuses in the schemas of functions; repaired where there is one right way."""

    rule: ClassVar[str] = "tool-schema"
    limits: SchemaLimits
    form: str
    """The schemas that are taken, in words."""
    loose_limits: SchemaLimits | None = None
    """What is refused of a function with ``strict: false``; None for the same."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The parameters of a function are {self.form}."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the refused places; messages name tool and keyword. Missing parameters are another rule's matter."""
        for path, function in iter_functions(request):
            schema = function.get("parameters")
            if not isinstance(schema, Mapping):
                continue
            for problem in find_schema_problems(schema, self._get_limits(function)):
                place = format_json_path(("parameters", *problem.steps)).removeprefix("$")
                yield f"{path}{place}", f"tool {format_json_value(function.get('name'))}: {problem.message}"

    def _get_limits(self, function: Mapping[str, Any]) -> SchemaLimits:
        if self.loose_limits is not None and function.get("strict") is False:
            return self.loose_limits
        return self.limits

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:
        """Repair the whole schema that the place is in."""
        schema_steps = steps[:4]  # tools, the index, function, parameters
        raw, function = tree.get_raw(schema_steps), tree.get_raw(schema_steps[:3])
        if raw is None or function is None:
            return {}
        repaired = repair_schema(msgspec.json.decode(raw), self._get_limits(msgspec.json.decode(function)))
        return {schema_steps: encode_json(repaired.schema)} if repaired.notes else {}


_ANSWER_STEPS = ("response_format", "json_schema")


class AnswerSchema(Requirement, frozen=True, kw_only=True):
    """What the provider refuses in the schema of an answer; repaired where there is one right way."""

    rule: ClassVar[str] = "answer-schema"
    limits: SchemaLimits
    form: str
    """The schemas that are taken, in words."""
    strict_only: bool = False
    """Whether this holds for an answer format with ``strict: true`` alone."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The schema of {'a strict' if self.strict_only else 'an'} answer is {self.form}."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the refused places of the schema."""
        schema = request.get_option(*_ANSWER_STEPS, "schema")
        if not isinstance(schema, Mapping):
            return
        if self.strict_only and request.get_option(*_ANSWER_STEPS, "strict") is not True:
            return
        for problem in find_schema_problems(schema, self.limits):
            yield format_json_path((*_ANSWER_STEPS, "schema", *problem.steps)), problem.message

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:  # noqa: ARG002
        """Repair the whole schema; a strict one that cannot be repaired without another meaning is strict no more."""
        schema_steps = (*_ANSWER_STEPS, "schema")
        raw = tree.get_raw(schema_steps)
        if raw is None:
            return {}
        repaired = repair_schema(msgspec.json.decode(raw), self.limits)
        if not find_schema_problems(repaired.schema, self.limits):
            return {schema_steps: encode_json(repaired.schema)}
        return {(*_ANSWER_STEPS, "strict"): b"false"} if self.strict_only else {}
