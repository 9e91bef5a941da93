"""Find what an API refuses in the JSON Schema of a tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Raw, Struct

from holdfast.messages.text.counts import format_count
from holdfast.providers.common.json.json_path import PathSteps
from holdfast.providers.common.json.raw_json import decode_json_value, encode_json
from holdfast.providers.common.schemas.keywords import KeywordForm, get_keyword_form, is_name_list, is_plain_form
from holdfast.providers.common.schemas.limits import SchemaLimits, SchemaProblem

_CACHED_SCHEMAS = 512
"""Schemas whose problems are remembered: an agent sends the same tools with each request. 200 tools of two agents fit;
at some kilobytes a schema this is one or two megabytes."""
_MAX_SHOWN_CHARS = 40
"""Characters of a wrong value that are shown in a message."""
REFERENCE_KEYWORDS = ("$ref", "ref")
"""Keywords of a reference; the second in protobuf only, elsewhere it is a name without a meaning."""
_TYPE_SUBSTITUTES = frozenset({"anyOf", "oneOf", "allOf", "any_of", "$ref", "ref", "enum", "const"})
"""Keywords that say as much as a type does."""


def find_schema_problems(schema: Any, limits: SchemaLimits) -> tuple[SchemaProblem, ...]:
    """Return every place of a decoded schema that ``limits`` refuse, in the order of the schema."""
    try:
        return _find_problems_in_bytes(encode_json(schema), limits)
    except (TypeError, ValueError, RecursionError):  # numbers that JSON has not: infinite, or too long
        return _find_problems(schema, limits)


@lru_cache(maxsize=_CACHED_SCHEMAS)
def _find_problems_in_bytes(schema: bytes, limits: SchemaLimits) -> tuple[SchemaProblem, ...]:
    return _find_problems(decode_json_value(Raw(schema)), limits)


def _find_problems(schema: Any, limits: SchemaLimits) -> tuple[SchemaProblem, ...]:
    search = _ProblemSearch(limits, schema, [])
    search.check_root()
    # A stack in place of recursion: a schema may be nested as deeply as JSON can be.
    pending: list[tuple[Any, PathSteps]] = [(schema, ())]
    while pending:
        node, steps = pending.pop()
        pending += reversed(search.check_node(node, steps))
    return tuple(search.problems)


class _ProblemSearch(Struct):
    """The search for problems in one schema."""

    limits: SchemaLimits
    root: Any
    problems: list[SchemaProblem]

    def add(self, steps: PathSteps, keyword: str, message: str) -> None:
        """Note a problem; the message begins with what is wrong and ends with what to do."""
        self.problems.append(SchemaProblem(steps, keyword, message))

    # -- the root ------------------------------------------------------------------------------------------------------

    def check_root(self) -> None:
        """Check what is required of the root alone."""
        root, limits = self.root, self.limits
        if not isinstance(root, dict):
            # Anywhere else true and false are schemas.
            if isinstance(root, bool):
                self.add((), "type", f"{_show(root)} in the place of the whole schema; send an object")
            return
        for keyword in root:
            if keyword in limits.root_refused_keywords:
                self.add((keyword,), keyword, f"{keyword} at the top level; put its variants into one object")
        self._check_root_type(root)
        if limits.requires_root_properties and "properties" not in root:
            self.add((), "properties", "an object without properties at the top level; add properties, if empty")
        pattern = limits.root_property_pattern
        properties = root.get("properties")
        if pattern is not None and isinstance(properties, dict):
            for name in properties:
                if not pattern.fullmatch(name):
                    problem = f"the argument {_show(name)} in properties does not match {pattern.pattern}"
                    self.add(("properties", name), "properties", f"{problem}; rename it")

    def _check_root_type(self, root: Mapping[str, Any]) -> None:
        root_type = root.get("type")
        is_left_out = root_type is None and (self.limits.is_protobuf or "type" not in root)
        name = root_type.lower() if self.limits.is_protobuf and isinstance(root_type, str) else root_type
        if is_left_out and self.limits.requires_root_type:
            self.add((), "type", "no type at the top level; send type object")
        elif not is_left_out and name != "object" and not self.limits.allows_any_root:
            self.add(("type",), "type", f"type {_show(root_type)} at the top level; send type object")

    # -- each schema in it ---------------------------------------------------------------------------------------------

    def check_node(self, node: Any, steps: PathSteps) -> list[tuple[Any, PathSteps]]:
        """Check one schema and return the schemas in it with their places."""
        if isinstance(node, bool) and not self.limits.is_protobuf:
            return []
        if steps[-2:-1] == ("dependencies",) and is_name_list(node):
            return []  # of older drafts, names in the place of a schema
        if not isinstance(node, dict):
            self.add(steps, _get_keyword(steps), f"{_show(node)} in the place of a schema; send an object")
            return []
        children: list[tuple[Any, PathSteps]] = []
        for keyword, value in node.items():
            if value is None and (self.limits.is_protobuf or (not steps and keyword in self.limits.root_null_keywords)):
                continue
            if self._is_refused(keyword, steps):
                continue
            if keyword == "type":
                self._check_type(value, steps)
                continue
            form = get_keyword_form(keyword, is_protobuf=self.limits.is_protobuf)
            if form is not None:
                children += self._check_value(form, keyword, value, (*steps, keyword))
        self._check_company(node, steps)
        return children

    def _is_refused(self, keyword: str, steps: PathSteps) -> bool:
        """Note a keyword that is refused wherever it stands, and return whether it is."""
        limits = self.limits
        if keyword in limits.refused_keywords:
            self.add((*steps, keyword), keyword, f"{keyword} is not accepted; say it in the description")
            return True
        if limits.known_keywords is not None and keyword not in limits.known_keywords:
            self.add((*steps, keyword), keyword, f"{limits.owner} has no field {keyword}; remove it")
            return True
        return False

    def _check_type(self, value: Any, steps: PathSteps) -> None:
        limits = self.limits
        path = (*steps, "type")
        names = value if isinstance(value, list) else [value]
        if isinstance(value, list) and not limits.allows_type_lists:
            self.add(path, "type", f"type is a list, {_show(value)}; send one type, and nullable for null")
            return
        if not steps and not isinstance(value, list) and not limits.allows_any_root:
            return  # the root has a check of its own
        for name in names:
            is_text = isinstance(name, str)
            if not is_text or (name.lower() if limits.is_protobuf else name) not in limits.type_names:
                known_names = ", ".join(sorted(limits.type_names))
                self.add(path, "type", f"type {_show(name)} is none of JSON Schema; use one of {known_names}")
                return
        if isinstance(value, list) and (not names or len(set(names)) < len(names)):
            self.add(path, "type", f"type is {_show(value)}; name at least one type, and each once")

    def _check_value(
        self, form: KeywordForm, keyword: str, value: Any, path: PathSteps
    ) -> Iterator[tuple[Any, PathSteps]]:
        """Check the value of a keyword and return the schemas in it."""
        children: Iterator[tuple[Any, PathSteps]] = iter(())
        if form is KeywordForm.SCHEMA:
            has_form = not isinstance(value, list)
            children = iter([(value, path)])
        elif form is KeywordForm.SCHEMA_LIST:
            has_form = isinstance(value, list) and bool(value or self.limits.is_protobuf)
            if has_form:
                children = ((element, (*path, index)) for index, element in enumerate(value))
        elif form in (KeywordForm.SCHEMA_MAP, KeywordForm.SCHEMA_OR_NAMES_MAP):
            has_form = isinstance(value, dict)
            if has_form:
                children = ((element, (*path, name)) for name, element in value.items())
        else:
            has_form = is_plain_form(form, value)
        if has_form:
            return children
        self.add(path, keyword, f"{keyword} is {_show(value)}; send {form.value}")
        return iter(())

    # -- keywords beside each other ------------------------------------------------------------------------------------

    def _check_company(self, node: Mapping[str, Any], steps: PathSteps) -> None:
        """Check which keywords stand beside each other in one schema, and which are missing."""
        limits = self.limits
        types = _list_types(node)
        for keyword, wanted_type in limits.keyword_types.items():
            if node.get(keyword) and wanted_type not in types:
                given = f"type {_show(node['type'])}" if "type" in node else "no type"
                problem = f"{keyword} beside {given}"
                self.add((*steps, keyword), keyword, f"{problem}; only a schema of type {wanted_type} may have it")
        # At the root a type may be required all the same; what is refused there is ``root_refused_keywords``.
        if limits.types_stand_in_variants and steps and {"anyOf", "type"} <= node.keys():
            self.add((*steps, "type"), "type", "a type beside anyOf; put it into each variant")
        if limits.requires_array_items and "array" in types and not ({"items", "prefixItems"} & node.keys()):
            self.add(steps, "items", "an array without items; say in items what it holds")
        if limits.requires_types and "type" not in node and not (_TYPE_SUBSTITUTES & node.keys()):
            self.add(steps, "type", "a schema without type; add its type")
        if limits.requires_defined_names:
            self._check_required_names(node, steps)
        if limits.is_protobuf:
            self._check_enum_texts(node, steps)
        if "object" in types or "properties" in node:
            self._check_object(node, steps)
        min_items = node.get("minItems")
        if limits.max_min_items is not None and isinstance(min_items, int) and min_items > limits.max_min_items:
            problem = f"minItems is {min_items}, but at most {limits.max_min_items} is accepted"
            self.add((*steps, "minItems"), "minItems", f"{problem}; say it in the description")
        self._check_references(node, steps)

    def _check_required_names(self, node: Mapping[str, Any], steps: PathSteps) -> None:
        properties, required = node.get("properties"), node.get("required")
        if not isinstance(required, list):
            return
        defined_names = properties.keys() if isinstance(properties, dict) else ()
        for index, name in enumerate(required):
            if isinstance(name, str) and name not in defined_names:
                problem = f"required names {_show(name)}, which is not in properties"
                self.add((*steps, "required", index), "required", f"{problem}; define it, or remove the name")

    def _check_enum_texts(self, node: Mapping[str, Any], steps: PathSteps) -> None:
        values = node.get("enum")
        if values is None:
            return
        if not isinstance(values, list):
            self.add((*steps, "enum"), "enum", f"enum is {_show(values)}; send a list of texts")
            return
        for index, value in enumerate(values):
            if not isinstance(value, str) or not value:
                message = f"enum has the value {_show(value)}; send texts that are not empty"
                self.add((*steps, "enum", index), "enum", message)

    def _check_object(self, node: Mapping[str, Any], steps: PathSteps) -> None:
        if self.limits.requires_closed_objects and node.get("additionalProperties") is not False:
            message = "additionalProperties is not false on an object; add additionalProperties: false"
            self.add(steps, "additionalProperties", message)
        if not self.limits.requires_all_properties:
            return
        properties, required = node.get("properties"), node.get("required")
        if not isinstance(properties, dict):
            return
        required_names = required if isinstance(required, list) else ()
        missing_names = [name for name in properties if name not in required_names]
        if missing_names:
            count = f"{len(missing_names)} of {format_count(len(properties), 'name')} in properties"
            message = f"required lacks {count}, the first is {_show(missing_names[0])}; name all of them"
            self.add(steps, "required", message)

    def _check_references(self, node: Mapping[str, Any], steps: PathSteps) -> None:
        limits = self.limits
        for keyword in REFERENCE_KEYWORDS:
            reference = node.get(keyword)
            if not isinstance(reference, str):
                continue
            if keyword == "ref" and not limits.is_protobuf:
                continue
            beginning = limits.reference_beginning
            if beginning and reference != "#" and not reference.startswith(beginning):
                problem = f"{keyword} {_show(reference)} does not begin with {beginning}"
                self.add((*steps, keyword), keyword, f"{problem}; define what it refers to there")
            if limits.reference_siblings is not None:
                siblings = sorted(node.keys() - limits.reference_siblings - {keyword})
                if siblings:
                    problem = f"{keyword} stands beside {', '.join(siblings)}"
                    self.add((*steps, keyword), keyword, f"{problem}; put the schema it refers to in its place")
            if limits.refuses_recursion and is_recursive_reference(self.root, reference):
                problem = f"{keyword} {_show(reference)} makes the schema contain itself"
                self.add((*steps, keyword), keyword, f"{problem}; describe the deeper levels in words")
            if limits.requires_known_references and resolve_reference(self.root, reference) is None:
                message = f"{keyword} {_show(reference)} leads to nothing; define it, or remove the reference"
                self.add((*steps, keyword), keyword, message)


def _list_types(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a schema's types in lower case."""
    value = node.get("type")
    names = value if isinstance(value, list) else (value,)
    return tuple([name.lower() for name in names if isinstance(name, str)])


