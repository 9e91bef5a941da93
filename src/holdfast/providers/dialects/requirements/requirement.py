"""The base of all requirements: what a provider asks of a request beyond the rules of the API.

A requirement is a value with the facts of one provider (``AllowedRoles(("system", "user"))``), so that a provider's
file is a list of facts with sources. How a requirement is checked is written once for all providers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from msgspec import Struct

from holdfast.providers.common.json.json_path import JsonTree, PathSteps, Replacements
from holdfast.providers.rules.rule import RuleEvidence, Violations


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
    which goes by ``list_dialect_changes``, by ``suggest_changes``, or as ``mended_like`` says. For Chat Completions a
    test holds that normalization keeps each certain requirement about messages that lists something.
    """

    rule: ClassVar[str]
    """Name of the rule, after the provider's name and a dot. Several requirements of a provider may share it."""

    leaves_out: ClassVar[bool] = False
    """Whether ``fix`` leaves out what breaks it, and no other change is suggested."""

    mended_like: ClassVar[str] = ""
    """The rule of the API, without its name (``tool-names``), whose fix satisfies this requirement too; empty if none.

    No fix of the API is ever taken because both happen to have the same name.
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
    def shapes_every_history(self) -> bool:
        """Whether it is certain and always holds, so that what it lists is part of the provider's dialect.

        Normalization does not see the options of a request, so it cannot follow a condition.
        """
        return self.evidence in ("documented", "observed") and self.when is ALWAYS

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """Return the values of ``Dialect`` by which normalization keeps the requirement; none if it cannot.

        ``refused_kinds`` are those beside the kinds that the API refuses anyway.
        """
        return {}

    def applies(self, request: Any) -> bool:
        """Return whether the requirement holds for ``request``, the view of its API."""
        return self.when.holds(request)

    def find_violations(self, request: Any) -> Violations:
        """Yield the paths where ``request``, the view of its API, breaks the requirement, each with a message."""
        raise NotImplementedError

    @property
    def suggests_changes(self) -> bool:
        """Whether there is a change to suggest, at least for some of what breaks it."""
        return self.leaves_out or type(self).suggest_changes is not Requirement.suggest_changes

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:  # noqa: ARG002
        """Return the changes that satisfy the requirement at ``steps``; none if normalization does, or nothing can."""
        return {steps: None} if self.leaves_out else {}


def join_names(names: Any, conjunction: str = "and") -> str:
    """Join names for a sentence: ``a``, ``a and b``, ``a, b and c``; ``nothing`` for none."""
    listed = list(names)
    if len(listed) < 2:
        return listed[0] if listed else "nothing"
    return f"{', '.join(listed[:-1])} {conjunction} {listed[-1]}"
