"""The validator: is this request one that the API takes? Every broken rule, with a JSON path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.errors import FormatError, UnrecognizedContent
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.surrogates import find_lone_surrogate_path
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.recognize import recognize_api
from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.foreign import explain_foreign_findings
from holdfast.providers.rules.rule import Finding, Rule, collect_findings

__all__ = ["ALL_RULES", "Finding", "Rule", "validate_request"]


ALL_RULES: tuple[Rule, ...] = tuple(
    rule for spec in API_SPECS.values() for rule in (*spec.rules.rules, *spec.rules.required)
)
"""Every rule there is, for the documentation."""


def validate_request(
    body: bytes | Mapping[str, Any],
    api: str | None = None,
    *,
    betas: Iterable[str] | None = None,
    model: str = "",
    rules: Iterable[Rule] = ALL_RULES,
    complete: bool = False,
) -> tuple[Finding, ...]:
    """Return what is wrong with a request body, nothing when the API takes it; linear in its size.

    ``betas`` are the beta features asked for in the request's headers; ``betas`` in the body count too. ``model`` is
    the model where the body does not name it, as in Gemini's addresses; ``rules`` are those to judge by. That no model
    is named, or no ``max_tokens``, is a finding for a ``complete`` request alone. Raises ``UnrecognizedContent`` when
    the API is neither given nor told by the body.
    """
    try:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        fields = parse_body_fields(data)
        value = msgspec.json.decode(data) if isinstance(body, bytes) else body
    except (FormatError, msgspec.MsgspecError, RecursionError, UnicodeError, TypeError) as error:
        surrogate_path = find_lone_surrogate_path(body) if isinstance(body, bytes) else ""
        why = f"half of a character stands in {surrogate_path}; put U+FFFD in its place, as holdfast fix does"
        return (Finding("json", "error", "$", why if surrogate_path else f"{error}; no API takes it"),)
    name = _resolve_api(api, fields)
    spec = API_SPECS[name]
    request = spec.rules.build_view(
        RequestView(value, len(data), _merge_betas(value, betas), _get_body_model(fields) or model)
    )
    judging = (*spec.rules.rules, *spec.rules.required) if complete else spec.rules.rules
    if rules is not ALL_RULES:
        names = {rule.name for rule in rules}
        judging = tuple([rule for rule in judging if rule.name in names])
    field = spec.messages_field
    return explain_foreign_findings(
        collect_findings(judging, request), request.get_list(field), field, request.get_list("tools"), name
    )


def _resolve_api(api: str | None, fields: Mapping[str, Raw]) -> str:
    """Return the API of a body; raises ``UnrecognizedContent`` where there are no rules for it."""
    name = api or recognize_api(fields)
    if not isinstance(name, str) or name not in API_SPECS:
        raise UnrecognizedContent(f"no rules are known for {name!r}; the APIs are {', '.join(API_SPECS)}")
    return name


def _get_body_model(fields: Mapping[str, Raw]) -> str:
    model = msgspec.json.decode(fields["model"]) if "model" in fields else ""
    return model if isinstance(model, str) else ""


def _merge_betas(body: Mapping[str, Any], header_betas: Iterable[str] | None) -> frozenset[str] | None:
    """Return the beta features from the caller and the body together, or nothing when neither says any."""
    body_betas = body.get("betas", body.get("anthropic_beta"))
    if header_betas is None and not isinstance(body_betas, list):
        return None
    beta_names = body_betas if isinstance(body_betas, list) else ()
    return frozenset(header_betas or ()) | frozenset(beta for beta in beta_names if isinstance(beta, str))
