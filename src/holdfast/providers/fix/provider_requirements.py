"""Change what breaks a provider's own requirements, as each requirement suggests.

What is wrong in the conversation is left to normalization, which knows the provider by its dialect.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.json_path import JsonTree, PathSteps, Replacements, replace_json_at_paths
from holdfast.providers.common.json.raw_json import replace_json_fields
from holdfast.providers.dialects.registry import iter_requirements
from holdfast.providers.dialects.requirements.requirement import Requirement
from holdfast.providers.fix.fix_context import FixContext, RequestFix, build_request_fix
from holdfast.providers.rules.rule import Finding
from holdfast.providers.rules.validate import build_request_view

_MAX_PASSES = 3
"""Passes over the requirements of a provider; two are enough for the chains that are known."""


def apply_provider_requirements(
    body: bytes, context: FixContext, errors: list[Finding]
) -> tuple[bytes, list[RequestFix]]:
    """Apply the changes that the broken requirements suggest, until none of them finds more to do.

    A change may bring to light what an earlier requirement is about: once Kimi has to think, it takes no forced tool.
    """
    fixes: list[RequestFix] = []
    for _ in range(_MAX_PASSES):
        body, new_fixes = _apply_each_once(body, context, errors)
        if not new_fixes:
            break
        fixes += new_fixes
        errors = context.list_errors(body)
    return body, fixes


def _apply_each_once(body: bytes, context: FixContext, errors: list[Finding]) -> tuple[bytes, list[RequestFix]]:
    provider = context.provider.name
    fixes: list[RequestFix] = []
    for requirement in iter_requirements(context.spec.api, context.model, provider):
        rule_name = f"{provider}.{requirement.rule}"
        if not any(finding.rule == rule_name for finding in errors):
            continue
        # Several requirements may share a name (one for each field with a range), so the findings of this one are told
        # by their places.
        broken_paths = _list_broken_paths(requirement, body, context)
        findings = [finding for finding in errors if finding.rule == rule_name and finding.path in broken_paths]
        if not findings:
            continue
        tree = JsonTree(Raw(body))
        changes: dict[PathSteps, bytes | None] = {}
        descriptions: list[RequestFix] = []
        for finding in findings:
            suggested = requirement.suggest_changes(tree, tree.parse_path(finding.path))
            if suggested:
                changes.update(suggested)
                descriptions.append(build_request_fix(finding, _describe_changes(suggested)))
        if not changes:
            continue
        new_body = _apply_changes(body, tree, changes)
        new_errors = context.list_errors(new_body)
        # What a change brings to light (options that a thinking model does not take) is for the requirements after it,
        # or for the next pass.
        if len(_list_broken_paths(requirement, new_body, context)) < len(broken_paths):
            body, errors = new_body, new_errors
            fixes += descriptions
    return body, fixes


def _list_broken_paths(requirement: Requirement, body: bytes, context: FixContext) -> set[str]:
    """List the places in ``body`` that break ``requirement``."""
    value = msgspec.json.decode(body)
    request = build_request_view(context.spec, value, len(body), context.model, context.betas, context.version)
    if not requirement.applies(request):
        return set()
    return {path for path, _ in requirement.find_violations(request)}


def _describe_changes(changes: Replacements) -> str:
    new_values = [value for value in changes.values() if value is not None]
    if not new_values:
        return "left out"
    if len(changes) > len(new_values):
        return "moved to the field that the provider has"
    return f"set to {new_values[0].decode()}"


def _apply_changes(body: bytes, tree: JsonTree, changes: Replacements) -> bytes:
    """Return ``body`` with ``changes``; a field of the body that does not exist yet is added."""
    added_fields = {}
    for steps, value in changes.items():
        if len(steps) == 1 and value is not None and tree.get_raw(steps) is None:
            added_fields[str(steps[0])] = value
    new_body = replace_json_at_paths(Raw(body), changes)
    if not added_fields:
        return new_body
    return replace_json_fields(new_body, parse_body_fields(new_body), added_fields)
