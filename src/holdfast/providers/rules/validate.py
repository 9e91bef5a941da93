"""The validator: find every rule of its API that a request breaks, with the JSON path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from holdfast.errors import FormatError, UnrecognizedContent
from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.surrogates import find_lone_surrogate_path
from holdfast.providers.dialects.provider_spec import ProviderRules
from holdfast.providers.dialects.registry import get_provider_rules
from holdfast.providers.dialects.request_provider import RequestProvider, check_provider_name, find_request_provider
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.recognize import recognize_api
from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.foreign import explain_foreign_findings
from holdfast.providers.rules.rule import Finding, Rule, collect_findings, get_evidence_level

T = TypeVar("T")

__all__ = ["ALL_RULES", "Finding", "Rule", "validate_request"]


_NO_PROVIDER_RULES = ProviderRules()
ALL_RULES: tuple[Rule, ...] = tuple(
    rule for spec in API_SPECS.values() for rule in (*spec.rules.rules, *spec.rules.required)
)
"""The rules of all APIs; the default of ``validate_request``, and the source of the documentation."""


def validate_request(
    body: bytes | Mapping[str, Any],
    api: str | None = None,
    *,
    betas: Iterable[str] | None = None,
    version: str = "",
    model: str = "",
    provider: str | RequestProvider = "",
    rules: Iterable[Rule] = ALL_RULES,
    complete: bool = False,
) -> tuple[Finding, ...]:
    """Validate a request body and return the findings, none if the API accepts it. Takes time linear in its size.

    ``betas`` are the beta features of the request's headers; those in the body are added. ``version`` is the header
    ``anthropic-version``. ``model`` is the model if the
    body does not name it, as with Gemini, where the address does. ``provider`` serves the request, with rules of its
    own beside the API's; by default the one that the body or the model's name gives away. Of a guessed one
    (``RequestProvider.is_guess``) only the rules about messages are checked. ``rules`` limits the check to
    these rules of the API. A ``complete`` request must name its model and its ``max_tokens``; for a part of one that is
    no finding.

    Raises ``UnrecognizedContent`` if the API is not given and cannot be told from the body, ``ConfigError`` for an
    unknown provider, and ``TypeError`` for ``betas`` that are not a list of names or ``rules`` that are not a list of
    rules.
    """
    if isinstance(provider, str):
        check_provider_name(provider)
    if betas is not None:
        betas = _require_items("betas", betas, str)
    if rules is not ALL_RULES:
        rules = _require_items("rules", rules, Rule)
    try:
        # A mapping is encoded too: its size is a rule, and the API is recognized from raw top-level fields.
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        fields = parse_body_fields(data)
        value = msgspec.json.decode(data) if isinstance(body, bytes) else body
    except (FormatError, msgspec.MsgspecError, RecursionError, UnicodeError, TypeError) as error:
        return (_build_json_finding(body, error),)
    api = _resolve_api(api, fields, provider)
    spec = API_SPECS[api]
    request = build_request_view(spec, value, len(data), _get_body_model(fields) or model, betas, version)
    if complete:
        applied_rules = (*spec.rules.rules, *spec.rules.required)
    else:
        applied_rules = spec.rules.rules
    if isinstance(provider, str):
        provider = find_request_provider(api, request.model, named=provider, fields=fields)
    provider_rules = get_provider_rules(api, request.model, provider.name) or _NO_PROVIDER_RULES
    # By identity, so that the default costs nothing. Rules of other APIs in ``rules`` fall out by their names.
    if rules is not ALL_RULES:
        names = {rule.name for rule in rules}
        applied_rules = tuple([rule for rule in applied_rules if rule.name in names])
    elif provider_rules.skipped_rules:
        applied_rules = tuple(
            [rule for rule in applied_rules if rule.name.partition(".")[2] not in provider_rules.skipped_rules]
        )
    findings = collect_findings(applied_rules, request)
    if rules is ALL_RULES:
        messages_path = f"$.{spec.messages_field}" if provider.is_guess else "$"
        findings = (*findings, *_check_requirements(provider.name, provider_rules, request, messages_path))
    # Explaining comes last: rules must not know other APIs, and what is found must not depend on it.
    messages = request.get_list(spec.messages_field)
    return explain_foreign_findings(
        findings,
        messages,
        spec.messages_field,
        request.get_list("tools"),
        api,
    )


def build_request_view(
    spec: ApiSpec,
    body: Mapping[str, Any],
    body_bytes: int,
    model: str,
    betas: Iterable[str] | None,
    version: str,
) -> RequestView:
    """Build the view of a decoded body that the rules of its API, and its provider's requirements, read."""
    return spec.rules.build_view(RequestView(body, body_bytes, _merge_betas(body, betas), model, version))


def _check_requirements(
    provider: str, provider_rules: ProviderRules, request: RequestView, checked_path: str
) -> Iterator[Finding]:
    """Yield what breaks the provider's own requirements below a path, under names that begin with the provider's."""
    for requirement in provider_rules.requirements:
        if not requirement.applies(request):
            continue
        level = get_evidence_level(requirement.evidence)
        for path, message in requirement.find_violations(request):
            if path.startswith(checked_path):
                yield Finding(f"{provider}.{requirement.rule}", level, path, message)


def _build_json_finding(body: bytes | Mapping[str, Any], error: Exception) -> Finding:
    """Build the finding on a body that is not valid JSON; a lone surrogate is named, because parsers do not say so."""
    if isinstance(body, bytes):
        surrogate_path = find_lone_surrogate_path(body)
    else:
        surrogate_path = ""
    if not surrogate_path:
        return Finding("json", "error", "$", str(error))
    message = (
        f"half of a character (a lone surrogate) is in {surrogate_path}; replace it by U+FFFD, as holdfast fix does"
    )
    return Finding("json", "error", "$", message)


def _require_items(name: str, values: object, kind: type[T]) -> tuple[T, ...]:
    """Return ``values`` as a tuple, or raise ``TypeError`` unless it is a list of ``kind``; one text is no list."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} is of type {type(values).__name__}; give a list of {kind.__name__}")
    items = tuple(values)
    for index, item in enumerate(items):
        if not isinstance(item, kind):
            raise TypeError(f"{name}[{index}] is of type {type(item).__name__}; give a value of type {kind.__name__}")
    return items


def _resolve_api(api: str | None, fields: Mapping[str, Raw], provider: str | RequestProvider) -> str:
    """Return the API of a body, or raise ``UnrecognizedContent`` if there are no rules for it."""
    named_provider = provider if isinstance(provider, str) else provider.name
    name = api or recognize_api(fields, named_provider)
    if not isinstance(name, str) or name not in API_SPECS:
        raise UnrecognizedContent(f"no rules are known for {name!r}; the APIs are {', '.join(API_SPECS)}")
    return name


def _get_body_model(fields: Mapping[str, Raw]) -> str:
    if "model" not in fields:
        return ""
    model = msgspec.json.decode(fields["model"])
    return model if isinstance(model, str) else ""


def _merge_betas(body: Mapping[str, Any], header_betas: Iterable[str] | None) -> frozenset[str] | None:
    """Merge the beta features of headers and body, or return None if the headers are unknown and the body has none."""
    body_betas = body.get("betas", body.get("anthropic_beta"))  # Bedrock has the second spelling
    if not isinstance(body_betas, list):
        return None if header_betas is None else frozenset(header_betas)
    betas = set(header_betas or ())
    for beta in body_betas:
        if isinstance(beta, str):
            betas.add(beta)
    return frozenset(betas)
