"""Requirements about the fields of a request beside its messages: which there are, and which values they have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from holdfast.providers.common.json.json_path import JsonTree, PathSteps, Replacements
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.dialects.requirements.requirement import Requirement, join_names
from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.rule import Violations, format_json_value

_MISSING = object()


def get_field(request: RequestView, path: str) -> Any:
    """Return the value at a dotted path of the body (``thinking.type``), or None if there is none."""
    return request.get_option(*path.split("."))


def is_thinking_turned_on(request: RequestView) -> bool:
    """Return whether a model that thinks by default does so: unless ``thinking.type`` turns it off."""
    return bool(get_field(request, "thinking.type") != "disabled")


def _has_field(request: RequestView, path: str) -> bool:
    *parents, name = path.split(".")
    around = request.get_option(*parents) if parents else request.body
    return isinstance(around, Mapping) and name in around


class RefusedFields(Requirement, frozen=True, kw_only=True):
    """Fields that the provider refuses, as dotted paths. A null is taken unless ``refuses_null``."""

    rule: ClassVar[str] = "refused-field"
    fields: tuple[str, ...]
    renamed: Mapping[str, str] = {}
    """Fields that the provider has under another name."""
    refuses_null: bool = False
    reason: str = "this provider refuses it"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"A request has no {join_names(self.fields)}: {self.reason}."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the fields that are there."""
        for path in self.fields:
            if not _has_field(request, path) or (get_field(request, path) is None and not self.refuses_null):
                continue
            new_name = self.renamed.get(path)
            advice = f"call it {new_name}" if new_name else "leave it out"
            yield f"$.{path}", f"the field {path}: {self.reason}; {advice}"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:
        """Leave the field out, or move its value to the name that the provider knows."""
        return _rename_or_remove(tree, steps, self.renamed)


class KnownFields(Requirement, frozen=True, kw_only=True):
    """The only fields that a body may have, for a provider that refuses unknown ones."""

    rule: ClassVar[str] = "unknown-field"
    fields: frozenset[str]
    renamed: Mapping[str, str] = {}
    """Fields of the API that the provider has under another name."""
    of_other_rules: frozenset[str] = frozenset()
    """Fields that are refused too, but that another requirement is about."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The body has no fields but {join_names(sorted(self.fields))}."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the fields that are not known."""
        for key, value in request.body.items():
            # The other rule is about what such a field says, and null says nothing.
            if key in self.fields or (key in self.of_other_rules and value is not None):
                continue
            new_name = self.renamed.get(key)
            advice = f"call it {new_name}" if new_name else "leave it out"
            yield f"$.{key}", f"this provider has no field {key!r} and refuses it; {advice}"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:
        """Leave the field out, or move its value to the name that the provider knows."""
        return _rename_or_remove(tree, steps, self.renamed)


def _rename_or_remove(tree: JsonTree, steps: PathSteps, renamed: Mapping[str, str]) -> Replacements:
    changes: dict[PathSteps, bytes | None] = {steps: None}
    new_name = renamed.get(".".join(map(str, steps)))
    value = tree.get_raw(steps)
    if new_name is not None and value is not None and tree.get_raw((new_name,)) is None:
        changes[(new_name,)] = bytes(value)
    return changes


class AllowedValues(Requirement, frozen=True, kw_only=True):
    """The only values that a field may have."""

    rule: ClassVar[str] = "field-value"
    field: str
    """Dotted path of the field."""
    values: tuple[Any, ...]
    replacements: Mapping[Any, Any] = {}
    """The nearest allowed value for a refused one; without one the field is left out."""
    field_to_remove: str = ""
    """The field to leave out if the value cannot be replaced; empty for the field itself."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"{self.field} is {join_names(map(format_json_value, self.values), 'or')}, or missing."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the field if its value is another one."""
        value = get_field(request, self.field)
        if value is None or _is_one_of(value, self.values):
            return
        allowed = join_names(map(format_json_value, self.values), "or")
        advice = f"send {allowed}" if self.values else "leave it out"
        yield f"$.{self.field}", f"{self.field} is {format_json_value(value)}, which is refused here; {advice}"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:
        """Replace the value by the nearest allowed one, or leave the field out."""
        raw = tree.get_raw(steps)
        value = None if raw is None else msgspec.json.decode(raw)
        new_value = self.replacements.get(value, _MISSING) if isinstance(value, str | int | float | bool) else _MISSING
        if new_value is not _MISSING:
            return {steps: encode_json(new_value)}
        if self.field_to_remove:
            return {tuple(self.field_to_remove.split(".")): None}
        return {steps: None}


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Return whether ``value`` is among ``allowed``; unlike for Python, ``true`` is not 1."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in allowed)


class NumberRange(Requirement, frozen=True, kw_only=True):
    """The range of a number."""

    rule: ClassVar[str] = "field-range"
    field: str
    low: float
    high: float
    excludes_low: bool = False
    excludes_high: bool = False
    nearest_low: float | None = None
    """The value that stands for a lower one; None to leave the field out."""
    nearest_high: float | None = None
    """The value that stands for a higher one; None to leave the field out."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"{self.field} is {self._describe_range()}."

    def _describe_range(self) -> str:
        low = f"above {self.low:g}" if self.excludes_low else f"from {self.low:g}"
        high = f"below {self.high:g}" if self.excludes_high else f"to {self.high:g}"
        return f"{low} {high}"

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the field if it is a number outside of the range."""
        value = get_field(request, self.field)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return
        is_too_low = value < self.low or (self.excludes_low and value == self.low)
        is_too_high = value > self.high or (self.excludes_high and value == self.high)
        if is_too_low or is_too_high:
            problem = f"{self.field} is {format_json_value(value)}, but must be {self._describe_range()}"
            yield f"$.{self.field}", f"{problem}; send a value in this range, or leave it out"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:
        """Replace the number by the nearest allowed one, or leave the field out."""
        raw = tree.get_raw(steps)
        value = None if raw is None else msgspec.json.decode(raw)
        if not isinstance(value, int | float):
            return {}
        nearest = self.nearest_low if value <= self.low else self.nearest_high
        return {steps: None if nearest is None else encode_json(nearest)}


