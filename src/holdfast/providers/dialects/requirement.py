"""The base of all requirements: what a provider asks of a request beyond the rules of the API.

A requirement is a value with the facts of one provider (``AllowedRoles(("system", "user"))``), so that a provider's
file is a list of facts with sources. How a requirement is checked is written once for all providers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct

from holdfast.providers.common.json.json_path import JsonTree, PathSteps
from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.rule import RuleEvidence, Violations

Replacements: TypeAlias = Mapping[PathSteps, bytes | None]
"""New values by path; None removes the value. Empty if there is no right way to change the request."""


def is_any_request(_request: RequestView) -> bool:
    """Return True: the requirement holds for each request."""
    return True


class Requirement(Struct, frozen=True, kw_only=True):
    """One thing that a provider asks of a request, with its source."""

    rule: ClassVar[str]
    """Name of the rule, after the provider's name and a dot. Several requirements of a provider may share it."""

    source: str
    """Where it is documented or was observed, with the date."""
    evidence: RuleEvidence = "documented"
    applies: Callable[[Any], bool] = is_any_request
    """Whether the requirement holds for a request: some hold only while the model thinks."""

    @property
    def text(self) -> str:
        """The rule in one sentence, with this provider's values."""
        raise NotImplementedError

    def find_violations(self, request: Any) -> Violations:
        """Yield the paths where ``request``, the view of its API, breaks the requirement, each with a message."""
        raise NotImplementedError

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:  # noqa: ARG002
        """Return the changes that satisfy the requirement at ``steps``; none if normalization does, or nothing can."""
        return {}
