"""The validator: is this request one that the API takes? Every broken rule, with a JSON path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.errors import FormatError, UnrecognizedContent
from holdfast.providers.anthropic.rules import blocks as anthropic_blocks
from holdfast.providers.anthropic.rules import calls as anthropic_calls
from holdfast.providers.anthropic.rules import context as anthropic_context
from holdfast.providers.anthropic.rules import options as anthropic_options
from holdfast.providers.anthropic.rules import server_tools as anthropic_server
from holdfast.providers.anthropic.rules import shape as anthropic_shape
from holdfast.providers.anthropic.rules import view as anthropic_view
from holdfast.providers.common.json.surrogates import find_lone_surrogate_path
from holdfast.providers.gemini.rules import calls as gemini_calls
from holdfast.providers.gemini.rules import contents as gemini_contents
from holdfast.providers.gemini.rules import options as gemini_options
from holdfast.providers.gemini.rules import view as gemini_view
from holdfast.providers.openai_chat.rules import calls as openai_chat_calls
from holdfast.providers.openai_chat.rules import content as openai_chat_content
from holdfast.providers.openai_chat.rules import options as openai_chat_options
from holdfast.providers.openai_chat.rules import view as openai_chat_view
from holdfast.providers.openai_responses.rules import calls as openai_responses_calls
from holdfast.providers.openai_responses.rules import items as openai_responses_items
from holdfast.providers.openai_responses.rules import options as openai_responses_options
from holdfast.providers.openai_responses.rules import view as openai_responses_view
from holdfast.providers.recognize import parse_body_fields, recognize_api
from holdfast.providers.registry import API_SPECS
from holdfast.providers.rules import required
from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.foreign import explain_foreign_findings
from holdfast.providers.rules.rule import Finding, Rule, collect_findings

__all__ = ["ALL_RULES", "Finding", "Rule", "validate_request"]


class _ApiRules(Struct, frozen=True):
    """How the rules of an API read a request, and what they are."""

    build_view: Callable[[RequestView], RequestView]
    rules: tuple[Rule, ...]


_RULES_BY_API: dict[str, _ApiRules] = {
    "anthropic": _ApiRules(
        anthropic_view.build_anthropic_view,
        (
            *anthropic_shape.SHAPE_RULES,
            *anthropic_calls.CALL_RULES,
            *anthropic_server.SERVER_TOOL_RULES,
            *anthropic_blocks.BLOCK_RULES,
            *anthropic_options.OPTION_RULES,
            *anthropic_context.CONTEXT_RULES,
        ),
    ),
    "openai-chat": _ApiRules(
        openai_chat_view.build_chat_view,
        (*openai_chat_content.CONTENT_RULES, *openai_chat_calls.CALL_RULES, *openai_chat_options.OPTION_RULES),
    ),
    "openai-responses": _ApiRules(
        openai_responses_view.build_responses_view,
        (
            *openai_responses_items.ITEM_RULES,
            *openai_responses_calls.CALL_RULES,
            *openai_responses_options.OPTION_RULES,
        ),
    ),
    "gemini": _ApiRules(
        gemini_view.build_gemini_view,
        (*gemini_contents.CONTENT_RULES, *gemini_calls.CALL_RULES, *gemini_options.OPTION_RULES),
    ),
}

ALL_RULES: tuple[Rule, ...] = tuple(
    rule for name, api in _RULES_BY_API.items() for rule in (*api.rules, *required.REQUIRED_RULES[name])
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
    speaks = _RULES_BY_API[name]
    request = speaks.build_view(
        RequestView(value, len(data), _merge_betas(value, betas), _get_body_model(fields) or model)
    )
    judging = (*speaks.rules, *required.REQUIRED_RULES[name]) if complete else speaks.rules
    if rules is not ALL_RULES:
        names = {rule.name for rule in rules}
        judging = tuple([rule for rule in judging if rule.name in names])
    field = API_SPECS[name].messages_field
    return explain_foreign_findings(
        collect_findings(judging, request), request.get_list(field), field, request.get_list("tools"), name
    )


def _resolve_api(api: str | None, fields: Mapping[str, Raw]) -> str:
    """Return the API of a body; raises ``UnrecognizedContent`` where there are no rules for it."""
    name = api or recognize_api(fields)
    if not isinstance(name, str) or name not in _RULES_BY_API:
        raise UnrecognizedContent(f"no rules are known for {name!r}; the APIs are {', '.join(_RULES_BY_API)}")
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