class FixedValues(Requirement, frozen=True, kw_only=True):
    """Fields that may only have one value, by field; best left out."""

    rule: ClassVar[str] = "fixed-field"
    leaves_out: ClassVar[bool] = True
    values: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        pairs = [f"{field} is {format_json_value(value)}" for field, value in self.values.items()]
        return f"{join_names(pairs)}, or missing."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the fields with another value."""
        for field, allowed in self.values.items():
            value = get_field(request, field)
            if value is not None and not _is_one_of(value, (allowed,)):
                problem = f"{field} is {format_json_value(value)}, but only {format_json_value(allowed)} is allowed"
                yield f"$.{field}", f"{problem} for this model; leave it out"


class RequiredFields(Requirement, frozen=True, kw_only=True):
    """Fields that a whole request must have."""

    rule: ClassVar[str] = "required"
    fields: tuple[str, ...]
    value: str = ""
    """The only value that the provider takes, to be put in; empty if the caller alone knows."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"A request has {join_names(self.fields)}."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the fields that are missing."""
        for field in self.fields:
            if get_field(request, field) is None:
                yield f"$.{field}", f"the field {field} is missing; add it"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:  # noqa: ARG002
        """Put the value in, if there is only one."""
        return {steps: encode_json(self.value)} if self.value else {}


class ExclusiveFields(Requirement, frozen=True, kw_only=True):
    """Fields of which a request may have only one; the first in the order given here is kept."""

    rule: ClassVar[str] = "one-field"
    leaves_out: ClassVar[bool] = True
    fields: tuple[str, ...]

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"Only one of {join_names(self.fields)} is set."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the fields after the first one that is set."""
        set_fields = [field for field in self.fields if get_field(request, field) is not None]
        for field in set_fields[1:]:
            yield f"$.{field}", f"{field} stands beside {set_fields[0]}, but only one is allowed; leave it out"


class FieldNeedsField(Requirement, frozen=True, kw_only=True):
    """A field that is refused unless another one is set. A 0 asks for nothing and may stand alone."""

    rule: ClassVar[str] = "field-company"
    leaves_out: ClassVar[bool] = True
    field: str
    needs: str

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"{self.field} is only set together with {self.needs}."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the field if the other one is missing."""
        if get_field(request, self.field) and not get_field(request, self.needs):
            yield f"$.{self.field}", f"{self.field} is refused without {self.needs}; leave it out, or set {self.needs}"


class TextForm(Requirement, frozen=True, kw_only=True):
    """The form of a field that is a text."""

    rule: ClassVar[str] = "field-form"
    leaves_out: ClassVar[bool] = True
    field: str
    pattern: str
    """Regular expression for the whole text."""
    form: str
    """The form in words."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"{self.field} is {self.form}, or missing."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the field if it has another form."""
        value = get_field(request, self.field)
        if value is not None and not (isinstance(value, str) and re.fullmatch(self.pattern, value)):
            yield f"$.{self.field}", f"{self.field} is not {self.form}; send that, or leave it out"


class RefusedCacheFields(Requirement, frozen=True, kw_only=True):
    """Fields of cache breakpoints that the platform refuses, wherever a breakpoint stands in the Messages API."""

    rule: ClassVar[str] = "cache-field"
    leaves_out: ClassVar[bool] = True
    fields: tuple[str, ...]

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"A cache breakpoint has no {join_names(self.fields)}."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the refused fields of all breakpoints."""
        for path, block in _iter_breakpoint_places(request):
            breakpoint_fields = block.get("cache_control")
            for name in self.fields:
                if isinstance(breakpoint_fields, Mapping) and name in breakpoint_fields:
                    yield f"{path}.cache_control.{name}", f"a breakpoint has {name}, refused here; leave it out"


def _iter_breakpoint_places(request: RequestView) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield path and value of everything in a Messages request that may carry a breakpoint."""
    for field in ("tools", "system"):
        yield from _iter_objects(f"$.{field}", request.body.get(field))
    for index, message in _iter_objects("$.messages", request.body.get("messages")):
        for path, block in _iter_objects(f"{index}.content", message.get("content")):
            yield path, block
            yield from _iter_objects(f"{path}.content", block.get("content"))


def _iter_objects(path: str, values: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(values, list):
        for index, value in enumerate(values):
            if isinstance(value, Mapping):
                yield f"{path}[{index}]", value


class RefusedBetas(Requirement, frozen=True, kw_only=True):
    """Beta features that the platform refuses, whether a header or the body names them."""

    rule: ClassVar[str] = "beta"
    betas: frozenset[str]

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"The request names none of the betas {join_names(sorted(self.betas))}."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the refused betas."""
        field = "betas" if "betas" in request.body else "anthropic_beta"
        for beta in sorted(self.betas & (request.betas or frozenset())):
            yield f"$.{field}", f"the beta {beta} is refused on this platform; leave it out"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:
        """Leave the betas out of the body; those of a header are not part of it."""
        raw = tree.get_raw(steps)
        listed = None if raw is None else msgspec.json.decode(raw)
        if not isinstance(listed, list):
            return {}
        remaining = [beta for beta in listed if beta not in self.betas]
        return {steps: encode_json(remaining) if remaining else None}
