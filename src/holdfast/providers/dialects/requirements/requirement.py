"""The base of all requirements: what a provider asks of a request beyond the rules of the API.

A requirement is a value with the facts of one provider (``AllowedRoles(("system", "user"))``), so that a provider's
file is a list of facts with sources. How a requirement is checked is written once for all providers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct

from holdfast.providers.common.json.json_path import JsonTree, PathSteps
from holdfast.providers.rules.rule import RuleEvidence, Violations

Replacements: TypeAlias = Mapping[PathSteps, bytes | None]
"""New values by path; None removes the value. Empty if there is no right way to change the request."""


def _is_any_request(_request: Any) -> bool:
    return True


class Condition(Struct, frozen=True):
    """For which requests a requirement holds: some hold only while the model thinks."""

    words: str
    """The condition in words (``while the model thinks``), for documentation; empty if it always holds."""
    holds: Callable[[Any], bool]
    """Returns whether it holds for a request, the view of its API."""


ALWAYS = Condition("", _is_any_request)


class Requirement(Struct, frozen=True, kw_only=True):
    """One thing that a provider asks of a request, with its source.

    ``text`` is what documentation says, ``find_violations`` what lint says. What breaks it is mended by normalization,
    which goes by ``dialect_fields``, or by ``suggest_changes``; a test holds that normalization keeps what it is named
    for.
    """

    rule: ClassVar[str]
    """Name of the rule, after the provider's name and a dot. Several requirements of a provider may share it."""

    dialect_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of ``Dialect`` by which normalization keeps the requirement, among the ``dialect_changes`` of a provider.

    Empty if ``suggest_changes`` does it, or nothing can.
    """

    source: str
    """Where it is documented or was observed, with the date."""
    evidence: RuleEvidence = "documented"
    when: Condition = ALWAYS
    """For which requests it holds."""

    @property
    def text(self) -> str:
        """The rule in one sentence, with this provider's values."""
        raise NotImplementedError

    @property
    def full_text(self) -> str:
        """The rule in one sentence, after the condition under which it holds."""
        if not self.when.words:
            return self.text
        return f"{self.when.words[0].upper()}{self.when.words[1:]}: {self.text}"

    @property
    def mended_by(self) -> str:
        """What ``fix`` and the proxy do about a request that breaks it, in words."""
        ways: list[str] = []
        if self.dialect_fields:
            ways.append(f"messages are normalized ({', '.join(f'`{name}`' for name in self.dialect_fields)})")
        if type(self).suggest_changes is not Requirement.suggest_changes:
            ways.append("the field is changed")
        return "; ".join(ways) or "only reported"

    @property
    def refused_kinds(self) -> tuple[str, ...]:
        """Kinds of opaque parts that normalization leaves out because of it; see ``Dialect.refused_kinds``."""
        return ()

    def applies(self, request: Any) -> bool:
        """Return whether the requirement holds for ``request``, the view of its API."""
        return self.when.holds(request)

    def find_violations(self, request: Any) -> Violations:
        """Yield the paths where ``request``, the view of its API, breaks the requirement, each with a message."""
        raise NotImplementedError

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:  # noqa: ARG002
        """Return the changes that satisfy the requirement at ``steps``; none if normalization does, or nothing can."""
        return {}


def join_names(names: Any, conjunction: str = "and") -> str:
    """Join names for a sentence: ``a``, ``a and b``, ``a, b and c``; ``nothing`` for none."""
    listed = list(names)
    if len(listed) < 2:
        return listed[0] if listed else "nothing"
    return f"{', '.join(listed[:-1])} {conjunction} {listed[-1]}"