def _get_keyword(steps: PathSteps) -> str:
    """Return the keyword that a place belongs to: the last step that is no index and no name of a property."""
    for step in reversed(steps):
        if isinstance(step, str):
            return step
    return "schema"


def _show(value: Any) -> str:
    """Format a value of a schema for messages, at most 40 characters of it."""
    text = repr(value) if isinstance(value, str) else encode_json(value).decode()
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 1]}…"


def resolve_reference(root: Any, reference: str) -> Any:
    """Return what a reference into the schema itself (``#/$defs/X``) leads to, or None if there is nothing.

    A reference to another document is returned as an empty schema: what it leads to is not known.
    """
    if not reference.startswith("#"):
        return {}
    value = root
    for step in reference[1:].split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def is_recursive_reference(root: Any, reference: str) -> bool:
    """Return whether what a reference into the schema leads to refers back to itself, directly or by others."""
    pending, seen = [reference], {reference}
    while pending:
        for inner in _list_references(resolve_reference(root, pending.pop())):
            # What lies around the target contains it too: ``#`` contains everything.
            if reference == inner or reference.startswith(f"{inner}/"):
                return True
            if inner not in seen:
                seen.add(inner)
                pending.append(inner)
    return False


def _list_references(schema: Any) -> list[str]:
    """Return all references into the schema itself that stand anywhere in a part of it."""
    references: list[str] = []
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            pending += node.values()
            reference = node.get("$ref")
            if isinstance(reference, str) and reference.startswith("#"):
                references.append(reference)
    return references
