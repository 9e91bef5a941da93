"""Rules of an API and the findings where a request breaks them.

The validator shares no rule code with normalization on purpose: each is a check on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

RuleEvidence: TypeAlias = Literal["documented", "observed", "recalled", "inferred"]
"""The source of a rule: the provider's documents, errors that people met, memory, or reasoning alone."""
Violations: TypeAlias = Iterator[tuple[str, str]]
"""Pairs of the JSON path where a rule is broken and the message about it."""


class Finding(Struct, frozen=True, gc=False):
    """One place where a request breaks one rule."""

    rule: str
    """The rule's name, such as ``anthropic.tool-names``."""
    level: Literal["error", "warning"]
    """``error`` if the API refuses the request for it."""
    path: str
    message: str
    """What is wrong, and after a semicolon what to do about it."""


class Rule(Struct, frozen=True):
    """One rule of an API."""

    name: str
    check: Callable[[Any], Violations]
    """Yields every place where the view of a request breaks the rule. Its docstring is the rule in one sentence."""
    evidence: RuleEvidence
    source: str
    models: str = ""
    """The models or versions that the rule applies to; empty for the whole API."""

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return (self.check.__doc__ or "").partition("\n")[0]

    @property
    def level(self) -> Literal["error", "warning"]:
        """``warning`` for a rule that is only inferred, and that the API may not enforce; else ``error``."""
        return get_evidence_level(self.evidence)


def get_evidence_level(evidence: RuleEvidence) -> Literal["error", "warning"]:
    """Return ``warning`` for a rule that is only inferred, and that may not be enforced; else ``error``."""
    return "warning" if evidence == "inferred" else "error"


# Sources of rules. They name the version that was read, so that a rule can be looked up again.
ANTHROPIC_DOCS = "reference and SDK 2.12 types of the Messages API"
OPENAI_DOCS = "OpenAPI 2.3.0 and SDK 3.54 types"
GEMINI_DOCS = "API reference and SDK 3.4 types"
PUBLIC_ERRORS = "error texts in public issues"
UNVERIFIED_MEMORY = "long-standing behaviour, not re-read"


def get_json_type_name(value: object) -> str:
    """Return the JSON type of ``value`` with its article, for messages."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def format_json_value(value: object) -> str:
    """Format a JSON value for messages: a string in quotes, anything else as JSON."""
    if isinstance(value, str):
        return repr(value)
    return msgspec.json.encode(value).decode()


def collect_findings(rules: Sequence[Rule], request: object) -> tuple[Finding, ...]:
    """Return every place where ``request``, the view that the rules expect, breaks one of ``rules``."""
    findings: list[Finding] = []
    for rule in rules:
        for path, message in rule.check(request):
            findings.append(Finding(rule.name, rule.level, path, message))
    return tuple(findings)
