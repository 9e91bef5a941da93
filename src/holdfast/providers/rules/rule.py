"""What a rule of an API is, and what breaking it looks like.

The validator stands apart from hygiene on purpose: no rule code is shared, so that one proves the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

RuleEvidence: TypeAlias = Literal["documented", "observed", "recalled", "inferred"]
"""How a rule is known: from the provider's documents, from errors people met, from memory, or by reasoning."""
Violations: TypeAlias = Iterator[tuple[str, str]]
"""Where a rule is broken (a JSON path) and what to say about it."""


class Finding(Struct, frozen=True, gc=False):
    """One place where a request breaks one rule."""

    rule: str
    level: Literal["error", "warning"]
    path: str
    message: str


class Rule(Struct, frozen=True):
    """One rule of an API. A rule that is only inferred warns; all others refuse."""

    name: str
    check: Callable[[Any], Violations]
    """Yields every place where a request, in the view of its API, breaks the rule; its docstring is the rule in
    words."""
    evidence: RuleEvidence
    source: str
    models: str = ""
    """The models or versions it is for; empty for all of the API."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return (self.check.__doc__ or "").partition("\n")[0]

    @property
    def level(self) -> Literal["error", "warning"]:
        """``warning`` for what is only inferred, else ``error``."""
        return "warning" if self.evidence == "inferred" else "error"


ANTHROPIC_DOCS = "reference and SDK 2.12 types of the Messages API"
OPENAI_DOCS = "OpenAPI 2.3.0 and SDK 3.54 types"
GEMINI_DOCS = "API reference and SDK 3.4 types"
PUBLIC_ERRORS = "error texts in public issues"
UNVERIFIED_MEMORY = "long-standing behaviour, not re-read"


def get_json_type_name(value: object) -> str:
    """Return what JSON calls the type of ``value``."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def format_json_value(value: object) -> str:
    """Return a JSON value as messages show it: a text in quotes, all else as JSON."""
    return repr(value) if isinstance(value, str) else msgspec.json.encode(value).decode()


def collect_findings(rules: Sequence[Rule], request: object) -> tuple[Finding, ...]:
    """Return every place where ``request`` breaks one of ``rules``."""
    return tuple([Finding(rule.name, rule.level, *place) for rule in rules for place in rule.check(request)])
