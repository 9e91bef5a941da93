"""What a request is mended for, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from holdfast.providers.common.json.json_path import named
from holdfast.providers.registry import Form
from holdfast.providers.rules import Finding, validate
from holdfast.state.dialect import Dialect


class Mend(Struct, frozen=True, omit_defaults=True):
    """One change: the rule it keeps, why, and where it was made."""

    rule: str
    why: str
    path: str = ""


class Mended(Struct, frozen=True):
    """A request as it may be sent, what was changed, and what is still refused."""

    api: str
    body: bytes
    edits: tuple[Mend, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether the API takes it."""
        return not refused(self.findings)


class Work(Struct, frozen=True):
    """What a request is judged by."""

    form: Form
    model: str
    betas: tuple[str, ...] | None
    dialect: Dialect
    renamed: bool = False
    """The body names another model than the one whose rules hold."""
    whole: bool = False
    """The body is to be a whole request, not a part of one."""

    def judge(self, body: bytes) -> tuple[Finding, ...]:
        """Return what is wrong with ``body``."""
        judged = named(body, self.model) if self.renamed else body
        return validate(judged, self.form.api, betas=self.betas, model=self.model, whole=self.whole)

    def errors(self, body: bytes) -> list[Finding]:
        """Return for what ``body`` is refused."""
        return refused(self.judge(body))


def refused(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that a request is refused for."""
    return [finding for finding in findings if finding.level == "error"]


def made(finding: Finding, done: str, path: str = "") -> Mend:
    """Return what is told of a change: what broke the rule and what was done, at ``path`` or where it was found."""
    what = finding.message.rpartition("; ")[0] or finding.message
    return Mend(finding.rule, f"{what}: {done}", path or finding.path)


Step: TypeAlias = Callable[[bytes, Work, list[Finding]], tuple[bytes, list[Mend]]]
"""A step makes another body of one that is refused, and tells what it changed."""
