"""What a request is mended for, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.json.json_path import set_body_model
from holdfast.providers.rules.rule import Finding
from holdfast.providers.rules.validate import validate_request
from holdfast.state.dialect import Dialect


class RequestFix(Struct, frozen=True, omit_defaults=True):
    """One change: the rule it keeps, why, and where it was made."""

    rule: str
    why: str
    path: str = ""


class FixResult(Struct, frozen=True):
    """A request as it may be sent, what was changed, and what is still refused."""

    api: str
    body: bytes
    fixes: tuple[RequestFix, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether the API takes it."""
        return not select_error_findings(self.findings)


class FixContext(Struct, frozen=True):
    """What a request is judged by."""

    spec: ApiSpec
    model: str
    betas: tuple[str, ...] | None
    dialect: Dialect
    has_other_model: bool = False
    """The body names another model than the one whose rules hold."""
    complete: bool = False
    """The body is to be a whole request, not a part of one."""

    def validate_body(self, body: bytes) -> tuple[Finding, ...]:
        """Return what is wrong with ``body``."""
        named_body = set_body_model(body, self.model) if self.has_other_model else body
        return validate_request(named_body, self.spec.api, betas=self.betas, model=self.model, complete=self.complete)

    def list_errors(self, body: bytes) -> list[Finding]:
        """Return for what ``body`` is refused."""
        return select_error_findings(self.validate_body(body))


def select_error_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that a request is refused for."""
    return [finding for finding in findings if finding.level == "error"]


def build_request_fix(finding: Finding, description: str, path: str = "") -> RequestFix:
    """Return what is told of a change: what broke the rule and what was done, at ``path`` or where it was found."""
    problem = finding.message.rpartition("; ")[0] or finding.message
    return RequestFix(finding.rule, f"{problem}: {description}", path or finding.path)


FixStep: TypeAlias = Callable[[bytes, FixContext, list[Finding]], tuple[bytes, list[RequestFix]]]
"""A step makes another body of one that is refused, and tells what it changed."""
