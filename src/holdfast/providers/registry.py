"""The APIs: one row each. What is known of one is in its folder; an API is added with a folder and a row."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.errors import UnrecognizedContent
from holdfast.providers.anthropic.spec import ANTHROPIC_SPEC
from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.dialects import lift_known_limits, relax_turn_order
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
"""What is spoken where nothing says which API it is: most servers take this one."""
_CONVERTER_KINDS = ("toolResult",)
"""Kinds of parts of programs that write requests, which they may have left behind (pi)."""


def get_api_spec(api: str) -> ApiSpec:
    """Return the form of ``api``; ``UnrecognizedContent`` names those there are."""
    if not isinstance(api, str) or api not in API_SPECS:
        raise UnrecognizedContent(f"no module speaks {api!r}; the APIs are {', '.join(API_NAMES)}")
    return API_SPECS[api]


def have_one_provider(api: str, other_api: str) -> bool:
    """Return whether both APIs are of one provider, who knows the same files by the same ids."""
    return get_api_spec(api).endpoints.provider == get_api_spec(other_api).endpoints.provider


def get_api_dialect(api: str, model: str, provider: str = "") -> Dialect:
    """Return the rules of ``api`` for ``model``, catalogue aside; the strictest ones for an API that nobody speaks.

    ``provider`` says whose server it is where the model's name does not.
    """
    spec = API_SPECS.get(api)
    if spec is None:
        return Dialect(api)
    return replace(spec.build_dialect(model, provider), refused_kinds=_list_refused_kinds(spec))


def _list_refused_kinds(spec: ApiSpec) -> tuple[str, ...]:
    """Return the kinds of opaque parts that an API never takes: malformed ones of its own, and those of others."""
    telling_kinds = [kind for other in API_SPECS.values() for kind in other.blocks.telling_kinds]
    foreign_kinds = [kind for kind in telling_kinds if kind not in spec.blocks.telling_kinds]
    kinds = (*spec.blocks.parsed_kinds, "unknown", *foreign_kinds, *_CONVERTER_KINDS, *spec.blocks.more_refused_kinds)
    return tuple(dict.fromkeys(kinds))


def relax_for_unknown_server(dialect: Dialect) -> Dialect:
    """Return the rules for what a client wrote for a server of its own, where ``dialect`` knows nothing of that server.

    The client knows it, so what it wrote stays as it is, and no limit is taken for granted; what stands for older turns
    is joined to the user's words behind it, since many a server's template wants turns in turn.
    """
    spec = API_SPECS.get(dialect.api)
    if spec is not None:
        return dialect if spec.relax_dialect is None else spec.relax_dialect(dialect)
    return lift_known_limits(relax_turn_order(dialect)) if dialect.merges_same_role else dialect
