"""Fix the options of a client's request, the fields beside its messages, that its provider is known to refuse.

What nobody knew before a server refused it is learned in ``providers/requests/adapt_body.py``.

The messages are left out of the check: normalization makes them valid, and checking a long conversation for the sake of
its options would cost time with every request. Only rules that are documented, or that people were refused for, count;
a client that works must not be changed because of a rule from memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Raw, Struct

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.raw_json import encode_json, remove_json_fields, replace_json_fields
from holdfast.providers.dialects.registry import iter_requirements
from holdfast.providers.dialects.request_provider import get_dialect_provider
from holdfast.providers.fix.fix_context import FixContext, RequestFix
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.fix.provider_requirements import apply_provider_requirements
from holdfast.providers.registry import get_api_spec
from holdfast.providers.rules.rule import Finding, RuleEvidence
from holdfast.providers.rules.validate import validate_request
from holdfast.state.dialect import Dialect

_CERTAIN_EVIDENCE: frozenset[RuleEvidence] = frozenset({"documented", "observed"})
_NO_EVIDENCE: frozenset[RuleEvidence] = frozenset({"recalled"})
"""The evidence of a finding that is of no rule, such as a body that cannot be read."""
HEADER_RULES = frozenset({"anthropic.binding-beta", "anthropic.compaction-beta", "anthropic.field-betas"})
"""Rules about a header that must come with a field; they prove nothing where the headers are not known."""


class OptionFixes(Struct, frozen=True):
    """What to change in the options of a request."""

    changes: Mapping[str, bytes | None] = {}
    """New values by field; None removes it."""
    fixes: tuple[RequestFix, ...] = ()
    """What was wrong, for the user."""


NO_OPTION_FIXES = OptionFixes()


def find_option_fixes(
    api: str,
    fields: Mapping[str, Raw],
    model: str,
    dialect: Dialect,
    betas: Sequence[str] | None = None,
    version: str = "",
) -> OptionFixes:
    """Find the changes that make ``fields``, the top level of a body, valid for ``model``; none if they are valid.

    The messages among the fields do not matter. ``betas`` are the beta features of the request's headers, or None if
    these are unknown; ``version`` is the header ``anthropic-version``.
    """
    spec = get_api_spec(api)
    stand_in = spec.encode_message(Message.from_text("user", "Continue."), None)
    stub_fields = {key: value for key, value in fields.items() if key != spec.messages_field}
    stub = encode_json({**stub_fields, spec.messages_field: [Raw(element) for element in stand_in]})
    errors = _list_certain_errors(stub, api, model, dialect, betas, version)
    if not errors:
        return NO_OPTION_FIXES
    context = FixContext(
        spec,
        model,
        None if betas is None else tuple(betas),
        dialect,
        provider=get_dialect_provider(dialect),
        version=version,
    )
    try:
        new_stub, fixes = _fix_stub(stub, context, errors)
    except FormatError:
        return NO_OPTION_FIXES
    broken_rules = {finding.rule for finding in errors}
    if broken_rules & {finding.rule for finding in context.list_errors(new_stub)}:
        # A part of it could not be fixed, so the provider's own words about it help the user more.
        return NO_OPTION_FIXES
    new_fields = parse_body_fields(new_stub)
    changes: dict[str, bytes | None] = {}
    for key in {**stub_fields, **new_fields}:
        old, new = stub_fields.get(key), new_fields.get(key)
        if key != spec.messages_field and old != new:
            changes[key] = None if new is None else bytes(new)
    return OptionFixes(changes, tuple(fix for fix in fixes if fix.rule in broken_rules))


def _fix_stub(stub: bytes, context: FixContext, errors: list[Finding]) -> tuple[bytes, Sequence[RequestFix]]:
    """Return the stub without ``errors``, and what was changed."""
    dialect = context.dialect
    if dialect.keeps_client_content:
        # Only the provider's own rules are known to hold, so nothing is changed for the API's.
        return apply_provider_requirements(stub, context, errors)
    result = fix_request(
        stub,
        context.spec.api,
        model=context.model,
        provider=context.provider,
        dialect=lambda _api, _model: dialect,
        betas=context.betas,
        version=context.version,
    )
    return result.body, result.fixes


def _list_certain_errors(
    body: bytes, api: str, model: str, dialect: Dialect, betas: Sequence[str] | None, version: str
) -> list[Finding]:
    """Return the errors in ``body``, messages aside, if all of them are by certain rules; else none."""
    spec = get_api_spec(api)
    evidence_by_rule: dict[str, set[RuleEvidence]] = {rule.name: {rule.evidence} for rule in spec.rules.rules}
    for requirement in iter_requirements(api, model, dialect.provider):
        # Several requirements of a provider may share a name.
        evidence_by_rule.setdefault(f"{dialect.provider}.{requirement.rule}", set()).add(requirement.evidence)
    errors = []
    provider = get_dialect_provider(dialect)
    for finding in validate_request(body, api, model=model, provider=provider, betas=betas, version=version):
        if finding.level != "error" or finding.path.startswith(f"$.{spec.messages_field}"):
            continue
        if dialect.keeps_client_content and not finding.rule.startswith(f"{dialect.provider}."):
            continue
        if betas is None and finding.rule in HEADER_RULES:
            continue
        if not evidence_by_rule.get(finding.rule, _NO_EVIDENCE) <= _CERTAIN_EVIDENCE:
            return []
        errors.append(finding)
    return errors


def apply_option_fixes(body: bytes, fields: Mapping[str, Raw], option_fixes: OptionFixes) -> bytes:
    """Return ``body`` with the changes made; the same object if there are none. All other bytes stay."""
    removed = [key for key, value in option_fixes.changes.items() if value is None]
    new_values = {key: value for key, value in option_fixes.changes.items() if value is not None}
    if removed:
        body = remove_json_fields(body, fields, removed)
    if new_values:
        body = replace_json_fields(body, parse_body_fields(body), new_values)
    return body
