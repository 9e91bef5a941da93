"""The registered APIs, one row each. To add an API, write its folder and add a row."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.errors import UnrecognizedContent
from holdfast.providers.anthropic.spec import ANTHROPIC_SPEC
from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.dialects import lift_known_limits, relax_turn_order
from holdfast.providers.dialects.registry import (
    PROVIDER_SPECS,
    adapt_dialect,
    find_open_model_provider,
    get_provider_rules,
    has_unknown_message_rules,
)
from holdfast.providers.dialects.request_provider import RequestProvider, find_request_provider
from holdfast.providers.gemini.spec import GEMINI_SPEC
from holdfast.providers.openai_chat.spec import OPENAI_CHAT_SPEC
from holdfast.providers.openai_responses.spec import OPENAI_RESPONSES_SPEC
from holdfast.state.dialect import Dialect

API_SPECS: dict[str, ApiSpec] = {
    spec.api: spec
    for spec in (
        ANTHROPIC_SPEC,
        OPENAI_CHAT_SPEC,
        OPENAI_RESPONSES_SPEC,
        GEMINI_SPEC,
    )
}
API_NAMES = tuple(API_SPECS)
DEFAULT_API = OPENAI_CHAT_SPEC.api
"""The API that is assumed if nothing identifies it: most servers accept this one."""
_CONVERTER_KINDS = ("toolResult",)
"""Kinds of parts internal to programs that write requests (pi), which they may leave behind in a body."""


def get_api_spec(api: str) -> ApiSpec:
    """Return the spec of ``api``; raises ``UnrecognizedContent`` with the list of known APIs for any other name."""
    if not isinstance(api, str) or api not in API_SPECS:
        raise UnrecognizedContent(f"no module speaks {api!r}; the APIs are {', '.join(API_NAMES)}")
    return API_SPECS[api]


def list_provider_apis(provider: str) -> tuple[str, ...]:
    """List the APIs for which rules of ``provider`` are known: its own API, or those of others that it serves."""
    if provider in PROVIDER_SPECS:
        return tuple(PROVIDER_SPECS[provider].rules_by_api)
    return tuple(api for api, spec in API_SPECS.items() if spec.endpoints.provider == provider)


def describe_missing_rules(api: str, provider: str) -> str:
    """Say that no rules of ``provider`` are known for ``api``, and for which they are; empty if there are some."""
    known_apis = list_provider_apis(provider)
    if not provider or api in known_apis:
        return ""
    known = ", ".join(known_apis)
    return f"{provider} has no rules for {api}; known: {known}; only the rules of {api} itself were checked"


def have_one_provider(api: str, other_api: str) -> bool:
    """Return whether both APIs belong to one provider, so that uploaded files have the same ids in both."""
    return get_api_spec(api).endpoints.provider == get_api_spec(other_api).endpoints.provider


def get_api_dialect(api: str, model: str, provider: RequestProvider | None = None) -> Dialect:
    """Return the rules of ``api`` for ``model``, without the catalog's limits; the strictest rules for an unknown API.

    ``provider`` serves the model; None if nothing but the model's name is known.
    """
    spec = API_SPECS.get(api)
    if spec is None:
        return Dialect(api)
    if provider is None:
        provider = find_request_provider(api, model)
    name = provider.name or find_open_model_provider(api, model)
    rules = get_provider_rules(api, model, name)
    # A provider whose rules we know is described by its differences from the one that defined the API.
    is_known = rules is not None and not has_unknown_message_rules(name)
    dialect = spec.build_dialect(model, spec.endpoints.provider if is_known else name)
    dialect = replace(dialect, refused_kinds=_list_refused_kinds(spec))
    if rules is None:
        return dialect
    dialect = adapt_dialect(dialect, provider.name, rules)
    if provider.told_by in ("model", "guess"):
        return replace(dialect, provider_told_by=provider.told_by)
    return dialect


def _list_refused_kinds(spec: ApiSpec) -> tuple[str, ...]:
    """List the kinds of opaque parts that an API never accepts: malformed ones of its own, and those of other APIs."""
    foreign_kinds = []
    for other in API_SPECS.values():
        for kind in other.blocks.telling_kinds:
            if kind not in spec.blocks.telling_kinds:
                foreign_kinds.append(kind)
    kinds = (*spec.blocks.parsed_kinds, "unknown", *foreign_kinds, *_CONVERTER_KINDS, *spec.blocks.more_refused_kinds)
    return tuple(dict.fromkeys(kinds))


def relax_for_unknown_server(dialect: Dialect) -> Dialect:
    """Return the rules for messages that a client wrote for a server that ``dialect`` knows nothing about.

    The client knows the server, so its messages stay as written and no limit is assumed. Only a summary is merged with
    the user's message after it, since many chat templates require alternating turns.
    """
    spec = API_SPECS.get(dialect.api)
    if spec is not None:
        if spec.relax_dialect is None:
            return dialect
        return spec.relax_dialect(dialect)
    # An API that is not registered either: the strictest dialect is the one that merges neighbours of one role.
    if dialect.merges_same_role:
        return lift_known_limits(relax_turn_order(dialect))
    return dialect
