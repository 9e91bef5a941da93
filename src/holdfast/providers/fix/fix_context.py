"""Types shared by the steps that fix a request: their context, the changes they report, and the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.json.json_path import set_body_model
from holdfast.providers.dialects.request_provider import RequestProvider
from holdfast.providers.rules.rule import Finding
from holdfast.providers.rules.validate import validate_request
from holdfast.state.dialect import Dialect


class RequestFix(Struct, frozen=True, omit_defaults=True):
    """One change to a request."""

    rule: str
    """Name of the validator's rule that was broken, or of the kind of change (``form``, ``foreign-form``, ``ids``)."""
    why: str
    """What was wrong and what was done, in one line for the user."""
    path: str = ""
    """JSON path of the change in the body as it was at that step."""


class FixResult(Struct, frozen=True):
    """A fixed request body with its changes, and the validator's findings that remain."""

    api: str
    body: bytes
    fixes: tuple[RequestFix, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether no error remains, so that the API accepts the body."""
        return not select_error_findings(self.findings)


class FixContext(Struct, frozen=True):
    """The API, model and options that a request is validated and fixed for."""

    spec: ApiSpec
    model: str
    betas: tuple[str, ...] | None
    """Beta features from the request's headers, or None if the headers are unknown."""
    dialect: Dialect
    has_other_model: bool = False
    """Whether the body names a model other than ``model``."""
    provider: RequestProvider = RequestProvider()
    """The provider that serves the request."""
    complete: bool = False
    """Whether the body must be a complete request, with its model and output limit, and not a part of one."""
    version: str = ""
    """The header ``anthropic-version``; empty if it is unknown."""
    keeps_model_options: bool = False
    """Whether options stay that only the model refuses, because the request is converted next."""
    ignored_rules: frozenset[str] = frozenset()
    """Rules whose findings are left alone."""

    def validate_body(self, body: bytes) -> tuple[Finding, ...]:
        """Return the validator's findings on ``body``, errors and warnings."""
        if self.has_other_model:
            named_body = set_body_model(body, self.model)
        else:
            named_body = body
        findings = validate_request(
            named_body,
            self.spec.api,
            betas=self.betas,
            version=self.version,
            model=self.model,
            provider=self.provider,
            complete=self.complete,
        )
        if not self.ignored_rules:
            return findings
        return tuple([finding for finding in findings if finding.rule not in self.ignored_rules])

    def list_errors(self, body: bytes) -> list[Finding]:
        """Return the findings on ``body`` that make the API refuse it."""
        return select_error_findings(self.validate_body(body))


def select_error_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Select the findings that make an API refuse a request; warnings are left out."""
    return [finding for finding in findings if finding.level == "error"]


def build_request_fix(finding: Finding, description: str, path: str = "") -> RequestFix:
    """Build the report of a change from the finding it cures and a description of the change.

    ``path`` defaults to that of the finding.
    """
    # The message of a finding is "what is wrong; what to do about it", and the second half has just been done.
    problem = finding.message.rpartition("; ")[0] or finding.message
    return RequestFix(finding.rule, f"{problem}: {description}", path or finding.path)


FixStep: TypeAlias = Callable[[bytes, FixContext, list[Finding]], tuple[bytes, list[RequestFix]]]
"""A step takes a body, the context and the errors in it; it returns the changed body and a report of its changes."""
